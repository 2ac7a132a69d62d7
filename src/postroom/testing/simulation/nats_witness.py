"""The witness: sees what each write changes in the stream, at the moment at which it does, and tells the judge.

Between the moment at which servers store something and the one at which its writer hears of it, others go on. So a step
on NATS is judged when it is stored; and when its call returns, what the call says is compared with what was stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from postroom.core.message import Draft, Message
from postroom.core.states import LEASE_ENDED, OWNER_GONE, State
from postroom.errors import OutcomeUnknown, RoomError
from postroom.stores import contract
from postroom.stores.contract import Claimed, Delivery, Settled, Ticket, Want
from postroom.stores.nats import entries, tables
from postroom.stores.nats.entries import Kept, is_there, unpack
from postroom.stores.nats.following import SAFETY_LOOK_S
from postroom.stores.pipes import PipeWaiter

from .broken import Broken
from .judges import ScheduleJudge
from .nats_calls import CALL, WitnessedCall
from .nats_network import FaultyNetwork
from .nats_server import Change, Stored
from .process import Process
from .store import SimulatedStore, SimulatedWaiter
from .world import World

#: What has lain there for so long is found by every claim.
_LOOKS_MS: Final = round(SAFETY_LOOK_S * 1000)
#: What its holder says of a message, by the ledger's word for it.
_SAID: Final = {"retried": "retry", "returned": "returned"} | {
    word: word for word in ("acked", "answered", "refused", "dead")
}


class Witness:
    """Reads what is written to the stream, for the judge."""

    def __init__(self, world: World, network: FaultyNetwork) -> None:
        self._world = world
        self._judge: ScheduleJudge = world.judge
        self._network = network
        #: What was said of messages by calls whose ends their callers may not have heard of.
        self.said: set[tuple[Process, Ticket, str]] = set()
        #: Messages that lie there ready, and since when.
        self._ready: dict[str, tuple[int, entries.Entry]] = {}
        network.server.on_commit = self._see

    def _see(self, changes: Sequence[Change]) -> None:
        if self._world.failure is not None:
            return
        try:
            self._judge_changes(changes)
        except (Broken, Exception) as error:
            self._world.fail(error)
        finally:
            self._judge.at_ms = None

    def _judge_changes(self, changes: Sequence[Change]) -> None:
        call = self._network.call
        moved: list[tuple[Kept | None, Kept]] = []
        fresh: list[Kept] = []
        for _, now in changes:
            subject = now.subject.split(".", 2)[2]
            if subject.startswith("c.") and call is not None and call.what in ("write cell", "put with cell"):
                self._cell(call, subject, now)
        for was, kept in _steps(changes):
            self._note_ready(kept.entry)
            if was is None and len(kept.entry.ledger) == 1:
                fresh.append(kept)
            elif was is not None or kept.entry.ledger[-1].event == "requeued":
                moved.append((was, kept))
        if fresh and call is None:
            raise Broken("a message was stored, and nobody sends")
        if call is not None:
            if call.what in ("put", "put with cell"):
                self._stored(call, fresh)
            for was, kept in moved:
                self._moved(call, was, kept, fresh)

    def _note_ready(self, entry: entries.Entry) -> None:
        if entry.state == State.READY and (entry.expires_ms is None):
            self._ready[entry.id] = self._world.room_ms(), entry
        else:
            self._ready.pop(entry.id, None)

    def passed_by(self, want: Want, before_ms: int) -> list[str]:
        """What a claim that was given nothing should have been given: it has lain there since before that moment."""
        if want.ids is not None:
            return []
        return [
            self._judge.label(id)
            for id, (since_ms, entry) in self._ready.items()
            if since_ms < before_ms and tables._may_take(want, entry) and self._is_free(entry)
        ]

    def _is_free(self, entry: entries.Entry) -> bool:
        """Whether neither an order key nor a limit may have kept a message waiting, until a moment ago."""
        return entry.order_key is None and not self._judge.limits

    def _stored(self, call: WitnessedCall, fresh: Sequence[Kept]) -> None:
        for kept in fresh:
            entry = kept.entry
            draft = next((each for each in (*call.unstored, *call.drafts) if _is_of(each, entry)), None)
            if draft is None or (draft.publish and entry.to_agent in call.reached):
                raise Broken(f"{call.process!r} stores what it does not send")
            if draft.publish:
                call.reached.add(entry.to_agent)
            elif draft not in call.unstored:
                raise Broken(f"{call.process!r} stores twice what it sends once")
            else:
                call.unstored.remove(draft)
            moments = [self._world.room_ms()]
            if entry.expires_ms is not None:
                moments.append(entry.expires_ms - entry.ttl_ms)
            if entry.wake_ms is not None:
                moments.append(entry.wake_ms - round(draft.delay_s * 1000))
            self._judge.at_ms = self._moment(call, min(moments))
            call.stored.append(entry.id)
            self._judge.put(call.process, [draft], [entry.id])

    def _moment(self, call: WitnessedCall, ms: int) -> int:
        """The moment that a writer wrote down, which must be one of its call."""
        if not call.began_ms <= ms <= self._world.room_ms():
            raise Broken(f"{call.process!r} wrote down the moment {ms}, which is not of its {call.what}")
        return ms

    def _moved(self, call: WitnessedCall, was: Kept | None, kept: Kept, fresh: Sequence[Kept]) -> None:
        entry, id = kept.entry, kept.entry.id
        if was is None:
            self._put_back(call, entry)
            return
        lines = [line for line in entry.ledger if was.line_of(line.write) is None or line not in was.entry.ledger]
        words = [line.event for line in lines]
        if "claimed" in words:
            self._claimed(call, kept)
        elif "extended" in words or (not lines and entries.is_heartbeat(kept) and entry.wake_ms != was.entry.wake_ms):
            self._extended(call, kept)
        elif not lines and entries.is_heartbeat(kept) and id in call.tickets:
            call.said.add(id)  # its lease is longer than what a heartbeat asks for
        elif "requeued" in words:
            self._put_back(call, entry)
        elif "withdrawn" in words:
            self._withdrawn(call, id)
        elif words and words[-1] in _SAID and not _is_by_the_clock(lines[-1].detail):
            self._settled(call, id, entry.state, fresh, words[-1])

    def _withdrawn(self, call: WitnessedCall, id: str) -> None:
        if call.what not in ("withdraw", "put", "put with cell"):
            raise Broken(f"{call.process!r} withdraws {self._judge.label(id)} in its {call.what}")
        call.said.add(id)
        self._judge.withdrawn(call.process, [id])

    def _put_back(self, call: WitnessedCall, entry: entries.Entry) -> None:
        if call.what != "requeue":
            raise Broken(f"{call.process!r} puts {self._judge.label(entry.id)} back in its {call.what}")
        latest_ms = self._world.room_ms() if entry.expires_ms is None else entry.expires_ms - 1
        self._judge.at_ms = self._moment(call, min(latest_ms, self._world.room_ms()))
        call.said.add(entry.id)
        self._judge.requeued(call.process, [entry.id])

    def _claimed(self, call: WitnessedCall, kept: Kept) -> None:
        entry, want = kept.entry, call.want
        if want is None or want.agent != entry.claimed_by:
            raise Broken(f"{self._judge.label(entry.id)} was claimed by {call.process!r}, which does not claim")
        lease_ms = max(1, round(want.lease_s * 1000))
        taken_ms = entry.finished_ms if want.settle else (entry.wake_ms or 0) - lease_ms
        self._judge.at_ms = self._moment(call, taken_ms)
        call.process.called_at = call.called_at  # other threads of the process may have called meanwhile
        ticket = Ticket(entry.id, kept.token, want.agent)
        call.claimed[entry.id] = ticket
        shown = entries.shown(Message, kept, taken_ms, 0)
        self._judge.claimed(call.process, want, [Delivery(shown, ticket)])

    def _extended(self, call: WitnessedCall, kept: Kept) -> None:
        ticket, beats = call.tickets.get(kept.entry.id), call.what == "heartbeat"
        if ticket is None or call.what not in ("extend", "heartbeat"):
            raise Broken(f"{call.process!r} extended a lease in its {call.what}")
        self._judge.at_ms = self._moment(call, (kept.entry.wake_ms or 0) - max(1, round(call.lease_s * 1000)))
        call.said.add(kept.entry.id)
        self._judge.extended(call.process, ticket, call.lease_s, held=True, beat=beats)

    def _settled(self, call: WitnessedCall, id: str, state: int, fresh: Sequence[Kept], word: str) -> None:
        ticket = call.claimed.get(id) or call.tickets.get(id)
        if ticket is None:
            raise Broken(f"{self._judge.label(id)} is {word} by {call.process!r}, which has no ticket for it")
        outcome = call.outcome if id in call.tickets and id not in call.claimed else _SAID[word]
        ids = [kept.entry.id for kept in fresh]
        call.said.add(id)
        call.stored += ids
        self.said.add((call.process, ticket, outcome))
        settled = Settled(True, State(state), ids, None)
        self._judge.settled(call.process, ticket, outcome, call.drafts if ids else (), settled)

    def _cell(self, call: WitnessedCall, subject: str, now: Stored) -> None:
        name, value, expect = call.cell
        if subject != entries.cell_subject(name):
            return  # a note of housekeeping
        version = now.seq if now.data else 0
        call.versions.append(version)
        if now.data and entries.decode_cell(now.data).name != name:
            raise Broken(f"{call.process!r} writes {name}, and wrote another cell")
        self._judge.cell_written(call.process, name, value, expect, version)


def _steps(changes: Sequence[Change]) -> Iterator[tuple[Kept | None, Kept]]:
    """What became of messages, and of the answers in their entries, some of which may have left those just now."""
    boxes = [(_kept_of(before), now) for before, now in changes if now.subject.split(".", 2)[2].startswith("m.o.")]
    left = {was.answer.entry.id: was.answer for was, _ in boxes if was is not None and was.answer is not None}
    for was, now in boxes:
        kept = _kept_of(now)
        if kept is None:
            continue
        yield was or left.get(kept.entry.id), kept
        if kept.answer is not None:
            yield None if was is None else was.answer, kept.answer


def _kept_of(stored: Stored | None) -> Kept | None:
    return unpack(stored.seq, stored.data) if stored is not None and is_there(stored.data) else None


def _is_by_the_clock(detail: str | None) -> bool:
    return detail is not None and detail.startswith((LEASE_ENDED, OWNER_GONE))


def _is_of(draft: Draft, entry: entries.Entry) -> bool:
    is_same = (draft.from_agent, draft.channel) == (entry.from_agent, entry.channel)
    to_same = draft.publish or draft.to_agent == entry.to_agent
    return is_same and to_same and draft.payload_json.encode() == bytes(entry.payload)


class _Waiter(SimulatedWaiter):
    """A waiter on NATS. That of a dead process says good-bye to nobody."""

    def close(self) -> None:
        if self._process.alive:
            super().close()
            return
        self._closed = True
        self._process.waiters.pop(self, None)
        if self._world.waiters_by_fd.get(self._number) is self:
            del self._world.waiters_by_fd[self._number]
        inner = self._inner
        assert isinstance(inner, PipeWaiter)
        inner.let_go()


class WitnessedStore(SimulatedStore):
    """A store on NATS in the hands of a simulated process: what its calls say is compared with what was stored."""

    witness: Witness

    @contextmanager
    def _call(self, what: str, **given: Any) -> Iterator[WitnessedCall]:
        """A call that may write."""
        self._begin(what, writes=True)
        call = WitnessedCall(self._process, what, self._inner.room_ms(), **given)
        token = CALL.set(call)
        try:
            yield call
        except RoomError as error:
            self._process.failed += 1
            self._world.tell(self._process, f"{what}: {type(error).__name__}")
            if isinstance(error, OutcomeUnknown):
                self._world.happened("an outcome was unknown")
            raise
        finally:
            CALL.reset(token)
        if call.process.alive:
            self._end()

    def _end(self, *, rings: bool = True) -> None:
        super()._end(rings=False)  # hints are the network's, which loses and delays them

    def listen(self, topics: Iterable[str]) -> contract.Waiter:
        waiter = super().listen(topics)
        assert isinstance(waiter, SimulatedWaiter)
        waiter.__class__ = _Waiter
        return waiter

    def process_alive(self, process: str) -> bool | None:
        return self._inner.process_alive(process)

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        with self._call("put", drafts=drafts) as call:
            ids = self._inner.put(drafts)
            for id in ids:
                if id not in self._judge.seen:
                    raise Broken(f"a send of {self._process!r} has returned, and its message is not stored")
            if not call.stored:
                self._judge.put(self._process, drafts, ids)
        return ids

    def claim(self, want: Want) -> Claimed:
        with self._call("claim", want=want) as call:
            lay_there = self.witness.passed_by(want, call.began_ms - _LOOKS_MS)
            claimed = self._inner.claim(want)
            self._judge_claimed(call, claimed)
            passed_by = set(lay_there).intersection(self.witness.passed_by(want, call.began_ms - _LOOKS_MS))
            if passed_by and not claimed.deliveries:
                raise Broken(f"{self._process!r} was given nothing, and passed by {min(passed_by)} for 5 s or more")
        return claimed

    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        with self._call("claim answer", want=want) as call:
            delivery = self._inner.claim_answer(question, want)
            self._judge_claimed(call, Claimed([] if delivery is None else [delivery], None))
        return delivery

    def _judge_claimed(self, call: WitnessedCall, claimed: Claimed | None) -> None:
        for delivery in claimed.deliveries if claimed is not None else ():
            if call.claimed.get(delivery.message.id) != delivery.ticket:
                label = self._judge.label(delivery.message.id)
                raise Broken(f"{self._process!r} was given {label}, and has no claim on it")

    def settle(
        self,
        ticket: Ticket,
        outcome: str,
        *,
        detail: str | None = None,
        delay_s: float = 0,
        puts: Sequence[Draft] = (),
        claim_next: Want | None = None,
    ) -> Settled:
        with self._call("settle", tickets=[ticket], outcome=outcome, drafts=puts, want=claim_next) as call:
            settled = self._inner.settle(
                ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next
            )
            was_said = (self._process, ticket, outcome) in self.witness.said
            self._judge_claimed(call, settled.claimed)
            if settled.held and not was_said:
                raise Broken(f"{self._process!r} was told that its word counted, and it was not written")
            if not settled.held and ticket.id in call.said:
                raise Broken(f"{self._process!r} was told that its word did not count, and it was written")
            if not settled.held:
                self._judge.settled(self._process, ticket, outcome, puts, settled)
        return settled

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        with self._call("extend", tickets=[ticket], lease_s=lease_s) as call:
            held = self._inner.extend(ticket, lease_s)
            self._judge_extended(call, ticket, held=held)
        return held

    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        with self._call("heartbeat", tickets=tickets, lease_s=lease_s) as call:
            lost = self._inner.heartbeat(tickets, lease_s)
            for ticket in tickets:
                self._judge_extended(call, ticket, held=ticket not in lost)
        return lost

    def _judge_extended(self, call: WitnessedCall, ticket: Ticket, *, held: bool) -> None:
        if held and ticket.id not in call.said:
            raise Broken(f"{self._process!r} was told that it keeps {self._judge.label(ticket.id)}: not written")
        if not held:
            beats = call.what == "heartbeat"
            self._judge.extended(self._process, ticket, call.lease_s, held=False, beat=beats)

    def withdraw(self, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
        with self._call("withdraw") as call:
            done = self._inner.withdraw(ids, agent, reason)
            for id in done:
                if id not in call.said:
                    raise Broken(f"{self._process!r} was told that {self._judge.label(id)} is withdrawn: not written")
        return done

    def requeue(self, ids: Iterable[str]) -> list[str]:
        with self._call("requeue") as call:
            done = self._inner.requeue(ids)
            for id in done:
                if id not in call.said:
                    raise Broken(f"{self._process!r} was told that {self._judge.label(id)} is back: not written")
        return done

    def cell_write(self, name: str, value: Any, expect: int = contract.ANY) -> int | None:
        with self._call("write cell", cell=(name, value, expect)) as call:
            version = self._inner.cell_write(name, value, expect)
            if version is not None and version not in call.versions:
                raise Broken(f"{self._process!r} was told of version {version} of {name}, which was not written")
            if version is None:
                self._world.happened("a compare-and-set was lost")
                if expect > 0 and self._judge.version(name) == expect:
                    raise Broken(f"{self._process!r} expected version {expect} of {name}, which is there: refused")
        return version

    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        with self._call("put with cell", drafts=drafts, cell=(name, value, expect)) as call:
            ids = self._inner.put_with_cell(drafts, name, value, expect)
            if ids is not None and not (call.versions and set(ids) == set(call.stored)):
                raise Broken(f"{self._process!r} was told of a step on {name}, which was not written")
            if ids is None:
                self._world.happened("a compare-and-set was lost")
                if self._judge.version(name) == expect:
                    raise Broken(f"{self._process!r} expected version {expect} of {name}, which is there: refused")
        return ids
