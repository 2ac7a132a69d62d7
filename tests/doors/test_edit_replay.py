"""The history of a real repository, replayed by several agents: the guard refuses what it should, and nothing else."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
from tests.support import ROOT

from postroom.core.clock import ManualClock
from postroom.doors import edits
from postroom.errors import ReservationConflict
from postroom.room import Room, open_room

AGENTS = [f"agent-{number}" for number in range(6)]
KEPT_MS, TAKEN_MS = 600_000, 60_000


def history() -> list[list[str]]:
    """The files of each change of this repository, oldest first; made up from its files where git cannot say."""
    said = subprocess.run(
        ["git", "log", "--reverse", "--no-merges", "--name-only", "--format=%x00"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    changes = [[line for line in part.split("\n") if line] for part in said.split("\0")]
    changes = [files for files in changes if files]
    if len(changes) < 100:
        chance = random.Random(1)
        files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py"))
        changes = [chance.sample(files, chance.randint(1, 8)) for _ in range(1000)]
    return changes


class Judge:
    """What should be refused, kept in the plainest way: lists that are gone through."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.reserved: list[tuple[str, re.Pattern[str], int]] = []
        self._edits: dict[str, dict[str, tuple[int, int]]] = {}

    def reserve(self, agent: str, globs: list[str], span_s: int) -> None:
        until_ms = self._clock.wall_ms() + span_s * 1000
        for glob in globs:
            deep = glob.endswith("/**")
            text = re.escape(glob.removesuffix("/**")) + ("/.*" if deep else "(/.*)?")
            self.reserved.append((agent, re.compile(text + r"\Z"), until_ms))

    def is_refused(self, agent: str, file: str, mode: str) -> bool:
        now_ms = self._clock.wall_ms()
        if any(who != agent and until > now_ms and what.match(file) for who, what, until in self.reserved):
            return True
        return mode == edits.REFUSE and bool(self.others(agent, file))

    def others(self, agent: str, file: str) -> set[str]:
        now_ms = self._clock.wall_ms()
        return {who for who, (_, until) in self._edits.get(file, {}).items() if who != agent and until > now_ms}

    def news(self, agent: str, file: str) -> set[str]:
        """The others that edited it since this one did."""
        known = self._edits.get(file, {})
        return {who for who in self.others(agent, file) if known[who][0] >= known.get(agent, (0, 0))[0]}

    def note(self, agent: str, file: str, span_ms: int) -> None:
        now_ms, known = self._clock.wall_ms(), self._edits.setdefault(file, {})
        known[agent] = (now_ms, max(now_ms + span_ms, known.get(agent, (0, 0))[1]))


def replay(folder: Path, count: int, chance: random.Random) -> tuple[int, int]:
    """Replay so many edits. Returns how many were refused, and of how many an agent was told."""
    (folder / ".git").mkdir()
    clock = ManualClock()
    judge = Judge(clock)
    changes = cycle(history())
    refused = told = 0
    with open_room(f"sqlite:{folder}/.postroom?rate_per_s=1000000", clock=clock) as room:
        work: dict[str, list[str]] = {agent: [] for agent in AGENTS}
        modes = {agent: chance.choice([edits.WARN, edits.REFUSE]) for agent in AGENTS}
        for _ in range(count):
            clock.advance(chance.choice([0.3, 2, 9, 25]))
            agent = chance.choice(AGENTS)
            if not work[agent]:
                work[agent] = list(next(changes))
                begin(room, judge, agent, work[agent], chance)
            file = work[agent].pop()
            cwd, path = called(folder, file, chance)
            verdict = edits.look(room.gateway, agent, [path], cwd=cwd, mode=modes[agent])
            assert verdict.refused == judge.is_refused(agent, file, modes[agent]), (agent, file, verdict)
            if verdict.refused:
                refused += 1
                continue
            if modes[agent] == edits.REFUSE:
                judge.note(agent, file, TAKEN_MS)
            news = judge.news(agent, file)
            said = edits.touched(room.gateway, agent, [path], cwd=cwd, mode=modes[agent])
            assert {who for who in AGENTS if f'"{who}"' in said} == news, (agent, file, said)
            judge.note(agent, file, KEPT_MS)
            told += bool(news)
    return refused, told


def begin(room: Room, judge: Judge, agent: str, files: list[str], chance: random.Random) -> None:
    """An agent begins a change: what it reserved for the last one is free, and it may reserve files or folders."""
    room.unreserve(agent)
    judge.reserved = [each for each in judge.reserved if each[0] != agent]
    how: Callable[[str], str] | None = chance.choice(
        [None, None, lambda file: file, lambda file: f"{Path(file).parent}/**"]
    )
    globs = [] if how is None else [re.sub(r"^\./", "", how(file)) for file in files if "/" in file][:20]
    if not globs:
        return
    try:
        room.reserve([re.sub(r"([\[?*])(?!\*?$)", r"[\1]", glob) for glob in globs], agent, 300)
    except ReservationConflict:
        return
    judge.reserve(agent, globs, 300)


def called(folder: Path, file: str, chance: random.Random) -> tuple[str, str]:
    """A folder to be in, and a name of the file from there."""
    parents = [str(each) for each in Path(file).parents]
    inside = folder / chance.choice(parents)
    inside.mkdir(parents=True, exist_ok=True)
    return chance.choice(
        [
            (str(folder), file),
            (str(folder), f"{folder}/{file}"),
            (str(inside), os.path.relpath(folder / file, inside)),
            (str(inside), f"{inside}/../{inside.name}/{os.path.relpath(folder / file, inside)}"),
        ]
    )


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_edits_of_a_real_history_are_refused_where_they_should_be_and_nowhere_else(tmp_path: Path, count: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    refused, told = replay(tmp_path, count, random.Random(seed))
    print(f"{count} edits: {refused} refused, {told} told, none of them falsely, and none missed")
    assert 0 < refused < count
