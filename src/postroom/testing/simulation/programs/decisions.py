"""Coordinators: several processes that decide on the same messages, through one room."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from postroom.core.system.process import start_thread
from postroom.errors import WorkerTimeout
from postroom.pools.coordinator import Coordinator
from postroom.pools.evaluation import Evaluation
from postroom.pools.protocol import message_text
from postroom.pools.request import Request
from postroom.testing.simulation.plans import MESSAGES

from .program import Program

#: When each mind answers, in seconds; None: it never does.
Pace = tuple[float | None, ...]
_DEADLINE_S: Final = 3.0


class SimulatedMinds:
    """A pool as a coordinator sees it: minds that answer after their time, or never."""

    def __init__(self, program: Program, pace: Pace) -> None:
        self._program = program
        self._pace = pace
        self.workers: Mapping[str, Any] = {f"mind-{number}": None for number in range(len(pace))}

    def begin(
        self,
        message: Mapping[str, Any],
        timeout_s: float | None,
        listener: Callable[[str, Request], None] | None,
        *,
        skip: Container[object] = (),
    ) -> Mapping[str, Request]:
        """Ask every mind; each answers in a thread of its own."""
        requests = {}
        for (name, _), pace_s in zip(self.workers.items(), self._pace, strict=True):
            if name in skip:
                continue
            request = requests[name] = Request(message_text(message), name, timeout_s, 1)
            if listener is not None:
                request.on_change(lambda changed, name=name: listener(name, changed))  # type: ignore[misc]
            think = threading.Thread(target=self._think, args=(request, message["id"], pace_s), name=name)
            start_thread(think)
        return requests

    def _think(self, request: Request, id: str, pace_s: float | None) -> None:
        if pace_s is None:
            self._program.clock.sleep(_DEADLINE_S)
            request.end(WorkerTimeout("simulated", request.worker))
            return
        self._program.clock.sleep(pace_s / 2)
        request.add(Evaluation(id, 0.4, should_respond=True, stage="quick"))
        self._program.clock.sleep(pace_s / 2)
        request.end(None, Evaluation(id, 0.9, should_respond=True))


def _consider(program: Program, id: str, pace: Pace) -> None:
    program.agent()
    consider(program, id, pace)


def consider(program: Program, id: str, pace: Pace) -> None:
    """Decide on one of the messages, which every process knows."""
    max_hops = program.world.config.max_hops
    hops = max_hops - MESSAGES[id]
    coordinator = Coordinator(
        SimulatedMinds(program, pace), room=program.room, deadline_s=_DEADLINE_S, late_s=60.0, clock=program.clock
    )
    decision = coordinator.consider({"id": id, "content": id, "sender_id": "ada", "hop_count": hops})
    program.judge.decisions.returned(program.process, decision, hops, max_hops)


OPERATIONS: Final[dict[str, Callable[..., None]]] = {"consider": _consider}
