"""Addresses of rooms on NATS; and, as the quick look at a real server, one letter."""

from __future__ import annotations

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.config import parse_url
from postroom.errors import RoomError
from postroom.stores.nats.access import parse_address


@pytest.mark.parametrize(
    ("address", "servers", "room"),
    [
        ("nats://127.0.0.1:4222/team", ("nats://127.0.0.1:4222",), "team"),
        ("nats://a,b:5000,[::1]/t-1", ("nats://a:4222", "nats://b:5000", "nats://[::1]:4222"), "t-1"),
    ],
)
def test_an_address_names_servers_and_a_room(address: str, servers: tuple[str, ...], room: str) -> None:
    assert parse_address(parse_url(address)) == (servers, room)


@pytest.mark.parametrize(
    "address", ["nats:team", "nats://127.0.0.1:4222", "nats:///team", "nats://h/a/b", "nats://h/my room", "nats://h/"]
)
def test_a_wrong_address_is_one_sentence_that_shows_a_right_one(address: str) -> None:
    with pytest.raises(RoomError, match="nats://HOST:PORT/ROOM|letters, digits"):
        parse_address(parse_url(address))


def test_a_letter_goes_through_a_real_server() -> None:
    with postroom.open(f"nats://{shared_server().address}/{room_name()}") as room:
        id = room.agent("ada").send("bob", {"text": "hi"})

        with room.agent("bob").receive(timeout_s=20) as message:
            assert message.id == id

        assert room.receipt(id).state == "acked"
