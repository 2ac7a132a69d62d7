"""Asking people from a shell: `ask` with options, `questions`, and `reply` as a person."""

from __future__ import annotations

from contextlib import closing

import pytest

import postroom

from .support import Cli, Terminal, command, start

DEPLOY = ("ask", "mia", "deploy?", "--option", "yes", "--option", "no", "--as", "ada", "--new")


@pytest.fixture
def mia(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    """A room with tokens, in which the environment has ada's; mia's is returned."""
    mia = str(cli.json("agent", "add", "mia", "--human")["token"])
    monkeypatch.setenv("POSTROOM_TOKEN", mia)
    ada = str(cli.json("agent", "add", "ada")["token"])
    monkeypatch.setenv("POSTROOM_TOKEN", ada)
    return mia


def test_a_question_is_asked_in_one_command_answered_in_another_and_read_in_a_third(
    cli: Cli, mia: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = cli.ok(*DEPLOY, "--default", "no", "--timeout", "2h", "--no-wait").out.strip()
    (listed,) = cli.json("questions", "--to", "mia")
    assert (listed["id"], listed["options"], listed["default"], listed["state"]) == (id, ["yes", "no"], "no", "open")
    assert "deploy?" in cli.ok("questions").out
    assert "is open" in cli.ok("questions", id).out
    assert cli("questions", id, "--wait", "0.1").code == 3
    assert "questions" in cli.ok("status").out
    assert cli.json("status")["questions"] == 1

    refused = cli("reply", id, "yes")
    assert (refused.code, "ada is an agent" in refused.err) == (1, True)
    monkeypatch.setenv("POSTROOM_TOKEN", mia)
    wrong = cli("reply", id, "perhaps")
    assert (wrong.code, wrong.err) == (2, "postroom: answer: must be one of yes, no, not perhaps\n")
    assert cli.ok("reply", cli.json("show", id)["handle"], "yes").out == f"{id} answered: yes\n"
    late = cli("reply", id, "no")
    assert (late.code, "was answered already by mia" in late.err) == (1, True)

    assert cli.ok("questions", id, "--wait", "5").out == "yes\n"
    assert cli.json("questions", id)["answer"]["by"] == "mia"
    assert cli.ok("questions").out == "no question waits for a person\n"


def test_an_asker_at_the_shell_gets_the_answer_or_the_default(cli: Cli, mia: str) -> None:
    over = cli.ok(*DEPLOY, "--default", "no", "--timeout", "0.2")
    assert over.out == "no\n"
    assert "nobody answered in time; this is the default" in over.err
    assert cli(*DEPLOY, "--timeout", "0.2").code == 1

    with start(*DEPLOY, "--timeout", "60") as asking, postroom.open(create=False) as room:
        assert asking.stderr is not None
        assert "waiting for mia" in asking.stderr.readline()
        (question,) = room.people.open()
        room.people.answer(question.id, "yes", token=mia)
        out, _ = asking.communicate(timeout=60)

    assert (asking.returncode, out) == (0, "yes\n")


def test_a_command_waits_for_a_question(cli: Cli, mia: str) -> None:
    assert cli("questions", "--wait", "0.1").code == 3
    with start("questions", "--wait", "60", "--json") as waiting:
        id = cli.ok(*DEPLOY, "--no-wait").out.strip()
        out, _ = waiting.communicate(timeout=60)

    assert id in out


def test_what_is_no_question_to_a_person_is_told(cli: Cli, mia: str) -> None:
    for words, why in (
        (("--to", "bob"), "takes none of"),
        (("--priority", "9"), "takes none of"),
        (("--default", "no"), "--default needs --timeout"),
        (("--default", "perhaps", "--timeout", "5"), "must be one of the options"),
    ):
        result = cli(*DEPLOY, *words)
        assert (result.code, why in result.err) == (2, True), result
    nobody = cli("ask", "bob", "deploy?", "--no-wait", "--as", "ada")
    assert (nobody.code, "bob has no person's token" in nobody.err) == (1, True)
    assert cli("ask", "mia", '{"n": 1}', "--no-wait", "--as", "ada").code == 2
    assert cli.json("questions") == []


def test_a_repeat_with_a_key_asks_once(cli: Cli, mia: str) -> None:
    first, again = (cli.ok(*DEPLOY, "--no-wait", "--key", "d7").out for _ in range(2))
    assert first == again


def test_without_tokens_only_a_terminal_answers_and_in_no_agents_name(cli: Cli) -> None:
    id = cli.ok(*DEPLOY, "--no-wait").out.strip()
    for words in ((), ("--as", "mia")):
        refused = cli("reply", id, "yes", *words)
        assert (refused.code, "at a terminal" in refused.err) == (1, True), refused
    other = cli("reply", id, "yes", "--as", "ada")
    assert (other.code, "the question is for mia, not for ada" in other.err) == (1, True)

    with closing(Terminal(command("reply", id, "yes"), POSTROOM_OWNER="1:2")) as inside:
        inside.until("at a terminal")
        assert inside.end() == 1
    with closing(Terminal(command("reply", id, "yes"))) as terminal:
        terminal.until("answered: yes")
        assert terminal.end() == 0
    given = cli.json("questions", id)["answer"]
    assert (given["said"], given["by"], given["how"]) == ("yes", "mia", "terminal")


def test_what_agents_wrote_stays_on_its_line(cli: Cli, mia: str) -> None:
    cli.ok("ask", "mia", "a\x1b[2Jb\nc", "--option", "y", "--no-wait", "--as", "ada")
    shown = cli.ok("questions")
    assert "\x1b" not in shown.out
    assert len(shown.lines) == 2


def test_the_doctor_makes_defaults_and_tells_what_waits(cli: Cli, mia: str) -> None:
    with postroom.open(create=False) as room:
        over = room.people.ask("mia", "now?", "ada", default="no", timeout_s=0.001)
        room.people.ask("mia", "later?", "ada")
    checks = {check["check"]: check["says"] for check in cli.json("doctor")["checks"]}

    assert checks["questions"].startswith("1 wait for a person, the oldest was asked")
    with postroom.open(create=False) as room:
        assert [message.payload["text"] for message in room.peek(agent="ada")] == ["no"]
        assert room.people.look(over).state == "default"
