"""Looking at a room, and acting on what it keeps."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import until
from tests.support.watched_clock import WatchedClock

import postroom
import postroom.mail.replaying  # itself, of which a test changes the page, and not what stands for it until it is used
from postroom import Agent, IdentityRefused, InvalidMessage, Room, UnknownMessage
from postroom.core.clock import ManualClock, iso
from postroom.core.message import Draft, check
from postroom.core.system.process import this_process
from postroom.mail import tokens
from postroom.room import open_room as postroom_open


@pytest.fixture
def ada(room: Room) -> Agent:
    return room.agent("ada")


@pytest.fixture
def bob(room: Room) -> Agent:
    return room.agent("bob")


# Receipts


def test_a_receipt_tells_every_step_with_its_time_and_agent(
    room: Room, ada: Agent, bob: Agent, clock: ManualClock
) -> None:
    began = iso(clock.wall_ms())
    id = ada.send("bob", {})
    clock.advance(1)
    bob.receive(timeout_s=0).retry("not yet", delay_s=0)
    bob.receive(timeout_s=0).ack()

    receipt = room.receipt(id)

    assert (receipt.id, receipt.state, receipt.recipient_known) == (id, "acked", True)
    assert receipt.events[0] == ("stored", began, "ada", None)
    assert [(e.event, e.agent, e.detail) for e in receipt.events[1:]] == [
        ("claimed", "bob", None),
        ("retried", "bob", "not yet"),
        ("claimed", "bob", None),
        ("acked", "bob", None),
    ]
    assert receipt.events[1].time > began


def test_a_receipt_says_whether_the_recipient_was_ever_here(room: Room, ada: Agent) -> None:
    ids = [ada.send(to, {}) for to in ("stranger", "ada", None)]
    room.agent("reader", transient=True).subscribe("news")

    assert [room.receipt(id).recipient_known for id in ids] == [False, True, True]
    assert room.receipt(ada.publish("news", {})[0]).recipient_known


@pytest.mark.parametrize("id", ["nonsense", "00000000-0000-7000-8000-000000000000", ""])
def test_a_receipt_of_an_unknown_message_says_so(room: Room, id: str) -> None:
    with pytest.raises(UnknownMessage, match="this room has no message"):
        room.receipt(id)


# Peeking


def test_peeking_shows_what_a_receiver_would_get_and_takes_nothing(room: Room, ada: Agent, bob: Agent) -> None:
    low, high = ada.send("bob", {"n": 1}), ada.send("bob", {"n": 2}, priority=9)
    ada.send("carol", {})

    for _ in range(2):
        assert [m.id for m in room.peek(agent="bob")] == [high, low]
    assert [m.id for m in room.peek(agent="bob", limit=1)] == [high]
    assert room.receipt(high).state == "stored"
    assert bob.receive(timeout_s=0).delivery_count == 1


def test_peeking_can_choose_channels_states_and_senders(room: Room, ada: Agent, bob: Agent) -> None:
    in_hall = ada.send("bob", {}, channel="hall", type="t1", correlation_id="c")
    to_nobody = bob.send(None, {}, channel="hall")
    done = ada.send("bob", {}, channel="yard")
    bob.receive(timeout_s=0, channels=["yard"]).ack()

    def ids(**wanted: Any) -> list[str]:
        return [m.id for m in room.peek(**wanted)]

    assert ids(channels=["hall"]) == [in_hall, to_nobody]
    assert ids(channels=["hall"], agent="carol") == [to_nobody]
    assert ids(state="acked") == ids(state="done") == [done]
    assert set(ids(state=None)) == {in_hall, to_nobody, done}
    assert ids(state=None, order="oldest") == [in_hall, to_nobody, done]
    assert ids(from_agent="bob") == [to_nobody]
    assert ids(type="t1") == ids(correlation_id="c") == [in_hall]


@pytest.mark.parametrize(
    ("wanted", "field"), [({"state": "lost"}, "state"), ({"limit": 0}, "limit"), ({"order": "best"}, "order")]
)
def test_a_wrong_peek_is_named(room: Room, wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMessage, match=f"{field}: "):
        room.peek(**wanted)


# The feed


def test_the_feed_tells_of_every_message(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {}) for _ in range(3)]
    cursor = room.cursor()
    assert [change.message.id for change in room.events()] == ids
    assert room.events(after=cursor) == []

    bob.receive(timeout_s=0).ack()

    changes = room.events(after=cursor)
    assert {change.message.id for change in changes} == {ids[0]}
    assert (changes[-1].event, changes[-1].agent, changes[-1].message.state) == ("acked", "bob", "acked")
    numbers = [change.number for change in room.events()]
    assert numbers == sorted(numbers)


def test_watching_follows_the_feed_by_push(room: Room, ada: Agent, in_background: Callable[..., Any]) -> None:
    ada.send("bob", {})  # before: not seen
    watch = room.watch()
    first = ada.send("bob", {})  # after the call, before the first look: seen
    assert next(watch).message.id == first

    coming = in_background(lambda: next(watch))
    second = ada.send("bob", {})

    assert coming.result().message.id == second  # time stands still here, so no safety look has found it


def test_watching_can_begin_at_a_cursor_and_end_when_nothing_comes(room: Room, ada: Agent) -> None:
    ids = [ada.send("bob", {}) for _ in range(2)]

    assert [change.message.id for change in room.watch(after=0, timeout_s=0)] == ids
    assert list(room.watch(timeout_s=0)) == []


def test_watching_ends_when_the_room_is_closed(room: Room, in_background: Callable[..., Any]) -> None:
    watching = in_background(lambda: list(room.watch()))

    room.close()

    with pytest.raises(postroom.RoomClosed):
        watching.result()


def test_a_wait_without_a_descriptor_ends_with_the_room_too(
    tmp_path: Path, clock: WatchedClock, in_background: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no descriptors are left, or the room is closed just as somebody begins to wait, the room is watched instead."""

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    room = postroom_open(f"sqlite:{tmp_path}/room", clock=clock)
    monkeypatch.setattr(room.store._steps.bells, "listen", none_left)  # type: ignore[attr-defined]
    waiting = in_background(lambda: room.agent("bob").receive(timeout_s=600))
    until(lambda: clock.is_waiting(waiting._thread))

    room.close()

    with pytest.raises(postroom.RoomClosed):
        waiting.result()


# Dead letters


def test_a_dead_letter_tells_of_every_attempt_and_can_be_put_back(
    room: Room, ada: Agent, bob: Agent, clock: ManualClock
) -> None:
    id = ada.send("bob", {"n": 1})
    bob.receive(timeout_s=0).retry("first", delay_s=0)
    bob.receive(timeout_s=0)
    clock.advance(31)  # the second lease ends
    bob.receive(timeout_s=0).retry("third")

    (letter,) = room.dead_letters()

    assert (letter.id, letter.error, letter.message.payload) == (id, "third", {"n": 1})
    assert [(a.agent, a.error) for a in letter.attempts] == [
        ("bob", "first"),
        ("bob", "lease ended before the receiver settled it"),
        ("bob", "third"),
    ]
    assert letter.attempts[1].claimed_at < letter.attempts[1].ended_at

    assert room.requeue(id) == [id]
    assert room.dead_letters() == []
    again = bob.receive(timeout_s=0)
    assert (again.id, again.delivery_count) == (id, 1)


def test_only_what_ended_badly_is_put_back(room: Room, ada: Agent, bob: Agent) -> None:
    waiting, refused = ada.send("carol", {}), ada.send("bob", {})
    bob.receive(timeout_s=0).refuse("no")

    assert room.requeue([waiting, refused, "unknown"]) == [refused]
    assert room.requeue(waiting) == []
    with pytest.raises(UnknownMessage):
        room.requeue("unknown")


def test_purging_deletes_what_is_finished_and_nothing_else(
    room: Room, ada: Agent, bob: Agent, clock: ManualClock
) -> None:
    done, claimed, waiting = (ada.send("bob", {"n": n}) for n in range(3))
    bob.receive(timeout_s=0).ack()
    bob.receive(timeout_s=0)

    assert room.purge(before=iso(clock.wall_ms() - 1000)) == 0
    assert room.purge() == 1

    with pytest.raises(UnknownMessage):
        room.receipt(done)
    assert [room.receipt(id).state for id in (claimed, waiting)] == ["claimed", "stored"]
    assert room.purge(state="pending", to="bob") == 1


# Replay


def test_a_replay_sends_kept_messages_again_marked_and_in_order(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {"n": n}, type="t", priority=n + 1, correlation_id="c", trace="x") for n in range(3)]
    for m in bob.listen(timeout_s=0):
        assert m.message.replay_of is None

    again = room.replay(0)

    assert len(again) == 3 and not set(again) & set(ids)
    got = [room.get(id) for id in again]
    assert [m.replay_of for m in got] == ids
    assert [(m.from_agent, m.to_agent, m.type, m.payload, m.priority) for m in got] == [
        ("ada", "bob", "t", {"n": n}, n + 1) for n in range(3)
    ]
    assert [(m.correlation_id, m.trace, m.state) for m in got] == [("c", "x", "stored")] * 3


def test_a_replay_comes_from_the_one_who_replays(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {"n": 1})

    (again,) = room.replay(0, by="lead")

    copy = room.get(again)
    assert (copy.from_agent, copy.to_agent, copy.payload, copy.replay_of) == ("lead", "bob", {"n": 1}, id)
    assert room.get(copy.replay_of or "").from_agent == "ada"


def test_a_replay_never_gets_into_the_lane_of_people_by_itself(room: Room) -> None:
    (id,) = room.store.put([check(Draft(from_agent="me", to_agent="bob", payload={}, lane="human"))])

    by_name, believed, by_person = room.replay(0, by="eve") + room.replay(0) + room.replay(0, by="zoe", _lane="human")

    assert room.get(id).lane == "human"
    found = [(copy.from_agent, copy.lane) for copy in map(room.get, (by_name, believed, by_person))]
    assert found == [("eve", "agent"), ("me", "agent"), ("zoe", "human")]


def test_in_a_room_with_tokens_a_replay_names_who_replays(room: Room, ada: Agent) -> None:
    ada.send("bob", {})
    tokens.add_token(room.gateway, "me", human=True)

    with pytest.raises(IdentityRefused, match="name the agent that replays"):
        room.replay(0)

    assert len(room.peek(agent="bob")) == 1
    assert len(room.replay(0, by="ada")) == 1


def test_a_replay_of_a_replay_is_one_message(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})
    room.replay(0)

    (third,) = room.replay(0)

    assert room.get(third).replay_of == id


def test_a_replay_can_choose(room: Room, ada: Agent, bob: Agent) -> None:
    ada.send("bob", {}, channel="hall", type="t1")
    ada.send("carol", {}, channel="hall", type="t2")
    bob.send("carol", {}, channel="yard", type="t3")
    bob.receive(timeout_s=0).ack()

    def types(**wanted: Any) -> list[str]:
        return [room.get(id).type for id in room.replay(0, **wanted)]

    assert types(channel="hall", limit=1) == ["t1"]
    assert types(to="carol") == ["t2", "t3"]
    assert types(from_agent="bob") == ["t3"]
    assert types(type="t2") == ["t2"]
    assert types(state="done") == ["t1"]


def test_a_replay_begins_at_a_time_however_it_is_written(room: Room, ada: Agent, clock: ManualClock) -> None:
    ada.send("bob", {"n": 0})
    clock.advance(60)
    now_ms = clock.wall_ms()
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    ada.send("bob", {"n": 1})

    for since in (iso(now_ms), now_ms, moment, moment.replace(tzinfo=None)):
        assert [room.get(id).payload for id in room.replay(since)] == [{"n": 1}]
    assert room.replay(moment + timedelta(days=1)) == []
    with pytest.raises(InvalidMessage, match="since: must be a time such as 20"):
        room.replay("yesterday")


def test_a_replay_can_begin_at_a_number_of_the_feed(room: Room, ada: Agent, bob: Agent, clock: ManualClock) -> None:
    ada.send("bob", {"n": 0})
    clock.advance(1)
    cursor = room.cursor()
    clock.advance(1)
    ada.send("bob", {"n": 1})
    bob.receive(timeout_s=0).ack()  # the first one changes after the cursor, but was sent before it

    assert [room.get(id).payload["n"] for id in room.replay(cursor)] == [1]


def test_a_replay_sends_all_there_is_a_page_at_a_time_and_tells_of_each(
    room: Room, ada: Agent, bob: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.mail.replaying.PAGE", 4)
    ids = [ada.send("bob", {"n": number}) for number in range(10)]
    told: list[tuple[int, int]] = []

    again = room.replay(0, told=lambda page, found: told.append((len(page), found)))

    assert [room.get(id).replay_of for id in again] == ids
    assert told == [(0, 10), (4, 10), (4, 10), (2, 10)]
    assert room.count() == 20


def test_a_limited_replay_sends_the_oldest_and_a_dry_run_nothing(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {"n": number}) for number in range(3)]
    told: list[int] = []

    dry = room.replay(0, dry_run=True)
    some = room.replay(0, limit=2, told=lambda _, found: told.append(found))

    assert dry == ids
    assert room.replay(0, dry_run=True, limit=1) == ids[:1]
    assert [room.get(id).replay_of for id in some] == ids[:2]
    assert set(told) == {3}
    assert room.count() == 5


def test_what_is_raised_between_two_pages_ends_a_replay_there(
    room: Room, ada: Agent, bob: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.mail.replaying.PAGE", 2)
    ids = [ada.send("bob", {"n": number}) for number in range(5)]

    def told(page: list[str], _found: int) -> None:
        if page:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        room.replay(0, told=told)

    copies = room.peek(order="oldest", limit=100)[5:]
    assert [message.replay_of for message in copies] == ids[:2]


def test_messages_are_counted_as_they_are_shown(room: Room, ada: Agent, bob: Agent) -> None:
    for number in range(12):
        ada.send("bob", {"n": number}, channel=("a", "b")[number % 2], type="job")
    bob.receive(timeout_s=0).dead("no")
    ada.send(None, {}, channel="a")

    assert room.count() == len(room.peek(limit=100)) == 12
    assert room.count(agent="bob") == 11
    assert room.count(["a"]) == len(room.peek(["a"], limit=100))
    assert room.count(state="dead") == 1
    assert room.count(state=None, type="job", from_agent="ada") == 12


def test_an_answer_that_is_held_is_not_replayed(room: Room, ada: Agent, bob: Agent) -> None:
    question = Draft(from_agent="ada", to_agent="bob", payload={}, waiter=this_process())
    room.store.put([check(question)])  # as `ask` does, without anybody who takes the answer
    asked = bob.receive(timeout_s=5)
    asked.reply({})

    assert [room.get(id).replay_of for id in room.replay(0)] == [asked.id]


# Figures


def test_agents_and_mailboxes_tell_who_is_here_and_what_waits(room: Room, ada: Agent, bob: Agent) -> None:
    ada.send("bob", {})
    ada.send("bob", {}, channel="hall")
    ada.send(None, {}, channel="hall")
    ada.heartbeat("busy", "counting")
    room.agent("hook", transient=True)

    told = {info.name: info for info in room.agents()}

    assert [told["ada"].status, told["ada"].current_task, told["ada"].alive] == ["busy", "counting", True]
    assert [told["bob"].status, told["bob"].pending, told["bob"].transient] == ["active", 2, False]
    assert [told["hook"].status, told["hook"].alive, told["hook"].transient] == ["seen", None, True]
    assert {(box.to_agent, box.channel, box.depth) for box in room.mailboxes()} == {
        ("bob", "general", 1),
        ("bob", "hall", 1),
        (None, "hall", 1),
    }
    assert room.stats().states["stored"] == 3


def test_an_agent_is_the_same_each_time(room: Room) -> None:
    assert room.agent("ada") is room.agent("ada")
    assert room.agent("ada", transient=True) is not room.agent("ada")


# Files


def test_an_attached_file_is_kept_by_its_content(room: Room, tmp_path: Path) -> None:
    source = tmp_path / "report.txt"
    source.write_bytes(b"x" * 3_000_000)

    reference = room.attach(source)
    source.write_bytes(b"changed")

    assert (reference["name"], reference["bytes"]) == ("report.txt", 3_000_000)
    assert reference["artifact"].startswith("sha256:")
    kept = room.artifact(reference)
    assert str(kept) == reference["path"]
    assert kept.read_bytes() == b"x" * 3_000_000
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert room.artifact(reference["artifact"]) == kept
    room.agent("ada").send("bob", {"report": reference})


def test_the_same_content_is_kept_once(open_room: Callable[..., Room], tmp_path: Path) -> None:
    room, other = open_room(), open_room()
    for name in ("a", "b"):
        (tmp_path / name).write_text("the same")

    first, second = room.attach(tmp_path / "a"), room.attach(os.fspath(tmp_path / "b"))

    assert first["path"] == second["path"]
    assert other.artifact(first).read_text() == "the same"
    assert [p.name for p in Path(first["path"]).parent.iterdir() if p.name.startswith(".new-")] == []


@pytest.mark.parametrize(
    "reference",
    ["../messages.db", {"artifact": "sha256:../../etc/passwd"}, {"path": "/etc/passwd"}, {}, "sha256:" + "A" * 64],
)
def test_no_reference_leads_out_of_the_room(room: Room, reference: Any) -> None:
    with pytest.raises(InvalidMessage, match="artifact: must be sha256: and 64 hexadecimal digits"):
        room.artifact(reference)


def test_what_cannot_be_attached_or_found_is_named(room: Room, tmp_path: Path) -> None:
    with pytest.raises(InvalidMessage, match="path: .*missing.txt is not there; a file was expected"):
        room.attach(tmp_path / "missing.txt")
    with pytest.raises(InvalidMessage, match="is a folder; a file was expected"):
        room.attach(tmp_path)
    with pytest.raises(UnknownMessage, match="no file sha256:0000"):
        room.artifact("sha256:" + "0" * 64)


def test_messages_are_found_by_a_text_in_their_payloads_however_many_there_are(room: Room) -> None:
    ada = room.agent("ada")
    first = ada.send("bob", {"text": 'Überall "Nadel"\nim Heu', "deep": [{"key": "x" * 300 + " the END"}]})
    for _ in range(2):
        ada.send_many([{"to": "bob", "payload": {"n": number}} for number in range(550)])
    last = ada.send("bob", {"text": "keine nadel", "needle_key": 1}, priority=9)

    def ids(**wanted: Any) -> list[str]:
        return [message.id for message in room.peek(**{"state": None, **wanted})]

    assert ids(text="NADEL") == [last, first]
    assert ids(text="NADEL", state="pending") == [last, first]  # as they would be claimed
    assert ids(text="nadel", order="oldest", limit=1) == [first]
    assert ids(text='"nadel"') == ids(text='nadel"\nim') == ids(text="the end") == ids(text="ÜBERALL") == [first]
    assert ids(text="needle_key") == [last]
    assert ids(text="nowhere") == []
    assert ids(text="nadel", from_agent="eve") == []


def test_messages_are_found_by_recipient_question_and_time(room: Room, clock: ManualClock) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    question = ada.send("bob", {"q": 1})
    clock.advance(3600)
    held = bob.poll()
    assert held is not None
    held.reply({"a": 1})
    answer = held.answer_id

    def ids(**wanted: Any) -> list[str | None]:
        return [message.id for message in room.peek(state=None, **wanted)]

    assert ids(to="bob") == [question]
    assert ids(answer_to=question) == [answer]
    assert ids(since="30m") == [answer]
    assert ids(until="30m") == [question]
    assert ids(since="2h", until="0s") == [answer, question][1:]
    with pytest.raises(postroom.InvalidMessage, match="since"):
        room.peek(since="yesterday")


def test_purging_before_a_span_keeps_what_is_younger(room: Room, clock: ManualClock) -> None:
    ada, bob = (room.agent(name, transient=True) for name in ("ada", "bob"))  # nobody keeps house meanwhile
    for _ in range(2):
        ada.send("bob", {"n": 1})
        held = bob.poll()
        assert held is not None
        held.ack()
        clock.advance(3600)

    assert room.purge(before="90m") == 1
    assert room.purge(before="1h") == 0
    assert room.purge() == 1


def test_a_message_that_nobody_has_taken_is_taken_back_by_its_id(room: Room, ada: Agent, bob: Agent) -> None:
    delayed, ready, held = (
        ada.send("bob", {"n": 1}, delay_s=60),
        ada.send("bob", {"n": 2}),
        ada.send("bob", {"n": 3}, priority=9),
    )
    claimed = bob.poll()
    assert claimed is not None

    assert room.purge(ids=[delayed, held]) == 1
    assert room.purge(ids=[delayed]) == 0

    assert {message.id for message in room.peek(state=None)} == {ready, held}
    assert claimed.ack()


def test_one_text_is_no_list_of_channels_or_ids(room: Room, ada: Agent) -> None:
    id = ada.send("bob", {"n": 1})
    calls: list[Callable[[], object]] = [
        lambda: room.peek(channels="general"),
        lambda: room.count(channels="general"),
        lambda: room.purge(channels="general"),
        lambda: room.purge(ids=id),
    ]

    for call in calls:
        with pytest.raises(InvalidMessage, match=r"must be a list of (names|ids), such as \['"):
            call()
