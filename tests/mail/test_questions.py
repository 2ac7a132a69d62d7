"""Questions: every one ends with the answer or with an error that says why there is none."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import PROGRAMS

import postroom
from postroom import Agent, Room
from postroom.core.clock import ManualClock
from postroom.mail import presence
from postroom.room import open_room

PEER = PROGRAMS / "peer.py"
Background = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def ada(room: Room) -> Agent:
    return room.agent("ada")


@pytest.fixture
def bob(room: Room) -> Agent:
    return room.agent("bob")


def question_of(room: Room, error: postroom.AskFailed) -> postroom.Receipt:
    return room.receipt(error.id)


def test_an_answer_comes_back_acked(room: Room, ada: Agent, bob: Agent, in_background: Background) -> None:
    asked = in_background(lambda: ada.ask("bob", {"q": 1}, type="sum", priority=9))
    question = bob.receive()
    assert (question.payload, question.type, question.priority) == ({"q": 1}, "sum", 9)

    question.reply({"a": 2})

    answer = asked.result()
    assert (answer.payload, answer.from_agent, answer.type) == ({"a": 2}, "bob", "sum.response")
    assert answer.settled is True
    assert answer.ack() is False
    assert room.receipt(answer.id).state == "acked"
    assert room.receipt(question.id).state == "answered"
    assert ada.poll() is None


def test_an_answer_that_a_hint_told_of_is_taken_without_reading_the_question(
    tmp_path: Path, clock: ManualClock, in_background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time stands still here: there is no safety look, which does read it."""
    with open_room(f"sqlite:{tmp_path}/room", clock=clock) as room:
        bob, paused, wait = room.agent("bob"), threading.Event(), room._gateway.wait

        def note_and_wait(*pause: Any) -> bool:
            paused.set()
            return wait(*pause)

        monkeypatch.setattr(room._gateway, "wait", note_and_wait)
        asked = in_background(lambda: room.agent("ada").ask("bob", {}))
        assert paused.wait(30)
        question = bob.receive()
        monkeypatch.setattr(room.store, "get", lambda _: pytest.fail("the question was read"))
        question.reply({"a": 1})

        assert asked.result().payload == {"a": 1}


def test_receive_does_not_see_an_answer_that_is_waited_for(
    room: Room, ada: Agent, bob: Agent, in_background: Background
) -> None:
    held = []
    asked = in_background(lambda: ada.ask("bob", {}))
    question = bob.receive()
    # at the moment of settling, before the asker can have taken it
    room.hooks.on("after_settle", lambda *_: held.append((ada.poll(), room.peek(agent="ada"))))

    question.reply({"a": 1})

    assert asked.result().payload == {"a": 1}
    assert held == [(None, [])]


def test_whoever_claims_it_can_answer_a_question_to_nobody(ada: Agent, bob: Agent, in_background: Background) -> None:
    asked = in_background(lambda: ada.ask(None, {}, channel="reviews"))

    bob.receive(channels=["reviews"]).reply({"by": "bob"})

    assert asked.result().from_agent == "bob"


def test_a_refusal_comes_with_its_reason(room: Room, ada: Agent, bob: Agent, in_background: Background) -> None:
    asked = in_background(lambda: ada.ask("bob", {}))

    bob.receive().refuse("not today")

    with pytest.raises(postroom.Refused, match="^bob refused: not today$") as error:
        asked.result()
    assert error.value.reason == "not today"
    assert question_of(room, error.value).state == "refused"


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        ("ack", "was acked by bob without an answer"),
        ("dead", "was set aside as a dead letter .broken. without an answer"),
    ],
)
def test_a_question_that_ended_otherwise_says_how(
    ada: Agent, bob: Agent, in_background: Background, ending: str, sentence: str
) -> None:
    asked = in_background(lambda: ada.ask("bob", {}))
    question = bob.receive()

    question.ack() if ending == "ack" else question.dead("broken")

    with pytest.raises(postroom.NotAnswered, match=sentence):
        asked.result()


def test_a_question_may_expire(
    ada: Agent, bob: Agent, in_background: Background, pass_time: Callable[..., None]
) -> None:
    asked = in_background(lambda: ada.ask("bob", {}, ttl_s=4))
    pass_time(asked)

    with pytest.raises(postroom.NotAnswered, match="expired without an answer"):
        asked.result()


def test_a_late_answer_is_ordinary_mail(
    room: Room, ada: Agent, bob: Agent, in_background: Background, pass_time: Callable[..., None]
) -> None:
    asked = in_background(lambda: ada.ask("bob", {}, timeout_s=3))
    question = bob.receive()
    pass_time(asked)
    with pytest.raises(postroom.AskTimeout, match="within 3 s: bob has taken it but not answered yet") as error:
        asked.result()
    assert isinstance(error.value, TimeoutError)
    assert room.waits() == []

    assert question.reply({"late": True})

    assert ada.receive(timeout_s=0).payload == {"late": True}


def test_an_interrupted_question_leaves_nobody_waiting(
    room: Room, ada: Agent, bob: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(room._gateway, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ada.ask("bob", {})
    monkeypatch.undo()

    assert room.waits() == []
    bob.receive(timeout_s=0).reply({})
    assert ada.poll() is not None


def test_a_question_ends_when_the_room_is_closed_and_its_answer_is_ordinary_mail(
    open_room: Callable[..., Room], in_background: Background
) -> None:
    room, other = open_room(), open_room()
    asked = in_background(lambda: room.agent("ada").ask("bob", {}))
    question = other.agent("bob").receive()

    room.close()

    with pytest.raises(postroom.RoomClosed):
        asked.result()
    question.reply({"late": True})
    assert other.agent("ada").receive(timeout_s=0).payload == {"late": True}


def test_a_room_that_is_closed_while_a_question_is_stored_knows_of_it(
    open_room: Callable[..., Room], in_background: Background
) -> None:
    room, other = open_room(), open_room()
    closing = threading.Thread(target=room.close)

    def close_meanwhile(*_: object) -> None:
        closing.start()
        while not room.closed:  # from there it gets no further: the question is stored, and nobody has noted it
            closing.join(0.001)

    room.hooks.on("after_send", close_meanwhile)
    asked = in_background(lambda: room.agent("ada").ask("bob", {}))
    question = other.agent("bob").receive()
    with pytest.raises(postroom.RoomClosed):
        asked.result()
    closing.join()

    question.reply({"late": True})
    assert other.agent("ada").receive(timeout_s=0).payload == {"late": True}


def test_a_question_to_nobody_known_says_so(
    ada: Agent, bob: Agent, in_background: Background, pass_time: Callable[..., None]
) -> None:
    asked = in_background(lambda: ada.ask("bobb", {}, timeout_s=2))
    pass_time(asked)

    with pytest.raises(postroom.AskTimeout, match="bobb has not joined this room yet; did you mean bob"):
        asked.result()


def test_a_question_that_was_not_taken_says_so(
    ada: Agent, bob: Agent, in_background: Background, pass_time: Callable[..., None]
) -> None:
    asked = in_background(lambda: ada.ask("bob", {}, timeout_s=2))
    pass_time(asked)

    with pytest.raises(postroom.AskTimeout, match="within 2 s: bob has not taken it"):
        asked.result()


def test_a_question_asked_twice_under_one_key_has_one_answer(ada: Agent, bob: Agent, in_background: Background) -> None:
    asked = in_background(lambda: ada.ask("bob", {"q": 1}, idempotency_key="k"))
    bob.receive().reply({"a": 1})
    first = asked.result()

    again = ada.ask("bob", {"q": 1}, idempotency_key="k")

    assert (again.id, again.payload) == (first.id, {"a": 1})
    assert bob.poll() is None


def test_waits_show_who_waits_for_whom(room: Room, ada: Agent, bob: Agent, in_background: Background) -> None:
    asked = in_background(lambda: ada.ask("bob", {}))
    question = bob.receive()

    assert [(w.asker, w.peer, w.question_id) for w in room.waits()] == [("ada", "bob", question.id)]
    assert room.waits()[0].since == question.timestamp

    question.reply({})
    asked.result()
    assert room.waits() == []


# The one who is asked goes away


def test_asking_for_ever_one_who_does_not_run_ends_at_once(open_room: Callable[..., Room]) -> None:
    room, other = open_room(), open_room()
    other.agent("bob")
    other.close()

    with pytest.raises(postroom.PeerGone, match="^bob stopped without answering$"):
        room.agent("ada").ask("bob", {}, timeout_s=None)
    assert room.waits() == []


def test_one_who_stopped_before_may_still_come_back_in_time(
    open_room: Callable[..., Room], in_background: Background
) -> None:
    room, other = open_room(), open_room()
    other.agent("bob")
    other.close()
    asked = in_background(lambda: room.agent("ada").ask("bob", {}, timeout_s=30))

    open_room().agent("bob").receive().reply({"back": True})

    assert asked.result().payload == {"back": True}


def test_one_who_is_only_seen_now_and_then_is_never_said_to_be_gone(
    room: Room, ada: Agent, in_background: Background, pass_time: Callable[..., None]
) -> None:
    room.agent("hook", transient=True)
    asked = in_background(lambda: ada.ask("hook", {}, timeout_s=3))
    pass_time(asked)

    with pytest.raises(postroom.AskTimeout):
        asked.result()


def test_one_who_stops_while_we_wait_is_gone(
    open_room: Callable[..., Room], in_background: Background, pass_time: Callable[..., None], clock: ManualClock
) -> None:
    room, other = open_room(), open_room()
    asker = room.agent("ada")
    bob = other.agent("bob")
    asked = in_background(lambda: asker.ask("bob", {}, timeout_s=1000))
    bob.receive()
    clock.advance(1)  # the asker has looked at bob at least once, at the beginning

    other.close()

    pass_time(asked)
    with pytest.raises(postroom.PeerGone, match="^bob stopped without answering$") as error:
        asked.result()
    assert question_of(room, error.value).state == "stored"


def test_one_whose_last_act_was_to_answer_is_not_gone_without_answering(
    open_room: Callable[..., Room],
    in_background: Background,
    pass_time: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers and closes after the asker has looked for the answer, and before it looks whether bob still runs."""
    room, other = open_room(), open_room()
    asker = room.agent("ada")
    question: list[postroom.Received] = []
    look = presence.look

    def look_after_the_last_act(*args: Any) -> Any:
        if question:
            question.pop().reply({"last": True})
            other.close()
        return look(*args)

    monkeypatch.setattr(presence, "look", look_after_the_last_act)
    bob = other.agent("bob")
    asked = in_background(lambda: asker.ask("bob", {}, timeout_s=1000))
    question.append(bob.receive())

    pass_time(asked)

    assert asked.result().payload == {"last": True}
    assert question == []


@contextmanager
def peer(url: str, name: str, ending: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(PEER), url, name, ending], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "sentence"), [("die", "bob died"), ("stop", "bob stopped")])
def test_a_process_that_ends_while_we_wait_is_gone(tmp_path: Path, ending: str, sentence: str) -> None:
    url = f"sqlite:{tmp_path}/room"
    with postroom.open(url) as room, peer(url, "bob", ending):
        ada = room.agent("ada")

        with pytest.raises(postroom.PeerGone, match=f"^{sentence} without answering$") as error:
            ada.ask("bob", {}, timeout_s=20)

        assert room.waits() == []
        again = room.agent("bob").receive(timeout_s=20)  # whoever is bob next may still answer it
        assert (again.id, again.delivery_count) == (error.value.id, 2)
        assert again.reply({"late": True})
        assert ada.receive(timeout_s=0).payload == {"late": True}


@pytest.mark.slow
def test_the_last_words_of_a_process_count(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/room"
    with postroom.open(url) as room, peer(url, "bob", "answer and die"):
        assert room.agent("ada").ask("bob", {}, timeout_s=20).payload == {"last": "words"}


@pytest.mark.slow
def test_a_process_that_was_killed_is_seen_to_be_gone(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/room"
    with postroom.open(url) as room, peer(url, "bob", "wait") as process:
        (before,) = room.agents()
        assert (before.name, before.status, before.alive) == ("bob", "active", True)

        process.kill()
        process.wait()

        (after,) = room.agents()
        assert (after.name, after.status, after.alive) == ("bob", "gone", False)
        assert presence.prune(room._gateway, presence.Silences()) == 1
        assert [(agent.status, agent.processes) for agent in room.agents()] == [("gone", [])]
