"""The example programs, run as their first lines say, with real workers, a real repository and recorded answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support import EXAMPLES

from postroom.lang.check.check import check_file
from postroom.lang.syntax.formatter import formatted

from .programs import SAMPLES, Ran, postroom

PROGRAMS = sorted((EXAMPLES / "patchwork").glob("*.pw"))


def run(name: str, *words: str, cwd: Path, given: str = "") -> Ran:
    return postroom("run", EXAMPLES / "patchwork" / name, *words, "--json", cwd=cwd, given=given)


def answers(folder: Path, *lines: dict[str, Any]) -> str:
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "answers.jsonl"


@pytest.mark.parametrize("path", [*PROGRAMS, *sorted(SAMPLES.glob("*.pw"))], ids=lambda path: path.name)
def test_programs_are_checked_without_a_word_and_formatted_twice_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    once = formatted(text, path.name)

    assert check_file(path) == []
    assert formatted(once, path.name) == once
    if path in PROGRAMS:
        assert once == text


@pytest.mark.slow
def test_the_message_demo(tmp_path: Path) -> None:
    ran = run("message_demo.pw", cwd=tmp_path)

    files = [{"file": f"part-{n}.txt", "lines": n * 10} for n in (1, 2, 3)]
    assert (ran.code, ran.err) == (0, "")
    assert ran.result == {"results": files, "done": 3, "heard": 3}
    assert ran.out.splitlines()[:3] == [f"[reporter] part-{n}.txt has {n * 10} lines" for n in (1, 2, 3)]


@pytest.mark.slow
def test_coordinator_and_analyzer(tmp_path: Path) -> None:
    (tmp_path / "a file.txt").write_text("three words here\n")

    assert run("coordinator.pw", "target=a file.txt", cwd=tmp_path).result == {"file": "a file.txt", "words": 3}
    missing = run("coordinator.pw", "target=none.txt", cwd=tmp_path)
    assert missing.code == 5
    assert "coordinator.pw:14" in missing.err


@pytest.mark.slow
def test_many_messages_in_a_loop(tmp_path: Path) -> None:
    assert run("many_messages.pw", "jobs=50", cwd=tmp_path).result == {"sum": 50 * 51, "taken": 50}


@pytest.mark.slow
def test_the_pipeline(tmp_path: Path) -> None:
    assert run("pipeline.pw", "count=5", cwd=tmp_path).result == 55


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite:mail", "files:mail"])
def test_a_program_runs_in_whatever_room_it_is_given(url: str, tmp_path: Path) -> None:
    missing = run("pipeline.pw", "count=4", "--room", url, cwd=tmp_path)
    assert postroom("init", "--room", url, cwd=tmp_path).code == 0

    assert (missing.code, "there is no room in" in missing.err) == (4, True)
    assert run("pipeline.pw", "count=4", "--room", url, cwd=tmp_path).result == 30


@pytest.mark.slow
def test_map_and_reduce_over_files(tmp_path: Path) -> None:
    texts = tmp_path / "texts ü"
    texts.mkdir()
    for number, text in enumerate(["the cat and the dog", "the bird", "and the\nfish and"]):
        (texts / f"{number}.txt").write_text(text)

    result = run("map_reduce.pw", f"folder={texts}", cwd=tmp_path).result

    assert result[:2] == [["the", 4], ["and", 3]]


@pytest.mark.slow
def test_a_review_with_a_person_in_the_loop(tmp_path: Path) -> None:
    replay = answers(
        tmp_path,
        {"worker": "writer", "kind": "think", "answer": "a draft"},
        {"worker": "writer", "kind": "think", "answer": "a shorter draft"},
        {"worker": "reader", "kind": "ask", "answer": "shorter, please"},
        {"worker": "reader", "kind": "ask", "answer": "yes"},
    )

    assert run("review.pw", "topic=mail", "--replay", replay, cwd=tmp_path).result == "a shorter draft"
    live = run("review.pw", "topic=mail", "--model", "mock", cwd=tmp_path, given="no\nyes\n")
    assert (live.code, live.err.count("Here is a draft:")) == (0, 2)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A branch that was written in four untidy steps: two files are added, one is dropped."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    steps: list[tuple[str, dict[str, str | None]]] = [
        ("base", {"old.txt": "old\n", "readme": "r\n"}),
        ("wip", {"parser.py": "half\n"}),
        ("more wip", {"parser.py": "whole\n", "test parser.py": "tests\n"}),
        ("oops", {"parser.py": "whole, mended\n"}),
        ("drop old", {"old.txt": None}),
    ]
    for number, (message, files) in enumerate(steps):
        if number == 1:
            git(folder, "checkout", "-q", "-b", "feature")
        for name, text in files.items():
            if text is None:
                (folder / name).unlink()
            else:
                (folder / name).write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", message)
    git(folder, "checkout", "-q", "main")
    return folder


@pytest.mark.slow
def test_the_historian_tells_a_branch_as_a_clean_story(repository: Path) -> None:
    story = {
        "steps": [
            {"message": "Parse `$(things)`; with tests", "files": ["parser.py", "test parser.py"]},
            {"message": "Drop what is old", "files": ["old.txt"]},
        ]
    }
    before = git(repository, "rev-parse", "feature")
    replay = answers(repository.parent, {"worker": "analyst", "kind": "think", "answer": json.dumps(story)})

    words = ("rewrite", "branch=feature", "base=main", "--replay", str(repository.parent / replay))
    ran = run("historian.pw", *words, cwd=repository)

    assert ran.code == 0, ran
    assert ran.result == {"branch": "feature-told", "commits": 2}
    log = git(repository, "log", "--reverse", "--format=%s", "main..feature-told").splitlines()
    assert log == ["Parse `$(things)`; with tests", "Drop what is old"]
    assert git(repository, "diff", "feature", "feature-told") == ""
    assert git(repository, "rev-parse", "feature") == before
    assert git(repository, "worktree", "list").count("\n") == 1
    assert git(repository, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_story_that_leaves_something_out_is_not_told(repository: Path) -> None:
    story = {"steps": [{"message": "Half", "files": ["parser.py"]}]}
    replay = answers(repository.parent, {"worker": "analyst", "kind": "think", "answer": json.dumps(story)})

    words = ("rewrite", "branch=feature", "base=main", "--replay", str(repository.parent / replay))
    ran = run("historian.pw", *words, cwd=repository)

    assert ran.code == 5
    assert "the story leaves out old.txt (" in ran.err
    text = (EXAMPLES / "patchwork" / "historian.pw").read_text(encoding="utf-8")
    line = 1 + text[: text.index("the story leaves out")].count("\n")
    assert f"historian.pw:{line})" in ran.err
