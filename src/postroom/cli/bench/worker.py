"""A measured process: `python -m postroom.cli.bench.worker`.

It reads one task (a line of JSON), opens its client, says `ready`, waits for a line, does its role, and writes what it
found as one line of JSON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from postroom.core.clock import SYSTEM

from .client import Client, NotHere, make_payload
from .depth import Depths
from .mingle import Mingling
from .peers import peer
from .plan import BATCH, PAUSE_S
from .task import IDLE_S, PATIENCE_S, BenchTask, Found, RoleDeadline, say

WARM_UP: Final = 50


def send(client: Client, task: BenchTask) -> Found:
    """W1: one by one."""
    for number in range(WARM_UP):
        client.send(make_payload(-number))
    return produce(client, task)


def produce(client: Client, task: BenchTask) -> Found:
    """Send as fast as it goes: the numbers from `first`, as many as there is time for."""
    deadline, begun_ns, sent = RoleDeadline(task.cap_s), SYSTEM.steady_ns(), 0
    for number in range(task.first, task.first + task.count):
        client.send(make_payload(number))
        sent += 1
        if not sent % 64 and deadline.passed():
            break
    return {"sent": sent, "begun_ns": begun_ns, "ended_ns": SYSTEM.steady_ns()}


def send_batches(client: Client, task: BenchTask) -> Found:
    """W2: many at once."""
    client.send_batch([make_payload(number) for number in range(BATCH)])
    deadline, begun_ns, sent = RoleDeadline(task.cap_s), SYSTEM.steady_ns(), 0
    while sent < task.count and not deadline.passed():
        client.send_batch([make_payload(number) for number in range(sent, sent + BATCH)])
        sent += BATCH
    return {"sent": sent, "begun_ns": begun_ns, "ended_ns": SYSTEM.steady_ns()}


def consume(client: Client, task: BenchTask) -> Found:
    """W3, W4: claim one, ack one, until everything is sent and nothing is left."""
    deadline, numbers, ended_ns, over = RoleDeadline(task.cap_s), [], 0, False
    while not deadline.passed():
        over_now = os.path.exists(task.done_flag)
        for payload in client.messages(IDLE_S):
            numbers.append(payload["n"])
            ended_ns = SYSTEM.steady_ns()
            if not len(numbers) % 64 and deadline.passed():
                break
        if over_now:
            over = True
            break
    return {"numbers": numbers, "ended_ns": ended_ns, "drained": over}


def wait(client: Client, task: BenchTask) -> Found:
    """W5: be woken, again and again."""
    waits_ms = []
    for _ in range(task.count):
        got = client.receive(PATIENCE_S)
        now_ns = SYSTEM.steady_ns()
        if got is None:
            break
        waits_ms.append((now_ns - got[0]["sent"]) / 1e6)
        client.ack(got[1])
    return {"ms": waits_ms}


def ring(client: Client, task: BenchTask) -> Found:
    """W5: send now and then."""
    for number in range(task.count):
        SYSTEM.sleep(PAUSE_S)
        client.send(make_payload(number, SYSTEM.steady_ns()))
    return {}


def ask(client: Client, task: BenchTask) -> Found:
    """W6: one question after the other."""
    for number in range(20):
        client.ask(make_payload(number), PATIENCE_S)
    deadline, took_ms, begun_ns = RoleDeadline(task.cap_s), [], SYSTEM.steady_ns()
    for number in range(task.count):
        asked_ns = SYSTEM.steady_ns()
        answer = client.ask(make_payload(number, asked_ns), PATIENCE_S)
        took_ms.append((SYSTEM.steady_ns() - asked_ns) / 1e6)
        if answer["n"] != number:
            raise RuntimeError(f"asked {number}, was answered {answer['n']}")
        if not number % 64 and deadline.passed():
            break
    return {"ms": took_ms, "begun_ns": begun_ns, "ended_ns": SYSTEM.steady_ns()}


def answer(client: Client, task: BenchTask) -> Found:
    """W6: answer until all is asked."""
    deadline, answered = RoleDeadline(task.cap_s + 10), 0
    while not deadline.passed() and not os.path.exists(task.done_flag):
        for _ in client.answer(IDLE_S):
            answered += 1
    return {"answered": answered}


ROLES: Final[dict[str, Callable[[Client, BenchTask], Found]]] = {
    "send": send,
    "send_batches": send_batches,
    "produce": produce,
    "consume": consume,
    "wait": wait,
    "ring": ring,
    "ask": ask,
    "answer": answer,
}


def begin(task: BenchTask) -> Callable[[], Found]:
    """Open what the task needs; calling what this returns does the work."""
    if task.role == "depth":
        return Depths(task).measure
    if task.role == "mingle":
        return Mingling(task).run
    client = peer(task.peer).client(task.setup)

    def work() -> Found:
        try:
            return ROLES[task.role](client, task)
        finally:
            client.close()

    return work


def main() -> None:
    """Do one task."""
    task = msgspec.json.decode(sys.stdin.readline(), type=BenchTask)
    try:
        work = begin(task)
        say("ready")
        sys.stdin.readline()
        say(work())
    except NotHere as why:
        say({"not_here": str(why)})


if __name__ == "__main__":
    main()
