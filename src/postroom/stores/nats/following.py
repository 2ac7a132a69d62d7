"""A cache of a room on NATS: which entries are known here, how they stay current, and which waiters a change wakes.

The servers tell every change once more on a subject for listening (republish). What is followed is read once; from then
on each change comes by itself, with the new entry in it, so that a receiver that is woken knows what to claim.

Such a hint can be lost: in a reconnect, or when a leader dies. So a receiver that finds nothing looks at the leader
too, every `SAFETY_LOOK_S` at most, for what came after the last entry that was read there; after a reconnect everybody
does.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Final

from postroom.core.clock import Clock
from postroom.core.states import State
from postroom.errors import RoomBusy, RoomClosed
from postroom.stores import contract
from postroom.stores.gates import Limits
from postroom.stores.pipes import PipeWaiter, ring

from .entries import (
    MOVED,
    Kept,
    box_subject,
    hex_of,
    is_heartbeat,
    is_there,
    is_whole_channel,
    makes_space,
    pattern_in,
    pattern_to,
    patterns_around,
    question_id,
    subject_in_any_box,
    subject_of,
    unpack,
)
from .limits import LIMITS_SUBJECT, KnownLimits
from .tables import KnownEntries
from .wire import StoredEntry, Unsubscribe, Wire

#: How long an empty answer from here is believed without a look at the leader, in seconds.
SAFETY_LOOK_S: Final = 5.0
#: What is known here is believed until hints may have been lost. For receivers that know of something to do: without a
#: look they would do all of that before they learn what came while the connection was away
#: (tests/stores/test_nats_busy.py); one now and then, as those have that find nothing, would read again all that a busy
#: receiver has done since the last.
UNTIL_LOST: Final = math.inf
#: Everything in the room, cells too: so that the numbers of what is heard have no gaps while nothing is lost.
_WHOLE_ROOM: Final = ">"
_MESSAGES: Final = "m.>"
#: The two parts of it that can be known as a whole: what is open or was finished lately, and what was put away.
OPEN_PART: Final = "m.o.>"
ARCHIVE: Final = "m.f.>"
_MAX_RUNG: Final = 4000
#: Mail for anybody in a channel that still lies there so long after it was heard of wakes one of its waiters here.
_PASSED_BY_S: Final = 0.05
#: The queue group of the waiters for the mail of a channel: one of them is woken, not all.
_ONE: Final = "one"

_IN_ANY_BOX: Final = subject_in_any_box("").rstrip(".")

#: A subject pattern to listen to, and the name under which it is shared ("" when everybody hears of everything).
Key = tuple[str, str]
_LIMITS_KEY: Final = (LIMITS_SUBJECT, "")


def keys_of_topic(topic: str) -> list[Key]:
    """The keys that a listener to a topic must hear: of an answer also that of its question, in whose entry it may be."""
    kind, _, name = topic.partition(":")
    question = question_id(name) if kind == "message" else None
    keys = (key_of_topic(topic), None if question is None else (subject_in_any_box(question), ""))
    return [key for key in keys if key is not None]


def key_of_topic(topic: str) -> Key | None:
    """The key that a listener to a topic must hear; None when nothing can ever happen there."""
    kind, _, name = topic.partition(":")
    if topic == contract.FEED:
        return (_MESSAGES, "")
    if kind == "to":
        return (pattern_to(name), "")
    if kind == "channel":
        return (pattern_to(None, name), _ONE)
    if kind == "cells":
        return (f"c.{hex_of(name)}.>", "")
    if kind == "space":
        return (pattern_in(name), "")
    known = kind == "message" and subject_of(name) is not None
    return (subject_in_any_box(name), "") if known else None


def _message_of(key: Key) -> str | None:
    """The id of the message that a key is for; None when it is for many."""
    beginning, _, id = key[0].rpartition(".")
    return id if beginning == _IN_ANY_BOX else None


class _Followed:
    """A pattern whose entries are known here: up to which sequence that is sure, and when it was looked at."""

    sure = 0
    looked_ns: int | None = None
    is_loaded = False


class Follower:
    """The tables of one opened room, and the waiters for their changes."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self.tables = KnownEntries()
        self.limits = KnownLimits()
        self.lock = threading.RLock()
        self._wire = wire
        self._clock = clock
        self._loop = wire.connection.link.loop
        self._followed: dict[str, _Followed] = {}
        self._whole = _Followed()  # the whole room, once a part of it is known
        self._parts: set[str] = set()
        self._loaded: set[str] = set()
        self._reading = threading.Lock()
        self._subscriptions: dict[Key, Unsubscribe] = {}
        self._uses: defaultdict[Key, int] = defaultdict(int)
        self._changing = threading.RLock()  # held while subscribing, which waits; never taken on the background loop
        #: Waiters that are done, until all that they had is given back.
        self.ending: deque[NatsWaiter] = deque()
        #: Weakly: one that an interrupt takes from its owner is collected, and does not listen for ever.
        self._waiters: defaultdict[Key, list[weakref.ref[PipeWaiter[Key]]]] = defaultdict(list)
        #: The newest entry that is known of each message that somebody here waits for.
        self.news: dict[str, StoredEntry | None] = {}
        self._rung: OrderedDict[tuple[Key, int], None] = OrderedDict()
        self.closed = False
        wire.connection.on_loss = self._look_again

    # Subscriptions

    def _use(self, key: Key, used: list[Key]) -> None:
        """Hear of this from now on, until `_leave`; it is added to `used` before anything is waited for."""
        with self._changing:
            self._uses[key] += 1
            used.append(key)
            if (id := _message_of(key)) is not None:
                with self.lock:
                    self.news.setdefault(id)
            if key not in self._subscriptions:
                self._wire.run(self._subscribe(key))

    async def _subscribe(self, key: Key) -> None:
        """On the background loop, where no signal comes between a subscription and the note of it."""
        self._subscriptions[key] = await self._wire.subscribe(key[0], lambda *heard: self._heard(key, *heard), key[1])

    def _leave(self, used: list[Key]) -> None:
        """Give back the last of these."""
        with self._changing:
            key = used[-1]
            self._uses[key] -= 1
            used.pop()  # Python looks for signals after this, and not before
            if self._uses[key] <= 0:
                unsubscribe = self._subscriptions.pop(key, None)
                if unsubscribe is not None:
                    self._wire.connection.link.soon(unsubscribe)
                del self._uses[key]
                with self.lock:
                    self.news.pop(_message_of(key) or "", None)

    # Knowing

    def follow(self, patterns: Iterable[str]) -> None:
        """Know all entries of these patterns from now on."""
        for pattern in patterns:
            if not self._is_known(pattern):
                with self._reading:  # a second thread waits until the first has read it
                    if not self._is_known(pattern):
                        self._use((pattern, ""), [])
                        self._read(pattern, _Followed())

    def _is_known(self, pattern: str) -> bool:
        followed = (self._followed.get(each) for each in (pattern, *_around(pattern)))
        return OPEN_PART in self._loaded or any(each is not None and each.is_loaded for each in followed)

    def _read(self, pattern: str, followed: _Followed) -> None:
        """Learn of everything that came after what is sure."""
        followed = self._followed.setdefault(pattern, followed)  # first: what is heard while reading must not be lost
        before_ns, losses = self._clock.steady_ns(), self._wire.connection.losses
        found = self._scan(pattern, followed.sure + 1)
        with self.lock:
            followed.sure = max(followed.sure, *found.values(), 0)
            followed.looked_ns = before_ns if losses == self._wire.connection.losses else None
            followed.is_loaded = True

    def _scan(self, pattern: str, seq: int) -> dict[str, int]:
        """Learn of all entries from that sequence on; their ids and sequences."""
        found = self._wire.run(self._wire.scan(pattern, seq))
        for entry in found:
            self.learn(*entry[:3])
        seqs = {entry.subject.rpartition(".")[2]: entry.seq for entry in found}
        with self.lock:
            known = [row.kept for row in map(self.tables.rows.get, seqs) if row is not None]
        return seqs | {kept.entry.answer.id: kept.seq for kept in known if kept.entry.answer is not None}

    def last_number(self) -> int:
        """The highest sequence in the room, as the leader knows it."""
        return int(self._wire.info()["state"]["last_seq"])

    def know(self, *parts: str) -> None:
        """Know these parts of the room whole, as they are now."""
        with self._reading:
            if (_WHOLE_ROOM, "") not in self._subscriptions:
                self._use((_WHOLE_ROOM, ""), [])
            while not self._know({*parts}):
                pass

    def _know(self, parts: set[str]) -> bool:
        """One attempt; False when the connection was lost meanwhile, and hints with it."""
        whole = self._whole
        before_ns, losses = self._clock.steady_ns(), self._wire.connection.losses
        with self.lock:
            known, anew = set(self._loaded), whole.looked_ns is None
            self._parts |= parts  # first: what is heard while reading must not be lost
            if anew:  # hints may have been lost, also of what was deleted: all is read again
                whole.sure = 0
        last = self.last_number()
        found: dict[str, int] = {}
        for part in sorted(known | parts):
            if part not in known or last > whole.sure:
                found |= self._scan(part, whole.sure + 1 if part in known else 1)
        with self.lock:
            if losses != self._wire.connection.losses:
                return False
            if anew and known:
                self._drop_ghosts(found, last)
            self._loaded |= parts
            whole.sure = max(whole.sure, last)
            whole.looked_ns = before_ns
            return True

    def _drop_ghosts(self, found: dict[str, int], last: int) -> None:
        """Forget what is not there any more, and whose end was not heard of."""
        for id, row in tuple(self.tables.rows.items()):
            if id not in found and row.kept.seq <= last:
                self.tables.forget(id)

    def look(self, patterns: Iterable[str], believed_s: float) -> bool:
        """Look at the leader for what was not heard of, where a look is due. Returns whether one was made now."""
        due = self.due(patterns, believed_s)
        for pattern, followed in due.items():
            if followed is self._whole:
                self.know()
            else:
                self._read(pattern, followed)
        return bool(due)

    def due(self, patterns: Iterable[str], believed_s: float) -> dict[str, _Followed]:
        """The sources of news of these patterns (the whole room if that is known) that had no look for that long."""
        if OPEN_PART in self._loaded:
            current = {_WHOLE_ROOM: self._whole}
        else:
            names = dict.fromkeys(each for pattern in patterns for each in (pattern, *_around(pattern)))
            current = {name: self._followed[name] for name in names if name in self._followed}
        now_ns = self._clock.steady_ns()
        return {
            name: each
            for name, each in current.items()
            if each.looked_ns is None or not 0 <= now_ns - each.looked_ns < believed_s * 1e9
        }

    # Limits

    def know_limits(self, *, hear: bool = True) -> Limits:
        """The limits of the room as of two seconds ago at most; `hear`: and every change of them from now on."""
        now_ns = self._clock.steady_ns()
        is_new = hear and _LIMITS_KEY not in self._subscriptions
        if is_new:
            self._hear_of(_LIMITS_KEY)
        if is_new or self.limits.is_due(now_ns):
            version, losses = self.limits.version, self._wire.connection.losses
            found = self._wire.last_now(LIMITS_SUBJECT)
            with self.lock:
                if self.limits.saw(found, version):
                    self._ring_all()
                if not self.limits.limits:
                    self.tables.stop_counting()
                self.limits.looked_ns = now_ns if losses == self._wire.connection.losses else None
        return self.limits.limits

    def know_gate(self, channel: str, subject: str) -> None:
        """Know a gate as the leader does, and hear of its changes from now on."""
        self._hear_of((subject, ""))
        found = self._wire.last_now(subject)
        with self.lock:
            self.limits.saw_gate(channel, found)

    def _hear_of(self, key: Key) -> None:
        with self._reading:  # a second thread waits until the first hears of it
            if key not in self._subscriptions:
                self._use(key, [])

    def _look_again(self) -> None:
        """The connection was away: hints may be lost, and every waiter has to look."""
        with self.lock:
            for followed in (*self._followed.values(), self._whole):
                followed.looked_ns = None
            self.limits.looked_ns = None
            self._ring_all()

    def _ring_all(self) -> None:
        for waiters in tuple(self._waiters.values()):
            for known in tuple(waiters):
                ring(known)

    def learn(self, subject: str, seq: int, data: bytes) -> None:
        """An entry was read, written or heard of: if it is one of those that are followed, it is known from now on."""
        with self.lock:
            if not subject.startswith("m."):
                if self.limits.learn(subject, seq, data):
                    self._ring_all()
                return
            if self.news and (waited := subject.rpartition(".")[2]) in self.news:
                before = self.news[waited]
                if before is None or before.seq < seq:
                    self.news[waited] = StoredEntry(subject, seq, data)
            if not self._covers(subject):
                return
            if data == MOVED and {OPEN_PART, ARCHIVE} <= self._parts:
                return  # it is heard of where it stands now
            id = subject.rpartition(".")[2]
            known = self.tables.rows.get(id)
            if known is not None and known.kept.seq >= seq:
                return  # every write of this process is also heard of: decoding it twice is a waste
            self._learn(id, seq, unpack(seq, data) if is_there(data) else None)

    def _learn(self, id: str, seq: int, kept: Kept | None) -> None:
        """Know an entry, or that it is gone, and the answer in it; the end of a claim may let others of its channel
        pass.
        """
        self._learn_answer(id, seq, kept)
        if not self.limits.limits:
            self.tables.learn(id, seq, kept)
            return
        known = self.tables.rows.get(id)
        self.tables.learn(id, seq, kept)
        if known is None or known.kept.state is not State.CLAIMED:
            return
        row = self.tables.rows.get(id)
        if row is None or row.kept.state is not State.CLAIMED:
            self.ring_channel(known.kept.entry.channel)

    def _learn_answer(self, id: str, seq: int, kept: Kept | None) -> None:
        """Know the answer in an entry that is about to be known, or that it does not stand there any more."""
        known, rows = self.tables.rows.get(id), self.tables.rows
        if known is not None and known.kept.seq >= seq:
            return
        before = None if known is None else known.kept.entry.answer
        now = None if kept is None else kept.answer
        if now is not None:
            self.tables.learn(now.entry.id, seq, now)
        elif before is not None and before.id in rows and rows[before.id].kept.host is not None:
            self.tables.forget(before.id)  # not as deleted: where it stands now, it stood before its question told so

    def gone(self, id: str, seq: int) -> None:
        """An entry is not there any more, and nobody knows since when."""
        with self.lock:
            self._learn(id, seq + 1, None)

    # Hearing

    def _heard(self, key: Key, subject: str, seq: int, data: bytes) -> None:
        """A change that the servers tell of, or (sequence 0) a word that somebody should look.

        On the background loop.
        """
        with self.lock:
            if seq:
                self.learn(subject, seq, data)
            if key[0] == _WHOLE_ROOM and seq == self._whole.sure + 1:
                self._whole.sure = seq
            if seq and self._is_heartbeat(subject, seq):
                return
            if self._concerns(key, seq, data):
                self._ring(key, seq)
            if seq and key[1] != _ONE:
                self._see_to_it(subject, seq)

    def _is_heartbeat(self, subject: str, seq: int) -> bool:
        """Whether that is known to be a heartbeat of the holder of a message, which concerns nobody that waits."""
        row = self.tables.rows.get(subject.rpartition(".")[2])
        return row is not None and row.kept.seq == seq and is_heartbeat(row.kept)

    def _see_to_it(self, subject: str, seq: int) -> None:
        """See to it that somebody takes mail of a channel, where the servers may have chosen nobody to be woken.

        They choose before they tell, so a waiter that begins in between is told by its ordinary subscription, after its
        look, and not chosen (tests/stores/test_nats.py: test_who_was_not_chosen_is_woken_all_the_same).
        """
        if not self._waiters:
            return
        for key in ((pattern, _ONE) for pattern in patterns_around(subject)):
            if key in self._waiters:
                self._loop.call_later(_PASSED_BY_S, self._ring_if_it_lies_there, key, subject, seq)

    def _ring_if_it_lies_there(self, key: Key, subject: str, seq: int) -> None:
        with self.lock:
            row = self.tables.rows.get(subject.rpartition(".")[2])
            lies_there = row is not None and row.kept.seq == seq and row.kept.state is State.READY
            lies_there = lies_there or self.tables.is_unblocked(subject.rpartition(".")[2])
            if lies_there and key in self._waiters and not self.closed:
                self._ring(key, seq)

    def _covers(self, subject: str) -> bool:
        around = patterns_around(subject)
        return not (self._followed.keys().isdisjoint(around) and self._parts.isdisjoint(around))

    def wrote(self, subject: str, seq: int, data: bytes) -> None:
        """This process has written an entry: known here, and its waiters here are woken, before the call returns."""
        with self.lock:
            self.learn(subject, seq, data)
            if self._is_heartbeat(subject, seq):
                return
            if not self._waiters:
                return
            for key in [(pattern, "") for pattern in patterns_around(subject)]:
                if key in self._waiters and self._concerns(key, seq, data):
                    self._ring(key, seq)

    def _concerns(self, key: Key, seq: int, data: bytes) -> bool:
        """Whether the waiters of a key hear of a change: those for space in a channel, only if it may have made some."""
        return not is_whole_channel(key[0]) or (key in self._waiters and seq > 0 and makes_space(data))

    def ring_channel(self, channel: str) -> None:
        """Another message of a channel may be claimed: the waiters here for what lies there look. Under the lock."""
        if not self.limits.has_gate(channel):
            return
        for agent in [agent for agent, channels in self.tables.boxes.items() if channel in channels]:
            key = (pattern_to(None, channel), _ONE) if agent is None else (pattern_to(agent), "")
            if key in self._waiters:
                self._ring(key, 0)

    def stir(self, id: str) -> None:
        """A message may be claimed though its entry did not change: its waiters here look. Under the lock."""
        for pattern in patterns_around(box_subject(self.tables.rows[id].kept.entry)):
            for key in ((pattern, ""), (pattern, _ONE)):
                if key in self._waiters:
                    self._ring(key, 0)

    def _ring(self, key: Key, seq: int) -> None:
        """Wake the waiters, once for each change: it is heard of twice when it was made here."""
        waiters = self._waiters.get(key)
        if seq and (key, seq) in self._rung:
            return
        if not waiters:
            if key[1] == _ONE:
                self._pass_on(key)
            return
        if key[1] == _ONE:
            waiters[:] = waiters[1:] + waiters[:1]  # in one step: an interrupt must not lose one
            any(ring(known, key) for known in (waiters[-1], *waiters[:-1]))
        else:
            for known in tuple(waiters):
                ring(known)
        if seq:  # last: an interrupt before may have left some asleep
            self._rung[key, seq] = None
            while len(self._rung) > _MAX_RUNG:
                self._rung.popitem(last=False)

    def _pass_on(self, key: Key) -> None:
        """A hint that one alone was given, and that came too late for it, goes to another."""
        self._wire.connection.link.soon(lambda: self._wire.nudge(f"{key[0].removesuffix('>')}0.hint"))

    # Waiting

    def listen(self, topics: Iterable[str], step: AbstractContextManager[object]) -> NatsWaiter:
        """Somebody waits for these topics. `step` is entered for all that the waiter does but waiting."""
        keys = list(dict.fromkeys(key for topic in topics for key in keys_of_topic(topic)))
        if self.ending:
            self.tidy()
        waiter = NatsWaiter(self, keys, self._clock, step)
        try:
            with self.lock:
                for key in keys:
                    self._waiters[key].append(waiter.known)
            for key in keys:
                self._use(key, waiter.used)
        except BaseException:
            self.ending.append(waiter)
            self.tidy()
            raise
        return waiter

    def tidy(self) -> None:
        """Give back what waiters had that are done; also those whose end was interrupted, or that were forgotten."""
        with self._changing:
            while self.ending:
                waiter = self.ending[0]
                self._give_back(waiter)
                if waiter in self.ending:  # a signal's handler that ends another may have done it all
                    self.ending.remove(waiter)

    def _give_back(self, waiter: NatsWaiter) -> None:
        """Everything that it had, as far as that was not done before."""
        with self.lock:
            waiter.is_closed = True
            for key in waiter.keys:
                waiters = self._waiters.get(key, [])
                if waiter.known in waiters:
                    waiters.remove(waiter.known)
                if not waiters:
                    self._waiters.pop(key, None)
        while waiter.used and not self.closed:
            self._leave(waiter.used)
        with self.lock:
            while waiter.alone_for and not self.closed:
                self._ring(waiter.alone_for[-1], 0)
                waiter.alone_for.pop()
            waiter.let_go()

    def close(self) -> None:
        """Nobody is told anything any more; waiters in other threads come back, and are told so."""
        with self.lock:
            self.closed = True
            self._ring_all()


@lru_cache(maxsize=1000)
def _around(pattern: str) -> tuple[str, ...]:
    """The patterns around that of a mailbox: all channels of its agent, all agents of its channel."""
    parts = pattern.split(".")
    agent = f"m.o.{parts[2]}.>"
    return (agent,) if parts[3] == ">" else (agent, f"m.o.*.{parts[3]}.>")


class NatsWaiter(PipeWaiter[Key]):
    """A waiter for changes of a room."""

    def __init__(self, follower: Follower, keys: list[Key], clock: Clock, step: AbstractContextManager[object]) -> None:
        self.keys = keys
        #: Those of its keys that are subscribed to for it.
        self.used: list[Key] = []
        self._follower = follower
        # A signal's handler in the middle of one is refused the room: it would wait for the background loop, and that
        # for the lock.
        self._step = step
        super().__init__(clock)

    def take(self) -> bool:
        with self._step, self._follower.lock:
            if self._follower.closed:
                raise RoomClosed
            return self.take_hint()

    def close(self) -> None:
        self._follower.ending.append(self)  # first: from here on, an interrupt leaves the rest to the next that ends
        try:
            with self._step:
                self._follower.tidy()
        except (RoomClosed, RoomBusy):  # a handler that closes the room may come in the middle of a step
            self._follower.tidy()

    def __del__(self) -> None:
        try:
            if self._reader >= 0:
                self._follower.ending.append(self)  # not at once: this may come in the middle of anything
            if self._follower.closed:
                self.let_go()
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass
