"""A simulated process, and what it is to the world around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from postroom.core.clock import Clock
from postroom.stores.contract import Store, Want

from .plans import PlannedProcess

T = TypeVar("T")


class Hinted(Protocol):
    """A waiter, as the world sees it."""

    topics: tuple[str, ...]
    #: A hint that is held back until that moment; whether one was lost since the last look.
    late_ns: int | None
    missed: bool
    #: When the first hint was lost in a wait that goes on, and for how long its process had stood still by then.
    lost_ns: tuple[int, int] | None
    #: The step at which it began to listen; the topics for which it alone was given a hint that it has not taken.
    armed_at: int
    alone_for: set[str]

    def has_hint(self) -> bool:
        """Whether a hint lies there."""

    def is_rung(self) -> bool:
        """Whether it was rung, and did not come to its hint otherwise."""

    def take_hint(self) -> bool:
        """Take away the hint that lies there; whether one did."""

    def close(self) -> None:
        """Stop listening."""


class Trap:
    """A fault that comes inside a step: at the place of that number, counted from now on."""

    __slots__ = ("kind", "left", "sprung")

    def __init__(self, kind: str, place: int) -> None:
        self.kind = kind
        self.left = place
        self.sprung = False


class Process:
    """A simulated process: its name in the room, and whether it lives, stands still, or is about to die."""

    def __init__(self, place: int, life: int, part: PlannedProcess) -> None:
        self.place = place
        self.label = f"p{place}" + "'" * life
        self.name = f"simulated:{place}:{life}"
        self.life = life
        self.part = part
        self.alive = True
        self.frozen_ns: int | None = None  # until when it stands still
        self.stood_ns = 0  # for how long it stood still in all
        self.next_op = 0
        self.fails = 0  # so many of its next writes fail
        self.failed = 0  # and so many have failed
        self.dies_in_step = False
        self.dies_after: int | None = None  # after so many more writes it dies
        self.breaks_after: int | None = None  # its next write fails after so many changes
        #: The steps at which its last call of the store began, and at which it last looked for mail, and for which.
        self.called_at = self.claimed_at = 0
        self.last_want: Want | None = None
        self.trap: Trap | None = None  # what happens inside one of its next steps
        self.waiters: dict[Hinted, None] = {}
        self.stores: list[Store] = []

    def __repr__(self) -> str:
        return f"{self.label} ({self.part.agent})"


class Around(Protocol):
    """The world, as the store of a process and the judge see it."""

    @property
    def clock(self) -> Clock:
        """The only clock that there is."""

    waiters_by_fd: dict[int, Hinted]
    step: int
    stood_ns: int

    @property
    def point(self) -> Callable[[], None]:
        """Call it where others may go on."""

    def tell(self, process: Process | None, what: str) -> None:
        """Write a line of the trace."""

    def happened(self, what: str) -> None:
        """A rare state was reached."""

    def room_ms(self) -> int:
        """Room time."""

    def highest_wall_ms(self) -> int:
        """The latest wall time that anybody has read."""

    def process(self, name: str) -> Process:
        """The process of that name."""

    def is_alive(self, name: str) -> bool | None:
        """Whether the process of that name lives; None when it is none of this world."""

    def kill(self, process: Process) -> None:
        """End a process here and now."""

    def break_write(self, process: Process) -> AbstractContextManager[None]:
        """While this is open, a write fails in its middle, if a fault asks for that."""

    @property
    def has_disk(self) -> bool:
        """Whether a step can be cut in the middle."""

    def settle_cuts(self) -> None:
        """Somebody is about to look at the room: find out which steps that were cut have happened."""

    def step_on_disk(
        self, process: Process, name: str, method: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> T:
        """Do a step, which may be cut, or fail with the disk."""

    def closed(self, process: Process, inner: Store) -> None:
        """A process has closed its store."""

    def readable(self, fds: Sequence[int]) -> list[int]:
        """Those of these descriptors that can be read."""

    def waiters(self) -> Iterator[Hinted]:
        """The waiters of all processes that live."""

    def hints_go_astray(self) -> bool:
        """Whether hints are lost or held back just now."""

    def take_hints(self, ringer: Process) -> None:
        """Lose the hints that a step of this process gave, or hold them back."""
