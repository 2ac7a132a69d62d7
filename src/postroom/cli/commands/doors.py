"""`postroom mcp` and `postroom hook`: the doors that agent programs come in by."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom import aio
from postroom.board.actions import BOARD
from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.core import trust
from postroom.core.system import goodbye
from postroom.core.system.process import process_name, this_process
from postroom.doors import hosts, session_binding
from postroom.doors.hook import entry
from postroom.doors.mcp.caller import Caller
from postroom.doors.waker import RINGS, ring_for
from postroom.errors import IdentityRefused, PostroomError, RoomNotAllowed, RoomNotFound
from postroom.mail import tokens
from postroom.room import Room

if TYPE_CHECKING:
    from postroom.doors.mcp.calls import MailCalls
    from postroom.doors.mcp.server import OpenedRoom

#: A server without a room looks for one this often, in seconds.
LATE_ROOM_S: Final = 3.0


def hook_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help=f"{', '.join(hosts.HOSTS)}, or auto to detect it")


def hook(call: Invocation) -> int:
    return entry.main([call.args.host])


def mcp_options(parser: argparse.ArgumentParser) -> None:
    http = "serve http://127.0.0.1:PORT/mcp instead of stdio; 0: any"
    parser.add_argument("--http", type=options.whole, metavar="PORT", help=http)
    options.flag(parser, "--no-token", "with --http and --as: every caller of the port acts as NAME")


def mcp(call: Invocation) -> int:
    try:
        from postroom.doors.mcp import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "postroom":
            raise
        from postroom.doors.install.lasting import extra_line

        raise PostroomError(f"the MCP server needs more packages: {extra_line('mcp')}") from None
    opened = server.OpenedRoom(_opener(call.args.room))
    if call.args.http is None:
        if call.args.no_token:
            raise exit_codes.UsageError("--no-token needs --http")
        if call.args.name:
            _must_be_proved(call)
        session = StdioSession(call.args.name)
        asyncio.run(server.serve_stdio(opened, session.identify, session.attend))
        return exit_codes.DONE
    caller = _checked_for_http(call)
    only = call.args.name
    if only is not None:
        call.room.agent(only, transient=True)  # it can be written to before it connects

    def started(port: int) -> None:
        print(f"http://127.0.0.1:{port}{server.PATH}", flush=True)

    serving = server.serve_http(opened, call.args.http, only=only, no_token=caller, started=started)
    with goodbye.heard(lambda: None):  # the server is told of a SIGTERM that comes before it runs
        return exit_codes.after_signal(asyncio.run(serving))


def _opener(named: str | None) -> Any:
    async def open_room() -> aio.Room:
        address = _allowed(named)
        if address is None:
            raise RoomNotFound("there is no room here yet; make one with `postroom init` and try again")
        return await aio.open(address, create=False)

    return open_room


def _allowed(named: str | None) -> str | None:
    """The address of the room that a model may be led into; None when there is none. Raises RoomNotAllowed.

    A name is not enough here: the entry that starts this server may have come with a repository.
    """
    if named:
        trust.require_allowed(named)
        return named
    found = trust.find_room(_project(), strict=True)
    return None if found is None else found.address


def _project() -> Path | None:
    """The folder that an editor works in, where its entry for us names it; None: where this process was started."""
    said = os.environ.get("POSTROOM_PROJECT", "")
    return Path(said) if os.path.isdir(said) else None


def _must_be_proved(call: Invocation) -> None:
    """A name that cannot be proved is told at once; a room that is not there, or not allowed, when a tool is called."""
    try:
        if _allowed(call.args.room) is not None:
            _ = call.name
    except RoomNotAllowed as error:
        output.note(str(error))
    except RoomNotFound:
        return


def _checked_for_http(call: Invocation) -> Caller | None:
    """The one caller of --no-token; None where each request shows a token: over HTTP a name is always proved."""
    _allowed(call.args.room)
    if call.args.no_token:
        if call.args.name is None:
            raise exit_codes.UsageError("--no-token needs --as NAME: every message needs a sender")
        if tokens.has_tokens(call.room.gateway):
            raise IdentityRefused("this room has tokens, so --no-token is not allowed")
        return Caller(call.args.name)
    if not tokens.has_tokens(call.room.gateway):
        raise PostroomError(
            "over HTTP callers are identified by their tokens, and this room has none: make yours with "
            "`postroom agent add NAME --human`, then those of agents (or, for a test, add --no-token)"
        )
    closed = tokens.nobody_comes_in(call.room.gateway)
    if closed is not None:
        raise IdentityRefused(closed)
    return None


class StdioSession:
    """The caller over stdio: the name given, or the token's, or the one that the program's session has in the room."""

    def __init__(self, name: str | None) -> None:
        self._named = name or os.environ.get("POSTROOM_AGENT") or None
        self._known: dict[str, Caller] = {}

    def identify(self, room: Room, meta: Mapping[str, Any]) -> Caller:
        """The caller, as far as the process and the call's `_meta` tell. In the room's thread."""
        thread = meta.get("threadId") or meta.get("sessionId")
        key = thread if isinstance(thread, str) else ""
        caller = self._known.get(key)
        if caller is None:
            caller = self._known[key] = self._find(room, key or None, str(meta.get("client", "")))
            room.connect(caller.agent)  # it is here, and runs, for as long as this process does
        return caller

    def arrive(self, room: Room) -> None:
        """The agent is here from now on, where it is known before its first call: by a name, a token, or its program.

        Codex alone says only in a call which of its sessions it is; its hooks have told the room of that one before.
        """
        if hosts.of_client("", os.environ) is not None:
            self.identify(room, {})
        elif (name := self._prove(room)[0]) is not None:
            room.connect(name)

    def _tell_host(self, room: Room) -> None:
        """Our host of the program, which wakes it, waits until the program has our tools."""
        name, run = self._prove(room)[0], os.environ.get(hosts.RUN_VARIABLE)
        if name and run:
            session_binding.listed(room.gateway, name, run)

    def _prove(self, room: Room) -> tuple[str | None, str]:
        """The name that was given or is the token's, and its lane. Raises IdentityRefused."""
        proved = tokens.prove(room.gateway, self._named, tokens.token_in(os.environ), "mcp stdio")
        return (self._named, "agent") if proved is None else (proved.agent, proved.lane)

    def _find(self, room: Room, session: str | None, client: str) -> Caller:
        name, lane = self._prove(room)
        if name is not None and os.environ.get(hosts.VARIABLE) == hosts.ACP:
            return Caller(name, lane)  # the session is our host's, and bound there
        host = hosts.of_client(client, os.environ) or (hosts.HOSTS["codex"] if session else None)
        if host is not None:
            return Caller(session_binding.bind(room.gateway, _host_session(host, session), name), lane)
        return Caller(session_binding.bind(room.gateway, _stranger(client)) if name is None else name, lane)

    async def attend(self, opened: OpenedRoom) -> None:
        """Beside the server: be present from the start, and wake the program's idle sessions when mail comes for them."""
        host = hosts.of_client("", os.environ)
        kinds = [host.name] if host is not None else ["codex", "opencode"]  # which say nothing in our environment
        calls = await _once_there(opened)
        with suppress(IdentityRefused):  # each call says so
            await calls.room.call(self.arrive)
        await opened.listed.wait()  # a turn that began before could not read the mail, and is not told again
        if os.environ.get(hosts.VARIABLE) == hosts.ACP:
            await calls.room.call(self._tell_host)
            return
        await asyncio.gather(*(ring_for(calls.room, kind, RINGS[kind]) for kind in kinds if kind in RINGS))


async def _once_there(opened: OpenedRoom) -> MailCalls:
    """The tools, as soon as there is a room: a program may have been started before its project had one."""
    while True:
        try:
            return await opened.calls()
        except PostroomError:  # each call says so
            await asyncio.sleep(LATE_ROOM_S)


def _stranger(client: str) -> session_binding.HostSession:
    """A program that we do not know, which is here for as long as this server. IdentityRefused where it has no name."""
    name = hosts.agent_of(client)
    if name is None or name == BOARD:
        raise IdentityRefused("say who you are: start the server with --as NAME, or set POSTROOM_AGENT")
    return session_binding.HostSession(f"client {name}", name, process=this_process(), is_stranger=True)


def _host_session(host: hosts.Host, session: str | None) -> session_binding.HostSession:
    """The session that this server was started by."""
    if not host.events:  # an editor: it is here for as long as this server, and another window has another
        return session_binding.HostSession(host.name, host.agent, process=this_process())
    if host.name == "codex":
        return session_binding.HostSession(host.name, host.agent, session)
    if host.name == "claude-code":
        session = os.environ.get("CLAUDE_CODE_SESSION_ID") or None
    return session_binding.HostSession(host.name, host.agent, session, process_name(os.getppid()))
