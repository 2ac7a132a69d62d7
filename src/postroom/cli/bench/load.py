"""The load test: agents in processes of their own all write to each other, and every message is accounted for."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from .client import Setup
from .crew import MeasuredProcess
from .measure import percentile
from .task import BenchTask, Found

#: Between two messages of one agent, on average, in seconds.
PAUSE_S: Final = 0.025


class Load(msgspec.Struct):
    """What became of the messages, and how long their delivery took, from before the send to after the claim."""

    agents: int
    sent: int
    received: int
    lost: int
    doubled: int
    p50_ms: float
    p99_ms: float
    slowest_ms: float


def load(agents: int, messages: int, folder: str | None = None, url: str | None = None) -> Load:
    """So many agents send so many messages each, in a room of their own unless one is named."""
    names = [f"load-{os.getpid()}-{number}" for number in range(agents)]
    with ExitStack() as stack:
        home = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="postroom-load-", dir=folder, ignore_cleanup_errors=True)
        )
        flag = Path(home) / "done"
        tasks = [
            BenchTask(
                role="mingle",
                peer="postroom",
                setup=Setup(address=url or f"sqlite:{home}/room", me=name, to=""),
                count=messages,
                pause_s=PAUSE_S,
                cap_s=messages * PAUSE_S * 10 + 60,
                done_flag=str(flag),
                others=names[number + 1 :] + names[:number] or names,
            )
            for number, name in enumerate(names)
        ]
        hands = [stack.enter_context(MeasuredProcess(task)) for task in tasks]
        for hand in hands:
            hand.await_ready()
        for hand in hands:
            hand.go()
        for hand in hands:
            hand.await_word("sent")
        flag.touch()
        found = [hand.found() for hand in hands]
    return _account(agents, found)


def _account(agents: int, found: list[Found]) -> Load:
    sent = Counter(id for one in found for id in one["sent"])
    received = Counter(id for one in found for id in one["received"])
    took_ms = sorted(ms for one in found for ms in one["ms"])
    return Load(
        agents=agents,
        sent=sum(sent.values()),
        received=len(received),
        lost=len(sent.keys() - received.keys()),
        doubled=sum(received.values()) - len(received),
        p50_ms=percentile(took_ms, 50),
        p99_ms=percentile(took_ms, 99),
        slowest_ms=took_ms[-1] if took_ms else float("nan"),
    )
