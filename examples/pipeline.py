"""Three sessions in a row: each does one phase of everything and hands it on. One is killed, and started again.

Ending a message and handing its result on are one step: nothing is lost on the way, and nothing arrives twice.

    python examples/pipeline.py
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import postroom


def outline(message: postroom.Received) -> dict[str, Any]:
    return {**message.payload, "outline": f"about {message.payload['topic']}"}


def draft(message: postroom.Received) -> dict[str, Any]:
    unlucky = Path(message.payload["folder"]) / "unlucky"
    if message.payload["topic"] == "bells" and not unlucky.exists():
        unlucky.touch()
        print("writer: bells ... and somebody pulls the plug", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return {**message.payload, "text": f"{message.payload['outline']}, at length"}


def review(message: postroom.Received) -> dict[str, Any]:
    return {**message.payload, "verdict": "good"}


PHASES = {"planner": (outline, "writer"), "writer": (draft, "reviewer"), "reviewer": (review, None)}


def stage(url: str, name: str) -> None:
    phase, to = PHASES[name]
    with postroom.open(url) as room:
        for done in postroom.patterns.work_as_stage(room, name, phase, to=to, timeout_s=5):
            print(f"{name}: {done['topic']}" + ("" if to else f" is {done['verdict']}: {done['text']}"), flush=True)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/room"
        with postroom.open(url) as room:
            for topic in ("leases", "bells", "tokens"):
                room.agent("editor").send("planner", {"topic": topic, "folder": folder}, correlation_id=topic)

        stages = {name: spawn.Process(target=stage, args=(url, name)) for name in PHASES}
        for process in stages.values():
            process.start()
        stages["writer"].join()
        if stages["writer"].exitcode == -signal.SIGKILL:  # whatever restarts programs on your machine
            stages["writer"] = spawn.Process(target=stage, args=(url, "writer"))
            stages["writer"].start()
        for process in stages.values():
            process.join()


if __name__ == "__main__":
    main()
