"""A plain model of a room: a list of dictionaries and the rules, as slow and as obvious as they can be.

It knows nothing of indexes, timers or locks. Messages have numbers instead of ids; times are whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from postroom.core.states import FINISHED, MOVES, NOTES, State

Fields = dict[str, Any]

LEASE_ENDED = "lease ended before the receiver settled it"
OWNER_GONE = "the receiver's process is gone"
NOT_IN_TIME = "no receiver finished it in time"


class Conflict(Exception):
    """An idempotency key was used for another message."""


class Model:
    """What a room should do. `changed` collects the numbers of messages that changed; the reader empties it."""

    def __init__(self) -> None:
        self.now = 0
        self.wall = 0
        self.messages: list[Fields] = []
        self.count = 0
        self.subscribers: set[tuple[str, str]] = set()
        self.cells: dict[str, tuple[int, object]] = {}
        self.writes = 0
        self.changed: set[int] = set()

    def message(self, number: int) -> Fields | None:
        return next((m for m in self.messages if m["number"] == number), None)

    def log(self, m: Fields, event: str | None) -> None:
        """Note a change; those without a word are no line in the ledger."""
        self.changed.add(m["number"])
        if event is not None:
            m["ledger"].append(event)

    # What the clock does

    def judged(self, m: Fields) -> State:
        """The state that a reader sees."""
        state: State = m["state"]
        expired = m["expires"] is not None and m["expires"] <= self.now
        ended = m["until"] is not None and m["until"] <= self.now
        if state is State.CLAIMED and ended and m["deliveries"] >= m["most"]:
            return State.DEAD
        if (state is State.CLAIMED and ended) or state in (State.READY, State.DELAYED):
            if expired:
                return State.EXPIRED
            return State.READY if ended else state
        return state

    def wind(self) -> None:
        """Write down what the clock has done."""
        for m in self.messages:
            if (seen := self.judged(m)) is not m["state"]:
                self.let_time_have(m, seen, LEASE_ENDED)

    def let_time_have(self, m: Fields, state: State, why: str) -> None:
        if state is State.EXPIRED:
            self.log(m, "expired")
            m["error"] = NOT_IN_TIME
        elif state is State.DEAD:
            self.log(m, "dead")
            m["error"] = why
        elif m["state"] is State.CLAIMED:
            self.log(m, "released")
        self.become(m, state)

    def become(self, m: Fields, state: State, until: int | None = None) -> None:
        if state in FINISHED or m["state"] is State.AWAITED:
            m["waiter"] = None
        m["state"], m["until"], m["owner"] = state, until, None

    # What agents do

    def put(self, drafts: Iterable[Fields]) -> list[int]:
        drafts = list(drafts)
        first = {(m["sender"], m["key"]): m["content"] for m in self.messages if m["key"]}
        for draft in drafts:
            if draft["key"] and first.setdefault((draft["sender"], draft["key"]), content(draft)) != content(draft):
                raise Conflict
        return [number for draft in drafts for number in self.put_one(draft)]

    def put_one(self, draft: Fields) -> list[int]:
        known = [
            m["number"]
            for m in self.messages
            if draft["key"] and (m["sender"], m["key"]) == (draft["sender"], draft["key"])
        ]
        if known:
            return known
        if draft["publish"]:
            agents = sorted(agent for channel, agent in self.subscribers if channel == draft["channel"])
            return [self.store(draft, agent) for agent in agents]
        return [self.store(draft, draft["to"])]

    def store(self, draft: Fields, to: str | None) -> int:
        state, until = State.READY, None
        if draft["delay"]:
            state, until = State.DELAYED, self.now + draft["delay"]
        waiter = draft["waiter"]
        question = self.message(draft["answer_to"]) if draft["answer_to"] is not None else None
        if waiter is None and question and question["waiter"] and question["state"] is not State.AWAITED:
            state, until, waiter = State.AWAITED, None, question["waiter"]
        m = {
            **draft, "number": self.count, "to": to, "state": state, "until": until, "waiter": waiter, "token": 0,
            "deliveries": 0, "by": None, "owner": None, "error": None, "ledger": [], "sent": self.wall,
            "expires": None if draft["ttl"] is None else self.now + draft["ttl"], "content": content(draft),
        }  # fmt: skip
        self.count += 1
        self.messages.append(m)
        self.log(m, "stored")
        return int(m["number"])

    def claim(self, want: Fields) -> list[int]:
        self.wind()
        found = [m for m in self.messages if self.may_have(want, m)]
        found.sort(key=lambda m: (-m["priority"], m["number"]))
        if want["ids"] is None:
            found = found[: want["limit"]]
        for m in found:
            m["token"] += 1
            m["deliveries"] += 1
            m["by"] = want["agent"]
            self.become(m, State.CLAIMED, self.now + want["lease"])
            m["owner"] = want["owner"]
            self.log(m, "claimed")
            if want["settle"]:
                self.become(m, State.ACKED)
                self.log(m, "acked")
        return [m["number"] for m in found]

    def may_have(self, want: Fields, m: Fields) -> bool:
        if want["ids"] is not None:
            return (
                m["number"] in want["ids"]
                and m["state"] in (State.READY, State.AWAITED)
                and m["to"] in (want["agent"], None)
            )
        if m["state"] is not State.READY:
            return False
        if want["channels"] is None:
            return bool(m["to"] == want["agent"])
        return m["channel"] in want["channels"] and m["to"] in (want["agent"], None)

    def held(self, number: int, token: int) -> Fields | None:
        m = self.message(number)
        return m if m and m["token"] == token and m["state"] in (State.CLAIMED, State.READY) else None

    def settle(
        self,
        ticket: tuple[int, int],
        outcome: str,
        detail: str,
        delay: int,
        puts: Sequence[Fields],
        claim_next: Fields | None,
    ) -> tuple[bool, State | None, list[int], list[int] | None]:
        m = self.held(*ticket)
        state, stored = None, []
        if m is not None:
            stored = self.put(puts)
            state = self.end(m, outcome, detail, delay)
        return m is not None, state, stored, None if claim_next is None else self.claim(claim_next)

    def end(self, m: Fields, outcome: str, detail: str, delay: int) -> State:
        if outcome == "retry" and m["deliveries"] < m["most"]:
            m["token"] += 1
            m["error"] = detail
            self.log(m, "retried")
            self.become(m, State.DELAYED if delay else State.READY, self.now + delay if delay else None)
        elif outcome == "returned":
            m["token"] += 1
            m["deliveries"] -= 1
            m["by"] = None
            self.log(m, "returned")
            self.become(m, State.READY)
        else:
            outcome = "dead" if outcome == "retry" else outcome
            if outcome in ("dead", "refused"):
                m["error"] = detail
            self.log(m, outcome)
            self.become(m, State[outcome.upper()])
        return State(m["state"])

    def extend(self, ticket: tuple[int, int], lease: int) -> bool:
        m = self.held(*ticket)
        if m is not None:
            m["state"], m["until"] = State.CLAIMED, self.now + lease
            self.log(m, "extended")
        return m is not None

    def note(self, number: int) -> bool:
        m = self.message(number)
        if m is not None:
            self.log(m, "shown")
        return m is not None

    def abandon(self, number: int) -> None:
        for m in self.messages:
            if m["number"] == number and m["waiter"] and m["state"] is not State.AWAITED:
                m["waiter"] = None
                self.log(m, "abandoned")
            elif m["answer_to"] == number and m["state"] is State.AWAITED:
                self.become(m, State.READY)
                self.log(m, None)

    def bury(self, process: str) -> None:
        """A process is seen to be gone, and the room is swept."""
        for m in list(self.messages):
            if m["state"] is State.CLAIMED and m["owner"] == process:
                m["until"] = self.now
                self.let_time_have(m, self.judged(m), OWNER_GONE)
            if m["waiter"] == process and m["state"] is State.AWAITED:
                self.become(m, State.READY)
                self.log(m, None)
            elif m["waiter"] == process:
                m["waiter"] = None
                self.log(m, "abandoned")
        self.wind()

    def requeue(self, numbers: Iterable[int]) -> list[int]:
        self.wind()
        done = []
        for m in filter(None, map(self.message, dict.fromkeys(numbers))):
            if m["state"] in (State.DEAD, State.REFUSED, State.EXPIRED):
                m.update(token=m["token"] + 1, deliveries=0, error=None, by=None)
                if m["expires"] is not None and m["expires"] <= self.now:
                    m["expires"] = None
                self.become(m, State.READY)
                self.log(m, "requeued")
                done.append(m["number"])
        return done

    def purge(self, states: frozenset[State], limit: int) -> int:
        self.wind()
        gone = [m for m in self.messages if m["state"] in states and m["state"] is not State.CLAIMED][:limit]
        self.messages = [m for m in self.messages if m not in gone]
        return len(gone)

    def cell_write(self, name: str, value: object, expect: int | None) -> bool:
        """`expect` is one of our own versions, 0 for none, None for any."""
        if expect is not None and expect != self.cells.get(name, (0, None))[0]:
            return False
        self.cells.pop(name, None)
        if value is not None:
            self.writes += 1
            self.cells[name] = (self.writes, value)
        return True


def content(draft: Fields) -> tuple[object, ...]:
    """What must be the same when a key is used again."""
    return draft["publish"], None if draft["publish"] else draft["to"], draft["channel"], draft["text"]


#: Moves that are no line in the ledger, and moves that the clock makes, which a reader sees before they are written.
UNWRITTEN = ("due", "unheld", "unblocked")
BY_THE_CLOCK = ("due", "released", "expired", "dead")


def states_after(events: Sequence[str]) -> set[State]:
    """The states in which a message with such a ledger may stand by `states.MOVES`. Raises AssertionError at a step that none allows."""
    assert events[0] == "stored", events
    states = {State.READY, State.DELAYED, State.AWAITED, State.BLOCKED}
    for number, event in enumerate(events[1:], 1):
        states |= _moved(states, UNWRITTEN)
        if event == "extended":
            states = {State.CLAIMED} if states & {State.CLAIMED, State.READY} else set()
        elif event not in NOTES:
            states = _moved(states, (event,))
        assert states, f"no move {event!r} after {list(events[:number])}"
    return states


def may_be_read_as(events: Sequence[str], state: State) -> bool:
    """Whether a message with such a ledger may be shown in that state."""
    states = states_after(events)
    states |= _moved(states, UNWRITTEN)
    return state in states | _moved(states, BY_THE_CLOCK)


def _moved(states: set[State], events: Sequence[str]) -> set[State]:
    return {move.target for move in MOVES if move.event in events and move.sources & states}
