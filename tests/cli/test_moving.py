"""`postroom export | import | backup | restore | move` and `agent forget | rename`: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import postroom
from postroom.mail import tokens

from .support import Cli


def ids_in(address: str) -> list[str]:
    with postroom.open(address) as room:
        return [message.id for message in room.peek(state=None, limit=100, order="oldest")]


def test_a_backup_is_restored_into_another_store(cli: Cli, tmp_path: Path) -> None:
    ids = [cli.send("one"), cli.send("two")]
    told = cli.json("backup", str(tmp_path / "room.backup"))
    assert told["messages"] == 2 and told["bytes"] == (tmp_path / "room.backup").stat().st_size

    address = f"files:{tmp_path / 'mail'}"
    assert f"are in {address}" in cli.ok("restore", str(tmp_path / "room.backup"), address).out
    assert ids_in(address) == ids
    again = cli("restore", str(tmp_path / "room.backup"), address)
    assert again.code != 0 and "has messages already; choose another room, or use --merge" in again.err
    assert cli.json("restore", str(tmp_path / "room.backup"), address, "--merge")["messages"] == 2
    assert ids_in(address) == ids


def test_an_export_is_json_lines_and_can_be_imported(cli: Cli, tmp_path: Path) -> None:
    id = cli.send("one")
    cli.ok("export", str(tmp_path / "room.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "room.jsonl").read_text().splitlines()]
    assert lines[0]["version"] == 1 and lines[-1]["end"]["messages"] == 1
    assert [line["message"]["id"] for line in lines if "message" in line] == [id]
    taken = cli("export", str(tmp_path / "room.jsonl"))
    assert taken.code == 2 and "already exists; name a new file" in taken.err

    address = f"sqlite:{tmp_path / 'copy'}"
    cli.ok("init", "--room", address)
    cli.ok("import", str(tmp_path / "room.jsonl"), "--room", address)
    assert ids_in(address) == [id]


@pytest.mark.parametrize(("content", "words"), [(b"", "is empty"), (b"hello", "is neither an export nor a backup")])
def test_a_file_that_is_no_backup_is_refused_and_no_room_is_made(
    cli: Cli, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "wrong").write_bytes(content)
    refused = cli("restore", str(tmp_path / "wrong"), f"sqlite:{tmp_path / 'new'}")

    assert refused.code != 0 and words in refused.err and "nothing was changed" in refused.err
    assert not (tmp_path / "new").exists()


def test_a_moved_room_tells_commands_where_it_went(cli: Cli, tmp_path: Path) -> None:
    id = cli.send("one")
    with postroom.open() as room:
        old = str(room.url)
    new = f"files:{tmp_path / 'mail'}"
    told = cli.json("move", old, new)
    assert (told["messages"], told["resumed"]) == (1, False)

    gone = cli("status")
    assert gone.code == 4 and f"this room was moved to {new}; use that address" in gone.err
    assert cli.json("receipt", id, "--room", new)["state"] == "stored"
    assert cli.json("move", old, new)["resumed"] is True
    itself = cli("move", new, new)
    assert itself.code != 0 and "is the room itself" in itself.err
    missing = cli("move", f"sqlite:{tmp_path / 'nowhere'}", new)
    assert missing.code != 0 and "there is no room in" in missing.err


def test_an_agent_is_renamed_and_forgotten(cli: Cli) -> None:
    cli.ok("subscribe", "news", "--as", "bob")
    id = cli.send("one")
    assert cli.json("agent", "rename", "bob", "robert")["messages"] == 1
    assert cli.json("show", id)["to_agent"] == "robert"
    assert "1 messages still wait for robert; --mail deletes them" in cli.ok("agent", "forget", "robert").err
    asked = cli("agent", "forget", "robert", "--mail")
    assert asked.code == 2 and "1 messages that wait for robert would be deleted; add --yes" in asked.err
    assert cli.json("agent", "forget", "robert", "--mail", "--yes")["deleted"] == 1
    assert cli("agent", "forget", "robert").code == 3


@pytest.mark.parametrize(
    "words",
    [
        ("agent", "rename", "bob"),
        ("agent", "forget", "bob", "robert"),
        ("agent", "add", "bob", "--mail"),
        ("agent", "forget", "bob", "--yes"),
        ("move", "here"),
    ],
)
def test_wrong_words_are_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli(*words).code == 2


@pytest.mark.parametrize(
    "words", [("export", "-"), ("backup", "B"), ("agent", "forget", "bob"), ("agent", "rename", "bob", "rob")]
)
def test_in_a_room_with_tokens_only_a_person_may(
    cli: Cli, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.send("one")
    with postroom.open() as room:
        tokens.add_token(room.gateway, "mia", human=True)
        agents = tokens.add_token(room.gateway, "bob")
    monkeypatch.setenv("POSTROOM_TOKEN", agents)
    refused = cli(*words)

    assert refused.code != 0 and "person" in refused.err
    assert not Path("B").exists()
