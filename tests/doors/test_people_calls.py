"""Questions to people over MCP: asked with options and a deadline, told of by `receipt`, never answered there."""

from __future__ import annotations

import asyncio

from tests.support.in_loop import run, states, waiting

from postroom import aio
from postroom.mail import tokens

from .support import inside, tools_of

DEPLOY = {"to": "mia", "body": "deploy?", "options": ["yes", "no"], "default": "no", "deadline_s": 7200}


def test_a_person_is_asked_and_the_answer_comes_to_the_call_that_waits(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            mia = await room.call(lambda room: tokens.add_token(room.gateway, "mia", human=True))
            (ada,) = tools_of(room, "ada")
            asking = asyncio.create_task(ada("ask", **DEPLOY, wait_s=60))
            await waiting(room)
            (found,) = await room.people.open("mia")
            await room.people.answer(found.id, "yes", token=mia)

            told = await asking
            assert (told["state"], told["from"], told["lane"], told["body"]) == ("answered", "mia", "human", "yes")
            assert (await states(room))["acked"] == 2  # the answer was told, and is not mail any more
            assert await ada.mail() == []
            receipt = await ada("receipt", id=told["id"])
            assert (receipt["question"]["state"], receipt["question"]["body"]) == ("answered", "yes")

    run(main())


def test_a_call_that_does_not_wait_leaves_the_question_open_and_its_answer_comes_as_mail(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            mia = await room.call(lambda room: tokens.add_token(room.gateway, "mia", human=True))
            ada, bob = tools_of(room, "ada", "bob")
            told = await ada("ask", to="*", body="which name?", data={"n": 1}, deadline_s=60, wait_s=0)
            assert told == {"id": told["id"], "state": "open"}
            assert (await ada("receipt", id=told["id"]))["question"]["state"] == "open"
            (question,) = await room.people.open()
            assert (question.person, question.data) == (None, {"n": 1})

            await room.people.answer(told["id"], "postroom", token=mia)

            (mail,) = await ada.mail()
            assert (inside(mail["body"]), mail["from"], mail["lane"]) == ("postroom", "mia", "human")
            assert inside((await ada("receipt", id=told["id"]))["question"]["body"]) == "postroom"
            assert "has no message" in await bob.fails("receipt", id=told["id"])

    run(main())


def test_nothing_that_speaks_mcp_answers_for_a_person(url: str) -> None:
    """Not even in the person's own name: what speaks MCP is a model."""

    async def main() -> None:
        async with aio.open(url) as room:
            await room.call(lambda room: tokens.add_token(room.gateway, "mia", human=True))
            ada, mia = tools_of(room, "ada", "mia")
            told = await ada("ask", **DEPLOY, wait_s=0)
            (mail,) = await mia.mail()

            assert "answered by a person" in await mia.fails("reply", id=mail["id"], body="yes")
            assert "answered by a person" in await mia.fails("ack", ids=[mail["id"]], outcome="refuse", why="no")
            await mia("ack", ids=[mail["id"]])
            await mia("send", to="ada", body="yes", type="question.person.response")

            assert (await ada("receipt", id=told["id"]))["question"] == {"id": told["id"], "state": "open"}

    run(main())


def test_what_is_asked_wrongly_is_told(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            (ada,) = tools_of(room, "ada")
            assert "no agent called" in await ada.fails("ask", **DEPLOY)
            await room.agent("mia", transient=True)
            assert "one of the options" in await ada.fails("ask", **{**DEPLOY, "default": "perhaps"})
            assert "must be given with a default" in await ada.fails("ask", to="mia", body="x", default="no")
            assert "not for questions to people" in await ada.fails("ask", **DEPLOY, also=["bob"])
            assert "over" not in await ada.fails("ask", to="mia", data={"n": 1}, deadline_s=5)
            await room.call(lambda room: tokens.add_token(room.gateway, "zoe", human=True))
            assert "mia has no person's token" in await ada.fails("ask", **DEPLOY)
            assert await room.people.open() == []

    run(main())
