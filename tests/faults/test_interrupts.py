"""A signal whose handler raises may come at any moment. Whatever it ends, nothing stays open, and the room goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.interrupting import interrupted_at

import postroom
from postroom import stores
from postroom.clock import SYSTEM, SystemClock
from postroom.config import Config
from postroom.errors import RoomBusy
from postroom.message import Draft, check
from postroom.platform import start_thread, this_process
from postroom.store import Query, Want
from postroom.stores.sqlite import SqliteStore

HERE = str(Path(stores.__file__).parent)
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


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_interrupted_leaves_nothing_open(store: SqliteStore, tmp_path: Path, step: str) -> None:
    """At every moment at which it can be. Afterwards others can write, and what is sent here reaches them."""
    other = SqliteStore(tmp_path / "room", Config(busy_timeout_s=0.05), SYSTEM)
    synchronous = store._file.select("PRAGMA synchronous")
    for place in count():
        store.put([draft()])
        if not interrupted_at(place, lambda: STEPS[step](store), HERE):
            break
        assert not store._file.left_open(), place
        assert store._file.select("PRAGMA synchronous") == synchronous, place
        assert other.note(store.put([draft()])[0], "shown", "bob"), place
        other.purge(Query(limit=100))  # or there is more to do every time
    assert place > 10
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

    def insert_and_be_interrupted(rows: Any) -> None:
        insert_many(rows)
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
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler()) and None
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
    monkeypatch.setattr(store._file._numbers, "_clock", clock)
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
    signals = count()

    def handler() -> None:
        if next(signals) == 0:  # not in the hooks of what it does itself
            ids.extend(store.put([draft()]))
            (delivery,) = store.claim(WANT).deliveries
            assert store.settle(delivery.ticket, "acked").held
            if leaves:
                raise SystemExit

    on_signal(handler)
    monkeypatch.setattr(store._file, "lengthen_from", 0)
    monkeypatch.setattr(store._file, "committed", lambda _: signal.raise_signal(signal.SIGUSR1))
    if leaves:
        with pytest.raises(SystemExit):
            store.put([draft()])
    else:
        ids += store.put([draft()])
        assert len(set(ids)) == 2
    assert not store._file.left_open()
    other = SqliteStore(tmp_path / "room", Config(busy_timeout_s=0.05), SYSTEM)
    assert all(other.get(id) for id in ids)
    assert sorted(m.state.name for m in other.find(Query()).messages) == [
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
    on_signal: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading._start_new_thread  # type: ignore[attr-defined]
    began = threading.Event()

    def begin_and_be_interrupted(*arguments: Any) -> None:
        begin(*arguments)
        assert began.wait(20)
        signal.raise_signal(signal.SIGUSR1)

    def interrupt() -> None:
        raise Interruption

    on_signal(interrupt)
    monkeypatch.setattr(threading, "_start_new_thread", begin_and_be_interrupted)
    thread = threading.Thread(target=began.set)
    with pytest.raises(Interruption):
        start_thread(thread)
    thread.join()


HERE_AND_ABOVE = str(Path(postroom.__file__).parent)


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["agent", "send", "receive", "ask", "close"])
def test_a_handler_that_uses_the_room_at_any_step_neither_waits_for_ever_nor_loses_anything(
    tmp_path: Path, deed: str
) -> None:
    """Locks that the interrupted call holds are its own thread's: a handler must not wait for them."""
    url = f"sqlite:{tmp_path}/room"
    kept: list[str] = []

    def handler() -> None:
        with suppress(RoomBusy, postroom.RoomClosed):
            kept.append(room.agent("late").send("bob", {}))
            room.agent("bob").poll()
            room.agent(f"new {place}")

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

    for place in count():
        room = postroom.open(url, busy_timeout_s=0.5)
        bob = room.agent("bob")
        came = interrupted_at(7 * place, do, HERE_AND_ABOVE, handler)
        room.close()
        if not came:
            break
    assert place > 5
    with postroom.open(url) as room:
        assert all(room.get(id) for id in kept)
    assert kept
