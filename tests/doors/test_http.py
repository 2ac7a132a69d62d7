"""The HTTP door: who is let in, as whom, and that nothing a caller says makes it somebody else."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroom.doors.mcp.tools import CLAIMS
from postroom.mail import tokens
from postroom.room import Room, open_room

from .fuzz import frames
from .served import LEGACY, Http, http_server

pytestmark = pytest.mark.slow


class Place(NamedTuple):
    """A served room with tokens."""

    http: Http
    room: Room
    ada: str
    bob: str
    human: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("served") / "room"
    with open_room(f"sqlite:{folder}") as room:
        human = tokens.add_token(room.gateway, "me", human=True)
        ada, bob = (tokens.add_token(room.gateway, name) for name in ("ada", "bob"))
        for name in ("ada", "bob", "me"):
            room.agent(name, transient=True)
        with http_server(folder) as http:
            yield Place(http, room, ada, bob, human)


def result(answer: Any) -> Any:
    assert answer.status == 200, answer
    return answer.json["result"]


def test_each_caller_speaks_as_its_token_says(place: Place) -> None:
    sent = result(place.http.tool(place.ada, "send", to="bob", body="hi"))["structuredContent"]
    by_human = result(place.http.tool(place.human, "send", to="bob", body="hi"))["structuredContent"]

    assert place.room.get(sent["id"]).from_agent == "ada"
    assert place.room.get(sent["id"]).lane == "agent"
    assert (place.room.get(by_human["id"]).from_agent, place.room.get(by_human["id"]).lane) == ("me", "human")
    assert result(place.http.tool(place.bob, "who"))["structuredContent"]["you"] == "bob"


def test_nobody_gets_in_without_a_token(place: Place) -> None:
    for token in (None, "", "x", place.ada[:-1], "prt_000000000000_x"):
        answer = place.http.tool(token, "who")
        assert answer.status == 401, token
        assert answer.headers["www-authenticate"] == 'Bearer realm="postroom"'
    basic = place.http.rpc("tools/list", None, None, Authorization=f"Basic {place.ada}")
    assert basic.status == 401


def test_forty_combinations_of_host_and_origin(place: Place) -> None:
    port = place.http.port
    good_hosts = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"]
    bad_hosts = [
        *(
            "",
            f"LOCALHOST:{port}",
            "evil.example",
            f"evil.example:{port}",
            f"127.0.0.1:{port + 1}",
            "127.0.0.1",
            f"localhost.evil:{port}",
        ),
        *(f"127.0.0.1:{port}.evil.example", f"127.0.0.1:{port}@evil.example", f"0.0.0.0:{port}", f"127.0.0.2:{port}"),
    ]
    good_origins = ["", f"http://127.0.0.1:{port}", f"http://localhost:{port}"]
    bad_origins = [
        "null",
        "http://evil.example",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}.evil",
        "file://",
    ]
    tried = 0
    for host, origin in itertools.product(good_hosts + bad_hosts, good_origins + bad_origins):
        answer = place.http.rpc("tools/list", None, place.ada, Host=host, Origin=origin)
        tried += 1
        if host in bad_hosts:
            assert answer.status in (400, 421), (host, origin)
        elif origin in bad_origins:
            assert answer.status == 403, (host, origin)
        else:
            assert answer.status == 200, (host, origin, answer)
    assert tried >= 40


def tries(seed: int, count: int) -> Iterator[tuple[str, dict[str, str], dict[str, Any], str]]:
    """Ways to send as somebody else: an argument, a field of the body, a header, the query, the request's own `_meta`."""
    chance = random.Random(seed)
    fields = sorted(CLAIMS | {"From", "FROM_AGENT", "x-from", "sentBy", "actor", "impersonate", "replyTo", "to_agent"})
    headers = [
        *(
            "X-Postroom-Agent",
            "X-Postroom-As",
            "X-Agent",
            "X-Forwarded-User",
            "From",
            "X-User",
            "Remote-User",
            "Cookie",
        ),
        *("X-Auth-User", "X-Remote-User", "Mcp-Session-Id", "X-Mcp-Agent", "Mcp-Param-From", "Via", "Forwarded"),
    ]
    for _ in range(count):
        way = chance.choice(["argument", "data", "text", "header", "query", "meta", "twice"])
        yield way, {chance.choice(headers): "bob"}, {chance.choice(fields): chance.choice(["bob", "me", True])}, "bob"


def one_try(place: Place, way: str, headers: dict[str, str], fields: dict[str, Any]) -> Any:
    arguments: dict[str, Any] = {"to": "ada", "body": "x"}
    path, sent = "/mcp", {"Authorization": f"Bearer {place.ada}"}
    if way == "argument":
        arguments |= {name: value for name, value in fields.items() if name != "to"}
    elif way == "data":
        arguments["data"] = fields | {"from_agent": "bob", "lane": "human"}
    elif way == "text":
        arguments["body"] = json.dumps(fields | {"from_agent": "bob"})
    elif way == "header":
        sent |= headers
    elif way == "query":
        path += "?" + "&".join(f"{name}=bob" for name in ("as", "agent", *fields))
    elif way == "twice":
        sent["Authorization"] = f"Bearer {place.ada}, Bearer {place.bob}"
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "send",
            "arguments": arguments,
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                **(
                    fields | {"agent": "bob", "io.modelcontextprotocol/clientInfo": {"name": "bob", "version": "1"}}
                    if way == "meta"
                    else {}
                ),
            },
        },
    }
    sent |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "send"}
    return place.http.request(json.dumps(request), sent, path=path)


def test_a_thousand_tries_to_send_as_somebody_else(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    folder = tmp_path / "room"
    with open_room(f"sqlite:{folder}?pair_rate_per_s=100000&pair_rate_burst=100000") as room:
        tokens.add_token(room.gateway, "me", human=True)
        ada = tokens.add_token(room.gateway, "ada")
        bob = tokens.add_token(room.gateway, "bob")
        room.agent("ada", transient=True)
        with http_server(Path(f"{folder}?pair_rate_per_s=100000&pair_rate_burst=100000")) as http:
            place = Place(http, room, ada, bob, "")
            accepted = refused = 0
            for way, headers, fields, _ in tries(seed, 1000):
                answer = one_try(place, way, headers, fields)
                if answer.status == 200 and "result" in answer.json and not answer.json["result"].get("isError"):
                    accepted += 1
                else:
                    refused += 1

        kept = [change.message for change in room.events(0, 5000)]
        count, newest = tokens.refusals(room.gateway)
    assert accepted + refused == 1000
    assert accepted > 100  # those whose claim was only data in the message
    assert {message.from_agent for message in kept} == {"ada"}
    assert {message.lane for message in kept} == {"agent"}
    assert len({message.id for message in kept}) == accepted
    assert count > 100
    assert {refusal.real for refusal in newest} <= {"ada", None}


def test_a_session_belongs_to_the_token_that_began_it(place: Place) -> None:
    begin = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    first = place.http.request(json.dumps(begin), {"Authorization": f"Bearer {place.ada}"})
    session = {"Mcp-Session-Id": first.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}
    who = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "who", "arguments": {}}})

    own = place.http.request(who, session | {"Authorization": f"Bearer {place.ada}"})
    other = place.http.request(who, session | {"Authorization": f"Bearer {place.bob}"})

    assert own.json["result"]["structuredContent"]["you"] == "ada"
    assert other.status == 404


def test_a_revoked_token_is_out_at_once(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        tokens.add_token(room.gateway, "me", human=True)
        token = tokens.add_token(room.gateway, "ada")
        with http_server(tmp_path / "room") as http:
            assert http.tool(token, "who").status == 200
            tokens.revoke_tokens(room.gateway, "ada")
            assert http.tool(token, "who").status == 401


def test_only_ones_own_inbox_can_be_read_and_watched(place: Place) -> None:
    listed = result(place.http.rpc("resources/list", None, place.ada))["resources"]
    own = place.http.rpc(
        "resources/read", {"uri": "postroom://inbox/ada"}, place.ada, **{"Mcp-Name": "postroom://inbox/ada"}
    )
    other = place.http.rpc(
        "resources/read", {"uri": "postroom://inbox/bob"}, place.ada, **{"Mcp-Name": "postroom://inbox/bob"}
    )

    assert [each["uri"] for each in listed] == ["postroom://inbox/ada", "postroom://board"]
    assert "messages" in json.loads(result(own)["contents"][0]["text"])
    assert other.json["error"]["message"] == "Resource not found"


def fuzz(place: Place, count: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    sent = {"Authorization": f"Bearer {place.ada}", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
    for frame in frames(seed, count):
        answer = place.http.request(frame, sent)
        assert answer.status < 500, (frame, answer)
        assert "Traceback" not in answer.body
    assert place.http.tool(place.ada, "who").status == 200


def test_fuzzed_requests_crash_nothing_and_show_no_traceback(place: Place) -> None:
    fuzz(place, 1500)


@pytest.mark.long
def test_many_more_fuzzed_requests_crash_nothing(place: Place) -> None:
    fuzz(place, 15_000)
