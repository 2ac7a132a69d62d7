"""Agents behind doors are present while they are connected, and keep what they hold while they show that they live."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import clean_environment, start
from tests.support.in_loop import run

from postroom import aio
from postroom.core.clock import ManualClock
from postroom.core.config import parse_url
from postroom.core.trust import allow_address
from postroom.doors import session_binding
from postroom.doors.mcp.connections import Connections
from postroom.mail import presence, tokens
from postroom.room import Room, open_room
from postroom.stores.contract import topic_cells

from .forked import Forked
from .served import LEGACY, MODERN, PATIENCE_S, envelope, http_server, stdio_server

ROOMS = ["sqlite", "files", "nats"]
everywhere = pytest.mark.parametrize("url", ROOMS, indirect=True)


def comes_to_be(room: Room, name: str, status: str) -> presence.AgentInfo:
    """The agent, as soon as it has that status."""
    with room.gateway.listen([topic_cells("agent/")]) as waiter:
        while True:
            found = [agent for agent in room.agents() if agent.name == name]
            if [agent.status for agent in found] == [status]:
                return found[0]
            assert waiter.wait(PATIENCE_S), (found, "nothing has changed since")


@pytest.fixture
def watching(url: str) -> Iterator[Room]:
    if url.startswith("nats:"):
        allow_address(parse_url(url), how="allowed")
    with open_room(url) as room:
        yield room


@everywhere
@pytest.mark.slow
def test_an_agent_is_there_from_the_start_of_its_server_to_its_end(url: str, watching: Room) -> None:
    with stdio_server(url, "--as", "bob"):
        before_any_call = comes_to_be(watching, "bob", presence.ACTIVE)
        assert before_any_call.alive
        sent = start("send", "bob", "hi", "--as", "ada", "--room", url, env=clean_environment())
        out, err = sent.communicate(timeout=PATIENCE_S)
        assert (sent.returncode, err) == (0, ""), out
    assert comes_to_be(watching, "bob", presence.STOPPED).alive is False


@pytest.mark.slow
def test_a_server_that_is_told_to_stop_leaves_a_stopped_agent_also_before_any_call(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        server = Forked(["mcp", "--room", f"sqlite:{tmp_path}/room", "--as", "bob"], clean_environment())
        comes_to_be(room, "bob", presence.ACTIVE)
        server.send_signal(signal.SIGTERM)
        assert (server.wait(PATIENCE_S), server.end(PATIENCE_S)) == (0, "")
        assert comes_to_be(room, "bob", presence.STOPPED).alive is False


@everywhere
@pytest.mark.slow
def test_an_agent_whose_server_was_killed_is_gone(url: str, watching: Room) -> None:
    server = Forked(["mcp", "--room", url, "--as", "bob"], clean_environment())
    comes_to_be(watching, "bob", presence.ACTIVE)
    server.send_signal(signal.SIGKILL)
    server.end(PATIENCE_S)
    (bob,) = (agent for agent in watching.agents() if agent.name == "bob")
    assert (bob.status, bob.alive) == (presence.GONE, False)


@pytest.mark.slow
def test_a_named_server_keeps_the_session_that_its_client_tells_of_later(tmp_path: Path) -> None:
    """Being present early must not make the server forget to bind the name to the program's session."""
    with open_room(f"sqlite:{tmp_path}/room") as room, stdio_server(tmp_path / "room", "--as", "bob") as served:
        comes_to_be(room, "bob", presence.ACTIVE)
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "opencode", "version": "1"}}
        served.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode())
        served.answer_to(1)
        served.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}).encode())
        who = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "who", "arguments": {}}}
        served.send(json.dumps(who).encode())
        assert served.answer_to(2)["result"]["structuredContent"]["you"] == "bob"
        assert session_binding.look(room.gateway, "bob") is not None


@pytest.mark.slow
def test_a_token_that_proves_another_name_makes_nobody_present(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        tokens.add_token(room.gateway, "me", human=True)
        ada = tokens.add_token(room.gateway, "ada")
        with stdio_server(tmp_path / "room", POSTROOM_AGENT="bob", POSTROOM_TOKEN=ada) as served:
            assert served.tool("who")["isError"]
        with stdio_server(tmp_path / "room", POSTROOM_TOKEN=ada):
            comes_to_be(room, "ada", presence.ACTIVE)
        assert [agent.name for agent in room.agents()] == ["ada"]


# Over HTTP


def test_who_is_connected_is_present_and_was_seen_once_it_is_not(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:

            async def status() -> str:
                (bob,) = [agent for agent in await room.agents() if agent.name == "bob"]
                return bob.status

            connections = Connections(linger_s=0)
            with connections.here(room, "bob"):
                with connections.here(room, "bob"):
                    assert await status() == presence.ACTIVE
                await asyncio.sleep(0)
                assert await status() == presence.ACTIVE  # its other request is still under way
            await asyncio.sleep(0.001)  # the loop comes round to the timer
            assert await status() == presence.SEEN
            with connections.here(room, "bob"):
                assert await status() == presence.ACTIVE
            # the room closes before that timer: there is nobody to tell any more

    run(main())


def test_an_asker_does_not_take_one_that_is_between_two_calls_for_dead(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.call(lambda sync: sync.connect("bob"))
            assert await room.call(lambda sync: presence.is_running(sync.gateway, _look(sync, "bob"))) is True
            await room.call(lambda sync: sync.disconnect("bob"))
            assert await room.call(lambda sync: presence.is_running(sync.gateway, _look(sync, "bob"))) is None

    run(main())


def _look(room: Room, name: str) -> Any:
    return presence.look(room.gateway, name)


def test_no_heartbeat_brings_back_one_that_was_let_go(room: Room, clock: ManualClock) -> None:
    room.connect("bob")
    room.disconnect("bob")
    clock.advance(60)
    room._upkeep.round()
    assert [(agent.status, agent.processes) for agent in room.agents()] == [(presence.SEEN, [])]


@pytest.mark.slow
def test_over_http_an_agent_is_present_while_its_stream_is_open(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        tokens.add_token(room.gateway, "me", human=True)
        bob = tokens.add_token(room.gateway, "bob")
        with http_server(tmp_path / "room") as http:
            connection = HTTPConnection("127.0.0.1", http.port, timeout=PATIENCE_S)
            asked = {"notifications": {"resourceSubscriptions": ["postroom://board"]}}
            method = "subscriptions/listen"
            headers = {"Authorization": f"Bearer {bob}", "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            headers |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            connection.request("POST", "/mcp", json.dumps(envelope(method, asked)), headers)
            assert connection.getresponse().status == 200
            assert comes_to_be(room, "bob", presence.ACTIVE).alive
            connection.close()
        assert comes_to_be(room, "bob", presence.STOPPED).alive is False


@pytest.mark.slow
def test_over_http_the_one_agent_of_a_door_is_known_before_it_connects(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room, http_server(tmp_path / "room", "--as", "bob", "--no-token"):
        assert comes_to_be(room, "bob", presence.SEEN).alive is None
