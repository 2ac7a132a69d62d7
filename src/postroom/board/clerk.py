"""The clerk: applies mail that was left for the board by hand, while the programs here only receive, or work.

Programs that look at the board find its mail applied. Agents that only read files do not look: they wait for
`board/claims.json` to name them, and need a process that looks for them. A thread runs only in processes of rooms in
files, from the first such mail on; it sleeps until the store hears of more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from postroom.core.chore import Chore
from postroom.core.config import SAFETY_LOOK_S
from postroom.errors import ROOM_IS_OVER, PostroomError
from postroom.mail.gateway import Gateway


class Clerk:
    """Looks at the board of one room whenever the store says that mail was left for it."""

    def __init__(self, gateway: Gateway, look: Callable[[], object]) -> None:
        """`look` looks at the board, and must not keep its room."""
        self._look = look
        #: Whether mail came that was not looked at yet.
        self._due = False
        self._chore = Chore("postroom clerk", partial(_round, weakref.ref(self)), gateway.clock)
        gateway.store.board_mail_came = partial(_hear, weakref.ref(self))
        gateway.at_close(self.close)

    def hear(self) -> None:
        """Mail was left for the board."""
        self._due = True
        self._chore.nudge()

    def look(self) -> None:
        """Apply what came."""
        if self._due:
            self._due = False
            try:
                self._look()
            except BaseException:
                self._due = True
                raise

    def close(self) -> None:
        """The thread is over when this returns. What a program took in that ends at once is applied here."""
        self._chore.close()
        with suppress(PostroomError):  # it stays, and the next look at the board applies it
            self.look()

    def __del__(self) -> None:
        try:  # noqa: SIM105  suppress is gone by then
            self._chore.close(0)
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass


def _hear(known: weakref.ref[Clerk]) -> None:
    clerk = known()
    if clerk is not None:
        clerk.hear()


def _round(known: weakref.ref[Clerk]) -> float | None:
    """What the thread does: it knows the room only while it looks. A room that is busy now is looked at again."""
    clerk = known()
    try:
        if clerk is not None:
            clerk.look()
    except ROOM_IS_OVER:
        raise
    except PostroomError:
        return SAFETY_LOOK_S
    return None
