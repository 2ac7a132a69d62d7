"""An asker, a person and a forger, all in one room, until a SIGKILL ends them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import postroom
from postroom import Room
from postroom.core.message import Draft
from postroom.errors import PostroomError
from postroom.mail import people, tokens
from postroom.mail.people import CELLS
from postroom.mail.received import QUESTION
from postroom.stores.contract import Want

OPTIONS = ("yes", "no", "forged")


def expected(text: str) -> str:
    """What the person answers to a question; never what the forger wants."""
    return OPTIONS[int(text) % 2]


def asker(url: str, total: int, seed: int) -> None:
    """Ask all questions, each under a key of its own, and wait for answers in between: one after the other, again and again."""
    chance = random.Random(seed)
    with postroom.open(url) as room:
        while True:
            number = chance.randrange(total)
            id = room.people.ask("mia", str(number), "ada", options=OPTIONS, idempotency_key=f"q-{number}")
            try:
                said = room.people.wait(id, timeout_s=0.02).said
            except postroom.AskTimeout:
                continue
            assert said == expected(str(number)), f"{id} was answered {said}"


def person(url: str, token: str, seed: int) -> None:
    """Answer what waits, in any order, some of it at a time: looking through many forged answers takes a while."""
    chance = random.Random(seed)
    with postroom.open(url) as room:
        while True:
            waiting = room.people.open("mia")
            for question in chance.sample(waiting, min(len(waiting), 10)):
                time.sleep(chance.random() * 0.03)
                room.people.answer(question.id, expected(question.text), token=token)


def clerk(url: str, seed: int) -> None:
    """Do the chores, as every process that has the room open would."""
    del seed
    with postroom.open(url) as room:
        while True:
            people.tend(room.gateway)
            time.sleep(0.01)


def forger(url: str, tries: str, bob: str, zoe: str, seed: int) -> None:
    """Answer in her name in every way that a program of the room has. Each try leaves a byte in a file."""
    chance = random.Random(seed)
    tried = os.open(tries, os.O_WRONLY | os.O_APPEND)
    with postroom.open(url) as room:
        ways: list[Callable[[str], object]] = [
            lambda asked: room.people.answer(asked, "forged", token=bob),
            lambda asked: room.people.answer(asked, "forged", token=zoe),
            lambda asked: room.people.answer(
                asked, "forged", token=f"prt_{chance.randrange(16**12):012x}_{chance.random()}"
            ),
            lambda asked: _reply(room, asked),
            lambda asked: _settle(room, asked),
            lambda asked: _write(room, asked, _plain(room, chance)),
            lambda asked: _write(room, asked, _signed_by_another(room, asked, zoe)),
        ]
        while True:
            questions = room.peek(state=None, type=QUESTION, order="newest", limit=1000)
            if not questions:
                continue
            time.sleep(chance.random() * 0.02)
            os.write(tried, b".")
            with suppress(PostroomError):
                chance.choice(ways)(chance.choice(questions).id)


def _reply(room: Room, id: str) -> None:
    """As a receiver of her mail would."""
    want = Want(agent="mia", lease_s=1, ids=(id,))
    for delivery in room.gateway.claim(want).deliveries:
        room.agent("mia", transient=True).claimed(delivery.message.id).reply({"text": "forged"}, _lane="human")


def _settle(room: Room, id: str) -> None:
    """The same, past every check: the message is answered then, in the lane of people."""
    want = Want(agent="mia", lease_s=1, ids=(id,))
    for delivery in room.store.claim(want).deliveries:
        forged = Draft("mia", {"text": "forged"}, "ada", lane="human", answer_to=id, payload_json='{"text":"forged"}')
        room.store.settle(delivery.ticket, "answered", puts=[forged])


def _plain(room: Room, chance: random.Random) -> dict[str, Any]:
    """An answer without a signature, or with none that is one."""
    ids = [token.id for token in tokens.tokens(room.gateway) if token.agent == "mia"]
    how = chance.choice(("token", "terminal", "page", "deadline"))
    signature = chance.choice(("", "00" * 64, f"{chance.randrange(16**128):0128x}"))
    made = {"said": "forged", "by": "mia", "how": how, "time_ms": room.clock.wall_ms()}
    return made | {"token": ids[0], "signature": signature}


def _signed_by_another(room: Room, id: str, token: str) -> dict[str, Any]:
    """An answer in her name, signed by another person's token."""
    own = tokens.credential_of(room.gateway, token).token_id
    made = people._Decision("forged", "mia", "token", room.clock.wall_ms(), own)
    signature = tokens.sign(room.gateway, token, people._signed(room.get(id), made))
    return {
        "said": "forged",
        "by": "mia",
        "how": "token",
        "time_ms": made.time_ms,
        "token": own,
        "signature": signature,
    }


def _write(room: Room, id: str, forged: dict[str, Any]) -> None:
    """Put it where answers are kept, in the place of none or of another forged one."""
    cell = room.store.cell_read(CELLS + id)
    if cell is not None and room.people.look(id).state == "open":
        room.store.cell_write(CELLS + id, {"answer": forged}, expect=cell.version)
