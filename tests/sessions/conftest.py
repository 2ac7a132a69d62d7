"""Rooms with real time for tests with real processes, and a check that none is left."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.support.nats_servers import room_name, shared_pids, shared_server

from postroom.room import Room, open_room

ON_NATS = pytest.param("nats", marks=pytest.mark.slow)


def address(scheme: str, folder: Path) -> str:
    """Where a room of that kind is, for one test."""
    if scheme == "nats":
        return f"nats://{shared_server().address}/{room_name()}"
    return "memory:" if scheme == "memory" else f"{scheme}:{folder}/room"


@pytest.fixture(params=["sqlite", ON_NATS])
def real_room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    """A room that other processes see, with the machine's own time."""
    with open_room(address(request.param, tmp_path)) as room:
        yield room


@pytest.fixture(params=["memory", "sqlite", ON_NATS])
def any_room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    """A room with the machine's own time, in which workers are threads or processes."""
    with open_room(address(request.param, tmp_path)) as room:
        yield room


def runs(pid: int) -> bool:
    """Whether a process of that pid works, and is not just waiting to be forgotten."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, and theirs; but not the NATS server of the whole run."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in shared_pids():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found += [int(name), *children_of(int(name))]
    return found


def open_descriptors() -> set[int]:
    """The descriptors of this process, as numbers."""
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {number for number in found if os.path.exists(f"/proc/self/fd/{number}")}  # not that of the look itself


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """For a while this process may open so many files more, and then gets EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = open_descriptors()
    free = (number for number in range(soft) if number not in taken)
    limit = [next(free) for _ in range(count + 1)][-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def interrupt_at(place: int, event: str, *names: str) -> Callable[[FrameType, str, Any], Any]:
    """For `sys.settrace`: Ctrl-C before the line, or opcode, of that number in functions of these names."""
    left = iter(range(place))

    def step(frame: FrameType, happened: str, arg: Any) -> Any:
        frame.f_trace_opcodes = True
        if happened == event and next(left, None) is None:
            sys.settrace(None)
            raise KeyboardInterrupt
        return step

    return lambda frame, happened, arg: step(frame, happened, arg) if frame.f_code.co_name in names else None
