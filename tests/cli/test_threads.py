"""`postroom thread`: the whole conversation, from any of its messages."""

from __future__ import annotations

import pytest

from .support import Cli


@pytest.fixture
def ids(cli: Cli) -> list[str]:
    """A question, its answer, and a message that has nothing to do with them."""
    question = cli.send("which port?")
    cli.ok("receive", "--as", "bob")
    cli.ok("reply", question, "8765", "--as", "bob")
    answer = cli.json("receive", "--as", "ada", "--ack")["id"]
    return [question, answer, cli.send("lunch?")]


def test_a_thread_is_shown_in_order_from_any_of_its_messages(cli: Cli, ids: list[str]) -> None:
    question, answer, other = ids
    for id in (question, answer):
        assert [each["id"] for each in cli.json("thread", id)] == [question, answer]
    assert cli.json("thread", "@last")[0]["id"] == other
    shown = cli.ok("thread", answer)
    assert shown.lines[0].endswith("ada -> bob  answered")
    assert [line.strip() for line in shown.lines[1::2]] == ["which port?", "8765"]
    assert cli.json("thread", answer)[1]["answer_to"] == question


def test_the_newest_are_shown_where_not_all_are_wanted(cli: Cli, ids: list[str]) -> None:
    shown = cli.ok("thread", ids[0], "--limit", "1", "--json")

    assert [each["id"] for each in shown.json] == [ids[1]]
    assert "1 of 2 are shown" in shown.err


def test_an_unknown_message_has_no_thread(cli: Cli, ids: list[str]) -> None:
    unknown = ids[0][:-1] + ("0" if ids[0][-1] != "0" else "1")

    assert cli("thread", unknown).code == 3
