"""Those who ask several at once, and those who are asked: until a SIGKILL ends them."""

from __future__ import annotations

import random
import time

import postroom


def peer(folder: str, name: str, seed: int) -> None:
    """Answer, refuse, or take a question and never say anything."""
    chance = random.Random(seed)
    with postroom.open(f"sqlite:{folder}") as room:
        for message in room.agent(name).listen():
            time.sleep(chance.random() * 0.005)
            deed = chance.random()
            if deed < 0.6:
                message.reply({"by": name})
            elif deed < 0.7:
                message.refuse("not now")
            elif deed < 0.72:
                time.sleep(1)


def asker(folder: str, name: str, names: list[str], seed: int) -> None:
    """Ask all of them, again and again; the answers are looked at now and then alone."""
    chance = random.Random(seed)
    with postroom.open(f"sqlite:{folder}") as room:
        agent = room.agent(name)
        while True:
            time.sleep(chance.random() * 0.2)
            asked = agent.ask_many(names, {}, enough=chance.randint(1, len(names)), timeout_s=0.2, ttl_s=0.5)
            if chance.random() < 0.8:
                asked.answers  # noqa: B018  it waits
