"""The gateway: the one checked way from rooms and agents to their store.

Every step of a message passes here: a closed room and a forked process are refused, drafts are checked and counted, the
hooks are told. The gateway also remembers what this process has under way, so that closing a room leaves nothing
behind.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import SAFETY_LOOK_S, Config
from postroom.core.events import Hooks
from postroom.core.message import Draft, check, check_all
from postroom.core.system.process import current_pid
from postroom.errors import (
    IdentityRefused,
    OutcomeUnknown,
    PostroomError,
    RoomClosed,
    RoomError,
    RoomMoved,
    UnknownMessage,
)
from postroom.stores import gates
from postroom.stores.contract import LIMITS, Claimed, Delivery, Settled, Store, Swept, Ticket, Waiter, Want

from . import rate_limit
from .leases import LeaseHeartbeat
from .moved import check_not_moved
from .redacting import Redaction

if TYPE_CHECKING:
    from postroom.core.chore import Chore

#: Claims that are given back when the room closes: those whose messages somebody still has, and of all others the newest
#: so many. Older ones end with their lease.
MAX_REMEMBERED: Final = 10_000
#: Messages of several senders that are stored in one step: so many at most, of so many bytes.
MAX_TOGETHER: Final = 500
MAX_BYTES_TOGETHER: Final = 1_000_000
T = TypeVar("T")

#: Closing a room waits so long for questions that are just being stored.
_ASKERS_NS: Final = 1_000_000_000
#: Whether the room is still there is looked at this often: within 5 s everybody knows (tests/faults/test_gone.py), and
#: an idle receiver, which looks for mail every second, does not pay for it each time (tests/faults/test_idle.py).
LOOK_S: Final = 2.5
_LOOK_NS: Final = round(LOOK_S * 1e9)
#: A waiter without a descriptor is looked at this often.
_WATCH_S: Final = 0.01
CLOSED_EARLY: Final = "the room was closed before it was settled"


class Latch:
    """A flag that is set once, and that threads can wait for in the clock's time, together with other descriptors.

    It has no lock: a signal's handler may set it in the middle of setting it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set = self._told = False
        self._reader, self._writer = os.pipe()

    def set(self) -> None:
        """Set the flag and wake everybody.

        Safe to call twice; the second call also ends what an interrupt kept the first from.
        """
        self._set = True
        if not self._told:
            os.write(self._writer, b"!")  # never read: the descriptor stays readable
            self._told = True

    def is_set(self) -> bool:
        return self._set

    def fileno(self) -> int:
        """A descriptor that can be read once the flag is set."""
        return self._reader

    def wait(self, timeout_s: float | None) -> bool:
        """Return True as soon as the flag is set, False when time ran out."""
        if not self._set:
            self._clock.wait_readable([self._reader], timeout_s)
        return self._set

    def __del__(self) -> None:
        # Not earlier: a thread that still waits must not find somebody else's file under the same number.
        try:
            try:
                os.close(self._reader)
            finally:  # also when a signal comes between
                os.close(self._writer)
        except (OSError, AttributeError, TypeError):  # Python ends: the modules are empty (test_handlers.py)
            pass


class Deadline:
    """The moment until which somebody waits; None is for ever."""

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        self._clock = clock
        self._until_ns = None if timeout_s is None else clock.steady_ns() + round(timeout_s * 1_000_000_000)

    def left_s(self) -> float | None:
        """Seconds left, never below 0; None when there is no end."""
        if self._until_ns is None:
            return None
        return max(0, self._until_ns - self._clock.steady_ns()) / 1_000_000_000


class Pause(NamedTuple):
    """Nothing can be done before a hint comes to the waiter, the time is over, or `stop` is set."""

    waiter: Waiter
    timeout_s: float | None
    stop: Latch | None = None

    @property
    def span_s(self) -> float:
        """How long to wait at most: a hint may be lost, so everybody looks once a second."""
        return _span_s(self.timeout_s)


#: Work that waits in between, without saying how: it yields a pause, and is told whether a hint came. `Gateway.finish`
#: takes it to its end in the caller's thread; postroom.aio does so without keeping a thread.
Steps = Generator[Pause, bool, T]
#: The same, for work that gives one thing after the other.
Series = Generator[Pause | T, bool, None]


class Gateway:
    """A store with the room's settings, hooks and limits around it.

    Shared by all threads of the process that made it.
    """

    #: Whether a method that ends at `finish` may claim before: an asyncio room does so in a thread of its own.
    claims_in_callers_thread: ClassVar[bool] = True

    def __init__(self, store: Store, config: Config, clock: Clock) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self.hooks = Hooks()
        self.process = store.process
        self._pid = current_pid()
        self._lock = threading.RLock()  # a signal's handler may ask in the middle of asking
        self._closed = False
        self._is_being_closed = False
        #: Whether the room is closed or about to be: nothing new may be taken.
        self.closing = False
        self._closing = Latch(clock)
        self._closing_fd = self._closing.fileno()
        self._limit = _limit(store, config.rate_per_s, config.rate_burst, clock)
        #: The room's redaction rules, which everything that is about to be stored passes.
        self.redaction = Redaction(store)
        self._pair_limit = _limit(store, config.pair_rate_per_s, config.pair_rate_burst, clock)
        #: When somebody last used the room (the steady clock), which is when it last claimed something.
        self.now_ns = clock.steady_ns()
        self._next_look_ns = self.now_ns + _LOOK_NS
        #: When the mark of a room that was moved is looked for next; what was found, where that is for good.
        self._next_mark_ns = self.now_ns + _LOOK_NS
        self._moved: RoomMoved | None = None
        #: Called now and then by waiters and by the upkeep: every process that has the room open looks for schedules.
        self.looked: Callable[[], None] = _nothing
        #: What this process has claimed and not settled, and what keeps it.
        self.leases = LeaseHeartbeat(store, clock)
        self._held = self.leases.held
        self._most_held = MAX_REMEMBERED
        #: Of these, what a loop has claimed and not yet come to: nobody saw it.
        self.unseen: set[Ticket] = set()
        self._asking = 0  # questions that are being stored
        self._questions: dict[str, None] = {}
        #: Of these, the ones that nobody waits for any more, though the room does not know it yet.
        self._late: dict[str, None] = {}
        self._finishers: list[Callable[[], None]] = []
        self._tried: Callable[[], None] | None = None  # the finisher that is being called
        self.at_close(self.leases.close)

    def check_open(self) -> None:
        """Raise RoomClosed when the room was closed, or belongs to the process before a fork; RoomGone when gone."""
        if self._closed:
            raise RoomClosed("this room is closed")
        if self._moved is not None:
            raise self._moved
        if current_pid() != self._pid:
            raise RoomClosed(
                "this room was opened before the process forked; fork first, or start processes with spawn"
            )
        now_ns = self.now_ns = self.clock.steady_ns()
        if now_ns >= self._next_look_ns:
            self._look()

    @property
    def open_store(self) -> Store:
        """The store, for a step that no other method here takes; raises as `check_open` does."""
        self.check_open()
        return self.store

    def check_there(self) -> None:
        """Raise RoomGone when the room was deleted or replaced. Looks now and then, for all callers together.

        Every sender, receiver and waiter is told by this (tests/faults/test_gone.py).
        """
        if self.clock.steady_ns() >= self._next_look_ns:
            self._look()
            if self.claims_in_callers_thread:  # and not in a loop, which must not wait for the store
                self.check_not_moved()
                self.looked()

    def _look(self) -> None:
        self.store.check_there()  # when it raises, the next look is made by the next call: nobody gets past it any more
        self._next_look_ns = self.clock.steady_ns() + _LOOK_NS

    def check_not_moved(self) -> None:
        """Raise RoomMoved when the room was moved. Reads its mark now and then: not between a decision and a claim.

        Senders, waiters and the housekeeping look; once one of them has seen it, all are told (`check_open`).
        """
        if self.clock.steady_ns() < self._next_mark_ns:
            return
        try:
            check_not_moved(self.store)
        except RoomMoved as error:
            self._moved = error if error.for_good else None
            raise
        self._next_mark_ns = self.clock.steady_ns() + _LOOK_NS

    # The way of a message

    def put(self, drafts: Sequence[Draft], *, limited: bool = True) -> list[str]:
        """Check, count and store messages: all or none. Returns their ids.

        `limited` False passes by the sender's rate: answers and replays.
        """
        self._admit(drafts, limited=limited)
        try:
            ids = self.store.put(drafts)
        except OutcomeUnknown as error:
            self._give_up_questions(drafts, error)
            raise
        if self.hooks.listeners:
            self.hooks.tell("after_send", drafts=drafts, ids=ids)
        return ids

    def _give_up_questions(self, drafts: Sequence[Draft], unknown: OutcomeUnknown) -> None:
        """An asker that is told that the outcome is unknown waits no more, though its question may be there."""
        if any(draft.waiter is not None for draft in drafts):
            self.abandon_later(unknown.ids)

    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        """Check messages, and store them with a cell in one step; see `Store.put_with_cell`. No rate limits them."""
        if drafts:
            self._admit(drafts, limited=False)
        ids = self.store.put_with_cell(drafts, name, value, expect)
        if ids and self.hooks.listeners:
            self.hooks.tell("after_send", drafts=drafts, ids=ids)
        return ids

    def send(self, draft: Draft) -> str:
        """Store one message that goes to one mailbox. Returns its id. The last step of every sender."""
        (id,) = self.put([draft])
        return id

    def put_each(self, drafts: Sequence[Draft]) -> list[str | BaseException]:
        """Store messages of several senders, as many as possible in one step; none of them keeps back another.

        Each goes to one mailbox. Returns, in their order, the id of each or what its sender is to be told: then it is
        not stored.
        """
        ends: list[str | BaseException] = [RoomClosed("this room is closed")] * len(drafts)
        places: list[int] = []
        for place, draft in enumerate(drafts):
            try:
                self._admit([draft])
                places.append(place)
            except BaseException as error:  # noqa: BLE001  also what a listener raised: its sender is told
                ends[place] = error
        for together in _in_portions(places, drafts):
            for place, end in zip(together, self._put_together([drafts[place] for place in together]), strict=True):
                ends[place] = end
        return ends

    def _put_together(self, drafts: list[Draft]) -> list[str | BaseException]:
        ends: list[str | BaseException]
        try:
            ends = [*self.store.put(drafts)]
        except OutcomeUnknown as error:
            self._give_up_questions(drafts, error)
            if len(error.ids) != len(drafts):
                return [error] * len(drafts)
            return [OutcomeUnknown(str(error), [id]) for id in error.ids]  # each learns of its own
        except RoomError as error:  # nothing is stored, and each for itself would only wait as long again
            return [error] * len(drafts)
        except Exception as error:  # noqa: BLE001  one of them is at fault: let the others pass
            if len(drafts) == 1:
                return [error]
            return [end for draft in drafts for end in self._put_together([draft])]
        for place, draft in enumerate(drafts):  # not found again by its value: others may have sent the same
            try:
                self.hooks.tell("after_send", drafts=[draft], ids=[ends[place]])
            except BaseException as error:  # noqa: BLE001  what a listener raised reaches that sender, as with `put`
                ends[place] = error
        return ends

    def _admit(self, drafts: Sequence[Draft], *, limited: bool = True) -> None:
        """Everything that comes before messages are stored."""
        self.check_open()
        if self.now_ns >= self._next_mark_ns:
            self.check_not_moved()
        if self.now_ns >= self.redaction.due_ns:
            self.redaction.apply(drafts, self.now_ns)
        self._check(drafts)
        for draft in drafts:
            if draft.replaces is not None:
                self._check_own(
                    draft.replaces, draft.from_agent, "replace", may_be_gone=draft.idempotency_key is not None
                )
        if limited and self._limit is not None and drafts:
            self._limit.take(drafts[0].from_agent, len(drafts))
        if limited and self._pair_limit is not None:
            self._take_pairs(self._pair_limit, drafts)
        if self.hooks.listeners:
            self.hooks.tell("before_send", drafts=drafts)

    def _take_pairs(self, limit: rate_limit.SenderLimit, drafts: Sequence[Draft]) -> None:
        """Count messages for the rate of each sender to each recipient."""
        pairs: dict[tuple[str, str], int] = {}
        for draft in drafts:
            if draft.to_agent is not None:
                pairs[draft.from_agent, draft.to_agent] = pairs.get((draft.from_agent, draft.to_agent), 0) + 1
        for pair, count in pairs.items():
            limit.take_pair(*pair, count)

    def _check(self, drafts: Sequence[Draft]) -> None:
        max_bytes = self.config.max_payload_bytes
        if len(drafts) == 1:
            check(drafts[0], max_bytes)
        else:
            check_all(drafts, max_bytes)

    def _check_own(self, id: str, agent: str, what: str, *, may_be_gone: bool = False) -> None:
        """Raise unless a message is kept and was sent by that agent. A repeat may come when it is kept no more."""
        message = self.store.get(id)
        if message is None and may_be_gone:
            return
        if message is None:
            raise UnknownMessage(f"this room has no message {id}")
        if message.from_agent != agent:
            raise IdentityRefused(f"message {id} was sent by {message.from_agent!r}; {agent!r} cannot {what} it")

    def withdraw(self, id: str, agent: str, reason: str | None) -> bool:
        """Take back a message; see `Store.withdraw`. Raises when it is not kept, or another agent's."""
        self.check_open()
        if self.store.withdraw([id], agent, reason):
            return True
        self._check_own(id, agent, "withdraw")
        return False

    def claim(self, want: Want) -> Claimed:
        """Take messages; see `Store.claim`."""
        self.check_open()
        if self.hooks.listeners:
            self.hooks.tell("before_claim", want=want)
        claimed = self.store.claim(want)
        self._remember(want, claimed)
        if self.hooks.listeners:
            self.hooks.tell("after_claim", want=want, deliveries=claimed.deliveries)
        return claimed

    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        """Take the answer to a question, if it can be had without reading the question; see `Store.claim_answer`."""
        self.check_open()
        if self.hooks.listeners:
            self.hooks.tell("before_claim", want=want)
        delivery = self.store.claim_answer(question, want)
        deliveries = [] if delivery is None else [delivery]
        self._remember(want, Claimed(deliveries, None))
        if self.hooks.listeners:
            self.hooks.tell("after_claim", want=want, deliveries=deliveries)
        return delivery

    def settle(
        self,
        ticket: Ticket,
        outcome: str,
        *,
        detail: str | None = None,
        delay_s: float = 0,
        puts: Sequence[Draft] = (),
        claim_next: Want | None = None,
    ) -> Settled:
        """Say what became of a message; see `Store.settle`. The puts must have been checked."""
        self.check_open()
        if puts or detail is not None:
            if claim_next is None:  # a server has read the rules before it decided to claim the next
                self.redaction.refresh(self.now_ns)
            detail = self.redaction.apply_to_end(puts, detail, self.config.max_payload_bytes)
        if self.hooks.listeners:
            self.hooks.tell("before_settle", ticket=ticket, outcome=outcome, detail=detail)
        settled = self.store.settle(ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next)
        self._held.pop(ticket, None)
        if claim_next is not None and settled.claimed is not None:
            self._remember(claim_next, settled.claimed)
        if self.hooks.listeners:
            self.hooks.tell("after_settle", ticket=ticket, outcome=outcome, detail=detail, settled=settled)
        return settled

    def sets_failed_aside(self, channel: str) -> bool:
        """Whether a failed message with an order key is set aside at once in this channel, so that the next one passes."""
        cell = self.store.cell_read(LIMITS)
        limits = None if cell is None else gates.parse_limits(cell.value).channels.get(channel)
        return limits is not None and limits.pass_failed

    def _remember(self, want: Want, claimed: Claimed) -> None:
        if want.owner is None or want.settle:
            return  # such a claim outlives this room on purpose, or is over already
        if len(self._held) > self._most_held:  # before: nobody has the new ones yet
            self._forget_dropped()
        for delivery in claimed.deliveries:
            self._held[delivery.ticket] = None

    def _forget_dropped(self) -> None:
        """Forget the oldest of the claims whose messages nobody has any more."""
        held = self._held
        for ticket in tuple(held):
            if len(held) <= MAX_REMEMBERED:
                break
            if not self.leases.is_held(ticket):
                held.pop(ticket, None)
        self._most_held = max(MAX_REMEMBERED, 2 * len(held))

    def sweep(self) -> Swept:
        """Do the housekeeping; see `Store.sweep`."""
        self.check_open()
        self.hooks.tell("before_sweep")
        swept = self.store.sweep()
        self.hooks.tell("after_sweep", swept=swept)
        return swept

    # Waiting

    def listen(self, topics: Iterable[str]) -> Waiter:
        """Somebody waits for these topics; see `Store.listen`."""
        self.check_open()
        return self.store.listen(topics)

    def wait(self, waiter: Waiter, timeout_s: float | None, stop: Latch | Chore | None = None) -> bool:
        """Wait for a hint, for `stop`, or until it is time to look without one (a second at most).

        Returns whether a hint came. Raises RoomClosed at once when the room is closed meanwhile, RoomGone within
        seconds when it is deleted or replaced.
        """
        span_s = _span_s(timeout_s)
        try:
            ends: tuple[int, ...] = (waiter.fileno(), self._closing_fd)
            if stop is not None:
                ends += (stop.fileno(),)
        except OSError:  # a room without bells, or no descriptors are left
            hinted = self._keep_looking(waiter, span_s, stop)
        else:
            hinted = self.clock.wait_readable(ends, span_s) != [] and waiter.wait(0)
        if self.closing:
            raise RoomClosed("the room was closed while waiting")
        self.check_there()
        return hinted

    def _keep_looking(self, waiter: Waiter, span_s: float, stop: Latch | Chore | None) -> bool:
        """As `wait`, for a waiter that has no descriptor: the room's end still ends it at once."""
        ends = [self._closing_fd]
        with suppress(OSError):
            ends += [] if stop is None else [stop.fileno()]
        deadline = Deadline(self.clock, span_s)
        while not waiter.wait(0):
            left_s = deadline.left_s()
            if left_s == 0 or self.clock.wait_readable(ends, min(left_s or 0, _WATCH_S)):
                return False
        return True

    def finish(self, steps: Steps[T]) -> T:
        """Take steps to their end, waiting where they pause. However it ends, they are closed."""
        try:
            pause = next(steps)
            while True:
                pause = steps.send(self.wait(*pause))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def each(self, steps: Series[T]) -> Generator[T, None, None]:
        """What a series of steps gives, one after the other. It is closed when the caller stops asking."""
        with closing(steps):
            hinted: bool | None = None
            while True:
                try:
                    item = next(steps) if hinted is None else steps.send(hinted)
                except StopIteration:
                    return
                hinted = None
                if isinstance(item, Pause):
                    hinted = self.wait(*item)
                else:
                    yield item

    def work(self, call: Callable[[], T]) -> T:
        """The last step of a call that waits for nobody: it reads and writes more than one draft (see `send`)."""
        return call()

    # Questions under way

    def ask(self, draft: Draft) -> str:
        """Store a question whose answer this process waits for from now on. Returns its id; see `ask_together`."""
        (id,) = self.ask_together([draft])
        return id

    def ask_together(self, drafts: Sequence[Draft]) -> list[str]:
        """Store questions, all or none, whose answers this process waits for from now on. Returns their ids.

        A room that is closed meanwhile knows of them, and lets the answers become ordinary mail.
        """
        with self._lock:
            self._asking += 1
        try:
            ids = self.put(drafts)
            for id in ids:
                self.question_begins(id)
        finally:
            with self._lock:
                self._asking -= 1
        return ids

    def question_begins(self, id: str) -> None:
        """This process waits for the answer to a question."""
        self._questions[id] = None

    def question_ends(self, *ids: str, abandon: bool) -> None:
        """It waits for these no more. `abandon` lets answers become ordinary mail; a room that is closed did so already.

        Where the room does not answer now, the asker is told how its own waiting ended, and this is done later.
        """
        if abandon:
            try:
                self.store.abandon(*ids)
            except RoomClosed:
                pass
            except RoomError:
                self.abandon_later(ids)
                return
        for id in ids:
            self._questions.pop(id, None)

    def abandon_later(self, ids: Iterable[str]) -> None:
        """Nobody waits for these (they may not even be stored): tell the room when it answers, or is closed."""
        for id in ids:
            self._questions[id] = None
            self._late[id] = None

    def abandon_late(self) -> None:
        """Tell the room of the questions that nobody waits for any more and that it could not be told of before."""
        for id in tuple(self._late):
            self._late.pop(id, None)
            self.question_ends(id, abandon=True)

    # The end

    def at_close(self, finish: Callable[[], None]) -> Callable[[], None]:
        """Call `finish` when the room closes, before the store does; the last to come is the first called.

        Returns a function that takes it back.
        """
        self._finishers.append(finish)

        return partial(self._forget, finish)

    def _forget(self, finish: Callable[[], None]) -> None:
        with suppress(ValueError):
            self._finishers.remove(finish)

    def close(self) -> None:
        """Give back what this process holds, wake every waiter, close the store. Safe to call twice.

        A call that was interrupted leaves the room half closed: nothing new is taken, and the next call does the rest.
        """
        if current_pid() != self._pid:
            self._closed = self.closing = True  # the forked copy: everything in it belongs to the process before
            return
        self.closing = True
        self._closing.set()
        if (
            self._closed or self._is_being_closed
        ):  # by another thread, or by the call that a signal's handler interrupts
            return
        self._is_being_closed = True
        try:
            self._finish()
            self._let_go()
            self.store.close()
            self._closed = True
            self.looked = _nothing  # the room's, which knows this: together they would wait to be collected
        finally:
            self._is_being_closed = False

    def _finish(self) -> None:
        """Call the finishers, the last to come first.

        One that was interrupted is called again by the next `close`, once.
        """
        while self._finishers:
            finish = self._finishers[-1]
            if finish is self._tried:
                self._finishers.pop()
            self._tried = finish
            with suppress(PostroomError):
                finish()
            self._forget(finish)

    def __del__(self) -> None:
        """A room that nobody knows any more ends: its thread and its descriptors go.

        What it held ends with its lease.
        """
        try:
            if not self._closed and self._pid == current_pid() and not sys.is_finalizing():
                warnings.warn(
                    "a room was garbage-collected without close()", ResourceWarning, stacklevel=2, source=self
                )
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass

    def _wait_for_askers(self) -> None:
        """Let questions that are just being stored become known (tests/mail/test_questions.py).

        That takes no longer than a write.
        """
        until_ns = SYSTEM.steady_ns() + _ASKERS_NS
        while self._asking and SYSTEM.steady_ns() < until_ns:
            SYSTEM.sleep(0.001)

    def _let_go(self) -> None:
        """Abandon the questions and give back the claims. What fails here (a busy room) ends with its lease."""
        self._wait_for_askers()
        for id in tuple(self._questions):
            with suppress(PostroomError):
                self.store.abandon(id)
        for ticket in tuple(self._held):
            with suppress(PostroomError):
                self.store.settle(ticket, "returned" if ticket in self.unseen else "retry", detail=CLOSED_EARLY)
        self._held.clear()


def _nothing() -> None:
    pass


def _limit(store: Store, rate_per_s: float | None, burst: int | None, clock: Clock) -> rate_limit.SenderLimit | None:
    """The limit that a room's settings ask for; None without a rate."""
    return None if rate_per_s is None else rate_limit.SenderLimit(store, rate_per_s, burst, clock)


def _span_s(timeout_s: float | None) -> float:
    return SAFETY_LOOK_S if timeout_s is None or timeout_s > SAFETY_LOOK_S else timeout_s


def _in_portions(places: list[int], drafts: Sequence[Draft]) -> Iterator[list[int]]:
    """So many places at a time that nobody else waits long for the write lock."""
    portion: list[int] = []
    size = 0
    for place in places:
        portion.append(place)
        size += len(drafts[place].payload_json)
        if len(portion) >= MAX_TOGETHER or size >= MAX_BYTES_TOGETHER:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
