"""An evaluation never makes a number up."""

from __future__ import annotations

import math

import msgspec
import pytest

from postroom import Evaluation


@pytest.mark.parametrize("confidence", [0, 1, 0.0, 1.0, 0.5, 1e-300])
def test_confidence_is_a_number_from_0_to_1(confidence: float) -> None:
    assert Evaluation("m1", confidence, True).confidence == confidence


@pytest.mark.parametrize("confidence", [-0.1, 1.1, math.nan, math.inf, None, True, "0.5"])
def test_any_other_confidence_is_refused(confidence: object) -> None:
    with pytest.raises(ValueError, match="confidence must be a number from 0 to 1"):
        Evaluation("m1", confidence)  # type: ignore[arg-type]


def test_what_does_not_parse_has_no_confidence() -> None:
    unparsed = Evaluation.unparsed("m1", "well, hm")
    failed = Evaluation.failed("m1", TimeoutError("too late"), stage="quick")

    assert (unparsed.state, unparsed.confidence, unparsed.should_respond) == ("unparsed", None, False)
    assert unparsed.reasoning == "well, hm"
    assert (failed.state, failed.confidence, failed.error, failed.stage) == (
        "error",
        None,
        "TimeoutError: too late",
        "quick",
    )
    with pytest.raises(ValueError, match="has no confidence"):
        Evaluation("m1", 0.5, state="unparsed")
    with pytest.raises(ValueError, match="has no confidence"):
        Evaluation("m1", None, True, state="error")


def test_it_crosses_between_processes_as_it_is() -> None:
    given = Evaluation("m1", 0.25, False, "no need", 3.5, 0.5, 4.5, stage="quick", persona_id="ada", model="mock:1")

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=Evaluation) == given
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"message_id":"m1","confidence":7}', type=Evaluation)
