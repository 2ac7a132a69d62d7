"""Waiting in an event loop: a task that waits in a room is woken by its bells, and no thread is kept for it.

All waiting tasks of one loop sit behind one descriptor where the store has switchboards (`Store.switchboard`); where it
has none, each has a descriptor of its own; and where there is no descriptor at all, one look every 20 ms serves all of
them.

A hint may be lost, so once a second the room's thread looks without one, at the feed, for all of them. Where nothing
has changed the loop does not hear of it; otherwise the tasks that a change concerns look for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from postroom.core.clock import Alarm, Clock
from postroom.core.config import SAFETY_LOOK_S
from postroom.errors import RoomClosed, RoomError
from postroom.mail.gateway import Pause
from postroom.stores.contract import FEED, Change, Store, Switchboard, Waiter, Want, topic_channel, topic_to

#: Where a store has no descriptor to wait on, it is looked at this often, in seconds, for all waiting tasks together.
WATCH_S: Final = 0.02
#: More changes than this in a second are not told apart: everybody looks.
MOST_CHANGES: Final = 200
#: When everybody looks, so many at a time, and then others get their turn.
AT_ONCE: Final = 25
BETWEEN_S: Final = 0.01

#: A claim of nothing: it lets the room see which processes are gone and which leases have ended, for everybody.
_NOTHING: Final = Want(agent="nobody", lease_s=1, ids=())
_wakes_by_feed: Final = (topic_to(""), topic_channel(""), FEED)


class Thread(Protocol):
    """What waiting needs of the room's thread."""

    def run(self, call: Callable[[], Any]) -> Awaitable[Any]:
        """Make a call there, and return what it returns."""

    def post(self, call: Callable[[], object]) -> None:
        """Make a call there for which nobody waits."""


class Listening(Waiter):
    """A task that waits in the loop."""

    def __init__(self, topics: list[str]) -> None:
        self.topics = topics
        #: Its topics can be seen in the feed; an asker also has to see whether its peer lives.
        self.in_feed = all(topic.startswith(_wakes_by_feed) for topic in topics)
        self.descriptor: int | None = None  # its own
        self.seated = False
        self.rung = False  # while it did not pause
        self.woken: asyncio.Future[bool] | None = None
        self._waiter: Waiter

    def sit(self, switchboard: Switchboard) -> bool:
        """Take a seat at a switchboard, if it has one left. In the thread."""
        waiter = switchboard.listen(self.topics, self.ring)
        if waiter is not None:
            self._waiter, self.seated = waiter, True
        return self.seated

    def stand(self, waiter: Waiter) -> None:
        """Wait alone. In the thread."""
        self._waiter = waiter
        with suppress(OSError):  # no descriptor on this system
            self.descriptor = waiter.fileno()

    def ring(self) -> None:
        """A hint came. In the loop."""
        if self.woken is None:
            self.rung = True
        else:
            wake(self.woken, True)

    @property
    def watched(self) -> bool:
        """Whether it has to be looked after, because nothing wakes it."""
        return not self.seated and self.descriptor is None

    def wait(self, timeout_s: float | None) -> bool:
        return self._waiter.wait(timeout_s)

    def fileno(self) -> int:
        return self._waiter.fileno()

    def close(self) -> None:
        self._waiter.close()


class Waiting:
    """The waiting tasks of a room's loop. All methods but those that say so belong to the loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, thread: Thread) -> None:
        self.closing = False
        self.stirred = False  # the room's own thread has written: a watcher of its connection does not see that
        self.pauses: dict[asyncio.Future[bool], Listening] = {}
        self._loop = loop
        self._clock = clock
        self._thread = thread
        self._sleepers: set[asyncio.Future[bool]] = set()
        self._switchboards: list[Switchboard] = []
        self._no_switchboards = False  # there are no more of them
        self._store: Store | None = None
        self._cursors: tuple[int, int] | None = None  # of the feed, at the last round but one and at the last
        self._round: Alarm | None = None
        self._looking = False  # the thread has been asked to look for all
        self._watching: asyncio.Task[None] | None = None

    # In the thread

    def listen(self, store: Store, topics: Iterable[str]) -> Listening:
        """A task waits for these topics. In the thread."""
        self._store = store
        listening = Listening(list(topics))
        if not (
            any(listening.sit(switchboard) for switchboard in self._switchboards)
            or self._sit_at_new_switchboard(store, listening)
        ):
            listening.stand(store.listen(listening.topics))
        return listening

    def _sit_at_new_switchboard(self, store: Store, listening: Listening) -> bool:
        if self._no_switchboards or self.closing:
            return False
        switchboard = store.switchboard()
        if switchboard is None:
            self._no_switchboards = True  # and asking again for each task would cost more than waiting without
            return False
        self._switchboards.append(switchboard)
        self._loop.call_soon_threadsafe(self._attend, switchboard)
        return listening.sit(switchboard)

    def close_switchboards(self) -> None:
        """No task waits any more. In the thread, before the store is closed."""
        for switchboard in self._switchboards:
            switchboard.close()

    # In the loop

    def _attend(self, switchboard: Switchboard) -> None:
        if not self.closing:
            self._loop.add_reader(switchboard.fileno(), switchboard.take)

    async def pause(self, pause: Pause) -> bool:
        """Wait for a hint or the end of the time; whether a hint came. Raises RoomClosed when the room closes."""
        listening = pause.waiter
        assert isinstance(listening, Listening)
        if not self.closing:
            hinted, listening.rung = listening.rung, False
            if not hinted:
                hinted = await self._until_woken(listening, pause.timeout_s)
            if not self.closing:
                return hinted
        raise RoomClosed("the room was closed while waiting")

    async def _until_woken(self, listening: Listening, timeout_s: float | None) -> bool:
        woken: asyncio.Future[bool] = self._loop.create_future()
        self.pauses[woken] = listening
        listening.woken = woken
        alarm = None
        if timeout_s is not None:
            alarm = self._clock.call_later(self._loop, timeout_s, partial(wake, woken, False))
        if listening.descriptor is not None:
            self._loop.add_reader(listening.descriptor, wake, woken, True)
        elif listening.watched and self._watching is None:
            self._watching = self._loop.create_task(self._watch_all(), name="postroom watching")
        self._begin_round()
        try:
            return await woken
        finally:
            if alarm is not None:
                alarm.cancel()
            listening.woken = None
            del self.pauses[woken]
            if listening.descriptor is not None:
                self._loop.remove_reader(listening.descriptor)

    async def sleep(self, seconds: float) -> None:
        """Return after that time, or when the room closes."""
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._sleepers.add(woken)
        alarm = self._clock.call_later(self._loop, seconds, partial(wake, woken, False))
        try:
            if not self.closing:
                await woken
        finally:
            alarm.cancel()
            self._sleepers.discard(woken)

    # Looking without a hint

    def _begin_round(self) -> None:
        """Once a second while somebody waits."""
        if self._round is None:
            self._round = self._clock.call_later(self._loop, SAFETY_LOOK_S, self._go_round)

    def _go_round(self) -> None:
        self._round = None
        if not self.pauses or self.closing:
            return
        self._begin_round()
        for switchboard in self._switchboards:
            switchboard.take()
        self._let_look([woken for woken, listening in self.pauses.items() if not listening.in_feed])
        if not self._looking and any(listening.in_feed for listening in self.pauses.values()):
            self._looking = True
            self._thread.post(self._look_for_all)

    def _look_for_all(self) -> None:
        """See whether anything changed, and let those look whom it concerns. In the thread."""
        try:
            changed = self._what_changed()
        finally:
            self._looking = False
        if changed is None or changed:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._let_concerned_look, changed)

    def _let_concerned_look(self, changed: set[str] | None) -> None:
        others = [(woken, listening.topics) for woken, listening in self.pauses.items() if listening.in_feed]
        self._let_look([woken for woken, topics in others if changed is None or not changed.isdisjoint(topics)])

    def _what_changed(self) -> set[str] | None:
        """The topics of what changed since the last round but one; None: too much, or not known. In the thread.

        Not since the last round alone: then somebody was perhaps between its look and its pause, and was not asked.
        """
        assert self._store is not None
        try:
            self._store.check_there()
            self._store.claim(_NOTHING)
            number = self._store.number_at()
            before, last = self._cursors or (0, 0)
            self._cursors = (last, number)
            if before == number:
                return set()
            changes = [] if before == 0 else self._store.events(before, MOST_CHANGES)
        except RoomClosed:
            return set()
        except RoomError:  # busy for a while
            return None
        return None if before == 0 or len(changes) >= MOST_CHANGES else _topics_of(changes)

    def _let_look(self, waiting: list[asyncio.Future[bool]]) -> None:
        """Wake these without a hint; a few at a time, so that looking does not keep others from the thread."""
        for woken in waiting[:AT_ONCE]:
            wake(woken, False)
        if len(waiting) > AT_ONCE and not self.closing:
            self._clock.call_later(self._loop, BETWEEN_S, partial(self._let_look, waiting[AT_ONCE:]))

    # Watching, where there are no descriptors

    @property
    def watched(self) -> list[Listening]:
        """Those that nothing wakes."""
        return [listening for listening in self.pauses.values() if listening.watched]

    async def _watch_all(self) -> None:
        """One look for all of them, again and again, while there are any."""
        try:
            while (watched := self.watched) and not self.closing:
                await self.sleep(WATCH_S)
                with suppress(RoomError):
                    for listening in await self._thread.run(partial(self._look_after, watched)):
                        listening.ring()
        finally:
            self._watching = None

    def _look_after(self, watched: list[Listening]) -> list[Listening]:
        """Those that a hint came to. In the thread."""
        stirred, self.stirred = self.stirred, False
        hinted = [listening for listening in watched if listening.wait(0)]
        return watched if stirred else hinted

    # The end

    def wake_all(self) -> None:
        """The room closes: all waiting tasks are told."""
        self.closing = True
        for woken in (*self.pauses, *self._sleepers):
            wake(woken, False)
        if self._round is not None:
            self._round.cancel()
        for switchboard in self._switchboards:
            self._loop.remove_reader(switchboard.fileno())


def _topics_of(changes: Iterable[Change]) -> set[str]:
    topics: set[str] = set()
    for change in changes:
        topics |= {FEED, topic_channel(change.message.channel)}
        if change.message.to_agent is not None:
            topics.add(topic_to(change.message.to_agent))
    return topics


def wake(woken: asyncio.Future[bool], hinted: bool) -> None:
    """Let a task go on that waits in the loop. Safe to call twice."""
    if not woken.done():
        woken.set_result(hinted)
