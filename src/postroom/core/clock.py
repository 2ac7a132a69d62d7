"""Time and chance come in here, and nowhere else.

Two times are told apart. The *wall* clock is what people read; it may jump. The *steady* clock only goes forward,
at the same rate for every process of this machine since it booted: leases, delays and expiry are counted in it,
so that a wall clock set back an hour neither frees nor freezes anything (tests/faults/test_clock.py).
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from postroom.core.system import LINUX, libc

if TYPE_CHECKING:  # loading asyncio costs more than the rest of this package
    from asyncio import AbstractEventLoop


class Alarm(Protocol):
    """A call that is to come, and that can be called off."""

    def cancel(self) -> None:
        """Do not call. Safe to call twice, and after the call."""


class Clock(Protocol):
    """Where Postroom gets its time and its chance from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 as people count them. May jump either way."""

    def steady_ns(self) -> int:
        """Nanoseconds since this machine booted. Never goes back; the same for all its processes."""

    def boot_id(self) -> str:
        """A name for this run of the steady clock; another after each boot."""

    def random(self) -> float:
        """A number from 0 up to, not including, 1."""

    def sleep(self, seconds: float) -> None:
        """Return after that time."""

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        """Wait until one of the descriptors can be read; return those that can, or [] when time ran out."""

    def call_later(self, loop: AbstractEventLoop, seconds: float, call: Callable[[], None]) -> Alarm:
        """Let an event loop make a call after that time. To be used in the loop's own thread."""


def _read_boot_id() -> str:
    try:
        if not LINUX:
            return libc.boot_id()
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:  # the boot's moment, to the minute: a wall clock that is set makes another of it
        return f"boot-{int(time.time() - time.monotonic()) // 60}"


_MAX_POLLS: Final = 64
_polls = threading.local()  # a poll object must not be used by two threads at once


def _poll_for(fds: tuple[int, ...]) -> select.poll:
    """The poll object of this thread for these descriptors: a cache, because most waits are for the same ones again.

    It holds numbers only and tells the system anew at each wait, so a number that was closed and given out again is no
    trouble.
    """
    try:
        known: dict[tuple[int, ...], select.poll] = _polls.known
    except AttributeError:
        known = _polls.known = {}
    poll = known.get(fds)
    if poll is None:
        if len(known) >= _MAX_POLLS:
            known.clear()
        poll = known[fds] = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
    return poll


#: Both go on while the machine sleeps: Linux has another clock for that than the systems where CLOCK_MONOTONIC does.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) if LINUX else time.CLOCK_MONOTONIC


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        self._boot_id: str | None = None

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    #: Read at every step, several times: a call of C, without a frame of Python around it.
    steady_ns = staticmethod(partial(time.clock_gettime_ns, _STEADY))

    def boot_id(self) -> str:
        if self._boot_id is None:
            self._boot_id = _read_boot_id()
        return self._boot_id

    def random(self) -> float:
        return random.random()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        # poll counts in whole milliseconds; rounding up keeps a wait from ending early and spinning
        ready = _poll_for(tuple(fds)).poll(None if timeout_s is None else max(0, -int(-timeout_s * 1000 // 1)))
        return [fd for fd, _ in ready]

    def call_later(self, loop: AbstractEventLoop, seconds: float, call: Callable[[], None]) -> Alarm:
        return loop.call_later(seconds, call)


class ManualClock:
    """A clock for tests: time stands still until `advance` is called, and waits end when it has moved far enough."""

    def __init__(self, wall_ms: int = 1_790_000_000_000, seed: int = 0) -> None:
        self._lock = threading.Condition()
        self._wall_ms = wall_ms
        self._steady_ns = 1_000_000_000_000
        self._boot = "manual-1"
        self._random = random.Random(seed)
        self._sleepers: set[int] = set()
        self._alarms: set[_ManualAlarm] = set()

    def wall_ms(self) -> int:
        return self._wall_ms

    def steady_ns(self) -> int:
        return self._steady_ns

    def boot_id(self) -> str:
        return self._boot

    def random(self) -> float:
        return self._random.random()

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        with self._lock:
            self._wall_ms += round(seconds * 1000)
            self._steady_ns += round(seconds * 1_000_000_000)
            self._rouse()

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back; the steady clock does not notice."""
        with self._lock:
            self._wall_ms += round(seconds * 1000)
            self._rouse()

    def reboot(self) -> None:
        """Restart the steady clock, as after a restart of the machine."""
        with self._lock:
            self._steady_ns = 1_000_000_000
            self._boot = f"manual-{int(self._boot.rpartition('-')[2]) + 1}"
            self._rouse()

    def _rouse(self) -> None:
        self._lock.notify_all()
        for fd in self._sleepers:
            os.write(fd, b"!")
        due = {alarm for alarm in self._alarms if alarm.until_ns <= self._steady_ns}
        self._alarms -= due
        for alarm in due:
            alarm.go_off()

    def sleep(self, seconds: float) -> None:
        with self._lock:
            until = self._steady_ns + seconds * 1_000_000_000
            while self._steady_ns < until:
                self._lock.wait()

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        return self._wait_until(fds, None if timeout_s is None else self._steady_ns + timeout_s * 1_000_000_000)

    def _wait_until(self, fds: Sequence[int], until: float | None) -> list[int]:
        told, tell = os.pipe()
        poll = select.poll()  # and not select(), which knows no descriptor above 1,023
        for fd in (*fds, told):
            poll.register(fd, select.POLLIN)
        with self._lock:
            self._sleepers.add(tell)
        try:
            while True:
                out_of_time = until is not None and self._steady_ns >= until
                ready = [fd for fd, _ in poll.poll(0 if out_of_time else None)]
                if told in ready:
                    os.read(told, 4096)
                found = [fd for fd in fds if fd in ready]
                if found or out_of_time:
                    return found
        finally:
            with self._lock:
                self._sleepers.discard(tell)
            os.close(told)
            os.close(tell)

    def call_later(self, loop: AbstractEventLoop, seconds: float, call: Callable[[], None]) -> Alarm:
        with self._lock:
            alarm = _ManualAlarm(self._steady_ns + round(seconds * 1_000_000_000), loop, call)
            if alarm.until_ns <= self._steady_ns:
                alarm.go_off()
            else:
                self._alarms.add(alarm)
            return alarm


class _ManualAlarm:
    """A call that a loop makes when a `ManualClock` has been moved far enough."""

    def __init__(self, until_ns: int, loop: AbstractEventLoop, call: Callable[[], None]) -> None:
        self.until_ns = until_ns
        self._loop = loop
        self._call = call
        self._cancelled = False

    def go_off(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if not self._cancelled:
            self._call()

    def cancel(self) -> None:
        self._cancelled = True


SYSTEM: Final = SystemClock()

#: Chance that is the same again for the same seed, for simulations.
Chance = random.Random


def iso(ms: int) -> str:
    """A wall-clock time as text: 2026-11-15T06:48:50.123Z."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def from_iso(text: str) -> int:
    """The milliseconds of a time written as ISO 8601 (UTC unless it says otherwise)."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def span_text(ms: int) -> str:
    """A span as people say it, in the largest unit that fits: "4 min"; none is shorter than "0 s"."""
    passed_s = max(0, ms) / 1000
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= size_s:
            return f"{passed_s / size_s:.0f} {unit}"
    return f"{passed_s:.0f} s"


_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def span_s(text: str) -> float | None:
    """The seconds of a span written as people do: 90, 10s, 5m, 2h, 1d; None when it is none."""
    text = text.strip()
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS_S else (text, "s")
    digits = number.replace(".", "", 1)
    if not digits.isdecimal() or not digits.isascii() or number.endswith("."):
        return None
    seconds = float(number) * _UNITS_S[unit]
    return seconds if seconds < float("inf") else None


def sooner(first_s: float | None, second_s: float | None) -> float | None:
    """The shorter of two spans; None is no span."""
    return min((span_s for span_s in (first_s, second_s) if span_s is not None), default=None)
