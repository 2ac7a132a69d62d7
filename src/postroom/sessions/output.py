"""The output of workers: kept in files of the session's folder, and shown line by line behind the worker's name."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TextIO

from postroom.core.system.files import no_follow

#: Of each stream of each worker, so much is kept. What comes later is shown, but not kept.
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
#: A line that is longer is shown in pieces.
_MAX_LINE: Final = 64 * 1024
_CHUNK: Final = 256 * 1024
_CHUNKS: Final = 16
FOLDER: Final = "workers"
OUT: Final = "out"
ERR: Final = "err"


def output_path(session_folder: Path, number: int, name: str, stream: str) -> Path:
    """Where one stream (out or err) of a worker is kept. There is no file while it wrote nothing."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return session_folder / FOLDER / f"{number:04d}-{plain}.{stream}"


class Screen:
    """Where the output of workers and the line about their progress are shown. One for each delegation."""

    def __init__(self, *, show: bool) -> None:
        self._show = show
        self.progress = ""

    @property
    def shows_progress(self) -> bool:
        """Whether there is a terminal to show it on."""
        return self._show and _is_terminal(sys.stderr)

    def lines(self, name: str, text: str, *, error: bool) -> None:
        """Show whole lines of a worker."""
        if self._show:
            self.wipe()
            stream = sys.stderr if error else sys.stdout
            _write(stream, "".join(f"[{name}] {line}\n" for line in text.removesuffix("\n").split("\n")))

    def say(self, progress: str) -> None:
        """Show how far it is, on one line that the next one replaces; on a terminal only."""
        if progress != self.progress and self.shows_progress:
            width = _width()
            self.wipe()
            _write(sys.stderr, f"\r\x1b[2m{progress[: width - 1]}\x1b[0m")
            self.progress = progress

    def wipe(self) -> None:
        """Take the line about the progress away."""
        if self.progress:
            _write(sys.stderr, "\r\x1b[K")
            self.progress = ""


class OutputStream:
    """One stream of one worker: from its pipe into its file and onto the screen."""

    def __init__(self, fd: int, path: Path, name: str, screen: Screen, *, error: bool) -> None:
        self.fd = fd
        self._path = path
        self._name = name
        self._screen = screen
        self._error = error
        self._file: BinaryIO | None = None
        self._kept_bytes = 0
        self._rest = b""
        self.open = True

    def pump(self) -> None:
        """Take what is there, or so much of it that the others get their turn; never waits."""
        for _ in range(_CHUNKS):
            if not self.open:
                return
            try:
                raw = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            if not raw:
                self.finish()
                return
            self._keep(raw)
            whole, newline, rest = (self._rest + raw).rpartition(b"\n")
            if len(rest) > _MAX_LINE:
                whole, newline, rest = whole + newline + rest, b"\n", b""
            if newline:
                self._show(whole)
            self._rest = rest

    def finish(self) -> None:
        """Nothing more comes: show the last line, also if it has no end."""
        if self.open:
            self.open = False
            if self._rest:
                self._show(self._rest)
            if self._file is not None:
                self._file.close()

    def _show(self, raw: bytes) -> None:
        self._screen.lines(self._name, raw.decode("utf-8", "backslashreplace"), error=self._error)

    def _keep(self, raw: bytes) -> None:
        left = MAX_KEPT_BYTES - self._kept_bytes
        self._kept_bytes += len(raw)
        if left <= 0:
            return
        with suppress(OSError):  # a full disk must not end the work that it only watches
            if self._file is None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = open(self._path, "wb", buffering=0, opener=no_follow)  # noqa: SIM115  closed by `finish`
            self._file.write(raw[:left] + (b"\n(the rest was not kept)\n" if len(raw) >= left else b""))


def _write(stream: TextIO, text: str) -> None:
    # a screen that cannot be written to (closed, or a pipe whose reader left) is no reason to fail a session
    with suppress(OSError, ValueError):
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
