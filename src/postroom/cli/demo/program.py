"""The Patchwork program of `postroom demo`: three workers and their mailboxes, shown with the lines that do it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from postroom.cli import output
from postroom.lang.check.check import checked_program
from postroom.lang.run.context import Settings
from postroom.lang.run.run import Run
from postroom.room import Room

#: The same as examples/patchwork/message_demo.pw, which is not installed (tests/lang/test_demo.py).
PROGRAM: Final = Path(__file__).with_name("message_demo.pw")
EXPECTED: Final = {
    "results": [{"file": f"part-{number}.txt", "lines": number * 10} for number in (1, 2, 3)],
    "done": 3,
    "heard": 3,
}
_SHOWN: Final = re.compile(r"^worker |self\.|\$[ (]")


def play(room: Room, tell: Callable[[str], None], *, quiet: bool) -> Any:
    """Run the program in a room, and show what it does. Returns its result."""
    program, _ = checked_program(PROGRAM)
    tell("A Patchwork program: three workers, each in its own process, and the mailboxes between them.")
    if not quiet:
        output.write("\n".join(source_lines(PROGRAM.read_text(encoding="utf-8"))) + "\n")
    began_ns = room.clock.steady_ns()
    result = Run(program, Settings(show=not quiet), room.url.with_secrets()).start(None, [])
    took_s = (room.clock.steady_ns() - began_ns) / 1e9
    lines = ", ".join(f"{found['file']} {found['lines']}" for found in result["results"])
    tell(f"It ran ({took_s:.1f} s): the analyzer counted lines ({lines}), the reporter was told about each.")
    return result


def source_lines(text: str) -> list[str]:
    """The lines of a program that start workers, send, receive and run commands, with their numbers."""
    return [
        f"   {number:>3} | {output.visible(line)}"
        for number, line in enumerate(text.splitlines(), 1)
        if _SHOWN.search(line) and not line.lstrip().startswith("#")
    ]
