"""Random session programs, and a plain model that says how each must end.

A program is a script for the caller, with workers inside it, and scripts for outsiders that joined. Steps:

    ["send", box, delay_ms]     ["timer", box, ms]      a message, at once, delayed in the store, or by a timer thread
    ["receive", box]            waits for ever
    ["timed", box, ms]          a receive with a time-out, from a box that nobody writes to
    ["sleep", ms]
    ["delegate", [script, …]]

Each box has one reader, so whatever the timing is, the same receives are served: the end does not depend on luck. The
model knows no time: it takes every step that can be taken until none can.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

import postroom
from postroom.sessions.session import Session

Script = list[Any]


class Program(NamedTuple):
    caller: Script
    outsiders: list[Script]


@postroom.worker
def play(session: Session, script: Script) -> None:
    """Take the steps of a script."""
    perform(session, script)


def perform(session: Session, script: Script) -> None:
    """Take the steps; whoever returns has left, so its timers are waited for."""
    timers: list[threading.Timer] = []
    _perform(session, script, timers)
    for timer in timers:
        timer.join()


def _perform(session: Session, script: Script, timers: list[threading.Timer]) -> None:
    for step, *details in script:
        if step == "send":
            session.mailbox[details[0]].send(1, delay_ms=details[1])
        elif step == "timer":
            timers.append(threading.Timer(details[1] / 1000, _send_later, (session, details[0])))
            timers[-1].start()
        elif step == "receive":
            session.mailbox[details[0]].receive()
        elif step == "timed":
            with suppress(postroom.ReceiveTimeout):
                session.mailbox[details[0]].receive(details[1])
        elif step == "sleep":
            time.sleep(details[0] / 1000)
        else:
            session.delegate([play(inner) for inner in details[0]], show=False)


def _send_later(session: Session, box: str) -> None:
    with suppress(postroom.SessionFailed, postroom.SessionEnded, postroom.RoomClosed):
        session.mailbox[box].send(1)


# The model


class _Actor:
    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self.script = list(script)
        self.children: list[_Actor] = []

    @property
    def done(self) -> bool:
        return not self.script


def names(count: int) -> list[str]:
    return ["play"] if count == 1 else [f"play-{number}" for number in range(1, count + 1)]


def ends(program: Program) -> Counter[str] | None:
    """Who waits for what at the end, in the words of the failure; None when everybody comes to an end."""
    actors = [_Actor("caller", program.caller)]
    actors += [_Actor(f"outsider-{number}", script) for number, script in enumerate(program.outsiders)]
    boxes: Counter[str] = Counter()
    moved = True
    while moved:
        moved = False
        before = len(actors)
        for actor in tuple(actors):
            while actor.script and _can_step(actor, actors, boxes):
                actor.script.pop(0)
                moved = True
        moved = moved or len(actors) > before
    waiting = Counter(_words(actor) for actor in actors if not actor.done)
    return waiting or None


def _can_step(actor: _Actor, actors: list[_Actor], boxes: Counter[str]) -> bool:
    """Whether the actor's next step can be taken; if so its effect is there."""
    step, *details = actor.script[0]
    if step in ("send", "timer"):
        boxes[details[0]] += 1
    elif step == "receive":
        if not boxes[details[0]]:
            return False
        boxes[details[0]] -= 1
    elif step == "delegate":
        if not actor.children and details[0]:
            actor.children = [_Actor(n, s) for n, s in zip(names(len(details[0])), details[0], strict=True)]
            actors += actor.children
        if not all(child.done for child in actor.children):
            return False
        actor.children = []
    return True


def _words(actor: _Actor) -> str:
    step, *details = actor.script[0]
    if step == "receive":
        return f"{actor.name} waits on mailbox {details[0]}"
    return f"{actor.name} waits for its workers ({', '.join(names(len(details[0])))})"


# Chance


def make_program(seed: int) -> Program:
    """A program, the same one for the same seed. About half of them end in a deadlock."""
    chance = random.Random(seed)
    maker = _Maker(chance)
    workers = [maker.script(depth=0) for _ in range(chance.randint(1, 4))]
    outsiders = [maker.script(depth=9) for _ in range(chance.choice([0, 0, 1, 2]))]
    caller = [*maker.some_sends(), ["delegate", workers]]
    if chance.random() < 0.3:
        caller.append(["delegate", [maker.script(depth=1) for _ in range(chance.randint(1, 2))]])
    maker.address()
    for number, script in enumerate(outsiders):  # the caller waits for them, so that the session does not end before
        script.append(["send", f"bye-{number}", 0])
        caller.append(["receive", f"bye-{number}"])
    return Program(caller, outsiders)


class _Maker:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._boxes = 0
        self._sends: list[list[Any]] = []
        self._fair = chance.random() < 0.5  # as many messages to each box as are received from it

    def script(self, depth: int) -> Script:
        chance = self._chance
        self._boxes += 1
        own = f"box-{self._boxes}"
        steps: Script = []
        for _ in range(chance.randint(0, 5)):
            kind = chance.random()
            if kind < 0.35:
                steps.append(["receive", own])
            elif kind < 0.75:
                steps.append(self._send())
            elif kind < 0.85:
                steps.append(["timed", f"silent-{self._boxes}", chance.randint(0, 25)])
            elif kind < 0.93 or depth > 0:
                steps.append(["sleep", chance.randint(0, 15)])
            else:
                steps.append(["delegate", [self.script(depth + 1) for _ in range(chance.randint(1, 3))]])
        if self._fair:
            self._sends += [["send", own, 0] for step in steps if step[0] == "receive"]
        return steps

    def some_sends(self) -> Script:
        extra, self._sends = self._sends, []
        if self._fair:
            self._chance.shuffle(extra)
            keep = self._chance.random()
            extra = [send for send in extra if self._chance.random() < keep or keep > 0.5]
            return [["send", box, self._chance.choice([0, 0, 5, 20])] for _, box, _ in extra]
        return [self._send() for _ in range(self._chance.randint(0, 3))]

    def _send(self) -> list[Any]:
        step: list[Any] = [
            self._chance.choice(["send", "send", "send", "timer"]),
            "?",
            self._chance.choice([0, 0, 0, 5, 20]),
        ]
        self._unaddressed = [*getattr(self, "_unaddressed", []), step]
        return step

    def address(self) -> None:
        """Now that all boxes are known, say where each message goes."""
        for step in getattr(self, "_unaddressed", []):
            step[1] = f"box-{self._chance.randint(1, self._boxes)}"
