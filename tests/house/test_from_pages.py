"""The pages "from X to Postroom": our side of each is run, step by step in a folder of its own, and prints what it shows.

A fenced block with a title is a file of ours. One without a title is quoted from the other design, and is not run.
An indented line `$ COMMAND` is run in that folder; below it stands what it prints. "…" stands for what differs each
time: for a part of a line, or on a line of its own for any number of lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.support import clean_environment, command, without_fence
from tests.support import DOCS

from postroom.cli import options

PAGES = sorted((DOCS / "from").glob("*.md"))
FILE = re.compile(r'^```\w+ title="([^"]+)"\n((?s:.*?))^```$', re.M)
RUN = re.compile(r"^    \$ (.+)\n((?:(?!    \$ )(?:    .*)?\n)*)", re.M)
PATIENCE_S = 120.0


def run(line: str, folder: Path) -> str:
    """What a command of a page prints. Ours is run as at a terminal, without the fence that pipes get."""
    words = shlex.split(line)
    if words[0] == "postroom" and not set("|&;<>") & set(line):
        words = command(*without_fence(*words[1:]))
    else:
        words = ["bash", "-c", line]
    done = subprocess.run(
        words,
        cwd=folder,
        env=clean_environment(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", LC_ALL="C.UTF-8"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout


def pattern_of(shown: str) -> str:
    """What a page shows, with what may differ. Limits are those of a machine that does nothing else: on a busy one, a
    check may tell that they were passed (tests/cli/test_pool.py tests the check itself)."""
    lines = shown.split("\n")
    pattern = "\n".join(r"[\s\S]*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) for line in lines)
    if "(limit " in shown:
        pattern = re.sub(r"^pass\\ ", r"(?:pass|FAIL)\\ ", pattern, flags=re.M).replace("100%", r"\d+%")
    return pattern


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_our_side_of_the_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    commands = RUN.findall(FILE.sub("", text))
    assert commands

    for line, shown in commands:
        expected = re.sub(r"^    ", "", shown, flags=re.M).strip("\n")
        printed = run(line, tmp_path).strip("\n")
        assert re.fullmatch(pattern_of(expected), printed), f"$ {line}\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_says_what_is_different_and_is_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert text.startswith("# From ")
    assert "\n## What is different" in text
    assert len(text.split()) <= 1500


@pytest.mark.parametrize("page", [DOCS / "from.md", *PAGES], ids=lambda page: page.stem)
def test_the_commands_in_the_pages_text_are_commands(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"(?<!`)`postroom ([^`]+)`(?!`)", FILE.sub("", text)):
        name, *words = shlex.split(line)
        parser = options.command_of(name)[0]
        if words:
            parser.parse_args(words)


def test_every_design_has_its_page_and_a_line_in_the_list_of_them() -> None:
    listed = re.findall(r"\]\(from/([\w-]+)\.md\)", (DOCS / "from.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [page.stem for page in PAGES]
    assert [page.stem for page in PAGES] == [
        "communication-protocol",
        "continuum-workers",
        "patchwork-failures",
        "patchwork-mailboxes",
        "windsurf-mailbox",
    ]
