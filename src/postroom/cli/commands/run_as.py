"""`postroom as NAME -- COMMAND...`: run any program as an agent, and tell the room when it ends."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from postroom.board.actions import role_of
from postroom.cli import exit_codes, options, output
from postroom.cli.call import AGENT_VARIABLE, DOOR, OWNER_VARIABLE, TOKEN_VARIABLES, Invocation
from postroom.cli.commands import acp
from postroom.core import trust
from postroom.core.config import URL_VARIABLE, place_of
from postroom.mail import tokens
from postroom.room import Room

#: The role of the program: lead or worker.
ROLE_VARIABLE: Final = "POSTROOM_ROLE"
#: The room's cells with the checkout of each worker, and with the leads.
LAYOUT_CELL: Final = "layout"
LEADS_CELL: Final = "board-lead"

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
#: Handed on to the program; those of the first line the terminal sends to it by itself.
FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
PASSED_ON: Final = (*FROM_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_as_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "postroom as [-h] [--room URL] [--here] [--acp] NAME -- COMMAND..."
    options.flag(parser, "--here", "start it here, even if the agent has its own worktree")
    hosted = "COMMAND speaks the Agent Client Protocol: hold its session, show it, and wake it when mail comes"
    options.flag(parser, "--acp", hosted)
    parser.add_argument("--person", metavar="P", help="with --acp: who decides what it may do (default: any person)")
    parser.add_argument("--login", metavar="WAY", help="with --acp: log in first, in a way that the program offers")
    parser.add_argument("agent", metavar="NAME", help="the agent that the program acts as")
    parser.add_argument("program", metavar="COMMAND", nargs="*", help="the program and its arguments")


def run_as(call: Invocation) -> int:
    args = call.args
    if not args.program:
        raise exit_codes.UsageError("name the program to run: postroom as NAME -- COMMAND...")
    args.name = args.agent
    room = call.room
    if args.acp:
        trust.require_allowed(room.url.with_secrets())  # the agent reads its mail through our MCP server, which asks
    if trust.judge_url(room.url).why:
        what = place_of(room.url) or room.url.without_secrets()
        output.note(f"hooks and MCP servers ignore this room until you allow it: postroom allow {what}")
    with _token_for(call, args.agent) as token:
        return _run_with(call, room, {**os.environ, **token})


@contextmanager
def _token_for(call: Invocation, name: str) -> Iterator[dict[str, str]]:
    """The token to add to the program's environment: none, or one for this run where a person starts another agent."""
    if not any(os.environ.get(variable) for variable in TOKEN_VARIABLES):
        yield {}  # whether the room asks for one is seen when the agent is
        return
    gateway = call.room.gateway
    held = tokens.prove(gateway, None, tokens.token_in(os.environ), DOOR)
    if held is None or not held.human or held.agent == name:
        yield {}
        return
    made = tokens.add_token(gateway, name)
    call.credential = proved = tokens.credential_of(gateway, made)
    try:
        yield {tokens.TOKEN_VARIABLE: made}
    finally:
        tokens.revoke_tokens(gateway, name, token_id=proved.token_id)


def _run_with(call: Invocation, room: Room, environment: dict[str, str]) -> int:
    args = call.args
    environment |= {
        URL_VARIABLE: room.url.with_secrets(),
        AGENT_VARIABLE: args.agent,
        ROLE_VARIABLE: role_of(args.agent, leads(room)),
        OWNER_VARIABLE: room.gateway.process,  # what the program claims at the board ends with this process
    }
    folder = None if args.here else _checkout(room, args.agent)
    room.connect(call.name)  # until the room is closed, which is when the program has ended
    call.agent().heartbeat(current_task=output.visible(" ".join(args.program))[:60])
    if args.acp:
        return acp.host_agent(call, environment, folder or os.getcwd())
    return _run(args.program, environment, folder)


def _checkout(room: Room, name: str) -> str | None:
    """The agent's own worktree, where a layout has made one; None to stay here."""
    cell = room.store.cell_read(LAYOUT_CELL)
    place = cell.value["worktrees"].get(name) if cell is not None else None
    if place is None or not os.path.isdir(place) or os.path.commonpath([place, os.getcwd()]) == place:
        return None
    output.note(f"{name} works in {place}")
    return str(place)


def leads(room: Room) -> list[str]:
    """Agents that were named as the lead of a task."""
    cell = room.store.cell_read(LEADS_CELL)
    return cell.value if cell is not None else []


def _run(program: list[str], environment: dict[str, str], folder: str | None) -> int:
    """Run it to its end and return its exit status as a shell would."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if child is None:
            early.append(number)
        elif child.poll() is None and not (number in FROM_TERMINAL and _in_foreground()):
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        child = subprocess.Popen(program, env=environment, cwd=folder)
        for number in early:
            pass_on(number, None)
        status = child.wait()
    except FileNotFoundError:
        raise exit_codes.NotStarted(f"{program[0]}: no such program", NOT_FOUND) from None
    except OSError as error:
        raise exit_codes.NotStarted(f"{program[0]}: it cannot be run ({error.strerror})", NOT_EXECUTABLE) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _in_foreground() -> bool:
    """Whether we, and with us the program, are what the terminal sends its signals to."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
