"""Background work of an open room: heartbeats of its agents, and the housekeeping, whose leader is elected by a lease.

A chore for each room that has agents. It ends with the room, also with one that was forgotten without closing it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from postroom.core.chore import Chore
from postroom.core.config import ARTIFACTS, HEARTBEAT_S
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import LIMITS, RETENTION

from . import attachments, limiting, people, presence, retaining
from .gateway import Gateway
from .leases import SHORT_LEASE_S

KEEPER_CELL: Final = "upkeep"
#: The process that keeps house has so long a term without a word; then another may take over.
TERM_S: Final = 6 * HEARTBEAT_S
#: The limits that channels have of their own are applied so often (`retaining.py`).
CHANNELS_S: Final = 60.0
#: Every agent's cell is looked at so often, should a process that is gone not have said that it has agents open.
AGENTS_S: Final = 60.0
#: A round looks after the cells of so many agents of this process, in turn; one heartbeat serves all of them.
AGENTS_A_ROUND: Final = 10
#: Questions to people are looked over so often, and when the next deadline passes that is known then.
QUESTIONS_S: Final = 60.0
#: Attached files are looked over so often, all processes together, and so many pages of messages in a round.
FILES_CELL: Final = "attachments"
FILES_S: Final = 6 * 3600.0
FILES_STEPS: Final = 100


class Upkeep:
    """The rounds of one room. Nothing runs until the first agent is looked after."""

    def __init__(self, gateway: Gateway, folder: Path | None = None) -> None:
        self._gateway = gateway
        self._files = FileKeeping(gateway, folder)
        self._next_channels_ns = 0
        self._next_agents_ns = 0
        self._next_questions_ns = 0
        self._names: dict[str, None] = {}
        #: Of these, the agents that live elsewhere and hold their claims themselves.
        self._connected: dict[str, None] = {}
        self._lock = threading.Lock()  # no heartbeat comes after an agent was let go
        self._silences = presence.Silences()
        self._chore = Chore("postroom upkeep", partial(_round, weakref.ref(self)), gateway.clock, every_s=HEARTBEAT_S)
        gateway.at_close(self.close)

    def look_after(self, name: str) -> None:
        """Send this agent's heartbeats from now on, and mark it stopped when the room closes."""
        if not self._names:
            presence.beat_process(self._gateway)
        self._names[name] = None
        self._chore.start()
        self._gateway.leases.short_s = SHORT_LEASE_S  # of longer ones it looks in time

    def connect(self, name: str) -> None:
        """An agent outside of this process is here through it: look after it, and let it keep what it holds."""
        if name not in self._names:
            presence.enter(self._gateway, name, transient=False)
            presence.enter(self._gateway, name, transient=True)
            self._connected[name] = None
            self.look_after(name)

    def disconnect(self, name: str) -> None:
        """It is not here through this process any more, and may still run: nobody can see that."""
        if self._connected.pop(name, self) is None:
            with self._lock:
                self._names.pop(name, None)
                presence.leave(self._gateway, name, runs=None)

    def __del__(self) -> None:
        try:  # noqa: SIM105  suppress is gone by then
            self._chore.close(0)
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass

    def round(self) -> None:
        """One round: what could not be told before, heartbeats, then the housekeeping if it is this process's turn."""
        self._gateway.leases.look()  # first: what follows may wait for a busy room
        self._gateway.check_there()
        self._gateway.check_not_moved()
        self._gateway.looked()
        self._gateway.abandon_late()
        self._beat()
        if self._take_turn():
            self._prune()
            self._gateway.sweep()
            self._files.round()
            self._keep_channels_short()
            self._tend_questions()

    def _keep_channels_short(self) -> None:
        """Apply the limits of channels, now and then: in a room without any, this reads one cell."""
        now_ns = self._gateway.clock.steady_ns()
        if now_ns >= self._next_channels_ns:
            self._next_channels_ns = now_ns + round(CHANNELS_S * 1_000_000_000)
            if self._gateway.store.cell_read(RETENTION) is not None:
                retaining.apply(self._gateway.store)
            if self._gateway.store.cell_read(LIMITS) is not None:
                limiting.forget_full_buckets(self._gateway.store)

    def _tend_questions(self) -> None:
        """Give questions to people their defaults when their deadlines have passed: where there are none, one look."""
        now_ns = self._gateway.clock.steady_ns()
        if now_ns >= self._next_questions_ns:
            left_s = people.tend(self._gateway)
            in_s = QUESTIONS_S if left_s is None else min(QUESTIONS_S, left_s)
            self._next_questions_ns = now_ns + round(in_s * 1_000_000_000)

    def _beat(self) -> None:
        """One heartbeat for all agents of this process; the cells of a few of them are looked at, a few in each round.

        So a round costs the same with ten agents and with ten thousand (tests/mail/test_idle_cost.py).
        """
        known = presence.beat_process(self._gateway) if self._names else True
        for name in list(islice(self._names, AGENTS_A_ROUND if known else None)):
            with self._lock:
                if name in self._names:
                    self._names[name] = self._names.pop(name)  # the last now
                    presence.beat(self._gateway, name)
        for name in tuple(self._connected):  # while its program is connected it lives, also without a call
            with self._lock:
                if name in self._connected:
                    presence.enter(self._gateway, name, transient=True)

    def _prune(self) -> None:
        """Look at all agents where a process is gone or cannot be seen; and now and then."""
        now_ns = self._gateway.clock.steady_ns()
        if now_ns >= self._next_agents_ns or not presence.all_run(self._gateway):
            presence.prune(self._gateway, self._silences)
            self._next_agents_ns = now_ns + round(AGENTS_S * 1_000_000_000)

    def _take_turn(self) -> bool:
        """Whether this process keeps house now: it does already, or nobody does."""
        store, me = self._gateway.store, self._gateway.process
        cell, now_ms = store.cell_read(KEEPER_CELL), self._gateway.clock.wall_ms()
        if cell is not None:
            if cell.value["owner"] == me and _ms_left(cell.value, now_ms) > TERM_S * 500:
                return True  # renewed when half of the term is over: not a write in every round
            if cell.value["owner"] != me and not is_vacant(cell.value, now_ms, store.process_alive):
                return False
        mine = {"owner": me, "until_ms": now_ms + round(TERM_S * 1000)}
        return store.cell_write(KEEPER_CELL, mine, expect=0 if cell is None else cell.version) is not None

    def close(self) -> None:
        """End the rounds, mark the agents stopped, leave the housekeeping to others.

        The thread is over when it returns.
        """
        self._chore.close()
        for name in tuple(self._names):
            presence.leave(self._gateway, name)
        if self._names:
            presence.leave_process(self._gateway)
        me = self._gateway.process
        update(self._gateway.store, KEEPER_CELL, lambda value: DELETE if value and value["owner"] == me else None)


class FileKeeping:
    """Deletes attached files that nothing refers to any more: now and then, and a little in each round."""

    def __init__(self, gateway: Gateway, folder: Path | None) -> None:
        self._gateway = gateway
        self._folder = None if folder is None else folder / ARTIFACTS
        self._next_ns = 0
        self._under_way: Iterator[int] = iter(())

    def round(self) -> None:
        """Go on with it, if it is under way; begin, if it is time, for one process of all."""
        for _ in islice(self._under_way, FILES_STEPS):
            pass
        now_ns = self._gateway.clock.steady_ns()
        if self._folder is None or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + round(FILES_S * 1_000_000_000)
        if os.path.isdir(self._folder) and self._is_time():
            self._under_way = attachments.tidying(self._gateway.store, self._folder)

    def _is_time(self) -> bool:
        store, now_ms = self._gateway.store, self._gateway.clock.wall_ms()
        cell = store.cell_read(FILES_CELL)
        if cell is not None and 0 <= now_ms - int(cell.value["tidied_ms"]) < FILES_S * 1000:
            return False
        version = 0 if cell is None else cell.version
        return store.cell_write(FILES_CELL, {"tidied_ms": now_ms}, expect=version) is not None


def _round(known: weakref.ref[Upkeep]) -> None:
    """What the thread does: it knows the room only while it makes a round."""
    upkeep = known()
    if upkeep is not None:
        upkeep.round()


def is_vacant(value: dict[str, Any], now_ms: int, alive: Callable[[str], bool | None]) -> bool:
    """Whether nobody keeps house: the keeper's process is gone, or its term is over.

    A term that ends far in the future was written before the wall clock was set back; it does not count either.
    """
    return alive(value["owner"]) is False or not 0 < _ms_left(value, now_ms) <= 2 * TERM_S * 1000


def _ms_left(value: dict[str, Any], now_ms: int) -> int:
    return int(value["until_ms"]) - now_ms
