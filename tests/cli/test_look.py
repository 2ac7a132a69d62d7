"""Looking at a room on the command line, which changes nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.cli.call import Invocation
from postroom.cli.commands import look
from postroom.core import trust
from postroom.core.clock import from_iso
from postroom.core.config import parse_url
from postroom.mail.handles import handle_of

from .support import Cli, clean_environment


def die_three_times(cli: Cli, text: str = "hi") -> str:
    """A message that bob failed at until it was set aside; returns its id."""
    id = cli.send(text)
    for number in (1, 2, 3):
        cli.ok("receive", "--as", "bob")
        cli.ok("retry", id, f"failure {number}", "--delay", "0", "--as", "bob")
    return id


def test_status_tells_the_room_its_messages_agents_and_mail(cli: Cli, tmp_path: Path) -> None:
    die_three_times(cli)
    cli.send()

    text = cli.ok("status").out
    document = cli.json("status")

    assert str(tmp_path) in text
    assert all(word in text for word in ("1 stored", "1 dead", "ada", "bob", "postroom dead"))
    assert document["states"]["stored"] == 1
    assert document["states"]["dead"] == 1
    assert [agent["name"] for agent in document["agents"]] == ["ada", "bob"]
    assert document["mailboxes"][0]["depth"] == 1
    assert document["waiting"] == []
    assert document["store"]


HOLD = """
import sys, postroom
room = postroom.open(sys.argv[1])
message = room.agent("bob").receive(timeout_s=30)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_what_a_killed_process_held_waits_again_for_the_first_look(cli: Cli, tmp_path: Path, scheme: str) -> None:
    room = f"{scheme}:{tmp_path}/room"
    cli.ok("init", "--room", room)
    id = cli.send("hi", "--room", room)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, room],
        env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert cli.json("receipt", id, "--room", room)["state"] == "claimed"
        assert cli.json("peek", "--room", room) == cli.json("mailboxes", "--room", room) == []
        holder.kill()

    assert cli.json("receipt", id, "--room", room)["state"] == "stored"
    assert [message["id"] for message in cli.json("peek", "--room", room)] == [id]
    assert [(box["to_agent"], box["depth"]) for box in cli.json("mailboxes", "--room", room)] == [("bob", 1)]
    status = cli.json("status", "--room", room)
    assert (status["states"]["stored"], status["states"]["claimed"]) == (1, 0)
    assert [(agent["name"], agent["status"], agent["pending"]) for agent in status["agents"]][1:] == [
        ("bob", "gone", 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "files", "nats"])
def test_status_says_each_thing_once_and_in_columns(cli: Cli, tmp_path: Path, scheme: str) -> None:
    url = f"nats://{shared_server().address}/{room_name()}" if scheme == "nats" else f"{scheme}:{tmp_path}/room"
    cli.ok("init", "--room", url)
    cli.ok("send", "bob", "hi", "--as", "ada", "--new", "--room", url)

    lines = cli.ok("status", "--room", url).lines
    facts = dict(
        line.split(None, 1) for line in lines[: next(n for n, line in enumerate(lines) if line.startswith("agent "))]
    )

    names = [line.split()[0] for line in lines[: len(facts)]]
    assert sorted(names) == sorted(set(names))
    assert (facts["messages"], facts["kind"]) == ("1 stored", scheme)
    assert len({line.index(facts[name], len(name)) for name, line in zip(names, lines, strict=False)}) == 1


def test_an_empty_room_says_so(cli: Cli) -> None:
    text = cli.ok("status").out

    assert "none yet" in text
    assert "no agents yet" in text
    assert "no mail is waiting" in text


def test_mailboxes_show_what_waits_for_whom(cli: Cli) -> None:
    cli.send()
    cli.send()
    cli.ok("send", "*", "anyone?", "--channel", "reviews", "--as", "ada")

    boxes = cli.json("mailboxes")

    assert sorted((box["to_agent"] or "", box["channel"], box["depth"]) for box in boxes) == [
        ("", "reviews", 1),
        ("bob", "general", 2),
    ]
    assert "(anybody)" in cli.ok("mailboxes").out


def test_lists_say_when_what_is_delayed_is_due(cli: Cli) -> None:
    cli.send("now")
    later = cli.send("later", "--delay", "4m")
    cli.send("much later", "--delay", "3h")
    retried = cli.send("again", to="cleo")
    cli.ok("receive", "--as", "cleo")
    cli.ok("retry", retried, "why not", "--delay", "2h", "--as", "cleo")
    due_at = cli.json("show", later)["due_at"]

    peeked = cli.ok("peek").out
    (bob, cleo) = cli.json("mailboxes")

    assert all(text in peeked for text in ("due in 4 min", "due in 3 h", "again in 2 h", "stored"))
    # Due times are kept in room time: on the wall clock they may be a millisecond off from one look to the next.
    listed = [message["due_at"] for message in cli.json("peek", "--agent", "bob")]
    assert listed.count(None) == 1
    assert min(abs(from_iso(text) - from_iso(due_at)) for text in listed if text) < 1000
    assert (bob["depth"], bob["delayed"]) == (1, 2)
    assert abs(from_iso(bob["next_due"]) - from_iso(due_at)) < 1000
    assert (cleo["depth"], cleo["oldest"], cleo["delayed"]) == (0, None, 1)
    assert "2 due, the first in 4 min" in cli.ok("mailboxes").out
    assert "1 due in 2 h" in cli.ok("status").out
    assert cli.json("status")["mailboxes"][0]["delayed"] == 2
    assert "in 2 h" in cli.ok("receipt", retried).out


def test_peek_shows_and_takes_nothing(cli: Cli) -> None:
    id = cli.send("look at me")

    first = cli.json("peek", "--agent", "bob")
    second = cli.json("peek", "--agent", "bob")

    assert first == second
    assert [(message["id"], message["delivery_count"]) for message in first] == [(id, 0)]
    assert "look at me" in cli.ok("peek", "--as", "bob").out
    assert cli.json("peek", "--agent", "eve") == []
    assert [event["event"] for event in cli.json("receipt", id)["events"]] == ["stored"]


def test_peek_finds_other_states_and_refuses_words_that_are_none(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob", "--ack")

    assert [message["id"] for message in cli.json("peek", "--state", "acked")] == [id]
    wrong = cli("peek", "--state", "sleeping")
    assert wrong.code == 2
    assert "sleeping" in wrong.err


def test_peek_finds_by_every_filter(cli: Cli) -> None:
    one = cli.send('{"pr": 7}', "--type", "build", "--channel", "builds", "--correlation-id", "job-1")
    two = cli.send("which port?", to="cleo")
    cli.ok("receive", "--as", "cleo")
    cli.ok("reply", two, "7678", "--as", "cleo")
    (three,) = (message["id"] for message in cli.json("peek", "--from", "cleo"))

    def found(*words: str) -> list[str]:
        return [message["id"] for message in cli.json("peek", *words)]

    assert found("--state", "all") == [three, two, one]
    assert found("--state", "done") == [two]
    assert found("--type", "build") == found("--correlation-id", "job-1") == found("--channel", "builds") == [one]
    assert found("--from", "ada", "--state", "all") == [two, one]
    assert found("--to", "cleo", "--state", "all") == [two]
    assert found("--answer-to", two) == found("--answer-to", handle_of(two)) == [three]
    assert found("--since", "1h", "--state", "all") == [three, two, one]
    assert found("--until", "1h", "--state", "all") == []
    assert found("--since", "2026-11-15T06:00:00Z", "--until", "1h") == []
    assert found("--text", "WHICH") == [two]
    assert found("--text", '"pr":7') == [one]
    assert found("--text", "7", "--from", "cleo") == [three]


def test_a_search_says_that_it_went_through_everything(cli: Cli) -> None:
    ids = [cli.send(f"{'x' * 500} needle {number}") for number in range(3)]

    assert [message["id"] for message in cli.json("peek", "--text", "needle")] == ids[::-1]
    assert "all matching messages were searched" in cli.ok("peek", "--text", "needle").err
    assert "2 of 3 are shown" in cli.ok("peek", "--text", "needle", "--limit", "2").err
    assert "nothing there" in cli.ok("peek", "--text", "haystack").out
    assert cli("peek", "--since", "yesterday").code == 2


def test_a_receipt_is_the_ledger(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob", "--ack")

    receipt = cli.json("receipt", id)

    steps = [(event["event"], event["agent"]) for event in receipt["events"]]
    assert steps == [("stored", "ada"), ("claimed", "bob"), ("acked", "bob")]
    assert receipt["recipient_known"]
    assert f"{id} is acked" in cli.ok("receipt", id).out


def test_a_receipt_says_that_the_recipient_is_unknown(cli: Cli) -> None:
    id = cli.send()

    delayed = cli.send("later", "--delay", "1h")

    assert cli.json("receipt", id)["recipient_known"] is False
    assert cli.ok("receipt", id, "--plain").out.splitlines()[1] == "bob has not joined this room yet"
    assert (
        cli.ok("receipt", id, "--plain").out.count("has not joined this room yet") == 1
    )  # said once, and in the words of `send`
    assert "its recipient has not joined this room yet" in cli.ok("receipt", delayed).out


def test_dead_letters_have_every_attempt(cli: Cli) -> None:
    id = die_three_times(cli)

    (letter,) = cli.json("dead")

    assert (letter["id"], letter["error"], letter["state"]) == (id, "failure 3", "dead")
    assert [attempt["error"] for attempt in letter["attempts"]] == ["failure 1", "failure 2", "failure 3"]
    assert "failure 3" in cli.ok("dead").out


def test_requeue_puts_a_dead_letter_back(cli: Cli) -> None:
    id = die_three_times(cli)

    cli.ok("requeue", id, "--as", "mia")

    assert cli.json("dead") == []
    last = cli.json("receipt", id)["events"][-1]
    assert (last["event"], last["agent"], last["detail"]) == ("by_hand", "mia", "put back")
    assert cli.json("receive", "--as", "bob")["delivery_count"] == 1


def test_requeue_goes_on_after_an_id_that_is_not_kept(cli: Cli) -> None:
    id = die_three_times(cli)

    result = cli("requeue", "unknown-1", id, "--json")
    assert (result.code, result.json) == (3, {"ids": [id]})
    assert result.err.startswith("postroom: 'unknown-1' is neither a message's id nor its handle")
    assert cli("requeue", "unknown-1", id).code == 1
    assert cli("requeue", "unknown-1").code == 3


def test_requeue_all(cli: Cli) -> None:
    ids = {die_three_times(cli, "one"), die_three_times(cli, "two")}

    assert set(cli.json("requeue", "--all")["ids"]) == ids
    assert cli("requeue", "--all").code == 3


def test_only_what_ended_badly_can_be_put_back(cli: Cli) -> None:
    id = cli.send()

    result = cli("requeue", id)

    assert result.code == 1
    assert "is stored" in result.err
    assert cli("requeue").code == 2
    assert cli("requeue", id, "--all").code == 2


def test_replay_sends_kept_messages_again(cli: Cli) -> None:
    id = cli.send("again")
    cli.ok("receive", "--as", "bob", "--ack")

    (copy,) = cli.json("replay", "--since", "1h", "--to", "bob")["ids"]

    assert copy != id
    assert cli.json("receive", "--as", "bob")["payload"] == {"text": "again"}


@pytest.mark.parametrize("since", ["0", "5m", "2020-01-01T00:00:00Z", "2020-01-01"])
def test_replay_begins_at_a_time_a_span_or_a_number(cli: Cli, since: str) -> None:
    cli.send()

    assert len(cli.json("replay", "--since", since)["ids"]) == 1


def test_replay_says_when_there_is_nothing_and_when_the_time_makes_no_sense(cli: Cli) -> None:
    assert cli("replay", "--since", "1h").code == 3
    wrong = cli("replay", "--since", "yesterday")
    assert wrong.code == 2
    assert "yesterday" in wrong.err


def test_sql_reads_the_tables(cli: Cli) -> None:
    id = cli.send()

    assert cli.json("sql", "SELECT id, status FROM messages") == [{"id": id, "status": "pending"}]
    assert cli.ok("sql", "SELECT status, priority FROM messages").lines == ["status   priority", "pending  5"]
    assert cli.ok("sql", "SELECT id FROM messages WHERE 0").out == "no rows\n"


def test_sql_reads_what_the_debugging_tips_ask_for(cli: Cli) -> None:
    die_three_times(cli)

    assert cli.json("sql", "SELECT COUNT(*) AS n FROM messages WHERE status = 'pending'") == [{"n": 0}]
    assert {row["agent_id"] for row in cli.json("sql", "SELECT * FROM agent_status")} == {"ada", "bob"}
    assert len(cli.json("sql", "SELECT * FROM dead_letter_queue")) == 1
    assert cli.json("sql", "SELECT * FROM channel_subscriptions") == []


@pytest.mark.parametrize(
    "query", ["DELETE FROM messages", "PRAGMA journal_mode = DELETE", "ATTACH 'other.db' AS other", "SELEC 1"]
)
def test_sql_cannot_write(cli: Cli, query: str) -> None:
    cli.send()

    assert cli("sql", query).code == 1
    assert cli.json("mailboxes")[0]["depth"] == 1


def test_sql_needs_a_room_with_tables() -> None:
    call = Invocation(argparse.Namespace(json=False, query="SELECT 1"))
    with postroom.open("memory:") as room, pytest.raises(look.QueryFailed, match="only SQLite rooms"):
        call._room = room
        look.sql(call)


def test_agents_show_who_runs_and_who_was_only_seen(cli: Cli) -> None:
    cli.send()
    with postroom.open(create=False) as room:
        room.agent("bob").heartbeat(current_task="reading")
        agents = {agent["name"]: agent for agent in cli.json("agents")}

    assert (agents["bob"]["status"], agents["bob"]["current_task"], agents["bob"]["alive"]) == (
        "active",
        "reading",
        True,
    )
    assert agents["ada"]["status"] == "seen"
    assert agents["bob"]["pending"] == 1


def test_looking_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    id = cli.send()
    tables = ("messages", "cells", "channel_subscriptions")
    before = [cli.json("sql", f"SELECT * FROM {table}") for table in tables]

    for words in (["status"], ["agents"], ["mailboxes"], ["peek"], ["receipt", id], ["dead"], ["sql", "SELECT 1"]):
        cli.ok(*words)

    assert [cli.json("sql", f"SELECT * FROM {table}") for table in tables] == before


@pytest.mark.parametrize(("scheme", "part"), [("sqlite", "messages.db"), ("files", "room.json"), ("files", "log")])
def test_a_room_whose_messages_are_missing_is_told_by_every_command_and_begun_anew_by_one(
    tmp_path: Path, cli: Cli, scheme: str, part: str
) -> None:
    own = tmp_path / "room" / ".postroom"
    room = f"{scheme}:{own if scheme == 'sqlite' else own.parent}"
    cli.ok("init", "--room", room)
    cli.send("hi", "--room", room)
    for path in own.glob(f"{part}*"):
        path.unlink()

    for words in (["peek"], ["status"], ["send", "bob", "hi", "--as", "ada"], ["init"]):
        result = cli(*words, "--room", room)
        assert result.code == 4, words
        assert f"{part} is missing" in result.err
        assert f"postroom init --anew --room {room}" in result.err
    checks = {check["check"]: check for check in cli("doctor", "--json", "--room", room).json["checks"]}
    assert checks["room"]["verdict"] == "fail"
    assert f"{part} is missing" in checks["room"]["says"]
    assert not list(own.glob(f"{part}*"))

    told = cli.json("init", "--anew", "--room", room)

    assert [Path(path).name.rpartition("-")[2] for path in told["kept"]] == (
        [] if scheme == "sqlite" else ["log"] if part == "room.json" else ["room.json"]
    )
    cli.send("hi again", "--room", room)
    assert "hi again" in cli.ok("peek", "--room", room).out
    assert trust.judge_url(parse_url(room)).why == ""  # as before: found by every command


def test_a_whole_room_is_not_begun_anew(cli: Cli) -> None:
    id = cli.send()

    assert cli.json("init", "--anew")["kept"] == []

    assert [message["id"] for message in cli.json("peek")] == [id]
