"""The command line: `postroom COMMAND`.

Agents' hooks start this at every step they take, so it imports only what the command that was called needs:
the table of commands is plain data, the parser is built for one command, and rich is loaded for people alone.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

from postroom import __version__
from postroom.core.system import startup
from postroom.errors import OutcomeUnknown, PostroomError, sentence_of

from . import exit_codes
from .table import COMMANDS, GROUPS, MEANT

#: Modules that files import at their top and few commands use: in this process each is loaded at its first use. Those of
#: the standard library take up to 5 ms of a start; a program that uses Postroom as a library mostly has them loaded.
DEFERRED: Final = (
    "difflib", "random", "shlex", "signal",
    "fnmatch", "gettext", "ipaddress", "ntpath", "platform", "selectors", "textwrap",  # of the standard library's own files
    "postroom.inference", "postroom.room",  # programs in Patchwork may ask no model and send nothing
)  # fmt: skip


def program() -> NoReturn:
    """The whole of the process `postroom`."""
    _fill_closed_streams()
    startup.load_lazily(DEFERRED)
    startup.leave(main())


def _fill_closed_streams() -> None:
    """A stream that the parent process closed (`>&-`) leads nowhere: a room's file must not get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors that can be expected are one sentence on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to fail
    try:
        return _run(words)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # the reader went away, as in `| head`
        write_no_more()
        return exit_codes.BROKEN_PIPE


def write_no_more() -> None:
    """Standard output leads nowhere from here on: not even the interpreter's own flush at its end tries again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except PostroomError as error:
        _report(error, as_json="--json" in words, plain="--plain" in words)
        return exit_codes.code_of(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        _report(PostroomError(f"system error: {error}"), as_json="--json" in words)
        return exit_codes.FAILED


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["hook"] and not {"--help", "-h"} & set(words):
        gate = importlib.import_module("postroom.doors.hook.entry")  # at every step of an agent: no parser, no room
        status: int = gate.main(words[1:])
        return status
    before, name, after = _split(words)
    if name is None or "--help" in before or "-h" in before:
        return _without_command(before)
    if name == "version":
        return _without_command(["--version"])
    if name not in COMMANDS:
        raise exit_codes.UsageError(f"there is no command {name!r}{_near(name)}; `postroom --help` lists them all")
    # argparse costs 9 ms, so even it waits until a command is known
    startup.load_msgspec()
    running = importlib.import_module("postroom.cli.call")
    code: int = running.run(name, before + after)
    return code


def _split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """The options before the command, the command, and what comes after it."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in ("--room", "--as") else 1
    return (words[:place], words[place], words[place + 1 :]) if place < len(words) else (words, None, [])


def _without_command(options: list[str]) -> int:
    if {"--version", "-V", "-v"} & set(options):
        print(f"postroom {__version__}")
        return exit_codes.DONE
    if options and not {"--help", "-h"} & set(options):
        raise exit_codes.UsageError(f"no command was given after {options[-1]!r}; `postroom --help` lists them all")
    print(overview())
    return exit_codes.DONE if options else exit_codes.USAGE


def overview() -> str:
    """Every command and every page of the documents."""
    from . import pages

    lines = ["usage: postroom [--room URL] [--json] [--plain] [--as NAME] COMMAND ...", ""]
    lines.append("Messages between programs and agents that survive crashes.")
    for title, names in GROUPS:
        lines += ["", f"{title}:"]
        lines += [f"  {name:<12} {COMMANDS[name].summary}" for name in names]
    lines += ["", "`postroom COMMAND --help` explains each, with examples.", ""]
    lines += ["Pages that `postroom help TOPIC` prints:"]
    lines += [f"  {line}" for line in _wrapped(topic for topic in pages.topics() if "/" not in topic)]
    lines += ["`postroom help topics` lists all of them with their titles, including parts such as operations/backup."]
    lines += [f"The same pages on the web, once the project is published: {pages.SITE}", ""]
    lines.append("Exit codes: " + " · ".join(f"{code} {meaning}" for code, meaning in exit_codes.MEANING.items()))
    return "\n".join(lines)


def _wrapped(words: Iterable[str]) -> list[str]:
    from textwrap import wrap

    return wrap(" ".join(words), 96, break_on_hyphens=False)


def _near(name: str) -> str:
    if name in MEANT:
        return f"; `postroom {MEANT[name]}` does that"
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _report(error: PostroomError, *, as_json: bool, plain: bool = False) -> None:
    from . import output

    try:
        sys.stdout.flush()
        if as_json:
            about = {"type": type(error).__name__, "message": sentence_of(error)}
            # messages that may have been stored: `postroom receipt ID` tells, once the room answers
            ids = {"ids": list(error.ids)} if isinstance(error, OutcomeUnknown) else {}
            output.document({"error": about | ids})
    except BrokenPipeError:
        raise
    except OSError:  # a full disk: the sentence stands on standard error in any case (tests/cli/test_processes.py)
        write_no_more()
    print(f"postroom: {output.error_text(error, plain=plain)}", file=sys.stderr)
