"""Mailboxes of a session: any name, any JSON value, first in first out, and nothing swallowed by one who gave up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.core.clock import ManualClock
from postroom.room import Room
from postroom.sessions.session import Session

NAMES = [
    "session", "send", "receive", "constructor", "toString", "mailboxes", "__class__", "__getattr__", "__dict__", "_x",
    "a/b", "..", "../../etc/passwd", "/", "a b", "\N{POSTBOX}", "é", "%", "a:b", "none", "x" * 200,
]  # fmt: skip


@pytest.fixture
def session(room: Room) -> Any:
    with room.session() as opened:
        yield opened


def test_runtime_has_mailbox_classes(session: Session) -> None:
    assert isinstance(session.mailbox, postroom.Mailroom)
    assert isinstance(session.mailbox.tasks, postroom.Mailbox)
    assert session.mailbox.tasks is session.mailbox["tasks"]


def test_mailbox_send(session: Session, room: Room) -> None:
    id = session.mailbox.tasks.send({"action": "analyze"})

    message = room.get(id)
    assert message.payload == {"value": {"action": "analyze"}}
    assert message.from_agent == "caller"
    assert room.receipt(id).state == "stored"


def test_mailbox_receive(session: Session, clock: ManualClock, in_background: Any, pass_time: Any) -> None:
    session.mailbox.results.send(7)

    assert session.mailbox.results.receive(5000) == 7
    call = in_background(lambda: session.mailbox.results.receive(5000))
    pass_time(call)
    with pytest.raises(postroom.ReceiveTimeout, match="^Mailbox receive timeout after 5000ms$"):
        call.result()


def test_mailbox_multiple_names(session: Session) -> None:
    for name in ("tasks", "results", "events"):
        session.mailbox[name].send(name)

    assert [session.mailbox[name].receive(0) for name in ("events", "results", "tasks")] == [
        "events",
        "results",
        "tasks",
    ]


def test_mailbox_in_loop(session: Session) -> None:
    """Sends in one loop are all kept: five in the same millisecond are five."""
    for number in range(50):
        session.mailbox.events.send(number)

    assert [session.mailbox.events.receive(0) for _ in range(50)] == list(range(50))
    with pytest.raises(postroom.ReceiveTimeout):
        session.mailbox.events.receive(0)


def test_mailbox_send_receive_roundtrip(session: Session) -> None:
    task = {"action": "analyze", "target": "src/main.rs"}
    session.mailbox.tasks.send(task)
    taken = session.mailbox.tasks.receive(10_000)
    session.mailbox.results.send({"file": taken["target"], "summary": "analyzed"})

    assert session.mailbox.results.receive(5000) == {"file": "src/main.rs", "summary": "analyzed"}


def test_mailbox_receive_without_timeout(session: Session, in_background: Any) -> None:
    call = in_background(session.mailbox.tasks.receive)
    while not call.running:
        pass
    session.mailbox.tasks.send("at last")

    assert call.result() == "at last"


@pytest.mark.parametrize(
    "value", [None, True, 0, 1.5, "", "text", [], {}, [1, [2, {"a": None}]], {"value": 1}, "\N{POSTBOX}"]
)
def test_any_json_value_comes_out_as_it_went_in(session: Session, value: Any) -> None:
    session.mailbox.box.send(value)

    assert session.mailbox.box.receive(0) == value


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, b"bytes", {"a": {1, 2}}, object()])
def test_what_is_not_json_is_refused_and_nothing_is_stored(session: Session, value: Any) -> None:
    with pytest.raises(postroom.InvalidMessage, match="payload"):
        session.mailbox.box.send(value)

    with pytest.raises(postroom.ReceiveTimeout):
        session.mailbox.box.receive(0)


def test_what_was_sent_is_a_copy(session: Session) -> None:
    value = {"list": [1]}
    session.mailbox.box.send(value)
    value["list"].append(2)

    received = session.mailbox.box.receive(0)
    received["list"].append(3)

    assert received == {"list": [1, 3]}
    assert value == {"list": [1, 2]}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_mailbox_of_its_own(session: Session, name: str) -> None:
    session.mailbox[name].send(name)

    for other in NAMES:
        if other != name:
            with pytest.raises(postroom.ReceiveTimeout):
                session.mailbox[other].receive(0)
    assert session.mailbox[name].receive(0) == name


@pytest.mark.parametrize("name", ["session", "send", "receive", "constructor", "toString", "mailboxes", "_x"])
def test_names_that_mean_something_elsewhere_work_with_a_dot(session: Session, name: str) -> None:
    getattr(session.mailbox, name).send(name)

    assert session.mailbox[name].receive(0) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 10_000, "\N{POSTBOX}" * 51, "a\0b", "a\nb", "\ud800", 7, None, b"x", ("a",)]
)
def test_what_cannot_be_a_name_gets_a_clear_error(session: Session, name: Any) -> None:
    with pytest.raises(postroom.InvalidMessage, match="mailbox: must|mailbox: contains"):
        session.mailbox[name]


def test_a_name_of_pythons_own_says_how_to_write_it(session: Session) -> None:
    with pytest.raises(AttributeError, match=r"session\.mailbox\['__wakeup__'\]"):
        session.mailbox.__wakeup__  # noqa: B018
    assert session.mailbox.__class__ is postroom.Mailroom
    assert not hasattr(session.mailbox, "__iter__")


def test_no_name_escapes_the_folder(session: Session, tmp_path: Path) -> None:
    """Mailboxes are rows of the room, whatever their names: no file appears anywhere, but where a room of files has its mail."""
    mail = tmp_path / "room" / "inbox" / "_channel"

    def files() -> set[Path]:
        found = {*tmp_path.rglob("*"), *tmp_path.parent.glob("*"), *session.dir.rglob("*")}
        return {path for path in found if not path.is_relative_to(mail)}

    session.mailbox.first.send(1)
    before = files()
    for name in NAMES:
        session.mailbox[name].send(1)

    assert files() == before


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True])
def test_a_timeout_that_is_none_gets_a_clear_error(session: Session, timeout: Any) -> None:
    with pytest.raises(postroom.InvalidMessage, match="timeout_ms: must be"):
        session.mailbox.box.receive(timeout)


def test_one_who_gave_up_swallows_nothing(session: Session, in_background: Any, pass_time: Any) -> None:
    """In the source's design a timed-out waiter stayed in the queue and took the next message with it."""
    for _ in range(5):
        call = in_background(lambda: session.mailbox.box.receive(300))
        pass_time(call)
        with pytest.raises(postroom.ReceiveTimeout):
            call.result()
    session.mailbox.box.send("here")

    assert session.mailbox.box.receive(0) == "here"


def test_one_who_is_interrupted_while_it_waits_takes_nothing(session: Session) -> None:
    """A receive that is cut off in the middle of its wait, as Ctrl-C does, leaves nothing claimed and nobody armed."""
    steps = session.mailbox.box._receiving(None)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    session.mailbox.box.send("here")

    assert session.mailbox.box.receive(0) == "here"


def test_a_delayed_value_comes_in_time_and_not_before(
    session: Session, clock: ManualClock, in_background: Any, pass_time: Any
) -> None:
    session.mailbox.box.send("late", delay_ms=5000)
    with pytest.raises(postroom.ReceiveTimeout):
        session.mailbox.box.receive(0)

    sent_ms = clock.wall_ms()
    call = in_background(lambda: (session.mailbox.box.receive(), clock.wall_ms()))
    pass_time(call, look_s=0.05)
    value, at_ms = call.result()

    assert value == "late"
    assert 5000 <= at_ms - sent_ms < 7000


def test_a_value_delayed_while_somebody_waits_comes_in_time(
    session: Session, clock: ManualClock, in_background: Any, pass_time: Any
) -> None:
    call = in_background(lambda: (session.mailbox.box.receive(60_000), clock.wall_ms()))
    for _ in range(8):
        assert call.comes_to_wait(clock, 20)
        clock.advance(0.25)
    assert call.comes_to_wait(clock, 20)
    sent_ms = clock.wall_ms()
    session.mailbox.box.send("late", delay_ms=1300)
    pass_time(call, look_s=0.1)
    value, at_ms = call.result()

    assert value == "late"
    assert 1300 <= at_ms - sent_ms < 2500


def test_several_receivers_each_get_one(session: Session, in_background: Any) -> None:
    calls = [in_background(session.mailbox.box.receive) for _ in range(6)]
    for number in range(6):
        session.mailbox.box.send(number)

    assert sorted(call.result() for call in calls) == list(range(6))


def test_mail_of_one_session_is_not_in_another(room: Room) -> None:
    with room.session() as one, room.session() as other:
        one.mailbox.box.send(1)

        with pytest.raises(postroom.ReceiveTimeout):
            other.mailbox.box.receive(0)
        assert one.mailbox.box.receive(0) == 1


def test_what_others_put_into_the_channel_arrives_whole(session: Session, room: Room) -> None:
    room.agent("ada").send(None, {"n": 1, "value": 2}, channel=f"session:{session.id}/box")

    assert session.mailbox.box.receive(0) == {"n": 1, "value": 2}


@pytest.mark.parametrize("each", [25, pytest.param(100, marks=pytest.mark.long)])
def test_order_holds_with_many_senders_in_threads(open_room: Callable[..., Room], each: int) -> None:
    session = open_room().session()

    def send(who: int) -> None:
        for number in range(each):
            session.mailbox.box.send([who, number])

    threads = [threading.Thread(target=send, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    got = [session.mailbox.box.receive(None) for _ in range(8 * each)]
    for thread in threads:
        thread.join()

    for who in range(8):
        assert [number for sender, number in got if sender == who] == list(range(each))
