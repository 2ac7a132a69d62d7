"""Agents in processes of their own, for the page to show: `python -m tests.doors.web.actors ROLE URL NAME [...]`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import postroom


def hold(url: str, name: str, *channels: str) -> None:
    """Claim one message, say so, and hold it until somebody ends this process."""
    with postroom.open(url) as room:
        agent = room.agent(name)
        agent.heartbeat(current_task="holding on to one message")
        message = agent.receive(timeout_s=120, channels=channels or None, lease_s=600)
        print(message.id, flush=True)
        sys.stdin.read()


def ask(url: str, name: str, peer: str) -> None:
    """Ask somebody and wait for the answer."""
    with postroom.open(url) as room:
        agent = room.agent(name)
        print("asking", flush=True)
        with suppress(postroom.PostroomError):
            agent.ask(peer, {"text": f"what do you say, {peer}?"}, type="question", timeout_s=60)


@postroom.worker
def reader(session: Any, count: int) -> int:
    """Reads numbers."""
    total = 0
    for _ in range(count):
        total += session.mailbox.numbers.receive(5000)
    print(f"read {count} numbers, {total} in all")
    return total


@postroom.worker
def writer(session: Any, count: int) -> None:
    """Writes numbers."""
    for number in range(count):
        session.mailbox.numbers.send(number)
    print(f"wrote {count} numbers")


@postroom.worker
def parser(session: Any, text: str) -> int:
    """Stumbles over text that is no number."""
    print("parsing", text)
    return int(text)


@postroom.worker
def listener(session: Any) -> Any:
    """Waits for what never comes."""
    return session.mailbox.results.receive()


def session(url: str) -> None:
    """Open a session and stay in it."""
    with postroom.open(url) as room, room.session() as session:
        print(session.id, flush=True)
        sys.stdin.read()


def sessions(url: str) -> None:
    """One session that ends well, and one in which a worker fails."""
    with postroom.open(url) as room:
        with room.session() as session:
            session.delegate([writer(5), reader(5)])
        with suppress(postroom.SessionFailed), room.session() as session:
            session.delegate([listener(), parser("seventeen"), writer(2)])


if __name__ == "__main__":
    roles: dict[str, Any] = {"hold": hold, "ask": ask, "session": session, "sessions": sessions}
    roles[sys.argv[1]](*sys.argv[2:])
