"""`postroom reserve` and the guard, with a real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from postroom.cli.commands.reserve import from_top

from .support import Cli, clean_environment

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(
        ["git", *words],
        cwd=folder,
        env=clean_environment(**names, **quiet, **environment),
        capture_output=True,
        text=True,
        check=check,
    )


@pytest.fixture
def repository(cli: Cli, tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "readme").write_text("x")
    git(tmp_path, "add", "readme")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_files_are_reserved_listed_and_freed(cli: Cli) -> None:
    assert cli.ok("reserve").out == "nothing is reserved\n"
    made = cli.json("reserve", "src/api/**", "docs/api.md", "--as", "ada", "--ttl", "1h", "--why", "T3")
    assert (made["agent"], made["globs"], made["exclusive"], made["why"]) == (
        "ada",
        ["src/api/**", "docs/api.md"],
        True,
        "T3",
    )
    assert cli.ok("reserve").lines[1].split()[:3] == ["ada", "src/api/**,", "docs/api.md"]
    refused = cli("reserve", "src/*/users.py", "--as", "bob")
    assert refused.code == 1
    assert "src/*/users.py meets src/api/**, reserved by ada until" in refused.err and "(T3)" in refused.err

    assert cli.ok("unreserve", "src/api/**", "--as", "ada").out == "released: src/api/**\n"
    assert cli.ok("reserve", "src/*/users.py", "--shared", "--as", "bob").out.startswith("shared for bob until")
    assert cli("unreserve", "src/api/**", "--as", "ada").code == 1
    assert cli.json("unreserve", "--all", "--as", "ada") == {"agent": "ada", "globs": ["docs/api.md"]}
    assert [each["agent"] for each in cli.json("reserve")] == ["bob"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("reserve", "src", "--guard"), "use only one of"),
        (("reserve", "/etc/**", "--as", "ada"), "without a slash in front"),
        (("reserve", "../up", "--as", "ada"), "must not go up"),
        (("reserve", "src"), "say who you are"),
        (("unreserve",), "name the files as they were reserved"),
        (("unreserve", "a", "--all", "--as", "ada"), "name the files as they were reserved"),
    ],
)
def test_wrong_usage_says_what_is_right(cli: Cli, words: tuple[str, ...], said: str) -> None:
    result = cli(*words)

    assert (result.code, said in result.err) == (2, True), result


def test_patterns_written_below_the_top_are_kept_from_the_top(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    below = tmp_path / "src" / "api"
    below.mkdir(parents=True)

    assert from_top(["*.py", "../web/**", f"{tmp_path}/docs", "../../../out"], below) == [
        "src/api/*.py",
        "src/web/**",
        "docs",
        "../../../out",
    ]
    assert from_top(["src/**"], tmp_path) == ["src/**"]


@pytest.mark.slow
@needs_git
def test_the_guard_stops_a_commit_of_somebody_elses_files(cli: Cli, repository: Path) -> None:
    assert "the guard is installed" in cli.ok("reserve", "--guard").out
    assert "the guard is already installed" in cli.ok("reserve", "--guard").out
    cli.ok("reserve", "src/api/**", "--as", "ada", "--why", "T3")
    for name in ("src/api/users.py", "src/web/page.py"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(name)
    git(repository, "add", "src/web")
    git(repository, "commit", "-qm", "free", POSTROOM_AGENT="bob")
    git(repository, "add", "src/api")

    for environment in ({"POSTROOM_AGENT": "bob"}, {}):
        stopped = git(repository, "commit", "-qm", "not mine", check=False, **environment)
        assert stopped.returncode == 1
        assert "src/api/users.py: reserved by ada until" in stopped.stderr and "(T3)" in stopped.stderr
        assert "git commit --no-verify" in stopped.stderr
        assert "bob" in stopped.stderr or "POSTROOM_AGENT=NAME" in stopped.stderr

    git(repository, "commit", "-qm", "skips it", "--no-verify", POSTROOM_AGENT="bob")
    git(repository, "rm", "-q", "src/api/users.py")
    assert git(repository, "commit", "-qm", "gone", check=False, POSTROOM_AGENT="bob").returncode == 1
    git(repository, "commit", "-qm", "mine", POSTROOM_AGENT="ada")


@needs_git
def test_the_guard_works_in_a_worktree_and_without_a_room(cli: Cli, repository: Path, tmp_path: Path) -> None:
    cli.ok("reserve", "--guard")
    cli.ok("reserve", "**", "--as", "ada")
    other = tmp_path.with_name(tmp_path.name + "-other")
    git(repository, "worktree", "add", "-q", str(other), "-b", "other")
    (other / "new").write_text("x")
    git(other, "add", "new")

    assert git(other, "commit", "-qm", "x", check=False).returncode == 1
    shutil.rmtree(repository / ".postroom")
    passed = git(other, "commit", "-qm", "x")
    assert "found no room" in passed.stderr


@pytest.mark.slow
@needs_git
@pytest.mark.parametrize("program", ["raise RuntimeError('broken')", "raise SystemExit(1)", None])
def test_a_postroom_that_does_not_work_stops_no_commit(cli: Cli, repository: Path, program: str | None) -> None:
    cli.ok("reserve", "--guard")
    cli.ok("reserve", "**", "--as", "ada")
    broken = repository / "broken" / "postroom"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    if program is not None:  # else it is a package that cannot be run, as one that is gone
        (broken / "__main__.py").write_text(program)
    (repository / "new").write_text("x")
    git(repository, "add", "new")

    git(repository, "commit", "-qm", "x", PYTHONPATH=str(broken.parent))
    (repository / "new").write_text("y")
    assert git(repository, "commit", "-qam", "y", check=False).returncode == 1


def test_only_files_of_others_end_with_the_code_at_which_the_guard_stops(cli: Cli) -> None:
    cli.ok("reserve", "src/**", "--as", "ada")

    ended = [cli("reserve", "--check", "--as", name, stdin=b"src/a\0docs/b\0").code for name in ("bob", "ada")]

    assert ended == [6, 0]
    assert cli("reserve", "--check", "--room", "sqlite:nowhere", stdin=b"src/a").code == 4


@needs_git
def test_a_guard_of_an_older_postroom_is_written_anew(cli: Cli, repository: Path) -> None:
    cli.ok("reserve", "--guard")
    hook = repository / ".git" / "hooks" / "pre-commit"
    text = hook.read_text()
    hook.write_text(text.replace("[ $? -eq 6 ]", "[ $? -eq 1 ]"))

    assert "the guard is installed" in cli.ok("reserve", "--guard").out
    assert hook.read_text() == text


@needs_git
def test_a_hook_from_before_is_called_and_put_back(cli: Cli, repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho from before >&2\nexit 3\n")
    hook.chmod(0o755)
    cli.ok("reserve", "--guard")
    (repository / "a").write_text("x")
    git(repository, "add", "a")

    stopped = git(repository, "commit", "-qm", "x", check=False)
    assert (stopped.returncode, "from before" in stopped.stderr) == (1, True)
    assert "the previous hook is back" in cli.ok("unreserve", "--guard").out
    assert hook.read_text().startswith("#!/bin/sh\necho from before")
    assert "no guard is installed" in cli.ok("unreserve", "--guard").out


def test_no_guard_without_a_repository(cli: Cli) -> None:
    result = cli("reserve", "--guard")

    assert (result.code, "not in a git repository" in result.err) == (1, True)
