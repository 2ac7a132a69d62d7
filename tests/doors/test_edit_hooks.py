"""The hooks before and after an edit: refusals in each program's own form, and silence whenever the room cannot say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import clean_environment, listing_modules

from postroom.doors.hook import command, tool_edits
from postroom.room import Room, open_room

from .test_hook import TOO_DEAR, Said, Session, claude_environment

PATCH = """\
*** Begin Patch
*** Add File: docs/new.md
++*** Update File: src/not.py
*** Update File: src/a.py
*** Move to: src/b.py
@@
-x
+y
*** Delete File: src/old.py
*** End Patch
"""
FILES = ["docs/new.md", "src/a.py", "src/b.py", "src/old.py"]
#: Each program: its environment, the event before and after, the tool, and its arguments.
PROGRAMS: dict[str, tuple[dict[str, str], str, str, str, dict[str, Any], dict[str, Any]]] = {
    "codex": ({}, "PreToolUse", "PostToolUse", "apply_patch", {"command": PATCH}, {"turn_id": "t", "model": "m"}),
    "gemini": ({"GEMINI_SESSION_ID": "g"}, "BeforeTool", "AfterTool", "replace", {"file_path": "src/a.py"}, {}),
    "opencode": ({}, "edit", "tool", "edit", {"filePath": "src/a.py"}, {}),
    "qwen": ({}, "PreToolUse", "PostToolUse", "edit", {"file_path": "src/a.py"}, {}),
}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    (tmp_path / "src").mkdir()
    with open_room(f"sqlite:{tmp_path}/.postroom") as room:
        yield room


@pytest.fixture
def claude(tmp_path: Path) -> Session:
    return Session(tmp_path, **claude_environment(tmp_path))


def another(session: Session, name: str) -> Session:
    """Claude Code in another terminal of the same folder."""
    environment = claude_environment(session.folder) | {"CLAUDE_PID": str(os.getppid()), "POSTROOM_AGENT": name}
    found = Session(session.folder, **environment)
    found.id = "session-2"
    return found


def before(session: Session, path: str, tool: str = "Edit", **more: Any) -> Said:
    return session("PreToolUse", tool_name=tool, tool_input={"file_path": path}, **more)


def after(session: Session, path: str, **more: Any) -> Said:
    return session("PostToolUse", tool_name="Edit", tool_input={"file_path": path}, **more)


def denied(said: Said) -> str:
    answer = json.loads(said.out)["hookSpecificOutput"]
    assert (said.code, said.err, answer["hookEventName"]) == (0, "", "PreToolUse")
    assert answer["permissionDecision"] == "deny"
    reason: str = answer["permissionDecisionReason"]
    return reason


@pytest.mark.slow
def test_claude_is_refused_a_reserved_file_and_no_other(room: Room, claude: Session, tmp_path: Path) -> None:
    room.reserve(["src/**"], agent="ada", why="the rename")

    reason = denied(before(claude, f"{tmp_path}/src/a.py"))

    assert 'src/a.py is reserved by "ada"' in reason and "--as claude" in reason and "| ada: the rename" in reason
    assert denied(before(claude, f"{tmp_path}/src/a.ipynb", "Write", agent_id="sub-1"))  # a subagent's as well
    nothing = Said(0, "", "")
    assert before(claude, f"{tmp_path}/docs/a.md") == nothing
    assert before(claude, f"{tmp_path}/src/a.py", "Read") == nothing
    claude.environment["POSTROOM_AGENT"] = "ada"
    assert before(claude, f"{tmp_path}/src/a.py") == nothing
    claude.environment |= {"POSTROOM_AGENT": "bob", "POSTROOM_EDITS": "off"}
    assert before(claude, f"{tmp_path}/src/a.py") == nothing


@pytest.mark.slow
@pytest.mark.parametrize("host", PROGRAMS)
def test_the_other_programs_are_refused_and_told_in_their_own_form(room: Room, claude: Session, host: str) -> None:
    environment, event, later, tool, given, more = PROGRAMS[host]
    claude.environment = environment
    room.reserve(["src/a.py"], agent="ada")
    call = {"tool_name": tool, "tool_input": given, **more}

    said = claude(event, host, **call)
    room.unreserve("ada")
    after(another(claude, "eve"), "src/a.py")
    free, told = claude(event, host, **call), claude(later, host, **call)

    if event == "PreToolUse":
        assert "reserved by" in denied(said)
    else:
        answer = json.loads(said.out)
        assert (answer["decision"], set(answer)) == ("deny", {"decision", "reason"})
        assert "reserved by" in answer["reason"]
    assert free == Said(0, "", "")
    shown = json.loads(told.out)
    text = shown["text"] if host == "opencode" else shown["hookSpecificOutput"]["additionalContext"]
    assert text.startswith('postroom: "eve" edited src/a.py ')


@pytest.mark.slow
def test_two_that_edit_one_file_are_both_told_and_a_failed_edit_is_none(room: Room, claude: Session) -> None:
    bob = another(claude, "bob")
    after(bob, "src/b.py", tool_response={"error": {"message": "no such text"}})
    after(bob, "src/a.py")

    assert after(claude, "src/b.py").out == ""
    assert 'postroom: "bob" edited src/a.py ' in after(claude, "src/a.py", agent_id="sub-1").context
    assert "1 new for bob from" in after(bob, "src/c.py").context
    (mail,) = room.peek(agent="bob")
    assert mail.payload["text"].startswith("I edited src/a.py ")


@pytest.mark.slow
def test_recent_edits_are_refused_in_the_mode_that_says_so_until_their_session_ends(
    room: Room, claude: Session
) -> None:
    claude("SessionStart")
    after(claude, "src/a.py")
    bob = another(claude, "bob")
    assert before(bob, "src/a.py") == Said(0, "", "")
    bob.environment["POSTROOM_EDITS"] = "refuse"

    assert 'was edited by "claude"' in denied(before(bob, "src/a.py"))
    claude("SessionEnd", reason="logout")
    assert before(bob, "src/a.py") == Said(0, "", "")


@pytest.mark.slow
def test_a_shell_command_that_may_write_is_told_of_and_another_is_not(room: Room, claude: Session) -> None:
    room.reserve(["src/api/**"], agent="ada")

    def run(text: str) -> Said:
        return claude("PostToolUse", tool_name="Bash", tool_input={"command": text})

    assert 'named src/api/users.py, reserved by "ada"' in run("sed -i 's/a/b/' src/api/users.py").context
    assert run("cat src/api/users.py") == Said(0, "", "")
    assert run("echo x > notes.txt") == Said(0, "", "")


@pytest.mark.slow
def test_a_room_that_is_busy_delays_an_edit_by_seconds_and_stops_none(room: Room, claude: Session) -> None:
    claude.environment["POSTROOM_EDITS"] = "refuse"  # which has to write
    claude("SessionStart")
    path = claude.folder / ".postroom" / "messages.db"
    # a process of its own: another connection of this one that is closed would drop the room's locks
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    try:
        begun_s = time.monotonic()
        said = before(claude, "src/a.py")
        took_s = time.monotonic() - begun_s
    finally:
        holder.communicate("\n")

    assert said == Said(0, "", "")
    assert took_s >= command.EDIT_PATIENCE_S - 1  # it did wait
    assert took_s < command.EDIT_PATIENCE_S + 20  # the start of a program, on a machine with much to do


LOCK = """
import sys, apsw
at = apsw.Connection(sys.argv[1])
at.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_room_that_is_deleted_in_the_middle_stops_no_edit(room: Room, claude: Session) -> None:
    room.reserve(["src/**"], agent="ada")
    assert denied(before(claude, "src/a.py"))
    shutil.rmtree(claude.folder / ".postroom")

    assert before(claude, "src/a.py") == after(claude, "src/a.py") == Said(0, "", "")
    assert not (claude.folder / ".postroom").exists()


@pytest.mark.slow
def test_a_look_before_an_edit_loads_nothing_dear(room: Room, claude: Session, tmp_path: Path) -> None:
    claude("SessionStart")
    room.reserve(["docs/**"], agent="ada")
    given = {"hook_event_name": "PreToolUse", "session_id": claude.id, "cwd": str(tmp_path), "tool_name": "Edit"}
    done = subprocess.run(
        [sys.executable, "-c", listing_modules("hook", "auto")],
        input=json.dumps({**given, "tool_input": {"file_path": "src/a.py"}}),
        env=clean_environment(**claude.environment),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    tops = {name.partition(".")[0] for name in loaded}

    assert "postroom.doors.edits" in loaded and "postroom.board.records" not in loaded
    assert sorted(tops & set(TOO_DEAR)) == []


@pytest.mark.slow
def test_a_look_before_a_command_that_is_no_patch_loads_next_to_nothing(room: Room, tmp_path: Path) -> None:
    given = {"hook_event_name": "PreToolUse", "cwd": str(tmp_path), "turn_id": "t", "tool_name": "Bash"}
    done = subprocess.run(
        [sys.executable, "-c", listing_modules("hook", "auto")],
        input=json.dumps({**given, "tool_input": {"command": 'echo "tool_name"'}}),
        env=clean_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = done.stdout.split()

    assert "postroom.doors.hook.entry" in loaded
    assert "msgspec" not in loaded and "postroom.doors.session_binding" not in loaded


# What a call writes


def test_a_patch_names_all_of_its_files_and_no_line_of_its_text() -> None:
    assert tool_edits.written_by("apply_patch", {"command": PATCH}) == FILES
    assert tool_edits.written_by("apply_patch", {"patchText": PATCH.replace("\n", "\r\n")}) == FILES
    assert tool_edits.written_by("apply_patch", {"input": "no patch"}) == []


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (f"apply_patch <<'EOF'\n{PATCH}EOF\n", FILES),
        (f'cd "my src" && apply_patch <<"X"\n{PATCH}X', [f"my src/{each}" for each in FILES]),
        (["bash", "-lc", f"cd /p && applypatch <<EOF\n{PATCH}EOF"], [f"/p/{each}" for each in FILES]),
        (f"cat > example.patch <<'EOF'\n{PATCH}EOF", []),
        ("apply_patch --help", []),
        ([], []),
    ],
)
def test_a_command_that_is_a_patch_is_an_edit_and_one_that_has_a_patch_in_it_is_not(
    command: Any, files: list[str]
) -> None:
    assert tool_edits.written_by("Bash", {"command": command}) == files


@pytest.mark.slow
def test_codex_is_refused_a_patch_in_a_command_and_no_other_command(room: Room, claude: Session) -> None:
    claude.environment = {}
    room.reserve(["src/**"], agent="ada")
    turn = {"turn_id": "t", "model": "m", "tool_name": "Bash"}
    patch = {"command": f"apply_patch <<'EOF'\n{PATCH}EOF"}

    assert "src/a.py is reserved" in denied(claude("PreToolUse", "codex", tool_input=patch, **turn))
    assert claude("PreToolUse", "codex", tool_input={"command": "rm src/a.py"}, **turn) == Said(0, "", "")


@pytest.mark.parametrize(
    ("tool", "given"),
    [(None, {}), ({}, {}), ("Edit", None), ("Edit", {"file_path": 7}), ("Read", {"file_path": "a"}), ("Edit", [])],
)
def test_a_call_that_is_not_understood_writes_nothing(tool: Any, given: Any) -> None:
    assert tool_edits.written_by(tool, given) == []
    assert tool_edits.words_of(tool, given) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"command": "cat a > src/b.py"}, ["cat", "a", "src/b.py"]),
        ({"cmd": "sed -i s/x/y/ 'src/a b.py' src/c.py"}, ["sed", "s/x/y/", "src/a", "b.py", "src/c.py"]),
        ({"command": ["rm", "-rf", "src"]}, ["rm", "src"]),
        ({"command": f"apply_patch <<'EOF'\n{PATCH}EOF"}, ["docs/new.md", "src/a.py", "src/b.py", "src/old.py"]),
        ({"command": "ls src; grep x src/a.py"}, []),
        ({"command": 7}, []),
    ],
)
def test_the_words_of_a_command_that_may_write(given: dict[str, Any], words: list[str]) -> None:
    assert tool_edits.words_of("exec_command", given)[: len(words)] == words
    assert bool(tool_edits.words_of("exec_command", given)) == bool(words)
