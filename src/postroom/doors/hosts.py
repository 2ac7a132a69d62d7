"""The agent programs that Postroom has doors for, as data: how each is recognised, and what it calls things."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Host(NamedTuple):
    """One agent program."""

    name: str
    title: str
    #: The name of its sessions in a room, unless told otherwise.
    agent: str
    #: Its own words for the moments at which hooks are called, each with ours.
    events: dict[str, str]
    #: How it wants to be told to go on instead of stopping.
    go_on: str = "block"
    #: Whether the process of its session is the one that starts our hooks and our server.
    is_parent: bool = False
    #: Whether its hooks are told which program calls them: no other program reads the file that they stand in.
    is_said: bool = False
    #: Whether what wakes its session waits in a queue for the end of a turn: during one, its hooks are faster.
    is_queued: bool = False


#: A program that speaks the Agent Client Protocol and was started by our host, which tells it of mail (`doors/acp`): our
#: hooks say nothing there, and our server in it has the name that it is given.
ACP: Final = "acp"
#: Says which program our server belongs to, where that cannot be seen.
VARIABLE: Final = "POSTROOM_HOST"
#: Names one start of a program by our host.
RUN_VARIABLE: Final = "POSTROOM_ACP_RUN"

START, PROMPT, EDIT, TOOL, STOP, WAKE, END = "start", "prompt", "edit", "tool", "stop", "wake", "end"
#: A permission is asked for.
PERMIT: Final = "permit"

_CLAUDE_EVENTS: Final = {
    "SessionStart": START,
    "UserPromptSubmit": PROMPT,
    "PreToolUse": EDIT,
    "PermissionRequest": PERMIT,
    "PostToolUse": TOOL,
    "PostToolBatch": TOOL,
    "Stop": STOP,
    "FileChanged": WAKE,
    "SessionEnd": END,
}

_GEMINI_EVENTS: Final = {
    "SessionStart": START,
    "BeforeAgent": PROMPT,
    "BeforeTool": EDIT,
    "AfterTool": TOOL,
    "AfterAgent": STOP,
    "SessionEnd": END,
}
#: Copilot drops what a hook says to a prompt, so none is told of mail there.
_COPILOT_EVENTS: Final = {"SessionStart": START, "PostToolUse": TOOL, "Stop": STOP, "SessionEnd": END}
#: The words of our own plugin.
_OUR_EVENTS: Final = {word: word for word in (START, PROMPT, EDIT, TOOL, STOP, WAKE, END)}

HOSTS: Final = {
    host.name: host
    for host in (
        Host("claude-code", "Claude Code", "claude", _CLAUDE_EVENTS),
        Host("codex", "Codex", "codex", _CLAUDE_EVENTS, is_queued=True),
        Host("gemini", "Gemini CLI", "gemini", _GEMINI_EVENTS, go_on="deny", is_parent=True),
        Host("opencode", "OpenCode", "opencode", _OUR_EVENTS, is_parent=True, is_said=True),
        Host("qwen", "Qwen Code", "qwen", _CLAUDE_EVENTS, is_parent=True, is_said=True, is_queued=True),
        Host("copilot", "GitHub Copilot CLI", "copilot", _COPILOT_EVENTS, is_parent=True, is_said=True),
        Host("kimi", "Kimi Code", "kimi", {}),
        Host("cline", "Cline", "cline", {}),
        Host("cursor", "Cursor", "cursor", {}),
        Host("vscode", "VS Code", "vscode", {}),
        Host("windsurf", "Windsurf (Devin)", "windsurf", {}),
    )
}

#: How an MCP client's own name begins, with the program that it belongs to.
CLIENTS: Final = (
    ("claude", "claude-code"),
    ("codex", "codex"),
    ("gemini", "gemini"),
    ("opencode", "opencode"),
    ("qwen", "qwen"),
)


def of_hook(said: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> Host | None:
    """The program that called a hook; None for one that we do not know. Programs run hooks written for others."""
    if environment.get(VARIABLE) == ACP:
        return None
    if said in HOSTS and HOSTS[said].is_said:
        return HOSTS[said]
    if environment.get("CLAUDECODE") == "1" and "turn_id" not in given:
        return HOSTS["claude-code"]
    if environment.get("GEMINI_SESSION_ID"):
        return HOSTS["gemini"]
    if "turn_id" in given or ("model" in given and environment.get("CODEX_HOME")):
        return HOSTS["codex"]
    host = HOSTS.get(said)
    if host is None or (host.name == "claude-code" and "CLAUDE_PROJECT_DIR" not in environment):
        return None
    return host


#: What cannot stand in the name that a client gives an agent, and how long that may be.
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9._-]+")
_MAX_NAME: Final = 32


def agent_of(client: str) -> str | None:
    """The name of an agent whose program has no door of its own: its client's, as one plain word; None where nothing is left."""
    return _NOT_IN_NAMES.sub("-", client.lower())[:_MAX_NAME].strip("._-") or None


def of_client(client: str, environment: Mapping[str, str]) -> Host | None:
    """The program behind an MCP client, by its name or by what it, or its entry for us, puts into our environment."""
    if environment.get(VARIABLE) == ACP:
        return None
    if environment.get(VARIABLE) in HOSTS:
        return HOSTS[environment[VARIABLE]]
    if environment.get("CLAUDECODE") == "1":
        return HOSTS["claude-code"]
    if environment.get("GEMINI_CLI") == "1":
        return HOSTS["gemini"]
    return next((HOSTS[name] for begin, name in CLIENTS if client.lower().startswith(begin)), None)
