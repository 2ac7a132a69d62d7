"""Asking an HTTP server, with deadlines that hold whatever it does: a slow drip of bytes does not outlast them.

The standard library's clients (and httpx) count a time-out anew for each read, so a server that sends one byte now and
then holds a caller for ever. Here every read gets only what is left of the deadline (tests/inference/test_faults.py).
The same goes for connecting: they count it anew for each address of a name, and not at all while the name is looked up.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from postroom.core.clock import SYSTEM
from postroom.errors import ModelError, ModelMissing, ModelTimeout

CONNECT_S: Final = 2.0
#: No answer is longer than this: a verdict is a few hundred bytes, and a stream says each of its words with an
#: envelope.
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024


class ServerBusy(ModelError):
    """The server says that it has no room for us now; `retry_after_s` is its wish, if it has one."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class ServerBroken(ModelError):
    """The server failed, or its answer broke off: another try may succeed."""


class Answer:
    """A server's answer: status and headers are here, the body comes as it is read. Close it."""

    def __init__(self, wire: _Wire, response: http.client.HTTPResponse, server: str) -> None:
        self._wire = wire
        self._response = response
        self._server = server
        self.status = response.status
        self.first_byte_ms = wire.first_byte_ms
        self.headers: dict[str, str] = {name.lower(): value for name, value in response.getheaders()}

    def chunks(self) -> Iterator[bytes]:
        """The body, as it comes."""
        size = 0
        with _told(self._server):
            while chunk := self._response.read1(_CHUNK_BYTES):
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise ModelError(f"the answer from {self._server} is longer than {MAX_BODY_BYTES} bytes")
                yield chunk
            if self._response.length:  # it told how long the body is, and it was less
                raise ServerBroken(f"the answer from {self._server} broke off")

    def lines(self) -> Iterator[bytes]:
        """The body line by line, wherever it was cut on the way."""
        rest = b""
        for chunk in self.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def read(self) -> bytes:
        return b"".join(self.chunks())

    def close(self) -> None:
        self._response.close()
        self._wire.close()


def check_address(url: str, key_variable: str) -> None:
    """Raises ModelMissing, without the address, when it holds a name or a password: specs and errors show addresses."""
    if "@" in url:
        raise ModelMissing(
            "the address of a model server must not contain an @, or a name and password before it; "
            f"set {key_variable} to the key that the server takes"
        )


def send(method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
    """Send a request; returns when status and headers of the answer are here.

    Raises ModelMissing when nobody listens there, ModelTimeout, ServerBusy for 429 and 503, ServerBroken when the
    connection breaks off or what comes is not HTTP.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]  # a password, if there is one, is nobody's business
    server = f"{parts.scheme}://{host}"
    wire = _Wire(timeout_s)
    try:
        with _told(server):
            wire.connect(parts.scheme, parts.hostname or "", parts.port)
            path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
            head = {"Host": host, "Connection": "close", "Content-Length": str(len(body)), **headers}
            lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
            wire.sendall("\r\n".join(lines).encode("latin-1") + body)
            response = http.client.HTTPResponse(wire, method=method)  # type: ignore[arg-type]  # calls makefile alone
            response.begin()
        answer = Answer(wire, response, server)
        if answer.status in (429, 503):
            raise ServerBusy(f"{server} is busy (HTTP {answer.status})", _seconds(answer.headers.get("retry-after")))
        return answer
    except BaseException:
        wire.close()
        raise


def _seconds(text: str | None) -> float | None:
    """What a Retry-After asks for, when it asks in seconds."""
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


@contextmanager
def _told(server: str) -> Iterator[None]:
    """Turns what goes wrong on the wire into our own errors, with the server's name."""
    try:
        yield
    except ModelTimeout as error:
        raise ModelTimeout(f"{server} {error}") from None
    except ModelError:
        raise
    except (ConnectionRefusedError, socket.gaierror) as error:
        raise ModelMissing(
            f"no model server answers at {server} ({error}); start it, or name another in POSTROOM_MODEL"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServerBroken(f"the answer from {server} broke off ({type(error).__name__}: {error})") from error


_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def _addresses(host: str, port: int, until_ns: int) -> Sequence[_Address]:
    """The addresses of a name. The system's lookup knows no deadline and no end: one that is late is left to itself."""
    find = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    if _is_number(host):
        return find()  # at once
    found: Future[Sequence[_Address]] = Future()

    def look_up() -> None:
        try:
            found.set_result(find())
        except (OSError, ValueError) as error:  # a name may also be none that can be written in ASCII
            found.set_exception(error)

    threading.Thread(target=look_up, name="postroom model name", daemon=True).start()
    return found.result(_seconds_until(until_ns))


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _seconds_until(until_ns: int) -> float:
    """How long it is until then. TimeoutError when it is over."""
    left_s = (until_ns - SYSTEM.steady_ns()) / 1e9
    if left_s <= 0:
        raise TimeoutError
    return left_s


class _Wire(io.RawIOBase):
    """One connection. Reading waits only for what is left of the deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._started_ns = SYSTEM.steady_ns()
        self._socket: socket.socket | None = None
        self.first_byte_ms = 0.0

    def connect(self, scheme: str, host: str, port: int | None) -> None:
        """Reach the server.

        One deadline for all that it takes: its name, its addresses, and the secrets to agree upon.
        """
        secure = scheme == "https"
        wait_s = min(CONNECT_S, self._left_s())
        until_ns = SYSTEM.steady_ns() + round(wait_s * 1e9)
        try:
            self._join(_addresses(host, port or (443 if secure else 80), until_ns), until_ns)
            if secure:
                self._secure(host, until_ns)
        except TimeoutError:
            raise ConnectionRefusedError(f"no {'secure ' if secure else ''}connection within {wait_s:g} s") from None

    def _join(self, addresses: Sequence[_Address], until_ns: int) -> None:
        """Connect to the first of the addresses that answers. A dead one has its share of the time, and no more."""
        trouble: OSError | None = None
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            try:
                end = socket.socket(family, kind, protocol)
            except OSError as error:  # a kernel without IPv6: what the other addresses say is more to the point
                trouble = trouble or error
                continue
            try:
                end.settimeout(_seconds_until(until_ns) / (len(addresses) - number))
                end.connect(address)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                end.close()
                trouble = error
            else:
                self._socket = end
                return
        raise trouble or socket.gaierror("the name has no address")

    def _secure(self, host: str, until_ns: int) -> None:
        assert self._socket is not None
        context = ssl.create_default_context()
        self._socket.settimeout(_seconds_until(until_ns))  # counts for the whole handshake, not for each read of it
        self._socket = context.wrap_socket(self._socket, server_hostname=host)

    def _left_s(self) -> float:
        """What is left of the deadline."""
        left_s = self._timeout_s - (SYSTEM.steady_ns() - self._started_ns) / 1e9
        if left_s <= 0:
            raise ModelTimeout(f"did not finish within {self._timeout_s:g} s")
        return left_s

    def sendall(self, data: bytes) -> None:
        """Send all of it, within the deadline as a whole."""
        assert self._socket is not None
        self._socket.settimeout(self._left_s())
        try:
            self._socket.sendall(data)
        except TimeoutError:
            self._left_s()  # raises

    def readinto(self, buffer: Any) -> int:
        """Some bytes, as soon as there are any; 0 at the end."""
        assert self._socket is not None
        while True:
            self._socket.settimeout(self._left_s())
            try:
                size = self._socket.recv_into(buffer)
            except TimeoutError:
                continue  # the next look at what is left raises
            if size and not self.first_byte_ms:
                self.first_byte_ms = (SYSTEM.steady_ns() - self._started_ns) / 1e6
            return size

    def readable(self) -> bool:
        return True

    def makefile(self, mode: str) -> io.BufferedReader:
        """The stream that http.client reads from, and closes at the end of the answer."""
        assert mode == "rb"
        return io.BufferedReader(self)

    def close(self) -> None:
        """Hang up: a server that still writes for us sees it, and stops. Safe to call twice."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
        super().close()
