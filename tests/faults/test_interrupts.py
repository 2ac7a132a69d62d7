"""A signal whose handler raises may come at any moment. Whatever it ends, nothing stays open, and the room goes on."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count as count_up
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.descriptors import needs_proc, open_now, opened_since
from tests.support.interrupting import interrupted_at
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom import stores
from postroom.core.clock import SYSTEM, SystemClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.core.system.process import start_thread, this_process
from postroom.errors import RoomBusy
from postroom.stores.contract import Query, Store, Ticket, Want
from postroom.stores.nats.entries import Kept, WriteTime, claimed, first_entry, make_id
from postroom.stores.nats.tables import KnownEntries, LimitCounts
from postroom.stores.sqlite.store import SqliteStore

from .support import SOME_AND_ALL, count

STORES = Path(stores.__file__).parent
#: The code of the stores themselves. What they stand on (bells, liveness) is interrupted with everything else, further below.
HERE = tuple(str(STORES / name) for name in ("sqlite", "files", "nats", "memory", "tables"))
WANT = Want(agent="bob", lease_s=30, owner=this_process())


def draft(**fields: Any) -> Draft:
    return check(Draft(from_agent="ada", to_agent="bob", payload={"n": 1}, **fields))


def claim_and_settle(store: SqliteStore) -> None:
    for delivery in store.claim(WANT).deliveries:
        store.settle(delivery.ticket, "acked", claim_next=WANT)


STEPS: dict[str, Callable[[SqliteStore], object]] = {
    "put": lambda store: store.put([draft()]),
    "put many": lambda store: store.put([draft(), draft(idempotency_key="once")]),
    "claim": lambda store: store.claim(WANT),
    "settle": claim_and_settle,
    "look through": lambda store: (store.events(), store.stats()),
    "tidy": lambda store: (store.cell_write("cell", 1), store.purge(Query(limit=1)), store.sweep()),
}


@pytest.fixture(params=["normal", "full"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "room", Config(sync=request.param), SYSTEM)
    yield store
    store.close()


@SOME_AND_ALL
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_interrupted_leaves_nothing_open(
    store: SqliteStore, tmp_path: Path, step: str, every: int
) -> None:
    """At every moment at which it can be. Afterwards others can write, and what is sent here reaches them."""
    other = SqliteStore(tmp_path / "room", Config(busy_timeout_s=0.05), SYSTEM)
    synchronous = store._file.select("PRAGMA synchronous")
    for place in count_up():
        store.put([draft()])
        if not interrupted_at(every * place, lambda: STEPS[step](store), HERE):
            break
        assert not store._file.left_open(), place
        assert store._file.select("PRAGMA synchronous") == synchronous, place
        assert other.note(store.put([draft()])[0], "shown", "bob"), place
        other.purge(Query(limit=100))  # or there is more to do every time
    assert every * place > 10
    other.close()


def test_who_was_interrupted_while_it_tidied_up_finds_nothing_open_the_next_time(store: SqliteStore) -> None:
    store._file.begin()  # as two signals in a row can leave it
    (id,) = store.put([draft()])
    assert not store._file.left_open()
    assert store.get(id) is not None


@pytest.mark.parametrize("step", STEPS)
def test_what_a_signals_handler_wants_in_the_middle_of_a_step_is_refused_and_the_step_is_done(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It would be done when the step is, and not before it returns; and where the step fails, not at all."""
    insert_many = store._file.insert_many

    def insert_and_be_interrupted(name: str, rows: Any) -> None:
        insert_many(name, rows)
        with pytest.raises(RoomBusy, match="in the middle of another step"):
            STEPS[step](store)  # in the same thread

    store.put([draft()])
    monkeypatch.setattr(store._file, "insert_many", insert_and_be_interrupted)
    ids = store.put([draft(), draft()])
    assert [store.get(id) is not None for id in ids] == [True, True]
    assert not store._file.left_open()


class PokingClock(SystemClock):
    """Lets a signal come the next time it is looked at: for a plain send, in the middle of its one statement."""

    armed = False

    def steady_ns(self) -> int:
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGUSR1)
        return super().steady_ns()


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    before = signal.getsignal(signal.SIGUSR1)

    def install(handler: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: handler())

    yield install
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("step", STEPS)
def test_what_a_handler_wants_in_the_middle_of_a_plain_send_is_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, on_signal: Callable[[Callable[[], object]], None], step: str
) -> None:
    """It would become part of the statement that it interrupts: it would return, and be lost should that fail."""
    refused = []

    def handler() -> None:
        with pytest.raises(RoomBusy, match="in the middle of another step"):
            STEPS[step](store)
        refused.append(step)

    clock = PokingClock()
    on_signal(handler)
    store.put([draft()])
    monkeypatch.setattr(store._file.numbers, "_clock", clock)
    clock.armed = True
    (id,) = store.put([draft()])
    assert refused == [step]
    assert store.get(id) is not None
    STEPS[step](store)  # and nothing is in the middle any more


@pytest.mark.parametrize("leaves", [True, False], ids=["and leaves", "and returns"])
def test_what_a_handler_sends_right_after_a_commit_is_kept_and_has_its_own_id(
    store: SqliteStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_signal: Callable[[Callable[[], object]], None],
    leaves: bool,
) -> None:
    """In the hook after a commit, the statement around it is over, though Python is still inside of it."""
    ids: list[str] = []
    signals = count_up()

    def handler() -> None:
        if next(signals) == 0:  # not in the hooks of what it does itself
            ids.extend(store.put([draft()]))
            (delivery,) = store.claim(WANT).deliveries
            assert store.settle(delivery.ticket, "acked").held
            if leaves:
                raise SystemExit

    on_signal(handler)
    monkeypatch.setattr(store._file.log, "lengthen_from", 0)
    monkeypatch.setattr(store._file.log, "committed", lambda _: signal.raise_signal(signal.SIGUSR1))
    if leaves:
        with pytest.raises(SystemExit):
            store.put([draft()])
    else:
        ids += store.put([draft()])
        assert len(set(ids)) == 2
    assert not store._file.left_open()
    other = SqliteStore(tmp_path / "room", Config(busy_timeout_s=0.05), SYSTEM)
    assert all(other.get(id) for id in ids)
    assert sorted(m.exact_state.name for m in other.find(Query()).messages) == [
        "ACKED",
        "READY",
    ]  # the first was stored before
    other.close()


def test_a_handler_that_comes_while_a_send_waits_for_the_lock_can_look(
    store: SqliteStore, tmp_path: Path, on_signal: Callable[[Callable[[], object]], None]
) -> None:
    """The connection may not be used while it waits, so the handler gets another one."""
    (id,) = store.put([draft()])
    other = SqliteStore(tmp_path / "room", Config(), SYSTEM)
    looks: list[object] = []

    def handler() -> None:
        looks.append(store.get(id))
        other._file.roll_back()

    on_signal(handler)
    other._file.begin()
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    timer.start()
    store.put([draft()])
    assert len(looks) == 1
    assert looks[0] is not None
    timer.join()
    other.close()


class Interruption(Exception):
    """What a handler raises. CPython's own code catches plain exceptions here and there."""


def test_an_interrupt_while_a_thread_starts_is_what_the_handler_raised(
    on_signal: Callable[[Callable[[], object]], None],
) -> None:
    began = threading.Event()
    start = threading.Thread.start.__code__

    def interrupt_once_begun(frame: FrameType, event: str, function: Any) -> None:
        """A profiler: right behind the call of the system in `start`, whatever that is called in this Python."""
        if event == "c_return" and frame.f_code is start and function.__module__ == "_thread":
            assert began.wait(20)
            signal.raise_signal(signal.SIGUSR1)

    def interrupt() -> None:
        raise Interruption

    on_signal(interrupt)
    thread = threading.Thread(target=began.set)
    sys.setprofile(interrupt_once_begun)
    try:
        with pytest.raises(Interruption):
            start_thread(thread)
    finally:
        sys.setprofile(None)
    thread.join()


HERE_AND_ABOVE = str(Path(postroom.__file__).parent)


#: Of the moments at which a call can be interrupted, each so-manieth is tried. A room in files takes some milliseconds a step.
STRIDE = {"memory": 5, "sqlite": 9, "files": count("STRIDE", 31), "nats": count("STRIDE_NATS", 11)}


def url_of(kind: str, tmp_path: Path) -> str:
    if kind == "nats":
        return f"nats://{shared_server().address}/{room_name()}"
    return "memory:shared" if kind == "memory" else f"{kind}:{tmp_path}/room"


@pytest.mark.slow
@SOME_AND_ALL
@pytest.mark.parametrize("kind", ["memory", "sqlite", "files", "nats"])
@pytest.mark.parametrize("deed", ["agent", "send", "receive", "ask", "close"])
def test_a_handler_that_uses_the_room_at_any_step_neither_waits_for_ever_nor_loses_anything(
    tmp_path: Path, deed: str, kind: str, every: int
) -> None:
    """Locks that the interrupted call holds are its own thread's: a handler must not wait for them."""
    url = url_of(kind, tmp_path)
    kept: list[str] = []

    def handler() -> None:
        with suppress(RoomBusy, postroom.RoomClosed):
            kept.append(room.agent("late").send("bob", {}))
            room.agent("bob").poll()
            room.agent(f"new {place % 3}")

    def do() -> None:
        if deed == "agent":
            room.agent("ada")
        elif deed == "send":
            kept.append(bob.send("bob", {}))
        elif deed == "receive":
            bob.poll()
        elif deed == "ask":
            with pytest.raises(postroom.AskTimeout):
                bob.ask("nobody", {}, timeout_s=0)
        else:
            room.close()

    with postroom.open(url) as outside:  # a room in memory ends with the last who has it open
        for place in count_up():
            room = postroom.open(url, busy_timeout_s=0.5)
            bob = room.agent("bob")
            came = interrupted_at(every * STRIDE[kind] * place, do, HERE_AND_ABOVE, handler)
            room.close()
            if not came:
                break
        assert every * place > 2
        assert kept
        for id in kept:
            outside.get(id)  # raises UnknownMessage where it is not


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # an interrupt that met a generator's end
@SOME_AND_ALL
@pytest.mark.parametrize("kind", ["memory", "files"])
@pytest.mark.parametrize("step", ["put many", "claim", "settle", "requeue", "purge", "cells"])
def test_a_step_on_tables_that_is_interrupted_is_done_or_left_and_nothing_stays_locked(
    tmp_path: Path, step: str, kind: str, every: int
) -> None:
    """At every moment at which it can be. What was there before is found as it was, by claims and by looking alike."""
    with postroom.open(url_of(kind, tmp_path), max_deliveries=1) as room:
        store = room.store
        for place in count_up():
            (first, _) = store.put([draft(priority=5), draft()])
            if step == "requeue":
                (delivery,) = store.claim(WANT).deliveries
                store.settle(delivery.ticket, "dead")
            before = _all_of(store)
            stored = len(before)
            claimed = store.claim(WANT).deliveries if step == "settle" else []
            steps: dict[str, Callable[[], object]] = {
                "put many": lambda: store.put([draft(), draft(), draft()]),
                "claim": lambda: store.claim(WANT),
                "settle": lambda: store.settle(claimed[0].ticket, "answered", puts=[draft()], claim_next=WANT),  # noqa: B023
                "requeue": lambda: store.requeue([first]),  # noqa: B023
                "purge": lambda: store.purge(Query(limit=1)),
                "cells": lambda: (store.cell_write("a", 1), store.subscribe("general", "bob")),
            }
            came = interrupted_at(every * STRIDE[kind] * place, steps[step], HERE)
            after = _all_of(store)
            assert len(after) - stored in {"put many": (0, 3), "settle": (0, 1), "purge": (0, -1)}.get(step, (0,))
            _check_that_others_get_in(store)
            _take_all(store, after)
            if not came:
                break
        assert every * place > 2


def _all_of(store: Store) -> dict[str, State]:
    return {message.id: message.exact_state for message in store.find(Query(limit=100)).messages}


def _check_that_others_get_in(store: Store) -> None:
    """From another thread: a lock that this thread kept would let this thread in."""
    thread = threading.Thread(target=store.cell_write, args=("others", 1), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def _take_all(store: Store, there: dict[str, State]) -> None:
    """What is ready can be claimed, all of it and nothing else; then everything is deleted."""
    ready = {id for id, state in there.items() if state is State.READY}
    claimed = store.claim(Want(agent="bob", lease_s=30, owner=this_process(), limit=100)).deliveries
    assert {delivery.message.id for delivery in claimed} == ready
    for id, state in there.items():
        message = store.get(id)
        if state is State.CLAIMED and message is not None:
            assert store.settle(Ticket(id, message.token, "bob"), "acked").held
    for delivery in claimed:
        assert store.settle(delivery.ticket, "acked").held
    assert set(_all_of(store).values()) <= {State.ACKED, State.ANSWERED, State.DEAD}
    store.purge(Query(limit=100))
    assert _all_of(store) == {}
    assert store.claim(WANT).deliveries == []


def threads_of_rooms() -> int:
    return sum(thread.name == "postroom upkeep" for thread in threading.enumerate())


def forget(things: list[Any]) -> None:
    things.clear()
    gc.collect()


@pytest.mark.slow
@needs_proc
@SOME_AND_ALL
@pytest.mark.parametrize("kind", ["memory", "sqlite", "files", "nats"])
def test_a_close_that_is_interrupted_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, every: int
) -> None:
    # An interrupt that meets a destructor is told to this hook; pytest's would keep it, and with it the room.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    url = url_of(kind, tmp_path)
    with postroom.open(url) as outside:
        for place in count_up():
            before = open_now()
            came = close_interrupted_at(every * STRIDE[kind] * place, url, outside)
            if place > 0:  # the first time, `outside` opens what it keeps
                assert opened_since(before) == [], place
            if not came:
                break
        assert every * place > 2


def close_interrupted_at(step: int, url: str, outside: postroom.Room) -> bool:
    """Work in a room of its own, and close that twice, the first time with an interrupt at that step."""
    room = postroom.open(url)
    bob = room.agent("bob")
    bob.send("bob", {})
    held = bob.poll()
    assert held is not None
    came = interrupted_at(step, room.close, HERE_AND_ABOVE)
    room.close()
    assert outside.get(held.id).exact_state in (State.READY, State.DELAYED), step
    assert threads_of_rooms() == 0, step
    outside.purge(state="pending")
    outside.purge(state=None)
    return came


@needs_proc
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_room_that_is_forgotten_without_closing_it_lets_go_of_everything_and_says_so(
    tmp_path: Path, kind: str
) -> None:
    url = url_of(kind, tmp_path)
    postroom.open(url).close()
    before = open_now()
    for _ in range(5):
        agent = postroom.open(url).agent("bob")  # an agent keeps its room
        agent.send("bob", {})
        assert threads_of_rooms() == 1
        known = [agent]
        del agent
        with pytest.warns(ResourceWarning, match="without close"):
            forget(known)
        for _ in range(2000):
            if threads_of_rooms() == 0:
                break
            SYSTEM.sleep(0.01)
        assert threads_of_rooms() == 0
    assert opened_since(before) == []
    with postroom.open(url) as room:
        assert len(room.peek(agent="bob")) == 5


@needs_proc
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a room was garbage-collected:ResourceWarning")
def test_rooms_whose_opening_is_interrupted_leave_hardly_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor is a number: one that an interrupt meets between the system and its first owner is nobody's."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # as above
    url = url_of("sqlite", tmp_path)
    postroom.open(url).close()
    before = open_now()
    for place in count_up():
        if not interrupted_at(3 * place, lambda: postroom.open(url).close(), HERE_AND_ABOVE):
            break
    assert place > 50
    assert len(opened_since(before)) < 20
    assert threads_of_rooms() == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # interrupted before it was begun
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@SOME_AND_ALL
@pytest.mark.parametrize("deed", ["send", "send many", "receive", "ask"])
def test_whatever_is_interrupted_on_nats_the_next_call_works_and_nothing_grows(
    tmp_path: Path, deed: str, every: int
) -> None:
    """At every so-manieth moment, also in CPython's own code between here and the background loop."""
    url = url_of("nats", tmp_path)
    with postroom.open(url) as outside, postroom.open(url) as room:
        bob = room.agent("bob")
        deeds: dict[str, Callable[[], object]] = {
            "send": lambda: bob.send("ada", {}),
            "send many": lambda: bob.send_many([{"to": "ada", "payload": {}}] * 3),
            "receive": lambda: bob.receive(timeout_s=0.001).ack(),
            "ask": lambda: bob.ask("nobody", {}, timeout_s=0),
        }

        def do() -> None:
            with suppress(postroom.AskTimeout, postroom.ReceiveTimeout):
                deeds[deed]()

        before = open_now()
        for place in count_up():
            bob.send("bob", {})
            if not interrupted_at(every * STRIDE["nats"] * place, do):
                break
            (id,) = bob.send_many([{"to": "cid", "payload": {}}])
            assert outside.get(id).exact_state is State.READY
            if place == 1:
                before = open_now()
        assert every * place > 2
        assert len(opened_since(before)) < 10
        assert sum(thread.name == "postroom nats" for thread in threading.enumerate()) == 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_ack_on_nats_that_was_interrupted_is_said_again_and_holds(tmp_path: Path) -> None:
    """Whether or not the first reached the servers, and also when it does so in the middle of the second."""
    with postroom.open(url_of("nats", tmp_path)) as room:
        store = room.store
        for place in count_up():
            (id,) = store.put([draft()])
            (delivery,) = store.claim(WANT).deliveries
            came = interrupted_at(
                STRIDE["nats"] * place,
                lambda: store.settle(delivery.ticket, "acked"),  # noqa: B023
                str(STORES / "nats"),
            )
            if not came:
                break
            assert store.settle(delivery.ticket, "acked").held, place
            message = store.get(id)
            assert message is not None
            assert message.exact_state is State.ACKED
        assert place > 2


def kept(number: int, **fields: Any) -> Kept:
    """An entry as a room on NATS keeps it."""
    id = make_id(number, "bob", "general", 5, 0.5)
    moment = WriteTime(number, number, "w")
    entry = first_entry(draft(**fields), id, "bob", moment, held_for=None)
    return Kept(number, replace(entry, first=number))


@pytest.mark.parametrize("limited", [False, True])
def test_what_is_known_of_a_room_on_nats_can_be_interrupted_while_it_changes(limited: bool) -> None:
    """At every moment. All tables say the same as the rows afterwards, and each next change is made."""
    ready, delayed, asked = kept(1), kept(2, delay_s=5), kept(3, waiter="4711.1")
    for place in count_up():
        tables = KnownEntries()
        if limited:
            tables.running("general")  # what limits count is kept from here on

        def change(tables: KnownEntries = tables) -> None:
            for each in (ready, delayed, asked):
                tables.learn(each.entry.id, each.seq, each)
            tables.learn(ready.entry.id, 4, Kept(4, claimed(ready, WANT, WriteTime(4, 4, "c"))))
            tables.wind(6000)
            tables.bury(this_process(), 6000)
            tables.bury("4711.1", 6000)
            tables.forget(delayed.entry.id)
            tables.learn(asked.entry.id, 5, None)

        came = interrupted_at(place, change, HERE)
        if place % 2:  # else the next change is the first to see it
            tables.wind(0)
            check_tables(tables)
        for each in (ready, delayed, asked):
            tables.learn(each.entry.id, 10 + each.seq, Kept(10 + each.seq, each.entry))
        check_tables(tables)
        tables.wind(6000)
        best = tables.best(WANT, 10, set())
        assert [each.kept.entry.id for each in best] == [each.entry.id for each in (ready, delayed, asked)]
        for each in (ready, delayed, asked):
            tables.learn(each.entry.id, 20, None)
        assert (tables.rows, tables.order, tables.timers, dict(tables.boxes)) == ({}, [], [], {})
        if not came:
            break
    assert place > 50


def check_tables(tables: KnownEntries) -> None:
    rows = tables.rows.values()
    assert tables.order == sorted((row.kept.first, row.kept.entry.id) for row in rows)
    boxed = [key for channels in tables.boxes.values() for box in channels.values() for key in box]
    assert sorted(boxed) == sorted(tables._ready.values())
    assert tables.timers == sorted(tables._timer.values())
    assert {*tables._ready, *tables._timer} <= tables.rows.keys()
    for name, table in (("owner", tables.owners), ("waiter", tables.waits)):
        for process, ids in table.items():
            assert all(getattr(tables.rows[id].kept.entry, name) == process for id in ids)
    if tables._counts is not None:
        counted = LimitCounts()
        for row in rows:
            counted.add(row.kept.entry)
        assert (tables._counts.running, tables._counts.waiting) == (counted.running, counted.waiting)
