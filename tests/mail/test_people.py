"""Questions to people: options, deadlines, defaults, and whose answer counts. On every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import postroom
from postroom import Room
from postroom.core.clock import ManualClock
from postroom.core.message import Draft
from postroom.errors import (
    AskTimeout,
    IdentityRefused,
    InvalidMessage,
    NotAnswered,
    QuestionClosed,
    UnknownMessage,
    Withdrawn,
)
from postroom.mail import forgetting, people, tokens
from postroom.mail.people import CELLS, Answerer
from postroom.mail.received import QUESTION
from postroom.stores.contract import Ticket, Want

Background = Callable[[Callable[[], Any]], Any]
YES_OR_NO = ["yes", "no"]


@pytest.fixture
def mia(room: Room) -> str:
    """Her token; the room has tokens from then on."""
    return tokens.add_token(room.gateway, "mia", human=True)


def ask(room: Room, person: str | None = "mia", **more: Any) -> str:
    return room.people.ask(person, "deploy?", "ada", **{"options": YES_OR_NO, "default": "no", "timeout_s": 60, **more})


def mail_of(room: Room, agent: str) -> list[dict[str, Any]]:
    return [message.payload for message in room.peek(agent=agent, limit=100)]


# Asking


def test_a_question_waits_in_the_room_and_its_answer_comes_to_the_asker(room: Room, mia: str) -> None:
    id = ask(room)
    (shown,) = room.people.open("mia")

    assert (shown.id, shown.asker, shown.person, shown.text) == (id, "ada", "mia", "deploy?")
    assert (shown.options, shown.default, shown.state, shown.answer) == (("yes", "no"), "no", "open", None)
    assert shown.deadline is not None
    assert room.people.open("cleo") == []

    given = room.people.answer(id, "yes", token=mia)

    assert (given.said, given.by, given.how, given.is_default) == ("yes", "mia", "token", False)
    assert mail_of(room, "ada") == [{"text": "yes"}]
    assert room.peek(agent="ada")[0].lane == "human"
    assert (room.people.open(), room.people.look(id).state, room.people.look(id).answer) == ([], "answered", given)
    assert room.receipt(id).state == "acked"
    assert room.people.wait(id, timeout_s=0) == given
    assert mail_of(room, "ada") == []  # taken: it came only once


def test_an_asker_that_waits_is_woken_by_the_answer(room: Room, mia: str, in_background: Background) -> None:
    id = ask(room, options=(), default=None, timeout_s=None)
    asked = in_background(lambda: room.people.wait(id))

    room.people.answer(id, "call it 'postroom'", token=mia)

    assert asked.result().said == "call it 'postroom'"
    assert room.people.look(id).deadline is None


def test_what_is_asked_wrongly_is_told_and_not_stored(room: Room) -> None:
    for wrong, field in (
        ({"text": " "}, "text"),
        ({"options": ["yes", "yes"]}, "options"),
        ({"options": [""]}, "options"),
        ({"options": [str(n) for n in range(21)]}, "options"),
        ({"options": ["yes"], "default": "no", "timeout_s": 5}, "default"),
        ({"default": "no"}, "timeout_s"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"person": ""}, "person"),
        ({"text": 7}, "text"),
        ({"options": [7]}, "options[0]"),
        ({"data": {"at": object()}}, "payload.data.at"),
    ):
        arguments: dict[str, Any] = {"person": "mia", "text": "deploy?", "asker": "ada", **wrong}
        with pytest.raises(InvalidMessage) as caught:
            room.people.ask(**arguments)
        assert field in [fault.field for fault in caught.value.faults]
    assert (room.people.open(), room.peek(state=None)) == ([], [])


def test_a_question_that_nobody_could_answer_is_not_asked(room: Room, mia: str) -> None:
    tokens.add_token(room.gateway, "bob")

    for who in ("bob", "nobody"):
        with pytest.raises(IdentityRefused, match=f"{who} has no person's token .*postroom agent add {who} --human"):
            ask(room, who)
    assert room.people.open() == []
    assert ask(room, None)


def test_a_repeat_under_one_key_asks_once(room: Room, mia: str) -> None:
    assert ask(room, idempotency_key="d7") == ask(room, idempotency_key="d7")
    assert len(room.people.open()) == 1


def test_an_asker_that_was_killed_in_the_middle_asks_again_or_is_answered_all_the_same(room: Room, mia: str) -> None:
    id = ask(room, idempotency_key="d7")
    room.store.cell_write(CELLS + id, None)  # as if it had been killed before it wrote the cell

    assert room.people.look(id).state == "open"
    assert ask(room, idempotency_key="d7") == id
    assert [each.id for each in room.people.open()] == [id]
    room.store.cell_write(CELLS + id, None)
    assert room.people.answer(id, "yes", token=mia).said == "yes"


# Deadlines and defaults


def test_after_the_deadline_the_default_counts_and_says_so(room: Room, clock: ManualClock, mia: str) -> None:
    id = ask(room)
    clock.advance(59)
    assert room.people.look(id).state == "open"
    clock.advance(2)

    given = room.people.wait(id, timeout_s=0)

    assert (given.said, given.by, given.how, given.is_default) == ("no", "postroom", "deadline", True)
    with pytest.raises(QuestionClosed, match="was open until .*; its default counts: no; nothing was changed"):
        room.people.answer(id, "yes", token=mia)
    assert room.people.look(id).answer == given


@pytest.mark.parametrize("looks", ["open", "tend", "look"])
def test_whoever_looks_first_makes_the_default_and_only_once(room: Room, clock: ManualClock, looks: str) -> None:
    id = ask(room)
    clock.advance(61)

    for _ in range(3):
        if looks == "open":
            room.people.open()
        elif looks == "tend":
            people.tend(room.gateway)
        else:
            room.people.look(id)

    (told,) = mail_of(room, "ada")
    assert (told["text"], told["default"]) == ("no", True)
    assert "mia was asked" in told["why"]


def test_without_a_default_a_question_ends_unanswered(room: Room, clock: ManualClock, mia: str) -> None:
    id = ask(room, default=None)
    clock.advance(61)

    with pytest.raises(NotAnswered, match="in time, and it has no default"):
        room.people.wait(id, timeout_s=0)
    with pytest.raises(QuestionClosed, match="was open until"):
        room.people.answer(id, "yes", token=mia)
    assert (room.people.look(id).state, mail_of(room, "ada")) == ("expired", [])


def test_an_asker_waits_until_the_deadline_and_no_longer(
    room: Room, in_background: Background, pass_time: Callable[..., None]
) -> None:
    id = ask(room, timeout_s=5)
    with pytest.raises(AskTimeout, match="mia has not answered question .* yet; it stays open until"):
        room.people.wait(id, timeout_s=0)
    asked = in_background(lambda: room.people.wait(id))

    pass_time(asked)

    assert asked.result().is_default


def test_the_chores_of_any_open_room_make_defaults(open_room: Callable[..., Room], clock: ManualClock) -> None:
    first = open_room()
    id = ask(first, timeout_s=30)
    assert people.tend(first.gateway) == pytest.approx(30, abs=0.1)

    clock.advance(31)

    assert people.tend(first.gateway) is None
    assert first.people.look(id).state == "default"


def test_a_withdrawn_question_is_over(room: Room, clock: ManualClock, mia: str) -> None:
    id = ask(room)

    assert room.agent("ada").withdraw(id)

    clock.advance(61)
    with pytest.raises(Withdrawn):
        room.people.wait(id, timeout_s=0)
    with pytest.raises(QuestionClosed, match="was withdrawn by its asker"):
        room.people.answer(id, "yes", token=mia)
    assert (room.people.open(), mail_of(room, "ada")) == ([], [])


def test_a_question_whose_message_is_kept_no_more_is_forgotten(room: Room) -> None:
    id = ask(room)
    room.purge(ids=[id])

    people.tend(room.gateway)

    assert room.store.cell_scan(CELLS) == []
    with pytest.raises(UnknownMessage):
        room.people.look(id)


# Whose answer counts


def test_only_the_persons_own_token_answers(room: Room, mia: str) -> None:
    id, of_anybody = ask(room), ask(room, None)
    bob = tokens.add_token(room.gateway, "bob")
    cleo = tokens.add_token(room.gateway, "cleo", human=True)

    for wrong, why in (
        (bob, "bob is an agent"),
        (cleo, "the question is for mia, not for cleo"),
        (mia[:-1] + ("x" if mia[-1] != "x" else "y"), "not valid"),
        ("", "not valid"),
    ):
        with pytest.raises(IdentityRefused, match=why):
            room.people.answer(id, "yes", token=wrong)
    for place in ("terminal", "page"):
        with pytest.raises(IdentityRefused, match="this room has tokens"):
            people.answer(room.gateway, id, "yes", Answerer(None, "test", "mia", place))
    assert [each.id for each in room.people.open()] == [id, of_anybody]
    assert tokens.refusals(room.gateway)[0] == 5  # one that shows nothing claims nothing
    with pytest.raises(InvalidMessage, match="must be one of yes, no, not maybe"):
        room.people.answer(id, "maybe", token=mia)
    assert room.people.answer(of_anybody, "yes", token=cleo).by == "cleo"


def test_the_first_answer_counts_and_its_repeat_is_the_same(room: Room, mia: str) -> None:
    id = ask(room, None)
    cleo = tokens.add_token(room.gateway, "cleo", human=True)
    given = room.people.answer(id, "yes", token=mia)

    assert room.people.answer(id, " yes ", token=mia) == given
    for token, said in ((mia, "no"), (cleo, "yes"), (cleo, "no")):
        with pytest.raises(QuestionClosed, match="was answered already by mia at .*: yes"):
            room.people.answer(id, said, token=token)
    assert len(mail_of(room, "ada")) == 1


def test_what_other_programs_do_with_the_message_decides_nothing(room: Room, mia: str) -> None:
    impostor = room.agent("mia")
    ids = [ask(room) for _ in range(5)]
    for number in range(5):
        message = impostor.receive(timeout_s=0)
        if number == 0:
            with pytest.raises(IdentityRefused, match="answered by a person"):
                message.reply({"text": "yes"})
            with pytest.raises(IdentityRefused, match="answered by a person"):
                message.refuse("no")
            message.retry("later", delay_s=3600)
        elif number == 1:
            payload = {"text": "yes"}
            forged = Draft("mia", payload, "ada", lane="human", answer_to=message.id, payload_json='{"text":"yes"}')
            room.store.settle(message.ticket, "answered", puts=[forged])
        elif number == 2:
            room.store.settle(message.ticket, "refused", detail="no")
        else:
            assert message.ack() if number == 3 else message.dead("x")

    assert {room.people.look(id).state for id in ids} == {"open"}
    for id in ids:
        assert room.people.answer(id, "no", token=mia).said == "no"
        assert room.people.wait(id, timeout_s=0).said == "no"


def forgeries(room: Room, id: str, mia: str) -> list[Any]:
    """What a program may write into the cell that has all that the room keeps, and a person's token of its own."""
    message = room.get(id)
    cleo = tokens.add_token(room.gateway, "cleo", human=True)
    own = tokens.credential_of(room.gateway, cleo).token_id
    hers = tokens.credential_of(room.gateway, mia).token_id
    made = people._Decision("yes", "mia", "token", 1, own)
    by_cleo = tokens.sign(room.gateway, cleo, people._signed(message, made))
    plain = {"said": "yes", "by": "mia", "how": "token", "time_ms": 1, "token": hers, "signature": ""}
    return [
        plain,
        plain | {"signature": "00" * 64},
        plain | {"signature": "no digits"},
        plain | {"signature": by_cleo},
        plain | {"signature": by_cleo, "token": own},
        plain | {"token": "0" * 12},
        plain | {"how": "terminal"},
        plain | {"how": "page"},
        plain | {"how": "deadline"},
        {"said": "no", "by": "postroom", "how": "deadline", "time_ms": 1},
        {"said": "yes"},
        "yes",
        ["yes"],
        7,
    ]


def test_no_forged_answer_counts_and_the_persons_own_takes_its_place(room: Room, mia: str) -> None:
    id = ask(room)
    for forged in forgeries(room, id, mia):
        room.store.cell_write(CELLS + id, {"answer": forged})

        assert room.people.look(id).state == "open", forged
        assert [each.id for each in room.people.open()] == [id]

    assert room.people.answer(id, "no", token=mia).said == "no"
    assert room.people.wait(id, timeout_s=0).said == "no"


def test_a_question_that_was_ended_and_then_answered_by_a_forger_is_still_seen_by_the_person(
    room: Room, mia: str
) -> None:
    id = ask(room)
    assert room.agent("mia").receive(timeout_s=0).ack()
    room.store.cell_write(CELLS + id, {"answer": forgeries(room, id, mia)[0]})

    assert [each.id for each in room.people.open("mia")] == [id]


def test_an_answer_is_to_the_question_as_it_was_asked(room: Room, mia: str) -> None:
    """Her signature under one question is none under another, nor under other words."""
    id, other = ask(room), ask(room)
    room.people.answer(id, "yes", token=mia)
    signed = room.store.cell_read(CELLS + id)
    assert signed is not None

    room.store.cell_write(CELLS + other, signed.value)
    assert room.people.look(other).state == "open"
    room.store.cell_write(CELLS + id, {"answer": signed.value["answer"] | {"said": "no"}})
    assert room.people.look(id).state == "open"
    room.store.cell_write(CELLS + id, signed.value)
    assert room.people.look(id).state == "answered"


def test_an_answer_stays_one_when_its_token_is_revoked_forgotten_or_renamed(
    room: Room, clock: ManualClock, mia: str
) -> None:
    id, later = ask(room), ask(room)
    chief = tokens.add_token(room.gateway, "chief", human=True)
    given = room.people.answer(id, "yes", token=mia)
    clock.advance(1)

    forgetting.rename(room.gateway, "mia", "maria")
    assert room.people.look(id).answer == given
    tokens.revoke_tokens(room.gateway, "maria")
    assert room.people.look(id).answer == given
    with pytest.raises(IdentityRefused, match="revoked"):
        room.people.answer(later, "yes", token=mia)
    forgetting.forget(room.gateway, "maria")
    assert room.people.look(id).answer == given
    tokens.switch_off(room.gateway, "chief", 0)
    assert (room.people.look(id).answer, chief != mia) == (given, True)


def test_an_answer_that_is_signed_by_a_revoked_token_is_none(room: Room, clock: ManualClock, mia: str) -> None:
    id = ask(room)
    tokens.add_token(room.gateway, "chief", human=True)
    made = people._Decision("yes", "mia", "token", clock.wall_ms(), tokens.credential_of(room.gateway, mia).token_id)
    made.signature = tokens.sign(room.gateway, mia, people._signed(room.get(id), made))
    tokens.revoke_tokens(room.gateway, "mia")
    clock.advance(1)

    room.store.cell_write(CELLS + id, {"answer": msgspec.to_builtins(made)})

    assert room.people.look(id).state == "open"


def test_a_token_that_was_made_before_tokens_could_sign_answers_too(room: Room, mia: str) -> None:
    (cell,) = room.store.cell_scan(tokens.TOKEN_CELLS)
    room.store.cell_write(cell.name, {name: value for name, value in cell.value.items() if name != "key"})
    id = ask(room)

    assert room.people.answer(id, "yes", token=mia).said == "yes"
    assert room.people.look(id).state == "answered"


def test_without_tokens_a_person_answers_at_a_terminal_or_on_the_page(room: Room, clock: ManualClock) -> None:
    id, other = ask(room), ask(room)
    for place in (None, "library"):
        with pytest.raises(IdentityRefused, match="at a terminal .* or on the page"):
            people.answer(room.gateway, id, "yes", Answerer(None, "test", "mia", place))

    given = people.answer(room.gateway, id, "yes", Answerer(None, "test", None, "terminal"))

    assert (given.by, given.how) == ("mia", "terminal")
    clock.advance(1)
    tokens.add_token(room.gateway, "mia", human=True)
    assert room.people.look(id).answer == given  # it was given before anything could be proved
    room.store.cell_write(CELLS + other, {"answer": {"said": "yes", "by": "mia", "how": "terminal", "time_ms": 1}})
    assert room.people.look(other).state == "open"


def test_a_late_holder_of_the_message_changes_nothing(room: Room, mia: str) -> None:
    id = ask(room)
    want = Want(agent="mia", lease_s=600, ids=(id,))
    (delivery,) = room.gateway.claim(want).deliveries

    assert room.people.answer(id, "yes", token=mia).said == "yes"
    assert room.people.open() == []
    assert room.store.settle(Ticket(id, delivery.ticket.token, "mia"), "acked").held
    assert room.people.look(id).state == "answered"


def test_what_redaction_finds_in_an_answer_is_kept_nowhere(room: Room, mia: str) -> None:
    id = ask(room, options=(), default=None)
    room.redact("customer", "CUST-[0-9]{6}")

    given = room.people.answer(id, "ask CUST-123456", token=mia)

    assert given.said == "ask [redacted: customer]"
    assert room.people.look(id).answer == given
    assert "123456" not in str([cell.value for cell in room.store.cell_scan("")])


def test_other_messages_are_no_questions(room: Room, mia: str) -> None:
    plain = room.agent("ada").send("mia", {"text": "hello"})
    odd = room.agent("ada").send("mia", {"text": 7}, type=QUESTION)

    for id in (plain, odd):
        with pytest.raises(InvalidMessage, match="is no question to a person"):
            room.people.look(id)
        with pytest.raises(InvalidMessage, match="is no question to a person"):
            room.people.answer(id, "yes", token=mia)
    with pytest.raises(UnknownMessage):
        room.people.answer("00000000-0000-7000-8000-000000000000", "yes", token=mia)


def test_what_was_asked_outlives_the_room_that_asked(open_room: Callable[..., Room]) -> None:
    first = open_room()
    if not first.store.shared:  # a room in memory ends with its process
        return
    mia = tokens.add_token(first.gateway, "mia", human=True)
    id = ask(first)
    first.close()

    second = open_room()
    second.people.answer(id, "yes", token=mia)
    second.close()

    assert open_room().people.wait(id, timeout_s=0).said == "yes"


def test_a_person_is_a_public_name() -> None:
    assert postroom.PersonAnswer("yes", "mia", "token", "t").to_dict()["is_default"] is False
