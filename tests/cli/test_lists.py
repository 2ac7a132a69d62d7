"""Lists and replays say how many there are, and are never cut without a word."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

import postroom
import postroom.mail.replaying  # itself, of which a test changes the page, and not what stands for it until it is used
from postroom.cli import main
from postroom.cli.commands import look, rooms

from .support import Cli, Terminal, command

MANY = 12


@pytest.fixture
def full(cli: Cli) -> Cli:
    """A room in which every list is long."""
    with postroom.open(create=False) as room:
        ada = room.agent("ada")
        for number in range(MANY):
            bob = room.agent(f"bob{number:02}", transient=True)
            room.board.add(f"T{number}")
            room.reserve([f"{number}/**"], bob.name, 600, transient=True)
            with room.session(name=f"s{number}"):
                pass
            ada.send(bob.name, {"n": number})
            bob.receive(timeout_s=0).dead("no good")
            ada.send(bob.name, {"n": number})
    return cli


LISTS = [
    ["peek"],
    ["peek", "--state", "dead"],
    ["dead"],
    ["agents"],
    ["mailboxes"],
    ["board", "list"],
    ["session", "list"],
]


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_a_list_that_is_cut_says_so_and_one_that_is_not_is_whole(full: Cli, words: list[str]) -> None:
    total = MANY + 2 * (words == ["agents"])  # ada, and the board
    cut, whole = full.ok(*words, "--limit", "5", "--json"), full.ok(*words, "--all", "--json")
    text = full.ok(*words, "--limit", "5")

    assert (len(cut.json), len(whole.json)) == (5, total)
    assert whole.err == ""
    assert cut.err == text.err == f"postroom: 5 of {total} are shown; use --all, or a larger --limit N, for more\n"
    assert full(*words, "--limit", "5", "--all").code == 2


def test_peek_shows_ten_unless_told_otherwise_and_counts_what_it_was_asked_for(full: Cli) -> None:
    full.send("one of two", "--channel", "news", to="bob00")
    full.send("two of two", "--channel", "news", to="bob01")

    assert "10 of 14 are shown" in full.ok("peek").err
    assert "1 of 2 are shown" in full.ok("peek", "--agent", "bob00", "--limit", "1").err
    assert "1 of 2 are shown" in full.ok("peek", "--channel", "news", "--limit", "1").err
    assert full.ok("peek", "--agent", "bob00", "--channel", "news", "--limit", "1").err == ""


def test_status_shows_people_the_first_of_many_and_scripts_all(full: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "AT_A_GLANCE", 5)
    text = full.ok("status").out

    assert ("bob03" in text, "bob04" in text, "bob05" in text) == (True, True, False)
    assert f"{MANY + 2 - 5} more agents: `postroom agents` lists all {MANY + 2}" in text
    assert f"{MANY - 5} more mailboxes: `postroom mailboxes` lists all {MANY}" in text
    assert len(full.json("status")["agents"]) == MANY + 2


def test_a_person_at_a_terminal_is_told_how_many_there_are(full: Cli) -> None:
    with closing(Terminal(command("agents"))) as terminal:
        assert terminal.end() == 0
        assert f"{MANY + 2} in all" in terminal.shown


# --- replay ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mail(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A room with some messages more than are sent again without a question."""
    monkeypatch.setattr(rooms, "MANY", 5)
    with postroom.open(create=False) as room:
        for number in range(8):
            room.agent("ada").send("bob", {"n": number})
    return cli


def payloads(cli: Cli, ids: list[str]) -> list[Any]:
    with postroom.open(create=False) as room:
        return [room.get(id).payload["n"] for id in ids]


def count(cli: Cli) -> int:
    return int(cli.json("status")["states"]["stored"])


def test_a_replay_of_many_has_to_be_asked_for_and_sends_none_before(mail: Cli) -> None:
    refused = mail("replay", "--since", "1h")

    assert refused.code == 2
    assert "8 messages match" in refused.err
    assert count(mail) == 8


def test_a_replay_says_how_many_there_are_and_how_many_it_sent(mail: Cli) -> None:
    some, every = (
        mail.ok("replay", "--since", "1h", "--limit", "3", "--json"),
        mail.ok("replay", "--since", "1h", "--all"),
    )

    assert {key: some.json[key] for key in ("found", "sent", "dry_run")} == {"found": 8, "sent": 3, "dry_run": False}
    assert payloads(mail, some.json["ids"]) == [0, 1, 2]
    assert some.err == "postroom: 3 of 8 sent again\n"
    assert every.err == "postroom: 8 of 8 sent again\n"
    assert payloads(mail, every.lines) == list(range(8))


def test_a_dry_run_names_what_would_be_sent_and_changes_nothing(mail: Cli) -> None:
    kept = [message["id"] for message in mail.json("peek", "--all")]

    dry = mail.ok("replay", "--since", "1h", "--dry-run")
    some = mail.json("replay", "--since", "1h", "--dry-run", "--limit", "2")

    assert (dry.lines, dry.err) == (kept, "postroom: 8 of 8 would be sent again\n")
    assert some == {"ids": kept[:2], "found": 8, "sent": 0, "dry_run": True}
    assert count(mail) == 8


def test_a_dry_run_shows_a_person_the_first_messages_and_how_many_more(mail: Cli) -> None:
    with postroom.open(create=False) as room:
        room.agent("ada").send_many([{"to": "bob", "payload": {"n": number}} for number in range(20)])
    with closing(Terminal(command("replay", "--since", "1h", "--dry-run"))) as terminal:
        assert terminal.end() == 0

    assert "and 8 more" in terminal.shown
    assert "28 of 28 would be sent again" in terminal.shown
    assert "ada" in terminal.shown


def test_ctrl_c_ends_a_replay_between_two_pages_and_tells_how_many_were_sent(
    mail: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("postroom.mail.replaying.PAGE", 3)
    real = postroom.open
    pages: list[object] = []

    def after_send(_event: str, detail: Mapping[str, Any]) -> None:
        pages.append(detail)
        if len(pages) == 2:
            signal.raise_signal(signal.SIGINT)

    def opened(*words: Any, **settings: Any) -> postroom.Room:
        room = real(*words, **settings)
        room.hooks.on("after_send", after_send)
        return room

    monkeypatch.setattr(postroom, "open", opened)
    capsys.readouterr()

    code = main(["replay", "--since", "1h", "--all"])

    said = capsys.readouterr()
    monkeypatch.setattr(postroom, "open", real)
    assert (code, said.err) == (130, "postroom: interrupted: 6 of 8 sent again\n")
    assert payloads(mail, said.out.split()) == list(range(6))
    assert count(mail) == 8 + 6


def test_a_person_sees_how_far_a_long_replay_is(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        room.agent("ada").send_many([{"to": "bob", "payload": {"n": number}} for number in range(1001)])
    with closing(Terminal(command("replay", "--since", "1h", "--all", "--json"))) as terminal:
        assert terminal.end() == 0

    assert "500 of 1001 sent again" in terminal.shown
    assert "postroom: 1001 of 1001 sent again" in terminal.shown


def test_requeue_all_says_how_many_came_back(full: Cli) -> None:
    assert full.ok("requeue", "--all").err == f"postroom: {MANY} of {MANY} put back\n"
