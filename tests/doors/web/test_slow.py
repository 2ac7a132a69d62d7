"""Those who hold a connection and say nothing, or say it slowly: the server does not wait for them. Over real sockets."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

import postroom
from postroom.doors import http_server
from postroom.room import Room

from .browser import Site, serving

HEAD_S = 0.4
PATIENCE_S = 60.0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server that gives a connection less time."""
    monkeypatch.setattr(http_server, "HEAD_S", HEAD_S)
    with postroom.open("memory:") as room, serving(room) as site:
        yield site


def joined(site: Site) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def head(site: Site, path: str) -> bytes:
    words = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nAuthorization: Bearer {site.token}\r\n"
    return words.encode()


def is_shut(sock: socket.socket) -> bool:
    """Whether the other side has closed it, as seen by what can be read within a moment."""
    sock.settimeout(0.05)
    try:
        return sock.recv(4096) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def trickles_until_shut(sock: socket.socket, begin: bytes) -> bool:
    """Send a header that never ends, byte by byte; whether the server ended that."""
    end_s = time.monotonic() + PATIENCE_S
    try:
        sock.sendall(begin)
        while time.monotonic() < end_s:
            if is_shut(sock):
                return True
            sock.sendall(b"x")
    except ConnectionError:
        return True
    return False


def answer(sock: socket.socket) -> bytes:
    """The head of an answer, with as much of its body as its length says."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += sock.recv(65536)
    before, _, body = got.partition(b"\r\n\r\n")
    length = int(before.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65536)
    return before


def test_one_who_says_nothing_is_let_go(hasty: Site) -> None:
    with closing(joined(hasty)) as sock:
        assert sock.recv(1) == b""


@pytest.mark.parametrize("begin", [b"G", b"GET / HTTP/1.1\r\nX-Long: "], ids=["request line", "header"])
def test_one_who_trickles_a_request_is_let_go(hasty: Site, begin: bytes) -> None:
    with closing(joined(hasty)) as sock:
        assert trickles_until_shut(sock, begin)


def test_one_who_trickles_a_second_request_is_let_go_too(hasty: Site) -> None:
    with closing(joined(hasty)) as sock:
        sock.sendall(head(hasty, "/api/about") + b"\r\n")
        assert answer(sock).startswith(b"HTTP/1.1 200")
        assert trickles_until_shut(sock, head(hasty, "/api/about") + b"X-Long: ")


def test_one_who_trickles_a_body_that_nobody_reads_is_let_go(hasty: Site) -> None:
    with closing(joined(hasty)) as sock:
        sock.sendall(head(hasty, "/api/about") + b"Content-Length: 1000000\r\n\r\n")
        assert answer(sock).startswith(b"HTTP/1.1 200")
        assert trickles_until_shut(sock, b"x")


@pytest.mark.slow
def test_a_stream_goes_on_for_longer_than_that(hasty: Site) -> None:
    with closing(joined(hasty)) as sock:
        sock.sendall(head(hasty, "/api/live") + b"\r\n")
        began_s, got = time.monotonic(), b""
        while got.count(b"event: pulse") < 3:
            piece = sock.recv(65536)
            assert piece != b"", got
            got += piece

    assert time.monotonic() - began_s > 3 * HEAD_S  # a pulse is a second


def test_one_who_trickles_a_body_that_somebody_reads_is_let_go(monkeypatch: pytest.MonkeyPatch, hasty: Site) -> None:
    monkeypatch.setattr(http_server, "BODY_S", HEAD_S)
    with closing(joined(hasty)) as sock:
        begin = head(hasty, "/api/send").replace(b"GET", b"POST") + b"Content-Type: application/json\r\n"
        assert trickles_until_shut(sock, begin + b"Content-Length: 1000000\r\n\r\n")


def test_one_who_asks_and_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch, hasty: Site) -> None:
    monkeypatch.setattr(http_server, "WRITE_S", HEAD_S)
    with closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE_S)
        sock.connect(("127.0.0.1", hasty.port))
        with suppress(ConnectionError):
            sock.sendall((head(hasty, "/page/main.js") + b"\r\n") * 2000)  # more than any buffer holds
        gone = select.poll()
        gone.register(sock, select.POLLRDHUP)

        assert gone.poll(PATIENCE_S * 1000)


def test_connections_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, sqlite_room: Room) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 5)
    with serving(sqlite_room) as site:
        silent = [joined(site) for _ in range(5)]
        try:
            for _ in range(3):
                silent.append(joined(site))
                with closing(joined(site)) as one_more:
                    one_more.sendall(head(site, "/api/about") + b"\r\n")
                    assert answer(one_more).startswith(b"HTTP/1.1 200")
            assert is_shut_at_last(silent[0])  # the one that waited longest made place
        finally:
            for sock in silent:
                sock.close()


def test_more_requests_at_once_than_anybody_needs_are_told_to_come_later(
    monkeypatch: pytest.MonkeyPatch, sqlite_room: Room
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    with serving(sqlite_room) as site:
        streams = [joined(site) for _ in range(3)]
        try:
            for sock in streams:
                sock.sendall(head(site, "/api/live") + b"\r\n")
                assert sock.recv(100).startswith(b"HTTP/1.1 200")
            with closing(joined(site)) as one_more:
                one_more.sendall(head(site, "/api/about") + b"\r\n")
                assert one_more.recv(100).startswith(b"HTTP/1.1 503")
        finally:
            for sock in streams:
                sock.close()
        until_served(site)


def test_answers_on_a_kept_connection_are_not_held_back(sqlite_room: Room) -> None:
    with serving(sqlite_room) as site, closing(joined(site)) as sock:
        sock.sendall(head(site, "/api/about") + b"\r\n")
        assert answer(sock).startswith(b"HTTP/1.1 200")
        assert is_prompt(sock)


def is_prompt(client: socket.socket) -> bool:
    """Whether the server's end of a connection, which is in this process, has TCP_NODELAY."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), closing(socket.socket(fileno=os.dup(int(name)))) as found:
            if found.family == socket.AF_INET and found.getpeername() == client.getsockname():
                return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    raise AssertionError("no descriptor of this process is the other end")


def is_shut_at_last(sock: socket.socket) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if is_shut(sock):
            return True
    return False


def until_served(site: Site) -> None:
    """The others have left: the server notices, and answers again."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        with closing(joined(site)) as sock:
            sock.sendall(head(site, "/api/about") + b"\r\n")
            if answer(sock).startswith(b"HTTP/1.1 200"):
                return
    raise AssertionError("nobody is served any more")
