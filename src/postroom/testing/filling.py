"""What limits on waiting promise: mailboxes that are full."""

from __future__ import annotations

import pytest

from postroom.core.states import State
from postroom.errors import MailboxFull
from postroom.stores.contract import Query, topic_space

from .limiting import JOBS, LimitBench
from .workbench import needs


class FullMailboxes(LimitBench):
    """So many messages may wait in a mailbox."""

    @needs("limits")
    def test_a_full_mailbox_takes_no_more_and_says_so(self) -> None:
        self.limit(waiting=2)
        self.jobs(2)

        with pytest.raises(MailboxFull, match="'jobs' is full: 2 messages"):
            self.jobs(1)

        assert len(self.found(channels=JOBS)) == 2
        self.send("bob", channel="jobs")  # another mailbox
        self.send("bob")
        (delivery,) = self.work(limit=1)
        self.jobs(1)
        assert self.ack(delivery.ticket).held

    @needs("limits")
    def test_delayed_and_blocked_messages_wait_too_and_claimed_ones_do_not(self) -> None:
        self.limit(waiting=3)
        self.jobs(1, delay_s=60)
        self.jobs(2, order_key="k")
        with pytest.raises(MailboxFull):
            self.jobs(1)

        assert len(self.work()) == 1
        self.jobs(1)

    @needs("limits")
    def test_of_a_batch_that_does_not_fit_nothing_is_stored(self) -> None:
        self.limit(waiting=2)
        drafts = [self.draft(None, channel="jobs"), self.draft("bob"), *(self.draft(None, channel="jobs"),) * 2]

        with pytest.raises(MailboxFull):
            self.store.put(drafts)

        assert self.found() == []
        assert len(self.store.put(drafts[:3])) == 3

    @needs("limits")
    def test_what_has_expired_keeps_no_mailbox_full(self) -> None:
        self.limit(waiting=1)
        self.jobs(1, ttl_s=5)
        self.clock.advance(6)

        assert len(self.jobs(1)) == 1

    @needs("limits")
    def test_a_message_replaces_another_also_where_too_many_wait(self) -> None:
        old, *_ = self.jobs(3)
        self.limit(waiting=2)

        (new,) = self.jobs(1, replaces=old)
        assert (self.state(old), self.state(new)) == (State.WITHDRAWN, State.READY)

    @needs("limits")
    @needs("shared")
    def test_a_process_that_has_not_read_the_limits_yet_counts_before_it_stores_with_a_cell(self) -> None:
        other = self.open_again()
        version = other.cell_write("schedule/daily", 1)
        assert version is not None
        self.limit(waiting=1)
        self.jobs(1)
        self.clock.advance(3)

        with pytest.raises(MailboxFull):
            other.put_with_cell([self.draft(None, channel="jobs")], "schedule/daily", 2, version)

    @needs("limits")
    def test_a_publication_into_a_full_mailbox_is_stored_for_nobody(self) -> None:
        for agent in ("bob", "eve"):
            self.store.subscribe("jobs", agent)
        self.limit(waiting=1)
        self.publish(channel="jobs")
        self.take("bob")

        with pytest.raises(MailboxFull, match="of eve"):
            self.publish(channel="jobs")

        assert len(self.found(channels=JOBS)) == 2

    @needs("limits")
    def test_answers_repeats_and_replacements_are_taken_into_a_full_mailbox(self) -> None:
        question = self.ask("bob", channel="jobs")
        (delivery,) = self.claim("bob")
        self.limit(waiting=1)
        old = self.send("ada", sender="bob", channel="jobs", idempotency_key="one")

        answer = self.draft("ada", sender="bob", channel="jobs", answer_to=question)
        assert len(self.store.settle(delivery.ticket, "answered", puts=[answer]).ids) == 1
        assert self.send("ada", sender="bob", channel="jobs", idempotency_key="one") == old
        new = self.send("ada", sender="bob", channel="jobs", replaces=old)
        assert (self.read(old).state, self.read(new).state) == ("withdrawn", "stored")
        assert self.found(states=frozenset({State.READY}), to_agent="ada") == [new]

    @pytest.mark.parametrize("how", ["claim", "withdraw", "purge"])
    @needs("limits")
    def test_space_in_a_full_mailbox_wakes_a_sender_that_waits_for_it(self, how: str) -> None:
        self.limit(waiting=1)
        (id,) = self.jobs(1)

        with self.store.listen([topic_space("jobs")]) as waiter:
            assert not waiter.wait(0)
            if how == "claim":
                self.work()
            elif how == "withdraw":
                self.store.withdraw([id], "ada")
            else:
                assert self.store.purge(Query(ids=(id,))) == 1
            assert waiter.wait(10)
        self.jobs(1)
