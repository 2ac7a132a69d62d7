"""Nothing happens: a receiver waits for mail that does not come.

The story. A process takes a hundred messages, acks them, and then waits, with and without a loop, in an empty room and
in one where a million messages wait for somebody else.

The invariant. Waiting costs under 0.1 % of a core (its safety looks, heartbeats and housekeeping included), and its process
has less than 60 MB in memory however much is pending.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doors.served import stdio_server
from tests.faults.programs.rooms import open_room
from tests.support import PROGRAMS

import postroom
from postroom.cli.bench.filling import fill_room

from .support import PATIENCE_S, count, environment

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells the memory of a process"
)

#: Of a core, while nothing happens: what is promised, and what a short look at a busy machine may find.
SHARE_MOST = 0.001
SHARE_MOST_SHORT = 0.004
MEMORY_MOST = 60 * 1024 * 1024


def wait_in_child(folder: Path, way: str, seconds: float) -> dict[str, Any]:
    """Let a process wait so long; what it says that this cost."""
    program = [sys.executable, str(PROGRAMS / "idle.py"), f"sqlite:{folder}", way, str(seconds)]
    ended = subprocess.run(
        program, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S + seconds, check=False
    )
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout)
    assert said["waited_s"] >= seconds
    return said


def check_idle(folder: Path, way: str, seconds: float, most: float, figure: Callable[[str], None]) -> None:
    said = wait_in_child(folder, way, seconds)
    share = said["used_s"] / said["waited_s"]
    figure(f"idle: a receiver ({way}) that waited {seconds:g} s used {share:.3%} of a core")
    assert share < most


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sync", "aio"])
def test_waiting_costs_next_to_nothing(way: str, folder: Path, figure: Callable[[str], None]) -> None:
    check_idle(folder, way, count("IDLE_S", 6), SHARE_MOST_SHORT, figure)


@pytest.mark.long
@pytest.mark.parametrize("way", ["sync", "aio"])
def test_waiting_for_half_a_minute_costs_less_than_a_thousandth_of_a_core(
    way: str, folder: Path, figure: Callable[[str], None]
) -> None:
    check_idle(folder, way, count("IDLE_S_LONG", 30), SHARE_MOST, figure)


def check_memory(folder: Path, way: str, pending: int, figure: Callable[[str], None]) -> None:
    open_room(folder).close()
    fill_room(folder, pending, "bob", "pending")
    said = wait_in_child(folder, way, 2)
    figure(
        f"idle: beside {pending} pending messages a receiver ({way}) had at most {said['most'] / 1e6:.0f} MB in memory"
    )
    assert said["most"] < MEMORY_MOST


@pytest.mark.slow
def test_pending_messages_are_not_kept_in_memory(folder: Path, figure: Callable[[str], None]) -> None:
    check_memory(folder, "sync", count("PENDING", 50_000), figure)


@pytest.mark.long
@pytest.mark.parametrize("way", ["sync", "aio"])
def test_a_million_pending_messages_are_not_kept_in_memory(
    way: str, folder: Path, figure: Callable[[str], None]
) -> None:
    check_memory(folder, way, count("PENDING_LONG", 1_000_000), figure)


@pytest.mark.slow
def test_a_thousand_who_wait_in_one_loop_cost_little_more_than_one(folder: Path, figure: Callable[[str], None]) -> None:
    check_idle(folder, "loops", count("IDLE_S", 6), 0.05, figure)


def processor_s(pid: int) -> float:
    """What all threads of a process have used so far."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


@pytest.mark.long
def test_a_server_whose_model_calls_nothing_costs_less_than_a_thousandth_of_a_core(
    folder: Path, figure: Callable[[str], None]
) -> None:
    postroom.open(folder).close()
    seconds = count("IDLE_S_LONG", 30)
    with stdio_server(folder, "--as", "bob") as served:
        served.tool("who")
        before = processor_s(served.process.pid)
        time.sleep(seconds)
        share = (processor_s(served.process.pid) - before) / seconds
    figure(f"idle: an MCP server whose agent is present used {share:.3%} of a core")
    assert share < SHARE_MOST
