"""Completion is switched on and off by one command, and a real shell then completes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from .support import PATIENCE_S, Cli, clean_environment

FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/postroom.fish"}
if sys.platform == "darwin":
    FILES["bash"] = ".bash_profile"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "my home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.mark.parametrize("shell", FILES)
def test_it_says_which_file_it_wrote_and_writes_it_once(cli: Cli, home: Path, shell: str) -> None:
    path = home / FILES[shell]

    first = cli.ok("completion", shell, "--install").out
    written = path.read_bytes()
    again = cli.ok("completion", shell, "--install").out

    assert f"wrote   {path}" in first
    assert f"completion is on for {shell}" in first
    assert again == f"completion is already on for {shell}\n"
    assert path.read_bytes() == written


@pytest.mark.parametrize("shell", FILES)
@pytest.mark.parametrize("before", [None, b"", b"# mine\nalias p=postroom", b"# mine\n\n"])
def test_uninstalling_gives_back_every_byte(cli: Cli, home: Path, shell: str, before: bytes | None) -> None:
    path = home / FILES[shell]
    if before is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(before)

    cli.ok("completion", shell, "--install")
    said = cli.ok("completion", shell, "--uninstall").out

    assert f"completion is off for {shell}" in said
    assert (path.read_bytes() if path.exists() else None) == before
    assert cli.json("completion", shell, "--uninstall") == {"shell": shell, "changes": []}


def test_what_was_written_below_it_since_stays(cli: Cli, home: Path) -> None:
    path = home / FILES["bash"]
    path.write_text("# mine\n", encoding="utf-8")
    cli.ok("completion", "bash", "--install")
    with path.open("a", encoding="utf-8") as file:
        file.write("alias ll='ls -l'\n")

    cli.ok("completion", "bash", "--uninstall")

    assert path.read_text(encoding="utf-8") == "# mine\nalias ll='ls -l'\n"


def test_the_shell_is_the_users_own_unless_it_is_named(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    assert cli.json("completion", "--install")["changes"] == [{"path": str(home / ".zshrc"), "change": "made"}]

    monkeypatch.setenv("ZDOTDIR", str(home / "z"))
    assert cli.json("completion", "--install")["changes"] == [{"path": str(home / "z" / ".zshrc"), "change": "made"}]


@pytest.mark.parametrize(("shell", "said"), [("/bin/tcsh", "$SHELL is '/bin/tcsh'"), ("", "SHELL is not set")])
def test_a_shell_that_it_does_not_know_is_named(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, shell: str, said: str
) -> None:
    monkeypatch.setenv("SHELL", shell)

    result = cli("completion", "--install")

    assert result.code == 2
    assert f"which shell? {said}; expected one of bash, zsh, fish" in result.err
    assert list(home.iterdir()) == []


def test_a_pipe_in_the_place_of_the_settings_is_not_waited_for(cli: Cli, home: Path) -> None:
    os.mkfifo(home / FILES["bash"])

    result = cli("completion", "bash", "--install")

    assert (result.code, result.err) == (
        1,
        f"postroom: {home / FILES['bash']} is a pipe, not a file; nothing was changed\n",
    )


@pytest.mark.parametrize("blocked", [".config/fish", ".local/share/postroom"])
def test_where_nothing_can_be_written_nothing_is_left_and_the_file_is_named(cli: Cli, home: Path, blocked: str) -> None:
    """A file in the place of a folder keeps root out, too."""
    (home / blocked).parent.mkdir(parents=True)
    (home / blocked).touch()
    before = sorted(home.rglob("*"))

    result = cli("completion", "fish", "--install")

    assert result.code == 1
    assert re.search(rf"{blocked}/\S+(fish|json) cannot be (read|written) \(.*; nothing was changed", result.err), (
        result.err
    )
    assert sorted(home.rglob("*")) == before


class Shell:
    """A shell at a terminal, as a person has it."""

    def __init__(self, name: str, home: Path, cwd: Path) -> None:
        environment = clean_environment(HOME=str(home), TERM="xterm", PATH=f"{home}/bin:{os.environ['PATH']}")
        environment.pop("POSTROOM_URL", None)
        master, slave = pty.openpty()
        self._master = master
        self.process = subprocess.Popen(
            [name, "-i"],
            cwd=cwd,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  fish runs at a terminal of its own alone
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} was not shown, but: {self.seen!r}"
            self.seen += os.read(self._master, 65536).decode("utf-8", "replace")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_new_shell_completes_commands_states_and_names(cli: Cli, home: Path, tmp_path: Path, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not on this machine; its package has the same name")
    cli.ok("init")
    cli.ok("subscribe", "news", "--as", "reviewer")
    (home / "bin").mkdir()
    program = home / "bin" / "postroom"
    # says what it was called with: what the shell shows while it completes differs from shell to shell
    program.write_text(
        f'#!/bin/sh\n[ "$1" != completion ] || exec "{sys.executable}" -m postroom "$@"\necho "ran <$*>"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    cli.ok("completion", name, "--install")

    shell = Shell(name, home, tmp_path)
    try:
        for typed, ran in (
            ("postroom mailb\t\n", "ran <mailboxes>"),
            ("postroom peek --state answ\t\n", "ran <peek --state answered>"),
            ("postroom send rev\thello\n", "ran <send reviewer hello>"),
        ):
            shell.type(typed)
            shell.wait_for(ran)
    finally:
        shell.close()
