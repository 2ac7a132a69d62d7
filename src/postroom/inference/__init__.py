"""Language models, and evaluators that ask them.

    from postroom.inference import open_model

    model = open_model("ollama:llama3.2:3b")
    print(model.complete("Say hello.", max_tokens=20, timeout_s=10).text)

Evaluators for a pool: "postroom.inference:mock", ":ollama", ":openai", ":claude", ":codex", ":by_spec".
"""

from __future__ import annotations

from .evaluators import by_spec, claude, codex, compose, mock, ollama, openai
from .model import Completion, Model
from .specs import default_spec, open_model

__all__ = [
    "Completion",
    "Model",
    "by_spec",
    "claude",
    "codex",
    "compose",
    "default_spec",
    "mock",
    "ollama",
    "open_model",
    "openai",
]
