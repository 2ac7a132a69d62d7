"""Signals come in the middle of whatever a program does in a room, and their handlers raise, send, ack, ask, or end the program.

The invariant: what returned, in a handler or around it, is kept; what was refused was refused with RoomBusy; nothing stays locked;
descriptors do not grow. It is checked against journals that the programs write, with apsw on the file of a SQLite room, and through
the store, opened anew, elsewhere. A room in memory ends with its program, which tells what was in it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.states import State

from .support import PATIENCE_S, Look, count, environment, program, seed

KINDS = ["memory", "sqlite", "files", "nats"]
DEEDS = ["raise", "send", "ack", "ask", "mixed"]
#: All of a small number of good-byes may be refused; one of so many more is not.
MORE_GOOD_BYES = 40
#: At most so many threads are there at the end, whatever was interrupted: the program's own, the room's, and what a store has.
THREADS = 6
#: Of so many signals, one may leave a descriptor: one that it meets between the system's answer and the variable is nobody's.
PER_DESCRIPTOR = 100
#: Signals in `make test`, for each store; and in the long tests, in parts of a few minutes.
FEW = {"memory": 300, "sqlite": 300, "files": 40, "nats": 200}
MANY = {"memory": 20_000, "sqlite": 20_000, "files": 20_000, "nats": 20_000}
PARTS = {"memory": 1, "sqlite": 1, "files": 20, "nats": 2}


def url_of(kind: str, tmp_path: Path) -> str:
    if kind == "nats":
        return f"nats://{shared_server().address}/{room_name()}?max_deliveries=1000"
    return f"{kind}:{'' if kind == 'memory' else tmp_path / 'room'}?max_deliveries=1000"


def storm(kind: str, tmp_path: Path, deed: str, signals: int, number: int) -> None:
    """One program, so many signals, and the accounts of it."""
    url, journal = url_of(kind, tmp_path), tmp_path / "journal"
    command = program("signalled", url, str(seed() * 1000 + number), deed, str(signals), str(journal))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    lines = [line.split(" ", 2) for line in journal.read_text().splitlines()]
    assert [line for line in lines if line[0] == "E"] == []
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (end,) = [line for line in lines if line[0] == "D"]
    assert int(end[1]) >= signals
    assert int(end[2]) < 60 + signals // PER_DESCRIPTOR, "descriptors are left over"
    (threads,) = [int(line[1]) for line in lines if line[0] == "T"]
    assert threads <= THREADS, "threads are left over"
    there = {line[1]: line[2] for line in lines if line[0] == "M"}
    check_accounts(lines, there if kind == "memory" else states_in(kind, url, tmp_path))


def states_in(kind: str, url: str, tmp_path: Path) -> dict[str, str]:
    """Every message and its state, as somebody sees it who was not there; and others can write."""
    with postroom.open(url, busy_timeout_s=2) as room:
        room.agent("somebody else").send("boss", {})
        if kind != "sqlite":
            return {message.id: message.exact_state.name for message in room.peek(state=None, limit=1_000_000)}
    with Look(tmp_path / "room") as look:
        assert look.damage() == "ok"
        return {id: State(state).name for id, state in look.rows("SELECT id, state FROM messages")}


def check_accounts(lines: list[list[str]], there: dict[str, str]) -> None:
    sent = {line[1] for line in lines if line[0] == "S"}
    acked = [line[1] for line in lines if line[0] == "A" and line[2] == "True"]
    assert sent
    assert sent - there.keys() == set(), "returned an id, and is not there"
    assert len(acked) == len(set(acked)), "acked twice"
    assert [id for id in acked if there[id] != "ACKED"] == [], "said True, and is not acked"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_returned_in_the_middle_of_signals_is_kept(tmp_path: Path, kind: str) -> None:
    storm(kind, tmp_path, "mixed", count("SIGNALS", FEW[kind]), 0)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in KINDS for part in range(PARTS[kind] * len(DEEDS))])
def test_what_returned_in_the_middle_of_very_many_signals_is_kept(tmp_path: Path, kind: str, part: int) -> None:
    signals = count("SIGNALS_LONG", MANY[kind]) // (PARTS[kind] * len(DEEDS))
    storm(kind, tmp_path, DEEDS[part % len(DEEDS)], signals, part)


def last_words(kind: str, tmp_path: Path, deed: str, programs: int, first: int = 0) -> None:
    """Programs that say good-bye in a signal's handler, and end there. What they were told is kept was kept.

    About half of them are refused, so a few more are run where all of a small number were.
    """
    url = url_of(kind, tmp_path)
    lines: list[list[str]] = []
    for number in range(first, first + programs + MORE_GOOD_BYES):
        journal = tmp_path / f"journal {number}"
        command = program("signalled", url, str(seed() * 1000 + number), deed, "1000000", str(journal))
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        lines += [line.split(" ", 2) for line in journal.read_text().splitlines()]
        if number >= first + programs - 1 and any(line[0] == "S" for line in lines):
            break
    assert [line for line in lines if line[0] == "E"] == []
    check_accounts(lines, states_in(kind, url, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["exit", "kill"])
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_the_last_words_of_a_handler_are_kept_or_were_refused(tmp_path: Path, kind: str, deed: str) -> None:
    last_words(kind, tmp_path, deed, count("GOOD_BYES", 2))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("deed", ["exit", "kill"])
@pytest.mark.parametrize("kind", ["sqlite", "files", "nats"])
def test_the_last_words_of_many_handlers_are_kept_or_were_refused(
    tmp_path: Path, kind: str, deed: str, part: int
) -> None:
    last_words(kind, tmp_path, deed, count("GOOD_BYES_LONG", 400 if kind != "nats" else 100) // 4, part * 1000)
