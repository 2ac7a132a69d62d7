"""One word for each state of a message, wherever a room tells it; and ledgers only where one message is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.support import Cli
from tests.support.in_loop import run

import postroom
from postroom import Room, aio
from postroom.core.clock import ManualClock
from postroom.core.message import Draft, Message, MessageWithLedger
from postroom.core.states import State
from postroom.doors.web.reading import RoomReading
from postroom.stores.contract import Query

Steps = Callable[[Room, ManualClock], str]
#: What happens to a message, and then: where it stands, and the word that users read.
STEPS: dict[str, tuple[State, str, Steps]] = {}


def comes_to(state: State, word: str) -> Callable[[Steps], Steps]:
    """A decorator: after these steps the message, whose id is returned, stands so."""

    def add(steps: Steps) -> Steps:
        STEPS[steps.__name__] = (state, word, steps)
        return steps

    return add


@comes_to(State.READY, "stored")
def sent(room: Room, _clock: ManualClock) -> str:
    return room.agent("ada").send("bob", {})


@comes_to(State.READY, "stored")
def sent_to_anyone(room: Room, _clock: ManualClock) -> str:
    return room.agent("ada").send(None, {}, channel="work")


@comes_to(State.DELAYED, "stored")
def scheduled(room: Room, _clock: ManualClock) -> str:
    return room.agent("ada").send("bob", {}, delay_s=60)


@comes_to(State.READY, "stored")
def due(room: Room, clock: ManualClock) -> str:
    id = scheduled(room, clock)
    clock.advance(61)
    return id


@comes_to(State.CLAIMED, "claimed")
def claimed(room: Room, clock: ManualClock) -> str:
    sent(room, clock)
    return room.agent("bob").receive(timeout_s=0, lease_s=30).id


@comes_to(State.READY, "stored")
def its_lease_ended(room: Room, clock: ManualClock) -> str:
    id = claimed(room, clock)
    clock.advance(31)
    return id


@comes_to(State.DEAD, "dead")
def its_last_lease_ended(room: Room, clock: ManualClock) -> str:
    id = sent(room, clock)
    for _ in range(3):
        room.agent("bob").receive(timeout_s=0, lease_s=30)
        clock.advance(31)
    return id


@comes_to(State.DELAYED, "stored")
def to_be_tried_again(room: Room, clock: ManualClock) -> str:
    id = sent(room, clock)
    room.agent("bob").receive(timeout_s=0).retry("not yet", delay_s=60)
    return id


@comes_to(State.ACKED, "acked")
def acked(room: Room, clock: ManualClock) -> str:
    id = sent(room, clock)
    room.agent("bob").receive(timeout_s=0).ack()
    return id


@comes_to(State.ANSWERED, "answered")
def answered(room: Room, clock: ManualClock) -> str:
    id = sent(room, clock)
    room.agent("bob").receive(timeout_s=0).reply({})
    return id


@comes_to(State.AWAITED, "stored")
def an_answer_that_its_asker_awaits(room: Room, _clock: ManualClock) -> str:
    draft = Draft(from_agent="ada", to_agent="bob", payload={}, waiter=room.gateway.process)
    (question,) = room.gateway.put([draft])
    room.agent("bob").receive(timeout_s=0).reply({})
    return room.store.find(Query(answer_to=question)).messages[0].id


@comes_to(State.BLOCKED, "stored")
def behind_another_of_its_order_key(room: Room, _clock: ManualClock) -> str:
    room.agent("ada").send("bob", {}, order_key="pr-7")
    return room.agent("ada").send("bob", {}, order_key="pr-7")


@comes_to(State.WITHDRAWN, "withdrawn")
def withdrawn(room: Room, clock: ManualClock) -> str:
    id = sent(room, clock)
    assert room.agent("ada").withdraw(id)
    return id


@comes_to(State.REFUSED, "refused")
def refused(room: Room, clock: ManualClock) -> str:
    id = sent(room, clock)
    room.agent("bob").receive(timeout_s=0).refuse("no")
    return id


@comes_to(State.DEAD, "dead")
def given_up(room: Room, clock: ManualClock) -> str:
    id = sent(room, clock)
    room.agent("bob").receive(timeout_s=0).dead("never")
    return id


@comes_to(State.READY, "stored")
def put_back(room: Room, clock: ManualClock) -> str:
    id = given_up(room, clock)
    room.requeue(id)
    return id


@comes_to(State.EXPIRED, "expired")
def expired(room: Room, clock: ManualClock) -> str:
    id = room.agent("ada").send("bob", {}, ttl_s=5)
    clock.advance(6)
    return id


def test_the_table_knows_every_state() -> None:
    assert {state for state, _, _ in STEPS.values()} == set(State)


@pytest.mark.parametrize("name", STEPS)
def test_a_state_has_one_word_wherever_it_is_told(room: Room, url: str, clock: ManualClock, name: str) -> None:
    state, word, steps = STEPS[name]
    id = steps(room, clock)
    page = RoomReading(room).message(id)

    async def with_await() -> list[str]:
        async with aio.open(url, clock=clock) as there:
            peeked = {message.id: message.state for message in await there.peek(state=word)}
            return [(await there.get(id)).state, (await there.receipt(id)).state, peeked[id]]

    told = {
        "get": room.get(id).state,
        "receipt": room.receipt(id).state,
        "its message": room.receipt(id).message.state,
        "peek": {message.id: message.state for message in room.peek(state=None)}[id],
        "peek by the word": {message.id: message.state for message in room.peek(state=word)}[id],
        "events": {change.message.id: change.message.state for change in room.events()}[id],
        "the envelope": room.get(id).to_dict()["state"],
        "the page": page["envelope"]["state"],
    }

    assert told == dict.fromkeys(told, word)
    assert run(with_await()) == [word] * 3
    if (state, room.url.scheme) != (State.BLOCKED, "nats"):  # which lists it as ready (docs/guarantees/order.md)
        assert room.get(id).exact_state is state
    assert room.stats().states[word] >= 1


#: Steps of which the command line, which counts in the machine's own time, sees the end.
AT_ONCE = ("sent", "scheduled", "claimed", "acked", "answered", "refused", "given_up", "put_back")


@pytest.mark.parametrize("name", AT_ONCE)
def test_the_same_words_come_on_the_command_line(
    in_memory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, word, steps = STEPS[name]
    url, cli = f"sqlite:{in_memory}/room", Cli(capsys, monkeypatch)
    with postroom.open(url) as room:
        id = steps(room, ManualClock())
        peeked = {each["id"]: each["state"] for each in cli.json("peek", "--state", word, "--room", url)}

        assert (cli.json("receipt", id, "--room", url)["state"], peeked[id]) == (word, word)


def test_a_message_has_its_ledger_where_it_alone_is_asked_for_and_nowhere_else(room: Room, clock: ManualClock) -> None:
    id = claimed(room, clock)
    alone = [room.get(id), room.receipt(id).message]
    among_others = [*room.peek(state=None), *(change.message for change in room.events())]

    assert [[entry.event for entry in message.ledger] for message in alone] == [["stored", "claimed"]] * 2
    assert [type(message) for message in alone] == [MessageWithLedger] * 2
    assert {type(message) for message in among_others} == {Message}
    assert not hasattr(among_others[0], "ledger")
