"""The guard at the edit, with the programs themselves: what is reserved is not written, the model reads why, and a room
that is gone stops nothing. Replies in a wrong form would fail silently, so each is looked for in the model's context.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroom.board import recent_edits
from postroom.doors import edits

from . import programs
from .conftest import World
from .model_server import Call, Seen
from .test_others import gemini, opencode_home, with_gemini
from .test_qwen import Qwen

CONFLICTS = 25
WHY = "WHY-OF-ADA"
#: What a file in `src` has in it before, and what the model would put there.
OLD, NEW = "value = 1\n", "value = 2\n"
CELL: dict[str, Any] = {
    "cell_type": "code",
    "execution_count": None,
    "id": "c1",
    "metadata": {},
    "outputs": [],
    "source": ["value = 1"],
}
NOTEBOOK = json.dumps({"cells": [CELL], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})

Run = Callable[[World, str], "subprocess.CompletedProcess[str]"]


class Program(NamedTuple):
    """How a program is run, and the calls by which its model edits a file, writes a new one and runs a command."""

    run: Run
    change: Callable[[str], list[Call]]
    write: Callable[[str], list[Call]]
    #: Kinds of writes that it alone has, each for one file; and one for notebooks.
    others: tuple[Callable[[str], list[Call]], ...] = ()
    notebook: Callable[[str], list[Call]] | None = None


def claude(world: World, prompt: str) -> subprocess.CompletedProcess[str]:
    world.postroom("install", "claude-code")
    programs.claude_home(world.home, world.project)
    words = [str(programs.CLAUDE), "-p", prompt, "--allowedTools", "Read,Edit,Write,NotebookEdit,Bash"]
    return programs.run(words, world.project, programs.claude_environment(world.home, world.model.port), 300)


def codex(world: World, prompt: str, mode: str = edits.WARN) -> subprocess.CompletedProcess[str]:
    folder = world.home / ".codex"
    folder.mkdir()
    settings = programs.codex_settings(world.model.port, world.project)
    settings = settings.replace('model = "mock"', 'model = "gpt-5.5"')  # one that has a tool for patches
    (folder / "config.toml").write_text(settings, encoding="utf-8")
    world.postroom("install", "codex", "--edits", mode)
    free = ["--dangerously-bypass-approvals-and-sandbox", "--dangerously-bypass-hook-trust"]
    words = [str(programs.CODEX), "exec", "--skip-git-repo-check", *free, prompt]
    return programs.run(words, world.project, programs.environment(world.home, MOCK_KEY="x"), 300)


def gemini_cli(world: World, prompt: str) -> subprocess.CompletedProcess[str]:
    with_gemini(world)
    return gemini(world, "--skip-trust", "-y", "-o", "json", "-p", prompt)


def opencode(world: World, prompt: str) -> subprocess.CompletedProcess[str]:
    opencode_home(world)
    words = [str(programs.OPENCODE), "run", prompt]
    return programs.run(words, world.project, programs.environment(world.home), 300)


def qwen(world: World, prompt: str) -> subprocess.CompletedProcess[str]:
    started = Qwen(world)
    words = [str(programs.NODE), str(programs.QWEN), "-y", "-p", prompt]
    return programs.run(words, world.project, started.environment, 300)


def one(tool: str, path: str, /, **arguments: Any) -> Callable[[str], list[Call]]:
    """A call that names its file in the field `path`."""
    return lambda file: [Call(tool, {path: file, **arguments})]


def patch(*lines: str) -> Callable[[str], list[Call]]:
    """A patch of Codex; a `%` in its lines is the file."""
    text = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
    return lambda file: [Call("apply_patch", {"input": text.replace("%", file)})]


def by_command(*lines: str) -> Callable[[str], list[Call]]:
    """The same patch, in a command of the shell: Codex applies it itself."""
    made = patch(*lines)
    return lambda file: [
        Call("exec_command", {"cmd": f"apply_patch <<'EOF'\n{call.arguments['input']}\nEOF\n"}) for call in made(file)
    ]


def read_first(then: Callable[[str], list[Call]]) -> Callable[[str], list[Call]]:
    return lambda file: [Call("Read", {"file_path": file}), *then(file)]


CHANGE = {"old_string": OLD, "new_string": NEW}
PROGRAMS = {
    "claude": Program(
        claude,
        read_first(one("Edit", "file_path", **CHANGE)),
        one("Write", "file_path", content=NEW),
        (read_first(one("Write", "file_path", content=NEW)),),
        read_first(one("NotebookEdit", "notebook_path", cell_id="c1", new_source=NEW)),
    ),
    "codex": Program(
        codex,
        patch("*** Update File: %", "@@", f"-{OLD.strip()}", f"+{NEW.strip()}"),
        patch("*** Add File: %", f"+{NEW.strip()}"),
        (
            patch("*** Delete File: %"),
            patch("*** Update File: %", "*** Move to: moved.py", "@@", f"-{OLD.strip()}", f"+{NEW.strip()}"),
            patch("*** Add File: of-a-refused-patch.py", "+x", "*** Delete File: %"),
            by_command("*** Delete File: %"),
        ),
    ),
    "gemini": Program(
        gemini_cli,
        one("replace", "file_path", instruction="change it", **CHANGE),
        one("write_file", "file_path", content=NEW),
    ),
    "qwen": Program(qwen, one("edit", "file_path", **CHANGE), one("write_file", "file_path", content=NEW)),
    "opencode": Program(
        opencode, one("edit", "filePath", oldString=OLD, newString=NEW), one("write", "filePath", content=NEW)
    ),
}


class Script:
    """A model that makes these calls, one after the other, and rests; before a call it may do something itself."""

    def __init__(self, steps: Sequence[Call | Callable[[], None]]) -> None:
        self._calls = [step for step in steps if isinstance(step, Call)]
        self._before: dict[int, Callable[[], None]] = {}
        place = 0
        for step in steps:
            if isinstance(step, Call):
                place += 1
            else:
                self._before[place] = step

    def __call__(self, seen: Seen) -> Call | str:
        if not any(turn.role == "user" and "GO" in turn.text for turn in seen.turns):
            return "ok"
        place = sum(turn.role == "call" for turn in seen.turns)
        self._before.pop(place, lambda: None)()
        return self._calls[place] if place < len(self._calls) else "ok"


def results(world: World, prompt: str = "GO") -> list[str]:
    """The results of tools that the model has read after that prompt, in order."""
    told = [seen for seen in world.model.log if any(t.role == "user" and prompt in t.text for t in seen.turns)]
    longest = max(told, key=lambda seen: len(seen.turns))
    return [turn.text.replace("\\n", "\n").replace('\\"', '"') for turn in longest.turns if turn.role == "result"]


def conflicts(program: Program, top: Path) -> Iterator[tuple[str, list[Call]]]:
    """Twenty-five writes to files that are there, or to new ones, of all the kinds that a program has."""
    kinds = (program.change, *program.others, *filter(None, (program.notebook,)), program.write)
    for number in range(CONFLICTS):
        kind = kinds[number % len(kinds)]
        suffix = "ipynb" if kind is program.notebook else "py"
        file = f"src/{'new' if kind is program.write else 'old'}-{number}.{suffix}"
        yield file, kind(str(top / file))


def before(file: str) -> str | None:
    """What is in one of these files before anybody writes it."""
    return None if "new" in file else NOTEBOOK if file.endswith("ipynb") else OLD


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_conflicting_edit_is_made_each_reason_is_read_and_a_room_that_is_gone_stops_nothing(
    world: World, name: str
) -> None:
    program, top = PROGRAMS[name], world.project
    (top / "src").mkdir()
    tried = list(conflicts(program, top))
    for file, _ in tried:
        if (text := before(file)) is not None:
            (top / file).write_text(text, encoding="utf-8")
    world.room.reserve(["src/**"], agent="ada", why=WHY, ttl_s=3600)
    world.room.agent("ada")
    mail: list[str] = []

    def ada_edits() -> None:
        edits.touched(world.room.gateway, "ada", ["free.py"], cwd=str(top))

    def lose_the_room() -> None:
        mail.extend(message.payload["text"] for message in world.room.peek(agent="ada"))
        shutil.rmtree(top / ".postroom")

    shell = Call("exec_command", {"cmd": "touch src/by-command"}) if name == "codex" else None
    tool = {"claude": "Bash", "gemini": "run_shell_command", "qwen": "run_shell_command", "opencode": "bash"}.get(
        name, ""
    )
    steps: list[Call | Callable[[], None]] = [
        *(call for _, calls in tried for call in calls),
        ada_edits,
        *program.write(str(top / "free.py")),
        shell or Call(tool, {"command": "touch src/by-command", "description": "a command"}),
        lose_the_room,
        *(call for number in range(3) for call in program.write(str(top / f"src/late-{number}.py"))),
    ]
    world.model.policy = Script(steps)

    done = program.run(world, "GO")

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    read = results(world)
    print(name, json.dumps(read[-8:], indent=1)[-4000:])
    for file, _ in tried:
        there = (top / file).read_text(encoding="utf-8") if (top / file).exists() else None
        assert there == before(file), file
        (reason,) = [text for text in read if f"{file} is reserved by" in text]
        assert f"ada: {WHY}" in reason and "postroom ask ada" in reason
    assert not (top / "moved.py").exists() and not (top / "of-a-refused-patch.py").exists()
    assert (top / "free.py").read_text(encoding="utf-8") == NEW
    said = "\n".join(turn.text for turn in max(world.model.log, key=lambda seen: len(seen.turns)).turns)
    assert '"ada" edited free.py ' in said.replace("\\", "")
    assert "that command named src/by-command, reserved by" in said
    assert len(mail) == 1 and mail[0].startswith("I edited free.py ")
    for number in range(3):
        assert (top / f"src/late-{number}.py").read_text(encoding="utf-8") == NEW
    programs.end_all(world.home)


def test_a_file_that_one_program_has_just_edited_is_kept_from_another_until_it_ends(world: World) -> None:
    shared = world.project / "shared.py"
    shared.write_text(OLD, encoding="utf-8")
    other = Script(PROGRAMS["codex"].change(str(shared)))
    codes: list[int] = []

    def let_the_other_try() -> None:
        codes.append(codex(world, "GO SECOND", edits.REFUSE).returncode)

    first = Script(
        [*PROGRAMS["claude"].change(str(shared)), let_the_other_try, Call("Read", {"file_path": str(shared)})]
    )

    def policy(seen: Seen) -> Call | str:
        is_other = any(turn.role == "user" and "GO SECOND" in turn.text for turn in seen.turns)
        return other(seen) if is_other else first(seen)

    world.model.policy = policy
    done = claude(world, "GO")
    programs.end_all(world.home)

    assert (done.returncode, codes) == (0, [0]), done.stderr[-2000:]
    assert shared.read_text(encoding="utf-8") == NEW
    (reason,) = results(world, "GO SECOND")
    assert 'shared.py was edited by "claude" ' in reason and "is kept for it until" in reason
    assert recent_edits.all_edits(world.room.gateway) == []  # its session is over, and gives the file back
