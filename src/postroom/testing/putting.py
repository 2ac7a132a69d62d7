"""The promises of `put`: as sent, in order, all or none, once for each idempotency key, a copy for each subscriber."""

from __future__ import annotations

import itertools
import threading
import uuid
from functools import partial

import pytest

from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.errors import InvalidMessage
from postroom.stores.contract import Query

from .workbench import NO_ID, StoreBench, together


class Putting(StoreBench):
    """`put`, `subscribe`, `unsubscribe`."""

    # Kept as it was sent

    def test_a_message_is_read_back_as_it_was_sent(self) -> None:
        draft = Draft(
            from_agent="ada",
            to_agent="bob",
            payload={"text": "hi", "list": [1, 2.5, None, True, {"deep": "ü"}]},
            channel="reviews",
            type="context.query",
            priority=7,
            ttl_s=60,
            correlation_id="c-1",
            idempotency_key="k-1",
            chain_id="chain",
            hop_count=2,
            lane="human",
            trace="00-trace",
            max_deliveries=5,
        )

        (id,) = self.store.put([check(draft)])
        message = self.read(id)

        for field in Draft.__struct_fields__:
            if field in message.__struct_fields__:
                assert getattr(message, field) == getattr(draft, field), field
        assert message.exact_state is State.READY
        assert message.timestamp_ms == self.clock.wall_ms()
        assert message.expires_at_ms == self.clock.wall_ms() + 60_000
        assert message.delivery_count == 0
        assert {message.error, message.claimed_by, message.lease_until_ms} == {None}

    @pytest.mark.parametrize(
        "payload",
        [
            {},
            {"": ""},
            {"number": -(2**63), "large": 2**64 - 1, "small": 1e-300, "whole float": 1.0},
            {"text": "\x00 \u2028 \U0001f4ee ' \" \\ % _ *"},
            {"deep": [[[[{"a": [{}]}]]]]},
        ],
        ids=["empty", "empty names", "numbers", "odd characters", "nested"],
    )
    def test_a_payload_comes_back_exactly(self, payload: dict[str, object]) -> None:
        (id,) = self.store.put([check(Draft(from_agent="ada", to_agent="bob", payload=payload))])

        assert self.read(id).payload == payload
        assert self.take().message.payload == payload

    @pytest.mark.parametrize(
        "name", ["a/b", "ünï", "\U0001f4ee", "x'; DROP TABLE messages; --", "%", "*", "n" * 255, " "]
    )
    def test_every_valid_name_can_be_used_everywhere(self, name: str) -> None:
        id = self.send(name, sender=name, channel=name, type=name, correlation_id=name, idempotency_key=name)
        self.send("somebody else", channel="elsewhere")

        assert self.found(to_agent=name, from_agent=name, channels=(name,), type=name, correlation_id=name) == [id]
        assert self.drain(name, channels=(name,)) == [id]

    def test_what_the_sender_changes_afterwards_is_not_in_the_message(self) -> None:
        draft = self.draft(text=["first"])
        (id,) = self.store.put([draft])

        draft.payload["text"].append("second")
        draft.to_agent = "eve"

        assert self.read(id).payload == {"text": ["first"]}
        assert self.read(id).to_agent == "bob"

    def test_what_a_reader_changes_is_not_in_the_message(self) -> None:
        id = self.send(text=["first"])

        self.read(id).payload["text"].append("second")
        self.take().message.payload["text"].append("third")

        assert self.read(id).payload == {"text": ["first"]}

    def test_ids_are_uuids_of_version_7_and_sort_as_the_messages_do(self) -> None:
        ids = [self.send() for _ in range(20)]

        assert {uuid.UUID(id).version for id in ids} == {7}
        assert all(str(uuid.UUID(id)) == id for id in ids)
        assert sorted(set(ids)) == ids

    def test_an_id_tells_when_its_message_was_sent(self) -> None:
        self.clock.advance(5)

        assert uuid.UUID(self.send()).int >> 80 == self.clock.wall_ms()

    @pytest.mark.parametrize("id", ["", "x", NO_ID, "\U0001f4ee" * 36])
    def test_an_id_that_was_never_given_is_nobodys(self, id: str) -> None:
        self.send()

        assert self.store.get(id) is None
        assert self.claim(ids=(id,)) == []
        assert self.store.note(id, "shown", "bob") is False
        assert self.store.requeue([id]) == []
        assert self.found(answer_to=id) == []

    def test_an_id_of_another_casing_or_room_is_unknown(self) -> None:
        id = self.send()
        other = id[:-1] + ("0" if id[-1] != "0" else "1")

        assert self.store.get(other) is None
        assert self.store.get(id.upper()) is None or id.upper() == id

    # Order

    def test_messages_put_together_stand_in_their_order(self) -> None:
        ids = self.store.put([self.draft(text=n) for n in range(50)])

        assert self.drain() == ids
        assert [self.read(id).payload["text"] for id in ids] == list(range(50))

    def test_nothing_put_is_nothing_stored(self) -> None:
        assert self.store.put([]) == []
        assert self.found() == []

    def test_first_in_is_first_out_also_within_one_moment_of_the_clock(self) -> None:
        ids = [self.send() for _ in range(50)]

        assert self.drain() == ids

    @pytest.mark.parametrize("jump_s", [-3600, 3600])
    def test_first_in_is_first_out_also_when_the_wall_clock_jumps(self, jump_s: float) -> None:
        ids = [self.send() for _ in range(3)]
        self.clock.jump_wall(jump_s)
        ids += [self.send() for _ in range(3)]
        self.clock.jump_wall(-2 * jump_s)
        ids += [self.send() for _ in range(3)]

        assert self.found() == ids
        assert self.drain() == ids

    def test_order_is_commit_order_over_all_senders(self) -> None:
        """A put that returned before another began stands before it."""
        ticks, count = itertools.count(), 60
        spans: dict[str, tuple[int, int]] = {}

        def sender(name: str) -> None:
            for number in range(count):
                began = next(ticks)
                id = self.send(text=number, sender=name)
                spans[id] = (began, next(ticks))

        together(*(partial(sender, f"sender-{n}") for n in range(4)))
        order = self.drain()

        assert sorted(order) == sorted(spans)
        latest_began = -1
        for id in order:
            began, ended = spans[id]
            assert ended > latest_began, "a message stands behind one that was sent after it was stored"
            latest_began = max(latest_began, began)

    # All or none

    def test_of_messages_put_together_all_are_stored_or_none(self) -> None:
        self.send(text="first", idempotency_key="k")

        with pytest.raises(InvalidMessage):
            self.store.put([self.draft(text="new"), self.draft(text="another", idempotency_key="k")])

        assert [message.payload["text"] for message in self.store.find(Query()).messages] == ["first"]

    # Idempotency keys

    def test_a_repeated_key_stores_nothing_and_gives_the_first_id(self) -> None:
        first = self.send(idempotency_key="k")

        assert self.send(idempotency_key="k") == first
        assert self.found() == [first]

    def test_a_key_is_remembered_after_the_message_is_finished(self) -> None:
        first = self.send(idempotency_key="k")
        self.ack(self.take().ticket)

        assert self.send(idempotency_key="k") == first
        assert self.state(first) is State.ACKED
        assert self.claim() == []

    def test_a_key_repeated_within_one_put_is_one_message(self) -> None:
        ids = self.store.put([self.draft(idempotency_key="k"), self.draft(idempotency_key="k")])

        assert ids[0] == ids[1]
        assert self.found() == ids[:1]

    @pytest.mark.parametrize(
        "other", [{"text": "other"}, {"to": "eve"}, {"to": None}, {"channel": "other"}, {"type": "other"}]
    )
    def test_a_known_key_with_another_content_is_refused(self, other: dict[str, str]) -> None:
        first = self.send(idempotency_key="k")

        with pytest.raises(InvalidMessage) as caught:
            self.send(**{"idempotency_key": "k", **other})

        assert "idempotency_key" in str(caught.value)
        assert self.found() == [first]

    def test_a_key_belongs_to_its_sender(self) -> None:
        assert self.send(sender="ada", idempotency_key="k") != self.send(sender="eve", idempotency_key="k")

    def test_a_key_is_free_again_when_its_message_is_no_longer_kept(self) -> None:
        first = self.send(idempotency_key="k")
        self.store.purge(Query())

        second = self.send(text="other", idempotency_key="k")

        assert second != first
        assert self.found() == [second]

    def test_one_key_used_by_many_at_once_is_one_message(self) -> None:
        ids = together(*(lambda: [self.send(idempotency_key=f"k{n}") for n in range(10)] for _ in range(4)))

        assert ids == [ids[0]] * 4
        assert self.found() == ids[0]

    # Publish and subscribe

    def test_every_subscriber_gets_a_copy(self) -> None:
        for agent in ("bob", "eve"):
            self.store.subscribe("news", agent)
        self.store.subscribe("sport", "dan")

        ids = self.publish("extra!")

        assert len(set(ids)) == 2
        assert sorted(str(self.read(id).to_agent) for id in ids) == ["bob", "eve"]
        for agent in ("bob", "eve"):
            (delivery,) = self.claim(agent, limit=5)
            assert (delivery.message.payload, delivery.message.channel) == ({"text": "extra!"}, "news")
        assert self.claim("dan") == []
        assert self.claim("zoe", channels=("news",)) == []

    def test_copies_are_messages_of_their_own(self) -> None:
        self.store.subscribe("news", "bob")
        self.store.subscribe("news", "eve")
        ids = self.publish()

        self.ack(self.take("bob").ticket)

        assert sorted(self.state(id) for id in ids) == [State.READY, State.ACKED]

    def test_publishing_to_nobody_stores_nothing(self) -> None:
        assert self.publish() == []
        assert self.found() == []

    def test_the_publisher_is_a_subscriber_like_others(self) -> None:
        self.store.subscribe("news", "ada")

        assert len(self.publish()) == 1
        assert len(self.claim("ada")) == 1

    def test_who_subscribes_later_or_no_more_gets_no_copy(self) -> None:
        self.store.subscribe("news", "bob")
        (first,) = self.publish()
        assert self.store.unsubscribe("news", "bob") is True
        self.store.subscribe("news", "eve")
        (second,) = self.publish()

        assert self.drain("bob") == [first]
        assert self.drain("eve") == [second]

    def test_a_publication_repeated_under_its_key_stores_nothing_and_gives_the_first_ids(self) -> None:
        self.store.subscribe("news", "bob")
        self.store.subscribe("news", "eve")
        first, again = (self.publish(idempotency_key="k") for _ in range(2))

        assert len(first) == 2
        assert sorted(again) == sorted(first) == sorted(self.found())

    def test_subscribing_twice_is_subscribing_once(self) -> None:
        self.store.subscribe("news", "bob")
        since_ms = self.clock.wall_ms()
        self.clock.advance(5)
        self.store.subscribe("news", "bob")

        assert self.store.subscriptions() == [("news", "bob", since_ms)]
        assert len(self.publish()) == 1
        assert self.store.unsubscribe("news", "bob") is True
        assert self.store.unsubscribe("news", "bob") is False
        assert self.store.subscriptions() == []

    def test_subscriptions_are_told_by_channel_and_agent(self) -> None:
        for channel, agent in (("b", "x"), ("a", "y"), ("a", "x")):
            self.store.subscribe(channel, agent)

        assert [entry[:2] for entry in self.store.subscriptions()] == [("a", "x"), ("a", "y"), ("b", "x")]

    def test_subscribing_while_others_publish_gives_whole_copies_only(self) -> None:
        stop = threading.Event()

        def publish() -> list[str]:
            ids: list[str] = []
            while not stop.is_set() and len(ids) < 300:
                ids += self.publish()
            return ids

        def subscribe() -> list[str]:
            for _ in range(20):
                self.store.subscribe("news", "bob")
                self.store.unsubscribe("news", "bob")
            stop.set()
            return []

        published, _ = together(publish, subscribe)

        assert self.found(limit=1000) == published
        assert self.drain("bob") == published
