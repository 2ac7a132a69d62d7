"""Whatever comes over the wire: an answer below 500, or the connection's end; never a hang, and the server stays alive."""

from __future__ import annotations

import os
import random
import re
import socket
import threading

import pytest

from postroom.room import Room

from .browser import Site, serving
from .conftest import Client
from .test_server import fill

PATIENCE_S = 10.0
COUNT = 1_500
LONG_COUNT = 50_000

METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "G\x00T", "")
PATHS = (
    *(
        "/",
        "/api/about",
        "/api/recent",
        "/api/older",
        "/api/among",
        "/api/past",
        "/api/events",
        "/api/deeds",
        "/metrics",
        "/api/messages/",
    ),
    *(
        "/api/views/agents",
        "/api/views/board",
        "/api/views/mailboxes",
        "/api/views/sessions",
        "/api/views/dead",
        "/api/views/",
    ),
    *(
        "/api/send",
        "/api/requeue",
        "/api/drop",
        "/api/release",
        "/api/release-task",
        "/api/add-task",
        "/api/abort-task",
        "/api/reopen-task",
        "/api/stop-session",
        "/api/pause",
        "/api/resume",
        "/api/answer",
        "/api/sign-in",
        "/page/main.js",
    ),
    *("/page/../../x", "//", "/%", "/%00", "/\x7f", "/api", "*", "http://evil.example/", "/api/messages/%ff/payload"),
)
ACTS = (
    "/api/send",
    "/api/requeue",
    "/api/drop",
    "/api/release",
    "/api/release-task",
    "/api/add-task",
    "/api/abort-task",
    "/api/reopen-task",
    "/api/stop-session",
    "/api/pause",
    "/api/resume",
    "/api/answer",
    "/api/sign-in",
)
NAMES = (
    *("after", "before", "limit", "at_ms", "start", "view", "pick", "token", "x"),
    *("agent", "to", "free", "channel", "type", "state", "thread", "text", "ids"),
)
VALUES = (
    "",
    "0",
    "-1",
    "1",
    "99999999999999999999999",
    "9223372036854775807",
    "NaN",
    "%00",
    "%F0%9F%92%A9",
    "%ff",
    "٣",
    "a" * 3000,
    "'--",
    "1e9",
)
BODIES = (
    b"", b"{}", b"[]", b"null", b"\xff", b'{"ids": []}', b'{"ids": ["x"]}', b'{"ids": [1]}', b'{"id": "x"}', b'{"id": ""}', b'{"id": "\\u0000"}',
    b'{"payload": {}}', b'{"payload": {"a": 1e400}}', b'{"payload": {"a": "\\ud800"}}', b'{"payload": {}, "to": "\\u0001"}', b"[" * 5000,
    b'{"payload":' + b'{"a":' * 900 + b"1" + b"}" * 901, b'{"payload": {}, "priority": 99999999999999999999}', b'{"ids": ["' + b"y" * 70_000 + b'"]}',
)  # fmt: skip


class Fuzzer:
    """Makes requests, most of them nearly right, so that they come far."""

    def __init__(self, site: Site, seed: int, ids: list[str]) -> None:
        self.random = random.Random(seed)
        self.site = site
        self.paths = (*PATHS, *(f"/api/messages/{id}" for id in ids), f"/api/messages/{ids[0]}/payload")

    def request(self) -> tuple[bytes, bool]:
        """Some bytes, and whether they are a whole request, which has a right to an answer."""
        pick = self.random.choice
        method = pick(METHODS[:2]) if self.random.random() < 0.8 else pick(METHODS)
        path = pick(self.paths)
        if self.random.random() < 0.6:
            path += "?" + "&".join(f"{pick(NAMES)}={pick(VALUES)}" for _ in range(self.random.randint(1, 4)))
        body = pick(BODIES) if method != "GET" or self.random.random() < 0.1 else b""
        if path.startswith("/api/") and self.random.random() < 0.8:  # mostly the method that the path is for
            method = "POST" if path in ACTS else "GET"
            body = pick(BODIES) if method == "POST" else b""
        self.whole = True
        raw = f"{method} {path} HTTP/1.1\r\n".encode() + self.headers(body) + b"\r\n" + body
        return (self.bent(raw), False) if self.random.random() < 0.25 else (raw, self.whole)

    def headers(self, body: bytes) -> bytes:
        chance, pick = self.random.random, self.random.choice
        host = f"127.0.0.1:{self.site.port}"
        lines = [
            f"Host: {host}"
            if chance() < 0.93
            else pick(("Host: evil.example", "Host:", "X: y", f"Host: {host}\r\nHost: {host}"))
        ]
        token = self.site.token if chance() < 0.93 else pick(("", "wrong", "\xff", "a" * 5000))
        lines.append(
            f"Authorization: Bearer {token}" if chance() < 0.5 else f"Cookie: postroom_{self.site.port}={token}; a=b"
        )
        if chance() < 0.7:
            lines.append(
                f"Origin: http://{host}" if chance() < 0.9 else pick(("Origin: null", "Origin: http://evil.example"))
            )
        lines.append(
            f"Content-Type: {'application/json' if chance() < 0.9 else pick(('text/plain', '', 'multipart/form-data'))}"
        )
        size = len(body) if chance() < 0.95 else pick((0, len(body) + 10, -1, 10**12))
        chunked = chance() > 0.95
        lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}")
        self.whole = not chunked and size <= len(body)
        if chance() < 0.1:
            lines.append(
                pick(
                    (
                        f"Last-Event-ID: {pick(VALUES)}",
                        "Expect: 100-continue",
                        "Range: bytes=0-1",
                        "Upgrade: websocket",
                        "X" * 20_000 + ": y",
                    )
                )
            )
        lines.append("Connection: close")
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n"

    def bent(self, raw: bytes) -> bytes:
        """A few bytes changed, taken out, doubled; or the end cut off."""
        data = bytearray(raw[:4000])
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(max(1, len(data) - 1))
            match self.random.randrange(4):
                case 0:
                    data[at] = self.random.randrange(256)
                case 1 if len(data) > 40:
                    del data[at : at + self.random.randint(1, 20)]
                case 2:
                    data[at:at] = data[at : at + 30]
                case _:
                    del data[max(2, at) :]
        return bytes(data)


def answer_to(site: Site, raw: bytes, *, whole: bool) -> bytes:
    """What the server says to these bytes. Who did not send a whole request hangs up after it."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(raw)
            if not whole:
                sock.shutdown(socket.SHUT_WR)
            parts = []
            while part := sock.recv(65536):
                parts.append(part)
            return b"".join(parts)
        except TimeoutError:
            raise
        except OSError:  # it hung up before it had read all of it
            return b"hung up"


def patiently(site: Site, raw: bytes, *, whole: bool) -> bytes:
    """The same; a machine that stood still for a while is no hang: that comes again."""
    try:
        return answer_to(site, raw, whole=whole)
    except TimeoutError:
        return answer_to(site, raw, whole=whole)


def storm(room: Room, count: int, seed: int) -> tuple[list[tuple[bytes, bytes]], dict[int, int]]:
    """Send so many requests, four at a time. Returns what went wrong, and how often there was which status."""
    ids = list(fill(room).values())
    wrong: list[tuple[bytes, bytes]] = []
    statuses: dict[int, int] = {}
    with serving(room) as site:

        def run(number: int) -> None:
            fuzzer = Fuzzer(site, seed * 100 + number, ids)
            for _ in range(count // 4):
                raw, whole = fuzzer.request()
                try:
                    said = patiently(site, raw, whole=whole)
                except TimeoutError:
                    wrong.append((raw[:300], b"a hang"))
                    continue
                match = re.match(rb"HTTP/1\.1 (\d{3})", said)
                status = int(match[1]) if match else 0
                statuses[status] = statuses.get(status, 0) + 1
                if status >= 500 or (status == 0 and whole and said != b"hung up"):
                    wrong.append((raw[:300], said[:300]))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Client(site)("/api/about").status == 200
    return wrong, statuses


@pytest.mark.slow
@pytest.mark.parametrize("count", [COUNT, pytest.param(LONG_COUNT, marks=pytest.mark.long)])
def test_whatever_is_asked_there_is_an_answer(sqlite_room: Room, count: int) -> None:
    seed = int(os.environ.get("POSTROOM_SEED", "0")) or random.randrange(10**6)
    print(f"POSTROOM_SEED={seed}")

    wrong, statuses = storm(sqlite_room, count, seed)

    assert wrong == [], f"seed {seed}"
    print(statuses)
    assert statuses.get(200, 0) > count / 10  # many came through, so more than the gate was tried
    assert len(statuses) >= 6
