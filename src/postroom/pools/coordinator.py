"""Lets a pool judge a message and decides which personas answer: `decide.decide`, fed as results come.

    coordinator = postroom.Coordinator(pool, room=room, max_responders=2)
    decision = coordinator.consider({"id": "m1", "content": "Who knows SQL?", "sender_id": "ada"})
    print(decision.granted)

With a room, any number of coordinators make exactly one decision per message: the cell "decision/<id>" is taken by one
of them, and written once. One that dies while it considers is replaced by another that waits for it. Without one, the
cells are in the memory of this coordinator.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from postroom.core.clock import SYSTEM, Clock, from_iso
from postroom.core.config import Config as RoomConfig
from postroom.core.message import Message
from postroom.core.system.process import start_thread
from postroom.errors import PostroomError
from postroom.mail.received import Envelope
from postroom.stores.memory.store import MemoryStore

from .decide import Config, Decision, Known, Late, Trigger, decide, half_life_for, next_moment, seed_of
from .decision_store import Decisions
from .message import as_message
from .request import Request
from .stats import percentile

if TYPE_CHECKING:
    from postroom.room import Room

Listener = Callable[[Decision], None]

#: The times of so many evaluations are looked at for the half-life, and so many are needed before they count.
KEPT_TIMES: Final = 50
ENOUGH_TIMES: Final = 5
#: Without a room, about so many decisions are kept.
MAX_LOCAL: Final = 10_000
#: Results may come so long after the decision and are still recorded.
LATE_S: Final = 60.0


class Pool(Protocol):
    """What a coordinator needs of a pool (`pool.WorkerPool`)."""

    @property
    def workers(self) -> Mapping[str, Any]: ...
    def begin(
        self,
        message: Mapping[str, Any],
        timeout_s: float | None,
        listener: Callable[[str, Request], None] | None,
        *,
        skip: Container[object] = (),
    ) -> Mapping[str, Any]: ...


class Coordinator:
    """Decides which workers of a pool answer each message.

    - `half_life_s`: after this time half of a confidence is left; None ties it to how long evaluations take.
    - `deadline_s`: the decision is made then at the latest, with the results that have come.
    - `quorum`: that many final results are enough.
    - `max_responders`: at most that many workers answer.
    - `late_s`: how long results are still recorded after the deadline.
    - Other rules are those of `decide.Config`.

    `consider` returns a closed decision for every message, at the deadline at the latest (a moment later if another
    coordinator had taken the message and died). The same message gets the same decision from every coordinator of the
    room.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        room: Room | None = None,
        half_life_s: float | None = None,
        deadline_s: float = 5.0,
        quorum: int | None = None,
        max_responders: int = 1,
        seed: int = 0,
        late_s: float = LATE_S,
        clock: Clock | None = None,
        **rules: Any,
    ) -> None:
        self.pool = pool  # the pool that judges
        self.clock = clock or (room.gateway.clock if room is not None else SYSTEM)
        max_hops = rules.pop("max_hops", room.gateway.config.max_hops if room is not None else Config().max_hops)
        self._half_life_s = half_life_s
        self._rules = Config(
            half_life_s=half_life_for(None) if half_life_s is None else half_life_s,
            deadline_s=deadline_s,
            quorum=quorum,
            max_responders=max_responders,
            max_hops=max_hops,
            **rules,
        )
        self._seed = seed
        self._late_s = late_s
        store = MemoryStore(RoomConfig(), self.clock) if room is None else room.store
        self._decisions = Decisions(store, self.clock, MAX_LOCAL if room is None else None)
        self.late = _LateWriter(self._decisions)
        self._lock = threading.Lock()
        if room is not None and (report_to := getattr(pool, "report_to", None)) is not None:
            report_to(room)  # the page then shows the workers; a pool need not have this method
        self._spoken: dict[str, float] = {}
        self._times: dict[str, deque[float]] = {}

    def consider(self, message: Mapping[str, Any] | Message | Envelope, on_change: Listener | None = None) -> Decision:
        """Let the pool judge the message, and return the decision when it is closed.

        `on_change` is called with each decision on the way, in this thread: the open one of the fast path, its
        revisions, and the closed one. Raises InvalidMessage when it is no message, and what the pool raises when it
        cannot be asked.
        """
        plain = as_message(message)
        on_change = on_change or (lambda _: None)
        with self._decisions.deciding(plain["id"]):
            decision = self._decide_once(plain, on_change)
        on_change(decision)
        return decision

    def decision_of(self, message_id: str) -> Decision | None:
        """The closed decision on a message, with what came too late for it; None when there is none (any more)."""
        return self._decisions.find(message_id)

    @property
    def half_life_s(self) -> float:
        """The half-life that the next decision uses."""
        if self._half_life_s is not None:
            return self._half_life_s
        with self._lock:
            slowest = [percentile(sorted(times), 95) for times in self._times.values() if len(times) >= ENOUGH_TIMES]
        return half_life_for(max(slowest) if slowest else None)

    # Parts of the above

    def _decide_once(self, message: dict[str, Any], on_change: Listener) -> Decision:
        """The closed decision: the one that stands already, or a new one. The message's lock is held."""
        taken = self._decisions.take(message["id"], self._rules.deadline_s)
        if isinstance(taken, Decision):  # decided already, perhaps by another while we waited
            self._note_spoken(taken)
            return taken
        try:
            decision, hearing = self._hear(message, on_change)
            kept = self._decisions.keep(decision, taken)
        except BaseException:
            with suppress(PostroomError):  # the room is in trouble, which is what the caller is told
                self._decisions.release(message["id"], taken)
            raise
        self._note_spoken(kept)
        if hearing is not None:
            hearing.close()
        return kept

    def _hear(self, message: dict[str, Any], on_change: Listener) -> tuple[Decision, Consideration | None]:
        """Ask everybody, and decide as soon as it can be."""
        config = self._config_for(message)
        participants = tuple(self.pool.workers)
        seed = seed_of(config.message_id, self._seed)
        first = decide(dict.fromkeys(participants), self.now(), config, seed)
        if first.closed:  # the hop cap, or nobody to ask: no model is bothered
            return first, None
        hearing = Consideration(self, config, participants, seed)
        try:
            self.pool.begin(message, config.deadline_s + self._late_s, hearing.hear, skip=(config.sender,))
        except BaseException:
            hearing.stop()
            raise
        return hearing.until_closed(on_change), hearing

    def _config_for(self, message: Mapping[str, Any]) -> Config:
        now = self.now()
        sent_ms = _sent_ms(message)
        age_s = 0.0 if sent_ms is None else max(0.0, (self.clock.wall_ms() - sent_ms) / 1000)
        with self._lock:
            spoken = dict(self._spoken)
        return msgspec.structs.replace(
            self._rules,
            half_life_s=self.half_life_s,
            message_id=message["id"],
            sender=message.get("sender_id"),
            hop_count=message.get("hop_count", 0),
            message_at=now - age_s,
            began_at=now,
            spoken=spoken,
        )

    def now(self) -> float:
        """This moment, in seconds of the steady clock."""
        return self.clock.steady_ns() / 1e9

    def _note_spoken(self, decision: Decision) -> None:
        with self._lock:
            for name in decision.granted:
                self._spoken[name] = self.now()

    def note_time(self, name: str, round_trip_ms: float) -> None:
        """How long a participant took."""
        with self._lock:
            self._times.setdefault(name, deque(maxlen=KEPT_TIMES)).append(round_trip_ms / 1000)


class _LateWriter:
    """Writes down what came late, in a thread that runs only while there is something to write."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, Late]] = deque()
        self._runs = False

    def add(self, message_id: str, late: Late) -> None:
        """Write it down. Returns at once: the pool's thread that brings it is not held up by a room."""
        with self._lock:
            self._waiting.append((message_id, late))
            if not self._runs:
                self._runs = True
                start_thread(threading.Thread(target=self._run, name="postroom late results", daemon=True))

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._runs = False
                    return
                message_id, late = self._waiting.popleft()
            with suppress(PostroomError):  # the room is closed, or busy: a late result is the least of it
                self._decisions.add_late(message_id, late)


class Consideration:
    """One message as it is considered: the results so far, and the decision by them. Fed by the pool's threads."""

    def __init__(self, coordinator: Coordinator, config: Config, participants: tuple[str, ...], seed: int) -> None:
        self._coordinator = coordinator
        self._config = config
        self._seed = seed
        self._known: dict[str, Known] = dict.fromkeys(participants)
        self._lock = threading.Lock()
        self._told, self._tell = os.pipe()
        self._closed = False
        self._stored = False
        self._late: list[Late] = []
        self._decision = decide(self._known, coordinator.now(), config, seed)
        self.revision = 0

    def hear(self, name: str, request: Request) -> None:
        """There is news of a participant. Never waits for anybody."""
        known = _known_of(request)
        if known is None:
            return
        with self._lock:
            if self._known.get(name) == known:
                return
            self._known[name] = known
            if self._closed:
                self._record(name, known)
            else:
                os.write(self._tell, b"!")
        if request.done and not isinstance(known, Exception):
            self._coordinator.note_time(name, known.round_trip_ms)

    def until_closed(self, on_change: Listener) -> Decision:
        """Decide anew at all news and at all moments that count, until the decision is closed."""
        try:
            while not (decision := self._next()).closed:
                on_change(decision)
            return decision
        finally:
            self.stop()

    def stop(self) -> None:
        """Nothing that comes from now on counts."""
        with self._lock:
            self._closed = True
            os.close(self._told)
            os.close(self._tell)

    def _next(self) -> Decision:
        """The decision that comes next: wait for news, or for the moment that changes it."""
        while True:
            decision = self._by_now()
            if decision is not None:
                return decision
            now = self._coordinator.now()
            moment = next_moment(self._decision, self._config, now)
            left_s = None if moment is None else max(0.0, moment - now)
            if self._coordinator.clock.wait_readable([self._told], left_s):
                os.read(self._told, 4096)

    def _by_now(self) -> Decision | None:
        """The decision by what is known now; None when it is the same as before."""
        with self._lock:
            decision = decide(self._known, self._coordinator.now(), self._config, self._seed)
            if decision.same_as(self._decision):
                return None
            self.revision += self._decision.trigger is Trigger.FAST_PATH
            self._decision = msgspec.structs.replace(decision, revision=self.revision)
            self._closed = decision.closed
            return self._decision

    def close(self) -> None:
        """The decision is kept: results that came meanwhile, or come from now on, are written down as late."""
        with self._lock:
            self._stored = True
            waiting, self._late = self._late, []
        for late in waiting:
            self._coordinator.late.add(self._config.message_id, late)

    def _record(self, name: str, known: Known) -> None:
        """Too late to count; the lock is held."""
        late = Late(name, None, str(known)) if isinstance(known, Exception) else Late(name, known)
        if self._stored:
            self._coordinator.late.add(self._config.message_id, late)
        else:
            self._late.append(late)


def _known_of(request: Request) -> Known:
    """The news of a request so far. A first look that nothing follows is the last word."""
    if not request.done:
        return request.evaluations[-1] if request.evaluations else None
    outcome: Known = request.outcome
    if isinstance(outcome, Exception) or outcome is None or outcome.stage == "deep":
        return outcome
    return outcome.with_times(stage="deep")


def _sent_ms(message: Mapping[str, Any]) -> int | None:
    """When it was sent, by the wall clock; None when it does not say, or not in a way that can be read."""
    said = message.get("timestamp")
    if isinstance(said, int | float) and not isinstance(said, bool):
        return round(said)
    try:
        return from_iso(said) if isinstance(said, str) else None
    except ValueError:
        return None
