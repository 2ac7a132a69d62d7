"""The known name that is nearest to a wrong one, for errors that say what was probably meant.

A module of its own, so that it is deferred: difflib takes longer to load than the settings of a room.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that is most like it; None when none is."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def near_ones(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to three of the known names that are like it, the nearest first."""
    return tuple(difflib.get_close_matches(name, known, n=3, cutoff=0.5))
