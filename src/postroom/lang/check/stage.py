"""The scheduler of a rehearsal: all parts of a session are followed side by side until they end, fail, or all wait.

What is not known is decided, one way in one run and the other way in the next, so that every outcome a condition can
have is seen. Decisions are kept: a thing that was true once in a run is true for all of its workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from postroom.lang.syntax import nodes as n

from .mail_uses import Part
from .rehearsal import Delegate, PartFollower, Receive, Steps
from .rehearsal_values import Judge
from .stand_ins import CalledWorker, MissingField, Raised, ReceivedObject, Unclear

MAX_ACTORS: Final = 64

ENDED: Final = "ended"
STUCK: Final = "stuck"
FAULT: Final = "fault"
THROWN: Final = "thrown"
UNCLEAR: Final = "unclear"


@dataclass(eq=False)
class Actor:
    """One part that is being followed."""

    name: str
    steps: Steps
    parent: Actor | None = None
    waits: Receive | None = None
    team: list[Actor] | None = None  # the workers that it waits for
    done: bool = False
    result: Any = None


#: The name of an actor, and what it waits for.
Waiting = tuple[str, Receive]


class RehearsalRun:
    """One rehearsal, with decisions given for its beginning. After `play`, `outcome` says how it went."""

    def __init__(self, size: int, decisions: tuple[bool, ...], *, last_first: bool) -> None:
        self.judge = Judge(size, decisions)
        self.last_first = last_first
        self.outcome = ENDED
        self.waiting: list[Waiting] = []
        self.missing: MissingField | None = None
        self.took_part: set[str] = set()
        self.mail: dict[str, deque[tuple[Any, n.Call]]] = {}
        self.sent: dict[int, tuple[str, n.Call]] = {}  # by the id of the call: what was sent
        self.read: set[int] = set()  # and what of it was read
        self._actors: list[Actor] = []
        self._ready: deque[tuple[Actor, Any]] = deque()

    def _send(self, box: str, value: Any, call: n.Call) -> None:
        if isinstance(value, dict):
            value = ReceivedObject(value, box, call)
        self.sent[id(call)] = (box, call)
        for actor in self._actors:
            if actor.waits is not None and actor.waits.box == box:
                actor.waits = None
                self.read.add(id(call))
                self._ready.append((actor, value))
                return
        self.mail.setdefault(box, deque()).append((value, call))

    # ---------------------------------------------------------------- playing

    def play(self, parts: list[Part]) -> RehearsalRun:
        """Follows parts to their end: one root, or workers that are taken to run together."""
        try:
            for part in parts:
                self._start(part)
            while self.outcome == ENDED and self._go_on():
                pass
        except Unclear:
            self.outcome = UNCLEAR
        finally:
            for actor in self._actors:
                actor.steps.close()
        return self

    def _go_on(self) -> bool:
        if self._ready:
            actor, value = self._ready.pop() if self.last_first else self._ready.popleft()
            self._advance(actor, lambda: actor.steps.send(value))
            return True
        self.waiting = [(actor.name, actor.waits) for actor in self._actors if actor.waits is not None]
        if not self.waiting:
            return False
        in_time = next((actor for actor in self._actors if actor.waits is not None and actor.waits.can_time_out), None)
        if in_time is not None:
            in_time.waits = None
            self._advance(in_time, lambda: in_time.steps.throw(Raised()))
            return True
        self.outcome = STUCK
        return False

    def _start(self, part: Part) -> None:
        follower = PartFollower(self.judge, self._send, part.loaded, [0])
        given = [follower.stand_in(param.type) for param in part.function.params]
        self._add(Actor(part.name, follower.run(part.function, given)))

    def _add(self, actor: Actor) -> Actor:
        if len(self._actors) >= MAX_ACTORS:
            raise Unclear
        self.took_part.add(actor.name)
        self._actors.append(actor)
        self._ready.append((actor, None))
        return actor

    def _advance(self, actor: Actor, move: Callable[[], Receive | Delegate]) -> None:
        try:
            asked = move()
            while isinstance(asked, Receive) and self.mail.get(asked.box):
                value, call = self.mail[asked.box].popleft()
                self.read.add(id(call))
                asked = actor.steps.send(value)
        except StopIteration as stop:
            self._end(actor, stop.value)
        except MissingField as missing:
            self.outcome, self.missing = FAULT, missing
        except Raised:
            self.outcome = THROWN  # nobody inside catches it: the session fails, as it is written
        else:
            if isinstance(asked, Receive):
                actor.waits = asked
            else:
                self._delegate(actor, asked.jobs)

    def _delegate(self, actor: Actor, jobs: list[CalledWorker]) -> None:
        actor.team = []
        for job in jobs:
            steps = PartFollower(self.judge, self._send, job.callee.loaded, [0]).run(job.callee.function, job.args)
            actor.team.append(self._add(Actor(job.callee.function.name, steps, actor)))
        if not jobs:
            self._ready.append((actor, []))

    def _end(self, actor: Actor, result: Any) -> None:
        actor.done, actor.result = True, result
        parent = actor.parent
        if parent is not None and parent.team is not None and all(member.done for member in parent.team):
            results = [member.result for member in parent.team]
            parent.team = None
            self._ready.append((parent, results))
