"""Running the command line: inside this process for most tests, as a process of its own where that matters."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import termios
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from postroom.cli import main
from postroom.cli.table import COMMANDS

PATIENCE_S = 30.0


class Result(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Cli:
    """Runs commands in the current folder: `cli("send", "bob", "hi", "--as", "ada")`."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str, stdin: bytes = b"") -> Result:
        """Run a command; as at a terminal, without the fence that pipes get (tests/doors/test_hostile_names.py has that)."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        words = without_fence(*words)
        self._capsys.readouterr()
        code = main(words)
        return Result(code, *self._capsys.readouterr())

    def ok(self, *words: str, stdin: bytes = b"") -> Result:
        """Run a command that must end well."""
        result = self(*words, stdin=stdin)
        assert result.code == 0, result
        return result

    def json(self, *words: str) -> Any:
        """Run a command that must end well, and read the document it writes."""
        return self.ok(*words, "--json").json

    def send(self, text: str = "hi", *more: str, to: str = "bob") -> str:
        """Send a message from ada; returns its id."""
        return self.ok("send", to, text, "--as", "ada", "--new", *more).out.strip()


def without_fence(*words: str) -> tuple[str, ...]:
    """The words of a command that parses what it gets: with --plain, where the command knows it."""
    shows = any(word in COMMANDS and COMMANDS[word].quotes is not None for word in words[:1])
    return (*words, "--plain") if shows and not {"--json", "--plain", "--help"} & set(words) else words


def command(*words: str) -> list[str]:
    """The words that start the command line as a process of its own."""
    return [sys.executable, "-m", "postroom", *words]


def listing_modules(*words: str) -> str:
    """A program that runs a command as a process of its own would, and prints the modules that were really loaded."""
    return (
        "import sys; from postroom import cli; from postroom.core.system import startup; "
        f"startup.load_lazily(cli.DEFERRED); cli.main({list(words)}); print('\\n', *(name for name, module "
        "in sys.modules.items() if not isinstance(module, startup.LazyModule)))"
    )


def start(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command line as a process of its own, with pipes."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command(*words), text=True, **pipes | options)


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without what a developer may have set for Postroom."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("POSTROOM_CONFIG", "POSTROOM_PORTABLE") or not name.startswith("POSTROOM_")
    }
    return kept | more


class Terminal:
    """A program on a terminal of its own, where Ctrl-C reaches it and all that it started there."""

    #: Makes standard input the terminal that keys act on, and becomes the program.
    _ON_TERMINAL = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )

    def __init__(self, words: list[str], **variables: str) -> None:
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", self._ON_TERMINAL, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=clean_environment(TERM="xterm-256color", **variables),
            start_new_session=True,
        )

    def until(self, text: str) -> None:
        while text not in self.shown:
            ready, _, _ = select.select([self.ours], [], [], PATIENCE_S)
            assert ready, f"{text!r} never came; there is {self.shown!r}"
            self.shown += os.read(self.ours, 65536).decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self.ours, key)

    def end(self) -> int:
        """Read what still comes, and wait: the program must end by itself. Returns its exit code."""
        os.close(self.theirs)
        self.theirs = -1
        with suppress(OSError):  # the system's word for: no process has the terminal open any more
            while True:
                ready, _, _ = select.select([self.ours], [], [], PATIENCE_S)
                assert ready, f"it does not end; there is {self.shown!r}"
                self.shown += os.read(self.ours, 65536).decode(errors="replace")
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        if self.theirs >= 0:
            os.close(self.theirs)
