"""`postroom group`, and sending to and asking groups."""

from __future__ import annotations

import threading

import pytest

import postroom

from .support import Cli


@pytest.fixture(autouse=True)
def _reviewers(cli: Cli) -> None:
    cli.ok("group", "add", "reviewers", "bob", "cy", "--new")


def test_a_group_is_added_to_listed_and_removed(cli: Cli) -> None:
    assert cli.ok("group", "add", "@reviewers", "dan", "--new").out == "@reviewers: bob, cy, dan\n"
    assert cli.ok("group", "remove", "reviewers", "bob").out == "@reviewers: cy, dan\n"
    assert cli.json("group", "list") == [{"group": "reviewers", "members": ["cy", "dan"]}]
    assert "@reviewers" in cli.ok("group", "list").out
    assert cli.json("group", "list", "@reviewers")[0]["members"] == ["cy", "dan"]
    assert cli.ok("group", "remove", "reviewers").out == "@reviewers is removed\n"
    assert cli.json("group", "list") == []
    assert cli("group", "list", "reviewers").code == 3


def test_each_member_gets_a_message(cli: Cli) -> None:
    sent = cli.ok("send", "@reviewers", "hi", "--to", "dan", "--as", "ada", "--new")

    assert len(sent.lines) == 3
    assert [cli.json("receive", "--as", name)["payload"]["text"] for name in ("bob", "cy", "dan")] == ["hi"] * 3


def test_a_group_of_one_gives_a_list_too(cli: Cli) -> None:
    cli.ok("group", "remove", "reviewers", "cy")

    (sent,) = cli.json("send", "@reviewers", "hi", "--as", "ada", "--new")
    assert sent["to_agent"] == "bob"


def test_a_group_is_asked(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        bob, stop = room.agent("bob"), threading.Event()
        room.agent("cy")
        serving = threading.Thread(target=lambda: bob.serve({"*": lambda _: {"text": "yes"}}, stop=stop))
        serving.start()
        asked = cli.ok("ask", "@reviewers", "ready?", "--enough", "any", "--as", "ada")
        stop.set()
        serving.join()

    assert asked.out == "bob: yes\n"
    assert "cy had not answered question" in asked.err


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["group", "add"], 2, "needs the name of a GROUP"),
        (["group", "add", "x"], 2, "needs the names of agents"),
        (["group", "add", "x", "@y"], 2, "must be agents, and @y is a group"),
        (["group", "add", "x", "zoe"], 1, "no agent called 'zoe' was ever seen"),
        (["group", "list", "x", "y"], 2, "takes the name of one GROUP"),
        (["group", "list", "--new"], 2, "--new is for"),
        (["group", "remove", "reviewer"], 3, "no group @reviewer; did you mean @reviewers?"),
        (["send", "@reviewer", "hi", "--as", "ada"], 3, "no group @reviewer; did you mean @reviewers?"),
        (["send", "reviewers", "hi", "--as", "ada"], 1, "similar names: @reviewers"),
        (["send", "@reviewers", "hi", "--as", "ada"], 1, "no agent called 'bob'"),
        (["send", "@reviewers", "hi", "--as", "ada", "--new", "--key", "k"], 2, "allow only one recipient"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_sent(cli: Cli, words: list[str], code: int, sentence: str) -> None:
    result = cli(*words)

    assert (result.code, sentence in result.err) == (code, True), result.err
    assert cli.json("mailboxes") == []
    assert [each["group"] for each in cli.json("group", "list")] == ["reviewers"]
