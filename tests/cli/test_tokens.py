"""`postroom agent add | revoke`: once a room has tokens, a name must be proved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import postroom
from postroom.mail import tokens

from .support import Cli, clean_environment, command


def token_for(cli: Cli, name: str, *more: str) -> str:
    """A token of that agent, made by a person called owner, whose own is the room's first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTROOM_TOKEN", owner_token())
        token: str = cli.json("agent", "add", name, *more)["token"]
    return token


def owner_token() -> str:
    with postroom.open() as room:
        return tokens.add_token(room.gateway, "owner", human=True)


def test_a_token_decides_the_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send("before")
    ada = token_for(cli, "ada")

    without = cli("send", "bob", "hi", "--as", "ada", "--new")
    monkeypatch.setenv("POSTROOM_TOKEN", ada)
    id = cli.ok("send", "bob", "hi", "--new").out.strip()
    other = cli("send", "ada", "hi", "--as", "bob", "--new")

    assert (without.code, other.code) == (1, 1)
    assert "this room has tokens: set $POSTROOM_TOKEN to that of ada" in without.err
    assert "the token belongs to ada, which cannot act as bob" in other.err
    assert cli.json("peek", "--agent", "bob", "--limit", "9")[-1]["id"] == id
    assert cli.json("status")["states"]["stored"] == 2
    assert [(e["claimed"], e["real"]) for e in cli.json("agent", "list")["newest"]] == [("ada", None), ("bob", "ada")]


@pytest.mark.parametrize(
    "words",
    [
        ("send", "ada", "x"),
        ("ask", "ada", "x", "--timeout", "0"),
        ("publish", "news", "x"),
        ("receive",),
        ("ack", "ID"),
        ("reply", "ID", "x"),
        ("refuse", "ID", "x"),
        ("retry", "ID"),
        ("subscribe", "news"),
        ("listen", "--limit", "1"),
        ("board", "add", "T1"),
        ("board", "claim"),
        ("reserve", "src/**"),
        ("unreserve", "--all"),
        ("as", "bob", "--", "true"),
    ],
    ids=" ".join,
)
def test_no_command_speaks_for_another(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    id = cli.send("hi")
    cli.ok("receive", "--as", "bob")
    token = token_for(cli, "ada")
    before = cli.json("receipt", id)["events"]
    monkeypatch.setenv("POSTROOM_TOKEN", token)
    words = tuple(id if word == "ID" else word for word in words)

    by_option = cli(*words, "--as", "bob") if words[0] != "as" else cli(*words)
    monkeypatch.setenv("POSTROOM_AGENT", "bob")
    by_variable = cli(*words)

    for result in (by_option, by_variable):
        assert result.code == 1, result
        assert "cannot act as bob" in result.err
    assert cli.json("receipt", id)["events"] == before
    assert cli.json("agent", "list")["refusals"] == 2


def test_a_persons_token_writes_in_the_human_lane(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    me, ada = token_for(cli, "me", "--human"), token_for(cli, "ada")
    monkeypatch.setenv("POSTROOM_TOKEN", me)
    cli.ok("send", "ada", "stop, please", "--new")
    monkeypatch.setenv("POSTROOM_TOKEN", ada)
    got = cli.json("receive")
    cli.ok("reply", got["id"], "stopped")
    monkeypatch.setenv("POSTROOM_TOKEN", me)
    answer = cli.json("receive")
    cli.ok("reply", answer["id"], "thanks")

    assert (got["from_agent"], got["lane"]) == ("me", "human")
    assert (answer["lane"], answer["hop_count"]) == ("agent", 1)
    assert cli.json("peek", "--agent", "ada")[0]["lane"] == "human"


def test_an_agents_token_makes_no_tokens_and_takes_none_back(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_TOKEN", token_for(cli, "ada"))

    for words in (("add", "boss", "--human"), ("revoke", "bob"), ("add", "ada"), ("revoke", "--all")):
        result = cli("agent", *words)
        assert result.code == 1
        assert "ada may not make or revoke tokens" in result.err
    assert len(cli.json("agent", "list")["tokens"]) == 2


def test_a_revoked_agent_is_shut_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = token_for(cli, "ada")
    monkeypatch.setenv("POSTROOM_TOKEN", owner_token())

    assert cli.ok("agent", "revoke", "ada").out == "1 token of ada revoked\n"
    assert cli("agent", "revoke", "ada").code == 3
    monkeypatch.delenv("POSTROOM_TOKEN")
    assert cli("receive", "--as", "ada").code == 1
    monkeypatch.setenv("POSTROOM_TOKEN", ada)
    result = cli("receive")

    assert result.code == 1
    assert "the token of ada was revoked" in result.err


def test_a_token_in_a_file_is_for_its_owner_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "ada.token"
    monkeypatch.setenv("POSTROOM_TOKEN", owner_token())

    said = cli.ok("agent", "add", "ada", "--file", str(file))
    again = cli("agent", "add", "ada", "--file", str(file))
    monkeypatch.delenv("POSTROOM_TOKEN")
    monkeypatch.setenv("POSTROOM_TOKEN_FILE", str(file))

    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text(encoding="ascii").strip() not in said.out + said.err
    assert again.code == 2
    assert "already exists" in again.err
    assert len(cli.json("agent", "list")["tokens"]) == 2
    assert cli.json("send", "bob", "hi", "--new")["state"] == "stored"


def test_the_folder_of_a_tokens_file_is_made_for_its_owner_alone(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "postroom" / "bob.token"
    monkeypatch.setenv("POSTROOM_TOKEN", owner_token())

    cli.ok("agent", "add", "bob", "--file", str(file))

    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    for wrong in (f"{file}/below", "~nobody-of-that-name/token"):
        refused = cli("agent", "add", "eve", "--file", wrong)
        assert refused.code in (1, 2)
        assert refused.err.count("\n") == 1
    assert [token["agent"] for token in cli.json("agent", "list")["tokens"]] == ["owner", "bob"]


def test_a_loop_of_commands_ends_with_a_clear_refusal(cli: Cli) -> None:
    cli.send("0")
    names, sent = ["ada", "bob"], 0

    while True:
        me, peer = names[(sent + 1) % 2], names[sent % 2]
        got = cli.json("receive", "--as", me)
        result = cli("send", peer, f"{sent}", "--as", me)
        if result.code:
            break
        cli.ok("ack", got["id"], "--as", me)
        sent += 1

    assert (sent, result.code) == (8, 1)
    assert "would be 9 hops long; this room allows 8" in result.err


def test_who_acked_first_begins_something_new(cli: Cli) -> None:
    cli.send("hi")
    got = cli.json("receive", "--as", "bob")
    cli.ok("send", "ada", "because of it", "--as", "bob")
    cli.ok("ack", got["id"], "--as", "bob")
    cli.ok("send", "ada", "something else", "--as", "bob")

    first, second = cli.json("peek", "--agent", "ada")

    assert (first["hop_count"], first["chain_id"]) == (1, got["id"])
    assert (second["hop_count"], second["chain_id"]) == (0, None)


@pytest.mark.slow
def test_a_person_runs_a_program_as_an_agent_with_a_token_for_that_run(cli: Cli, tmp_path: Path) -> None:
    me = token_for(cli, "me", "--human")
    program = "import os, subprocess, sys; print(os.environ['POSTROOM_TOKEN'], flush=True); sys.exit(subprocess.run([sys.executable, '-m', 'postroom', 'send', 'me', 'hi', '--new']).returncode)"

    done = subprocess.run(
        command("as", "bob", "--", sys.executable, "-c", program),
        cwd=tmp_path,
        env=clean_environment(POSTROOM_TOKEN=me),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    token = done.stdout.splitlines()[0]
    assert token != me
    sent = cli.json("peek", "--agent", "me")[0]
    assert (sent["from_agent"], sent["lane"]) == ("bob", "agent")
    late = subprocess.run(
        command("send", "me", "hi"),
        cwd=tmp_path,
        env=clean_environment(POSTROOM_TOKEN=token),
        capture_output=True,
        text=True,
        check=False,
    )
    assert late.returncode == 1
    assert "was revoked" in late.stderr
    assert os.environ.get("POSTROOM_TOKEN") is None
