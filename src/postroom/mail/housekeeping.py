"""Background work of an open room: heartbeats of its agents, and the housekeeping, whose leader is elected by a lease.

One sleeping thread for each room that has agents. It ends with the room, also with one that was forgotten without
closing it, and does not keep the program alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from postroom.core.config import HEARTBEAT_S
from postroom.core.system.process import start_thread
from postroom.errors import ROOM_IS_OVER
from postroom.stores.cells import DELETE, update

from . import presence
from .gateway import Gateway, Latch

KEEPER_CELL: Final = "upkeep"
#: The process that keeps house has so long a term without a word; then another may take over.
TERM_S: Final = 6 * HEARTBEAT_S


class Upkeep:
    """The rounds of one room. Nothing runs until the first agent is looked after."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lock = threading.RLock()  # a signal's handler may come in the middle of what it guards
        self._names: list[str] = []
        self._silences = presence.Silences()
        self._stop = Latch(gateway.clock)
        self._thread: threading.Thread | None = None
        gateway.at_close(self.close)

    def look_after(self, name: str) -> None:
        """Send this agent's heartbeats from now on, and mark it stopped when the room closes."""
        with self._lock:
            if name not in self._names:
                self._names.append(name)
            if self._thread is None and not self._stop.is_set():
                args = (weakref.ref(self), self._stop)
                self._thread = thread = threading.Thread(target=_rounds, args=args, name="postroom upkeep", daemon=True)
                try:
                    start_thread(thread)
                except BaseException:  # interrupted: it may run, or never will
                    if not thread.is_alive():
                        self._thread = None
                    raise

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was interrupted while it was made
            self._stop.set()

    def round(self) -> None:
        """One round: what could not be told before, heartbeats, then the housekeeping if it is this process's turn."""
        self._gateway.check_there()
        self._gateway.abandon_late()
        for name in tuple(self._names):
            presence.beat(self._gateway, name)
        if self._take_turn():
            presence.prune(self._gateway, self._silences)
            self._gateway.sweep()

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
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._thread = None  # not before: should this be interrupted, the next call waits for it
        for name in self._names:
            presence.leave(self._gateway, name)
        me = self._gateway.process
        update(self._gateway.store, KEEPER_CELL, lambda value: DELETE if value and value["owner"] == me else None)


def _rounds(known: weakref.ref[Upkeep], stop: Latch) -> None:
    """The thread. It knows the room only while it makes a round."""
    while not stop.wait(HEARTBEAT_S):
        upkeep = known()
        try:
            if upkeep is None:
                return
            upkeep.round()
        except ROOM_IS_OVER:
            return
        except Exception:  # a busy or broken room now is no reason to stop looking after it later
            import logging  # 2 ms of every start otherwise, for what hardly ever happens

            log = logging.getLogger("postroom")
            log.debug("a round of upkeep failed", exc_info=True, extra={"action": "upkeep_failed"})
        finally:
            del upkeep


def is_vacant(value: dict[str, Any], now_ms: int, alive: Callable[[str], bool | None]) -> bool:
    """Whether nobody keeps house: the keeper's process is gone, or its term is over.

    A term that ends far in the future was written before the wall clock was set back; it does not count either.
    """
    return alive(value["owner"]) is False or not 0 < _ms_left(value, now_ms) <= 2 * TERM_S * 1000


def _ms_left(value: dict[str, Any], now_ms: int) -> int:
    return int(value["until_ms"]) - now_ms
