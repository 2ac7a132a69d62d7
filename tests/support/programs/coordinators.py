"""One of several coordinators of a room: URL MESSAGES NUMBER [hang]. Prints, as JSON, what it decided and what it saw.

Each process judges by its own chance, so that two decisions on one message would differ. "hang": it takes the first message,
says so, and waits to be killed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.scripted_pool import InstantPool, ScriptedPool

import postroom
from postroom import Coordinator, Evaluation


def main(url: str, messages: int, number: int, hang: bool) -> None:
    chance = random.Random()
    names = [f"p{place}" for place in range(3)]

    def judge(_name: str, id: str) -> Evaluation:
        return Evaluation(id, chance.random(), should_respond=True)

    class Hanging(ScriptedPool):
        def begin(self, *_: object, **__: object) -> dict[str, object]:  # type: ignore[override]
            print("considering", flush=True)
            threading.Event().wait()
            return {}

    pool = Hanging(*names) if hang else InstantPool(*names, judge=judge)
    with postroom.open(url) as room:
        coordinator = Coordinator(pool, room=room, deadline_s=60)
        if not hang:
            print("ready", flush=True)
            sys.stdin.readline()
        granted, made = {}, []
        for place in range(messages):
            decision = coordinator.consider({"id": f"m{place}", "content": "hi", "sender_id": "carl"})
            granted[decision.message_id] = decision.granted
            made += [decision.message_id] * decision.made_here
    print(json.dumps({"granted": granted, "made": made, "asked": len(pool.asked), "number": number}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["hang"])
