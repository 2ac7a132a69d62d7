"""Which terminal a session of Codex belongs to, so that two of them in one folder are two agents.

Codex runs the sessions of all its terminals in one server of the user's, which stays when a terminal is closed and keeps its
session for half an hour. Hooks are children of that server, with its environment, and are told nothing of the terminal. So the
terminals are looked up among the running processes: a session gets one that no other session has, the one that was typed into
last. Where that cannot be seen (not Linux, an editor), the newest session has the name, as with any program without a process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from postroom.core.system import proc
from postroom.core.system.process import process_alive, process_name
from postroom.doors import session_binding
from postroom.doors.hosts import PROMPT, START
from postroom.mail.gateway import Gateway

PROGRAM: Final = "codex"
#: A server, and a run without a screen, have one of these words.
_WITHOUT_SCREEN: Final = (b"app-server", b"exec", b"e", b"review", b"queue", b"mcp-server")
#: The variables by which a terminal's agent has a name of its own.
WHO: Final = ("POSTROOM_AGENT", "POSTROOM_TOKEN", "POSTROOM_TOKEN_FILE")
#: Between a program and its hook stands a shell at most, and perhaps what started that.
_MAX_UP: Final = 3


class TerminalPlace(NamedTuple):
    """Where a session is: the process that it ends with, if that is known, and the environment it was started in."""

    process: str | None
    environment: Mapping[str, str]


def find(gateway: Gateway, session: str | None, event: str, cwd: object) -> TerminalPlace:
    """Where the session that called this hook is."""
    server = _caller()
    if server is None:
        return TerminalPlace(None, os.environ)
    if b"app-server" not in _words(server):
        return TerminalPlace(process_name(server), os.environ)  # a program with its server inside
    bound = session_binding.bound_to(gateway, "codex").values()
    mine = next((value["process"] for value in bound if session is not None and value["session"] == session), None)
    if (mine is None or process_alive(mine) is False) and event in (START, PROMPT):
        others = {value["process"] for value in bound if value["session"] != session}
        mine = _choose(cwd, others, or_taken=event == START)
    return TerminalPlace(mine, os.environ if mine is None else _environment(server, int(mine.split(":")[1])))


def _choose(cwd: object, others: set[str | None], *, or_taken: bool) -> str | None:
    """The free terminal that was typed into last; a new session may also begin where one was before."""
    there = [name for pid in _terminals(cwd) if (name := process_name(pid)) is not None]
    free = [name for name in there if name not in others]
    return next(iter(free or (there if or_taken else ())), None)


def _environment(server: int, terminal: int) -> dict[str, str]:
    """The hook's environment, but with the agent's name and token of the terminal, not of the server's parent."""
    servers, terminals = proc.environment_of(server), proc.environment_of(terminal)
    kept = {name: value for name, value in os.environ.items() if name not in WHO or servers.get(name) != value}
    return {name: value for name, value in terminals.items() if name in WHO} | kept


# Looking at processes, as Linux shows them


def _caller() -> int | None:
    """The Codex that started this process."""
    pid: int | None = os.getppid()
    for _ in range(_MAX_UP):
        if pid is None or proc.program_of(pid) == PROGRAM:
            return pid
        pid = proc.parent_of(pid)
    return None


def _terminals(cwd: object) -> list[int]:
    """The running Codex programs with a screen in that folder; the one that was typed into last is the first."""
    folder = os.path.realpath(cwd) if isinstance(cwd, str) else None
    found: list[tuple[int, int]] = []
    for pid in proc.pids():
        if proc.program_of(pid) == PROGRAM and not _words(pid) & set(_WITHOUT_SCREEN) and proc.folder_of(pid) == folder:
            typed_ns = proc.typed_into_ns(pid)
            if typed_ns is not None:
                found.append((typed_ns, pid))
    return [pid for _, pid in sorted(found, reverse=True)]


def _words(pid: int) -> set[bytes]:
    """The words of its command line that are not options."""
    return {word for word in proc.words_of(pid)[1:] if word and not word.startswith(b"-")}
