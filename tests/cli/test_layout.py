"""`postroom init --layout windsurf`: what it makes, that twice is once, and that worktrees find the room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.board.actions import ACTIONS
from postroom.stores import SCHEMES

from .support import Cli, clean_environment, command
from .test_reserve import git, needs_git

#: Rooms of every kind that can be told to the layout; None is the layout's own choice.
ROOMS = ["sqlite:box", *([None] if "files" in SCHEMES else [])]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    monkeypatch.delenv("POSTROOM_AGENT", raising=False)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def bare(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, monkeypatch)


@pytest.fixture(params=ROOMS, ids=str)
def layout(request: pytest.FixtureRequest) -> list[str]:
    """The words of the command, with a room of each kind."""
    room = [] if request.param is None else ["--room", request.param]
    return ["init", "--layout", "windsurf", "--workers", "3", *room]


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file that the layout wrote, with when it was changed; the room's own files are not its business."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"box", "mailbox", ".git"} & set(path.parts)
    }


def test_it_makes_everything_and_twice_is_once(bare: Cli, folder: Path, layout: list[str]) -> None:
    (folder / "AGENTS.md").write_text("# Ours\n\nBe kind.\n")
    first = bare.ok(*layout)
    before = content(folder)

    second = bare.ok(*layout)

    assert content(folder) == before
    assert set(before) == {
        ".postroom/.gitignore",
        ".postroom/room",
        ".postroom/seal",
        ".windsurf/rules/postroom.md",
        ".windsurf/workflows/check-inbox.md",
        ".claude/agents/context-manager.md",
        "AGENTS.md",
    }
    assert "make" in first.out and "the room is ready" in first.out
    assert second.lines[0] == "everything is already there; nothing to do"
    assert [agent["name"] for agent in bare.json("agents")] == ["lead", "worker-1", "worker-2", "worker-3"]
    assert bare.ok("send", "worker-1", "hello", "--as", "lead")


def test_what_was_edited_is_left_alone(bare: Cli, folder: Path, layout: list[str]) -> None:
    (folder / "AGENTS.md").write_text("# Ours\n\nBe kind.")
    bare.ok(*layout)
    agents = folder / "AGENTS.md"
    assert agents.read_text().startswith("# Ours\n\nBe kind.\n\n<!-- postroom: begin")
    for path in (agents, folder / ".windsurf" / "rules" / "postroom.md"):
        path.write_text(path.read_text() + "\nand more\n")
    before = content(folder)

    bare.ok(*layout)

    assert content(folder) == before


def test_a_page_of_others_keeps_its_bytes_its_rights_and_its_link(bare: Cli, folder: Path, layout: list[str]) -> None:
    real = folder / "docs" / "shared.md"
    real.parent.mkdir()
    text = b"\xef\xbb\xbf# Ours\r\n\r\nBe kind.\r\n"
    real.write_bytes(text)
    real.chmod(0o640)
    (folder / "AGENTS.md").symlink_to(real)

    bare.ok(*layout)

    assert (folder / "AGENTS.md").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    after = real.read_bytes()
    assert after.startswith(text + b"\r\n<!-- postroom: begin")
    assert after.count(b"\n") == after.count(b"\r\n")


def test_a_page_that_is_no_text_is_told_in_a_sentence_before_anything_is_made(
    bare: Cli, folder: Path, layout: list[str]
) -> None:
    (folder / "AGENTS.md").write_bytes(b"caf\xe9\n")

    result = bare(*layout)

    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "AGENTS.md is not UTF-8 text" in result.err
    assert [path.name for path in folder.iterdir()] == ["AGENTS.md"]


def test_a_dry_run_shows_and_makes_nothing(bare: Cli, folder: Path, layout: list[str]) -> None:
    shown = bare.ok(*layout, "--dry-run")

    assert list(folder.iterdir()) == []
    assert all(line.startswith("would ") for line in shown.lines)
    steps = bare.ok(*layout, "--dry-run", "--json").json
    assert steps["dry_run"] and steps["agents"] == ["lead", "worker-1", "worker-2", "worker-3"]
    assert any(step["path"].endswith("rules/postroom.md") for step in steps["steps"])


def test_the_texts_tell_a_session_its_role_and_are_complete(bare: Cli, folder: Path, layout: list[str]) -> None:
    bare.ok(*layout)
    rules = (folder / ".windsurf/rules/postroom.md").read_text()
    texts = [path.read_text() for path in folder.rglob("*.md") if "mailbox" not in path.parts]

    assert rules.startswith("---\ntrigger: always_on\n---\n") and len(rules) < 12_000
    assert all(f"| `{action}` |" in rules for action in ACTIONS)
    assert "`worker-1`, `worker-2`, `worker-3`" in rules
    assert [
        word for text in texts for word in ("{workers}", "{by_hand}", "{mailbox}", "{actions}") if word in text
    ] == []
    assert ("## By hand" in rules) is ("--room" not in layout)


def test_the_commands_that_the_texts_name_are_commands(bare: Cli, folder: Path, layout: list[str]) -> None:
    import re

    from postroom.cli.commands.board import ACTIONS as BOARD_ACTIONS
    from postroom.cli.table import COMMANDS

    bare.ok(*layout)
    named = [
        match.split()
        for path in folder.rglob("*.md")
        if "mailbox" not in path.parts
        for match in re.findall(r"`postroom ([a-z][^`]*)`", path.read_text())
    ]

    assert len(named) > 15
    assert [words for words in named if words[0] not in COMMANDS] == []
    assert [words for words in named if words[0] == "board" and words[1] not in BOARD_ACTIONS] == []


@pytest.mark.slow
@needs_git
def test_each_worker_has_a_worktree_that_finds_the_main_checkouts_room(
    bare: Cli, folder: Path, layout: list[str]
) -> None:
    git(folder, "init", "-q", "-b", "main")
    (folder / "readme").write_text("x")
    git(folder, "add", "readme")
    git(folder, "commit", "-qm", "first")
    bare.ok(*layout, "--worktrees")
    bare.ok("board", "add", "T1", "--as", "lead")
    third = folder.with_name("project-worker-3")
    role = (third / ".windsurf/rules/postroom-role.md").read_text()
    assert "you are worker-3" in role and "Your role: worker" in role

    done = subprocess.run(
        command("board", "claim", "--as", "worker-3"),
        cwd=third,
        env=clean_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert bare.json("board", "list")[0]["owner"] == "worker-3"
    assert git(third, "status", "--porcelain", "--untracked-files=all").stdout.splitlines() == [
        "?? .windsurf/rules/postroom.md"
    ]
    assert git(third, "branch", "--show-current").stdout == "worker-3\n"
    assert bare.ok(*layout, "--worktrees").lines[0] == "everything is already there; nothing to do"

    program = "import os; print(os.getcwd(), os.environ['POSTROOM_ROLE'], os.environ['POSTROOM_AGENT'], sep='\\n')"
    for words, where in ((["as", "worker-2"], "project-worker-2"), (["as", "--here", "worker-2"], "project")):
        ran = subprocess.run(
            command(*words, "--", sys.executable, "-c", program),
            cwd=folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        place, role, name = ran.stdout.splitlines()
        assert (os.path.basename(place), role, name) == (where, "worker", "worker-2")


@needs_git
def test_what_git_is_to_pass_over_keeps_its_bytes_and_its_rights(bare: Cli, folder: Path) -> None:
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-qm", "first", "--allow-empty")
    exclude = folder / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_bytes(b"caf\xe9\r\n*.tmp")
    exclude.chmod(0o600)

    bare.ok("init", "--layout", "windsurf", "--workers", "2", "--worktrees")

    assert exclude.read_bytes() == b"caf\xe9\r\n*.tmp\n.windsurf/rules/postroom-role.md\n"
    assert exclude.stat().st_mode & 0o777 == 0o600


@needs_git
def test_worktrees_without_a_commit_are_refused_and_nothing_is_made(bare: Cli, folder: Path, layout: list[str]) -> None:
    result = bare(*layout, "--worktrees")

    assert (result.code, "has no git commit to make worktrees from" in result.err) == (1, True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("init", "--layout", "emacs"), "there is no layout 'emacs'; choose from windsurf"),
        (("init", "--workers", "3"), "need --layout"),
        (("init", "--layout", "windsurf", "--workers", "0"), "not a whole number above zero"),
        (("init", "--layout", "windsurf", "--workers", "65"), "at most 64"),
    ],
)
def test_wrong_usage_says_what_is_right(bare: Cli, folder: Path, words: tuple[str, ...], said: str) -> None:
    result = bare(*words)

    assert (result.code, said in result.err) == (2, True), result
    assert list(folder.iterdir()) == []


def test_a_pointer_leads_to_the_room_from_below(bare: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".postroom").mkdir()
    (folder / ".postroom" / "room").write_text("sqlite:elsewhere/box?sync=full\n")
    bare.ok("allow")
    assert f"sqlite:{folder}/elsewhere/box?sync=full" in bare.ok("init").out
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")

    assert bare.json("status")["room"] == f"sqlite:{folder}/elsewhere/box?sync=full"
    assert sorted(path.name for path in (folder / ".postroom").iterdir()) == ["room", "seal"]
