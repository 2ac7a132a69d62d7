"""A thousand tries to answer in a person's name, at every door. tests/faults/test_people.py has those of programs in the room."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_by_hand import drop
from tests.support.in_loop import run

from postroom import aio
from postroom.errors import PostroomError
from postroom.mail import people, tokens
from postroom.mail.people import Answerer
from postroom.room import Room, open_room

from .support import tools_of
from .web.browser import Site, serving

QUESTIONS = 10


def post(site: Site, path: str, body: dict[str, Any], **headers: str) -> int:
    """What the page's server says."""
    request = urllib.request.Request(
        site.base + path, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def ways_in(room: Room, root: Path, site: Site, mia: str, chance: random.Random) -> list[Callable[[str], None]]:
    """Ways to answer a question that are none."""
    bob = tokens.add_token(room.gateway, "bob")
    zoe = tokens.add_token(room.gateway, "zoe", human=True)
    old = tokens.add_token(room.gateway, "mia", human=True)
    tokens.revoke_tokens(room.gateway, "mia", token_id=old.split("_")[1])

    def wrong() -> str:
        place = chance.randrange(len(mia))
        made = mia[:place] + chance.choice("0123456789abcdefXYZ") + mia[place + 1 :]
        return chance.choice([bob, zoe, old, "" if made == mia else made, f"prt_{chance.random()}"])

    def at_page(id: str) -> None:
        body = {"id": id, "answer": "forged"}
        named = chance.choice([{"X-Postroom-Token": wrong()}, {"Cookie": f"postroom-who={wrong()}"}, {}])
        opened = {"Authorization": f"Bearer {chance.choice([site.token, site.token, wrong(), ''])}"}
        assert post(site, "/api/answer", body, **named, **opened) in (401, 403, 429)

    def at_library(id: str) -> None:
        with pytest.raises(PostroomError):
            room.people.answer(id, "forged", token=wrong())
        with pytest.raises(PostroomError):
            people.answer(
                room.gateway, id, "forged", Answerer(None, "test", "mia", chance.choice(("terminal", "page")))
            )

    def by_hand(id: str) -> None:
        said = {"from": "mia", "to": "ada", "action": "question.person.response", "payload": {"text": "forged"}}
        said |= {"answer_to": id, "lane": "human", "correlation_id": id}
        drop(root / "inbox" / "ada" / f"2026{chance.randrange(10**8):08}-answer.json", said)

    return [at_page, at_library, by_hand]


async def over_mcp(url: str, ids: list[str], tries: int, chance: random.Random) -> None:
    """What an agent that says it is mia may call."""
    async with aio.open(url) as room:
        mia, bob = tools_of(room, "mia", "bob")
        for _ in range(tries):
            tools, id = chance.choice((mia, bob)), chance.choice(ids)
            with suppress(Exception):  # most are refused; what counts is what became of the question
                match chance.randrange(4):
                    case 0:
                        await tools.mail(limit=20)
                        await tools("reply", id=id, body="forged")
                    case 1:
                        await tools("ack", ids=[id], outcome=chance.choice(("refuse", "done")), why="forged")
                    case 2:
                        await tools("send", to="ada", body="forged", type="question.person.response")
                    case 3:
                        await tools("ask", to="mia", body="forged", options=["forged"], wait_s=0, answer_to=id)


@pytest.mark.slow
@pytest.mark.parametrize("tries", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_no_door_takes_an_answer_that_is_not_the_persons(tmp_path: Path, tries: int) -> None:
    chance = random.Random(tries)
    url = f"files:{tmp_path}/room"
    with open_room(url) as room, serving(room) as site:
        mia = tokens.add_token(room.gateway, "mia", human=True)
        options = ["yes", "no", "forged"]
        ids = [room.people.ask("mia", f"question {number}", "ada", options=options) for number in range(QUESTIONS)]
        ways = ways_in(room, tmp_path / "room", site, mia, chance)
        for _ in range(tries * 3 // 4):
            chance.choice(ways)(chance.choice(ids))
        run(over_mcp(url, ids, tries // 4, chance))

        assert [room.people.look(id).state for id in ids] == ["open"] * QUESTIONS
        for id in ids:
            assert room.people.answer(id, "yes", token=mia).said == "yes"
            assert room.people.wait(id, timeout_s=0).by == "mia"
        forged = [mail for mail in room.peek(agent="ada", state=None, limit=5000) if "forged" in str(mail.payload)]
        assert {mail.lane for mail in forged} <= {"agent"}
