"""Workers whose jobs take long, and that are stopped, frozen or killed in the middle of them."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import postroom

from .journal import Journal

#: How a worker takes its messages.
DOORS = ("block", "loop", "ahead", "plain")
#: A call that keeps the interpreter's lock: no thread of this process runs meanwhile, so no heartbeat either.
_freeze = ctypes.PyDLL(None).usleep


class Worker:
    """Takes jobs until it is killed, and writes down what became of each."""

    def __init__(self, room: postroom.Room, name: str, journal: str, terms: dict[str, Any]) -> None:
        self._agent = room.agent(name)
        self._note = Journal(journal).note
        self._terms = {**terms, "channels": ["jobs"], "late": "raise"}

    def run(self, door: str) -> None:
        while True:
            try:
                getattr(self, f"_{door}")()
            except postroom.LateAck as late:
                self._note("late", late.id, late.delivery)

    def _block(self) -> None:
        with self._agent.receive(**self._terms) as message:
            self._work(message)
        self._acked(message)

    def _plain(self) -> None:
        message = self._agent.receive(**self._terms)
        self._work(message)
        if not message.ack():
            raise postroom.LateAck(message.id, message.delivery_count)
        self._acked(message)

    def _loop(self, **how: Any) -> None:
        before = None
        for message in self._agent.listen(**self._terms, **how):
            if before is not None:
                self._acked(before)
            before = message
            self._work(message)

    def _ahead(self) -> None:
        self._loop(prefetch=3)

    def _acked(self, message: postroom.Received) -> None:
        self._note("acked", message.id, message.delivery_count)

    def _work(self, message: postroom.Received) -> None:
        """Do what the job says the first time; whoever gets it again is quick."""
        job: dict[str, Any] = message.payload if message.delivery_count == 1 else {"how": "slow", "for_s": 0.01}
        how, span_s = job["how"], job["for_s"]
        self._note("began", message.id, message.delivery_count, how)
        if how == "slow":
            time.sleep(span_s)
        elif how == "freeze":
            _freeze(int(span_s * 1e6))
        elif how == "stop":
            self._note("stopping", span_s)
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            time.sleep(span_s)
            self._note("dying", message.id, message.delivery_count)
            os.kill(os.getpid(), signal.SIGKILL)
        self._note("worked", message.id, message.delivery_count)


def worker(url: str, name: str, journal: str, door: str, terms: dict[str, Any]) -> None:
    """Work in a room until somebody kills this process."""
    Worker(postroom.open(url), name, journal, terms).run(door)
