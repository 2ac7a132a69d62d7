"""One session with an agent program, in version 1 or 2 of the Agent Client Protocol: the facts that the program states.

Version 1 says that a prompt was taken only by what follows it, and its turn is over when the prompt is answered. Version 2
answers when the prompt was taken, and tells of its states.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from postroom import __version__
from postroom.core.untrusted import visible

from .peer import PeerEnded, RpcError, RpcPeer

VERSION: Final = 2
#: A program has so long to start, and as long to begin a session, in seconds.
START_S: Final = 120.0
#: A turn in which the program says nothing at all for so long is cancelled, and the program ended soon after.
SILENCE_S: Final = 1800.0
CANCEL_S: Final = 60.0
#: The code of an error that asks for a login.
LOGIN_NEEDED: Final = -32000
#: The name of our server in the program.
SERVER: Final = "postroom"
#: Programs that start their servers with the first prompt, and wait for them then, by the names that they give themselves.
LATE: Final = ("Copilot", "cline")
_MAX_CALLS: Final = 1000
_MAX_TEXT: Final = 200
#: How programs write the name of one of our tools.
_OWN: Final = re.compile(r"(?:mcp[_.]+)?postroom(?:__|[_./:-])([a-z]+)|([a-z]+) \(postroom MCP Server\)")
#: The kinds of a tool call that is one of an MCP server; a title alone may be a model's words.
_OWN_KINDS: Final = frozenset({None, "other", "read", "fetch", "search", "think"})


class ToolCall(NamedTuple):
    """A call of a tool, as the program tells of it."""

    id: str
    title: str
    kind: str | None
    own: str | None  # the name of our tool; None for any other tool

    @property
    def shown(self) -> str:
        """The call as a person reads it."""
        return visible(self.own or self.title)[:_MAX_TEXT]


class Hearer(Protocol):
    """What is told of a session. Called in the loop; none of it waits."""

    def taken(self) -> None:
        """The program has taken the prompt."""

    def called(self, call: ToolCall, status: str, result: str) -> None:
        """A tool's call has ended. `result` is what the program tells of it, as JSON."""

    def said(self, text: str) -> None:
        """A piece of what the model says."""


class AcpSession:
    """One start of the program."""

    def __init__(self, hearer: Hearer) -> None:
        self._hearer = hearer
        self._peer: RpcPeer | None = None
        self._calls: dict[str, ToolCall] = {}
        self._idle = asyncio.Event()
        self._stop = ""
        self._in_turn = self._ran = False
        self.version = 0
        self.title = "agent"
        #: Its tools come with the first prompt.
        self.is_late = False
        #: Why it does not go on with its earlier session.
        self.forgotten = ""
        self.id = ""
        self._capabilities: dict[str, Any] = {}
        self._logins: list[str] = []

    @property
    def peer(self) -> RpcPeer:
        """The connection of this session."""
        assert self._peer is not None
        return self._peer

    async def begin(
        self, peer: RpcPeer, folder: str, server: dict[str, Any], resumed: str | None, login: str | None
    ) -> bool:
        """Start a session, or go on with an earlier one; returns whether it is the earlier one.

        RpcError when the program refuses; PeerEnded when it ends or is silent.
        """
        self._peer = peer
        await self._initialize()
        entry = {**server, **({"type": "stdio"} if self.version == VERSION else {})}
        place = {"cwd": folder, "mcpServers": [entry]}
        method = self._how_to_resume()
        if resumed is not None and method is not None:
            try:
                await peer.ask(method, {"sessionId": resumed, **place}, START_S)
            except RpcError as error:
                self.forgotten = str(error)
            else:
                self.id = resumed
                return True
        found = await self._new(place, login)
        self.id = str(found.get("sessionId", ""))
        return False

    async def _new(self, place: dict[str, Any], login: str | None) -> dict[str, Any]:
        if login is not None:
            await self.peer.ask("authenticate" if self.version == 1 else "auth/login", {"methodId": login}, START_S)
        try:
            return await self.peer.ask("session/new", place, START_S)
        except RpcError as error:
            if error.code != LOGIN_NEEDED or login is not None:
                raise
            ways = ", ".join(self._logins) or "none is offered"
            raise RpcError(
                error.code, f"{error}; log in by starting it yourself, or add --login WAY ({ways})"
            ) from None

    async def _initialize(self) -> None:
        client = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": False}
        info = {"name": "postroom", "title": "Postroom", "version": __version__}
        words = {"clientCapabilities": client, "clientInfo": info, "capabilities": {}, "info": info}
        found = await self.peer.ask("initialize", {"protocolVersion": VERSION, **words}, START_S)
        version = found.get("protocolVersion")
        if version not in (1, VERSION):
            said = visible(str(version))[:_MAX_TEXT]
            raise PeerEnded(f"it speaks version {said} of the protocol, and this host 1 and {VERSION}")
        self.version = version
        told = found.get("agentInfo" if version == 1 else "info")
        told = told if isinstance(told, dict) else {}
        self.is_late = told.get("name") in LATE
        self.title = visible(f"{told.get('name', 'agent')} {told.get('version', '')}".strip())[:_MAX_TEXT]
        capabilities = found.get("agentCapabilities" if version == 1 else "capabilities")
        self._capabilities = capabilities if isinstance(capabilities, dict) else {}
        ways = found.get("authMethods")
        named = [way.get("id") or way.get("methodId") for way in ways or () if isinstance(way, dict)]
        self._logins = [visible(name)[:_MAX_TEXT] for name in named if isinstance(name, str)]

    def _how_to_resume(self) -> str | None:
        """The method that goes on with a session: one that does not tell of all that was said before, if there is one."""
        if self.version == VERSION:
            return "session/resume"
        session = self._capabilities.get("sessionCapabilities")
        if isinstance(session, dict) and session.get("resume") is not None:
            return "session/resume"
        return "session/load" if self._capabilities.get("loadSession") is True else None

    # A turn

    async def prompt(self, text: str) -> str:
        """Hand in a text as the user's, and wait for the end of the turn; returns why it ended.

        RpcError when the program refuses or fails; PeerEnded when it ends, or is silent for too long.
        """
        self._stop, self._in_turn, self._ran = "", True, False
        self._idle.clear()
        turn = asyncio.create_task(self._turn(text))
        try:
            while not (await asyncio.wait({turn}, timeout=self._quiet_s()))[0]:
                if self._quiet_s() <= 0:
                    await self._give_up(turn)
            return await turn
        finally:
            turn.cancel()
            self._in_turn = False

    async def _turn(self, text: str) -> str:
        params = {"sessionId": self.id, "prompt": [{"type": "text", "text": text}]}
        answer = await self.peer.ask("session/prompt", params)
        self._hearer.taken()
        if self.version == VERSION:
            await self._idle.wait()
            return self._stop or "end_turn"
        return visible(str(answer.get("stopReason", "end_turn")))[:_MAX_TEXT]

    def _quiet_s(self) -> float:
        """How long the program may still be silent."""
        return max(0.0, SILENCE_S - (asyncio.get_running_loop().time() - self.peer.heard_s))

    async def _give_up(self, turn: asyncio.Task[str]) -> None:
        await self.cancel()
        if not (await asyncio.wait({turn}, timeout=CANCEL_S))[0]:
            raise PeerEnded(f"it was silent for {SILENCE_S + CANCEL_S:g} s in the middle of a turn")

    async def cancel(self) -> None:
        """Ask the program to stop the turn. It still says when it has."""
        await self.peer.say("session/cancel", {"sessionId": self.id})

    # What the program tells

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """A notification of the program."""
        update = params.get("update")
        if method != "session/update" or not isinstance(update, dict) or params.get("sessionId") != self.id:
            return  # also all that it tells again of a session that it goes on with
        kind = update.get("sessionUpdate")
        if self._in_turn and kind in _OF_A_TURN and (self.version == 1 or kind.startswith("user_message")):
            self._hearer.taken()
        if kind == "state_update":
            self._hear_state(update)
        elif kind in ("tool_call", "tool_call_update"):
            self._hear_call(update)
        elif kind == "agent_message_chunk":
            self._say(update.get("content"))
        elif kind == "agent_message" and isinstance(update.get("content"), list):
            for part in update["content"]:
                self._say(part)

    def _hear_state(self, update: dict[str, Any]) -> None:
        if update.get("state") == "running":
            self._ran = True
        elif update.get("state") == "idle" and self._ran:  # not the end of the turn before
            self._stop = visible(str(update.get("stopReason") or ""))[:_MAX_TEXT]
            self._idle.set()

    def _say(self, content: Any) -> None:
        if isinstance(content, dict) and content.get("type") == "text" and content.get("text"):
            self._hearer.said(str(content["text"]))

    def _hear_call(self, update: dict[str, Any]) -> None:
        call = self.note_call(update)
        status = update.get("status")
        if call is None or status not in ("completed", "failed"):
            return
        result = {name: update.get(name) for name in ("content", "rawOutput", "_meta")}
        self._hearer.called(call, str(status), msgspec.json.encode(result).decode())

    def note_call(self, told: Any) -> ToolCall | None:
        """What is known of a tool's call, with what the program tells of it now."""
        if not isinstance(told, dict) or not isinstance(told.get("toolCallId"), str):
            return None
        id = told["toolCallId"]
        before = self._calls.pop(id, None)
        title = told.get("title") if isinstance(told.get("title"), str) else before.title if before else "a tool"
        kind = told.get("kind") if isinstance(told.get("kind"), str) else before.kind if before else None
        named = own_tool({**told, "title": title, "kind": kind})
        own = named or (before.own if before and not _said_name(told) else None)
        call = self._calls[id] = ToolCall(id, str(title), kind, own)
        while len(self._calls) > _MAX_CALLS:
            self._calls.pop(next(iter(self._calls)))
        return call


_OF_A_TURN: Final = frozenset(
    {
        *("user_message_chunk", "user_message", "agent_message_chunk", "agent_thought_chunk"),
        *("tool_call", "tool_call_update", "plan"),
    }
)


def own_tool(told: dict[str, Any]) -> str | None:
    """Which of our own tools a call is of; None for any other.

    Codex, Claude Code and Qwen Code say it in fields of their own. Others say it in the title, which for a command may be a
    model's words: so only a call that is no command, edit or the like counts.
    """
    meta, raw = told.get("_meta"), told.get("rawInput")
    if isinstance(meta, dict) and meta.get("is_mcp_tool_call") is True and isinstance(raw, dict):
        return str(raw.get("tool")) if raw.get("server") == SERVER else None
    name = _said_name(told) or str(told.get("title")).partition(": {")[0]  # Cline adds the arguments
    found = _OWN.fullmatch(name)
    if found is None or told.get("kind") not in _OWN_KINDS:
        return None
    return found[1] or found[2]


def _said_name(told: dict[str, Any]) -> str | None:
    """The tool's name, where the program states it beside the title."""
    meta = told.get("_meta")
    if not isinstance(meta, dict):
        return None
    of_claude = meta.get("claudeCode")
    name = of_claude.get("toolName") if isinstance(of_claude, dict) else meta.get("toolName")
    return name if isinstance(name, str) else None
