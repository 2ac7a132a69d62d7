"""A working day of one room: those who send, receive, listen, ask and answer until it is over, and those who are stuck.

Each works at a steady pace, so that a day of any length makes a room of a size that can be checked. What a child did goes
to the journal and is not remembered: the memory of a child is Postroom's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw

import postroom
from postroom import aio
from postroom.cli.commands.web import while_served

from .journal import Journal
from .nursery import steady_ns

#: Who has found nothing for this long looks whether the day is over.
IDLE_S = 0.5
#: Longer than the machine may be stopped: nothing is to be delivered twice because a lease ended.
LEASE_S = 3600.0
PAYLOAD = {"text": "Please look at the way in which this function waits; the rest is fine. " * 4}


def paced(enough: str, per_s: float) -> Iterator[int]:
    """The numbers from 0, so many a second, until that file is there. Who was kept waiting does not hurry afterwards."""
    number, due_ns = 0, steady_ns()
    while not os.path.exists(enough):
        yield number
        number += 1
        due_ns = max(due_ns + int(1e9 / per_s), steady_ns() - 50_000_000)
        time.sleep(max(0, due_ns - steady_ns()) / 1e9)


def sender(folder: str, journal: str, enough: str, per_s: float) -> None:
    """Send to one agent and to a channel by turns, now and then several at once."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}") as room:
        me = room.agent(f"sender-{os.getpid()}")
        for number in paced(enough, per_s):
            payload = {"n": number, **PAYLOAD}
            to, channel = ("listener", "general") if number % 2 else (None, "jobs")
            if number % 50 == 0:
                note("sent", me.send_many([{"to": to, "payload": payload, "channel": channel}] * 3))
            else:
                note("sent", [me.send(to, payload, channel=channel)])
            if number % 100 == 0:
                note("unread", [me.send("stopped", {"n": number})])


def receiver(folder: str, journal: str, over: str) -> None:
    """Take jobs from the channel that several share, one call to take and one to ack."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}") as room:
        me, done = room.agent(f"receiver-{os.getpid()}"), False
        while not done:
            done = os.path.exists(over)
            try:
                while True:
                    message = me.receive(IDLE_S, channels=["jobs"], lease_s=LEASE_S)
                    note("acked", message.id, message.ack())
            except postroom.ReceiveTimeout:
                continue


def listener(folder: str, journal: str, over: str) -> None:
    """Take what is addressed to one agent, each with the ack of the one before."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}") as room:
        me, done = room.agent("listener"), False
        while not done:
            done = os.path.exists(over)
            for message in me.listen(timeout_s=IDLE_S, lease_s=LEASE_S):
                note("acked", message.id, True)


def server(folder: str, journal: str, over: str) -> None:
    """Answer questions with a function, two at a time."""
    note, stop = Journal(journal).note, threading.Event()

    def double(message: postroom.Received) -> dict[str, int]:
        note("asked", message.id)
        return {"double": message.payload["n"] * 2}

    with postroom.open(f"sqlite:{folder}") as room:
        serve = partial(room.agent("server").serve, {"*": double}, concurrency=2, lease_s=LEASE_S, stop=stop)
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        while not os.path.exists(over):
            time.sleep(IDLE_S)
        stop.set()
        serving.join()


def page(folder: str, journal: str, over: str) -> None:
    """Serve the room's page; the test is its browser."""
    with postroom.open(f"sqlite:{folder}") as room, while_served(room) as address:
        Journal(journal).note("serves", address)
        while not os.path.exists(over):
            time.sleep(IDLE_S)


def asker(folder: str, journal: str, enough: str, per_s: float) -> None:
    """Ask one question after the other."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}") as room:
        me = room.agent(f"asker-{os.getpid()}")
        for number in paced(enough, per_s):
            answer = me.ask("server", {"n": number, **PAYLOAD}, timeout_s=LEASE_S)
            note("answered", answer.id, answer.payload["double"] == number * 2)


def aio_asker(folder: str, journal: str, enough: str, per_s: float) -> None:
    """Ask from a loop, five questions at a time."""
    note = Journal(journal).note

    async def one(me: aio.Agent, number: int) -> None:
        answer = await me.ask("server", {"n": number, **PAYLOAD}, timeout_s=LEASE_S)
        note("answered", answer.id, answer.payload["double"] == number * 2)

    async def main() -> None:
        async with aio.open(f"sqlite:{folder}") as room:
            me = await room.agent(f"asker-{os.getpid()}")
            for number in paced(enough, per_s / 5):
                await asyncio.gather(*(one(me, 5 * number + n) for n in range(5)))

    asyncio.run(main())


# Those who are stuck


def holder(folder: str, journal: str) -> None:
    """Take a message, and never come to its end."""
    note = Journal(journal).note
    room = postroom.open(f"sqlite:{folder}")
    me = room.agent("holder")
    id = me.send("holder", {})
    with me.receive(timeout_s=30, lease_s=LEASE_S):
        note("holds", id)
        time.sleep(7200)


def waiter(folder: str, journal: str, idle_s: float = 5) -> None:
    """Wait for mail, until none has come for `idle_s`. A test may stop this process while it waits."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}") as room:
        me = room.agent("stopped")
        note("waits")
        for message in me.listen(timeout_s=idle_s, lease_s=LEASE_S):
            note("acked", message.id, True)


def reader(folder: str, journal: str) -> None:
    """Read the file as a stranger does, without Postroom, and never come to the end of the reading."""
    connection = apsw.Connection(str(Path(folder) / "messages.db"), flags=apsw.SQLITE_OPEN_READONLY)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM messages").fetchall()
    Journal(journal).note("reads")
    time.sleep(7200)
