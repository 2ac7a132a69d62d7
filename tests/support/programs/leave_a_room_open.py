"""Opens a room, uses it, and ends without closing it."""

from __future__ import annotations

import sys

import postroom

room = postroom.open(sys.argv[1])
ada, bob = room.agent("ada"), room.agent("bob")
ada.send("bob", {"text": "hi"})
print(bob.receive(timeout_s=5).payload["text"])
