"""Three personas and a chat: all judge each message side by side, one or two are granted the word, and answer each other.

    python examples/personas.py
    python examples/personas.py --model ollama:llama3.2:3b "Which database should we take?"
    python examples/personas.py --model claude --hops 2

Without --model a mock judges by chance and speaks in ready-made lines; the way of a message is the same.
"""

from __future__ import annotations

import argparse
from contextlib import suppress

import postroom
from postroom.inference import compose
from postroom.pools.decide import Decision, Trigger

PERSONAS = {
    "ada": "You are Ada, a database engineer: query plans, indexes, tables, transactions. You are brief and exact.",
    "bob": "You are Bob, who tests and deploys the service. You ask what happens when it fails, and who is paged then.",
    "cyd": "You are Cyd, who speaks with the users. You want to know what people see, and how long they wait for it.",
}
LINES = {
    "ada": (
        "An index on the foreign key would do.",
        "Show me the plan before we guess.",
        "One transaction, not three.",
    ),
    "bob": ("And when that table is locked?", "I can put it behind a flag today.", "Who gets paged if it is slow?"),
    "cyd": ("Users wait four seconds on that page.", "Can we tell them what it is doing?", "That reads well. Ship it?"),
}
OPENING = ("The report page is slow: which index does its query need?", "Shall we deploy the new tables today?")
WIDTH = 24


def main() -> None:
    options = parse()
    evaluator = "mock" if options.model == "mock" else "by_spec"
    settings = {"think_ms": (50, 250), "seed": options.seed} if evaluator == "mock" else {"model": options.model}
    workers = {
        name: {"prompt": prompt, "quick": "words", "quick_below": 0, **settings} for name, prompt in PERSONAS.items()
    }
    with (
        postroom.open(options.room) as room,
        postroom.WorkerPool(f"postroom.inference:{evaluator}", workers=workers) as pool,
    ):
        coordinator = postroom.Coordinator(
            pool, room=room, max_responders=2, max_hops=options.hops, deadline_s=options.deadline
        )
        chat = room.agent("chat")
        chat.subscribe("chat")
        for words in options.words or OPENING:
            room.agent("you").publish("chat", {"text": words})
            while (message := chat.poll()) is not None:
                with message:
                    turn(room, coordinator, message, options.model)


def turn(room: postroom.Room, coordinator: postroom.Coordinator, message: postroom.Received, model: str) -> None:
    """One message: who would answer it, who may, and what they say."""
    print(f"\n{message.from_agent}: {message.payload['text']}")
    decision = coordinator.consider(message, on_change=show)
    for name in decision.granted:
        answer = said_by(name, message, model)
        room.agent(name).publish("chat", {"text": answer}, cause=message)


def said_by(name: str, message: postroom.Received, model: str) -> str:
    if model == "mock":
        return LINES[name][sum(message.id.encode()) % len(LINES[name])]
    try:
        return compose(message.to_dict(), {"model": model, "prompt": PERSONAS[name]}) or "…"
    except postroom.ModelError as error:
        return f"(I am at a loss: {error})"


def show(decision: Decision) -> None:
    """The decision as bars: what is left of each one's confidence."""
    if decision.trigger is Trigger.WAITING:
        return
    state = "stands" if decision.closed else "first looks, still open"
    print(f"  {decision.trigger} after {decision.after_s * 1000:.0f} ms ({state})")
    for name, outcome in decision.outcomes.items():
        left = outcome.decayed or 0.0
        bar = "█" * round(left * WIDTH)
        verdict = "answers" if outcome.granted else str(outcome.reason)
        print(f"    {name:4} {bar:·<{WIDTH}} {left:4.2f}  {verdict}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Three personas and a chat.")
    parser.add_argument(
        "--model", default="mock", help="a spec such as ollama:llama3.2:3b, claude, codex (default: mock)"
    )
    parser.add_argument("--room", help="the room's address (default: the nearest, or ./.postroom)")
    parser.add_argument("--hops", type=int, default=3, help="how many answers to answers there may be (default: 3)")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds until it is decided with what is there")
    parser.add_argument("--seed", type=int, default=7, help="of the mock's chance")
    parser.add_argument("words", nargs="*", help="what you say (default: two lines about a slow page)")
    return parser.parse_args()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
