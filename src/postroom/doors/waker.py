"""Waking idle agent programs when mail comes, without typing into anybody's terminal.

It runs beside the MCP server of a session. Each kind of program has a door of its own: Claude Code and our plugin in OpenCode
watch a file, which is touched; Codex's server takes it as a tool's output, Qwen Code into the session's inbox. A notice is a pointer, sent once for a burst, and only
about messages that are still unread and were not told by another door.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from postroom import aio
from postroom.core.message import Message
from postroom.core.system.process import process_alive, process_name
from postroom.errors import PostroomError
from postroom.room import Room
from postroom.stores.contract import topic_cells, topic_to

from . import codex_server, qwen_inbox, session_binding

#: Messages that come within this time are one notice, in seconds.
SETTLE_S: Final = 0.1
#: A ring after which the session was not told is repeated after this, then twice as long, so many times; in seconds.
AGAIN_S: Final = 1.5
MAX_TRIES: Final = 5
#: A session that was busy when mail came, and was interrupted, is looked after this often, in seconds.
IDLE_LOOK_S: Final = 30.0
CODEX_S: Final = 20.0
READ_WITH: Final = "Read it with the postroom inbox tool, then ack."

Ring = Callable[[aio.Room, str, list[Message]], Awaitable[None]]


async def ring_for(room: aio.Room, host: str, ring: Ring) -> None:
    """Wake the sessions of one kind whenever mail comes for them. Ends when cancelled."""
    ringing: dict[str, asyncio.Task[None]] = {}
    try:
        async with room.hints([topic_cells(session_binding.CELLS)]) as hints:
            async for _ in hints:
                bound = await room.call(lambda room: list(session_binding.bound_to(room.gateway, host)))
                for name in bound:
                    if name not in ringing or ringing[name].done():
                        ringing[name] = asyncio.create_task(_ring_one(room, name, ring))
    finally:
        for task in ringing.values():
            task.cancel()
        await asyncio.gather(*ringing.values(), return_exceptions=True)


async def _ring_one(room: aio.Room, name: str, ring: Ring) -> None:
    """Ring when there is news. A ring without effect (the session was not ready yet) is repeated, ever later."""
    rung: set[str] = set()
    tries = 0
    async with room.hints([topic_to(name), topic_cells(session_binding.CELLS)]) as hints:
        next_hint = asyncio.ensure_future(anext(hints))
        try:
            while True:
                again_s = AGAIN_S * 2**tries if rung and tries < MAX_TRIES else IDLE_LOOK_S
                done, _ = await asyncio.wait({next_hint}, timeout=again_s)
                if done:
                    next_hint.result()
                    next_hint = asyncio.ensure_future(anext(hints))
                    await asyncio.sleep(SETTLE_S)
                fresh = await _look(room, name)
                if not fresh <= rung or (fresh and not done and tries < MAX_TRIES):
                    tries = tries + 1 if fresh <= rung else 0
                    await _try(ring, room, name, fresh)
                rung = fresh
        finally:
            next_hint.cancel()
            await asyncio.gather(next_hint, return_exceptions=True)


async def _look(room: aio.Room, name: str) -> set[str]:
    """The unread messages that the session was not told of."""
    with suppress(PostroomError):
        return {message.id for message in await room.call(lambda room: _news(room, name))}
    return set()


async def _try(ring: Ring, room: aio.Room, name: str, fresh: set[str]) -> None:
    with suppress(PostroomError, OSError):
        news = await room.call(lambda room: _news(room, name))
        if fresh and news:  # still unread, at the moment of ringing
            await ring(room, name, news)


def _news(room: Room, name: str) -> list[Message]:
    """The messages to wake the session for; none where its terminal is gone: they wait for the next terminal."""
    bound = session_binding.look(room.gateway, name)
    if (
        bound is None
        or not bound["attended"]
        or bound["session"] is None
        or session_binding.is_busy(room.gateway, bound)
    ):
        return []
    if bound["process"] is not None and process_alive(bound["process"]) is False:
        return []
    return session_binding.news(room.gateway, name)


async def touch_signal(room: aio.Room, name: str, _: list[Message]) -> None:
    """For Claude Code and OpenCode: touch the file that the session watches; its hook then tells the model."""

    def touch(inside: Room) -> None:
        session_binding.touch_signal(session_binding.signal_path(inside.url, name), f"{inside.clock.wall_ms()}\n")

    await room.call(touch)


async def tell_codex(room: aio.Room, name: str, messages: list[Message]) -> None:
    """For Codex: a pointer for its server, which starts a turn with it; otherwise for the queue of the session's thread.

    In the queue it stands where a message of the user's would, and waits until that terminal's own server looks.
    """
    home = codex_server.home()
    program = os.environ.get("POSTROOM_CODEX") or shutil.which("codex")

    async def take(session: str, text: str) -> str | None:
        turn = await codex_server.deliver(home / codex_server.SOCKET, session, text)
        if turn is not None:
            return f"codex turn {turn}"
        return "codex queue" if program is not None and await _queue(program, home, session, text) else None

    await _hand_over(room, name, messages, take)


async def deliver_to_qwen(room: aio.Room, name: str, messages: list[Message]) -> None:
    """For Qwen Code: put a pointer into the inbox of the session that started this server."""
    inbox = qwen_inbox.inbox_of(os.environ)
    bound = await room.call(lambda room: session_binding.look(room.gateway, name))
    if inbox is None or bound is None or bound["process"] != process_name(os.getppid()):
        return  # another session's own server rings for it

    async def take(session: str, text: str) -> str | None:
        return "qwen inbox" if await qwen_inbox.deliver(inbox, session, text) == qwen_inbox.DELIVERED else None

    await _hand_over(room, name, messages, take)


async def _hand_over(
    room: aio.Room, name: str, messages: list[Message], take: Callable[[str, str], Awaitable[str | None]]
) -> None:
    """Give a session a pointer. `take` says which door has taken it; with None the session was told nothing."""
    told: list[Message] = []
    door: str | None = None

    def tell(inside: Room) -> None:
        told.extend(session_binding.tell(inside.gateway, name, messages, None))

    def untell(inside: Room) -> None:  # in the room's thread, like `tell`: what that told is known there first
        if told:
            session_binding.untell(inside.gateway, name, told)

    try:
        await room.call(tell)
        session = (await room.call(lambda room: session_binding.look(room.gateway, name)) or {}).get("session")
        if told and session is not None:
            door = await take(session, session_binding.pointer(name, told, READ_WITH))
    finally:
        if door is None:  # it was not told after all, also when this is cancelled: the next hook will
            with suppress(PostroomError):
                await room.call(untell)
    if door is not None:
        how = door
        await room.call(lambda room: session_binding.note(room.gateway, name, told, how))


async def _queue(program: str, home: Path, session: str, text: str) -> bool:
    """Whether Codex has taken it. However this ends, the process has ended."""
    process = await asyncio.create_subprocess_exec(
        *(program, "queue", "--thread", session, "--message", text),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "CODEX_HOME": str(home)},
    )
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), CODEX_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode == 0


RINGS: Final[dict[str, Ring]] = {
    "claude-code": touch_signal,
    "codex": tell_codex,
    "opencode": touch_signal,
    "qwen": deliver_to_qwen,
}
