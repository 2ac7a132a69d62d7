"""What `settle`, `extend`, `heartbeat`, `note` and `requeue` promise: fenced, in one step, written down."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from postroom.core.message import LedgerEntry
from postroom.core.states import State
from postroom.core.system.process import process_name
from postroom.errors import InvalidMessage
from postroom.stores.contract import OUTCOMES, Ticket, WorkDone

from .workbench import NO_ID, StoreBench, gone_process, ids_of, needs, together

ENDINGS = {"acked": State.ACKED, "answered": State.ANSWERED, "refused": State.REFUSED, "dead": State.DEAD}


class Settling(StoreBench):
    """`settle`, `extend`, `heartbeat`, `note`, `requeue`."""

    # Outcomes

    @pytest.mark.parametrize("outcome", ENDINGS)
    def test_a_settled_message_is_at_its_end(self, outcome: str) -> None:
        id = self.send()
        ticket = self.take().ticket
        self.clock.advance(1)

        settled = self.store.settle(ticket, outcome, detail="so it is")

        assert settled == (True, ENDINGS[outcome], [], None)
        assert self.state(id) is ENDINGS[outcome]
        assert self.events_of(id) == ["stored", "claimed", outcome]
        last = self.read(id).ledger[-1]
        assert (last.time_ms, last.agent, last.detail) == (self.clock.wall_ms(), "bob", "so it is")
        self.clock.advance(1000)
        assert self.claim() == []
        assert self.state(id) is ENDINGS[outcome]

    @pytest.mark.parametrize("outcome", ["refused", "dead"])
    def test_a_bad_end_keeps_its_reason(self, outcome: str) -> None:
        id = self.send()
        self.end(outcome, detail="no such file")

        assert self.read(id).error == "no such file"

    def test_an_unknown_outcome_is_an_error_and_changes_nothing(self) -> None:
        id = self.send()
        ticket = self.take().ticket

        with pytest.raises(ValueError):
            self.store.settle(ticket, "forgotten")

        assert self.state(id) is State.CLAIMED
        assert self.ack(ticket).held

    # Retry

    def test_a_retried_message_is_delivered_again_at_once(self) -> None:
        id = self.send()

        settled = self.end("retry", detail="try again")

        assert settled[:2] == (True, State.READY)
        assert self.read(id).error == "try again"
        assert self.events_of(id) == ["stored", "claimed", "retried"]
        assert self.take("bob").message.delivery_count == 2

    def test_a_retried_message_is_delivered_again_after_its_delay(self) -> None:
        id = self.send()

        settled = self.end("retry", delay_s=5)

        assert settled[:2] == (True, State.DELAYED)
        assert self.read(id).due_ms == self.clock.wall_ms() + 5000
        self.clock.advance(4.9)
        assert self.claim() == []
        self.clock.advance(0.1)
        assert self.take().message.id == id

    @pytest.mark.parametrize("how", ["retried", "put back", "let go", "delayed"])
    def test_a_message_that_comes_back_or_was_delayed_has_the_place_of_its_sending(self, how: str) -> None:
        first = self.send(delay_s=1 if how == "delayed" else 0)
        if how == "retried":
            self.end("retry", delay_s=1)
        elif how == "put back":
            self.end("dead")
        elif how == "let go":
            self.take(lease_s=1)
        second = self.send()
        self.store.requeue([first])
        self.clock.advance(1)
        third = self.send()

        assert self.drain() == [first, second, third]

    def test_a_retry_on_the_last_allowed_delivery_sets_the_message_aside(self) -> None:
        id = self.send(max_deliveries=2)
        self.end("retry", detail="first failure")

        settled = self.end("retry", detail="second failure", delay_s=5)

        assert settled[:2] == (True, State.DEAD)
        message = self.read(id)
        assert (message.exact_state, message.error, message.delivery_count) == (State.DEAD, "second failure", 2)
        assert self.events_of(id) == ["stored", "claimed", "retried", "claimed", "dead"]
        assert [entry.detail for entry in message.ledger][2::2] == ["first failure", "second failure"]
        self.clock.advance(100)
        assert self.claim() == []

    def test_what_is_returned_unseen_is_ready_at_once_and_its_delivery_does_not_count(self) -> None:
        id = self.send(max_deliveries=2)

        for _ in range(5):
            settled = self.end("returned", detail="nobody saw it")
            assert (settled.held, settled.state) == (True, State.READY)

        message = self.read(id)
        assert (message.delivery_count, message.claimed_by, message.error) == (0, None, None)
        assert self.events_of(id) == ["stored", *["claimed", "returned"] * 5]
        assert self.store.work_of("bob") == WorkDone(0, 0)
        assert self.take().message.delivery_count == 1

    # Fencing

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_a_stale_ticket_changes_nothing(self, outcome: str) -> None:
        id = self.send()
        stale = self.take("bob", lease_s=5).ticket
        self.clock.advance(6)
        fresh = self.take("bob", lease_s=60).ticket
        before = self.read(id)

        settled = self.store.settle(stale, outcome, detail="late", puts=[self.draft("eve")])

        assert settled.held is False
        assert settled.ids == []
        assert self.read(id) == before
        assert self.claim("eve") == []
        assert self.store.extend(stale, 600) is False
        assert self.read(id) == before
        assert self.ack(fresh).held is True

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_a_ticket_counts_once(self, outcome: str) -> None:
        id = self.send()
        ticket = self.take().ticket
        self.store.settle(ticket, outcome, detail="first")
        before = self.read(id)

        for again in OUTCOMES:
            assert self.store.settle(ticket, again, detail="second").held is False
        assert self.store.extend(ticket, 600) is False
        assert self.read(id) == before

    def test_a_ticket_no_longer_counts_after_a_requeue(self) -> None:
        id = self.send()
        ticket = self.take().ticket
        self.store.settle(ticket, "dead", detail="hopeless")
        self.store.requeue([id])

        assert self.ack(ticket).held is False
        assert self.state(id) is State.READY

    def test_a_ticket_with_a_made_up_token_does_not_count(self) -> None:
        claimed, waiting = self.send(), self.send()
        ticket = self.take().ticket

        for wrong in (
            Ticket(claimed, ticket.token + 1, "bob"),
            Ticket(claimed, ticket.token - 1, "bob"),
            Ticket(waiting, ticket.token, "bob"),
            Ticket(NO_ID, 1, "bob"),
        ):
            assert self.ack(wrong).held is False
        assert (self.state(claimed), self.state(waiting)) == (State.CLAIMED, State.READY)

    def test_of_several_who_settle_at_once_one_counts(self) -> None:
        for _ in range(30):
            self.send()
            ticket = self.take().ticket
            settled = together(*(partial(self.store.settle, ticket, how) for how in ("acked", "refused", "retry")))
            assert [each.held for each in settled].count(True) == 1
            self.drain(settle=True)

    def test_a_stale_ack_that_races_the_next_owner_never_counts_with_it(self) -> None:
        for _ in range(60):
            id = self.send()
            stale = self.take(lease_s=1).ticket
            self.clock.advance(2)

            fresh: list[Ticket] = []

            def acks(ticket: Ticket) -> bool:
                return self.ack(ticket).held

            def claims(taken: list[Ticket]) -> bool:
                taken += [delivery.ticket for delivery in self.claim(lease_s=600)]
                return bool(taken)

            late, taken = together(partial(acks, stale), partial(claims, fresh))

            assert late is not taken, "the message had two owners, or none"
            assert self.state(id) is (State.ACKED if late else State.CLAIMED)
            assert [self.ack(ticket).held for ticket in fresh] == [True] * taken

    # With the answer and the next claim in one step

    def test_settling_stores_what_is_put_with_it(self) -> None:
        id = self.send()

        settled = self.end("answered", puts=[self.draft("ada", "yes", "bob"), self.draft("eve")])

        assert settled.state is State.ANSWERED
        assert settled.ids == [*self.drain("ada"), *self.drain("eve")]
        assert self.read(settled.ids[0]).payload == {"text": "yes"}
        assert self.state(id) is State.ANSWERED

    def test_the_ledger_of_an_answered_message_names_its_answer(self) -> None:
        id = self.send()
        settled = self.end("answered", puts=[self.draft("ada", answer_to=id)])

        assert self.read(id).ledger[-1].detail == settled.ids[0]

    def test_settling_can_claim_the_next(self) -> None:
        first, second = self.send(), self.send()

        settled = self.end("acked", claim_next=self.want())

        assert settled.held
        assert ids_of(settled.claimed) == [second]
        assert (self.state(first), self.state(second)) == (State.ACKED, State.CLAIMED)
        assert settled.claimed and self.ack(settled.claimed.deliveries[0].ticket).held

    def test_the_next_claim_may_find_nothing(self) -> None:
        self.send()

        assert ids_of(self.end("acked", claim_next=self.want()).claimed) == []

    def test_the_next_is_claimed_also_when_the_ticket_no_longer_counts(self) -> None:
        self.send()
        ticket = self.take().ticket
        self.ack(ticket)
        second = self.send()

        settled = self.ack(ticket, claim_next=self.want(), puts=[self.draft("eve")])

        assert settled.held is False
        assert ids_of(settled.claimed) == [second]
        assert self.claim("eve") == []

    def test_what_is_put_with_a_settling_can_be_the_next_that_is_claimed(self) -> None:
        self.send()

        settled = self.end("acked", puts=[self.draft("bob", "next")], claim_next=self.want())

        assert ids_of(settled.claimed) == settled.ids

    def test_a_retried_message_can_be_the_next_that_is_claimed(self) -> None:
        id = self.send()

        settled = self.end("retry", claim_next=self.want())

        assert ids_of(settled.claimed) == [id]
        assert self.read(id).delivery_count == 2

    @needs("atomic_settle")
    def test_if_the_answer_is_refused_the_message_is_not_settled(self) -> None:
        self.send("eve", sender="bob", idempotency_key="k")
        id, other = self.send(), self.send()
        ticket = self.take().ticket

        with pytest.raises(InvalidMessage):
            self.store.settle(
                ticket,
                "answered",
                puts=[self.draft("ada", sender="bob"), self.draft("eve", "changed", "bob", idempotency_key="k")],
                claim_next=self.want(),
            )

        assert (self.state(id), self.state(other)) == (State.CLAIMED, State.READY)
        assert self.claim("ada") == []
        assert self.ack(ticket).held

    # Extending

    def test_an_extended_lease_ends_that_much_later(self) -> None:
        id = self.send()
        ticket = self.take(lease_s=10).ticket
        self.clock.advance(9)

        assert self.store.extend(ticket, 10) is True

        assert self.read(id).lease_until_ms == self.clock.wall_ms() + 10_000
        assert self.events_of(id) == ["stored", "claimed", "extended"]
        self.clock.advance(9)
        assert self.claim() == []
        self.clock.advance(1)
        assert self.take().message.delivery_count == 2

    def test_a_lease_that_was_extended_after_its_end_still_ends_with_its_process(self) -> None:
        id = self.send()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            owner = process_name(other.pid)
            ticket = self.take(lease_s=10, owner=owner).ticket
            self.clock.advance(11)
            self.store.sweep()  # a look now sees that it is free
            assert (self.state(id), self.read(id).owner) == (State.READY, None)

            assert self.store.extend(ticket, 600) is True
            assert (self.state(id), self.read(id).owner) == (State.CLAIMED, owner)
            self.clock.advance(1)
            assert self.claim() == []
            other.kill()
            other.wait()
            self.clock.advance(1)

            assert self.take().message.delivery_count == 2
        assert "process is gone" in str(self.read(id).ledger[-2].detail)

    def test_an_extended_lease_still_ends_with_its_process(self) -> None:
        id = self.send()
        ticket = self.take(lease_s=10, owner=gone_process()).ticket
        self.store.extend(ticket, 600)
        self.clock.advance(1)

        assert self.take().message.id == id

    def test_an_extension_may_also_shorten_a_lease(self) -> None:
        id = self.send()
        self.store.extend(self.take(lease_s=100).ticket, 5)
        self.clock.advance(5)

        assert self.take().message.id == id

    # Heartbeats

    def test_a_heartbeat_lets_no_lease_end_sooner_and_tells_nobody(self) -> None:
        ids = [self.send(), self.send(), self.send()]
        tickets = [self.take(lease_s=10).ticket for _ in ids]
        self.store.extend(tickets[2], 100)
        before, ledgers = self.store.number_at(), [self.read(id).ledger for id in ids]
        self.clock.advance(9)

        assert self.store.heartbeat(tickets, 10) == []

        assert [self.read(id).lease_until_ms for id in ids] == [
            self.clock.wall_ms() + ms for ms in (10_000, 10_000, 91_000)
        ]
        assert [self.read(id).ledger for id in ids] == ledgers
        assert self.store.events(before) == []
        self.clock.advance(9)
        assert self.claim() == []
        assert self.store.heartbeat(tickets, 10) == []
        assert [self.ack(ticket).held for ticket in tickets] == [True] * 3
        assert [change.message.id for change in self.store.events(before)] == ids

    def test_a_heartbeat_names_the_tickets_that_no_longer_count(self) -> None:
        ids = [self.send() for _ in range(4)]
        settled, retried, taken, held = [self.take(lease_s=10).ticket for _ in ids]
        self.ack(settled)
        self.store.settle(retried, "retry", delay_s=60)
        self.store.heartbeat([held], 30)
        self.clock.advance(11)
        self.take("bob", ids=(taken.id,), lease_s=60)
        unknown = Ticket(NO_ID, 1, "bob")
        ledgers = [self.read(id).ledger for id in ids]

        assert self.store.heartbeat([settled, retried, held, taken, unknown], 60) == [settled, retried, taken, unknown]

        assert [self.read(id).ledger for id in ids] == ledgers
        assert self.read(held.id).lease_until_ms == self.clock.wall_ms() + 60_000
        assert self.store.heartbeat([], 60) == []

    def test_a_heartbeat_after_the_end_of_a_lease_claims_again_what_nobody_took(self) -> None:
        id = self.send()
        ticket = self.take(lease_s=10).ticket
        self.clock.advance(11)
        self.store.sweep()
        assert self.state(id) is State.READY

        assert self.store.heartbeat([ticket], 10) == []

        assert self.state(id) is State.CLAIMED
        assert self.events_of(id) == ["stored", "claimed", "released", "extended"]
        assert self.claim() == []

    def test_a_lease_that_heartbeats_keep_still_ends_with_its_process(self) -> None:
        id = self.send()
        ticket = self.take(lease_s=10, owner=gone_process()).ticket
        assert self.store.heartbeat([ticket], 600) == []
        self.clock.advance(1)

        assert self.take().message.id == id

    # Notes

    def test_what_a_door_did_is_noted_in_the_ledger(self) -> None:
        id = self.send()
        self.clock.advance(1)

        assert self.store.note(id, "shown", "bob", "in a terminal") is True

        entry = self.read(id).ledger[-1]
        assert entry == LedgerEntry("shown", self.clock.wall_ms(), "bob", "in a terminal")
        assert self.state(id) is State.READY

    def test_a_finished_message_can_still_be_noted(self) -> None:
        id = self.send()
        self.take(settle=True)

        assert self.store.note(id, "notified", None) is True
        assert self.state(id) is State.ACKED
        assert self.events_of(id)[-1] == "notified"

    def test_a_full_ledger_takes_no_more_notes_but_every_change_of_state(self) -> None:
        id = self.send()
        for _ in range(100):
            self.store.note(id, "shown", "bob", "x" * 1000)

        kept = self.events_of(id).count("shown")
        self.ack(self.take().ticket)

        assert 60 <= kept <= 66
        assert self.events_of(id)[kept + 1 :] == ["claimed", "acked"]

    # Putting back

    @pytest.mark.parametrize("outcome", ["refused", "dead"])
    def test_a_message_that_ended_badly_can_be_put_back(self, outcome: str) -> None:
        id = self.send(max_deliveries=2)
        self.end("retry", detail="first")
        self.end(outcome, detail="second")

        assert self.store.requeue([id]) == [id]

        message = self.read(id)
        assert (message.exact_state, message.delivery_count) == (State.READY, 0)
        assert message.error is message.claimed_by is None
        assert self.events_of(id) == ["stored", "claimed", "retried", "claimed", outcome, "requeued"]
        assert [entry.detail for entry in message.ledger if entry.detail][:2] == ["first", "second"]

    def test_a_message_put_back_has_all_its_deliveries_anew(self) -> None:
        id = self.send(max_deliveries=2)
        self.kill_by_retries(id)
        self.store.requeue([id])

        self.end("retry")
        assert self.state(id) is State.READY
        self.end("retry")
        assert self.state(id) is State.DEAD

    def test_only_what_ended_badly_can_be_put_back(self) -> None:
        delayed, acked, claimed, ready, dead = self.send(delay_s=5), *(self.send() for _ in range(4))
        self.take(ids=(acked,), settle=True)
        self.take(ids=(claimed,))
        self.store.settle(self.take(ids=(dead,)).ticket, "dead")

        assert self.store.requeue([delayed, acked, claimed, dead, ready, dead]) == [dead]
        states = [self.state(id) for id in (delayed, acked, claimed, ready)]
        assert states == [State.DELAYED, State.ACKED, State.CLAIMED, State.READY]

    def test_an_expired_message_put_back_does_not_expire_again(self) -> None:
        id = self.send(ttl_s=5)
        self.clock.advance(6)
        assert self.state(id) is State.EXPIRED

        assert self.store.requeue([id]) == [id]

        self.clock.advance(100)
        assert self.read(id).expires_at_ms is None
        assert self.take().message.id == id

    def test_a_message_put_back_before_its_expiry_still_expires(self) -> None:
        id = self.send(ttl_s=50)
        self.end("dead")
        self.store.requeue([id])
        self.clock.advance(51)

        assert self.state(id) is State.EXPIRED
        assert self.claim() == []
