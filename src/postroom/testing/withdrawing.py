"""What a sender may still change of what it sent: withdrawing, replacing, debouncing."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.core.message import Draft
from postroom.core.states import State
from postroom.stores.contract import Query

from .workbench import NO_ID, StoreBench, gone_process, together

WAITING = frozenset({State.READY, State.DELAYED, State.BLOCKED})


class Withdrawing(StoreBench):
    """`withdraw`, `replaces` and `debounce`."""

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
