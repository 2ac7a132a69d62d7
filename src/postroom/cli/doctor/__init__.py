"""The checks of `postroom doctor`: each says what it found, whether that is good, and what to do if it is not.

`machine.py` looks at the machine and at the place of the room, `room.py` asks the room, `nats.py` its servers, and `doors.py`
the agent programs. None of them changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"

#: How many of a kind are named.
NAMED: Final = 3


class Check(NamedTuple):
    """One thing that was looked at: ok, warn or fail, what was found, and what to do."""

    check: str
    verdict: str
    says: str
    advice: str = ""


def some(things: Iterable[object]) -> str:
    """The first few of them, and how many there are beyond."""
    texts = [str(thing) for thing in things]
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")
