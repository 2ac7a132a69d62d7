"""What the store does for questions and answers: it holds an answer for an asker that waits, and only for that one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom.core.states import State
from postroom.core.system.process import this_process
from postroom.stores.contract import Query, topic_message, topic_to

from .workbench import NO_ID, StoreBench, gone_process

#: When an answer is ordinary mail; each gives the id of one.
LOOSE: dict[str, Callable[[Asking], str]] = {
    "nobody waits for it": lambda self: self.reply(self.send()),
    "its question is unknown": lambda self: self.early_answer(NO_ID),
    "it comes after its asker gave up": lambda self: self.after_giving_up(self.ask()),
    "its asker gave up after it came": lambda self: self.after_giving_up(question := self.ask(), self.reply(question)),
    "its question was deleted": lambda self: self.answer_to_a_deleted_question(),
    "its asker is gone": lambda self: self.reply(self.ask(waiter=gone_process())),
    "its asker lost it": lambda self: self.answer_that_its_asker_lost(),
}


class Asking(StoreBench):
    """`waiter`, `answer_to`, `abandon`."""

    def reply(self, question: str) -> str:
        """Answer a question as its receiver would; the answer's id."""
        settled = self.end("answered", ids=(question,), puts=[self.draft("ada", "answer!", "bob", answer_to=question)])
        assert settled.held
        return settled.ids[0]

    def after_giving_up(self, question: str, answer: str = "") -> str:
        """The asker gives up; the id of the answer that came before it, or comes now."""
        self.store.abandon(question)
        return answer or self.reply(question)

    def early_answer(self, question: str, **fields: Any) -> str:
        """An answer that is put by itself, before its question has ended; its id."""
        return self.send("ada", "early", "bob", answer_to=question, **fields)

    def answer_to_a_deleted_question(self) -> str:
        question = self.ask()
        answer = self.early_answer(question)
        assert self.store.purge(Query(ids=(question,))) == 1
        return self.after_giving_up(question, answer)

    def answer_that_its_asker_lost(self) -> str:
        answer = self.reply(self.ask())
        self.take("ada", ids=(answer,), lease_s=5)
        self.clock.advance(6)
        return answer

    def test_an_answer_is_held_for_the_asker_that_waits(self) -> None:
        answer = self.reply(self.ask())

        assert self.state(answer) is State.AWAITED
        assert self.claim("ada") == []
        assert self.claim("ada", channels=("general",)) == []

    def test_a_held_answer_can_be_claimed_by_its_id(self) -> None:
        question = self.ask()
        answer = self.reply(question)
        assert self.claim("eve", ids=(answer,)) == []

        delivery = self.take("ada", ids=(answer,), settle=True)

        assert delivery.message.payload == {"text": "answer!"}
        assert delivery.message.answer_to == question
        assert self.state(answer) is State.ACKED

    def test_a_held_answer_is_found_by_its_question(self) -> None:
        question = self.ask()
        answer = self.reply(question)
        self.reply(self.ask())

        assert self.found(answer_to=question) == [answer]

    def test_a_held_answer_is_claimed_by_its_question_or_left_as_it_is(self) -> None:
        question = self.ask()
        want = self.want("ada", settle=True)
        assert self.store.claim_answer(question, want) is None
        answer = self.reply(question)
        self.reply(self.ask())
        assert self.store.claim_answer(question, self.want("eve", settle=True)) is None

        delivery = self.store.claim_answer(question, want)

        if delivery is None:  # a store that cannot do so for less than reading the question costs
            assert self.state(answer) is State.AWAITED
        else:
            assert (delivery.message.id, delivery.message.answer_to) == (answer, question)
            assert self.state(answer) is State.ACKED
            assert self.store.claim_answer(question, want) is None

    def test_an_answer_is_not_claimed_by_its_question_before_that_has_ended(self) -> None:
        """Its receiver may still fail and give it back; a later answer would go to an asker that left."""
        question = self.ask()
        want = self.want("ada", settle=True)
        ticket = self.take("bob", ids=(question,)).ticket
        answer = self.early_answer(question)

        assert self.store.claim_answer(question, want) is None
        assert self.state(answer) is State.AWAITED
        assert self.store.settle(ticket, "answered", detail=answer).held
        delivery = self.store.claim_answer(question, want)
        assert delivery is None or delivery.message.id == answer

    def test_an_answer_that_is_ordinary_mail_is_not_claimed_by_its_question(self) -> None:
        question = self.send()
        answer = self.reply(question)

        assert self.store.claim_answer(question, self.want("ada", settle=True)) is None
        assert self.drain("ada") == [answer]

    @pytest.mark.parametrize("how", LOOSE)
    def test_an_answer_is_ordinary_mail_when(self, how: str) -> None:
        answer = LOOSE[how](self)

        assert self.state(answer) is State.READY or how == "its asker is gone"  # which is seen within a second
        self.clock.advance(1)
        assert self.drain("ada") == [answer]

    def test_giving_up_stands_in_the_ledger_of_the_question(self) -> None:
        question = self.ask()
        self.store.abandon(question)
        self.reply(question)

        assert "abandoned" in self.events_of(question)

    def test_an_answer_may_be_put_by_itself(self) -> None:
        question = self.ask()
        answer = self.early_answer(question)

        assert self.state(answer) is State.AWAITED
        assert self.state(question) is State.READY

    def test_an_answer_let_loose_wakes_its_receiver_and_is_in_the_feed(self) -> None:
        question = self.ask()
        answer = self.reply(question)
        number = self.store.events()[-1].number
        with self.store.listen([topic_to("ada")]) as waiter:
            self.store.abandon(question)

            assert waiter.wait(0) is True
        assert answer in [change.message.id for change in self.store.events(number)]

    def test_a_held_answer_wakes_those_who_follow_the_question(self) -> None:
        question = self.ask()
        with self.store.listen([topic_message(question)]) as waiter:
            self.early_answer(question)

            assert waiter.wait(0) is True

    def test_giving_up_twice_or_on_nothing_changes_nothing(self) -> None:
        question, plain = self.ask(), self.send()
        self.store.abandon(question)
        before = self.read(question)

        self.store.abandon(question)
        self.store.abandon(plain)
        self.store.abandon(NO_ID)

        assert self.read(question) == before
        assert self.events_of(plain) == ["stored"]

    def test_giving_up_on_an_answer_instead_of_its_question_changes_nothing(self) -> None:
        question = self.ask()
        answer = self.reply(question)

        self.store.abandon(answer)

        assert self.state(answer) is State.AWAITED
        assert self.events_of(answer) == ["stored"]

    def test_a_sweep_lets_go_of_what_gone_askers_waited_for(self) -> None:
        question = self.ask(waiter=gone_process())
        answer = self.reply(self.ask(waiter=gone_process()))
        self.clock.advance(1)

        self.store.sweep()

        assert self.read(question).waiter is None
        assert self.found(waiting=True) == []
        assert self.state(answer) is State.READY

    def test_a_claim_returns_though_the_asker_of_a_question_that_is_held_is_gone(self) -> None:
        """On NATS it looked for ever whether there was something to write down about the question."""
        question = self.ask(waiter=gone_process())
        self.clock.advance(1)

        assert [delivery.message.id for delivery in self.claim(limit=2)] == [question]
        assert self.claim() == []

    def test_who_waits_for_an_answer_can_be_listed(self) -> None:
        question = self.ask(waiter=this_process())
        self.send()

        assert self.found(waiting=True) == [question]
        assert self.read(question).waiter == this_process()
        self.store.sweep()
        assert self.found(waiting=True) == [question]
        self.store.abandon(question)
        assert self.found(waiting=True) == []
        assert self.read(question).waiter is None

    def test_a_question_that_is_answered_or_ended_is_waited_for_no_more(self) -> None:
        answered, refused, expired = self.ask(), self.ask(), self.ask(ttl_s=5)
        self.take("ada", ids=(self.reply(answered),))
        self.store.settle(self.take("bob", ids=(refused,)).ticket, "refused", detail="no")
        self.clock.advance(6)
        self.store.sweep()

        assert self.found(waiting=True) == []
        assert self.state(expired) is State.EXPIRED

    def test_a_held_answer_is_not_a_question(self) -> None:
        question = self.ask()
        self.early_answer(question)

        assert self.found(waiting=True) == [question]

    def test_a_claimed_question_is_still_waited_for(self) -> None:
        question = self.ask()
        self.take()

        assert self.found(waiting=True) == [question]

    def test_a_held_answer_does_not_expire(self) -> None:
        question = self.ask()
        answer = self.early_answer(question, ttl_s=5)
        self.clock.advance(10)
        self.store.sweep()

        assert self.state(answer) is State.AWAITED
        assert self.drain("ada", ids=(answer,)) == [answer]

    def test_a_held_answer_that_is_let_loose_after_its_time_expires(self) -> None:
        question = self.ask()
        answer = self.early_answer(question, ttl_s=5)
        self.clock.advance(10)

        self.store.abandon(question)

        assert self.state(answer) is State.EXPIRED
        assert self.claim("ada") == []

    def test_a_held_answer_counts_as_stored_and_is_listed(self) -> None:
        answer = self.reply(self.ask())

        assert self.store.stats().states["stored"] == 1
        assert self.found(states=frozenset({State.AWAITED})) == [answer]
        assert self.store.find(Query(states=frozenset({State.AWAITED}))).messages[0].state == "stored"

    def test_several_questions_are_given_up_in_one_step(self) -> None:
        open_one, answered, plain = self.ask(), self.ask(), self.send()
        answer = self.reply(answered)
        other = self.ask()

        self.store.abandon(open_one, answered, plain, NO_ID)

        assert self.found(waiting=True) == [other]
        assert self.state(answer) is State.READY
        assert "abandoned" in self.events_of(open_one)
        assert self.events_of(plain) == ["stored"]
        self.reply(open_one)
        assert len(self.drain("ada")) == 2
