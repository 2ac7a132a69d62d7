"""The errors of a running program: what goes wrong while a Patchwork program runs, and where in the program it did.

ProgramError            something went wrong in a program; `place` says where
    Thrown              the program said `throw`; `value` is what it threw
    WrongValue          an operation got values that it has no meaning for
    CommandFailed       a command ended with another code than 0, or could not be started
        CommandTimeout  it ran longer than it may
    NoAnswer            a prompt got no answer, or none of the shape that was asked for
"""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple

from postroom.errors import PostroomError, RoomClosed, SessionEnded, SessionFailed

from .kinds import kind_of

#: Programs are known by how their files end.
SUFFIX: Final = ".pw"
#: A thrown value goes with the traceback, so that it is not lost between processes: on a line that begins so.
_NOTE: Final = "thrown value: "
_MAX_NOTE: Final = 20_000


class SourcePlace(NamedTuple):
    """A place in a program: its file, and line and column counted from 1."""

    file: str
    line: int
    column: int
    function: str = ""

    def __str__(self) -> str:
        return f"{shown_path(self.file)}:{self.line}"


def shown_path(file: str) -> str:
    """A file as people know it: relative to where they are, if it lies there."""
    try:
        near = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if near.startswith(os.pardir) else near


class ProgramError(PostroomError):
    """Something went wrong in a program. `place` is known once the error has left the program's code."""

    #: The name by which a program knows it, in `e.kind`.
    kind: str = ""

    def __init__(self, message: str, kind: str = "") -> None:
        self.message = message
        self.place: SourcePlace | None = None
        self.kind = kind or type(self).__name__
        super().__init__(message)

    def __str__(self) -> str:
        return self.message if self.place is None else f"{self.message} ({self.place})"


class Thrown(ProgramError):
    """A program threw a value. `value` is that value, `type` what kind of value it is."""

    def __init__(self, value: Any, type: str) -> None:
        self.value = value
        self.type = type
        super().__init__(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        note = json.dumps(value, default=str)
        if len(note) <= _MAX_NOTE:
            self.add_note(_NOTE + note)


class WrongValue(ProgramError):
    """An operation got values that it has no meaning for."""


class CommandFailed(ProgramError):
    """A command failed. `command` is it as words, `code` its exit code, `stderr` the end of what it complained."""

    def __init__(self, message: str, command: str, code: int, stderr: str = "") -> None:
        self.command = command
        self.code = code
        self.stderr = stderr
        super().__init__(message)


class CommandTimeout(CommandFailed, TimeoutError):
    """A command ran longer than it may, and was ended."""


class NoAnswer(ProgramError):
    """A prompt got no answer, or none of the shape that was asked for."""


class ErrorValue(dict[str, Any]):
    """An error as `catch e` gives it to a program: an object, which can be thrown again as what it was."""

    error: Exception

    @classmethod
    def of(cls, error: Exception) -> ErrorValue:
        """The object that tells of an error: message, kind, value, type, file, line, and what its kind adds."""
        place = place_of(error.__traceback__)
        failure = getattr(error, "failure", None)
        value, kind = _value_of(error, failure)
        said = cls(
            message=getattr(error, "message", None) or str(error),
            kind=getattr(error, "kind", type(error).__name__),
            value=value,
            type=kind,
            file=shown_path(place.file) if place else None,
            line=place.line if place else None,
        )
        if isinstance(error, CommandFailed):
            said |= {"command": error.command, "code": error.code, "stderr": error.stderr}
        if failure is not None:
            said["worker"] = failure.worker
        said.error = error
        return said


def _value_of(error: Exception, failure: Any) -> tuple[Any, str]:
    """The thrown value that an error tells of, and what kind of value it is; also one thrown in another process."""
    if isinstance(error, Thrown):
        return error.value, error.type
    if failure is not None and failure.kind == Thrown.__name__:
        for line in reversed(failure.stack.splitlines()):
            if line.startswith(_NOTE):
                value = json.loads(line.removeprefix(_NOTE))
                return value, kind_of(value)
    return None, "null"


def place_of(traceback: TracebackType | None) -> SourcePlace | None:
    """The innermost place of a program in a traceback; None when no program is in it."""
    places = places_of(traceback)
    return places[-1] if places else None


def places_of(traceback: TracebackType | None) -> list[SourcePlace]:
    """The places of programs in a traceback, the outermost first."""
    found: list[SourcePlace] = []
    for step in _in_programs(traceback):
        code = step.tb_frame.f_code
        found.append(SourcePlace(code.co_filename, step.tb_lineno, _column(step), code.co_name))
    return found


def _in_programs(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith(SUFFIX):
            yield traceback
        traceback = traceback.tb_next


def _column(traceback: TracebackType) -> int:
    """The column in characters, counted from 1; Python counts bytes from 0."""
    code = traceback.tb_frame.f_code
    positions = list(code.co_positions())
    place = traceback.tb_lasti // 2
    line, _, start, _ = positions[place] if place < len(positions) else (None, None, None, None)
    if line is None or start is None:
        return 1
    return len(linecache.getline(code.co_filename, line).encode()[:start].decode(errors="replace")) + 1


def located(error: Exception) -> Exception:
    """The error as it leaves a program: its sentence tells the file and the line.

    Those that say that the session is over are left as they are: the session's layer knows them by their kind.
    """
    if isinstance(error, SessionFailed | SessionEnded | RoomClosed):
        return error
    if not isinstance(error, ProgramError):
        told = ProgramError(_sentence(error), type(error).__name__)
        told.__traceback__ = error.__traceback__
        told.__cause__ = error if not isinstance(error, PostroomError | OSError) else None
        told.__suppress_context__ = True
        error = told
    if error.place is None:
        error.place = place_of(error.__traceback__)
        for last in [*_in_programs(error.__traceback__)][-1:]:
            last.tb_next = None  # what the runtime did below the program helps nobody
    return error


def _sentence(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "functions call each other too deeply"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
