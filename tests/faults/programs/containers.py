"""Those who send and receive in containers: `receive URL NAME COUNT`, a process for each; `send URL GAP_S EACH RECEIVERS...`.

Receivers say "ready" when they are about to wait, and at the end, a line for each, how long each message took in milliseconds.
"""

from __future__ import annotations

import json
import os
import sys
import time

import postroom


def now_ms() -> float:
    """The time on a clock that all containers share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


def say(line: str) -> None:
    """In one write: all processes of a container share one pipe, and an unbuffered `print` writes the end of a line apart."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def receive(url: str, agent: str) -> None:
    with postroom.open(url) as room:
        me = room.agent(agent)
        say("ready")
        took_ms = []
        while sent_ms := (message := me.receive()).payload["sent_ms"]:
            took_ms.append(round(now_ms() - sent_ms, 2))
            message.ack()
        message.ack()
        say(json.dumps(took_ms))


def receive_in_many(url: str, name: str, count: int) -> None:
    children = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            receive(url, f"{name}-{number}")
            return
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def send(url: str, gap_s: float, each: int, receivers: list[str]) -> None:
    with postroom.open(url) as room:
        me = room.agent("sender")
        time.sleep(0.5)  # they are about to wait
        for _ in range(each):
            for receiver in receivers:
                me.send(receiver, {"sent_ms": now_ms()})
                time.sleep(gap_s)
        for receiver in receivers:
            me.send(receiver, {"sent_ms": 0})


if __name__ == "__main__":
    _, what, url, *words = sys.argv
    if what == "receive":
        receive_in_many(url, words[0], int(words[1]))
    else:
        send(url, float(words[0]), int(words[1]), words[2:])
