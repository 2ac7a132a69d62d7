"""Retention per channel: old finished messages of a channel go, and nothing else does."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from tests.support.in_loop import run

from postroom import aio
from postroom.core.clock import ManualClock
from postroom.errors import InvalidMessage
from postroom.mail.housekeeping import CHANNELS_S, Upkeep
from postroom.room import Room
from postroom.stores.contract import RETENTION, Query, Want

retaining = importlib.import_module("postroom.mail.retaining")  # itself, and not what stands for it until it is used


def finish(room: Room, *channels: str, text: str = "x") -> list[str]:
    """Send a message into each of these channels, and ack it."""
    ids = []
    for channel in channels:
        ids.append(room.agent("ada", transient=True).send("bob", {"text": text}, channel=channel))
        assert room.store.claim(Want(agent="bob", lease_s=1, ids=(ids[-1],), settle=True)).deliveries
    return ids


def kept(room: Room) -> list[str]:
    return [message.id for message in room.store.find(Query(limit=10_000)).messages]


def test_finished_messages_of_the_channel_go_by_their_age(room: Room, clock: ManualClock) -> None:
    old, other = finish(room, "builds", "general")
    ada, bob = (room.agent(name, transient=True) for name in ("ada", "bob"))  # without a thread that keeps house
    waiting = ada.send("bob", {"text": "x"}, channel="builds")
    dead = ada.send("bob", {"text": "x"}, channel="builds", priority=9)
    bob.receive(timeout_s=0, channels=["builds"]).dead("no good")
    clock.advance(100)
    (young,) = finish(room, "builds")
    room.retention("builds", age_s=60)

    assert retaining.apply(room.store) == 1
    assert kept(room) == [other, waiting, dead, young] and old not in kept(room)
    assert retaining.apply(room.store) == 0


def test_the_newest_stay_by_count_and_by_bytes(room: Room) -> None:
    ids = finish(room, *["builds"] * 5, text="y" * 89)  # 100 bytes as JSON
    others = finish(room, *["general"] * 3)
    room.retention("builds", count=3)

    assert retaining.apply(room.store) == 2
    assert kept(room) == [*ids[2:], *others]
    room.retention("builds", bytes=250)
    assert retaining.apply(room.store) == 1
    assert kept(room) == [*ids[3:], *others]
    room.retention("builds", count=0)
    assert retaining.apply(room.store) == 2
    assert kept(room) == others


def test_limits_are_replaced_listed_and_removed(room: Room) -> None:
    room.retention("builds", age_s=60, count=10)
    room.retention("chatter", bytes=5)

    assert room.retention("builds", count=7) == {
        "builds": retaining.Retention(count=7), "chatter": retaining.Retention(bytes=5),
    }  # fmt: skip
    assert list(room.retention("builds")) == ["chatter"]
    assert room.retention("chatter") == {} and room.store.cell_read(RETENTION) is None


@pytest.mark.parametrize(
    ("channel", "limits", "problem"),
    [
        ("", {"count": 1}, "channel: must not be empty"),
        (None, {"count": 1}, "channel: must say which channel the limits are for"),
        ("a", {"count": -1}, "count: must be a whole number of 0 or more, not -1"),
        ("a", {"count": 1.5}, "count: must be a whole number of 0 or more, not 1.5"),
        ("a", {"bytes": "1MB"}, "bytes: must be a whole number of 0 or more, not '1MB'"),
        ("a", {"age_s": 0}, "age_s: must be more than 0 to"),
        ("a", {"age_s": "1d"}, "age_s: must be a number of seconds, not str"),
    ],
)
def test_wrong_limits_are_refused_and_nothing_changes(room: Room, channel: Any, limits: Any, problem: str) -> None:
    room.retention("kept", count=5)

    with pytest.raises(InvalidMessage, match=re.escape(problem)):
        room.retention(channel, **limits)
    assert list(room.retention()) == ["kept"]


def test_the_process_that_keeps_house_applies_the_limits_about_once_a_minute(room: Room, clock: ManualClock) -> None:
    upkeep = Upkeep(room.gateway)
    upkeep.round()
    finish(room, *["builds"] * 3)
    room.retention("builds", count=1)
    upkeep.round()
    assert len(kept(room)) == 3
    clock.advance(CHANNELS_S + 1)

    upkeep.round()

    assert len(kept(room)) == 1


def test_words_of_messages_that_a_channel_keeps_no_longer_are_not_found(room: Room) -> None:
    finish(room, *["builds"] * 3, text="needle")
    assert len(room.search("needle")) == 3
    room.retention("builds", count=1)
    retaining.apply(room.store)

    assert len(room.search("needle")) == 1


def test_an_asyncio_room_has_limits_too(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            assert list(await room.retention("builds", count=3)) == ["builds"]

    run(main())
