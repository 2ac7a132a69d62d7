"""Real servers for tests: `postroom mcp` as a process of its own, over HTTP or stdio, spoken to in plain JSON-RPC."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.support import clean_environment

from .forked import Forked

PATIENCE_S = 30.0
MODERN = "2026-07-28"
LEGACY = "2025-11-25"


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        data = [line.removeprefix("data: ") for line in self.body.splitlines() if line.startswith("data: ")]
        return json.loads(data[-1] if data else self.body)


def envelope(method: str, params: dict[str, Any] | None = None, id: int = 1) -> dict[str, Any]:
    """A request of the stateless protocol."""
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": meta}}


class Http:
    """A client of one HTTP server."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def request(
        self, body: bytes | str, headers: dict[str, str] | None = None, *, method: str = "POST", path: str = "/mcp"
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(method, path, skip_host=True)
            given = {
                "Host": f"127.0.0.1:{self.port}",
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                **(headers or {}),
            }
            data = body if isinstance(body, bytes) else body.encode()
            given["Content-Length"] = str(len(data))
            for name, value in given.items():
                if value:
                    connection.putheader(name, value)
            # In one piece: a head that is no HTTP is answered and hung up on, and a body that came after that would
            # reset the connection before the answer is read.
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            connection.endheaders(data)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read().decode("utf-8", "replace"))
        finally:
            connection.close()

    def rpc(
        self, method: str, params: dict[str, Any] | None = None, token: str | None = None, **headers: str
    ) -> Answer:
        """One stateless request."""
        sent = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if params and isinstance(params.get("name"), str):
            sent["Mcp-Name"] = params["name"]
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        return self.request(json.dumps(envelope(method, params)), sent | headers)

    def tool(self, token: str | None, name: str, headers: dict[str, str] | None = None, **arguments: Any) -> Answer:
        return self.rpc("tools/call", {"name": name, "arguments": arguments}, token, **(headers or {}))


@contextmanager
def http_server(room: Path | str, *more: str) -> Iterator[Http]:
    """`postroom mcp --http 0` in a room, until the block ends."""
    address = room if isinstance(room, str) else f"sqlite:{room}"
    process = Forked(["mcp", "--http", "0", "--room", address, *more], clean_environment())
    try:
        line = process.stdout.readline().decode()
        assert line.startswith("http://127.0.0.1:"), line + process.stderr.read().decode()
        yield Http(int(line.split(":")[2].partition("/")[0]), process.pid)
        assert process.poll() is None, process.stderr.read()
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.end(PATIENCE_S)
    assert "Traceback" not in said, said


class Stdio:
    """A server on pipes, spoken to line by line."""

    def __init__(self, process: Forked) -> None:
        self.process = process

    def send(self, line: bytes) -> None:
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        return json.loads(self.process.stdout.readline())

    def answer_to(self, id: int) -> Any:
        while True:
            message = self.read()
            if message.get("id") == id:
                return message

    def ask(self, method: str, params: dict[str, Any] | None = None, id: int = 1) -> Any:
        self.send(json.dumps(envelope(method, params, id)).encode())
        return self.answer_to(id)

    def tool(self, name: str, id: int = 1, **arguments: Any) -> Any:
        return self.ask("tools/call", {"name": name, "arguments": arguments}, id)["result"]


@contextmanager
def stdio_server(room: Path | str, *more: str, **environment: str) -> Iterator[Stdio]:
    """`postroom mcp` on pipes, until the block ends."""
    address = room if isinstance(room, str) else f"sqlite:{room}"
    process = Forked(["mcp", "--room", address, *more], clean_environment(**environment))
    try:
        yield Stdio(process)
    finally:
        said = process.end(PATIENCE_S)
    assert process.returncode == 0, said
    assert said == "", said
