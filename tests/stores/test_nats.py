"""What only a room on NATS has to get right: what is put away, hints and replies that are lost, servers that are gone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import nats
import pytest
from tests.support.nats_proxy import Proxy, impatience
from tests.support.nats_servers import room_name, running_server, shared_server
from tests.support.patience import until

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.core.system.process import this_process
from postroom.errors import OutcomeUnknown, RoomDamaged, RoomError, RoomNotFound, RoomUnreachable
from postroom.room import open_room
from postroom.stores.contract import Query, Want, WorkDone
from postroom.stores.nats import claims, following, heartbeats
from postroom.stores.nats import room as room_module
from postroom.stores.nats import wire as wire_module
from postroom.stores.nats.entries import pack, subject_of
from postroom.stores.nats.following import NatsWaiter
from postroom.stores.nats.heartbeats import process_subject
from postroom.stores.nats.room import LAYOUT
from postroom.stores.nats.store import NatsStore
from postroom.stores.nats.wire import Write

pytestmark = pytest.mark.slow

Opener = Callable[..., NatsStore]


@pytest.fixture
def open_store(clock: ManualClock) -> Iterator[Opener]:
    """Opens one room, as often as it is called."""
    url = parse_url(f"nats://{shared_server().address}/{room_name()}")
    opened: list[NatsStore] = []

    def open_one(**settings: object) -> NatsStore:
        opened.append(NatsStore(url, Config(**settings), clock))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def letter(to: str | None = "bob", **fields: object) -> Draft:
    return check(Draft(from_agent="ada", to_agent=to, payload={"text": "hi"}, **fields))  # type: ignore[arg-type]


def want(**fields: object) -> Want:
    return Want(**{"agent": "bob", "lease_s": 30.0, **fields})  # type: ignore[arg-type]


def test_a_room_that_is_not_there_is_not_made_by_looking(clock: ManualClock) -> None:
    url = parse_url(f"nats://{shared_server().address}/{room_name()}")

    for _ in range(2):
        with pytest.raises(RoomNotFound, match="postroom init"):
            NatsStore(url, Config(), clock, create=False)


def test_without_a_server_it_says_so_in_time(clock: ManualClock) -> None:
    with running_server() as server:
        url = parse_url(f"nats://{server.address}/team")

    with pytest.raises(RoomUnreachable, match="is it running"):
        NatsStore(url, Config(server_timeout_s=0.3), clock)


def test_an_operation_waits_for_a_server_that_comes_back_and_not_for_ever(clock: ManualClock) -> None:
    with running_server() as server:
        store = NatsStore(parse_url(f"nats://{server.address}/team"), Config(), clock)
        (id,) = store.put([letter()])
        server.kill()

        with impatience(store):
            with pytest.raises(RoomError):  # not known, when it was sent just before the end was seen
                store.put([letter()])
            with pytest.raises(RoomUnreachable):
                store.get(id)

        server.start()
        assert store.get(id) is not None
        store.close()


# What is put away


def finish(store: NatsStore, *outcomes: str, key: str = "key") -> list[str]:
    """One message for each outcome, at its end."""
    ids = []
    for outcome in outcomes:
        ids += store.put([letter(idempotency_key=f"{key} {outcome}")])
        (delivery,) = store.claim(want(ids=(ids[-1],))).deliveries
        store.settle(delivery.ticket, outcome, detail="why")
    return ids


ENDS = ("acked", "answered", "refused", "dead")


def test_what_was_put_away_is_still_there_for_everybody(open_store: Opener, clock: ManualClock) -> None:
    store, other = open_store(), open_store()
    number = store.number_at()
    ids = finish(store, *ENDS)
    before = [store.get(id) for id in ids]
    (waiting,) = store.put([letter()])
    other.find(Query())
    clock.advance(61)
    store.sweep()

    for each in (store, other, open_store()):
        assert [each.get(id) for id in ids] == before
        assert [message.id for message in each.find(Query()).messages] == [*ids, waiting]
        found = each.find(Query(states=frozenset({State.DEAD}))).messages
        assert [message.id for message in found] == [ids[3]]
        counts = {name: count for name, count in each.stats().states.items() if count}
        assert counts == {"stored": 1, **dict.fromkeys(ENDS, 1)}
        assert each.work_of("bob") == WorkDone(3, 1)
        assert each.put([letter(idempotency_key="key acked")]) == [ids[0]]
        assert {change.message.id for change in each.events(number)} == {*ids, waiting}


def test_a_receiver_that_comes_later_does_not_read_what_was_put_away(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    finish(store, "acked", "refused")
    (waiting,) = store.put([letter()])
    clock.advance(61)
    store.sweep()

    later = open_store()
    assert [delivery.message.id for delivery in later.claim(want(limit=9)).deliveries] == [waiting]
    assert set(later._room.tables.rows) == {waiting}


def test_putting_away_tells_the_feed_nothing(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    finish(store, "acked", "dead")
    number = store.events()[-1].number
    clock.advance(61)
    store.sweep()

    assert store.events(number) == []


def test_what_was_put_away_can_be_put_back_noted_and_deleted(open_store: Opener, clock: ManualClock) -> None:
    store, other = open_store(), open_store()
    ids = finish(store, *ENDS)
    clock.advance(61)
    store.sweep()
    other.find(Query())

    assert store.note(ids[0], "shown", "bob") is True
    assert store.requeue(ids) == ids[2:]
    assert store.requeue(ids) == []

    for each in (store, other):
        assert [message.exact_state for message in each.find(Query()).messages] == [State.ACKED, State.ANSWERED, 0, 0]
        assert each.work_of("bob") == WorkDone(2, 0)
    deliveries = other.claim(want(limit=9)).deliveries
    assert [delivery.message.id for delivery in deliveries] == ids[2:]
    assert store.purge(Query()) == 2
    assert store.get(ids[0]) is None
    assert other.stats().states["acked"] == 0
    assert other.work_of("bob") == WorkDone(2, 0)


def test_what_was_put_away_is_forgotten_the_oldest_first(open_store: Opener, clock: ManualClock) -> None:
    store = open_store(keep_count=3)
    old = finish(store, *ENDS)
    clock.advance(61)
    assert store.sweep().purged == 0
    new = finish(store, "acked", "refused", key="other")

    assert store.sweep().purged == 2

    left = [message.id for message in store.find(Query()).messages]
    assert left == [*old[2:], *new]
    assert store.sweep().purged == 0


def test_many_are_put_away_in_a_few_steps(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    store.put([letter() for _ in range(250)])
    store.claim(want(limit=250, settle=True))
    clock.advance(61)
    store.sweep()

    assert open_store().stats().states["acked"] == 250
    assert open_store().stats().store["messages"] == 250


def test_a_process_that_speaks_keeps_what_it_holds(open_store: Opener) -> None:
    store = open_store()
    store.put([letter()])
    store.claim(want(owner=this_process(), lease_s=600))

    found = store._room.wire.run(store._room.wire.last(process_subject(this_process())))

    assert found is not None
    assert found.data.decode() == this_process()


def test_a_lease_can_be_extended_for_ever(open_store: Opener, clock: ManualClock) -> None:
    """Who works for hours extends its lease every few seconds, and all that is kept of it is written each time."""
    store = open_store()
    (id,) = store.put([letter()])
    (delivery,) = store.claim(want()).deliveries
    store.extend(delivery.ticket, 30)
    (size,) = [len(pack(kept.entry)) for kept in store._room.read_open([id])]

    for _ in range(50):
        clock.advance(10)
        assert store.extend(delivery.ticket, 30)

    (kept,) = store._room.read_open([id])
    assert len(pack(kept.entry)) <= size + 20  # numbers that grow
    message = store.get(id)
    assert message is not None
    assert [entry.event for entry in message.ledger] == ["stored", "claimed", "extended"]
    assert message.ledger[-1].time_ms == clock.wall_ms()
    assert message.lease_until_ms == clock.wall_ms() + 30_000
    assert store.settle(delivery.ticket, "acked").held


# Trouble on the way


def test_what_is_too_large_for_the_servers_with_its_headers_is_refused_here(open_store: Opener) -> None:
    """They would end the connection, and so everything else that is under way on it."""
    wire = open_store(server_timeout_s=1)._room.wire
    size = wire.connection.client.max_payload - len("NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n")
    fits, is_too_large = (Write("c.0.0", b"x" * each, expect=0) for each in (size, size + 1))

    with pytest.raises(RoomError, match="max_payload"):
        wire.commit_now([is_too_large], is_too_large.data.__eq__)

    assert wire.commit_now([fits], fits.data.__eq__).seqs
    assert wire.connection.losses == 0


@pytest.mark.long
def test_several_messages_wait_for_their_step_when_too_many_others_have_begun_one(open_store: Opener) -> None:
    store = open_store()
    room = store._room.wire.room

    async def begin_many() -> None:
        client = await nats.connect(f"nats://{shared_server().address}")
        for number in range(50):  # so many may be under way in one stream; none of these is ever committed
            headers = {"Nats-Batch-Id": f"begun-{number}", "Nats-Batch-Sequence": "1"}
            await client.publish(f"pr.{room}.x.{number}", b"", headers=headers)
        await client.flush()
        await client.close()

    asyncio.run(begin_many())

    ids = store.put([letter(), letter()])

    assert [delivery.message.id for delivery in store.claim(want(limit=5)).deliveries] == ids


def test_who_cannot_listen_leaves_nothing_behind(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server() as server:
        store = NatsStore(parse_url(f"nats://{server.address}/team"), Config(), clock)
        server.kill()
        made: list[NatsWaiter] = []

        class Recorded(NatsWaiter):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                made.append(self)

        monkeypatch.setattr(following, "NatsWaiter", Recorded)
        with pytest.raises(RoomUnreachable), impatience(store):
            store.listen(["to:bob", "feed"])

        follower = store._room.follower
        assert not (follower._waiters or follower._uses or follower.ending)
        assert [(each.fileno(), each._writer, each.used) for each in made] == [(-1, -1, [])]
        store.close()


@pytest.fixture
def cable(clock: ManualClock) -> Iterator[tuple[Proxy, NatsStore, NatsStore]]:
    """Somebody far away behind a cable, and somebody at the server, in one room."""
    proxy, name = Proxy(shared_server().port), room_name()
    far = NatsStore(parse_url(f"nats://{proxy.address}/{name}"), Config(), clock)
    near = NatsStore(parse_url(f"nats://{shared_server().address}/{name}"), Config(), clock)
    yield proxy, far, near
    far.close()
    near.close()
    proxy.close()


def test_what_was_sent_while_a_receiver_was_away_wakes_it_when_it_is_back(
    cable: tuple[Proxy, NatsStore, NatsStore],
) -> None:
    """The clock stands still, so no safety look can help."""
    proxy, far, near = cable
    with far.listen(["to:bob", "channel:work"]) as waiter:
        assert far.claim(want()).deliveries == []
        proxy.cut(to_server=True, to_client=True)
        proxy.drop()
        until(lambda: not far._room.wire.connection.up.is_set(), "the far one does not notice that it is cut off")
        (id,) = near.put([letter()])
        proxy.cut(to_server=False, to_client=False)

        until(lambda: waiter.wait(0), "it is not woken")
        assert [delivery.message.id for delivery in far.claim(want()).deliveries] == [id]


def test_what_was_deleted_while_a_reader_was_away_is_not_listed_when_it_is_back(
    cable: tuple[Proxy, NatsStore, NatsStore],
) -> None:
    proxy, far, near = cable
    gone, claimed, kept = near.put([letter() for _ in range(3)])
    assert len(far.find(Query()).messages) == 3
    proxy.cut(to_server=True, to_client=True)
    proxy.drop()
    until(lambda: not far._room.wire.connection.up.is_set(), "the far one does not notice that it is cut off")
    near.claim(want(ids=(claimed,)))
    near.purge(Query(limit=1))
    room = near._room
    room.wire.run(room.wire.api(f"STREAM.PURGE.{room.wire.stream}", filter=f"pr.{room.name}.{subject_of(gone)}"))
    proxy.cut(to_server=False, to_client=False)

    messages = far.find(Query()).messages
    assert [message.id for message in messages] == [claimed, kept]
    assert [message.exact_state for message in messages] == [State.CLAIMED, State.READY]


def test_an_answer_that_is_kept_back_on_the_way_is_looked_up_and_counts_once(
    cable: tuple[Proxy, NatsStore, NatsStore],
) -> None:
    """The reply of each change is lost: it was made, and must not be made again, nor be said not to be."""
    proxy, far, near = cable

    def heal() -> None:
        assert proxy.keeps_back.wait(20)
        proxy.drop()
        proxy.cut(to_server=False, to_client=False)

    def without_replies(call: Callable[[], Any]) -> Any:
        proxy.cut(to_server=False, to_client=True)
        healing = threading.Thread(target=heal)
        healing.start()
        try:
            return call()
        finally:
            healing.join()

    (id,) = without_replies(lambda: far.put([letter()]))
    assert [message.id for message in near.find(Query()).messages] == [id]
    (delivery,) = without_replies(lambda: far.claim(want()).deliveries)
    for _ in range(2):
        assert without_replies(lambda: far.extend(delivery.ticket, 60)) is True
    settled = without_replies(lambda: far.settle(delivery.ticket, "acked").held)

    assert settled is True
    message = near.get(id)
    assert message is not None
    assert [entry.event for entry in message.ledger] == ["stored", "claimed", "extended", "acked"]
    version = without_replies(lambda: far.cell_write("a", 1, expect=0))
    assert near.cell_read("a") == ("a", version, 1)


# What nobody knows the end of, and is repeated


def heal(proxy: Proxy, far: NatsStore) -> None:
    connection = far._room.wire.connection
    before = connection.losses
    proxy.drop()
    proxy.cut(to_server=False, to_client=False)
    until(lambda: connection.losses > before and connection.up.is_set(), "the far one does not come back")


WAYS = pytest.mark.parametrize("lost", ["reply", pytest.param("request", marks=pytest.mark.long)])


def unknown(proxy: Proxy, far: NatsStore, lost: str, call: Callable[[], Any]) -> OutcomeUnknown:
    """What a call says whose request or reply is lost, however often it is made in its time."""
    proxy.cut(to_server=lost == "request", to_client=lost == "reply")
    with pytest.raises(OutcomeUnknown) as caught, impatience(far):
        call()
    assert lost == "request" or proxy.keeps_back.wait(20)
    heal(proxy, far)
    return caught.value


@WAYS
def test_a_send_whose_end_nobody_knew_is_stored_once_however_often_it_is_repeated(
    cable: tuple[Proxy, NatsStore, NatsStore], lost: str
) -> None:
    proxy, far, near = cable
    (first,) = unknown(proxy, far, lost, lambda: far.put([letter()])).ids
    (id,) = unknown(proxy, far, lost, lambda: far.put([letter()])).ids
    assert id == first
    assert [message.id for message in near.find(Query()).messages] == [id] * (lost == "reply")

    assert far.put([letter()]) == [id]

    assert [message.id for message in near.find(Query()).messages] == [id]
    (other,) = far.put([letter()])  # the next is another message
    assert [message.id for message in near.find(Query()).messages] == [id, other]


def test_of_several_whose_end_nobody_knew_each_is_stored_once_also_when_they_are_repeated_otherwise(
    cable: tuple[Proxy, NatsStore, NatsStore],
) -> None:
    proxy, far, near = cable
    both = [letter(), letter("cleo")]
    ids = list(unknown(proxy, far, "request", lambda: far.put(both)).ids)

    assert far.put([letter("cleo")]) == [ids[1]]
    new = far.put([letter("dan"), letter()])

    assert new[1] == ids[0]
    assert sorted(message.id for message in near.find(Query()).messages) == sorted([*ids, new[0]])


@WAYS
def test_an_ack_whose_end_nobody_knew_says_true_when_it_is_repeated_and_counts_once(
    cable: tuple[Proxy, NatsStore, NatsStore], lost: str
) -> None:
    proxy, far, near = cable
    (id,) = near.put([letter()])
    (delivery,) = far.claim(want()).deliveries
    unknown(proxy, far, lost, lambda: far.settle(delivery.ticket, "acked"))

    assert far.settle(delivery.ticket, "acked").held is True

    assert far.settle(delivery.ticket, "acked").held is True
    assert far.settle(delivery.ticket, "retry").held is False
    message = near.get(id)
    assert message is not None
    assert [entry.event for entry in message.ledger] == ["stored", "claimed", "acked"]


@WAYS
def test_an_answer_whose_end_nobody_knew_is_given_once_when_it_is_repeated(
    cable: tuple[Proxy, NatsStore, NatsStore], lost: str
) -> None:
    proxy, far, near = cable
    (id,) = near.put([letter(waiter=this_process())])
    (delivery,) = far.claim(want()).deliveries
    answer = check(Draft(from_agent="bob", to_agent="ada", payload={"n": 1}, answer_to=id))
    unknown(proxy, far, lost, lambda: far.settle(delivery.ticket, "answered", puts=[answer]))

    settled = far.settle(delivery.ticket, "answered", puts=[answer])

    assert settled.held is True
    (kept,) = near.find(Query(answer_to=id)).messages
    assert settled.ids == [kept.id]


def test_who_could_not_say_that_it_lives_says_it_at_its_next_claim(
    cable: tuple[Proxy, NatsStore, NatsStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others bury a process of another machine whose name stands in the room, and which they do not hear."""
    monkeypatch.setattr(heartbeats, "BEAT_S", 0.1)
    proxy, far, near = cable
    near.put([letter()])
    unknown(proxy, far, "request", lambda: far.claim(want(owner=this_process())))

    assert len(far.claim(want(owner=this_process())).deliveries) == 1

    def said() -> int:
        found = near._room.wire.run(near._room.wire.last(process_subject(this_process())))
        return 0 if found is None else found.seq

    first = said()
    assert first
    until(lambda: said() > first, "it is not said again")


def test_nobody_takes_another_s_word_that_it_lives_for_said_before_it_was(
    cable: tuple[Proxy, NatsStore, NatsStore], in_background: Callable[[Callable[[], Any]], Any]
) -> None:
    proxy, far, _ = cable
    proxy.cut(to_server=True, to_client=False)

    with impatience(far):
        both = [in_background(far._room.lives.beat) for _ in range(2)]
        for each in both:
            with pytest.raises(RoomError):
                each.result()
    heal(proxy, far)


def test_who_cannot_say_that_it_waits_no_more_says_it_when_the_room_answers_again(
    in_background: Callable[[Callable[[], Any]], Any],
) -> None:
    """Whoever asked is told of its own time-out; the answer that comes later is ordinary mail."""
    proxy, name = Proxy(shared_server().port), room_name()
    near = open_room(f"nats://{shared_server().address}/{name}")
    far = open_room(f"nats://{proxy.address}/{name}", server_timeout_s=2)
    bob, ada = near.agent("bob"), far.agent("ada")
    asking = in_background(lambda: ada.ask("bob", {"q": 1}, timeout_s=60))
    question = bob.receive(timeout_s=30)
    until(lambda: far.gateway._questions, "the asker was never told that its question is stored")
    with impatience(far.gateway.store):
        proxy.cut(to_server=True, to_client=True)
        with pytest.raises(RoomUnreachable):
            asking.result()
    question.reply({"a": 1})
    assert far.gateway._late
    heal(proxy, far.gateway.store)  # type: ignore[arg-type]
    far.gateway.abandon_late()  # as the next round of the upkeep does

    assert ada.receive(timeout_s=30).payload == {"a": 1}
    assert not far.gateway._questions
    far.close()
    near.close()
    proxy.close()


def test_a_question_of_which_nobody_knows_whether_it_was_asked_is_not_waited_for() -> None:
    proxy, name = Proxy(shared_server().port), room_name()
    near = open_room(f"nats://{shared_server().address}/{name}")
    far = open_room(f"nats://{proxy.address}/{name}", server_timeout_s=2)
    bob, ada = near.agent("bob"), far.agent("ada")
    store = far.gateway.store
    assert isinstance(store, NatsStore)
    far.gateway.redaction.due_ns = far.gateway.redaction._next_ns = 1 << 62  # the room's rules were read a moment ago
    unknown(proxy, store, "reply", lambda: ada.ask("bob", {"q": 1}, timeout_s=60))
    bob.receive(timeout_s=30).reply({"a": 1})
    far.gateway.abandon_late()

    assert ada.receive(timeout_s=30).payload == {"a": 1}

    far.close()
    near.close()
    proxy.close()


@pytest.mark.parametrize("ends", [True, False], ids=["with the end of the question", "alone"])
def test_an_answer_that_comes_while_its_asker_gives_up_is_ordinary_mail(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    one, other = open_store(), open_store()
    (id,) = one.put([letter(waiter=this_process())])
    (delivery,) = other.claim(want()).deliveries
    answer = check(Draft(from_agent="bob", to_agent="ada", payload={"n": 1}, answer_to=id))
    read = one._room.read

    def read_just_before_the_answer(id: str) -> Any:
        monkeypatch.undo()
        kept = read(id)
        if ends:
            other.settle(delivery.ticket, "answered", puts=[answer])
        else:
            other.put([answer])
        return kept

    monkeypatch.setattr(one._room, "read", read_just_before_the_answer)

    one.abandon(id)

    (kept,) = other.find(Query(answer_to=id)).messages
    assert kept.exact_state is State.READY


def test_who_gave_up_and_could_not_let_go_of_the_answer_does_so_at_the_next_try(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    (id,) = store.put([letter(waiter=this_process())])
    (answer,) = store.put([check(Draft(from_agent="bob", to_agent="ada", payload={"n": 1}, answer_to=id))])
    change = store._room.change

    def only_the_question(each: str, step: Any) -> Any:
        if each == answer:
            raise RoomUnreachable("on purpose")
        return change(each, step)

    monkeypatch.setattr(store._room, "change", only_the_question)
    with pytest.raises(RoomUnreachable):
        store.abandon(id)
    monkeypatch.undo()

    store.abandon(id)

    message = store.get(answer)
    assert message is not None
    assert message.exact_state is State.READY


def test_a_hint_that_one_alone_was_given_and_did_not_take_goes_to_another(open_store: Opener) -> None:
    one, other = open_store(), open_store()
    first = one.listen(["channel:work"])
    one.put([letter(None, channel="work")])
    until(lambda: first._rung, "no hint came")  # type: ignore[attr-defined]
    with other.listen(["channel:work"]) as second:
        assert second.wait(0) is False

        first.close()

        until(lambda: second.wait(0), "the other is not woken")


def test_a_server_that_was_stopped_for_longer_than_anybody_waits_is_tried_once_more(clock: ManualClock) -> None:
    with running_server() as server:
        store = NatsStore(parse_url(f"nats://{server.address}/team"), Config(), clock)
        connection = store._room.wire.connection
        pause = connection.pause

        async def go_on_when_time_is_over(until: float) -> bool:
            is_last = await pause(until)
            if is_last:
                connection._attempt_s = 5.0  # however slow this machine is
                os.kill(server.pid, signal.SIGCONT)
            return is_last

        connection.pause = go_on_when_time_is_over  # type: ignore[method-assign]
        os.kill(server.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(server.pid, os.WUNTRACED)[1])
        with impatience(store):
            (id,) = store.put([letter()])
        assert [message.id for message in store.find(Query()).messages] == [id]
        store.close()


def state_known_to(store: NatsStore, id: str) -> State:
    with store._room.follower.lock:
        return store._room.tables.rows[id].kept.state


@pytest.mark.parametrize("settle", [True, False], ids=["acked", "claimed"])
@pytest.mark.parametrize("way", ["claim", "settle and claim"])
def test_what_another_takes_between_our_choice_and_our_claim_is_not_taken_again(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, way: str, settle: bool
) -> None:
    """The other's claim is heard of here before ours is written: then ours must still be that of the entry that was chosen."""
    one, other = open_store(), open_store()
    before, id = one.put([letter(), letter()])
    (held,) = one.claim(want(ids=(before,))).deliveries
    choose = claims._steps

    def too_slow(*chosen: Any) -> Any:
        monkeypatch.undo()
        assert [delivery.message.id for delivery in other.claim(want(settle=settle)).deliveries] == [id]
        until(lambda: state_known_to(one, id) is not State.READY, "it is not heard of here")
        return choose(*chosen)

    monkeypatch.setattr(claims, "_steps", too_slow)

    claimed = one.claim(want()) if way == "claim" else one.settle(held.ticket, "acked", claim_next=want()).claimed

    assert claimed is not None
    assert claimed.deliveries == []
    message = other.get(id)
    assert message is not None
    assert [entry.event for entry in message.ledger] == ["stored", "claimed", *(["acked"] if settle else [])]
    assert message.delivery_count == 1


def test_who_was_not_chosen_is_woken_all_the_same(open_store: Opener) -> None:
    """The servers choose whom to wake before they tell: who begins to wait in between hears of the mail and is not chosen."""
    one, other = open_store(), open_store()
    work = want(channels=("work",))
    with one.listen(["channel:work"]) as waiter:
        assert one.claim(work).deliveries == []
        follower = one._room.follower
        (chosen,) = [each for key, each in follower._subscriptions.items() if key[1]]
        follower._wire.run(chosen())
        other.put([letter(None, channel="work")])

        until(lambda: waiter.wait(0), "it is not woken")
        assert len(one.claim(work).deliveries) == 1


def test_a_word_that_comes_after_nobody_waited_for_it_does_not_make_a_connection_deaf(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listens asks the servers whether they heard it. Their late word once ended all hearing, for half a minute."""
    proxy = Proxy(shared_server().port)
    store = NatsStore(parse_url(f"nats://{proxy.address}/{room_name()}"), Config(), clock)
    wire = store._room.wire
    proxy.cut(to_server=False, to_client=True)
    with pytest.raises(RoomUnreachable), impatience(store), monkeypatch.context() as patch:
        patch.setattr(wire_module, "ATTEMPT_S", 0.1)
        store.listen(["to:bob"])
    assert proxy.keeps_back.wait(20)
    subscriptions = len(wire.connection.client._subs)

    proxy.cut(to_server=False, to_client=False)

    (id,) = store.put([letter()])
    with store.listen(["to:bob"]) as waiter:
        store.put([letter()])
        assert waiter.wait(20)
        assert len(wire.connection.client._subs) == subscriptions + 1
    assert store.get(id) is not None
    assert wire.connection.losses == 0, "the connection was well, and need not have been made again"
    store.close()
    proxy.close()


def test_a_connection_whose_reading_fails_is_made_again_at_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = parse_url(f"nats://{shared_server().address}/{room_name()}")
    store = NatsStore(url, Config(server_timeout_s=8), clock)
    wire = store._room.wire

    async def fail(_data: bytes) -> None:
        monkeypatch.undo()
        raise RuntimeError("on purpose")

    monkeypatch.setattr(wire.connection.client._ps, "parse", fail)

    (id,) = store.put([letter()])

    assert [message.id for message in store.find(Query()).messages] == [id]
    assert wire.connection.losses == 1
    store.close()


def test_what_was_left_of_a_connection_does_not_spoil_the_next(open_store: Opener) -> None:
    store = open_store(server_timeout_s=8)
    client = store._room.wire.connection.client

    async def end_in_the_middle_of_a_line() -> None:
        await client.force_reconnect()
        client._ps.buf.extend(b"the end of something\r\n")  # as the reading does that is about to be ended

    store._room.wire.run(end_in_the_middle_of_a_line())

    (id,) = store.put([letter()])
    assert [message.id for message in store.find(Query()).messages] == [id]
    assert client.stats["reconnects"] == 1


# Layouts


def with_metadata(store: NatsStore, metadata: dict[str, str]) -> None:
    """Give a room's stream other metadata, as another Postroom would have made it with."""
    wire = store._room.wire
    config = wire.info()["config"]
    config["metadata"] = {name: value for name, value in config["metadata"].items() if name != "postroom"} | metadata
    answer = wire.run(wire.api(f"STREAM.UPDATE.{wire.stream}", **config))
    assert "error" not in answer


def test_a_room_says_in_its_stream_which_layout_it_has(open_store: Opener) -> None:
    wire = open_store()._room.wire

    assert wire.info()["config"]["metadata"]["postroom"] == str(LAYOUT)


@pytest.mark.parametrize("layout", [str(LAYOUT + 1), "1000", "1.5", "0"])
def test_a_room_with_a_layout_that_this_program_does_not_know_is_refused_and_left_alone(
    open_store: Opener, layout: str
) -> None:
    store = open_store()
    (id,) = store.put([letter()])
    with_metadata(store, {"postroom": layout})
    before = store._room.wire.info()["state"]["last_seq"]

    with pytest.raises(RoomDamaged, match=rf"layout {layout}, .* made by a newer Postroom: upgrade this one$"):
        open_store()

    assert store._room.wire.info()["state"]["last_seq"] == before
    assert store.get(id) is not None


def test_a_room_that_names_no_layout_has_the_first_and_is_opened(open_store: Opener) -> None:
    store = open_store()
    (id,) = store.put([letter()])
    with_metadata(store, {})

    other = open_store()

    assert [delivery.message.id for delivery in other.claim(want()).deliveries] == [id]


def test_a_room_of_an_older_layout_is_opened_by_a_newer_program(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = open_store().put([letter()])
    monkeypatch.setattr(room_module, "LAYOUT", LAYOUT + 1)

    assert open_store().get(id) is not None
