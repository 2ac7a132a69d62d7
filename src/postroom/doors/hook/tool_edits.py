"""The files that a tool of an agent program writes, as its hooks report the call: data for each tool, nothing is opened.

A tool that stands nowhere here is not known to write. The shapes are those of the programs themselves
(tests/agents/test_guard.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

#: The tools that write one file (Claude Code; Gemini CLI and Qwen Code; OpenCode), and the fields that name it.
_WRITERS: Final = frozenset(
    (
        "Edit",
        "MultiEdit",
        "NotebookEdit",
        "Write",
        "edit",
        "multiedit",
        "notebook_edit",
        "replace",
        "write",
        "write_file",
    )
)
_PATHS: Final = ("file_path", "filePath", "notebook_path")
#: The tools that apply a patch of several files, and the fields that may hold it: Codex; OpenCode.
_PATCHES: Final = {"apply_patch": ("command", "input", "patchText"), "patch": ("patchText",)}
#: The tools that run a command.
SHELLS: Final = frozenset(("Bash", "bash", "exec_command", "local_shell", "run_shell_command", "shell"))
#: The lines of a patch that name a file.
_NAMED: Final = re.compile(r"^\*\*\* (?:Add File|Update File|Delete File|Move to): (.+?)\s*$", re.M)
#: A command that is a patch and nothing else, perhaps in another folder: Codex takes it for an edit, and runs no shell.
_IS_PATCH: Final = re.compile(r"\s*(?:cd\s+(['\"]?)([^'\"&|;]+?)\1\s*&&\s*)?apply_?patch\s*<<")
#: The part of a command between blanks, quotes and the shell's own signs; a word of it may be a file.
_WORD: Final = re.compile(r"[^\s'\"`;|&<>()={}]+")
#: The signs of a command that writes: it need not, and others that do have none of them.
_WRITES: Final = re.compile(
    r">|\b(?:apply_patch|chmod|cp|dd|ed|git|install|ln|mv|patch|perl|python3?|rm|rsync|sed|shred|tee|touch|truncate|unlink)\b"
)
MAX_WORDS: Final = 100


def written_by(tool: Any, given: Any) -> list[str]:
    """The files that a call of a tool writes, moves or deletes, as it names them; [] for a tool that writes none."""
    if not isinstance(tool, str) or not isinstance(given, Mapping):
        return []
    if tool in _WRITERS:
        return [path for path in map(given.get, _PATHS) if isinstance(path, str) and path]
    if tool in SHELLS:
        return _patched_by(given.get("command", given.get("cmd")))
    texts = (given.get(field) for field in _PATCHES.get(tool, ()))
    return [name for text in texts if isinstance(text, str) for name in _NAMED.findall(text)]


def _patched_by(command: Any) -> list[str]:
    """The files of a command that is a patch."""
    text = command[-1] if isinstance(command, list) and command else command
    patch = _IS_PATCH.match(text) if isinstance(text, str) else None
    return [] if patch is None else [os.path.join(patch[2] or "", name) for name in _NAMED.findall(text)]


def words_of(tool: Any, given: Any) -> list[str]:
    """The words of a shell command that may be files, if it looks like one that writes; [] for another tool."""
    if not isinstance(tool, str) or tool not in SHELLS or not isinstance(given, Mapping):
        return []
    said = given.get("command", given.get("cmd"))
    text = " ".join(map(str, said)) if isinstance(said, list) else said
    if not isinstance(text, str) or not _WRITES.search(text):
        return []
    patch = _NAMED.findall(text)
    words = (word for word in _WORD.findall(text) if not word.startswith("-"))
    return list(dict.fromkeys((*patch, *words)))[:MAX_WORDS]
