"""Claims a message of bob's, says so, and waits to be killed: `hold_a_message.py URL ALIVE_S`.

ALIVE_S is how long it is taken to be alive after it has said so; it says so four times as often.
"""

from __future__ import annotations

import sys
import threading

import postroom
from postroom.stores import nats_room

alive_s = int(sys.argv[2])
nats_room.ALIVE_S, nats_room.BEAT_S = alive_s, alive_s / 4  # type: ignore[misc]
room = postroom.open(sys.argv[1])
message = room.agent("bob").receive(timeout_s=30, lease_s=3600)
print(message.id, flush=True)
threading.Event().wait()
