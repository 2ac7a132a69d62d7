"""Nobody leads: whoever is free takes the next task that is ready. One is killed half-way, and another goes on.

python examples/claim_board.py
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import postroom


def say(line: str) -> None:
    """Print a line in one piece: several processes write to the same terminal."""
    print(f"{line}\n", end="", flush=True)


def session(url: str, name: str, unlucky: Path) -> None:
    def work(task: postroom.HeldTask) -> str:
        if task.id == "page-3" and not unlucky.exists():
            unlucky.touch()
            say(f"{name}: {task.id} ... and somebody pulls the plug")
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{task.title}, written by {name}"

    with postroom.open(url) as room:
        for id in postroom.patterns.work_from_board(room, name, work, timeout_s=2):
            say(f"{name}: {id} done")


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/room"
        with postroom.open(url) as room:
            pages = [{"id": f"page-{n}", "title": f"page {n}"} for n in range(1, 6)]
            room.board.add_all([*pages, {"id": "book", "after": [page["id"] for page in pages]}])

        names = ["ada", "bob", "cleo"]
        sessions = [spawn.Process(target=session, args=(url, name, Path(folder) / "unlucky")) for name in names]
        for process in sessions:
            process.start()
        for process in sessions:
            process.join()

        with postroom.open(url) as room:
            tasks = room.board.tasks()
            print(f"\n{sum(task.state == 'done' for task in tasks)} of {len(tasks)} tasks are done")
            print(f"page-3 was claimed {room.board.get('page-3').token} times: {room.board.get('page-3').result}")


if __name__ == "__main__":
    main()
