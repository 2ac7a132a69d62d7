"""Questions to people over MCP: `ask` with options, a default or a deadline, and what `receipt` tells of one.

There is no way to answer one here: a person answers at a terminal or on the page, and what speaks MCP is a model.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from postroom import aio
from postroom.core.message import Message
from postroom.core.untrusted import quoted
from postroom.errors import AskTimeout, InvalidMessage
from postroom.mail import people

from . import tools
from .board_calls import WithProgress
from .caller import Caller, Progress
from .shown import Words, name_of


class PeopleCalls:
    """Asking people. One for each server."""

    def __init__(self, room: aio.Room, wait: WithProgress) -> None:
        self._room = room
        self._wait = wait

    async def ask(self, caller: Caller, given: tools.Ask, payload: dict[str, Any], cause: Message | None) -> str:
        """Ask; returns the id of the question."""
        text = payload.pop("text", None)
        if not isinstance(text, str):
            raise InvalidMessage("body", "must say what the person is asked")
        await self._room.agent(caller.agent, transient=True)
        person = None if given.to == people.ANYBODY else given.to
        return await self._room.people.ask(
            person,
            text,
            caller.agent,
            options=() if given.options is UNSET else given.options,
            default=None if given.default is UNSET else given.default,
            timeout_s=None if given.deadline_s is UNSET else given.deadline_s,
            data=payload,
            cause=cause,
        )

    async def answer(self, id: str, to: str, wait_s: float, progress: Progress) -> dict[str, Any]:
        """Wait so long, and tell how the question stands; a later answer comes as mail."""
        try:
            waiting = self._room.people.wait(id, wait_s, _take=False)
            await self._wait(waiting, progress, wait_s, f"waiting for {quoted(to)}")
        except AskTimeout:
            return {"id": id, "state": "open"}
        told = await self.told_of(id)
        self._room.post(lambda room: people.take_mail(room.gateway, id))  # it was told: it need not come as mail
        return told

    async def told_of(self, id: str) -> dict[str, Any]:
        """How a question stands, as its asker is told."""
        question = await self._room.people.look(id)
        told: dict[str, Any] = {"id": id, "state": question.state}
        given = question.answer
        if given is None:
            return told
        lane = "agent" if given.is_default else "human"
        by = {"from": name_of(given.by), "lane": lane, "time": given.time}
        # of options, the asker has chosen the words itself
        body = given.said if question.options else Words().fenced(given.said, given.by)
        return {**told, **by, "body": body}
