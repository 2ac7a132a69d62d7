"""Permission requests of an agent program: our own mail tools are allowed, everything else is a person's to decide.

The request becomes a question to a person (`mail/people.py`), which may be answered wherever people answer. Nothing is
allowed by default: without an answer in time, or without anybody who could give one, it is denied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from postroom import aio
from postroom.core.untrusted import visible
from postroom.doors.mcp import tools
from postroom.errors import PostroomError

from .peer import BAD_PARAMS, RpcError
from .session import ToolCall

#: A person has so long to decide, in seconds; then the answer is no.
ANSWER_S: Final = 600.0
DENY: Final = "deny"
#: What a person answers, for each kind of option that the protocol has.
WORDS: Final = {"allow_once": "allow", "allow_always": "always", "reject_once": DENY, "reject_always": "never"}
CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
_MAX_TEXT: Final = 2000


def is_own(call: ToolCall | None) -> bool:
    """Whether a call is of one of our tools: starting an agent in a room lets it use its mailbox."""
    return call is not None and call.own in tools.BY_NAME


def options_of(params: dict[str, Any]) -> dict[str, str]:
    """The ids of the options, by the words for them; of several of one kind the first."""
    options = params.get("options")
    if not isinstance(options, list):
        raise RpcError(BAD_PARAMS, "options must be a list")
    found: dict[str, str] = {}
    for option in options:
        if isinstance(option, dict) and isinstance(option.get("optionId"), str) and option.get("kind") in WORDS:
            found.setdefault(WORDS[option["kind"]], option["optionId"])
    return found


def chosen(options: dict[str, str], *words: str) -> dict[str, Any]:
    """The answer that chooses the first of these words that is an option; `cancelled` where none is."""
    id = next((options[word] for word in words if word in options), None)
    return CANCELLED if id is None else {"outcome": {"outcome": "selected", "optionId": id}}


async def ask_person(
    room: aio.Room, agent: str, person: str | None, what: str, options: dict[str, str], tell: Callable[..., None]
) -> str:
    """The word that a person (None: any person) answers; DENY when nobody can or does. Cancelled, it is taken back."""
    text = f"May {agent} do this? {visible(what)[:_MAX_TEXT]}"
    offered = [word for word in WORDS.values() if word in options] or [DENY]
    offered = offered if DENY in offered else [*offered, DENY]
    id = ""
    try:
        id = await room.people.ask(person, text, agent, options=offered, default=DENY, timeout_s=ANSWER_S)
        tell("asked", tool=what, id=id)
        return (await room.people.wait(id)).said
    except PostroomError as error:
        tell("permission", tool=what, answer=f"denied: {error}")
        return DENY
    except BaseException:
        if id:
            with suppress(PostroomError):
                await room.agent(agent, transient=True).withdraw(id)
        raise
