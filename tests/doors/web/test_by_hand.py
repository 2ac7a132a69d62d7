"""Who acts from the page, once a room has tokens: whoever the token proves, and no more than that token allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from postroom.core.clock import ManualClock
from postroom.doors.web.by_hand import (
    AbortedTask,
    ByHand,
    ChosenMessages,
    NewTask,
    One,
    PauseWish,
    Person,
    PersonMessage,
)
from postroom.doors.web.guard import PageGuard
from postroom.doors.web.views import deeds
from postroom.errors import IdentityRefused, InvalidMessage
from postroom.mail import tokens
from postroom.room import Room

from .browser import serving
from .conftest import Answer, Client


@pytest.fixture
def here(room_with: Callable[..., Room]) -> Room:
    return room_with(ManualClock())


def token_for(room: Room, name: str, *, human: bool) -> str:
    return tokens.add_token(room.gateway, name, human=human)


def test_in_a_room_without_tokens_everybody_is_the_one_who_opened_the_page(here: Room) -> None:
    assert ByHand(here, "mia").who() == Person("mia", human=True)


def test_with_the_first_token_a_name_must_be_proved(here: Room) -> None:
    hand = ByHand(here, "mia")
    token = token_for(here, "zoe", human=True)

    with pytest.raises(IdentityRefused, match="this room has tokens"):
        hand.who()
    assert hand.who(token) == Person("zoe", human=True)
    assert ByHand(here, "mia", token).who() == Person("zoe", human=True)
    assert hand.about() == {"name": None, "human": False, "tokens": True}
    assert hand.about(token) == {"name": "zoe", "human": True, "tokens": True}


def test_a_shown_token_counts_before_that_of_the_server(here: Room) -> None:
    mine, theirs = (token_for(here, name, human=True) for name in ("mia", "zoe"))

    assert ByHand(here, "mia", mine).who(theirs).name == "zoe"


def test_a_token_that_was_taken_back_acts_no_more(here: Room) -> None:
    token = token_for(here, "zoe", human=True)
    hand = ByHand(here, "mia", token)
    assert hand.who().name == "zoe"
    token_for(here, "mia", human=True)

    tokens.revoke_tokens(here.gateway, "zoe")

    with pytest.raises(IdentityRefused, match="was revoked"):
        hand.who()
    assert hand.about()["name"] is None


@pytest.mark.parametrize("nonsense", ["x", "prt_000000000000_x", "two", "\0", "prt_" + "é" * 12 + "_x"])
def test_a_token_that_proves_nothing_is_refused_and_recorded(here: Room, nonsense: str) -> None:
    token_for(here, "zoe", human=True)

    with pytest.raises(IdentityRefused):
        ByHand(here, "mia").who(nonsense)
    assert tokens.refusals(here.gateway)[0] == 1


def test_a_name_with_mail_in_its_box_is_known_to_the_page(here: Room) -> None:
    hand, mia = ByHand(here, "mia"), Person("mia", human=True)
    with pytest.raises(InvalidMessage, match="no agent called 'newcomer' was ever seen in this room; nothing was sent"):
        hand.send(PersonMessage(to="newcomer", payload={"text": "x"}), mia)

    hand.send(PersonMessage(to="newcomer", payload={"text": "x"}, new=True), mia)
    hand.send(PersonMessage(to="newcomer", payload={"text": "y"}), mia)

    assert [message.payload["text"] for message in here.peek(agent="newcomer")] == ["x", "y"]
    with pytest.raises(InvalidMessage, match="similar names: newcomer"):
        hand.send(PersonMessage(to="newcomr", payload={"text": "z"}), mia)


def test_a_person_writes_in_the_lane_of_people_and_an_agent_in_that_of_agents(here: Room) -> None:
    hand = ByHand(here, "mia")
    here.agent("bob")

    for who in (Person("zoe", human=True), Person("eve", human=False)):
        hand.send(PersonMessage({"text": "hi"}, to="bob"), who)

    sent = here.peek(agent="bob", order="oldest")
    assert [(message.from_agent, message.lane) for message in sent] == [("zoe", "human"), ("eve", "agent")]


def deeds_of_people(room: Room) -> dict[str, tuple[Callable[[ByHand, Person], Any], Callable[[], Any]]]:
    """What only people may do to others: the deed, and what it would change."""
    ada, bob = room.agent("ada"), room.agent("bob")
    dead = ada.send("bob", {"n": 1})
    bob.receive(timeout_s=5).dead("no")
    held = ada.send("bob", {"n": 2})
    bob.receive(timeout_s=5)
    room.board.add("T1")
    room.board.claim("bob", "T1", transient=True)
    return {
        "requeue": (lambda hand, who: hand.requeue(ChosenMessages([dead]), who), lambda: room.receipt(dead).state),
        "drop": (lambda hand, who: hand.drop(ChosenMessages([dead]), who), lambda: len(room.peek(state=None))),
        "release": (lambda hand, who: hand.release(One(held), who), lambda: room.receipt(held).state),
        "release the task": (lambda hand, who: hand.release_task(One("T1"), who), lambda: room.board.get("T1").state),
        "stop": (lambda hand, who: hand.stop_session(One("no-such"), who), lambda: None),
        "pause": (lambda hand, who: hand.pause(PauseWish(channel="jobs", reason="why"), who), room.limits),
        "resume": (lambda hand, who: hand.resume(PauseWish(channel="jobs"), who), room.limits),
        "pause an agent": (lambda hand, who: hand.pause(PauseWish(agent="bob"), who), room.limits),
        "resume an agent": (lambda hand, who: hand.resume(PauseWish(agent="bob"), who), room.limits),
    }


def test_the_token_of_an_agent_does_nothing_to_others(here: Room) -> None:
    hand, deeds = ByHand(here, "mia"), deeds_of_people(here)
    token_for(here, "zoe", human=True)
    for name, (deed, look) in deeds.items():
        before = look()
        with pytest.raises(IdentityRefused, match="eve may not"):
            deed(hand, Person("eve", human=False))
        assert look() == before, name

    count, refused = tokens.refusals(here.gateway)
    assert count == len(deeds)
    assert {(each.door, each.real) for each in refused} == {("web", "eve")}


def test_an_agent_may_let_go_of_what_it_holds_itself(here: Room) -> None:
    hand, deeds = ByHand(here, "mia"), deeds_of_people(here)

    assert deeds["release"][0](hand, Person("bob", human=False)) == {"released": True}
    assert deeds["release the task"][0](hand, Person("bob", human=False)) == {"released": True}


def test_an_agent_may_pause_itself_and_end_that_pause_but_not_a_persons(here: Room) -> None:
    hand, bob, zoe = ByHand(here, "mia"), Person("bob", human=False), Person("zoe", human=True)
    token_for(here, "zoe", human=True)

    assert hand.pause(PauseWish(agent="bob", reason="lunch"), bob) == {"paused": True, "new": True}
    assert here.limits().agents["bob"].reason == "lunch"
    assert hand.resume(PauseWish(agent="bob"), bob) == {"resumed": True}
    assert hand.resume(PauseWish(agent="bob"), zoe) == {"resumed": False}
    hand.pause(PauseWish(agent="bob"), zoe)
    for deed in (hand.pause, hand.resume):
        with pytest.raises(IdentityRefused, match="bob may not"):
            deed(PauseWish(agent="bob"), bob)
    assert here.limits().agents["bob"].by == "zoe"


def test_a_pause_names_one_channel_or_one_agent(here: Room) -> None:
    for wish in (PauseWish(), PauseWish(channel="jobs", agent="bob")):
        with pytest.raises(InvalidMessage, match="channel: must be given, or agent, and not both"):
            ByHand(here, "mia").pause(wish, Person("zoe", human=True))
    assert not here.limits() and deeds(here) == []


def test_a_person_may_do_all_of_it_and_is_named_in_each_trace(here: Room) -> None:
    hand, deeds = ByHand(here, "mia"), deeds_of_people(here)
    zoe = Person("zoe", human=True)
    for name in ("requeue", "release", "release the task", "pause", "resume", "pause an agent", "resume an agent"):
        before = deeds[name][1]()
        deeds[name][0](hand, zoe)
        assert deeds[name][1]() != before, name

    from postroom.doors.web.views import deeds as remembered

    assert {deed["by"] for deed in remembered(here)} == {"zoe"}


# The same over real sockets


@pytest.fixture
def guarded(sqlite_room: Room) -> Iterator[tuple[Room, Client]]:
    """A served room with tokens, whose server was started without one."""
    sqlite_room.agent("bob")
    with serving(sqlite_room) as site:
        yield sqlite_room, Client(site)


def write(client: Client, **headers: str) -> Answer:
    return client("/api/send", {"to": "bob", "payload": {"text": "hi"}}, **headers)


@pytest.mark.slow
def test_over_the_wire_the_name_comes_from_the_token_alone(guarded: tuple[Room, Client]) -> None:
    room, client = guarded
    assert client.get("/api/about")["name"] == "mia"
    token = token_for(room, "zoe", human=True)

    refused = write(client)
    assert (refused.status, refused.json["error"]["type"]) == (403, "IdentityRefused")
    assert client.get("/api/about")["name"] is None
    assert client("/api/recent").status == 200  # who looks need not be known
    assert write(client, **{"X-Postroom-Token": token + "x"}).status == 403
    assert write(client, **{"X-Postroom-Token": token, "X-Postroom-As": "root", "From": "root"}).status == 200
    assert [message.from_agent for message in room.peek(agent="bob")] == ["zoe"]


@pytest.mark.slow
def test_a_cookie_that_another_server_left_behind_keeps_nobody_from_acting(guarded: tuple[Room, Client]) -> None:
    room, client = guarded
    left = f"postroom_who_{client.site.port}=left-from-yesterday"

    assert client("/api/about", Cookie=left).json["name"] == "mia"
    assert write(client, Cookie=left).status == 200
    assert write(client, **{"X-Postroom-Token": "prt_000000000000_x"}).status == 403  # who shows a token is checked
    token_for(room, "zoe", human=True)
    assert client("/api/about", Cookie=left).json["name"] is None
    assert write(client, Cookie=left).status == 403
    assert [message.from_agent for message in room.peek(agent="bob")] == ["mia"]


def test_a_cookie_left_behind_does_not_act_as_the_server_where_names_are_proved(here: Room) -> None:
    hand = ByHand(here, "mia", token_for(here, "zoe", human=True))
    door = PageGuard(7678, "page's own")
    shown = door.shown_token(["postroom_who_7678=left-from-yesterday"], [])

    with pytest.raises(IdentityRefused):
        hand.who(shown)
    assert hand.about(shown)["name"] is None
    assert hand.who().name == "zoe"


@pytest.mark.slow
def test_a_browser_keeps_the_token_where_no_script_reads_it_and_can_forget_it(guarded: tuple[Room, Client]) -> None:
    room, client = guarded
    token = token_for(room, "zoe", human=True)

    wrong = client("/api/sign-in", {"token": "prt_000000000000_x"})
    assert (wrong.status, "set-cookie" in wrong.headers) == (403, False)
    right = client("/api/sign-in", {"token": f" {token}\n"})
    cookie = right.headers["set-cookie"]
    assert right.json == {"name": "zoe", "human": True, "tokens": True}
    kept, _, how = cookie.partition("; ")
    assert (kept.partition("=")[0], how) == (f"postroom_who_{client.site.port}", "Path=/; HttpOnly; SameSite=Strict")
    assert token.split("_", 2)[2] not in cookie  # other servers of this machine are shown it too
    assert write(client, Cookie=kept).status == 200
    assert write(client, Cookie=f"{kept}; {kept}").status == 403
    assert write(client, Cookie=f"{kept}x").status == 403
    forgotten = client("/api/sign-in", {"token": ""}, Cookie=kept)
    assert "Max-Age=0" in forgotten.headers["set-cookie"]
    assert forgotten.json["name"] is None
    assert write(client, Cookie=kept).status == 403


def test_an_agents_token_does_not_act_on_tasks_that_others_lead(here: Room) -> None:
    token_for(here, "zoe", human=True)
    hand, bob, zoe = ByHand(here, "mia"), Person("bob", human=False), Person("zoe", human=True)
    hand.add_task(NewTask("T1", "the schema"), zoe)
    hand.add_task(NewTask("T2", "bob's own"), bob)

    with pytest.raises(IdentityRefused, match="bob may not abort a task led by zoe"):
        hand.abort_task(AbortedTask("T1"), bob)
    assert here.board.get("T1").state == "ready"
    assert hand.abort_task(AbortedTask("T1", "too late"), zoe) == {"aborted": True}
    with pytest.raises(IdentityRefused, match="bob may not reopen a task led by zoe"):
        hand.reopen_task(One("T1"), bob)
    assert here.board.get("T1").why == "too late"
    assert hand.abort_task(AbortedTask("T2"), bob) == {"aborted": True}
    assert hand.reopen_task(One("T2"), bob) == {"reopened": True}
    assert hand.reopen_task(One("T2"), bob) == {"reopened": False}
    assert [deed["what"] for deed in deeds(here)][:2] == ["reopened the task", "aborted the task"]
