"""The parsers of the command line: the options that every command takes, and how values are read."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from postroom.core import near as near_names
from postroom.core.clock import span_s

from .exit_codes import UsageError
from .table import COMMANDS

#: Stores keep numbers in 64 bits.
MAX_DIGITS: Final = 18
#: The limit of a list that is shown whole.
NO_LIMIT: Final = 10**MAX_DIGITS - 1


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help at a fixed width: asking the terminal for its own costs an import at every start, with or without help."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


class CommandParser(argparse.ArgumentParser):
    """The parser of one command. Errors are raised, so that one place writes them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}{self._near(message)} (see `{self.prog} --help`)")

    def _near(self, message: str) -> str:
        """What was probably meant by an option or a word that argparse does not know."""
        said, _, listed = message.partition(" (choose from ")
        if "invalid choice: " in said:
            wrong, known = [said.rpartition(": ")[2].strip("'\"")], listed.rstrip(")").replace("'", "").split(", ")
        else:
            words = message.partition("unrecognized arguments: ")[2].split()
            wrong = [word.partition("=")[0] for word in words if word.startswith("-")]
            known = list(self._option_string_actions)
        near = [each for each in (near_names.nearest(word, known) for word in wrong) if each]
        return f"; did you mean {' and '.join(near)}?" if near else ""


def parser_for(name: str) -> CommandParser:
    """The parser of one command, without the command's own options."""
    command = COMMANDS[name]
    examples = "\n".join(f"  {line}" for line in command.examples)
    parser = CommandParser(
        prog=f"postroom {name}",
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=f"example{'s' * (len(command.examples) > 1)}:\n{examples}",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    common = parser.add_argument_group("for every command")
    common.add_argument(
        "--room", metavar="URL", help="the room (default: $POSTROOM_URL, or the nearest .postroom above)"
    )
    flag(common, "--json", "write JSON: one document, or one per line for streams")
    if command.quotes is not None:
        flag(common, "--plain", "in a pipe: no fence around text from other agents")
    common.add_argument("--as", dest="name", metavar="NAME", help="the agent to act as (default: $POSTROOM_AGENT)")
    return parser


def command_of(name: str) -> tuple[CommandParser, Callable[[Any], int | None]]:
    """The whole parser of one command, and the function that runs it, which returns an exit code; None is DONE."""
    command = COMMANDS[name]
    module = importlib.import_module(f"postroom.cli.commands.{command.module}")
    function = command.function or name
    parser = parser_for(name)
    getattr(module, f"{function}_options", lambda _: None)(parser)  # some have none of their own
    return parser, getattr(module, function)


def flag(parser: argparse._ActionsContainer, name: str, help: str) -> None:
    """An option without a value."""
    parser.add_argument(name, action="store_true", help=help)


def span(parser: argparse.ArgumentParser, name: str, help: str, default: float | None = None, **more: Any) -> None:
    """An option whose value is a span of time."""
    parser.add_argument(name, type=seconds, default=default, help=help, **{"metavar": "S", **more})


def listing(parser: argparse.ArgumentParser, default: int | None, help: str = "", action: str = "") -> None:
    """How much of a list is shown: `limit`, None for all of it. `action` is the one that lists, where there are others."""
    group = parser.add_mutually_exclusive_group()
    help = help or f"{action}at most N (default: {default or 'all'})"
    group.add_argument("--limit", type=count, default=default, metavar="N", help=help)
    group.add_argument("--all", dest="limit", action="store_const", const=None, help=f"{action}all of them")


def check_text(values: Iterable[object]) -> None:
    """Raise UsageError that names an argument which is not UTF-8 text: no room could keep it, nor JSON show it."""
    for value in values:
        if isinstance(value, str) and not is_text(value):
            raise UsageError(f"the argument {value!r} is not UTF-8 text")


def is_text(value: str) -> bool:
    """Whether a text from the system was UTF-8: Python keeps other bytes as surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


def path_of(text: str) -> Path:
    """A path that may begin with a home folder. UsageError when nobody knows it."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text!r} begins with an unknown home folder; write the full path") from None


def seconds(text: str) -> float:
    """A span of time: a number of seconds, or 10s, 5m, 2h, 1d."""
    value = span_s(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a span of time; write seconds, or 10s, 5m, 2h, 1d")
    return value


def count(text: str) -> int:
    """A whole number above zero."""
    if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero of at most {MAX_DIGITS} digits")
    return int(text)


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def payload_arguments(parser: argparse.ArgumentParser) -> None:
    """PAYLOAD, and how to send text that looks like JSON."""
    parser.add_argument(
        "payload", metavar="PAYLOAD", help='a JSON object; `-` to read it from stdin; other text becomes {"text": ...}'
    )
    flag(parser, "--text", "PAYLOAD is plain text, even if it looks like JSON")
    attach = (
        "keep a copy of a file in the room, and put a reference to it into PAYLOAD's `attachments`; may be repeated"
    )
    parser.add_argument("--attach", action="append", metavar="FILE", help=attach)


def payload_of(text: str, *, plain: bool) -> dict[str, object]:
    """The payload that was written: a JSON object, or text. Raises UsageError for a broken object."""
    if text == "-":
        text = _read_stdin()
    if plain or not text.lstrip().startswith("{"):
        return {"text": text}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise UsageError(
            f"PAYLOAD begins with a brace but is not a JSON object ({error}); add --text to send it as plain text"
        ) from None
    assert isinstance(value, dict)
    return value


def _read_stdin() -> str:
    raw = sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else sys.stdin.read().encode()
    try:
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text ({error.reason} at byte {error.start})") from None
