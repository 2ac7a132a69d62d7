"""The files that an agent program may ask its host for: those of the project, and no way out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.doors.acp import files
from postroom.doors.acp.files import ProjectFiles
from postroom.doors.acp.peer import RpcError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "a.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (project / ".git" / "hooks").mkdir(parents=True)
    (project / ".git" / "config").write_text("secret", encoding="utf-8")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret", encoding="utf-8")
    (project / "link").symlink_to(tmp_path / "outside")
    (project / "link.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    (project / "near").symlink_to("sub")
    (project / "dotgit").symlink_to(".git")
    return project


def test_text_is_read_whole_or_by_lines(project: Path) -> None:
    own = ProjectFiles(str(project))

    assert own.read(str(project / "a.txt")) == "one\ntwo\nthree\n"
    assert own.read(str(project / "a.txt"), 2) == "two\nthree\n"
    assert own.read(str(project / "a.txt"), 2, 1) == "two\n"
    assert own.read(str(project / "a.txt"), None, 1) == "one\n"
    assert own.read(str(project / "a.txt"), 9, 1) == ""


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a.txt", "must be absolute"),
        ("P/../outside/secret.txt", "outside of the project"),
        ("P/sub/../../outside/secret.txt", "outside of the project"),
        ("P/link/secret.txt", "outside of the project"),
        ("P/link.txt", "outside of the project"),
        ("/etc/passwd", "outside of the project"),
        ("P", "not open to agents"),
        ("P/.git/config", "not open to agents"),
        ("P/.GIT/config", "not open to agents"),
        ("P/dotgit/config", "not open to agents"),
        ("P/.postroom/messages.db", "not open to agents"),
        ("P/a\0.txt", "must be absolute"),
        ("P/sub", "is a directory"),
        ("P/nothing", "no such file"),
        ("P/nothing/below", "no such file"),
        ("P/a.txt/below", "not a directory"),
    ],
)
def test_what_may_not_be_read(project: Path, path: str, why: str) -> None:
    with pytest.raises(RpcError, match=why):
        ProjectFiles(str(project)).read(path.replace("P", str(project), 1))


@pytest.mark.parametrize(
    "path",
    [
        *("P/.git/hooks/post-commit", "P/dotgit/hooks/post-commit", "P/.postroom/room", "P/link/new.txt", "P/link.txt"),
        *("P/../outside/new.txt", "P/.claude/settings.json", "P/.vscode/tasks.json", "P/.mcp.json", "P/sub/.envrc"),
        *("P/.Claude/settings.json", "P/sub", "P"),
    ],
)
def test_what_may_not_be_written(project: Path, path: str) -> None:
    def everything() -> dict[str, str]:
        return {str(each): each.read_text(encoding="utf-8") for each in project.parent.rglob("*") if each.is_file()}

    before = everything()
    with pytest.raises(RpcError):
        ProjectFiles(str(project)).write(path.replace("P", str(project), 1), "evil")

    assert everything() == before


def test_a_write_makes_folders_keeps_the_mode_and_leaves_nothing_beside(project: Path) -> None:
    own = ProjectFiles(str(project))
    (project / "run.sh").write_text("old", encoding="utf-8")
    (project / "run.sh").chmod(0o750)

    own.write(str(project / "run.sh"), "new")
    own.write(str(project / "near" / "deep" / "er.txt"), "text")

    assert (project / "run.sh").read_text(encoding="utf-8") == "new"
    assert (project / "run.sh").stat().st_mode & 0o777 == 0o750
    assert [each.name for each in (project / "sub" / "deep").iterdir()] == ["er.txt"]


def test_a_hard_link_to_a_file_outside_is_left_behind(project: Path) -> None:
    outside = project.parent / "outside" / "secret.txt"
    os.link(outside, project / "hard.txt")

    ProjectFiles(str(project)).write(str(project / "hard.txt"), "new")

    assert outside.read_text(encoding="utf-8") == "secret"


def test_a_link_that_is_put_there_after_the_look_is_not_followed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ProjectFiles(str(project))
    monkeypatch.setattr(own, "parts", lambda *_args, **_more: ("link", "secret.txt"))  # as it was a moment before
    for step in (lambda: own.read("x"), lambda: own.write("x", "evil")):
        with pytest.raises(RpcError):
            step()
    monkeypatch.setattr(own, "parts", lambda *_args, **_more: ("link.txt",))
    with pytest.raises(RpcError):
        own.read("x")

    assert (project.parent / "outside" / "secret.txt").read_text(encoding="utf-8") == "secret"


def test_what_is_no_text_or_too_large_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    own = ProjectFiles(str(project))
    (project / "bytes").write_bytes(b"\xff\xfe")
    os.mkfifo(project / "pipe")

    for name, why in (("bytes", "not UTF-8"), ("a.txt", "larger than"), ("pipe", "not a regular file")):
        with pytest.raises(RpcError, match=why):
            own.read(str(project / name))
    with pytest.raises(RpcError, match="would be larger"):
        own.write(str(project / "new.txt"), "x" * 11)
    assert not (project / "new.txt").exists()
