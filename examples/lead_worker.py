"""A lead cuts work into tasks and assigns them; one worker is killed half-way, and another gets its task.

Every agent is a process of its own. The lead says who does what, and is told what came out.

    python examples/lead_worker.py
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import postroom

TASKS: list[dict[str, Any]] = [
    {"id": "schema", "title": "the tables"},
    {"id": "api", "title": "the endpoints", "after": ["schema"]},
    {"id": "web", "title": "the pages", "after": ["schema"]},
    {"id": "docs", "title": "the manual", "after": ["api", "web"]},
]


def worker(url: str, name: str, unlucky: Path) -> None:
    def work(task: postroom.HeldTask) -> dict[str, str]:
        print(f"{name}: {task.id} ...", flush=True)
        if task.id == "api" and not unlucky.exists():
            unlucky.touch()
            print(f"{name}: somebody pulls the plug", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return {"by": name}

    with postroom.open(url) as room:
        for _ in postroom.patterns.work_for_lead(room, name, work, timeout_s=5):
            pass


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/room"
        names = ["worker-1", "worker-2", "worker-3"]
        workers = [spawn.Process(target=worker, args=(url, name, Path(folder) / "unlucky")) for name in names]
        for process in workers:
            process.start()
        with postroom.open(url) as room:
            tasks = postroom.patterns.lead(room, TASKS, names, timeout_s=30)
            print()
            for task in tasks.values():
                print(f"{task.id:7} {task.state:5} by {task.owner}, claimed {task.token} times")
        for process in workers:
            process.join()


if __name__ == "__main__":
    main()
