"""Permission requests of an agent program, as questions to a person: asked in the room, and answered wherever people answer.

Nothing is allowed by default. Where nobody answers in time, or could answer, the hook is silent, and the program asks at its
own terminal as if there were no hook. So it does with calls that are too long to be shown whole: nobody should allow what
was not seen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from postroom.core.untrusted import visible
from postroom.errors import PostroomError
from postroom.mail import people
from postroom.mail.gateway import Gateway

#: Names the person that is asked, or `*` for any person of the room; the installer puts it before the hook's command.
VARIABLE: Final = "POSTROOM_PERMISSIONS"
ALLOW, DENY = "allow", "deny"
#: A person has so long to answer, in seconds; the hook may take a little longer (`install/texts.py`).
ANSWER_S: Final = 600.0
MAX_CHARS: Final = 20_000
#: Marks these questions among others, with the tool.
MARK: Final = "permission"


def asked_person(environment: Mapping[str, str]) -> str | None:
    """The person that is asked, or `*`; None where requests are not relayed."""
    return environment.get(VARIABLE) or None


def question_of(name: str, given: Mapping[str, Any]) -> str | None:
    """What the person is asked; None for a call that is too long, or is none."""
    tool, what = given.get("tool_name"), given.get("tool_input")
    if not isinstance(tool, str):
        return None
    text = f"May {name} use {visible(tool)}? {visible(msgspec.json.encode(what).decode())}"
    return text if len(text) <= MAX_CHARS else None


def decide(gateway: Gateway, name: str, given: Mapping[str, Any], person: str) -> dict[str, Any] | None:
    """The decision as Claude Code takes it; None where it is to ask by itself.

    What is decided at the program's own terminal meanwhile ends the question (`take_back`); so does the end of this process.
    """
    text = question_of(name, given)
    if text is None:
        return None
    wording = people.wording_of_call(text, (ALLOW, DENY), {MARK: given["tool_name"]})
    id = people.ask(gateway, name, None if person == people.ANYBODY else person, wording, ANSWER_S)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        answer = gateway.finish(people.waiting(gateway, id, ANSWER_S))
    except PostroomError:  # nobody has answered in time
        return None
    except BaseException:
        with suppress(PostroomError):
            gateway.withdraw(id, name, "it was decided elsewhere")
        raise
    if answer.said == ALLOW:
        return {"behavior": ALLOW}
    return {"behavior": DENY, "message": f"{visible(answer.by)} does not allow it."}


def take_back(gateway: Gateway, name: str, given: Mapping[str, Any] | None = None) -> None:
    """A tool has run (None: the turn is over), so what was asked about it was decided at the terminal: ask nobody any more."""
    text = None if given is None else question_of(name, given)
    for question in people.open_questions(gateway, write=False):
        if question.asker == name and MARK in question.data and (given is None or question.text == text):
            with suppress(PostroomError):
                gateway.withdraw(question.id, name, "it was decided elsewhere")


def _leave(*_: object) -> None:
    raise SystemExit(os.EX_OK)
