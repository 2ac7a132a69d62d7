"""What order keys promise (one at a time, in order), and what a sender may still change: withdrawing, replacing."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.core.message import Draft
from postroom.core.states import State
from postroom.stores.contract import Query

from .workbench import NO_ID, StoreBench, gone_process, needs, together

WAITING = frozenset({State.READY, State.DELAYED, State.BLOCKED})


class Ordering(StoreBench):
    """`order_key`, `withdraw`, `replaces` and `debounce`."""

    def keyed(self, key: str = "pr-7", to: str | None = "bob", text: str = "hello", **fields: Any) -> str:
        """Put one message with an order key; its id."""
        return self.send(to, text, order_key=key, **fields)

    def next(self, agent: str = "bob", **fields: Any) -> str | None:
        """The id of what the next claim gives, or None. It stays claimed."""
        deliveries = self.claim(agent, **fields)
        return deliveries[0].message.id if deliveries else None

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

    # Withdrawing

    @pytest.mark.parametrize("fields", [{}, {"delay_s": 30}], ids=["ready", "delayed"])
    def test_a_message_that_waits_can_be_withdrawn_by_its_sender(self, fields: dict[str, Any]) -> None:
        id = self.send(**fields)

        assert self.store.withdraw([id], "ada", "a mistake") == [id]

        message = self.read(id)
        assert (message.exact_state, message.state) == (State.WITHDRAWN, "withdrawn")
        assert [(entry.event, entry.agent, entry.detail) for entry in message.ledger][1:] == [
            ("withdrawn", "ada", "a mistake")
        ]
        self.clock.advance(31)
        assert self.drain() == []
        assert self.store.stats().states["withdrawn"] == 1

    def test_withdrawing_twice_says_the_second_time_that_it_did_nothing(self) -> None:
        id = self.send()

        assert self.store.withdraw([id], "ada") == [id]
        assert self.store.withdraw([id], "ada") == []

    def test_only_its_sender_withdraws_a_message(self) -> None:
        id = self.send()

        assert self.store.withdraw([id, NO_ID], "eve") == []
        assert self.next() == id

    def test_a_claimed_message_stays_with_its_receiver(self) -> None:
        id = self.send()
        held = self.take()

        assert self.store.withdraw([id], "ada") == []
        assert self.ack(held.ticket).held
        assert self.store.withdraw([id], "ada") == []
        assert self.state(id) is State.ACKED

    def test_a_message_whose_lease_has_ended_can_be_withdrawn_and_its_late_holder_is_told(self) -> None:
        id = self.send()
        late = self.take()
        self.clock.advance(31)

        assert self.store.withdraw([id], "ada") == [id]
        assert not self.ack(late.ticket).held
        assert self.state(id) is State.WITHDRAWN

    def test_an_answer_that_is_kept_for_its_asker_is_not_withdrawn(self) -> None:
        question = self.ask()
        settled = self.store.settle(
            self.take().ticket, "answered", puts=[self.draft("ada", "yes", "bob", answer_to=question)]
        )

        assert self.store.withdraw(settled.ids, "bob") == []

    def test_withdrawing_the_first_of_a_key_lets_the_next_pass_and_of_one_behind_it_takes_its_place_away(self) -> None:
        first, second, third = self.keyed(), self.keyed(), self.keyed()

        assert self.store.withdraw([second, first], "ada") == [second, first]

        assert self.next() == third

    def test_the_waiters_for_a_withdrawn_message_are_woken(self) -> None:
        id = self.send()
        with self.store.listen([f"message:{id}"]) as waiter:
            self.store.withdraw([id], "ada")
            assert waiter.wait(5)

    def test_a_withdrawn_message_is_forgotten_like_other_finished_ones_and_not_put_back(self) -> None:
        id = self.send()
        self.store.withdraw([id], "ada")

        assert self.store.requeue([id]) == []
        assert self.store.purge(Query(states=frozenset({State.WITHDRAWN}))) == 1
        assert self.store.get(id) is None

    def test_of_a_claim_and_a_withdrawal_at_once_exactly_one_wins(self) -> None:
        for _ in range(20):
            id = self.send()
            won: list[str] = []

            def claim(won: list[str] = won) -> None:
                if self.claim(settle=True):
                    won.append("claim")

            def withdraw(id: str = id, won: list[str] = won) -> None:
                if self.store.withdraw([id], "ada"):
                    won.append("withdrawal")

            together(claim, withdraw)
            assert len(won) == 1
            assert self.state(id) is (State.ACKED if won == ["claim"] else State.WITHDRAWN)

    # Replacing

    def test_a_message_replaces_one_that_waits_in_one_step(self) -> None:
        old = self.send(text="deploy 1")
        new = self.send(text="deploy 2", replaces=old)

        assert self.drain() == [new]
        assert self.read(new).replaces == old
        last = self.read(old).ledger[-1]
        assert (self.state(old), last.event, last.agent, last.detail) == (
            State.WITHDRAWN, "withdrawn", "ada", f"replaced by {new}",
        )  # fmt: skip

    def test_a_message_that_replaces_one_too_late_is_stored_all_the_same_and_says_so(self) -> None:
        old = self.send()
        held = self.take()
        new = self.send(replaces=old)

        assert self.read(new).replaces == old
        assert self.ack(held.ticket).held
        assert self.state(old) is State.ACKED
        assert self.next() == new

    def test_what_a_process_that_is_gone_held_is_replaced(self) -> None:
        old = self.send()
        self.take(owner=gone_process())
        self.clock.advance(1.5)
        new = self.send(replaces=old)

        assert self.drain() == [new]

    def test_two_messages_of_one_step_may_replace_the_same_one(self) -> None:
        old = self.send()
        ids = self.store.put([self.draft(text=text, replaces=old) for text in ("one", "two")])

        assert self.drain() == ids
        assert self.state(old) is State.WITHDRAWN

    def test_nobody_replaces_the_message_of_another_sender(self) -> None:
        old = self.send(sender="eve")
        new = self.send(replaces=old)

        assert self.drain() == [old, new]

    def test_a_repeat_under_an_idempotency_key_replaces_nothing_again(self) -> None:
        old = self.send()
        new = self.send(replaces=old, idempotency_key="once")
        self.take()

        assert self.send(replaces=old, idempotency_key="once") == new
        assert self.state(new) is State.CLAIMED

    def test_a_message_that_replaces_the_first_of_its_key_goes_to_the_end_of_it(self) -> None:
        first, second = self.keyed(), self.keyed()
        third = self.keyed(replaces=first)

        came = []
        for _ in range(2):
            delivery = self.take()
            came.append(delivery.message.id)
            self.ack(delivery.ticket)

        assert came == [second, third]

    # Debouncing

    def debounced(self, text: str, key: str = "draft", sender: str = "ada") -> str:
        """Put a message that replaces those of its key, and is due ten seconds later; its id."""
        return self.send("bob", text, sender, order_key=key, delay_s=10, debounce=True)

    def test_of_debounced_messages_the_newest_wins_and_comes_so_long_after_the_last(self) -> None:
        first = self.debounced("one")
        self.clock.advance(6)
        second = self.debounced("two")
        self.clock.advance(6)

        assert self.next() is None
        self.clock.advance(5)
        assert self.next() == second
        assert self.state(first) is State.WITHDRAWN
        assert self.read(first).ledger[-1].detail == f"replaced by {second}"

    def test_of_debounced_messages_of_one_step_the_last_wins(self) -> None:
        old = self.debounced("zero")
        drafts = [self.draft("bob", text, order_key="draft", delay_s=10, debounce=True) for text in ("one", "two")]
        one, two = self.store.put(drafts)
        self.clock.advance(11)

        assert self.drain() == [two]
        assert [self.state(id) for id in (old, one)] == [State.WITHDRAWN, State.WITHDRAWN]

    def test_debouncing_leaves_other_keys_other_senders_and_what_is_claimed_alone(self) -> None:
        held = self.debounced("one")
        self.clock.advance(11)
        assert self.next() == held
        others = [self.debounced("two", "other"), self.debounced("three", sender="eve")]

        new = self.debounced("four")

        assert [self.read(id).state for id in (held, *others, new)] == ["claimed", "stored", "stored", "stored"]

    def test_drafts_are_refused_that_contradict_themselves(self) -> None:
        wrong: list[dict[str, Any]] = [{"debounce": True}, {"order_key": ""}, {"order_key": 7}, {"replaces": 7}]
        for fields in wrong:
            with pytest.raises(ValueError, match=r"order_key|replaces"):
                self.draft(**fields)
        for fields in ({"order_key": "k", "delay_s": 10, "ttl_s": 5}, {"order_key": "k", "answer_to": NO_ID}):
            with pytest.raises(ValueError, match=r"ttl_s|order_key"):
                self.draft(**fields)
        with pytest.raises(ValueError, match="replaces"):
            self.draft(None, publish=True, replaces=NO_ID)
        assert isinstance(self.draft(order_key="k"), Draft)
