"""Asking several at once with await: answers as they come, and nobody waits after the end, a cancellation or a close."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.in_loop import pass_time, run, until, waiting

import postroom
from postroom import aio
from postroom.core.clock import ManualClock
from postroom.stores.contract import Query


async def nobody_waits(room: aio.Room) -> bool:
    return await room.call(lambda sync: sync.store.find(Query(waiting=True)).messages) == []


async def answer(room: aio.Room, name: str, payload: dict[str, Any]) -> None:
    await (await room.agent(name).receive(timeout_s=60)).reply(payload)


def test_answers_come_as_they_are_given(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            asked = room.agent("ada").ask_many(["bob", "cy"], {"q": 1})
            came = []
            await answer(room, "cy", {"by": "cy"})
            async for each in asked:
                came.append(each.payload["by"])
                if len(came) == 1:
                    await answer(room, "bob", {"by": "bob"})

            assert came == ["cy", "bob"]
            assert [each.payload["by"] for each in asked.answers.values()] == came
            assert (asked.missing, asked.enough) == ({}, True)
            assert await nobody_waits(room)

    run(main())


def test_it_can_be_awaited_and_the_rest_is_cancelled(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            asking = room.agent("ada").ask_many(["bob", "cy"], {}, enough="any", timeout_s=None)
            await answer(room, "bob", {"a": 1})
            asked = await asking

            assert list(asked.answers) == ["bob"]
            assert isinstance(asked.missing["cy"], postroom.NotNeeded)
            assert asked.enough
            assert await nobody_waits(room)

    run(main())


def test_the_deadline_gives_what_came_and_why_the_rest_did_not(url: str, clock: ManualClock) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            await room.agent("cy")
            asking = room.agent("ada").ask_many(["bob", "cy"], {}, timeout_s=2)
            await answer(room, "bob", {"a": 1})
            task = asyncio.ensure_future(asking.over())
            await pass_time(room, clock, task)
            asked = await task

            assert list(asked.answers) == ["bob"]
            assert "within 2 s: cy has not taken it yet" in str(asked.missing["cy"])
            assert not asked.enough

    run(main())


def test_a_cancelled_task_leaves_nobody_waiting(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            asking = room.agent("ada").ask_many(["bob", "cy"], {}, timeout_s=None)
            task = asyncio.ensure_future(asking.over())
            await waiting(room)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await room.call(lambda _: None)

            assert await nobody_waits(room)

    run(main())


@pytest.mark.parametrize("read", [True, False])
def test_leaving_the_block_cancels_the_rest(url: str, read: bool) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            async with room.agent("ada").ask_many(["bob", "cy"], {}, timeout_s=None) as asked:
                if read:
                    await answer(room, "bob", {})
                    async for _ in asked:
                        break

            assert list(asked.answers) == (["bob"] if read else [])
            assert str(asked.missing["cy"]).endswith("when the asker stopped waiting")
            assert await nobody_waits(room)

    run(main())


def test_one_that_nobody_reads_is_told_to_the_room_soon(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            room.agent("ada").ask_many(["bob"], {}, timeout_s=None)
            await until(lambda: bool(room._sync.gateway._late))
            await room.call(lambda sync: sync.gateway.abandon_late())

            assert await nobody_waits(room)

    run(main())


def test_bad_input_is_told_to_the_reader(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            with pytest.raises(postroom.InvalidMessage, match="enough: must be all, any or"):
                await room.agent("ada").ask_many(["bob"], {}, enough=2)

            assert await room.count(state=None) == 0

    run(main())


def test_several_recipients_and_groups(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            assert await room.groups.add("reviewers", ["bob", "cy"]) == ["bob", "cy"]
            ids = await room.agent("ada").send(["@reviewers", "dan"], {"n": 1})

            assert [(await room.get(id)).to_agent for id in ids] == ["bob", "cy", "dan"]
            assert await room.groups.remove("reviewers", ["bob"]) == ["cy"]
            assert await room.groups.all() == {"reviewers": ["cy"]}
            with pytest.raises(postroom.UnknownGroup):
                await room.agent("ada").send(["@nobody"], {})

    run(main())
