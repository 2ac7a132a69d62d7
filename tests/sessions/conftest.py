"""Rooms with real time for tests with real processes, and a check that none is left."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest
from tests.support.nats_servers import room_name, shared_pids, shared_server

from postroom.core.system.children import Child, ForkServer
from postroom.core.system.watch import LISTENER
from postroom.mail.gateway import Gateway
from postroom.room import Room, open_room
from postroom.stores.contract import Waiter

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


class WatchedWaiter:
    """A waiter of which is seen whether it was closed."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._waiter, name)

    def close(self) -> None:
        self._waiter.close()
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def not_let_go(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[object]]:
    """What sessions have opened in this test and not closed yet: waiters, children, files that are waited for."""
    waiters: list[WatchedWaiter] = []
    children: list[Child] = []
    listen, start = Gateway.listen, ForkServer.start

    def watched_listen(gateway: Gateway, topics: Iterable[str]) -> WatchedWaiter:
        waiters.append(WatchedWaiter(listen(gateway, topics)))
        return waiters[-1]

    def watched_start(server: ForkServer, target: str) -> Child:
        children.append(start(server, target))
        return children[-1]

    monkeypatch.setattr(Gateway, "listen", watched_listen)
    monkeypatch.setattr(ForkServer, "start", watched_start)
    return lambda: [
        *(waiter for waiter in waiters if not waiter.closed),
        *(child for child in children if child.status >= 0),
        *(file.path for file in LISTENER._files),
    ]


@pytest.fixture
def pipes_left(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[int]]:
    """The ends of pipes and socket pairs that this thread has made in this test, and not closed yet."""
    made: set[int] = set()
    sockets: list[socket.socket] = []
    me, pipe, close, socketpair = threading.current_thread(), os.pipe, os.close, socket.socketpair

    def watched_pipe() -> tuple[int, int]:
        ends = pipe()
        if threading.current_thread() is me:
            made.update(ends)
        return ends

    def watched_close(fd: int) -> None:
        close(fd)
        if threading.current_thread() is me:
            made.discard(fd)

    def watched_socketpair() -> tuple[socket.socket, socket.socket]:
        pair = socketpair()
        if threading.current_thread() is me:
            sockets.extend(pair)
        return pair

    monkeypatch.setattr(os, "pipe", watched_pipe)
    monkeypatch.setattr(os, "close", watched_close)
    monkeypatch.setattr(socket, "socketpair", watched_socketpair)
    return lambda: made | {each.fileno() for each in sockets if each.fileno() >= 0}


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
