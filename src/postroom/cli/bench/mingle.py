"""One agent of the load test: sends to all others in turn, and listens meanwhile."""

from __future__ import annotations

import os
import threading

import postroom
from postroom.core.clock import SYSTEM

from .client import make_payload
from .task import IDLE_S, BenchTask, Found, RoleDeadline, say


class Mingling:
    """The agent in its room. One thread listens, the other sends."""

    def __init__(self, task: BenchTask) -> None:
        self._task = task
        self._room = postroom.open(task.setup.address)
        self._agent = self._room.agent(task.setup.me)
        self._ids: list[str] = []
        self._took_ms: list[float] = []

    def run(self) -> Found:
        """Send everything, hear everything. The ids of both, and how long each delivery took."""
        listener = threading.Thread(target=self._listen)
        listener.start()
        sent = self._send()
        say("sent")
        listener.join()
        self._room.close()
        return {"sent": sent, "received": self._ids, "ms": self._took_ms}

    def _send(self) -> list[str]:
        task, ids = self._task, []
        for number in range(task.count):
            SYSTEM.sleep(task.pause_s * 2 * SYSTEM.random())
            to = task.others[(task.first + number) % len(task.others)]
            ids.append(self._agent.send(to, make_payload(number, SYSTEM.steady_ns())))
        return ids

    def _listen(self) -> None:
        deadline = RoleDeadline(self._task.cap_s)
        while not deadline.passed():
            over = os.path.exists(self._task.done_flag)
            for message in self._agent.listen(timeout_s=IDLE_S):
                self._took_ms.append((SYSTEM.steady_ns() - message.payload["sent"]) / 1e6)
                self._ids.append(message.id)
            if over:
                return
