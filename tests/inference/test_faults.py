"""What servers do wrong reaches the caller as the right error, within the deadline, and leaves nothing behind.

A script plays the server here, so this is no inference: it is about the client. Both dialects go through every fault.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from postroom import ModelError, ModelMissing, ModelTimeout
from postroom.inference import http, open_model, throttle

from .scripted_server import ANSWER, Dialect, Script, ScriptedServer, chunk, reset, response, stream_head

pytestmark = pytest.mark.slow

TIMEOUT_S = 0.3
#: A deadline that is kept may be seen so much later on a busy machine.
PATIENCE_S = 10.0

Start = Callable[[Script], ScriptedServer]


@pytest.fixture(params=["ollama", "openai"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return Dialect(request.param)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Start]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(throttle, "BACKOFF_BASE_S", 0.01)
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1_000_000)
    servers: list[ScriptedServer] = []

    def start_one(script: Script) -> ScriptedServer:
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start_one
    for server in servers:
        server.close()


def send(*parts: bytes) -> Callable[[Dialect], Script]:
    """A fault that sends these bytes, whatever the dialect."""
    return lambda _: lambda connection, _number: connection.sendall(b"".join(parts))


def streamed(make: Callable[[Dialect], bytes], *, end: bool = True) -> Callable[[Dialect], Script]:
    """A fault inside a stream that begins well."""

    def of(dialect: Dialect) -> Script:
        data = stream_head(dialect.kind) + chunk(make(dialect)) + (b"0\r\n\r\n" if end else b"")
        return lambda connection, _number: connection.sendall(data)

    return of


def hang(*parts: bytes) -> Callable[[Dialect], Script]:
    def script(connection: socket.socket, _number: int) -> None:
        connection.sendall(b"".join(parts))
        connection.recv(1)  # until the client hangs up

    return lambda _: script


def drip(head: Callable[[Dialect], bytes], drop: bytes) -> Callable[[Dialect], Script]:
    """Never silent, never done: what a time-out for each read does not end."""

    def of(dialect: Dialect) -> Script:
        def script(connection: socket.socket, _number: int) -> None:
            connection.sendall(head(dialect))
            connection.settimeout(0.02)
            for _ in range(300):  # some seconds: a client that does not give up gets an end it does not expect
                connection.sendall(drop)
                try:
                    if not connection.recv(1):
                        return
                except TimeoutError:
                    continue

        return script

    return of


def cut(make: Callable[[Dialect], bytes], end: Callable[[socket.socket], None]) -> Callable[[Dialect], Script]:
    def of(dialect: Dialect) -> Script:
        def script(connection: socket.socket, _number: int) -> None:
            connection.sendall(make(dialect))
            end(connection)

        return script

    return of


def refusal(status: str, *extra: str) -> Callable[[Dialect], Script]:
    return send(response(status, b'{"error": "not so"}', "application/json", *extra))


FAULTS: dict[str, tuple[Callable[[Dialect], Script], type[Exception], int]] = {
    # fault: what the server does, the error, how often it is asked (0: however often there is time for)
    "hangs up at once": (cut(lambda _: b"", socket.socket.close), ModelError, 4),
    "resets at once": (cut(lambda _: b"", reset), ModelError, 4),
    "says nothing": (hang(), ModelTimeout, 1),
    "half a status line": (hang(b"HTTP/1.1 20"), ModelTimeout, 1),
    "headers without end": (send(b"HTTP/1.1 200 OK\r\n", b"X-Drop: 1\r\n" * 1000), ModelError, 4),
    "one header, byte by byte": (drip(lambda _: b"HTTP/1.1 200 OK\r\nX: ", b"x"), ModelTimeout, 1),
    "a body, byte by byte": (drip(lambda d: stream_head(d.kind), chunk(b" ")), ModelTimeout, 1),
    "parts without end": (drip(lambda d: stream_head(d.kind) + chunk(d.part("hm ")), b"1\r\n \r\n"), ModelTimeout, 1),
    "resets in the body": (cut(lambda d: stream_head(d.kind) + chunk(d.part("hm")), reset), ModelError, 4),
    "ends in the body": (cut(lambda d: stream_head(d.kind) + chunk(d.part("hm")), socket.socket.close), ModelError, 4),
    "half a chunk": (cut(lambda d: stream_head(d.kind) + b"ff\r\n{", socket.socket.close), ModelError, 4),
    "less than it promised": (send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"), ModelError, 4),
    "404": (refusal("404 Not Found"), ModelMissing, 1),
    "400": (refusal("400 Bad Request"), ModelError, 1),
    "401": (refusal("401 Unauthorized"), ModelError, 1),
    "500": (refusal("500 Oops"), ModelError, 4),
    "502 and a page": (send(response("502 Bad Gateway", b"<html>", "text/html")), ModelError, 4),
    "503 for ever": (refusal("503 Busy"), ModelError, 4),
    "429 for ever": (refusal("429 Too Many"), ModelError, 4),
    "429 for an hour": (refusal("429 Too Many", "Retry-After: 3600"), ModelError, 1),
    "a redirect": (refusal("302 Found", "Location: http://127.0.0.1:1/"), ModelError, 1),
    "no content": (send(b"HTTP/1.1 204 No Content\r\n\r\n"), ModelError, 0),
    "nothing in it": (send(response("200 OK", b"")), ModelError, 4),
    "a page": (send(response("200 OK", b"<html>hello</html>", "text/html")), ModelError, 4),
    "bad JSON": (
        streamed(lambda d: b'data: {"choices": [\n' if d.name == "openai" else b'{"response": \n'),
        ModelError,
        4,
    ),
    "a list": (streamed(lambda d: d.line([1, 2])), ModelError, 4),
    "a number": (streamed(lambda d: d.line(5)), ModelError, 4),
    "words that are no words": (streamed(lambda d: d.part({"a": 5}) + d.end()), ModelError, 4),
    "bytes that are no text": (
        streamed(lambda d: b"data: \xff\xfe\n" if d.name == "openai" else b"\xff\xfe\n"),
        ModelError,
        4,
    ),
    "an error in the stream": (streamed(lambda d: d.part("hm") + d.line({"error": "out of memory"})), ModelError, 0),
    "no end": (streamed(lambda d: d.part("hm")), ModelError, 4),
    "not HTTP": (send(b"SSH-2.0-OpenSSH_9.2\r\n"), ModelError, 4),
    "a header as long as a book": (send(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n"), ModelError, 4),
    "a body without end": (streamed(lambda d: d.part("hm " * 400_000)), ModelError, 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_server_does_wrong_is_the_right_error_in_time(
    dialect: Dialect, start: Start, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, error, asked = FAULTS[fault]
    server = start(make(dialect))
    model = open_model(dialect.spec(server.url))
    wires: list[http._Wire] = []
    open_wire = http._Wire.__init__

    def note_wire(wire: http._Wire, timeout_s: float) -> None:
        wires.append(wire)
        open_wire(wire, timeout_s)

    monkeypatch.setattr(http._Wire, "__init__", note_wire)
    started = time.monotonic()

    with pytest.raises(error) as caught:
        model.complete("hello", timeout_s=TIMEOUT_S if error is ModelTimeout else PATIENCE_S)

    assert isinstance(caught.value, ModelError)
    assert server.url in str(caught.value)
    assert time.monotonic() - started < 2 * PATIENCE_S
    until_s = time.monotonic() + PATIENCE_S
    while len(server.requests) < asked and time.monotonic() < until_s:  # the server's thread may be late to note it
        time.sleep(0.001)
    assert not asked or len(server.requests) == asked
    assert wires
    assert [wire for wire in wires if wire._socket is not None and wire._socket.fileno() != -1] == []  # it hung up


def test_nobody_there_is_said_with_what_to_do(dialect: Dialect, start: Start) -> None:
    server = start(lambda connection, _number: None)
    server.close()

    with pytest.raises(
        ModelMissing, match="no model server answers at .*; start it, or name another in POSTROOM_MODEL"
    ):
        open_model(dialect.spec(server.url)).complete("hello", timeout_s=TIMEOUT_S)


# Connecting


@contextmanager
def deaf_address() -> Iterator[tuple[Any, ...]]:
    """An address at which nobody answers, and nobody refuses: too many stand before its door."""
    with socket.socket() as door, ExitStack() as others:
        door.bind(("127.0.0.1", 0))
        door.listen(0)
        for _ in range(4):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(door.getsockname())
        yield (socket.AF_INET, socket.SOCK_STREAM, 6, "", door.getsockname())


def test_a_name_with_many_addresses_that_do_not_answer_takes_no_longer_than_one(
    dialect: Dialect, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    with deaf_address() as deaf:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [deaf] * 100)

        with pytest.raises(ModelMissing, match="no connection within"):
            open_model(dialect.spec("http://many.test:80")).complete("hello", timeout_s=TIMEOUT_S)

    assert time.monotonic() - started < PATIENCE_S  # and not for each of them


def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = Dialect("openai")
    server = start(lambda connection, _number: connection.sendall(dialect.good()))
    port = int(server.url.rpartition(":")[2])
    with deaf_address() as deaf:
        alive = (*deaf[:4], ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [deaf, alive])

        said = open_model(dialect.spec("http://two.test:80")).complete("hello", timeout_s=PATIENCE_S)

    assert said.text == ANSWER


class NoIPv6(socket.socket):
    """A socket of a kernel without IPv6."""

    def __init__(self, family: int = -1, *rest: Any, **named: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *rest, **named)


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_where_the_kernel_has_no_ipv6_the_other_addresses_of_a_name_count(
    alive: bool, last: bool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = Dialect("openai")
    server = start(lambda connection, _number: connection.sendall(dialect.good()))
    port = int(server.url.rpartition(":")[2])
    if not alive:
        server.close()
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [four, six] if last else [six, four])
    monkeypatch.setattr(socket, "socket", NoIPv6)
    model = open_model(dialect.spec(f"http://both-{alive}-{last}.test:80"))

    if alive:
        assert model.complete("hello", timeout_s=PATIENCE_S).text == ANSWER
    else:
        with pytest.raises(ModelMissing, match="refused"):
            model.complete("hello", timeout_s=PATIENCE_S)


def test_a_name_that_is_looked_up_for_ever_is_given_up_in_time(
    dialect: Dialect, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def wait_for_ever(*_: Any, **__: Any) -> list[Any]:
        over.wait(3 * PATIENCE_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait_for_ever)
    started = time.monotonic()

    with pytest.raises(ModelMissing, match="no connection within"):
        open_model(dialect.spec("http://slow.test:80")).complete("hello", timeout_s=TIMEOUT_S)

    assert time.monotonic() - started < PATIENCE_S
    over.set()


def test_a_name_that_nobody_has_is_a_server_that_is_not_there(
    dialect: Dialect, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    found: list[Callable[..., Any]] = [nobody, lambda *_, **__: []]
    for look_up in found:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        with pytest.raises(ModelMissing, match="no model server answers at http://nobody.test"):
            open_model(dialect.spec("http://nobody.test:80")).complete("hello", timeout_s=PATIENCE_S)


def test_secrets_that_are_agreed_upon_byte_by_byte_do_not_outlast_the_deadline(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=trickle_handshake, args=(door,))
        thread.start()
        started = time.monotonic()
        with pytest.raises(ModelMissing, match="no secure connection within"):
            open_model(f"openai:tiny@https://127.0.0.1:{door.getsockname()[1]}").complete("hello", timeout_s=TIMEOUT_S)
        took_s = time.monotonic() - started
        thread.join()

    assert took_s < PATIENCE_S


def trickle_handshake(door: socket.socket) -> None:
    connection, _ = door.accept()
    with connection, suppress(OSError):
        connection.sendall(b"\x16\x03\x03\x3f\x00")  # a record of the handshake, of 16,128 bytes
        for _ in range(1500):  # longer than anybody waits
            connection.sendall(b"\x02")
            time.sleep(0.02)


def test_a_good_answer_is_read_whole_with_its_figures(dialect: Dialect, start: Start) -> None:
    server = start(lambda connection, _number: connection.sendall(dialect.good()))

    said = open_model(dialect.spec(server.url)).complete(
        "hello", system="You are Ada.", schema={"type": "object"}, max_tokens=33, timeout_s=PATIENCE_S
    )

    assert (said.text, said.prompt_tokens, said.tokens) == (ANSWER, 12, 7)
    assert 0 < said.first_byte_ms <= said.total_ms
    asked = server.requests[0]
    assert asked["model"] == "tiny"
    if dialect.name == "ollama":
        assert asked["path"] == "/api/generate"
        assert asked["options"]["num_predict"] == 33  # inside options, where a server reads it
        assert asked["options"]["temperature"] == 0
        assert "num_predict" not in asked
        assert asked["format"] == {"type": "object"}
        assert asked["system"] == "You are Ada."
    else:
        assert asked["path"] == "/v1/chat/completions"
        assert asked["max_tokens"] == 33
        assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert [message["role"] for message in asked["messages"]] == ["system", "user"]


def test_a_stream_cut_at_every_byte_is_read_whole(dialect: Dialect, start: Start) -> None:
    def script(connection: socket.socket, _number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in stream_head(dialect.kind) + b"".join(chunk(bytes([b])) for b in dialect.whole()) + b"0\r\n\r\n":
            connection.sendall(bytes([byte]))

    server = start(script)

    assert open_model(dialect.spec(server.url)).complete("hello", timeout_s=PATIENCE_S).text == ANSWER


def test_a_busy_server_is_asked_again_later(dialect: Dialect, start: Start) -> None:
    def script(connection: socket.socket, number: int) -> None:
        busy = response("503 Busy", b"{}", "application/json", "Retry-After: 0.2")
        connection.sendall(dialect.good() if number == 3 else busy)

    server = start(script)
    started = time.monotonic()

    assert open_model(dialect.spec(server.url)).complete("hello", timeout_s=PATIENCE_S).text == ANSWER
    assert len(server.requests) == 3
    assert time.monotonic() - started >= 0.4  # as long as it asked for, twice


def test_a_server_that_keeps_failing_is_left_alone(dialect: Dialect, start: Start) -> None:
    server = start(lambda connection, _number: reset(connection))
    model = open_model(dialect.spec(server.url))
    for _ in range(throttle.FAILURES):
        with pytest.raises(ModelError):
            model.complete("hello", timeout_s=PATIENCE_S)
    asked = len(server.requests)

    with pytest.raises(ModelError, match="it will not be called for 30 s"):
        model.complete("hello", timeout_s=TIMEOUT_S)

    assert len(server.requests) == asked


def test_a_server_that_is_not_there_is_left_alone_too(dialect: Dialect, start: Start) -> None:
    server = start(lambda connection, _number: None)
    server.close()
    model = open_model(dialect.spec(server.url))
    for _ in range(throttle.FAILURES):
        with pytest.raises(ModelMissing, match="no model server answers"):
            model.complete("hello", timeout_s=PATIENCE_S)

    with pytest.raises(ModelError, match="it will not be called for 30 s"):
        model.complete("hello", timeout_s=PATIENCE_S)


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "403 Forbidden", "404 Not Found"])
def test_what_the_caller_did_wrong_does_not_count_against_the_server(
    dialect: Dialect, start: Start, status: str
) -> None:
    answers = [response(status, b"{}")] * (throttle.FAILURES + 2) + [dialect.good()]
    server = start(lambda connection, number: connection.sendall(answers[number - 1]))
    model = open_model(dialect.spec(server.url))

    for _ in answers[:-1]:
        with pytest.raises(ModelError, match="refused|has no model"):
            model.complete("hello", timeout_s=PATIENCE_S)

    assert model.complete("hello", timeout_s=PATIENCE_S).text == ANSWER  # others are served meanwhile


def test_no_more_ask_one_server_at_once_than_may(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = Dialect("openai")
    monkeypatch.setenv(throttle.CONCURRENCY_VARIABLE, "2")

    def script(connection: socket.socket, _number: int) -> None:
        with lock:
            asking.append(len(asking) + 1)
            most_at_once.append(len(asking))
        threading.Event().wait(0.03)
        with lock:  # before the answer: with that in hand, the next one may ask
            asking.pop()
        connection.sendall(dialect.good())

    asking: list[int] = []
    most_at_once: list[int] = []
    lock = threading.Lock()
    server = start(script)
    model = open_model(dialect.spec(server.url))
    threads = [threading.Thread(target=model.complete, args=("hello",)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert len(server.requests) == 10
    assert max(most_at_once) == 2


def test_a_key_goes_only_where_it_is_meant_to(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = Dialect("openai")
    server = start(lambda connection, _number: connection.sendall(dialect.good()))
    model = open_model(dialect.spec(server.url))
    monkeypatch.delenv("POSTROOM_MODEL_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "for somebody else")

    model.complete("hello")
    monkeypatch.setenv("POSTROOM_MODEL_KEY", "for this one")
    model.complete("hello")

    assert [asked["headers"].get("authorization") for asked in server.requests] == [None, "bearer for this one"]
