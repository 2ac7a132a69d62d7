"""Whether a program really goes wrong: it is run, with its workers, in a room in memory, and its result compared.

What the checks say plays no part in this.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from postroom.lang.run.context import Settings
from postroom.lang.run.run import Run

from .programs import load_program

ANSWERS = {
    "review": (
        '{"worker": "writer", "kind": "think", "answer": "a draft"}\n'
        '{"worker": "writer", "kind": "think", "answer": "a better draft"}\n'
        '{"worker": "reader", "kind": "ask", "answer": "shorter"}\n'
        '{"worker": "reader", "kind": "ask", "answer": "yes"}\n'
    ),
    "historian": (
        '{"worker": "analyst", "kind": "think", "answer": "{\\"steps\\": [{\\"message\\": \\"Add a\\", \\"files\\": '
        '[\\"a.txt\\"]}, {\\"message\\": \\"Drop old\\", \\"files\\": [\\"old.txt\\"]}]}"}\n'
    ),
}
CALLS: dict[str, tuple[str | None, list[str]]] = {
    "message_demo": (None, []),
    "coordinator": (None, ["target=text.txt"]),
    "many_messages": (None, ["jobs=4"]),
    "pipeline": (None, ["count=3"]),
    "map_reduce": (None, ["folder=texts"]),
    "review": (None, ["topic=mail"]),
    "06_plugin": ("run", ["count=2"]),
    "historian": ("rewrite", ["branch=feature", "base=main"]),
}


def result_of(name: str, text: str, folder: Path) -> Any:
    """The result of a program, run in a folder of its own; the error that it ended with, in words that begin with "!".

    Its workers wait for ever: those that all wait for each other are told so by the session, as a deadlock.
    """
    folder.mkdir(parents=True)
    surroundings(name, folder)
    program = folder / "program.pw"
    program.write_text(re.sub(r"receive\(\d*\)", "receive()", text), encoding="utf-8")
    replay = folder / "answers.jsonl"
    replay.write_text(ANSWERS.get(name, ""), encoding="utf-8")
    worker, words = CALLS[name]
    with inside(folder):
        try:
            settings = Settings(replay=str(replay) if name in ANSWERS else None)
            return Run(load_program(program), settings, "memory:").start(worker, words)
        except Exception as error:
            return f"! {type(error).__name__}: {error}"


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def surroundings(name: str, folder: Path) -> None:
    """The files that a program works on."""
    (folder / "texts").mkdir()
    (folder / "texts" / "one.txt").write_text("a b a")
    (folder / "texts" / "two.txt").write_text("a c")
    (folder / "text.txt").write_text("some words here")
    if name == "historian":
        for command in GIT:
            subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True, env=GIT_ENVIRONMENT)
            if command[:2] == ["switch", "-q"]:
                (folder / "a.txt").write_text("new\n")
                (folder / "old.txt").unlink()
            elif command[0] == "init":
                (folder / "old.txt").write_text("old\n")


GIT = [
    ["init", "-q", "-b", "main"],
    ["config", "user.email", "a@example.org"],
    ["config", "user.name", "A"],
    ["add", "old.txt"],
    ["commit", "-q", "-m", "start"],
    ["switch", "-q", "-c", "feature"],
    ["add", "a.txt", "old.txt"],
    ["commit", "-q", "-m", "wip"],
]
GIT_ENVIRONMENT = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
