"""The throttle before a server: a concurrency limit over processes, retries with backoff, a circuit breaker.

How many ask one server at the same time is counted over all processes of this user on this machine: each worker is a
process, so a count per process would bound nothing. A slot is a locked file; the system frees it when its holder dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from postroom.core.backoff import backoff_s
from postroom.core.clock import SYSTEM, Clock
from postroom.core.limits import CircuitBreaker
from postroom.core.system.watch import FolderWatch, NoWatch, watch_folders
from postroom.errors import CircuitOpen, ModelError, ModelMissing, ModelTimeout

from .http import ServerBroken, ServerBusy
from .model import Completion, Model, ModelRequest, ModelUnknown
from .once import OncePerKey

T = TypeVar("T")

CONCURRENCY_VARIABLE: Final = "POSTROOM_MODEL_CONCURRENCY"
CONCURRENCY: Final = 4
#: So often a request is made that a busy or broken server did not answer.
MAX_TRIES: Final = 4
BACKOFF_BASE_S: Final = 0.25
BACKOFF_CAP_S: Final = 10.0
#: After so many failures in a row a server is left alone for so long.
FAILURES: Final = 5
REST_S: Final = 30.0
#: A freed slot wakes the waiting callers; should that hint be lost, they look by themselves after so long.
_SAFETY_S: Final = 1.0


class Throttle:
    """The way to one server, for all threads of this process."""

    def __init__(self, server: str, concurrency: int | None = None, *, clock: Clock = SYSTEM) -> None:
        self.server = server
        self.slots = Slots(server, concurrency_of(os.environ) if concurrency is None else concurrency)
        self.breaker = CircuitBreaker(FAILURES, REST_S, clock=clock)
        self._clock = clock

    def ask(self, call: Callable[[float], T], timeout_s: float) -> T:
        """Make a call, which gets the seconds that are left to it, and return its result.

        A busy or broken server is asked again, later each time, while there is time. Raises what the last call raised;
        ModelTimeout when no slot came free; ModelError when the server failed so often that it is left alone.
        """
        until_ns = self._clock.steady_ns() + round(timeout_s * 1e9)
        with self.slots.taken(timeout_s):
            try:
                outcome = self.breaker.call(self._tries, call, until_ns)
            except CircuitOpen:
                raise ModelError(
                    f"{self.server} failed {FAILURES} times in a row; it will not be called for {REST_S:g} s"
                ) from None
        if isinstance(outcome, ModelError):
            raise outcome
        return outcome

    def _tries(self, call: Callable[[float], T], until_ns: int) -> T | ModelError:
        """The result, or an error that is no fault of the server; raises what speaks against the server."""
        for number in range(1, MAX_TRIES + 1):
            left_s = (until_ns - self._clock.steady_ns()) / 1e9
            try:
                return call(max(left_s, 0.001))
            except (ServerBusy, ServerBroken) as trouble:
                wait_s = self._pause_s(number, trouble)
                if number == MAX_TRIES or self._clock.steady_ns() + wait_s * 1e9 >= until_ns:
                    raise
                self._clock.sleep(wait_s)
            except ModelError as fault:
                if isinstance(fault, ModelMissing | ModelTimeout) and not isinstance(fault, ModelUnknown):
                    raise
                return fault  # a wrong name or key must not close the server to others (test_faults.py)
        raise AssertionError("the last try returns or raises")

    def _pause_s(self, number: int, trouble: ServerBusy | ServerBroken) -> float:
        wish_s = trouble.retry_after_s if isinstance(trouble, ServerBusy) else None
        ours_s = backoff_s(number, self._clock.random(), BACKOFF_BASE_S, BACKOFF_CAP_S)
        return ours_s if wish_s is None else max(wish_s, ours_s)


def concurrency_of(environ: Mapping[str, str]) -> int:
    """How many may ask one server, or run one program, at once.

    Raises ModelError when the variable holds no such number.
    """
    said = environ.get(CONCURRENCY_VARIABLE) or str(CONCURRENCY)
    if not said.isdecimal() or not 1 <= int(said) <= 1000:
        raise ModelError(f"{CONCURRENCY_VARIABLE} must be a number from 1 to 1000, not {said!r}")
    return int(said)


class Slots:
    """So many may ask one server at the same time, whichever process of this user they are in."""

    def __init__(self, server: str, count: int, folder: Path | None = None) -> None:
        name = hashlib.sha256(server.encode()).hexdigest()[:16]
        self.count = count
        self._folder = (private_folder() if folder is None else folder) / f"model-{name}"

    @contextmanager
    def taken(self, timeout_s: float) -> Iterator[int]:
        """Hold a slot for the block; its number. ModelTimeout, and nothing held, when none came free in time."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as held:
            files = [self._open(held, number, os.O_RDONLY | os.O_CREAT) for number in range(self.count)]
            number = _first_locked(files)
            if number is None:
                number = self._wait(files, timeout_s)
            self._open(held, number, os.O_WRONLY)  # closed after use, which wakes the waiting callers
            try:
                yield number
            finally:
                fcntl.flock(files[number], fcntl.LOCK_UN)

    def _open(self, held: ExitStack, number: int, flags: int) -> int:
        descriptor = os.open(self._folder / str(number), flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        held.callback(os.close, descriptor)
        return descriptor

    def _wait(self, files: list[int], timeout_s: float) -> int:
        until_ns = SYSTEM.steady_ns() + round(timeout_s * 1e9)
        with ExitStack() as watching:
            watches: dict[int, FolderWatch] = {}  # by descriptor; none: the safety look alone
            pause_s = _SAFETY_S
            with suppress(NoWatch):
                watch = watch_folders()
                watching.callback(watch.close)
                watch.add(self._folder, "slots")
                if watch.look_every_s is None:
                    watches[watch.fileno()] = watch
                else:
                    pause_s = watch.look_every_s
            while (number := _first_locked(files)) is None:
                left_s = (until_ns - SYSTEM.steady_ns()) / 1e9
                if left_s <= 0:
                    raise ModelTimeout(f"all {self.count} slots for the model server were taken for {timeout_s:g} s")
                for end in SYSTEM.wait_readable([*watches], min(left_s, pause_s)):
                    watches[end].read()
            return number


def _first_locked(files: list[int]) -> int | None:
    """Lock one of the files, if one is free; which."""
    for number, descriptor in enumerate(files):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return number
    return None


def private_folder() -> Path:
    """A folder of this user on this machine that others cannot write to.

    Raises ModelError when it is somebody else's.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"postroom-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or not folder.is_dir() or folder.is_symlink():
        raise ModelError(f"{folder} is not a private folder of this user; remove it, or set XDG_RUNTIME_DIR")
    return folder


@OncePerKey
def gate_to(server: str) -> Throttle:
    """The gate to a server: one for each in this process."""
    return Throttle(server)


os.register_at_fork(after_in_child=gate_to.forget)  # another thread may have held a lock of theirs


class ServerModel(Model):
    """A model at an HTTP server. All models of one server share its throttle."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    @property
    def spec(self) -> str:
        return f"{self.kind}:{self.name}@{self.url}"

    def _answer(self, asked: ModelRequest) -> Completion:
        parts = urlsplit(self.url)
        throttle = gate_to(f"{parts.scheme}://{parts.netloc}")
        return throttle.ask(lambda left_s: self._ask(asked, left_s), asked.timeout_s)

    @abstractmethod
    def _ask(self, asked: ModelRequest, left_s: float) -> Completion:
        """Ask once, within that time."""
