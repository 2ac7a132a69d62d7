"""Server-sent events, for the page and for other programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, ParamSpec

import msgspec

from postroom.errors import ROOM_IS_OVER, RoomError

from .follower import MAX_CHANGES, PageFrame
from .hub import Hub
from .lines import folded
from .reading import event_data
from .views import VIEWS, Data

P = ParamSpec("P")

#: A view is polled this often, in seconds, without a change (processes end, leases run); and no more often than this.
LOOK_S: Final = 1.0
LEAST_GAP_S: Final = 0.25
#: Looking may take this share of the time, no more.
MAX_SHARE: Final = 0.1
#: A program that follows gets so many changes at a time.
WHOLE_PAGE: Final = 100
#: Something is said in this time, so that a dead connection is noticed.
COMMENT_S: Final = 15.0

_encode = msgspec.json.Encoder().encode


def event(name: str, data: bytes, number: int | None = None) -> bytes:
    """One event. JSON has no line breaks of its own."""
    id = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (id, name.encode(), data)


def frame_event(frame: PageFrame) -> bytes:
    """The frame of a page. `jumped`: look anew."""
    flag = b"true" if frame.jumped else b"false"
    return event("frame", b'{"count":%d,"jumped":%s,"lines":%s}' % (frame.changes, flag, frame.lines), frame.number)


class _Looks:
    """When a page's view is looked at next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._looked = 0.0
        self._gap_s = 0.0
        self.dirty = True
        self.last = b""

    def due_s(self) -> float:
        """In how many seconds."""
        span_s = max(self._gap_s, LEAST_GAP_S if self.dirty else LOOK_S)
        return max(0.0, self._looked + span_s - self._loop.time())

    async def asked(self, hub: Hub, look: Callable[P, Data], *args: P.args, **kwargs: P.kwargs) -> Data | None:
        """A look, taken now; None where the room is busy or its servers are away: the next one will do."""
        began = self._loop.time()
        try:
            return await hub.ask(look, *args, **kwargs)
        except ROOM_IS_OVER:
            raise
        except RoomError:
            return None
        finally:
            self._looked = self._loop.time()
            self._gap_s = (self._looked - began) / MAX_SHARE
            self.dirty = False


async def live(hub: Hub, after: int | None, view: str, pick: str) -> AsyncIterator[bytes]:
    """The stream of an open page: frames from a number (or from now) on, the figures at its top, and one view."""
    loop = asyncio.get_running_loop()
    subscriber, end = await hub.subscribe()
    try:
        yield b"retry: 1000\n\n"
        yield frame_event(await hub.ask(_caught_up, hub, after))
        pulse, look = _Looks(loop), _Looks(loop)
        while not hub.closing.is_set():
            if pulse.due_s() == 0:
                figures = await pulse.asked(hub, hub.views.pulse)
                yield b": later\n\n" if figures is None else event("pulse", _encode(figures))
            if view in VIEWS and look.due_s() == 0:
                found = await look.asked(hub, hub.views.look, view, pick)
                data = b"" if found is None else _encode({"view": view, "pick": pick, **found})
                if data and data != look.last:
                    look.last = data
                    yield event("view", data)
            due_s = min(pulse.due_s(), look.due_s() if view in VIEWS else LOOK_S)
            try:
                async with asyncio.timeout(max(0.01, due_s)):
                    await subscriber.stirred.wait()
            except TimeoutError:
                continue
            for frame in subscriber.take():
                look.dirty = True
                if frame.changes:
                    yield frame_event(frame)
    finally:
        end()


def _caught_up(hub: Hub, after: int | None) -> PageFrame:
    """The changes between a number and now, as one frame."""
    changes = [] if after is None else hub.room.events(after, MAX_CHANGES)
    if after is None or len(changes) >= MAX_CHANGES:
        return PageFrame(hub.room.cursor(), b"[]", len(changes), jumped=after is not None)
    return PageFrame(changes[-1].number if changes else after, _encode(folded(changes)), len(changes), jumped=False)


async def whole(hub: Hub, after: int) -> AsyncIterator[bytes]:
    """The stream of another program: every change after a number with its whole envelope, each an event of its own.

    It reads the feed at its own pace, so nothing is left out however slow it is, but what the feed itself folds.
    """
    subscriber, end = await hub.subscribe()
    try:
        yield b"retry: 1000\n\n"
        while not hub.closing.is_set():
            subscriber.take()
            changes = await hub.ask(hub.room.events, after, WHOLE_PAGE)
            for change in changes:
                yield event("change", _encode(event_data(change)), change.number)
                after = change.number
            if len(changes) >= WHOLE_PAGE:
                continue
            try:
                async with asyncio.timeout(COMMENT_S):
                    await subscriber.stirred.wait()
            except TimeoutError:
                yield b": still here\n\n"
    finally:
        end()
