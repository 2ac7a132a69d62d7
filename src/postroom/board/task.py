"""What a task of the board is: its states, its cell, and what follows from both. Nothing here touches a store.

A task is one cell, `board/task/<percent-encoded id>`, with one JSON object. That cell is the truth; everything else
that the board keeps is derived from such cells and can be made again from them. The object may be edited by hand
through the files store, so it is read with patience: what is missing is filled in, what is not understood is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from postroom.core.clock import Clock, iso
from postroom.core.message import check_name, payload_text
from postroom.errors import Fault, raise_faults

READY: Final = "ready"  # nobody has it; it can be claimed as soon as everything in `after` is done
CLAIMED: Final = "claimed"  # one owner works on it, under a lease
DONE: Final = "done"  # its owner reported it done; this is the end
BLOCKED: Final = "blocked"  # its owner cannot go on, and said why; `reopen` makes it ready again
ABORTED: Final = "aborted"  # somebody called it off; `reopen` makes it ready again


class TaskMove(NamedTuple):
    """One way from state to state."""

    word: str
    sources: tuple[str, ...]
    target: str
    meaning: str


STATES: Final = (READY, CLAIMED, DONE, BLOCKED, ABORTED)
MOVES: Final = (
    TaskMove("claim", (READY,), CLAIMED, "an agent takes the task and gets the next token"),
    TaskMove("done", (CLAIMED,), DONE, "the owner reports its result"),
    TaskMove("blocked", (CLAIMED,), BLOCKED, "the owner cannot continue"),
    TaskMove("release", (CLAIMED,), READY, "the owner gives it back, its lease ends, or its process dies"),
    TaskMove("abort", (READY, CLAIMED, BLOCKED), ABORTED, "the task is cancelled; a running owner is told at once"),
    TaskMove("reopen", (BLOCKED, ABORTED), READY, "the task is made ready again"),
)

PREFIX: Final = "board/task/"
#: A task may wait for at most this many others.
MAX_AFTER: Final = 1000

Value = dict[str, Any]


class Task(NamedTuple):
    """A task in its current state. Reading one changes nothing."""

    id: str  # its name on the board
    title: str  # what is to be done
    #: ready, claimed, done, blocked or aborted; a claim whose lease ended or whose owner is gone is ready again.
    state: str
    #: The agent that works on it, or did last.
    owner: str | None
    after: tuple[str, ...]  # the tasks that must be done before it
    unmet: tuple[str, ...]  # those of them that are not done
    #: When the owner's lease ends, as ISO 8601 text, while it is claimed.
    lease_until: str | None
    #: The fencing token of the last claim: grows with every claim and abort.
    token: int
    payload: dict[str, Any]  # what its owner needs to know
    result: Any  # what its owner reported
    #: What was said when it was blocked, aborted or released.
    why: str | None
    #: The agent that is told of `done` and `blocked`.
    lead: str | None

    @property
    def claimable(self) -> bool:
        """Whether the next claim may get it."""
        return self.state == READY and not self.unmet

    def to_dict(self) -> dict[str, Any]:
        """The task as plain data."""
        return {**self._asdict(), "after": list(self.after), "unmet": list(self.unmet)}


def cell_of(id: str) -> str:
    """The name of a task's cell."""
    return PREFIX + encoded(id)


def id_of_cell(name: str) -> str:
    """The task that a cell's name says."""
    return unquote(name.removeprefix(PREFIX))


def encoded(id: str) -> str:
    """An id as one part of a cell's name."""
    return quote(id, safe="")


def new_value(id: str, title: str, after: Iterable[str], payload: Mapping[str, Any] | None, lead: str | None) -> Value:
    """The cell of a new task, or InvalidMessage with every fault found."""
    faults: list[Fault] = []
    if isinstance(after, str) or not isinstance(after, Iterable):
        faults.append(Fault("after", f"must be a list of ids, such as [{str(after)!r}]"))
        after = ()
    named = list(after)
    check_name("id", id, faults)
    if title:
        check_name("title", title, faults)
    for each in named:
        check_name("after", each, faults)
    if len(named) > MAX_AFTER:
        faults.append(Fault("after", f"must name at most {MAX_AFTER} tasks, and names {len(named)}"))
    if lead is not None:
        check_name("lead", lead, faults)
    if payload is not None and not isinstance(payload, dict):
        faults.append(Fault("payload", f"must be a dict, not {type(payload).__name__}"))
    else:
        payload_text(payload or {}, faults)
    raise_faults(faults)
    return {
        "id": id,
        "title": title,
        "state": READY,
        "owner": None,
        "after": list(dict.fromkeys(named)),
        "lease": None,
        "token": 0,
        "payload": payload or {},
        "result": None,
        "why": None,
        "lead": lead,
    }


def whole_value(id: str, raw: object) -> Value:
    """A cell's object with everything in its place, however it was written. A state that is no state is `blocked`."""
    value: Value = (
        dict(raw) if isinstance(raw, dict) else {"why": f"its entry must be an object, not {raw!r}"[:200], "state": ""}
    )
    state = value.get("state", READY)
    if state not in STATES:
        value["why"] = value.get("why") or f"{state!r} is not a state; the states are {', '.join(STATES)}"
        state = BLOCKED
    after, payload, token = value.get("after"), value.get("payload"), value.get("token")
    return {
        **value,
        "id": id,
        "title": _text(value.get("title")) or "",
        "state": state,
        "owner": _text(value.get("owner")),
        "after": [each for each in after if isinstance(each, str)] if isinstance(after, list) else [],
        "lease": _wall_ms(value.get("lease")),
        "token": token if type(token) is int and token >= 0 else 0,
        "payload": payload if isinstance(payload, dict) else {},
        "result": value.get("result"),
        "why": _text(value.get("why")),
        "lead": _text(value.get("lead")),
        "process": _text(value.get("process")),
        "place": value["place"] if type(value.get("place")) is int and value["place"] >= 0 else None,
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _wall_ms(value: object) -> int | None:
    """A moment that can be shown; what somebody wrote may be anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 250_000_000_000_000:
        return None
    return int(value)


# Leases. People read `lease`, the end by the wall clock. Between processes of one boot the steady clock decides, so
# that a wall clock that is set forward or back neither frees nor freezes a task (tests/board/test_board.py).


def lease_fields(clock: Clock, lease_s: float) -> Value:
    """A lease that ends so many seconds from now."""
    until_ns = clock.steady_ns() + round(lease_s * 1_000_000_000)
    return {"lease": clock.wall_ms() + round(lease_s * 1000), "steady": [clock.boot_id(), until_ns]}


def lease_left_s(clock: Clock, value: Mapping[str, Any]) -> float | None:
    """How long a lease still lasts, below 0 when it ended; None when there is none."""
    match value.get("steady"):
        case [boot, int(until_ns)] if boot == clock.boot_id():
            return (until_ns - clock.steady_ns()) / 1_000_000_000
    lease = value.get("lease")
    return None if lease is None else (int(lease) - clock.wall_ms()) / 1000


#: Why a task was given to others; the owner finds it in `why`.
LEASE_ENDED: Final = "the lease ended before its owner was done"
OWNER_GONE: Final = "its owner's process is gone"


def lapse_of(clock: Clock, value: Mapping[str, Any], is_gone: Callable[[str], bool]) -> str | None:
    """Why a claim no longer keeps others from the task; None while it does. `is_gone` judges a process."""
    process = value.get("process")
    if process is not None and is_gone(process):
        return OWNER_GONE
    left_s = lease_left_s(clock, value)
    return LEASE_ENDED if left_s is not None and left_s <= 0 else None


def show(value: Value, unmet: Iterable[str], lapse: str | None) -> Task:
    """What people and programs are told of a task."""
    claimed = value["state"] == CLAIMED and lapse is None
    lapsed = value["state"] == CLAIMED and lapse is not None
    return Task(
        **{name: value[name] for name in ("id", "title", "token", "payload", "result", "lead")},
        state=READY if lapsed else value["state"],
        owner=None if lapsed else value["owner"],
        after=tuple(value["after"]),
        unmet=tuple(unmet),
        lease_until=iso(value["lease"]) if claimed and value["lease"] is not None else None,
        why=lapse or value["why"],
    )


def holder_of(value: Value) -> str | None:
    """The agent that may settle the task: its owner, or its last one until another takes it."""
    return {CLAIMED: value["owner"], READY: value.get("last_owner")}.get(value["state"])


def find_cycle(start: str, after: Iterable[str], after_of: Callable[[str], Iterable[str]]) -> list[str] | None:
    """The circle that a task which waits for `after` would close, such as [A, B, A]; None when there is none."""
    came_from: dict[str, str] = {}
    waiting = [(each, start) for each in after]
    while waiting:
        id, because = waiting.pop()
        if id in came_from:
            continue
        came_from[id] = because
        if id == start:
            return _way_back(start, came_from)
        waiting += [(each, id) for each in after_of(id)]
    return None


def _way_back(start: str, came_from: Mapping[str, str]) -> list[str]:
    way = [start, came_from[start]]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]
