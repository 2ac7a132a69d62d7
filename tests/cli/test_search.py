"""`postroom search`: what it finds, what it says of how far it looked, and what it says of a query that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import postroom
import postroom.mail.searching  # itself, of which a test changes a limit, and not what stands for it until it is used

from .support import Cli, Terminal, command


@pytest.fixture
def sent(cli: Cli) -> Cli:
    cli.ok("send", "bob", "the build failed", "--as", "ci", "--channel", "jobs", "--new")
    cli.ok("send", "bob", "the build is green", "--as", "ci", "--new")
    cli.ok("send", "ci", "why has it failed?", "--as", "ada", "--new")
    return cli


def test_hits_are_listed_newest_first_and_as_json(sent: Cli) -> None:
    text, found = sent.ok("search", "failed"), sent.ok("search", "failed", "--json").json

    assert [message["payload"]["text"] for message in found] == ["why has it failed?", "the build failed"]
    assert text.out.index("why has it failed?") < text.out.index("the build failed")
    assert text.err == ""


def test_words_may_be_given_as_several_arguments_or_as_one(sent: Cli) -> None:
    for words in (["build", "from:ci", "in:jobs", "--json"], ["build from:ci in:jobs", "--json"]):
        (message,) = sent.ok("search", *words).json
        assert message["payload"] == {"text": "the build failed"}
    assert sent.ok("search", "build -failed", "--json").json[0]["payload"]["text"] == "the build is green"
    assert len(sent.ok("search", "failed", "--agent", "bob", "--json").json) == 1


def test_nothing_found_is_said_and_is_an_exit_code(sent: Cli) -> None:
    result = sent("search", "thimble")

    assert (result.code, result.out) == (3, "nothing matches\n")


def test_a_cut_list_says_that_there_is_more(sent: Cli) -> None:
    cut = sent.ok("search", "failed", "--limit", "1", "--json")

    assert len(cut.json) == 1
    assert cut.err == "postroom: the newest 1 are shown; use --all, or a larger --limit N, for more\n"
    assert len(sent.ok("search", "failed", "--all", "--json").json) == 2


def test_a_wrong_query_is_explained(sent: Cli) -> None:
    result = sent("search", "form:ci", "build")

    assert result.code == 2
    assert "there is no field form: (did you mean from:?); the fields are from:, to:, in:" in result.err


def test_a_room_without_an_index_says_how_far_it_was_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postroom.mail.searching, "MAX_READ", 500)
    with postroom.open(f"files:{tmp_path}/files") as room:
        room.agent("ada").send("bob", {"text": "needle"})
        room.agent("ada").send_many([{"to": "bob", "payload": {"text": "hay"}} for _ in range(600)])

    result = cli("search", "needle", "--room", f"files:{tmp_path}/files")

    assert result.code == 3
    assert "only the latest 500 messages were searched, back to" in result.err


@pytest.mark.slow
def test_a_person_sees_how_far_the_first_search_is(sent: Cli, tmp_path: Path) -> None:
    terminal = Terminal(command("search", "failed"))
    try:
        terminal.until("indexing messages: 3 of 3")
        terminal.until("jobs")
        assert terminal.end() == 0
    finally:
        terminal.close()
