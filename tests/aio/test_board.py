"""The board and reservations with await."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.support.in_loop import run, until, waiting

import postroom
from postroom import aio
from postroom.core.clock import ManualClock


def test_tasks_go_round_with_await(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            board = room.board
            await board.add("T1", title="schema", lead="lead")
            await board.add_all([{"id": "T2", "after": ["T1"]}, {"id": "T3", "after": ["T2"]}])
            first = await board.claim("ada")
            assert first is not None and (first.id, first.title, first.settled) == ("T1", "schema", None)
            assert await board.claim("bob") is None
            assert await first.extend(60) and await first.done({"n": 1}) and not await first.done()

            second = await board.claim("bob")
            assert second is not None
            async with second:
                pass
            assert (await board.get("T2")).state == "done"
            third = await board.claim("bob", "T3", transient=True)
            assert third is not None and await (await board.held("T3", "bob")).blocked("no key")
            assert await board.reopen("T3")
            assert [task.state for task in await board.tasks()] == ["done", "done", "ready"]
            assert await board.tell("info", "ada", "board", text="x") and await board.notes() == {"ada": {"text": "x"}}

    run(main())


def test_an_abort_wakes_the_owner_in_the_loop(url: str, clock: ManualClock) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room, aio.open(url, clock=clock) as other:
            await room.board.add("T1")
            held = await room.board.claim("ada")
            assert held is not None
            waits = asyncio.create_task(held.wait_aborted())
            await waiting(room)

            await other.board.abort("T1")

            assert await waits and held.aborted and held.lost
            assert not await held.done()

    run(main())


def test_a_claim_that_waits_is_woken_and_keeps_no_thread(url: str, clock: ManualClock) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            await room.board.add("T0")
            assert await room.board.claim("bob", transient=True)
            claims = [asyncio.create_task(room.board.claim(f"ada-{n}", timeout_s=60)) for n in range(20)]
            await waiting(room, 20)

            await room.board.add("T1")
            done, rest = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)

            assert [held.id for task in done if (held := task.result())] == ["T1"]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    run(main())


def test_a_loop_works_and_a_cancelled_one_releases(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.board.add_all([{"id": f"T{n}"} for n in range(3)])
            seen = []

            async def work() -> None:
                async for task in room.board.work("ada"):
                    seen.append(task.id)
                    if task.id == "T2":
                        await asyncio.sleep(60)

            working = asyncio.create_task(work())
            await until(lambda: len(seen) == 3)
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            while (await room.board.get("T2")).state == "claimed":  # noqa: ASYNC110
                await asyncio.sleep(0.01)

            assert [task.state for task in await room.board.tasks()] == ["done", "done", "ready"]

    run(main())


def test_a_block_that_raises_releases(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.board.add("T1")
            with pytest.raises(ZeroDivisionError):
                async with await room.board.claim("ada") as held:  # type: ignore[union-attr]
                    print(1 / 0)
            assert (await room.board.get("T1")).why == "ZeroDivisionError: division by zero"
            assert held.settled

    run(main())


def test_a_claim_for_one_who_left_goes_back(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.board.add("T1")
            for _ in range(20):
                claim = asyncio.create_task(room.board.claim("ada", timeout_s=5))
                await asyncio.sleep(0)
                claim.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await claim
            await room._worker.run(lambda: None)
            assert (await room.board.get("T1")).state == "ready"

    run(main())


def test_watching_follows_the_board(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room, room.board.watch() as changes:
            await room.board.add("T1")
            assert (await anext(changes)).id == "T1"

    run(main())


def test_files_are_reserved_with_await(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            async with await room.reserve(["src/**"], "ada") as made:
                assert [each.agent for each in await room.reservations()] == ["ada"]
                with pytest.raises(postroom.ReservationConflict):
                    await room.reserve(["src/a"], "bob")
                assert await made.extend(60)
            assert await room.reservations() == []

    run(main())
