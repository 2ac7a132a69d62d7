"""An agent in a process of its own. Says "ready", takes one message, and ends in the way it was told."""

from __future__ import annotations

import os
import signal
import sys

import postroom

url, name, ending = sys.argv[1:]
room = postroom.open(url)
agent = room.agent(name)
print("ready", flush=True)
if ending == "wait":
    sys.stdin.read()
    room.close()
    sys.exit()
message = agent.receive(timeout_s=30)
if ending == "answer and die":
    message.reply({"last": "words"})
if ending.endswith("die"):
    os.kill(os.getpid(), signal.SIGKILL)
room.close()
