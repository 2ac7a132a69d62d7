"""Methods of a store that leave no transaction open, whatever ends them.

The handler of a signal (Ctrl-C, an alarm) may raise between any two instructions of Python: also when a `with` has not quite
begun, or is about to end. A transaction that stays open then locks everybody else out, and what this thread writes next
goes into it, to be lost with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from postroom.stores.contract import in_the_middle

from .file import SqliteFile


class _FileStore(Protocol):
    """Whoever keeps a room in a file."""

    _file: SqliteFile


_K = TypeVar("_K", bound=_FileStore)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def whole(method: Callable[Concatenate[_K, _P], _T]) -> Callable[Concatenate[_K, _P], _T]:
    """Let nothing of an earlier step be open when the method begins, and nothing of its own when it raised.

    tests/faults/test_interrupts.py interrupts steps at every moment at which they can be.
    """

    @wraps(method)
    def run(self: _K, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._file.left_open():
            if _is_within_another(self):  # it would only be done when that is, and undone with it
                raise in_the_middle()
            self._file.tidy_up()  # who was interrupted while it tidied up itself has left this
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self._file.tidy_up()
            raise

    return run


_CODE = whole(lambda _: None).__code__


def _is_within_another(keeper: _FileStore) -> bool:
    """Whether this thread is in the middle of another step, whose transaction this is: a signal's handler, or what is
    collected, may use the room, too.
    """
    frame = sys._getframe(1).f_back  # noqa: SLF001  (inspect, which has the same, takes long to load)
    while frame is not None:
        if frame.f_code is _CODE and frame.f_locals["self"] is keeper:
            return True
        frame = frame.f_back
    return False
