"""Codex's own server, which takes a notice as the output of a tool, never as the words of its user.

Codex runs the sessions of all terminals in one server ("app-server"). It listens on a socket in Codex's folder and speaks
JSON-RPC over WebSocket (RFC 6455). `turn/start` with `toolOutput` starts a turn or joins the one that runs. A session that
has its server inside, and one that is not loaded, cannot be reached here: the queue is for those.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from postroom import __version__
from postroom.core.system import proc

#: The server answers within this time, or it is not known whether it has taken the notice; in seconds.
ANSWER_S: Final = 10.0
SOCKET: Final = Path("app-server-control") / "app-server-control.sock"
#: What the model is told the notice is the output of.
TOOL: Final = {"namespace": "postroom", "name": "mail"}
_TEXT, _CLOSE = 1, 8
_MAX_FRAME_BYTES: Final = 1 << 20


def home() -> Path:
    """Codex's folder. Its servers get a bare environment: what it is told itself says its process."""
    told = os.environ.get("CODEX_HOME") or proc.environment_of(os.getppid()).get("CODEX_HOME")
    return Path(told) if told else Path.home() / ".codex"


async def deliver(socket: Path, session: str, text: str) -> str | None:
    """Hand a text to a session: the turn that it is part of now, or None where no server has taken it.

    Raises OSError where the server has got the text and did not say what became of it.
    """
    async with asyncio.timeout(ANSWER_S):
        try:
            reader, writer = await asyncio.open_unix_connection(_short(socket), limit=_MAX_FRAME_BYTES)
        except OSError:
            return None
        try:
            with suppress(ConnectionError):
                await _shake_hands(reader, writer)
                return await _start_turn(reader, writer, session, text)
            return None
        finally:
            writer.close()


def _short(socket: Path) -> str:
    """Where the link leads: the path of a socket has 107 bytes at most, and that of a home may be longer."""
    return os.path.realpath(socket)


async def _start_turn(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: str, text: str
) -> str | None:
    output = {**TOOL, "output": text, "retain": True}
    turn = {"threadId": session, "input": [], "toolOutput": output, "turnTrigger": "postroom"}
    try:
        said = await _call(reader, writer, "turn/start", turn)
    except ConnectionError:
        raise OSError("Codex's server did not answer") from None
    match said:
        case {"result": {"turn": {"id": str(id)}}}:
            return id
    return None


async def _shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    head = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
    answer = await _whole(reader.readuntil(b"\r\n\r\n"))
    if answer.split(b" ")[1:2] != [b"101"]:
        raise ConnectionError("Codex's server speaks another protocol")
    hello = {"clientInfo": {"name": "postroom", "version": __version__}, "capabilities": {"experimentalApi": True}}
    await _call(reader, writer, "initialize", hello)
    _send(writer, {"method": "initialized"})


async def _call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer to a call; notices that come before it are passed over."""
    _send(writer, {"id": method, "method": method, "params": params})
    while True:
        code, data = await _frame(reader)
        if code == _CLOSE:
            raise ConnectionError("Codex's server closed the connection")
        if code == _TEXT:
            try:
                said = msgspec.json.decode(data)
            except msgspec.DecodeError:
                raise ConnectionError("Codex's server speaks another protocol") from None
            if isinstance(said, dict) and said.get("id") == method:
                return said


def _send(writer: asyncio.StreamWriter, said: Mapping[str, Any]) -> None:
    """One text frame. A client masks what it sends."""
    data, mask = msgspec.json.encode(said), secrets.token_bytes(4)
    size = len(data).to_bytes(8, "big")
    head = (
        bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + size[6:] if len(data) < 1 << 16 else b"\xff" + size
    )
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    writer.write(bytes([0x80 | _TEXT]) + head + mask + masked)


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The kind of the next frame, and its content. A server masks nothing."""
    first, size = await _whole(reader.readexactly(2))
    if size > 125:
        size = int.from_bytes(await _whole(reader.readexactly(2 if size == 126 else 8)), "big")
    if size > _MAX_FRAME_BYTES:
        raise ConnectionError(f"Codex's server sent {size} bytes at once")
    return first & 0x0F, await _whole(reader.readexactly(size))


async def _whole(reading: Any) -> bytes:
    """What was to be read; a stream that ended before is a lost connection."""
    try:
        return bytes(await reading)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise ConnectionError("Codex's server ended the connection") from None
