"""The agents of `postroom demo`, each a process: `python -m postroom.cli.demo.agents ROLE NAME`, room $POSTROOM_URL."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final

import postroom
from postroom.core.config import URL_VARIABLE
from postroom.mail.agent import Agent
from postroom.mail.received import Received

JOBS: Final = "jobs"


def oracle(agent: Agent) -> None:
    """Answers questions until it is told to end."""

    def answer(message: Received) -> dict[str, Any]:
        return {"text": f"{message.payload['text'].rstrip('?')}: {sum(message.payload['numbers'])}"}

    agent.serve({"sum": answer})


def worker(agent: Agent) -> None:
    """Does jobs, one after the other. The one marked `hold` it does not finish when it comes for the first time."""
    for message in agent.listen(channels=[JOBS]):
        if message.payload["hold"] and message.delivery_count == 1:
            threading.Event().wait()  # the demo kills this process here


ROLES: Final = {"oracle": oracle, "worker": worker}


def _end_with_parent() -> None:
    """The demo keeps our standard input open as long as it lives.

    Not read through `sys.stdin`: a thread that waits there holds its lock, and the interpreter cannot end without it.
    """
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def main(role: str, name: str) -> None:
    """Play one role in the room until the demo ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with postroom.open(os.environ[URL_VARIABLE]) as room:
        ROLES[role](room.agent(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
