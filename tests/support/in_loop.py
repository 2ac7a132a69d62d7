"""What tests of postroom.aio share: running a coroutine in time, and waiting until a room's tasks are where they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from postroom import aio
from postroom.core.clock import ManualClock

PATIENCE_S = 120.0


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine; one that hangs is a failure, not a wait."""

    async def in_time() -> Any:
        return await asyncio.wait_for(main, PATIENCE_S)

    return asyncio.run(in_time(), debug=False)


async def until(true: Callable[[], bool]) -> None:
    """Give way to others until something is so."""
    while not true():  # noqa: ASYNC110  what is waited for happens in other tasks of this loop, and tells nobody
        await asyncio.sleep(0)


async def waiting(room: aio.Room, count: int = 1) -> None:
    """Return when so many wait in the loop."""
    await until(lambda: len(room._worker.waits.pauses) >= count)


async def states(room: aio.Room) -> dict[str, int]:
    """How many messages are in which state; what nobody waited for any more has been undone."""
    await room._worker.run(lambda: None)
    return {name: count for name, count in (await room.stats()).states.items() if count}


async def pass_time(room: aio.Room, clock: ManualClock, task: asyncio.Task[Any], step_s: float = 0.25) -> None:
    """Let time pass, whenever somebody waits, until a task is over. No time passes while the room's thread works."""
    while not task.done():
        await until(lambda: task.done() or bool(room._worker.waits.pauses))
        clock.advance(step_s)
        for _ in range(3):  # the loop's alarms, what they let the thread look at, and what that lets others do
            await asyncio.sleep(0.0003)
            await room._worker.run(lambda: None)
