"""The places inside a step at which it can be cut: its calls to the disk, and the crash points of the product.

A trap counts the places that a step comes by, and springs at one of them. From then on the process is dead (or all
are, when the power is cut): its calls to the disk do nothing any more, while the stack of the step is taken down, so
that nothing is tidied up that a dead process would have left. Or the one call fails, and the process lives on.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from postroom.core import crashpoints

from . import plans
from .process import Process
from .stage import Killed

#: What is done of the write at which a process dies: nothing, half of it, all of it.
_SHARES: Final = (0.0, 0.5, 1.0)
#: Why a call fails, by turns.
_ERRNOS: Final = (errno.EIO, errno.ENOSPC)
#: The crash points that steps come by.
SQLITE_POINTS: Final = tuple(
    f"sqlite.{name}"
    for name in ("begun", "buried", "claimed", "committed", "expired", "inserted", "retried", "settled", "written")
)
FILES_POINTS: Final = tuple(f"files.{name}" for name in ("committed", "followed", "locked", "logged"))

#: Does so much of a call.
DoPart = Callable[[float], None]


class Tells(Protocol):
    """What the disk tells the world."""

    def tell(self, process: Process | None, what: str) -> None:
        """Write a line of the trace."""

    def happened(self, what: str) -> None:
        """A rare state was reached."""


class SimulatedDisk:
    """What happens at the places of steps. One for each world; one step is under way at a time."""

    def __init__(self, world: Tells, points: tuple[str, ...]) -> None:
        self._world = world
        self.happened = world.happened
        #: The process whose step is under way.
        self.running: Process | None = None
        #: Those whose calls do nothing any more; with the power off, all.
        self.dead: set[Process] = set()
        self.is_off = False
        #: How many calls have changed a file.
        self.changes = 0
        #: Called at the moment of a death, before anything is taken down.
        self.on_death: Callable[[], None] = lambda: None
        for point in points:
            crashpoints.at(point, partial(self.point, point))

    def close(self) -> None:
        """The schedule is over."""
        crashpoints.forget()

    def is_cut(self, process: Process) -> bool:
        """Whether a process died in the step that was under way."""
        return self.is_off or process in self.dead

    def point(self, point: str) -> None:
        """The running step has come to a crash point."""
        if self.running is not None:
            self.place(self.running, point)

    def place(self, process: Process | None, what: str, do_part: DoPart | None = None) -> bool:
        """A process is about to do this. Whether it is done: a dead process does nothing.

        Raises Killed where the process dies, and `OSError` where the call fails.
        """
        if self.is_off or process in self.dead:
            return False
        trap = None if process is None or process is not self.running else process.trap
        if trap is None or trap.sprung:
            return True
        if trap.kind == plans.FAIL_DISK and do_part is None:
            return True  # it cannot fail
        trap.left -= 1
        if trap.left > 0:
            return True
        trap.sprung = True
        assert process is not None
        self._spring(process, trap.kind, what, do_part)
        return True

    def read(self, process: Process | None) -> None:
        """A process is about to read: where a call fails, that may be this one. Raises OSError."""
        trap = None if process is None or process is not self.running else process.trap
        if trap is not None and trap.kind == plans.FAIL_DISK:
            self.place(process, "read", _nothing)

    def _spring(self, process: Process, kind: str, what: str, do_part: DoPart | None) -> None:
        share = _SHARES[self.changes % len(_SHARES)] if do_part is not None else 0.0
        done = ""
        if do_part is not None and share:
            do_part(share)
            done = f", after {share:.0%} of it"
        if share == 0.5:
            self._world.happened("a write was torn")
        if kind == plans.FAIL_DISK:
            self._world.tell(process, f"{what} fails{done}")
            raise OSError(_ERRNOS[self.changes % 2], f"simulated: {what} fails")
        self._world.tell(process, f"dies at: {what}{done}")
        self.on_death()
        if kind == plans.POWER_CUT:
            self.is_off = True
        else:
            self.dead.add(process)
        raise Killed


def _nothing(_: float) -> None:
    pass
