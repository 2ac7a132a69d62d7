"""Commands as data: words, environment, redirections; several of them in a pipeline or a chain."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple


class Redirect(NamedTuple):
    """`op` is one of > >> < <<< &> &>> >&; see `nodes.ShellRedirect`."""

    op: str
    fd: int
    target: str | None = None
    to_fd: int | None = None


class ProgramCommand(NamedTuple):
    """One program to start: its words, what is added to its environment, its redirections in order."""

    words: list[str]
    environment: dict[str, str]
    redirects: tuple[Redirect, ...]

    def __str__(self) -> str:
        before = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*before, shlex.join(self.words)])


class Pipeline(NamedTuple):
    """Commands, the output of each the input of the next."""

    commands: tuple[ProgramCommand, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.commands))


class Chain(NamedTuple):
    """Commands that are run one after the other, each depending on how the last one that ran ended: `&&`, `||`.

    All but the first are made only when it is their turn.
    """

    first: ProgramCommand | Pipeline
    others: tuple[tuple[str, Callable[[], ProgramCommand | Pipeline]], ...]


Runnable = ProgramCommand | Pipeline | Chain
