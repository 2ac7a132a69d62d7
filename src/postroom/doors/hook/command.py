"""`postroom hook HOST`: the one entry for hooks of agent programs. Fast, and silent about events it does not know.

A hook must never stand in its host's way: on any error it says nothing and ends with 0. Its input is one JSON object on
standard input, its answer one JSON object, or, to wake a session, exit status 2.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from postroom.core import trust
from postroom.core.clock import SYSTEM
from postroom.core.config import FOLDER, RoomUrl, make_config, parse_url, room_folder
from postroom.core.states import State
from postroom.core.system.process import process_name
from postroom.doors import edits, hosts, session_binding
from postroom.doors.hosts import EDIT, END, PERMIT, PROMPT, START, STOP, TOOL, WAKE, Host
from postroom.errors import PostroomError, RoomNotAllowed
from postroom.mail import presence, tokens
from postroom.mail.gateway import Gateway
from postroom.stores import open_store
from postroom.stores.contract import Query

from . import codex_terminals, permissions, tool_edits

#: Exit status by which a hook of Claude Code wakes an idle session; what it wrote to standard error is told the model.
WAKE_UP: Final = 2
#: A look before an edit takes at most so long: then the edit goes ahead, whatever the room is busy with.
EDIT_PATIENCE_S: Final = 3.0
#: How Claude Code begins the prompt by which it tells the model of a task that has ended.
_TASK_ENDED: Final = "<task-notification>"
#: Among so many of the newest messages of an agent, the answers that a tool's result had are looked for.
_MAX_ANSWERS: Final = 100
#: Cells of questions to people begin so; known here, so that a look where there are none loads nothing.
QUESTIONS: Final = "question/"
READ_WITH: Final = "Read it with the postroom inbox tool (or `postroom receive --as {name}`), then ack."


def main(words: list[str], stdin: bytes) -> int:
    """Read what the host says, do what is to be done, and answer as the host wants it. Never fails."""
    try:
        given = msgspec.json.decode(stdin)
        if not isinstance(given, dict):
            return 0
        host = hosts.of_hook(words[0] if words else "auto", given, os.environ)
        event = None if host is None else host.events.get(str(given.get("hook_event_name")))
        if host is None or event is None:
            return 0
        if event == EDIT:
            if not tool_edits.written_by(given.get("tool_name"), given.get("tool_input")):
                return 0
            _bound_time(EDIT_PATIENCE_S)
        if event == PERMIT and permissions.asked_person(os.environ) is None:
            return 0
        return _answer(host, event, given)
    except BaseException:  # noqa: BLE001  the host's work matters more than ours
        return 0


def _bound_time(most_s: float) -> None:
    """End this process after that long, silently and with 0. Nothing that is locked or busy can hold it up."""
    never = _thread.allocate_lock()
    never.acquire()

    def end() -> None:
        never.acquire(timeout=most_s)
        os._exit(0)

    _thread.start_new_thread(end, ())


def _answer(host: Host, event: str, given: Mapping[str, Any]) -> int:
    try:
        found = trust.find_room(_place(given), strict=True)
    except RoomNotAllowed as error:
        return _tell_user(str(error), _watched(given, FOLDER, ".gitignore") if event == WAKE else {})
    if found is None:
        return _wait_for_room(host, event, given)
    url = parse_url(found.address)
    folder = room_folder(url)
    if url.scheme == "memory" or (folder is not None and not folder.is_dir()):
        return 0
    gateway = Gateway(open_store(url, make_config({}, url.options), SYSTEM), make_config({}, url.options), SYSTEM)
    try:
        return Visit(gateway, url, host, event, given).answer()
    finally:
        gateway.store.close()


def _wait_for_room(host: Host, event: str, given: Mapping[str, Any]) -> int:
    """Let Claude Code tell of a room that is made here while it runs: a change below this folder calls its WAKE hook."""
    if host.name == "claude-code" and event == START and _is_attended(os.environ):
        _write(_watched(given, FOLDER))
    return 0


def _watched(given: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """The answer that lets Claude Code watch a path in the project, and no other one."""
    watched = str(Path(_place(given) or "/", *path))
    return {"hookSpecificOutput": {"hookEventName": given["hook_event_name"], "watchPaths": [watched]}}


def _tell_user(sentence: str, more: Mapping[str, Any]) -> int:
    """Tell the person, once for each room, that there is one which is not used. The model is told nothing.

    A session that waits for a room watches all of it: with `more` it looks away, for others may be at work there.
    """
    told = {"systemMessage": f"postroom: {_printable(sentence)}"} if trust.tell_once(sentence) else {}
    if told or more:
        _write({**told, **more})
    return 0


def _printable(text: str) -> str:
    """Folder names are a stranger's words: nothing in them may move the cursor."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _place(given: Mapping[str, Any]) -> Path | None:
    said = os.environ.get("CLAUDE_PROJECT_DIR") or os.environ.get("GEMINI_PROJECT_DIR") or given.get("cwd")
    return Path(said) if isinstance(said, str) and os.path.isdir(said) else None


class Visit:
    """One call of a hook, in a room."""

    def __init__(self, gateway: Gateway, url: RoomUrl, host: Host, event: str, given: Mapping[str, Any]) -> None:
        self._gateway = gateway
        self._url = url
        self._host = host
        self._event = event
        self._given = given
        self._said = str(given.get("hook_event_name"))
        #: What is answered in any case: our plugin in OpenCode is told the file to watch, also by a room made meanwhile.
        self._always: dict[str, Any] = {}

    def answer(self) -> int:
        """Do what the event is for. Returns the exit status."""
        caller = caller_of(self._host, self._given, os.environ)
        environment: Mapping[str, str] = os.environ
        if self._host.name == "codex":
            caller, environment = self._in_codex(caller)
        name = session_binding.bind(self._gateway, caller, proved_name(self._gateway, environment))
        self._take_back(name)
        if self._event == END and self._given.get("reason") not in ("clear", "resume"):
            session_binding.leave(self._gateway, caller, name)
            edits.ended(self._gateway, name)
            presence.stop(self._gateway, name)
            return 0
        presence.enter(self._gateway, name, transient=True)  # whatever it is about, it is a sign of life
        if self._event == END:
            return 0
        if self._event == EDIT:
            return self._before_edit(name)
        if self._event == PERMIT:
            return self._permit(name)
        if self._host.is_queued:
            session_binding.busy(self._gateway, name, working=self._event in (PROMPT, TOOL))
        if self._host.name == "opencode" and self._event in (START, STOP):
            self._always["signal"] = self._signal(name)
        told = ""
        if self._event in (TOOL, PROMPT):
            self._note_shown(name)
            told = self._after_tool(name)
        if not self._may_be_told():
            return self._say(told) if told else 0
        return self._tell(name, told)

    def _in_codex(self, caller: session_binding.HostSession) -> tuple[session_binding.HostSession, Mapping[str, str]]:
        place = codex_terminals.find(self._gateway, caller.session, self._event, self._given.get("cwd"))
        return caller._replace(process=place.process), place.environment

    def _may_be_told(self) -> bool:
        """Not a subagent, which does not speak for its session; nor a wake of a session without a person."""
        unheard = self._event == WAKE and self._host.name == "claude-code" and not self._is_woken()
        return not self._given.get("agent_id") and not unheard

    def _before_edit(self, name: str) -> int:
        """Refuse a write to a file that is another agent's. Silent where it may go ahead."""
        paths = tool_edits.written_by(self._given.get("tool_name"), self._given.get("tool_input"))
        verdict = edits.look(self._gateway, name, paths, cwd=self._folder(), mode=_mode())
        if not verdict.refused:
            return 0
        if self._said == "PreToolUse":
            denied = {"permissionDecision": "deny", "permissionDecisionReason": verdict.reason}
            _write({"hookSpecificOutput": {"hookEventName": self._said, **denied}})
        else:
            _write({"decision": "deny", "reason": verdict.reason})
        return 0

    def _permit(self, name: str) -> int:
        """Ask a person whether a tool may be used. Silent where the program is to ask by itself: for our own tools, too."""
        person = permissions.asked_person(os.environ)
        if person is None or "postroom" in str(self._given.get("tool_name", "")):
            return 0
        decision = permissions.decide(self._gateway, name, self._given, person)
        if decision is not None:
            _write({"hookSpecificOutput": {"hookEventName": self._said, "decision": decision}})
        return 0

    def _take_back(self, name: str) -> None:
        """A person is asked no more for what was decided at the terminal: this tool has run, or the turn is over."""
        ends = self._host.name == "claude-code" and self._event in (TOOL, PROMPT, STOP, END)
        if ends and self._gateway.store.cell_scan(QUESTIONS):
            permissions.take_back(self._gateway, name, self._given if self._event == TOOL else None)

    def _after_tool(self, name: str) -> str:
        """What the agent is told of the files that its tool has written, or that its command may have."""
        tool, given, answer = (self._given.get(field) for field in ("tool_name", "tool_input", "tool_response"))
        if tool is None or (isinstance(answer, Mapping) and answer.get("error")):
            return ""  # it has written nothing
        if paths := tool_edits.written_by(tool, given):
            return edits.touched(self._gateway, name, paths, cwd=self._folder(), mode=_mode())
        if words := tool_edits.words_of(tool, given):
            return edits.mentioned(self._gateway, name, words, cwd=self._folder(), mode=_mode())
        return ""

    def _folder(self) -> str:
        """The folder that relative paths begin in."""
        said = self._given.get("cwd")
        return said if isinstance(said, str) and os.path.isdir(said) else os.getcwd()

    def _tell(self, name: str, told: str) -> int:
        if self._event == STOP:
            return self._stop(name)
        # a session that is woken by its signal is told there, where it starts a turn at once
        text = "" if self._event == START and self._is_woken() else self._new_mail(name)
        text = "\n".join(each for each in (told, text) if each)
        if self._event == START:
            return self._start(name, text)
        if not text:
            if self._event == WAKE and self._host.name == "claude-code":
                self._watch_signal(name)
            return 0
        if self._event == WAKE and self._host.name == "claude-code":
            sys.stderr.write(text + "\n")
            return WAKE_UP
        return self._say(text)

    def _new_mail(self, name: str) -> str:
        """A pointer to what the session was not told of, if it is still unread."""
        fresh = session_binding.tell(
            self._gateway, name, session_binding.news(self._gateway, name), f"{self._host.name} {self._said}"
        )
        return session_binding.pointer(name, fresh, READ_WITH.format(name=name)) if fresh else ""

    def _start(self, name: str, text: str) -> int:
        lines = [f"postroom: you are the agent {name} in this project's room.", *([text] if text else [])]
        more: dict[str, Any] = {}
        if self._is_woken() and self._host.name == "claude-code":
            more["watchPaths"] = [self._signal(name)]
        return self._say("\n".join(lines), more)

    def _watch_signal(self, name: str) -> None:
        """What changed was not the signal, but the room that was made: from now on it is the signal."""
        changed = self._given.get("file_path", "")
        if changed not in ("", str(session_binding.signal_path(self._url, name))):
            _write({"hookSpecificOutput": {"hookEventName": self._said, "watchPaths": [self._signal(name)]}})

    def _signal(self, name: str) -> str:
        """The file whose change wakes the session. It is there: one in a folder that is not there is not watched."""
        signal = session_binding.signal_path(self._url, name)
        if self._event == START or not signal.exists():
            session_binding.touch_signal(signal)
        return str(signal)

    def _is_woken(self) -> bool:
        return self._host.name in ("opencode", "qwen") or (
            self._host.name == "claude-code" and _is_attended(os.environ)
        )

    def _stop(self, name: str) -> int:
        """Hold the agent back once while unread mail waits."""
        if self._given.get("stop_hook_active"):
            return 0
        waiting = session_binding.hold_back(self._gateway, name)
        if not waiting:
            if self._always:
                _write(self._always)
            return 0
        session_binding.tell(self._gateway, name, waiting, f"{self._host.name} {self._said}")
        if self._host.is_queued:
            session_binding.busy(self._gateway, name, working=True)  # it goes on
        reason = session_binding.pointer(name, waiting, READ_WITH.format(name=name))
        _write({"decision": self._host.go_on, "reason": reason, **self._always})
        return 0

    def _note_shown(self, name: str) -> None:
        """The host reports a result of our inbox or ask, so what stands in it will be in the model's next request."""
        read = self._result()
        if read is None:
            return
        # the answers to questions are acked by then
        ended = Query(states=frozenset({State.ACKED}), to_agent=name, order="newest", limit=_MAX_ANSWERS)
        answers = [each for each in self._gateway.store.find(ended).messages if each.answer_to is not None]
        for message in (*presence.held_by(self._gateway, name), *answers):
            kept = self._gateway.store.get(message.id) if message.id in read else None
            if kept is not None and not any(entry.event == "shown" for entry in kept.ledger):
                self._gateway.store.note(message.id, "shown", name, f"{self._host.name} {self._said}")

    def _result(self) -> str | None:
        """A result that the host reports: of a call, or, as a prompt of its own making, of a task that has ended."""
        if self._event == PROMPT:
            said = str(self._given.get("prompt", ""))
            return said if said.startswith(_TASK_ENDED) and "postroom" in said else None
        tool = str(self._given.get("tool_name", ""))
        if "postroom" not in tool or not tool.endswith(("inbox", "ask")):
            return None
        return msgspec.json.encode(self._given.get("tool_response", self._given.get("tool_result"))).decode()

    def _say(self, text: str, more: Mapping[str, Any] | None = None) -> int:
        if self._host.name == "opencode":
            _write({"text": text, **self._always})
        elif self._host.name == "copilot":
            _write({"additionalContext": text})
        else:
            _write({"hookSpecificOutput": {"hookEventName": self._said, "additionalContext": text, **(more or {})}})
        return 0


def _mode() -> str:
    return edits.mode_of(os.environ.get(edits.VARIABLE))


def _write(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def _is_attended(environment: Mapping[str, str]) -> bool:
    return environment.get("CLAUDE_CODE_SESSION_ATTENDED", "1") == "1"


def caller_of(host: Host, given: Mapping[str, Any], environment: Mapping[str, str]) -> session_binding.HostSession:
    """The session that called the hook."""
    session = given.get("session_id")
    process = None
    if host.name == "claude-code" and environment.get("CLAUDE_PID", "").isdigit():
        process = process_name(int(environment["CLAUDE_PID"]))
    elif host.is_parent:
        process = process_name(os.getppid())  # a shell that stays in between ends with this hook, and frees the name
    attended = host.name != "claude-code" or _is_attended(environment)
    return session_binding.HostSession(
        host.name, host.agent, session if isinstance(session, str) else None, process, attended
    )


def proved_name(gateway: Gateway, environment: Mapping[str, str]) -> str | None:
    """The name that the environment gives the session, proved where the room asks for it; None when it gives none."""
    name = environment.get("POSTROOM_AGENT") or None
    if environment.get("POSTROOM_TOKEN") or environment.get("POSTROOM_TOKEN_FILE") or gateway.store.cell_scan("token/"):
        credential = tokens.prove(gateway, name, tokens.token_in(dict(environment)), "hook")
        if credential is None:
            raise PostroomError("nobody")
        return credential.agent
    return name
