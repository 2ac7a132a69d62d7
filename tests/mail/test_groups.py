"""Several recipients, and groups of them: a message and a receipt for each, in one step, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import postroom
from postroom import Agent, Room


@pytest.fixture
def ada(room: Room) -> Agent:
    return room.agent("ada")


def recipients(room: Room) -> list[str | None]:
    return [message.to_agent for message in room.peek(state=None, order="oldest", limit=100)]


# Several recipients


def test_each_recipient_gets_a_message_with_a_receipt_of_its_own(room: Room, ada: Agent) -> None:
    first, second = ada.send(["bob", "cy"], {"n": 1}, priority=7, type="news")

    for name, id in (("bob", first), ("cy", second)):
        message = room.agent(name).receive(timeout_s=0)
        assert (message.id, message.payload, message.priority, message.type) == (id, {"n": 1}, 7, "news")
    room.agent("bob").claimed(first).ack()
    assert [room.receipt(id).state for id in (first, second)] == ["acked", "claimed"]


def test_all_are_stored_in_one_step(room: Room, ada: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[int] = []
    put = room.store.put

    def count(drafts: Any) -> list[str]:
        puts.append(len(drafts))
        return put(drafts)

    monkeypatch.setattr(room.store, "put", count)
    ids = ada.send([f"agent-{number}" for number in range(20)], {})

    assert (puts, len(set(ids))) == ([20], 20)


def test_a_name_given_twice_is_sent_to_once_and_one_name_gives_a_list_too(room: Room, ada: Agent) -> None:
    assert len(ada.send(("bob", "cy", "bob"), {})) == 2
    assert recipients(room) == ["bob", "cy"]
    assert isinstance(ada.send(["bob"], {}), list)
    assert isinstance(ada.send("bob", {}), str)


def test_a_repeat_under_one_key_is_sent_once_to_each(room: Room, ada: Agent) -> None:
    first = ada.send(["bob", "cy"], {"n": 1}, idempotency_key="k")
    again = ada.send(["cy", "dan", "bob"], {"n": 1}, idempotency_key="k")

    assert [again[2], again[0]] == first
    assert recipients(room) == ["bob", "cy", "dan"]
    with pytest.raises(postroom.InvalidMessage):
        ada.send(["bob", "eve"], {"n": 2}, idempotency_key="k")
    assert recipients(room) == ["bob", "cy", "dan"]


@pytest.mark.parametrize(
    ("to", "more", "sentence"),
    [
        ([], {}, "to: must name at least one agent"),
        (["bob", ""], {}, r"to\[1\]: must not be empty"),
        (["bob", 7], {}, r"to\[1\]: must be text, not int"),
        (["bob", "cy"], {"priority": 11}, r"messages\[1\].priority"),
        (["bob", "cy"], {"wait": "acked"}, "wait: waits for one recipient; `ask_many`"),
        ("@reviewers", {}, r"to_agent: names a group; send to a list, \['@reviewers'\]"),
    ],
)
def test_bad_recipients_are_named_and_nothing_is_sent(
    room: Room, ada: Agent, to: Any, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(postroom.InvalidMessage, match=sentence):
        ada.send(to, {}, **more)

    assert recipients(room) == []


def test_the_sign_of_a_group_is_seen_also_where_the_same_word_was_a_channel_before(room: Room, ada: Agent) -> None:
    ada.send("bob", {}, channel="@news")

    with pytest.raises(postroom.InvalidMessage, match="names a group"):
        ada.send("@news", {})


# Groups


def test_a_group_is_sent_to_its_members_at_that_moment(room: Room, ada: Agent) -> None:
    assert room.groups.add("reviewers", ["bob", "cy"]) == ["bob", "cy"]
    ada.send(["@reviewers"], {})
    assert room.groups.add("@reviewers", ["dan", "bob"]) == ["bob", "cy", "dan"]
    assert room.groups.remove("reviewers", ["bob", "nobody"]) == ["cy", "dan"]
    ids = ada.send(["eve", "@reviewers", "cy"], {})

    assert recipients(room) == ["bob", "cy", "eve", "cy", "dan"]
    assert len(ids) == 3


def test_a_member_that_sends_to_its_group_gets_nothing_itself(room: Room, ada: Agent) -> None:
    room.groups.add("all", ["ada", "bob"])
    ada.send(["@all"], {})
    assert recipients(room) == ["bob"]
    ada.send(["@all", "ada"], {})  # where it is named, it does
    assert recipients(room) == ["bob", "bob", "ada"]

    room.groups.remove("all", ["bob"])
    with pytest.raises(postroom.InvalidMessage, match="the group @all has no member but ada, which sends"):
        ada.send(["@all"], {})


def test_a_group_can_be_asked(room: Room, ada: Agent) -> None:
    room.groups.add("reviewers", ["bob", "cy", "ada"])
    asked = ada.ask_many(["@reviewers"], {}, enough="any")
    room.agent("cy").receive(timeout_s=0).reply({"ok": True})

    assert list(asked.answers) == ["cy"]
    assert list(asked.missing) == ["bob"]


def test_a_group_without_members_is_gone(room: Room, ada: Agent) -> None:
    room.groups.add("one", ["bob"])
    room.groups.add("two", ["bob", "cy"])
    assert room.groups.all() == {"one": ["bob"], "two": ["bob", "cy"]}

    assert room.groups.remove("one", ["bob"]) == []
    assert room.groups.remove("two") == []

    assert room.groups.all() == {}
    for step in (room.groups.members, room.groups.remove, lambda name: ada.send([f"@{name}"], {})):
        with pytest.raises(postroom.UnknownGroup, match="this room has no group @one"):
            step("one")


def test_an_unknown_group_is_told_with_the_near_name_and_nothing_is_sent(room: Room, ada: Agent) -> None:
    room.groups.add("reviewers", ["bob"])

    with pytest.raises(postroom.UnknownGroup, match="no group @reviewer; did you mean @reviewers"):
        ada.send(["cy", "@reviewer"], {})

    assert recipients(room) == []


@pytest.mark.parametrize(
    ("name", "members", "sentence"),
    [
        ("", ["bob"], "group: must not be empty"),
        ("@", ["bob"], "group: must not be empty"),
        ("@@x", ["bob"], "group: must not begin with @"),
        ("x", [], "members: must name at least one agent"),
        ("x", "bob", r"members: must be a list of names, such as \['bob'\]"),
        ("x", ["bob", ""], r"members\[1\]: must not be empty"),
        ("x", ["@y"], "members: must be agents, and @y is a group"),
    ],
)
def test_a_bad_group_is_named_and_nothing_is_changed(room: Room, name: str, members: Any, sentence: str) -> None:
    with pytest.raises(postroom.InvalidMessage, match=sentence):
        room.groups.add(name, members)

    assert room.groups.all() == {}


def test_no_agent_has_the_name_of_a_group(room: Room) -> None:
    with pytest.raises(
        postroom.InvalidMessage, match="name: must not begin with @, which begins the address of a group"
    ):
        room.agent("@reviewers")

    room.groups.add("bob", ["cy"])
    room.agent("ada").send("bob", {})  # an agent and a group of one name are kept apart by the sign
    room.agent("ada").send(["@bob"], {})
    assert recipients(room) == ["bob", "cy"]


def test_members_that_are_added_at_once_by_many_are_all_there(open_room: Callable[..., Room]) -> None:
    rooms = [open_room() for _ in range(4)]
    threads = [
        threading.Thread(
            target=lambda room, n: [room.groups.add("all", [f"{n}-{m}"]) for m in range(10)], args=(room, n)
        )
        for n, room in enumerate(rooms)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(rooms[0].groups.members("all")) == sorted(f"{n}-{m}" for n in range(4) for m in range(10))
