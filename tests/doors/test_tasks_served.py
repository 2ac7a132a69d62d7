"""Tasks of MCP's extension over the wire: on pipes and over HTTP, by the SDK's client and in plain JSON-RPC, with kills."""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import types
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters
from pydantic import ConfigDict
from tests.cli.support import clean_environment, command
from tests.support.in_loop import run

from postroom.doors.mcp.tasks import EXTENSION
from postroom.mail import tokens
from postroom.room import Room, open_room

from .served import LEGACY, MODERN, PATIENCE_S, Answer, Http, Stdio, envelope, http_server, stdio_server
from .support import inside

pytestmark = pytest.mark.slow

KNOWS_TASKS: dict[str, Any] = {"extensions": {EXTENSION: {}}}
NOT_FOUND, INVALID, MISSING, MISMATCH = -32601, -32602, -32021, -32020


def request(method: str, params: dict[str, Any], id: int = 1, capabilities: Any = KNOWS_TASKS) -> dict[str, Any]:
    """A request of a client that has declared tasks."""
    made = envelope(method, params, id)
    made["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities
    return made


class OnPipes:
    """A client on pipes."""

    def __init__(self, server: Stdio) -> None:
        self.server = server
        self.count = 0

    def __call__(self, method: str, capabilities: Any = KNOWS_TASKS, **params: Any) -> Any:
        self.count += 1
        self.server.send(json.dumps(request(method, params, self.count, capabilities)).encode())
        return self.server.answer_to(self.count)


class OverHttp:
    """A client over HTTP, with its token."""

    def __init__(self, server: Http, token: str | None = None) -> None:
        self.server = server
        self.token = token

    def post(self, method: str, params: dict[str, Any], capabilities: Any = KNOWS_TASKS, **headers: str) -> Answer:
        name = params.get("taskId", params.get("name", ""))
        sent = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": str(name)}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        return self.server.request(json.dumps(request(method, params, 1, capabilities)), sent | headers)

    def __call__(self, method: str, capabilities: Any = KNOWS_TASKS, **params: Any) -> Any:
        return self.post(method, params, capabilities).json

    @contextmanager
    def listening(self, **notifications: Any) -> Iterator[Iterator[Any]]:
        """The messages of a stream, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "subscriptions/listen",
            "Authorization": f"Bearer {self.token}",
        }
        body = json.dumps(request("subscriptions/listen", {"notifications": notifications}, 9))
        connection.request("POST", "/mcp", body, sent)
        response = connection.getresponse()
        try:
            yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))
        finally:
            response.close()
            connection.close()


def call(client: Any, name: str, capabilities: Any = KNOWS_TASKS, **arguments: Any) -> Any:
    return client("tools/call", capabilities, name=name, arguments=arguments)["result"]


def text_of(result: dict[str, Any]) -> str:
    """What the inbox or an answer says."""
    found = result["structuredContent"]
    return inside((found["messages"][0] if "messages" in found else found)["body"])


@contextmanager
def served(tmp_path: Path, way: str) -> Iterator[tuple[Any, Room]]:
    """ada's client, on pipes or over HTTP."""
    with open_room(f"sqlite:{tmp_path}/room") as room:
        tokens.add_token(room.gateway, "me", human=True)
        token = tokens.add_token(room.gateway, "ada")
        room.agent("bob", transient=True)
        if way == "stdio":
            with stdio_server(tmp_path / "room", POSTROOM_TOKEN=token) as server:
                yield OnPipes(server), room
        else:
            with http_server(tmp_path / "room") as http:
                yield OverHttp(http, token), room


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_calls_that_wait_are_tasks_for_clients_that_declare_them_and_for_no_others(tmp_path: Path, way: str) -> None:
    with served(tmp_path, way) as (client, room):
        bob = room.agent("bob")
        offered = client("server/discover")["result"]["capabilities"]
        begun = call(client, "ask", to="bob", body="ready?")
        id = begun["taskId"]
        working = client("tasks/get", taskId=id)["result"]
        bob.receive(timeout_s=PATIENCE_S).reply({"text": "yes"})
        completed = client("tasks/get", taskId=id)["result"]
        acks = [
            client("tasks/cancel", taskId=id)["result"],
            client("tasks/update", taskId=id, inputResponses={"x": {"action": "accept"}})["result"],
        ]
        as_ever = call(client, "inbox", {}, wait_s=0.05)
        refused = [
            client("tasks/get", {}, taskId=id),
            client("tasks/cancel", {}, taskId=id),
            client("tasks/update", {}, taskId=id, inputResponses={}),
            client("subscriptions/listen", {}, notifications={"taskIds": [id]}),
        ]
        unknown = [client(method, taskId=id) for method in ("tasks/result", "tasks/list")]
        faulty = [client("tasks/get"), client("tasks/get", taskId=7), client("tasks/update", taskId=id)]

    assert offered["extensions"] == {EXTENSION: {}} and "tasks" not in offered
    assert (begun["resultType"], begun["status"]) == ("task", "working")
    assert {"ttlMs": begun["ttlMs"], "pollIntervalMs": begun["pollIntervalMs"]} == {
        "ttlMs": 660000,
        "pollIntervalMs": 500,
    }
    assert (working["resultType"], working["status"], "result" in working) == ("complete", "working", False)
    assert (completed["status"], text_of(completed["result"])) == ("completed", "yes")
    assert [{name for name in ack if name != "_meta"} for ack in acks] == [{"resultType"}] * 2
    assert as_ever["structuredContent"] == {"messages": [], "waiting": 0}
    assert [each["error"]["code"] for each in refused] == [MISSING] * 4
    assert refused[0]["error"]["data"] == {"requiredCapabilities": KNOWS_TASKS}
    assert [each["error"]["code"] for each in unknown] == [NOT_FOUND] * 2
    assert [each["error"]["code"] for each in faulty] == [INVALID] * 3


def test_a_client_of_the_older_protocol_sees_no_tasks(tmp_path: Path) -> None:
    open_room(f"sqlite:{tmp_path}/room").close()
    hello = {"protocolVersion": LEGACY, "capabilities": KNOWS_TASKS, "clientInfo": {"name": "t", "version": "1"}}

    def older(id: int, method: str, params: dict[str, Any]) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()

    with stdio_server(tmp_path / "room", "--as", "bob") as server:
        server.send(older(1, "initialize", hello))
        offered = server.answer_to(1)["result"]["capabilities"]
        server.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        server.send(older(2, "tools/call", {"name": "inbox", "arguments": {"wait_s": 0.05}}))
        called = server.answer_to(2)["result"]
        server.send(older(3, "tasks/get", {"taskId": "x"}))
        got = server.answer_to(3)

    assert "extensions" not in offered
    assert called["structuredContent"] == {"messages": [], "waiting": 0}
    assert got["error"]["code"] == NOT_FOUND


def test_the_header_that_names_the_task_must_agree(tmp_path: Path) -> None:
    with served(tmp_path, "http") as (client, _):
        id = call(client, "inbox", wait_s=60)["taskId"]
        said = []
        for name in (id, "other", ""):
            answer = client.post("tasks/get", {"taskId": id}, **{"Mcp-Name": name})
            said.append((answer.status, answer.json.get("error", {}).get("code")))

    assert said == [(200, None), (400, MISMATCH), (400, MISMATCH)]


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_stream_tells_of_ones_own_tasks_as_they_end(tmp_path: Path, way: str) -> None:
    with served(tmp_path, way) as (client, room):
        bob = room.agent("bob")
        ask = call(client, "ask", to="bob", body="ready?")["taskId"]
        mail = call(client, "inbox", wait_s=60)["taskId"]
        asked = {"taskIds": [ask, "none", mail]}
        if way == "stdio":
            client.server.send(json.dumps(request("subscriptions/listen", {"notifications": asked}, 9)).encode())
            told = client.server.process.stdout
            lines: Iterator[Any] = (json.loads(line) for line in told)
            found = told_of(lines, bob, room)
        else:
            with client.listening(**asked) as lines:
                found = told_of(lines, bob, room)

    acknowledged, first, second, over = found
    assert acknowledged["params"]["notifications"] == {"taskIds": [ask, mail]}
    assert [each["method"] for each in (first, second)] == ["notifications/tasks"] * 2
    assert [each["params"]["taskId"] for each in (first, second)] == [ask, mail]
    assert [text_of(each["params"]["result"]) for each in (first, second)] == ["yes", "news"]
    assert (over["id"], over["result"]["resultType"]) == (9, "complete")
    metas = [each["params"]["_meta"] for each in (acknowledged, first, second)]
    assert metas == [{"io.modelcontextprotocol/subscriptionId": 9}] * 3


def told_of(lines: Iterator[Any], bob: Any, room: Room) -> list[Any]:
    found = [next(lines)]
    bob.receive(timeout_s=PATIENCE_S).reply({"text": "yes"})
    found.append(next(lines))
    room.agent("eve").send("ada", {"text": "news"})
    return [*found, next(lines), next(lines)]


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_foreign_and_forged_ids_are_all_told_the_same(tmp_path: Path, count: int) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        human, ada, bob = (tokens.add_token(room.gateway, name, human=name == "me") for name in ("me", "ada", "bob"))
        with http_server(tmp_path / "room") as http:
            mine, others = OverHttp(http, ada), [OverHttp(http, token) for token in (bob, human)]
            ids = [call(mine, "inbox", wait_s=600)["taskId"] for _ in range(5)]
            said: set[tuple[int, str]] = set()
            for number in range(count):
                if number % 2:
                    client, id = others[number // 2 % 2], ids[number % 5]
                else:
                    client, id = mine, secrets.token_urlsafe(24)
                method = ("tasks/get", "tasks/cancel", "tasks/get", "tasks/update")[number % 4]
                answer = client.post(method, {"taskId": id, "inputResponses": {}})
                said.add((answer.status, json.dumps(answer.json["error"])))
            with others[0].listening(taskIds=ids) as lines:
                acknowledged = next(lines)
            status = [mine("tasks/get", taskId=id)["result"]["status"] for id in ids]

    assert len(said) == 1
    assert [status for status, _ in said] == [400]
    assert acknowledged["params"]["notifications"] == {}
    assert status == ["working"] * 5


def test_a_server_that_is_killed_keeps_its_tasks(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        bob, eve = room.agent("bob"), room.agent("eve")
        told: list[str] = []
        for number in range(3):
            with pytest.raises(AssertionError), stdio_server(tmp_path / "room", "--as", "ada") as server:
                client = OnPipes(server)
                asks = [call(client, "ask", to="bob", body=f"{number} {which}")["taskId"] for which in "abc"]
                mail = call(client, "inbox", wait_s=600, channels=[f"news-{number}"])["taskId"]
                questions = [bob.receive(timeout_s=PATIENCE_S) for _ in asks]
                questions[0].reply({"text": f"{number} before"})
                client("tasks/get", taskId=asks[0])
                questions[1].reply({"text": f"{number} unfetched"})
                server.process.send_signal(signal.SIGKILL)
            questions[2].reply({"text": f"{number} after"})
            eve.send("ada", {"text": f"{number} news"}, channel=f"news-{number}")
            with stdio_server(tmp_path / "room", "--as", "ada") as server:
                client = OnPipes(server)
                stood = [client("tasks/get", taskId=id)["result"] for id in (*asks, mail)]
                assert [each["status"] for each in stood] == ["completed"] * 4, stood
                told += [text_of(each["result"]) for each in stood]
                call(client, "ack", ids=[stood[3]["result"]["structuredContent"]["messages"][0]["id"]])
                assert call(client, "inbox")["structuredContent"] == {"messages": [], "waiting": 0}

    said = ("before", "unfetched", "after", "news")
    assert told == [f"{number} {word}" for number in range(3) for word in said]


class TaskResult(types.Result):
    """The handle of a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class TaskRequest(types.Request[dict[str, Any], Literal["tasks/get", "tasks/cancel"]]):
    """Asks for a task."""

    method: Literal["tasks/get", "tasks/cancel"]
    name_param = "taskId"


class TaskAnswer(types.Result):
    """How a task stands."""

    model_config = ConfigDict(extra="allow")


class ByPolling(ClientExtension):
    """Resolves tasks as a host would: the model sees the result of its call and no task."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.polls = 0
        self.begun = threading.Event()

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self._resolve)]

    async def _resolve(self, handle: TaskResult, context: ClaimContext) -> types.CallToolResult:
        while True:
            self.polls += 1
            asked = TaskRequest(method="tasks/get", params={"taskId": handle.task_id})
            answer = await context.session.send_request(asked, TaskAnswer)
            stood = answer.model_dump(by_alias=True)
            self.begun.set()
            if stood["status"] == "completed":
                return types.CallToolResult.model_validate(stood["result"])
            await asyncio.sleep(stood["pollIntervalMs"] / 1000)


def test_the_sdks_client_resolves_tasks_of_its_own(tmp_path: Path) -> None:
    async def main(room: Room) -> None:
        words = command("mcp", "--room", f"sqlite:{tmp_path}/room", "--as", "ada")
        server = StdioServerParameters(command=words[0], args=words[1:], env=clean_environment())
        polling = ByPolling()
        async with Client(server, extensions=[polling]) as client:
            asking = asyncio.create_task(client.call_tool("ask", {"to": "bob", "body": "ready?"}))
            question = await asyncio.to_thread(room.agent("bob").receive, PATIENCE_S)
            assert await asyncio.to_thread(polling.begun.wait, PATIENCE_S)
            question.reply({"text": "yes"})
            answer = await asking
            assert not answer.is_error and answer.structured_content is not None
            assert inside(answer.structured_content["body"]) == "yes"
            refusing = asyncio.create_task(client.call_tool("ask", {"to": "bob", "body": "again?"}))
            (await asyncio.to_thread(room.agent("bob").receive, PATIENCE_S)).refuse("no")
            assert (await refusing).is_error

    with open_room(f"sqlite:{tmp_path}/room") as room:
        room.agent("bob")
        run(main(room))
