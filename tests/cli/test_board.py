"""`postroom board`, as people and agents use it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from postroom.board.task import Task
from postroom.cli import main
from postroom.cli.commands.board import tree
from postroom.core import crashpoints

from .support import PATIENCE_S, Cli, clean_environment, start


def task(id: str, state: str = "ready", after: tuple[str, ...] = (), unmet: tuple[str, ...] = ()) -> Task:
    return Task(id, f"the {id}", state, None, after, unmet, None, 0, {}, None, None, None)


def test_a_task_goes_through_its_life(cli: Cli) -> None:
    assert cli.ok("board", "add", "T1", "the schema", "--as", "lead").out == "T1 is on the board: ready\n"
    added = cli.ok("board", "add", "T2", "--after", "T1", "--payload", '{"spec": "x"}', "--as", "lead")
    assert added.out == "T2 is on the board: ready, waits for T1\n"

    claimed = cli.json("board", "claim", "--as", "ada")
    assert (claimed["id"], claimed["owner"], claimed["state"], claimed["token"]) == ("T1", "ada", "claimed", 1)
    assert cli.ok("board", "extend", "T1", "--as", "ada", "--lease", "1h").out == "T1 is yours for 3600 s more\n"
    assert cli.ok("board", "done", "T1", '{"tables": 4}', "--as", "ada").out == "T1 is done\n"

    shown = cli.ok("board", "claim", "--as", "bob").lines
    assert shown[0] == "T2"
    assert shown[1].startswith("  yours until 20") and shown[1].endswith(", token 1")
    assert shown[-1] == "  when done: postroom board done T2 --as bob"
    assert cli.ok("board", "blocked", "T2", "no key", "--as", "bob").out == "T2 is blocked\n"
    assert cli.ok("board", "release", "T2").out == "T2 is ready again\n"
    assert cli.ok("board", "abort", "T2", "not needed", "--as", "lead").out == "T2 is aborted\n"

    tasks = cli.json("board", "list")
    assert [(t["id"], t["state"], t["result"], t["why"]) for t in tasks] == [
        ("T1", "done", {"tables": 4}, None),
        ("T2", "aborted", None, "not needed"),
    ]
    assert [m["type"] for m in cli.json("peek", "--agent", "lead")] == ["done", "blocked"]


def test_what_cannot_be_ends_with_its_exit_code(cli: Cli) -> None:
    cli.ok("board", "add", "T1")
    cli.ok("board", "add", "T2", "--after", "T1")
    cli.ok("board", "claim", "T1", "--as", "ada")

    ended = [
        (3, ("board", "claim", "--as", "bob"), "nothing is ready; --wait S waits for a task"),
        (3, ("board", "claim", "T2", "--as", "bob"), "T2 waits for T1"),
        (3, ("board", "claim", "T9", "--as", "bob"), "there is no task T9 on the board"),
        (1, ("board", "done", "T1", "--as", "bob"), "bob does not hold task T1: it is claimed by ada"),
        (1, ("board", "abort", "T3", "--as", "eve"), ""),
        (2, ("board", "add", "T2", "--after", "T2"), "T2 is already on the board"),
        (2, ("board", "add", "T5", "--after", "T5"), "would wait for each other: T5 -> T5"),
        (2, ("board", "abort", "T1", "--as", "bob"), "`abort` goes from lead to worker"),
        (2, ("board", "blocked", "T1", "--as", "ada"), "say why"),
        (2, ("board", "done"), "name the task: postroom board done ID [RESULT]"),
        (2, ("board", "claim", "T1", "twice", "--as", "ada"), "one argument too many"),
        (2, ("board", "list", "T1"), "takes no ID"),
        (2, ("board", "explode"), "invalid choice"),
        (2, ("board", "list", "--state", "odd"), "invalid choice: 'odd'"),
        (2, ("board", "claim"), "say who you are"),
    ]
    for code, words, said in ended:
        result = cli(*words)
        expected = 3 if words[2:3] == ("T3",) else code
        assert result.code == expected, (words, result)
        assert said in result.err, (words, result.err)


def test_a_claim_may_be_asked_for_again_by_its_agent(cli: Cli) -> None:
    cli.ok("board", "add", "T1")
    first, second = (cli.json("board", "claim", "T1", "--as", "ada") for _ in range(2))

    assert first == second


def test_the_list_is_a_table_and_a_tree(cli: Cli) -> None:
    assert cli.ok("board", "list").out == cli.ok("board", "list", "--tree").out == "no tasks\n"
    cli.ok("board", "add", "T1", "schema")
    cli.ok("board", "add", "T2", "endpoints", "--after", "T1")
    cli.ok("board", "add", "T3", "docs", "--after", "T1", "--after", "T2", "--after", "T9")
    cli.ok("board", "add", "T4", "web", "--after", "T1")
    cli.ok("board", "claim", "--as", "ada")

    table = cli.ok("board", "list").lines
    assert table[0].split() == "task state owner title waits for lease until why".split()
    assert table[1].split()[:4] == ["T1", "claimed", "ada", "schema"]
    assert table[2].split() == ["T2", "waiting", "endpoints", "T1"]
    assert cli.ok("board", "list", "--tree").lines == [
        "T1  schema  [claimed; ada]",
        "├─ T2  endpoints  [waiting]",
        "│  └─ T3  docs  [waiting; waits for T1, T2, T9 (not on the board)]",
        "└─ T4  web  [waiting]",
    ]
    assert [t["id"] for t in cli.json("board", "list", "--state", "claimed")] == ["T1"]


def test_a_tree_of_a_long_chain_and_of_a_circle_written_by_hand_is_drawn() -> None:
    chain = [task(f"T{n}", after=(f"T{n - 1}",) if n else ()) for n in range(3000)]
    assert len(tree(chain)) == 3000
    circle = [task("A", after=("B",), unmet=("B",)), task("B", after=("A",), unmet=("A",))]
    assert [line.strip("└─ ")[0] for line in tree(circle)] == ["A", "B"]


def test_text_of_others_is_shown_harmlessly(cli: Cli) -> None:
    cli.ok("board", "add", "T1", "red \u202e text")

    for words in (("board", "list"), ("board", "list", "--tree")):
        assert "\\u202e" in cli.ok(*words).out


def test_watching_prints_what_changes(cli: Cli, tmp_path: Path) -> None:
    watching = start("board", "watch", "--limit", "2", "--json", cwd=tmp_path, env=clean_environment())
    other = start("board", "claim", "--wait", "20", "--as", "ada", cwd=tmp_path, env=clean_environment())
    try:
        lines: list[str] = []
        for number in range(3000):
            cli.ok("board", "add", f"T{number}")
            if watching.poll() is not None and other.poll() is not None:
                break
            threading.Event().wait(0.02)
        lines = watching.communicate(timeout=PATIENCE_S)[0].splitlines()
        assert len(lines) == 2 and all(json.loads(line)["id"].startswith("T") for line in lines)
        assert "yours until" in other.communicate(timeout=PATIENCE_S)[0]
    finally:
        for process in (watching, other):
            process.kill()
            process.communicate()


def test_a_claim_that_waits_is_interrupted_cleanly(cli: Cli, tmp_path: Path) -> None:
    cli.ok("board", "add", "T0")
    cli.ok("board", "claim", "--as", "eve")
    waiting = start("board", "claim", "--wait", "60", "--as", "ada", cwd=tmp_path, env=clean_environment())
    for _ in range(3000):  # a minute: a busy machine starts programs slowly
        if "ada" in [agent["name"] for agent in cli.json("agents")]:
            break
        threading.Event().wait(0.02)
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=PATIENCE_S)

    assert (waiting.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", [(), ("T1",), ("--wait", "5")])
def test_a_signal_in_the_middle_of_a_claim_leaves_no_task_claimed(
    cli: Cli, number: signal.Signals, code: int, words: tuple[str, ...]
) -> None:
    cli.ok("board", "add", "T1")
    crashpoints.at("board.claimed", lambda: os.kill(os.getpid(), number))
    try:
        ended = main(["board", "claim", *words, "--as", "ada"])
    except SystemExit as end:
        ended = int(end.code or 0)
    finally:
        crashpoints.forget()

    assert ended == code
    (task,) = cli.json("board", "list")
    assert (task["state"], task["owner"], task["why"]) == ("ready", None, "the command was interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("full", [False, True])
def test_a_task_that_cannot_be_written_out_is_given_back(
    cli: Cli, tmp_path: Path, more: tuple[str, ...], full: bool
) -> None:
    cli.ok("board", "add", "T1")
    reader, writer = os.pipe()
    os.close(reader)
    if full:
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)

    environment = clean_environment(PYTHONUNBUFFERED="")
    process = start("board", "claim", "--as", "ada", *more, cwd=tmp_path, env=environment, stdout=writer)
    os.close(writer)
    err = process.communicate(timeout=PATIENCE_S)[1]

    assert (process.returncode, err.count("\n")) == ((1, 1) if full else (141, 0)), err
    assert [(t["state"], t["owner"]) for t in cli.json("board", "list")] == [("ready", None)]


def test_a_task_that_was_held_before_stays_so_when_it_cannot_be_shown_again(cli: Cli, tmp_path: Path) -> None:
    cli.ok("board", "add", "T1")
    cli.ok("board", "claim", "T1", "--as", "ada")
    with open("/dev/full", "w") as full:
        process = start("board", "claim", "T1", "--as", "ada", cwd=tmp_path, env=clean_environment(), stdout=full)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert [(t["state"], t["owner"], t["token"]) for t in cli.json("board", "list")] == [("claimed", "ada", 1)]


def test_what_a_program_claims_by_commands_ends_with_the_program(cli: Cli, tmp_path: Path) -> None:
    cli.ok("board", "add", "T1", "--as", "lead")
    program = """
import os, subprocess, sys
for words in (["board", "claim"], ["reserve", "src/**"]):
    subprocess.run([sys.executable, "-m", "postroom", *words], check=True, stdout=subprocess.DEVNULL)
print(os.environ["POSTROOM_ROLE"], flush=True)
sys.stdin.read()
"""
    running = start("as", "worker-1", "--", sys.executable, "-c", program, cwd=tmp_path, env=clean_environment())
    try:
        assert running.stdout is not None and running.stdout.readline() == "worker\n"
        assert cli.json("board", "list")[0]["owner"] == "worker-1"
        assert len(cli.json("reserve")) == 1
    finally:
        running.kill()
        running.communicate()

    assert [(t["state"], t["owner"]) for t in cli.json("board", "list")] == [("ready", None)]
    assert cli.json("reserve") == []
    assert cli.json("board", "claim", "--as", "worker-2")["token"] == 2


def test_a_blocked_task_is_shown_put_back_and_removed(cli: Cli) -> None:
    cli.ok("board", "add", "T1", "the schema", "--payload", '{"tables": 4}', "--as", "lead")
    cli.ok("board", "claim", "--as", "worker-1")
    held = cli("board", "remove", "T1", "--as", "lead")
    assert (held.code, "worker-1" in held.err) == (1, True)
    cli.ok("board", "blocked", "T1", "the spec is silent", "--as", "worker-1")

    shown, document = cli.ok("board", "show", "T1").out, cli.json("board", "show", "T1")
    assert all(
        part in shown for part in ("T1 is blocked", "the schema", "worker-1", "the spec is silent", '"tables": 4')
    )
    assert (document["id"], document["state"], document["why"]) == ("T1", "blocked", "the spec is silent")

    assert cli.json("board", "reopen", "T1", "--as", "lead")["state"] == "ready"
    again = cli("board", "reopen", "T1", "--as", "lead")
    assert (again.code, "T1 is ready" in again.err) == (1, True)
    assert "off the board" in cli.ok("board", "remove", "T1", "--as", "lead").out
    assert cli("board", "show", "T1").code == 3
    assert cli.json("board") == cli.json("board", "list") == []


def test_a_task_that_others_wait_for_stays(cli: Cli) -> None:
    cli.ok("board", "add", "T1", "--as", "lead")
    cli.ok("board", "add", "T2", "--after", "T1", "--as", "lead")

    result = cli("board", "remove", "T1", "--as", "lead")

    assert result.code == 2
    assert "T2 waits for it" in result.err
