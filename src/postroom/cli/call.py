"""One call of a command: its arguments, the room it opens, the agent it speaks as, and the closing of both."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

import postroom
from postroom.config import FOLDER
from postroom.errors import RoomError

from . import exits, options
from .commands import COMMANDS

if TYPE_CHECKING:
    from postroom.agent import Agent
    from postroom.room import Room

AGENT_VARIABLE: Final = "POSTROOM_AGENT"
#: The process of `postroom as`: what its program claims by commands ends with it.
OWNER_VARIABLE: Final = "POSTROOM_OWNER"
#: The room's cells that hold its agents begin so.
AGENT_CELLS: Final = "agent/"


def run(name: str, words: list[str]) -> int:
    """Read the words of a command, run it, and close what it opened, however it ends."""
    command = COMMANDS[name]
    module = importlib.import_module(f"postroom.cli.{command.module}")
    function = command.function or name
    parser = options.parser_for(name)
    add_options: Callable[[argparse.ArgumentParser], None] = getattr(module, f"{function}_options")
    add_options(parser)
    args = _parse(parser, words, takes_program=name == "as")
    if args is None:
        return exits.DONE
    step: Callable[[Call], int] = getattr(module, function)
    with Call(args) as call:
        code = step(call)
        sys.stdout.flush()
        return code


def _parse(parser: options.Parser, words: list[str], *, takes_program: bool) -> argparse.Namespace | None:
    """The arguments; None when they asked for help, which was then printed."""
    program: list[str] = []
    if takes_program and "--" in words:
        place = words.index("--")
        words, program = words[:place], words[place + 1 :]
    try:
        args = parser.parse_args(words)
    except SystemExit:  # --help
        return None
    if program:
        args.program = program
    return args


class Call:
    """The arguments of a command, and what they lead to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args: Any = args
        self.json: bool = args.json
        self._room: Room | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._room is not None:
            self._room.close()

    @property
    def room(self) -> Room:
        """The room of this call, which must be there already: only `init` and `demo` make one."""
        if self._room is None:
            self._room = _that_stays(postroom.open(self.args.room, create=False))
        return self._room

    def make_room(self, url: str) -> Room:
        """The room at that address, made if it is not there."""
        self._room = _that_stays(postroom.open(url))
        return self._room

    @property
    def name(self) -> str:
        """Whose name this call speaks in."""
        name = self.maybe_name
        if name is None:
            raise exits.UsageError(f"say who you are: --as NAME, or ${AGENT_VARIABLE}")
        return name

    @property
    def maybe_name(self) -> str | None:
        """Whose name this call speaks in; None when nobody said."""
        return self.args.name or os.environ.get(AGENT_VARIABLE) or None

    @property
    def owner(self) -> str | None:
        """The process with which this call's claims end: that of `postroom as`, where there is one."""
        return os.environ.get(OWNER_VARIABLE) or None

    def agent(self, *, transient: bool = True) -> Agent:
        """The agent of that name. A transient one leaves its claims to the next command of the same name."""
        return self.room.agent(self.name, transient=transient)

    def names_seen(self) -> list[str]:
        """Everybody who was ever in the room, or is subscribed to something there."""
        store = self.room.store
        agents = [cell.name.removeprefix(AGENT_CELLS) for cell in store.cell_scan(AGENT_CELLS)]
        return sorted({*agents, *(subscription.agent for subscription in store.subscriptions())})


def _that_stays(room: Room) -> Room:
    """The room, if other processes can find it: a message in a room that ends with this command was not sent."""
    if room.store.shared:
        return room
    room.close()
    raise RoomError(f"the room {room.url} ends with this command; name one that stays, such as sqlite:{FOLDER}")
