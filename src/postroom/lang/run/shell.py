"""Commands: words in, a result out, and never a shell in between.

A command is a list of words, which the program that is started gets as they are. An interpolated value is one word, or
a part of one, whatever it contains: nothing looks at it again. Only text that stands in the source is open to globs and
`~`, and only in words without a value in them. Pipelines, redirections, `&&` and `||` are made here.

    run(command)        `$ cmd`     output goes where ours goes, as it comes; raises CommandFailed
    capture(command)    `$(cmd)`    what it wrote, without the newlines at the end; raises CommandFailed
    test(command)       `($ cmd)`   whether it ended with 0
    lines(command)      `for var x in ($ cmd)`      the lines that it wrote; raises CommandFailed

The code of a pipeline is that of its last command, as in every shell; a program that cannot be started has 127 or 126.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from postroom.lang.syntax.source import shortened
from postroom.lang.values import values
from postroom.lang.values.raised import CommandFailed, CommandTimeout, WrongValue

from .context import current
from .pipeline import PipelineResult, ProgramCommand, Redirect, run_pipeline

#: So many characters of the end of a command's standard error stand in the error's sentence.
_SHOWN_STDERR: Final = 600
_SHOWN_COMMAND: Final = 200
#: Words of shells that are no programs.
_BUILTINS: Final = {
    "cd": "each command runs in the program's folder; `env -C DIR command` and `git -C DIR` run in another one",
    "export": "write NAME=value before the command that needs it",
    **dict.fromkeys(
        ("source", ".", "alias", "set", "unset", "eval", "exec", "exit"), "it is a shell keyword, not a program"
    ),
}


# Commands

#: Commands, the output of each the input of the next.
Pipeline = tuple[ProgramCommand, ...]


class Chain(NamedTuple):
    """Commands that are run one after the other, each depending on how the last one that ran ended: `&&`, `||`.

    All but the first are made only when it is their turn.
    """

    first: ProgramCommand | Pipeline
    others: tuple[tuple[str, Callable[[], ProgramCommand | Pipeline]], ...]


Runnable = ProgramCommand | Pipeline | Chain


def command(
    words: Sequence[str | list[str]], environment: dict[str, str] | None = None, redirects: Sequence[Redirect] = ()
) -> ProgramCommand:
    """A command; words that are lists are several words."""
    flat = [part for given in words for part in (given if isinstance(given, list) else [given])]
    if not flat or not flat[0]:
        raise WrongValue("a command needs a program: its first word is empty")
    return ProgramCommand(flat, environment or {}, tuple(redirects))


def pipeline(*commands: ProgramCommand) -> Pipeline:
    """`a | b | c`."""
    return commands


def chain(first: ProgramCommand | Pipeline, *others: tuple[str, Callable[[], ProgramCommand | Pipeline]]) -> Chain:
    """`a && b || c`."""
    return Chain(first, others)


#: One redirection.
redirect = Redirect


# Running


def run(what: Runnable, given: object = None) -> None:
    """`$ cmd`. After: it ended with 0, and what it wrote is where our output goes. Raises CommandFailed otherwise."""
    _check(_run(what, given, capture=False))


def capture(what: Runnable, given: object = None) -> str:
    """`$(cmd)`: what it wrote to its standard output, without the newlines at the end. Raises CommandFailed."""
    outcome = _check(_run(what, given, capture=True))
    return outcome.output.decode("utf-8", "surrogateescape").rstrip("\n")


def lines(what: Runnable, given: object = None) -> list[str]:
    """The lines that it wrote. Raises CommandFailed."""
    text = capture(what, given)
    return text.split("\n") if text else []


def test(what: Runnable, given: object = None) -> bool:  # noqa: PT028  it is no test of ours
    """`($ cmd)`: whether it ended with 0."""
    outcome = _run(what, given, capture=False)
    if outcome.timed_out:
        _check(outcome)
    if outcome.not_started:
        sys.stderr.write(f"{outcome.not_started}{_hint(outcome)}\n")
    return outcome.code == 0


def last_code() -> int:
    """`$?`: the exit code of the last command; 0 before the first one."""
    return current().last_code


def _run(what: Runnable, given: object, *, capture: bool) -> PipelineResult:
    if isinstance(what, Chain):
        outcome = _run(what.first, given, capture=capture)
        for op, other in what.others:
            if outcome.timed_out:
                break
            if (outcome.code == 0) != (op == "&&"):
                continue  # skipped; the next one looks at the same code
            before = outcome.output
            outcome = _run(other(), None, capture=capture)
            outcome = outcome._replace(output=before + outcome.output)
        return outcome
    commands = (what,) if isinstance(what, ProgramCommand) else what
    context = current()
    raw = None if given is None else values.text(given).encode("utf-8", "surrogateescape")
    timeout_s = context.settings.command_timeout_s
    outcome = run_pipeline(commands, given=raw, capture=capture, timeout_s=timeout_s, guarded=not context.worker)
    context.last_code = outcome.code
    return outcome


def _check(outcome: PipelineResult) -> PipelineResult:
    if outcome.code == 0 and not outcome.timed_out:
        return outcome
    name = shortened(outcome.command, _SHOWN_COMMAND)
    stderr = outcome.errors.decode("utf-8", "backslashreplace").strip()
    end = stderr if len(stderr) <= _SHOWN_STDERR else "..." + stderr[-_SHOWN_STDERR:]
    said = f": {end}" if end else ""
    error: type[CommandFailed] = CommandFailed
    if outcome.timed_out:
        error, how = CommandTimeout, f"was stopped after {outcome.timed_out:g} s{said}"
    elif outcome.not_started:
        how = f"could not be started: {outcome.not_started}{_hint(outcome)}"
    else:
        how = f"failed with {outcome.ending}{said}"
    raise error(f"the command `{name}` {how}", outcome.command, outcome.code, stderr)


def _hint(outcome: PipelineResult) -> str:
    hint = _BUILTINS.get(outcome.command.partition(" ")[0])
    return f" ({hint})" if hint else ""
