"""The queues that can be measured, by name: Postroom itself, and the peers that bench/compare adds in its own processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .client import Peer
from .room import PostroomPeer

#: What gives each peer; its packages are imported only when it is used.
LOADERS: Final[dict[str, Callable[[], type[Peer]]]] = {PostroomPeer.name: lambda: PostroomPeer}


def peer(name: str) -> type[Peer]:
    """The peer of that name."""
    return LOADERS[name]()
