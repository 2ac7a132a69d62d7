"""The ticker: fires the ticks of a room's schedules, in every process that has the room open. No leader, no daemon.

A chore that sleeps until the next tick, or until a cell of a schedule changes. A room without schedules has no such
thread: its processes look for a first schedule when they open the room, and every few seconds while they use it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from postroom.core import log
from postroom.core.chore import Chore
from postroom.core.config import HEARTBEAT_S, SAFETY_LOOK_S
from postroom.errors import ROOM_IS_OVER, MailboxFull, PostroomError, RoomError
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import Cell, Waiter, topic_cells

from . import schedule
from .gateway import Gateway

#: The cells of schedules have names that begin so.
SCHEDULES: Final = "schedule/"
#: A process that knows of no schedule looks for one this often, and one that does for changes that it was not told of.
LOOK_S: Final = HEARTBEAT_S
_LOOK_NS: Final = round(LOOK_S * 1e9)
#: A chore without schedules sleeps until it is nudged.
_NOTHING_S: Final = 86_400.0


class Ticker:
    """The schedules of one room, as one process fires them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._loop = _TickLoop(gateway)
        self._next_look_ns = 0
        gateway.looked = self.look
        gateway.at_close(self.close)

    def look(self) -> None:
        """Find out whether the room has schedules, and fire them from now on. Does nothing most of the time."""
        now_ns = self._gateway.clock.steady_ns()
        if now_ns < self._next_look_ns or self._loop.busy:
            return
        self._next_look_ns = now_ns + _LOOK_NS
        with suppress(RoomError):  # a room that is busy now is looked at later
            if self._gateway.store.cell_scan(SCHEDULES) and not self._gateway.store.why_only_looking():
                self._loop.chore.nudge()

    def add(self, name: str, definition: dict[str, Any]) -> schedule.Schedule:
        """Keep a schedule under that name. One that is already as it is asked for goes on; another one is replaced.

        Raises InvalidMessage with everything that is wrong with it; then nothing has changed.
        """
        schedule.check_schedule_name(name)
        gateway = self._gateway
        store, wall_ms = gateway.open_store, gateway.clock.wall_ms()
        made = schedule.make(definition, wall_ms, store.room_ms())
        kept = update(store, SCHEDULES + name, lambda value: None if schedule.is_same(value, made) else made)
        self._loop.chore.nudge()
        return schedule.show(name, kept, wall_ms, store.room_ms())

    def remove(self, name: str) -> bool:
        """Take a schedule away. What it has sent stays. Returns whether there was one."""
        schedule.check_schedule_name(name)
        found = False

        def change(value: object) -> object:
            nonlocal found
            found = value is not None
            return DELETE if found else None

        update(self._gateway.open_store, SCHEDULES + name, change)
        return found

    def all(self) -> list[schedule.Schedule]:
        """The room's schedules, in the order of their names."""
        store, wall_ms = self._gateway.open_store, self._gateway.clock.wall_ms()
        cells, room_ms = store.cell_scan(SCHEDULES), store.room_ms()
        return [schedule.show(cell.name.removeprefix(SCHEDULES), cell.value, wall_ms, room_ms) for cell in cells]

    def close(self) -> None:
        """Fire no more. The thread is over when it returns."""
        self._loop.chore.close()

    def __del__(self) -> None:
        try:  # noqa: SIM105  suppress is gone by then
            self._loop.chore.close(0)
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass


class _TickLoop:
    """What the thread does. It knows the room's gateway only while it fires: a room that is forgotten ends."""

    def __init__(self, gateway: Gateway) -> None:
        self._store = gateway.store
        self._clock = gateway.clock
        self._known = weakref.ref(gateway)
        #: Whether it waits for ticks, and hears of new schedules.
        self.busy = False
        self.chore = Chore("postroom schedules", self._step, gateway.clock, every_s=SAFETY_LOOK_S, first_s=0)
        self._failing: set[str] = set()  # the cells of which a failure was logged

    def _step(self) -> float:
        """Fire what is due, again and again, until there is no schedule left."""
        try:
            with self._store.listen([topic_cells(SCHEDULES)]) as waiter:
                self.busy = True
                while not self.chore.closed:
                    cells = self._store.cell_scan(SCHEDULES)
                    if not cells:
                        break
                    if not self._fire(cells):
                        self._sleep(waiter, cells)
        finally:
            self.busy = False
        return _NOTHING_S

    def _fire(self, cells: Iterable[Cell]) -> bool:
        """Fire what is due. Returns whether there was something, so that it is worth to look again at once."""
        fired = False
        for cell in cells:
            if self.chore.closed:
                return False
            try:
                firing = schedule.due(cell.value, self._clock.wall_ms(), self._store.room_ms())
                if firing is not None:
                    self._send(cell, firing)
                    fired = True
                self._failing.discard(cell.name)
            except ROOM_IS_OVER:
                raise
            except Exception as error:  # noqa: BLE001  a schedule that fails does not keep back the others
                self._tell(cell.name, error)
        return fired

    def _send(self, cell: Cell, firing: schedule.Firing) -> None:
        """Send the ticks and move the schedule on, in one step; or not at all, when another process did so first."""
        gateway = self._known()
        if gateway is None:
            return
        name, most = cell.name.removeprefix(SCHEDULES), gateway.config.max_deliveries
        drafts = [schedule.draft_of(name, cell.value, tick_ms, most) for tick_ms in firing.ticks_ms]
        try:
            gateway.put_with_cell(drafts, cell.name, firing.value, cell.version)
        except MailboxFull as full:  # a tick that nobody has the time for is skipped, and the schedule goes on
            if gateway.put_with_cell([], cell.name, firing.value, cell.version) is not None:
                log.LOG.warning("%s: a tick was skipped: %s", cell.name, full, extra={"action": "tick_skipped"})

    def _tell(self, name: str, error: Exception) -> None:
        if name not in self._failing:
            self._failing.add(name)
            write = log.LOG.debug if isinstance(error, PostroomError) else log.LOG.error
            write("%s: a tick failed, and will be repeated", name, exc_info=error, extra={"action": "tick_failed"})

    def _sleep(self, waiter: Waiter, cells: list[Cell]) -> None:
        """Wait until a tick is due, a schedule changed, or it is time to look without being told.

        Woken once a second, because a wall clock that is set wakes nobody.
        """
        until_ns = self._clock.steady_ns() + round(1e9 * (SAFETY_LOOK_S if self._failing else LOOK_S))
        while not self.chore.closed and (left_ns := until_ns - self._clock.steady_ns()) > 0:
            span_s = min(SAFETY_LOOK_S, left_ns / 1e9, self._due_s(cells))
            if span_s <= 0 or self._hinted(waiter, span_s):
                return

    def _due_s(self, cells: list[Cell]) -> float:
        wall_ms, room_ms = self._clock.wall_ms(), self._store.room_ms()
        waits = (schedule.wait_ms(cell.value, wall_ms, room_ms) for cell in cells if cell.name not in self._failing)
        return min((wait_ms for wait_ms in waits if wait_ms is not None), default=_LOOK_NS // 1_000_000) / 1000

    def _hinted(self, waiter: Waiter, span_s: float) -> bool:
        try:
            ends: tuple[int, ...] = (waiter.fileno(), self.chore.fileno())
        except OSError:  # a room without bells: it looks when its time is over
            ends = (self.chore.fileno(),)
        ready = self._clock.wait_readable(ends, span_s)
        self.chore.clear()
        return self.chore.fileno() in ready or waiter.wait(0)
