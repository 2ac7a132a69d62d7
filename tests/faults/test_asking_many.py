"""Asking several, while those who are asked and others who ask are killed.

The invariant. Every call ends in its time, with an answer or a reason for each that was asked. When it has ended, nobody
waits for any of its questions. After the last kill nothing stays claimed, and no answer stays kept for an asker that is
gone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.patience import until

import postroom
from postroom.core.states import State
from postroom.stores.contract import Query

from .support import Nursery, count, seed

PEERS = [f"peer-{number}" for number in range(6)]
TIMEOUT_S = 0.2


class Peers:
    """Those who are asked, and two who ask beside the test: whoever is killed is replaced."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery = nursery
        self._folder = str(folder)
        self._chance = random.Random(seed())
        self._born = 0
        self.kills = 0
        self.pids = {name: self._start(name) for name in (*PEERS, "asker-1", "asker-2")}

    def _start(self, name: str) -> int:
        self._born += 1
        known = {"folder": self._folder, "name": name, "seed": seed() + self._born}
        if name in PEERS:
            return self._nursery.fork("asking.peer", **known)
        return self._nursery.fork("asking.asker", names=PEERS, **known)

    def kill_some(self) -> None:
        for name in self._chance.sample(list(self.pids), self._chance.choice((0, 0, 1, 2))):
            self._nursery.kill(self.pids[name])
            self.pids[name] = self._start(name)
            self.kills += 1


def run_storm(nursery: Nursery, folder: Path, runs: int, figure: Callable[[str], None]) -> None:
    chance, late_ms = random.Random(seed()), []
    ends = {"answers": 0, "missing": 0}
    with postroom.open(f"sqlite:{folder}") as room:
        ada = room.agent("ada")
        peers = Peers(nursery, folder)
        for _ in range(runs):
            asked = ada.ask_many(PEERS, {}, enough=chance.choice(("all", "any", 3)), timeout_s=TIMEOUT_S, ttl_s=0.5)
            begun_s = time.monotonic()
            peers.kill_some()
            killed_s = time.monotonic()
            answers, missing = asked.answers, asked.missing
            if any(isinstance(error, postroom.AskTimeout) for error in missing.values()):
                late_ms.append((time.monotonic() - max(begun_s + TIMEOUT_S, killed_s)) * 1000)

            assert sorted([*answers, *missing]) == PEERS
            assert room.store.find(Query(waiting=True, from_agent="ada")).messages == []
            ends["answers"] += len(answers)
            ends["missing"] += len(missing)
        nursery.kill(*peers.pids.values())
        kept = Query(states=frozenset({State.CLAIMED, State.AWAITED}))
        until(lambda: not room.store.find(Query(waiting=True)).messages, "somebody still waits")
        until(lambda: not room.store.find(kept).messages, "something is still claimed, or kept for an asker")
        assert room.waits() == []
        assert ends["answers"] > 0 and ends["missing"] > 0, "the storm shows nothing"
    late_ms.sort()
    figure(
        f"asking several: {runs} runs, {peers.kills} kills, {ends['answers']} answers, {ends['missing']} missing;"
        f" after the deadline {late_ms[len(late_ms) // 2]:.1f} ms (median), {late_ms[-1]:.1f} ms (most)"
    )


@pytest.mark.slow
def test_nobody_waits_and_nothing_stays_claimed_after_asking_several(
    nursery: Nursery, folder: Path, figure: Callable[[str], None]
) -> None:
    run_storm(nursery, folder, count("ASKED", 15), figure)


@pytest.mark.long
def test_a_thousand_times_several_are_asked_among_kills(
    nursery: Nursery, folder: Path, figure: Callable[[str], None]
) -> None:
    run_storm(nursery, folder, count("ASKED_LONG", 1000), figure)
