"""What the commands about Patchwork programs share: reading one, and telling what is wrong with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from postroom.cli import exit_codes, output
from postroom.errors import PostroomError

if TYPE_CHECKING:
    from postroom.lang.syntax.program import ParsedProgram


def read_program(file: str) -> ParsedProgram:
    """The program of a file and what it imports, read and checked. Raises ProgramProblems; warnings go to the standard error."""
    from postroom.lang.check.check import checked_program

    try:
        program, warnings = checked_program(file)
    except OSError as error:
        raise exit_codes.UsageError(f"the program {file} cannot be read: {error.strerror}") from None
    for warning in warnings:
        write_error(warning.text())
    return program


def report(error: PostroomError, *, as_json: bool) -> int:
    """Say what went wrong, with the place in the program. Returns the exit code."""
    from postroom.lang.compile.entries import WrongCall
    from postroom.lang.run.report import document_of, told
    from postroom.lang.syntax.problems import ProgramProblems

    sys.stdout.flush()
    if as_json:
        output.document({"error": document_of(error)})
    write_error(told(error))
    return exit_codes.USAGE if isinstance(error, WrongCall | ProgramProblems) else exit_codes.code_of(error)


def write_error(text: str) -> None:
    """Lines for the standard error, with what others wrote made harmless."""
    for line in text.split("\n"):
        print(output.visible(line, keep="\t"), file=sys.stderr)
