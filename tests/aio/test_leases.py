"""Under asyncio, too, a living process keeps the messages that it holds."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.support.in_loop import run

from postroom import LateAck, RoomBusy, aio
from postroom.core.clock import ManualClock
from postroom.core.config import HEARTBEAT_S, LEASE_S


async def work(room: aio.Room, ids: list[str], seconds: float) -> None:
    """Let time pass; these messages are kept meanwhile. Also the loop is free: heartbeats do not need it."""
    clock: ManualClock = room.clock  # type: ignore[assignment]
    for _ in range(round(seconds / HEARTBEAT_S)):
        clock.advance(HEARTBEAT_S)
        while not all([await left_s(room, id) > LEASE_S / 3 for id in ids]):
            clock.advance(0.05)  # for a thread that came to wait only now
            await asyncio.sleep(0.001)


async def left_s(room: aio.Room, id: str) -> float:
    until_ms = (await room.get(id)).lease_until_ms
    return 0 if until_ms is None else (until_ms - room.clock.wall_ms()) / 1000


def test_a_message_in_a_block_and_those_that_a_loop_claimed_ahead_are_kept(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, clock=ManualClock()) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            id = await ada.send("bob", {})
            async with await bob.receive(timeout_s=0):
                await work(room, [id], 100)
            ids = [await ada.send("bob", {"n": n}) for n in range(4)]
            seen = []
            async for message in bob.listen(timeout_s=0, prefetch=3):
                seen.append(message.id)
                if len(seen) > 1:
                    await work(room, ids[len(seen) - 1 :], 50)
            assert seen == ids
            for each in (id, *ids):
                assert [event.event for event in (await room.receipt(each)).events] == ["stored", "claimed", "acked"]

    run(main())


def test_a_message_whose_object_was_dropped_ends_with_its_lease(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, clock=ManualClock()) as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            ids = [await ada.send("bob", {"n": n}) for n in range(2)]
            dropped: aio.Received | None = await bob.receive(timeout_s=0)
            kept = await bob.receive(timeout_s=0)
            assert dropped is not None
            await work(room, ids, 40)
            dropped = None
            gc.collect()
            await work(room, [kept.id], 40)
            again = await bob.receive(timeout_s=0)
            assert (again.id, again.delivery_count) == (ids[0], 2)

    run(main())


def test_a_message_whose_end_a_busy_room_could_not_record_comes_back_though_the_program_has_it(url: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with aio.open(url, clock=clock) as room, aio.open(url, clock=clock) as other:
            ids = [await room.agent("ada").send("bob", {"n": n}) for n in range(2)]
            kept = await room.agent("bob").receive(timeout_s=0)
            with pytest.raises(RoomBusy):
                async with await room.agent("bob").receive(timeout_s=0) as message:
                    end = room.hooks.on("before_settle", busy)
            end()
            await work(room, [kept.id], LEASE_S + HEARTBEAT_S)
            again = await other.agent("bob").receive(timeout_s=0)
            assert again.id == message.id == ids[1]

    run(main())


def busy(*_: object) -> None:
    raise RoomBusy("somebody else writes")


@pytest.mark.parametrize("late", ["warn", "raise"])
@pytest.mark.parametrize("how", ["block", "loop"])
def test_an_ack_that_comes_too_late_is_told(url: str, how: str, late: str) -> None:
    async def main() -> str:
        clock = ManualClock()
        async with aio.open(url, clock=clock) as room, aio.open(url, clock=clock) as other:
            id = await room.agent("ada").send("bob", {})

            async def lose() -> None:
                clock.advance(LEASE_S)
                taken = await other.agent("bob").receive(timeout_s=0)
                assert taken.id == id
                await taken.ack()

            async def handle() -> None:
                if how == "block":
                    async with await room.agent("bob").receive(timeout_s=0, lease_s=LEASE_S, late=late):
                        await lose()
                else:
                    async for _ in room.agent("bob").listen(timeout_s=0, lease_s=LEASE_S, late=late):
                        await lose()

            if late == "raise":
                with pytest.raises(LateAck, match=id):
                    await handle()
            else:
                with pytest.warns(LateAck, match=id):
                    await handle()
            return (await room.receipt(id)).state

    assert run(main()) == "acked"
