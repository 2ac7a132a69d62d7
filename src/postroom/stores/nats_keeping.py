"""Housekeeping on NATS: writing down what the clock did, and forgetting what is kept too long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from ..states import FINISHED, State
from ..store import Query, Swept, Work
from .nats_cells import TOMBSTONE_S, tally_data, tally_of, work_subject
from .nats_entries import Entry, Kept, Moment, asker_gone, judged, subject_of, wound
from .nats_putting import key_subject, key_without, part_subjects
from .nats_reading import FAILED, PROCESSED, matching
from .nats_room import NatsRoom
from .nats_tables import Row
from .nats_wire import Changed, Write

#: Messages that are deleted in one step.
_CHUNK = 100


def sweep(room: NatsRoom) -> Swept:
    """Write down what the clock and the end of processes did; forget what is kept too long."""
    room.follower.know_all()
    done: list[str] = []
    while True:
        room.bury_the_gone()
        with room.follower.lock:
            room.tables.wind(room.now_ms())
            rows = [room.tables.rows[id] for id in room.tables.overdue]
        written = _write_down(room, rows)
        done += written
        if not written:
            break
    return Swept(done.count("expired"), done.count("released"), done.count("dead"), _forget_finished(room))


def _write_down(room: NatsRoom, rows: Sequence[Row]) -> list[str]:
    """The next step of each of these; the ledger's words for those that were written."""
    moment = room.moment()
    steps: list[tuple[Kept, Entry]] = []
    for row in rows:
        entry = _step(row, moment)
        if entry is not None:
            steps.append((row.kept, entry))
        else:
            with room.follower.lock:
                room.tables.overdue.pop(row.kept.entry.id, None)
    writes = [room.write_of(entry, kept.seq) for kept, entry in steps]
    ends = room.wire.run_all([room.commit_one(write, moment.write) for write in writes])
    events: list[str] = []
    for (kept, entry), write, end in zip(steps, writes, ends, strict=True):
        if isinstance(end, Changed):
            if room.read(kept.entry.id) is None:
                room.follower.gone(kept.entry.id, kept.seq)
        elif isinstance(end, BaseException):
            raise end
        else:
            room.note_written([write], end)
            events.append(entry.ledger[-1].event)
    return events


def _step(row: Row, moment: Moment) -> Entry | None:
    entry = wound(row.kept, moment, gone=row.gone)
    if entry is None and row.waiter_gone and row.kept.state is not State.HELD:
        return asker_gone(row.kept, moment)
    return entry


# Deleting


def purge(room: NatsRoom, query: Query) -> int:
    """Delete what a query finds, but for what is claimed."""
    room.follower.know_all()
    room.bury_the_gone()
    with room.follower.lock:
        rows = (
            row for row in matching(room, query, None) if judged(row.kept.entry, room.now_ms()) is not State.CLAIMED
        )
        chosen = [row.kept for row, _ in zip(rows, range(query.limit), strict=False)]
    return delete(room, chosen)


def delete(room: NatsRoom, kepts: Sequence[Kept]) -> int:
    """Delete entries that have not changed since they were read. Returns how many."""
    deleted = 0
    for start in range(0, len(kepts), _CHUNK):
        chunk = kepts[start : start + _CHUNK]
        if _delete_together(room, chunk):
            deleted += len(chunk)
        else:  # somebody changed one of them: that one stays
            deleted += sum(_delete_together(room, [kept]) for kept in chunk)
    return deleted


def _delete_together(room: NatsRoom, kepts: Sequence[Kept]) -> bool:
    writes = [Write(str(subject_of(kept.entry.id)), b"", kept.seq, None, TOMBSTONE_S) for kept in kepts]
    parts = [Write(subject, b"", None, None, TOMBSTONE_S) for kept in kepts for subject in part_subjects(kept)]
    for _ in range(20):
        side = _key_writes(room, kepts) + _tally_writes(room, kepts)
        together = [*writes, *parts, *side]
        try:
            committed = room.wire.run(room.wire.commit(together, lambda data: not data))
        except Changed:
            if any(room.read(kept.entry.id) != kept for kept in kepts):
                return False
            continue  # only a count or a key had changed
        room.note_written(together, committed)
        return True
    return False


def _key_writes(room: NatsRoom, kepts: Sequence[Kept]) -> list[Write]:
    """Idempotency keys are free again when their messages are no longer kept."""
    ids_of: defaultdict[str, set[str]] = defaultdict(set)
    for kept in kepts:
        if kept.entry.idempotency_key is not None:
            ids_of[key_subject(kept.entry.from_agent, kept.entry.idempotency_key)].add(kept.entry.id)
    writes = []
    for subject, found in zip(ids_of, room.results([room.wire.last(each) for each in ids_of]), strict=True):
        if found is not None and found.data:
            left = key_without(found.data, ids_of[subject])
            data = b"" if left is None else msgspec.json.encode(left)
            writes.append(Write(subject, data, found.seq, None, TOMBSTONE_S if left is None else 0))
    return writes


def _tally_writes(room: NatsRoom, kepts: Sequence[Kept]) -> list[Write]:
    """What agents did with these is counted when they are gone."""
    counts: defaultdict[str, list[State]] = defaultdict(list)
    now_ms = room.now_ms()
    for kept in kepts:
        state = judged(kept.entry, now_ms)
        if kept.entry.claimed_by is not None and state in PROCESSED | FAILED:
            counts[kept.entry.claimed_by].append(state)
    writes = []
    for agent, states in counts.items():
        work, seq = tally_of(room, agent)
        done = sum(state in PROCESSED for state in states)
        new = Work(work.processed + done, work.errors + len(states) - done)
        writes.append(Write(work_subject(agent), tally_data(agent, new), seq))
    return writes


def _forget_finished(room: NatsRoom) -> int:
    """Keep what the settings allow of the finished messages, the latest; forget the others."""
    keep, now_ms = room.config, room.now_ms()
    with room.follower.lock:
        finished = [row.kept for row in room.tables.rows.values() if row.kept.state in FINISHED - {State.DEAD}]
    finished.sort(key=lambda kept: (kept.entry.finished_ms, kept.seq))
    count, size = len(finished), sum(kept.entry.size for kept in finished)
    chosen: list[Kept] = []
    for kept in finished:
        too_old = kept.entry.finished_ms + keep.keep_s * 1000 <= now_ms
        if not too_old and count <= keep.keep_count and size <= keep.keep_bytes:
            break
        chosen.append(kept)
        count -= 1
        size -= kept.entry.size
    return delete(room, chosen)
