"""JSON-RPC 2.0 between two peers, one message on a line, as the Agent Client Protocol has it on a program's pipes.

What the other side writes is not trusted: a line that is no message is passed over, a message that is too long ends the
connection, and what it asks for is answered by a few tasks at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

import msgspec

from postroom.core.untrusted import visible
from postroom.errors import PostroomError

#: A longer line ends the connection.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
#: So many lines in a row that are no message end it too.
MAX_GARBAGE: Final = 100
#: So many requests of the other side are under way at once; more are refused.
MAX_UNDER_WAY: Final = 64
_CHUNK_BYTES: Final = 64 * 1024
_MAX_SHOWN: Final = 200

NO_METHOD: Final = -32601
BAD_PARAMS: Final = -32602
INTERNAL: Final = -32603
BUSY: Final = -32000


class PeerEnded(PostroomError):
    """The other side is gone, or must be ended: it does not keep to the protocol, or is silent."""


class RpcError(PostroomError):
    """An error answer, of the other side or for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


#: Answers a request of the other side; RpcError refuses it.
Serve = Callable[[str, dict[str, Any]], Awaitable[Any]]
#: Hears a notification. Never waits.
Hear = Callable[[str, dict[str, Any]], None]


class RpcPeer:
    """One connection. `run` reads; it must run for anything to be answered."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        serve: Serve,
        hear: Hear,
        tell: Callable[[str], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._serve = serve
        self._hear = hear
        self._tell = tell
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._garbage = 0
        self._why = ""
        #: When the other side last said anything, by the loop's clock.
        self.heard_s = asyncio.get_running_loop().time()

    async def ask(self, method: str, params: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """The result of a request. RpcError when it is refused, PeerEnded when there is no answer in time or ever."""
        if self._why:
            raise PeerEnded(self._why)
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._write({"id": number, "method": method, "params": params})
                result = await answer
        except TimeoutError:
            raise PeerEnded(f"it did not answer {method} within {timeout_s:g} s") from None
        finally:
            self._asked.pop(number, None)
            answer.cancel()
        return result if isinstance(result, dict) else {}

    async def say(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, which has no answer."""
        await self._write({"method": method, "params": params})

    async def run(self) -> str:
        """Read until the connection ends; returns why it did. Whatever is asked then fails with that."""
        try:
            await self._read()
            self._why = "it closed its output"
        except PeerEnded as error:
            self._why = str(error)
        finally:
            self._why = self._why or "the host ends"
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(PeerEnded(self._why))
                    answer.exception()  # nobody may be waiting any more
        return self._why

    # Reading

    async def _read(self) -> None:
        left = bytearray()
        while chunk := await self._reader.read(_CHUNK_BYTES):
            self.heard_s = asyncio.get_running_loop().time()
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                left += line
                _check_size(left)
                self._take(bytes(left))
                left.clear()
            left += rest
            _check_size(left)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            self._pass_over(line)
            return
        for frame in found if isinstance(found, list) else [found]:
            if isinstance(frame, dict) and ("method" in frame or "id" in frame):
                self._garbage = 0
                self._handle(frame)
            else:
                self._pass_over(line)

    def _pass_over(self, line: bytes) -> None:
        self._garbage += 1
        if self._garbage == 1:
            self._tell(f"it wrote a line that is no message: {visible(line[:_MAX_SHOWN].decode(errors='replace'))}")
        if self._garbage >= MAX_GARBAGE:
            raise PeerEnded(f"it wrote {MAX_GARBAGE} lines in a row that are no messages")

    def _handle(self, frame: dict[str, Any]) -> None:
        method, id = frame.get("method"), frame.get("id")
        params = frame.get("params")
        given = params if isinstance(params, dict) else {}
        if method is None:
            answer = self._asked.get(id) if isinstance(id, int) else None
            if answer is not None and not answer.done():
                _settle(answer, frame)
        elif not isinstance(method, str):
            self._garbage += 1
        elif "id" not in frame:
            self._hear(method, given)
        else:
            task = asyncio.create_task(self._answer(id, method, given, busy=len(self._serving) >= MAX_UNDER_WAY))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _answer(self, id: Any, method: str, params: dict[str, Any], *, busy: bool) -> None:
        answer: dict[str, Any]
        try:
            if busy:
                raise RpcError(BUSY, f"more than {MAX_UNDER_WAY} requests are under way")
            answer = {"result": await self._serve(method, params)}
        except RpcError as error:
            answer = {"error": {"code": error.code, "message": str(error)}}
        except (PostroomError, OSError) as error:
            answer = {"error": {"code": INTERNAL, "message": str(error)}}
        with suppress(PeerEnded):
            await self._write({"id": id, **answer})

    async def _write(self, frame: dict[str, Any]) -> None:
        try:
            self._writer.write(msgspec.json.encode({"jsonrpc": "2.0", **frame}) + b"\n")
            await self._writer.drain()
        except (OSError, RuntimeError) as error:  # its pipe is closed
            raise PeerEnded(f"it does not read any more ({error})") from None


def _check_size(line: bytearray) -> None:
    if len(line) > MAX_FRAME_BYTES:
        raise PeerEnded(f"it sent a message of more than {MAX_FRAME_BYTES >> 20} MiB")


def _settle(answer: asyncio.Future[Any], frame: dict[str, Any]) -> None:
    error = frame.get("error")
    if not isinstance(error, dict):
        answer.set_result(frame.get("result"))
        return
    code = error.get("code")
    text = visible(str(error.get("message", "")))
    data = error.get("data")
    more = f" ({visible(msgspec.json.encode(data).decode())[:_MAX_SHOWN]})" if data else ""
    answer.set_exception(RpcError(code if isinstance(code, int) else INTERNAL, text[:_MAX_SHOWN] + more))
