"""The search for an order in which the calls of a history may have happened: Wing and Gong's, with Lowe's memo.

Each call happened at one moment between its beginning and its end. The search goes depth first: of the calls that may
come next (those that began before any other that is left has ended) it takes the one that ended first, asks the
specification for the state after it, and goes back where that is impossible. What it has seen once (the calls that are
done, and the state) it does not try again. Calls that nobody saw return, and what happens by itself, are tried
only where nothing else helps, so the usual history costs one step for each call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from .record import FOREVER
from .specification import HistoryStep

#: So many states of one part are looked at. A part that needs more is not judged, which is told.
MOST_STATES: Final = 300_000


class Specification(Protocol):
    """What may happen to a thing."""

    def beginning(self) -> Any:
        """The state in which it begins."""

    def after(self, state: Any, step: HistoryStep) -> Iterator[tuple[int, Any]]:
        """The states after a call, with the earliest moment of each."""

    def by_itself(self, state: Any) -> Iterator[Any]:
        """The states that it may come to while nobody calls."""


class Place(NamedTuple):
    """How far a search has come."""

    first: int  # all steps before this one are done
    done: int  # which of those from `first` on are done, as bits
    used: frozenset[int]  # which of the unknown ones have taken effect
    state: Any


class SearchResult(NamedTuple):
    """An order was found (`stuck` is None), or no order passes the end of this step."""

    state: Any
    stuck: HistoryStep | None
    undecided: bool = False


class OrderSearch:
    """One part of a history and its specification."""

    def __init__(self, steps: list[HistoryStep], specification: Specification) -> None:
        by_begin = sorted(steps, key=lambda step: (step.begin_ns, step.end_ns))
        self._steps = [step for step in by_begin if not step.unknown]
        self._unknown = [step for step in by_begin if step.unknown]
        self._specification = specification
        self._stuck: HistoryStep | None = None

    def run(self) -> SearchResult:
        start = Place(0, 0, frozenset(), self._specification.beginning())
        if not self._steps:
            return SearchResult(start.state, None)
        seen = {start}
        trail = [self._next(start)]
        while trail:
            place = next(trail[-1], None)
            if place is None:
                trail.pop()
            elif place.first == len(self._steps):
                return SearchResult(place.state, None)
            elif place not in seen:
                if len(seen) > MOST_STATES:
                    return SearchResult(None, self._stuck, undecided=True)
                seen.add(place)
                trail.append(self._next(place))
        return SearchResult(None, self._stuck)

    def _next(self, place: Place) -> Iterator[Place]:
        """Every place that one more step leads to, the likeliest first."""
        open_steps, until_ns = self._open(place)
        for number in open_steps:
            step = self._steps[number]
            for at_ns, state in self._specification.after(place.state, step):
                if at_ns <= step.end_ns:
                    first, done = place.first, place.done | 1 << number - place.first
                    while done & 1:
                        first, done = first + 1, done >> 1
                    yield Place(first, done, place.used, state)
        yield from self._unseen(place, until_ns)

    def _unseen(self, place: Place, until_ns: int) -> Iterator[Place]:
        """Where calls that nobody saw return lead to, and what happens by itself."""
        for number, step in enumerate(self._unknown):
            if step.begin_ns > until_ns:
                break
            if number not in place.used:
                for at_ns, state in self._specification.after(place.state, step):
                    if at_ns <= step.end_ns:
                        yield Place(place.first, place.done, place.used | {number}, state)
        for state in self._specification.by_itself(place.state):
            yield Place(place.first, place.done, place.used, state)

    def _open(self, place: Place) -> tuple[list[int], int]:
        """The steps that may come next, the first to end first, and the moment by which one of them must have happened."""
        until_ns, number, open_steps = FOREVER, place.first, []
        done = place.done
        while number < len(self._steps):
            step = self._steps[number]
            if step.begin_ns > until_ns:
                break
            if not done & 1:
                open_steps.append(number)
                until_ns = min(until_ns, step.end_ns)
            number, done = number + 1, done >> 1
        open_steps = [number for number in open_steps if self._steps[number].begin_ns <= until_ns]
        open_steps.sort(key=lambda number: self._steps[number].end_ns)
        first = self._steps[open_steps[0]]
        if self._stuck is None or first.end_ns > self._stuck.end_ns:
            self._stuck = first
        return open_steps, until_ns
