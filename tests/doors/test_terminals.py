"""Each program is an agent of its own: also Codex, which runs the sessions of all its terminals in one server.

The server and the terminals are real processes with Codex's name, in real terminals; only what they do is left out.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import clean_environment, command
from tests.support.systems import needs_linux

from postroom.doors import session_binding
from postroom.room import Room, open_room

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="other systems do not show other programs' terminals"
    ),
]

#: Calls the hook that is named on each line with what stands behind it, and says how it answered.
SERVER = 'while IFS= read -r line; do printf "%s" "$line" | {hook}; echo "$?"; done'


class Terminal:
    """A program called codex in a terminal of its own."""

    def __init__(self, program: Path, folder: Path, **environment: str) -> None:
        self._master, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        self.slave = os.ttyname(slave)
        self.process = subprocess.Popen(
            [program, "-c", "read line", "resume"], cwd=folder, env=clean_environment(**environment), stdin=slave
        )
        os.close(slave)

    def typed(self, time_s: int) -> None:
        """Somebody typed into it at that time."""
        os.utime(self.slave, (time_s, time_s))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


class Server:
    """A program called codex that runs the hooks of all sessions, with an environment of its own."""

    def __init__(self, program: Path, folder: Path, word: str = "app-server", **environment: str) -> None:
        self._folder = folder
        hook = shlex.join(command("hook", "auto"))
        self.process = subprocess.Popen(
            [program, "-c", SERVER.format(hook=hook), word],
            cwd=folder,
            env=clean_environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, session: str, event: str = "SessionStart", **more: Any) -> str:
        """Call a hook of a session; what the agent was told."""
        given = {"hook_event_name": event, "session_id": session, "cwd": str(self._folder), "turn_id": "t", **more}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(given) + "\n")
        self.process.stdin.flush()
        said = ""
        while not (line := self.process.stdout.readline()).strip().isdigit():
            assert line, "the server has ended"
            said += line.strip()
        assert int(line) == 0, f"the hook ended with {line}"
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def codex(tmp_path: Path) -> Path:
    """A program with that name."""
    (tmp_path / "bin").mkdir()
    shutil.copy(os.path.realpath("/bin/bash"), tmp_path / "bin" / "codex")
    return tmp_path / "bin" / "codex"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def room(folder: Path) -> Iterator[Room]:
    with open_room(f"sqlite:{folder}/.postroom") as room:
        yield room


@pytest.fixture
def opened() -> Iterator[list[Terminal | Server]]:
    opened: list[Terminal | Server] = []
    yield opened
    for each in opened:
        each.close()


class World:
    """A server and its terminals, in one folder."""

    def __init__(self, codex: Path, folder: Path, opened: list[Terminal | Server], **environment: str) -> None:
        self._codex, self._folder, self._opened = codex, folder, opened
        self._time_s = 4_000_000_000  # later than when any of them was opened
        self.hook = Server(codex, folder, **environment)
        opened.append(self.hook)

    def terminal(self, **environment: str) -> Terminal:
        terminal = Terminal(self._codex, self._folder, **environment)
        self._opened.append(terminal)
        return terminal

    def first_words(self, session: str, terminal: Terminal) -> str:
        """Somebody types a session's first prompt; the name that its agent is told."""
        self._time_s += 60
        terminal.typed(self._time_s)
        said = self.hook(session)
        return said.partition("you are the agent ")[2].partition(" ")[0]


@pytest.fixture
def world(codex: Path, folder: Path, room: Room, opened: list[Terminal | Server]) -> World:
    return World(codex, folder, opened)


def sessions(room: Room) -> dict[str, Any]:
    return {name: value["session"] for name, value in session_binding.bound_to(room.gateway, "codex").items()}


@needs_linux("the terminals of other programs to look at")
def test_two_terminals_in_one_folder_are_two_agents(world: World, room: Room) -> None:
    one, two = world.terminal(), world.terminal()

    assert world.first_words("s1", two) == "codex"
    assert world.first_words("s2", one) == "codex-2"
    world.hook("s1", "PostToolUse", tool_name="shell")
    world.hook("s2", "UserPromptSubmit")
    assert sessions(room) == {"codex": "s1", "codex-2": "s2"}


@needs_linux("the terminals of other programs to look at")
def test_a_terminal_that_has_a_session_is_not_given_to_another_though_it_was_typed_into_last(
    world: World, room: Room
) -> None:
    one = world.terminal()
    world.first_words("s1", one)
    two = world.terminal()
    two.typed(1_000_000)
    said = world.hook("s2")

    assert "the agent codex-2 " in said
    assert sessions(room) == {"codex": "s1", "codex-2": "s2"}


@needs_linux("the terminals of other programs to look at")
def test_when_a_terminal_is_closed_the_next_one_has_its_name_though_the_server_stays(world: World, room: Room) -> None:
    one, two = world.terminal(), world.terminal()
    world.first_words("s1", one)
    world.first_words("s2", two)
    one.close()

    assert world.first_words("s3", world.terminal()) == "codex"
    assert sessions(room) == {"codex": "s3", "codex-2": "s2"}
    world.hook("s1", "PostToolUse", tool_name="shell")  # the server still runs what the closed terminal began
    assert sessions(room) == {"codex": "s3", "codex-2": "s2", "codex-3": "s1"}


@needs_linux("the terminals of other programs to look at")
def test_a_new_session_in_the_same_terminal_keeps_the_name(world: World, room: Room) -> None:
    one, two = world.terminal(), world.terminal()
    world.first_words("s1", one)
    world.first_words("s2", two)

    assert world.first_words("s3", one) == "codex"
    assert sessions(room) == {"codex": "s3", "codex-2": "s2"}


@needs_linux("the terminals of other programs to look at")
def test_a_session_that_goes_on_in_another_terminal_keeps_its_name(world: World, room: Room) -> None:
    one = world.terminal()
    world.first_words("s1", one)
    one.close()
    two = world.terminal()
    world.hook("s1", "UserPromptSubmit")  # resumed there

    assert world.first_words("s2", world.terminal()) == "codex-2"
    assert two.process.poll() is None
    assert sessions(room) == {"codex": "s1", "codex-2": "s2"}


@needs_linux("the terminals of other programs to look at")
def test_a_name_is_the_terminals_and_not_that_of_who_started_the_server(
    codex: Path, folder: Path, room: Room, opened: list[Terminal | Server]
) -> None:
    world = World(codex, folder, opened, POSTROOM_AGENT="reviewer")
    reviewer, other = world.terminal(POSTROOM_AGENT="reviewer"), world.terminal()

    assert world.first_words("s1", other) == "codex"
    assert world.first_words("s2", reviewer) == "reviewer"
    world.hook("s1", "Stop")
    world.hook("s2", "Stop")
    assert sessions(room) == {"codex": "s1", "reviewer": "s2"}


@needs_linux("the terminals of other programs to look at")
def test_a_program_with_its_server_inside_is_its_own_process(
    codex: Path, folder: Path, room: Room, opened: list[Terminal | Server]
) -> None:
    one, two = Server(codex, folder, "resume"), Server(codex, folder, "resume")
    opened += [one, two]

    assert "the agent codex " in one("s1")
    assert "the agent codex-2 " in two("s2")
    one.close()
    three = Server(codex, folder, "resume")
    opened.append(three)
    assert "the agent codex " in three("s3")


def test_a_server_whose_terminals_cannot_be_seen_gives_the_newest_the_name(world: World, room: Room) -> None:
    assert "the agent codex " in world.hook("s1")
    assert "the agent codex " in world.hook("s2")
    assert sessions(room) == {"codex": "s2"}


def test_two_programs_that_start_our_hooks_themselves_are_two_agents(
    codex: Path, folder: Path, room: Room, opened: list[Terminal | Server]
) -> None:
    one, two = (Server(codex, folder, "gemini", GEMINI_SESSION_ID=session) for session in ("s1", "s2"))
    opened += [one, two]

    assert "the agent gemini " in one("s1")
    assert "the agent gemini-2 " in two("s2")
    one.close()
    assert "the agent gemini-2 " in two("s3")  # another session of the same program
    assert session_binding.bound_to(room.gateway, "gemini").keys() == {"gemini", "gemini-2"}
