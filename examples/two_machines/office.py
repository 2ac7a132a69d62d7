"""One machine: asks the workshop three questions. `python office.py nats://HOST:4222/ROOM`"""

from __future__ import annotations

import sys

import postroom

with postroom.open(sys.argv[1]) as room:
    office = room.agent("office")
    for number in (3, 4, 5):
        answer = office.ask("workshop", {"square of": number}, timeout_s=30)
        print(f"office: the square of {number} is {answer.payload['is']}, says {answer.from_agent}", flush=True)
    office.send("workshop", {"go home": True})
