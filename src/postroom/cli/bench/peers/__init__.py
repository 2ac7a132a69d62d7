"""The peers by name, in the order in which they are shown. Each is one file; third-party clients appear in theirs alone."""

from __future__ import annotations

import importlib
from typing import Final

from postroom.cli.bench.client import Peer

_MODULES: Final = {
    "postroom": "postroom_room",
    "bare": "bare_apsw",
    "redis": "redis_streams",
    "litequeue": "lite_queue",
    "persist-queue": "persist_queue",
    "huey": "huey_storage",
    "nats": "jetstream",
    "postgres": "postgres",
}

NAMES: Final = tuple(_MODULES)


def peer(name: str) -> type[Peer]:
    """The peer of that name; its packages are imported only when it is used."""
    module = importlib.import_module(f".{_MODULES[name]}", __package__)
    found: type[Peer] = module.PEER
    return found
