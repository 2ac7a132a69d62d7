"""Claims on NATS where limits hold: what is claimed, the gate of its channel and its buckets are written in one step.

A channel that may have so many claimed at once has a gate, an entry that every claim there replaces and that names the last
claims. So of two claimers that both saw a free place one fails, learns by the gate of what the other took, and counts
again. What has ended without a word (a lease, a process) counts until that is written down: from then on its late holder
has to pass the gate as well (`take_back`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from postroom.core.states import WITHDRAWABLE, State
from postroom.errors import MailboxFull, RoomError
from postroom.stores.contract import Ticket, Want
from postroom.stores.gates import Gates, Limits

from . import entries
from .cells import cell_data
from .entries import Entry, Kept, WriteTime, cell_subject, counts, gate_subject, pattern_in, pattern_to, unpack
from .following import SAFETY_LOOK_S, UNTIL_LOST
from .limits import KnownGate, next_gate
from .lines import is_first
from .room import NatsRoom, Step
from .tables import IndexedEntry, group_of
from .wire import Changed, Write

#: Messages that are claimed in one step, with the gates and the buckets; the servers take a thousand entries.
_MOST: Final = 300
#: After a lost race a claimer waits up to so many times as long as its attempt took, and no longer than that.
_PAUSE: Final = 4
_MAX_PAUSE_S: Final = 0.5


def patterns_of(want: Want) -> list[str]:
    """The subjects of everything that a receiver may take."""
    if want.channels is None:
        return [pattern_to(want.agent)]
    return [pattern_to(agent, channel) for channel in dict.fromkeys(want.channels) for agent in (want.agent, None)]


# Gates


def _know_gates(room: NatsRoom, channels: Iterable[str]) -> None:
    """Know every claim that was made through these gates, as far as the gates themselves are known here."""
    limits = room.limits
    for channel in channels:
        if limits.gate(channel) is None:
            room.follower.know_gate(channel, gate_subject(channel))
        while not limits.is_known(channel):
            version, gate, passed = limits.version, limits.gates[gate_subject(channel)], limits.passed.get(channel, -1)
            if limits.surveyed.get(channel) != version or passed < gate.doc.since:
                room.follower.look([pattern_in(channel)], 0)
            else:
                room.read_open(_not_known(room, gate, passed))
            with room.follower.lock:
                limits.passed[channel], limits.surveyed[channel] = gate.seq, version


def _not_known(room: NatsRoom, gate: KnownGate, passed: int) -> list[str]:
    """The messages that were claimed through a gate since that entry of it, and are not known here so."""
    with room.follower.lock:
        new = [claim for claim in gate.doc.claims if claim.gate >= passed]
        rows = room.tables.rows
        return [claim.id for claim in new if claim.id not in rows or rows[claim.id].kept.seq <= claim.after]


def _gate_write(room: NatsRoom, channel: str, gate: KnownGate, ids: dict[str, int]) -> Write:
    """The write that puts claims into a gate, and takes out those that have ended; ids and sequences before it."""
    with room.follower.lock:
        running = room.tables.running(channel)
        ended = {claim.id for claim in gate.doc.claims if claim.id not in running}
    return Write(gate_subject(channel), entries.pack(next_gate(gate, ended, ids)), gate.seq)


def _look_anew(room: NatsRoom, kepts: Sequence[Kept], channels: Collection[str], buckets: Collection[str]) -> None:
    """One of these has changed: learn which."""
    found = {kept.entry.id for kept in room.read_open([kept.entry.id for kept in kepts])}
    for kept in kepts:
        if kept.entry.id not in found:
            room.follower.gone(kept.entry.id, kept.seq)
    gates = room.wire.results([room.wire.last(gate_subject(channel)) for channel in channels])
    with room.follower.lock:
        for channel, gate in zip(channels, gates, strict=True):
            room.limits.saw_gate(channel, gate)
    _read_buckets(room, buckets)


def _read_buckets(room: NatsRoom, names: Collection[str]) -> None:
    found = room.wire.results([room.wire.last(cell_subject(name)) for name in names])
    with room.follower.lock:
        for name, cell in zip(names, found, strict=True):
            room.limits.saw_bucket(name, cell)


def _write_down(room: NatsRoom, ended: Iterable[IndexedEntry]) -> bool:
    """Write down what the clock or the end of a process did to these; whether there was anything to write."""
    moment = room.moment()
    wound = [(row.kept, entries.wound(row.kept, moment, gone=row.gone)) for row in ended]
    steps = [(kept, entry) for kept, entry in wound if entry is not None]
    for end in room.replace_each(steps, moment.write):
        if isinstance(end, BaseException) and not isinstance(end, Changed):
            raise end
    return bool(steps)


# Claiming


class _Plan(NamedTuple):
    """What may be claimed at a moment, what has to be written down first, and the buckets that are not known here."""

    best: list[IndexedEntry]
    ended: list[IndexedEntry]
    unknown: set[str]
    gates: Gates
    known: dict[str, KnownGate]
    moment: WriteTime


class Passage:
    """One claim through gates."""

    def __init__(self, room: NatsRoom, want: Want) -> None:
        self._room = room
        self._want = want
        self._limits = room.limits
        self._blocked: set[str] = set()
        self._losses = 0
        #: What was claimed, and in how many seconds a rate lets more pass.
        self.taken: list[Kept] = []
        self.opens_s: float | None = None

    def take(self) -> None:
        """Claim what the limits let pass."""
        with self._limits.passing:
            try:
                while self._step():
                    pass
            except RoomError:  # what was claimed before must be told; the next look will say what is wrong
                if not self.taken:
                    raise

    def _step(self) -> bool:
        """One round; False when all that can be claimed is."""
        room, want = self._room, self._want
        limits, channels = self._limits.limits, self._limits.gated(want)
        patterns = [*(() if want.ids is not None else patterns_of(want)), *map(pattern_in, channels)]
        room.follower.follow(patterns)
        room.follower.look(patterns, UNTIL_LOST)
        _know_gates(room, channels)
        most = (want.limit if want.ids is None else len(want.ids)) - len(self.taken)
        named = None if want.ids is None else self._named()
        room.bury_the_gone()
        with self._planned(limits, channels, min(most, _MOST), named) as plan:
            if plan is None or _write_down(room, plan.ended):
                return True
            if plan.unknown:
                _read_buckets(room, plan.unknown)
                return True
            blocked = {row.kept.entry.id for row in plan.best if not is_first(room, row.kept)}
            if blocked:
                self._blocked |= blocked
                return True
            if plan.best:
                self._commit(plan)
                return len(self.taken) < (want.limit if want.ids is None else len(want.ids))
        self.opens_s = plan.gates.opens_s()
        return not self.taken and room.follower.look(patterns, SAFETY_LOOK_S)

    def _named(self) -> list[IndexedEntry]:
        """The messages asked for by id, as far as the agent may have them, best first."""
        room, want = self._room, self._want
        now_ms = room.now_ms()
        free = []
        for kept in room.read_open(want.ids or ()):
            entry, is_awaited = kept.entry, kept.state is State.AWAITED
            gone = not is_awaited and entry.owner is not None and room.lives.seen_here(entry.owner) is False
            may_have = is_awaited or entry.judged(now_ms, gone=gone) is State.READY
            if entry.to_agent in (want.agent, None) and may_have:
                free.append(IndexedEntry(kept, owner_gone=gone))
        return sorted(free, key=lambda row: (-row.kept.entry.priority, row.kept.first))

    @contextmanager
    def _planned(
        self, limits: Limits, channels: Collection[str], most: int, named: list[IndexedEntry] | None
    ) -> Iterator[_Plan | None]:
        """What to do; no other thread of this process picks it meanwhile. None when the limits or a gate have changed."""
        room, tables = self._room, self._room.tables
        ids: set[str] = set()
        try:
            with room.follower.lock:
                plan = None
                if self._limits.limits is limits and all(map(self._limits.is_known, channels)):
                    plan = self._plan(limits, channels, most, named)
                    ids.update(row.kept.entry.id for row in (*plan.best, *plan.ended))
                    tables.picked |= ids
            yield plan
        finally:
            tables.picked.difference_update(
                ids
            )  # without the lock: an interrupt while it waits would leave them picked

    def _plan(self, limits: Limits, channels: Collection[str], most: int, named: list[IndexedEntry] | None) -> _Plan:
        """Under the lock."""
        room, tables, want = self._room, self._room.tables, self._want
        moment = room.moment()
        tables.wind(moment.room_ms)
        unknown: set[str] = set()

        def bucket(name: str) -> Any:
            if name not in self._limits.buckets:
                unknown.add(name)
            return self._limits.buckets.get(name, (0, None))[1]

        gates = Gates(limits, moment.room_ms, lambda channel: tables.running(channel).values(), bucket)
        ended = {row.kept.entry.id: row for row in tables.ended_in(channels)}
        if named is None:
            ended |= {row.kept.entry.id: row for row in tables.overdue_for(want)}
        best: list[IndexedEntry] = []
        without = tables.picked | self._blocked | {kept.entry.id for kept in self.taken}
        for row in self._candidates(limits, gates, without, named):
            if len(best) >= most:
                break
            entry = row.kept.entry
            if named is not None and row.kept.state is State.AWAITED:  # an answer, which its asker gets all the same
                best.append(row)
            elif row.kept.state is State.CLAIMED and entry.channel in channels:
                ended[entry.id] = row
            elif gates.lets_pass(entry.channel, group_of(entry)):
                if entry.answer_to is None:
                    gates.take(entry.channel, group_of(entry))
                best.append(row)
        known = {channel: self._limits.gates[gate_subject(channel)] for channel in channels}
        return _Plan(best, list(ended.values()), unknown, gates, known, moment)

    def _candidates(
        self, limits: Limits, gates: Gates, without: set[str], named: list[IndexedEntry] | None
    ) -> Iterable[IndexedEntry]:
        is_paused = self._want.agent in limits.agents
        if named is None:
            return () if is_paused else self._room.tables.candidates(self._want, without, gates.is_shut)
        free = (row for row in named if row.kept.entry.id not in without)
        return (row for row in free if not is_paused or row.kept.state is State.AWAITED)

    def _commit(self, plan: _Plan) -> None:
        """Claim what was planned, in one step; where somebody was faster, learn what has changed."""
        room, moment = self._room, plan.moment
        steps = [(row.kept, entries.claimed(row.kept, self._want, moment, gone=row.gone)) for row in plan.best]
        passing: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for kept, entry in steps:
            if entry.channel in plan.known and kept.state is not State.AWAITED:
                counted = entry.state == State.CLAIMED and entry.answer_to is None
                passing[entry.channel] |= {entry.id: kept.seq} if counted else {}
        began_ns = room.clock.steady_ns()
        each = [room.writes_of(kept, entry) for kept, entry in steps]
        writes = [first for first, *_ in each]
        writes += [_gate_write(room, channel, plan.known[channel], ids) for channel, ids in passing.items()]
        for name, full_ms in plan.gates.taken.items():
            data = cell_data(room, name, full_ms, moment.write)
            writes.append(Write(cell_subject(name), data, self._limits.buckets[name][0]))
        others = [other for _, *rest in each for other in rest]
        try:
            committed = room.commit([*writes, *others], moment.write)
        except Changed:
            self._let_others_pass(room.clock.steady_ns() - began_ns)
            if plan.gates.taken or not self._has_heard_why(plan):  # buckets are not heard of
                _look_anew(room, [row.kept for row in plan.best], passing, plan.gates.taken)
            return
        if committed.found is not None:  # looked up after a lost reply: others may have gone on since
            _look_anew(room, [], passing, plan.gates.taken)
            self._find_taken(steps, moment.write)
            return
        _passed(room, passing, plan.gates, committed.seqs[len(steps) : len(writes)])
        self.taken += [Kept(seq, entry) for (_, entry), seq in zip(steps, committed.seqs, strict=False)]

    def _let_others_pass(self, took_ns: int) -> None:
        """A race that took so long was lost: wait for a random time, the longer the more were lost.

        Several entries in one step cost the servers files of their own, also when the step is refused: claimers that all
        try again at once spend most of that on steps that fail.
        """
        self._losses += 1
        most_s = min(_PAUSE * self._losses * took_ns / 1e9, _MAX_PAUSE_S)
        self._room.wire.pause(most_s * self._room.clock.random())

    def _has_heard_why(self, plan: _Plan) -> bool:
        """Whether a newer entry of what was planned with is known here, so that the next plan will be another."""
        with self._room.follower.lock:
            rows, gates = self._room.tables.rows, self._limits.gates
            return any(rows.get(old.kept.entry.id, old).kept.seq > old.kept.seq for old in plan.best) or any(
                gates[gate_subject(channel)].seq > gate.seq for channel, gate in plan.known.items()
            )

    def _find_taken(self, steps: Sequence[tuple[Kept, Entry]], write: str) -> None:
        wanted = {entry.id: entry for _, entry in steps}
        for kept in self._room.read_open(wanted):
            entry = wanted[kept.entry.id]
            is_same = (kept.entry.claimed_by, kept.entry.deliveries) == (entry.claimed_by, entry.deliveries)
            if is_same and kept.line_of(write) is not None:
                self.taken.append(kept)


def _passed(room: NatsRoom, channels: Collection[str], gates: Gates, seqs: Sequence[int]) -> None:
    """Gates and buckets were written with these sequences: all that went through them is known here."""
    with room.follower.lock:
        room.limits.passed |= zip(channels, seqs, strict=False)
        for (name, full_ms), seq in zip(gates.taken.items(), seqs[len(channels) :], strict=True):
            room.limits.buckets[name] = (seq, full_ms)


# Late holders


def must_pass(room: NatsRoom, kept: Kept) -> bool:
    """Whether the late holder of a message whose lease has ended has to pass the gate of its channel to have it again."""
    if kept.entry.answer_to is not None or kept.entry.judged(room.now_ms()) is State.CLAIMED:
        return False  # of a lease that is known to stand, nothing is asked: a heartbeat must not be late for it
    room.follower.know_limits()
    return room.limits.has_gate(kept.entry.channel)


def take_back(room: NatsRoom, ticket: Ticket, lease_s: float) -> Kept | None:
    """Let a late holder have its message again; None when its ticket no longer counts, or the limits allow no more."""

    def extended(kept: Kept, moment: WriteTime) -> Entry | None:
        return entries.extended(kept, ticket.agent, lease_s, moment) if counts(kept, ticket.token) else None

    with room.limits.passing:
        while True:
            kept = room.read(ticket.id)
            if not counts(kept, ticket.token):
                return None
            if not must_pass(room, kept):  # its lease has not ended, or no longer; or the limits have gone
                return room.change(ticket.id, extended, kept)
            with suppress(Changed):
                return _pass_again(room, kept, extended)


def _pass_again(room: NatsRoom, kept: Kept, step: Step) -> Kept | None:
    """Take this step, if the gate lets the message pass. Raises Changed when something has changed meanwhile."""
    channel = kept.entry.channel
    room.follower.follow([pattern_in(channel)])
    room.follower.look([pattern_in(channel)], 0)  # its holder is told once, and must not lose it for a lost hint
    _know_gates(room, [channel])
    room.bury_the_gone()
    with room.follower.lock:
        moment = room.moment()
        room.tables.wind(moment.room_ms)
        limits, ended = room.limits.of(channel), room.tables.ended_in([channel])
        gate, is_known = room.limits.gates[gate_subject(channel)], room.limits.is_known(channel)
        running = list(room.tables.running(channel).values())
    entry = step(kept, moment)
    if limits is None or entry is None or not is_known or _write_down(room, ended):
        raise Changed
    gates = Gates(Limits({channel: limits.only_concurrent()}), moment.room_ms, lambda _: running, lambda _: None)
    if not gates.lets_pass(channel, group_of(kept.entry)):
        return None
    writes = [room.write_of(entry, kept.seq), _gate_write(room, channel, gate, {entry.id: kept.seq})]
    try:
        committed = room.commit(writes, moment.write)
    except Changed:
        _look_anew(room, [kept], [channel], [])
        raise
    if committed.found is not None:
        _look_anew(room, [], [channel], [])
        return room.kept_of(committed.found)
    _passed(room, [channel], gates, committed.seqs[1:])
    return Kept(committed.seqs[0], entry)


# Full mailboxes


def check_space(room: NatsRoom, writes: Iterable[Write]) -> None:
    """Raise MailboxFull when these writes would put more messages into a mailbox than its channel allows.

    What waits is counted as the leader knows it now; what others send at this very moment is not.
    """
    limits = room.follower.know_limits(hear=False)
    if not limits or all(each.waiting is None for each in limits.channels.values()):
        return
    more: Counter[tuple[str | None, str]] = Counter()
    withdrawn: list[Entry] = []
    for write in writes:
        if not write.subject.startswith("m.o."):
            continue
        entry = unpack(0, write.data).entry
        if entry.state == State.WITHDRAWN and write.expect:
            withdrawn.append(entry)
        elif (
            not write.expect
            and entry.state in WITHDRAWABLE
            and entry.answer_to is None
            and _most(limits, entry.channel)
        ):
            more[entry.to_agent, entry.channel] += 1
    patterns = [pattern_to(*box) for box in more]
    room.follower.follow(patterns)
    room.follower.look(patterns, 0)
    with room.follower.lock:
        rows = room.tables.rows
        for entry in withdrawn:  # one whose lease has ended is not counted as one that waits
            if entry.id not in rows or rows[entry.id].kept.state in WITHDRAWABLE:
                more[entry.to_agent, entry.channel] -= 1
        for (to_agent, channel), count in more.items():
            most = _most(limits, channel)
            if count > 0 and most is not None and _are_too_many(room, to_agent, channel, most - count):
                raise MailboxFull(channel, to_agent, most)


def _are_too_many(room: NatsRoom, to_agent: str | None, channel: str, most: int) -> bool:
    """Whether more messages wait in a mailbox; what has expired, and nobody has written down yet, waits no more."""
    if room.tables.waiting(to_agent, channel) <= most:
        return False
    now_ms = room.now_ms()
    entries_there = (row.kept.entry for row in room.tables.rows.values())
    waiting = (each for each in entries_there if (each.to_agent, each.channel) == (to_agent, channel))
    return sum(each.state in WITHDRAWABLE and each.judged(now_ms) in WITHDRAWABLE for each in waiting) > most


def _most(limits: Limits, channel: str) -> int | None:
    known = limits.channels.get(channel)
    return None if known is None else known.waiting
