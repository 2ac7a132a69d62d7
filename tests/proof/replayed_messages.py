"""Traces of a message's life (spec/message.pml), through the contract of stores.

A tick is 100 seconds, so that the second in which a death is seen ends nothing else. Compared are the outcome of each
call, what is claimed, that tokens grow, and of each message its state as a look shows it and its deliveries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.stores.contract import Claimed, Delivery, Ticket, Want
from postroom.stores.nats.store import NatsStore

from .replaying import SEEN_S, Replay

TICK_S = 100.0
LEASE_S = 2 * TICK_S
DELAY_S = TICK_S
LIFE_S = 2 * TICK_S


class Look(NamedTuple):
    """What the specification says of one message after a step: what a look shows, what is written, its deliveries."""

    seen: str
    written: str
    deliveries: int


class Step(NamedTuple):
    """One line of a trace: what is done, how, by which receiver, about which message, whether it is, what is claimed."""

    what: str
    how: str
    receiver: int
    message: int
    done: bool
    got: int
    looks: list[Look]


def read_step(line: str) -> Step:
    head, *messages = line.split(" | ")
    what, how, receiver, message, outcome, got = head.split()
    looks = []
    for each in messages:
        seen, written, _, deliveries = each.split()
        looks.append(Look(seen.partition(">")[2], written.partition(">")[2], int(deliveries)))
    return Step(what, how, int(receiver), int(message), outcome == "yes", int(got), looks)


class MessageReplay(Replay):
    """One trace of message.pml, in a channel and with agents of its own."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        # a claim there writes down what time did to the mail it looks at: the rest needs a sweep
        self.sweeps = isinstance(self.store, NatsStore)
        self.ids: list[str] = []
        self.looks: list[Look] = []  # after the step before
        self.answers: dict[int, str] = {}
        self.tokens: dict[str, int] = {}
        self.tickets: dict[tuple[int, int], Ticket] = {}
        self.hours = 1

    def step(self, line: str, *, last: bool) -> None:
        step = read_step(line)
        getattr(self, step.what)(step)
        self.look(step, last=last)

    def look(self, step: Step, *, last: bool) -> None:
        """Compare what a look shows: of the messages that the step is about or has changed, and in the end of all."""
        for number, (id, now) in enumerate(zip(self.ids, step.looks, strict=False)):
            if last or number in {step.message, step.got} or [now] != self.looks[number : number + 1]:
                message = self.store.get(id)
                assert message is not None, f"message {number} is not kept"
                state, deliveries = message.exact_state.name.lower(), message.delivery_count
                assert state in self.shows(now.seen) and deliveries == now.deliveries, (
                    f"message {number} is {state}, with {deliveries} deliveries"
                )
        self.looks = step.looks

    def shows(self, seen: str) -> set[str]:
        """What a look at this store may show of a message that the specification sees like this."""
        return {seen}

    def want(self, receiver: int, *, settle: bool = False) -> Want:
        agent = f"{self.name}-{receiver}"
        owner = self.process(f"receiver {receiver}")
        return Want(agent=agent, lease_s=LEASE_S, channels=(self.name,), owner=owner, settle=settle)

    def asker(self, message: int) -> str:
        return f"{self.name}-asker-{message}"

    def took(self, step: Step, claimed: Claimed | None) -> None:
        """Compare what a claim gave, and keep its ticket. Tokens only grow."""
        assert claimed is not None
        numbers = [self.ids.index(delivery.message.id) for delivery in claimed.deliveries]
        assert numbers == ([step.got] if step.got < len(step.looks) else []), f"the claim gave {numbers}"
        for delivery in claimed.deliveries:
            id, token, _ = delivery.ticket
            assert token > self.tokens.get(id, -1), f"token {token} came after {self.tokens[id]}"
            self.tokens[id] = token
            self.tickets[step.receiver, step.got] = delivery.ticket
        self.write_down()

    def write_down(self) -> None:
        if self.sweeps:
            self.store.sweep()

    # The steps

    def send(self, step: Step) -> None:
        draft = Draft(
            from_agent=self.asker(step.message),
            to_agent=None,
            channel=self.name,
            payload={"number": step.message},
            max_deliveries=1 if step.how == "fragile" else 2,
            ttl_s=LIFE_S if step.how == "brief" else None,
            delay_s=DELAY_S if step.how == "later" else 0,
            waiter=self.process(f"asker {step.message}") if step.how == "question" else None,
        )
        self.ids += self.store.put([check(draft)])
        assert len(self.ids) == step.message + 1

    def claim(self, step: Step) -> None:
        self.took(step, self.store.claim(self.want(step.receiver)))

    def take(self, step: Step) -> None:
        self.took(step, self.store.claim(self.want(step.receiver, settle=True)))

    def settle(self, step: Step) -> None:
        puts = []
        if step.how == "answered":
            asker, question = self.asker(step.message), self.ids[step.message]
            puts = [check(Draft(from_agent="them", to_agent=asker, payload={}, answer_to=question))]
        settled = self.store.settle(
            self.tickets[step.receiver, step.message],
            step.how.partition("_")[0],
            detail="so it was said" if step.how != "answered" else None,
            delay_s=DELAY_S if step.how == "retry_later" else 0,
            puts=puts,
            claim_next=self.want(step.receiver) if step.what == "settle_and_claim" else None,
        )
        assert settled.held is step.done, f"the ticket {'counted' if settled.held else 'did not count'}"
        state = State[step.looks[step.message].written.upper()] if step.done else None
        if step.how == "retry" and state in (State.CLAIMED, State.EXPIRED):
            state = State.READY  # and then the next claim took it again, or wrote down that its time is over
        assert settled.state is state, f"settling gave {settled.state}"
        assert len(settled.ids) == (len(puts) if step.done else 0), f"{len(settled.ids)} answers were stored"
        if settled.ids:
            self.answers[step.message] = settled.ids[0]
        if step.what == "settle_and_claim":
            self.took(step, settled.claimed)

    settle_and_claim = settle

    def extend(self, step: Step) -> None:
        extended = self.store.extend(self.tickets[step.receiver, step.message], LEASE_S)
        assert extended is step.done, f"extending gave {extended}"

    def heartbeat(self, step: Step) -> None:
        ticket = self.tickets[step.receiver, step.message]
        lost = self.store.heartbeat([ticket], LEASE_S)
        assert lost == ([] if step.done else [ticket]), f"the heartbeat gave {lost}"

    def requeue(self, step: Step) -> None:
        id = self.ids[step.message]
        back = self.store.requeue([id])
        assert back == ([id] if step.done else []), f"putting back gave {back}"
        self.write_down()

    def sweep(self, step: Step) -> None:
        self.store.sweep()

    def tick(self, step: Step) -> None:
        self.clock.advance(TICK_S)

    def jump(self, step: Step) -> None:
        self.hours = -self.hours
        self.clock.jump_wall(self.hours * 3600)

    def crash(self, step: Step) -> None:
        self.kill(f"receiver {step.receiver}")

    def asker_crash(self, step: Step) -> None:
        self.kill(f"asker {step.message}")

    def abandon(self, step: Step) -> None:
        self.store.abandon(self.ids[step.message])

    def fetch(self, step: Step) -> None:
        want = Want(agent=self.asker(step.message), lease_s=LEASE_S, ids=(self.answers[step.message],), settle=True)
        self.answer_given(step, self.store.claim(want).deliveries)

    def receive(self, step: Step) -> None:
        self.clock.advance(SEEN_S)  # an asker that died a moment ago
        want = Want(agent=self.asker(step.message), lease_s=LEASE_S, limit=9, settle=True)
        self.answer_given(step, self.store.claim(want).deliveries)

    def answer_given(self, step: Step, deliveries: list[Delivery]) -> None:
        given = [delivery.message.id for delivery in deliveries]
        assert given == ([self.answers[step.message]] if step.done else []), f"the asker was given {len(given)} answers"
        self.write_down()
