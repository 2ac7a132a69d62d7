"""The pages about Patchwork are true: their programs print the output shown below them, and their tables are checked."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support import DOCS, ROOT

from postroom.lang.check.check import check_file
from postroom.lang.run.context import Settings
from postroom.lang.syntax.formatter import formatted

from .programs import PATIENCE_S, command, environment, value_of

PAGES = [DOCS / "language.md", DOCS / "checking.md", *sorted((DOCS / "language").glob("*.md"))]
PAGE = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
FILE = re.compile(r"^```(?:patchwork|jsonl) title=\"(\S+)\"\n(.*?)^```$", re.M | re.S)
RUN = re.compile(r"^    \$ postroom (.*)\n((?:(?:    .*)?\n)*)", re.M)
SESSION_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
#: Programs that are wrong on purpose.
WRONG = {"typo.pw", "review.pw", "pair.pw", "audit.pw"}


class Shown(NamedTuple):
    words: list[str]
    output: str


def files() -> dict[str, str]:
    return {match[1]: match[2] for match in FILE.finditer(PAGE)}


def runs() -> list[Shown]:
    return [
        Shown(shlex.split(match[1]), re.sub(r"^    ", "", match[2], flags=re.M).strip("\n") + "\n")
        for match in RUN.finditer(PAGE)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_there_are_programs_and_runs() -> None:
    assert len(files()) > 8
    assert len(runs()) > 8


def printed_by(words: list[str], folder: Path) -> str:
    import subprocess

    done = subprocess.run(
        command(*words),
        cwd=folder,
        env=environment(LC_ALL="C.UTF-8"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return SESSION_ID.sub("ID", done.stdout).rstrip("\n") + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("shown", runs(), ids=lambda shown: " ".join(shown.words[:2]))
def test_the_page_shows_what_is_printed(shown: Shown, folder: Path) -> None:
    assert printed_by(shown.words, folder) == shown.output


@pytest.mark.parametrize("name", sorted(name for name in files() if name.endswith(".pw")))
def test_the_programs_are_checked_and_in_form(name: str, folder: Path) -> None:
    problems = check_file(folder / name)

    assert bool(problems) == (name in WRONG), problems
    if name not in WRONG:
        assert formatted(files()[name], name) == files()[name]


def rows() -> list[tuple[str, str]]:
    """The rows of the table of expressions and their values."""
    table = PAGE.partition("| expression | value |\n| --- | --- |\n")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(.*)` \| `(.*)` \|$", table, re.M)
    return [(expression.replace("\\|", "|"), value) for expression, value in found]


@pytest.mark.parametrize(("expression", "value"), rows())
def test_expressions_have_the_values_that_the_page_gives_them(expression: str, value: str, tmp_path: Path) -> None:
    assert json.dumps(value_of(tmp_path, expression), ensure_ascii=False) == json.dumps(
        json.loads(value), ensure_ascii=False
    )


def test_the_table_of_expressions_is_read() -> None:
    assert len(rows()) > 15


def test_every_option_of_a_run_is_named_on_the_page() -> None:
    missing = [name for name in ("--model", "--human", "--record", "--replay", "--command-timeout") if name not in PAGE]

    assert missing == []
    assert Settings() == Settings(None)
