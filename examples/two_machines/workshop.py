"""The other machine: answers until it is sent home. `python workshop.py nats://HOST:4222/ROOM`"""

from __future__ import annotations

import sys

import postroom

with postroom.open(sys.argv[1]) as room:
    for message in room.agent("workshop").listen(timeout_s=60):
        if "go home" in message.payload:
            print("workshop: going home", flush=True)
            break
        number = message.payload["square of"]
        print(f"workshop: {message.from_agent} asks for the square of {number}", flush=True)
        message.reply({"is": number * number})
