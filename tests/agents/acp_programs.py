"""The agent programs that speak the Agent Client Protocol: how each is started, and what gives it the model of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from . import programs
from .conftest import World
from .programs import MODULES, NODE

ADAPTERS: Final = MODULES / "@agentclientprotocol"
Settings = dict[str, str]


class Program(NamedTuple):
    """One program: its words, and the variables and files that a user of it would have."""

    words: list[str]
    variables: Callable[[World], Settings]
    #: Options of ours.
    options: tuple[str, ...] = ()


def _url(world: World) -> str:
    return f"http://127.0.0.1:{world.model.port}"


def _gemini(world: World) -> Settings:
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"disableAutoUpdate": True}}
    (world.home / ".gemini").mkdir(exist_ok=True)
    (world.home / ".gemini" / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": _url(world)}


def _qwen(world: World) -> Settings:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "general": {"enableAutoUpdate": False},
        "tools": {"approvalMode": "default"},
        # what asks the model for more than its turns
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
        "ui": {"enableFollowupSuggestions": False},
    }
    (world.home / ".qwen").mkdir(exist_ok=True)
    (world.home / ".qwen" / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": f"{_url(world)}/v1", "OPENAI_MODEL": "mock"}


def _kimi(world: World) -> Settings:
    model = {"NAME": "mock", "API_KEY": "x", "PROVIDER_TYPE": "openai", "BASE_URL": f"{_url(world)}/v1"}
    return {f"KIMI_MODEL_{name}": value for name, value in model.items()} | {"KIMI_CODE_NO_AUTO_UPDATE": "1"}


def _opencode(world: World) -> Settings:
    options = {"baseURL": f"{_url(world)}/v1", "apiKey": "x"}
    models = {"mock": {"name": "mock", "tool_call": True, "limit": {"context": 100000, "output": 4000}}}
    provider = {"npm": "@ai-sdk/anthropic", "options": options, "models": models}
    settings = {"model": "mock/mock", "small_model": "mock/mock", "provider": {"mock": provider}, "autoupdate": False}
    folder = world.home / ".config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
    return {}


def _cline(world: World) -> Settings:
    """Hosted, it takes accounts of its makers alone."""
    login = {"accessToken": "x", "refreshToken": "x", "accountId": "a", "expiresAt": 4102444800000}
    settings = {"provider": "cline", "apiKey": "x", "model": "mock", "baseUrl": f"{_url(world)}/v1", "auth": login}
    provider = {"settings": settings, "updatedAt": "2026-11-01T00:00:00.000Z", "tokenSource": "manual"}
    folder = world.home / ".cline" / "data" / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"version": 1, "lastUsedProvider": "cline", "providers": {"cline": provider}}
    (folder / "providers.json").write_text(json.dumps(kept), encoding="utf-8")
    return {}


def _copilot(world: World) -> Settings:
    """It takes no stdio servers from its host, so ours is installed in it."""
    world.postroom("install", "copilot")
    return {"COPILOT_PROVIDER_BASE_URL": f"{_url(world)}/v1", "COPILOT_MODEL": "mock", "COPILOT_OFFLINE": "true"}


def _claude(world: World) -> Settings:
    programs.claude_home(world.home, world.project)
    return programs.claude_environment(world.home, world.model.port)


def _codex(world: World) -> Settings:
    (world.home / ".codex").mkdir(exist_ok=True)
    settings = programs.codex_settings(world.model.port, world.project)
    (world.home / ".codex" / "config.toml").write_text(settings, encoding="utf-8")
    return {"MOCK_KEY": "x", "CODEX_PATH": str(programs.CODEX)}


CLINE: Final = str(MODULES / "@cline" / "cli-linux-x64" / "bin" / "cline")
PROGRAMS: Final = {
    "gemini": Program([str(NODE), str(programs.GEMINI), "--skip-trust", "--acp"], _gemini),
    "qwen": Program([str(NODE), str(MODULES / "@qwen-code" / "qwen-code" / "cli-entry.js"), "--acp"], _qwen),
    "kimi": Program([str(NODE), str(MODULES / "@moonshot-ai" / "kimi-code" / "dist" / "main.mjs"), "acp"], _kimi),
    "opencode": Program([str(programs.OPENCODE), "acp"], _opencode),
    "cline": Program([CLINE, "--acp"], _cline, ("--login", "cline")),
    "copilot": Program([str(MODULES / "@github" / "copilot-linux-x64" / "copilot"), "--acp"], _copilot),
    "claude": Program([str(NODE), str(ADAPTERS / "claude-agent-acp" / "dist" / "index.js")], _claude),
    "codex": Program([str(NODE), str(ADAPTERS / "codex-acp" / "dist" / "index.js")], _codex),
}
