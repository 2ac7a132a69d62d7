"""One opened room on NATS: its connection, its time, what is known of it, and how a change of a message is made."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from postroom.core.clock import Clock, SystemClock, from_iso
from postroom.core.config import Config
from postroom.core.message import FRACTION_BITS, MessageT, key_at
from postroom.core.states import FINISHED, State
from postroom.errors import RoomDamaged, RoomError, RoomNotFound, RoomUnreachable

from . import entries
from .access import Access
from .entries import Entry, Kept, WriteTime, is_there, subject_of, unpack
from .following import Follower
from .heartbeats import Lives
from .reserve import Reserve
from .unsure import Unsure
from .wire import Changed, Committed, IsMine, StoredEntry, Wire, Write

#: Before this version the servers cannot write several entries in one step.
LEAST_VERSION: Final = (2, 12)
#: The layout of a room (see entries.py), which stands in the metadata of its stream. A room with a higher number is
#: refused.
LAYOUT: Final = 4
#: The layouts that brought order keys and withdrawn messages, limits, and answers in the entries of their questions.
ORDER_LAYOUT: Final = 2
LIMITS_LAYOUT: Final = 3
ANSWER_LAYOUT: Final = 4
_LAYOUT_KEY: Final = "postroom"
#: The servers' words for a stream that is not there, and for one that another process has just made.
_NO_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058
#: Copies that are kept of a room, where there is more than one server.
COPIES: Final = 3
_SECOND_NS: Final = 1_000_000_000


#: How the replacing of an entry ended: as it stands then (None: not any more), or what was raised for it.
Replaced = Kept | BaseException | None
#: The next entry of a message; None when there is no such step.
Step = Callable[[Kept, WriteTime], Entry | None]


class NatsRoom:
    """The state that all steps of a store share."""

    def __init__(self, access: Access, name: str, config: Config, clock: Clock, *, create: bool) -> None:
        self.name = name
        self.config = config
        self.clock = clock
        self.wire = Wire(access, name, config.server_timeout_s)
        try:
            self.follower = Follower(self.wire, clock)
            self.tables = self.follower.tables
            self.limits = self.follower.limits
            self.reserve = Reserve(self.wire, clock)
            self._prepare(create)
            self._base_ns = self._read_base()
            self._last_key = self._top_key()
            self.follower.know_limits(hear=False)  # now: the first send need not ask, and is told how it ended
        except BaseException:
            self.wire.connection.close()
            raise
        self._key_lock = threading.Lock()
        self._nonce = secrets.token_hex(3)
        self._writes = itertools.count()
        self._seen_alive_ns: dict[str, int] = {}
        self.lives = Lives(self.wire, clock)
        self.unsure = Unsure(clock)
        #: The newest entry of each message that this process has claimed: it can be settled without a look.
        self.mine: dict[str, Kept] = {}

    # Opening

    def _prepare(self, create: bool) -> None:
        """Find the room's stream, or make it."""
        server = self.wire.connection.client.server
        version = tuple(int(part) for part in str(server.get("version", "0.0")).split("-")[0].split(".")[:2])
        if version < LEAST_VERSION:
            raise RoomError(
                f"the NATS server has version {server.get('version')}; a room needs "
                f"{LEAST_VERSION[0]}.{LEAST_VERSION[1]} or later"
            )
        if not server.get("jetstream"):
            raise RoomError(
                "the NATS server runs without JetStream, which keeps the room; start it with: nats-server -js"
            )
        answer = self.wire.info(subjects_filter=self.reserve.filter)
        if answer.get("error", {}).get("err_code") == _NO_STREAM:
            if not create:
                raise RoomNotFound(f"there is no room {self.name} on these servers; make one with `postroom init`")
            answer = self._make(self.config.replicas or (COPIES if server.get("cluster") else 1))
        if "error" in answer:
            raise RoomUnreachable(f"the room {self.name} cannot be opened: {answer['error'].get('description')}")
        self.layout = check_layout(self.name, answer["config"])
        self.reserve.see(answer)

    def announce_layout(self, needed: int) -> None:
        """Say in the stream that the room has today's layout from now on, before the first entry that needs a newer one.

        A room whose users need nothing of that stays open to older programs; one that has the room open when it is
        announced is not refused. (Always today's: of two that announce at once, none takes back what the other said.)
        """
        if self.layout >= needed:
            return
        config = self.wire.info()["config"]
        config["metadata"] = {**(config.get("metadata") or {}), _LAYOUT_KEY: str(LAYOUT)}
        answer = self.wire.run(self.wire.api(f"STREAM.UPDATE.{self.wire.stream}", **config))
        if "error" in answer:
            said = answer["error"].get("description")
            raise RoomUnreachable(
                f"the room {self.name} cannot be upgraded to layout {LAYOUT}: {said}; nothing was changed"
            )
        self.layout = LAYOUT

    def _make(self, copies: int) -> dict[str, Any]:
        """Make the room's stream; what the servers say of it."""
        answer = self.wire.run(self.wire.api(f"STREAM.CREATE.{self.wire.stream}", **stream_settings(self.name, copies)))
        if "error" in answer and answer["error"].get("err_code") != _NAME_IN_USE:
            raise RoomUnreachable(f"the room {self.name} cannot be made: {answer['error'].get('description')}")
        return self.wire.info(subjects_filter=self.reserve.filter)  # also if another process made it at the same moment

    def _read_base(self) -> int:
        """The room's time is the steady clock of this boot and this number; all processes of this machine use the same.

        The first of them takes it from the servers' clock, so that machines whose clocks differ count leases alike.
        """
        subject = f"t.{entries.hex_of(self.clock.boot_id())}"
        for _ in range(10):
            found = self.wire.last_now(subject)
            if found is not None:
                return int(found.data)
            base_ns = self._now_ns_of_servers() - self.clock.steady_ns()
            behind_ms = (self._top_key() >> FRACTION_BITS) + 1  # never behind what it was
            base_ns = max(base_ns, behind_ms * 1_000_000 - self.clock.steady_ns())
            data = str(base_ns).encode()
            try:
                self.wire.run(self.wire.commit([Write(subject, data, 0)], data.__eq__))
            except Changed:
                continue
            return base_ns
        raise RoomUnreachable(f"the time of the room {self.name} could not be agreed; try again")

    def _now_ns_of_servers(self) -> int:
        if not isinstance(self.clock, SystemClock):  # a test's clock is the only one that counts
            return self.clock.wall_ms() * 1_000_000
        before_ns = self.clock.steady_ns()
        told = self.wire.info().get("ts")
        spent_ns = self.clock.steady_ns() - before_ns
        if told is None:
            return self.clock.wall_ms() * 1_000_000
        return told_ms(told) * 1_000_000 + spent_ns // 2

    def _top_key(self) -> int:
        found = self.wire.last_now("m.>")
        return 0 if found is None or not is_there(found.data) else unpack(found.seq, found.data).entry.top_key

    # Time and numbers

    def now_ms(self) -> int:
        """Room time."""
        return (self._base_ns + self.clock.steady_ns()) // 1_000_000

    def moment(self, write: str | None = None) -> WriteTime:
        """Now, for one write; or for another attempt at the same write."""
        write = write or f"{self._nonce}{next(self._writes):x}"
        return WriteTime(self.now_ms(), self.clock.wall_ms(), write, self.lives.process)

    def next_key(self) -> int:
        """A key that is higher than all that were given out or seen here, and even: the odd ones are for answers."""
        with self._key_lock:
            now = key_at(self._base_ns + self.clock.steady_ns())
            self._last_key = max(now, self._last_key + 1, self.tables.top_key + 1) + 1 & ~1
            return self._last_key

    # Reading and writing messages

    def read(self, id: str) -> Kept | None:
        """A message's entry as the leader knows it."""
        subject, question = subject_of(id), entries.question_id(id)
        if subject is None:
            return None
        kept = self._read_answer(id, question) if question else self.kept_of(self.wire.last_now(subject))
        if kept is not None:
            return kept
        elsewhere = [entries.subject_in_any_box(id)]  # it may have come from another room, with its id
        elsewhere += [entries.archive_subject(state, id) for state in sorted(FINISHED)]
        found = self.wire.results([self.wire.last(each) for each in elsewhere])
        return next(filter(None, map(self.kept_of, found)), None)

    def _read_answer(self, id: str, question: str) -> Kept | None:
        """What may be an answer, in its own box or in the entry of its question.

        One that is put from there into a box at this moment is not found, and stands in its box afterwards.
        """
        subjects = [str(subject_of(each)) for each in (id, question)]
        own, other = self.wire.results([self.wire.last(subject) for subject in subjects])
        kept, host = self.kept_of(own), self.kept_of(other)
        return kept or self._within(host, id)

    @staticmethod
    def _within(host: Kept | None, id: str) -> Kept | None:
        """The answer with this id, if it stands in that entry."""
        answer = None if host is None else host.answer
        return answer if answer is not None and answer.entry.id == id else None

    def read_open(self, ids: Iterable[str]) -> list[Kept]:
        """The entries of messages that are kept and were not put away, in the order of the ids."""
        subjects = {id: subject for id in ids if (subject := subject_of(id)) is not None}
        hosts = {id: str(subject_of(question)) for id in subjects if (question := entries.question_id(id)) is not None}
        if len(subjects) == 1 and not hosts:
            found = [self.wire.last_now(*subjects.values())]
        else:
            found = self.wire.results([self.wire.last(each) for each in (*subjects.values(), *hosts.values())])
        around = dict(zip(hosts, map(self.kept_of, found[len(subjects) :]), strict=True))
        kepts = {
            id: self.kept_of(there) or self._within(around.get(id), id)
            for id, there in zip(subjects, found, strict=False)
        }
        strangers = [id for id, there in zip(subjects, found, strict=False) if there is None and kepts[id] is None]
        moved = self.wire.results([self.wire.last(entries.subject_in_any_box(id)) for id in strangers])
        kepts |= zip(strangers, map(self.kept_of, moved), strict=True)
        return [kept for kept in kepts.values() if kept]

    def kept_of(self, found: StoredEntry | None) -> Kept | None:
        """A stored entry as a message's, None where it is none; the tables here learn of it."""
        if found is None:
            return None
        self.follower.learn(*found[:3])
        return unpack(found.seq, found.data) if is_there(found.data) else None

    def write_of(self, entry: Entry, expect: int) -> Write:
        """The write that puts an entry in the place of the one with that sequence."""
        with self._key_lock:
            top = max(self._last_key, self.tables.top_key)
        return Write(entries.place_of(entry), entries.packed(replace(entry, top_key=top)), expect)

    def writes_of(self, kept: Kept, entry: Entry, *, out: bool = False) -> list[Write]:
        """The writes that put an entry in the place of the one that was read, the first of which has it in it.

        An answer within its question's entry stays there when it ends; for anything else that becomes of it (and `out`),
        it gets an entry of its own, in one step with its leaving that of the question. So it always stands in one of the two, and
        one that was deleted or put away does not come back by a writer that was late
        (tests/stores/test_nats_answers.py).
        """
        if kept.host is None:
            return [self.write_of(entry, kept.seq)]
        if entry.state in FINISHED and not out:
            return [self.write_of(entries.with_answer(kept, entry), kept.seq)]
        own = self.write_of(entry, 0)._replace(expect=None)
        return [own, self.write_of(entries.with_answer(kept, None), kept.seq)]

    def commit(self, writes: Sequence[Write], name: str, *, is_send: bool = False) -> Committed:
        """Make writes in one step, the first of which is a message's entry. Raises Changed, and what Wire.commit
        raises.

        After: they are kept, known here, and their waiters here are woken.
        """
        return self.note_written(
            writes, self.wire.commit_now(writes, lambda data: entries.written_by(name, data), is_send=is_send)
        )

    def replace_each(self, steps: Sequence[tuple[Kept, Entry]], name: str) -> list[Replaced]:
        """Put entries in the place of those that were read, each in a step of its own; how each of them ended.

        After: what was written is known here, as `commit` says, and so is how that stands which somebody else changed
        first.
        """
        writes = [self.writes_of(kept, entry) for kept, entry in steps]
        ends = self._commit_each(writes, lambda data: entries.written_by(name, data))
        replaced: list[Replaced] = []
        for (kept, entry), each, end in zip(steps, writes, ends, strict=True):
            if isinstance(end, Changed):
                now = self.read(kept.entry.id)
                if now is None or now.entry.archived:
                    self.follower.gone(kept.entry.id, kept.seq)
            if isinstance(end, BaseException):
                replaced.append(end)
                continue
            seq = self.note_written(each, end).seqs[0]
            replaced.append(self._written(Kept(seq, entry), kept, end))
        return replaced

    def _written(self, now: Kept, before: Kept, end: Committed) -> Kept | None:
        """A message after a write of `writes_of`: as it was written, or as it was found after a lost reply."""
        if end.found is not None:
            found = self.kept_of(end.found)
            return found if found is None or found.entry.id == now.entry.id else self._within(found, now.entry.id)
        if before.host is None or now.entry.state not in FINISHED:
            return now
        return now._replace(host=entries.with_answer(before, now.entry))

    def _commit_each(self, writes: Sequence[Sequence[Write]], is_mine: IsMine) -> list[Committed | BaseException]:
        if len(writes) != 1:
            return self.wire.run_all([self.wire.commit(each, is_mine) for each in writes])
        try:
            return [self.wire.commit_now(writes[0], is_mine)]
        except Exception as error:  # noqa: BLE001  (as `run_all` gives it)
            return [error]

    def note_written(self, writes: Sequence[Write], committed: Committed) -> Committed:
        """Know here what was written, with all its sequences. After a lost reply those are looked up."""
        if committed.found is not None:
            others = self.wire.results([self.wire.last(each.subject) for each in writes[1:]])
            found = [committed.found, *others]
            for entry in filter(None, found):
                self.follower.wrote(*entry[:3])
            return committed._replace(seqs=[0 if entry is None else entry.seq for entry in found])
        for each, seq in zip(writes, committed.seqs, strict=True):
            self.follower.wrote(each.subject, seq, each.data)
        return committed

    def change(self, id: str, step: Step, known: Kept | None = None) -> Kept | None:
        """Take a message one step further, whatever others do to it meanwhile; `known` spares the first look.

        None when there is no such step (any more).
        """
        write = self.moment().write
        kept = known or self.read(id)
        while kept is not None and kept.line_of(write) is None:
            entry = step(kept, self.moment(write))
            if entry is None:
                return None
            try:
                committed = self.commit(self.writes_of(kept, entry), write)
                return self._written(Kept(committed.seqs[0], entry), kept, committed._replace(found=None))
            except Changed:
                kept = self.read(id)
        return kept

    # Showing

    def show(self, make: type[MessageT], kepts: Sequence[Kept], gone: Container[str | None] = ()) -> list[MessageT]:
        """Entries as messages, with their payloads; what `gone` processes hold is free."""
        payloads = self._payloads(kepts)
        now_ms, wall_ms = self.now_ms(), self.clock.wall_ms()
        return [
            entries.shown(make, kept, now_ms, wall_ms, payloads.get(kept.entry.id), owner_gone=kept.entry.owner in gone)
            for kept in kepts
        ]

    def _payloads(self, kepts: Sequence[Kept]) -> dict[str, bytes]:
        """The large payloads, put together from their parts; an empty one for those that are not whole any more."""
        wanted = [(kept.entry.id, part) for kept in kepts for part in range(kept.entry.parts)]
        found = self.wire.results([self.wire.last(f"b.{id}.{part}") for id, part in wanted])
        payloads: dict[str, bytes] = {}
        for (id, _), part in zip(wanted, found, strict=True):
            payloads[id] = payloads.get(id, b"") + (part.data if part is not None else b"")
        sizes = {kept.entry.id: kept.entry.size for kept in kepts}
        return {id: payload if len(payload) == sizes[id] else b"{}" for id, payload in payloads.items()}

    # Processes

    def bury_the_gone(self) -> None:
        """Let go of what processes held or waited for that are gone.

        One that was seen to run is believed for a second.
        """
        now_ns = self.clock.steady_ns()
        with self.follower.lock:
            for process in dict.fromkeys((*self.tables.owners, *self.tables.waits)):
                is_own = process == self.lives.process
                if is_own or 0 <= now_ns - self._seen_alive_ns.get(process, -_SECOND_NS) < _SECOND_NS:
                    continue
                alive = self.lives.seen_here(process)
                if alive is False:
                    self._mark_dead(process)
                elif alive:
                    self._seen_alive_ns[process] = now_ns

    def known(self) -> list[Kept]:
        """All that is known here, as it stands now."""
        with self.follower.lock:
            return [row.kept for row in self.tables.rows.values()]

    def bury_the_silent(self) -> None:
        """Let go of what processes of other machines held or waited for that have fallen silent."""
        known = [kept.entry for kept in self.known()]
        beating = {entry.owner for entry in known if entry.owner_beats and entry.state == State.CLAIMED}
        beating |= {entry.waiter for entry in known if entry.waiter_beats}
        names = sorted(name for name in beating if name is not None and self.lives.seen_here(name) is None)
        for name in self.lives.look(names):
            with self.follower.lock:
                self._mark_dead(name)

    def process_alive(self, process: str) -> bool | None:
        """Whether a process is alive, here or elsewhere."""
        return self.lives.is_alive(process)

    def gone_owners(self, kepts: Iterable[Kept] | None = None) -> frozenset[str]:
        """Of the processes that hold messages (all that are known here, or these), those that are gone.

        For a look: each is asked for once. The caller does not have the follower's lock, for this may ask the servers.
        """
        if kepts is None:
            with self.follower.lock:
                owners = dict.fromkeys(self.tables.owners)
        else:
            held = (kept.entry.owner for kept in kepts if kept.state is State.CLAIMED)
            owners = dict.fromkeys(owner for owner in held if owner)
        return frozenset(process for process, alive in self.lives.are_alive(owners).items() if alive is False)

    def _mark_dead(self, process: str) -> None:
        """Nothing is written for it, so nothing else would wake the waiters here for its messages."""
        for id in self.tables.bury(process, self.now_ms()):
            self.follower.stir(id)
            self.follower.ring_channel(self.tables.rows[id].kept.entry.channel)

    def close(self) -> None:
        self.follower.close()
        self.wire.connection.close()
        self.follower.tidy()  # last: a thread that subscribes has the lock of it, and comes back now


def told_ms(text: str) -> int:
    """A server's time, which it tells to the nanosecond."""
    return from_iso(text[:26].rstrip("Z") + "Z")


def check_layout(room: str, config: dict[str, Any]) -> int:
    """The layout that a stream names; one that names none has the first. RoomDamaged when this program cannot read it."""
    layout = (config.get("metadata") or {}).get(_LAYOUT_KEY, "1")
    if not (layout.isdecimal() and 1 <= int(layout) <= LAYOUT):
        raise RoomDamaged(
            f"the room {room} has layout {layout}, and this Postroom reads layouts up to {LAYOUT}; it was made by a newer "
            "Postroom: upgrade this one"
        )
    return int(layout)


def stream_settings(room: str, copies: int) -> dict[str, Any]:
    """How the servers keep a room. No limits: those would drop the oldest mail without a word."""
    return {
        "name": f"POSTROOM_{room}",
        "subjects": [f"pr.{room}.>"],
        "retention": "limits",
        "storage": "file",
        "num_replicas": copies,
        "max_msgs_per_subject": 1,
        "discard": "old",
        "allow_direct": True,
        "allow_atomic": True,
        "allow_msg_ttl": True,
        "republish": {"src": f"pr.{room}.>", "dest": f"prh.{room}.>"},
        "metadata": {_LAYOUT_KEY: str(LAYOUT)},
    }
