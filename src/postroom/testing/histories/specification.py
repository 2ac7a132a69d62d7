"""What one message and one cell may do, step by step: the sequential specification to which histories are held.

It is `docs/guarantees.md` and `stores/contract.py` in a few lines, and knows nothing of any store. `after` takes a state
and a step, and gives the states after it, each with the earliest moment at which it may have come about. Moments are
lower bounds all along: a lease counts from when its claim may have begun, and nobody may have the message before that
much time has passed, or its owner may have died.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from postroom.stores.contract import ANY

from .record import FOREVER, UNKNOWN, RecordedCall

ABSENT: Final = "absent"
WAITING: Final = "waiting"  # ready, delayed, or held for its asker
HELD: Final = "claimed"
#: The words of the store for a message that waits.
_WAITS: Final = frozenset({"ready", "delayed", "awaited"})
_ENDED_BADLY: Final = frozenset({"dead", "refused", "expired"})


class MessageLife(NamedTuple):
    """Where a message stands."""

    state: str = ABSENT
    token: int = 0  # the last token that was seen
    counts: bool = False  # whether that token still counts: no claim, retry, return or requeue came after it
    deliveries: int = 0
    since_ns: int = 0  # the earliest moment at which it may have come to stand like this
    free_ns: int = 0  # the earliest moment at which it may be claimed (again)
    expires_ns: int = FOREVER  # the earliest moment at which it may expire
    mortal: bool = True  # whether it has surely expired when its time is over: not so once it was put back
    unseen: int = 0  # how many of its claims nobody saw return


class HistoryStep:
    """A call as far as it concerns one message (or several that were sent together), or one cell."""

    __slots__ = ("begin_ns", "call", "detail", "end_ns", "kind", "place", "puts", "result", "unknown")

    def __init__(self, call: RecordedCall, kind: str, end_ns: int, place: int, detail: Any, result: Any) -> None:
        self.call = call
        self.kind = kind
        self.begin_ns = call.begin_ns
        self.end_ns = end_ns  # the latest moment at which it may take effect
        self.place = place  # which message of the part
        self.detail = detail
        self.result = result
        self.unknown = call.result is UNKNOWN
        self.puts: list[int] = []  # messages that it stores


class Sent(NamedTuple):
    """What the sender said of a message."""

    label: str
    call: RecordedCall
    to: str | None
    channel: str
    priority: int
    most: int  # deliveries
    delay_ns: int
    ttl_ns: int | None
    answer: bool
    place: int  # within its batch
    order_key: str | None = None

    @property
    def is_stored(self) -> bool:
        """Whether it surely was stored."""
        return not self.call.is_unknown and (self.call.operation == "send" or self.call.result[0])

    @property
    def latest_expiry_ns(self) -> int:
        """After this moment it has surely expired; answers that are held for their asker never do."""
        if self.ttl_ns is None or not self.is_stored or self.answer:
            return FOREVER
        return self.call.end_ns + self.ttl_ns


class Unseen(NamedTuple):
    """A claim that nobody saw return: it may have taken any message that it asked for."""

    begin_ns: int
    end_ns: int  # the latest moment at which it may have taken something
    lease_ns: int
    gone_ns: int  # when its owner may have been gone
    limit: int


class Mail:
    """A message, or several that only come into being together (a batch; a question and its answer).

    `unseen` gives, for each of them, the claims that may have taken it without anybody's knowledge.
    """

    def __init__(self, sent: list[Sent], unseen: list[list[Unseen]], most_seen: list[int], slack_ns: int) -> None:
        self.sent = sent
        self.unseen = unseen
        self._most_seen = most_seen  # the highest delivery number that anybody saw
        self._slack_ns = slack_ns  # stores count in whole milliseconds

    def beginning(self) -> tuple[MessageLife, ...]:
        return (MessageLife(),) * len(self.sent)

    def after(self, lives: tuple[MessageLife, ...], step: HistoryStep) -> Iterator[tuple[int, tuple[MessageLife, ...]]]:
        """The states after a call; none when it could not have returned what it did."""
        if step.kind == "send":
            if (stored := self._stored(lives, step.puts, step.begin_ns)) is not None:
                yield step.begin_ns, stored
            return
        place = step.place
        life = lives[place]
        moved = getattr(self, f"_{step.kind}")(life, step, max(life.since_ns, step.begin_ns))
        if moved is None:
            return
        at_ns, new = moved
        if step.unknown and new == life:
            return  # it changed nothing, and nobody was told anything: as good as never made
        if step.puts and new.state != life.state:  # an answer is stored with its question's end
            stored = self._stored(lives, step.puts, at_ns)
            if stored is None:
                return
            lives = stored
        yield at_ns, (*lives[:place], new._replace(since_ns=at_ns), *lives[place + 1 :])

    def _stored(self, lives: tuple[MessageLife, ...], places: list[int], now_ns: int) -> tuple[MessageLife, ...] | None:
        stored = list(lives)
        for place in places:
            if lives[place].state != ABSENT:
                return None
            sent = self.sent[place]
            due_ns = now_ns + sent.delay_ns - self._slack_ns if sent.delay_ns else now_ns
            ends_ns = FOREVER if sent.ttl_ns is None else now_ns + sent.ttl_ns - self._slack_ns
            stored[place] = MessageLife(WAITING, since_ns=now_ns, free_ns=due_ns, expires_ns=ends_ns)
        return tuple(stored)

    def _may_be_taken_ns(self, life: MessageLife, place: int, now_ns: int) -> int | None:
        """The earliest moment from now at which it can be claimed; None: never, as things stand."""
        sent = self.sent[place]
        if life.state != WAITING and (life.state != HELD or life.deliveries >= sent.most):
            return None
        at_ns = max(now_ns, life.free_ns)
        return None if life.mortal and at_ns > sent.latest_expiry_ns + self._slack_ns else at_ns

    def _claim(self, life: MessageLife, step: HistoryStep, now_ns: int) -> tuple[int, MessageLife] | None:
        token, deliveries = step.result
        at_ns = self._may_be_taken_ns(life, step.place, now_ns)
        if at_ns is None or deliveries != life.deliveries + 1 or token <= life.token:
            return None
        lease_ns, gone_ns = step.detail
        free_ns = max(at_ns, min(at_ns + lease_ns - self._slack_ns, gone_ns))
        return at_ns, MessageLife(
            HELD, token, True, deliveries, at_ns, free_ns, life.expires_ns, life.mortal, life.unseen
        )

    def _settle(self, life: MessageLife, step: HistoryStep, now_ns: int) -> tuple[int, MessageLife] | None:
        token, outcome, delay_ns = step.detail
        counts = life.counts and token == life.token
        if not step.unknown and step.result[0] is not counts:
            return None
        if not counts:
            return now_ns, life
        if outcome == "retry" and life.deliveries < self.sent[step.place].most:
            due_ns = now_ns + delay_ns - self._slack_ns if delay_ns else now_ns
            new = life._replace(state=WAITING, counts=False, free_ns=due_ns)
        elif outcome == "returned":
            new = life._replace(state=WAITING, counts=False, deliveries=life.deliveries - 1, free_ns=now_ns)
        else:
            ended = "dead" if outcome == "retry" else outcome
            new = life._replace(state=ended, counts=False)
        said = None if step.unknown else step.result[1]
        if said is not None and said != new.state and not (new.state == WAITING and said in _WAITS):
            return None
        return now_ns, new

    def _extend(self, life: MessageLife, step: HistoryStep, now_ns: int) -> tuple[int, MessageLife] | None:
        token, lease_ns, gone_ns = step.detail
        counts = life.counts and token == life.token
        if not step.unknown and step.result is not counts:
            return None
        if not counts:
            return now_ns, life
        free_ns = max(now_ns, min(now_ns + lease_ns - self._slack_ns, gone_ns))
        return now_ns, life._replace(free_ns=free_ns)

    def _look(self, life: MessageLife, step: HistoryStep, now_ns: int) -> tuple[int, MessageLife] | None:
        """What a look shows: the state, or what the next claim would make of it. It changes nothing."""
        if step.result is None:
            return (now_ns, life) if life.state == ABSENT else None
        said, deliveries = step.result
        if deliveries != life.deliveries or life.state == ABSENT:
            return None
        if said == life.state or (said in _WAITS and life.state == WAITING):
            return now_ns, life
        for at_ns, state in self._ends(life, step.place, now_ns):
            if said == state:
                return at_ns, life
        if said in _WAITS and life.state == HELD and life.deliveries < self.sent[step.place].most:
            return max(now_ns, life.free_ns), life
        return None

    def _withdraw(self, life: MessageLife, step: HistoryStep, now_ns: int) -> tuple[int, MessageLife] | None:
        """By its sender, and nobody has it: at the earliest when the lease of its late holder is over."""
        used_up = life.state == HELD and life.deliveries >= self.sent[step.place].most
        can_be = life.state in (WAITING, HELD) and not used_up
        if step.unknown or step.result:
            at_ns = max(now_ns, life.free_ns) if life.state == HELD else now_ns
            return (at_ns, life._replace(state="withdrawn", counts=False)) if can_be else None
        return (now_ns, life) if life.state != WAITING or self.sent[step.place].answer else None

    def _requeue(self, life: MessageLife, step: HistoryStep, now_ns: int) -> tuple[int, MessageLife] | None:
        ended = life.state in _ENDED_BADLY
        if step.unknown or (step.result and ended):
            new = life._replace(state=WAITING, deliveries=0, free_ns=now_ns, mortal=False)
            return (now_ns, new) if ended else None
        return (now_ns, life) if step.result is ended else None

    # What happens though nobody calls

    def _ends(self, life: MessageLife, place: int, now_ns: int) -> Iterator[tuple[int, str]]:
        """How time may end a message, and when at the earliest."""
        free_ns = max(now_ns, life.free_ns)
        if life.state == HELD and life.deliveries >= self.sent[place].most:
            yield free_ns, "dead"
        elif life.state == HELD and life.expires_ns < FOREVER:
            yield max(free_ns, life.expires_ns), "expired"
        elif life.state == WAITING and life.expires_ns < FOREVER:
            yield max(now_ns, life.expires_ns), "expired"

    def by_itself(self, lives: tuple[MessageLife, ...]) -> Iterator[tuple[MessageLife, ...]]:
        """What time does, and what claims do that nobody saw return; each as soon as it can."""
        for place, life in enumerate(lives):
            for at_ns, state in self._ends(life, place, life.since_ns):
                ended = life._replace(state=state, counts=False, since_ns=at_ns)
                yield (*lives[:place], ended, *lives[place + 1 :])
            for at_ns, again_ns in self._unseen_takes(life, place):
                taken = life._replace(
                    state=HELD, counts=False, deliveries=life.deliveries + 1, since_ns=at_ns, free_ns=again_ns,
                    unseen=life.unseen + 1,
                )  # fmt: skip
                yield (*lives[:place], taken, *lives[place + 1 :])

    def _unseen_takes(self, life: MessageLife, place: int) -> Iterator[tuple[int, int]]:
        """When a claim that nobody saw return may have taken it, and when it is free again.

        Of two, one that takes it later and has it longer makes nothing possible that the other does not.
        """
        free_ns = self._may_be_taken_ns(life, place, life.since_ns)
        if free_ns is None or life.deliveries > self._most_seen[place]:
            return
        soonest_ns = FOREVER + 1
        spans = []
        for claim in self.unseen[place]:
            at_ns = max(free_ns, claim.begin_ns)
            if at_ns <= claim.end_ns:
                spans.append((at_ns, max(at_ns, min(at_ns + claim.lease_ns - self._slack_ns, claim.gone_ns))))
        for at_ns, again_ns in sorted(spans):
            if again_ns < soonest_ns:
                soonest_ns = again_ns
                yield at_ns, again_ns


class Register:
    """A cell: a value, and a version that changes with every write and never comes back; 0 while there is none.

    The version that a write gave which nobody saw return is not known; it is written as a negative number until
    somebody has read it.
    """

    def __init__(self, given: frozenset[int]) -> None:
        self._given = given  # the versions that writers were told

    def beginning(self) -> tuple[int, str]:
        return 0, "null"

    def after(self, cell: tuple[int, str], step: HistoryStep) -> Iterator[tuple[int, tuple[int, str]]]:
        """The states after a call; none when it could not have returned what it did."""
        version, value = cell
        if step.kind == "read":
            seen, read = (0, "null") if step.result is None else step.result
            if read == value and self._may_be(version, seen):
                yield step.begin_ns, (seen, value)
            return
        new, expect = step.detail
        fits = expect == ANY or self._may_be(version, expect)
        if step.unknown:
            if fits:
                yield step.begin_ns, (0 if new == "null" else -2 - step.place, new)
        elif step.result is not None:
            if fits:
                yield step.begin_ns, (step.result, new)
        elif expect not in (ANY, version):
            yield step.begin_ns, cell

    def _may_be(self, version: int, seen: int) -> bool:
        return version == seen or (version < 0 < seen and seen not in self._given)

    def by_itself(self, cell: tuple[int, str]) -> Iterator[tuple[int, str]]:
        """Nothing happens to a cell that nobody writes."""
        return iter(())
