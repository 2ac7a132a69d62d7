"""`postroom help TOPIC` prints the pages of the documents, also where only the wheel is installed."""

from __future__ import annotations

import re

import pytest
from tests.support import DOCS, ROOT

from postroom.cli import pages
from postroom.cli.table import COMMANDS

from .support import Cli, Terminal, command
from .test_start import loaded_by


def test_every_page_is_a_topic(cli: Cli) -> None:
    written = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}

    assert set(pages.topics()) == written
    shown = cli.ok("help").out.split()
    assert [topic for topic in written if "/" not in topic and topic not in shown] == []
    assert {row["topic"] for row in cli.json("help", "topics")} == written


def test_a_topic_prints_its_page(cli: Cli) -> None:
    page = (DOCS / "guide.md").read_text(encoding="utf-8")

    assert cli.ok("help", "guide").out == page
    assert cli.ok("help", "docs/guide.md").out == page
    assert cli.json("help", "guide") == {
        "topic": "guide", "url": f"{pages.SITE}guide.html", "text": page.rstrip("\n"),
    }  # fmt: skip


def test_the_last_part_of_a_topic_is_enough_where_it_is_the_only_one(cli: Cli) -> None:
    assert cli.ok("help", "waking").out == (DOCS / "design" / "waking.md").read_text(encoding="utf-8")
    assert cli.ok("help", "design/board").out == (DOCS / "design" / "board.md").read_text(encoding="utf-8")


def test_a_name_that_is_a_command_and_a_page_gives_the_commands_help_and_names_the_page(cli: Cli) -> None:
    said = cli.ok("help", "board")

    assert said.out.startswith("usage: postroom board")
    assert "postroom help board.md" in said.err
    assert cli.ok("help", "board.md").out == (DOCS / "board.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("word", "near"),
    [("giude", "guide"), ("recieve", "receive"), ("wakin", "design/waking"), ("grep", "search")],
)
def test_a_topic_that_is_not_there_is_answered_with_the_near_ones(cli: Cli, word: str, near: str) -> None:
    result = cli("help", word)

    assert result.code == 2
    assert near in result.err


def test_a_page_is_drawn_for_a_person_at_a_terminal() -> None:
    terminal = Terminal(command("help", "sessions"))
    try:
        assert terminal.end() == 0
    finally:
        terminal.close()

    assert "Sessions" in terminal.shown
    assert "```" not in terminal.shown


def test_help_opens_no_room_and_loads_no_store(cli: Cli) -> None:
    assert not [name for name in loaded_by("help", "guide") if name.startswith(("postroom.stores", "rich", "apsw"))]


def test_a_doctor_that_found_something_names_the_page_that_explains_it(cli: Cli) -> None:
    result = cli("doctor", "--room", "sqlite:nowhere")

    assert result.code == 4
    assert "postroom help" not in cli.ok("doctor").out
    assert "`postroom help operations/doctor`" in result.out
    assert cli.ok("help", "operations/doctor").out == (DOCS / "operations" / "doctor.md").read_text(encoding="utf-8")


def test_no_sentence_of_the_program_names_a_file_that_only_a_checkout_has() -> None:
    """Comments may; what is printed refers to a page by `pages.see`."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    printed = [
        line for text in texts for line in re.findall(r'^[^#\n]*"[^"\n]*\bdocs/[a-z/]+\.md[^"\n]*".*$', text, re.M)
    ]
    examples = [example for each in COMMANDS.values() for example in each.examples]

    assert [line for line in printed if not any(example in line for example in examples)] == []
    referred = {word for text in texts for word in re.findall(r"see\(['\"]([\w/]+)['\"]\)", text)}
    assert referred
    assert referred <= set(pages.topics())
