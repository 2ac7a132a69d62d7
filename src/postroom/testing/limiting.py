"""What limits on taking promise: so many at once, so many a second, pauses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from postroom.stores.contract import LIMITS, Delivery, topic_channel, topic_to
from postroom.stores.gates import ChannelLimits, LimitRule, Limits, Paused, limits_cell

from .workbench import StoreBench, gone_process, needs, together

PAUSED = Paused("ada", 0, "they are on holiday")
JOBS = ("jobs",)


class LimitBench(StoreBench):
    """A channel with limits, jobs in it, and workers."""

    def limit(self, *rules: LimitRule, channel: str = "jobs", **fields: Any) -> None:
        """Give a channel these limits; all others have none."""
        self.store.cell_write(LIMITS, limits_cell(Limits({channel: ChannelLimits(rules, **fields)})))

    def unlimit(self) -> None:
        """Take all limits away."""
        self.store.cell_write(LIMITS, None)

    def jobs(self, count: int, **fields: Any) -> list[str]:
        """Put so many messages into the channel, for anyone."""
        return [self.send(None, **{"channel": "jobs", **fields}) for _ in range(count)]

    def work(self, agent: str = "bob", **fields: Any) -> list[Delivery]:
        """Take as much as there is in the channel."""
        return self.claim(agent, **{"channels": JOBS, "limit": 100, **fields})


class Limiting(LimitBench):
    """Limits and pauses, as they stand in the cell LIMITS."""

    # So many at once

    @needs("limits")
    def test_no_more_are_claimed_at_once_than_the_channel_allows(self) -> None:
        self.limit(LimitRule(concurrent=2))
        ids = self.jobs(5)

        first = self.work()
        assert [delivery.message.id for delivery in first] == ids[:2]
        assert self.work("eve") == []

        self.ack(first[0].ticket)
        assert [delivery.message.id for delivery in self.work("eve")] == ids[2:3]
        assert self.work("bob", limit=1) == []

    @pytest.mark.parametrize("outcome", ["acked", "answered", "refused", "dead", "retry", "returned"])
    @needs("limits")
    def test_however_a_message_ends_its_place_is_free(self, outcome: str) -> None:
        self.limit(LimitRule(concurrent=1))
        self.jobs(2)
        (delivery,) = self.work()

        self.store.settle(delivery.ticket, outcome)

        assert len(self.work("eve")) == 1

    @needs("limits")
    def test_settling_and_claiming_the_next_are_one_step_for_limits_too(self) -> None:
        self.limit(LimitRule(concurrent=1))
        _, second = self.jobs(2)
        (delivery,) = self.work()

        settled = self.ack(delivery.ticket, claim_next=self.want("bob", channels=JOBS))

        assert settled.claimed is not None
        assert [each.message.id for each in settled.claimed.deliveries] == [second]
        assert self.work("eve") == []

    @needs("limits")
    def test_a_lease_that_ended_and_a_process_that_is_gone_leave_their_places(self) -> None:
        self.limit(LimitRule(concurrent=2))
        self.jobs(4)
        self.work(lease_s=5, limit=1)
        self.work(owner=gone_process(), limit=1)

        self.clock.advance(6)

        assert len(self.work("eve")) == 2

    @needs("limits")
    def test_a_late_holder_does_not_extend_its_lease_past_the_limit(self) -> None:
        self.limit(LimitRule(concurrent=1))
        low = self.jobs(1, priority=1)
        (late,) = self.work(lease_s=5)
        self.jobs(1)
        self.clock.advance(6)
        (other,) = self.work("eve")
        assert other.message.id not in low

        assert not self.store.extend(late.ticket, 30)
        assert self.store.heartbeat([late.ticket], 30) == [late.ticket]
        self.ack(other.ticket)
        assert self.store.extend(late.ticket, 30)
        assert self.work("eve") == []

    @pytest.mark.parametrize("beats", [False, True])
    @needs("limits")
    def test_of_two_late_holders_one_finds_its_place_taken(self, beats: bool) -> None:
        self.jobs(2)
        first, second = (delivery.ticket for delivery in self.work(lease_s=5))
        self.limit(LimitRule(concurrent=1))
        self.clock.advance(6)

        if beats:
            assert self.store.heartbeat([first, second], 30) == [second]
        else:
            assert self.store.extend(first, 30)
            assert not self.store.extend(second, 30)
        assert self.work("eve") == []

    @needs("limits")
    def test_a_limit_counts_every_mailbox_of_its_channel_and_no_other_channel(self) -> None:
        self.limit(LimitRule(concurrent=1))
        self.send("bob", channel="jobs")
        self.send("eve", channel="jobs")
        self.jobs(1)
        plain, elsewhere = self.send("eve"), self.send("eve", channel="other")
        self.take("bob")

        assert self.drain("eve") == [plain, elsewhere]
        assert self.work("eve") == []

    @needs("limits")
    def test_the_default_channel_can_be_limited_like_any_other(self) -> None:
        self.limit(LimitRule(concurrent=1), channel="general")
        self.send()
        self.send()
        other = self.send("bob", channel="other")

        first = self.take()

        assert first.message.channel == "general"
        assert self.drain() == [other]

    @needs("limits")
    def test_each_sender_may_have_a_limit_of_its_own(self) -> None:
        self.limit(LimitRule(by="sender", concurrent=1))
        ids = [*self.jobs(2, sender="ada"), *self.jobs(2, sender="cy")]

        first = self.work()

        assert [delivery.message.id for delivery in first] == [ids[0], ids[2]]
        self.ack(first[0].ticket)
        assert [delivery.message.id for delivery in self.work("eve")] == [ids[1]]

    @needs("limits")
    def test_each_order_key_may_have_a_limit_over_all_mailboxes_of_its_channel(self) -> None:
        self.limit(LimitRule(by="order_key", concurrent=1))
        first = self.send("bob", channel="jobs", order_key="pr-7")
        self.send("eve", channel="jobs", order_key="pr-7")
        other = self.send("eve", channel="jobs", order_key="pr-8")
        without = self.send("eve", channel="jobs")

        assert self.take("bob").message.id == first
        assert self.drain("eve") == [other, without]

    @needs("limits")
    def test_several_rules_of_one_channel_hold_together(self) -> None:
        self.limit(LimitRule(concurrent=3), LimitRule(by="sender", concurrent=2))
        ids = [*self.jobs(3, sender="ada"), *self.jobs(3, sender="cy")]

        assert [delivery.message.id for delivery in self.work()] == [*ids[:2], ids[3]]

    @needs("limits")
    def test_many_that_wait_for_their_sender_do_not_hide_the_others(self) -> None:
        self.limit(LimitRule(by="sender", concurrent=1), LimitRule(by="order_key", per_s=1))
        self.jobs(120, sender="ada")
        self.send(None, sender="cy", channel="jobs", order_key="k")
        late = [self.send(None, sender="dan", channel="jobs", order_key=key) for key in "klm"]

        came = [delivery.message.id for delivery in self.work()]

        assert len(came) == 3
        assert came[2] == late[1]

    @needs("limits")
    def test_a_claim_by_id_is_limited_too(self) -> None:
        self.limit(LimitRule(concurrent=1))
        ids = self.jobs(2)
        self.work(limit=1)

        assert self.claim(ids=(ids[1],)) == []
        self.unlimit()
        assert [delivery.message.id for delivery in self.claim(ids=(ids[1],))] == [ids[1]]

    @needs("limits")
    def test_an_asker_gets_its_answer_whatever_the_limits_and_answers_do_not_count(self) -> None:
        question = self.ask("bob", channel="jobs")
        (delivery,) = self.claim("bob")
        answer = self.draft("ada", sender="bob", channel="jobs", answer_to=question)
        (id,) = self.store.settle(delivery.ticket, "answered", puts=[answer]).ids
        self.limit(LimitRule(concurrent=1))
        self.jobs(1)

        assert [delivery.message.id for delivery in self.claim("ada", ids=(id,))] == [id]
        assert len(self.work()) == 1

    @needs("limits")
    def test_an_answer_that_is_ordinary_mail_waits_for_a_rate_and_takes_nothing_from_it(self) -> None:
        question = self.ask("bob", channel="jobs")
        (delivery,) = self.claim("bob")
        self.store.abandon(question)
        answer = self.draft("ada", sender="bob", channel="jobs", answer_to=question)
        (id,) = self.store.settle(delivery.ticket, "answered", puts=[answer]).ids
        ids = self.jobs(2)
        self.limit(LimitRule(per_s=1))
        self.work("eve", limit=1)
        assert self.claim("ada") == []

        self.clock.advance(1)
        (late,) = self.claim("ada", lease_s=5)
        assert late.message.id == id
        assert [delivery.message.id for delivery in self.work()] == ids[1:]

        self.limit(LimitRule(concurrent=1))
        self.clock.advance(6)
        assert self.store.extend(late.ticket, 30)  # one runs, which the answer does not

    @needs("limits")
    def test_a_changed_limit_counts_from_the_next_claim_on(self) -> None:
        self.jobs(6)
        assert len(self.work(limit=3)) == 3

        self.limit(LimitRule(concurrent=2))
        assert self.work() == []
        self.limit(LimitRule(concurrent=4))
        assert len(self.work()) == 1
        self.unlimit()
        assert len(self.work()) == 2

    @needs("limits")
    @needs("shared")
    def test_a_limit_holds_for_everybody_who_has_the_room_open(self) -> None:
        other = self.open_again()
        assert other.claim(self.want("eve", channels=JOBS)).deliveries == []
        self.limit(LimitRule(concurrent=1))
        self.jobs(2)

        assert len(self.work()) == 1
        assert other.claim(self.want("eve", channels=JOBS)).deliveries == []

    @needs("limits")
    def test_claimers_at_once_do_not_pass_a_limit_together(self) -> None:
        self.limit(LimitRule(concurrent=3))
        self.jobs(24)

        came = together(*(partial(self.work, f"agent-{number}") for number in range(8)))

        assert sum(map(len, came)) == 3

    @needs("limits")
    def test_what_is_no_limit_limits_nothing(self) -> None:
        self.store.cell_write(LIMITS, {"channels": {"jobs": {"rules": "none"}}})
        self.jobs(2)

        assert len(self.work()) == 2

    @needs("limits")
    def test_messages_without_an_order_key_stand_for_no_key(self) -> None:
        self.limit(LimitRule(by="order_key", concurrent=1))
        ids = [self.send(None, channel="jobs"), self.send(None, channel="jobs", order_key="None")]

        assert [delivery.message.id for delivery in self.work()] == ids

    # So many a second

    @needs("limits")
    def test_a_rate_lets_a_burst_pass_and_then_one_after_the_other(self) -> None:
        self.limit(LimitRule(per_s=2, burst=3))
        self.jobs(10)
        assert len(self.work()) == 3

        claimed = self.store.claim(self.want("eve", channels=JOBS))
        assert claimed.deliveries == []
        assert claimed.next_due_s == pytest.approx(0.5, abs=0.002)
        self.clock.advance(0.4)
        assert self.work() == []
        self.clock.advance(0.101)
        assert len(self.work()) == 1
        self.clock.advance(60)
        assert len(self.work()) == 3

    @needs("limits")
    def test_a_rate_counts_claims_however_they_end(self) -> None:
        self.limit(LimitRule(per_s=1))
        self.jobs(3)
        (delivery,) = self.work(settle=True)
        assert self.read(delivery.message.id).state == "acked"

        assert self.work() == []
        self.clock.advance(1)
        (delivery,) = self.work()
        self.store.settle(delivery.ticket, "returned")
        assert self.work() == []

    @needs("limits")
    def test_neither_a_rate_nor_a_pause_keeps_a_late_holder_from_its_message(self) -> None:
        self.limit(LimitRule(per_s=0.01))
        self.jobs(1)
        (delivery,) = self.work(lease_s=5)
        self.clock.advance(6)
        assert self.store.extend(delivery.ticket, 5)

        self.limit(LimitRule(per_s=0.01), paused=PAUSED)
        self.clock.advance(6)
        assert self.store.extend(delivery.ticket, 5)

    @needs("limits")
    def test_each_sender_may_have_a_rate_of_its_own(self) -> None:
        self.limit(LimitRule(by="sender", per_s=1))
        ids = [*self.jobs(2, sender="ada"), *self.jobs(1, sender="cy")]

        assert [delivery.message.id for delivery in self.work()] == [ids[0], ids[2]]
        self.clock.advance(1)
        assert [delivery.message.id for delivery in self.work()] == [ids[1]]

    @needs("limits")
    def test_after_a_slow_rate_a_faster_one_begins_at_once(self) -> None:
        self.limit(LimitRule(per_s=0.001))
        self.jobs(4)
        assert len(self.work()) == 1

        self.limit(LimitRule(per_s=2))

        assert len(self.work()) == 1
        self.clock.advance(0.5)
        assert len(self.work()) == 1

    @needs("limits")
    def test_two_rates_of_one_channel_hold_together(self) -> None:
        self.limit(LimitRule(per_s=1), LimitRule(per_s=0.1, burst=2))
        self.jobs(4)
        assert len(self.work()) == 1

        self.clock.advance(1)
        assert len(self.work()) == 1
        self.clock.advance(8)
        assert self.work() == []
        self.clock.advance(1)
        assert len(self.work()) == 1

    # Pauses

    @needs("limits")
    def test_a_pause_holds_for_a_claim_by_id_too(self) -> None:
        self.limit(paused=PAUSED)
        ids = self.jobs(1)

        assert self.claim(ids=tuple(ids)) == []
        self.unlimit()
        assert len(self.claim(ids=tuple(ids))) == 1

    @needs("limits")
    def test_nothing_is_given_of_a_paused_channel(self) -> None:
        self.limit(paused=PAUSED)
        self.jobs(1)
        self.send("bob", channel="jobs")
        plain = self.send("bob")

        assert self.drain("bob") == [plain]
        assert self.drain("bob", channels=JOBS) == []
        self.unlimit()
        assert len(self.drain("bob", channels=JOBS)) == 2

    @needs("limits")
    def test_nothing_is_given_to_a_paused_agent_and_everything_to_others(self) -> None:
        self.store.cell_write(LIMITS, limits_cell(Limits(agents={"bob": PAUSED})))
        self.send("bob")
        self.jobs(1)

        assert self.drain("bob") == []
        assert self.work("bob") == []
        assert len(self.work("eve")) == 1
        self.unlimit()
        assert len(self.drain("bob")) == 1

    @needs("limits")
    def test_what_is_claimed_stays_claimed_through_a_pause(self) -> None:
        self.jobs(1)
        (delivery,) = self.work()
        self.limit(paused=PAUSED)

        assert self.store.extend(delivery.ticket, 60)
        assert self.ack(delivery.ticket).held

    # Waking

    @needs("limits")
    def test_the_end_of_a_message_wakes_a_receiver_that_a_limit_kept_waiting(self) -> None:
        self.limit(LimitRule(concurrent=1))
        self.jobs(2)
        self.send("eve", channel="jobs")
        (delivery,) = self.work(limit=1)

        with self.store.listen([topic_channel("jobs")]) as anyone, self.store.listen([topic_to("eve")]) as own:
            self.work("eve")
            anyone.wait(0)
            own.wait(0)
            self.ack(delivery.ticket)
            assert anyone.wait(10)
            assert own.wait(10)

    @pytest.mark.parametrize("outcome", ["retry", "returned", "dead"])
    @needs("limits")
    def test_so_does_a_message_that_is_put_back_or_set_aside(self, outcome: str) -> None:
        self.limit(LimitRule(concurrent=1))
        self.send("bob", channel="jobs")
        self.send("eve", channel="jobs")
        (delivery,) = self.work()

        with self.store.listen([topic_to("eve")]) as own:
            self.store.settle(delivery.ticket, outcome)
            assert own.wait(10)

    @pytest.mark.parametrize("outcome", ["acked", "refused", "returned"])
    @needs("limits")
    @needs("shared")
    def test_a_holder_that_has_not_read_the_limits_yet_wakes_others_all_the_same(self, outcome: str) -> None:
        other = self.open_again()
        self.send("bob", channel="jobs")
        self.send("eve", channel="jobs")
        (held,) = other.claim(self.want("bob", channels=JOBS)).deliveries
        self.limit(LimitRule(concurrent=1))
        assert self.work("eve") == []

        with self.store.listen([topic_to("eve")]) as own:
            assert not own.wait(0)
            other.settle(held.ticket, outcome)
            assert own.wait(10)

    @needs("limits")
    @needs("shared")
    def test_so_does_housekeeping_that_has_not_read_the_limits_yet(self) -> None:
        other = self.open_again()
        other.sweep()
        self.limit(LimitRule(concurrent=1))
        self.send("bob", channel="jobs")
        self.send("eve", channel="jobs")
        assert len(self.work("bob", lease_s=5)) == 1
        self.clock.advance(6)

        with self.store.listen([topic_to("eve")]) as own:
            assert not own.wait(0)
            other.sweep()
            assert own.wait(10)

    @needs("limits")
    def test_a_change_of_the_limits_wakes_receivers_of_what_waits(self) -> None:
        self.limit(paused=PAUSED)
        self.jobs(1)
        self.send("eve", channel="jobs")

        with self.store.listen([topic_channel("jobs")]) as anyone, self.store.listen([topic_to("eve")]) as own:
            anyone.wait(0)
            own.wait(0)
            self.unlimit()
            assert anyone.wait(10)
            assert own.wait(10)
