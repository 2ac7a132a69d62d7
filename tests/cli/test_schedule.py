"""`postroom schedule`: adding, listing and removing what the room sends by the clock."""

from __future__ import annotations

import pytest

from .support import Cli
from .test_tokens import owner_token, token_for


def test_schedules_are_added_listed_and_removed(cli: Cli) -> None:
    assert cli.ok("schedule").out == "no schedules\n"
    made = cli.json(
        "schedule", "add", "stand-up", "stand-up!", "--cron", "0 9 * * 1-5", "--zone", "Europe/Berlin", "--to", "bob",
        "--new", "--missed", "skip", "--as", "ada",
    )  # fmt: skip
    assert (made["name"], made["cron"], made["zone"], made["to"], made["by"], made["missed"]) == (
        "stand-up", "0 9 * * 1-5", "Europe/Berlin", "bob", "ada", "skip",
    )  # fmt: skip
    assert made["payload"] == {"text": "stand-up!"} and made["next_tick"]
    said = cli.ok("schedule", "add", "sweep", "--every", "10m", "--channel", "chores").out
    assert said.startswith("sweep: every 600 s; the next one is due at 20")

    listed = cli.json("schedule", "list")

    assert [each["name"] for each in listed] == ["stand-up", "sweep"]
    assert listed[1]["every_s"] == 600 and listed[1]["by"] == "schedule" and listed[1]["to"] is None
    assert cli.ok("schedule", "list").lines[1].split()[:2] == ["stand-up", "0"]
    assert cli.ok("schedule", "remove", "sweep").out == "removed: sweep\n"
    assert [each["name"] for each in cli.json("schedule")] == ["stand-up"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add"], "needs the NAME of a schedule"),
        (["add", "x"], "say when: either --every 10m or --cron"),
        (["add", "x", "--every", "5", "--cron", "* * * * *"], "say when: either"),
        (["add", "x", "--every", "soon"], "'soon' is not a span of time"),
        (["list", "x"], "takes no NAME"),
        (["remove", "x", "y"], "'y' is one argument too many"),
        (["add", "x", "--every", "5", "--missed", "never"], "invalid choice: 'never'"),
    ],
)
def test_wrong_usage_is_named(cli: Cli, words: list[str], said: str) -> None:
    result = cli("schedule", *words)
    assert result.code == 2 and said in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cron", "0 25 * * *"], "cron: '0 25 * * *' is no cron expression: bad hour; expected five fields"),
        (["--cron", "0 9 * * *", "--zone", "Mars"], "zone: this machine knows no time zone 'Mars'"),
        (["--every", "0.2"], "every_s: must be at least 1 second, not 0.2"),
        (["--every", "5", "--to", "bbo"], "no agent called 'bbo' was ever seen in this room"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_added(cli: Cli, words: list[str], said: str) -> None:
    result = cli("schedule", "add", "x", *words)
    assert result.code in (1, 2) and said in result.err
    assert cli.json("schedule") == []


def test_a_schedule_that_is_not_there_cannot_be_removed(cli: Cli) -> None:
    result = cli("schedule", "remove", "x")
    assert result.code == 1 and "this room has no schedule 'x'" in result.err


def test_in_a_room_with_tokens_others_do_not_change_a_schedule(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    ada, bob, me = token_for(cli, "ada"), token_for(cli, "bob"), owner_token()

    def says(token: str) -> None:
        monkeypatch.setenv("POSTROOM_TOKEN", token)

    says(ada)
    assert cli.json("schedule", "add", "x", "--every", "60")["by"] == "ada"
    says(bob)
    for words in (["remove", "x"], ["add", "x", "--every", "90"]):
        assert "bob may not change the schedules of others; a person may" in cli("schedule", *words).err
    assert cli.json("schedule", "list")[0]["every_s"] == 60
    says(ada)
    cli.ok("schedule", "add", "x", "--every", "90")
    says(me)
    cli.ok("schedule", "remove", "x")
