"""Short handles of messages: eight characters that lead back to the id, on every store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.watched_clock import WatchedClock

from postroom import InvalidMessage, UnknownMessage
from postroom.core.message import id_of
from postroom.mail import handles
from postroom.room import Room
from postroom.stores.contract import Page, Query


@pytest.mark.slow
def test_every_handle_leads_to_its_message(room: Room, clock: WatchedClock) -> None:
    ada = room.agent("ada")
    ids = ada.send_many([{"to": "bob", "payload": {"n": n}} for n in range(5)])
    for span_s in (0.001, 1, 600, 86_400, 20 * 86_400):
        clock.advance(span_s)
        ids.append(ada.send("cleo", {"after": span_s}, channel=f"c{span_s}"))

    short = [handles.handle_of(id) for id in ids]

    assert len(set(short)) == len(ids)
    assert {len(handle) for handle in short} == {8}
    assert [handles.id_of_handle(room.store, handle) for handle in short] == ids
    assert handles.id_of_handle(room.store, short[0].upper()) == ids[0]


def test_a_whole_id_is_itself_without_a_look(room: Room) -> None:
    id = id_of(5, 6)

    assert handles.id_of_handle(room.store, id) == id


def test_a_handle_of_no_message_is_unknown(room: Room) -> None:
    room.agent("ada").send("bob", {"n": 1})

    for wrong in ("zzzzzzzz", "k3f9", "not a handle"):
        with pytest.raises(UnknownMessage, match=wrong):
            handles.id_of_handle(room.store, wrong)


def test_a_handle_in_an_empty_room_is_unknown(room: Room) -> None:
    with pytest.raises(UnknownMessage):
        handles.id_of_handle(room.store, "k3f9x2pq")


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_handle_that_two_messages_share_names_both(room: Room, clock: WatchedClock) -> None:
    clock.advance(1)  # to a whole millisecond
    first = room.agent("ada").send("bob", {"n": 1})
    clock.advance(2**19 / 1000)  # when the bits of time in a handle come round
    second = room.agent("ada").send("bob", {"n": 2})
    assert handles.handle_of(first) == handles.handle_of(second)

    with pytest.raises(InvalidMessage) as raised:
        handles.id_of_handle(room.store, handles.handle_of(first))

    assert first in str(raised.value)
    assert second in str(raised.value)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_handle_is_found_without_reading_the_room(
    open_room: Callable[..., Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its key: two looks for the ends of the room's time, and one at each moment that the handle can mean."""
    room = open_room()
    ids = room.agent("ada").send_many([{"to": "bob", "payload": {"n": n}} for n in range(1000)])
    read: list[int] = []
    really = room.store.find

    def find(query: Query, cursor: int | None = None) -> Page:
        read.append(query.limit)
        return really(query, cursor)

    monkeypatch.setattr(room.store, "find", find)

    assert handles.id_of_handle(room.store, handles.handle_of(ids[500])) == ids[500]
    assert read == [1, 1]


def test_an_id_of_another_kind_is_its_own_handle() -> None:
    assert handles.handle_of("message-7") == "message-7"
