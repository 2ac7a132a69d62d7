"""What the clock does: leases, gone processes, delays, expiry; and what it must not do when somebody sets it."""

from __future__ import annotations

import threading

import pytest

from postroom.core.states import State
from postroom.core.system.process import this_process
from postroom.stores.contract import FEED, Query, Waiter, topic_to

from .workbench import StoreBench, gone_process, needs, together

JUMPS = pytest.mark.parametrize("jump_s", [-3600, 3600])


class Timing(StoreBench):
    """Room time: only forward, the same for all, whatever the wall clock does."""

    # Leases

    def test_when_a_lease_ends_another_may_take_the_message(self) -> None:
        id = self.send(None, channel="work")
        self.take("bob", channels=("work",), lease_s=10)
        self.clock.advance(9.9)
        assert self.claim("eve", channels=("work",)) == []

        self.clock.advance(0.1)
        delivery = self.take("eve", channels=("work",))

        assert (delivery.message.id, delivery.message.delivery_count, delivery.message.claimed_by) == (id, 2, "eve")
        assert self.events_of(id) == ["stored", "claimed", "released", "claimed"]
        assert "lease" in str(self.read(id).ledger[2].detail)

    @pytest.mark.parametrize("extend", [False, True])
    def test_a_late_receiver_may_still_settle_or_extend_while_nobody_else_has_the_message(self, extend: bool) -> None:
        id = self.send()
        ticket = self.take(lease_s=10).ticket
        self.clock.advance(60)
        assert self.state(id) is State.READY

        if extend:
            assert self.store.extend(ticket, 10) is True
            assert self.state(id) is State.CLAIMED
            assert self.claim() == []
        assert self.ack(ticket).held is True
        assert self.state(id) is State.ACKED
        assert self.claim() == []

    def test_a_look_by_others_takes_nothing_from_a_late_receiver(self) -> None:
        """Letting a message go (a sweep, a claim of other mail) does not make its ticket stale; taking it does."""
        id = self.send("bob")
        self.send("eve")
        ticket = self.take("bob", lease_s=10).ticket
        self.clock.advance(11)
        self.store.sweep()
        self.take("eve")

        assert self.ack(ticket).held is True
        assert self.state(id) is State.ACKED

    def test_a_message_whose_last_delivery_ran_out_is_dead(self) -> None:
        id = self.send(max_deliveries=2)
        for _ in range(2):
            self.take(lease_s=10)
            self.clock.advance(11)
        assert self.state(id) is State.DEAD

        assert self.claim() == []

        message = self.read(id)
        assert (message.exact_state, message.delivery_count) == (State.DEAD, 2)
        assert "lease ended" in str(message.error)
        assert self.events_of(id) == ["stored", "claimed", "released", "claimed", "dead"]
        assert self.found(states=frozenset({State.DEAD})) == [id]

    # Owners

    def test_what_a_gone_process_held_is_given_to_another(self) -> None:
        id = self.send(None, channel="work")
        self.take("bob", channels=("work",), lease_s=600, owner=gone_process())
        self.clock.advance(1)

        delivery = self.take("eve", channels=("work",))

        assert (delivery.message.id, delivery.message.delivery_count) == (id, 2)
        assert "process is gone" in str(self.read(id).ledger[2].detail)

    def test_what_a_gone_process_held_for_the_last_time_is_dead(self) -> None:
        id = self.send(max_deliveries=1)
        self.take(lease_s=600, owner=gone_process())
        self.clock.advance(1)

        assert self.claim() == []
        assert self.state(id) is State.DEAD
        assert "process is gone" in str(self.read(id).error)

    def test_a_look_sees_at_once_that_a_gone_process_holds_nothing(self) -> None:
        again, last, in_channel = self.send(), self.send(max_deliveries=1), self.send(None, channel="work")
        late = self.send(ttl_s=5)
        self.claim(ids=(again, last, in_channel, late), lease_s=600, owner=gone_process())
        self.clock.advance(6)
        states = {again: State.READY, last: State.DEAD, in_channel: State.READY, late: State.EXPIRED}
        numbers = [change.number for change in self.store.events()]

        assert {id: self.state(id) for id in states} == states
        assert {message.id: message.exact_state for message in self.store.find(Query()).messages} == states
        assert {change.message.id: change.message.exact_state for change in self.store.events()} == states
        assert (self.read(again).owner, self.read(again).lease_until_ms) == (None, None)
        for state in (State.CLAIMED, State.READY, State.DEAD, State.EXPIRED):
            assert self.found(states=frozenset({state})) == [id for id in states if states[id] is state]
            assert self.store.count(Query(states=frozenset({state}))) == [*states.values()].count(state)
        assert self.found(states=frozenset({State.CLAIMED}), claimed_by="bob") == []
        ready = {"visible_to": "bob", "states": frozenset({State.READY}), "order": "claim"}
        assert self.found(**ready) == [again]
        assert self.found(channels=("work",), **ready) == [in_channel]
        stats = self.store.stats()
        assert {word: count for word, count in stats.states.items() if count} == {"stored": 2, "dead": 1, "expired": 1}
        boxes = [(box.to_agent, box.channel, box.depth) for box in stats.mailboxes]
        assert boxes == [(None, "work", 1), ("bob", "general", 1)]
        # looking has changed nothing
        assert {tuple(self.events_of(id)) for id in states} == {("stored", "claimed")}
        assert [change.number for change in self.store.events()] == numbers

    def test_what_is_dead_because_its_process_is_gone_can_be_put_back_and_purged(self) -> None:
        back, away = [self.send(max_deliveries=1) for _ in range(2)]
        self.claim(limit=2, lease_s=600, owner=gone_process())
        dead = frozenset({State.DEAD})
        assert self.found(states=dead) == [back, away]

        assert self.store.requeue([back]) == [back]
        assert self.store.purge(Query(states=dead)) == 1

        assert self.found() == [back]
        assert self.state(back) is State.READY

    @pytest.mark.parametrize("owner", [this_process(), "another-host.1:1:1", None], ids=["alive", "unseen", "agent"])
    def test_what_a_living_or_unseen_process_holds_stays_its_own(self, owner: str | None) -> None:
        id = self.send()
        ticket = self.take(lease_s=600, owner=owner).ticket
        self.clock.advance(599)

        self.store.sweep()

        assert self.claim() == []
        assert self.state(id) is State.CLAIMED
        assert self.ack(ticket).held

    # Delays

    def test_a_delayed_message_is_claimable_when_it_is_due(self) -> None:
        id = self.send(delay_s=10)
        assert self.state(id) is State.DELAYED
        assert self.read(id).due_ms == self.clock.wall_ms() + 10_000
        self.clock.advance(9.9)
        assert self.claim() == []

        self.clock.advance(0.1)

        assert self.state(id) is State.READY
        assert self.take().message.id == id

    # Expiry

    @pytest.mark.parametrize("settle", [False, True])
    def test_an_expired_message_is_not_given(self, settle: bool) -> None:
        id = self.send(ttl_s=10)
        other = self.send()
        self.clock.advance(10)

        assert self.drain(settle=settle) == [other]
        assert self.state(id) is State.EXPIRED
        assert self.events_of(id) == ["stored", "expired"]

    def test_a_message_is_given_until_its_last_moment(self) -> None:
        id = self.send(ttl_s=10)
        self.clock.advance(9.999)

        assert self.take().message.id == id

    def test_a_claimed_message_may_be_finished_after_its_expiry(self) -> None:
        id = self.send(ttl_s=10)
        ticket = self.take(lease_s=60).ticket
        self.clock.advance(20)
        assert self.state(id) is State.CLAIMED
        self.store.sweep()

        assert self.ack(ticket).held is True
        assert self.state(id) is State.ACKED

    def test_a_message_let_go_after_its_expiry_expires(self) -> None:
        id = self.send(ttl_s=10)
        self.take(lease_s=20)
        self.clock.advance(21)
        assert self.state(id) is State.EXPIRED

        assert self.claim() == []
        assert self.state(id) is State.EXPIRED
        assert self.events_of(id)[-1] == "expired"

    def test_a_message_retried_after_its_expiry_expires(self) -> None:
        id = self.send(ttl_s=10)
        ticket = self.take(lease_s=60).ticket
        self.clock.advance(11)

        assert self.store.settle(ticket, "retry", detail="too late").held is True

        assert self.state(id) is State.EXPIRED
        assert self.claim() == []

    def test_a_delayed_message_can_expire_before_it_is_due(self) -> None:
        id = self.send(delay_s=20, ttl_s=10)
        self.clock.advance(9)
        assert self.state(id) is State.DELAYED
        self.clock.advance(1)
        assert self.state(id) is State.EXPIRED
        self.clock.advance(30)

        assert self.claim() == []
        assert self.state(id) is State.EXPIRED

    # Reading

    def test_reading_judges_by_the_clock_and_writes_nothing(self) -> None:
        due, expiring, late, spent = self.send(delay_s=5), self.send(ttl_s=5), self.send(), self.send(max_deliveries=1)
        self.take(ids=(late,), lease_s=5)
        self.take(ids=(spent,), lease_s=5)
        changes = self.store.events()
        ledgers = [self.read(id).ledger for id in (due, expiring, late, spent)]
        self.clock.advance(5)

        states = [self.state(id) for id in (due, expiring, late, spent)]
        listed = [message.exact_state for message in self.store.find(Query()).messages]
        counts = self.store.stats().states

        assert states == listed == [State.READY, State.EXPIRED, State.READY, State.DEAD]
        assert (counts["stored"], counts["expired"], counts["dead"], counts.get("claimed", 0)) == (2, 1, 1, 0)
        assert self.found(states=frozenset({State.READY})) == [due, late]
        assert self.found(states=frozenset({State.EXPIRED, State.DEAD})) == [expiring, spent]
        assert self.found(states=frozenset({State.CLAIMED, State.DELAYED})) == []
        assert [self.read(id).ledger for id in (due, expiring, late, spent)] == ledgers
        assert [change.number for change in self.store.events()] == [change.number for change in changes]

    # Sweeping

    def test_a_sweep_writes_down_what_the_clock_has_done_and_counts_it(self) -> None:
        ids = [
            self.send(ttl_s=5),
            self.send(ttl_s=5, delay_s=60),
            self.send(),
            self.send(),
            self.send(max_deliveries=1),
        ]
        for id in ids[2:]:
            self.take(ids=(id,), lease_s=5)
        self.clock.advance(6)

        swept = self.store.sweep()

        assert (swept.expired, swept.released, swept.dead, swept.purged) == (2, 2, 1, 0)
        assert [self.events_of(id)[-1] for id in ids] == ["expired", "expired", "released", "released", "dead"]
        assert self.store.sweep() == (0, 0, 0, 0)

    def test_a_sweep_counts_what_gone_processes_held(self) -> None:
        ids = [self.send(), self.send(), self.send(max_deliveries=1)]
        self.claim(limit=3, lease_s=600, owner=gone_process())
        self.clock.advance(1)

        swept = self.store.sweep()

        assert [self.state(id) for id in ids] == [State.READY, State.READY, State.DEAD]
        assert (swept.released, swept.dead) == (2, 1)

    def test_what_is_due_a_moment_after_somebody_looked_is_given(self) -> None:
        id = self.send(delay_s=0.001)
        assert self.claim() == []
        self.clock.advance(0.002)

        assert self.take().message.id == id

    # Clocks that jump

    def test_room_time_follows_the_steady_clock_alone_and_is_the_same_for_all(self) -> None:
        before_ms = self.store.room_ms()
        self.clock.advance(5)
        self.clock.jump_wall(-3600)
        self.clock.jump_wall(9000)

        assert self.store.room_ms() == before_ms + 5000
        if self.has("shared"):
            assert self.open_again().room_ms() == before_ms + 5000

    @JUMPS
    @pytest.mark.parametrize("state", [State.CLAIMED, State.DELAYED], ids=["lease", "delay"])
    def test_a_jump_of_the_wall_clock_neither_shortens_nor_stretches_a_lease_or_a_delay(
        self, state: State, jump_s: float
    ) -> None:
        id = self.send(delay_s=30 if state is State.DELAYED else 0)
        self.claim(lease_s=30)

        self.clock.jump_wall(jump_s)
        self.clock.advance(29)
        assert self.state(id) is state
        assert self.claim() == []
        self.clock.advance(1)

        assert self.state(id) is State.READY
        assert self.take().message.id == id

    @JUMPS
    def test_a_jump_of_the_wall_clock_neither_shortens_nor_stretches_a_life(self, jump_s: float) -> None:
        lives, ends = self.send(ttl_s=40), self.send(ttl_s=30)
        self.clock.jump_wall(jump_s)
        self.clock.advance(29)
        assert (self.state(lives), self.state(ends)) == (State.READY, State.READY)
        self.clock.advance(1)

        assert self.drain() == [lives]
        assert self.state(ends) is State.EXPIRED

    @JUMPS
    def test_what_lives_for_a_while_is_claimed_once_also_after_a_jump_of_the_wall_clock(self, jump_s: float) -> None:
        id = self.send(ttl_s=30)
        self.clock.jump_wall(jump_s)
        self.take()

        assert self.events_of(id) == ["stored", "claimed"]

    @JUMPS
    def test_what_people_read_is_the_wall_clocks_time(self, jump_s: float) -> None:
        self.clock.jump_wall(jump_s)
        id = self.send(ttl_s=60)
        self.clock.advance(1)
        self.take(lease_s=30)
        message = self.read(id)

        assert message.timestamp_ms == self.clock.wall_ms() - 1000
        assert message.expires_at_ms == self.clock.wall_ms() + 59_000
        assert message.last_delivered_ms == self.clock.wall_ms()
        assert message.lease_until_ms == self.clock.wall_ms() + 30_000
        assert [entry.time_ms for entry in message.ledger] == [self.clock.wall_ms() - 1000, self.clock.wall_ms()]

    @JUMPS
    @needs("shared")
    def test_one_who_opens_the_room_after_a_jump_counts_the_same_time(self, jump_s: float) -> None:
        leased, first = self.send(), self.send()
        self.take(ids=(leased,), lease_s=30)
        self.clock.jump_wall(jump_s)
        other = self.open_again()
        (second,) = other.put([self.draft()])

        assert [message.id for message in other.find(Query()).messages] == [leased, first, second]
        self.clock.advance(29)
        assert other.claim(self.want(ids=(leased,))).deliveries == []
        self.clock.advance(1)
        assert [delivery.message.id for delivery in other.claim(self.want(limit=9)).deliveries] == [
            leased,
            first,
            second,
        ]

    @needs("durable")
    def test_after_a_restart_of_the_machine_the_room_goes_on(self) -> None:
        leased, delayed, first = self.send(), self.send(delay_s=30), self.send()
        ticket = self.take(ids=(leased,), lease_s=30).ticket
        number = self.store.events()[-1].number
        self.store.close()
        self.clock.reboot()
        self.store = self.open_again()
        second = self.send()

        assert self.found() == [leased, delayed, first, second]
        assert [change.message.id for change in self.store.events(number)] == [second]
        assert self.drain(settle=True) == [first, second]
        self.clock.advance(31)
        assert self.drain() == [leased, delayed]
        assert self.ack(ticket).held is False

    @JUMPS
    @needs("durable")
    def test_a_wall_clock_that_is_wrong_after_a_restart_breaks_no_order(self, jump_s: float) -> None:
        first = self.send()
        self.store.close()
        self.clock.reboot()
        self.clock.jump_wall(jump_s)
        self.store = self.open_again()
        second = self.send()
        self.clock.advance(1)

        assert self.drain() == [first, second]

    # Waiting

    def test_a_look_that_finds_nothing_wakes_nobody(self) -> None:
        with self.store.listen([FEED]) as waiter:
            assert self.claim("bob") == []
            assert self.claim("bob") == []
            assert waiter.wait(0) is False

    def test_a_wait_without_a_hint_ends_when_its_time_is_over(self) -> None:
        with self.store.listen([topic_to("bob")]) as waiter:
            assert waiter.wait(0) is False
            assert self.wait_while_time_passes(waiter, 5) is False

    def test_a_hint_ends_a_wait_for_which_time_stands_still(self) -> None:
        with self.store.listen([topic_to("bob")]) as waiter:
            assert together(lambda: waiter.wait(5), lambda: bool(self.send("bob"))) == [True, True]

    def wait_while_time_passes(self, waiter: Waiter, timeout_s: float) -> bool:
        """Wait in another thread, and let time pass until it comes back."""
        ended = threading.Event()

        def wait() -> bool:
            try:
                return waiter.wait(timeout_s)
            finally:
                ended.set()

        def pass_time() -> bool:
            for _ in range(1000):
                if ended.wait(0.005):
                    return True
                self.clock.advance(1)
            return False

        woken, passed = together(wait, pass_time)
        assert passed, "the wait did not end, though its time was over long ago"
        return woken
