"""The scheduler of a rehearsal: all parts of a session are followed side by side until they end, fail, or all wait.

What is not known is decided, one way in one run and the other way in the next, so that every outcome a condition can
have is seen. Decisions are kept: a thing that was true once in a run is true for all of its workers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from postroom.lang.syntax import nodes as n
from postroom.lang.values import values

from .mail_uses import Part
from .rehearsal import Delegate, MissingField, PartFollower, Raised, Receive, Steps
from .rehearsal_values import known
from .stand_ins import CalledWorker, ReceivedObject, StandIn, Unclear

MAX_STEPS: Final = 6_000  # of one run: more is a loop that only real values end
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


class RehearsalRun:
    """One rehearsal, with decisions given for its beginning. After `play`, `outcome` says how it went."""

    def __init__(self, size: int, decisions: tuple[bool, ...], *, last_first: bool) -> None:
        self.size = size
        self.given = decisions
        self.last_first = last_first
        self.decisions: list[tuple[bool, n.Node]] = []
        self.outcome = ENDED
        self.waiting: list[Actor] = []
        self.missing: MissingField | None = None
        self.took_part: set[str] = set()
        self.mail: dict[str, deque[tuple[Any, n.Call]]] = {}
        self.sent: dict[int, tuple[str, n.Call]] = {}  # by the id of the call: what was sent
        self.read: set[int] = set()  # and what of it was read
        self._memo: dict[object, bool] = {}
        self._derived: dict[object, StandIn] = {}
        self._visits: Counter[int] = Counter()
        self.steps = 0
        self._actors: list[Actor] = []
        self._ready: deque[tuple[Actor, Any]] = deque()

    # ---------------------------------------------------------------- what parts ask for

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Unclear

    def decide(self, key: object, node: n.Node) -> bool:
        if key in self._memo:
            return self._memo[key]
        place = len(self.decisions)
        visits = self._visits[id(node)]
        self._visits[id(node)] += 1
        answer = self.given[place] if place < len(self.given) else visits % 2 == 0
        self.decisions.append((answer, node))
        self._memo[key] = answer
        return answer

    def derived(self, key: object) -> StandIn:
        """The result of an operation on stand-ins: the same each time that it is worked out anew."""
        return self._derived.setdefault(key, StandIn())

    def truth(self, value: Any, node: n.Node) -> bool:
        value = known(value)
        if isinstance(value, StandIn):
            return self.decide(("true", value.number), node)
        return values.truth(value)

    def send(self, box: str, value: Any, call: n.Call) -> None:
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
        waiting = [actor for actor in self._actors if actor.waits is not None]
        if not waiting:
            return False
        in_time = next((actor for actor in waiting if actor.waits is not None and actor.waits.can_time_out), None)
        if in_time is not None:
            in_time.waits = None
            self._advance(in_time, lambda: in_time.steps.throw(Raised()))
            return True
        self.outcome, self.waiting = STUCK, waiting
        return False

    def _start(self, part: Part) -> None:
        follower = PartFollower(self, part.loaded, [0])
        params = part.function.params if part.function is not None else []
        given = [follower.stand_in(param.type) for param in params]
        self._add(Actor(part.name, follower.run(part.body, params, given)))

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
            function = job.callee.function
            steps = PartFollower(self, job.callee.loaded, [0]).run(function.body, function.params, job.args)
            actor.team.append(self._add(Actor(function.name, steps, actor)))
        if not jobs:
            self._ready.append((actor, []))

    def _end(self, actor: Actor, result: Any) -> None:
        actor.done, actor.result = True, result
        parent = actor.parent
        if parent is not None and parent.team is not None and all(member.done for member in parent.team):
            results = [member.result for member in parent.team]
            parent.team = None
            self._ready.append((parent, results))
