"""Plans: what the agents of a schedule do, what goes wrong, and who runs when; all of it drawn from one seed.

A plan is plain data, so that it can be printed, run again, and made smaller part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from postroom.core.clock import Chance

AGENTS: Final = ("ann", "bob", "cid")
#: Which processes there are, by their agents: two of one agent compete for its mail.
_CASTS: Final = (AGENTS, ("ann", "bob", "bob"), ("ann", "bob", "bob", "cid"), ("ann", "ann", "bob", "bob"))
CHANNEL: Final = "work"
NEWS: Final = "news"
#: Each task, and what it waits for.
TASKS: Final = {"t1": (), "t2": ("t1",), "t3": ()}
#: What a receiver does with a message, and how likely.
_ENDS: Final = (
    *("ack", "ack", "ack", "reply", "reply", "reply", "retry", "retry later", "dead", "refuse", "drop", "leave block"),
    *("fail in block", "hold", "hold", "hold long", "extend", "ack twice", "retry and ack"),
)
_TASK_ENDS: Final = ("done", "done", "release", "drop", "hold", "hold", "hold long", "blocked")

Op = tuple[object, ...]


class PlannedProcess(NamedTuple):
    """One process: the agent that it is, and what it does, in this order."""

    agent: str
    ops: tuple[Op, ...]


class PlannedFault(NamedTuple):
    """Something that goes wrong at a step of the schedule. `part` is the process, by its place in the plan."""

    step: int
    kind: str
    part: int
    span_s: float

    def __str__(self) -> str:
        span = f" {self.span_s:g} s" if self.kind in _SPANS else ""
        whom = f" p{self.part}" if self.kind not in NOBODYS else ""
        return f"at step {self.step}: {self.kind}{whom}{span}"


#: What a fault does with a process; some last, some concern nobody in particular.
KILL: Final = "kill"
KILL_IN_STEP: Final = "kill after its next write"
KILL_AND_RESTART: Final = "kill and restart"
FREEZE: Final = "freeze"
LOSE_HINTS: Final = "lose hints for"
LATE_HINTS: Final = "delay hints for"
TIME: Final = "nobody runs for"
WALL: Final = "set the wall clock by"
FAIL: Final = "fail the next write of"
_SPANS: Final = (FREEZE, LOSE_HINTS, LATE_HINTS, TIME, WALL, KILL_AND_RESTART)
NOBODYS: Final = (LOSE_HINTS, LATE_HINTS, TIME, WALL)
_KINDS: Final = (
    *(KILL, KILL, KILL_IN_STEP, KILL_IN_STEP, KILL_AND_RESTART, KILL_AND_RESTART, FREEZE, FREEZE, FREEZE),
    *(LOSE_HINTS, LATE_HINTS, TIME, TIME, WALL, FAIL),
)
_SPAN_CHOICES: Final = {
    FREEZE: (3.0, 12.0, 35.0, 35.0, 100.0),
    LOSE_HINTS: (1.0, 5.0, 60.0),
    LATE_HINTS: (0.5, 3.0, 30.0),
    TIME: (0.5, 2.5, 6.0, 31.0, 61.0),
    WALL: (-86400.0, -3600.0, -40.0, 40.0, 3600.0, 86400.0),
    KILL_AND_RESTART: (0.0, 0.5, 3.0, 40.0),
}


class Plan(NamedTuple):
    """Everything about a schedule that is not the product's doing."""

    seed: int
    parts: tuple[PlannedProcess, ...]
    faults: tuple[PlannedFault, ...]
    #: Which of the actors that can go on does so, step by step; after these the calm begins.
    picks: bytes

    def lines(self) -> Iterator[str]:
        """The plan in words, one line for each thing."""
        for number, part in enumerate(self.parts):
            for op in part.ops:
                yield f"p{number} ({part.agent}) {' '.join(map(str, op))}"
        for fault in self.faults:
            yield str(fault)


def draw(seed: int, steps: int) -> Plan:
    """The plan of a seed: three or four processes, at least that many steps, at least one fault."""
    rng = Chance(seed)
    theme = rng.choice(_THEMES)
    agents = rng.choice(_CASTS)
    parts = tuple(PlannedProcess(agent, tuple(_ops(rng, agent, agents, theme))) for agent in agents)
    picks = rng.randbytes(steps + rng.randrange(steps))
    faults = sorted(_fault(rng, len(picks), len(agents)) for _ in range(rng.choice((1, 1, 2, 2, 3, 4))))
    return Plan(seed, parts, tuple(faults), picks)


def _fault(rng: Chance, steps: int, count: int) -> PlannedFault:
    kind = rng.choice(_KINDS)
    return PlannedFault(rng.randrange(steps), kind, rng.randrange(count), rng.choice(_SPAN_CHOICES.get(kind, (0.0,))))


def _ops(rng: Chance, agent: str, agents: Sequence[str], theme: tuple[str, ...]) -> Iterator[Op]:
    others = [name for name in agents if name != agent]
    for _ in range(rng.randrange(3, 6)):
        yield _op(rng, rng.choice(others), rng.choice(theme))


_MAIL: Final = ("send", "send", "send", "receive", "receive", "receive", "poll", "lease", "many", "listen", "sleep")
_ASKS: Final = ("ask", "ask", "ask", "serve", "serve", "serve", "receive", "receive", "send", "reopen", "ask long")
_CHANNELS: Final = ("post", "post", "work", "work", "work", "publish", "subscribe", "receive", "listen", "confirmed")
_BOARD: Final = ("add", "add", "task", "task", "task lease", "task lease", "work off", "abort", "receive")
_SESSIONS: Final = ("session", "session", "join", "join", "join", "join", "send", "receive")
_MIXED: Final = (*_MAIL, *_ASKS, *_CHANNELS)
#: Sessions and boards take the most steps, and are drawn less often.
_THEMES: Final = (*(_MAIL, _ASKS, _CHANNELS, _MIXED) * 2, _MAIL, _ASKS, _BOARD, _SESSIONS)


def _op(rng: Chance, other: str, kind: str) -> Op:
    return (kind, *(other if choices is OTHER else rng.choice(choices) for choices in _ARGUMENTS[kind]))


#: Stands for the agent that is written to, or asked.
OTHER: Final = ("another agent",)
_TIMEOUTS: Final = (0.5, 2.0, 5.0)
#: What each operation is given: one of each of these.
_ARGUMENTS: Final[dict[str, tuple[Sequence[object], ...]]] = {
    "send": (
        OTHER,
        (5, 5, 5, 8),
        ((0, None), (0, None), (0, None), (2, None), (0, 3.0), (0, 20.0)),
        (False, False, True),
    ),
    "many": (OTHER,),
    "post": (),
    "publish": (),
    "subscribe": (),
    "confirmed": (OTHER, _TIMEOUTS),
    "receive": (_TIMEOUTS, _ENDS),
    "work": (_TIMEOUTS, _ENDS),
    "poll": (_ENDS,),
    "lease": ((2.0, 5.0), (1.0, 4.0, 9.0)),
    "listen": ((1, 3), (1, 2, 4), (0.0, 0.0, 4.0)),
    "ask": (OTHER, _TIMEOUTS),
    "ask long": (OTHER,),
    "serve": ((3.0, 6.0), ("answer", "answer", "fail", "slow", "ack")),
    "add": (tuple(TASKS),),
    "task": ((0.0, 3.0), _TASK_ENDS),
    "task lease": ((1.0, 3.0, 3.0),),
    "work off": ((1.0, 6.0),),
    "abort": (tuple(TASKS),),
    "session": ((0, 1, 2), ("wait", "wait for ever", "fail"), (0, 0, 4000)),
    "join": ((1, 2), ("wait", "wait for ever", "wait for ever", "fail", "mark failed")),
    "sleep": ((0.5, 4.0, 8.0),),
    "reopen": (),
}
