"""Whether a claim passed over a message that it should have given.

Order is a promise about many messages, so it is judged apart from their single lives. A message is *surely ready* from
the return of its send (or of the retry that put it back) to the beginning of the claim that took it. A claim during all
of which it was surely ready, and that asked for it, gave it, or something better: of a higher priority, or of the same
and not surely sent later.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from .record import RecordedCall
from .specification import Sent

Queue = tuple[str | None, str]  # the agent or None, and the channel


class ReadySpan(NamedTuple):
    """From when to when a message was surely ready."""

    begin_ns: int
    end_ns: int
    sent: Sent


class TakenMessage(NamedTuple):
    """What a claim gave from one queue; None where it would have had room for one more."""

    call: RecordedCall
    sent: Sent | None


def sent_before(one: Sent, other: Sent) -> bool:
    """Whether it was surely sent first."""
    return one.call.end_ns < other.call.begin_ns or (one.call is other.call and one.place < other.place)


def passed_over(ready: list[ReadySpan], taken: list[TakenMessage]) -> Iterator[tuple[TakenMessage, ReadySpan]]:
    """The claims of one queue that gave less than they should have, each with a message that was there all the time."""
    coming = iter(sorted(ready))
    upcoming = next(coming, None)
    waiting: dict[int, list[tuple[int, int, ReadySpan]]] = defaultdict(list)  # by priority, first sent first
    number = 0
    for claim in sorted(taken, key=lambda claim: claim.call.begin_ns):
        while upcoming is not None and upcoming.begin_ns <= claim.call.begin_ns:
            number += 1
            heapq.heappush(waiting[upcoming.sent.priority], (upcoming.sent.call.end_ns, number, upcoming))
            upcoming = next(coming, None)
        for priority, heap in waiting.items():
            if claim.sent is None or priority >= claim.sent.priority:
                found = _there_all_the_time(heap, claim)
                if found is not None and (
                    claim.sent is None or priority > claim.sent.priority or sent_before(found.sent, claim.sent)
                ):
                    yield claim, found


def _there_all_the_time(heap: list[tuple[int, int, ReadySpan]], claim: TakenMessage) -> ReadySpan | None:
    """The first sent of those that were ready from before the claim began until after it returned."""
    aside = []
    found = None
    while heap and found is None:
        end_ns = heap[0][2].end_ns
        if end_ns > claim.call.end_ns:
            found = heap[0][2]
        elif end_ns > claim.call.begin_ns:
            aside.append(heapq.heappop(heap))
        else:
            heapq.heappop(heap)  # it was taken before; later claims begin later still
    for each in aside:
        heapq.heappush(heap, each)
    return found
