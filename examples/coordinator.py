"""A coordinator and an analyzer, each in a process of its own, talk through mailboxes of their session.

    python examples/coordinator.py

Then the analyzer is given a file that is not there: it fails, and with it the session. The coordinator, which waits for
an answer, is told at once, and the error that arrives here names the worker and carries its traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import postroom
from postroom import Session


@postroom.worker
def coordinator(session: Session, target: str) -> Any:
    session.mailbox.tasks.send({"action": "analyze", "target": target})
    return session.mailbox.results.receive(5000)


@postroom.worker
def analyzer(session: Session) -> str:
    task = session.mailbox.tasks.receive(10_000)
    lines = Path(task["target"]).read_text(encoding="utf-8").count("\n")
    session.mailbox.results.send({"file": Path(task["target"]).name, "summary": f"{lines} lines"})
    return "analyzed"


def main() -> None:
    with postroom.open() as room:
        with room.session() as session:
            print(session.delegate([coordinator(__file__), analyzer()]))

        with room.session() as session:
            try:
                session.delegate([coordinator("nowhere.txt"), analyzer()])
            except postroom.SessionFailed as error:
                print(error.failure.worker, "failed:", error.failure.message)


if __name__ == "__main__":
    main()
