"""Waits for mail as bob until it is interrupted. Says "ready" when it waits, and "interrupted" at the end."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import postroom

url, what = sys.argv[1:]
room = postroom.open(url)
bob = room.agent("bob")


def slow(message: postroom.Received) -> dict[str, Any]:
    print("ready", flush=True)
    assert interrupted.wait(30)
    return {"finished": True}


def say_ready(*_: object) -> None:
    if next(looks, None) is None:
        print("ready", flush=True)


interrupted = threading.Event()
if what == "a busy serve":
    # the function goes on only after serve has seen the interrupt, which it tells the log
    import logging

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "action", "") == "serve_interrupted":
                interrupted.set()

    logging.getLogger("postroom").setLevel(logging.INFO)
    logging.getLogger("postroom").addHandler(Watch())
    bob.serve({"*": slow})
else:
    looks = iter([1])  # the first look comes before it listens, the second after: then it waits
    room.hooks.on("after_claim", say_ready)
    with contextlib.suppress(KeyboardInterrupt):
        bob.receive() if what == "receive" else bob.serve({"*": slow})
print("interrupted", flush=True)
room.close()
