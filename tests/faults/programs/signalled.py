"""A program that works in a room while signals come in the middle of whatever it does. Its handlers raise, use the room, or end it.

    python -m faults.programs.signalled URL SEED DEED COUNT JOURNAL

DEED is what handlers do: raise, send, ack, ask, mixed (each of these by turns), or exit and kill: say good-bye in the room, and
end the program. Everything that returned is written down before the program goes on (O_APPEND, one line each):

    S id        a send returned this id             A id True       an ack said so
    E words     an error that nobody should get     D signals fds   the end: how many signals came, and the open descriptors
    T threads   the end: how many threads there are
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import postroom
from postroom.core.clock import SYSTEM
from postroom.mail.received import Received

#: What is done by turns.
MIXED = ["raise", "send", "ack", "ask"]


class Poke(Exception):
    """What a handler raises."""


class Program:
    """Works until so many signals came."""

    def __init__(self, url: str, seed: int, deed: str, signals: int, journal: str) -> None:
        self.rng = random.Random(seed)
        self.deed = deed
        self.signals = signals
        self.came = 0
        #: The last moment of a call at which a signal comes: some steps take a few milliseconds, some a tenth of one.
        self.latest = {"memory": -2.6, "sqlite": -2.6, "files": -1.6, "nats": -1.3}[url.partition(":")[0]]
        self.armed = False
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.room = postroom.open(url)
        self.me = self.room.agent("a")
        self.spare: list[Received] = []

    def ignored(self, unraisable: Any) -> None:
        """Something raised where nobody can be told, as while an object is collected. A signal may come there, too."""
        if not isinstance(unraisable.exc_value, Poke | SystemExit):
            self.note("E", "ignored", repr(unraisable.exc_value), unraisable.object)

    def note(self, *words: object) -> None:
        os.write(self._journal, (" ".join(map(str, words)) + "\n").encode())

    # What handlers do

    def handle(self, *_: object) -> None:
        if not self.armed:
            return
        self.armed = False
        self.came += 1
        deed = self.rng.choice(MIXED if self.deed == "mixed" else [self.deed])
        if deed == "raise":
            raise Poke
        try:
            self.use_the_room(deed)
        except postroom.RoomBusy:
            pass
        except postroom.PostroomError:
            self.note("E", "handler", repr(traceback.format_exc()))
        if deed == "kill":
            os._exit(0)
        if deed == "exit":
            sys.exit(0)

    def use_the_room(self, deed: str) -> None:
        if deed == "ack" and self.spare:
            self.ack(self.spare[-1])
        elif deed == "ask":
            with suppress(postroom.AskTimeout):
                self.me.ask("nobody", {}, timeout_s=0.001)
        else:
            self.note("S", self.me.send("boss", {"from": "handler"}))

    def ack(self, message: Received) -> None:
        said = message.ack()
        self.note("A", message.id, said)

    # What it does all the time

    def attempt(self, call: Callable[[], Any]) -> None:
        try:
            try:
                self.armed = True
                signal.setitimer(signal.ITIMER_REAL, 10 ** self.rng.uniform(-5, self.latest))
                call()
            finally:
                self.armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (Poke, postroom.ReceiveTimeout, postroom.AskTimeout):
            pass
        except Exception:
            self.note("E", "main", repr(traceback.format_exc()))

    def send_many(self) -> None:
        for id in self.me.send_many([{"to": "a", "payload": {"n": n}} for n in range(4)]):
            self.note("S", id)

    def receive(self) -> None:
        self.ack(self.me.receive(timeout_s=0.001))

    def listen(self) -> None:
        for message in self.me.listen(timeout_s=0, prefetch=4):
            self.ack(message)

    def step(self) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: self.note("S", self.me.send("a", {"n": 1})),
            lambda: self.note("S", self.me.send("a", {"n": 1})),
            lambda: self.note("S", self.me.send("a", {"n": 1}, idempotency_key=str(self.rng.random()))),
            self.send_many,
            self.receive,
            self.receive,
            self.listen,
            lambda: self.me.ask("nobody", {}, timeout_s=0.001),
            self.room.stats,
            lambda: self.me.heartbeat("busy", "t"),
        ]
        if self.deed in ("ack", "mixed") and (not self.spare or self.spare[-1].settled is not None):
            self.note("S", self.me.send("spare", {}))
            message = self.room.agent("spare").poll(lease_s=600)
            if message is not None:
                self.spare = [message]
        self.attempt(self.rng.choice(calls))

    def run(self) -> None:
        sys.unraisablehook = self.ignored
        warnings.filterwarnings(
            "ignore", "coroutine .* was never awaited", RuntimeWarning
        )  # interrupted before it was begun
        signal.signal(signal.SIGALRM, self.handle)
        while self.came < self.signals:
            self.step()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        self.check_that_others_get_in()
        for message in self.room.peek(state=None, limit=1_000_000):
            self.note("M", message.id, message.exact_state.name)
        self.note("D", self.came, len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)
        self.note("T", threading.active_count())
        self.room.close()

    def check_that_others_get_in(self) -> None:
        """From another thread: a lock that this one kept would let this one in."""
        thread = threading.Thread(target=self.me.send, args=("boss", {}), daemon=True)
        thread.start()
        thread.join(20)
        if thread.is_alive():
            self.note("E", "others are locked out")
            os._exit(1)


if __name__ == "__main__":
    url, seed, deed, signals, journal = sys.argv[1:]
    SYSTEM.steady_ns()
    Program(url, int(seed), deed, int(signals), journal).run()
