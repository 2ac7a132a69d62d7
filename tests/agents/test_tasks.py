"""The conformance suite's scenarios for tasks, with Postroom's calls in the place of the fixture tools that they name.

The scenarios call tools such as `slow_compute`. A proxy between them and a real server gives each call the name and the
arguments of one of ours, which an agent answers as the scenario expects; everything else passes it unchanged.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.doors.served import PATIENCE_S, http_server

from postroom.core.trust import allow_place
from postroom.errors import RoomClosed
from postroom.room import Room, open_room

from .conftest import World
from .test_protocol import BIN, node

#: The checks of each scenario that must pass, and those that cannot: no call of ours ends in a protocol error.
SCENARIOS = {
    "tasks-lifecycle": 8,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
}
NOT_OURS = {"sep-2663-tasks-get-status-failed"}


def ours(name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The call that stands for a fixture's."""
    if name == "slow_compute":
        seconds = arguments["seconds"]  # some more, so that it takes its time on a busy machine too
        return "ask", {"to": "worker", "body": str(seconds and seconds + 2), "wait_s": 100}
    if name in ("failing_job", "protocol_error_job"):
        return "ask", {"to": "worker", "body": "refuse", "wait_s": 100}
    return "who", {}


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to the server, with the calls of fixtures replaced by ours."""

    protocol_version = "HTTP/1.1"
    port = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")
        }
        fixture = ""
        if body.get("method") == "tools/call":
            fixture = body["params"]["name"]
            name, body["params"]["arguments"] = ours(fixture, body["params"]["arguments"])
            body["params"]["name"] = name
            headers = {n: name if n.lower() == "mcp-name" and v == fixture else v for n, v in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("POST", self.path, json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        if fixture == "greet" and answer.status == 200:
            said = json.dumps(greeted(json.loads(said))).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
        connection.close()

    def log_message(self, *_: object) -> None:
        pass


def greeted(answer: dict[str, Any]) -> dict[str, Any]:
    """The one text that a scenario reads."""
    if "result" in answer:
        answer["result"]["content"][0]["text"] = "Hello, sep-2243!"
    return answer


@contextmanager
def proxy(port: int) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ProxyTo", (Proxy,), {"port": port}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def worker(address: str) -> Iterator[None]:
    """An agent that answers each question after the seconds that it names, or refuses it."""

    def work(room: Room) -> None:
        try:
            for message in room.agent("worker").listen():
                text = message.payload["text"]
                if text == "refuse":
                    message.refuse("it does not work")
                else:
                    threading.Timer(float(text), finish, (message, text)).start()
        except RoomClosed:
            pass

    def finish(message: Any, text: str) -> None:
        with suppress(RoomClosed):
            message.reply({"text": f"waited {text} s"})

    with open_room(address) as room:
        thread = threading.Thread(target=work, args=(room,), daemon=True)
        thread.start()
        yield
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_scenarios_for_tasks_pass(world: World, scenario: str) -> None:
    room = world.project / ".postroom"
    allow_place(room, how="allowed")
    address = f"sqlite:{room}"
    with worker(address), http_server(room, "--as", "ada", "--no-token") as served, proxy(served.port) as port:
        _, said = node(
            world, str(BIN / "conformance"), "server", "--url", f"http://127.0.0.1:{port}/mcp", "--scenario", scenario
        )

    checks = dict(
        re.findall(r"\[([\w-]+) *\] \S*?(SUCCESS|FAILURE|WARNING|SKIPPED)", re.sub(r"\x1b\[[0-9;]*m", "", said))
    )
    failed = {name for name, how in checks.items() if how != "SUCCESS"}
    assert failed <= NOT_OURS, said
    assert len(checks) - len(failed) >= SCENARIOS[scenario], checks
