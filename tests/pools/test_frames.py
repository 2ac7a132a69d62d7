"""Frames: whole or not at all, and in order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from postroom.errors import InvalidMessage
from postroom.pools.evaluation import Evaluation
from postroom.pools.protocol import (
    Abort,
    BrokenFrame,
    Error,
    Evaluate,
    Ping,
    Pong,
    Ready,
    Result,
    Shutdown,
    Splitter,
    evaluation_of,
    message_text,
    pack,
)

TO_WORKER: list[Any] = [
    Ping(1),
    Evaluate(7, 1, 5, {"id": "m", "content": "ü" * 100, "n": 2**70, "deep": [{"a": None}]}),
    Abort(7),
    Shutdown(),
]
FROM_WORKER: list[Any] = [
    Ready(10, 1000),
    Pong(1, None, 1000),
    Result(7, 1, True, Evaluation("m", 0.5, False, "so so"), 1000),
    Error(8, 1, "raised", "ValueError: no", "…", 1000),
]


@pytest.mark.parametrize(("frames", "in_worker"), [(TO_WORKER, True), (FROM_WORKER, False)])
def test_frames_arrive_as_they_were_sent_however_they_are_cut(frames, in_worker) -> None:
    data = b"".join(pack(frame) for frame in frames)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for size in [1, 2, 3, 5, len(data), *(chance.randrange(1, 50) for _ in range(50))]:
        splitter = Splitter(in_worker=in_worker)
        found = [frame for at in range(0, len(data), size) for frame in splitter.feed(data[at : at + size])]
        assert found == frames


@pytest.mark.parametrize("body", [b"{}", b'["nothing", 1]', b'["ping"]', b'["ping", "one"]', b"\xff", b""])
def test_what_is_no_frame_is_refused(body) -> None:
    with pytest.raises(BrokenFrame):
        Splitter(in_worker=True).feed(len(body).to_bytes(4, "big") + body)


def test_a_frame_of_absurd_size_is_refused_before_it_came() -> None:
    with pytest.raises(BrokenFrame, match="bytes"):
        Splitter(in_worker=True).feed(b"\xff\xff\xff\xff")


def test_a_result_out_of_bounds_is_no_frame() -> None:
    said = pack(FROM_WORKER[2]).replace(b"0.5", b"7.5")

    with pytest.raises(BrokenFrame):
        Splitter(in_worker=False).feed(said)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("text", "message: must be a dict, not str"),
        ({"content": "x"}, "message.id: must be text, not None"),
        ({"id": 7}, "message.id: must be text, not 7"),
        ({"id": "m", "content": object()}, "message.content: must be JSON, not object"),
        ({"id": "m", "n": float("nan")}, "message.n: nan is not a JSON number"),
        ({"id": "m", 7: 2}, "message: keys must be text, not int"),
    ],
)
def test_what_is_no_message_is_refused(message, fault) -> None:
    with pytest.raises(InvalidMessage, match=fault):
        message_text(message)


def test_a_dict_of_fields_is_an_evaluation() -> None:
    assert evaluation_of({"confidence": 0.8}, "m") == Evaluation("m", 0.8, should_respond=True)
    assert evaluation_of({"confidence": 0.8, "should_respond": False}, "m").should_respond is False
    assert evaluation_of({"confidence": 0.3}, "m").should_respond is False


@pytest.mark.parametrize("given", [7, None, {"sure": 1}, {"confidence": "high"}, {"confidence": 2}, {}])
def test_what_is_no_evaluation_is_refused(given) -> None:
    with pytest.raises((ValueError, TypeError)):
        evaluation_of(given, "m")
