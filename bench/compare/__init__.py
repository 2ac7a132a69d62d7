"""Postroom next to other queues on this machine: `make bench`, or `python bench/compare`.

The measuring is `postroom.cli.bench`; here are the peers, each one file, and the ratios. Adding a peer is one file and one
line here. Third-party clients appear in the file of their peer alone.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Final

from postroom.cli.bench.client import Peer
from postroom.cli.bench.peers import LOADERS

_MODULES: Final = {
    "bare": "bare_apsw",
    "redis": "redis_streams",
    "litequeue": "lite_queue",
    "persist-queue": "persist_queue",
    "huey": "huey_storage",
    "nats": "jetstream",
    "postgres": "postgres",
}


def _load(module: str) -> type[Peer]:
    found: type[Peer] = importlib.import_module(f".{module}", __package__).PEER
    return found


LOADERS.update({name: partial(_load, module) for name, module in _MODULES.items()})

#: All that can be measured, in the order in which they are shown.
NAMES: Final = tuple(LOADERS)

#: The ones whose ratios are worked out, and that are measured in every round.
COMPARED: Final = ("postroom", "bare", "redis")
