"""Record and replay of prompts: answers are written to a file as they come; replayed, a run needs no model and nobody.

One line of JSON for each answer: {"worker", "kind", "prompt", "answer"}. Answers are given in the order of the file, to
each worker its own. A line may leave out `worker` (the program itself) and `prompt`; a prompt that is there must match.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from postroom.errors import PostroomError
from postroom.lang.builtins import MAIN
from postroom.lang.values.raised import NoAnswer

#: What asks.
KINDS: Final = ("think", "ask", "askMany")


class BadTranscript(PostroomError):
    """A file of prompts and answers cannot be read."""


def begin(path: str) -> str:
    """Start a new transcript in that file, which is empty after. Returns its absolute path; BadTranscript otherwise."""
    try:
        with open(path, "w", encoding="utf-8"):
            return os.path.abspath(path)
    except OSError as error:
        raise BadTranscript(f"the transcript {path} cannot be written: {error.strerror}") from None


def record(path: str, worker: str, kind: str, prompt: str, answer: str) -> None:
    """Add one answer. The line is written in one piece, so that workers side by side do not mix theirs."""
    line = {"worker": worker, "kind": kind, "prompt": prompt, "answer": answer}
    raw = json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    with open(path, "ab", buffering=0) as file:
        file.write(raw)


class Transcript:
    """Recorded answers, from which those of one worker are taken."""

    def __init__(self, path: str, worker: str) -> None:
        self._path = path
        self._worker = worker
        self._lines = [line for line in read(path) if line.get("worker", MAIN) == worker]
        self._at = dict.fromkeys(KINDS, 0)

    def answer(self, kind: str, prompt: str) -> str:
        """The next answer to this worker. NoAnswer when there is none, or when it was to another prompt."""
        lines = [line for line in self._lines if line["kind"] == kind]
        number = self._at[kind]
        self._at[kind] += 1
        if number >= len(lines):
            has = f"{self._path} has {len(lines)} answers to {kind} of {self._worker}"
            raise NoAnswer(f"{has}, and this is number {number + 1}")
        said: dict[str, Any] = lines[number]
        if "prompt" in said and said["prompt"] != prompt:
            which = f"answer {number + 1} to {kind} of {self._worker} in {self._path}"
            raise NoAnswer(f"{which} was given to another prompt: {_difference(said['prompt'], prompt)}")
        return str(said["answer"])


def _difference(recorded: str, now: str) -> str:
    for one, other in zip([*recorded.split("\n"), "(its end)"], [*now.split("\n"), "(its end)"], strict=False):
        if one != other:
            return f"{one!r} then, {other!r} now"
    return "they differ"


def read(path: str) -> list[dict[str, Any]]:
    """The lines of a transcript; BadTranscript, which names the line, for one that is none."""
    try:
        with open(path, encoding="utf-8") as file:
            texts = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadTranscript(f"the transcript {path} cannot be read: {why}") from None
    lines = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or line.get("kind") not in KINDS or "answer" not in line:
            like = '{"kind": "think", "answer": "..."}'
            raise BadTranscript(f"line {number} of {path} is not an answer; each line looks like {like}")
        lines.append(line)
    return lines
