"""An HTTP server that does what a script says, wrongly on purpose: for what a client must survive. No model is behind it."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: What a connection gets: the socket, and the number of the request (from 1).
Script = Callable[[socket.socket, int], None]
ANSWER = '{"confidence": 0.8, "should_respond": true, "reasoning": "asked"}'


class ScriptedServer:
    """Listens on loopback; every connection is one request."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            body = read_request(connection)
            with self._lock:
                self.requests.append(body)
                number = len(self.requests)
            self._script(connection, number)

    def close(self) -> None:
        self.stopping.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(10)


def read_request(connection: socket.socket) -> dict[str, Any]:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return {}
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return {"path": lines[0].split(" ")[1], "headers": headers, **(json.loads(body) if body else {})}


def reset(connection: socket.socket) -> None:
    """Close so that the other side gets a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def response(status: str, body: bytes, kind: str = "application/json", *extra: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *extra, "", ""]
    return "\r\n".join(lines).encode() + body


def stream_head(kind: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Dialect:
    """How one kind of server says things."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = "application/x-ndjson" if name == "ollama" else "text/event-stream"

    def spec(self, url: str) -> str:
        return f"ollama:tiny@{url}" if self.name == "ollama" else f"openai:tiny@{url}/v1"

    def line(self, value: Any) -> bytes:
        text = json.dumps(value).encode()
        return text + b"\n" if self.name == "ollama" else b"data: " + text + b"\n\n"

    def part(self, text: Any) -> bytes:
        if self.name == "ollama":
            return self.line({"model": "tiny", "response": text, "done": False})
        return self.line({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def end(self) -> bytes:
        if self.name == "ollama":
            counts = {"prompt_eval_count": 12, "eval_count": 7}
            return self.line({"model": "tiny", "response": "", "done": True, "done_reason": "stop", **counts})
        usage = {"usage": {"prompt_tokens": 12, "completion_tokens": 7}}
        last = self.line({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        return last + self.line({"choices": [], **usage}) + b"data: [DONE]\n\n"

    def whole(self) -> bytes:
        half = len(ANSWER) // 2
        return self.part(ANSWER[:half]) + self.part(ANSWER[half:]) + self.end()

    def good(self) -> bytes:
        return stream_head(self.kind) + chunk(self.whole()) + b"0\r\n\r\n"
