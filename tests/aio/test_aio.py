"""The same room with await: nothing blocks the loop, waiting keeps no thread, and many sends share a commit."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.in_loop import PATIENCE_S, pass_time, run, states, until, waiting

import postroom
from postroom import aio
from postroom.core.clock import ManualClock
from postroom.stores.bells import page

# The same names


def arguments_of(function: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """What a program can pass: names with an underscore are for the package's own callers."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if not p.name.startswith("_")]


@pytest.mark.parametrize("name", ["Room", "Agent", "Received", "Board", "HeldTask", "Reservation"])
def test_every_public_name_of_the_synchronous_class_is_here_with_the_same_arguments(name: str) -> None:
    ours, theirs = getattr(aio, name), getattr(postroom, name)
    names = [each for each in vars(theirs) if not each.startswith("_")]
    left_out = {
        "store",
        "gateway",
        "session",
        "conclude",
        "retry_verdict",
        "answer_verdict",
        "give_back",
        "return_unseen",
    }
    left_out |= {"look", "terms", "since_ns", "claimed_ns", "holder", "let_go", "was_late", "tell_late"}

    assert [each for each in names if not hasattr(ours, each) and each not in left_out] == []
    for each in names:
        if inspect.isfunction(getattr(theirs, each)) and each not in left_out:
            assert arguments_of(getattr(ours, each)) == arguments_of(getattr(theirs, each)), each


def test_a_message_goes_from_one_to_the_other(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), await room.agent("bob")
            id = await ada.send("bob", {"text": "hi"}, priority=7)

            message = await bob.receive(timeout_s=5)

            assert (message.id, message.payload, message.priority, message.from_agent) == (id, {"text": "hi"}, 7, "ada")
            assert (await room.receipt(id)).state == "claimed"
            assert (message.settled, await message.ack(), await message.ack(), message.settled) == (
                None,
                True,
                False,
                True,
            )
            assert (await room.receipt(id)).state == "acked"
            assert await bob.poll() is None
            assert {agent.name for agent in await room.agents() if agent.alive} == {"ada", "bob"}

    run(main())


def test_a_block_acks_at_its_end_and_delivers_again_when_it_raises(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            good, bad = await ada.send_many([{"to": "bob", "payload": {"n": n}} for n in (1, 0)])
            async with await bob.receive(timeout_s=5) as message:
                assert message.payload == {"n": 1}
            with pytest.raises(ZeroDivisionError):
                async with await bob.receive(timeout_s=5) as message:
                    print(1 / message.payload["n"])

            assert (await room.receipt(good)).state == "acked"
            assert [event.event for event in (await room.receipt(bad)).events] == ["stored", "claimed", "retried"]

    run(main())


def test_what_receivers_say_is_what_the_room_tells(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            ids = [await ada.send("bob", {"n": n}) for n in range(4)]
            first, second, third, fourth = [await bob.receive(timeout_s=5) for _ in ids]
            assert await first.extend(60)
            assert await first.refuse("no")
            assert await second.dead("never")
            assert await third.reply({"yes": True})
            assert third.answer_id is not None
            assert await fourth.retry("later", delay_s=0)

            assert [(await room.receipt(id)).state for id in ids] == ["refused", "dead", "answered", "stored"]
            assert [letter.error for letter in await room.dead_letters()] == ["never"]
            assert await room.requeue(ids[1]) == [ids[1]]
            assert (await ada.receive(timeout_s=5)).payload == {"yes": True}
            assert len(await room.peek(agent="bob")) == 2
            with pytest.raises(postroom.UnknownMessage):
                await room.receipt("nonsense")

    run(main())


def test_news_go_to_every_subscriber(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            await bob.subscribe("news")
            await ada.subscribe("news")

            assert len(await ada.publish("news", {"text": "x"})) == 2
            assert (await bob.receive(timeout_s=5)).payload == {"text": "x"}
            assert await bob.unsubscribe("news") is True

    run(main())


def test_a_loop_acks_what_it_worked_through(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            for n in range(5):
                await ada.send(None, {"n": n}, channel="jobs")

            found = [message.payload["n"] async for message in bob.listen(channels=["jobs"], timeout_s=0)]

            assert found == [0, 1, 2, 3, 4]
            assert await states(room) == {"acked": 5}

    run(main())


def test_a_loop_that_ends_in_the_middle_gives_its_message_back(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, max_deliveries=9) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            await ada.send("bob", {})
            async for _ in bob.listen():
                break
            assert await states(room) == {"stored": 1}

            with pytest.raises(KeyError):
                async for message in bob.listen():
                    print(message.payload["missing"])
            assert await states(room) == {"stored": 1}

            async with bob.listen() as messages:
                async for _ in messages:
                    break
            assert (await room.stats()).states["stored"] == 1

    run(main())


@pytest.mark.parametrize("boards", [True, False])
def test_a_stream_that_is_closed_ends_the_loop_of_another_task(
    url: str, clock: ManualClock, boards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            if not boards:
                monkeypatch.setattr(room._sync.store, "switchboard", lambda: None)
            await room.agent("bob")
            for name, waits in (("bob", True), ("bob", False), ("carl, who is not registered yet", False)):
                stream = room.agent(name).listen()
                looping = asyncio.create_task(anext(stream, "the end"))
                await asyncio.sleep(0)
                if waits:
                    await waiting(room)
                await stream.aclose()

                assert await asyncio.wait_for(looping, PATIENCE_S / 2) == "the end"
                assert room._worker.waits.pauses == {}
                assert await anext(stream, "the end") == "the end"

    run(main())


def test_what_comes_for_a_stream_while_it_is_closed_goes_back_unseen(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, max_deliveries=1) as room:
            id = await room.agent("ada").send("bob", {})
            bob = await room.agent("bob")
            claiming, go = threading.Event(), threading.Event()

            def hold(*_: object) -> None:
                claiming.set()
                assert go.wait(PATIENCE_S)

            forget = room.hooks.on("after_claim", hold)
            stream = bob.listen()
            looping = asyncio.create_task(anext(stream, "the end"))
            await until(claiming.is_set)
            closing = asyncio.create_task(stream.aclose())
            await asyncio.sleep(0)
            go.set()
            await closing
            forget()

            assert await looping == "the end"
            assert [event.event for event in (await room.receipt(id)).events] == ["stored", "claimed", "returned"]

    run(main())


def test_watching_begins_with_the_call(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada = await room.agent("ada")
            await ada.send("bob", {"n": 0})
            changes = room.watch(timeout_s=0.2)
            await ada.send("bob", {"n": 1})

            assert [change.message.payload["n"] async for change in changes] == [1]
            assert len(await room.events()) == 2

    run(main())


def test_errors_are_those_of_the_synchronous_room(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada = room.agent("ada")
            with pytest.raises(postroom.InvalidMessage, match="priority"):
                await ada.send("bob", {}, priority=11)
            with pytest.raises(postroom.InvalidMessage, match="name"):
                room.agent("")
            with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
                await ada.send("bob", {}, colour="red")  # type: ignore[call-overload]
            with pytest.raises(postroom.InvalidMessage, match="channels"):
                ada.listen(channels=[])
            with pytest.raises(postroom.InvalidMessage, match="concurrency"):
                await ada.serve({"*": print}, concurrency=0)

    run(main())


def test_a_call_that_raises_stop_iteration_says_so_and_keeps_nobody_waiting(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada = await room.agent("ada")

            def stop(*_: object) -> None:
                next(iter(()))

            room.hooks.on("after_send", stop)
            calls: list[Awaitable[Any]] = [room.call(stop), ada.send("bob", {}), room.call(stop)]
            ends = await asyncio.gather(*calls, return_exceptions=True)

            assert [type(end.__cause__) for end in ends if isinstance(end, RuntimeError)] == [StopIteration] * 3
            assert await states(room) == {"stored": 1}

    run(main())


def test_opening_says_what_is_wrong(tmp_path: Any) -> None:
    async def main() -> None:
        with pytest.raises(postroom.RoomNotFound):
            await aio.open(f"sqlite:{tmp_path}/nowhere", create=False)
        with pytest.raises(postroom.RoomError):
            async with aio.open("pigeon:post"):
                pass

    before = threading.active_count()
    run(main())
    for thread in threading.enumerate():
        if thread.name == "postroom aio":
            thread.join(PATIENCE_S)
    assert threading.active_count() == before


def test_a_room_belongs_to_its_loop() -> None:
    async def main() -> None:
        async with aio.open("memory:") as room:
            go = threading.Event()
            room.post(lambda _: go.wait(PATIENCE_S))
            new = room.agent("new")  # its registration is under way

            async def make_an_agent() -> aio.Agent:
                return await room.agent("from another loop")

            async def watch() -> Any:
                return await anext(room.watch())

            for call in (room.stats, room.close, new.poll, make_an_agent, watch):
                with pytest.raises(postroom.RoomError, match="another event loop"):
                    await asyncio.to_thread(asyncio.run, call())

            go.set()
            assert "from another loop" not in {agent.name for agent in await room.agents()}

    run(main())


def test_an_agent_may_be_named_while_the_loop_does_not_run() -> None:
    loop = asyncio.new_event_loop()
    try:
        room = loop.run_until_complete(aio.open("memory:")._open())
        agent = room.agent("ada")

        async def main() -> None:
            await agent.send("ada", {})
            await room.close()

        loop.run_until_complete(main())
    finally:
        loop.close()


# Waiting


def test_waiting_keeps_no_thread_and_everybody_is_woken(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada = await room.agent("ada")
            before = threading.active_count()
            waiters = [asyncio.create_task(room.agent(f"bob-{n}").receive(timeout_s=15)) for n in range(100)]
            await waiting(room, 100)

            assert threading.active_count() == before
            await asyncio.gather(*(ada.send(f"bob-{n}", {"n": n}) for n in range(100)))
            messages = await asyncio.gather(*waiters)

            assert [message.payload["n"] for message in messages] == list(range(100))

    run(main())


def test_a_receiver_gives_up_after_its_time(url: str, clock: ManualClock) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            receiving = asyncio.create_task(room.agent("bob").receive(timeout_s=3))
            await pass_time(room, clock, receiving)

            assert clock.steady_ns() >= 1_003_000_000_000
            with pytest.raises(postroom.ReceiveTimeout, match="no message for bob within 3 s"):
                await receiving

    run(main())


def test_a_delayed_message_comes_when_it_is_due(url: str, clock: ManualClock) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            receiving = asyncio.create_task(room.agent("bob").receive())
            await waiting(room)
            await room.agent("ada").send("bob", {}, delay_s=0.5)
            await pass_time(room, clock, receiving, 0.1)

            assert (await receiving).delivery_count == 1
            assert clock.steady_ns() >= 1_000_500_000_000

    run(main())


def test_an_asker_is_answered_refused_or_told_that_time_is_over(url: str) -> None:
    async def square(message: aio.Received) -> dict[str, Any]:
        return {"square": message.payload["n"] ** 2}

    async def refuse(message: aio.Received) -> None:
        await message.refuse("not today")

    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            stop = asyncio.Event()
            serving = asyncio.create_task(bob.serve({"square": square, "poem": refuse}, stop=stop))

            answers = await asyncio.gather(*(ada.ask("bob", {"n": n}, type="square") for n in range(40)))
            assert [answer.payload["square"] for answer in answers] == [n**2 for n in range(40)]
            with pytest.raises(postroom.Refused, match="not today"):
                await ada.ask("bob", {}, type="poem")
            with pytest.raises(postroom.Refused, match="no handler"):
                await ada.ask("bob", {}, type="song")
            stop.set()
            await serving
            with pytest.raises(postroom.AskTimeout):
                await ada.ask("bob", {}, 0.05)
            with pytest.raises(postroom.NotAcked):
                await ada.send("bob", {}, wait="acked", timeout_s=0.05)
            assert await room.waits() == []

    run(main())


def test_a_send_can_wait_until_it_is_acked(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            sending = asyncio.create_task(ada.send("bob", {}, wait="acked", timeout_s=10))
            message = await bob.receive(timeout_s=5)
            assert not sending.done()
            await message.ack()

            assert await sending == message.id

    run(main())


@pytest.mark.parametrize("sender", ["the same room", "another room"])
def test_where_there_is_no_descriptor_a_waiter_is_woken_all_the_same(
    tmp_path: Any, sender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path}/room"

    def no_page(*_: object) -> str:
        raise OSError("no shared memory here")

    monkeypatch.setattr(page, "map_part", no_page)

    async def main() -> None:
        async with aio.open(url) as room, aio.open(url) as other:
            ada = await (room if sender == "the same room" else other).agent("ada")
            waiters = [asyncio.create_task(room.agent(f"bob-{n}").receive(timeout_s=15)) for n in range(3)]
            await waiting(room, 3)
            assert len(room._worker.waits.watched) == 3
            started = asyncio.get_running_loop().time()

            for n in range(3):
                await ada.send(f"bob-{n}", {"n": n})

            assert [(await waiter).payload["n"] for waiter in waiters] == [0, 1, 2]
            assert asyncio.get_running_loop().time() - started < 0.8  # sooner than the look that everybody takes

    run(main())


def test_no_call_of_the_store_is_made_in_the_loops_own_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            store, callers = room._sync.store, set()

            def seen(name: str, method: Any) -> Any:
                def call(*args: Any, **kwargs: Any) -> Any:
                    callers.add((threading.current_thread().name, name))
                    return method(*args, **kwargs)

                return call

            for name in [name for name in dir(type(store)) if not name.startswith("_") and name != "close"]:
                if inspect.isfunction(inspect.getattr_static(store, name)):
                    monkeypatch.setattr(store, name, seen(name, getattr(store, name)))
            ada, bob = await room.agent("ada"), await room.agent("bob")
            serving = asyncio.create_task(room.agent("carl").serve({"*": lambda _: {"yes": True}}))
            await ada.ask("carl", {})
            await ada.send("bob", {})
            await ada.send_many([{"to": "bob", "payload": {}}] * 4)
            await (await bob.receive(timeout_s=5)).ack()
            async with await bob.receive() as message:
                await message.extend(5)
            await bob.poll()
            assert [message.id async for message in bob.listen(timeout_s=0)] != []
            sending = asyncio.create_task(ada.send("bob", {}, wait="acked"))
            await (await bob.receive(channels=["general"])).ack()
            await sending
            await room.stats()
            with pytest.raises(postroom.ReceiveTimeout):
                await bob.receive(0.01)
            serving.cancel()

        assert {"put", "claim", "settle", "listen", "get"} <= {name for _, name in callers}
        assert {thread for thread, _ in callers} <= {"postroom aio", "postroom upkeep"}

    run(main())


# Sending together


def count_puts(room: aio.Room, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    store, sizes = room._sync.store, []
    put = store.put

    def counted(drafts: Any) -> list[str]:
        sizes.append(len(drafts))
        return put(drafts)

    monkeypatch.setattr(store, "put", counted)
    return sizes


def count_claims(room: aio.Room, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...] | None]:
    store, taken = room._sync.store, []
    claim, claim_answer = store.claim, store.claim_answer

    def counted(want: Any) -> Any:
        taken.append(want.ids)
        return claim(want)

    def counted_by_question(question: str, want: Any) -> Any:
        delivery = claim_answer(question, want)
        if delivery is not None:
            taken.append((delivery.message.id,))
        return delivery

    monkeypatch.setattr(store, "claim", counted)
    monkeypatch.setattr(store, "claim_answer", counted_by_question)
    return taken


def test_sends_that_are_under_way_together_share_commits_and_keep_their_order(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = await room.agent("ada"), await room.agent("bob")
            sizes = count_puts(room, monkeypatch)

            async def talk(speaker: int) -> None:
                for n in range(5):
                    await ada.send("bob", {"speaker": speaker, "n": n})

            await asyncio.gather(*(talk(speaker) for speaker in range(100)))

            assert sum(sizes) == 500
            assert len(sizes) <= 60
            heard = [message.payload async for message in bob.listen(timeout_s=0)]
            for speaker in range(100):
                assert [each["n"] for each in heard if each["speaker"] == speaker] == [0, 1, 2, 3, 4]

    run(main())


def test_questions_share_commits_when_they_are_asked_and_when_their_answers_are_taken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, eve, bob = await room.agent("ada"), await room.agent("eve"), await room.agent("bob")
            sizes, taken = count_puts(room, monkeypatch), count_claims(room, monkeypatch)
            asking = [asyncio.create_task(agent.ask("bob", {"n": n})) for n in range(20) for agent in (ada, eve)]
            await waiting(room, 40)
            assert sizes == [40]
            questions = [await bob.receive(timeout_s=5) for _ in asking]
            taken.clear()
            go, at_work = threading.Event(), threading.Event()

            def hold() -> None:
                at_work.set()
                assert go.wait(PATIENCE_S)

            blocking = asyncio.create_task(room._worker.run(hold))
            await until(at_work.is_set)
            replies = [asyncio.create_task(question.reply(question.payload)) for question in questions]
            go.set()
            await asyncio.gather(blocking, *replies)

            answers = await asyncio.gather(*asking)
            assert [answer.payload["n"] for answer in answers] == [n for n in range(20) for _ in "ae"]
            assert [answer.settled for answer in answers] == [True] * 40
            assert sum(len(ids) for ids in taken if ids) == 40
            assert len(taken) <= 12, "taken one by one"
            assert await states(room) == {"answered": 40, "acked": 40}

    run(main())


@pytest.mark.parametrize("event", ["before_claim", "after_claim"])
def test_a_listener_that_raises_while_answers_are_taken_together_keeps_them_from_nobody(
    url: str, clock: ManualClock, event: str
) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room, aio.open(url, clock=clock) as other:
            ada, bob = await room.agent("ada"), await other.agent("bob")
            asking = [asyncio.create_task(ada.ask("bob", {"n": n})) for n in range(3)]
            await waiting(room, 3)
            failed: list[tuple[str, ...]] = []

            def fail(_: str, detail: Any) -> None:
                if len(detail["want"].ids or ()) > 1:
                    failed.append(detail["want"].ids)
                    raise ValueError("a listener's own trouble")

            room.hooks.on(event, fail)
            go = threading.Event()
            blocking = asyncio.create_task(room._worker.run(lambda: go.wait(PATIENCE_S)))
            for _ in asking:
                question = await bob.receive(timeout_s=5)
                await question.reply(question.payload)
            await until(lambda: not room._worker.waits.pauses)  # all of them were hinted
            await asyncio.sleep(0)
            go.set()

            async with asyncio.timeout(PATIENCE_S / 2):
                assert [answer.payload["n"] for answer in await asyncio.gather(*asking)] == [0, 1, 2]
            assert (len(failed), len(failed[0]), await blocking) == (1, 3, True)

    run(main())


def test_of_questions_that_are_asked_together_a_bad_one_fails_alone(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = await room.agent("ada"), room.agent("bob")
            asking = [asyncio.create_task(ada.ask("bob", {"n": n})) for n in (1, float("nan"), 2)]
            for _ in range(2):
                question = await bob.receive(timeout_s=5)
                await question.reply(question.payload)
            first, bad, second = await asyncio.gather(*asking, return_exceptions=True)

            assert isinstance(bad, postroom.InvalidMessage)
            assert isinstance(first, aio.Received) and first.payload == {"n": 1}
            assert isinstance(second, aio.Received) and second.payload == {"n": 2}

    run(main())


def test_of_sends_that_are_stored_together_a_bad_one_fails_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.open(url, rate_per_s=1, rate_burst=50) as room:
            ada, eve = await room.agent("ada"), await room.agent("eve")
            await ada.send("bob", {"n": 0}, idempotency_key="k")
            sizes = count_puts(room, monkeypatch)

            results = await asyncio.gather(
                ada.send("bob", {"n": 1}),
                ada.send("bob", {"n": float("nan")}),
                ada.send("bob", {"n": 2}, idempotency_key="k"),
                ada.send("bob", {"n": 0}, idempotency_key="k"),
                ada.send("bob", {"n": 3}),
                *(eve.send("bob", {"n": n}) for n in range(60)),
                return_exceptions=True,
            )

            ended = [result if isinstance(result, str) else type(result) for result in results]
            assert ended[1:3] == [postroom.InvalidMessage] * 2
            assert "NaN" not in str(results[2]) and "idempotency_key" in str(results[2])
            assert isinstance(ended[0], str) and isinstance(ended[3], str) and isinstance(ended[4], str)
            assert sorted(map(str, ended[5:])).count(str(postroom.RateLimited)) in range(8, 12)
            assert 1 in sizes and max(sizes) > 10  # together at first, then one by one
            stored = [message.payload["n"] for message in await room.peek(agent="bob", limit=100, from_agent="ada")]
            assert stored == [0, 1, 3]

    run(main())


def test_what_a_listener_raised_reaches_the_sender_of_that_message_though_others_sent_the_same(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, told = await room.agent("ada"), 0

            def fail_on_the_third(*_: object) -> None:
                nonlocal told
                told += 1
                if told == 3:
                    raise ValueError("a listener's own trouble")

            room.hooks.on("after_send", fail_on_the_third)
            ends = await asyncio.gather(*(ada.send("bob", {"same": 1}) for _ in range(4)), return_exceptions=True)

            assert [type(end) for end in ends] == [str, str, ValueError, str]
            assert await states(room) == {"stored": 4}

    run(main())


def test_a_busy_room_fails_all_sends_of_a_step_and_stores_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada = await room.agent("ada")
            tries: list[int] = []

            def busy(drafts: Any) -> list[str]:
                tries.append(len(drafts))
                raise postroom.RoomBusy("others hold it")

            monkeypatch.setattr(room._sync.store, "put", busy)
            results = await asyncio.gather(*(ada.send("bob", {}) for _ in range(50)), return_exceptions=True)

            assert {type(result) for result in results} == {postroom.RoomBusy}
            assert sum(tries) == 50  # nobody waited a second time for the same lock

    run(main())


HOLD = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def test_the_loop_goes_on_while_another_process_holds_the_write_lock(tmp_path: Any) -> None:
    async def main() -> None:
        async with aio.open(f"sqlite:{tmp_path}/room", busy_timeout_s=PATIENCE_S) as room:
            ada, bob = await room.agent("ada"), await room.agent("bob")
            words = [sys.executable, "-c", HOLD, f"{tmp_path}/room/messages.db"]
            holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
            assert holder.stdout is not None
            assert await asyncio.to_thread(holder.stdout.readline) == "held\n"

            at_the_store = threading.Event()
            room.hooks.on("before_send", lambda *_: at_the_store.set())
            work: list[asyncio.Task[Any]] = [asyncio.create_task(ada.send("bob", {"n": n})) for n in range(200)]
            work += [asyncio.create_task(bob.receive(timeout_s=10)) for _ in range(20)]
            await until(at_the_store.is_set)
            longest_s, before = 0.0, time.monotonic()
            for _ in range(1000):  # turns of the loop: it comes here again only if nothing of it waits for the lock
                await asyncio.sleep(0)
                longest_s, before = max(longest_s, time.monotonic() - before), time.monotonic()
            assert longest_s < 3  # a turn that waited would have waited for the busy timeout
            await asyncio.sleep(0.001)  # its timers go on, too
            assert not any(task.done() for task in work)
            holder.communicate("\n")  # only now the lock comes free
            await asyncio.gather(*work)
            assert (await room.stats()).states["claimed"] == 20

    run(main())


# The end


def test_closing_the_room_wakes_everybody(url: str) -> None:
    async def main() -> None:
        room = await aio.open(url)
        ada, bob = await room.agent("ada"), await room.agent("bob")

        async def work(_: aio.Received) -> None:
            pass

        waiters: list[Awaitable[Any]] = [
            asyncio.create_task(bob.receive()),
            asyncio.create_task(ada.ask("carl", {}, timeout_s=None)),
            asyncio.create_task(anext(bob.listen(channels=["jobs"]))),
            asyncio.create_task(anext(room.watch(timeout_s=60))),
            asyncio.create_task(ada.send("carl", {}, wait="acked")),
        ]
        serving = asyncio.create_task(room.agent("dora").serve({"*": work}))
        await waiting(room, 4)
        before = threading.active_count()

        await room.close()
        await room.close()
        ended = await asyncio.gather(*waiters, return_exceptions=True)

        # the feed has told its watcher of something before
        assert {type(end) for place, end in enumerate(ended) if place != 3} == {postroom.RoomClosed}
        await serving
        assert room.closed
        assert threading.active_count() < before
        for call in (ada.send("bob", {}), room.stats(), bob.receive()):
            with pytest.raises(postroom.RoomClosed):
                await call
        with pytest.raises(postroom.RoomClosed):
            room.agent("eve")

    run(main())


def test_what_was_not_settled_goes_back_when_the_room_closes(tmp_path: Any) -> None:
    url = f"sqlite:{tmp_path}/room"

    async def main() -> None:
        async with aio.open(url) as room:
            await room.agent("ada").send("bob", {})
            await room.agent("bob").receive(timeout_s=5)

    run(main())
    with postroom.open(url) as room:
        assert room.stats().states["stored"] == 1
        assert re.search("closed before", str(room.peek(agent="bob")[0].error))
        assert {agent.status for agent in room.agents()} == {"stopped"}
