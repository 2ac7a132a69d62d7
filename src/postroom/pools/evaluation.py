"""The evaluation of a message by a persona: whether it would answer, and how sure it is."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

import msgspec

EvaluationState = Literal["ok", "unparsed", "error"]
Stage = Literal["quick", "deep"]

#: Above this a persona would answer, unless it says otherwise.
RESPOND_ABOVE: Final = 0.5
#: The words of a model are kept up to this many characters.
MAX_REASONING: Final = 1000


class Evaluation(msgspec.Struct, frozen=True):
    """One persona's judgement of one message.

    `state` tells what came of asking. "ok": `confidence` is a number from 0 to 1. "unparsed": the model answered, but
    not with a verdict; "error": it did not answer, and `error` says why. In both of these `confidence` is None and
    `should_respond` is False: nothing is made up. `stage` is "quick" for a first look that may be refined, "deep" for
    the last word. The times are apart: in the queue, at work, and from request to result as the caller saw it.
    """

    message_id: str  # the message that was judged
    confidence: float | None = None  # from 0 to 1; None unless `state` is ok
    should_respond: bool = False  # whether the persona would answer
    reasoning: str = ""  # why, in the model's words
    processing_time_ms: float = 0.0  # at work
    queue_delay_ms: float = 0.0  # in the queue
    round_trip_ms: float = 0.0  # from request to result, as the caller saw it
    state: EvaluationState = "ok"  # ok, unparsed or error
    stage: Stage = "deep"  # quick or deep
    error: str | None = None  # why there is no verdict
    persona_id: str | None = None  # who judged
    model: str | None = None  # the model that was asked

    def __post_init__(self) -> None:
        if self.state == "ok":
            sure: Any = self.confidence
            if isinstance(sure, bool) or not isinstance(sure, int | float) or not 0 <= sure <= 1:  # NaN fails too
                raise ValueError(f"confidence must be a number from 0 to 1, not {sure!r}")
        elif self.confidence is not None or self.should_respond:
            raise ValueError(f"an evaluation that is {self.state!r} has no confidence and does not ask to respond")

    @classmethod
    def unparsed(cls, message_id: str, said: str, why: str = "", **more: Any) -> Self:
        """The model answered, and no verdict could be read from it. Its words are kept."""
        error = why or "the answer has no verdict"
        return cls(message_id, state="unparsed", reasoning=said[:MAX_REASONING], error=error, **more)

    @classmethod
    def failed(cls, message_id: str, error: BaseException | str, **more: Any) -> Self:
        """Asking failed; why is kept."""
        said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return cls(message_id, state="error", error=said, **more)

    def with_times(self, **changes: Any) -> Self:
        """The same judgement with other times (or other fields that only its carrier knows)."""
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return msgspec.structs.asdict(self)
