"""The steps of a room's messages, on every store: none left out, none twice, also where the feed folds changes."""

from __future__ import annotations

from tests.support.watched_clock import WatchedClock

from postroom.mail.history import History, LoggedStep
from postroom.room import Room


def told(steps: list[LoggedStep]) -> list[tuple[str, str]]:
    return [(step.message.id, step.entry.event) for step in steps]


def busy(room: Room, clock: WatchedClock) -> list[tuple[str, str]]:
    """Three messages go their ways; returns what happened, in order."""
    ada, bob = room.agent("ada"), room.agent("bob")
    happened = []
    for text in ("one", "two", "three"):
        id = ada.send("bob", {"text": text})
        clock.advance(1)
        held = bob.poll()
        assert held is not None
        clock.advance(1)
        held.retry("again", delay_s=1)
        clock.advance(2)
        held = bob.poll()
        assert held is not None
        clock.advance(1)
        held.ack()
        happened += [(id, event) for event in ("stored", "claimed", "retried", "claimed", "acked")]
        clock.advance(600)
    return happened


def test_the_past_has_every_step_in_order(room: Room, clock: WatchedClock) -> None:
    happened = busy(room, clock)
    now_ms = clock.wall_ms()

    def past(since_ms: int | None, limit: int | None) -> tuple[list[tuple[str, str]], bool]:
        steps, more = History(room.gateway).past(since_ms, limit, lambda _: True)
        return told(steps), more

    assert past(None, None) == (happened, False)
    assert past(None, 7) == (happened[-7:], True)
    assert past(None, 15) == (happened, False)
    assert past(now_ms - 606_000, None) == (happened[10:], False)
    assert past(now_ms - 604_500, None) == (happened[11:], False)
    assert past(now_ms, None) == ([], False)


def test_what_follows_the_past_is_told_once(room: Room, clock: WatchedClock) -> None:
    before = busy(room, clock)
    history = History(room.gateway)
    assert told(history.past(None, None, lambda _: True)[0]) == before

    after = busy(room, clock)
    followed = [step for change in room.watch(after=history.number, timeout_s=0) for step in history.after(change)]

    assert sorted(told(followed)) == sorted(after)
    assert [step.entry.time_ms for step in followed if step.message.id == after[0][0]] == sorted(
        step.entry.time_ms for step in followed if step.message.id == after[0][0]
    )
