"""Hints that a schedule loses or holds back, and how late their waiters may look then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from .broken import Broken
from .process import Hinted, Process
from .stage import ThreadOwner

if TYPE_CHECKING:
    from .world import World

_SECOND_NS: Final = 1_000_000_000
#: A receiver whose hint was lost looks at the latest then.
_LATEST_LOOK_NS: Final = 2 * _SECOND_NS


class HintFaults:
    """The waiters of one schedule by their descriptors, and what becomes of their hints."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self.waiters_by_fd: dict[int, Hinted] = {}
        self._lost_until_ns = self._late_until_ns = 0
        #: For how long hints are held back, since they first were; 0: they never were.
        self.late_by_ns = 0
        #: Whether a hint was ever lost.
        self.were_lost = False

    # Faults

    def lose(self, span_ns: int) -> None:
        """Lose every hint of that span."""
        self._lost_until_ns = self._clock.now_ns + span_ns

    def hold_back(self, span_ns: int) -> None:
        """Hold every hint of that span back for half as long."""
        self._late_until_ns, self.late_by_ns = self._clock.now_ns + span_ns, span_ns // 2

    def stop(self) -> None:
        """From now on hints come at once."""
        self._lost_until_ns = self._late_until_ns = 0

    def go_astray(self) -> bool:
        """Whether hints are lost or held back just now."""
        return self._clock.now_ns < max(self._lost_until_ns, self._late_until_ns)

    def take(self, ringer: Process) -> None:
        """Lose the hints that a step of this process gave, or hold them back."""
        world, now_ns = self._world, self._clock.now_ns
        for process in world.processes.latest:
            for waiter in process.waiters if process is not ringer else ():
                if waiter.take_hint():
                    if now_ns < self._lost_until_ns:
                        waiter.missed = self.were_lost = True
                        if waiter.lost_ns is None and process.frozen_ns is None:
                            waiter.lost_ns = now_ns, world.stood_ns + process.stood_ns
                        world.happened("a hint was lost")
                    else:
                        waiter.late_ns = now_ns + self.late_by_ns
                        world.happened("a hint was late")

    # Waiters

    def come_late(self, fds: Iterable[int]) -> list[int]:
        """Those of these descriptors at which a hint lies that was held back until now."""
        now_ns, by_fd = self._clock.now_ns, self.waiters_by_fd
        waiters = ((fd, by_fd.get(fd)) for fd in fds)
        return [fd for fd, w in waiters if w is not None and w.late_ns is not None and w.late_ns <= now_ns]

    def moments_ns(self) -> list[int]:
        """When hints will come that are held back."""
        return [waiter.late_ns for waiter in self.waiters_by_fd.values() if waiter.late_ns is not None]

    def judge_looks(self, owner: ThreadOwner, fds: Sequence[int], since_ns: int) -> None:
        """A wait since then is over. A hint that was lost in it cost a second or two, while the process could run."""
        for fd in fds:
            waiter = self.waiters_by_fd.get(fd)
            if waiter is not None and waiter.lost_ns is not None:
                lost_ns, stood_ns = waiter.lost_ns
                waiter.lost_ns = None
                late_ns = self._clock.now_ns - max(lost_ns, since_ns)
                if late_ns > _LATEST_LOOK_NS and stood_ns == self._world.stood_ns + owner.stood_ns:
                    late = Broken(f"{owner!r} lost a hint, and looked only {late_ns / _SECOND_NS:.1f} s later")
                    self._world.fail(late)
