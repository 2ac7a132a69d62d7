"""How the command line speaks: help, options, errors, exit codes, and rooms that are not there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.support import ROOT

from postroom import errors
from postroom.cli import exit_codes
from postroom.cli.table import COMMANDS, GROUPS, MEANT
from postroom.mail import presence

from .support import Cli

#: The byte 0xff as Python gives it to programs.
NO_TEXT = "\udcff"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, name: str) -> None:
    text = cli.ok(name, "--help").out

    assert f"usage: postroom {name}" in text
    assert "--room" in text
    assert "example" in text
    assert all(example in text for example in COMMANDS[name].examples)
    assert cli.ok("help", name).out == text


def test_the_overview_lists_every_command_once(cli: Cli) -> None:
    text = cli.ok("--help").out

    assert sorted(name for _, names in GROUPS for name in names) == sorted(COMMANDS)
    assert all(COMMANDS[name].summary in text for name in COMMANDS)


def test_no_command_at_all_is_wrong_usage_and_shows_the_overview(cli: Cli) -> None:
    result = cli()

    assert result.code == 2
    assert "usage: postroom" in result.out


def test_the_version_is_the_packages(cli: Cli) -> None:
    import postroom

    assert cli.ok("--version").out == f"postroom {postroom.__version__}\n"


def test_a_command_that_is_not_there_is_answered_with_the_near_ones(cli: Cli) -> None:
    result = cli("recieve", "--as", "bob")

    assert result.code == 2
    assert "receive" in result.err
    assert "did you mean" not in cli("backup").err  # that is nothing like ack


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["send", "bob", "hi", "--as", "ada", "--prority", "9"], "--priority"),
        (["send", "bob", "hi", "--prority=9"], "--priority"),
        (["peek", "--jsn"], "--json"),
        (["board", "reopn", "T1"], "reopen"),
        (["peek", "--state", "acekd"], "acked"),
        (["grep", "needle"], "postroom search"),
        (["events"], "postroom log"),
        (["tail"], "postroom log -f"),
        (["cancel", "ID"], "postroom withdraw"),
        (["why", "ID"], "postroom show"),
        (["dump"], "postroom export"),
    ],
)
def test_what_was_probably_meant_is_named(cli: Cli, words: list[str], hint: str) -> None:
    result = cli(*words)

    assert result.code == 2
    assert f"did you mean {hint}?" in result.err or f"`{hint}` does that" in result.err


def test_what_is_meant_by_a_foreign_name_is_a_command_that_is_there() -> None:
    assert [name for name in MEANT if name in COMMANDS] == []
    assert {meant.split()[0] for meant in MEANT.values()} <= {*COMMANDS}


def test_help_and_the_version_are_had_as_elsewhere(cli: Cli) -> None:
    assert cli.ok("help").out == cli.ok("--help").out == cli.ok("-h").out
    assert cli.ok("version").out == cli.ok("-V").out == cli.ok("-v").out == cli.ok("--version").out


@pytest.mark.parametrize(
    "words",
    [
        ["send", "bob"],
        ["send", "bob", "hi", "--as", "ada", "--colour", "red"],
        ["receive", "--as", "bob", "--wait", "soon"],
        ["receive", "--as", "bob", "--wait", "-1"],
        ["receive", "--as", "bob", "--wait", "nan"],
        ["peek", "--limit", "0"],
        ["peek", "--limit", "9" * 20],
        ["replay", "--since", "9" * 23],
        ["replay", "--since", "9" * 5000],
        ["replay", "--since", "9999999999d"],
        ["replay", "--since", "9" * 300 + "d"],
        ["send", "bob", "hi", "--as", "ada", "--wait", "seen"],
        ["completion", "tcsh"],
        ["as", "bob"],
        ["--json"],
        ["--as"],
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_sentence(cli: Cli, words: list[str]) -> None:
    result = cli(*words)

    assert result.code == 2
    assert result.err.startswith("postroom: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["receipt", NO_TEXT],
        ["--room", NO_TEXT, "status"],
        ["peek", "--channel", NO_TEXT],
        ["peek", f"--channel={NO_TEXT}"],
        ["session", "show", NO_TEXT],
        ["sql", f'select "{NO_TEXT}"'],
        ["init", NO_TEXT],
        ["ack", "x", NO_TEXT, "--as", "bob"],
        ["status", NO_TEXT],
        [NO_TEXT],
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_argument_that_is_not_text_is_refused_by_name(cli: Cli, words: list[str], more: list[str]) -> None:
    result = cli(*words, *more)

    assert (result.code, result.err.count("\n")) == (2, 1), result
    assert "\\udcff" in result.err
    assert not more or result.json["error"]["type"] == "UsageError"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_folder_whose_name_is_not_text_cannot_have_a_room(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    folder = tmp_path / f"a{NO_TEXT}b"
    folder.mkdir()
    monkeypatch.chdir(folder)

    ended = [cli(*words, *more) for words in (["init"], ["init", "--layout", "windsurf"], ["doctor"])]
    assert [result.code for result in ended] == [4, 4, 0]  # the doctor looks at the room above
    assert all("is not UTF-8 text" in result.err and result.err.count("\n") == 1 for result in ended[:2])
    assert list(folder.iterdir()) == []
    (folder / ".postroom").mkdir()
    assert [cli(*words, *more).code for words in (["status"], ["doctor"])] == [4, 4]
    assert all(result.json for result in ended if more)


def test_a_folder_with_a_question_mark_in_its_name_can_have_a_room(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, words in (("a?sync=full", ["init"]), ("b?", ["init", "--layout", "windsurf"])):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)

        cli.ok(*words)
        id = cli.send()
        room = cli.json("status")["room"]
        assert cli.json("receipt", id, "--room", room)["state"] == "stored"
        assert cli.json("doctor")["room"] == room
        assert "?" not in room


def test_a_home_that_nobody_knows_is_told_in_a_sentence(cli: Cli) -> None:
    result = cli("status", "--room", "sqlite:~nobody-of-that-name/room")

    assert (result.code, result.err.count("\n")) == (4, 1)
    assert "write the full path" in result.err


def test_errors_are_json_too_when_asked(cli: Cli) -> None:
    result = cli("receive", "--as", "bob", "--json")

    assert result.json == {"error": {"type": "NoMail", "message": "there is no mail for bob; --wait S waits for some"}}
    assert result.err.startswith("postroom: there is no mail")


def test_common_options_may_stand_before_the_command(cli: Cli, tmp_path: Path) -> None:
    cli.ok("--room", f"sqlite:{tmp_path}/elsewhere", "init")

    cli.ok("--room", f"sqlite:{tmp_path}/elsewhere", "--as", "ada", "send", "bob", "hi", "--new")

    assert cli.ok("--json", "--room", f"sqlite:{tmp_path}/elsewhere", "mailboxes").json[0]["to_agent"] == "bob"
    assert cli.json("mailboxes") == []


def test_a_room_is_made_by_init_alone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".postroom").rename(tmp_path / "not-a-room")
    monkeypatch.chdir(elsewhere)

    result = cli("send", "bob", "hi", "--as", "ada", "--new")

    assert result.code == 4
    assert str(elsewhere) in result.err
    assert "postroom init" in result.err
    assert list(elsewhere.iterdir()) == []


def test_init_makes_the_room_that_the_environment_names(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_URL", f"sqlite:{tmp_path}/named")

    cli.ok("init")
    cli.send()

    assert (tmp_path / "named" / "messages.db").is_file()
    monkeypatch.delenv("POSTROOM_URL")
    assert cli.json("mailboxes") == []


@pytest.mark.parametrize("words", [["send", "bob", "hi", "--as", "ada", "--new"], ["init"], ["demo"]])
def test_a_room_that_ends_with_the_command_is_refused(cli: Cli, words: list[str]) -> None:
    result = cli(*words, "--room", "memory:")

    assert result.code == 4
    assert "exists only while this command runs" in result.err


def test_a_payload_of_bottomless_depth_is_a_clear_error(cli: Cli) -> None:
    result = cli("send", "bob", '{"a":' * 50_000 + "1" + "}" * 50_000, "--as", "ada", "--new")

    assert result.code == 2
    assert result.err.count("\n") == 1


def test_a_folder_that_was_removed_is_told_in_a_sentence(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    result = cli("status")

    assert result.code != 0
    assert result.err.count("\n") == 1
    monkeypatch.undo()


@pytest.mark.parametrize("url", ["sqlite:nowhere", "pigeon:coop", "sqlite:"])
def test_a_room_that_cannot_be_reached_is_exit_code_4(cli: Cli, url: str) -> None:
    result = cli("status", "--room", url)

    assert result.code == 4
    assert result.err.count("\n") == 1


def test_a_room_is_found_from_a_folder_below(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    assert str(tmp_path / ".postroom") in cli.json("status")["room"]


def test_init_makes_a_room_here_even_below_another(cli: Cli, tmp_path: Path) -> None:
    below = tmp_path / "a"
    below.mkdir()

    cli.ok("init", str(below))

    assert (below / ".postroom" / "messages.db").is_file()


def test_init_twice_keeps_what_is_there(cli: Cli) -> None:
    cli.send()

    cli.ok("init")

    assert cli.json("mailboxes")[0]["depth"] == 1


@pytest.mark.parametrize("words", [("board",), ("reserve", "unreserve")], ids=" ".join)
def test_the_examples_of_the_help_work_one_after_the_other_as_they_stand(cli: Cli, words: tuple[str, ...]) -> None:
    for example in (example for word in words for example in COMMANDS[word].examples if "--guard" not in example):
        cli.ok(*shlex.split(example)[1:])


@pytest.mark.parametrize("word", presence.STATUSES)
def test_the_word_for_how_an_agent_is_stands_in_the_help_and_in_the_document(cli: Cli, word: str) -> None:
    meaning = presence.STATUSES[word]

    assert f"{word:<8} {meaning}" in cli.ok("agents", "--help").out
    assert f"| `{word}` | {meaning} |" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_error_has_an_exit_code() -> None:
    codes = {
        kind.__name__: exit_codes.code_of(kind.__new__(kind))
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.PostroomError)
    }

    assert set(codes.values()) == {1, 2, 3, 4, 5, 7}
    assert [name for name, code in codes.items() if code == 7] == ["OutcomeUnknown"]
    assert codes["InvalidMessage"] == 2
    assert (
        codes["TooManyHops"] == codes["RateLimited"] == codes["Refused"] == codes["PeerGone"] == codes["RoomBusy"] == 1
    )
    assert codes["ReceiveTimeout"] == codes["AskTimeout"] == codes["NotAcked"] == codes["UnknownMessage"] == 3
    assert codes["RoomNotFound"] == codes["RoomUnreachable"] == codes["RoomDamaged"] == codes["RoomUnsafe"] == 4
