"""Taking over messages of another room: as they stand, under their ids, in their order, once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from postroom.core.message import LedgerEntry, MessageWithLedger, check
from postroom.core.states import FINISHED, State
from postroom.errors import InvalidMessage
from postroom.stores.contract import Query, Want

from .workbench import PATIENCE_S, StoreBench, ids_of, needs

_STATES = sorted({State.READY, State.DELAYED, *FINISHED})


def foreign_id(number: int) -> str:
    """An id that another room gave."""
    return f"019a0000-{number:04x}-7abc-8def-0123456789ab"


class Restoring(StoreBench):
    """`restore`."""

    def _foreign(self, number: int = 1, **fields: Any) -> MessageWithLedger:
        """A message of another room, of which every field says something."""
        now_ms = self.clock.wall_ms()
        state = fields.get("exact_state", State.READY)
        given = {
            "id": foreign_id(number),
            "type": "review",
            "payload": {"text": f"message {number}", "list": [1.5, None]},
            "from_agent": "ada",
            "to_agent": "bob",
            "channel": "jobs",
            "priority": 7,
            "timestamp_ms": now_ms - 60_000 + number,
            "correlation_id": "talk",
            "expires_at_ms": now_ms + 3_600_000 if state not in FINISHED else now_ms - 5_000,
            "delivery_count": 2,
            "chain_id": foreign_id(0),
            "hop_count": 3,
            "lane": "human",
            "trace": "00-trace",
            "max_deliveries": 5,
            "error": "it failed before",
            "idempotency_key": f"key {number}",
            "claimed_by": "bob",
            "token": 40,
            "last_delivered_ms": now_ms - 30_000,
            "due_ms": now_ms + 20_000 if state is State.DELAYED else None,
            "answer_to": foreign_id(0),
            "replay_of": foreign_id(9999),
            "order_key": f"key {number}",
            "replaces": foreign_id(9998),
            "ledger": (
                LedgerEntry("stored", now_ms - 60_000 + number, "ada", "as another store says it"),
                LedgerEntry("claimed", now_ms - 30_000, "bob"),
                LedgerEntry("retried", now_ms - 20_000, "bob", 'it "failed", before'),
            ),
        }
        return MessageWithLedger(**{**given, **fields})

    #: These are never said of a message at rest; `version` has one value.
    _AT_REST = frozenset({"owner", "lease_until_ms", "waiter", "version", "exact_state", "due_ms"})

    def test_the_message_of_these_tests_says_something_in_every_field(self) -> None:
        """A new field of messages is to travel: give it a value in `_foreign`."""
        usual, message = MessageWithLedger(id=""), self._foreign()
        same = {name for name in message.__struct_fields__ if getattr(message, name) == getattr(usual, name)}

        assert same <= self._AT_REST, f"{same - self._AT_REST} would not be tested"

    @needs("restores")
    @pytest.mark.parametrize("state", _STATES)
    def test_a_message_of_another_room_is_kept_with_every_field_and_its_ledger(self, state: State) -> None:
        message = self._foreign(exact_state=state)
        assert self.store.restore([message]) == 1

        assert self.store.get(message.id) == message
        plain = {name: getattr(message, name) for name in message.__struct_fields__ if name != "ledger"}
        (found,) = self.store.find(Query(ids=(message.id,))).messages
        assert {name: getattr(found, name) for name in found.__struct_fields__} == plain

    @needs("restores")
    def test_messages_of_one_order_key_keep_their_order_however_the_other_room_listed_them(self) -> None:
        listed = (State.READY, State.BLOCKED, State.READY)
        ids = [foreign_id(number) for number in range(1, 4)]
        self.store.restore([self._foreign(n, exact_state=state, order_key="k") for n, state in enumerate(listed, 1)])

        came = []
        for _ in ids:
            (delivery,) = self.claim(limit=10)
            came.append(delivery.message.id)
            self.ack(delivery.ticket)

        assert came == ids

    @needs("restores")
    def test_messages_of_another_room_are_claimed_in_their_order_behind_those_that_are_there(self) -> None:
        first = self.send("bob", channel="jobs", priority=7)
        self.store.restore([self._foreign(3), self._foreign(1)])
        self.store.restore([self._foreign(2)])
        last = self.send("bob", channel="jobs", priority=7)

        expected = [first, foreign_id(3), foreign_id(1), foreign_id(2), last]
        assert self.found() == expected
        assert self.drain() == expected

    @needs("restores")
    def test_every_new_token_is_larger_than_the_one_that_came_along(self) -> None:
        large = 2**52
        self.store.restore([self._foreign(1, token=large), self._foreign(2, token=large, exact_state=State.DEAD)])
        self.store.requeue([foreign_id(2)])

        tokens = {delivery.message.id: delivery.ticket.token for delivery in self.claim(limit=10)}
        assert tokens.keys() == {foreign_id(1), foreign_id(2)} and min(tokens.values()) > large

    @needs("restores")
    def test_a_moved_message_lives_on_like_any_other(self) -> None:
        self.store.restore([self._foreign()])
        delivery = self.take(ids=(foreign_id(1),))

        assert self.state(foreign_id(1)) is State.CLAIMED
        assert self.store.extend(delivery.ticket, 60)
        assert self.store.note(foreign_id(1), "shown", "bob")
        settled = self.store.settle(delivery.ticket, "retry", detail="again")
        assert settled.held and not self.ack(delivery.ticket).held
        again = self.take(ids=(foreign_id(1),))
        answer = self.draft("ada", "yes", "bob", answer_to=foreign_id(1))
        answered = self.store.settle(again.ticket, "answered", puts=[answer])
        assert answered.state is State.ANSWERED
        assert self.read(answered.ids[0]).answer_to == foreign_id(1)
        assert self.found(answer_to=foreign_id(1)) == answered.ids
        assert self.events_of(foreign_id(1))[3:] == ["claimed", "extended", "shown", "retried", "claimed", "answered"]
        assert self.read(foreign_id(1)).ledger[-1].detail == answered.ids[0]

    @needs("restores")
    def test_taking_over_twice_changes_nothing(self) -> None:
        message = self._foreign()
        self.store.restore([message, self._foreign(2)])
        self.end("acked", ids=(message.id,))
        before = self.read(message.id)

        assert self.store.restore([message, self._foreign(3), self._foreign(2)]) == 1
        assert self.read(message.id) == before
        assert self.found() == [foreign_id(1), foreign_id(2), foreign_id(3)]

    @needs("restores")
    def test_a_room_takes_its_own_messages_back(self) -> None:
        ids = [self.send("bob", text) for text in "abc"]
        self.end("acked", ids=(ids[0],))
        kept = [self.read(id) for id in ids]
        assert self.store.purge(Query(limit=10)) == 3

        assert self.store.restore(kept) == 3
        assert [self.read(id) for id in ids] == kept
        assert self.drain() == ids[1:]

    @needs("restores")
    def test_the_idempotency_keys_of_moved_messages_count(self) -> None:
        self.store.restore([self._foreign(exact_state=State.ACKED, idempotency_key="once")])

        def again(text: str, **fields: Any) -> list[str]:
            payload = {"text": text, "list": [1.5, None]}
            draft = self.draft("bob", channel="jobs", type="review", idempotency_key="once", **fields)
            return self.store.put([replace(draft, payload=payload, payload_json=self._text(payload))])

        assert again("message 1") == [foreign_id(1)]
        with pytest.raises(InvalidMessage, match="idempotency_key"):
            again("another")

    def _text(self, payload: dict[str, Any]) -> str:
        draft = self.draft()
        draft.payload = payload
        return check(draft).payload_json

    @needs("restores")
    def test_the_keys_of_moved_publications_count(self) -> None:
        copies = [
            self._foreign(number, to_agent=name, channel="news", idempotency_key="once", payload={"text": "hello"})
            for number, name in enumerate(("bob", "cy"), 1)
        ]
        self.store.restore(copies[:1])
        self.store.restore(copies[1:])

        assert self.publish("hello", type="review", idempotency_key="once") == [foreign_id(1), foreign_id(2)]

    @needs("restores")
    def test_a_moved_message_expires_and_becomes_due_when_its_room_would_have_said_so(self) -> None:
        waits = replace(self._foreign(1, exact_state=State.DELAYED), expires_at_ms=self.clock.wall_ms() + 40_000)
        self.store.restore([waits])

        assert not self.claim()
        self.clock.advance(20.5)
        assert self.state(waits.id) is State.READY
        self.clock.advance(20)
        assert self.state(waits.id) is State.EXPIRED
        assert not self.claim()
        self.store.sweep()
        assert self.events_of(waits.id)[-1] == "expired"

    @needs("restores")
    def test_the_feed_tells_of_each_moved_message(self) -> None:
        cursor = self.store.number_at()
        self.store.restore([self._foreign(1), self._foreign(2, exact_state=State.DEAD)])

        assert {change.message.id for change in self.store.events(cursor)} == {foreign_id(1), foreign_id(2)}
        assert self.store.stats().states["dead"] == 1
        with self.store.listen([f"message:{foreign_id(1)}"]) as waiter:
            self.end("acked", ids=(foreign_id(1),))
            assert waiter.wait(PATIENCE_S)

    @needs("restores")
    def test_what_was_taken_over_is_forgotten_like_everything_else(self) -> None:
        self.store.restore([self._foreign(number, exact_state=State.ACKED) for number in (1, 2)] + [self._foreign(3)])

        assert self.store.purge(Query(ids=(foreign_id(1), foreign_id(3)), limit=10)) == 2
        assert self.store.get(foreign_id(1)) is None and self.found() == [foreign_id(2)]
        self.clock.advance(8 * 86_400)
        self.store.sweep()
        assert self.found() == []
        assert self.store.restore([self._foreign(1)]) == 1

    @needs("restores")
    @needs("shared")
    def test_others_that_have_the_room_open_know_moved_messages_by_their_ids(self) -> None:
        other = self.open_again()
        other.find(Query())
        message = self._foreign(payload={"text": "x" * 600_000})
        self.store.restore([message])

        assert other.get(message.id) == message
        claimed = other.claim(Want(agent="bob", lease_s=30))
        assert ids_of(claimed) == [message.id]
        assert other.settle(claimed.deliveries[0].ticket, "acked").held
        assert self.state(message.id) is State.ACKED

    @needs("restores")
    @needs("durable")
    def test_moved_messages_are_there_after_opening_anew(self) -> None:
        messages = [self._foreign(1), self._foreign(2, exact_state=State.REFUSED)]
        self.store.restore(messages)
        self.store.close()

        store = self.open_again()
        assert [store.get(message.id) for message in messages] == messages
