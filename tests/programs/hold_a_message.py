"""Claims a message of bob's, says so, and waits to be killed: `hold_a_message.py URL`."""

from __future__ import annotations

import sys
import threading

import postroom

room = postroom.open(sys.argv[1])
message = room.agent("bob").receive(timeout_s=30, lease_s=3600)
print(message.id, flush=True)
threading.Event().wait()
