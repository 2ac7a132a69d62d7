"""Idle sessions are woken when mail comes: once for a burst, again if nobody heard it, not for what was read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_loop import run

from postroom import aio
from postroom.core.message import Message
from postroom.core.system.process import host_id, this_process
from postroom.doors import session_binding, waker

pytestmark = pytest.mark.slow

CLAUDE = session_binding.HostSession("claude-code", "claude", "s1", None, attended=True)


class Bell:
    """Notes each ring; `hears` says whether the session then tells its model, as a hook would."""

    def __init__(self, *, hears: bool) -> None:
        self.rings: list[list[str]] = []
        self.hears = hears

    async def __call__(self, room: aio.Room, name: str, messages: list[Message]) -> None:
        if self.hears:
            await room.call(lambda inner: session_binding.tell(inner.gateway, name, messages, "test"))
        self.rings.append([message.payload["text"] for message in messages])


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each look of the waker began that is over; by the loop's clock."""
    look = waker._look
    begun: list[float] = []

    async def noted(room: aio.Room, name: str) -> set[str]:
        began = asyncio.get_running_loop().time()
        found = await look(room, name)
        begun.append(began)
        return found

    monkeypatch.setattr(waker, "_look", noted)
    return begun


async def settle(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  what is waited for happens in other tasks
            await asyncio.sleep(0.01)


def test_a_burst_is_one_ring_and_what_was_told_is_not_rung_again(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bell = Bell(hears=True)
            ringing = asyncio.create_task(waker.ring_for(room, "claude-code", bell))
            await room.call(lambda inner: session_binding.bind(inner.gateway, CLAUDE))
            for number in range(5):
                await room.agent("ada").send("claude", {"text": f"{number}"})
            await settle(lambda: sum(len(ring) for ring in bell.rings) == 5)
            await room.agent("ada").send("claude", {"text": "more"})
            await settle(lambda: bell.rings[-1] == ["more"])
            ringing.cancel()
            await asyncio.gather(ringing, return_exceptions=True)

            assert sum(len(ring) for ring in bell.rings) == 6
            assert len(bell.rings) <= 4
            assert bell.rings[-1] == ["more"]

    run(main())


def test_a_ring_that_nobody_heard_is_repeated_and_then_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch, looks: list[float]
) -> None:
    monkeypatch.setattr(waker, "AGAIN_S", 0.01)
    monkeypatch.setattr(waker, "IDLE_LOOK_S", 0.01)
    monkeypatch.setattr(waker, "MAX_TRIES", 3)

    async def main() -> None:
        async with aio.open(url) as room:
            bell = Bell(hears=False)
            await room.call(lambda inner: session_binding.bind(inner.gateway, CLAUDE))
            ringing = asyncio.create_task(waker.ring_for(room, "claude-code", bell))
            await room.agent("ada").send("claude", {"text": "x"})
            await settle(lambda: len(bell.rings) == 4)
            before = len(looks)
            await settle(lambda: len(looks) > before + 3)
            assert bell.rings == [["x"]] * 4
            ringing.cancel()
            await asyncio.gather(ringing, return_exceptions=True)

    run(main())


@pytest.mark.parametrize("step", ["_look", "_try"], ids=["while it settles", "after the look"])
def test_what_is_read_before_the_ring_is_not_rung_for(url: str, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    done = getattr(waker, step)
    read: list[str] = []

    async def read_the_first_before(*args: Any) -> Any:
        (room,) = (each for each in args if isinstance(each, aio.Room))
        if not read and (got := await room.agent("claude", transient=True).poll()) is not None:
            read.append(got.payload["text"])
        return await done(*args)

    monkeypatch.setattr(waker, step, read_the_first_before)

    async def main() -> None:
        async with aio.open(url) as room:
            bell = Bell(hears=True)
            await room.call(lambda inner: session_binding.bind(inner.gateway, CLAUDE))
            ringing = asyncio.create_task(waker.ring_for(room, "claude-code", bell))
            await room.agent("ada").send("claude", {"text": "read"})
            await settle(lambda: read == ["read"])
            await room.agent("ada").send("claude", {"text": "unread"})
            await settle(lambda: bool(bell.rings))
            assert bell.rings == [["unread"]]
            ringing.cancel()
            await asyncio.gather(ringing, return_exceptions=True)

    run(main())


def test_a_session_whose_terminal_is_gone_is_not_woken(url: str, looks: list[float]) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bell = Bell(hears=True)
            gone = CLAUDE._replace(process=f"{host_id()}:{os.getpid()}:1")  # an earlier process of the same number
            await room.call(lambda inner: session_binding.bind(inner.gateway, gone))
            ringing = asyncio.create_task(waker.ring_for(room, "claude-code", bell))
            await room.agent("ada").send("claude", {"text": "x"})
            sent = asyncio.get_running_loop().time()
            await settle(lambda: looks[-1:] > [sent])
            assert bell.rings == []
            await room.call(lambda inner: session_binding.bind(inner.gateway, CLAUDE._replace(process=this_process())))
            await settle(lambda: bell.rings == [["x"]])
            ringing.cancel()
            await asyncio.gather(ringing, return_exceptions=True)

    run(main())


def test_the_signal_of_claude_code_is_a_file_that_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(f"sqlite:{tmp_path}/room") as room:
            await waker.touch_signal(room, "cl/aude", [])
            path = tmp_path / "room" / "signals" / "cl%2Faude"
            assert path.is_file()
            assert path.parent.stat().st_mode & 0o777 == 0o700

    run(main())


CODEX = session_binding.HostSession("codex", "codex", "s1", None, attended=True)


async def mail_for_codex(room: aio.Room) -> list[Message]:
    await room.call(lambda inner: session_binding.bind(inner.gateway, CODEX))
    await room.agent("ada").send("codex", {"text": "x"})
    return await news_for_codex(room)


async def news_for_codex(room: aio.Room) -> list[Message]:
    return await room.call(lambda inner: session_binding.news(inner.gateway, "codex"))


def program(path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    path.write_text(f"#!/bin/sh\n{does}\n", encoding="ascii")
    path.chmod(0o755)
    monkeypatch.setenv("POSTROOM_CODEX", str(path))
    monkeypatch.setenv("CODEX_HOME", str(path.parent))  # where no server is


def test_what_codex_has_taken_is_told_and_what_it_has_not_taken_is_not(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            mail = await mail_for_codex(room)
            program(tmp_path / "codex", monkeypatch, "exit 3")
            await waker.tell_codex(room, "codex", mail)
            assert await news_for_codex(room) == mail

            program(tmp_path / "codex", monkeypatch, "exit 0")
            await waker.tell_codex(room, "codex", mail)
            assert await news_for_codex(room) == []
            assert (await room.receipt(mail[0].id)).events[-1].event == "notified"

    run(main())


def test_mail_of_which_codex_could_not_be_told_because_it_cannot_be_started_is_news_as_before(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_CODEX", str(tmp_path / "no such program"))

    async def main() -> None:
        async with aio.open(url) as room:
            mail = await mail_for_codex(room)
            with pytest.raises(FileNotFoundError):
                await waker.tell_codex(room, "codex", mail)
            assert await news_for_codex(room) == mail

    run(main())


@pytest.mark.parametrize("at", ["telling", "waiting"])
def test_a_ring_of_codex_that_is_cancelled_has_told_nothing_and_leaves_no_process(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    started = tmp_path / "started"
    program(
        tmp_path / "codex", monkeypatch, f"echo $$ > '{started}.new'; mv '{started}.new' '{started}'; exec sleep 600"
    )

    async def main() -> None:
        async with aio.open(url) as room:
            mail = await mail_for_codex(room)
            ringing = asyncio.create_task(waker.tell_codex(room, "codex", mail))
            if at == "waiting":
                await settle(started.exists)
            else:
                await asyncio.sleep(0)
            ringing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ringing

            assert await news_for_codex(room) == mail
            if at == "waiting":
                with pytest.raises(ProcessLookupError):
                    os.kill(int(started.read_text("ascii")), 0)

    run(main())
