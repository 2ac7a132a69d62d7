"""The agent programs that Postroom was installed for, each asked itself whether it accepts the installation."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from postroom.doors.hosts import HOSTS
from postroom.doors.install import lasting, plans, work
from postroom.errors import PostroomError

from . import FAIL, OK, WARN, Check

#: A program gets this long to say what it thinks of our door, in seconds.
PATIENCE_S: Final = 30.0

NO_TOOLS: Final = "the MCP server cannot start: the package mcp is missing"
NO_HOME: Final = "there is no home folder: HOME is not set, and the system has no entry for this user"
SET_HOME: Final = "set HOME to one of your folders"


def has_tools() -> bool:
    """Whether the server that we installed can start."""
    return all(find_spec(name) is not None for name in ("mcp", "uvicorn"))


def home() -> Path | None:
    """The home folder; None where it is unknown, as in a container that runs as any user."""
    try:
        return Path.home()
    except RuntimeError:
        return None


class HostProbe(NamedTuple):
    """How a program is asked: the words to run, and what its output has in it when all is well."""

    program: str
    words: Callable[[plans.Wish], list[str]]
    has: tuple[str, ...] = ()


JUDGES: Final = {
    "claude-code": HostProbe("claude", lambda w: ["plugin", "validate", "--strict", str(plans.claude_folder(w))]),
    "codex": HostProbe("codex", lambda _: ["mcp", "list", "--json"], ('"postroom"',)),
    "gemini": HostProbe("gemini", lambda w: ["extensions", "validate", str(plans.gemini_folder(w))]),
    "copilot": HostProbe("copilot", lambda _: ["mcp", "list"], ("postroom",)),
    "qwen": HostProbe("qwen", lambda _: ["mcp", "list"], ("postroom", "Connected")),
    "opencode": HostProbe("opencode", lambda _: ["mcp", "list"], ("postroom", "connected")),
}


def doors(project: Path, home: Path | None) -> Iterator[Check]:
    """One check for each installed door; nothing when there is none."""
    if home is None:
        yield Check("home", WARN, f"{NO_HOME}; agent programs cannot be checked", SET_HOME)
        return
    for host in HOSTS:
        for scope in plans.SCOPES:
            wish = plans.Wish(host, scope, None, project, home)
            if work.record_path(wish).exists():
                yield _door(wish)


def _door(wish: plans.Wish) -> Check:
    name = f"door {wish.host}"
    scope = " --scope project" if wish.scope == "project" else ""
    again = f"`postroom install {wish.host}{scope}` brings it up to date"
    try:
        files = work.needed_files(wish)
        missing = [path for path in files if not path.is_file()] or work.missing_programs(files)
        work.plan_install(wish)  # says what is wrong with settings that cannot be read
    except PostroomError as error:
        return Check(name, FAIL, str(error))
    if missing:
        return Check(name, FAIL, f"{missing[0]} is missing", again)
    if not has_tools():
        return Check(name, FAIL, NO_TOOLS, lasting.extra_line("mcp"))
    judge = JUDGES.get(wish.host)
    program = shutil.which(judge.program) if judge is not None else None
    if judge is None or program is None:
        not_asked = "; the program was not found, so it was not asked" if judge else ""
        return Check(name, OK, f"installed ({wish.scope}){not_asked}")
    return _judged(name, wish, judge, program)


def _judged(name: str, wish: plans.Wish, judge: HostProbe, program: str) -> Check:
    try:
        done = subprocess.run(
            [program, *judge.words(wish)],
            cwd=wish.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(name, WARN, f"{judge.program} did not answer within {PATIENCE_S:.0f} s")
    except OSError as error:
        return Check(name, WARN, f"{judge.program} cannot be run ({error.strerror})")
    said = done.stdout + done.stderr
    if done.returncode == 0 and all(word in said for word in judge.has):
        return Check(name, OK, f"installed ({wish.scope}); {judge.program} accepts it")
    words = " ".join(["", *judge.words(wish)])
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it printed nothing")
    return Check(name, FAIL, f"{judge.program} does not accept it: {last[:200]}", f"`{judge.program}{words}` says more")
