"""A room on NATS whose servers are full: sends are refused at once, what is there can be received, and purging makes space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.nats_servers import room_name, running_cluster, running_server

import postroom
from postroom.core.clock import SYSTEM
from postroom.errors import RoomUnreachable
from postroom.stores.nats import reserve

#: Nobody here waits for this long: a refusal that took so long was a silence.
SILENCE_S = 60
LARGE = {"text": "x" * 12_000}
ACCOUNT = 'accounts { A: { users: [ { user: "a", password: "a" } ], jetstream: { max_file: %s } } }'


@pytest.fixture(params=["server", pytest.param("account", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A room that has 3 MB: that of its server, or that of its account. Nobody stops before it is reached."""
    monkeypatch.setattr(reserve, "SHARE", 2.0)
    if request.param == "server":
        with running_server(max_file="3M") as server:
            yield f"nats://{server.address}/{room_name()}?server_timeout_s={SILENCE_S}"
    else:
        with running_server(ACCOUNT % "3M") as server:
            yield f"nats://a:a@{server.address}/{room_name()}?server_timeout_s={SILENCE_S}"


def fill(room: postroom.Room, pause_s: float = 0) -> list[str]:
    """Send until the servers are full; the ids of what they took."""
    ids: list[str] = []
    ada = room.agent("ada")
    before_ns = SYSTEM.steady_ns()
    with pytest.raises(RoomUnreachable, match=r"is full.*nothing was changed.*Purge"):
        while True:
            before_ns = SYSTEM.steady_ns()
            ids.append(ada.send("bob", LARGE))
            SYSTEM.sleep(pause_s)
    assert SYSTEM.steady_ns() - before_ns < SILENCE_S * 5e8
    return ids


def refused(room: postroom.Room) -> bool:
    try:
        room.agent("ada").send("bob", LARGE)
    except RoomUnreachable as error:
        return "is full" in str(error)
    return False


def stream_bytes(room: postroom.Room) -> int:
    about: dict[str, Any] = room.stats().store
    return int(about["bytes"])


@pytest.mark.slow
def test_a_full_room_refuses_sends_at_once_and_can_be_emptied(url: str) -> None:
    with postroom.open(url) as room:
        ids = fill(room)
        bob = room.agent("bob")

        received = []
        for _ in ids:
            with bob.receive(timeout_s=SILENCE_S) as message:
                received.append(message.id)

        assert received == ids
        assert {room.receipt(id).state for id in ids} == {"acked"}
        assert refused(room)
        with postroom.open(url) as other:  # also one that has not seen yet that there is no space
            assert refused(other)
        assert room.purge() == len(ids)
        assert not refused(room)
        assert bob.receive(timeout_s=SILENCE_S).payload == LARGE


@pytest.mark.slow
def test_answers_leases_and_retries_work_in_a_full_room(url: str) -> None:
    with postroom.open(url) as room:
        first, second, *_ = fill(room)
        bob = room.agent("bob")

        message = bob.receive(timeout_s=SILENCE_S)
        assert message.id == first
        assert message.extend(60)
        assert message.retry(delay_s=0)
        again = bob.receive(timeout_s=SILENCE_S)
        assert again.id == first
        assert again.reply({"text": "done"})
        assert room.agent("ada").receive(timeout_s=SILENCE_S).payload == {"text": "done"}
        assert bob.receive(timeout_s=SILENCE_S).id == second
        assert refused(room)


@pytest.mark.slow
def test_a_room_whose_reserve_is_used_up_says_so_and_purging_frees_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 20_000)
    monkeypatch.setattr(reserve, "TOLD_S", 0)  # one server alone knows at once what it has
    with postroom.open(url) as room:
        ids = fill(room)
        bob = room.agent("bob")
        acked: list[str] = []
        with pytest.raises(RoomUnreachable, match="is full"):
            while True:
                message = bob.receive(timeout_s=SILENCE_S)
                assert message.ack()
                acked.append(message.id)
        assert 0 < len(acked) < len(ids)
        before = stream_bytes(room)

        assert room.purge() == len(acked)

        assert stream_bytes(room) < before
        # nobody who had read the room before sees what is gone, and the rest is there
        assert [message.id for message in room.peek(agent="bob", limit=1000)][-1] == ids[-1]
        assert not refused(room)
        assert bob.receive(timeout_s=SILENCE_S).id in ids[len(acked) :]


@pytest.mark.long
def test_a_full_room_of_three_servers_refuses_sends_and_can_be_emptied() -> None:
    with running_cluster(ACCOUNT % "15M") as cluster:
        servers = ",".join(f"a:a@{server.address}" for server in cluster.servers)
        with postroom.open(f"nats://{servers}/{room_name()}?server_timeout_s={SILENCE_S}") as room:
            ids = fill(room, pause_s=0.01)
            bob = room.agent("bob")
            for id in ids:
                with bob.receive(timeout_s=SILENCE_S) as message:
                    assert message.id == id

            assert room.purge() == len(ids)
            until_ns = SYSTEM.steady_ns() + int(SILENCE_S * 1e9)
            while refused(room):  # the servers tell each other of what is free, a moment later
                assert SYSTEM.steady_ns() < until_ns
                room.store.sweep()
                SYSTEM.sleep(0.2)


@pytest.mark.slow
def test_sends_stop_before_the_limit_of_the_account_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "LOOK_S", 0.0)
    with (
        running_server(ACCOUNT % "4M") as server,
        postroom.open(f"nats://a:a@{server.address}/{room_name()}?server_timeout_s={SILENCE_S}") as room,
    ):
        fill(room)

        assert 0.88 * 4e6 < stream_bytes(room) < 0.95 * 4e6
        assert refused(room)
