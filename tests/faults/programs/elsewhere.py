"""Somebody on another machine, who does one thing, says so, and waits to be killed: `elsewhere.py URL WHAT ALIVE_S [SESSION]`.

ALIVE_S is how long it is taken to be alive after it has said so; it says so four times as often.
"""

from __future__ import annotations

import sys
import threading

import postroom
from postroom.stores.nats import heartbeats

url, what, alive_s, *words = sys.argv[1:]
heartbeats.ALIVE_S, heartbeats.BEAT_S = int(alive_s), int(alive_s) / 4  # type: ignore[misc]
room = postroom.open(url)
if what == "hold":
    print(room.agent("bob").receive(timeout_s=30, lease_s=3600).id, flush=True)
elif what == "open":
    print(room.session().id, flush=True)
elif what == "join":
    room.session(words[0], name="joined")
    print("joined", flush=True)
elif what == "task":
    task = room.board.claim(agent="bob", lease_s=3600)
    print(task and task.id, flush=True)
elif what == "serve":
    bob = room.agent("bob")
    print("serves", flush=True)
threading.Event().wait()
