"""Near names (difflib) for a recipient that was never seen in a room, or some names that are there."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from postroom.core.untrusted import is_plain, quoted

#: At most so many names are told.
_MAX_NAMES = 10


def never_seen(to: str, names: Sequence[str], if_new: str, *, any_name: bool = False) -> str:
    """The sentence; only plain names stand in it unless a person reads it. `if_new` is what to do about a new one."""
    near = get_close_matches(to, names, n=3, cutoff=0.5)
    told = [quoted(name) for name in near or names if any_name or is_plain(name)][:_MAX_NAMES]
    hint = f"{'similar names' if near else 'known names'}: {', '.join(told)}; " if told else ""
    return f"no agent called {to!r} was ever seen in this room; nothing was sent ({hint}{if_new})"
