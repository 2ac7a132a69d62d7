"""Following the feed for every open page at once: one thread, woken by changes, that coalesces them into frames.

However fast messages pass, there is at most one frame in FRAME_S, so that neither the senders (which would ring at every
message) nor the pages (which would draw at every one) pay for speed that no eye can follow. While no page is open, no
thread runs and no sender rings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from postroom.core.chore import Chore
from postroom.errors import ROOM_IS_OVER, RoomError
from postroom.room import Room
from postroom.stores.contract import FEED, Change, Waiter, topic_cells

from .hour import FILL_S
from .lines import folded

#: At most one frame in this time, in seconds. A lone message does not wait for it.
FRAME_S: Final = 0.04
#: Changes that one frame may tell of. When more happened, the page is told to look anew.
MAX_CHANGES: Final = 2000
PAGE: Final = 500
#: A room that cannot be read is asked again after this time, in seconds.
AGAIN_S: Final = 0.5
#: The topics that wake it: every change of a message, and of the cells that views show.
TOPICS: Final = (
    FEED,
    *map(topic_cells, ("agent/", "board/", "reservations", "pool/", "web-deeds")),
)


class PageFrame(NamedTuple):
    """The changes since the last frame: its lines as JSON, and the feed's number after it.

    `jumped`: too much happened to tell of it line by line, and `lines` is empty.
    """

    number: int
    lines: bytes
    changes: int
    jumped: bool


class FeedFollower:
    """One room's feed, for all watchers.

    `began` is called with the feed's number when it begins to follow, `seen` with all changes after it and `told` with
    the frames that are made of them, both in the follower's thread. When more happens than it can read, it begins anew.
    """

    def __init__(
        self,
        room: Room,
        *,
        began: Callable[[int], None],
        seen: Callable[[list[Change]], None],
        told: Callable[[PageFrame], None],
    ) -> None:
        self._room = room
        self._began = began
        self._seen = seen
        self._told = told
        self._lock = threading.Lock()
        self._watchers = 0
        self._chores: list[Chore] = []  # the newest follows while somebody watches, those before are about to end
        self._encode = msgspec.json.Encoder().encode

    def watch(self) -> Callable[[], None]:
        """Add a watcher: every later change comes in a frame. Returns a function that removes it."""
        with self._lock:
            self._watchers += 1
            if self._watchers == 1:
                self._start()
        ended = threading.Event()

        def end() -> None:
            with self._lock:
                if not ended.is_set():
                    ended.set()
                    self._watchers -= 1
                    if self._watchers == 0:
                        self._chores[-1].close(0)

        return end

    def _start(self) -> None:
        waiter = self._room.gateway.listen(TOPICS)
        number = self._room.cursor()  # after the bell is armed, and before anybody is told that it watches
        self._began(number)
        # `last` and no block in `_run`: a watcher may leave before the first step (tests/doors/web/test_streams.py)
        chore = Chore(
            "postroom web feed",
            lambda: self._run(waiter, number, chore),
            self._room.clock,
            first_s=0,
            last=waiter.close,
        )
        self._chores = [*(each for each in self._chores if each.is_alive()), chore]
        chore.start()

    def _run(self, waiter: Waiter, number: int, stop: Chore) -> None:
        while not stop.closed:
            hinted = self._room.gateway.wait(waiter, None, stop)
            try:
                found = self._read(number)
            except ROOM_IS_OVER:
                raise
            except RoomError:  # busy, or its servers are away: the pages are told when it is back
                stop.wait(AGAIN_S)
                continue
            if found is None and hinted:  # no message changed, but something else did
                found = PageFrame(number, b"[]", 0, jumped=False), number
            if found is not None:
                frame, read = found
                self._told(frame)
                self._catch_up(read, frame.number, stop)
                number = frame.number
                stop.wait(FRAME_S)

    def _read(self, number: int) -> tuple[PageFrame, int] | None:
        """The changes after a number as a frame, and how far they were read; None when there are none."""
        changes: list[Change] = []
        after = number
        while page := self._room.events(after, PAGE):
            changes += page
            after = page[-1].number
            if len(page) < PAGE:
                break
            if len(changes) >= MAX_CHANGES:
                newest = max(after, self._room.cursor())  # before they are seen: a failure here reads them again
                self._seen(changes)
                return PageFrame(newest, b"[]", len(changes), jumped=True), after
        if not changes:
            return None
        self._seen(changes)
        return PageFrame(after, self._encode(folded(changes)), len(changes), jumped=False), after

    def _catch_up(self, read: int, number: int, stop: Chore) -> None:
        """Let the changes be seen that a frame jumped over: they make no lines, but they count (test_streams.py)."""
        give_up_ns = self._room.clock.steady_ns() + round(FILL_S * 1e9)
        while read < number and not stop.closed:
            if self._room.clock.steady_ns() > give_up_ns:
                with self._lock:  # no other thread begins meanwhile: its beginning would be undone
                    if not stop.closed:
                        self._began(number)
                return
            try:
                page = self._room.events(read, PAGE)
            except ROOM_IS_OVER:
                raise
            except RoomError:
                stop.wait(AGAIN_S)
                continue
            if not page:
                return
            self._seen([change for change in page if change.number <= number])
            read = page[-1].number

    def close(self) -> None:
        """End for all watchers. The thread is over when it returns."""
        with self._lock:
            chores = self._chores
        for chore in chores:
            chore.close()
