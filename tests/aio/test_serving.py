"""Answering messages with coroutines and with plain functions, in one loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.in_loop import PATIENCE_S, pass_time, run, states, until

import postroom
from postroom import aio
from postroom.core.clock import ManualClock


def test_handlers_may_be_coroutine_functions_or_plain_ones(url: str) -> None:
    async def slow(message: aio.Received) -> dict[str, Any]:
        assert isinstance(message, aio.Received)
        await asyncio.sleep(0)
        return {"by": "a coroutine"}

    def plain(message: postroom.Received) -> dict[str, Any]:
        assert isinstance(message, postroom.Received)
        assert threading.current_thread() is not threading.main_thread()
        return {"by": "a thread"}

    async def main() -> None:
        async with aio.open(url) as room:
            ada = room.agent("ada")
            serving = asyncio.create_task(room.agent("bob").serve({"slow": slow, "*": plain}))

            assert (await ada.ask("bob", {}, type="slow")).payload == {"by": "a coroutine"}
            assert (await ada.ask("bob", {}, type="other")).payload == {"by": "a thread"}
            assert not serving.done()

        await serving  # ended with the room

    before = threading.active_count()
    run(main())
    assert threading.active_count() <= before + 4  # threads of plain handlers end by themselves


def test_a_handler_that_fails_has_its_message_delivered_again_and_then_set_aside(url: str) -> None:
    async def fail(message: aio.Received) -> None:
        raise ValueError(f"delivery {message.delivery_count}")

    async def main() -> None:
        clock = ManualClock()
        async with aio.open(url, clock=clock, max_deliveries=2) as room:
            id = await room.agent("ada").send("bob", {})
            serving = asyncio.create_task(room.agent("bob").serve({"*": fail}))
            while (await room.receipt(id)).state != "dead":
                clock.advance(0.5)
                await asyncio.sleep(0.001)
            serving.cancel()

            (letter,) = await room.dead_letters()
            assert [attempt.error for attempt in letter.attempts] == [
                "ValueError: delivery 1",
                "ValueError: delivery 2",
            ]

    run(main())


def test_a_handler_for_which_something_was_cancelled_is_tried_again(url: str, clock: ManualClock) -> None:
    async def work(message: aio.Received) -> dict[str, Any]:
        if message.delivery_count == 1:
            backend = asyncio.create_task(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(backend.cancel)
            await backend
        return {"delivery": message.delivery_count}

    def plain(message: postroom.Received) -> dict[str, Any]:
        if message.delivery_count == 1:
            asyncio.run(cancel_itself())
        return {"delivery": message.delivery_count}

    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            ada = room.agent("ada")
            serving = asyncio.create_task(room.agent("bob").serve({"plain": plain, "*": work}))
            for type in ("plain", "other"):
                asking = asyncio.create_task(ada.ask("bob", {}, type=type, timeout_s=100))
                await pass_time(room, clock, asking)

                answer = await asking
                assert answer.payload == {"delivery": 2}
                assert answer.message.answer_to is not None
                events = (await room.receipt(answer.message.answer_to)).events
                assert [event.detail for event in events if event.event == "retried"] == [
                    "RuntimeError: something the handler awaited was cancelled"
                ]
            assert not serving.done()
            serving.cancel()

    run(main())


def test_a_plain_handler_may_raise_whatever_it_likes(url: str, clock: ManualClock) -> None:
    def work(message: postroom.Received) -> dict[str, Any]:
        return {"delivery": message.delivery_count if message.delivery_count > 1 else next(iter(()))}

    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            serving = asyncio.create_task(room.agent("bob").serve({"*": work}, concurrency=1))
            asking = asyncio.create_task(room.agent("ada").ask("bob", {}, timeout_s=100))
            await pass_time(room, clock, asking)

            answer = await asking
            assert answer.payload == {"delivery": 2}
            assert answer.message.answer_to is not None
            events = (await room.receipt(answer.message.answer_to)).events
            assert [event.detail for event in events if event.event == "retried"] == ["StopIteration"]
            serving.cancel()

    run(main())


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def test_as_many_run_at_once_as_was_asked_for(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, running, most, go = await room.agent("ada"), 0, 0, asyncio.Event()

            async def work(_: aio.Received) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await go.wait()
                running -= 1

            await ada.send_many([{"to": "bob", "payload": {}}] * 12)
            serving = asyncio.create_task(room.agent("bob").serve({"*": work}, concurrency=5))
            await until(lambda: running == 5)
            assert await states(room) == {"stored": 7, "claimed": 5}
            go.set()
            while await states(room) != {"acked": 12}:
                pass
            assert most == 5
            serving.cancel()

    run(main())


def test_serving_that_is_cancelled_gives_back_what_runs(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob, running = await room.agent("ada"), room.agent("bob"), asyncio.Event()

            async def work(_: aio.Received) -> None:
                running.set()
                await asyncio.Event().wait()

            await ada.send_many([{"to": "bob", "payload": {}}] * 6)
            serving = asyncio.create_task(bob.serve({"*": work}, concurrency=3))
            await running.wait()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

            assert await states(room) == {"stored": 6}

    run(main())


def test_a_plain_function_is_waited_for_when_serving_is_cancelled(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            id = await room.agent("ada").send("bob", {})
            running, go = threading.Event(), threading.Event()

            def work(_: postroom.Received) -> None:
                running.set()
                assert go.wait(PATIENCE_S)

            serving = asyncio.create_task(room.agent("bob").serve({"*": work}))
            await until(running.is_set)
            serving.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not serving.done()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await serving

            assert (await states(room), (await room.receipt(id)).state) == ({"acked": 1}, "acked")

    run(main())


def test_a_handler_may_close_the_room(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as other, aio.open(url, clock=ManualClock()) as room:  # in which no lease ends

            async def close(_: aio.Received) -> None:
                await room.close()

            serving = asyncio.create_task(room.agent("bob").serve({"*": close}))
            id = await other.agent("ada").send("bob", {})
            await asyncio.wait_for(serving, PATIENCE_S / 2)

            assert (await other.receipt(id)).events[-1].detail == "the room was closed before it was settled"

    run(main())


def test_of_two_handlers_that_close_the_room_neither_waits_for_the_other(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as other, aio.open(url, clock=ManualClock()) as room:  # in which no lease ends
            running = 0

            async def close(_: aio.Received) -> None:
                nonlocal running
                running += 1
                await until(lambda: running == 2)
                await room.close()

            await other.agent("ada").send_many([{"to": "bob", "payload": {}}] * 2)
            await asyncio.wait_for(room.agent("bob").serve({"*": close}), PATIENCE_S / 2)

            assert await states(other) == {"acked": 1, "stored": 1}

    run(main())


def test_a_lease_is_extended_while_a_handler_runs(url: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with aio.open(url, clock=clock) as room:
            id = await room.agent("ada").send("bob", {})
            running, go = asyncio.Event(), asyncio.Event()

            async def work(_: aio.Received) -> None:
                running.set()
                await go.wait()

            serving = asyncio.create_task(room.agent("bob").serve({"*": work}, lease_s=30))
            await running.wait()
            for _ in range(10):
                clock.advance(10.5)
                while ((await room.get(id)).lease_until_ms or 0) < clock.wall_ms() + 25_000:
                    pass
            assert [event.event for event in (await room.receipt(id)).events] == ["stored", "claimed"]
            go.set()
            while (await room.receipt(id)).state == "claimed":
                pass

            assert (await room.receipt(id)).state == "acked"
            serving.cancel()

    run(main())
