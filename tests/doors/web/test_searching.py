"""The search: everything that is kept, whole payloads too, in steps that say how far they came."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.core.message import Message
from postroom.core.states import State
from postroom.doors.web import searching
from postroom.doors.web.searching import matches
from postroom.room import Room

from .browser import Site
from .conftest import Client


def message(**more: Any) -> Message:
    return Message(**{"id": "1", "from_agent": "ada", "to_agent": "bob", "payload": {"text": "hi"}, **more})


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, True),
        ({"agent": "ada"}, True),
        ({"agent": "bob"}, True),
        ({"agent": "cy"}, True),
        ({"agent": "eve"}, False),
        ({"to": "bob"}, True),
        ({"to": "ada"}, False),
        ({"free": "1"}, False),
        ({"channel": "general"}, True),
        ({"channel": "other"}, False),
        ({"state": "claimed"}, True),
        ({"state": "stored"}, False),
        ({"thread": "1"}, True),
        ({"thread": "0"}, True),
        ({"thread": "2"}, False),
        ({"type": "message", "text": "HI"}, True),
        ({"type": "message", "text": "bye"}, False),
    ],
)
def test_messages_are_found_by_what_is_asked_for(wanted: dict[str, str], found: bool) -> None:
    held = message(claimed_by="cy", exact_state=State.CLAIMED, chain_id="0")

    assert matches(held, wanted) is found


@pytest.mark.parametrize(
    "text",
    [
        "straße",
        "STRASSE",
        "two lines",
        "deep: {key: [1, true]}",
        "no such file",
        "some.type",
        "order-7",
        "id-9",
        '"key":[1',
    ],
)
def test_text_is_found_wherever_it_stands(text: str) -> None:
    payload = {"filler": "x" * 10_000, "text": "two\nlines", "deep": {"key": [1, True]}, "last": "Straße"}
    marks = {"error": "x" * 500 + "no such file", "type": "some.type", "correlation_id": "order-7", "id": "id-9"}

    assert matches(message(payload=payload, **marks), {"text": text})


def every_page(client: Client, wish: str) -> tuple[list[str], int]:
    """The ids of all hits, newest page first, and how many steps it took."""
    page, steps = client.get(f"/api/recent?{wish}"), 1
    found = [line["id"] for line in page["lines"]]
    while page["older"]:
        page, steps = client.get(f"/api/older?before={page['older']}&{wish}"), steps + 1
        found = [line["id"] for line in page["lines"]] + found
    return found, steps


def test_the_first_of_many_messages_is_found_by_the_end_of_its_text(
    room: Room, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MAX_SEARCHED", 500)
    ada = room.agent("ada")
    first = ada.send("bob", {"text": f"{'hay ' * 500}needle"}, type="rare")
    for _ in range(2):
        ada.send_many([{"to": "bob", "payload": {"n": n}} for n in range(600)])
    last = ada.send(None, {"text": "another NEEDLE"}, channel="jobs")

    assert every_page(client, "text=needle") == ([first, last], 3)
    assert every_page(client, "text=needle&to=bob")[0] == [first]
    assert every_page(client, "text=needle&free=1")[0] == [last]
    assert every_page(client, "type=rare")[0] == [first]
    assert every_page(client, "text=no+such+thing")[0] == []
    assert client.get(f"/api/among?ids={first},{last}&to=bob&text=needle") == {"ids": [first]}


def test_a_step_ends_in_time_and_says_how_far_it_came(
    sqlite_room: Room, on_sqlite: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "STEP_S", 0)
    sqlite_room.agent("ada").send_many([{"to": "bob", "payload": {"n": n}} for n in range(600)])
    sent_ms = [m.timestamp_ms for m in sqlite_room.peek(limit=1000, order="newest")]

    page = on_sqlite.get("/api/recent?text=nothing")

    assert page["older"] is not None
    assert page["lines"] == []
    assert page["reached_ms"] == sent_ms[249]


def test_a_thread_is_found_from_its_first_message_to_its_last(room: Room, client: Client) -> None:
    ada, bob, cy = (room.agent(name) for name in ("ada", "bob", "cy"))
    ada.send("cy", {"text": "something else"})
    first = ada.send("bob", {"text": "begin"})
    held = bob.receive(timeout_s=5)
    second = bob.send("cy", {"text": "go on"}, cause=held)
    held.ack()

    assert every_page(client, f"thread={first}")[0] == [first, second]
    assert cy.receive(timeout_s=5).payload == {"text": "something else"}
    assert every_page(client, f"thread={first}&state=stored")[0] == [second]


def test_the_past_is_searched_too(room: Room, client: Client) -> None:
    ada = room.agent("ada")
    ids = [ada.send("bob", {"n": n, "text": "x" * 300 + ("needle" if n % 10 == 0 else "")}) for n in range(40)]

    lines = client.get(f"/api/past?at_ms={room.clock.wall_ms()}&text=needle")["lines"]

    assert [line["id"] for line in lines] == ids[::10]


@pytest.mark.parametrize(
    ("path", "says"), [("/api/recent?state=lost", "must be one of stored, claimed"), ("/api/among?text=x", "1 to 200")]
)
def test_a_wish_that_cannot_be_is_named(any_site: Site, path: str, says: str) -> None:
    answer = Client(any_site)(path)

    assert answer.status == 400
    assert says in answer.json["error"]["message"]
