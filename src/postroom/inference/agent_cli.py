"""The agent programs that people already have, asked headless: `claude -p` and `codex exec`.

They are asked as plain models: without tools, hooks, servers or memory, in an empty folder, so that nothing in a prompt
can make them act. Variables that tell them that they run inside themselves are left out.
"""

from __future__ import annotations

import json
import os
import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Final

from postroom.core.clock import SYSTEM
from postroom.errors import ModelError

from .child_program import Said, run_program
from .model import Completion, Model, ModelRequest
from .throttle import Slots, concurrency_of

#: Set in the surroundings of a program that is asked as a model: hooks of Postroom do nothing there.
INSIDE_VARIABLE: Final = "POSTROOM_INSIDE_MODEL"
_MAX_WORDS: Final = 500
#: A program that sees these believes that it was started by itself, and refuses or writes into the session around it.
_SESSION_VARIABLES: Final = ("CLAUDECODE", "CLAUDE_CODE_", "CODEX_THREAD_ID", "CODEX_SESSION_ID", "CLAUDE_PLUGIN_")


class HostModel(Model):
    """An agent program. Its own model is used unless one is named."""

    def __init__(self, name: str = "", program: str | None = None) -> None:
        if name.startswith("-"):
            raise ModelError(f"a model's name cannot begin with a dash: {name!r}")
        self.name = name
        self.program = program or os.environ.get(f"POSTROOM_{self.kind.upper()}") or self.kind

    def _answer(self, asked: ModelRequest) -> Completion:  # without max_tokens: neither program has such an option
        started_ns = SYSTEM.steady_ns()
        slots = Slots(f"program {self.program}", concurrency_of(os.environ))  # each is a heavy process of its own
        with slots.taken(asked.timeout_s), tempfile.TemporaryDirectory(prefix="postroom-model-") as folder:
            words, given = self._command(Path(folder), asked)
            left_s = max(0.001, asked.timeout_s - (SYSTEM.steady_ns() - started_ns) / 1e9)
            said = run_program(words, given, environment=surroundings(), folder=folder, timeout_s=left_s)
            return self._read(Path(folder), said)._replace(first_byte_ms=said.first_byte_ms)

    @abstractmethod
    def _command(self, folder: Path, asked: ModelRequest) -> tuple[list[str], str]:
        """The words to start it with, and what it reads."""

    @abstractmethod
    def _read(self, folder: Path, said: Said) -> Completion:
        """What it answered; ModelError when it did not."""

    def _failed(self, said: Said, why: str = "") -> ModelError:
        words = (why or said.errors.decode(errors="replace") or said.output.decode(errors="replace")).strip()
        return ModelError(f"{self.program} {said.ended}: {words[-_MAX_WORDS:] or 'it did not say why'}")


class ClaudeModel(HostModel):
    """`claude -p`."""

    kind: ClassVar[str] = "claude"

    def _command(self, folder: Path, asked: ModelRequest) -> tuple[list[str], str]:
        del folder
        words = [self.program, "-p", "--output-format", "json", "--tools", "", "--strict-mcp-config"]
        words += ["--no-session-persistence", "--settings", '{"disableAllHooks": true}']
        words += ["--model", self.name] if self.name else []
        words += ["--system-prompt", asked.system] if asked.system else []
        words += ["--json-schema", json.dumps(asked.schema)] if asked.schema is not None else []
        return words, asked.prompt

    def _read(self, folder: Path, said: Said) -> Completion:
        del folder
        try:
            told = json.loads(said.output)
            usage = told.get("usage") or {}
        except (ValueError, AttributeError):
            raise self._failed(said) from None
        if told.get("is_error") or said.ended.code != 0:
            raise self._failed(said, str(told.get("result") or told.get("errors") or told.get("subtype") or ""))
        structured = told.get("structured_output")
        text = str(told.get("result") or "") if structured is None else json.dumps(structured)
        names = list(told.get("modelUsage") or ())
        model = f"{self.kind}:{names[0]}" if names else self.spec
        return Completion(text, model, usage.get("input_tokens"), usage.get("output_tokens"))


class CodexModel(HostModel):
    """`codex exec`."""

    kind: ClassVar[str] = "codex"

    def _command(self, folder: Path, asked: ModelRequest) -> tuple[list[str], str]:
        words = [self.program, "exec", "--json", "--ephemeral", "--skip-git-repo-check", "--sandbox", "read-only"]
        words += ["--color", "never", "--disable", "hooks", "--output-last-message", str(folder / "answer")]
        words += ["--model", self.name] if self.name else []
        if asked.schema is not None:
            (folder / "schema.json").write_text(json.dumps(asked.schema), encoding="utf-8")
            words += ["--output-schema", str(folder / "schema.json")]
        return [*words, "-"], f"{asked.system}\n\n{asked.prompt}" if asked.system else asked.prompt

    def _read(self, folder: Path, said: Said) -> Completion:
        events = [event for line in said.output.splitlines() if isinstance(event := _json(line), dict)]
        if said.ended.code != 0 or not (folder / "answer").is_file():
            why = [
                str(event.get("message") or event.get("error")) for event in events if "error" in str(event.get("type"))
            ]
            raise self._failed(said, why[-1] if why else "")
        usage: dict[str, Any] = next(
            (event["usage"] for event in reversed(events) if isinstance(event.get("usage"), dict)), {}
        )
        text = (folder / "answer").read_text(encoding="utf-8", errors="replace")
        return Completion(text, self.spec, usage.get("input_tokens"), usage.get("output_tokens"))


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def surroundings() -> dict[str, str]:
    """The environment for an agent program: ours, without what says that a session of it is around us."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SESSION_VARIABLES)}
    return {**kept, INSIDE_VARIABLE: "1"}
