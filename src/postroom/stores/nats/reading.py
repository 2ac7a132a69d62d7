"""Looking at a room on NATS: lists and figures from what is known here, the feed straight from the stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

from postroom.core.message import Message, MessageWithLedger
from postroom.core.states import FINISHED, PUBLIC_NAME, State
from postroom.stores import contract
from postroom.stores.contract import Change, Page, Query, Stats, WorkDone
from postroom.stores.rules import check_word, figures, matches, work_done

from .cells import archive_of, tally_of
from .entries import Entry, Kept, ledger_of
from .following import ARCHIVE, OPEN_PART
from .room import NatsRoom, stream_settings, told_ms
from .tables import IndexedEntry

_LOOKS = 5


def get(room: NatsRoom, id: str) -> MessageWithLedger | None:
    """One message with its ledger, as the leader knows it."""
    kept = room.read(id)
    if kept is None:
        return None
    return room.show(MessageWithLedger, [kept], room.gone_owners([kept]))[0].fill(ledger_of(kept.entry))


def find(room: NatsRoom, query: Query, cursor: int | None = None) -> Page:
    """List messages."""
    check_word("order", query.order, contract.ORDERS)
    know_for(room, query)
    gone = room.gone_owners()
    with room.follower.lock:
        found = [row.kept for row in islice(matching(room, query, cursor, gone), query.limit + 1)]
    more = len(found) > query.limit > 0 and query.order != "claim"
    found = found[: query.limit]
    return Page(room.show(Message, found, gone), found[-1].first if more else None)


def know_for(room: NatsRoom, query: Query) -> None:
    """Know what a query may find."""
    if query.states is not None and not query.states & FINISHED:
        room.follower.know(OPEN_PART)
    else:
        room.follower.know(OPEN_PART, ARCHIVE)


def matching(
    room: NatsRoom, query: Query, cursor: int | None, gone: Container[str | None] = ()
) -> Iterator[IndexedEntry]:
    """The rows that a query asks for, in its order, after (or, newest first, before) the cursor."""
    rows = room.tables.in_order(None if query.order == "claim" else cursor, newest=query.order == "newest")
    if query.order == "claim":
        rows = iter(sorted(rows, key=lambda row: (-row.kept.entry.priority, row.kept.first)))
    state = _judge(room, gone)
    return (row for row in rows if matches(query, row.kept.entry, row.kept.entry, state))


def _judge(room: NatsRoom, gone: Container[str | None]) -> Callable[[Entry], State]:
    """How entries are seen at this moment: by the clock, and what `gone` processes hold is free."""
    now_ms = room.now_ms()
    return lambda entry: entry.judged(now_ms, gone=entry.state == State.CLAIMED and entry.owner in gone)


def events(room: NatsRoom, after: int = 0, limit: int = 1000) -> list[Change]:
    """The feed: the newest entry of each message that changed since, in the order of the changes."""
    kepts: list[Kept] = []
    position, until = after + 1, math.inf
    while len(kepts) < limit and position <= until:
        first = room.wire.run(room.wire.next(position, "m.>"))  # the leader: others may lag
        if first is None:
            break
        if position > after + 1 and until == math.inf:
            until = room.follower.last_number()  # there may always be more: the next call tells of it
        found, _ = room.wire.run(room.wire.page(first.seq, "m.>", min(500, limit - len(kepts))))
        for entry in found or [first]:
            position = entry.seq + 1
            kept = room.kept_of(entry)  # known here from now on: a reader that is told of it need not hear of it
            there = [] if kept is None else [each for each in (kept, kept.answer) if each is not None]
            kepts += [each for each in there if not 0 < each.entry.number <= after]  # else its change was told before
    changes = []
    for kept, message in zip(kepts, room.show(Message, kepts, room.gone_owners(kepts)), strict=True):
        lines = [kept.entry.ledger[-1]]
        if after < kept.first < kept.seq:  # stored since, and changed: both are told, under one number
            lines.insert(0, kept.entry.ledger[0])
        changes += [Change(kept.seq, line.event, line.time_ms, line.agent, line.detail, message) for line in lines]
    return changes


def number_at(room: NatsRoom, wall_ms: int | None = None) -> int:
    """The feed's number at a moment of the wall clock."""
    last = room.follower.last_number()
    if wall_ms is None:
        return last
    room.follower.know(OPEN_PART, ARCHIVE)
    changed = ((kept.entry.number or kept.seq, kept.entry.ledger[-1].time_ms) for kept in room.known())
    later = [number for number, time_ms in changed if time_ms > wall_ms]
    return min(later) - 1 if later else last


def stats(room: NatsRoom) -> Stats:
    """Figures of this moment."""
    room.follower.know(OPEN_PART)
    answer = room.wire.info()
    state = _judge(room, room.gone_owners())
    entries = [kept.entry for kept in room.known() if not kept.entry.archived]
    archive, _ = archive_of(room)
    about = {
        "kind": "nats",
        "stream": room.wire.stream,
        "messages": len(entries) + sum(archive.counts.values()),
        "changes": answer["state"]["last_seq"],
        "bytes": answer["state"]["bytes"],
        "copies": answer["config"]["num_replicas"],
        "leader": answer.get("cluster", {}).get("leader"),
        "server_version": room.wire.connection.client.server.get("version"),
    }
    stats = figures(((state(each), each.to_agent, each.channel, each.timestamp_ms) for each in entries), about)
    for number, count in archive.counts.items():
        stats.states[PUBLIC_NAME[State(int(number))]] += count
    return stats


def servers_report(room: NatsRoom) -> dict[str, Any]:
    """The servers' report of a room and of themselves."""

    def look() -> tuple[float, int, dict[str, Any]]:
        before_ns = room.clock.steady_ns()
        answer = room.wire.info()
        return (room.clock.steady_ns() - before_ns) / 1_000_000, room.clock.wall_ms(), answer

    # the quickest tells the distance; others waited for something else
    took_ms, heard_ms, answer = min((look() for _ in range(_LOOKS)), key=itemgetter(0))
    account = room.wire.run(room.wire.api("INFO"))
    config, state, cluster = answer["config"], answer["state"], answer.get("cluster", {})
    wanted = stream_settings(room.name, config["num_replicas"]) | {"max_msgs": -1, "max_bytes": -1, "max_age": 0}
    differences = {
        name: (config.get(name), value)
        for name, value in wanted.items()
        if name != "metadata" and config.get(name) != value
    }
    return {
        "version": room.wire.connection.client.server.get("version"),
        "copies": config["num_replicas"],
        "leader": cluster.get("leader"),
        "others": cluster.get("replicas") or [],
        "differences": differences,
        "entries": state["messages"],
        "bytes": state["bytes"],
        "account_bytes": account.get("storage", 0),
        "account_limit_bytes": account.get("limits", {}).get("max_storage", -1),
        "clock_apart_s": (heard_ms - took_ms / 2 - told_ms(answer["ts"])) / 1000,
        "round_trip_ms": took_ms,
    }


def work_of(room: NatsRoom, agent: str) -> WorkDone:
    """The work of an agent, counting also messages that are no longer kept."""
    room.follower.know(OPEN_PART)
    states = [kept.state for kept in room.known() if kept.entry.claimed_by == agent and not kept.entry.archived]
    gone, _ = tally_of(room, agent)
    return work_done(states, gone)
