"""Reservations, advisory locks on files: agents say which ones they work on, and others keep out of their way.

All of them lie in one cell, `reservations`, because whether one may be made depends on all others: it is decided and
written by one compare-and-set. They end by time, by release, or with their process; what has ended is taken out by the
next writer, and is not shown before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from postroom.core.clock import iso
from postroom.core.message import check_name, check_span
from postroom.errors import Fault, InvalidMessage, PostroomError, ReservationConflict, raise_faults
from postroom.mail import presence
from postroom.mail.gateway import Gateway
from postroom.mail.received import check_seconds
from postroom.stores.cells import update

from . import globs as patterns
from . import records
from .task import CLAIMED, lease_fields, lease_left_s

CELL: Final = "reservations"
#: One agent's globs in one reservation, and all reservations of a room.
MAX_GLOBS: Final = 100
MAX_RESERVATIONS: Final = 2000

Value = dict[str, Any]


class Reserved(NamedTuple):
    """A reservation in its current state."""

    id: str  # the reservation's
    agent: str  # whose it is
    globs: tuple[str, ...]  # the patterns
    exclusive: bool  # False: others may reserve the same, as shared
    why: str | None  # what its agent works on
    until: str  # when it ends, as ISO 8601 text
    since: str  # when it was made, as ISO 8601 text

    def to_dict(self) -> dict[str, Any]:
        """The reservation as plain data."""
        return {**self._asdict(), "globs": list(self.globs)}


class Reservation:
    """One that was made. As a context manager it is released at the end of the block."""

    def __init__(self, reservations: Reservations, id: str, value: Value) -> None:
        self._reservations = reservations
        self.id = id  # the reservation's
        self.agent: str = value["agent"]  # whose it is
        self.globs: tuple[str, ...] = tuple(value["globs"])  # the patterns
        self.exclusive: bool = value["exclusive"]  # False: others may reserve the same, as shared

    def release(self) -> bool:
        """Let others have the files. False when it had ended already."""
        return bool(self._reservations.release([self.id], self.agent))

    def extend(self, ttl_s: float = 600) -> bool:
        """Let it end that many seconds from now. False when it has already ended: make a new one then."""
        return self._reservations.extend(self.id, check_seconds("ttl_s", ttl_s, zero=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Reservation {self.id} of {self.agent!r}: {', '.join(self.globs)}>"


class Reservations:
    """The reservations of a room."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._mine: set[str] = set()
        gateway.at_close(self._let_go)

    def reserve(
        self, globs: Iterable[str], agent: str, ttl_s: float, *, exclusive: bool, why: str | None, process: str | None
    ) -> Reservation:
        """Reserve files; see `Room.reserve`. It ends with the process, if one is named."""
        named = _checked(globs, agent, ttl_s, why)
        clock = self._gateway.clock
        value: Value = {
            "agent": agent,
            "globs": named,
            "exclusive": exclusive,
            "why": why,
            "process": process,
            "since": clock.wall_ms(),
            **lease_fields(clock, ttl_s),
        }
        id = ""

        def change(before: Value | None) -> Value:
            nonlocal id
            whole = _whole(before)
            living = _living(self._gateway, whole)
            self._check_free(value, living)
            if len(living) >= MAX_RESERVATIONS:
                raise InvalidMessage("globs", f"{MAX_RESERVATIONS} reservations exist already; release some")
            id = str(whole["next"])
            return {"next": whole["next"] + 1, "held": {**living, id: value}}

        update(self._gateway.store, CELL, change)
        if value["process"] == self._gateway.process:
            self._mine.add(id)
        return Reservation(self, id, value)

    def _check_free(self, wanted: Value, living: dict[str, Value]) -> None:
        """Raise ReservationConflict when another agent's reservation lies in the way."""
        faults, holders = [], []
        for other in living.values():
            if other["agent"] == wanted["agent"] or not (other["exclusive"] or wanted["exclusive"]):
                continue
            pair = next(((a, b) for a in wanted["globs"] for b in other["globs"] if patterns.overlap(a, b)), None)
            if pair is not None:
                faults.append(f"{pair[0]} meets {pair[1]}, {self._whose(other)}")
                holders.append(other["agent"])
        if faults:
            raise ReservationConflict("; ".join(faults), list(dict.fromkeys(holders)))

    def _whose(self, value: Value) -> str:
        kind = "" if value["exclusive"] else "shared "
        work = working_on(self._gateway, value)
        return f"{kind}reserved by {value['agent']} until {iso(value['lease'])} ({work})"

    def in_the_way(self, paths: Iterable[str], agent: str | None) -> dict[str, str]:
        """Those of these files that another agent has reserved for itself alone, each with whose they are."""
        others = exclusive_of_others(self._gateway, agent)
        found: dict[str, str] = {}
        for path in paths:
            for value in others:
                if any(patterns.covers(glob, path) for glob in value["globs"]):
                    found[path] = self._whose(value)
                    break
        return found

    def all(self) -> list[Reserved]:
        """What is reserved at this moment, the oldest first."""
        return [
            Reserved(
                id=id,
                agent=value["agent"],
                globs=tuple(value["globs"]),
                exclusive=value["exclusive"],
                why=value["why"],
                until=iso(value["lease"]),
                since=iso(value["since"]),
            )
            for id, value in _read(self._gateway).items()
        ]

    def release(self, ids: Iterable[str], agent: str) -> list[str]:
        """End those of these reservations that are the agent's. Returns them."""
        wanted = set(ids)

        def is_left(id: str, value: Value) -> bool:
            return id not in wanted or value["agent"] != agent

        before = self._change(lambda living: {id: value for id, value in living.items() if is_left(id, value)})
        ended = [id for id, value in before.items() if not is_left(id, value)]
        self._mine.difference_update(ended)
        return ended

    def drop(self, agent: str, globs: Iterable[str] | None) -> list[str]:
        """Take these patterns (None: all) out of the agent's reservations. Returns those that were taken out."""
        faults: list[Fault] = []
        named = None if globs is None else {patterns.normal("globs", glob, faults) for glob in globs}
        raise_faults(faults)

        def out_of(value: Value) -> list[str]:
            return [glob for glob in value["globs"] if value["agent"] == agent and (named is None or glob in named)]

        def change(living: dict[str, Value]) -> dict[str, Value]:
            left = {id: [glob for glob in value["globs"] if glob not in out_of(value)] for id, value in living.items()}
            return {id: {**living[id], "globs": globs} for id, globs in left.items() if globs}

        return [glob for value in self._change(change).values() for glob in out_of(value)]

    def extend(self, id: str, ttl_s: float) -> bool:
        """Let one end later."""

        def change(living: dict[str, Value]) -> dict[str, Value]:
            return {key: value | (lease if key == id else {}) for key, value in living.items()}

        lease = lease_fields(self._gateway.clock, ttl_s)
        return id in self._change(change)

    def _change(self, change: Callable[[dict[str, Value]], dict[str, Value]]) -> dict[str, Value]:
        """Change the reservations that still stand. Returns them as they were before."""
        before: dict[str, Value] = {}

        def whole(value: Value | None) -> Value | None:
            nonlocal before
            before = _living(self._gateway, _whole(value))
            after = change(before)
            return None if after == before else {**_whole(value), "held": after}

        update(self._gateway.open_store, CELL, whole)
        return before

    def _let_go(self) -> None:
        """The room closes: what ends with this process ends now."""
        mine = set(self._mine)
        if mine:
            with suppress(PostroomError):
                self._change(lambda living: {id: value for id, value in living.items() if id not in mine})


def exclusive_of_others(gateway: Gateway, agent: str | None) -> list[Value]:
    """What other agents have reserved for themselves alone at this moment, the oldest first."""
    return [value for value in _read(gateway).values() if value["exclusive"] and value["agent"] != agent]


def working_on(gateway: Gateway, value: Value) -> str:
    """What the holder works on: what it said, else the task it holds, else what its heartbeat says."""
    if value["why"]:
        return str(value["why"])
    held = [each.value for each in records.Book(gateway).all().values() if each.value["owner"] == value["agent"]]
    tasks = [f"{task['id']} {task['title']}".strip() for task in held if task["state"] == CLAIMED]
    if tasks:
        return f"working on {', '.join(tasks)}"
    seen = presence.look(gateway, value["agent"])
    task = seen["current_task"] if seen is not None else None
    return f"working on {task}" if task else "it did not say what for"


def _read(gateway: Gateway) -> dict[str, Value]:
    cell = gateway.open_store.cell_read(CELL)
    return _living(gateway, _whole(None if cell is None else cell.value))


def _living(gateway: Gateway, whole: Value) -> dict[str, Value]:
    return {id: value for id, value in whole["held"].items() if _lives(gateway, value)}


def _lives(gateway: Gateway, value: Value) -> bool:
    left_s = lease_left_s(gateway.clock, value)
    process = value["process"]
    gone = process is not None and gateway.store.process_alive(process) is False
    return (left_s is None or left_s > 0) and not gone


def _whole(value: Value | None) -> Value:
    return value if value is not None else {"next": 1, "held": {}}


def _checked(globs: Iterable[str], agent: str, ttl_s: float, why: str | None) -> list[str]:
    faults: list[Fault] = []
    check_name("agent", agent, faults)
    check_span("ttl_s", ttl_s, faults, zero=False)
    if why is not None:
        check_name("why", why, faults)
    if isinstance(globs, str):
        faults.append(Fault("globs", f"must be a list of patterns, such as [{globs!r}]"))
        globs = ()
    named = list(dict.fromkeys(patterns.normal("globs", glob, faults) for glob in globs))
    if not 1 <= len(named) <= MAX_GLOBS:
        faults.append(Fault("globs", f"must name 1 to {MAX_GLOBS} patterns, not {len(named)}"))
    raise_faults(faults)
    return named
