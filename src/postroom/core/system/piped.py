"""A program that is spoken to over its standard input and output, under asyncio, in a session of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from .process import process_descriptor

#: How long a program may take to end by itself when its input is closed, and again after SIGTERM, in seconds.
PATIENCE_S: Final = 3.0
#: So much of the end of what it writes to its standard error is kept.
KEPT_BYTES: Final = 4096
_LOOK_S: Final = 0.005


class PipedProgram:
    """One running program. What a terminal sends to the caller is not for it. `end` it, however the caller ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.writer, self.reader = process.stdin, process.stdout
        self._errors = bytearray()
        self._draining = asyncio.create_task(self._drain())

    @classmethod
    async def start(cls, words: Sequence[str], environment: Mapping[str, str], folder: str) -> PipedProgram:
        """Start it. OSError when it cannot be."""
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=folder, start_new_session=True
            )
        )

    @property
    def complaint(self) -> str:
        """The last line that it wrote to its standard error; "" for none."""
        lines = bytes(self._errors).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def _drain(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(KEPT_BYTES):
            self._errors += chunk
            del self._errors[:-KEPT_BYTES]

    async def ended(self) -> None:
        """Return when the program itself has ended, also while a child that it left holds its pipes.

        `wait` of asyncio's own process waits for the pipes too, in some versions of Python.
        """
        descriptor = process_descriptor(self.process.pid) if self.process.returncode is None else None
        if descriptor is not None:
            over = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(descriptor, over.set)
            try:
                await over.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        while self.process.returncode is None:  # noqa: ASYNC110  asyncio's own watcher tells its process alone
            await asyncio.sleep(_LOOK_S)

    async def end(self) -> int:
        """End it and its process group: by the end of its input, then SIGTERM, then SIGKILL. Returns its exit status."""
        with suppress(OSError, RuntimeError):
            self.writer.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended(), PATIENCE_S)
                break
            self._signal(number)
        await self.ended()
        self._signal(signal.SIGKILL)  # what it left behind
        self._draining.cancel()
        await asyncio.gather(self._draining, return_exceptions=True)
        # a child that it left in another session may hold its pipes, whose end would never come
        self.process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
        return await self.process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
