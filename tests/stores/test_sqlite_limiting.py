"""An empty claim in a limited SQLite room takes as many statements with hundreds of used-up keys as with a few."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft
from postroom.stores.contract import LIMITS, Want
from postroom.stores.gates import ChannelLimits, LimitRule, Limits, limits_cell
from postroom.stores.sqlite.store import SqliteStore


def draft(key: str, sender: str = "ada") -> Draft:
    return Draft(from_agent=sender, to_agent="bob", channel="c", payload=1, payload_json="1", order_key=key)


def used_up(folder: Path, clock: ManualClock, groups: int, *, by: str) -> SqliteStore:
    """A room with two messages of each sender or key, of which one was taken, as its rate allows: a hundredth a second."""
    store = SqliteStore(folder, Config(), clock)
    rule = LimitRule(by=by, per_s=0.01)
    store.cell_write(LIMITS, limits_cell(Limits({"c": ChannelLimits(rules=(rule,))})))
    for _ in range(2):
        named = [f"g{number}" for number in range(groups)]
        store.put([draft(name) if by == "order_key" else draft(name, name) for name in named])
    while store.claim(Want(agent="bob", lease_s=30, limit=100, settle=True)).deliveries:
        pass
    return store


def counted(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The statements that run from now on."""
    counts: Counter[str] = Counter()
    execute = store._file.execute

    def counting(name: str, bindings: Any = ()) -> Any:
        counts[name] += 1
        return execute(name, bindings)

    monkeypatch.setattr(store._file, "execute", counting)
    return counts


@pytest.mark.parametrize("by", ["order_key", "sender"])
def test_an_empty_claim_takes_as_many_statements_however_many_rates_are_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    took = []
    for groups in (120, 480):
        clock = ManualClock()
        store = used_up(tmp_path / f"{groups}", clock, groups, by=by)
        counts = counted(store, monkeypatch)
        assert store.claim(Want(agent="bob", lease_s=30)).deliveries == []
        took.append(counts.total())
        store.close()

    assert took[0] == took[1]


@pytest.mark.parametrize("by", ["order_key", "sender"])
def test_a_message_behind_many_whose_rates_are_used_up_is_found_and_the_first_rate_that_opens_is_told(
    tmp_path: Path, by: str
) -> None:
    clock = ManualClock()
    store = used_up(tmp_path / "room", clock, 200, by=by)
    clock.advance(40)
    claimed = store.claim(Want(agent="bob", lease_s=30))
    assert claimed.deliveries == []
    assert claimed.next_due_s == pytest.approx(60, abs=0.1)

    store.put([draft("free", "free")])
    (found,) = store.claim(Want(agent="bob", lease_s=30)).deliveries
    assert (found.message.from_agent, found.message.order_key) == ("free", "free")

    clock.advance(61)
    assert len(store.claim(Want(agent="bob", lease_s=30, limit=500)).deliveries) == 200
    store.close()
