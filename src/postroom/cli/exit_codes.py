"""The exit codes, and which error ends with which."""

from __future__ import annotations

from typing import Final

from postroom import errors
from postroom.errors import PostroomError

DONE: Final = 0
FAILED: Final = 1  # the operation failed: refused, not held any more, the one asked is gone
USAGE: Final = 2  # the command was not written as it must be
NOTHING: Final = 3  # nothing there, or time ran out
NO_ROOM: Final = 4  # the room cannot be found or reached
SESSION_FAILED: Final = 5
RESERVED: Final = 6  # the git hook stops a commit at this code alone, so nothing else may end with it
OUTCOME_UNKNOWN: Final = 7  # it may have happened: a script repeats it or looks, and does not take it for refused
INTERRUPTED: Final = 130  # Ctrl-C, as shells count it
SIGTERM: Final = 15  # everywhere; the module `signal` takes a millisecond to load
BROKEN_PIPE: Final = 141  # the reader of our output went away

MEANING: Final = {
    DONE: "done",
    FAILED: "the operation failed",
    USAGE: "wrong usage",
    NOTHING: "nothing found, or timed out",
    NO_ROOM: "the room cannot be found or reached",
    SESSION_FAILED: "the session failed",
    RESERVED: "others have reserved the files",
    OUTCOME_UNKNOWN: "may or may not have happened",
}


class UsageError(PostroomError):
    """The command was not written as it must be."""


class NotStarted(PostroomError):
    """A program could not be started. `exit_code` is what a shell would have said."""

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


#: The first line that fits decides; whatever is not named here is a failed operation.
_CODE_OF: Final = (
    ((errors.TooManyHops, errors.RoomBusy), FAILED),
    ((errors.OutcomeUnknown,), OUTCOME_UNKNOWN),
    ((errors.InvalidMessage, UsageError), USAGE),
    ((errors.SessionFailed,), SESSION_FAILED),
    ((errors.UnknownMessage, errors.UnknownSession, errors.UnknownTask, errors.UnknownGroup, errors.NoMail), NOTHING),
    ((errors.NotAcked, errors.AskTimeout), NOTHING),
    ((errors.RoomError,), NO_ROOM),
)


def after_signal(number: int) -> int:
    """The exit code of a server that a signal ended, or none (0): SIGTERM is how it is meant to end."""
    return DONE if number in (0, SIGTERM) else 128 + number


def code_of(error: PostroomError) -> int:
    """The exit code that an error ends with."""
    if isinstance(error, NotStarted):
        return error.exit_code
    return next((code for kinds, code in _CODE_OF if isinstance(error, kinds)), FAILED)
