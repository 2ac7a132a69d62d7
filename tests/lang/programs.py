"""Running programs in tests: as real processes with `postroom run`, or a function of theirs inside this process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from postroom.lang.compile.import_hook import load_program_module
from postroom.lang.run.context import Context, Settings
from postroom.lang.runtime import run_in
from postroom.lang.syntax.problems import ProgramProblems
from postroom.lang.syntax.program import ParsedProgram, read_program
from postroom.sessions.worker import Worker

from . import warm

PATIENCE_S = 180.0
SAMPLES = Path(__file__).parent / "samples"
#: What tells a program of the surroundings of whoever runs the tests; and what would let each of a hundred runs compile
#: the whole package anew.
FOREIGN = ("POSTROOM_", "CLAUDE", "CODEX_", "PLUGIN_ROOT", "OLLAMA_HOST", "PYTHONDONTWRITEBYTECODE")


class Ran(NamedTuple):
    """How a run ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        """The result, of a run with --json."""
        return json.loads(self.out.rstrip("\n").split("\n")[-1])["result"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "postroom", *words]


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name == "POSTROOM_PORTABLE" or not name.startswith(FOREIGN)
    }
    return kept | more


def postroom(*words: str | Path, cwd: Path, given: str = "", **more: str) -> Ran:
    """Run a command of the command line as a process of its own."""
    env = environment(TMPDIR=str(cwd), **more)
    code, out, err = warm.run([*map(str, words)], cwd, env, given.encode(), PATIENCE_S)
    return Ran(code, out.decode(errors="surrogateescape"), err.decode(errors="surrogateescape"))


def write(folder: Path, text: str, name: str = "program.pw") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text), encoding="utf-8")
    return path


def load_program(path: str | Path) -> ParsedProgram:
    """A program that can be read; ProgramProblems, with all faults, for any other."""
    program, problems = read_program(path)
    if program is None or problems:
        raise ProgramProblems(problems)
    return program


_numbers = iter(range(10**9))


def function_of(folder: Path, text: str, name: str = "main") -> Callable[..., Any]:
    """A worker or function of a program, to be called in this process, without a session."""
    path = write(folder, text, f"program{next(_numbers)}.pw")
    found = getattr(load_program_module(path), name)
    if not isinstance(found, Worker):
        return lambda *given: run_in(Context("main", Settings()), lambda _self, *more: found(*more), *given)
    body: Callable[..., Any] = found.body  # type: ignore[attr-defined]
    return lambda *given: run_in(Context("main", Settings()), body, *given)


def value_of(folder: Path, expression: str, *given: Any, **settings: Any) -> Any:
    """What an expression gives; `a`, `b`, `c` are the given values."""
    names = ", ".join("abc"[: len(given)])
    text = f"fun main({names}) {{ return {expression} }}\n"
    return function_of(folder, text)(*given)
