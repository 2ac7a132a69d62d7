"""What help() says of the asyncio room, and that its streams are what it says."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest
from tests.support.in_loop import PATIENCE_S, run

import postroom
from postroom import aio
from postroom.stores.contract import topic_to


@pytest.mark.parametrize("received", [postroom.Received, aio.Received])
def test_every_field_of_a_received_message_says_what_it_is(received: type) -> None:
    fields = {name: each for name, each in inspect.getmembers(received) if isinstance(each, property)}
    assert {"id", "payload", "channel", "priority", "lane", "token"} <= set(fields)
    for name, field in fields.items():
        assert re.fullmatch(r"[A-Z].*\.", field.__doc__ or "", re.S), name


@pytest.mark.parametrize(
    ("method", "parameters", "given"),
    [
        (aio.Agent.listen, "self channels lease_s max_hold_s timeout_s prefetch late", "AsyncIterator[Received]"),
        (aio.Room.watch, "self after timeout_s", "AsyncIterator[Change]"),
        (aio.Room.hints, "self topics", "AsyncIterator[bool]"),
        (aio.Board.watch, "self timeout_s", "AsyncIterator[Task]"),
        (aio.Board.work, "self agent timeout_s lease_s heartbeat", "AsyncIterator[HeldTask]"),
    ],
)
def test_a_stream_is_shown_as_one_for_async_for(method: Any, parameters: str, given: str) -> None:
    signature = inspect.signature(method)
    assert (" ".join(signature.parameters), signature.return_annotation) == (parameters, given)
    assert signature.parameters["self"].annotation is inspect.Parameter.empty
    assert "`async for`" in method.__doc__
    assert not method.__name__.startswith("_")


def test_the_topics_of_hints_are_read_at_the_call() -> None:
    async def main() -> None:
        async with aio.open("memory:") as room:
            topics = [topic_to("bob")]
            async with room.hints(topics) as hints:
                topics.clear()
                assert await anext(hints)
                await room.agent("ada").send("bob", {})
                assert await asyncio.wait_for(anext(hints), PATIENCE_S)

    run(main())
