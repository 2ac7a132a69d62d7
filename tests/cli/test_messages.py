"""Single messages on the command line: everything about one, its handle, and the last one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

import postroom
from postroom.cli.table import COMMANDS
from postroom.mail.handles import handle_of

from .support import Cli, clean_environment, command


def test_show_tells_everything_about_a_message(cli: Cli) -> None:
    id = cli.send('{"pr": 7}', "--type", "review", "--channel", "reviews", "--correlation-id", "job-1", "--delay", "4m")

    text = cli.ok("show", id).out
    document = cli.json("show", id)

    parts = ("is stored", "not due until", "in 4 min", "ada", "bob", "reviews", "review", '"pr": 7', "job-1", "stored")
    assert [part for part in parts if part not in text] == []
    assert handle_of(id) in text
    assert document["why"]["kind"] == "not_due"
    assert document["why"]["until"] == document["due_at"]
    assert (document["payload"], document["from_agent"], document["handle"]) == ({"pr": 7}, "ada", handle_of(id))
    assert [event["event"] for event in document["events"]] == ["stored"]
    assert document["answers"] == document["artifacts"] == document["attempts"] == []


def test_show_names_the_question_and_the_answer(cli: Cli) -> None:
    question = cli.send("which port?")
    cli.ok("receive", "--as", "bob")
    cli.ok("reply", question, "7678", "--as", "bob")
    (answer,) = cli.json("show", question)["answers"]

    assert "7678" in cli.ok("show", question).out
    assert "answered by" in cli.ok("show", question).out
    assert cli.json("show", answer)["answer_to"] == question
    assert "which port?" in cli.ok("show", answer).out


def test_show_lists_the_attempts_of_a_dead_letter(cli: Cli) -> None:
    id = cli.send()
    for number in (1, 2, 3):
        cli.ok("receive", "--as", "bob")
        cli("retry", id, f"failure {number}", "--delay", "0", "--as", "bob")

    document = cli.json("show", id)

    assert [attempt["error"] for attempt in document["attempts"]] == ["failure 1", "failure 2", "failure 3"]
    assert document["why"]["kind"] == "ended"
    assert "failure 3" in document["why"]["text"]


def test_a_receipt_says_why_the_message_waits(cli: Cli) -> None:
    id = cli.send(to="bbo")
    cli("receive", "--as", "bob")  # now bob was here

    receipt = cli.json("receipt", id)

    assert receipt["why"]["kind"] == "unknown_recipient"
    assert receipt["why"]["near"] == ["bob"]
    assert "similar names: bob" in cli.ok("receipt", id).out


def test_every_command_that_takes_an_id_takes_a_handle(cli: Cli) -> None:
    for settle in (["ack"], ["retry", "why", "--delay", "1h"], ["reply", "yes"], ["refuse", "why"], ["extend"]):
        id = cli.send(settle[0])
        cli.ok("receive", "--as", "bob")
        word, *more = settle
        assert handle_of(id) in cli.ok("peek", "--state", "claimed", "--as", "bob").out
        assert id in cli.ok(word, handle_of(id), *more, "--as", "bob").out
        cli("ack", id, "--as", "bob")
    id = cli.send("to be dead")
    cli.ok("receive", "--as", "bob")
    cli.ok("refuse", id, "no", "--as", "bob")

    assert cli.json("show", handle_of(id))["id"] == cli.json("receipt", handle_of(id).upper())["id"] == id
    assert cli.json("requeue", handle_of(id)) == {"ids": [id]}


def test_a_handle_of_nothing_is_an_unknown_message(cli: Cli) -> None:
    cli.send()

    for wrong in ("zzzzzzzz", "k3f9"):
        result = cli("show", wrong)
        assert result.code == 3
        assert wrong in result.err


@pytest.mark.parametrize("wrong", ["", "x y", "@first", "01932f4a-0000"])
def test_what_is_neither_an_id_nor_a_handle_is_told_what_one_is(cli: Cli, wrong: str) -> None:
    result = cli("show", wrong)

    assert result.code == 3
    assert f"{wrong!r} is neither a message's id nor its handle" in result.err


def test_an_id_or_a_handle_in_large_letters_is_the_same_one(cli: Cli) -> None:
    id = cli.send()

    assert cli.json("show", id.upper())["id"] == cli.json("receipt", handle_of(id).upper())["id"] == id
    assert cli.json("receipt", id)["handle"] == handle_of(id)


def test_last_is_the_newest_message_or_ones_own(cli: Cli) -> None:
    by_ada = cli.send("first")
    by_cleo = cli.ok("send", "bob", "second", "--as", "cleo", "--new").out.strip()
    cli.ok("receive", "--as", "bob")

    assert cli.json("show", "@last")["id"] == by_cleo
    assert cli.json("show", "@last", "--as", "ada")["id"] == by_ada
    assert cli.json("show", "@last", "--as", "bob")["id"] == by_ada
    assert cli.json("ack", "@last", "--as", "bob")["id"] == by_ada
    assert cli("ack", "@last", "--as", "bob").code == 3


def test_last_of_an_empty_room_is_nothing(cli: Cli) -> None:
    result = cli("show", "@last")

    assert result.code == 3
    assert "no last message" in result.err


def steps_of(lines: list[str]) -> list[tuple[str, str]]:
    """Each line of a log as the handle and the event."""
    return [(line.split()[1], line.split()[2]) for line in lines]


def test_the_log_tells_every_step_oldest_first(cli: Cli) -> None:
    first, second = cli.send("one"), cli.send("two")
    cli.ok("receive", "--as", "bob", "--ack")
    a, b = handle_of(first), handle_of(second)

    result = cli.ok("log")

    assert steps_of(result.lines) == [(a, "stored"), (b, "stored"), (a, "claimed"), (a, "acked")]
    assert "ada → bob" in result.lines[0]
    assert "one" in result.lines[0]
    assert [json.loads(line)["event"] for line in cli.ok("log", "--json").lines] == [
        "stored",
        "stored",
        "claimed",
        "acked",
    ]
    assert json.loads(cli.ok("log", "--json").lines[0]).items() >= {
        "id": first, "handle": a, "agent": "ada", "from_agent": "ada", "to_agent": "bob", "channel": "general", "state": "acked",
    }.items()  # fmt: skip


def test_the_log_keeps_what_is_asked_for(cli: Cli) -> None:
    one = cli.send("one", "--channel", "builds", "--type", "build")
    two = cli.send("two", to="cleo")
    cli.ok("receive", "--as", "cleo", "--ack")

    def told(*words: str) -> list[tuple[str, str]]:
        return steps_of(cli.ok("log", *words).lines)

    assert (
        told("--channel", "builds") == told("--type", "build") == told("--agent", "bob") == [(handle_of(one), "stored")]
    )
    assert told("--agent", "cleo") == [(handle_of(two), event) for event in ("stored", "claimed", "acked")]
    assert told("--event", "acked", "--event", "claimed") == [(handle_of(two), event) for event in ("claimed", "acked")]
    assert len(told("--since", "1h")) == len(told("--all")) == 4
    assert "no events match" in cli.ok("log", "--agent", "eve").out
    assert cli("log", "--since", "yesterday").code == 2
    assert cli("log", "--event", "sleeping").code == 2


def test_a_log_that_is_cut_says_so(cli: Cli) -> None:
    ids = [cli.send(str(number)) for number in range(4)]

    cut = cli.ok("log", "--limit", "2")

    assert steps_of(cut.lines) == [(handle_of(id), "stored") for id in ids[2:]]
    assert "only the last 2 are shown; use --all" in cut.err
    assert cli.ok("log", "--limit", "4").err == ""


@pytest.mark.slow
def test_a_followed_log_is_woken_and_ends_with_ctrl_c(cli: Cli) -> None:
    before = cli.send("before")
    log = subprocess.Popen(
        command("log", "-f", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert log.stdout is not None
    assert json.loads(log.stdout.readline())["id"] == before
    with postroom.open(create=False) as room:
        ada, bob = room.agent("ada"), room.agent("bob")
        id = ada.send("bob", {"text": "live"}, priority=9)
        bob.receive(timeout_s=30).ack()
        followed = [json.loads(log.stdout.readline()) for _ in range(3)]

    os.kill(log.pid, signal.SIGINT)
    out, err = log.communicate(timeout=30)

    assert [(step["id"], step["event"]) for step in followed] == [(id, "stored"), (id, "claimed"), (id, "acked")]
    assert (log.returncode, out, err) == (130, "", "")


def finish(cli: Cli, *texts: str) -> list[str]:
    ids = [cli.send(text) for text in texts]
    for _ in texts:
        cli.ok("receive", "--as", "bob", "--ack")
    return ids


def test_purge_deletes_what_is_finished_and_says_how_many(cli: Cli) -> None:
    finish(cli, "one", "two")
    waits = cli.send("three")

    dry = cli.json("purge", "--all", "--dry-run")
    assert dry == {"deleted": 0, "states": {"acked": 2}, "dry_run": True}
    assert cli.ok("purge", "--all", "--dry-run").out == "2 messages would be deleted (2 acked)\n"
    assert cli("purge", "--before", "1h").code == 3
    assert cli("purge", "--to", "eve").code == 3
    assert cli.ok("purge", "--to", "bob", "--channel", "general").out == "2 messages deleted (2 acked)\n"

    assert [message["id"] for message in cli.json("peek", "--state", "all")] == [waits]


def test_purge_needs_to_be_told_what(cli: Cli) -> None:
    id = cli.send()

    assert cli("purge").code == 2
    assert cli("purge", id, "--all").code == 2
    assert cli("purge", "--state", "sleeping").code == 2
    assert cli("purge", "--before", "yesterday").err.startswith("postroom: before: must be a time such as")
    assert cli("purge", "--before", "yesterday").code == 2


def test_what_is_not_finished_is_deleted_only_when_that_is_meant(cli: Cli) -> None:
    delayed, stays = cli.send("later", "--delay", "1h"), cli.send("now")

    refused = cli("purge", handle_of(delayed))
    assert refused.code == 2
    assert "--yes" in refused.err
    assert cli("purge", "--state", "pending").code == 2
    assert cli.ok("purge", handle_of(delayed), "--yes").out == "1 message deleted (1 stored)\n"

    assert [message["id"] for message in cli.json("peek", "--state", "all")] == [stays]
    assert cli("show", delayed).code == 3


def test_what_is_held_stays(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob")

    result = cli("purge", id, "--yes")

    assert result.code == 1
    assert "held by bob" in result.err
    assert cli.json("show", id)["state"] == "claimed"
    assert cli("purge", "--state", "all", "--yes").code == 3
    assert "1 held by a receiver was kept" in cli("purge", "--state", "claimed", "--yes").err
    assert cli("purge", "zzzzzzzz").code == 3
    assert cli("purge", "01932f4a-0000-7000-8000-000000000000").code == 3


def test_in_a_room_with_tokens_an_agent_deletes_only_its_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, foreign = cli.send("mine"), cli.ok("send", "bob", "x", "--as", "eve", "--new").out.strip()
    monkeypatch.setenv("POSTROOM_TOKEN", cli.json("agent", "add", "mia", "--human")["token"])
    monkeypatch.setenv("POSTROOM_TOKEN", cli.json("agent", "add", "ada")["token"])

    assert cli("purge", foreign, "--yes").code == 1
    assert cli("purge", "--state", "all", "--yes").code == 1
    assert cli.ok("purge", mine, "--yes").out.startswith("1 message")


def test_a_file_is_sent_shown_and_got_back(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "report.bin").write_bytes(bytes(range(256)) * 4)
    id = cli.send("the report", "--attach", "report.bin")

    document = cli.json("show", id)
    (file,) = document["artifacts"]
    assert document["payload"] == {"text": "the report", "attachments": [file]}
    assert (file["name"], file["bytes"]) == ("report.bin", 1024)
    assert file["artifact"] in cli.ok("show", id).out

    cli.ok("artifact", "get", file["artifact"], "-o", "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == (tmp_path / "report.bin").read_bytes()
    assert cli.ok("artifact", "get", file["artifact"]).out.strip() == file["path"]
    assert cli.json("attach", "report.bin") == file
    assert file["artifact"] in cli.ok("attach", "report.bin").out


def test_files_are_added_to_those_that_a_payload_has(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    reference = cli.json("attach", "a")

    id = cli.send(json.dumps({"attachments": [reference]}), "--attach", "a", "--attach", "b")

    assert [file["name"] for file in cli.json("show", id)["payload"]["attachments"]] == ["a", "a", "b"]
    assert cli("send", "bob", '{"attachments": 1}', "--attach", "a", "--as", "ada", "--new").code == 2


def test_where_a_file_lies_is_not_for_its_sender_to_say(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    kept = cli.json("attach", "a")
    here, nowhere = kept | {"path": "/etc/passwd"}, kept | {"artifact": "sha256:" + "0" * 64, "path": "/etc/passwd"}

    files = cli.json("show", cli.send(json.dumps({"files": [here, nowhere]})))["artifacts"]

    assert [file["path"] for file in files] == [kept["path"], None]


def test_what_cannot_be_attached_or_got_is_named_and_nothing_is_sent(cli: Cli, tmp_path: Path) -> None:
    missing = cli("send", "bob", "hi", "--attach", "nowhere.pdf", "--as", "ada", "--new")
    unknown = cli("artifact", "get", "sha256:" + "0" * 64)
    (tmp_path / "a").write_text("a")
    kept = cli.json("attach", "a")["artifact"]
    unwritable = cli("artifact", "get", kept, "-o", "no-such-folder/a")

    assert (missing.code, "nowhere.pdf" in missing.err) == (2, True)
    assert (unknown.code, unwritable.code) == (3, 1)
    assert "no-such-folder/a" in unwritable.err
    assert cli("artifact", "get", "report.pdf").code == 2
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe or a device; a file was expected" in cli("attach", "pipe").err
    assert cli.json("peek", "--state", "all") == []


def test_purging_a_message_takes_its_old_files_along(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    file = Path(cli.json("show", cli.send("x", "--attach", "old"))["artifacts"][0]["path"])
    os.utime(file, (0, 0))

    cli.ok("purge", "@last", "--yes")

    assert not file.exists()


@pytest.mark.slow
def test_the_examples_of_these_commands_run(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(b"%PDF-")
    digest = cli.json("attach", "report.pdf")["artifact"]
    finish(cli, "one")
    for name in ("show", "log", "peek", "attach", "artifact", "board", "purge"):
        for example in COMMANDS[name].examples:
            if "-f" in shlex.split(example):  # which does not end
                continue
            id = cli.send("hi")
            words = [word.replace("ID", id).replace("sha256:…", digest) for word in shlex.split(example)[1:]]
            result = cli(*words)
            assert result.code in ((0, 3) if name == "purge" else (0,)), (example, result)
