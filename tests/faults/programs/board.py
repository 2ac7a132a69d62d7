"""Those who work at a board and are killed: each step with a SIGKILL at an exact write, and workers at random moments."""

from __future__ import annotations

import random
from typing import Any

import postroom
from postroom.core import crashpoints

from .journal import Journal

#: A chain, a fork and a join, all led by "lead"; T0 and T6 wait for nothing.
PLAN: list[dict[str, Any]] = [
    {"id": "T0", "lead": "lead"},
    *({"id": f"T{n}", "after": ["T0"], "lead": "lead"} for n in (1, 2, 3)),
    {"id": "T4", "after": ["T1", "T2", "T3"], "lead": "lead"},
    {"id": "T5", "after": ["T4"], "lead": "lead"},
    {"id": "T6", "lead": "lead"},
]

#: Steps that end a claim, each with what it does to the task that was claimed before.
ENDS = {
    "done": lambda board, task: task.done("first"),
    "blocked": lambda board, task: task.blocked("no key"),
    "release": lambda board, task: task.release("too hard"),
    "extend": lambda board, task: task.extend(60),
    "abort": lambda board, task: board.abort(task.id, "stop"),
}
STEPS = ("add", "claim", "claim that one", "look", "abort of an agent's", *ENDS)


def step(url: str, journal: str, name: str, kill_at: int) -> None:
    """Take one step at the board and die just before its n-th write is there."""
    note = Journal(journal).note
    room = postroom.open(url)
    board = room.board
    if name != "add":
        board.add_all(PLAN)
    task = board.claim("ada") if name in ENDS else None
    if name == "abort of an agent's":
        board.claim("ada", transient=True, lease_s=3)
    if name == "look":
        board.claim("ada", transient=True, lease_s=0.001)
        board = postroom.open(url).board  # it has not looked in this second
    crashpoints.die_at("sqlite.written", kill_at)
    if name == "add":
        board.add_all(PLAN)
    elif name == "claim":
        task = board.claim("ada")
    elif name == "claim that one":
        task = board.claim("ada", "T6")
    elif name == "look":
        board.tasks()
    elif name == "abort of an agent's":
        note("returned", name, board.abort("T0", "stop"))
    else:
        counted = ENDS[name](board, task)
        note("returned", name, counted)
    crashpoints.forget()
    note("over", name, None if task is None else task.id)
    room.close()


def finish(url: str, journal: str, agent: str) -> None:
    """Do everything that can be done, and say what was done."""
    note = Journal(journal).note
    with postroom.open(url) as room:
        while any(task.claimable or task.state == "claimed" for task in room.board.tasks()):
            for task in room.board.work(agent, timeout_s=0.1):
                note("claimed", task.id, task.token)
                counted = task.done(agent)
                note("done" if counted else "lost", task.id, task.token)


def worker(url: str, journal: str, agent: str, seed: int) -> None:
    """Claim, work a little, report; for ever, until a SIGKILL."""
    note, chance = Journal(journal).note, random.Random(seed)
    room = postroom.open(url)
    while True:
        task = room.board.claim(agent, timeout_s=0.2)
        if task is None:
            continue
        note("claimed", task.id, task.token)
        sum(range(chance.randrange(20_000)))
        note("reporting", task.id, task.token)
        if chance.random() < 0.1:
            counted, word = task.release("again"), "released"
        else:
            counted, word = task.done([agent, task.token]), "done"
        note(word if counted else "lost", task.id, task.token)


def adder(url: str, journal: str, seed: int, most: int) -> None:
    """Add tasks, each after some that were added before, until a SIGKILL or until there are enough."""
    note, chance = Journal(journal).note, random.Random(seed)
    board = postroom.open(url).board
    known = sorted(task.id for task in board.tasks())
    while len(known) < most:
        id = f"{seed}.{len(known)}"
        after = chance.sample(known, min(len(known), chance.choice((0, 0, 1, 2))))
        board.add(id, after=after, lead="lead")
        note("added", id)
        known.append(id)
