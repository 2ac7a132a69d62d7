"""The server on pipes: both eras of the protocol, hints about one's own mail, and frames that no client should send."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from tests.cli.support import clean_environment, command, start
from tests.support.in_loop import run

from postroom.doors.mcp.frames import MAX_LINE
from postroom.mail import tokens
from postroom.room import open_room

from .fuzz import frames
from .served import envelope, stdio_server
from .support import inside

pytestmark = pytest.mark.slow


def server(folder: Path, *more: str, **environment: str) -> StdioServerParameters:
    words = command("mcp", "--room", f"sqlite:{folder}", *more)
    return StdioServerParameters(command=sys.executable, args=words[1:], env=clean_environment(**environment))


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_a_client_of_either_era_sends_reads_and_acks(tmp_path: Path, era: Any) -> None:
    async def main() -> None:
        async with Client(server(tmp_path / "room", "--as", "bob"), mode=era) as client:
            tools = (await client.list_tools()).tools
            assert len(tools) == 8
            assert all(tool.output_schema and tool.annotations and tool.title for tool in tools)
            with open_room(f"sqlite:{tmp_path}/room") as room:
                id = room.agent("ada").send("bob", {"text": "hi"})
                ticks: list[float] = []

                async def progress(progress: float, total: float | None, message: str | None) -> None:
                    ticks.append(progress)

                found = await client.call_tool("inbox", {"wait_s": 20}, progress_callback=progress)
                assert found.structured_content is not None
                assert json.loads(found.content[0].text) == found.structured_content  # type: ignore[union-attr]
                (message,) = found.structured_content["messages"]
                assert (message["id"], inside(message["body"])) == (id, "hi")
                await client.call_tool("ack", {"ids": [id]})
                assert room.receipt(id).state == "acked"
            failed = await client.call_tool("send", {"to": "nobody", "body": "x"})
            assert failed.is_error
            board = await client.read_resource("postroom://board")
            assert json.loads(board.contents[0].text) == {"tasks": []}  # type: ignore[union-attr]

    open_room(f"sqlite:{tmp_path}/room").close()
    run(main())


def test_a_subscriber_of_the_new_protocol_hears_of_its_own_mail_alone(tmp_path: Path) -> None:
    async def main() -> None:
        with open_room(f"sqlite:{tmp_path}/room") as room:
            async with Client(server(tmp_path / "room", "--as", "bob")) as client:
                uris = ["postroom://inbox/bob", "postroom://inbox/ada", "postroom://board"]
                async with client.listen(resource_subscriptions=uris) as hints:
                    honoured = hints.honored.resource_subscriptions
                    assert sorted(map(str, honoured or ())) == ["postroom://board", "postroom://inbox/bob"]
                    room.agent("eve").send("ada", {})
                    room.agent("eve").send("bob", {})
                    event = await asyncio.wait_for(anext(aiter(hints)), 10)
                    assert event.uri == "postroom://inbox/bob"  # type: ignore[union-attr]
            assert tokens.refusals(room.gateway)[0] == 1

    run(main())


def test_a_subscriber_of_the_older_protocol_hears_of_its_own_mail_too(tmp_path: Path) -> None:
    open_room(f"sqlite:{tmp_path}/room").close()
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}

    def request(id: int | None, method: str, params: dict[str, Any]) -> bytes:
        number = {} if id is None else {"id": id}
        return json.dumps({"jsonrpc": "2.0", **number, "method": method, "params": params}).encode()

    with stdio_server(tmp_path / "room", "--as", "bob") as served, open_room(f"sqlite:{tmp_path}/room") as room:
        served.send(request(1, "initialize", hello))
        assert served.answer_to(1)["result"]["capabilities"]["resources"]["subscribe"] is True
        served.send(request(None, "notifications/initialized", {}))
        served.send(request(2, "resources/subscribe", {"uri": "postroom://inbox/ada"}))
        assert served.answer_to(2)["error"]["message"] == "Resource not found"
        served.send(request(3, "resources/subscribe", {"uri": "postroom://inbox/bob"}))
        assert served.answer_to(3)["result"] == {}
        room.agent("eve").send("bob", {})
        told = served.read()
        served.send(request(4, "resources/unsubscribe", {"uri": "postroom://inbox/bob"}))
        assert served.answer_to(4)["result"] == {}

    assert told["method"] == "notifications/resources/updated"
    assert told["params"]["uri"] == "postroom://inbox/bob"


def test_a_cancelled_call_leaves_nothing_claimed(tmp_path: Path) -> None:
    async def main() -> None:
        with open_room(f"sqlite:{tmp_path}/room") as room:
            async with Client(server(tmp_path / "room", "--as", "bob")) as client:
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.3):
                            await client.call_tool("inbox", {"wait_s": 60})
                await client.call_tool("inbox", {})  # behind the word that they are cancelled: that has arrived now
                id = room.agent("ada").send("bob", {"text": "hi"})
                # both go through the room's thread, the second behind whatever the new mail has woken
                await client.call_tool("inbox", {"mode": "peek", "wait_s": 20})
                await client.call_tool("who", {})
                assert room.receipt(id).state in ("stored", "notified")
                found = await client.call_tool("inbox", {})
                assert found.structured_content is not None
                assert [m["seen_before"] for m in found.structured_content["messages"]] == [False]

    run(main())


NOT_MESSAGES = [
    (b"hello", None, -32700),
    (b"\x00\x00", None, -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"', None, -32700),
    (b"[" * 100_000, None, -32700),
    (b"[1, 2, 3]", None, -32600),
    (b"5", None, -32600),
    (b'"text"', None, -32600),
    (b"null", None, -32600),
    (b"{}", None, -32600),
    (b'{"jsonrpc": "2.0", "id": 0}', 0, -32600),
    (b'{"jsonrpc": "2.0", "id": "a"}', "a", -32600),
    (b'{"jsonrpc": "1.0", "id": 4, "method": "tools/list"}', 4, -32600),
    (b'{"id": 5, "method": "tools/list"}', 5, -32600),
    (b'{"jsonrpc": "2.0", "id": 6, "method": 7}', 6, -32600),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": [1]}', 7, -32600),
    (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "tools/list"}', None, -32600),
    (b'{"jsonrpc": "2.0", "id": [1], "method": "tools/list"}', None, -32600),
    (b'{"jsonrpc": "2.0", "id": true, "method": "tools/list"}', None, -32600),
    (b'{"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"}', None, -32600),
    (b'{"jsonrpc": "2.0", "id": null, "method": "tools/list"}', None, -32600),
    (rb'{"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {"name": "\ud800"}}', 8, -32600),
    (rb'{"jsonrpc": "2.0", "id": "\ud800", "method": "tools/list"}', None, -32600),
]


def test_every_line_that_is_no_message_is_answered_with_an_error_and_the_server_goes_on(tmp_path: Path) -> None:
    open_room(f"sqlite:{tmp_path}/room").close()
    with stdio_server(tmp_path / "room", "--as", "bob") as served:
        answers = []
        for line, _, _ in NOT_MESSAGES:
            served.send(line)
            answers.append(served.read())
        who = served.tool("who", 99)

    assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [
        (id, code) for _, id, code in NOT_MESSAGES
    ]
    assert all(answer["jsonrpc"] == "2.0" and answer["error"]["message"] for answer in answers)
    assert who["structuredContent"]["you"] == "bob"


def test_a_line_that_is_too_long_is_answered_once_and_not_kept(tmp_path: Path) -> None:
    open_room(f"sqlite:{tmp_path}/room").close()
    long = json.dumps(
        envelope("tools/call", {"name": "send", "arguments": {"to": "bob", "body": "x" * MAX_LINE}})
    ).encode()
    with stdio_server(tmp_path / "room", "--as", "bob") as served:
        for line in (
            long * 2,
            long[:MAX_LINE],
            json.dumps(envelope("tools/call", {"name": "who", "arguments": {}}, 9)).encode(),
        ):
            served.send(line)
        answers = [served.read() for _ in range(3)]

    assert [(answer["id"], answer.get("error", {}).get("code")) for answer in answers] == [
        (None, -32600), (None, -32600), (9, None)
    ]  # fmt: skip
    assert answers[0]["error"]["message"] == "Invalid Request: the line is longer than 16777216 characters"


def test_a_clients_answers_and_empty_lines_are_not_answered(tmp_path: Path) -> None:
    open_room(f"sqlite:{tmp_path}/room").close()
    with stdio_server(tmp_path / "room", "--as", "bob") as served:
        for line in (
            b"",
            b"  ",
            b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "no"}}',
            b'{"jsonrpc": "2.0", "id": 5, "result": {}}',
            b'{"jsonrpc": "2.0", "id": {"a": 1}, "result": {}}',
            b'{"jsonrpc": "2.0", "id": {"a": 1}, "error": {"code": 1, "message": "no"}}',
            b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}',
        ):
            served.send(line)
        served.send(json.dumps(envelope("tools/list", None, 99)).encode())
        first = served.read()

    assert first["id"] == 99


def test_without_a_room_the_server_runs_and_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "room"
    with stdio_server(folder, "--as", "bob") as served:
        before = served.tool("who", 1)
        open_room(f"sqlite:{folder}").close()
        after = served.tool("who", 2)

    assert before["isError"]
    assert "there is no room" in before["content"][0]["text"]
    assert after["structuredContent"]["you"] == "bob"


def test_in_a_room_with_tokens_the_name_is_the_tokens(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        tokens.add_token(room.gateway, "me", human=True)
        ada = tokens.add_token(room.gateway, "ada")
    with stdio_server(tmp_path / "room", POSTROOM_TOKEN=ada) as served:
        who = served.tool("who")
    refused = start(
        "mcp", "--room", f"sqlite:{tmp_path}/room", "--as", "bob", env=clean_environment(POSTROOM_TOKEN=ada)
    )
    out, err = refused.communicate(timeout=30)

    assert who["structuredContent"]["you"] == "ada"
    assert (refused.returncode, out) == (1, "")
    assert "the token belongs to ada, which cannot act as bob" in err


def test_clients_that_nobody_knows_are_named_by_what_they_call_themselves_and_numbered(tmp_path: Path) -> None:
    def names(*clients: str) -> list[str]:
        with ExitStack() as running:
            found = []
            for client in clients:
                served = running.enter_context(stdio_server(tmp_path / "room"))
                hello = {"name": client, "version": "1"}
                who = envelope("tools/call", {"name": "who", "arguments": {}})
                who["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] = hello
                served.send(json.dumps(who).encode())
                found.append(served.answer_to(1)["result"])
        return [
            result["content"][0]["text"] if result["isError"] else result["structuredContent"]["you"]
            for result in found
        ]

    with open_room(f"sqlite:{tmp_path}/room") as room:
        assert names("copilot-cli", "copilot-cli", "Kimi Code") == ["copilot-cli", "copilot-cli-2", "kimi-code"]
        room.agent("ada").send("copilot-cli", {"text": "hi"})
        assert names("copilot-cli") == ["copilot-cli"]  # it takes the name over, and its mail
        (refused,) = names("board")
        assert "say who you are" in refused


def test_nobody_is_asked_to_say_who_it_is(tmp_path: Path) -> None:
    open_room(f"sqlite:{tmp_path}/room").close()
    with stdio_server(tmp_path / "room") as served:
        result = served.tool("who")

    assert result["isError"]
    assert "say who you are" in result["content"][0]["text"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_cleanly_in_the_middle_of_a_wait(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        process = start("mcp", "--room", f"sqlite:{tmp_path}/room", "--as", "bob", env=clean_environment())
        assert process.stdin is not None and process.stdout is not None
        for id, tool, arguments in ((1, "who", {}), (2, "inbox", {"wait_s": 600})):
            process.stdin.write(json.dumps(envelope("tools/call", {"name": tool, "arguments": arguments}, id)) + "\n")
            process.stdin.flush()
            if id == 1:
                process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == code
        _, said = process.communicate()

        assert said == ""
        assert [agent.status for agent in room.agents() if agent.name == "bob"] == ["stopped"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 0)]
)
def test_a_signal_ends_the_door_over_http_too(tmp_path: Path, number: signal.Signals, code: int) -> None:
    address = f"sqlite:{tmp_path}/room"
    open_room(address).close()
    words = ["mcp", "--room", address, "--as", "bob", "--http", "0", "--no-token"]
    with start(*words, env=clean_environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(number)
        assert process.communicate(timeout=30) == ("", "")

    assert process.returncode == code


def fuzz(folder: Path, count: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    open_room(f"sqlite:{folder}").close()
    with stdio_server(folder, "--as", "bob") as served:
        assert served.tool("who", 99)["structuredContent"]["you"] == "bob"
        for start_at in range(0, count, 500):
            portion = list(frames(seed + start_at, min(500, count - start_at)))
            for frame in portion:
                served.send(frame)
            check = json.dumps({"probe": start_at})
            answer = served.ask("tools/call", {"name": "who", "arguments": {}}, 1_000_000 + start_at)
            assert "result" in answer, check
        assert served.process.poll() is None


def test_fuzzed_frames_crash_nothing(tmp_path: Path) -> None:
    fuzz(tmp_path / "room", 8500)


@pytest.mark.long
def test_many_more_fuzzed_frames_crash_nothing(tmp_path: Path) -> None:
    fuzz(tmp_path / "room", 85_000)
