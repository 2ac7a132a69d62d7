"""Processes of one room live in containers: in namespaces of their own, with nothing in common but the room's folder.

The story. Receivers wait in two containers, and a sender in a third one sends to them, one after the other.

The invariant. Each is woken by what is sent to it; none has to wait until it looks by itself, once a second.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
from tests.support.containers import CONTAINERS, need_containers

from .support import PATIENCE_S, count, environment, program

#: A message that waits for the next look of its receiver waits for half a second, on average.
BY_LOOKING_MS = 250
WAKE_MOST_MS = 5


def wakes_ms(start: list[str], url: str, processes: int, each: int, gap_s: float) -> list[float]:
    """How long each message took from its sender to its receiver."""
    names = ("one", "two")
    with ExitStack() as ends:
        receiving = []
        for name in names:
            words = [*start, *program("containers", "receive", url, name, str(processes))]
            receiving.append(
                ends.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()))
            )
            ends.callback(receiving[-1].kill)
        for container in receiving:
            assert container.stdout
            said = [container.stdout.readline() for _ in range(processes)]
            assert said == ["ready\n"] * processes, said
        receivers = [f"{name}-{number}" for number in range(processes) for name in names]
        words = [*start, *program("containers", "send", url, str(gap_s), str(each), *receivers)]
        subprocess.run(words, env=environment(), timeout=PATIENCE_S, check=True)
        said = [line for container in receiving for line in container.communicate(timeout=PATIENCE_S)[0].splitlines()]
    took = [json.loads(line) for line in said]
    assert [len(one) for one in took] == [each] * len(receivers)
    return [took_ms for one in took for took_ms in one]


@need_containers
@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_who_waits_in_a_container_is_woken_by_who_sends_from_another(store: str, tmp_path: Path) -> None:
    took_ms = wakes_ms(CONTAINERS["both"], f"{store}:{tmp_path}/room", 2, 5, 0.06)
    assert median(took_ms) < BY_LOOKING_MS


@need_containers
@pytest.mark.long
@pytest.mark.parametrize("store", ["sqlite", "files"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_of_eight_who_wait_in_each_of_two_containers_each_is_woken_at_once(
    kind: str, store: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    each = count("WAKES_LONG", 25)
    took_ms = median(wakes_ms(CONTAINERS[kind], f"{store}:{tmp_path}/room", 8, each, 0.03))
    figure(f"containers ({kind}, {store}): woken after {took_ms:.1f} ms at the median")
    if took_ms >= WAKE_MOST_MS:  # a machine that is busy is as slow without containers
        outside_ms = median(wakes_ms([], f"{store}:{tmp_path}/outside", 8, each, 0.03))
        figure(f"containers ({kind}, {store}): outside of containers, after {outside_ms:.1f} ms")
        assert took_ms < 3 * outside_ms
