"""The measured processes, as seen by the one who starts them."""

from __future__ import annotations

import selectors
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from postroom.errors import PostroomError

from .client import NotHere, Peer
from .task import BenchTask, Found


class BenchFailed(PostroomError):
    """A measured process did not do what it was told."""


class MeasuredProcess:
    """One process with its task."""

    def __init__(self, task: BenchTask, program: Sequence[str] = Peer.program) -> None:
        self.task = task
        self._process = subprocess.Popen(
            list(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._tell(msgspec.json.encode(task))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def await_ready(self) -> None:
        """Return when its client is open."""
        self.await_word("ready", 0)

    def await_word(self, word: str, cap_s: float | None = None) -> None:
        """Return when it says so."""
        said = self._hear((self.task.cap_s if cap_s is None else cap_s) + self.task.patience_s)
        if said != word:
            raise NotHere(str(said.get("not_here", said)))

    def go(self) -> None:
        """Let it begin."""
        self._tell(b"go")

    def found(self) -> Found:
        """What it found, when it is done."""
        said: Found = self._hear(self.task.cap_s + self.task.patience_s)
        if "not_here" in said:
            raise NotHere(said["not_here"])
        return said

    def _hear(self, patience_s: float) -> Any:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(patience_s):
                raise BenchFailed(f"{self._who()} did not report for {patience_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            why = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise BenchFailed(f"{self._who()} ended: {why[-1] if why else 'without an error message'}")
        return msgspec.json.decode(line)

    def _who(self) -> str:
        return f"the process that should {self.task.role} with {self.task.peer}"
