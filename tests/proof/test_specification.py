"""The specification (spec/*.pml), exhausted by Spin, and its traces, replayed on every store.

spec/traces.txt.gz has traces with every transition of the four files, attempts that are refused among them, so that the
suite needs no Spin. With Spin, the long tests exhaust the specification, break it, and replay 10,000 traces of messages
and 18,000 of order keys, limits, cells, tasks and sessions on each store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from spec import prove
from tests.proof.replayed_cells import CellReplay
from tests.proof.replayed_limits import LimitReplay
from tests.proof.replayed_messages import MessageReplay
from tests.proof.replayed_order import OrderReplay
from tests.proof.replayed_sessions import SessionReplay
from tests.proof.replayed_tasks import TaskReplay
from tests.proof.replaying import Difference, Replay, Sleepers
from tests.support.nats_servers import room_name, shared_server

from postroom.board.held_task import HeldTask
from postroom.board.records import Book
from postroom.board.task import Value
from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft
from postroom.sessions.record import Failure, SessionRecord
from postroom.stores import open_store
from postroom.stores.cells import update
from postroom.stores.contract import ANY, LIMITS, Cell, Claimed, Settled, Store, Ticket, Want
from postroom.stores.memory.store import MemoryStore

REPLAYS: dict[str, type[Replay]] = {
    "message": MessageReplay, "order": OrderReplay, "limits": LimitReplay, "cells": CellReplay, "task": TaskReplay, "session": SessionReplay,
}  # fmt: skip
#: A room gets so many traces, one after the other, before there is a new one. A look at a whole room, as a sweep is, costs
#: files and NATS more the more is in it; a new room costs them more, too.
TRACES_IN_A_ROOM = {"memory": 100, "sqlite": 100, "files": 20, "nats": 10}
#: In the suite each store replays every so-manieth trace of the corpus: a step takes longer on some of them.
EVERY = {"memory": 1, "sqlite": 1, "files": 8, "nats": 12}
#: Traces that the long tests replay on each store, and the parts in which they do.
LONG = {"message": 10_000, "order": 5_000, "limits": 3_000, "cells": 2_000, "task": 5_000, "session": 3_000}
PARTS = {"memory": 4, "sqlite": 5, "files": 10, "nats": 20}


def parts_of(file: str, scheme: str) -> int:
    return max(1, PARTS[scheme] * LONG[file] // LONG["message"])


needs_spin = pytest.mark.skipif(bool(prove.missing()), reason=prove.missing() or "-")

Rooms = Callable[[ManualClock], Store]


@pytest.fixture(scope="module")
def sleepers() -> Iterator[Sleepers]:
    living = Sleepers()
    yield living
    living.close()


@pytest.fixture
def open_room(scheme: str, in_memory: Path) -> Rooms:
    """Opens a new room with each call."""
    numbers = count()

    def open_one(clock: ManualClock) -> Store:
        folder = in_memory / str(next(numbers))
        url = f"nats://{shared_server().address}/{room_name()}" if scheme == "nats" else f"{scheme}:{folder}"
        return open_store(parse_url("memory:" if scheme == "memory" else url), Config(), clock)

    return open_one


def replay(
    traces: Iterable[Sequence[str]], kind: type[Replay], rooms: Rooms, sleepers: Sleepers, *, scheme: str = "memory"
) -> int:
    """Replay each of them; their number. Raises Difference at the first step of which a store says otherwise."""
    replayed = 0
    remaining = iter(traces)
    while some := list(islice(remaining, TRACES_IN_A_ROOM[scheme])):
        clock = ManualClock()
        store = rooms(clock)
        try:
            for trace in some:
                kind(store, clock, sleepers, f"trace-{replayed}").play(trace)
                replayed += 1
        finally:
            store.close()
    return replayed


# The corpus


@pytest.fixture(scope="module")
def corpora() -> dict[str, prove.Corpus]:
    return prove.read_corpora()


@pytest.mark.parametrize("file", REPLAYS)
def test_the_traces_are_of_the_specification_as_it_is(file: str, corpora: dict[str, prove.Corpus]) -> None:
    said = f"spec/{file}.pml has changed: make its traces anew with `python spec/prove.py --corpus`"
    assert corpora[file].fingerprint == prove.fingerprint(file), said
    assert prove.CORPUS.stat().st_size < 200_000


@pytest.mark.parametrize(
    ("file", "transitions"),
    [("message", 300), ("order", 200), ("limits", 40), ("cells", 15), ("task", 300), ("session", 50)],
)
def test_every_transition_of_the_specification_has_a_trace(
    file: str, transitions: int, corpora: dict[str, prove.Corpus]
) -> None:
    corpus = corpora[file]
    assert len(corpus.transitions) > transitions
    assert corpus.uncovered() == []
    assert corpus._replace(traces=corpus.traces[:3]).uncovered() != [], "a missing one would be seen"


@pytest.mark.parametrize(
    "attempt",
    [
        "withdraw own nothing claimed>claimed claimed>claimed no",  # a receiver has it
        "withdraw own nothing acked>acked acked>acked no",
        "withdraw strange nothing ready>ready ready>ready no",  # it is another's
        "settle acked nothing withdrawn>withdrawn withdrawn>withdrawn no",  # by a late holder
        "extend no nothing withdrawn>withdrawn withdrawn>withdrawn no",
        "requeue behind nothing withdrawn>withdrawn withdrawn>withdrawn no",
        "settle acked nothing claimed>claimed claimed>claimed no",  # another has it by now
        "settle acked nothing acked>acked acked>acked no",  # for the second time
        "settle answered nothing claimed>claimed claimed>claimed no",
        "settle retry nothing ready>ready ready>ready no",  # it was put back
        "extend no nothing claimed>claimed claimed>claimed no",
        "heartbeat no nothing dead>dead dead>dead no",
        "requeue no nothing claimed>claimed claimed>claimed no",
        "receive no nothing answered>answered answered>answered held",  # it is kept for its asker
    ],
)
def test_the_traces_have_attempts_that_are_refused(attempt: str, corpora: dict[str, prove.Corpus]) -> None:
    traces = [*corpora["message"].traces, *corpora["order"].traces]
    assert any(attempt in prove.message_transitions_of(step) for trace in traces for step in trace)


@pytest.mark.parametrize(
    "transition",
    [
        "send plain yes unsent>blocked unsent>blocked no",
        "settle acked changes blocked>ready",  # the next passes
        "settle acked changes blocked>delayed",  # its delay counts on
        "withdraw own yes ready>withdrawn ready>withdrawn no",
        "withdraw own yes delayed>withdrawn delayed>withdrawn no",
        "withdraw own yes blocked>withdrawn blocked>withdrawn no",
        "withdraw own yes ready>withdrawn claimed>withdrawn no",  # its lease has ended
        "send replacing changes ready>withdrawn",
        "send debounced changes blocked>withdrawn",
        "requeue behind yes dead>blocked dead>blocked no",
    ],
)
def test_the_traces_have_the_moves_of_order_keys_and_withdrawals(
    transition: str, corpora: dict[str, prove.Corpus]
) -> None:
    assert transition in corpora["order"].transitions


@pytest.mark.slow
@pytest.mark.parametrize("scheme", EVERY)
@pytest.mark.parametrize("file", REPLAYS)
def test_a_store_does_what_the_specification_says(
    file: str, scheme: str, open_room: Rooms, sleepers: Sleepers, corpora: dict[str, prove.Corpus]
) -> None:
    some = corpora[file].traces[:: EVERY[scheme]]

    assert replay(some, REPLAYS[file], open_room, sleepers, scheme=scheme) == len(some) >= 5


# That a difference is seen


class Unfenced(MemoryStore):
    """A store with a fault: any ticket counts that names the message's last claim, whoever shows it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)
        self.last: dict[str, Ticket] = {}

    def claim(self, want: Want) -> Claimed:
        claimed = super().claim(want)
        self.last |= {delivery.ticket.id: delivery.ticket for delivery in claimed.deliveries}
        return claimed

    def settle(self, ticket: Ticket, outcome: str, **said: Any) -> Settled:
        return super().settle(self.last[ticket.id], outcome, **said)


class Generous(MemoryStore):
    """A store with a fault: a lease that was extended is twice as long."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        return super().extend(ticket, 2 * lease_s)


class Blind(MemoryStore):
    """A store with a fault: a cell is written whatever version it has, if it is there."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        return super().cell_write(name, value, expect=ANY if expect else 0)


class Orderless(MemoryStore):
    """A store with a fault: the second message of an order key may be claimed beside the first."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        return super().put([msgspec.structs.replace(draft, order_key=None, debounce=False) for draft in drafts])


class Greedy(MemoryStore):
    """A store with a fault: anybody may withdraw a message."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)

    def withdraw(self, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
        named = list(ids)
        senders = [message.from_agent for message in map(self.get, named) if message is not None]
        return super().withdraw(named, senders[0] if senders else agent, reason)


class Unlimited(MemoryStore):
    """A store with a fault: it knows of no limits."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        return 1 if name == LIMITS else super().cell_write(name, value, expect)


@pytest.mark.parametrize(
    ("file", "store"),
    [("message", Unfenced), ("message", Generous), ("order", Orderless), ("order", Greedy), ("limits", Unlimited), ("cells", Blind), ("task", Blind), ("session", Blind)],
)  # fmt: skip
def test_a_store_with_a_fault_is_found_by_the_traces(
    file: str, store: Rooms, sleepers: Sleepers, corpora: dict[str, prove.Corpus]
) -> None:
    with pytest.raises(Difference, match="after the steps"):
        replay(corpora[file].traces, REPLAYS[file], store, sleepers)


def in_memory_room(clock: ManualClock) -> Store:
    return MemoryStore(Config(), clock)


def late_owner_is_not_heard(_task: HeldTask, _value: Value) -> bool:
    """A board with a fault: what a late owner says of a task that nobody has claimed since does not count."""
    return False


def newer_notes_are_taken_away(book: Book, value: Value, note: Cell | None) -> None:
    """A board with a fault, once this project's own: a note that was written meanwhile is taken away, too."""
    BOOK_FOLLOW(book, value, None)
    if note is not None:
        book.store.cell_write(note.name, None)


BOOK_FOLLOW = Book.follow


def claims_without_a_note_are_passed(_book: Book, _value: Value) -> None:
    """A board with a fault: an entry of a claimed task is taken out of the index, though its claim has no note yet."""


@pytest.mark.parametrize(
    ("kind", "name", "fault"),
    [
        (HeldTask, "_was_let_go", late_owner_is_not_heard),
        (Book, "follow", newer_notes_are_taken_away),
        (Book, "_adopt", claims_without_a_note_are_passed),
    ],
)
def test_a_board_with_a_fault_is_found_by_the_traces(
    kind: type[object],
    name: str,
    fault: Callable[..., Any],
    sleepers: Sleepers,
    corpora: dict[str, prove.Corpus],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kind, name, fault)

    with pytest.raises(Difference, match="after the steps"):
        replay(corpora["task"].traces, TaskReplay, in_memory_room, sleepers)


def last_failure_stands(record: SessionRecord, failure: Failure) -> Failure:
    """A session with a fault: a failure takes the place of the one before."""
    update(record.gateway.store, record.cell, lambda value: {**value, "failure": failure._asdict()})
    return failure


def everybody_is_admitted(record: SessionRecord, count: int = 1) -> int:
    """A session with a fault: what is over admits members, too."""
    value = update(record.gateway.store, record.cell, lambda value: {**value, "admitted": value["admitted"] + count})
    return int(value["admitted"]) - count + 1


@pytest.mark.parametrize(("name", "fault"), [("fail", last_failure_stands), ("admit", everybody_is_admitted)])
def test_a_session_with_a_fault_is_found_by_the_traces(
    name: str,
    fault: Callable[..., Any],
    sleepers: Sleepers,
    corpora: dict[str, prove.Corpus],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SessionRecord, name, fault)

    with pytest.raises(Difference, match="after the steps"):
        replay(corpora["session"].traces, SessionReplay, in_memory_room, sleepers)


#: Steps of which the outcome is compared, the place of that word in a line, and the two that it may be.
OUTCOMES = {
    "message": ({"settle", "extend", "heartbeat", "requeue", "fetch"}, 4, ("yes", "nothing")),
    "order": ({"settle", "extend", "withdraw", "requeue"}, 4, ("yes", "nothing")),
    "limits": ({"settle", "extend"}, 4, ("yes", "nothing")),
    "cells": ({"change", "remove", "create"}, 2, ("yes", "refused")),
    "task": ({"report", "act"}, 3, ("yes", "no")),
    "session": ({"send", "join"}, 2, ("yes", "refused")),
}


@pytest.mark.parametrize("file", REPLAYS)
def test_a_step_that_is_told_otherwise_is_seen(file: str, sleepers: Sleepers, corpora: dict[str, prove.Corpus]) -> None:
    changed = 0
    steps, place, both = OUTCOMES[file]
    for trace in corpora[file].traces[:: len(corpora[file].traces) // 20]:
        for number, line in enumerate(trace):
            words = line.split(" ", place + 1)
            if words[0] in steps:
                words[place] = both[both.index(words[place]) - 1]
                with pytest.raises(Difference):
                    replay([[*trace[:number], " ".join(words)]], REPLAYS[file], in_memory_room, sleepers)
                changed += 1
                break

    assert changed >= 10


# With Spin


@pytest.mark.long
@needs_spin
def test_the_specification_holds_and_seeded_mistakes_in_it_are_found() -> None:
    assert prove.prove(prove.QUICK)
    assert prove.try_mutants()


@pytest.mark.long
@needs_spin
@pytest.mark.parametrize("file", REPLAYS)
def test_the_transitions_of_the_corpus_are_all_that_the_specification_has(
    file: str, corpora: dict[str, prove.Corpus]
) -> None:
    assert set(corpora[file].transitions) == set(prove.every_transition(file))


@pytest.mark.long
@needs_spin
@pytest.mark.parametrize(
    ("file", "scheme", "part"),
    [(file, scheme, part) for file in REPLAYS for scheme in PARTS for part in range(parts_of(file, scheme))],
)
def test_a_store_does_what_thousands_of_traces_say(
    file: str, scheme: str, part: int, open_room: Rooms, sleepers: Sleepers
) -> None:
    wanted = LONG[file] // parts_of(file, scheme)
    fresh = (trace for seed in count(1_000_000 + 1000 * part) for trace in prove.traces(file, seed))

    assert replay(islice(fresh, wanted), REPLAYS[file], open_room, sleepers, scheme=scheme) == wanted
