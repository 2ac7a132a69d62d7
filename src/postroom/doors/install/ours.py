"""Recognises the entries of Postroom in others' settings by their command: a server or a hook of any version."""

from __future__ import annotations

import os
import shlex
from typing import Any, Final

AGENT: Final = "POSTROOM_AGENT"
#: What stands before the command of a hook: the name of the agent, how its edits are guarded, whom it asks.
_VARIABLES: Final = (f"{AGENT}=", "POSTROOM_EDITS=", "POSTROOM_PERMISSIONS=")


def is_server(entry: Any) -> bool:
    """Whether an entry of an MCP server is one that `postroom install` writes, of this installation or of another."""
    match entry:
        case {"transport": {**inner}}:
            return is_server(inner)
        case {"command": str(command), "args": [*words, "mcp"]}:
            return _is_program([command, *words])
        case {"command": [*words, "mcp"]}:
            return _is_program(words)
    return False


def is_hook(handler: Any) -> bool:
    """Whether the command line of a hook is one that `postroom install` writes, of this installation or of another."""
    match handler:
        case {"command": str(command)}:
            try:
                words = shlex.split(command)
            except ValueError:
                return False
            while words and words[0].startswith(_VARIABLES):
                words = words[1:]
            return words[-2:] == ["hook", "auto"] and _is_program(words[:-2])
    return False


def _is_program(words: list[Any]) -> bool:
    """Whether the words start Postroom: its command, or Python with its module, whatever options Python has before."""
    match words:
        case [str(command)]:
            return os.path.basename(command) == "postroom"
        case [str(), *options, "-m", "postroom"]:
            return all(isinstance(each, str) and each.startswith("-") for each in options)
    return False
