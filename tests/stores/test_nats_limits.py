"""Limits on NATS beyond the contract: processes that hear nothing of each other, lost replies, and older programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.support.nats_servers import room_name, shared_server
from tests.support.patience import until

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.errors import MailboxFull, RoomDamaged
from postroom.stores.contract import LIMITS, Delivery, Want, topic_to
from postroom.stores.gates import ChannelLimits, LimitRule, Limits, limits_cell
from postroom.stores.nats import gated
from postroom.stores.nats import room as room_module
from postroom.stores.nats.entries import decode_gate, gate_subject
from postroom.stores.nats.limits import LIMITS_SUBJECT
from postroom.stores.nats.room import LAYOUT
from postroom.stores.nats.store import NatsStore
from postroom.stores.nats.wire import Committed, IsMine, StoredEntry, Write
from postroom.testing.workbench import gone_process

pytestmark = pytest.mark.slow

Opener = Callable[[], NatsStore]
AGENTS = ("bob", "eve")


@pytest.fixture
def open_store(clock: ManualClock) -> Iterator[Opener]:
    """Opens one room, as often as it is called."""
    url = parse_url(f"nats://{shared_server().address}/{room_name()}")
    opened: list[NatsStore] = []

    def open_one() -> NatsStore:
        opened.append(NatsStore(url, Config(), clock))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def deaf(open_store: Opener, monkeypatch: pytest.MonkeyPatch) -> tuple[NatsStore, NatsStore]:
    """The room, opened twice; both have looked for mail, and hear nothing of the servers' hints.

    Each has its own mail: else the replacing of one and the same message would tell them of each other.
    """
    one, other = open_store(), open_store()
    for store in (one, other):
        claim(store)
        claim(store, agent="eve")
        monkeypatch.setattr(store._room.follower, "_heard", lambda *_: None)
    return one, other


def limit(store: NatsStore, *rules: LimitRule, **fields: Any) -> None:
    store.cell_write(LIMITS, limits_cell(Limits({"jobs": ChannelLimits(rules, **fields)})))


def job(**fields: Any) -> Draft:
    return check(Draft(**{"from_agent": "ada", "to_agent": None, "channel": "jobs", "payload": {}, **fields}))


def claim(store: NatsStore, limit: int = 1000, **fields: Any) -> list[Delivery]:
    want = {"agent": "bob", "lease_s": 30.0, "channels": ("jobs",), "limit": limit, **fields}
    return store.claim(Want(**want)).deliveries


def learn_of_limits(clock: ManualClock) -> None:
    """Let so much time pass that processes look at the limits again."""
    clock.advance(2.1)


def fill(deaf: tuple[NatsStore, NatsStore], count: int) -> None:
    """So many messages for each, which it knows for having put them."""
    for store, agent in zip(deaf, AGENTS, strict=True):
        store.put([job(to_agent=agent) for _ in range(count)])


def take_turns(deaf: tuple[NatsStore, NatsStore], turns: int) -> list[Delivery]:
    """Both claim one of their own, again and again."""
    return [delivery for turn in range(turns) for delivery in claim(deaf[turn % 2], 1, agent=AGENTS[turn % 2])]


def test_claimers_that_hear_nothing_of_each_other_do_not_pass_a_limit_together(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock
) -> None:
    limit(deaf[0], LimitRule(concurrent=3))
    fill(deaf, 9)
    learn_of_limits(clock)

    came = take_turns(deaf, 8)
    assert len(came) == 3

    deaf[1].settle(came[1].ticket, "acked")
    assert len(claim(deaf[1], agent="eve")) == 1
    assert take_turns(deaf, 2) == []


def test_a_gate_that_does_not_list_all_claims_hides_none_of_them(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock
) -> None:
    one, other = deaf
    limit(one, LimitRule(concurrent=101))
    fill(deaf, 110)
    learn_of_limits(clock)
    assert len(claim(other, 1, agent="eve")) == 1

    assert len(claim(one)) == 100

    gate = one._room.wire.last_now(gate_subject("jobs"))
    assert gate is not None
    assert len(decode_gate(gate.data).claims) < 101
    assert claim(other, agent="eve") == []


def test_claims_from_before_a_limit_count_also_where_nobody_heard_of_them(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock
) -> None:
    one, other = deaf
    fill(deaf, 3)
    limit(one, LimitRule(concurrent=2))
    assert len(claim(one, 1)) == 1
    assert len(claim(other, agent="eve")) == 3  # it has not heard of the limit

    limit(one, LimitRule(concurrent=4))

    assert claim(one) == []


def test_a_gate_forgets_claims_that_have_ended(open_store: Opener) -> None:
    store = open_store()
    limit(store, LimitRule(concurrent=2))
    store.put([job() for _ in range(12)])

    for _ in range(10):
        (delivery,) = claim(store, 1)
        store.settle(delivery.ticket, "acked")

    gate = store._room.wire.last_now(gate_subject("jobs"))
    assert gate is not None
    assert len(decode_gate(gate.data).claims) == 1


def gate_of(store: NatsStore, channel: str = "jobs") -> bytes | None:
    found = store._room.wire.last_now(gate_subject(channel))
    return None if found is None else found.data


def forget_deletions(store: NatsStore) -> None:
    """Let the servers forget that the gate was deleted, as they do after a while."""
    wire = store._room.wire
    wire.run(wire.api(f"STREAM.PURGE.{wire.stream}", filter=f"pr.{store._room.name}.{gate_subject('jobs')}"))
    assert gate_of(store) is None


def test_a_sweep_deletes_the_gates_of_channels_without_a_concurrency_limit_and_no_others(open_store: Opener) -> None:
    store = open_store()
    at_once = ChannelLimits((LimitRule(concurrent=1),))
    store.cell_write(LIMITS, limits_cell(Limits({"jobs": at_once, "other": at_once, "third": at_once})))
    for channel in ("jobs", "other", "third"):
        store.put([job(channel=channel)])
        assert len(claim(store, channels=(channel,))) == 1

    rate = ChannelLimits((LimitRule(per_s=1),))
    store.cell_write(LIMITS, limits_cell(Limits({"jobs": rate, "other": at_once})))
    store.sweep()

    assert (gate_of(store), gate_of(store, "third")) == (b"", b"")
    assert gate_of(store, "other")


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_a_limit_that_comes_back_holds_among_claimers_that_know_the_gate_from_before_it_was_deleted(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock, forgotten: bool, learned: bool
) -> None:
    one = deaf[0]
    limit(one, LimitRule(concurrent=4))
    fill(deaf, 9)
    learn_of_limits(clock)
    assert len(take_turns(deaf, 3)) == 3  # both know the gate, and one of them a claim of which the other does not

    one.cell_write(LIMITS, None)
    one.sweep()
    assert gate_of(one) == b""
    if forgotten:
        forget_deletions(one)
    limit(one, LimitRule(concurrent=4))
    assert len(claim(one, 1)) == 1
    if learned:
        learn_of_limits(clock)

    assert take_turns(deaf, 4) == []


def test_a_gate_that_is_used_while_a_sweep_would_delete_it_stays(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_store(), open_store()
    limit(one, LimitRule(concurrent=2))
    one.put([job() for _ in range(3)])
    assert len(claim(one, 1)) == 1
    one.cell_write(LIMITS, None)
    commit, deleted = one._room.wire.commit, list[str]()

    def too_late(writes: Sequence[Write], *args: Any, **more: Any) -> Any:
        if writes[0].subject == gate_subject("jobs"):
            deleted.append(writes[0].subject)
            limit(other, LimitRule(concurrent=2))
            assert len(claim(other)) == 1
        return commit(writes, *args, **more)

    monkeypatch.setattr(one._room.wire, "commit", too_late)
    one.sweep()

    assert len(deleted) == 1
    assert gate_of(one)


def test_a_rate_holds_among_claimers_that_hear_nothing_of_each_other(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock
) -> None:
    limit(deaf[0], LimitRule(per_s=1, burst=2))
    fill(deaf, 9)
    learn_of_limits(clock)

    assert len(take_turns(deaf, 6)) == 2
    clock.advance(1)
    assert len(take_turns(deaf, 6)) == 1


def test_a_late_holder_that_has_not_heard_of_its_end_does_not_extend_past_the_limit(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock
) -> None:
    one, other = deaf
    limit(one, LimitRule(concurrent=1))
    one.put([job(priority=1)])
    learn_of_limits(clock)
    (late,) = claim(one, lease_s=5.0)
    one.put([job()])
    clock.advance(6)
    (taken,) = claim(other)
    assert taken.message.id != late.message.id

    assert one.heartbeat([late.ticket], 30) == [late.ticket]
    assert not one.extend(late.ticket, 30)
    other.settle(taken.ticket, "acked")
    assert one.heartbeat([late.ticket], 30) == []
    assert claim(other) == []


def test_who_has_heard_of_no_limit_learns_of_it_in_two_seconds(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock
) -> None:
    one, other = deaf
    other.put([job() for _ in range(9)])
    limit(one, LimitRule(concurrent=1), waiting=9)
    assert len(claim(other, 2)) == 2
    assert len(other.put([job()])) == 1

    learn_of_limits(clock)

    assert claim(other) == []
    with pytest.raises(MailboxFull):
        other.put([job(), job()])


def test_a_claim_with_an_end_takes_no_more_than_the_limit_allows(open_store: Opener) -> None:
    store = open_store()
    limit(store, LimitRule(concurrent=2))
    store.put([job() for _ in range(9)])
    (first, _) = claim(store)

    settled = store.settle(
        first.ticket, "acked", claim_next=Want(agent="bob", lease_s=30.0, channels=("jobs",), limit=9)
    )

    assert settled.claimed is not None
    assert len(settled.claimed.deliveries) == 1


def test_a_claim_by_id_takes_what_a_process_held_of_which_nobody_has_noticed_yet_that_it_is_gone(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    limit(store, LimitRule(concurrent=1))
    (id,) = store.put([job()])
    assert len(claim(store, 1, owner=gone_process())) == 1
    monkeypatch.setattr(store._room, "bury_the_gone", lambda: None)

    (delivery,) = claim(store, ids=(id,))

    assert [line.event for line in store.get(id).ledger] == ["stored", "claimed", "released", "claimed"]  # type: ignore[union-attr]
    assert store.settle(delivery.ticket, "acked").held


def test_a_claim_whose_reply_was_lost_counts_and_is_given(open_store: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    limit(store, LimitRule(concurrent=2), LimitRule(per_s=1, burst=2))
    store.put([job() for _ in range(3)])
    wire, commit = store._room.wire, store._room.wire.commit_now

    def lose_the_reply(writes: Sequence[Write], is_mine: IsMine, *, is_send: bool = False) -> Committed:
        commit(writes, is_mine, is_send=is_send)
        return Committed([], wire.last_now(writes[0].subject))

    monkeypatch.setattr(wire, "commit_now", lose_the_reply)
    assert len(claim(store, 1)) == 1
    monkeypatch.undo()
    (delivery,) = claim(store)
    assert claim(open_store()) == []
    assert store.settle(delivery.ticket, "acked").held


def test_a_claim_in_a_room_without_limits_asks_nothing_of_the_servers_about_them(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.put([job() for _ in range(5)])
    claim(store, 1)
    asked: list[str] = []
    last_now = store._room.wire.last_now

    def note(subject: str) -> StoredEntry | None:
        asked.append(subject)
        return last_now(subject)

    monkeypatch.setattr(store._room.wire, "last_now", note)

    for _ in range(4):
        (delivery,) = claim(store, 1)
        store.settle(delivery.ticket, "acked")
    store.put([job()])

    assert LIMITS_SUBJECT not in asked


def test_a_claimer_that_lost_a_race_pauses_and_reads_nothing_that_it_has_heard_of(
    open_store: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_store(), open_store()
    limit(one, LimitRule(concurrent=2))
    one.put([job() for _ in range(9)])
    assert len(claim(other, 1)) == 1
    commit, pauses, tries = one._room.commit, list[float](), list[int]()

    def lose_the_race(writes: Sequence[Write], name: str) -> Committed:
        tries.append(len(writes))
        if len(tries) == 1:
            (faster,) = claim(other, 1)
            until(lambda: one._room.tables.rows[faster.message.id].kept.state is State.CLAIMED)
            gate = other._room.limits.gates[gate_subject("jobs")]
            until(lambda: one._room.limits.gates[gate_subject("jobs")] == gate)
            clock.advance(0.01)
        return commit(writes, name)

    monkeypatch.setattr(one._room, "commit", lose_the_race)
    monkeypatch.setattr(one._room.wire, "pause", pauses.append)
    monkeypatch.setattr(gated, "_look_anew", lambda *_: pytest.fail("it was heard of"))

    assert claim(one, 1) == []

    assert tries == [2]
    assert [0 <= pause_s < 0.04 for pause_s in pauses] == [True]


def test_a_claim_by_id_that_lost_a_race_of_which_it_heard_nothing_is_made_anew(
    deaf: tuple[NatsStore, NatsStore], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = deaf
    limit(one, LimitRule(concurrent=2))
    ids = other.put([job(to_agent="eve"), job(to_agent="eve")])
    learn_of_limits(clock)
    commit, tries = one._room.commit, list[int]()

    def lose_the_race(writes: Sequence[Write], name: str) -> Committed:
        tries.append(len(writes))
        if len(tries) == 1:
            assert len(claim(other, agent="eve", ids=(ids[0],))) == 1
        return commit(writes, name)

    monkeypatch.setattr(one._room, "commit", lose_the_race)

    assert [delivery.message.id for delivery in claim(one, agent="eve", ids=(ids[1],))] == [ids[1]]
    assert tries == [2, 2]


def test_a_room_whose_limits_have_gone_counts_for_none_and_counts_right_when_they_come_back(
    open_store: Opener, clock: ManualClock
) -> None:
    store = open_store()
    store.put([job() for _ in range(9)])
    assert len(claim(store, 2)) == 2
    assert store._room.tables._counts is None

    limit(store, LimitRule(concurrent=3))
    assert len(claim(store)) == 1
    assert store._room.tables._counts is not None

    store.cell_write(LIMITS, None)
    learn_of_limits(clock)
    assert len(claim(store, 2)) == 2
    assert store._room.tables._counts is None

    limit(store, LimitRule(concurrent=6))
    assert len(claim(store)) == 1


def test_a_claimer_of_other_channels_is_woken_by_nothing_that_ends_in_a_limited_one(open_store: Opener) -> None:
    store = open_store()
    limit(store, LimitRule(concurrent=1))
    store.put([job(), job(), job(to_agent="eve", channel="other")])
    (delivery,) = claim(store)

    with store.listen([topic_to("eve")]) as waiter:
        store.settle(delivery.ticket, "acked")
        assert not waiter.wait(0)


def test_a_room_gets_the_layout_of_limits_with_its_first_limit_and_older_programs_no_longer_open_it(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = open_store()._room.wire

    def layout() -> object:
        return wire.info()["config"]["metadata"]["postroom"]

    config = wire.info()["config"]
    config["metadata"]["postroom"] = "2"
    assert "error" not in wire.run(wire.api(f"STREAM.UPDATE.{wire.stream}", **config))
    store = open_store()
    store.put([job(), job(order_key="k")])
    store.cell_write(LIMITS, None)
    assert layout() == "2"

    store.cell_write(LIMITS, {"agents": {"bob": {"by": "ada", "since_ms": 0}}})

    assert layout() == str(LAYOUT)
    monkeypatch.setattr(room_module, "LAYOUT", 2)
    with pytest.raises(RoomDamaged, match=f"layout {LAYOUT}, and this Postroom reads layouts up to 2"):
        open_store()
