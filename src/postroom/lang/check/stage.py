"""A rehearsal: all parts of a session are followed side by side until they end, fail, or nobody can go on.

What is not known is decided, one way in one run and the other way in the next, so that every outcome a condition can have is
seen. Decisions are kept: a thing that was true once in a run is true for all of its workers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from postroom.lang.syntax import nodes as n

from .mail_uses import Part
from .rehearsal import Delegate, MissingField, PartFollower, Raised, Receive, Steps
from .rehearsal_values import known
from .stand_ins import CalledWorker, Code, ReceivedObject, StandIn, Unclear

MAX_STEPS: Final = 6_000  # of one run: more is a loop that only real values end
MAX_ACTORS: Final = 64

ENDED: Final = "ended"
STUCK: Final = "stuck"
FAULT: Final = "fault"
THROWN: Final = "thrown"
UNCLEAR: Final = "unclear"


class Actor:
    """One part that is being followed."""

    __slots__ = ("name", "outcome", "parent", "result", "steps", "team", "tries", "waits")

    def __init__(self, name: str, parent: Actor | None, tries: list[int]) -> None:
        self.name = name
        self.parent = parent
        self.tries = tries
        self.steps: Steps
        self.waits: Receive | None = None
        self.team: list[Actor] | None = None  # those whom it waits for
        self.outcome: Any = _RUNNING
        self.result: Any = None


_RUNNING: Final = object()
_DONE: Final = object()


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
        """What comes of something that is not known: the same each time that it is worked out anew."""
        return self._derived.setdefault(key, StandIn())

    def truth(self, value: Any, node: n.Node) -> bool:
        value = known(value)
        if isinstance(value, StandIn):
            return self.decide(("true", value.number), node)
        if isinstance(value, dict):
            return True
        return bool(value)

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
        actor = Actor(part.name, None, [0])
        follower = PartFollower(self, part.loaded, actor.tries)
        if part.function is None:
            actor.steps = follower.run_body(part.body)
        else:
            actor.steps = follower.run(part.function, [follower.stand_in(p.type) for p in part.function.params])
        self._add(actor)

    def _add(self, actor: Actor) -> None:
        if len(self._actors) >= MAX_ACTORS:
            raise Unclear
        self.took_part.add(actor.name)
        self._actors.append(actor)
        self._ready.append((actor, None))

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
            self._fail(actor)
        else:
            if isinstance(asked, Receive):
                actor.waits = asked
            else:
                self._delegate(actor, asked.jobs)

    def _delegate(self, actor: Actor, jobs: list[CalledWorker]) -> None:
        actor.team = []
        for job in jobs:
            actor.team.append(self._worker(job.callee, job.args, actor))
        if not jobs:
            self._ready.append((actor, []))

    def _worker(self, callee: Code, args: list[Any], parent: Actor) -> Actor:
        actor = Actor(callee.function.name, parent, [0])
        follower = PartFollower(self, callee.loaded, actor.tries)
        actor.steps = follower.run(callee.function, args)
        self._add(actor)
        return actor

    def _end(self, actor: Actor, result: Any) -> None:
        actor.outcome, actor.result = _DONE, result
        parent = actor.parent
        if parent is not None and parent.team is not None and all(member.outcome is _DONE for member in parent.team):
            results = [member.result for member in parent.team]
            parent.team = None
            self._ready.append((parent, results))

    def _fail(self, actor: Actor) -> None:
        """The program throws, and nobody inside catches it: the session fails, as it is written."""
        self.outcome = THROWN
        actor.outcome = _DONE
