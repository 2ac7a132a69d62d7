"""Programs that serve bob until SIGTERM: with `listen`, `serve` (threads, asyncio) and a pool of workers.

    python -m faults.programs.goodbye KIND URL GRACE_S

What a message asks for: {"text": "quick"}, {"text": "nap 0.01"}, {"text": "read PATH"} (until somebody has written to
that FIFO), {"text": "hang"}. "began ID" is printed when work on a message begins, "done ID ACK" what became of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import postroom
from postroom import aio
from postroom.cli import main as command_line
from postroom.core.system import goodbye

KINDS = ("listen", "serve", "aio", "plain", "pool")
#: The name by which the workers of a pool find the evaluator.
EVALUATOR = "faults.programs.goodbye"


def act(text: str) -> None:
    """Do what a message says, in a thread."""
    word, _, rest = text.partition(" ")
    if word == "nap":
        time.sleep(float(rest))
    elif word == "read":
        Path(rest).read_text()
    elif word == "hang":
        threading.Event().wait()


async def act_in_loop(text: str) -> None:
    word, _, rest = text.partition(" ")
    if word == "nap":
        await asyncio.sleep(float(rest))
    elif word == "hang":
        await asyncio.Event().wait()
    else:
        await asyncio.to_thread(act, text)


def tell(word: str, id: str) -> None:
    os.write(1, f"{word} {id}\n".encode())


def handle(message: postroom.Received) -> None:
    tell("began", message.id)
    act(message.payload["text"])
    tell("done", f"{message.id} {message.ack()}")


async def handle_in_loop(message: aio.Received) -> None:
    tell("began", message.id)
    await act_in_loop(message.payload["text"])
    tell("done", f"{message.id} {await message.ack()}")


def judge(message: dict[str, Any]) -> dict[str, Any]:
    """The evaluator of the pool."""
    if message["payload"].get("journal"):
        with open(message["payload"]["journal"], "a") as journal:
            journal.write(f"began {message['id']} {os.getpid()}\n")
    act(message["payload"]["text"])
    return {"confidence": 1.0}


def listen(url: str, grace_s: float) -> None:
    code = command_line(["listen", "--room", url, "--as", "bob", "--json", "--grace", str(grace_s)])
    assert code == 0, code


def serve(url: str, grace_s: float) -> None:
    with postroom.open(url) as room:
        room.agent("bob").serve({"*": handle}, concurrency=2, grace_s=grace_s)


def serve_and_forget(url: str, grace_s: float) -> None:
    """Without closing the room: the end of the process does."""
    postroom.open(url).agent("bob").serve({"*": handle}, concurrency=2, grace_s=grace_s)


async def _serve(url: str, grace_s: float, handler: Callable[..., Any]) -> None:
    async with aio.open(url) as room:
        await (await room.agent("bob")).serve({"*": handler}, concurrency=2, grace_s=grace_s)


def serve_aio(url: str, grace_s: float) -> None:
    asyncio.run(_serve(url, grace_s, handle_in_loop))


def serve_plain(url: str, grace_s: float) -> None:
    asyncio.run(_serve(url, grace_s, handle))


def serve_pool(url: str, grace_s: float) -> None:
    with postroom.open(url) as room, postroom.WorkerPool(f"{EVALUATOR}:judge", workers=["a", "b"]) as pool:
        pool.serve(room, "bob", grace_s=grace_s)


PROGRAMS: dict[str, Callable[[str, float], None]] = {
    "listen": listen,
    "serve": serve,
    "forget": serve_and_forget,
    "aio": serve_aio,
    "plain": serve_plain,
    "pool": serve_pool,
}


def until_told(kind: str, url: str, grace_s: float, ready: str, output: str) -> None:
    """A role of the nursery. `ready` is made as soon as SIGTERM is a goodbye."""
    heard = goodbye.heard

    @contextmanager
    def noting(tell: Callable[[], object]) -> Iterator[bool]:
        with heard(tell) as is_heard:
            Path(ready).touch()
            yield is_heard

    goodbye.heard = noting
    os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 1)
    PROGRAMS[kind](url, grace_s)


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2], float(sys.argv[3]))
