"""Rooms for tests: every test that asks for `room` or `open_room` runs on each store, with time under its control."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import pytest
from tests.support.nats_servers import end_shared_server, room_name, shared_server
from tests.support.patience import PATIENCE_S
from tests.support.watched_clock import WatchedClock

from postroom.core.system.children import close_shared_server
from postroom.core.system.children import shared_server as start_server
from postroom.room import Room
from postroom.room import open_room as postroom_open

T = TypeVar("T")


@pytest.fixture(scope="session", autouse=True)
def _servers_end_with_the_run() -> Iterator[None]:
    yield
    end_shared_server()


#: Suites that run on NATS with the long tests only: what they test stands on the store's contract, which runs there always.
LONG_ON_NATS = (
    "tests/aio/",
    "tests/board/test_by_hand.py",
    "tests/board/test_mail.py",
    "tests/board/test_reservations.py",
    "tests/mail/test_agent.py",
    "tests/mail/test_leases.py",
    "tests/mail/test_serving.py",
    "tests/sessions/test_delegate.py",
    "tests/sessions/test_mailbox.py",
    "tests/test_patterns.py",
)

#: Of those suites, what runs there always: that another process comes to the room, works in it, dies, and is missed.
SHORT_ON_NATS = tuple(
    f"tests/sessions/test_delegate.py::test_{name}["
    for name in (
        "a_failing_grandchild_fails_everybody",
        "a_worker_that_cannot_open_the_room_says_why",
        "a_worker_that_dies_fails_the_session",
        "delegate_function_in_runtime",
        "large_arguments_and_results_pass",
        "outsiders_hear_of_the_failure",
    )
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        on = getattr(item, "callspec", None)
        if on is None or "nats" not in (on.params.get(room) for room in ("url", "real_room", "any_room")):
            continue
        if item.nodeid.startswith(LONG_ON_NATS) and not item.nodeid.startswith(SHORT_ON_NATS):
            item.add_marker(pytest.mark.long)


class Background(Generic[T]):
    """A call in a thread of its own, whose result or error can be asked for."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def comes_to_wait(self, clock: WatchedClock, timeout_s: float) -> bool:
        """Return when it waits for the clock, or is over; False when neither happens in this real time."""
        until_s = time.monotonic() + timeout_s
        while not (waits := clock.is_waiting(self._thread)) and self.running and time.monotonic() < until_s:
            self._thread.join(0.0005)
        return waits

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def result(self) -> T:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it still runs"
        if self._error is not None:
            raise self._error
        return self._result


@pytest.fixture
def no_more_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """While there is such a file, the system starts no process for the fork server of this process."""
    close_shared_server()
    mark = tmp_path / "no-more-processes"
    monkeypatch.setenv("TEST_NO_MORE_PROCESSES", str(mark))
    start_server(["tests.support.few_processes"])
    yield mark
    close_shared_server()


@pytest.fixture
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a sync costs nothing, where there is one: for tests that are not about the disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("on-disk")
        return
    with TemporaryDirectory(prefix="postroom-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(
    params=["memory", "sqlite", *(pytest.param(scheme, marks=pytest.mark.slow) for scheme in ("files", "nats"))]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a room of this test's own; opening it twice gives the same room."""
    if request.param == "nats":
        return f"nats://{shared_server().address}/{room_name()}"
    if request.param == "memory":
        return f"memory:{tmp_path.name}"
    return f"{request.param}:{request.getfixturevalue('in_memory')}/room"


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock()


@pytest.fixture
def open_room(url: str, clock: WatchedClock) -> Iterator[Callable[..., Room]]:
    """Opens the test's room, with settings; closes all of them afterwards."""
    opened: list[Room] = []

    def open_one(**settings: Any) -> Room:
        opened.append(postroom_open(url, **{"clock": clock, **settings}))
        return opened[-1]

    yield open_one
    for room in reversed(opened):
        room.close()


@pytest.fixture
def room(open_room: Callable[..., Room]) -> Room:
    return open_room()


@pytest.fixture
def in_background() -> Callable[[Callable[[], Any]], Background[Any]]:
    return Background


#: In real seconds: a call that has not come to wait for the clock within this time waits for something else.
LOOK_S = 1.0


@pytest.fixture
def pass_time(clock: WatchedClock) -> Callable[..., None]:
    """Lets time pass, a quarter of a second at a time, until a call in the background is over.

    Time passes when the call waits for it, so that a slow machine or a slow server changes nothing. A call that waits
    in other ways (in a loop, in another thread) gets `look_s` of real time for each step.
    """

    def until_over(call: Background[Any], step_s: float = 0.25, look_s: float = 0.002) -> None:
        patience_s = LOOK_S
        for _ in range(4000):
            patience_s = LOOK_S if call.comes_to_wait(clock, patience_s) else look_s
            if not call.running:
                return
            clock.advance(step_s)
            call.join(look_s)
        raise AssertionError("however much time passes, it does not end")

    return until_over
