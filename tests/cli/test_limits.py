"""`postroom limit`, `pause` and `resume`, and sending into full mailboxes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import PATIENCE_S

import postroom

from .support import Cli, clean_environment, command
from .test_tokens import owner_token, token_for

LIMITS = (
    "0.5 a second in bursts of 3 for each sender; 100 waiting in each mailbox; "
    "failed messages with an order key are passed"
)


def job(cli: Cli, *more: str) -> Any:
    return cli("send", "*", "do it", "--channel", "jobs", "--as", "ada", *more)


def test_limits_are_set_listed_and_removed(cli: Cli) -> None:
    nothing = cli.ok("limit").out
    assert nothing == "no limits and no pauses; `postroom limit CHANNEL --concurrent N` sets one\n"
    assert cli.ok("limit", "jobs", "--concurrent", "4", "--waiting", "100").out == (
        "jobs: 4 at once; 100 waiting in each mailbox\n"
    )
    made = cli.json("limit", "jobs", "--by", "sender", "--per-s", "0.5", "--burst", "3", "--pass-failed")
    assert made == {
        "channel": "jobs",
        "rules": [
            {"by": None, "concurrent": 4, "per_s": None, "burst": 1},
            {"by": "sender", "concurrent": None, "per_s": 0.5, "burst": 3},
        ],
        "waiting": 100,
        "pass_failed": True,
        "running": 0,
        "paused": None,
    }
    assert job(cli).code == 0
    cli.ok("receive", "--as", "bob", "--channel", "jobs")

    assert cli.ok("limit").lines == [
        "channel  limits".ljust(cli.ok("limit").lines[0].index("running")) + "running",
        f"jobs     4 at once; {LIMITS}  1 of 4",
    ]
    assert cli.json("limit") == {"channels": [made | {"running": 1}], "agents": []}
    assert cli.json("limit", "jobs") == made | {"running": 1}
    assert cli.json("limit", "jobs", "--no-pass-failed")["pass_failed"] is False
    assert cli.json("limit", "jobs", "--remove") == {"removed": "jobs"}
    assert cli.json("limit") == {"channels": [], "agents": []}


def test_a_limit_holds_for_receivers_of_other_commands(cli: Cli) -> None:
    cli.ok("limit", "jobs", "--concurrent", "1")
    assert job(cli).code == job(cli).code == 0
    cli.ok("receive", "--as", "bob", "--channel", "jobs")

    assert cli("receive", "--as", "eve", "--channel", "jobs").code == 3
    cli.ok("ack", "@last", "--as", "bob")
    cli.ok("receive", "--as", "eve", "--channel", "jobs")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["limit", "--concurrent", "4"], "say which CHANNEL"),
        (["limit", "--remove"], "say which CHANNEL"),
        (["limit", "jobs", "--remove", "--waiting", "4"], "--remove takes all limits away"),
        (["limit", "jobs", "--concurrent", "0"], "'0' is not a whole number above zero"),
        (["limit", "jobs", "--per-s", "many"], "'many' is not a number; write how many a second"),
        (["limit", "jobs", "--per-s", "-1"], "per_s: must be a number from 1e-07"),
        (["limit", "jobs", "--burst", "4"], "burst: goes with a rate"),
        (["limit", "jobs", "--by", "receiver", "--concurrent", "1"], "invalid choice: 'receiver'"),
        (["limit", "jobs", "--by", "sender", "--waiting", "1"], "by: goes with concurrent or per_s"),
        (["pause"], "name a CHANNEL, or an agent with --agent NAME, and not both"),
        (["pause", "jobs", "--agent", "bob"], "and not both"),
        (["resume"], "name a CHANNEL"),
    ],
)
def test_wrong_words_are_explained_and_nothing_changes(cli: Cli, words: list[str], problem: str) -> None:
    result = cli(*words)

    assert result.code == 2 and problem in result.err
    assert cli.json("limit") == {"channels": [], "agents": []}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["limit", "jobs", "--remove"], "the channel 'jobs' has no limits"),
        (["limit", "jobs"], "the channel 'jobs' has no limits and is not paused"),
        (["resume", "jobs"], "channel jobs is not paused"),
        (["resume", "--agent", "bob"], "agent bob is not paused"),
    ],
)
def test_what_is_not_there_cannot_be_shown_or_taken_away(cli: Cli, words: list[str], said: str) -> None:
    result = cli(*words)
    assert (result.code, result.err) == (3, f"postroom: {said}\n")


def test_a_paused_channel_gives_nothing_until_it_is_resumed(cli: Cli) -> None:
    assert job(cli).code == 0
    said = cli.ok("pause", "jobs", "--reason", "the database is down", "--as", "mia").out
    assert said == "channel jobs is paused; `postroom resume jobs` ends it\n"
    assert cli("receive", "--as", "bob", "--channel", "jobs").code == 3

    (found,) = cli.json("limit")["channels"]
    assert (found["paused"]["by"], found["paused"]["reason"]) == ("mia", "the database is down")
    assert [line.split()[:3] for line in cli.ok("limit").lines] == [
        ["paused", "by", "since"],
        ["channel", "jobs", "mia"],
    ]
    why = cli.json("receipt", "@last")["why"]
    assert why["kind"] == "paused" and why["text"].endswith("the database is down")
    again = cli.json("pause", "jobs", "--reason", "still", "--as", "mia")
    assert (again["new"], again["channel"], again["paused"]["reason"]) == (False, "jobs", "still")
    assert cli.ok("resume", "jobs").out == "channel jobs is resumed\n"
    cli.ok("receive", "--as", "bob", "--channel", "jobs")


def test_a_paused_agent_takes_nothing_until_it_is_resumed(cli: Cli) -> None:
    cli.send()
    paused = cli.json("pause", "--agent", "bob", "--reason", "it runs wild", "--as", "mia")
    assert (paused["agent"], paused["new"], paused["paused"]["by"]) == ("bob", True, "mia")
    assert cli("receive", "--as", "bob").code == 3
    assert cli.json("limit")["agents"] == [{"agent": "bob", "paused": paused["paused"]}]
    assert cli.json("resume", "--agent", "bob") == {"agent": "bob", "resumed": True}
    cli.ok("receive", "--as", "bob")


def test_the_pause_of_an_agent_that_was_never_seen_is_doubted(cli: Cli) -> None:
    cli.ok("subscribe", "news", "--as", "bob")

    said = cli("pause", "--agent", "bbo")

    assert (said.code, said.err) == (
        0,
        "postroom: no agent called 'bbo' was ever seen in this room; similar names: bob\n",
    )


def test_a_full_mailbox_takes_no_more_and_says_so(cli: Cli) -> None:
    cli.ok("limit", "jobs", "--waiting", "1")
    assert job(cli).code == 0

    full, waited = job(cli), job(cli, "--full-wait", "0.05", "--json")

    sentence = "the channel 'jobs' is full: 1 message waits there; send later"
    assert (full.code, full.err) == (
        1,
        f"postroom: {sentence} (--full-wait S waits for space). Nothing was stored\n",
    )
    error = json.loads(waited.out)["error"]
    assert (waited.code, error["type"]) == (1, "MailboxFull")
    assert error["message"] == f"{sentence} (there was no space in 0.05 s). Nothing was stored"
    assert len(cli.json("peek", "--channel", "jobs")) == 1


def test_a_send_waits_for_space_as_long_as_it_was_told(cli: Cli, tmp_path: Path) -> None:
    cli.ok("limit", "jobs", "--waiting", "1")
    assert job(cli).code == 0
    with postroom.open(f"sqlite:{tmp_path}/.postroom") as room:
        sending = subprocess.Popen(
            command("send", "*", "second", "--channel", "jobs", "--as", "cy", "--full-wait", "30s"),
            stdout=subprocess.PIPE, env=clean_environment(), text=True,
        )  # fmt: skip
        assert [agent.name for agent in _until_known(room, "cy")]
        room.agent("bob").receive(PATIENCE_S, channels=["jobs"]).ack()

        id = sending.communicate(timeout=PATIENCE_S)[0].strip()

        assert sending.returncode == 0
        assert room.get(id).payload == {"text": "second"}


def _until_known(room: postroom.Room, name: str) -> list[postroom.AgentInfo]:
    """The sender registers before it looks for space."""
    with room.store.listen(["cells:agent"]) as waiter:
        while not (found := [agent for agent in room.agents() if agent.name == name]):
            assert waiter.wait(PATIENCE_S)
    return found


def test_waiting_for_space_is_for_one_recipient(cli: Cli) -> None:
    result = cli("send", "bob", "hi", "--to", "cy", "--as", "ada", "--new", "--full-wait", "5")
    assert result.code == 2 and "--full-wait allow only one recipient" in result.err


def test_in_a_room_with_tokens_an_agent_pauses_itself_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    bob, me = token_for(cli, "bob"), owner_token()

    def says(token: str) -> None:
        monkeypatch.setenv("POSTROOM_TOKEN", token)

    says(bob)
    assert cli.json("pause", "--agent", "bob")["paused"]["by"] == "bob"
    assert cli.json("pause", "--agent", "bob", "--reason", "lunch")["paused"]["reason"] == "lunch"
    cli.ok("resume", "--agent", "bob")
    assert "bob may not pause agent ada; a person may" in cli("pause", "--agent", "ada").err
    says(me)
    assert cli.json("pause", "--agent", "bob")["paused"]["by"] != "bob"
    says(bob)
    for words in (["resume", "--agent", "bob"], ["pause", "--agent", "bob"]):
        refused = cli(*words)
        assert refused.code == 1 and f"bob may not {words[0]} agent bob; a person may" in refused.err
    assert cli("pause", "jobs", "--as", "mia").code == 1  # the token is bob's
    says(me)
    cli.ok("resume", "--agent", "bob")


def test_status_tells_limits_pauses_and_schedules(cli: Cli) -> None:
    before = cli.json("status")
    assert before["limits"] == {"channels": [], "agents": []}
    assert before["schedules"] == {"count": 0, "next_tick": None}
    cli.ok("limit", "jobs", "--concurrent", "4")
    cli.ok("pause", "--agent", "bob", "--reason", "it runs wild", "--as", "mia")
    made = [cli.json("schedule", "add", name, "--every", span) for name, span in (("slow", "2h"), ("fast", "1h"))]

    text, status = cli.ok("status").out, cli.json("status")

    assert [channel["channel"] for channel in status["limits"]["channels"]] == ["jobs"]
    assert status["limits"]["agents"][0]["paused"]["reason"] == "it runs wild"
    assert status["schedules"]["count"] == 2
    assert status["schedules"]["next_tick"][:16] == made[1]["next_tick"][:16]
    assert f"schedules  2, the next tick at {status['schedules']['next_tick'][:16]}" in text
    assert "\njobs     4 at once  0 of 4\n" in text
    assert re.search(r"\nagent bob  mia  \d s ago  it runs wild\n", text)


def test_top_shows_limits_with_what_is_paused_first_and_the_next_tick(cli: Cli) -> None:
    assert cli.json("top", "--once")["limits"] == []
    cli.ok("limit", "builds", "--concurrent", "4")
    cli.ok("pause", "jobs", "--reason", "\x1b[31mred", "--as", "mia")
    cli.ok("pause", "--agent", "bob", "--as", "mia")
    cli.ok("schedule", "add", "slow", "--every", "2h")

    picture, text = cli.json("top", "--once"), cli.ok("top", "--once").out

    shown = [(line["channel"], line["agent"], line["allowed"], line["paused_by"]) for line in picture["limits"]]
    assert shown == [(None, "bob", None, "mia"), ("jobs", None, None, "mia"), ("builds", None, 4, None)]
    assert (picture["schedules"], picture["next_tick"] is not None) == (1, True)
    assert "1 schedule, next in " in text
    assert "0/4" in text and "#jobs" in text and "\\x1b[31mred" in text and "\x1b[31m" not in text
