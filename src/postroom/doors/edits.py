"""The guard at the edit: may this agent write this file now, and which agents are to be told that it did.

Doors call `look` before a write and `touched` after it: the hooks of agent programs, and the host of ACP sessions.
Nothing here ever stops work because the room is in trouble: where the room cannot say, the edit goes ahead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from postroom.board import globs as patterns
from postroom.board import recent_edits, reservations
from postroom.board.recent_edits import Edit
from postroom.core.checkout import Located, locate
from postroom.core.clock import iso
from postroom.core.message import Draft, check
from postroom.core.system.process import process_alive
from postroom.core.untrusted import head, is_plain, quoted, wrap
from postroom.errors import PostroomError
from postroom.mail import presence
from postroom.mail.gateway import Gateway

from . import session_binding

#: Nothing is looked at; reserved files are refused, and recent edits of others told; those are refused, too.
OFF, WARN, REFUSE = "off", "warn", "refuse"
MODES: Final = (OFF, WARN, REFUSE)
#: The variable by which a user, or an installed hook, chooses.
VARIABLE: Final = "POSTROOM_EDITS"
#: Two edits of one file within this time are told to both agents.
CLASH_S: Final = 60
#: The same two agents are told of the same file at most this often by mail.
_TOLD_EVERY_S: Final = 600
_MAX_SHOWN: Final = 200
#: So many files are looked at in one call; a patch has a few.
_MAX_PATHS: Final = 1000


class EditVerdict(NamedTuple):
    """Whether a write may go ahead. `reason` is what the agent is to read when it may not."""

    refused: bool = False
    reason: str = ""


ALLOWED: Final = EditVerdict()


def mode_of(said: str | None) -> str:
    """The mode that a setting means. An unknown word means the usual one: a typing error must not stop work."""
    return said if said in MODES else WARN


def look(gateway: Gateway, agent: str, paths: Iterable[str], *, cwd: str, mode: str = WARN) -> EditVerdict:
    """Whether the agent may write these files now. Paths are absolute, or relative to its folder `cwd`.

    Refused is a file that another agent has reserved for itself alone; with REFUSE also one that another agent that
    still runs has written in the last ten minutes, or is about to write. Allowed is everything else: what lies outside
    of the project, and whatever this cannot find out. With REFUSE an allowed file is taken for a minute, so that of two
    agents that look at the same moment one is refused; `touched` keeps it.
    Never raises a PostroomError or an OSError. Not promised: how long it takes where the room is busy. The caller
    bounds it, and lets the edit go ahead after that.
    """
    if mode == OFF:
        return ALLOWED
    try:
        found = _located(paths, cwd)
        if not found:
            return ALLOWED
        for shown, value in _reserved_of(gateway, agent, found):
            return EditVerdict(True, _reserved(gateway, agent, shown, value))
        if mode == REFUSE:
            files = {_key(place): shown for shown, place in found.items()}
            taken = recent_edits.take(gateway, agent, list(files), lambda name: _is_gone(gateway, name))
            if taken:
                return EditVerdict(True, _being_edited(gateway, agent, files[taken[0].file], taken[0]))
    except (PostroomError, OSError):
        pass  # the room's trouble is no reason to stop work
    return ALLOWED


def touched(gateway: Gateway, agent: str, paths: Iterable[str], *, cwd: str, mode: str = WARN) -> str:
    """The agent has written these files. Returns what it is to be told of that; "" for nothing.

    After: for ten minutes the files count as edited by it. An agent that wrote one of them less than a minute before
    has mail that says so, once in ten minutes for each file. Each edit of another agent is told once. A
    reservation of another agent is told, too, if the write passed it by: the look before it may have been too late.
    Never raises a PostroomError or an OSError.
    """
    if mode == OFF:
        return ""
    try:
        found = _located(paths, cwd)
        files = {_key(place): shown for shown, place in found.items()}
        others = recent_edits.note(gateway, agent, list(files)) if files else []
        for edit in others:
            _tell_other(gateway, agent, files[edit.file], edit)
        lines = [_edited_before(gateway, files[edit.file], edit) for edit in others]
        lines += [_written_all_the_same(shown, value) for shown, value in _reserved_of(gateway, agent, found)]
        return "\n".join(lines)
    except (PostroomError, OSError):
        return ""


def mentioned(gateway: Gateway, agent: str, words: Iterable[str], *, cwd: str, mode: str = WARN) -> str:
    """What an agent is to be told whose shell command named these files or patterns, and may have written them.

    A command is not understood, and never refused: only the reservations of others that a word of it meets are told.
    """
    if mode == OFF:
        return ""
    try:
        others = reservations.exclusive_of_others(gateway, agent)
        found = _located(words, cwd) if others else {}
        lines = []
        for value in others:
            met = [
                shown
                for shown, place in found.items()
                if any(patterns.overlap(glob, name) for glob in value["globs"] for name in place.names)
            ]
            if met:
                named = ", ".join(_named(each) for each in met[:3])
                lines.append(
                    f"postroom: that command named {named}, reserved by {head(value['agent'])} until "
                    f"{iso(value['lease'])}. Commands are not stopped: if it changed something there, tell the holder."
                )
        return "\n".join(lines)
    except (PostroomError, OSError):
        return ""


def ended(gateway: Gateway, agent: str) -> None:
    """The agent's session is over: what it edited is nobody's now."""
    recent_edits.forget(gateway, agent)


# Files


def _reserved_of(gateway: Gateway, agent: str, found: dict[str, Located]) -> Iterator[tuple[str, reservations.Value]]:
    """Those of these files that another agent has reserved for itself alone, each with its reservation."""
    for value in reservations.exclusive_of_others(gateway, agent):
        for shown, place in found.items():
            if any(_covers(glob, place) for glob in value["globs"]):
                yield shown, value


def _located(paths: Iterable[str], cwd: str) -> dict[str, Located]:
    """The files that belong to the project, each by its name from the top."""
    found: dict[str, Located] = {}
    for path in list(paths)[:_MAX_PATHS]:
        place = locate(path, cwd) if path and "\0" not in path else None
        if place is not None:
            found[place.names[0]] = place
    return found


def _key(place: Located) -> str:
    name = place.names[0]
    return f"{place.tree}/{name.casefold() if place.blind_to_case else name}"


def _covers(glob: str, place: Located) -> bool:
    """Whether a reservation means that file, also where the pattern itself goes through a symbolic link."""
    for each in (glob, _resolved(glob, place.top)):
        if place.blind_to_case:
            if any(patterns.covers(each.casefold(), name.casefold()) for name in place.names):
                return True
        elif any(patterns.covers(each, name) for name in place.names):
            return True
    return False


def _resolved(glob: str, top: str) -> str:
    """The pattern with the links in its plain beginning followed; itself, where they lead out of the checkout."""
    parts = glob.split("/")
    plain = next((place for place, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
    real = os.path.relpath(os.path.realpath(os.path.join(top, *parts[:plain])), top) if plain else "."
    return glob if real == "." or real.startswith("..") else "/".join([real, *parts[plain:]])


def _is_gone(gateway: Gateway, name: str) -> bool:
    """Whether an agent has ended, as far as anybody knows."""
    bound = session_binding.look(gateway, name)
    if bound is not None and bound["process"] is not None and process_alive(bound["process"]) is False:
        return True
    seen = presence.look(gateway, name)
    return seen is not None and seen["status"] in (presence.STOPPED, presence.GONE)


# Words


def _reserved(gateway: Gateway, agent: str, shown: str, value: reservations.Value) -> str:
    holder = value["agent"]
    said = wrap(f"{quoted(holder, _MAX_SHOWN)}: {reservations.working_on(gateway, value)}", None)
    return (
        f"postroom: {_named(shown)} is reserved by {head(holder)} until {iso(value['lease'])}. "
        f"The edit was not made. {_how_to_ask(agent, holder, shown)} If it agrees, it runs `postroom unreserve`; then "
        f"try again. Why it is reserved:\n{said}"
    )


def _written_all_the_same(shown: str, value: reservations.Value) -> str:
    return (
        f"postroom: {_named(shown)} is reserved by {head(value['agent'])} until {iso(value['lease'])}, and you have "
        "changed it. Tell the holder what you changed."
    )


def _being_edited(gateway: Gateway, agent: str, shown: str, edit: Edit) -> str:
    return (
        f"postroom: {_named(shown)} was edited by {head(edit.agent)} {_ago(gateway, edit)}, and is kept "
        f"for it until {iso(edit.until_ms)}. The edit was not made. {_how_to_ask(agent, edit.agent, shown)} "
        f"If it agrees, it runs `postroom unreserve --all`; then read the file again."
    )


def _named(shown: str) -> str:
    return shown if _is_plain(shown) else quoted(shown, _MAX_SHOWN)


def _is_plain(shown: str) -> bool:
    return len(shown) <= _MAX_SHOWN and all(is_plain(part) for part in shown.split("/"))


def _how_to_ask(agent: str, holder: str, shown: str) -> str:
    if not is_plain(holder):
        return "Ask the holder first: `postroom reserve` lists it."
    what = shown if _is_plain(shown) else "that file"
    me = agent if is_plain(agent) else "ME"
    return (
        f"Ask first: the postroom tool `ask` with to={holder}, or the command "
        f"`postroom ask {holder} 'May I edit {what}?' --as {me} --timeout 60`."
    )


def _edited_before(gateway: Gateway, shown: str, edit: Edit) -> str:
    return (
        f"postroom: {head(edit.agent)} edited {_named(shown)} {_ago(gateway, edit)}. Read it again before "
        "you go on, and agree with that agent on who changes it."
    )


def _ago(gateway: Gateway, edit: Edit) -> str:
    s = max(0, (gateway.clock.wall_ms() - edit.at_ms) // 1000)
    return f"{s} s ago" if s < 2 * CLASH_S else f"{s // 60} minutes ago"


def _tell_other(gateway: Gateway, agent: str, shown: str, edit: Edit) -> None:
    """Mail for the agent that wrote the file just before. That it cannot be sent is no reason to fail."""
    now_ms = gateway.clock.wall_ms()
    if now_ms - edit.at_ms >= CLASH_S * 1000 or _is_gone(gateway, edit.agent):
        return
    text = (
        f"I edited {_named(shown)} {_ago(gateway, edit).removesuffix(' ago')} after you did. Read it again "
        "before you go on. (Sent by Postroom.)"
    )
    key = f"{edit.file} {edit.agent} {now_ms // (_TOLD_EVERY_S * 1000)}"
    draft = Draft(
        from_agent=agent,
        to_agent=edit.agent,
        type="info",
        payload={"text": text, "path": shown},
        idempotency_key=key[-_MAX_SHOWN:],
    )
    with suppress(PostroomError):  # with the same key another text is refused, which is as good
        gateway.put([check(draft)])
