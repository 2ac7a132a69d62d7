"""What a room does by itself: heartbeats, liveness, housekeeping by one process at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.patience import until
from tests.support.watched_clock import WatchedClock

from postroom import Room, RoomBusy
from postroom.core.clock import ManualClock, iso
from postroom.core.config import HEARTBEAT_S
from postroom.core.message import Draft, check
from postroom.core.system.process import host_id, this_process
from postroom.mail import housekeeping, presence

#: A process of this machine that is gone, and one of another machine.
DEAD = f"{host_id()}:4194999:1"
ELSEWHERE = "another-host.1:77:1"
PATIENCE_S = 20


def cell(room: Room, name: str) -> dict[str, Any]:
    found = room.store.cell_read(f"agent/{name}")
    assert found is not None
    value: dict[str, Any] = found.value
    return value


def rounds(room: Room, event: str = "after_sweep") -> threading.Semaphore:
    """Counts the rounds that kept house."""
    done = threading.Semaphore(0)
    room.hooks.on(event, lambda *_: done.release())
    return done


def begin_round(clock: WatchedClock) -> None:
    """Let the time come for a round, when the thread that makes it waits for it: what passes before does not count."""
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "postroom upkeep"]
    until(lambda: clock.is_waiting(thread), "it does not come to wait")
    clock.advance(HEARTBEAT_S)


# Being here


def test_an_open_agent_is_active_and_a_closed_one_is_stopped(open_room: Callable[..., Room]) -> None:
    room, other = open_room(), open_room()
    room.agent("ada")
    assert (cell(other, "ada")["status"], cell(other, "ada")["processes"]) == ("active", [this_process()])

    room.close()

    assert (cell(other, "ada")["status"], cell(other, "ada")["processes"]) == ("stopped", [])
    assert [(info.status, info.alive) for info in other.agents()] == [("stopped", False)]


def test_registering_again_writes_nothing(room: Room, open_room: Callable[..., Room]) -> None:
    room.agent("ada")
    before = room.store.cell_read("agent/ada")

    open_room().agent("ada")
    open_room().agent("ada", transient=True)

    assert room.store.cell_read("agent/ada") == before


def test_an_agent_of_several_processes_is_stopped_by_the_last(room: Room, open_room: Callable[..., Room]) -> None:
    other = open_room()
    other.agent("ada")
    value = cell(room, "ada")
    room.store.cell_write("agent/ada", value | {"processes": [ELSEWHERE, *value["processes"]]})

    other.close()

    assert (cell(room, "ada")["status"], cell(room, "ada")["processes"]) == ("active", [ELSEWHERE])


def test_one_that_was_only_seen_becomes_active_when_it_is_opened(room: Room) -> None:
    room.agent("ada", transient=True)
    assert (cell(room, "ada")["status"], cell(room, "ada")["transient"]) == ("seen", True)

    room.agent("ada")

    assert (cell(room, "ada")["status"], cell(room, "ada")["transient"]) == ("active", False)


def test_one_that_was_stopped_is_only_seen_when_a_command_speaks_for_it(open_room: Callable[..., Room]) -> None:
    room, other = open_room(), open_room()
    other.agent("ada")
    other.close()

    room.agent("ada", transient=True)

    assert cell(room, "ada")["status"] == "seen"


def test_a_heartbeat_says_what_the_agent_does_and_later_ones_keep_it(room: Room, clock: WatchedClock) -> None:
    ada = room.agent("ada")
    ada.heartbeat("busy", "counting")
    swept = rounds(room)

    begin_round(clock)
    assert swept.acquire(timeout=PATIENCE_S)

    value = cell(room, "ada")
    assert (value["status"], value["current_task"], value["heartbeat_ms"]) == ("busy", "counting", clock.wall_ms())


def test_processes_that_are_gone_are_seen_at_once(room: Room) -> None:
    room.agent("ada")
    room.store.cell_write("agent/ada", cell(room, "ada") | {"processes": [DEAD]})

    (info,) = room.agents()
    assert (info.status, info.alive) == ("gone", False)

    presence.prune(room._gateway, presence.Silences())
    assert (cell(room, "ada")["status"], cell(room, "ada")["processes"]) == ("gone", [])


def test_processes_elsewhere_are_judged_by_their_heartbeat(room: Room, clock: ManualClock) -> None:
    room.agent("ada", transient=True)
    room.store.cell_write("agent/ada", cell(room, "ada") | {"processes": [ELSEWHERE], "transient": False})

    assert room.agents()[0].alive is True
    clock.advance(presence.HEARTBEAT_LATE_S)
    # a room of many machines knows processes elsewhere by their silence too, and this one never spoke
    assert room.agents()[0].alive is (False if room.url.scheme == "nats" else None)


def test_an_agent_that_nobody_can_see_and_that_is_silent_for_long_is_gone_to_anybody_who_looks(
    room: Room, clock: ManualClock
) -> None:
    room.agent("ada", transient=True)
    beat = cell(room, "ada") | {"processes": [ELSEWHERE], "status": "active", "transient": False}
    room.store.cell_write("agent/ada", beat)
    clock.advance(presence.SILENT_S - 1)
    if room.url.scheme != "nats":  # which knows processes elsewhere by their silence
        assert room.agents()[0].status == "active"

    clock.advance(1)

    (info,) = room.agents()
    assert (info.status, info.alive) == ("gone", False)
    assert cell(room, "ada") == beat  # nothing was written for it


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_wall_clock_that_is_set_makes_no_silent_agent_gone(room: Room, clock: ManualClock, jump_s: float) -> None:
    room.agent("ada", transient=True)
    beat = cell(room, "ada") | {"processes": [ELSEWHERE], "status": "active", "transient": False}
    room.store.cell_write("agent/ada", beat)

    clock.jump_wall(jump_s)

    assert room.agents()[0].status == "active"


# Rounds


def test_rounds_send_heartbeats_and_keep_house(room: Room, clock: WatchedClock) -> None:
    ada = room.agent("ada")
    swept = rounds(room)
    id = ada.send("bob", {}, ttl_s=1)

    begin_round(clock)
    assert swept.acquire(timeout=PATIENCE_S)

    assert room.agents()[0].last_heartbeat == iso(clock.wall_ms())
    assert [e.event for e in room.receipt(id).events] == ["stored", "expired"]


def test_a_round_gives_up_the_questions_that_could_not_be_given_up_before(room: Room, clock: WatchedClock) -> None:
    ada, swept = room.agent("ada"), rounds(room)
    (id,) = room.store.put([check(Draft(from_agent="ada", to_agent="bob", payload={}, waiter=this_process()))])
    room.gateway.abandon_later([id])

    begin_round(clock)
    assert swept.acquire(timeout=PATIENCE_S)

    with room.agent("bob").receive(timeout_s=0) as question:
        question.reply({"n": 1})
    assert ada.receive(timeout_s=0).payload == {"n": 1}


def test_a_round_that_fails_does_not_end_the_rounds(room: Room, clock: WatchedClock) -> None:
    room.agent("ada")
    begun = rounds(room, "before_sweep")
    swept = rounds(room)
    troubles = iter([RoomBusy("for a moment")])

    def busy(*_: object) -> None:
        for trouble in troubles:
            raise trouble

    room.hooks.on("before_sweep", busy)
    begin_round(clock)
    assert begun.acquire(timeout=PATIENCE_S)
    begin_round(clock)
    assert swept.acquire(timeout=PATIENCE_S)


def test_a_room_without_agents_runs_no_thread(room: Room) -> None:
    room.agent("hook", transient=True)

    assert not [thread for thread in threading.enumerate() if thread.name == "postroom upkeep"]


def test_closing_ends_the_thread(room: Room) -> None:
    room.agent("ada")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "postroom upkeep"]
    assert thread.daemon

    room.close()

    assert not thread.is_alive()


def test_a_listener_may_close_the_room(room: Room, clock: WatchedClock) -> None:
    room.agent("ada")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "postroom upkeep"]
    room.hooks.on("after_sweep", lambda *_: room.close())

    begin_round(clock)
    thread.join(PATIENCE_S)

    assert room.closed and not thread.is_alive()


# Whose turn it is


@pytest.fixture
def quiet_round(room: Room) -> Callable[[], bool]:
    """One round, done here and now; returns whether this process kept house."""
    swept: list[bool] = []
    room.hooks.on("after_sweep", lambda *_: swept.append(True))

    def one() -> bool:
        swept.clear()
        room._upkeep.round()
        return bool(swept)

    return one


def keeper(room: Room) -> Any:
    found = room.store.cell_read(housekeeping.KEEPER_CELL)
    return None if found is None else found.value["owner"]


def test_one_process_keeps_house(room: Room, quiet_round: Callable[[], bool], clock: ManualClock) -> None:
    mine = {"owner": ELSEWHERE, "until_ms": clock.wall_ms() + 1000}
    room.store.cell_write(housekeeping.KEEPER_CELL, mine)

    assert quiet_round() is False
    assert keeper(room) == ELSEWHERE


def test_a_late_keeper_is_replaced(room: Room, quiet_round: Callable[[], bool], clock: ManualClock) -> None:
    room.store.cell_write(housekeeping.KEEPER_CELL, {"owner": ELSEWHERE, "until_ms": clock.wall_ms() + 1000})
    clock.advance(1)

    assert quiet_round() is True
    assert keeper(room) == this_process()


def test_a_keeper_whose_process_is_gone_is_replaced_at_once(
    room: Room, quiet_round: Callable[[], bool], clock: ManualClock
) -> None:
    room.store.cell_write(housekeeping.KEEPER_CELL, {"owner": DEAD, "until_ms": clock.wall_ms() + 30_000})

    assert quiet_round() is True


def test_a_keeper_from_before_the_clock_was_set_back_is_replaced(
    room: Room, quiet_round: Callable[[], bool], clock: ManualClock
) -> None:
    room.store.cell_write(housekeeping.KEEPER_CELL, {"owner": ELSEWHERE, "until_ms": clock.wall_ms() + 30_000})
    clock.jump_wall(-3600)

    assert quiet_round() is True


def test_the_keeper_writes_its_name_only_when_half_of_its_term_is_over(
    room: Room, quiet_round: Callable[[], bool], clock: ManualClock
) -> None:
    assert quiet_round()
    first = room.store.cell_read(housekeeping.KEEPER_CELL)
    clock.advance(HEARTBEAT_S)
    assert quiet_round()
    assert room.store.cell_read(housekeeping.KEEPER_CELL) == first
    clock.advance(housekeeping.TERM_S / 2)
    assert quiet_round()
    assert room.store.cell_read(housekeeping.KEEPER_CELL) != first


def test_closing_leaves_the_housekeeping_to_others(open_room: Callable[..., Room]) -> None:
    room, other = open_room(), open_room()
    room._upkeep.round()
    assert keeper(other) == this_process()

    room.close()

    assert keeper(other) is None
