"""Those who hold a connection and say nothing, or say it slowly: the server does not wait for them. Over real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

import postroom
from postroom.room import Room
from postroom.web import server

from .browser import Site, serving

HEAD_S = 0.4
PATIENCE_S = 60.0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server that gives a connection less time."""
    monkeypatch.setattr(server, "HEAD_S", HEAD_S)
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


def test_more_connections_than_anybody_needs_are_not_listened_to(
    monkeypatch: pytest.MonkeyPatch, sqlite_room: Room
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 5)
    with serving(sqlite_room) as site:
        first = [joined(site) for _ in range(10)]
        try:
            with closing(joined(site)) as one_more:
                assert is_shut_at_last(one_more)
            first[0].sendall(head(site, "/api/about") + b"\r\n")
            assert answer(first[0]).startswith(b"HTTP/1.1 503")  # too many, and told so
        finally:
            for sock in first:
                sock.close()
        until_served(site)


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
