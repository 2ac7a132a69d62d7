"""Opens a room, forks, and tells what the child and the parent may do with it."""

from __future__ import annotations

import os
import sys
import warnings

import postroom

room = postroom.open(sys.argv[1])
ada = room.agent("ada")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons advise against forking beside threads
    child = os.fork()
if child == 0:
    try:
        ada.send("bob", {})
    except postroom.RoomClosed as error:
        print(f"child: {error}")
    room.close()
    print("child: closed without harm", flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
ada.send("bob", {})
print("parent: still works, agents:", *(f"{agent.name} {agent.status}" for agent in room.agents()))
room.close()
sys.exit(status)
