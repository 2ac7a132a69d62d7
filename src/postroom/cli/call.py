"""One call of a command: its arguments, the room it opens, the agent it speaks as, and the closing of both."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

import postroom
from postroom.core.config import FOLDER, shown_address
from postroom.errors import OutcomeUnknown, RoomError, RoomUnreachable
from postroom.mail import handles, tokens

from . import exit_codes, options, output
from .table import COMMANDS, Command

if TYPE_CHECKING:
    from postroom.core.message import Message
    from postroom.mail.agent import Agent
    from postroom.room import Room

#: The name of this door in the record of refusals.
DOOR: Final = "command line"
AGENT_VARIABLE: Final = "POSTROOM_AGENT"
#: Stands for the newest message; `Invocation.message_id` says which.
LAST: Final = "@last"
ID_HELP: Final = "a message's id or its short handle, or @last"
_ID_LENGTH: Final = 36
#: The process of `postroom as`: what its program claims by commands ends with it.
OWNER_VARIABLE: Final = "POSTROOM_OWNER"
#: Known here too: a call without a token, in a room without tokens, does not load the module that checks them.
TOKEN_VARIABLES: Final = ("POSTROOM_TOKEN", "POSTROOM_TOKEN_FILE")
TOKEN_CELLS: Final = "token/"  # noqa: S105


def run(name: str, words: list[str]) -> int:
    """Read the words of a command, run it, and close what it opened, however it ends."""
    parser, step = options.command_of(name)
    args = _parse(parser, words, takes_program=name == "as")
    if args is None:
        return exit_codes.DONE
    with Invocation(args) as call, output.fence_in_pipes(wanted=_quotes(COMMANDS[name], args)):
        code = step(call) or exit_codes.DONE
        sys.stdout.flush()
        return code


def _quotes(command: Command, args: argparse.Namespace) -> bool:
    """Whether the command's output is others' words, and the reader may be a model: so unless told otherwise."""
    if command.quotes is None or args.json or args.plain:
        return False
    return not command.quotes or args.action in command.quotes


def _parse(parser: options.CommandParser, words: list[str], *, takes_program: bool) -> argparse.Namespace | None:
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
    for name, value in vars(args).items():
        if name != "program":  # which may work on files of any name
            options.check_text(value if isinstance(value, list) else [value])
    return args


class Invocation:
    """The arguments of a command, and what they lead to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args: Any = args
        self.json: bool = args.json
        self._room: Room | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._room is None:
            return
        if kind is not None and issubclass(kind, (RoomUnreachable, OutcomeUnknown)):
            # a room that did not answer would be waited for once more, to say goodbye (tests/cli/test_nats.py)
            self._room.store.close()
        self._room.close()

    def tell(self, document: object, *lines: str, write: Callable[[str], None] = output.write) -> int:
        """Write the result of the command: a document with --json, else lines, made harmless. Returns DONE."""
        if self.json:
            output.document(document)
        else:
            for line in lines:
                write(output.visible(line))
        return exit_codes.DONE

    def tell_rows(
        self, documents: Iterable[object], columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str
    ) -> None:
        """Write a list: its documents with --json, else its rows as a table. The other one is not gone through."""
        if self.json:
            output.document(list(documents))
        else:
            output.table(columns, rows, empty)

    def tell_count(self, shown: int, total: int) -> None:
        """Say how many a list has: to a person always, to a script when it got only some of them.

        To scripts on standard error: a JSON list stays a list (tests/cli/test_lists.py).
        """
        if shown < total:
            output.note(f"{shown} of {total} are shown; use --all, or a larger --limit N, for more")
        elif total and not self.json and sys.stdout.isatty():
            output.write(f"{total} in all")

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

    def take_room(self, room: Room) -> Room:
        """Use a room that the command has opened itself; it is closed with the call."""
        self._room = _that_stays(room)
        return room

    @property
    def name(self) -> str:
        """Whose name this call speaks in."""
        name = self.maybe_name
        if name is None:
            raise exit_codes.UsageError(f"say who you are: --as NAME, or ${AGENT_VARIABLE}")
        return name

    @property
    def maybe_name(self) -> str | None:
        """Whose name this call speaks in; None when nobody said. In a room with tokens it is the token's."""
        if self.credential is not None:
            return self.credential.agent
        return self.said_name

    @property
    def said_name(self) -> str | None:
        """The name that was given, proved or not: for looking alone."""
        return self.args.name or os.environ.get(AGENT_VARIABLE) or None

    @cached_property
    def credential(self) -> tokens.Credential | None:
        """The proof of the token in the environment; None in a room without tokens. Raises IdentityRefused.

        A call that speaks as the holder of another one, which was checked already, is given that instead.
        """
        if any(os.environ.get(name) for name in TOKEN_VARIABLES) or self.room.store.cell_scan(TOKEN_CELLS):
            return tokens.prove(self.room.gateway, self.said_name, tokens.token_in(os.environ), DOOR)
        return None

    def must_be_person(self, deed: str, unless: Collection[str | None] = ()) -> None:
        """In a room with tokens, raise IdentityRefused unless a person's token (or one of those agents') does this."""
        held = self.credential
        if held is not None:
            tokens.must_be_person(self.room.gateway, held.agent, DOOR, deed, human=held.human, unless=unless)

    @property
    def lane(self) -> str:
        """The lane of what this call sends: "human" when a person's token says so."""
        return "agent" if self.credential is None else self.credential.lane

    def cause(self, to: str | None) -> Message | None:
        """The message because of which this call sends one: the claim that its agent holds at this moment."""
        from postroom.mail.presence import held_cause  # needs the room, which not every command does

        return held_cause(self.room.gateway, self.name, to)

    @property
    def again(self) -> str:
        """The options by which another command speaks as the same agent in the same room, as text to show."""
        room = f" --room {shown_address(self.args.room)}" if self.args.room else ""
        return f"--as {output.visible(self.name + room)}"

    @property
    def owner(self) -> str | None:
        """The process with which this call's claims end: that of `postroom as`, where there is one."""
        return os.environ.get(OWNER_VARIABLE) or None

    def agent(self, *, transient: bool = True) -> Agent:
        """The agent of that name. A transient one leaves its claims to the next command of the same name."""
        return self.room.agent(self.name, transient=transient)

    def message_id(self, text: str, *, held: bool = False) -> str:
        """The id of the message that a command was given: an id, a handle, or @last. Raises UnknownMessage.

        @last is the newest message of the room; in somebody's name, the newest that this agent sent or claimed; for a
        command that settles (`held`), the newest that it holds.
        """
        if text == LAST:
            return handles.newest(self.room.store, self.name if held else self.said_name, held=held)
        return text if len(text) == _ID_LENGTH and not text.isupper() else handles.id_of_handle(self.room.store, text)


def _that_stays(room: Room) -> Room:
    """The room, if other processes can find it: a message in a room that ends with this command was not sent."""
    if room.store.shared:
        return room
    room.close()
    raise RoomError(
        f"the room {room.url} exists only while this command runs; name a lasting one, such as sqlite:{FOLDER}"
    )
