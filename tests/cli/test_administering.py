"""In a room with tokens, only a person's token administers: an agent's does not, and having none is never worth more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.core.clock import iso
from postroom.mail import tokens

from .support import Cli, clean_environment, command

#: What is for persons, each with the word by which an agent is refused. DEAD and TASK are put in by the test.
FOR_PERSONS = {
    ("agent", "add", "evil", "--human"): "make or revoke tokens",
    ("agent", "add", "evil"): "make or revoke tokens",
    ("agent", "revoke", "bob"): "make or revoke tokens",
    ("replay", "--since", "1h"): "replay messages",
    ("requeue", "DEAD"): "put messages back",
    ("requeue", "--all"): "put messages back",
    ("session", "stop", "SESSION"): "stop sessions",
    ("session", "clean", "--older-than", "0s"): "remove sessions",
    ("board", "abort", "OPEN"): "abort a task led by lead",
    ("board", "release", "BLOCKED"): "reopen a task led by lead",
    ("init", "--layout", "windsurf", "--room", "sqlite:.postroom"): "add agents to the room",
    ("limit", "jobs", "--concurrent", "1"): "change the limits of a channel",
    ("limit", "jobs", "--remove"): "change the limits of a channel",
    ("pause", "jobs"): "pause channel jobs",
    ("resume", "jobs"): "resume channel jobs",
    ("pause", "--agent", "bob"): "pause agent bob",
    ("resume", "--agent", "bob"): "resume agent bob",
    ("agent", "revoke", "--all"): "make or revoke tokens",
}


class Place:
    """A room with tokens of a person, alice and bob, and something of every kind that could be administered."""

    def __init__(self) -> None:
        with postroom.open() as room:
            self.person = tokens.add_token(room.gateway, "me", human=True)
            self.alice, self.bob = (tokens.add_token(room.gateway, name) for name in ("alice", "bob"))
            self.dead = room.agent("bob", transient=True).send("alice", {"text": "dead"})
            message = room.agent("alice", transient=True).poll()
            assert message is not None and message.dead("it cannot be done")
            with room.session() as session:
                self.session = session.id
            room.board.add("OPEN", lead="lead")
            room.board.add("BLOCKED", lead="lead")
            task = room.board.claim("bob", "BLOCKED")
            assert task is not None and task.blocked("no idea")

    def words(self, words: tuple[str, ...]) -> list[str]:
        put_in = {"DEAD": self.dead, "SESSION": self.session}
        return [put_in.get(word, word) for word in words]

    def looks(self) -> Any:
        """All of the room that a refused command must leave as it was."""
        with postroom.open() as room:
            cells = {cell.name: cell.value for cell in room.store.cell_scan("") if cell.name != tokens.REFUSALS_CELL}
            return [change.message for change in room.events()], cells


@pytest.fixture
def place(cli: Cli) -> Place:
    del cli
    return Place()


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def test_whoever_shows_no_token_administers_nothing(cli: Cli, place: Place) -> None:
    before = place.looks()

    for words in FOR_PERSONS:
        for named in ({}, {"POSTROOM_AGENT": "me"}):
            with environment(**named):
                refused = cli(*place.words(words))
            assert refused.code == 1, refused
            assert "this room has tokens: set $POSTROOM_TOKEN" in refused.err

    assert place.looks() == before


def test_an_agents_token_administers_nothing(cli: Cli, place: Place) -> None:
    before = place.looks()

    for words, deed in FOR_PERSONS.items():
        with environment(POSTROOM_TOKEN=place.alice):
            refused = cli(*place.words(words))
        assert refused.code == 1, refused
        assert f"alice may not {deed}; a person may" in refused.err

    assert place.looks() == before
    newest = [(entry["claimed"], entry["real"]) for entry in cli.json("agent", "list")["newest"]]
    assert newest == [(f"to {deed}", "alice") for deed in FOR_PERSONS.values()]


def test_a_persons_token_administers(cli: Cli, place: Place) -> None:
    nothing_left = (("requeue", "--all"), ("session", "stop", "SESSION"))  # in this order
    for words in FOR_PERSONS:
        before = place.looks()
        with environment(POSTROOM_TOKEN=place.person):
            done = cli(*place.words(words))
        assert words == ("requeue", "--all") or done.code == 0, done
        assert words in nothing_left or place.looks() != before, words


def test_the_lead_of_a_task_calls_it_off_and_puts_it_back(cli: Cli, place: Place) -> None:
    with postroom.open() as room:
        room.board.add("MINE", lead="alice")

    with environment(POSTROOM_TOKEN=place.alice):
        aborted = cli.json("board", "abort", "MINE")
        again = cli.json("board", "release", "MINE")

    assert (aborted["state"], again["state"]) == ("aborted", "ready")


def test_mail_to_the_board_calls_off_nothing_of_others_either(cli: Cli, place: Place) -> None:
    wish = '{"task_id": "OPEN", "state": "aborted"}'
    with postroom.open() as room:
        room.board.add("MINE", lead="bob")  # so bob is a lead, though not of OPEN

    with environment(POSTROOM_TOKEN=place.bob):
        cli.ok("send", "board", wish, "--type", "status", "--new")
        after = {task["id"]: task["state"] for task in cli.json("board", "list")}
        told = cli.json("receive")
    with environment(POSTROOM_TOKEN=place.person):
        cli.ok("send", "board", wish, "--type", "status")
        later = {task["id"]: task["state"] for task in cli.json("board", "list")}

    assert after["OPEN"] == "ready"
    assert "bob may not abort a task led by lead" in told["payload"]["text"]
    assert later["OPEN"] == "aborted"


def test_a_replay_speaks_for_the_person_who_replays(cli: Cli, place: Place) -> None:
    with environment(POSTROOM_TOKEN=place.bob):
        original = cli.ok("send", "alice", "deploy now").out.strip()

    with environment(POSTROOM_TOKEN=place.person):
        again = cli.json("replay", "--since", "1h", "--to", "alice")["ids"][-1]

    with postroom.open() as room:
        copy = room.get(again)
        assert (copy.from_agent, copy.lane, copy.replay_of) == ("me", "human", original)
        assert (room.get(original).from_agent, room.get(original).lane) == ("bob", "agent")


def test_reading_needs_no_token(cli: Cli, place: Place) -> None:
    for words in (
        ("status",), ("agents",), ("mailboxes",), ("peek",), ("dead",), ("receipt", place.dead), ("agent", "list"),
        ("session", "list"), ("board", "list"), ("reserve",), ("sql", "SELECT name FROM cells"),
    ):  # fmt: skip
        assert cli(*words).code == 0, words


def test_the_first_token_of_a_room_is_a_persons(cli: Cli) -> None:
    refused = cli("agent", "add", "bob", "--file", "bob.token")

    assert refused.code == 1
    assert "postroom agent add YOUR_NAME --human" in refused.err
    assert not os.path.exists("bob.token")
    assert cli.json("agent", "list")["tokens"] == []
    assert cli.json("agent", "add", "me", "--human")["human"] is True


def test_the_last_token_of_a_person_goes_only_with_all_others(cli: Cli, place: Place) -> None:
    with environment(POSTROOM_TOKEN=place.person):
        refused = cli("agent", "revoke", "me")
        assert refused.code == 1
        assert "postroom agent revoke --all" in refused.err
        assert cli.ok("agent", "revoke", "--all").out.startswith("3 tokens revoked: this room has none left")

    assert cli.json("agent", "list")["tokens"] == []
    cli.ok("send", "alice", "hi", "--as", "anybody")
    (deed,) = cli.json("agent", "list")["log"]
    assert (deed["what"], deed["agent"], deed["uid"]) == ("switched off", "me", os.getuid())


def lock_out() -> None:
    """Leave the room without a person's token, as rooms of earlier versions could be."""
    with postroom.open() as room:
        for cell in room.store.cell_scan(tokens.TOKEN_CELLS):
            if cell.value["human"]:
                room.store.cell_write(cell.name, cell.value | {"revoked_ms": 1})


def test_a_room_that_locked_everybody_out_says_so_and_is_recovered(cli: Cli, place: Place) -> None:
    too_early = cli("agent", "recover", "me")
    lock_out()

    refused = cli("agent", "add", "me", "--human")
    sick = {check["check"]: check for check in cli("doctor", "--json").json["checks"]}["tokens"]
    token = cli.json("agent", "recover", "me")["token"]
    well = {check["check"]: check for check in cli("doctor", "--json").json["checks"]}["tokens"]

    assert too_early.code == 1
    assert "a person has a token for this room" in too_early.err
    assert refused.code == 1
    assert "postroom agent recover NAME" in refused.err
    assert (sick["verdict"], well["verdict"]) == ("fail", "warn")
    assert "postroom agent recover NAME" in sick["advice"]
    assert f"recovered 0 s ago by user {os.getuid()} (me)" in well["says"]
    with environment(POSTROOM_TOKEN=token):
        assert cli.json("agent", "add", "carol")["agent"] == "carol"
    (deed,) = cli.json("agent", "list")["log"]
    assert (deed["what"], deed["agent"], deed["uid"]) == ("recovered", "me", os.getuid())
    assert iso(deed["time_ms"]).startswith("20")


def test_where_every_token_was_revoked_everybody_is_told_the_way_back(cli: Cli, place: Place) -> None:
    lock_out()
    with postroom.open() as room:
        for name in ("alice", "bob"):
            tokens.revoke_tokens(room.gateway, name)

    served = cli("mcp", "--http", "0")
    listed = cli.ok("agent", "list")
    sent = cli("send", "bob", "hi", "--as", "alice")
    with environment(POSTROOM_TOKEN=place.alice):
        revoked = cli("send", "bob", "hi")
    back = cli.json("agent", "recover", "me")["token"]
    with environment(POSTROOM_TOKEN=back):
        cli.ok("agent", "revoke", "--all")

    for refused in (served, sent):
        assert (refused.code, refused.out) == (1, "")
        assert "every token of this room was revoked, so no agent can use it" in refused.err
        assert "postroom agent recover NAME" in refused.err
    assert "no agent can use it" in listed.err
    assert "was revoked at" in revoked.err
    cli.ok("send", "bob", "hi", "--as", "alice")


def test_an_agents_token_lets_others_be_told_who_makes_one(cli: Cli, place: Place) -> None:
    with_person = cli("send", "bob", "hi", "--as", "alice")
    lock_out()
    without = cli("send", "bob", "hi", "--as", "alice")

    assert "a person makes one with `postroom agent add NAME`" in with_person.err
    assert "postroom agent recover NAME" in without.err
    assert "agent add" not in without.err


@pytest.mark.slow
def test_a_room_with_tokens_takes_no_file_from_a_caller_without_one(cli: Cli, place: Place) -> None:
    refused = cli("attach", __file__)
    with environment(POSTROOM_TOKEN=place.person):
        kept = cli.json("attach", __file__)

    assert (refused.code, "POSTROOM_TOKEN" in refused.err) == (cli("send", "bob", "hi").code, True)
    assert os.listdir(Path(kept["path"]).parent) == [kept["artifact"].removeprefix("sha256:")]


@pytest.mark.slow
def test_a_lost_token_of_a_person_is_replaced_by_a_person_at_a_terminal(cli: Cli, place: Place) -> None:
    def at_a_terminal(answer: bytes) -> tuple[int, str, str]:
        ours, theirs = os.openpty()
        words = command("agent", "recover", "me", "--lost", "--json")
        with subprocess.Popen(
            words, env=clean_environment(), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True
        ) as process:
            os.close(theirs)
            os.write(ours, answer + b"\n")
            assert process.stdout is not None
            out = process.stdout.read()
            code = process.wait(30)
        said = b""
        with suppress(OSError):  # the terminal's end
            while part := os.read(ours, 65536):
                said += part
        os.close(ours)
        return code, out, said.decode()

    in_a_pipe = cli("agent", "recover", "me", "--lost")
    code, out, said = at_a_terminal(b"you")
    assert (in_a_pipe.code, code) == (2, 1)
    assert "a person at a terminal" in in_a_pipe.err
    assert "Type that name to continue" in said
    assert "nothing was changed" in out
    with environment(POSTROOM_TOKEN=place.person):
        cli.ok("send", "bob", "hi", "--new")

    code, out, _ = at_a_terminal(b"me")

    assert code == 0
    with environment(POSTROOM_TOKEN=place.person):
        assert "was revoked" in cli("send", "bob", "hi", "--new").err
    with environment(POSTROOM_TOKEN=json.loads(out)["token"]):
        cli.ok("agent", "revoke", "--all")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_nothing_is_recovered_while_another_process_has_the_room_open(cli: Cli, tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:{tmp_path}/elsewhere"
    with postroom.open(url) as room:
        tokens.add_token(room.gateway, "me", human=True)
        (cell,) = room.store.cell_scan(tokens.TOKEN_CELLS)
        room.store.cell_write(cell.name, cell.value | {"revoked_ms": 1})
    look = "import postroom, sys; room = postroom.open(sys.argv[1]); room.stats(); print('here', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", look, url],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "here\n"
        refused = cli("agent", "recover", "me", "--room", url)
        other.stdin.close()
        other.wait(30)

    assert refused.code == 1
    assert "another process has this room open" in refused.err
    assert cli.json("agent", "list", "--room", url)["log"] == []
    assert cli.json("agent", "recover", "me", "--room", url)["human"] is True


@pytest.mark.slow
def test_a_program_is_let_into_a_room_with_tokens_by_one(cli: Cli, place: Place, tmp_path: Path) -> None:
    del cli
    (tmp_path / "hello.pw").write_text(
        "worker greeter() { return 1 }\nworker main() { self.delegate([greeter()]).await }\n",
        encoding="utf-8",
    )

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("run", "hello.pw"),
            cwd=tmp_path,
            env=clean_environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )

    without, with_token = run(), run(POSTROOM_TOKEN=place.alice)

    assert without.returncode == 1, without
    assert "this room has tokens: set $POSTROOM_TOKEN" in without.stderr
    assert with_token.returncode == 0, with_token.stderr
