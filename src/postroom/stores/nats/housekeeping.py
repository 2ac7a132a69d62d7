"""Housekeeping on NATS: write down what the clock did, put away finished messages, forget the oldest of them.

A finished message stands in its box for a minute, where those look who wait for its end; then it is put away, so that a
receiver that comes new to the box reads what is open and little else, however long the room's history is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from postroom.core.states import ASKER_GONE, FINISHED, State
from postroom.stores.contract import FORGOTTEN, LIMITS, Query, Swept, WorkDone
from postroom.stores.gates import parse_limits
from postroom.stores.rules import FAILED, PROCESSED, no_longer_kept

from . import entries
from .cells import ARCHIVE_SUBJECT, TOMBSTONE_S, archive_of, cell_read, cell_write, tally_data, tally_of, work_subject
from .entries import MOVED, Entry, Kept, WriteTime, decode_gate, is_there, place_of
from .following import OPEN_PART
from .putting import key_subject, key_without, part_subjects
from .reading import know_for, matching
from .room import NatsRoom
from .wire import Changed, IsMine, StorageFull, Write

#: A finished message stays in its box for this long.
IN_ITS_BOX_S: Final = 60.0
#: Messages that are put away or deleted in one step.
_CHUNK: Final = 100
#: So often a step is tried again when only a count had changed meanwhile.
_TRIES: Final = 20
_FORGETTABLE: Final = sorted(FINISHED - {State.DEAD})


def sweep(room: NatsRoom) -> Swept:
    """Write down what the clock and the end of processes did; put away and forget."""
    room.follower.know(OPEN_PART)
    done: list[str] = []
    with suppress(StorageFull):  # what is kept too long is forgotten all the same, which makes space
        room.bury_the_silent()
        while written := _write_down(room):
            done += written
        _put_away_finished(room)
        _delete_gates(room)
    forgotten = _forget_finished(room)
    room.reserve.keep()
    return Swept(done.count("expired"), done.count("released"), done.count("dead"), forgotten)


def _write_down(room: NatsRoom) -> list[str]:
    """The next step of everything that is overdue; the ledger's words for those that were written."""
    room.bury_the_gone()
    with room.follower.lock:
        room.tables.wind(room.now_ms())
        overdue = room.tables.all_overdue()
    moment = room.moment()
    steps: list[tuple[Kept, Entry]] = []
    for each in overdue:
        entry = entries.wound(each.kept, moment, gone=each.gone)
        if entry is None and each.waiter_gone and each.kept.state is not State.AWAITED:
            entry = entries.abandoned(each.kept, moment, ASKER_GONE)
        if entry is not None:
            steps.append((each.kept, entry))
        else:
            with room.follower.lock:
                room.tables.forget_overdue(each)
    events: list[str] = []
    for (_, entry), end in zip(steps, room.replace_each(steps, moment.write), strict=True):
        if not isinstance(end, BaseException):
            events.append(entry.ledger[-1].event)
        elif not isinstance(end, Changed):
            raise end
    return events


def _delete_gates(room: NatsRoom) -> None:
    """Delete the gates of channels that have no concurrency limit any more.

    One that a claim replaces meanwhile stays. A claimer that has not heard that the limit is gone, or back again, fails
    at what tells of the deletion, and looks at its whole channel; later, the limits that it knows are others
    (tests/stores/test_nats_limits.py).
    """
    found = [entry for entry in room.wire.run(room.wire.scan("g.>", 1)) if entry.data]
    if not found:
        return
    cell = cell_read(room, LIMITS)
    limits = parse_limits(None if cell is None else cell.value)
    for entry in found:
        known = limits.channels.get(decode_gate(entry.data).channel)
        if known is None or not known.is_concurrent():
            write = Write(entry.subject, b"", entry.seq, None, TOMBSTONE_S)
            with suppress(Changed):
                room.note_written([write], room.wire.run(room.wire.commit([write], lambda data: not data)))


# Steps that also change a count: those are made again when only the count had changed


def _with_counts(
    room: NatsRoom,
    kepts: Sequence[Kept],
    writes: Sequence[Write],
    counts: Callable[[], list[Write]],
    is_mine: IsMine,
) -> bool:
    """Make these writes, with the counts as they are then, in one step; False when one of the messages has changed."""
    for _ in range(_TRIES):
        together = [*writes, *counts()]
        try:
            committed = room.wire.run(room.wire.commit(together, is_mine))
        except Changed:
            if any(room.read(kept.entry.id) != kept for kept in kepts):
                return False
            continue
        room.note_written(together, committed)
        return True
    return False


def _archive_write(room: NatsRoom, changed: Iterable[Entry], times: int) -> list[Write]:
    """The count of what is put away, with these more or less."""
    archive, seq = archive_of(room)
    new = archive
    for entry in changed:
        new = new.plus(entry.state, entry.size, times)
    return [Write(ARCHIVE_SUBJECT, msgspec.json.encode(new), seq)] if new != archive else []


def _tally_writes(room: NatsRoom, changed: Iterable[Entry], times: int = 1) -> list[Write]:
    """The counts of what agents did, with these more or less."""
    now_ms = room.now_ms()
    by_agent: defaultdict[str, list[State]] = defaultdict(list)
    for entry in changed:
        state = entry.judged(now_ms)
        if entry.claimed_by is not None and state in PROCESSED | FAILED:
            by_agent[entry.claimed_by].append(state)
    writes = []
    for agent, states in by_agent.items():
        work, seq = tally_of(room, agent)
        done = times * sum(state in PROCESSED for state in states)
        new = WorkDone(work.processed + done, work.errors + times * len(states) - done)
        writes.append(Write(work_subject(agent), tally_data(agent, new), seq))
    return writes


def _in_chunks(kepts: Sequence[Kept], step: Callable[[Sequence[Kept]], bool]) -> int:
    """Take a step with many messages; messages that somebody else changed meanwhile are left out.

    Returns how many were not.
    """
    done = 0
    for start in range(0, len(kepts), _CHUNK):
        chunk = kepts[start : start + _CHUNK]
        alone = () if step(chunk) else [kept for kept in chunk if not step([kept])]
        done += len(_with_answers(chunk)) - len(_with_answers(alone))
    return done


def _with_answers(kepts: Sequence[Kept]) -> list[Kept]:
    """The same, and the answers that stand in their entries."""
    return [*kepts, *(kept.answer for kept in kepts if kept.answer is not None)]


# Putting away, and putting back


def _put_away_finished(room: NatsRoom) -> None:
    before_ms = room.now_ms() - IN_ITS_BOX_S * 1000
    done = [kept for kept in _in_their_boxes(room, FINISHED) if kept.entry.finished_ms <= before_ms]
    done.sort(key=lambda kept: (kept.entry.finished_ms, kept.seq))
    waiting = [kept.answer for kept in done if kept.answer is not None and kept.answer.state not in FINISHED]
    _put_out(room, waiting)  # the next sweep puts their questions away
    done = [kept for kept in done if kept.host is None and (kept.answer is None or _ended_by(kept.answer, before_ms))]
    _in_chunks(done, lambda chunk: _put_away(room, chunk))


def _ended_by(kept: Kept, ms: float) -> bool:
    return kept.state in FINISHED and kept.entry.finished_ms <= ms


def _put_out(room: NatsRoom, answers: Sequence[Kept]) -> None:
    """Give answers that stand in the entries of their questions entries of their own, where they have not changed."""

    def step(kepts: Sequence[Kept]) -> bool:
        writes = [write for kept in kepts for write in room.writes_of(kept, entries.as_it_is(kept), out=True)]
        return _with_counts(room, kepts, writes, list, writes[0].data.__eq__)

    _in_chunks(answers, step)


def _in_their_boxes(room: NatsRoom, states: Collection[State]) -> list[Kept]:
    """The messages in one of these states that were not put away."""
    return [kept for kept in room.known() if kept.state in states and not kept.entry.archived]


def _put_away(room: NatsRoom, kepts: Sequence[Kept]) -> bool:
    writes = [Write(entries.box_subject(kept.entry), MOVED, kept.seq, None, TOMBSTONE_S) for kept in kepts]
    writes += [room.write_of(entries.put_away(kept), 0)._replace(expect=None) for kept in _with_answers(kepts)]
    counts = partial(_put_away_counts, room, [kept.entry for kept in _with_answers(kepts)], 1)
    _leave_lines(room, kepts)
    return _with_counts(room, kepts, writes, counts, MOVED.__eq__)


def _leave_lines(room: NatsRoom, kepts: Sequence[Kept]) -> None:
    """Take away the places that ended messages, or such as are to be deleted, have in the lines of their order keys."""
    lines = [(entries.line_of(kept.entry), kept) for kept in kepts]
    places = [(f"pr.{room.name}.{line}.{kept.entry.id}", kept.seq) for line, kept in lines if line is not None]
    wire = room.wire
    # only what is older: one that is put back meanwhile has a new place
    wire.results([wire.api(f"STREAM.PURGE.{wire.stream}", filter=subject, seq=seq) for subject, seq in places])


def _put_away_counts(room: NatsRoom, changed: Sequence[Entry], times: int) -> list[Write]:
    """The counts, with these put away (or, `times` -1, put back)."""
    return _archive_write(room, changed, times) + _tally_writes(room, changed, times)


def requeue(room: NatsRoom, ids: Iterable[str]) -> list[str]:
    """Put messages back, wherever they stand; those of them that had ended badly."""
    return [id for id in dict.fromkeys(ids) if _requeue(room, id)]


def _requeued(room: NatsRoom, kept: Kept, moment: WriteTime) -> Entry | None:
    return entries.requeued(kept, moment, gone=bool(room.gone_owners([kept])))


def _requeue(room: NatsRoom, id: str) -> bool:
    moment = room.moment()
    while True:
        kept = room.read(id)
        ordered = kept is not None and kept.entry.order_key is not None
        if kept is None or not (kept.entry.archived or ordered):
            return room.change(id, partial(_requeued, room), kept) is not None
        entry = _requeued(room, kept, moment)
        if entry is None:
            return False
        there = room.wire.last_now(entries.box_subject(entry))
        writes = [room.write_of(entry, 0 if there is None else there.seq)]
        if kept.entry.archived:
            writes.append(Write(place_of(kept.entry), MOVED, kept.seq, None, TOMBSTONE_S))
        if ordered:  # behind the others of its order key
            writes.append(Write(f"{entries.line_of(entry)}.{id}", b"-"))
        counts = partial(_put_away_counts, room, [kept.entry] if kept.entry.archived else [], -1)
        if _with_counts(room, [kept], writes, counts, lambda data: entries.written_by(moment.write, data)):
            return True
        now = room.read(id)
        if now is not None and now.line_of(moment.write) is not None:
            return True


# Deleting


def purge(room: NatsRoom, query: Query) -> int:
    """Delete what a query finds, but for what is claimed."""
    know_for(room, query)
    with suppress(StorageFull):  # what a process that is gone held is free, and counts as such
        while _write_down(room):
            pass
    with room.follower.lock:
        now_ms = room.now_ms()
        rows = (row for row in matching(room, query, None) if row.kept.entry.judged(now_ms) is not State.CLAIMED)
        chosen = [row.kept for row in islice(rows, query.limit)]
    deleted = delete(room, chosen)
    room.reserve.keep()
    return deleted


def delete(room: NatsRoom, kepts: Sequence[Kept]) -> int:
    """Delete entries that have not changed since they were read. Returns how many.

    Where the servers are full, entries are first taken out of the stream, which needs no space, and others are told of
    it when there is space again. Raises StorageFull when there is none even then: what was taken out is gone, and not
    counted.
    """
    number = max((kept.entry.number or kept.seq for kept in kepts), default=0)
    kepts = _apart(room, kepts)
    taken: list[Kept] = []
    done = 0
    for start in range(0, len(kepts), _CHUNK):
        chunk = kepts[start : start + _CHUNK]
        try:
            done += _tell_taken(room, taken, number)
            taken = []
            _note_gap(room, number)
            done += _in_chunks(chunk, lambda each: _delete(room, each))
        except StorageFull:
            taken += _take_out(room, chunk)
    return done + _tell_taken(room, taken, number)


def _apart(room: NatsRoom, kepts: Sequence[Kept]) -> list[Kept]:
    """Entries that can be deleted without deleting more: answers that stand in them are to be deleted, too.

    Where there is no space to put an answer out of its question's entry, both are left out.
    """
    chosen = {(kept.entry.id, kept.seq) for kept in kepts}
    carried = [kept.answer for kept in kepts if kept.answer is not None]
    together = {kept.entry.id for kept in carried if (kept.entry.id, kept.seq) in chosen}
    parted = [kept for kept in carried if kept.entry.id not in together]
    parted += [kept for kept in kepts if kept.host is not None and kept.entry.id not in together]
    with suppress(StorageFull):
        _put_out(room, parted)
    apart: list[Kept] = []
    for kept in kepts:
        if kept.host is not None and kept.entry.id in together:
            continue  # it goes with its question
        if kept.host is not None or (kept.answer is not None and kept.answer.entry.id not in together):
            now = room.read(kept.entry.id)
            if now is not None and now.host is None and now.answer is None and now.entry.ledger == kept.entry.ledger:
                apart.append(now)
        else:
            apart.append(kept)
    return apart


def _take_out(room: NatsRoom, kepts: Sequence[Kept]) -> list[Kept]:
    """Take entries out of the stream, but for entries that have changed. Returns what was taken out."""
    wire = room.wire
    answers = room.wire.results(
        [wire.api(f"STREAM.MSG.DELETE.{wire.stream}", seq=kept.seq, no_erase=True) for kept in kepts]
    )
    taken = [kept for kept, answer in zip(kepts, answers, strict=True) if answer.get("success")]
    parts = [f"pr.{room.name}.{subject}" for kept in taken for subject in part_subjects(kept)]
    room.wire.results([wire.api(f"STREAM.PURGE.{wire.stream}", filter=subject) for subject in parts])
    return taken


def _tell_taken(room: NatsRoom, taken: Sequence[Kept], number: int) -> int:
    """Tell others of what was taken out. Returns how many."""
    if taken:
        _note_gap(room, number)
        _in_chunks(taken, lambda chunk: _delete(room, chunk, is_gone=True))
    return len(_with_answers(taken))


def _note_gap(room: NatsRoom, number: int) -> None:
    """Up to this number the feed has gaps from now on; see `Store.forgotten`.

    Before anything is deleted: too much is safe.
    """
    while True:
        cell = cell_read(room, FORGOTTEN)
        if cell is not None and int(cell.value) >= number:
            return
        if cell_write(room, FORGOTTEN, number, 0 if cell is None else cell.version) is not None:
            return


def _delete(room: NatsRoom, kepts: Sequence[Kept], *, is_gone: bool = False) -> bool:
    """Write that these are deleted; `is_gone`: they were taken out before, and nobody was told."""
    writes = [Write(place_of(kept.entry), b"", 0 if is_gone else kept.seq, None, TOMBSTONE_S) for kept in kepts]
    writes += [Write(subject, b"", None, None, TOMBSTONE_S) for kept in kepts for subject in part_subjects(kept)]
    away = [kept.entry for kept in kepts if kept.entry.archived]
    here = [kept.entry for kept in _with_answers(kepts) if not kept.entry.archived]

    def counts() -> list[Write]:
        return _key_writes(room, kepts) + _archive_write(room, away, -1) + _tally_writes(room, here)

    return _with_counts(room, [] if is_gone else kepts, writes, counts, lambda data: not data)


def _key_writes(room: NatsRoom, kepts: Sequence[Kept]) -> list[Write]:
    """Idempotency keys are free again when their messages are no longer kept."""
    ids_of: defaultdict[str, set[str]] = defaultdict(set)
    for kept in kepts:
        if kept.entry.idempotency_key is not None:
            ids_of[key_subject(kept.entry.from_agent, kept.entry.idempotency_key)].add(kept.entry.id)
    writes = []
    for subject, found in zip(ids_of, room.wire.results([room.wire.last(each) for each in ids_of]), strict=True):
        if found is not None and found.data:
            left = key_without(found.data, ids_of[subject])
            data = b"" if left is None else msgspec.json.encode(left)
            writes.append(Write(subject, data, found.seq, None, TOMBSTONE_S if left is None else 0))
    return writes


def _forget_finished(room: NatsRoom) -> int:
    """Keep what the settings allow of the finished messages, the latest; forget the others."""
    now_ms = room.now_ms()
    archive, _ = archive_of(room)
    here = _in_their_boxes(room, _FORGETTABLE)
    count = archive.forgettable + len(here)
    size = archive.size + sum(kept.entry.size for kept in here)
    forgotten = 0
    while True:
        oldest = sorted([*_oldest_put_away(room), *here], key=lambda kept: (kept.entry.finished_ms, kept.first))
        finished = ((kept, kept.entry.finished_ms, kept.entry.size) for kept in oldest[:_CHUNK])
        chosen = list(no_longer_kept(finished, room.config, now_ms, count, size))
        if not chosen:
            return forgotten
        forgotten += delete(room, chosen)
        count -= len(chosen)
        size -= sum(kept.entry.size for kept in chosen)
        ids = {kept.entry.id for kept in chosen}
        here = [kept for kept in here if kept.entry.id not in ids]


def _oldest_put_away(room: NatsRoom) -> list[Kept]:
    """The first messages that were put away, of each state that may be forgotten."""
    pages = room.wire.results([room.wire.page(1, f"m.f.{int(state)}.>", _CHUNK) for state in _FORGETTABLE])
    return [entries.unpack(entry.seq, entry.data) for page, _ in pages for entry in page if is_there(entry.data)]
