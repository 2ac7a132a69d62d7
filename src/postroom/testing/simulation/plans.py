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
#: Another channel, for mail that is addressed to somebody.
ASIDE: Final = "aside"
#: The agent that is told of tasks, and in whose name schedules send. No process is it.
LEAD: Final = "lead"
NEWS: Final = "news"
#: Each task, and what it waits for.
TASKS: Final = {"t1": (), "t2": ("t1",), "t3": ()}
#: Messages that coordinators decide on, and how many hops fewer than are allowed each has behind it.
MESSAGES: Final = {"d1": 3, "d2": 1, "d3": 0}
#: After how many seconds the minds of a coordinator answer; None: never.
_PACES: Final = ((0.0, 0.1), (0.5, 3.0), (0.1, None), (2.0, 8.0))
#: What a receiver does with a message, and how likely.
_ENDS: Final = (
    *("ack", "ack", "ack", "reply", "reply", "reply", "retry", "retry later", "dead", "refuse", "drop", "leave block"),
    *("fail in block", "hold", "hold", "hold long", "extend", "ack twice", "retry and ack"),
    *("put back and ack", "extend and stand still", "reply and go", "ack in a busy room", "reply and die"),
)
_TASK_ENDS: Final = ("done", "done", "release", "drop", "die", "hold", "hold", "hold long", "blocked")

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
        span = (
            f" {self.span_s:g} s" if self.kind in _SPANS else f", place {self.span_s:g}" if self.kind in INSIDE else ""
        )
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
BREAK: Final = "break the next write, after some changes, of"
#: Faults of rooms on disks. Each comes at a place inside a step: `span_s` is how many places it waits for.
KILL_INSIDE: Final = "kill inside a write of"
FAIL_DISK: Final = "let the disk fail under"
POWER_CUT: Final = "cut the power inside a write of"
INSIDE: Final = (KILL_INSIDE, FAIL_DISK, POWER_CUT)
#: What a network and servers do to a process, or to all: rooms on NATS alone honour it.
LOSE_REQUEST: Final = "lose the next request of"
LOSE_REPLY: Final = "lose the next reply to"
LATE_REQUEST: Final = "delay the next request of"
REPEAT_REQUEST: Final = "repeat the next request of"
CUT: Final = "cut the connection of"
SEVER: Final = "break the connection at the next write of"
STALL: Final = "stall the connection of"
RESTART_SERVER: Final = "restart the server for"
NO_LEADER: Final = "have no leader for"
LAG: Final = "let a copy lag for"
LOSE_PUSHES: Final = "lose pushes for"
LATE_PUSHES: Final = "delay pushes for"
REPEAT_PUSHES: Final = "repeat pushes for"
_WIRE_OF_ALL: Final = (RESTART_SERVER, NO_LEADER, LAG, LOSE_PUSHES, LATE_PUSHES, REPEAT_PUSHES)
WIRE: Final = (LOSE_REQUEST, LOSE_REPLY, LATE_REQUEST, REPEAT_REQUEST, SEVER, CUT, STALL, *_WIRE_OF_ALL)
_SPANS: Final = (FREEZE, LOSE_HINTS, LATE_HINTS, TIME, WALL, KILL_AND_RESTART, *WIRE[2:])
NOBODYS: Final = (LOSE_HINTS, LATE_HINTS, TIME, WALL, *_WIRE_OF_ALL)
_KINDS: Final = (
    *(KILL, KILL, KILL_IN_STEP, KILL_IN_STEP, KILL_AND_RESTART, KILL_AND_RESTART, FREEZE, FREEZE, FREEZE),
    *(LOSE_HINTS, LATE_HINTS, TIME, TIME, WALL, FAIL, BREAK),
)
_SPAN_CHOICES: Final = {
    FREEZE: (3.0, 12.0, 35.0, 35.0, 100.0),
    LOSE_HINTS: (1.0, 5.0, 60.0),
    LATE_HINTS: (0.5, 3.0, 30.0),
    TIME: (0.5, 2.5, 6.0, 31.0, 61.0),
    WALL: (-86400.0, -3600.0, -40.0, 40.0, 3600.0, 86400.0),
    KILL_AND_RESTART: (0.0, 0.5, 3.0, 40.0),
    BREAK: (0.0, 1.0, 2.0),
    LATE_REQUEST: (0.5, 2.5, 6.0, 25.0),
    REPEAT_REQUEST: (0.0, 1.0, 5.0),
    SEVER: (0.0, 0.5, 3.0, 30.0),
    CUT: (0.0, 0.5, 3.0, 30.0, 30.0),
    STALL: (1.0, 3.0, 9.0, 30.0, 30.0),
    RESTART_SERVER: (0.5, 3.0, 10.0, 30.0),
    NO_LEADER: (0.3, 1.0, 4.0),
    LAG: (1.0, 10.0),
    LOSE_PUSHES: (1.0, 5.0, 20.0),
    LATE_PUSHES: (0.5, 3.0),
    REPEAT_PUSHES: (1.0, 10.0),
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


def draw(seed: int, steps: int, *, wire: bool = False, theme: str | None = None) -> Plan:
    """The plan of a seed: three or four processes, at least that many steps, at least one fault; of the wire, too.

    `theme` is one of THEMES; None: the seed chooses.
    """
    rng = Chance(seed)
    drawn = rng.choice(_THEMES)
    return _draw(rng, seed, steps, drawn if theme is None else THEMES[theme], wire=wire)


def _draw(rng: Chance, seed: int, steps: int, theme: _Theme, *, wire: bool) -> Plan:
    agents = rng.choice(_CASTS)
    parts = tuple(
        PlannedProcess(agent, tuple(_ops(rng, agent, agents, theme, is_first=not place)))
        for place, agent in enumerate(agents)
    )
    picks = rng.randbytes(theme.length * (steps + rng.randrange(steps)))
    faults = sorted(_fault(rng, len(picks), len(agents)) for _ in range(rng.choice((1, 1, 2, 2, 3, 4))))
    if wire:
        faults += (_fault(rng, len(picks), len(agents), WIRE) for _ in range(rng.choice((0, 1, 2, 3, 4))))
        faults.sort()
    return Plan(seed, parts, tuple(faults), picks)


def with_disk_faults(plan: Plan) -> Plan:
    """A plan for a room on a disk: one or two faults of the disk more, or none."""
    rng = Chance(f"disk {plan.seed}")
    more = (
        PlannedFault(
            rng.randrange(len(plan.picks)), rng.choice(_DISK_KINDS), rng.randrange(len(plan.parts)), rng.choice(_PLACES)
        )
        for _ in range(rng.choice((0, 1, 1, 1, 2)))
    )
    return plan._replace(faults=tuple(sorted([*plan.faults, *more])))


_DISK_KINDS: Final = (KILL_INSIDE, KILL_INSIDE, FAIL_DISK, POWER_CUT, POWER_CUT)
_PLACES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30)


def _fault(rng: Chance, steps: int, count: int, kinds: Sequence[str] = _KINDS) -> PlannedFault:
    kind = rng.choice(kinds)
    return PlannedFault(rng.randrange(steps), kind, rng.randrange(count), rng.choice(_SPAN_CHOICES.get(kind, (0.0,))))


def _ops(rng: Chance, agent: str, agents: Sequence[str], theme: _Theme, *, is_first: bool) -> Iterator[Op]:
    others = [name for name in agents if name != agent]
    if is_first and theme.begins is not None:
        yield _op(rng, rng.choice(others), theme.begins)
    for _ in range(rng.randrange(3, 6)):
        yield _op(rng, rng.choice(others), rng.choice(theme.ops))


class _Theme(NamedTuple):
    """What the processes of a schedule have in common: their operations, each as likely as it stands here often."""

    ops: tuple[str, ...]
    #: What the first process begins with.
    begins: str | None = None
    #: So many times as many steps as a plain schedule: these operations take more.
    length: int = 1


_MAIL: Final = _Theme(
    (
        *("send", "send", "send", "send", "receive", "receive", "receive", "poll", "lease", "many", "listen", "listen"),
        *("sleep", "requeue"),
    )
)
_ASKS: Final = _Theme(
    (*("ask", "ask", "ask", "serve", "serve", "serve", "receive", "receive", "send", "many", "reopen", "ask long"),)
)
_CHANNELS: Final = _Theme(
    (*("post", "post", "work", "work", "work", "publish", "subscribe", "receive", "listen", "confirmed", "peek"),)
)
_MIXED: Final = _Theme((*_MAIL.ops, *_ASKS.ops, *_CHANNELS.ops))
_BOARD: Final = _Theme(
    (
        *("add", "task", "task", "task", "task lease", "task late", "task late", "task late", "work off", "abort"),
        *("look at tasks", "look at tasks", "reopen task", "report", "sleep two", "sleep two", "set the clock"),
    ),
    "add",
    2,
)
_SESSIONS: Final = _Theme(("session", "join", "join", "join"), "session", 2)
_DECISIONS: Final = _Theme(("consider", "consider", "consider", "sleep two"))
_POOLS: Final = _Theme(("pool work", "pool work", "pool serve", "send", "send", "ask"))
_SCHEDULES: Final = _Theme(
    (
        *(
            "schedule",
            "schedule",
            "keep open",
            "keep open",
            "keep open",
            "sleep",
            "look in",
            "look in",
            "set the clock",
        ),
        *("receive", "unschedule"),
    ),
    "schedule",
    2,
)
_ORDERS: Final = _Theme(
    (
        *("keyed", "keyed", "keyed", "post keyed", "post keyed", "many keyed", "debounced", "debounced", "replace"),
        *("withdraw", "withdraw", "receive", "receive", "receive", "work", "work", "poll", "lease", "listen"),
        *("requeue", "sleep"),
    ),
    "keyed",
)
_LIMITS: Final = _Theme(
    (
        *("limit", "limit", "pause", "pause agent", "resume", "resume", "post", "post", "post", "jobs", "jobs", "jobs"),
        *(
            "work",
            "work",
            "work",
            "work",
            "work fast",
            "work fast",
            "lease at work",
            "lease at work",
            "send",
            "receive",
        ),
        *("late at work", "late at work", "take by id", "requeue", "sleep"),
    ),
    "limit",
)
#: Those that take the most steps are drawn less often. New ones stand at the end: most seeds keep their plans.
_THEMES: Final = (
    *(_MAIL, _MAIL, _MAIL, _ASKS, _ASKS, _ASKS, _CHANNELS, _CHANNELS, _MIXED, _MIXED),
    *(_BOARD, _BOARD, _SESSIONS, _SESSIONS, _DECISIONS, _POOLS, _SCHEDULES),
    *(_ORDERS, _ORDERS, _LIMITS, _LIMITS),
)
#: By name, to be run alone.
THEMES: Final = {
    "mail": _MAIL,
    "asks": _ASKS,
    "channels": _CHANNELS,
    "mixed": _MIXED,
    "board": _BOARD,
    "sessions": _SESSIONS,
    "decisions": _DECISIONS,
    "pools": _POOLS,
    "schedules": _SCHEDULES,
    "orders": _ORDERS,
    "limits": _LIMITS,
}


def _op(rng: Chance, other: str, kind: str) -> Op:
    return (kind, *(other if choices is OTHER else rng.choice(choices) for choices in _ARGUMENTS[kind]))


#: Stands for the agent that is written to, or asked.
OTHER: Final = ("another agent",)
_TIMEOUTS: Final = (0.5, 2.0, 5.0)
_KEYS: Final = ("k1", "k1", "k2")
#: What a channel may be limited to (`programs.limits`).
LIMIT_NAMES: Final = (
    *("one at once", "one at once", "two at once", "one of each sender", "one of each key", "one a second"),
    *("one in two seconds, or three", "two a second of each sender", "one a second, two at once", "two wait"),
    "one a second, and three in five",
    "two wait",
    "two wait",
    "no limit",
)
#: What each operation is given: one of each of these.
_ARGUMENTS: Final[dict[str, tuple[Sequence[object], ...]]] = {
    "send": (
        OTHER,
        (5, 5, 5, 8),
        ((0, None), (0, None), (0, None), (2, None), (0, 3.0), (0, 20.0)),
        (False, False, True),
        (None, None, ASIDE),
    ),
    "many": (OTHER,),
    "post": (),
    "publish": (),
    "subscribe": (),
    "confirmed": (OTHER, _TIMEOUTS),
    "receive": ((*_TIMEOUTS, 40.0), _ENDS),
    "work": (_TIMEOUTS, _ENDS),
    "poll": (_ENDS,),
    "lease": ((2.0, 5.0), (1.0, 4.0, 9.0)),
    "listen": ((1, 3, 3), (1, 2, 4), (0.0, 0.0, 4.0, 35.0)),
    "ask": (OTHER, _TIMEOUTS),
    "ask long": (OTHER,),
    "serve": ((3.0, 6.0), ("answer", "answer", "fail", "slow", "very slow", "ack")),
    "requeue": (),
    "peek": (),
    "add": (("t1", *TASKS),),
    "task": ((0.0, 3.0), _TASK_ENDS),
    "task lease": ((1.0, 3.0, 3.0),),
    "work off": ((1.0, 6.0),),
    "abort": (tuple(TASKS),),
    "set the clock": ((-3600.0, 40.0, 3600.0),),
    "task late": ((0.0, 0.0, 1.0), ("done", "done", "blocked"), (None, 0, 1, 2, 3, 4)),
    "look at tasks": (),
    "reopen task": (tuple(TASKS),),
    "report": (tuple(TASKS), ("claim", "done", "blocked")),
    "sleep two": (),
    "session": ((0, 1, 2), ("wait", "wait for ever", "wait for nothing", "fail"), (0, 0, 4000)),
    "join": (
        (1, 2),
        (
            *("wait", "wait for ever", "wait for ever", "wait for nothing", "wait for nothing"),
            *("wait a while for nothing", "send after trouble", "fail", "mark failed"),
        ),
        (0.0, 0.0, 0.0, 1.1, 2.2),
    ),
    "consider": (tuple(MESSAGES), _PACES),
    "pool work": ((1, 2, 4), (1, 2), (1.0, 4.0)),
    "pool serve": ((3.0, 6.0), (1.0, 4.0)),
    "schedule": (("s1", "s1", "s2"), (1.0, 1.0, 4.0, None), ("skip", "one", "all"), OTHER),
    "unschedule": (("s1", "s2"),),
    "keep open": ((3.0, 10.0, 10.0, 20.0),),
    "look in": (),
    "sleep": ((0.5, 4.0, 8.0),),
    "reopen": (),
    "keyed": (
        OTHER,
        _KEYS,
        (5, 5, 5, 8),
        ((0, None), (0, None), (0, None), (2, None), (0, 3.0), (0, 20.0)),
        (None, None, ASIDE),
    ),
    "post keyed": (_KEYS,),
    "many keyed": (OTHER, _KEYS),
    "debounced": (OTHER, _KEYS, (0.5, 3.0)),
    "replace": (OTHER, (*_KEYS, None), (1, 1, 2, 3)),
    "withdraw": ((1, 1, 2, 3),),
    "limit": ((CHANNEL, CHANNEL, CHANNEL, ASIDE, "general"), LIMIT_NAMES),
    "pause": ((CHANNEL, CHANNEL, ASIDE),),
    "pause agent": (AGENTS,),
    "resume": (),
    "jobs": ((*_KEYS, None, None, None),),
    "work fast": (_TIMEOUTS, (2, 3)),
    "take by id": (),
    "late at work": ((3.0, 4.0, 9.0),),
    "lease at work": ((2.0, 5.0), (1.0, 4.0, 9.0)),
}
