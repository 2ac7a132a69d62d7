"""Running a program to its end: words in, words out, within a deadline, and nothing of it left behind.

The program is a child of our fork server (`core/system/children.py`) and leads a process group of its own: at the
deadline, and also when this process is killed, everything it started is killed with it. It is started from a list of
words, never by a shell; the prompt comes on its standard input, so that nobody's words are ever an argument.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from postroom.core.clock import SYSTEM
from postroom.core.system.children import Ended, shared_server
from postroom.core.system.framing import read_frame, send_frame
from postroom.errors import ModelError, ModelMissing, ModelTimeout

MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
NOT_STARTED: Final = 127
_CHUNK_BYTES: Final = 64 * 1024


class Said(NamedTuple):
    """What a program wrote, and how it ended."""

    output: bytes
    errors: bytes
    ended: Ended
    first_byte_ms: float


def run_program(
    words: Sequence[str], given: str, *, environment: Mapping[str, str], folder: str, timeout_s: float
) -> Said:
    """Run it to its end with `given` on its standard input.

    Raises ModelMissing when there is no such program, ModelTimeout at the deadline, ModelError when it writes without
    end, and when the system starts no process for it. In all cases it and all it started are gone.
    """
    started_ns = SYSTEM.steady_ns()
    until_ns = started_ns + round(timeout_s * 1e9)
    child = shared_server(("postroom.inference.child_program",)).start("postroom.inference.child_program:become")
    try:
        task = {"words": list(words), "environment": dict(environment), "folder": folder, "given": given}
        with suppress(BrokenPipeError, ConnectionResetError):  # it ended already, or never was: its status says how
            send_frame(child.control, json.dumps(task).encode())
        parts: dict[int, list[bytes]] = {child.output: [], child.errors: []}
        open_ends = {child.output, child.errors}
        first_ns = 0
        while open_ends or child.ended is None:
            left_s = (until_ns - SYSTEM.steady_ns()) / 1e9
            if left_s <= 0:
                raise ModelTimeout(f"{words[0]} did not finish within {timeout_s:.3g} s; it was killed")
            watched = [*open_ends, *([child.status] if child.ended is None else [])]
            for end in SYSTEM.wait_readable(watched, left_s):
                if end == child.status:
                    child.read_status()
                elif chunk := _read(end):
                    first_ns = first_ns or SYSTEM.steady_ns()
                    parts[end].append(chunk)
                elif chunk is not None:
                    open_ends.discard(end)
            if sum(len(chunk) for chunks in parts.values() for chunk in chunks) > MAX_OUTPUT_BYTES:
                raise ModelError(f"{words[0]} wrote more than {MAX_OUTPUT_BYTES} bytes; it was killed")
        output, errors = (b"".join(parts[end]) for end in (child.output, child.errors))
        _check_started(words[0], child.ended, output, errors)
        return Said(output, errors, child.ended, max(0, first_ns - started_ns) / 1e6)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(1.0)
        child.close()


def _check_started(program: str, ended: Ended, output: bytes, errors: bytes) -> None:
    if ended.refused is not None:
        raise ModelError(f"the program {program!r} {ended}")
    if ended.code == NOT_STARTED and not output:
        raise ModelMissing(
            f"the program {program!r} cannot be run here ({errors.decode(errors='replace').strip()}); "
            "install it, or name another model in POSTROOM_MODEL"
        )


def _read(end: int) -> bytes | None:
    """What is there; b"" at its end; None when nothing is."""
    try:
        return os.read(end, _CHUNK_BYTES)
    except BlockingIOError:
        return None


def become(control: socket.socket) -> int:
    """In the child: turn into the program that the caller names. Returns only when that failed."""
    frame = read_frame(control)
    if frame is None:
        return NOT_STARTED
    task = json.loads(frame)
    with tempfile.TemporaryFile() as given:
        given.write(task["given"].encode("utf-8", "backslashreplace"))
        given.seek(0)
        os.dup2(given.fileno(), 0)
    try:
        os.chdir(task["folder"])
        os.execvpe(task["words"][0], task["words"], task["environment"])  # noqa: S606  a list of words, and no shell
    except OSError as error:
        os.write(2, str(error.strerror).encode())
    return NOT_STARTED
