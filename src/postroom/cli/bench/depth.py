"""W7: what a send and a receive cost beside many messages, against the same beside ten.

One process has all depths open and goes from one to the next in small pieces, so that whatever else the machine does
meets them alike; the medians of the pieces are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final

from postroom.core.clock import SYSTEM

from .client import Client, make_payload
from .peers import peer
from .task import PATIENCE_S, BenchTask, Found, RoleDeadline

#: So many sends, then so many receives, before it is the next depth's turn.
PIECE: Final = 50
#: A piece that is slow is cut short after this, in seconds.
PIECE_CAP_S: Final = 1.0


class Depths:
    """One client per depth, filled."""

    def __init__(self, task: BenchTask) -> None:
        self._task = task
        self._clients: list[Client] = []

    def measure(self) -> Found:
        """Microseconds of a send and of a receive with its ack, by depth."""
        for setup, depth in zip(self._task.places, self._task.depths, strict=True):
            client = peer(self._task.peer).client(setup)
            client.prefill(depth)
            self._clients.append(client)
        sends: list[list[float]] = [[] for _ in self._clients]
        takes: list[list[float]] = [[] for _ in self._clients]
        deadline = RoleDeadline(self._task.cap_s)
        for number in range(1 + max(3, self._task.count // PIECE)):
            for place, client in enumerate(self._clients):
                send_us, take_us = _piece(_send, client), _piece(_take, client)
                if number:  # the first only warms up
                    sends[place].append(send_us)
                    takes[place].append(take_us)
            if deadline.passed() and number:
                break
        for client in self._clients:
            client.close()
        return {"send_us": [median(pieces) for pieces in sends], "take_us": [median(pieces) for pieces in takes]}


def _send(client: Client) -> None:
    client.send(make_payload(0))


def _take(client: Client) -> None:
    got = client.receive(PATIENCE_S)
    if got is None:
        raise RuntimeError("nothing came")
    client.ack(got[1])


def _piece(step: Callable[[Client], None], client: Client) -> float:
    """Microseconds per step."""
    deadline, begun_ns, done = RoleDeadline(PIECE_CAP_S), SYSTEM.steady_ns(), 0
    for _ in range(PIECE):
        step(client)
        done += 1
        if deadline.passed():
            break
    return (SYSTEM.steady_ns() - begun_ns) / 1e3 / done
