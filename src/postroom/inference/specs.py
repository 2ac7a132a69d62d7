"""From a spec to a model: "ollama:llama3.2:3b", "openai:qwen@http://127.0.0.1:8080/v1", "claude", "codex", "mock:7"."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from postroom.core.system.startup import load_target
from postroom.errors import ModelMissing

from .model import Model

MODEL_VARIABLE: Final = "POSTROOM_MODEL"
OLLAMA_VARIABLE: Final = "OLLAMA_HOST"
#: What a server of Ollama is asked for when only its address is known.
OLLAMA_MODEL: Final = "llama3.2:3b"

#: Variables that tell that we run inside an agent program, and the spec of that program. Codex gives its plug-ins some
#: of Claude's names too, but not CLAUDECODE.
_HOSTS: Final = (
    ("CLAUDECODE", "claude"),
    ("CODEX_THREAD_ID", "codex"),
    ("CODEX_SESSION_ID", "codex"),
    ("PLUGIN_ROOT", "codex"),
    ("CLAUDE_PLUGIN_ROOT", "claude"),
)

#: The class of each kind of model: at a server, with a name and an address, or on this machine. Each is loaded when it
#: is named: all of them take as long to load as the rest of the package.
_SERVERS: Final = {
    "ollama": "postroom.inference.ollama_model:OllamaModel",
    "openai": "postroom.inference.openai_model:OpenAIModel",
}
_LOCAL: Final = {
    "mock": "postroom.inference.mock_model:MockModel",
    "claude": "postroom.inference.agent_cli:ClaudeModel",
    "codex": "postroom.inference.agent_cli:CodexModel",
}

_NAME_AT_URL: Final = re.compile(r"(.+?)@(\w+://.*)", re.S)

HOW: Final = (
    "Set POSTROOM_MODEL to one of ollama:NAME[@URL], openai:NAME@URL, claude[:MODEL], codex[:MODEL], mock[:SEED]"
    " (for example POSTROOM_MODEL=ollama:llama3.2:3b), or OLLAMA_HOST to the address of an Ollama server."
)


def default_spec(environ: Mapping[str, str] | None = None) -> str:
    """The spec that the surroundings ask for: POSTROOM_MODEL, else the agent program around us, else OLLAMA_HOST.

    Raises ModelMissing, with a sentence that says how to set one, when there is none of them.
    """
    env = os.environ if environ is None else environ
    if env.get(MODEL_VARIABLE):
        return env[MODEL_VARIABLE]
    for variable, spec in _HOSTS:
        if env.get(variable):
            return spec
    if env.get(OLLAMA_VARIABLE):
        return f"ollama:{OLLAMA_MODEL}"
    raise ModelMissing(f"No language model is set. {HOW}")


def open_model(spec: str | None = None) -> Model:
    """A model by its spec; None is `default_spec()`. Nothing is asked or connected to yet.

    Raises ModelMissing for a spec that names none; an optional package that is not installed is named.
    """
    spec = default_spec() if spec is None else spec
    kind, _, name = spec.partition(":")
    model: Model
    if kind in _LOCAL:
        model = load_target(_LOCAL[kind])(name)
        return model
    name, url = name_and_url(name)
    if kind in _SERVERS and name:
        model = load_target(_SERVERS[kind])(name, url or "")
        return model
    said = spec if "@" not in spec else f"{kind.partition('@')[0]}:…"  # an address may hold a password
    raise ModelMissing(f"{said!r} is not a language model. {HOW}")


def name_and_url(text: str) -> tuple[str, str | None]:
    """A model's name and its server's address; the name may hold an @ of its own.

    A password in the address stays there, where it is refused: in the name it would be shown (test_opening.py).
    """
    if whole := _NAME_AT_URL.fullmatch(text):
        return whole[1], whole[2]
    name, found, url = text.rpartition("@")
    return (name, url) if found and name and ("://" in url or ":" in url) else (text, None)
