"""Which personas answer a message: a pure function of evaluations, a moment, the rules and a seed.

The same input gives the same decision, on every machine and in any order of its parts. Guarantees
(tests/pools/test_decide.py):

- Every participant is granted or gets a reason.
- The persona that wants to answer most is granted, however old the message is and however low its confidence became: a
  single claimant is never starved. Only the hop cap silences everybody.
- Confidence halves with every half-life of the message's age, exactly; it never grows. The evaluation itself is kept as
  it was.
- Nobody is favoured: equals are told apart by the seed alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from postroom.core.config import prepare_types

from .evaluation import Evaluation

#: What is known of a participant: its latest evaluation, why there will be none, or nothing yet.
Known = Evaluation | Exception | None

#: The half-life is at least this, and at least so many times what the slowest takes (its 95th percentile).
MIN_HALF_LIFE_S: Final = 5.0
HALF_LIVES_PER_P95: Final = 2.0


class Denial(StrEnum):
    """Why a participant was not granted."""

    WAITING = "waiting"  # nothing is decided yet
    NO_RESULT = "no_result"  # it had said nothing when it was decided
    FAILED = "failed"  # its evaluation failed
    UNPARSED = "unparsed"  # its model answered without a verdict
    DECLINED = "declined"  # it does not want to answer
    OWN_MESSAGE = "own_message"  # it is the sender
    LOW_CONFIDENCE = "low_confidence"  # others are enough, and it is not sure enough
    OUTRANKED = "outranked"  # as many as may answer are better placed
    TOO_MANY_HOPS = "too_many_hops"  # the message is the last of its chain that may be


class Trigger(StrEnum):
    """What made the decision."""

    WAITING = "waiting"  # nothing yet
    FAST_PATH = "fast_path"  # first looks; deep ones go on, and may revise it
    ALL_IN = "all_in"
    QUORUM = "quorum"
    DEADLINE = "deadline"
    HOP_CAP = "hop_cap"


#: A decision with one of these is open: later results may revise it.
OPEN: Final = frozenset((Trigger.WAITING, Trigger.FAST_PATH))


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The rules, and what is known of the message. Moments are seconds of one clock that only goes forward."""

    half_life_s: float = MIN_HALF_LIFE_S  # in which a confidence loses half of its weight
    deadline_s: float = 5.0  # at the latest then the decision is closed
    #: This many final assessments are enough; None: all of them.
    quorum: int | None = None
    #: When first looks are enough for an open decision; None: never.
    fast_path_s: float | None = 0.1
    max_responders: int = 1  # at most this many may answer
    #: Below this a second or third does not answer; the best one always may.
    min_confidence: float = 0.3
    #: How much of its confidence a persona that has just spoken loses in the ranking; half of that after the half-life.
    diversity: float = 0.2
    diversity_half_life_s: float = 60.0  # in which the loss is halved
    max_hops: int = 8  # a longer chain of messages gets no answer

    # The message
    message_id: str = ""  # the message
    sender: str | None = None  # who sent it, and so does not answer it
    hop_count: int = 0  # how many messages caused each other before it
    message_at: float = 0.0  # when it was sent
    began_at: float = 0.0  # when it began to be considered
    #: When each participant was last granted.
    spoken: Mapping[str, float] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("half_life_s", "diversity_half_life_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)!r}")
        for name in ("deadline_s", "fast_path_s", "diversity"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)!r}")
        if not 0 <= self.min_confidence <= 1:
            raise ValueError(f"min_confidence must be a number from 0 to 1, not {self.min_confidence!r}")
        for name in ("max_responders", "quorum"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)!r}")


class Outcome(msgspec.Struct, frozen=True):
    """What became of one participant. `confidence` is what it said; `decayed` what is left of that at the decision."""

    granted: bool  # whether it answers
    reason: Denial | None = None  # why it does not
    confidence: float | None = None  # what it said
    decayed: float | None = None  # what is left of that
    #: By which it was ranked among those that want to answer. Made from what it said: all that is known of one message
    #: is equally old, so that age does not change the order.
    score: float | None = None
    stage: str | None = None  # quick or deep
    reasoning: str = ""  # why, in its words


class Late(msgspec.Struct, frozen=True):
    """A result that came when the decision was closed."""

    participant: str
    evaluation: Evaluation | None
    error: str | None = None


class Decision(msgspec.Struct, frozen=True):
    """Which personas answer a message, and why the others do not. An open one may still be revised."""

    message_id: str  # the message that was considered
    trigger: Trigger  # what made the decision
    outcomes: dict[str, Outcome]  # what became of each participant: granted, or a reason
    #: Those that answer, the best first.
    granted: tuple[str, ...]
    #: Seconds after the message began to be considered.
    after_s: float
    half_life_s: float  # in which a confidence loses half of its weight
    seed: int  # decides between equals
    #: How often it was revised while it was open.
    revision: int = 0
    #: Results that came too late to count.
    late: tuple[Late, ...] = ()
    #: Whether the coordinator that returned it made it: of several, only one has it, and acts on it.
    made_here: bool = False

    @property
    def closed(self) -> bool:
        """Whether it stands."""
        return self.trigger not in OPEN

    def same_as(self, other: Decision) -> bool:
        """Whether it says the same of everybody's right to answer, by the same trigger."""
        mine = {name: (outcome.granted, outcome.reason) for name, outcome in self.outcomes.items()}
        theirs = {name: (outcome.granted, outcome.reason) for name, outcome in other.outcomes.items()}
        return (self.trigger, self.granted, mine) == (other.trigger, other.granted, theirs)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for a cell or a page."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def decision_from(value: Any) -> Decision:
    """The decision that `to_dict` made plain."""
    return msgspec.convert(value, Decision)


def decide(evaluations: Mapping[str, Known], now: float, config: Config, seed: int) -> Decision:
    """The decision by what is known now. `evaluations` names every participant; None where nothing has come yet."""
    trigger = _trigger(evaluations, now, config)
    if trigger in (Trigger.WAITING, Trigger.HOP_CAP):
        reason = Denial.WAITING if trigger is Trigger.WAITING else Denial.TOO_MANY_HOPS
        outcomes = {name: Outcome(granted=False, reason=reason) for name in evaluations}
        granted: tuple[str, ...] = ()
    else:
        outcomes, granted = _weigh(evaluations, now, config, seed)
    return Decision(
        config.message_id, trigger, outcomes, granted, max(0.0, now - config.began_at), config.half_life_s, seed
    )


def next_moment(decision: Decision, config: Config, now: float) -> float | None:
    """When, after now, time alone would change the decision; None when only a result can, or nothing."""
    if decision.closed:
        return None
    deadline = config.began_at + config.deadline_s
    fast = config.fast_path_s
    # by now, not by when it was decided: while nothing comes the decision stays the same, and the coordinator would wait
    # for a moment that is over, again and again (tests/pools/test_coordinator.py). `_trigger` compares the same sums.
    if decision.trigger is Trigger.WAITING and fast is not None and now < config.began_at + fast:
        return min(deadline, config.began_at + fast)
    return deadline


def decayed(confidence: float, age_s: float, half_life_s: float) -> float:
    """What is left of a confidence after that time: half of it after each half-life. Never more than it was."""
    return float(confidence * 2.0 ** -(max(0.0, age_s) / half_life_s))


def half_life_for(p95_s: float | None) -> float:
    """A half-life that a model does not outlast by being slow: tied to how long the slowest takes."""
    return MIN_HALF_LIFE_S if p95_s is None else max(MIN_HALF_LIFE_S, HALF_LIVES_PER_P95 * p95_s)


def chance(seed: int, name: str) -> float:
    """A number from 0 up to, not including, 1, for this participant under this seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7]) / 2**56


def seed_of(message_id: str, base: int = 0) -> int:
    """The seed for a message: the same for every coordinator."""
    return int.from_bytes(hashlib.sha256(f"{base}/{message_id}".encode()).digest()[:6])


# Parts of the above


def _is_last_word(known: Known) -> bool:
    return known is not None and (isinstance(known, Exception) or known.state != "ok" or known.stage == "deep")


def _trigger(evaluations: Mapping[str, Known], now: float, config: Config) -> Trigger:
    """What, if anything, makes the decision now."""
    if config.hop_count >= config.max_hops:
        return Trigger.HOP_CAP
    heard = {name: known for name, known in evaluations.items() if name != config.sender}
    if all(_is_last_word(known) for known in heard.values()):
        return Trigger.ALL_IN
    words = sum(
        isinstance(known, Evaluation) and known.state == "ok" and known.stage == "deep" for known in heard.values()
    )
    if config.quorum is not None and words >= config.quorum:
        return Trigger.QUORUM
    if now >= config.began_at + config.deadline_s:
        return Trigger.DEADLINE
    if config.fast_path_s is None or not any(isinstance(known, Evaluation) for known in heard.values()):
        return Trigger.WAITING
    everybody = all(known is not None for known in heard.values())
    return Trigger.FAST_PATH if everybody or now >= config.began_at + config.fast_path_s else Trigger.WAITING


def _weigh(
    evaluations: Mapping[str, Known], now: float, config: Config, seed: int
) -> tuple[dict[str, Outcome], tuple[str, ...]]:
    """What becomes of each, and the granted ones, best first."""
    age_s = now - config.message_at
    weighed = {name: _weighed(name, known, now, age_s, config) for name, known in evaluations.items()}
    claimants = [name for name, outcome in weighed.items() if outcome.reason is None]
    ranked = sorted(claimants, key=lambda name: (-(weighed[name].score or 0.0), chance(seed, name), name))
    granted: list[str] = []
    for place, name in enumerate(ranked):
        outcome = weighed[name]
        if place >= config.max_responders:
            reason: Denial | None = Denial.OUTRANKED
        elif place and (outcome.decayed or 0.0) < config.min_confidence:
            reason = Denial.LOW_CONFIDENCE
        else:
            reason = None
            granted.append(name)
        weighed[name] = msgspec.structs.replace(outcome, granted=reason is None, reason=reason)
    return weighed, tuple(granted)


def _weighed(name: str, known: Known, now: float, age_s: float, config: Config) -> Outcome:
    """A participant's outcome as far as it stands by itself: a reason against it, or a score."""
    if name == config.sender:
        return Outcome(granted=False, reason=Denial.OWN_MESSAGE)
    if known is None:
        return Outcome(granted=False, reason=Denial.NO_RESULT)
    if isinstance(known, Exception):
        return Outcome(granted=False, reason=Denial.FAILED, reasoning=str(known))
    if known.confidence is None:
        reason = Denial.UNPARSED if known.state == "unparsed" else Denial.FAILED
        return Outcome(granted=False, reason=reason, stage=known.stage, reasoning=known.error or "")
    left = decayed(known.confidence, age_s, config.half_life_s)
    return Outcome(
        granted=False,
        reason=None if known.should_respond else Denial.DECLINED,
        confidence=known.confidence,
        decayed=left,
        score=known.confidence * (1.0 - _recency(name, now, config)),
        stage=known.stage,
        reasoning=known.reasoning,
    )


def _recency(name: str, now: float, config: Config) -> float:
    """How much a participant that spoke lately is held back: `diversity` just after, half of it a half-life later."""
    spoke_at = config.spoken.get(name)
    if spoke_at is None or not config.diversity:
        return 0.0
    return min(1.0, decayed(config.diversity, now - spoke_at, config.diversity_half_life_s))


prepare_types(Decision)
