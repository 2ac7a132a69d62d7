"""The first look of a hook, before anything is loaded: in most folders there is no room, and nothing to do.

Programs run hooks everywhere once they are installed. Where there is no room this costs little more than Python itself.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final

from postroom.core.system import startup

from . import command

MAX_STDIN: Final = 4 * 1024 * 1024
#: Codex has a hook before every command, because one that is a patch is an edit. Any other need not be looked at.
_COMMAND: Final = re.compile(rb'"tool_name"\s*:\s*"Bash"')
_BEFORE: Final = re.compile(rb'"hook_event_name"\s*:\s*"PreToolUse"')
_PATCH: Final = b"*** Begin Patch"
_CWD: Final = re.compile(rb'"cwd"\s*:\s*"([^"\\]+)"')


def main(words: list[str]) -> int:
    """Answer a hook; silently, with 0, where there can be no room."""
    try:
        given = sys.stdin.buffer.read(MAX_STDIN)
        if _is_plain_command(given) or not (may_have_room(given) or may_wait_for_room(given)):
            return 0
        startup.load_msgspec()
        answer = command.main  # this loads it
    except Exception:  # noqa: BLE001  the host's work matters more than ours
        return 0
    return answer(words, given)


def may_wait_for_room(given: bytes) -> bool:
    """Whether this is the start of a session that can be told of a room that is made later."""
    return b'"SessionStart"' in given and "CLAUDE_PROJECT_DIR" in os.environ


def _is_plain_command(given: bytes) -> bool:
    """Whether this is the moment before a command that is no patch."""
    return _PATCH not in given and bool(_BEFORE.search(given) and _COMMAND.search(given))


def may_have_room(given: bytes) -> bool:
    """Whether `config.find_room` might find one from here. False is sure; True only says: look closely."""
    if os.environ.get("POSTROOM_URL"):
        return True
    said = _CWD.search(given)
    places = [os.environ.get(name) for name in ("CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR")]
    places += [os.getcwd(), said[1].decode("utf-8", "replace") if said else None]
    return any(place and _room_above(os.path.abspath(place)) for place in dict.fromkeys(places))


def _room_above(folder: str) -> bool:
    while True:
        # a `.git` that is a file is a worktree, whose room may lie elsewhere
        if os.path.isdir(f"{folder}/.postroom") or os.path.isfile(f"{folder}/.git"):
            return True
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above
