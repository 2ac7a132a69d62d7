"""Waiting in a loop: a thousand keep one descriptor, and somebody finds what no hint told of."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support import PROGRAMS
from tests.support.in_loop import pass_time, run, until, waiting
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom import aio
from postroom.aio.waiting import AT_ONCE
from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.system.process import host_id, process_started
from postroom.room import open_room
from postroom.stores.bells.bells import Bells
from postroom.stores.bells.page import SEATS, SWITCHBOARDS
from postroom.stores.contract import Want
from postroom.stores.nats import following

MANY = 16
PEER = PROGRAMS / "peer.py"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/room"


def test_a_thousand_who_wait_keep_two_descriptors_and_each_gets_its_own(sqlite_url: str) -> None:
    async def main() -> None:
        async with aio.open(sqlite_url) as room:
            ada = await room.agent("ada")
            receivers = [await room.agent(f"bob-{n}") for n in range(10)]
            waiters = [asyncio.create_task(receivers[n % 10].receive(timeout_s=15)) for n in range(2 * SEATS)]
            await waiting(room, 2 * SEATS)
            waits = room._worker.waits
            assert {(each.seated, each.descriptor) for each in waits.pauses.values()} == {(True, None)}
            assert len(waits._switchboards) == 2

            await ada.send("bob-7", {"n": 0})
            done, _ = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            assert [(await task).to_agent for task in done] == ["bob-7"]
            for task in waiters:
                task.cancel()

    run(main())


def test_when_all_boards_are_taken_each_waits_for_itself(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(sqlite_url) as room:
            bells = Bells(tmp_path / "room", SYSTEM)
            taken = [bells.switchboard(None) for _ in range(SWITCHBOARDS)]
            receiving = asyncio.create_task(room.agent("bob").receive(timeout_s=15))
            await waiting(room)
            (listening,) = room._worker.waits.pauses.values()
            assert (listening.seated, listening.descriptor is None) == (False, False)

            await room.agent("ada").send("bob", {"n": 1})
            assert (await receiving).payload == {"n": 1}
            for switchboard in taken:
                assert switchboard is not None
                switchboard.close()
            bells.close()

    run(main())


@pytest.mark.parametrize("changes", [1, 300], ids=["few changes", "very many changes"])
def test_what_no_hint_told_of_is_found_within_two_seconds(sqlite_url: str, clock: ManualClock, changes: int) -> None:
    async def main() -> None:
        async with aio.open(sqlite_url, clock=clock) as room:
            receivers = [asyncio.create_task(room.agent(f"bob-{n}").receive()) for n in range(MANY)]
            await waiting(room, MANY)
            clock.advance(1)  # a round that finds nothing: from now on the feed is followed
            await until(lambda: room._worker.waits._cursors is not None)
            with open_room(sqlite_url, clock=clock) as dumb:
                dumb.store._steps.bells.ring = lambda *_: None  # type: ignore[attr-defined]
                dumb.agent("ada").send_many([{"to": "eve", "payload": {}}] * (changes - 1))
                dumb.agent("ada").send("bob-7", {"n": 7})
            begun_ns = clock.steady_ns()
            await pass_time(room, clock, receivers[7])

            assert (await receivers[7]).payload == {"n": 7}
            assert clock.steady_ns() - begun_ns < 2_500_000_000
            assert sum(task.done() for task in receivers) == 1
            for task in receivers:
                task.cancel()

    run(main())


async def look_for_all(room: aio.Room, clock: ManualClock) -> set[str] | None:
    """Let a second pass: the room's thread looks once, and tells what it found."""
    waits, found = room._worker.waits, list[set[str] | None]()
    what_changed = waits._what_changed

    def note_what_changed() -> set[str] | None:
        found.append(what_changed())
        return found[-1]

    waits._what_changed = note_what_changed  # type: ignore[method-assign]
    clock.advance(1)
    await until(lambda: bool(found))
    await room._worker.run(lambda: None)  # what it posted to the loop is there now
    waits._what_changed = what_changed  # type: ignore[method-assign]
    return found[0]


async def without_news(room: aio.Room, clock: ManualClock, count: int) -> None:
    """Let time pass until all wait, and have no reason to look any more."""
    await waiting(room, count)
    while await look_for_all(room, clock) != set():
        await waiting(room, count)
    await waiting(room, count)


@pytest.mark.slow
def test_what_the_servers_did_not_tell_is_found_within_two_seconds(clock: ManualClock) -> None:
    url = f"nats://{shared_server().address}/{room_name()}"

    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            ada, bob = await room.agent("ada"), await room.agent("bob")
            follower = room._sync.store._room.follower  # type: ignore[attr-defined]
            receiving = asyncio.create_task(bob.receive())
            await without_news(room, clock, 1)
            clock.advance(following.SAFETY_LOOK_S)
            await ada.send("bob", {"n": 0})
            assert (await receiving).payload == {"n": 0}
            receiving = asyncio.create_task(
                bob.receive()
            )  # who has just looked at the leader does not do so again soon
            await without_news(room, clock, 1)
            follower._heard = lambda *_: None
            with open_room(url, clock=clock) as other:
                other.agent("eve").send("bob", {"n": 1})
            await look_for_all(room, clock)

            assert (await receiving).payload == {"n": 1}

    run(main())


@pytest.mark.parametrize("count", [1, MANY])
def test_while_nothing_changes_the_thread_looks_for_all_and_nobody_is_woken(
    url: str, clock: ManualClock, count: int
) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            receivers = [asyncio.create_task(room.agent(f"bob-{n}").receive()) for n in range(count)]
            await without_news(room, clock, count)
            looks: list[str] = []
            room.hooks.on("before_claim", lambda _, said: looks.append(said["want"].agent))
            found = [await look_for_all(room, clock) for _ in range(5)]
            assert (found, looks) == ([set()] * 5, [])
            for task in receivers:
                task.cancel()

    run(main())


def test_a_message_whose_receiver_died_is_given_to_one_of_many_who_wait(url: str, clock: ManualClock) -> None:
    """Nothing was changed, and nobody rang: somebody has to see that the process is gone."""

    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            await room.agent("ada").send("bob-3", {})
            with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:  # noqa: ASYNC220
                owner = f"{host_id()}:{other.pid}:{process_started(other.pid)}"
                want = Want(agent="bob-3", lease_s=600, owner=owner)
                await room._worker.run(lambda: room._sync.store.claim(want))
                receivers = [asyncio.create_task(room.agent(f"bob-{n}").receive()) for n in range(MANY)]
                await without_news(room, clock, MANY)
                other.kill()
            await look_for_all(room, clock)

            assert (await receivers[3]).delivery_count == 2
            for task in receivers:
                task.cancel()

    run(main())


@pytest.mark.slow
def test_many_who_ask_one_that_dies_all_learn_that_it_is_gone(sqlite_url: str) -> None:
    async def main() -> None:
        async with aio.open(sqlite_url) as room:
            ada = await room.agent("ada")
            words = [sys.executable, str(PEER), sqlite_url, "bob", "wait"]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:  # noqa: ASYNC220
                assert peer.stdout is not None
                assert await asyncio.to_thread(peer.stdout.readline) == "ready\n"
                asked = [asyncio.create_task(ada.ask("bob", {}, timeout_s=None)) for _ in range(AT_ONCE + MANY)]
                await waiting(room, len(asked))
                peer.kill()
            ends = await asyncio.gather(*asked, return_exceptions=True)

            assert {type(end) for end in ends} == {postroom.PeerGone}

    run(main())


def test_a_hint_that_comes_between_a_look_and_the_pause_is_not_lost(sqlite_url: str, clock: ManualClock) -> None:
    """Time stands still here: there is no safety look that could help."""

    async def main() -> None:
        async with aio.open(sqlite_url, clock=clock) as room:
            bob, sent = await room.agent("bob"), 0
            with open_room(sqlite_url, clock=clock) as other:
                ada = other.agent("ada")

                def send_after_the_look(_: str, said: Mapping[str, Any]) -> None:
                    nonlocal sent
                    if not said["deliveries"] and sent < 2:  # first before it listens, then when it listens
                        sent += 1
                        ada.send("eve" if sent == 1 else "bob", {})

                room.hooks.on("after_claim", send_after_the_look)
                assert (await bob.receive()).from_agent == "ada"

    run(main())


def test_who_is_cancelled_leaves_its_seat(sqlite_url: str) -> None:
    async def main() -> None:
        async with aio.open(sqlite_url) as room:
            bob = await room.agent("bob")
            for _ in range(40):
                receiving = asyncio.create_task(bob.receive())
                await waiting(room)
                receiving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
            await room._worker.run(lambda: None)
            (switchboard,) = room._worker.waits._switchboards
            seats: Callable[[], int] = lambda: len(switchboard._seats)  # type: ignore[attr-defined]  # noqa: E731
            assert seats() == 0

    run(main())
