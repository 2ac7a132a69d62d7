"""What an agent program may ask of its host: files of the project, and a person's permission."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from postroom import aio
from postroom.core.untrusted import visible
from postroom.doors import edits
from postroom.errors import PostroomError

from . import permissions
from .files import ProjectFiles, refused
from .peer import BAD_PARAMS, NO_METHOD, RpcError
from .session import AcpSession

#: The guard at the edit may take so long, in seconds; then the write goes ahead, as its promise is.
LOOK_S: Final = 2.0
_MAX_SHOWN: Final = 500


class HostRequests:
    """The answers to one session's requests."""

    def __init__(
        self,
        session: AcpSession,
        room: aio.Room,
        agent: str,
        files: ProjectFiles,
        person: str | None,
        mode: str,
        tell: Callable[..., None],
    ) -> None:
        self._session = session
        self._room = room
        self._agent = agent
        self._files = files
        self._person = person
        self._mode = mode
        self._tell = tell
        self._asking: set[asyncio.Task[str]] = set()

    async def serve(self, method: str, params: dict[str, Any]) -> Any:
        """The result of one request. RpcError when it is refused, or nothing of that name is answered."""
        if params.get("sessionId") not in (self._session.id, None) and self._session.id:
            raise RpcError(BAD_PARAMS, "there is no such session")
        if method == "session/request_permission":
            return await self._permission(params)
        if method == "fs/read_text_file":
            numbers = [_whole(params, name) for name in ("line", "limit")]
            return {"content": await asyncio.to_thread(self._files.read, _text(params, "path"), *numbers)}
        if method == "fs/write_text_file":
            await self._write(_text(params, "path"), _text(params, "content"))
            return {}
        raise RpcError(NO_METHOD, f"this host does not answer {visible(method)[:100]}")

    async def _write(self, path: str, text: str) -> None:
        self._files.parts(path, writes=True)
        guard = {"cwd": self._files.root, "mode": self._mode}
        verdict = await self._guarded(lambda room: edits.look(room.gateway, self._agent, [path], **guard))
        if verdict is not None and verdict.refused:
            self._tell("refused", path=path, why=verdict.reason)
            raise refused(path, verdict.reason)
        await asyncio.to_thread(self._files.write, path, text)
        await self._guarded(lambda room: edits.touched(room.gateway, self._agent, [path], **guard))

    async def _guarded(self, look: Callable[[Any], Any]) -> Any:
        """What the guard says; None where the room is in trouble or slow: that never stops work."""
        with suppress(PostroomError, TimeoutError):
            return await asyncio.wait_for(self._room.call(look), LOOK_S)
        return None

    async def _permission(self, params: dict[str, Any]) -> dict[str, Any]:
        options = permissions.options_of(params)
        subject = params.get("subject")  # version 2
        told = subject.get("toolCall") if isinstance(subject, dict) else params.get("toolCall")
        call = self._session.note_call(told)
        if permissions.is_own(call):
            return permissions.chosen(options, "allow", "always")
        what = call.shown if call is not None else visible(str(params.get("title") or "something"))
        detail = told.get("rawInput") if isinstance(told, dict) else subject
        if detail:
            what += f" {visible(msgspec.json.encode(detail).decode())[:_MAX_SHOWN]}"
        asking = permissions.ask_person(self._room, self._agent, self._person, what, options, self._tell)
        said = await self._until_cancelled(asking)
        self._tell("permission", tool=what, answer=said or "cancelled")
        return permissions.chosen(options, said, permissions.DENY, "never") if said else permissions.CANCELLED

    async def _until_cancelled(self, asking: Awaitable[str]) -> str:
        """What a person answers; "" when the turn was cancelled meanwhile."""
        task = asyncio.ensure_future(asking)
        self._asking.add(task)
        try:
            await asyncio.wait({task})
            return "" if task.cancelled() else task.result()
        finally:
            task.cancel()
            self._asking.discard(task)

    def cancel(self) -> None:
        """The turn is cancelled: so are its questions."""
        for task in self._asking:
            task.cancel()


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(BAD_PARAMS, f"{name} must be a text")
    return value


def _whole(params: dict[str, Any], name: str) -> int | None:
    value = params.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise RpcError(BAD_PARAMS, f"{name} must be a whole number, or left out")
    return value
