"""Heartbeats: each process beats every few seconds, and its silence tells where its pid cannot be seen.

A process speaks from the moment at which its name is first written into the room (a claim, a question, a member of a
session, an agent, a task). So of a name that is read there, silence always means something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from postroom.core.clock import Clock
from postroom.core.system.process import process_alive, this_process

from .entries import hex_of
from .wire import Wire, Write

#: A process says every BEAT_S that it is alive; that is forgotten after ALIVE_S, which is longer than the servers need
#: to elect a leader; and a process that is still silent SILENT_S after the first look that missed it counts as gone.
BEAT_S: Final = 5.0
ALIVE_S: Final = 20
SILENT_S: Final = 10.0
#: A look at a process elsewhere is believed for this long.
BELIEVED_S: Final = 2.0
_SECOND_NS: Final = 1_000_000_000
_MAX_KNOWN: Final = 10_000
_NEVER: Final = (-(1 << 63), None)  # when, and as what, a process was seen that was not


def process_subject(process: str) -> str:
    """Where a process says that it is alive."""
    return f"p.{hex_of(process)}"


class Lives:
    """The lives of processes, as one opened room knows them, and the heartbeat of its own."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._lock = threading.Lock()
        self._beginning = threading.Lock()  # held while it is first said, which waits
        self._beats = False
        #: The name of this process, and how others of this machine are seen: None where they cannot be.
        self.process = this_process()
        self.seen_here: Callable[[str], bool | None] = process_alive
        #: process -> when it was looked for, and whether it is alive (None: silent, but not for long enough)
        self._seen: dict[str, tuple[int, bool | None]] = {}
        self._silent: dict[str, tuple[int, int]] = {}  # process -> since when it is silent, and on which connection

    def beat(self) -> None:
        """Say from now on, every few seconds, that this process is alive.

        What raises here has begun nothing, and the next call begins: a process whose name stands in the room and that
        never speaks is buried by others while it works (tests/stores/test_nats.py:
        test_who_could_not_say_that_it_lives_says_it_at_its_next_claim).
        """
        with self._beginning:  # a second thread waits until it was said, or says it
            if not self._beats:
                self._wire.run(self._begin())

    async def _begin(self) -> None:
        """On the background loop, where no signal comes between the first word and the promise of the next."""
        name = self.process.encode()
        write = Write(process_subject(self.process), name, None, None, ALIVE_S)
        await self._wire.commit([write], name.__eq__)
        self._wire.connection.link.every(BEAT_S, lambda: self._wire.commit([write], name.__eq__))
        self._beats = True

    def beat_if_named(self, data: bytes) -> None:
        """The same, when what is about to be written names this process."""
        if not self._beats and self.process.encode() in data:
            self.beat()

    def is_alive(self, process: str) -> bool | None:
        """Whether a process is alive: seen at once on this machine, by its silence elsewhere.

        None: it fell silent lately.
        """
        return self.are_alive([process])[process]

    def are_alive(self, processes: Iterable[str]) -> dict[str, bool | None]:
        """The same of several, with one look for all that are elsewhere."""
        alive = {process: self.seen_here(process) for process in processes}
        elsewhere = [process for process, here in alive.items() if here is None]
        now_ns, known = self._clock.steady_ns(), self._seen.get
        unknown = [name for name in elsewhere if not 0 <= now_ns - known(name, _NEVER)[0] < BELIEVED_S * _SECOND_NS]
        if unknown:
            self.look(unknown)
        return alive | {process: known(process, _NEVER)[1] for process in elsewhere}

    def look(self, processes: Iterable[str]) -> list[str]:
        """Look for processes of other machines at the leader. Returns those that are gone.

        A process is gone that was not heard of at two looks some time apart, while our own connection stood: after
        servers were down everybody has time to speak again.
        """
        names = list(processes)
        found = self._wire.results([self._wire.last(process_subject(name)) for name in names])
        now_ns, losses, gone = self._clock.steady_ns(), self._wire.connection.losses, []
        with self._lock:
            if len(self._seen) > _MAX_KNOWN:
                self._seen.clear()
                self._silent.clear()
            for name, entry in zip(names, found, strict=True):
                if entry is not None:
                    self._silent.pop(name, None)
                    self._seen[name] = now_ns, True
                    continue
                since = self._silent.get(name)
                if since is None or since[1] != losses:
                    since = self._silent[name] = (now_ns, losses)
                is_gone = now_ns - since[0] >= SILENT_S * _SECOND_NS
                self._seen[name] = now_ns, False if is_gone else None
                if is_gone:
                    gone.append(name)
        return gone
