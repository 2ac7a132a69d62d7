"""What `claim` promises: the best first, only what the agent may have, to one claimer at a time."""

from __future__ import annotations

from functools import partial

import pytest

from postroom.core.states import State
from postroom.core.system.process import this_process
from postroom.stores.contract import Claimed

from .workbench import StoreBench, needs, together


class Claiming(StoreBench):
    """`claim`, and what `Want` means."""

    # Which come first

    def test_the_highest_priority_comes_first_and_the_first_in_within_one(self) -> None:
        priorities = [5, 1, 10, 5, 10, 1]
        ids = [self.send(priority=priority) for priority in priorities]

        assert self.drain() == [ids[place] for place in (2, 4, 0, 3, 1, 5)]

    def test_one_by_one_they_come_in_the_same_order_as_together(self) -> None:
        ids = [self.send(priority=1 + n % 3) for n in range(12)]

        one_by_one = [self.take().message.id for _ in ids]

        assert one_by_one == sorted(ids, key=lambda each: (-self.read(each).priority, each))

    def test_the_highest_priority_comes_first_over_all_channels_asked_for(self) -> None:
        low = self.send(channel="a", priority=1)
        high = self.send(channel="b", priority=9)
        for_anyone = self.send(None, channel="a", priority=5)

        assert self.drain(channels=("a", "b")) == [high, for_anyone, low]

    def test_the_highest_priority_comes_first_over_all_channels_of_an_agent(self) -> None:
        low = self.send(channel="general", priority=1)
        high = self.send(channel="b", priority=9)
        middle = self.send(channel="c", priority=5)

        assert self.drain() == [high, middle, low]

    def test_a_limit_takes_the_best_and_leaves_the_others(self) -> None:
        ids = [self.send(priority=priority) for priority in (1, 9, 5)]

        taken = [delivery.message.id for delivery in self.claim(limit=2)]

        assert taken == [ids[1], ids[2]]
        assert self.state(ids[0]) is State.READY

    # Which an agent may have

    def test_without_channels_an_agent_gets_all_that_is_addressed_to_it(self) -> None:
        mine = [self.send("bob", channel=channel) for channel in ("general", "a", "b")]
        self.send("eve")
        self.send(None)
        self.send(None, channel="a")

        assert self.drain("bob") == mine

    def test_with_channels_an_agent_gets_what_lies_there_for_it_or_for_anyone(self) -> None:
        mine = self.send("bob", channel="a")
        anyones = self.send(None, channel="a")
        general = self.send(None, channel="general")
        self.send("eve", channel="a")
        self.send("bob", channel="b")
        self.send(None, channel="b")

        assert self.drain("bob", channels=("a", "general")) == [mine, anyones, general]

    def test_a_channel_named_twice_counts_once(self) -> None:
        ids = [self.send(None, channel="a"), self.send(channel="a")]

        assert self.drain(channels=("a", "a")) == ids

    def test_no_channels_at_all_is_nothing(self) -> None:
        self.send()
        self.send(None)

        assert self.claim(channels=()) == []

    def test_the_default_channel_can_be_named_like_any_other(self) -> None:
        mine, anyones = self.send("bob"), self.send(None)
        self.send("bob", channel="a")

        assert self.drain("bob", channels=("general",)) == [mine, anyones]

    # By id

    def test_a_message_can_be_claimed_by_its_id(self) -> None:
        first, second, third = (self.send() for _ in range(3))

        assert self.drain(ids=(second,)) == [second]
        assert self.drain() == [first, third]

    @pytest.mark.parametrize(
        ("channels", "places"),
        [
            (None, [("bob", "general"), ("bob", "a"), ("bob", "b")]),
            (("general",), [("bob", "general"), (None, "general")]),
            (("a",), [("bob", "a"), (None, "a")]),
            (("a", "general"), [("bob", "a"), (None, "a"), ("bob", "general"), (None, "general")]),
        ],
        ids=["all", "general", "a", "a and general"],
    )
    @pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
    def test_one_at_a_time_the_best_of_all_places_comes_first(
        self, channels: tuple[str, ...] | None, places: list[tuple[str | None, str]], backwards: bool
    ) -> None:
        """Whichever place it lies in: by priority, and by age among equals."""
        order = places[::-1] if backwards else places
        low = [self.send(to, channel=channel, priority=3) for to, channel in order]
        high = [self.send(to, channel=channel, priority=7) for to, channel in order]

        taken = [self.take("bob", channels=channels, limit=1).message.id for _ in low + high]

        assert taken == high + low

    def test_several_ids_come_best_first_and_each_once(self) -> None:
        low, high = self.send(priority=1), self.send(priority=9)

        assert self.drain(ids=(low, high, low)) == [high, low]
        assert self.read(low).delivery_count == 1

    def test_by_id_an_agent_gets_only_what_it_may_have(self) -> None:
        eves, anyones = self.send("eve"), self.send(None, channel="a")

        assert self.drain("bob", ids=(eves, anyones)) == [anyones]
        assert self.state(eves) is State.READY

    def test_what_is_not_ready_cannot_be_claimed_by_id_either(self) -> None:
        delayed = self.send(delay_s=10)
        expired = self.send(ttl_s=1)
        claimed, finished = self.send(), self.send()
        self.take("bob", ids=(claimed,), lease_s=60)
        self.ack(self.take("bob", ids=(finished,)).ticket)
        self.clock.advance(2)

        assert self.claim("bob", ids=(delayed, expired, claimed, finished), limit=9) == []

        self.clock.advance(8)
        assert self.drain("bob", ids=(delayed,)) == [delayed]

    # What a claim does

    def test_a_claimed_message_is_nobody_elses(self) -> None:
        id = self.send(None, channel="work")
        self.take("bob", channels=("work",))

        assert self.claim("eve", channels=("work",)) == []
        assert self.claim("bob", channels=("work",)) == []
        assert self.state(id) is State.CLAIMED

    def test_a_process_that_runs_is_alive_one_that_is_gone_is_not_and_of_others_nothing_is_claimed(self) -> None:
        host, pid, _ = this_process().split(":")

        assert self.store.process_alive(this_process()) is True
        assert self.store.process_alive(self.store.process) is True
        assert self.store.process_alive(f"{host}:{pid}:1") is False
        assert self.store.process_alive("another-host.1:1:1") is None

    def test_a_claim_is_written_down_before_the_claimer_sees_it(self) -> None:
        id = self.send()
        self.clock.advance(1)

        delivery = self.take("bob", lease_s=20, owner=this_process())

        for message in (delivery.message, self.read(id)):
            assert message.id == id
            assert message.exact_state is State.CLAIMED
            assert message.delivery_count == 1
            assert message.claimed_by == "bob"
            assert message.owner == this_process()
            assert message.token == delivery.ticket.token
            assert message.last_delivered_ms == self.clock.wall_ms()
            assert message.lease_until_ms == self.clock.wall_ms() + 20_000
        assert delivery.ticket[::2] == (id, "bob")
        assert self.events_of(id) == ["stored", "claimed"]
        entry = self.read(id).ledger[1]
        assert (entry.event, entry.time_ms, entry.agent) == ("claimed", self.clock.wall_ms(), "bob")

    def test_a_claim_may_belong_to_the_agent_alone(self) -> None:
        id = self.send()
        self.take("bob", owner=None)

        assert self.read(id).owner is None

    def test_taking_and_acking_can_be_one_step(self) -> None:
        id = self.send()

        delivery = self.take(settle=True)

        assert delivery.message.id == id
        assert self.state(id) is State.ACKED
        assert self.events_of(id) == ["stored", "claimed", "acked"]
        assert self.read(id).delivery_count == 1
        assert self.read(id).claimed_by == "bob"
        assert self.ack(delivery.ticket).held is False
        assert self.claim() == []

    def test_an_empty_room_gives_nothing_and_nothing_is_due(self) -> None:
        assert self.store.claim(self.want()) == Claimed([], None)

    @pytest.mark.parametrize("limit", [1, 5])
    def test_a_claim_tells_when_something_may_be_due(self, limit: int) -> None:
        self.send(delay_s=10)
        self.send(delay_s=4)

        claimed = self.store.claim(self.want(limit=limit))

        assert claimed.deliveries == []
        assert claimed.next_due_s == pytest.approx(4, abs=0.01)

    def test_a_claim_tells_when_a_lease_will_end(self) -> None:
        self.send()
        self.take(lease_s=7)
        self.clock.advance(2)

        assert self.store.claim(self.want()).next_due_s == pytest.approx(5, abs=0.01)

    def test_a_token_grows_with_every_claim_retry_and_requeue(self) -> None:
        id = self.send(max_deliveries=2)
        tokens = []
        for _ in range(2):
            for _ in range(2):
                delivery = self.take()
                tokens.append(delivery.ticket.token)
                self.store.settle(delivery.ticket, "retry", detail="again")
            self.store.requeue([id])

        assert tokens == sorted(set(tokens))

    # Several claimers at once

    def test_racing_claimers_get_each_message_once(self) -> None:
        ids = self.store.put([self.draft(None, n, channel="work") for n in range(200)])

        def work(name: str) -> list[str]:
            taken: list[str] = []
            while deliveries := self.claim(name, channels=("work",), limit=3, lease_s=600):
                taken += [delivery.message.id for delivery in deliveries]
            return taken

        shares = together(*(partial(work, f"worker-{n}") for n in range(4)))

        assert sorted(id for share in shares for id in share) == ids
        assert {self.read(id).delivery_count for id in ids} == {1}

    @needs("exact_fifo")
    def test_racing_claimers_get_messages_in_order(self) -> None:
        for number in range(150):
            self.send(None, number, channel="work")

        def work(name: str) -> list[int]:
            numbers: list[int] = []
            while deliveries := self.claim(name, channels=("work",), lease_s=600, settle=True):
                numbers.append(deliveries[0].message.payload["text"])
            return numbers

        shares = together(*(partial(work, f"worker-{n}") for n in range(4)))

        assert sorted(number for share in shares for number in share) == list(range(150))
        for share in shares:
            assert share == sorted(share)

    def test_messages_can_be_claimed_while_others_are_put(self) -> None:
        count = 150

        def send() -> list[int]:
            for number in range(count):
                self.send(text=number)
            return []

        def receive() -> list[int]:
            numbers: list[int] = []
            while len(numbers) < count:
                numbers += [delivery.message.payload["text"] for delivery in self.claim(limit=5, settle=True)]
            return numbers

        _, received = together(send, receive)

        assert received == list(range(count))
