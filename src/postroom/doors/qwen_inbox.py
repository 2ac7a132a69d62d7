"""The inbox of a Qwen Code session: a socket on which it takes messages from the programs that it started.

Every session has one and puts its address and a token into the environment of its children (Qwen Code's own page:
"Cross-Session Protocol"). A message there starts a turn, or waits for the end of the present one. The model sees it as the
words of another program, never as the user's.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

#: The session says what became of a message within this time, or nothing is known of it; in seconds.
ANSWER_S: Final = 5.0
#: The one answer that says that the message will be in the model's next request.
DELIVERED: Final = "delivered"
_VERSION: Final = {"msgV": 1}


class QwenInbox(NamedTuple):
    """Where the session that started this process takes messages."""

    socket: str
    token: str


def inbox_of(environment: Mapping[str, str]) -> QwenInbox | None:
    """The inbox that this environment tells of; None where it tells of none."""
    socket, token = (environment.get(f"QWEN_CODE_MESSAGING_{name}") for name in ("SOCKET", "TOKEN"))
    return QwenInbox(socket, token) if socket and token else None


async def deliver(inbox: QwenInbox, session: str, text: str) -> str | None:
    """Hand a text to a session; its word for what became of it, None when it said nothing in time.

    Raises OSError where the inbox cannot be reached: then nothing was handed over.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()
    message, ours = secrets.token_hex(16), secrets.token_hex(32)

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ValueError, OSError):  # a line without end, or a peer that went away
            status = await _status(reader, ours, message)
            if status is not None and not answer.done():
                answer.set_result(status)
        writer.close()

    with tempfile.TemporaryDirectory(prefix="postroom-") as folder:
        address = f"{folder}/answer"
        server = await asyncio.start_unix_server(hear, address)
        try:
            frame = _VERSION | {"msgId": message, "type": "user", "from": address, "replyToken": ours}
            frame |= {"fromName": "postroom", "toSessionId": session, "priority": "next"}
            await _send(inbox, frame | {"message": {"role": "user", "content": text}})
            with suppress(TimeoutError):
                return await asyncio.wait_for(answer, ANSWER_S)
            return None
        finally:
            server.close()


async def _send(inbox: QwenInbox, frame: Mapping[str, Any]) -> None:
    _, writer = await asyncio.open_unix_connection(inbox.socket)
    try:
        for line in (_VERSION | {"type": "auth", "token": inbox.token}, frame):
            writer.write(msgspec.json.encode(line) + b"\n")
        await writer.drain()
        writer.write_eof()
    finally:
        writer.close()


async def _status(reader: asyncio.StreamReader, token: str, message: str) -> str | None:
    """What one connection says of our message; it has to know our token first."""
    known = False
    async for line in reader:
        try:
            said = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        match said:
            case {"type": "auth", "token": str(given)}:
                known = hmac.compare_digest(given.encode(), token.encode())
            case {"action": "delivery_status", "status": str(status), "origMsgId": about} if known and about == message:
                return status
    return None
