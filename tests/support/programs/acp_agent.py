"""An agent program that speaks the Agent Client Protocol and does in each turn what its script says.

Its script is JSON in $ACP_SCRIPT: {"version": 1, "turns": [[action, ...], ...], "loads": true}; the last turn is repeated. It
keeps what it was sent, and what it was answered, as lines of JSON in $ACP_LOG.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = json.loads(os.environ["ACP_SCRIPT"])
VERSION = SCRIPT.get("version", 1)
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
numbers = count(1000)


def note(**what: Any) -> None:
    with open(os.environ["ACP_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"pid": os.getpid(), "at_s": time.time(), **what}) + "\n")


def write(frame: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def update(session: str, of: str, **what: Any) -> None:
    write({"method": "session/update", "params": {"sessionId": session, "update": {"sessionUpdate": of, **what}}})


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    frame: dict[str, Any] = json.loads(line)
    note(got=frame)
    return frame


def ask(method: str, **params: Any) -> dict[str, Any]:
    """The host's answer; what comes before it is only noted."""
    number = next(numbers)
    write({"id": number, "method": method, "params": params})
    while True:
        frame = read()
        if frame.get("id") == number:
            note(asked=method, answer=frame)
            return frame


def tool(session: str, name: str, result: str, kind: str = "other") -> None:
    id = f"call-{next(numbers)}"
    update(session, "tool_call", toolCallId=id, title=name, kind=kind, status="pending")
    content = [{"type": "content", "content": {"type": "text", "text": result}}]
    update(session, "tool_call_update", toolCallId=id, status="completed", content=content)


def say(session: str, text: str) -> None:
    update(session, "agent_message_chunk", messageId="m", content={"type": "text", "text": text})


def call(session: str, name: str, result: str, kind: str = "other") -> None:
    tool(session, name, Path(result[1:]).read_text(encoding="utf-8") if result.startswith("@") else result, kind)


def read_file(session: str, path: str) -> None:
    ask("fs/read_text_file", sessionId=session, path=path)


def write_file(session: str, path: str, text: str) -> None:
    ask("fs/write_text_file", sessionId=session, path=path, content=text)


def permission(session: str, title: str, kind: str) -> None:
    told = {"toolCallId": "p", "title": title, "kind": kind, "rawInput": {"command": "rm -r x"}}
    ask("session/request_permission", sessionId=session, toolCall=told, options=OPTIONS)


def request(session: str, method: str) -> None:
    ask(method, sessionId=session)


def lines(_: str, text: str, times: int) -> None:
    sys.stdout.write(text * times)
    sys.stdout.flush()


def until_cancelled(_: str) -> str:
    while read().get("method") != "session/cancel":
        pass
    return "cancelled"


def until(_: str, path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


def child(_: str) -> None:
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)


def die(_: str, status: int) -> None:
    sys.stderr.write("oh no\n")
    sys.stderr.flush()
    os._exit(status)


def die_once(session: str, path: str, status: int) -> None:
    if not Path(path).exists():
        Path(path).touch()
        die(session, status)


def fail(_: str) -> str:
    return "error"


#: What may stand in a script. An action that returns something ends the turn with that.
ACTIONS: dict[str, Callable[..., str | None]] = {
    "say": say,
    "tool": call,
    "read": read_file,
    "write": write_file,
    "permission": permission,
    "request": request,
    "lines": lines,
    "until cancelled": until_cancelled,
    "until": until,
    "child": child,
    "die": die,
    "die once": die_once,
    "error": fail,
}


def act(session: str, action: list[Any]) -> str | None:
    name, *rest = action
    return ACTIONS[name](session, *rest)


def turn(number: int, id: int, session: str, prompt: list[Any]) -> None:
    if VERSION == 2:
        write({"id": id, "result": {}})
        update(session, "user_message", messageId=f"u{number}", content=prompt)
        update(session, "state_update", state="running")
    turns = SCRIPT["turns"]
    stop = next(filter(None, (act(session, each) for each in turns[min(number, len(turns) - 1)])), "end_turn")
    if stop == "error":
        write({"id": id, "error": {"code": -32603, "message": "the model is not there"}})
    elif VERSION == 2:
        update(session, "state_update", state="idle", stopReason=stop)
    else:
        write({"id": id, "result": {"stopReason": stop}})


def main() -> None:
    for action in SCRIPT.get("start", []):
        act("", action)
    turns = count(int(os.environ.get("ACP_FIRST", "0")))
    while True:
        frame = read()
        method, id, params = frame.get("method"), frame.get("id"), frame.get("params") or {}
        if method == "initialize":
            told = {"name": "scripted", "version": "1"}
            able: dict[str, Any] = {"loadSession": bool(SCRIPT.get("loads"))} if VERSION == 1 else {"session": {}}
            names = ("agentInfo", "agentCapabilities") if VERSION == 1 else ("info", "capabilities")
            write({"id": id, "result": {"protocolVersion": VERSION, names[0]: told, names[1]: able}})
        elif method == "session/new":
            write({"id": id, "result": {"sessionId": f"s-{os.getpid()}"}})
        elif method in ("session/load", "session/resume"):
            if not SCRIPT.get("loads"):
                write({"id": id, "error": {"code": -32002, "message": "no such session"}})
                continue
            tool(params["sessionId"], "mcp__postroom__inbox", "what was said before")
            write({"id": id, "result": {}})
        elif method == "session/prompt" and id is not None:
            turn(next(turns), id, params["sessionId"], params["prompt"])


main()
