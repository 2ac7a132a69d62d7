"""A living process keeps the messages that it holds; dropped, fixed and overlong ones end with their lease."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from tests.conftest import Background
from tests.support.patience import PATIENCE_S, until
from tests.support.watched_clock import WatchedClock

from postroom import InvalidMessage, LateAck, Received, Room, RoomBusy, RoomError
from postroom.core.config import AGENT_LEASE_S, HEARTBEAT_S, LEASE_S
from postroom.mail import gateway
from postroom.mail.serving import Farewell
from postroom.room import open_room as open_a_room

TEN_MINUTES_S = 600
THREAD = "postroom leases"

OpenRoom = Callable[..., Room]


def left_s(room: Room, id: str) -> float:
    """How long the lease of a message still runs; 0 when nobody holds it."""
    until_ms = room.get(id).lease_until_ms
    return 0 if until_ms is None else (until_ms - room.clock.wall_ms()) / 1000


def pass_by(clock: WatchedClock, seconds: float) -> None:
    """Let time pass, a heartbeat at a time, and only when the rooms' own threads have done what they had to."""
    for _ in range(round(seconds / HEARTBEAT_S)):
        rest(clock)
        clock.advance(HEARTBEAT_S)
    rest(clock)


@pytest.fixture(autouse=True)
def _others() -> Iterator[None]:
    """Threads of rooms that other tests have not closed wait for clocks of their own."""
    others.update(threading.enumerate())
    yield
    others.clear()


others: set[threading.Thread] = set()


def rest(clock: WatchedClock) -> None:
    """Wait until the rooms' own threads can do nothing more, those among them that have not begun to run yet."""
    names = (THREAD, "postroom upkeep")
    until(
        lambda: all(
            clock.is_waiting(each) for each in threading.enumerate() if each.name in names and each not in others
        )
    )


def work(room: Room, ids: Iterable[str], seconds: float) -> None:
    """Let time pass. No lease of these comes near its end."""
    clock: Any = room.clock
    for _ in range(round(seconds / HEARTBEAT_S)):
        pass_by(clock, HEARTBEAT_S)
        until(lambda: all(left_s(room, id) >= LEASE_S / 3 for id in ids))


def words(room: Room, id: str) -> list[str]:
    return [entry.event for entry in room.get(id).ledger]


def lease_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == THREAD and each not in others]


# What is kept


def test_a_message_that_somebody_works_on_for_ten_minutes_is_kept(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    message = room.agent("bob").receive(timeout_s=0)

    work(room, [id], TEN_MINUTES_S)

    assert other.agent("bob").poll() is None
    assert message.ack() is True
    assert words(room, id) == ["stored", "claimed", "acked"]


def test_so_is_one_in_a_block(open_room: OpenRoom) -> None:
    room = open_room()
    id = room.agent("ada").send("bob", {})
    with room.agent("bob").receive(timeout_s=0):
        work(room, [id], TEN_MINUTES_S)
    assert words(room, id) == ["stored", "claimed", "acked"]


def test_a_loop_keeps_what_it_claimed_ahead_and_has_not_come_to(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    ids = [room.agent("ada").send("bob", {"n": n}) for n in range(6)]
    seen = []
    for message in room.agent("bob").listen(timeout_s=0, prefetch=5):
        seen.append(message.id)
        if len(seen) > 1:  # the first was alone; from then on all others are claimed
            work(room, ids[len(seen) - 1 :], 100)
            assert other.agent("bob").poll() is None
    assert seen == ids
    assert all(words(room, id) == ["stored", "claimed", "acked"] for id in ids)


def test_a_loop_that_comes_round_often_keeps_what_lies_at_the_end(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    ids = [room.agent("ada").send("bob", {"n": n}) for n in range(41)]
    for place, _ in enumerate(room.agent("bob").listen(timeout_s=0, prefetch=40)):
        if place:
            work(room, ids[-1:], HEARTBEAT_S)
            assert other.agent("bob").poll() is None
    assert all(words(room, id) == ["stored", "claimed", "acked"] for id in ids)


@pytest.mark.slow
def test_three_workers_do_nine_jobs_of_ten_minutes_once_each(open_room: OpenRoom, clock: WatchedClock) -> None:
    """Under default settings, in simulated time."""
    lead = open_room()
    ids = [lead.agent("lead").send(None, {"job": n}, channel="jobs") for n in range(9)]
    done: list[str] = []

    def run(room: Room, name: str) -> None:
        for message in room.agent(name).listen(channels=["jobs"], timeout_s=0):
            clock.sleep(TEN_MINUTES_S)
            done.append(message.id)

    rooms = {f"worker-{n}": open_room() for n in range(3)}
    workers = [Background(partial(run, room, name)) for name, room in rooms.items()]
    while any(worker.running for worker in workers):
        until(lambda: all(worker.comes_to_wait(clock, 0.001) or not worker.running for worker in workers))
        pass_by(clock, HEARTBEAT_S)
    for worker in workers:
        worker.result()

    assert sorted(done) == sorted(ids)
    assert all(words(lead, id) == ["stored", "claimed", "acked"] for id in ids)


def test_a_room_that_is_busy_for_a_while_costs_no_lease(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch, clock: WatchedClock
) -> None:
    room = open_room()
    id = room.agent("ada").send("bob", {})
    message = room.agent("bob").receive(timeout_s=0)
    really = room.store.heartbeat
    refused: list[Any] = []

    def busy(*args: Any) -> Any:
        if len(refused) < 5:
            refused.append(args)
            raise RoomBusy("somebody else writes")
        return really(*args)

    monkeypatch.setattr(room.store, "heartbeat", busy)
    for _ in range(15):
        rest(clock)
        clock.advance(1)
    assert len(refused) == 5
    until(lambda: left_s(room, id) > LEASE_S / 2)
    assert message.ack() is True


def test_an_extension_by_the_receiver_is_not_shortened(open_room: OpenRoom) -> None:
    room = open_room()
    ids = [room.agent("ada").send("bob", {}) for _ in range(2)]
    first, second = (room.agent("bob").receive(timeout_s=0) for _ in range(2))
    first.extend(TEN_MINUTES_S)
    work(room, [second.id], 100)
    assert left_s(room, ids[0]) == TEN_MINUTES_S - 100


def test_a_message_that_is_taken_up_again_by_its_id_is_kept(open_room: OpenRoom) -> None:
    room = open_room()
    id = room.agent("ada").send("bob", {})
    room.agent("bob").receive(timeout_s=0)
    message = room.agent("bob").claimed(id)
    work(room, [id], 100)
    assert message.ack() is True


def test_so_is_one_of_whose_lease_little_was_left(open_room: OpenRoom, clock: WatchedClock) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    room.agent("bob").receive(timeout_s=0)
    clock.advance(LEASE_S - 1)
    message = room.agent("bob").claimed(id)
    clock.advance(2)
    assert other.agent("bob").poll() is None
    assert message.ack() is True


@pytest.mark.parametrize("dropped", ["the first", "the second"])
def test_a_message_is_kept_for_as_long_as_one_of_its_objects_is_there(open_room: OpenRoom, dropped: str) -> None:
    room = open_room()
    id = room.agent("ada").send("bob", {})
    both = [room.agent("bob").receive(timeout_s=0), room.agent("bob").claimed(id)]
    del both[dropped == "the second"]
    gc.collect()
    work(room, [id], 60)
    assert both[0].ack() is True


def test_a_look_at_what_a_loop_claimed_ahead_takes_nothing_from_it(open_room: OpenRoom) -> None:
    room = open_room()
    ids = [room.agent("ada").send("bob", {}) for _ in range(3)]
    seen = []
    for message in room.agent("bob").listen(timeout_s=0, prefetch=5):
        seen.append(message.id)
        if len(seen) == 2:  # and with it the third
            room.agent("bob").claimed(ids[2])
            work(room, ids[1:], 60)
    assert seen == ids


def test_a_room_gives_nothing_back_that_it_did_not_claim(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    message = room.agent("bob").receive(timeout_s=0)
    again = other.agent("bob").claimed(id)
    other.close()
    assert again.settled is None
    assert message.ack() is True


def test_a_transient_agent_that_serves_keeps_its_message_though_nobody_looks_after_the_room(
    open_room: OpenRoom, clock: WatchedClock
) -> None:
    room = open_room()
    id = room.agent("ada", transient=True).send("bob", {})
    stop, begun = threading.Event(), threading.Event()

    def slow(_: Received) -> None:
        begun.set()
        clock.sleep(3 * AGENT_LEASE_S)
        stop.set()

    serving = Background(lambda: room.agent("bob", transient=True).serve({"*": slow}, 1, stop=stop))
    until(begun.is_set)
    for _ in range(30):
        rest(clock)
        clock.advance(AGENT_LEASE_S / 10)
    serving.result()
    assert words(room, id) == ["stored", "claimed", "acked"]


# What is not


def test_a_message_whose_object_was_dropped_ends_with_its_lease(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    for _ in range(2):
        room.agent("ada").send("bob", {})
    dropped: Received | None = room.agent("bob").receive(timeout_s=0)
    kept = room.agent("bob").receive(timeout_s=0)
    assert dropped is not None
    id = dropped.id
    work(room, [id, kept.id], 60)
    dropped = None
    gc.collect()
    work(room, [kept.id], 40)

    again = other.agent("bob").receive(timeout_s=0)
    assert (again.id, again.delivery_count) == (id, 2)


def busy(*_: object, **__: object) -> Any:
    raise RoomBusy("somebody else writes")


@pytest.mark.parametrize("way", ["block", "failed block", "loop", "left loop"])
def test_a_message_whose_end_a_busy_room_could_not_record_comes_back_though_the_program_has_it(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    message = None
    with monkeypatch.context() as patch, suppress(RoomBusy, LookupError):
        if "block" in way:
            with room.agent("bob").receive(timeout_s=0) as message:
                patch.setattr(room.store, "settle", busy)
                if way == "failed block":
                    raise LookupError
        for message in room.agent("bob").listen(timeout_s=0):  # noqa: B007  the program has it
            patch.setattr(room.store, "settle", busy)
            if way == "left loop":
                break
    clock: Any = room.clock
    pass_by(clock, LEASE_S + HEARTBEAT_S)
    again = other.agent("bob").receive(timeout_s=0)
    assert message is not None
    assert (again.id, again.delivery_count, message.id) == (id, 2, id)


def test_what_nobody_saw_is_not_counted_though_the_room_could_take_it_back_only_when_it_was_closed(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, other = open_room(), open_room()
    ids = [room.agent("ada").send("bob", {}) for _ in range(4)]
    farewell = Farewell(room.gateway, 0)
    farewell.begins(unfinished := room.agent("bob").receive(timeout_s=0))
    loop = room.agent("bob").listen(timeout_s=0, prefetch=2)
    for _ in range(2):
        next(loop)  # and with the second the third
    with monkeypatch.context() as patch:
        patch.setattr(room.store, "settle", busy)
        farewell.return_running()
        loop.close()  # type: ignore[attr-defined]
    room.close()
    found = [other.get(id) for id in ids]
    assert unfinished.id == ids[0]
    assert [(each.state, each.delivery_count) for each in found] == [
        ("stored", 0),
        ("acked", 1),
        ("stored", 1),
        ("stored", 0),
    ]


def test_a_message_that_a_function_has_put_aside_comes_back_where_its_end_could_not_be_recorded(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch, clock: WatchedClock
) -> None:
    room, other = open_room(), open_room()
    room.agent("ada").send("bob", {})
    aside: list[Received] = []
    stop = threading.Event()

    def keep(message: Received) -> None:
        aside.append(message)
        monkeypatch.setattr(room.store, "settle", busy)
        stop.set()

    serving = Background(lambda: room.agent("bob").serve({"*": keep}, 1, stop=stop))
    while serving.running:
        clock.advance(1)
        time.sleep(0.001)
    serving.result()
    pass_by(clock, LEASE_S + HEARTBEAT_S)
    assert other.agent("bob").receive(timeout_s=0).id == aside[0].id


@pytest.mark.parametrize("asked", [{"lease_s": LEASE_S}, {}], ids=["fixed", "transient"])
def test_a_fixed_lease_is_not_extended(open_room: OpenRoom, asked: dict[str, Any]) -> None:
    room = open_room()
    id = room.agent("ada").send("bob", {})
    room.agent("ada").send("bob", {})
    message = room.agent("bob", transient=not asked).receive(timeout_s=0, **asked)
    before = left_s(room, id)
    kept = room.agent("bob").receive(timeout_s=0)
    work(room, [kept.id], 20)
    assert left_s(room, id) == before - 20
    assert message.ack() is True


def test_a_given_lease_is_extended_where_it_says_how_long_at_most(open_room: OpenRoom) -> None:
    room = open_room()
    id = room.agent("ada").send("bob", {})
    message = room.agent("bob").receive(timeout_s=0, lease_s=60, max_hold_s=None)
    work(room, [id], 200)
    assert left_s(room, id) > LEASE_S
    assert message.ack() is True


@pytest.mark.parametrize("taken", ["setting", "argument", "serve", "listen", "poll"])
def test_a_receiver_keeps_a_message_for_so_long_at_most(open_room: OpenRoom, clock: WatchedClock, taken: str) -> None:
    room, other = open_room(**({"max_hold_s": 65} if taken == "setting" else {})), open_room()
    room.agent("ada").send("bob", {})
    id = room.agent("ada").send("bob", {})
    unlimited = room.agent("bob").receive(timeout_s=0, max_hold_s=None)
    bob = room.agent("bob")
    limit: dict[str, Any] = {} if taken == "setting" else {"max_hold_s": 65}
    stop, go_on = threading.Event(), threading.Event()
    held: list[Any] = []

    def slow(message: Received) -> None:
        held.append(message)
        assert go_on.wait(PATIENCE_S)

    serving = Background(lambda: bob.serve({"*": slow}, 1, stop=stop, **limit) if taken == "serve" else None)
    if taken == "listen":
        held = [loop := bob.listen(timeout_s=0, **limit), next(iter(loop))]
    elif taken != "serve":
        held = [bob.poll(**limit) if taken == "poll" else bob.receive(timeout_s=0, **limit)]
    until(lambda: bool(held))
    assert room.get(id).state == "claimed"
    work(room, [id, unlimited.id], 30)
    work(room, [unlimited.id], 30)
    assert other.agent("bob").poll() is None
    work(room, [unlimited.id], 5)
    again = other.agent("bob").receive(timeout_s=0)
    assert (again.id, again.delivery_count) == (id, 2)
    work(room, [unlimited.id, id], 120)
    assert unlimited.ack() is True
    go_on.set()
    stop.set()
    clock.advance(1)
    serving.result()


def test_a_loop_that_does_not_come_round_loses_what_it_claimed_ahead(open_room: OpenRoom, clock: WatchedClock) -> None:
    room, other = open_room(), open_room()
    for n in range(4):
        room.agent("ada").send("bob", {"n": n})
    loop = iter(room.agent("bob").listen(timeout_s=0, prefetch=3, max_hold_s=65))
    next(loop)
    first = next(loop)  # and two more are claimed ahead
    ids = [message.id for message in room.peek(state="claimed", order="oldest")]
    assert len(ids) == 3
    work(room, ids, 40)
    second = next(loop)
    assert second.id == ids[1] != first.id
    work(room, ids[1:], 30)
    pass_by(clock, 40)
    assert {other.agent("bob").receive(timeout_s=0).id for _ in range(2)} == set(ids[1:])
    assert second.ack() is False


def test_a_loop_skips_what_a_heartbeat_found_with_another(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch, clock: WatchedClock
) -> None:
    room, other = open_room(), open_room()
    ids = [room.agent("ada").send("bob", {"n": n}) for n in range(4)]
    loop = iter(room.agent("bob").listen(timeout_s=0, prefetch=3))
    next(loop)
    assert next(loop).ack() is True  # and two more are claimed ahead

    def busy(*_: Any) -> Any:
        raise RoomBusy("somebody else writes")

    with monkeypatch.context() as patched:  # the heartbeats do not come in time, as in a process that was stopped
        patched.setattr(room.store, "heartbeat", busy)
        clock.advance(LEASE_S)
        taken = other.agent("bob").receive(timeout_s=0)
        assert taken.id == ids[2]
        rest(clock)
    room.gateway.leases.round()

    assert next(loop).id == ids[3]
    assert taken.ack() is True


def test_time_to_hold_must_make_sense(open_room: OpenRoom) -> None:
    room = open_room()
    with pytest.raises(InvalidMessage, match="max_hold_s"):
        room.agent("bob").poll(max_hold_s=0)
    with pytest.raises(RoomError, match="max_hold_s must be more than 0"):
        open_room(max_hold_s=-1)


# What it costs


def test_no_thread_is_started_for_work_that_is_quick(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch, clock: WatchedClock
) -> None:
    room = open_room()
    looks: list[None] = []
    look = room.gateway.leases.look

    def watched() -> None:
        look()
        looks.append(None)

    monkeypatch.setattr(room.gateway.leases, "look", watched)
    ada, bob = room.agent("ada"), room.agent("bob")
    for count in range(1, 6):
        ada.send("bob", {})
        message = bob.receive(timeout_s=0)
        rest(clock)
        clock.advance(HEARTBEAT_S - 0.1)
        message.ack()
        ada.send("bob", {})
        message = bob.receive(timeout_s=0)
        clock.advance(0.1)
        until(partial(lambda count: len(looks) == count, count))
        message.ack()
    assert lease_threads() == []


def test_a_message_that_is_held_for_long_costs_a_write_every_third_of_its_lease(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch, clock: WatchedClock
) -> None:
    room = open_room()
    really, beats = room.store.heartbeat, list[Any]()

    def counted(*args: Any) -> Any:
        lost = really(*args)
        beats.append(args)
        return lost

    monkeypatch.setattr(room.store, "heartbeat", counted)
    room.agent("ada").send("bob", {})
    message = room.agent("bob").receive(timeout_s=0)
    pass_by(clock, TEN_MINUTES_S)
    # One that waited for the room's lock while time passed is made again a second later, and the next ones are later too.
    assert len(beats) == pytest.approx(TEN_MINUTES_S / (LEASE_S / 3), abs=3)
    assert message.ack() is True


def test_the_thread_ends_with_the_room(open_room: OpenRoom) -> None:
    rooms = [open_room(), open_room()]
    for room in rooms:
        id = room.agent("ada").send("bob", {})
        message = room.agent("bob").receive(timeout_s=0)
        work(room, [id], 40)
        message.ack()
    assert len(lease_threads()) == 2
    rooms[0].close()
    assert len(lease_threads()) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_forgotten_room_takes_its_thread_along(tmp_path: Any) -> None:
    clock = WatchedClock()
    room = open_a_room(f"memory:{tmp_path.name}", clock=clock)
    id = room.agent("ada").send("bob", {})
    message = room.agent("bob").receive(timeout_s=0)
    work(room, [id], 40)
    message.ack()
    known = weakref.ref(room)
    del room, message
    gc.collect()
    assert known() is None
    until(lambda: lease_threads() == [])


def test_however_many_messages_are_held_none_of_those_that_somebody_has_is_forgotten(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MAX_REMEMBERED", 3)
    room, other = open_room(), open_room()
    room.gateway._most_held = 3
    for n in range(12):
        room.agent("ada").send("bob", {"n": n})
    mine = [room.agent("bob").receive(timeout_s=0) for _ in range(6)]
    for _ in range(6):
        room.agent("bob").receive(timeout_s=0)  # and dropped
    assert {message.ticket for message in mine} <= set(room.gateway.leases.held)
    assert len(room.gateway.leases.held) < 12
    work(room, [message.id for message in mine], 40)
    room.close()
    given_back = other.peek(agent="bob", state="stored", limit=20)
    assert {message.id for message in mine} <= {message.id for message in given_back}


# Acks that come too late


def lose(room: Room, other: Room, id: str) -> Received:
    """Let somebody else have a message whose fixed lease is over."""
    clock: Any = room.clock
    clock.advance(LEASE_S)
    taken = other.agent("bob").receive(timeout_s=0)
    assert taken.id == id
    return taken


def test_a_block_whose_ack_comes_too_late_warns(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    with (
        pytest.warns(LateAck, match=f"message {id} \\(delivery 1\\) came too late") as told,
        room.agent("bob").receive(timeout_s=0, lease_s=LEASE_S),
    ):
        taken = lose(room, other, id)
    late = told[0].message
    assert isinstance(late, LateAck)
    assert (late.id, late.delivery, told[0].filename) == (id, 1, __file__)
    assert taken.ack() is True


def test_it_raises_where_that_was_asked_for(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    message = room.agent("bob").poll(lease_s=LEASE_S, late="raise")
    assert message is not None
    with pytest.raises(LateAck) as raised, message:
        lose(room, other, id)
    assert (raised.value.id, raised.value.delivery) == (id, 1)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(InvalidMessage, match="late: must be warn or raise"):
        room.agent("bob").poll(late="never")


def test_a_block_that_settled_its_message_was_told_already(open_room: OpenRoom) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    with room.agent("bob").receive(timeout_s=0, lease_s=LEASE_S, late="raise") as message:
        lose(room, other, id)
        assert message.ack() is False


@pytest.mark.parametrize("outcome", ["ack", "refuse", "reply"])
def test_a_message_that_was_settled_elsewhere_in_its_receivers_name_is_not_late(
    open_room: OpenRoom, outcome: str
) -> None:
    room = open_room()
    room.agent("ada").send("bob", {})
    said = {"ack": (), "refuse": ("no",), "reply": ({},)}[outcome]
    with room.agent("bob").receive(timeout_s=0, late="raise") as message:
        assert getattr(room.agent("bob").claimed(message.id), outcome)(*said) is True


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_round_of_a_loop_whose_ack_comes_too_late_warns_and_goes_on(open_room: OpenRoom, prefetch: int) -> None:
    room, other = open_room(), open_room()
    ids = [room.agent("ada").send("bob", {"n": n}, priority=9 - n) for n in range(4)]
    seen, taken = [], []

    def listen() -> None:
        for message in room.agent("bob").listen(timeout_s=0, lease_s=LEASE_S, prefetch=prefetch):
            seen.append(message.id)
            if message.id == ids[1]:
                taken.append(lose(room, other, ids[1]))

    with pytest.warns(LateAck, match=ids[1]) as told:
        listen()
    assert seen == ids
    assert [str(each.filename) for each in told] == [__file__]
    assert taken[0].ack() is True


@pytest.mark.parametrize("prefetch", [1, 3])
def test_with_raise_it_ends_the_loop_and_what_was_claimed_goes_back(open_room: OpenRoom, prefetch: int) -> None:
    room, other = open_room(), open_room()
    ids = [room.agent("ada").send("bob", {"n": n}, priority=9 - n) for n in range(4)]
    with pytest.raises(LateAck, match=ids[1]):
        for message in room.agent("bob").listen(timeout_s=0, lease_s=LEASE_S, prefetch=prefetch, late="raise"):
            if message.id == ids[1]:
                lose(room, other, ids[1])
    assert [room.get(id).state for id in ids] == ["acked", "claimed", "stored", "stored"]
    assert [room.get(id).delivery_count for id in ids[2:]] == [0, 0]


def test_a_function_that_was_too_late_is_told_of_in_the_log(
    open_room: OpenRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    stop = threading.Event()

    def slow(message: Received) -> None:
        lose(room, other, message.id)
        stop.set()

    room.agent("bob").serve({"*": slow}, 1, max_hold_s=1, stop=stop)
    assert f"the ack of message {id} (delivery 1) came too late" in caplog.text
