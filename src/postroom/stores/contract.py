"""The store contract: what a place that keeps messages must do, and what it need not.

One suite (`postroom.testing`) holds every store to this page. Under each method stands what is true after it
returned, what is true if it raised, and what is not promised. Unless a method says otherwise, one that raises has
changed nothing.

Times. A store counts leases, delays and expiry in *room time*: milliseconds that only grow, however the wall clock is
set. What it shows to people (timestamps, ledgers) is the wall clock's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec

from postroom.core.clock import Clock
from postroom.core.message import Draft, Message, MessageWithLedger
from postroom.core.states import State
from postroom.core.system.process import process_alive, this_process
from postroom.errors import RoomBusy, RoomError

if TYPE_CHECKING:
    from postroom.core.search_query import Term

#: `cell_write(expect=ANY)`: whatever version is there.
ANY: Final = -1

#: The words that a receiver may say of a message it holds.
OUTCOMES: Final = ("acked", "answered", "refused", "retry", "dead", "returned")

#: A store that cannot count reads so many messages at a time.
COUNTED_AT_ONCE: Final = 1000

#: How `find` may list.
ORDERS: Final = ("oldest", "newest", "claim")

#: The topic that hears of every change of any message.
FEED: Final = "feed"
#: The cell in which a store that has no better place keeps what `Store.forgotten` says.
FORGOTTEN: Final = "feed-forgotten"
#: The cell in which a room keeps the limits that channels have of their own (`mail/retaining.py`).
RETENTION: Final = "retention"
#: The cell in which a room keeps its limits and pauses (`stores/gates.py`); claims and puts go by it.
LIMITS: Final = "limits"
#: The cells of token buckets have names that begin so; the housekeeping of rooms forgets those that are full again.
BUCKETS: Final = "bucket"


def topic_to(agent: str) -> str:
    """Mail for one agent."""
    return f"to:{agent}"


def topic_channel(channel: str) -> str:
    """Mail to nobody in particular, in one channel."""
    return f"channel:{channel}"


def topic_space(channel: str) -> str:
    """Room in the mailboxes of a channel: messages that waited there were taken, or have ended."""
    return f"space:{channel}"


def topic_message(id: str) -> str:
    """The changes of one message."""
    return f"message:{id}"


def topic_cells(name: str) -> str:
    """Cells whose names begin like this one, up to the first slash."""
    return f"cells:{name.partition('/')[0]}"


class Ticket(NamedTuple):
    """What a receiver shows to speak about a message it claimed.

    Every claim, retry and requeue of the message makes a new token. The end of a lease does not: until somebody else
    takes the message, its late holder may still settle it.
    """

    id: str
    token: int
    agent: str


class Delivery(msgspec.Struct, frozen=True):
    """A message that was claimed, with the ticket for it."""

    message: Message
    ticket: Ticket


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages a receiver asks for.

    `channels` None: everything addressed to the agent, in any channel. `channels` given: what lies in those channels,
    addressed to the agent or to nobody. `ids` given: exactly those, each once, where the agent may have them (also
    answers that are held for it), whatever the limit. `owner` is the process that holds the claim
    (`core.system.process.this_process`) and with which it ends; None is a claim that belongs to the agent and ends by
    time alone. `settle` True takes and acks in one step.
    """

    agent: str
    lease_s: float
    channels: tuple[str, ...] | None = None
    limit: int = 1
    owner: str | None = None
    ids: tuple[str, ...] | None = None
    settle: bool = False


class Claimed(msgspec.Struct, frozen=True):
    """What a claim gave: deliveries, best first, and in how many seconds something may become claimable by itself."""

    deliveries: list[Delivery]
    next_due_s: float | None


class Settled(NamedTuple):
    """A settled message: whether the ticket still counted, the state after it, ids that were put, the next claim."""

    held: bool
    state: State | None
    ids: list[str]
    claimed: Claimed | None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages to list. Every part that is given must hold.

    `order` is "oldest" (first stored first), "newest", or "claim" (as a receiver would get them). `visible_to` with
    `channels` means what `Want` means. `waiting` keeps questions whose asker waits. `ids` keeps those. `claimed_by`
    keeps messages that this agent claimed last; with `states` CLAIMED, those that it holds now. `concerns` keeps messages
    that this agent sent, gets or claimed last. `order_key` keeps those of that key, in every mailbox. `chain_id` keeps the
    messages that one message led to; an answer among them whose question is no longer kept may be left out.
    """

    ids: tuple[str, ...] | None = None
    states: frozenset[State] | None = None
    channels: tuple[str, ...] | None = None
    visible_to: str | None = None
    to_agent: str | None = None
    from_agent: str | None = None
    type: str | None = None
    correlation_id: str | None = None
    chain_id: str | None = None
    answer_to: str | None = None
    claimed_by: str | None = None
    order_key: str | None = None
    concerns: str | None = None
    waiting: bool = False
    sent_after_ms: int | None = None
    sent_before_ms: int | None = None
    order: str = "oldest"
    limit: int = 100


class Page(NamedTuple):
    """Some messages, and the cursor to go on from; None at the end. "claim" order has no cursor."""

    messages: list[Message]
    cursor: int | None


class Change(msgspec.Struct, frozen=True):
    """One entry of the feed: `number` is its cursor; the message stands as it is now, not as it was then."""

    number: int  # its place in the feed
    event: str  # what happened
    time_ms: int  # when, by the wall clock
    agent: str | None  # through whom
    detail: str | None  # what was said
    message: Message  # in its current state


class Cell(NamedTuple):
    """A small named value. The version changes with every write and never comes back."""

    name: str
    version: int
    value: Any


class Subscription(NamedTuple):
    """An agent that gets a copy of what is published in a channel."""

    channel: str
    agent: str
    since_ms: int


class MailboxFigures(NamedTuple):
    """The mail that waits for one agent (or for no particular agent) in one channel.

    `oldest_ms` is the time of the oldest of it, as that message says: two looks say the same.
    """

    to_agent: str | None  # whose mail it is; None: for the first that claims it
    channel: str  # where it lies
    depth: int  # how many messages wait
    oldest_ms: int  # when the oldest was sent


class WorkDone(NamedTuple):
    """An agent's work so far: messages it finished, and messages that failed in its hands and nobody finished since."""

    processed: int
    errors: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a room at one moment: messages by public state, mailboxes, and what the store tells of itself."""

    states: dict[str, int]  # how many messages are in each state
    mailboxes: list[MailboxFigures]  # what waits for whom
    store: dict[str, Any]  # what the store tells of itself


class Swept(NamedTuple):
    """Counts of what housekeeping did."""

    expired: int = 0
    released: int = 0
    dead: int = 0
    purged: int = 0


class Waiter(AbstractContextManager["Waiter"]):
    """A listener that waits for a hint that one of its topics may have changed.

    From the moment `listen` returned, no change is missed: arm first (`listen`, or the return of `wait`), then look,
    then wait. A hint may come without a change, and several changes may come as one hint.
    """

    @abstractmethod
    def wait(self, timeout_s: float | None) -> bool:
        """Return True at the next hint (or at once, when one came since the last `wait`), False when time ran out."""

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that can be read when a hint is there. Call `wait(0)` after it to take the hint.

        To be asked for by callers that are about to wait, each time.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop listening. Safe to call twice."""

    def switchboard(self) -> Switchboard | None:
        """A switchboard of the same store; see `Store.switchboard`."""
        return None

    def __exit__(self, *_: object) -> None:
        self.close()


class Switchboard(ABC):
    """Many waiters behind one descriptor, for a loop that waits for all of them at once.

    One thread listens and closes, another may take; nobody else may wait on the descriptor.
    """

    @abstractmethod
    def listen(self, topics: Iterable[str], hinted: Callable[[], None]) -> Waiter | None:
        """Somebody waits for these topics; `take` calls `hinted` when a hint came to it.

        None when the switchboard is full.

        `Waiter.wait(0)` tells, as everywhere, whether a hint came since the last one.
        """

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that can be read when a hint came to somebody. Call `take` after it."""

    @abstractmethod
    def take(self) -> None:
        """Call `hinted` of everybody to whom a hint came since the last time. Does not wait.

        To be called now and then also when the descriptor is silent: the ringing process may have died before the
        switchboard was woken.
        """

    @abstractmethod
    def close(self) -> None:
        """Nobody is hinted any more. Safe to call twice."""


def in_the_middle() -> RoomBusy:
    """The error for a reentrant call: by a signal's handler, or by an object that is collected.

    It would be done as part of the other, after it returned, or wait for ever for a lock that the other holds.
    """
    return RoomBusy(
        "this thread is in the middle of another step of the room, in which the handler of a signal (or an object that "
        "was collected) has called this one; nothing was changed, try again when the handler has returned"
    )


class Store(ABC):
    """A place that keeps messages. All methods may be called from several threads at once."""

    #: What a store can do; the suite and the README's table read these. A False is a named weakness.
    durable: ClassVar[bool]  # a put that returned survives the death of every process
    shared: ClassVar[bool]  # other processes see the same room
    atomic_settle: ClassVar[bool] = True  # settling, answering and claiming the next are one step
    exact_fifo: ClassVar[bool] = True  # also with several claimers
    limits: ClassVar[bool] = True  # limits and pauses are kept, and a mailbox can be full (LIMITS)
    restores: ClassVar[bool] = False  # messages of another room can be taken over (`restore`)

    clock: Clock
    #: Called, in any thread, when mail for the board was left by hand; it must not wait. A room sets it.
    board_mail_came: Callable[[], None] = staticmethod(lambda: None)

    @property
    def process(self) -> str:
        """The name under which this process stands in this room, as owner, waiter or member."""
        return this_process()

    def room_ms(self) -> int:
        """Room time now: what leases, delays and silences are counted in, the same for all that have the room open.

        A store that does not say has its clock's wall time, which a person may set.
        """
        return self.clock.wall_ms()

    @abstractmethod
    def put(self, drafts: Sequence[Draft]) -> list[str]:
        """Store messages that `message.check` has passed.

        After: all are stored, durably where the store is durable, in this order, behind everything stored before
        (also when a clock went back), and their waiters are woken. Returns their ids; a published draft gives
        one id per subscriber, perhaps none. A repeat of a sender's idempotency key stores nothing and gives the
        first id. An answer (`answer_to`) to a question whose asker still waits is held for it.
        A draft with an `order_key` comes behind all messages of that key in its mailbox (recipient and channel) that
        have not ended. What it `replaces`, and with `debounce` every message of its sender and key that waits in its
        mailbox, is withdrawn in the same step, as `withdraw` says.
        Raises MailboxFull when a mailbox would hold more waiting messages than the cell LIMITS allows in its channel
        (answers, and messages that replace another, are always taken; that a limit is new, other processes learn within two
        seconds; in a room on servers, messages that several processes send at the same moment do not see each other, and may
        be too many by just those); InvalidMessage for a known key with another content; RoomBusy, RoomUnreachable: then none is stored.
        """

    @abstractmethod
    def claim(self, want: Want) -> Claimed:
        """Take messages: highest priority first, first in first out within one priority of one channel.

        After: each returned message belongs to the claimer until it settles it, its lease ends, or its owner process is
        gone; its delivery is counted before the caller sees it. Messages whose lease has ended or whose owner is gone
        (seen in about a second) are claimable again, or dead when their deliveries are used up; due ones are ready;
        expired ones are not given, but for answers that are held: those wait for their asker. `next_due_s` is the
        room's.
        Of the messages of one order key in one mailbox only the first that has not ended is given, whatever their
        priorities; a delay, a retry and a lease keep the next ones waiting. One that is put back (`requeue`) waits for the
        one that is claimed, and comes at its old place or behind the others.
        The limits in the cell LIMITS are kept, over all claimers: of a paused channel, and to a paused agent, nothing is
        given; of a channel that has so many claimed as its rules allow, or that has used up its rate, nothing more. What
        runs is what is claimed now. Processes of a room on servers learn of a new limit within two seconds; one that all know
        is never exceeded. Answers do not count: none takes a place or from a rate, and one that is held is given to its asker all
        the same; one that is ordinary mail waits like other mail.
        `next_due_s` tells when a rate allows the next; a message that ends, and a change of the limits, wake the waiters
        (`topic_to`, `topic_channel`) that may take another now.
        Not promised: that an empty answer means an empty room a moment later; that a claim which finds something else
        sees at once that a delay has ended (a few milliseconds later it does).
        """

    @abstractmethod
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
        """Say what became of a claimed message; with the answer and the next claim in one step.

        `outcome`: acked, answered (its answer is in `puts`), refused, retry (delivered again after `delay_s`; on
        the last allowed delivery it is dead instead), dead, returned (nobody saw it, or its receiver was told to stop:
        it is ready again at once, and this delivery does not count). `detail` is the error or the reason.
        After, held: the state is `state`, the puts are stored, the message's waiters are woken.
        After, not held (the ticket no longer counted): the message is untouched and nothing of `puts` is stored.
        The next claim is made in both cases.
        """

    @abstractmethod
    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        """Let the lease end that many seconds from now.

        False, and nothing changed, when the ticket no longer counts; also when the lease has ended and a limit allows no
        more of the channel to run. An answer does not run in that sense: it stays its holder's until another takes it.
        """

    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        """Their holders live: let no lease end sooner than that many seconds from now. Returns those that count no more.

        Unlike an extension a heartbeat leaves no line in ledger and feed, wakes nobody and does not wait for the disk:
        after a power cut nobody holds anything. Only where a lease had ended already, and nobody took the message, is
        it the extension that makes it the holder's again.
        When it raises, some of them may have been extended. (A store that has no better way extends one by one.)
        """
        return [ticket for ticket in tickets if not self.extend(ticket, lease_s)]

    @abstractmethod
    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        """Write in the ledger what a door did ("notified", "shown"). False when there is no such message.

        A ledger that is full (64 KiB) takes no more notes; it always takes changes of state.
        """

    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        """Take the answer that is held for a question that has ended with it, without reading the question.

        None when it is not there, or when this store cannot tell for less than reading the question costs.
        """
        del question, want
        return None

    @abstractmethod
    def abandon(self, *ids: str) -> None:
        """The asker of these questions no longer waits: their answers, come or to come, are ordinary mail.

        When it raises, some of them may have been given up; it may be called again.
        """

    @abstractmethod
    def withdraw(self, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
        """Take back messages of this sender that no receiver has. Returns those that were taken back.

        After: those are withdrawn and are never delivered; a late holder, whose lease had ended, is told that its ticket
        no longer counts. All others are as they were: claimed, ended, kept for an asker, not known or another sender's.
        Of a withdrawal and a claim of one message, one wins.
        """

    @abstractmethod
    def get(self, id: str) -> MessageWithLedger | None:
        """One message with its ledger, or None.

        Changes nothing, as every look. A look shows what the next claim would find: due, ended and expired are judged
        by the clock, and a claim whose owner is gone has ended (`process_alive`, asked once for each owner and look).
        The ledger tells of it as soon as somebody writes it down.
        """

    @abstractmethod
    def find(self, query: Query, cursor: int | None = None) -> Page:
        """List messages as `get` sees them, without their ledgers. Changes nothing."""

    def find_text(
        self,
        query: Query,
        terms: Sequence[Term],
        cursor: int | None = None,
        told: Callable[[int, int], object] | None = None,
    ) -> Page | None:
        """List messages that a query means and whose payloads have the terms (`core.search_query`), the newest first.

        For stores with an index of words, which is made when it is first needed. Everything that was stored before the
        call is found. `told(done, total)` is called while many messages are indexed; what it raises ends the call, and
        what was indexed stays so. None when this store has no index, or cannot bring it up to date now: then somebody
        who looks for words has to read the messages (`mail.searching`).
        """
        del query, terms, cursor, told
        return None

    def find_all(self, query: Query) -> Iterator[Message]:
        """All messages that a query means, read in pages of its limit; in claim order, which has no pages, one page."""
        page = self.find(query)
        yield from page.messages
        while page.cursor is not None:
            page = self.find(query, page.cursor)
            yield from page.messages

    def count(self, query: Query) -> int:
        """How many messages a query means, whatever its order and its limit. Changes nothing."""
        return sum(1 for _ in self.find_all(msgspec.structs.replace(query, order="oldest", limit=COUNTED_AT_ONCE)))

    @abstractmethod
    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        """The feed: every change with a number above `after`, in order, at most `limit` (more when several share one).

        Never misses a change, but may fold several changes of one message into its latest.
        """

    @abstractmethod
    def number_at(self, wall_ms: int | None = None) -> int:
        """The feed's number at that moment of the wall clock, so that a time can be used as a cursor.

        None is now: everything so far has a number up to this one, everything later a higher one.
        """

    def forgotten(self) -> int:
        """Changes with numbers up to this one may be missing from the feed: their messages are no longer kept.

        0 when nothing was ever deleted. A reader whose cursor is lower may have a gap, and is told so by this alone.
        """
        cell = self.cell_read(FORGOTTEN)
        return 0 if cell is None else int(cell.value)

    @abstractmethod
    def requeue(self, ids: Iterable[str]) -> list[str]:
        """Put dead, refused or expired messages back, with their delivery counts reset.

        Returns those that were put back.
        """

    @abstractmethod
    def purge(self, query: Query) -> int:
        """Delete messages for good, at most `query.limit`. Returns how many. Claimed ones are never deleted."""

    def restore(self, messages: Sequence[MessageWithLedger]) -> int:
        """Take over messages of another room as they stand, for a move or an import. Returns how many were new here.

        They are at rest: READY, DELAYED or finished, with no owner, no lease and no waiter. `check` has not seen them;
        their ids are UUIDs as stores give them.
        After: all are kept, durably where the store is durable, in this order, behind everything stored before. `get`
        gives each with the id, the ledger, the token and all other fields that it was given, and every method knows it
        by that id; its sender's idempotency key counts, and answers find it by `answer_to`. Each claim from now on has
        a larger token than the message brought along. A message whose id is kept here already stays as it is, so that
        a repeat does no harm. The feed tells of each once; retention counts from now on.
        If it raised: the first of them may be kept, whole; a repeat takes over the rest.
        Not promised: that work on messages which the other room no longer keeps is counted in `work_of`; a place behind
        the others for a message that this very room once stored.
        """
        del messages
        raise RoomError(f"{type(self).__name__} cannot take over messages of another room")

    @abstractmethod
    def subscribe(self, channel: str, agent: str) -> None:
        """From now on the agent gets a copy of what is published in the channel. Twice is once."""

    @abstractmethod
    def unsubscribe(self, channel: str, agent: str) -> bool:
        """No more copies; those it has stay. False when it was not subscribed."""

    @abstractmethod
    def subscriptions(self) -> list[Subscription]:
        """All subscriptions."""

    @abstractmethod
    def cell_read(self, name: str) -> Cell | None:
        """A small value by its name, or None."""

    @abstractmethod
    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        """Write a small JSON value (None deletes it) if its version is `expect` (0: it must not be there).

        Returns the new version (0 after a delete), or None, and nothing changed, when the version was another.
        Wakes `topic_cells(name)`; for LIMITS also the waiters for mail that waits.
        """

    @abstractmethod
    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        """Store messages and write a cell in one step, if the cell's version is `expect`: one that was read, never ANY.

        After: the messages are stored as by `put`, and the cell has the value, as by `cell_write`. Returns their ids. A
        stale version gives None, and nothing changed: of several processes that do this for the same version, one stores
        its messages, also when another stood still for hours in between.
        Raises what `put` and `cell_write` raise: then neither is done.
        """

    @abstractmethod
    def cell_scan(self, prefix: str) -> list[Cell]:
        """All cells whose names begin so, in the order of their names."""

    @abstractmethod
    def listen(self, topics: Iterable[str]) -> Waiter:
        """Somebody waits for these topics."""

    def switchboard(self) -> Switchboard | None:
        """A place for many waiters behind one descriptor; None where there is none: each listens alone then."""
        with self.listen(()) as waiter:
            return waiter.switchboard()

    def process_alive(self, process: str) -> bool | None:
        """Whether a process whose name stands in this room still runs. None when that cannot be seen (yet).

        False is certain: a process that lives is never taken for dead, whatever namespace it lives in. A store in a
        folder judges by locks (`stores/liveness.py`). A store of many machines judges processes elsewhere by their
        silence, and later than those here.
        """
        return process_alive(process)

    def check_there(self) -> None:  # noqa: B027  a store without a place of its own has nothing to look at
        """Raise RoomGone when what this store has open is no longer what lies at the room's address.

        Asked about once a second by every process that uses the room (`Gateway.check_there`), so it costs little. Once
        it has raised it always does: whatever comes back to that address, this store has missed a part of it.
        Not promised: that a change of the files which leaves all of them in their places is noticed.
        """

    def why_only_looking(self) -> str:
        """Why this room can only be looked at (its disk is full or read-only, …); "" where it can be written.

        Every method that writes raises RoomUnreachable then, and says why; those that change nothing go on.
        """
        return ""

    def open_elsewhere(self) -> bool:
        """Whether another process has this room open, as far as the store can tell; agents tell of themselves."""
        return False

    @abstractmethod
    def sweep(self) -> Swept:
        """Housekeeping: expire, release what dead processes and ended leases hold, forget what is kept too long.

        Dead letters are not forgotten: they stay until somebody puts them back or purges them.

        Everything that a claim needs it does by itself; a sweep only keeps the store small and ledgers current.
        """

    @abstractmethod
    def stats(self) -> Stats:
        """Figures of this moment, counted as `get` sees the messages. Changes nothing."""

    @abstractmethod
    def work_of(self, agent: str) -> WorkDone:
        """The work of an agent, counting also messages that are no longer kept. Changes nothing."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Safe to call twice; later calls of other methods raise RoomClosed.

        Not promised: that a wait in another thread ends at once; it ends with its time-out.
        """
