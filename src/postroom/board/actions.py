"""The seven actions of the mailbox protocol, each with the direction in which it may travel.

Roles. `board` is the board; an agent is a lead when it is called `lead`, or when it was named as the lead of a task;
all others are workers.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

from postroom.core.untrusted import quoted
from postroom.errors import WrongDirection

BOARD: Final = "board"
LEAD: Final = "lead"
WORKER: Final = "worker"
ANY: Final = "any"


class Action(NamedTuple):
    """What may be said: from whom, to whom, and what for."""

    sender: str
    recipient: str
    purpose: str


ACTIONS: Final = {
    "implement": Action(LEAD, WORKER, "assign a task to a worker"),
    "done": Action(WORKER, LEAD, "signal that a task is done"),
    "blocked": Action(WORKER, LEAD, "signal that a task is blocked"),
    "status": Action(ANY, BOARD, "update the shared status"),
    "claim": Action(WORKER, BOARD, "claim a task, so that no other worker does it"),
    "abort": Action(LEAD, WORKER, "tell a worker to stop its task"),
    "info": Action(ANY, ANY, "pass on information"),
}


def role_of(name: str | None, leads: Container[str]) -> str:
    """The role of an agent: board, lead or worker."""
    if name == BOARD:
        return BOARD
    return LEAD if name == LEAD or name in leads else WORKER


def check_direction(action: str, sender: str, recipient: str | None, leads: Container[str] = ()) -> None:
    """Raise WrongDirection, with the rule, when that action may not go from that sender to that recipient."""
    if action not in ACTIONS:
        raise WrongDirection("action", f"there is no action {action!r}; the actions are: {', '.join(ACTIONS)}")
    rule = ACTIONS[action]
    for end, wanted, name in (("from", rule.sender, sender), ("to", rule.recipient, recipient)):
        found = role_of(name, leads)
        if wanted not in (ANY, found):
            raise WrongDirection(
                "action",
                f"`{action}` goes from {rule.sender} to {rule.recipient}; {end} {quoted(name or 'nobody')} (a {found}) it may not go",
            )
