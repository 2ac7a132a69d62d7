"""Questions to people in an asyncio room: many tasks wait for answers, and no thread does."""

from __future__ import annotations

import asyncio

from tests.support.in_loop import run, waiting

from postroom import aio
from postroom.mail import tokens


def test_a_task_waits_for_a_person_and_is_told(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            mia = await room.call(lambda room: tokens.add_token(room.gateway, "mia", human=True))
            first = await room.people.ask("mia", "deploy?", "ada", options=["yes", "no"])
            second = await room.people.ask(None, "which name?", "bob", timeout_s=60, default="postroom")
            waits = [asyncio.create_task(room.people.wait(id)) for id in (first, second)]
            await waiting(room, 2)

            await room.people.answer(first, "yes", token=mia)
            await room.people.answer(second, "letterbox", token=mia)

            assert [answer.said for answer in await asyncio.gather(*waits)] == ["yes", "letterbox"]
            assert await room.people.open() == []
            assert (await room.people.look(first)).state == "answered"

    run(main())


def test_a_task_that_is_cancelled_leaves_the_question_open(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            id = await room.people.ask("mia", "deploy?", "ada")
            wait = asyncio.create_task(room.people.wait(id))
            await waiting(room)

            wait.cancel()
            await asyncio.wait([wait])

            assert wait.cancelled()
            assert [question.id for question in await room.people.open()] == [id]

    run(main())
