"""A room on NATS in which others write all the time: whoever looks or claims is done all the same, and misses nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from itertools import cycle
from typing import Any

import msgspec
import pytest
from tests.support.nats_servers import room_name, shared_server
from tests.support.patience import until

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, check
from postroom.stores.contract import Query, Want
from postroom.stores.nats.entries import CellDoc, cell_subject
from postroom.stores.nats.putting import WritePlan
from postroom.stores.nats.room import NatsRoom
from postroom.stores.nats.store import NatsStore
from postroom.stores.nats.wire import StoredEntry, Write

pytestmark = pytest.mark.slow

WANT = Want(agent="bob", lease_s=30)
#: Others stop then, so that who would never end fails instead.
MOST_WRITES = 100


@pytest.fixture
def pair(clock: ManualClock) -> Iterator[tuple[NatsStore, NatsStore]]:
    """One who looks, and another who writes."""
    url = parse_url(f"nats://{shared_server().address}/{room_name()}")
    one, other = NatsStore(url, Config(), clock), NatsStore(url, Config(), clock)
    yield one, other
    one.close()
    other.close()


def letter(**fields: Any) -> Draft:
    return check(Draft(from_agent="ada", to_agent="bob", payload={"text": "hi"}, **fields))


def mail(room: NatsRoom) -> list[Write]:
    plan = WritePlan(room, room.moment(), {})
    plan.add([letter()])
    return plan.writes


def cell(room: NatsRoom, name: str) -> list[Write]:
    doc = CellDoc(name, msgspec.Raw(b"1"), room.moment().write)
    return [Write(cell_subject(name), msgspec.json.encode(doc))]


def write_before_each_request(
    one: NatsStore, other: NatsStore, monkeypatch: pytest.MonkeyPatch, writes: Callable[[NatsRoom], list[Write]]
) -> list[str]:
    """Whenever one asks the servers for something, the other has just written something more. What is asked is listed."""
    asked: list[str] = []
    wire = one._room.wire

    def beside(name: str) -> None:
        ask = getattr(wire, name)

        async def ask_a_little_later(*words: Any, **fields: Any) -> Any:
            asked.append(name)
            if len(asked) <= MOST_WRITES:
                await other._room.wire.commit(writes(other._room), lambda _: False)
            return await ask(*words, **fields)

        monkeypatch.setattr(wire, name, ask_a_little_later)

    for name in ("api", "page"):
        beside(name)
    return asked


LOOKS: dict[str, Callable[[NatsStore], object]] = {
    "claim": lambda store: store.claim(WANT).deliveries,
    "find": lambda store: store.find(Query()).messages,
    "stats": lambda store: store.stats().mailboxes,
    "events": lambda store: store.events(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_is_done_though_mail_comes_all_the_time(
    pair: tuple[NatsStore, NatsStore], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    one, other = pair
    other.put([letter()])
    asked = write_before_each_request(one, other, monkeypatch, mail)

    assert LOOKS[look](one)

    assert len(asked) < 15


def test_cells_that_are_written_all_the_time_are_listed_with_the_others(
    pair: tuple[NatsStore, NatsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They move to the end with every write, away from whoever reads page by page."""
    one, other = pair
    names = [f"a/{number}" for number in range(9)]
    for name in names:
        other.cell_write(name, 1)
    page, turns = one._room.wire.page, cycle(names[2:6])
    monkeypatch.setattr(one._room.wire, "page", lambda seq, pattern: page(seq, pattern, 3))
    asked = write_before_each_request(one, other, monkeypatch, lambda room: cell(room, next(turns)))

    assert [found.name for found in one.cell_scan("a/")] == names

    assert len(asked) < 15


# A receiver that always has something to do


@pytest.mark.parametrize("way", ["claim", "settle and claim"])
@pytest.mark.parametrize("knows", ["its box", "the whole room"])
def test_who_has_enough_to_do_learns_what_came_while_the_connection_was_away(
    pair: tuple[NatsStore, NatsStore], way: str, knows: str
) -> None:
    """The clock stands still, so no safety look can help."""
    one, other = pair
    other.put([letter() for _ in range(3)])
    if knows == "the whole room":
        one.stats()
    (held,) = one.claim(WANT).deliveries
    wire, follower = one._room.wire, one._room.follower
    for unsubscribe in follower._subscriptions.values():  # what comes now is not heard of
        wire.run(unsubscribe())
    (urgent,) = other.put([letter(priority=9)])
    wire.connection.link.hand_over(wire.connection._lost_hints)  # as after a reconnect
    until(lambda: wire.connection.losses > 0, "no new connection was made")

    claimed = one.claim(WANT) if way == "claim" else one.settle(held.ticket, "acked", claim_next=WANT).claimed

    assert claimed is not None
    assert [delivery.message.id for delivery in claimed.deliveries] == [urgent]


def test_who_has_enough_to_do_asks_the_servers_for_nothing_while_nothing_is_lost(
    pair: tuple[NatsStore, NatsStore], monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    one, other = pair
    other.put([letter() for _ in range(20)])
    (held,) = one.claim(WANT).deliveries
    asked = write_before_each_request(one, other, monkeypatch, mail)

    for _ in range(9):
        clock.advance(6)
        (ticket,) = [delivery.ticket for delivery in one.claim(WANT).deliveries]
        one.settle(ticket, "acked")
        claimed = one.settle(held.ticket, "acked", claim_next=WANT).claimed
        assert claimed is not None
        (held,) = claimed.deliveries

    assert asked == []


# Servers that lag

Pages = Callable[..., Coroutine[Any, Any, tuple[list[StoredEntry], bool]]]


def lagging(page: Pages, up_to: Callable[[], int]) -> Pages:
    """Pages of a server that knows nothing beyond that sequence."""

    async def lagging_page(*words: Any) -> tuple[list[StoredEntry], bool]:
        entries, more = await page(*words)
        known = [entry for entry in entries if entry.seq <= up_to()]
        return known, more and len(known) == len(entries)

    return lagging_page


def test_what_a_server_lacks_that_lags_for_ever_is_asked_of_the_leader(
    pair: tuple[NatsStore, NatsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    ids = other.put([letter() for _ in range(5)])
    known = other.number_at() - 3
    monkeypatch.setattr(one._room.wire, "page", lagging(one._room.wire.page, lambda: known))

    assert [message.id for message in one.find(Query()).messages] == ids


@pytest.mark.parametrize("behind", [1, 4, 8])
def test_a_server_that_always_lags_a_little_is_enough_though_mail_comes_all_the_time(
    pair: tuple[NatsStore, NatsStore], monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    one, other = pair
    ids = other.put([letter() for _ in range(9)])
    last = other.number_at()
    monkeypatch.setattr(one._room.wire, "page", lagging(one._room.wire.page, lambda: last + len(asked) - behind))
    asked = write_before_each_request(one, other, monkeypatch, mail)

    found = [message.id for message in one.find(Query()).messages]

    assert found[: len(ids)] == ids
    assert len(asked) < 25


@pytest.mark.parametrize(
    "first_page",
    [
        pytest.param(lambda before, now: (now[:2], True), id="another that had more was read before"),
        pytest.param(lambda before, now: (before[:1], False), id="it lagged even more before"),
    ],
)
def test_what_moved_to_the_end_is_not_missed_where_a_server_does_not_know_of_it(
    pair: tuple[NatsStore, NatsStore],
    monkeypatch: pytest.MonkeyPatch,
    first_page: Callable[[list[StoredEntry], list[StoredEntry]], tuple[list[StoredEntry], bool]],
) -> None:
    """The second cell is written anew while the first page is read; who gives the second page does not know that yet."""
    one, other = pair
    names = [f"a/{number}" for number in range(4)]
    for name in names:
        other.cell_write(name, 1)
    wire, page = one._room.wire, one._room.wire.page
    before, _ = wire.run(page(1, "c.>"))
    pages = 0

    async def next_page(seq: int, pattern: str) -> tuple[list[StoredEntry], bool]:
        nonlocal pages
        pages += 1
        if pages == 1:
            await other._room.wire.commit(cell(other._room, names[1]), lambda _: False)
            return first_page(before, (await page(seq, pattern))[0])
        if pages == 2:
            return [found for found in before if found.seq >= seq], False
        return await page(seq, pattern)

    monkeypatch.setattr(wire, "page", next_page)

    assert [found.name for found in one.cell_scan("a/")] == names
