"""The board under SIGKILL: at every single write of every step, and at random moments of many workers.

The story. A step at the board is several writes, and no store need make them one. So a process that takes a step is killed
just before each of its writes in turn, and another goes on. Then many workers and adders are killed at random moments.

The invariant. What returned stands. Every task that can be done is done in the end, by one owner; none is claimed again
after its `done` returned; its lead is told once. Nothing of the bookkeeping is left over.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom

from .programs import board as program
from .support import SOME_AND_ALL, Nursery, count, damage, in_parts, journal, seed

MOST_WRITES = 60


@pytest.fixture
def nursery(tmp_path: Path) -> Any:
    nursery = Nursery(tmp_path / "children.log", "journal", "board")
    yield nursery
    nursery.close()


def leftovers(room: postroom.Room) -> list[str]:
    """Bookkeeping of the board that should be gone when all is done."""
    names = [cell.name for prefix in ("board-claim/", "board-ready/") for cell in room.store.cell_scan(prefix)]
    return [name for name in names if name != "board-ready/index"]


def check_end(url: str, lines: list[journal.Line]) -> None:
    """Everything that must hold when all that can be done is done."""
    with postroom.open(url) as room:
        tasks = {task.id: task for task in room.board.tasks()}
        open_ones = [task.id for task in tasks.values() if task.state in ("ready", "claimed") and not task.unmet]
        assert open_ones == []
        assert room.board.claim("nobody") is None
        assert leftovers(room) == []
        told = Counter((m.type, m.payload["task_id"]) for m in room.peek(agent="lead", limit=100_000))
        led = {("done", task.id) for task in tasks.values() if task.state == "done" and task.lead}
        assert {key: times for key, times in told.items() if times > 1 and key[0] == "done"} == {}
        assert {key for key in told if key[0] == "done"} == led
    assert done_twice(lines) == []


def done_twice(lines: list[journal.Line]) -> list[str]:
    """Tasks that somebody got or finished after their `done` had returned."""
    finished: set[str] = set()
    faults = []
    for line in lines:
        if line.event in ("claimed", "done") and line.details[0] in finished:
            faults.append(f"{line.event} {line.details}")
        if line.event == "done":
            finished.add(line.details[0])
    return faults


@pytest.mark.slow
@SOME_AND_ALL
@pytest.mark.parametrize("name", program.STEPS)
def test_a_kill_at_any_write_of_a_step_loses_nothing(nursery: Nursery, tmp_path: Path, name: str, every: int) -> None:
    for kill_at in range(0, MOST_WRITES, every):
        url, notes = f"sqlite:{tmp_path}/room-{kill_at}", tmp_path / f"journal-{kill_at}"
        status = nursery.wait(nursery.fork("board.step", url=url, journal=str(notes), name=name, kill_at=kill_at))
        assert status in (0, -9), nursery.log()
        nursery.finish(nursery.fork("board.finish", url=url, journal=str(notes), agent="bob"))
        lines = journal.read(notes)

        check_end(url, lines)
        check_step(url, name, lines, killed=status == -9)
        if status == 0:
            break
    else:
        raise AssertionError(f"{name} takes more than {MOST_WRITES} writes")
    assert kill_at >= 1, "it was never killed"


def check_step(url: str, name: str, lines: list[journal.Line], *, killed: bool) -> None:
    returned = any(line.event == "returned" and line.details[1] for line in lines)
    with postroom.open(url) as room:
        tasks = {task.id: task for task in room.board.tasks()}
    if name != "add":
        assert len(tasks) == len(program.PLAN)
    first = tasks.get("T0")
    if name == "abort of an agent's":
        check_told(url, aborted=tasks["T0"].state == "aborted", returned=returned)
    elif name in ("blocked", "abort"):
        expected = ("blocked" if name == "blocked" else "aborted",) if returned else ("done", "blocked", "aborted")
        assert first is not None and first.state in expected
    elif not (name == "add" and killed):
        assert {task.state for task in tasks.values()} == {"done"}
    if name == "done" and returned:
        assert first is not None and (first.result, first.owner) == ("first", "ada")


def check_told(url: str, *, aborted: bool, returned: bool) -> None:
    with postroom.open(url) as room:
        told = [message.payload for message in room.peek(agent="ada")]
    assert told == ([{"task_id": "T0", "why": "stop"}] if aborted else [])
    assert aborted or not returned


def storm(nursery: Nursery, url: str, notes: Path, kills: int, tasks: int) -> int:
    """Workers and adders, killed one after the other at random moments. Returns how many kills there were."""
    chance = random.Random(seed())
    longest_s = 0.5 if url.startswith("nats:") else 0.05  # a process needs that long to come to its work
    print(f"seed {seed()}")
    children: list[int] = []
    made = 0
    for number in range(kills):
        while len(children) < 5:
            made += 1
            if made % 5 == 1:
                more = {"seed": made, "most": tasks}
                children.append(nursery.fork("board.adder", url=url, journal=str(notes), **more))
            else:
                agent = f"worker-{made}"
                children.append(nursery.fork("board.worker", url=url, journal=str(notes), agent=agent, seed=made))
        ended = nursery.ended(children)
        assert set(ended.values()) <= {0}, nursery.log()
        children = [pid for pid in children if pid not in ended]
        if url.startswith("nats:") or not (notes.exists() and b"added" in notes.read_bytes()):
            await_more(notes)  # on a busy machine nobody would come to its work otherwise
        pause(chance.random() * longest_s)
        if children:
            nursery.kill(children.pop(chance.randrange(len(children)) if number % 7 else 0))
    nursery.kill(*children)
    return kills + len(children)


def await_more(notes: Path) -> None:
    """Until somebody has written down more than there is now, or for a while."""
    size = notes.stat().st_size if notes.exists() else 0
    for _ in range(150):
        if notes.exists() and notes.stat().st_size > size:
            return
        pause(0.02)


def pause(seconds: float) -> None:
    import threading

    threading.Event().wait(seconds)


def held_by_two(lines: list[journal.Line]) -> list[str]:
    """Claims of one task whose tokens do not grow: then two had it at once, or a token was given twice."""
    tokens: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        if line.event == "claimed":
            tokens[line.details[0]].append(line.details[1])
    return [f"{id}: {given}" for id, given in tokens.items() if len(set(given)) != len(given)]


def on_nats() -> str:
    """A room of this test's own on a real server."""
    return f"nats://{shared_server().address}/{room_name()}"


def run_storm(nursery: Nursery, url: str, notes: Path, kills: int, tasks: int, figure: Callable[[str], None]) -> None:
    killed = storm(nursery, url, notes, kills, tasks)
    finishers = [nursery.fork("board.finish", url=url, journal=str(notes), agent=f"finisher-{n}") for n in range(3)]
    nursery.finish(*finishers)
    lines = journal.read(notes)
    added = {line.details[0] for line in lines if line.event == "added"}

    check_end(url, lines)
    assert held_by_two(lines) == []
    with postroom.open(url) as room:
        states = {task.id: task.state for task in room.board.tasks()}
    assert added <= set(states) and set(states.values()) == {"done"}
    if url.startswith("sqlite:"):
        assert damage(Path(url.removeprefix("sqlite:"))) == "ok"
    figure(f"board: {killed} kills, {len(states)} tasks done, each once ({url.partition(':')[0]})")


@pytest.mark.slow
def test_no_kill_loses_a_task_or_gives_it_two_owners(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    run_storm(nursery, f"sqlite:{tmp_path}/room", tmp_path / "journal", count("BOARD_KILLS", 30), 100, figure)


@pytest.mark.slow
def test_no_kill_loses_a_task_of_a_board_on_nats(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    run_storm(nursery, on_nats(), tmp_path / "journal", 3, 6, figure)


@pytest.mark.long
@in_parts(5)
@pytest.mark.usefixtures("part")
def test_five_hundred_kills_on_nats(nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]) -> None:
    run_storm(nursery, on_nats(), tmp_path / "journal", 100, 200, figure)


@pytest.mark.long
@in_parts(2)
@pytest.mark.usefixtures("part")
def test_two_thousand_kills(nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]) -> None:
    kills = count("BOARD_KILLS_LONG", 2_000) // 2
    run_storm(nursery, f"sqlite:{tmp_path}/room", tmp_path / "journal", kills, 2 * kills, figure)


def test_the_checks_see_what_they_are_for() -> None:
    lines = [journal.Line("claimed", 1, 1, ["T", 1]), journal.Line("done", 1, 2, ["T", 1])]
    assert done_twice(lines) == [] and held_by_two(lines) == []
    assert done_twice([*lines, journal.Line("claimed", 2, 3, ["T", 2])])
    assert held_by_two([*lines, journal.Line("claimed", 2, 3, ["T", 1])])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "nats"])
def test_many_claimers_get_each_task_once(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], scheme: str
) -> None:
    url, notes = on_nats() if scheme == "nats" else f"sqlite:{tmp_path}/room", tmp_path / "journal"
    total, claimers = (count("BOARD_TASKS_ON_NATS", 40), 5) if scheme == "nats" else (count("BOARD_TASKS", 160), 16)
    with postroom.open(url) as room:
        room.board.add_all([{"id": f"T{n}"} for n in range(total)])
    pids = [nursery.fork("board.finish", url=url, journal=str(notes), agent=f"worker-{n}") for n in range(claimers)]
    nursery.finish(*pids)

    lines = journal.read(notes)
    claimed = Counter(line.details[0] for line in lines if line.event == "claimed")
    done = Counter(line.details[0] for line in lines if line.event == "done")
    assert claimed == done == Counter({f"T{n}": 1 for n in range(total)})
    at_ns = [line.at_ns for line in lines if line.event == "done"]
    workers = len({line.pid for line in lines})
    rate = total / ((max(at_ns) - min(at_ns)) / 1e9)
    figure(f"board: {workers} processes did {total} tasks, {rate:.0f} a second ({scheme})")
