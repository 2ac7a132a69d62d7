"""Which files each agent program gets, and what is changed in those that are there.

A step is data: a whole file of our own, one member of a JSON file, one marked block of a text file, or our part of Codex's
settings.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom import __version__
from postroom.doors import edits
from postroom.doors.hosts import HOSTS
from postroom.errors import PostroomError

from . import codex_settings, texts
from .lasting import own_command

USER: Final = "user"
PROJECT: Final = "project"
SCOPES: Final = (USER, PROJECT)
#: Where each program is set up unless told otherwise.
DEFAULT_SCOPE: Final = {"vscode": PROJECT}
#: Programs without hooks: their server alone says that they are there.
EDITORS: Final = ("cursor", "vscode", "windsurf")
#: Other programs whose servers cannot tell from their environment which of them it was.
SILENT: Final = ("opencode", "qwen", "copilot", "kimi", "cline")
#: Editors that put the project's folder where its name stands.
EXPANDING: Final = ("cursor", "vscode")

#: The variable by which a hook knows whom to ask (`hook/permissions.py`).
PERMISSIONS: Final = "POSTROOM_PERMISSIONS"
#: A call may take an hour: `ask` waits that long.
PATIENCE_MS: Final = 3_700_000


class Own(NamedTuple):
    """A whole file that is ours."""

    path: Path
    text: str


class JsonEntry(NamedTuple):
    """One member of a JSON file that may have others."""

    path: Path
    member: tuple[str, ...]
    value: Any
    #: Members that come before it, if the file has to be made.
    head: dict[str, str] | None = None


class MarkedBlock(NamedTuple):
    """One block of a text file that may have other text: from the line `start` to the line `end`."""

    path: Path
    text: str
    start: str
    end: str


class Codex(NamedTuple):
    """Our part of Codex's settings, which is known by what it says (codex_settings.py)."""

    path: Path
    wanted: codex_settings.Wanted


Step = Own | JsonEntry | MarkedBlock | Codex


class Wish(NamedTuple):
    """An installation that was asked for."""

    host: str
    scope: str
    #: The name of the agent; None lets each session find one.
    agent: str | None
    project: Path
    home: Path
    #: What starts Postroom; None is this very installation.
    command: tuple[str, ...] | None = None
    #: How the files that the agent edits are guarded (`doors/edits.py`).
    edits: str = edits.WARN
    #: The person that permissions are asked of, `*` for any, "" for none.
    permissions: str = ""

    @property
    def base(self) -> Path:
        """The folder that the settings are in or below."""
        return self.home if self.scope == USER else self.project

    @property
    def program(self) -> list[str]:
        """What agent programs are told to start."""
        return list(self.command) if self.command else own_command()

    @property
    def hook(self) -> str:
        """The hooks' command line, for a shell. It stays the same between releases: some programs ask to trust it."""
        named = f"POSTROOM_AGENT={shlex.quote(self.agent)} " if self.agent else ""
        named += f"{edits.VARIABLE}={self.edits} " if self.edits != edits.WARN else ""
        said = self.host if self.host in HOSTS and HOSTS[self.host].is_said else "auto"
        return f"{named}{shlex.join(self.program)} hook {said}"

    @property
    def asking(self) -> str:
        """The command line of the hook that asks for permissions; "" where no person is asked."""
        return f"{PERMISSIONS}={shlex.quote(self.permissions)} {self.hook}" if self.permissions else ""

    @property
    def guards(self) -> bool:
        """Whether a hook looks before an edit."""
        return self.edits != edits.OFF

    @property
    def environment(self) -> dict[str, str]:
        """The environment in our server's entry. An editor starts it anywhere, and does not say which editor it is.

        The others say so with their first request at most, and their agent is present before that.
        """
        told = {"POSTROOM_AGENT": self.agent} if self.agent else {}
        if self.host in (*EDITORS, *SILENT):
            told["POSTROOM_HOST"] = self.host
        if self.host in EXPANDING:
            told["POSTROOM_PROJECT"] = "${workspaceFolder}"
        return told

    def server(self, **more: Any) -> dict[str, Any]:
        """The usual entry of an MCP server."""
        command, *words = [*self.program, "mcp"]
        environment = {"env": self.environment} if self.environment else {}
        return {**more, "command": command, "args": words, **environment}


def steps_for(wish: Wish) -> list[Step]:
    """Everything that is to be there for one program. PostroomError when it has no such scope."""
    if wish.scope not in SCOPES:
        raise PostroomError(f"the scope is {' or '.join(SCOPES)}, not {wish.scope!r}")
    makers = {
        "claude-code": lambda wish: plugin_files(wish, claude_folder(wish)),
        "codex": _codex,
        "gemini": lambda wish: extension_files(wish, gemini_folder(wish)),
        "opencode": _opencode,
        "qwen": _qwen,
        "copilot": _copilot,
        "kimi": _kimi,
        "cline": _cline,
        "cursor": _cursor,
        "vscode": _vscode,
        "windsurf": _windsurf,
        **dict.fromkeys(texts.SHELLS, _shell),
    }
    steps = makers[wish.host](wish)
    if wish.host not in ("claude-code", "gemini", "qwen", *texts.SHELLS):  # whose own folder has it, or has no agents
        steps.append(Own(wish.base / ".agents" / "skills" / "postroom" / "SKILL.md", texts.SKILL))
    return steps


def _folder(wish: Wish, variable: str, name: str) -> Path:
    """A program's folder of settings: the user's is where the variable says that the program heeds, if it is set."""
    said = os.environ.get(variable) if wish.scope == USER else None
    return Path(os.path.abspath(said)) if said else wish.base / name


def _config(wish: Wish) -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or wish.home / ".config")


def plugin_files(wish: Wish, folder: Path) -> list[Step]:
    """The plugin that Claude Code and Codex both take."""
    manifest: dict[str, Any] = {"name": "postroom", "version": __version__, "description": texts.DESCRIPTION}
    manifest |= {"author": {"name": "The Postroom authors"}, "license": "MIT"}
    return [
        Own(folder / ".claude-plugin" / "plugin.json", texts.pretty(manifest)),
        Own(
            folder / "hooks" / "hooks.json",
            texts.pretty(texts.claude_hooks(wish.hook, guards=wish.guards, asking=wish.asking)),
        ),
        Own(folder / ".mcp.json", texts.pretty({"mcpServers": {"mail": wish.server()}})),
        Own(folder / "skills" / "postroom" / "SKILL.md", texts.SKILL),
        Own(folder / "README.md", texts.README),
    ]


def claude_folder(wish: Wish) -> Path:
    """Where Claude Code finds the plugin without being told."""
    return _folder(wish, "CLAUDE_CONFIG_DIR", ".claude") / "skills" / "postroom"


def gemini_folder(wish: Wish) -> Path:
    """Where Gemini CLI finds the extension."""
    return _folder(wish, "GEMINI_CLI_HOME", "") / ".gemini" / "extensions" / "postroom"


def _qwen(wish: Wish) -> list[Step]:
    """The user's extension has everything. Qwen Code has no extensions of a project: there is the server alone."""
    if wish.scope == PROJECT:
        return [JsonEntry(wish.project / ".qwen" / "settings.json", ("mcpServers", "postroom"), _patient(wish))]
    return extension_files(wish, _folder(wish, "QWEN_HOME", ".qwen") / "extensions" / "postroom")


def _copilot(wish: Wish) -> list[Step]:
    entry = {"type": "local", **_patient(wish), "tools": ["*"]}
    if wish.scope == PROJECT:  # hooks in a repository would run where Copilot works in the cloud, too
        return [JsonEntry(wish.project / ".github" / "mcp.json", ("mcpServers", "postroom"), entry)]
    folder = _folder(wish, "COPILOT_HOME", ".copilot")
    return [
        JsonEntry(folder / "mcp-config.json", ("mcpServers", "postroom"), entry),
        Own(folder / "hooks" / "postroom.json", texts.pretty(texts.copilot_hooks(wish.hook))),
    ]


def _kimi(wish: Wish) -> list[Step]:
    settings = _folder(wish, "KIMI_CODE_HOME", ".kimi-code") / "mcp.json"
    return [JsonEntry(settings, ("mcpServers", "postroom"), wish.server(toolTimeoutMs=PATIENCE_MS))]


def _cline(wish: Wish) -> list[Step]:
    if wish.scope == PROJECT:
        raise PostroomError("Cline has no MCP servers of a project: leave out --scope project")
    settings = _folder(wish, "CLINE_DATA_DIR", ".cline/data") / "settings" / "cline_mcp_settings.json"
    return [JsonEntry(settings, ("mcpServers", "postroom"), {"transport": wish.server(type="stdio")})]


def _codex(wish: Wish) -> list[Step]:
    wanted = codex_settings.Wanted([*wish.program, "mcp"], wish.agent, wish.hook, texts.hook_events(guards=wish.guards))
    return [Codex(_folder(wish, "CODEX_HOME", ".codex") / "config.toml", wanted)]


def extension_files(wish: Wish, folder: Path) -> list[Step]:
    """The extension of Gemini CLI, and of Qwen Code, which grew from it."""
    make_hooks = texts.gemini_hooks if wish.host == "gemini" else texts.qwen_hooks
    manifest = {
        "name": "postroom",
        "version": __version__,
        "description": texts.DESCRIPTION,
        "mcpServers": {"postroom": _patient(wish)},
        "contextFileName": "POSTROOM.md",
    }
    return [
        Own(folder / f"{wish.host}-extension.json", texts.pretty(manifest)),
        Own(folder / "hooks" / "hooks.json", texts.pretty(make_hooks(wish.hook, guards=wish.guards))),
        Own(folder / "skills" / "postroom" / "SKILL.md", texts.SKILL),
        Own(folder / "POSTROOM.md", texts.RULES),
    ]


def _patient(wish: Wish) -> dict[str, Any]:
    """The server's entry where it says how long a call may take.

    Qwen Code shows a model the tools of a server only when it searches for them, unless the entry says otherwise.
    """
    shown = {"alwaysLoadTools": True} if wish.host == "qwen" else {}
    return wish.server() | {"timeout": PATIENCE_MS} | shown


def _opencode(wish: Wish) -> list[Step]:
    """The user's own settings count whatever OPENCODE_CONFIG and OPENCODE_CONFIG_DIR name: those are read in addition.

    OpenCode puts its `$schema` into a file that has none; so a file of ours has one, and stays as we left it.
    """
    user = _config(wish) / "opencode"
    settings = user / "opencode.json" if wish.scope == USER else wish.project / "opencode.json"
    plugins = user / "plugins" if wish.scope == USER else wish.project / ".opencode" / "plugins"
    environment = {"environment": wish.environment} if wish.environment else {}
    server = {"type": "local", "command": [*wish.program, "mcp"], **environment, "enabled": True, "timeout": 20000}
    command = json.dumps(wish.program)
    return [
        JsonEntry(settings, ("mcp", "postroom"), server, head={"$schema": "https://opencode.ai/config.json"}),
        Own(
            plugins / "postroom.js",
            texts.OPENCODE_PLUGIN.replace("%COMMAND%", command).replace("%EDITS%", json.dumps(wish.edits)),
        ),
    ]


def _cursor(wish: Wish) -> list[Step]:
    rules = f"---\ndescription: {texts.DESCRIPTION}\nalwaysApply: true\n---\n\n{texts.RULES}"
    steps: list[Step] = [JsonEntry(wish.base / ".cursor" / "mcp.json", ("mcpServers", "postroom"), wish.server())]
    if wish.scope == PROJECT:
        steps.append(Own(wish.project / ".cursor" / "rules" / "postroom.mdc", rules))
    return steps


def _vscode(wish: Wish) -> list[Step]:
    data = wish.home / "Library" / "Application Support" if sys.platform == "darwin" else _config(wish)
    user = data / "Code" / "User" / "mcp.json"
    settings = user if wish.scope == USER else wish.project / ".vscode" / "mcp.json"
    steps: list[Step] = [JsonEntry(settings, ("servers", "postroom"), wish.server(type="stdio"))]
    if wish.scope == PROJECT:
        page = wish.project / "AGENTS.md"
        steps.append(MarkedBlock(page, texts.RULES_BLOCK, texts.BLOCK_START, texts.BLOCK_END))
    return steps


def _windsurf(wish: Wish) -> list[Step]:
    entry = wish.server()
    if wish.scope == PROJECT:
        rules = f"---\ntrigger: always_on\n---\n\n{texts.RULES}"
        return [
            JsonEntry(wish.project / ".devin" / "config.json", ("mcpServers", "postroom"), entry),
            Own(wish.project / ".devin" / "rules" / "postroom.md", rules),
        ]
    legacy = wish.home / ".codeium" / "windsurf"
    steps: list[Step] = [JsonEntry(_config(wish) / "devin" / "config.json", ("mcpServers", "postroom"), entry)]
    if legacy.is_dir():  # the older agent of the same program
        steps.append(JsonEntry(legacy / "mcp_config.json", ("mcpServers", "postroom"), entry))
    return steps


def _shell(wish: Wish) -> list[Step]:
    """Completion. fish looks for a file of its own; the other two read what their settings say, a login bash others."""
    text = texts.SHELLS[wish.host]
    if wish.host == "fish":
        return [Own(_config(wish) / "fish" / "completions" / "postroom.fish", text)]
    bash = ".bash_profile" if sys.platform == "darwin" else ".bashrc"
    page = wish.home / bash if wish.host == "bash" else _folder(wish, "ZDOTDIR", "") / ".zshrc"
    block = f"{texts.SHELL_START}\n{text}{texts.SHELL_END}\n"
    return [MarkedBlock(page, block, texts.SHELL_START, texts.SHELL_END)]
