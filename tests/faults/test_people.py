"""Questions to people, while everything in the room is killed again and again and a program forges answers.

The story. Askers ask under keys and wait; a person answers; a forger answers in her name by tokens that are not hers, by
replies and settled messages, and by writing what it can into the room's records. Each lives for a moment and is killed in
the middle of whatever it does, now and then all of them at once.

The invariant. Every question is answered once, with her answer, signed by her token. No forged one counts.
"""

from __future__ import annotations

import heapq
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.faults.programs.nursery import steady_ns
from tests.faults.programs.people import expected

import postroom
from postroom.mail import tokens
from postroom.mail.received import QUESTION

from .support import PATIENCE_S, Nursery, count, seed, url_of

AT_ONCE = 5
LIFE_S = 0.4


@pytest.fixture
def nursery(tmp_path: Path) -> Any:
    nursery = Nursery(tmp_path / "children.log", "people")
    yield nursery
    nursery.close()


def storm(nursery: Nursery, url: str, total: int, tries: int, notes: Path, begin: int) -> int:
    """Kill and start again until every question is answered and so many forgeries were tried. Returns the kills."""
    chance = random.Random(begin)
    with postroom.open(url) as room:
        mia, zoe = (tokens.add_token(room.gateway, name, human=True) for name in ("mia", "zoe"))
        bob = tokens.add_token(room.gateway, "bob")
        roles: dict[str, dict[str, Any]] = {
            "asker": {"total": total},
            "person": {"token": mia},
            "forger": {"tries": str(notes), "bob": bob, "zoe": zoe},
            "clerk": {},
        }
        lives_s = LIFE_S if total < 50 else 10 * LIFE_S
        turns = ["asker", "person", "forger", "person", "forger", "clerk"]
        alive: list[tuple[int, int]] = []
        born = kills = 0
        until_s = time.monotonic() + PATIENCE_S
        while not (answered(room, total) and notes.stat().st_size >= tries):
            assert time.monotonic() < until_s, f"{len(room.people.open())} are open:\n{nursery.log()}"
            while len(alive) < AT_ONCE:
                role = turns[born % len(turns)]
                pid = nursery.fork(f"people.{role}", url=url, seed=begin + born, **roles[role])
                heapq.heappush(alive, (steady_ns() + int((0.3 + chance.random() * lives_s) * 1e9), pid))
                born += 1
            time.sleep(max(0, alive[0][0] - steady_ns()) / 1e9)
            victims = [heapq.heappop(alive)[1]]
            if chance.random() < 0.1:
                victims += [pid for _, pid in alive]
                alive.clear()
            failed = nursery.ended(victims)
            assert not failed, f"children ended by themselves ({failed}):\n{nursery.log()}"
            nursery.kill(*victims)
            kills += len(victims)
        nursery.kill(*[pid for _, pid in alive])
    return kills


def answered(room: postroom.Room, total: int) -> bool:
    asked = room.peek(state=None, type=QUESTION, limit=2 * total, order="oldest")
    return len(asked) == total and not any(room.people.look(message.id).answer is None for message in asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    "store", ["sqlite", *(pytest.param(store, marks=pytest.mark.long) for store in ("files", "nats"))]
)
@pytest.mark.parametrize(
    ("total", "tries", "part"),
    [  # two hundred questions and a thousand forgeries in four parts, each of which stays under five minutes
        pytest.param(8, 40, 0, id="some"),
        *(pytest.param(50, 250, part, id=f"part {part}", marks=pytest.mark.long) for part in range(4)),
    ],
)
def test_each_question_is_answered_once_by_the_person_alone(
    in_memory: Path, tmp_path: Path, nursery: Nursery, store: str, total: int, tries: int, part: int
) -> None:
    notes = tmp_path / "tries"
    notes.touch()
    url = url_of(store, in_memory / "room")
    total, tries = count("QUESTIONS", total), count("FORGERIES", tries)
    kills = storm(nursery, url, total, tries, notes, seed() + 100_000 * part)

    with postroom.open(url) as room:
        asked = room.peek(state=None, type=QUESTION, limit=10_000, order="oldest")
        assert len(asked) == total
        for message in asked:
            given = room.people.wait(message.id, timeout_s=0)
            assert (given.said, given.by, given.how) == (expected(message.payload["text"]), "mia", "token")
            told = room.peek(state=None, answer_to=message.id, type=f"{QUESTION}.response", limit=100)
            assert [each.payload["text"] for each in told] == [given.said]
        assert room.people.open() == []
    print(f"people: {total} questions, {notes.stat().st_size} forgeries, {kills} kills on {store}")
