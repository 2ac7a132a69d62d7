"""Schedules: messages that the room sends by the clock. What one is, and which of its ticks are due: pure, no store.

A schedule is one cell: what it sends, and the time of its next tick. To fire is to store the tick's messages and to move
the cell on in one step (`Store.put_with_cell`), which one process of all that try does. `ticker.py` does it when it is time.

`every_s` counts in room time, which no clock that is set can change. Cron expressions are read off the wall clock, and
the cell's own time only grows: a wall time that comes twice ticks once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from postroom.core.clock import iso
from postroom.core.message import Draft, check_name, check_span
from postroom.core.message import check as check_draft
from postroom.errors import Fault, InvalidMessage, raise_faults

from . import cron as crons

#: What becomes of ticks that were missed: none of them, one for all, or each.
POLICIES: Final = ("skip", "one", "all")
#: A tick that is no more than this late, and the latest, was not missed.
LATE_MS: Final = 60_000
#: "all" sends so many missed ticks at most, the latest; and so many in one step.
MAX_CAUGHT_UP: Final = 1000
PORTION: Final = 100
#: No schedule ticks more often than this, in seconds.
SHORTEST_S: Final = 1.0
#: A wall clock that is this far behind the last tick was wrong then, and is right now: its time counts. Cron has the same
#: rule. Once a day at most, so that two machines that disagree about the time do not take turns.
CORRECTED_MS: Final = 3 * 3_600_000
_DAY_MS: Final = 86_400_000
#: A payload is written with every tick.
MAX_PAYLOAD_BYTES: Final = 64 * 1024
#: With the time of a tick, a name is the tick's correlation id.
MAX_NAME_BYTES: Final = 200

Value = dict[str, Any]

#: The part of a cell that says what the schedule is; the rest says how far it has come.
_DEFINITION: Final = (
    *("every_ms", "cron", "zone", "missed", "to", "channel", "type", "payload", "priority", "ttl_s", "by"),
)


class Schedule(NamedTuple):
    """A schedule of a room, and how far it has come. Times are ISO 8601 text."""

    name: str  # unique in the room
    every_s: float | None  # its interval; None: it has a cron expression
    cron: str | None  # its expression; None: it has an interval
    zone: str  # the time zone in which the expression is read
    missed: str  # what becomes of missed ticks: skip, one or all
    to: str | None  # who gets the messages; None: the first to claim one in the channel
    channel: str  # where they go
    type: str  # the messages' type
    payload: dict[str, Any]  # what each says
    priority: int  # theirs, 1 to 10
    ttl_s: float | None  # how long each is good for
    by: str  # their sender, to whom answers go
    next_tick: str | None  # when the next one is due; None: never
    last_tick: str | None  # when the last one was due that was sent; None: none was
    sent: int  # how many messages it has sent

    def to_dict(self) -> Value:
        """The same as plain data."""
        return self._asdict()


class Firing(NamedTuple):
    """What is to be done about a schedule now: the times of the ticks to be sent, and its cell afterwards."""

    ticks_ms: list[int]
    value: Value


# Making one


def make(definition: Value, wall_ms: int, room_ms: int) -> Value:
    """The cell of a new schedule. Raises InvalidMessage with everything that is wrong with it."""
    faults: list[Fault] = []
    _check_definition(definition, faults)
    if not faults:
        _check_times(definition, wall_ms, faults)
    raise_faults(faults)
    value = {**definition, "anchor_ms": wall_ms, "next_ms": 0, "last_ms": None, "sent": 0}
    first_ms = room_ms + definition["every_ms"] if definition["every_ms"] is not None else _next_cron(value, wall_ms)
    return value | {"next_ms": first_ms}


def is_same(value: Value | None, made: Value) -> bool:
    """Whether a cell is already the schedule that was asked for: then it goes on as it is."""
    return value is not None and all(value.get(field) == made[field] for field in _DEFINITION)


def every_ms(every_s: object) -> int | None:
    """An interval in milliseconds. InvalidMessage for what is none."""
    if every_s is None:
        return None
    faults: list[Fault] = []
    check_span("every_s", every_s, faults)
    raise_faults(faults)
    assert isinstance(every_s, int | float)
    if every_s < SHORTEST_S:
        raise InvalidMessage("every_s", f"must be at least {SHORTEST_S:g} second, not {every_s!r}")
    return round(every_s * 1000)


def check_schedule_name(name: object) -> None:
    """Raise InvalidMessage for what cannot be the name of a schedule."""
    faults: list[Fault] = []
    check_name("name", name, faults)
    if isinstance(name, str) and not faults and len(name.encode()) > MAX_NAME_BYTES:
        faults.append(Fault("name", f"must be at most {MAX_NAME_BYTES} bytes long, and is {len(name.encode())}"))
    raise_faults(faults)


def _check_definition(definition: Value, faults: list[Fault]) -> None:
    given = [field for field in ("every_ms", "cron") if definition[field] is not None]
    if len(given) != 1:
        said = "both were given" if given else "neither was given"
        faults.append(Fault("every_s", f"a schedule has either every_s or a cron expression; {said}"))
    if definition["missed"] not in POLICIES:
        faults.append(Fault("missed", f"must be one of {', '.join(POLICIES)}, not {definition['missed']!r}"))
    try:
        draft = check_draft(draft_of("name", definition, 0, 1))
        size = len(draft.payload_json.encode())
        if size > MAX_PAYLOAD_BYTES:
            limit = f"the limit for schedules is {MAX_PAYLOAD_BYTES} (put large things in room.attach)"
            faults.append(Fault("payload", f"is {size} bytes as JSON; {limit}"))
    except InvalidMessage as error:
        ours = {"from_agent": "by", "to_agent": "to"}
        faults += [Fault(ours.get(field, field), problem) for field, problem in error.faults]


def _check_times(definition: Value, wall_ms: int, faults: list[Fault]) -> None:
    zone, expression = definition["zone"], definition["cron"]
    if not isinstance(zone, str):
        faults.append(Fault("zone", f"must be text, not {type(zone).__name__}"))
        return
    if expression is None:
        if zone != "UTC":
            faults.append(Fault("zone", "is for cron expressions; an interval is the same in every zone"))
        return
    try:
        known = crons.zone_of(zone)
    except ValueError as error:
        faults.append(Fault("zone", str(error)))
        return
    if not isinstance(expression, str):
        faults.append(Fault("cron", f"must be text, not {type(expression).__name__}"))
        return
    try:
        crons.check(expression, known, wall_ms)
    except ValueError as error:
        faults.append(Fault("cron", str(error)))


# What is due


def wait_ms(value: Value, wall_ms: int, room_ms: int) -> int | None:
    """In how many milliseconds its next tick is due; 0 or less is now, None is never."""
    if _is_corrected(value, wall_ms, room_ms):
        return 0
    next_ms: int | None = value["next_ms"]
    return None if next_ms is None else next_ms - _now_ms(value, wall_ms, room_ms)


def due(value: Value, wall_ms: int, room_ms: int) -> Firing | None:
    """What is to be done about a schedule at this moment; None when nothing is due."""
    if _is_corrected(value, wall_ms, room_ms):
        moved = {"anchor_ms": wall_ms, "corrected_ms": room_ms, "next_ms": _next_cron(value, wall_ms)}
        return Firing([], value | moved)
    now_ms, next_ms = _now_ms(value, wall_ms, room_ms), value["next_ms"]
    if next_ms is None or next_ms > now_ms:
        return None
    ticks, after_ms = (_due_cron if value["cron"] is not None else _due_every)(value, now_ms)
    sent, upto_ms = _by_policy(value["missed"], ticks, now_ms)
    if upto_ms < ticks[-1]:  # the rest is due at once
        after_ms = ticks[ticks.index(upto_ms) + 1]
    last = {"last_ms": sent[-1], "sent": value["sent"] + len(sent)} if sent else {}
    return Firing(sent, value | last | {"anchor_ms": upto_ms, "next_ms": after_ms})


def _by_policy(missed: str, ticks: list[int], now_ms: int) -> tuple[list[int], int]:
    """Of ticks that are due, those that are sent in this step, and up to which the step goes."""
    latest_ms = ticks[-1]
    if missed == "all":
        return ticks[:PORTION], ticks[:PORTION][-1]
    if missed == "skip" and now_ms - latest_ms > LATE_MS:
        return [], latest_ms
    return [latest_ms], latest_ms


def _most(value: Value) -> int:
    return MAX_CAUGHT_UP if value["missed"] == "all" else 1


def _due_every(value: Value, now_ms: int) -> tuple[list[int], int]:
    """The latest ticks that are due, and the next one after them."""
    step_ms, next_ms = value["every_ms"], value["next_ms"]
    count = (now_ms - next_ms) // step_ms + 1
    first = max(0, count - _most(value))
    return [next_ms + place * step_ms for place in range(first, count)], next_ms + count * step_ms


def _due_cron(value: Value, now_ms: int) -> tuple[list[int], int | None]:
    zone, next_ms = crons.zone_of(value["zone"]), value["next_ms"]
    ticks = crons.latest_ms(value["cron"], zone, next_ms - 1, now_ms, _most(value)) or [next_ms]
    return ticks, _next_cron(value, ticks[-1])


def _next_cron(value: Value, after_ms: int) -> int | None:
    return crons.next_ms(value["cron"], crons.zone_of(value["zone"]), after_ms)


def _now_ms(value: Value, wall_ms: int, room_ms: int) -> int:
    return room_ms if value["cron"] is None else wall_ms


def _is_corrected(value: Value, wall_ms: int, room_ms: int) -> bool:
    """Whether the wall clock was set back so far that the cell's time is taken for a mistake."""
    if value["cron"] is None or value["anchor_ms"] - wall_ms <= CORRECTED_MS:
        return False
    since_ms: int | None = value.get("corrected_ms")
    return since_ms is None or room_ms - since_ms >= _DAY_MS


# Showing


def draft_of(name: str, value: Value, tick_ms: int, max_deliveries: int) -> Draft:
    """The message of one tick."""
    return Draft(
        from_agent=value["by"],
        to_agent=value["to"],
        channel=value["channel"],
        type=value["type"],
        payload=value["payload"],
        priority=value["priority"],
        ttl_s=value["ttl_s"],
        correlation_id=f"{name}@{iso(tick_ms)}",
        max_deliveries=max_deliveries,
    )


def show(name: str, value: Value, wall_ms: int, room_ms: int) -> Schedule:
    """A schedule as people read it: its times are the wall clock's."""
    to_wall_ms = wall_ms - room_ms if value["cron"] is None else 0
    interval_ms = value["every_ms"]
    texts = [None if ms is None else iso(ms + to_wall_ms) for ms in (value["next_ms"], value["last_ms"])]
    kept = {field: value[field] for field in _DEFINITION if field != "every_ms"}
    return Schedule(
        name=name,
        every_s=None if interval_ms is None else interval_ms / 1000,
        next_tick=texts[0],
        last_tick=texts[1],
        sent=value["sent"],
        **kept,
    )
