"""A context manager: one agent knows the project, and the others ask it instead of searching for themselves.

Every agent is a process of its own. Nobody polls: a question wakes the context manager, its answer wakes the asker.

    python examples/context_manager.py
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading

import postroom

PROJECT = {
    "ui": "React; the components are in web/src",
    "database": "PostgreSQL; the migrations are in db/migrations",
}


def context_manager(url: str) -> None:
    done = threading.Event()

    def answer(question: postroom.Received) -> dict[str, str] | None:
        topic = question.payload["query"]
        print(f"context-manager: {question.from_agent} asks about {topic!r}", flush=True)
        if topic not in PROJECT:
            question.refuse(f"nothing is known about {topic!r}; ask about {' or '.join(PROJECT)}")
            return None
        return {"context": PROJECT[topic]}

    with postroom.open(url) as room:
        me = room.agent("context-manager")
        me.heartbeat(current_task="answering questions")
        me.serve({"context.query": answer, "stop": lambda _: done.set()}, stop=done)
    print("context-manager: goodbye")


def developer(url: str, name: str, topic: str) -> None:
    with postroom.open(url) as room:
        try:
            answer = room.agent(name).ask("context-manager", {"query": topic}, type="context.query", timeout_s=20)
            print(f"{name}: {topic} is {answer.payload['context']}")
        except postroom.Refused as no:
            print(f"{name}: {no}")


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/room"
        manager = spawn.Process(target=context_manager, args=(url,))
        developers = [
            spawn.Process(target=developer, args=(url, "frontend-dev", "ui")),
            spawn.Process(target=developer, args=(url, "backend-dev", "database")),
            spawn.Process(target=developer, args=(url, "newcomer", "lunch")),
        ]
        for process in [manager, *developers]:
            process.start()
        for process in developers:
            process.join()
        with postroom.open(url) as room:
            room.agent("lead").send("context-manager", {}, type="stop")
        manager.join()


if __name__ == "__main__":
    main()
