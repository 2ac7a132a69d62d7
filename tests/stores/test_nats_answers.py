"""An answer stands in the entry of its question, until it needs one of its own: one write ends the question and stores it.

Every step of it replaces the entry in which it stands, so a process may be killed, or stand still for hours, between any
two of them. Each test runs on the simulated server, and on a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.proof.test_simulated_nats import new_network, open_on
from tests.support.nats_servers import room_name, shared_server
from tests.support.patience import until

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.core.system.process import this_process
from postroom.errors import RoomDamaged, RoomUnreachable
from postroom.stores.contract import Query, Settled, Ticket, Want, topic_message
from postroom.stores.nats import entries
from postroom.stores.nats import room as room_module
from postroom.stores.nats.cells import TOMBSTONE_S
from postroom.stores.nats.entries import Kept, answer_id, question_id
from postroom.stores.nats.store import NatsStore
from postroom.stores.nats.wire import Changed
from postroom.testing.workbench import gone_process

Opener = Callable[[], NatsStore]


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.slow)])
def open_store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Opener]:
    """Opens one room, as often as it is called."""
    opened: list[NatsStore] = []
    if request.param == "real":
        url = parse_url(f"nats://{shared_server().address}/{room_name()}")
        make = lambda: NatsStore(url, Config(), clock)  # noqa: E731
    else:
        network = new_network()
        make = lambda: open_on(network, clock, Config())  # noqa: E731

    def open_one() -> NatsStore:
        opened.append(make())
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def ask(store: NatsStore, **fields: Any) -> str:
    draft = Draft(**{"from_agent": "ada", "to_agent": "bob", "payload": {"q": 1}, "waiter": this_process(), **fields})
    (id,) = store.put([check(draft)])
    return id


def take(store: NatsStore, id: str, agent: str = "bob") -> Ticket:
    (delivery,) = store.claim(Want(agent=agent, lease_s=30, ids=(id,))).deliveries
    return delivery.ticket


def answer_to(question: str, **fields: Any) -> Draft:
    draft = {"from_agent": "bob", "to_agent": "ada", "payload": {"a": 1}, "answer_to": question, **fields}
    return check(Draft(**draft))


def reply(store: NatsStore, question: str, **fields: Any) -> str:
    settled = settle(store, take(store, question), **fields)
    assert settled.held
    return settled.ids[0]


def settle(store: NatsStore, ticket: Ticket, **fields: Any) -> Settled:
    return store.settle(ticket, "answered", puts=[answer_to(ticket.id, **fields)])


def state(store: NatsStore, id: str) -> State:
    message = store.get(id)
    assert message is not None
    return message.exact_state


def events_of(store: NatsStore, id: str) -> list[str]:
    message = store.get(id)
    assert message is not None
    return [line.event for line in message.ledger]


def drain(store: NatsStore, agent: str = "ada") -> list[str]:
    return [each.message.id for each in store.claim(Want(agent=agent, lease_s=30, limit=9, settle=True)).deliveries]


def take_held(store: NatsStore, *ids: str) -> list[str]:
    """As its asker takes an answer."""
    claimed = store.claim(Want(agent="ada", lease_s=30, ids=ids, settle=True))
    return [delivery.message.id for delivery in claimed.deliveries]


def writes(store: NatsStore) -> int:
    return store._room.follower.last_number()


def is_heard_of(store: NatsStore, id: str, after: int) -> bool:
    heard = store._room.follower.news[id]
    return heard is not None and heard.seq > after


def read(store: NatsStore, id: str) -> Kept:
    kept = store._room.read(id)
    assert kept is not None
    return kept


def stands_within(store: NatsStore, id: str) -> bool:
    return read(store, id).host is not None


# What it costs, and where it stands


def test_an_answer_and_its_question_s_end_are_one_write_and_taking_it_is_another(open_store: Opener) -> None:
    asker, answerer = open_store(), open_store()
    question = ask(asker)
    with asker.listen([topic_message(question)]) as waiter:
        ticket = take(answerer, question)
        before = writes(asker)
        (answer,) = settle(answerer, ticket).ids
        assert writes(asker) == before + 1
        until(lambda: waiter.wait(0) and is_heard_of(asker, question, before), "the answer is not heard of")

        want = Want(agent="ada", lease_s=30, settle=True, ids=())
        assert asker.claim_answer(question, msgspec.structs.replace(want, agent="eve")) is None
        delivery = asker.claim_answer(question, want)

        assert delivery is not None
        assert (delivery.message.id, delivery.message.payload) == (answer, {"a": 1})
        assert writes(asker) == before + 2
        assert asker.claim_answer(question, want) is None
    assert not asker._room.follower.news
    for store in (asker, answerer, open_store()):
        assert (state(store, question), state(store, answer)) == (State.ANSWERED, State.ACKED)
        assert events_of(store, answer) == ["stored", "claimed", "acked"]
        assert [message.id for message in store.find(Query(answer_to=question)).messages] == [answer]
        assert drain(store) == []


def test_the_ids_of_a_question_and_its_answer_tell_each_other(open_store: Opener) -> None:
    store = open_store()
    for _ in range(5):
        question = ask(store)
        answer = reply(store, question)
        assert answer == answer_id(question)
        assert question_id(answer) == question
        assert answer_id(answer) is question_id(question) is None
        assert ask(store) > answer > question


@pytest.mark.parametrize(
    "kind", ["no asker", "its asker is gone", "large", "from an older program", "with an id of an older kind"]
)
def test_an_answer_has_an_entry_of_its_own_at_once_when(
    open_store: Opener, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    if kind == "from an older program":
        monkeypatch.setattr(entries, "first_entry", _without_mark(entries.first_entry))
        monkeypatch.setattr("postroom.stores.nats.putting.first_entry", entries.first_entry)
    if kind == "with an id of an older kind":
        key = store._room.next_key() + 1
        monkeypatch.setattr(store._room, "next_key", lambda: key)
    question = ask(store, waiter={"no asker": None, "its asker is gone": gone_process()}.get(kind, this_process()))
    monkeypatch.undo()

    answer = reply(store, question, payload={"a": "x" * 9000 if kind == "large" else 1})

    assert not stands_within(store, answer)
    assert state(store, answer) is (State.READY if kind == "no asker" else State.AWAITED)
    store.abandon(question)
    assert drain(store) == [answer]


def _without_mark(first_entry: Any) -> Any:
    return lambda *args, **fields: msgspec.structs.replace(first_entry(*args, **fields), asks=False)


def test_the_feed_tells_of_an_answer_once_wherever_it_stands(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    question = ask(store)
    number = store.number_at()
    answer = reply(store, question)

    told = store.events(number)
    assert [(change.message.id, change.event) for change in told] == [(question, "answered"), (answer, "stored")]
    number = told[-1].number
    assert store.events(number) == []
    assert store.note(answer, "shown", "ada")
    assert not stands_within(store, answer)
    assert [(change.message.id, change.event) for change in store.events(number)] == [(answer, "shown")]
    number = store.number_at()
    assert take_held(store, answer) == [answer]
    assert [change.event for change in store.events(number)] == ["acked"]
    number = store.number_at()
    clock.advance(61)
    store.sweep()
    assert store.events(number) == []


def test_who_listens_to_an_answer_hears_of_it_in_its_question_s_entry(open_store: Opener) -> None:
    store = open_store()
    answer = reply(store, ask(store))
    with store.listen([topic_message(answer)]) as waiter:
        assert take_held(store, answer) == [answer]
        assert waiter.wait(20)


# Crashes: a process that is killed leaves what was written; another one goes on from there


def test_the_answer_of_an_answerer_that_was_killed_after_its_write_is_there_for_its_asker(open_store: Opener) -> None:
    asker = open_store()
    question = ask(asker)
    answer = reply(open_store(), question)  # and never heard of again

    for store in (asker, open_store()):
        assert state(store, answer) is State.AWAITED
        assert store.find(Query(answer_to=question)).messages[0].id == answer
        assert store.stats().states["stored"] == 1
    assert take_held(asker, answer) == [answer]


def test_an_answerer_that_was_killed_before_its_write_has_stored_nothing(
    open_store: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, answerer = open_store(), open_store()
    question = ask(asker)
    ticket = take(answerer, question)
    monkeypatch.setattr(answerer._room, "commit", _killed)
    with pytest.raises(Killed):
        settle(answerer, ticket)

    assert asker.find(Query(answer_to=question)).messages == []
    clock.advance(31)
    assert state(asker, question) is State.READY
    assert state(asker, reply(open_store(), question)) is State.AWAITED


class Killed(BaseException):
    """As if the process ended here."""


def _killed(*_: Any, **__: Any) -> Any:
    raise Killed


def of_a_dead_asker(store: NatsStore, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A question and its answer, whose asker's process has ended just after the answer came."""
    question = ask(store, waiter="asker")
    monkeypatch.setattr(store._room.lives, "seen_here", lambda name: name != "asker" or None)
    answer = reply(store, question)
    assert stands_within(store, answer)
    monkeypatch.setattr(store._room.lives, "seen_here", lambda name: name != "asker")
    return question, answer


def test_a_sweep_makes_the_answer_of_a_dead_asker_ordinary_mail(
    open_store: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    _, answer = of_a_dead_asker(store, monkeypatch)
    clock.advance(2)

    store.sweep()

    assert not stands_within(store, answer)
    other = open_store()
    assert state(other, answer) is State.READY
    assert drain(other) == [answer]
    assert events_of(other, answer) == ["stored", "claimed", "acked"]


def test_the_next_claim_of_those_who_know_the_question_lets_go_of_the_answer_of_a_dead_asker(
    open_store: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = open_store(), open_store()
    assert drain(store, "bob") == drain(other) == []
    _, answer = of_a_dead_asker(store, monkeypatch)
    clock.advance(2)

    assert drain(store, "bob") == []

    assert drain(open_store()) == [answer]
    assert drain(store, "bob") == []


@pytest.mark.parametrize("first", ["sweep", "abandon"])
@pytest.mark.parametrize("second", ["sweep", "abandon", "take", "note"])
def test_of_two_that_put_an_answer_out_at_once_one_counts(
    open_store: Opener, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """The second comes when the first has read everything, and before it writes."""
    one, other = open_store(), open_store()
    question, answer = of_a_dead_asker(one, monkeypatch)
    monkeypatch.setattr(other._room.lives, "seen_here", lambda name: name != "asker")
    clock.advance(2)
    acts: dict[str, Callable[[NatsStore], Any]] = {
        "sweep": lambda store: store.sweep(),
        "abandon": lambda store: store.abandon(question),
        "take": lambda store: take_held(store, answer),
        "note": lambda store: store.note(answer, "shown", "eve"),
    }
    commit = one._room._commit_each
    change = one._room.commit
    met: list[str] = []

    def meanwhile(write: Callable[..., Any]) -> Callable[..., Any]:
        def slow(writes: Any, *rest: Any, **more: Any) -> Any:
            if not met:
                met.append(second)
                acts[second](other)
            return write(writes, *rest, **more)

        return slow

    monkeypatch.setattr(one._room, "_commit_each", meanwhile(commit))
    monkeypatch.setattr(one._room, "commit", meanwhile(change))

    acts[first](one)

    assert met == [second]
    for store in (one, other, open_store()):
        (found,) = store.find(Query(answer_to=question)).messages
        assert found.id == answer
    clock.advance(2)
    one.sweep()  # where the first sweep met the other one, and left it to the next
    assert state(other, answer) is (State.ACKED if second == "take" else State.READY)
    assert drain(open_store()) == ([] if second == "take" else [answer])
    assert [event for event in events_of(one, answer) if event != "shown"] == ["stored", "claimed", "acked"]


def test_a_writer_that_stood_still_for_hours_does_not_bring_an_answer_back(
    open_store: Opener, clock: ManualClock
) -> None:
    """It read the answer in its question's entry; meanwhile that was taken, put away, deleted, and the marks are gone."""
    store, late = open_store(), open_store()
    question = ask(store)
    answer = reply(store, question)
    kept = read(late, answer)
    assert kept.host is not None
    assert take_held(store, answer) == [answer]
    clock.advance(61)
    store.sweep()
    assert store.purge(Query()) == 2
    wire = store._room.wire
    wire.run(wire.api(f"STREAM.PURGE.{wire.stream}", filter=f"pr.{wire.room}.m.>"))  # as after TOMBSTONE_S
    assert TOMBSTONE_S > 0

    moment = late._room.moment()
    (end,) = late._room.replace_each([(kept, entries.unheld(kept, moment))], moment.write)

    assert isinstance(end, Changed)
    for each in (store, late, open_store()):
        assert each.get(answer) is None
        assert drain(each) == []


@pytest.mark.parametrize("who", ["the asker gives up", "the answerer answers"])
def test_an_answer_that_comes_as_its_asker_gives_up_is_ordinary_mail(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Each of the two comes when the other has read the question, and before it writes."""
    asker, answerer = open_store(), open_store()
    question = ask(asker)
    ticket = take(answerer, question)
    gives_up, answers = (lambda: asker.abandon(question)), (lambda: settle(answerer, ticket))
    room, act, other = (
        (asker._room, gives_up, answers) if who == "the asker gives up" else (answerer._room, answers, gives_up)
    )
    commit = room.commit

    def slow(*args: Any, **fields: Any) -> Any:
        monkeypatch.undo()
        other()
        return commit(*args, **fields)

    monkeypatch.setattr(room, "commit", slow)

    act()

    (answer,) = asker.find(Query(answer_to=question)).messages
    assert answer.exact_state is State.READY
    assert drain(open_store()) == [answer.id]
    assert drain(asker) == drain(answerer) == []


def test_who_gave_up_and_could_not_let_go_of_the_answer_does_so_at_the_next_try(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    question = ask(store)
    answer = reply(store, question)
    monkeypatch.setattr(store._room.wire, "commit_now", _unreachable)
    with pytest.raises(RoomUnreachable):
        store.abandon(question)
    monkeypatch.undo()
    assert state(store, answer) is State.AWAITED

    store.abandon(question)

    assert drain(open_store()) == [answer]


def _unreachable(*_: Any, **__: Any) -> Any:
    raise RoomUnreachable("on purpose")


def test_an_answer_whose_question_changed_since_it_was_heard_of_is_read_and_taken(open_store: Opener) -> None:
    asker, other = open_store(), open_store()
    question = ask(asker)
    with asker.listen([topic_message(question)]):
        before = writes(asker)
        answer = reply(asker, question)
        until(lambda: is_heard_of(asker, question, before), "the answer is not heard of")
        heard = asker._room.follower.news[question]
        other.note(question, "shown", "eve")
        asker._room.follower.news[question] = heard  # as if the hint of the note were late

        assert take_held(asker, answer) == [answer]
    assert events_of(other, answer) == ["stored", "claimed", "acked"]


def test_of_two_that_take_an_answer_at_once_one_gets_it(open_store: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = open_store(), open_store()
    answer = reply(one, ask(one))
    commit = one._room._commit_each

    def slow(*args: Any) -> Any:
        monkeypatch.undo()
        assert take_held(other, answer) == [answer]
        return commit(*args)

    monkeypatch.setattr(one._room, "_commit_each", slow)

    assert take_held(one, answer) == []
    assert events_of(one, answer) == ["stored", "claimed", "acked"]


def test_an_answer_that_is_claimed_and_not_acked_leaves_its_question_s_entry(
    open_store: Opener, clock: ManualClock
) -> None:
    store = open_store()
    answer = reply(store, ask(store))
    (delivery,) = store.claim(Want(agent="ada", lease_s=5, ids=(answer,))).deliveries
    assert not stands_within(store, answer)
    clock.advance(6)

    assert drain(open_store()) == [answer]
    assert store.settle(delivery.ticket, "acked").held is False


# Housekeeping


def test_a_question_and_its_answer_are_put_away_together(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    question = ask(store)
    answer = reply(store, question)
    take_held(store, answer)
    before = [store.get(id) for id in (question, answer)]
    clock.advance(61)
    store.sweep()

    for each in (store, open_store()):
        assert [each.get(id) for id in (question, answer)] == before
        assert all(read(each, id).entry.archived and not stands_within(each, id) for id in (question, answer))
        counts = {name: count for name, count in each.stats().states.items() if count}
        assert counts == {"acked": 1, "answered": 1}
        assert each.work_of("ada").processed == each.work_of("bob").processed == 1
    assert store.purge(Query()) == 2
    assert open_store().stats().states["acked"] == 0


def test_an_answer_that_nobody_takes_stays_for_its_asker_when_its_question_is_put_away(
    open_store: Opener, clock: ManualClock
) -> None:
    store = open_store()
    question = ask(store)
    answer = reply(store, question)
    clock.advance(61)
    store.sweep()
    store.sweep()

    other = open_store()
    assert read(other, question).entry.archived
    assert state(other, answer) is State.AWAITED
    assert take_held(other, answer) == [answer]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("which", ["question", "answer", "both"])
def test_what_is_deleted_is_deleted_alone(open_store: Opener, which: str, taken: bool) -> None:
    store, other = open_store(), open_store()
    question = ask(store)
    ids = {"question": question, "answer": reply(store, question)}
    if taken:
        take_held(store, ids["answer"])
    other.find(Query())
    wanted = tuple(ids.values()) if which == "both" else (ids[which],)

    assert store.purge(Query(ids=wanted)) == len(wanted)

    left = {id for id in ids.values() if id not in wanted}
    for each in (store, other, open_store()):
        assert {message.id for message in each.find(Query()).messages} == left
        assert {id for id in ids.values() if each.get(id) is not None} == left
    if left == {ids["answer"]} and not taken:
        store.abandon(question)
        assert drain(open_store()) == [ids["answer"]]


# Layouts


@pytest.mark.parametrize("open_store", [pytest.param("real", marks=pytest.mark.slow)], indirect=True)
def test_an_older_program_neither_opens_such_a_room_nor_writes_such_an_entry_again(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    wire = store._room.wire
    config = wire.info()["config"]
    config["metadata"]["postroom"] = "3"
    assert "error" not in wire.run(wire.api(f"STREAM.UPDATE.{wire.stream}", **config))
    store = open_store()
    question = ask(store)
    reply(store, ask(store, waiter=None))
    assert wire.info()["config"]["metadata"]["postroom"] == "3"

    reply(store, question)

    assert wire.info()["config"]["metadata"]["postroom"] == "4"
    found = wire.last_now(str(entries.subject_of(question)))
    assert found is not None
    with pytest.raises(msgspec.DecodeError):  # one that has it open takes it for damaged, and changes nothing
        entries._decode_alone(found.data)
    monkeypatch.setattr(room_module, "LAYOUT", 3)
    with pytest.raises(RoomDamaged, match="layout 4, and this Postroom reads layouts up to 3"):
        open_store()
