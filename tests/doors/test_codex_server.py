"""A notice for Codex counts as told when its server says which turn it is part of, or else when the queue has it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_loop import run

from postroom import aio
from postroom.doors import codex_server, session_binding, waker

CODEX = session_binding.HostSession("codex", "codex", "s1", None, attended=True)
HELLO = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"


class AppServer:
    """Codex's side of the socket. `turns` answers `turn/start`: a dict is the answer, bytes are sent as they are."""

    def __init__(self, turns: dict[str, Any] | bytes, hello: bytes = HELLO) -> None:
        self.turns = turns
        self.hello = hello
        self.calls: list[dict[str, Any]] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / ("long" * 30)
            server = await asyncio.start_unix_server(self._serve, f"{folder}/socket")
            (home / codex_server.SOCKET).parent.mkdir(parents=True)
            (home / codex_server.SOCKET).symlink_to(f"{folder}/socket")  # as Codex does
            try:
                yield home
            finally:
                server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.hello)
        while (call := await self._call(reader)) is not None:
            self.calls.append(call)
            writer.write(frame({"method": "configWarning", "params": {"summary": "w" * 70_000}}))
            writer.write(b"\x89\x00")  # a ping
            answer = self.turns if call["method"] == "turn/start" else {"result": {"userAgent": "codex"}}
            if "id" in call:
                writer.write(answer if isinstance(answer, bytes) else frame({"id": call["id"], **answer}))
        writer.close()

    async def _call(self, reader: asyncio.StreamReader) -> dict[str, Any] | None:
        try:
            first, size = await reader.readexactly(2)
            assert first == 0x81 and size & 0x80  # a whole text, masked
            size &= 0x7F
            if size > 125:
                size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
            mask = await reader.readexactly(4)
            data = await reader.readexactly(size)
        except asyncio.IncompleteReadError:
            return None
        said: dict[str, Any] = json.loads(bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))
        return said


def frame(said: dict[str, Any]) -> bytes:
    data = json.dumps(said).encode()
    if len(data) < 126:
        return b"\x81" + bytes([len(data)]) + data
    long = len(data) >= 1 << 16
    return b"\x81" + (b"\x7f" if long else b"\x7e") + len(data).to_bytes(8 if long else 2, "big") + data


TAKEN = {"result": {"turn": {"id": "t7", "status": "inProgress"}}}
REFUSED = {"error": {"code": -32600, "message": "thread not found: s1"}}


@pytest.mark.parametrize("size", [10, 200, 70_000])
def test_the_text_is_the_output_of_a_tool_and_never_the_users_input(size: int) -> None:
    server = AppServer(TAKEN)

    async def main() -> None:
        async with server.serving() as home:
            assert await codex_server.deliver(home / codex_server.SOCKET, "s1", "x" * size) == "t7"

    run(main())
    methods = [call["method"] for call in server.calls]
    assert methods == ["initialize", "initialized", "turn/start"]
    params = server.calls[-1]["params"]
    assert (params["threadId"], params["input"]) == ("s1", [])
    assert params["toolOutput"] == {"namespace": "postroom", "name": "mail", "output": "x" * size, "retain": True}


@pytest.mark.parametrize(
    "server",
    [
        AppServer(REFUSED),
        AppServer(TAKEN, b"HTTP/1.1 404 Not Found\r\n\r\n"),
        AppServer(TAKEN, b"HTTP/1.1 101 x\r\n\r\n\x81\x03abc"),
        AppServer(TAKEN, b"HTTP/1.1 101 x\r\n\r\n\x88\x00"),
        AppServer(TAKEN, b"HTTP/1.1 101 x\r\n\r\n\x81\x7f" + b"\xff" * 8),
    ],
    ids=["refused", "no websocket", "no json", "closed", "too large"],
)
def test_a_server_that_has_not_taken_it_leaves_it_to_the_queue(server: AppServer) -> None:
    async def main() -> None:
        async with server.serving() as home:
            assert await codex_server.deliver(home / codex_server.SOCKET, "s1", "x") is None

    run(main())


def test_no_server_and_a_server_that_does_not_say_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        assert await codex_server.deliver(Path("/nonexistent/socket"), "s1", "x") is None
        async with AppServer(b"\x88\x00").serving() as home:
            with pytest.raises(OSError, match="did not answer"):
                await codex_server.deliver(home / codex_server.SOCKET, "s1", "x")
        monkeypatch.setattr(codex_server, "ANSWER_S", 0.2)
        async with AppServer(b"").serving() as home:
            with pytest.raises(TimeoutError):
                await codex_server.deliver(home / codex_server.SOCKET, "s1", "x")

    run(main())


@pytest.mark.parametrize(
    ("turns", "door"), [(TAKEN, "codex turn t7"), (REFUSED, "codex queue"), (b"\x88\x00", None)], ids=str
)
def test_the_receipt_says_which_door_has_taken_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: dict[str, Any] | bytes, door: str | None
) -> None:
    """One that may have it is not queued as well: a later ring tries again."""
    program = tmp_path / "codex"
    program.write_text(f'#!/bin/sh\necho "$CODEX_HOME" > "{tmp_path}/queued"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("POSTROOM_CODEX", str(program))

    async def main() -> None:
        async with AppServer(turns).serving() as home, aio.open(url) as room:
            monkeypatch.setenv("CODEX_HOME", str(home))
            await room.call(lambda inner: session_binding.bind(inner.gateway, CODEX))
            await room.agent("ada").send("codex", {"text": "x"})
            (message,) = await room.call(lambda inner: session_binding.news(inner.gateway, "codex"))
            if door is None:
                with pytest.raises(OSError):
                    await waker.tell_codex(room, "codex", [message])
                assert await room.call(lambda inner: session_binding.news(inner.gateway, "codex")) == [message]
            else:
                await waker.tell_codex(room, "codex", [message])
            details = [event.detail for event in (await room.receipt(message.id)).events if event.event == "notified"]
            assert details == ([] if door is None else [door])
            assert (tmp_path / "queued").exists() == (door == "codex queue")
            if door == "codex queue":
                assert (tmp_path / "queued").read_text("utf-8").strip() == str(home)

    run(main())
