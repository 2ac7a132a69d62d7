"""The commands on the pages are there, with the options that they are shown with, and do what the pages say of them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import DOCS, ROOT

from postroom.cli.options import command_of
from postroom.cli.table import COMMANDS
from postroom.room import open_room

from .support import Cli

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
#: A command on a line of its own in a code block, or inside a line of text. A text beside it begins after two spaces.
IN_BLOCK = re.compile(r"^(?:    )?(?:\$ )?postroom (.*?)(?:  .*| # .*)?$", re.M)
IN_LINE = re.compile(r"`postroom ([^`]+)`")


def words_of(text: str) -> list[str]:
    """The words of a command, up to another program's: behind `--`, in a pipe, or the name of a file."""
    text = re.split(r" -- | [|>] ", text)[0]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def faults_of(text: str) -> Iterator[str]:
    """What a command on a page is shown with and does not know. Words in capitals, and `a|b`, stand for others."""
    name, *rest = words_of(text)
    if not re.fullmatch("[a-z]+", name):
        return
    if name not in COMMANDS:
        yield f"no command {name!r}"
        return
    parser, _ = command_of(name)
    said = [word.strip("[],").partition("=")[0] for word in rest]
    yield from (word for word in said if re.match("--?[a-z]", word) and word not in parser._option_string_actions)
    first = next((action for action in parser._actions if not action.option_strings), None)
    if first is not None and first.choices and rest and re.match("[a-z]", rest[0]):
        yield from (word for word in rest[0].split("|") if word not in first.choices)


def test_every_command_on_a_page_is_there_with_its_options() -> None:
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    shown = [
        (page, command) for page, text in texts.items() for command in [*IN_BLOCK.findall(text), *IN_LINE.findall(text)]
    ]

    assert len(shown) > 200
    assert {each: faults for each in shown if (faults := [*faults_of(each[1])])} == {}


@pytest.mark.parametrize("command", ["sned bob", "send bob --prority 3", "board reopn T1", "board show|reopn T2"])
def test_a_command_that_is_not_there_is_found(command: str) -> None:
    assert len([*faults_of(command)]) == 1


def shown_on(page: str) -> list[list[str]]:
    """The commands of a page's blocks, in order."""
    return [shlex.split(command) for command in IN_BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))]


def test_the_page_about_tokens_makes_a_person_and_an_agent_and_takes_one_back(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, agent, revoke = shown_on("agents/tokens.md")

    monkeypatch.setenv("POSTROOM_TOKEN", cli.json(*person)["token"])
    made = cli.json(*agent)
    assert cli.ok(*revoke).code == 0

    monkeypatch.setenv("POSTROOM_TOKEN", made["token"])
    assert cli("send", "me", "hello").code != 0


def test_the_page_about_sessions_lists_shows_stops_and_cleans(cli: Cli, tmp_path: Path) -> None:
    commands = shown_on("sessions.md")
    assert [words[1] for words in commands] == ["list", "show", "stop", "clean"]

    with open_room(f"sqlite:{tmp_path / '.postroom'}") as room, room.session() as session:
        for words in commands:
            cli.ok(*(session.id if word == "ID" else word for word in words))
        assert session.failure is not None


def test_the_page_about_the_board_makes_worktrees_for_workers(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_out, init, start = shown_on("board.md")
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], cwd=project, check=True)
    monkeypatch.chdir(project)

    cli.ok(*try_out)
    assert os.listdir(project) == [".git"]
    cli.ok(*init)
    assert len([path for path in project.parent.iterdir() if path != project]) == 3
    assert start[:2] == ["as", "worker-1"]
    cli.ok(*(word if word != "COMMAND..." else "true" for word in start))


def test_the_page_about_agents_connects_two_programs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    commands = shown_on("agents.md")
    assert commands == [["install", "claude-code"], ["install", "codex"]]

    for words in commands:
        cli.ok(*words)

    assert {".claude", ".codex"} <= set(os.listdir(home))
