"""A caller whose workers talk to each other for ever: `session.py URL COUNT`. Prints the session's id first."""

from __future__ import annotations

import sys

import postroom
from postroom.sessions.session import Session


@postroom.worker
def talk(session: Session, mine: int, count: int) -> None:
    for number in range(1_000_000):
        session.mailbox[f"box-{(mine + 1) % count}"].send(number)
        session.mailbox[f"box-{mine}"].receive(60_000)


if __name__ == "__main__":
    with postroom.open(sys.argv[1]) as room, room.session() as session:
        print(session.id, flush=True)
        workers = int(sys.argv[2])
        session.delegate([talk(number, workers) for number in range(workers)])
