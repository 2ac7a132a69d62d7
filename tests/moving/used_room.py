"""A used room: messages in all states, a board, sessions, files, subscriptions; and all that one can see of a room."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from postroom.core.clock import SYSTEM
from postroom.core.crashpoints import die_at
from postroom.core.message import Draft, Message, check
from postroom.core.states import State
from postroom.mail.gateway import Gateway
from postroom.moving import rooms
from postroom.room import Room, open_even_if_moved
from postroom.stores.contract import Query, Want


def fill(room: Room, count: int, note: Path | None = None) -> None:
    """Bring a room into use, with about that many messages in all states but those that need a living process."""
    store = room.store
    store.subscribe("news", "bob")
    store.subscribe("news", "cy")
    drafts = [_draft(number) for number in range(count)]
    for start in range(0, count, 500):
        store.put(drafts[start : start + 500])
    store.put(
        [check(Draft(from_agent="ada", payload={"n": "news"}, channel="news", publish=True, idempotency_key="once"))]
    )
    for outcome in ("acked", "refused", "dead", "retry", "returned", "answered"):
        for delivery in store.claim(Want(agent="bob", lease_s=30, limit=max(1, count // 20))).deliveries:
            answer = check(Draft(from_agent="bob", to_agent="ada", payload={"n": "re"}, answer_to=delivery.message.id))
            puts = [answer] if outcome == "answered" else []
            store.settle(delivery.ticket, outcome, detail=f'it was "{outcome}"', delay_s=3600, puts=puts)
    store.claim(Want(agent="bob", lease_s=3600, limit=max(1, count // 20)))
    store.sweep()
    room.board.add("T1", title="first", payload={"deep": [1, {"a": None}]})
    room.board.add("T2", title="second", after=["T1"])
    room.board.add("T3", title="third")
    room.reserve(["src/**"], "bob", 3600, why="T1", transient=True)
    with room.session() as session:
        assert session.id
    if note is not None:
        room.agent("ada", transient=True).send("cy", {"file": room.attach(note)})


def _draft(number: int) -> Draft:
    draft = Draft(
        from_agent="ada",
        to_agent=None if number % 11 == 0 else "bob",
        payload={"n": number, "text": "ä" * (number % 40)} if number % 97 else {"n": number, "large": "x" * 9000},
        channel=("general", "jobs", "news")[number % 3],
        type=("review", "message")[number % 2],
        priority=1 + number % 10,
        ttl_s=None if number % 5 else 7200,
        delay_s=0 if number % 13 else 600,
        correlation_id=None if number % 4 else f"talk {number % 7}",
        idempotency_key=None if number % 6 else f"key {number}",
        hop_count=number % 3,
        trace=None if number % 8 else "00-trace",
    )
    return check(draft)


def seen(room: Room) -> dict[str, Any]:
    """All that a room holds, as it is after a move: nothing is claimed, and no process stands in it."""
    store = room.store
    messages = [store.get(message.id) for message in store.find_all(Query(limit=500))]
    return {
        "messages": [_plain(message) for message in messages if message is not None],
        "dead": [message.id for message in store.find_all(Query(states=frozenset({State.DEAD})))],
        "pending": {
            agent: [message.id for message in store.find(Query(visible_to=agent, states=frozenset({State.READY}),
                                                               order="claim", limit=100_000)).messages]
            for agent in ("ada", "bob", "cy")
        },
        "subscriptions": [(each.channel, each.agent) for each in store.subscriptions()],
        "tasks": [task._asdict() for task in room.board.tasks()],
        "reservations": [(each.globs, each.agent, each.why) for each in room.reservations()],
        "cells": {cell.name for cell in store.cell_scan("session:")},
    }  # fmt: skip


def _plain(message: Message) -> dict[str, Any]:
    told = {name: getattr(message, name) for name in message.__struct_fields__}
    for name in ("due_ms", "lease_until_ms"):  # told by the wall clock, to the millisecond of the look
        told[name] = told[name] is not None
    return told


def main() -> None:
    """Move a room, and die on the way: FROM TO POINT TIMES."""
    old, new, point, times = sys.argv[1:]
    if point:
        die_at(point, int(times))
    source, target = (open_even_if_moved(Gateway, each, True, SYSTEM, {}) for each in (old, new))
    with source, target:
        rooms.move(source, target, settle=lambda _: None)


if __name__ == "__main__":
    main()
