"""Who is cancelled leaves at once, and leaves no claim behind."""

from __future__ import annotations

import asyncio
import random
import threading
from functools import partial
from typing import Any

import pytest
from tests.support.in_loop import PATIENCE_S, run, states, until, waiting

from postroom import aio


def cancel_meanwhile(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, _: str, detail: Any) -> None:
    """In the middle of a claim: cancel the one it is made for, and go on when that one has left."""
    assert detail["deliveries"]
    left = threading.Event()

    def cancel() -> None:
        task.add_done_callback(lambda _: left.set())
        task.cancel()

    loop.call_soon_threadsafe(cancel)
    assert left.wait(PATIENCE_S)


def test_who_is_cancelled_while_a_message_is_claimed_for_it_leaves_no_claim(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, max_deliveries=1) as room:
            loop = asyncio.get_running_loop()
            id = await room.agent("ada").send("bob", {})
            bob = await room.agent("bob")

            for claim in (bob.receive, bob.poll, lambda: anext(bob.listen())):
                receiving: asyncio.Task[Any] = loop.create_task(claim())
                forget = room.hooks.on("after_claim", partial(cancel_meanwhile, receiving, loop))
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                forget()
                assert await states(room) == {"stored": 1}

            events = [event.event for event in (await room.receipt(id)).events]
            assert events == ["stored", *["claimed", "returned"] * 3]
            assert (await bob.receive(timeout_s=5)).delivery_count == 1

    run(main())


def test_who_is_cancelled_when_the_message_is_there_but_not_yet_seen_leaves_no_claim(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.agent("ada").send("bob", {})
            bob = await room.agent("bob")
            receiving = asyncio.create_task(bob.receive())
            deliver, delivered = room._worker._deliver, []

            def deliver_and_cancel() -> None:
                deliver()
                delivered.append(True)
                receiving.cancel()  # between the result and the task's next turn

            room._worker._deliver = deliver_and_cancel  # type: ignore[method-assign]
            with pytest.raises(asyncio.CancelledError):
                await receiving
            room._worker._deliver = deliver  # type: ignore[method-assign]

            assert delivered
            assert await states(room) == {"stored": 1}

    run(main())


def test_a_loop_that_is_cancelled_before_it_sees_its_message_returns_it(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, max_deliveries=1) as room:
            id = await room.agent("ada").send("bob", {})
            bob = await room.agent("bob")
            claiming, go = threading.Event(), threading.Event()

            def hold(*_: object) -> None:
                claiming.set()
                assert go.wait(PATIENCE_S)

            forget = room.hooks.on("after_claim", hold)
            asking = asyncio.create_task(anext(bob.listen()))
            await until(claiming.is_set)
            asking.cancel()
            go.set()
            while not room._worker._done:  # the claim is over before the loop does anything about it
                pass
            forget()
            with pytest.raises(asyncio.CancelledError):
                await asking

            assert await states(room) == {"stored": 1}
            assert [event.event for event in (await room.receipt(id)).events] == ["stored", "claimed", "returned"]

    run(main())


def test_a_listener_that_raises_does_not_end_the_rooms_thread(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            loop = asyncio.get_running_loop()
            await room.agent("ada").send("bob", {})
            bob = await room.agent("bob")

            def fail(*_: object) -> None:
                raise ValueError("a listener's own trouble")

            receiving = loop.create_task(bob.receive())
            room.hooks.on("after_claim", partial(cancel_meanwhile, receiving, loop))
            room.hooks.on("before_settle", fail)
            with pytest.raises(asyncio.CancelledError):
                await receiving

            async with asyncio.timeout(PATIENCE_S / 2):
                assert await states(room) == {"claimed": 1}, "until its lease ends"
            assert "could not be given back at once" in caplog.text

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_cancelled_receivers_leave_nothing_claimed_and_lose_nothing(url: str, count: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def main() -> None:
        async with aio.open(url, max_deliveries=1) as room:
            loop = asyncio.get_running_loop()
            ada, bob = await room.agent("ada"), await room.agent("bob")
            sent = acked = cancelled = 0
            returned: list[str] = []
            room.hooks.on(
                "after_settle", lambda _, said: returned.extend([said["outcome"]] * (said["outcome"] == "returned"))
            )
            start = loop.time()
            for _ in range(20):
                await ada.send("bob", {})
                acked += await (await bob.receive()).ack()
                sent += 1
            longest_s = (loop.time() - start) / 50  # about as long as a receive takes, also on a busy machine
            while cancelled < count:
                if sent - acked < 5:
                    await ada.send("bob", {"n": sent})
                    sent += 1
                receiving = asyncio.create_task(bob.receive())
                loop.call_later(chance.random() * longest_s, receiving.cancel)
                try:
                    message = await receiving
                    acked += await message.ack()
                except asyncio.CancelledError:
                    cancelled += 1

            assert await states(room) == {"stored": sent - acked, "acked": acked}
            print(f"{sent} sent, {acked} acked, {len(returned)} were claimed for somebody who had left")
            assert len(returned) > count // 50
            left = [await bob.receive(timeout_s=5) for _ in range(sent - acked)]
            assert [message.delivery_count for message in left] == [1] * len(left)

    run(main())


@pytest.mark.slow
def test_loops_that_are_cancelled_at_any_moment_lose_nothing(url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def main() -> None:
        async with aio.open(url, max_deliveries=1_000_000) as room:
            loop = asyncio.get_running_loop()
            ada, bob = await room.agent("ada"), await room.agent("bob")
            done: set[int] = set()

            async def work() -> None:
                async for message in bob.listen():
                    await asyncio.sleep(0)
                    done.add(message.payload["n"])

            await ada.send_many([{"to": "bob", "payload": {"n": n}} for n in range(300)])
            for _ in range(150):
                working = asyncio.create_task(work())
                loop.call_later(chance.random() * 0.002, working.cancel)
                with pytest.raises(asyncio.CancelledError):
                    await working
            left = await states(room)
            assert left.get("claimed", 0) == 0
            assert left.get("acked", 0) + left.get("stored", 0) == 300
            assert left.get("acked", 0) <= len(done)

    run(main())


def test_a_block_that_is_cancelled_gives_its_message_back_at_once(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bob, inside = room.agent("bob"), asyncio.Event()
            await room.agent("ada").send("bob", {})

            async def work() -> None:
                async with await bob.receive():
                    inside.set()
                    await asyncio.Event().wait()

            working = asyncio.create_task(work())
            await inside.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working

            assert await states(room) == {"stored": 1}
            assert (await bob.poll()) is not None

    run(main())


def test_who_is_cancelled_while_it_finds_what_it_held_before_holds_it_still(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.agent("ada").send("bob", {})
            bob = await room.agent("bob")
            message = await bob.receive(timeout_s=5)
            await room.board.add("work")
            task = await room.board.claim("bob")
            assert task is not None
            deliver = room._worker._deliver
            for find in (partial(bob.claimed, message.id), partial(room.board.held, task.id, "bob")):
                finding: asyncio.Task[Any] = asyncio.create_task(find())

                def deliver_and_cancel(finding: asyncio.Task[Any] = finding) -> None:
                    deliver()
                    finding.cancel()  # between the result and the task's next turn

                room._worker._deliver = deliver_and_cancel  # type: ignore[method-assign]
                with pytest.raises(asyncio.CancelledError):
                    await finding
                room._worker._deliver = deliver  # type: ignore[method-assign]

            assert await states(room) == {"claimed": 1}
            assert await message.ack()
            assert await task.done()

    run(main())


def test_an_ack_whose_caller_is_cancelled_is_carried_out(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.agent("ada").send("bob", {})
            message = await room.agent("bob").receive(timeout_s=5)
            acking = asyncio.create_task(message.ack())
            await asyncio.sleep(0)
            acking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acking

            assert await states(room) == {"acked": 1}

    run(main())


def test_a_send_that_was_cancelled_before_it_began_is_not_made(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada = await room.agent("ada")
            blocked = threading.Event()
            blocking = asyncio.create_task(room._worker.run(blocked.wait))
            await asyncio.sleep(0)
            sending = asyncio.create_task(ada.send("bob", {}))
            await asyncio.sleep(0)
            sending.cancel()
            blocked.set()
            await blocking
            with pytest.raises(asyncio.CancelledError):
                await sending

            assert await states(room) == {}

    run(main())


def test_an_answer_to_an_asker_who_was_cancelled_is_ordinary_mail(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            asking = asyncio.create_task(ada.ask("bob", {}))
            question = await bob.receive(timeout_s=5)
            await waiting(room)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await question.reply({"late": True})

            assert (await ada.receive(timeout_s=5)).payload == {"late": True}

    run(main())


def test_who_is_cancelled_while_its_question_is_stored_no_longer_waits(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = await room.agent("ada"), await room.agent("bob")
            stored, go = threading.Event(), threading.Event()

            def hold(*_: object) -> None:
                stored.set()
                assert go.wait(PATIENCE_S)

            room.hooks.on("after_send", hold)
            asking = [asyncio.create_task(ada.ask("bob", {"n": n})) for n in range(2)]
            await until(stored.is_set)
            asking[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking[0]
            go.set()
            for _ in range(2):
                question = await bob.receive(timeout_s=5)
                await question.reply(question.payload)

            assert (await asking[1]).payload == {"n": 1}
            assert (await ada.receive(timeout_s=5)).payload == {"n": 0}, "ordinary mail"
            assert await room.waits() == []

    run(main())


def test_a_loop_that_ends_without_a_word_leaves_nothing_claimed(tmp_path: Any) -> None:
    """The program's main coroutine returns while a receiver claims: asyncio cancels it, and then there is no loop."""
    url = f"sqlite:{tmp_path}/room"
    claimed, ended = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        claimed.set()
        assert ended.wait(PATIENCE_S)

    async def main() -> aio.Room:
        room = await aio.open(url)
        await room.agent("ada").send("bob", {})
        bob = await room.agent("bob")
        room.hooks.on("after_claim", hold)
        main.receiving = asyncio.create_task(bob.receive())  # type: ignore[attr-defined]
        await until(claimed.is_set)
        return room

    room = asyncio.run(main())
    ended.set()
    room._worker._stopped = True
    room._worker._queue.put(None)
    room._worker._thread.join(PATIENCE_S)
    try:
        assert room._sync.stats().states["stored"] == 1
    finally:
        room._sync.close()
