"""What order keys promise: one at a time, in order."""

from __future__ import annotations

import pytest

from postroom.core.states import State
from postroom.stores.contract import Query

from .workbench import StoreBench, gone_process, needs, together

WAITING = frozenset({State.READY, State.DELAYED, State.BLOCKED})


class Ordering(StoreBench):
    """`order_key`."""

    # One at a time, in order

    def test_messages_of_one_key_are_delivered_one_at_a_time_and_in_order(self) -> None:
        ids = [self.keyed() for _ in range(4)]
        came = []
        for _ in ids:
            (delivery,) = self.claim(limit=10)
            assert self.claim(limit=10) == []
            came.append(delivery.message.id)
            assert self.ack(delivery.ticket).held

        assert came == ids

    def test_different_keys_run_side_by_side_and_mail_without_a_key_beside_them(self) -> None:
        first, _, other, plain = self.keyed("a"), self.keyed("a"), self.keyed("b"), self.send()

        assert self.drain() == [first, other, plain]

    def test_the_order_of_a_key_is_that_of_its_messages_whatever_their_priority(self) -> None:
        low, high = self.keyed(priority=1), self.keyed(priority=10)

        first = self.take()
        assert first.message.id == low
        self.ack(first.ticket)

        assert self.next() == high

    def test_a_key_is_that_of_one_mailbox(self) -> None:
        ids = [
            self.keyed(to="bob"), self.keyed(to="eve"), self.keyed(to="bob", channel="a"), self.keyed(to=None, channel="a"),
        ]  # fmt: skip

        assert self.next("eve") == ids[1]
        assert self.drain("bob", channels=("general", "a")) == [ids[0], ids[2], ids[3]]

    def test_a_message_shows_its_key_and_counts_as_stored_while_it_is_behind_another(self) -> None:
        first, second = self.keyed(), self.keyed()
        self.take()

        message = self.read(second)

        assert (message.order_key, message.state, message.status) == ("pr-7", "stored", "pending")
        assert self.found(order_key="pr-7") == [first, second]
        assert self.found(order_key="pr-8") == []
        assert self.found(order_key="pr-7", states=WAITING) == [second]
        assert self.store.stats().states["stored"] == 1
        assert [box.depth for box in self.store.stats().mailboxes] == [1]

    @pytest.mark.parametrize("outcome", ["acked", "answered", "refused", "dead"])
    def test_however_a_message_ends_the_next_of_its_key_may_be_claimed(self, outcome: str) -> None:
        _, second = self.keyed(), self.keyed()

        self.end(outcome)

        assert self.next() == second

    def test_settling_gives_the_next_of_the_key_in_the_same_step(self) -> None:
        _, second = self.keyed(), self.keyed()

        settled = self.store.settle(self.take().ticket, "acked", claim_next=self.want())

        assert settled.claimed is not None
        assert [each.message.id for each in settled.claimed.deliveries] == [second]

    def test_a_message_that_is_taken_and_acked_in_one_step_lets_the_next_pass(self) -> None:
        first, second = self.keyed(), self.keyed()

        assert [self.next(settle=True), self.next(settle=True)] == [first, second]

    # Failing

    def test_a_failed_message_blocks_its_key_while_it_is_retried(self) -> None:
        first, second, other = self.keyed(), self.keyed(), self.keyed("other")

        self.store.settle(self.take().ticket, "retry", delay_s=5)

        assert self.drain() == [other]
        self.clock.advance(6)
        again = self.take()
        assert again.message.id == first
        self.ack(again.ticket)
        assert self.next() == second

    def test_a_message_that_fails_for_the_last_time_lets_the_next_pass(self) -> None:
        first, second = self.keyed(max_deliveries=1), self.keyed()

        self.end("retry")

        assert self.state(first) is State.DEAD
        assert self.next() == second

    def test_a_message_that_was_returned_is_still_the_first_of_its_key(self) -> None:
        first, _ = self.keyed(), self.keyed()

        self.end("returned")

        assert self.next() == first

    def test_a_message_whose_lease_ended_comes_again_before_the_next_of_its_key(self) -> None:
        first, second = self.keyed(), self.keyed()
        late = self.take()
        self.clock.advance(31)

        assert self.ack(late.ticket).held  # nobody took it meanwhile
        assert self.next() == second
        assert self.state(first) is State.ACKED

    def test_a_message_that_nobody_finished_in_time_lets_the_next_pass(self) -> None:
        first, second = self.keyed(ttl_s=5), self.keyed()
        self.clock.advance(6)

        assert self.next() == second
        assert self.state(first) is State.EXPIRED

    def test_a_message_may_expire_behind_another(self) -> None:
        first, second, third = self.keyed(), self.keyed(ttl_s=5), self.keyed()
        held = self.take()
        self.clock.advance(6)
        assert self.state(second) is State.EXPIRED

        self.ack(held.ticket)

        assert self.next() == third
        assert self.state(first) is State.ACKED

    def test_messages_of_a_key_that_expire_at_once_let_the_next_pass(self) -> None:
        ended = [self.keyed(ttl_s=5), self.keyed(ttl_s=5), self.keyed(ttl_s=4)]
        last = self.keyed()
        self.clock.advance(6)

        assert self.next() == last
        assert [self.state(id) for id in ended] == [State.EXPIRED] * 3

    def test_the_message_of_a_process_that_is_gone_comes_again_before_the_next_of_its_key(self) -> None:
        first, _ = self.keyed(), self.keyed()
        self.take(owner=gone_process())
        self.clock.advance(1.5)

        assert self.next() == first

    def test_the_last_delivery_of_a_process_that_is_gone_lets_the_next_pass(self) -> None:
        first, second = self.keyed(max_deliveries=1), self.keyed()
        self.take(owner=gone_process())
        self.clock.advance(1.5)

        assert self.next() == second
        assert self.state(first) is State.DEAD

    def test_a_delayed_message_keeps_its_place_in_the_order(self) -> None:
        first, second = self.keyed(delay_s=10), self.keyed()

        assert self.next() is None
        self.clock.advance(11)
        delivery = self.take()
        assert delivery.message.id == first
        self.ack(delivery.ticket)
        assert self.next() == second

    def test_a_delay_that_has_not_passed_counts_on_when_the_message_before_it_ends(self) -> None:
        self.keyed()
        second = self.keyed(delay_s=10)

        self.end("acked")

        assert self.next() is None
        self.clock.advance(11)
        assert self.next() == second

    def test_a_delay_that_passes_behind_another_message_is_over(self) -> None:
        self.keyed()
        second = self.keyed(delay_s=10)
        held = self.take(lease_s=60)
        self.clock.advance(11)
        assert self.next() is None

        self.ack(held.ticket)

        assert self.next() == second

    def test_a_message_that_is_put_back_waits_for_the_one_that_is_claimed(self) -> None:
        first, second, third = self.keyed(), self.keyed(), self.keyed()
        self.end("dead")
        held = self.take()
        assert self.store.requeue([first]) == [first]

        assert self.next() is None
        self.ack(held.ticket)
        came = []
        for _ in range(2):
            delivery = self.take()
            came.append(delivery.message.id)
            self.ack(delivery.ticket)

        assert held.message.id == second
        assert sorted(came) == sorted([first, third])

    @pytest.mark.parametrize("end", ["withdrawn", "purged", "expired", "replaced"])
    def test_the_end_of_a_message_behind_others_lets_none_pass_beside_the_claimed_one(self, end: str) -> None:
        first, second = self.keyed(), self.keyed()
        third = self.keyed(ttl_s=5 if end == "expired" else None)
        self.end("dead", ids=(first,))
        held = self.take(lease_s=60)
        assert held.message.id == second
        self.store.requeue([first])  # it stands before the claimed one, and waits for it

        if end == "withdrawn":
            assert self.store.withdraw([third], "ada") == [third]
        elif end == "purged":
            assert self.store.purge(Query(ids=(third,))) == 1
        elif end == "replaced":
            self.send(replaces=third, channel="elsewhere")
        self.clock.advance(6)

        assert self.next(channels=("general",)) is None
        self.ack(held.ticket)
        assert self.next(channels=("general",)) == first

    def test_purging_ended_messages_of_a_key_lets_none_pass(self) -> None:
        done, first = self.keyed(), self.keyed()
        self.end("acked", ids=(done,))
        self.keyed()
        self.take()

        assert self.store.purge(Query(ids=(done,))) == 1
        assert self.next() is None
        assert self.state(first) is State.CLAIMED

    def test_purging_the_first_of_a_key_lets_the_next_pass(self) -> None:
        first, second = self.keyed(), self.keyed()

        assert self.store.purge(Query(ids=(first,))) == 1

        assert self.next() == second

    def test_copies_of_a_publication_are_in_order_for_each_subscriber(self) -> None:
        for agent in ("bob", "eve"):
            self.store.subscribe("news", agent)
        one, two = self.publish(order_key="k"), self.publish(order_key="k")

        for agent in ("bob", "eve"):
            mine = [id for id in (*one, *two) if self.read(id).to_agent == agent]
            first = self.take(agent)
            assert self.claim(agent) == []
            self.ack(first.ticket)
            assert [first.message.id, self.next(agent)] == mine

    def test_a_waiter_is_woken_when_the_message_before_the_next_ends(self) -> None:
        self.keyed()
        self.keyed()
        held = self.take()
        with self.store.listen(["to:bob"]) as waiter:
            while waiter.wait(0):
                pass
            assert self.claim() == []
            self.ack(held.ticket)
            assert waiter.wait(5)

    @needs("durable")
    def test_the_order_of_a_key_outlives_the_processes(self) -> None:
        ids = [self.keyed() for _ in range(3)]
        self.take()
        self.store.close()
        self.store = self.open_again()

        assert self.next() is None
        self.clock.advance(31)
        for id in ids:
            delivery = self.take()
            assert delivery.message.id == id
            self.ack(delivery.ticket)

    def test_several_claimers_never_have_two_of_one_key_nor_one_before_its_turn(self) -> None:
        ids = [self.keyed(f"key-{n % 3}", None, channel="work") for n in range(30)]
        done: list[str] = []

        def work() -> None:
            while len(done) < len(ids):
                for delivery in self.claim("bob", channels=("work",), limit=2):
                    id = delivery.message.id
                    place = ids.index(id)
                    assert all(each in done for each in ids[place % 3 : place : 3]), f"{id} came before its turn"
                    done.append(id)
                    assert self.ack(delivery.ticket).held

        together(*[work] * 4)

        assert sorted(done) == sorted(ids)
