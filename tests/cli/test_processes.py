"""The command line as real processes: signals, pipes, programs run as agents, shells that complete."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import postroom
from postroom.cli import main
from postroom.core import crashpoints
from postroom.room import Room
from postroom.stores.contract import FEED

from .support import PATIENCE_S, Cli, clean_environment, command, start

pytestmark = pytest.mark.slow


def until(room: Room, look: Callable[[], object]) -> None:
    """Return when there is something to see, woken by every change of messages and agents."""
    deadline_ns = room.clock.steady_ns() + int(PATIENCE_S * 1e9)
    with room.store.listen([FEED, "cells:agent"]) as waiter:
        while not look():
            assert room.clock.steady_ns() < deadline_ns, "waited in vain"
            waiter.wait(1)


def until_seen(room: Room, name: str) -> None:
    until(room, lambda: any(agent.name == name for agent in room.agents()))


def hears_sigterm(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM: it has none any more once it was told."""
    (mask,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_waiting_receive_quietly(cli: Cli, number: signal.Signals) -> None:
    with postroom.open(create=False) as room:
        process = start("receive", "--as", "bob", "--wait", "60")
        until_seen(room, "bob")
        process.send_signal(number)
        code, out, err = finish(process)
        room.agent("ada").send("bob", {"text": "still there"})

        assert (out, err) == ("", "")
        assert code in (128 + number, -number)
        assert [message.state for message in room.peek(agent="bob")] == ["stored"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_a_claim_leaves_nothing_claimed(cli: Cli, number: signal.Signals, code: int) -> None:
    id = cli.send()
    crashpoints.at("sqlite.claimed", lambda: os.kill(os.getpid(), number))
    try:
        ended = main(["receive", "--as", "bob", "--wait", "5"])
    except SystemExit as end:
        ended = int(end.code or 0)
    finally:
        crashpoints.forget()

    assert ended == code
    receipt = cli.json("receipt", id)
    assert receipt["state"] == "stored"
    assert [event["event"] for event in receipt["events"]] == ["stored", "claimed", "returned"]
    assert receipt["events"][-1]["detail"] == "the command was interrupted"
    assert cli.json("peek", "--agent", "bob")[0]["delivery_count"] == 0


def test_a_message_that_cannot_be_written_out_is_given_back(cli: Cli) -> None:
    id = cli.send()
    reader, writer = os.pipe()
    os.close(reader)

    process = start("receive", "--as", "bob", "--ack", stdout=writer)
    os.close(writer)
    code, _, err = finish(process)

    assert (code, err) == (141, "")
    assert cli.json("receipt", id)["state"] == "stored"


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    query = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 50000) SELECT x FROM n"
    process = start("sql", query, "--plain")
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()

    assert first == "x\n"
    assert process.stderr.read() == ""
    assert process.wait(PATIENCE_S) == 141
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize("words", [("status",), ("status", "--json"), ("receipt", "x", "--json"), ("--help",)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_full_is_told_in_a_sentence(cli: Cli, words: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        process = start(*words, stdout=full, env=clean_environment(PYTHONUNBUFFERED=unbuffered))
    code, _, err = finish(process)

    assert code == (3 if "receipt" in words else 1)
    assert err.startswith("postroom: ")
    assert err.count("\n") == 1


def test_listen_writes_each_message_as_it_comes_and_acks_it(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        process = start("listen", "--as", "bob", "--json")
        until_seen(room, "bob")
        assert process.stdout is not None
        ada = room.agent("ada")
        for text in ("one", "two"):
            id = ada.send("bob", {"text": text}, wait="acked", timeout_s=PATIENCE_S)
            line = json.loads(process.stdout.readline())
            assert (line["id"], line["payload"]) == (id, {"text": text})
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)

        assert (code, out, err) == (130, "", "")
        assert [agent.status for agent in room.agents() if agent.name == "bob"] == ["stopped"]


def test_listen_ends_well_on_sigterm(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        process = start("listen", "--as", "bob", "--json")
        until_seen(room, "bob")
        id = room.agent("ada").send("bob", {}, wait="acked", timeout_s=PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        code, out, err = finish(process)

        assert (code, json.loads(out)["id"], err) == (0, id, "")
        assert [agent.status for agent in room.agents() if agent.name == "bob"] == ["stopped"]


def test_a_message_that_listen_takes_while_it_is_told_to_stop_goes_back_uncounted(cli: Cli) -> None:
    id = cli.send()
    crashpoints.at("sqlite.claimed", lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        result = cli("listen", "--as", "bob")
    finally:
        crashpoints.forget()

    assert result == (0, "", "")
    receipt = cli.json("receipt", id)
    assert receipt["state"] == "stored"
    assert cli.json("peek", "--agent", "bob")[0]["delivery_count"] == 0
    assert receipt["events"][-1]["detail"] == "the receiver was told to stop"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_listen_gives_back_what_nobody_reads_once_the_grace_is_over(cli: Cli) -> None:
    """A full pipe keeps a program for ever: nobody need empty it after SIGTERM."""
    with postroom.open(create=False) as room:
        ada, size = room.agent("ada"), 200_000  # more than a pipe holds
        process = start("listen", "--as", "bob", "--json", "--grace", "0.1")
        id = ada.send("bob", {"text": "x" * size})
        until(room, lambda: room.get(id).state == "claimed")
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)  # it has begun to write
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)
        _, _, err = finish(process)
        message = room.get(id)

        assert (code, err) == (0, "")
        assert (message.state, message.delivery_count) == ("stored", 0)
        assert message.ledger[-1].detail == "the receiver was told to stop"


def test_a_second_sigterm_ends_a_listen_that_waits_for_its_reader(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        process = start("listen", "--as", "bob", "--json", "--grace", "10m")
        id = room.agent("ada").send("bob", {"text": "x" * 200_000})
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGTERM)
        for _ in range(3000):
            if not hears_sigterm(process.pid):
                break
            threading.Event().wait(0.01)
        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE_S) == -signal.SIGTERM
        finish(process)
        assert room.agent("bob").receive(timeout_s=PATIENCE_S).id == id


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_an_ask_and_nobody_waits_for_its_answer(cli: Cli, number: signal.Signals, code: int) -> None:
    with postroom.open(create=False) as room:
        bob = room.agent("bob")
        process = start("ask", "bob", "which port?", "--as", "ada", "--timeout", "60")
        with bob.receive(timeout_s=PATIENCE_S) as question:
            assert [wait.question_id for wait in room.waits()] == [question.id]
            process.send_signal(number)

            assert finish(process) == (code, "", "")
            assert room.waits() == []
            question.reply({"text": "8080"})
        # ordinary mail: at once, or with the next round of the housekeeping where the signal met the very end of the send
        until(room, lambda: room.peek(agent="ada"))
        assert room.peek(agent="ada")[0].payload == {"text": "8080"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_answer_that_an_ask_has_taken_is_shown_whatever_comes(cli: Cli, number: signal.Signals) -> None:
    with postroom.open(create=False) as room:
        bob, came = room.agent("bob"), list[int]()
        thread = threading.Thread(target=lambda: bob.receive(timeout_s=PATIENCE_S).reply({"text": "8080"}))

        def claimed() -> None:
            if threading.current_thread() is threading.main_thread():
                came.append(number)
                os.kill(os.getpid(), number)

        thread.start()
        crashpoints.at("sqlite.claimed", claimed)
        try:
            result = cli("ask", "bob", "which port?", "--as", "ada")
        finally:
            crashpoints.forget()
        thread.join()

        assert (result.code, result.out, result.err, came) == (0, "8080\n", "", [number])


def test_a_program_runs_as_an_agent(cli: Cli, tmp_path: Path) -> None:
    program = "import os; print(os.environ['POSTROOM_AGENT'], os.environ['POSTROOM_URL']); raise SystemExit(7)"

    process = start("as", "bob", "--", sys.executable, "-c", program, "--not-ours")
    code, out, err = finish(process)

    assert (code, err) == (7, "")
    assert out == f"bob sqlite:{tmp_path / '.postroom'}\n"
    (bob,) = cli.json("agents")
    assert (bob["name"], bob["status"]) == ("bob", "stopped")


@pytest.mark.parametrize("dashes", [["--"], []])
def test_a_program_run_as_an_agent_may_work_on_files_of_any_name(cli: Cli, dashes: list[str]) -> None:
    code, out, err = finish(start("as", "bob", *dashes, "printf", "a\udcffb", errors="surrogateescape"))

    assert (code, out, err) == (0, "a\udcffb", "")


def test_a_program_run_as_an_agent_is_seen_to_run_and_gets_signals(cli: Cli) -> None:
    program = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"  # one that comes before it waits is not lost
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "sys.exit(9)"
    )
    with postroom.open(create=False) as room:
        process = start("as", "bob", "--", sys.executable, "-c", program, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (bob,) = room.agents()
        process.send_signal(signal.SIGTERM)
        code, _, _ = finish(process)

        assert (bob.status, bob.alive) == ("active", True)
        assert bob.current_task is not None
        assert code == 9


def test_a_program_that_is_killed_is_reported_as_a_shell_would(cli: Cli) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    assert finish(start("as", "bob", "--", sys.executable, "-c", program))[0] == 137


@pytest.mark.parametrize(("program", "code"), [("./missing", 127), ("./text", 126), ("./broken", 126)])
def test_a_program_that_cannot_be_started_says_so(cli: Cli, tmp_path: Path, program: str, code: int) -> None:
    (tmp_path / "text").write_text("not a program")
    (tmp_path / "broken").write_bytes(b"\x7fELF?")
    (tmp_path / "broken").chmod(0o700)

    ended, _, err = finish(start("as", "bob", "--", program))

    assert ended == code
    assert program in err
    assert err.count("\n") == 1


def bash_completes(folder: Path, *lines: str) -> list[list[str]]:
    """What bash offers for the last word of each of these lines; one that ends in a blank has an empty one."""
    script = f"""
        postroom() {{ "{sys.executable}" -m postroom "$@"; }}
        eval "$(postroom completion bash)"
        for line in "$@"; do
            IFS=' ' read -ra COMP_WORDS <<< "$line"; [[ $line == *' ' ]] && COMP_WORDS+=('')
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _postroom; echo "${{COMPREPLY[*]}}"
        done
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", *lines],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_completes_commands_options_and_agents(cli: Cli, tmp_path: Path) -> None:
    cli.ok("subscribe", "news", "--as", "reviewer")

    commands, actions, options, *names = bash_completes(
        tmp_path,
        "postroom re",
        "postroom board bl",
        "postroom --room x send bob --",
        "postroom send rev",
        "postroom receive --as ",
        "postroom peek --from ",
    )
    states, tasks, events = bash_completes(
        tmp_path, "postroom peek --state a", "postroom board list --state ", "postroom log --json --event ac"
    )

    assert commands == [
        *("receive", "retry", "reply", "refuse", "resume", "receipt", "requeue", "replay"),
        *("retention", "redact", "restore", "reserve"),
    ]
    assert actions == ["blocked"]
    assert "--priority" in options
    assert names == [["reviewer"]] * 3
    assert (states, events) == (["all", "acked", "answered"], ["acked"])
    assert tasks == ["ready", "claimed", "done", "blocked", "aborted"]


def test_a_name_that_a_shell_would_run_is_not_offered(cli: Cli, tmp_path: Path) -> None:
    for name in ("$(touch pwned)", "`touch pwned`", "a b", "-x", "good/name"):
        cli.ok("subscribe", "news", f"--as={name}")

    offered = bash_completes(tmp_path, "postroom send ")

    assert offered == [["good/name"]]
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(cli: Cli, shell: str) -> None:
    from postroom.cli.table import COMMANDS

    script = cli.ok("completion", shell).out

    assert all(re.search(rf"\b{name}\b", script) for name in COMMANDS)
    assert "completion names" in script


def test_completing_names_without_a_room_is_quiet(cli: Cli, tmp_path: Path) -> None:
    result = cli("completion", "names", "--room", "sqlite:nowhere")

    assert (result.code, result.out.strip(), result.err) == (0, "", "")


def test_a_send_imports_only_what_it_needs(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command("send", "bob", "hi", "--as", "ada", "--new")[1:]],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}

    assert {"postroom", "apsw", "msgspec", "argparse"} <= loaded
    assert loaded.isdisjoint(
        {"rich", "asyncio", "multiprocessing", "hypothesis", "pytest", "unittest", "email", "http"}
    )


def test_the_demo_shows_what_it_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        command("demo"),
        env=clean_environment(TMPDIR=str(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "was killed with SIGKILL" in done.stdout
    assert "released" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_runs_in_a_room_of_ones_own(cli: Cli) -> None:
    story = json.loads(
        subprocess.run(
            command("demo", "--json", "--room", "sqlite:.postroom"),
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        ).stdout
    )

    assert story["delivered_again_ms"] < 2000
    assert cli.json("status")["states"]["acked"] >= 6
