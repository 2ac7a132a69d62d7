"""The tool `board`: tasks, and the files that agents reserve while they work on them.

Claims and reservations made here belong to the agent: they end by time, ten minutes unless the call says otherwise.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from msgspec import UNSET

from postroom import aio
from postroom.board.task import Task
from postroom.core.untrusted import quoted, visible
from postroom.errors import InvalidMessage
from postroom.mail import tokens

from . import shown, tools
from .caller import DOOR, Caller, Progress

T = TypeVar("T")

MAX_TASKS: Final = 30
_MAX_TITLE: Final = 60


class WithProgress(Protocol):
    """Waits, and tells the caller of progress; see `MailCalls`."""

    async def __call__(
        self, waiting: Coroutine[Any, Any, T], progress: Progress, total_s: float, text: str, /
    ) -> T: ...


class BoardCalls:
    """The actions of the tool, each a method. One for each server."""

    def __init__(self, room: aio.Room, wait: WithProgress) -> None:
        self._room = room
        self._wait = wait

    async def call(self, caller: Caller, given: tools.BoardCall, progress: Progress) -> dict[str, Any]:
        """Do it. Raises PostroomError, with a sentence for the model."""
        await self._room.agent(caller.agent, transient=True)
        if given.action == "claim":
            return await self._claim(caller, given, progress)
        step = getattr(self, f"_{given.action}")
        found: dict[str, Any] = await step(caller, given)
        return found

    # Looking

    async def _list(self, _: Caller, given: tools.BoardCall) -> dict[str, Any]:
        if given.id is not UNSET:
            return await self.all_of(given.id, given.offset)
        found = shown.tasks(await self._room.board.tasks(), MAX_TASKS, given.offset)
        return found | shown.reserved(await self._room.reservations(), MAX_TASKS)

    async def all_of(self, id: str, offset: int = 0) -> dict[str, Any]:
        """All that is said of one task, as its owner gets it."""
        return shown.whole_task(await self._room.board.get(id), offset)

    # Claiming

    async def _claim(self, caller: Caller, given: tools.BoardCall, progress: Progress) -> dict[str, Any]:
        """Take a task and give all of it. Claiming one's own again keeps it longer."""
        id = None if given.id is UNSET else given.id
        if id is not None and (mine := await self.held_by(caller, id)) is not None:
            await mine.extend(given.for_s)
            return await self.all_of(id)
        claiming = self._room.board.claim(caller.agent, id, timeout_s=given.wait_s, lease_s=given.for_s, transient=True)
        held = await self._wait(claiming, progress, given.wait_s, "waiting for a task")
        if held is None:
            return {"tasks": []} | ({} if id is None else {"note": _why_not(await self._room.board.get(id))})
        try:
            return await self.all_of(held.id)
        except BaseException:
            self.give_back(held.id, held.agent)
            raise

    async def held_by(self, caller: Caller, id: str) -> aio.HeldTask | None:
        """The task, if the caller holds it."""
        try:
            return await self._room.board.held(id, caller.agent)
        except InvalidMessage:
            return None

    def give_back(self, id: str, agent: str) -> None:
        """The claim was shown to no one: others may have the task."""
        self._room.post(lambda room: room.board.held(id, agent).return_unseen())

    async def _extend(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        held = await self._room.board.held(_id_of(given), caller.agent)
        return await self._told(held.id, counted=await held.extend(given.for_s))

    # Reporting

    async def _done(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        held = await self._room.board.held(_id_of(given), caller.agent)
        return await self._told(held.id, counted=await held.done({"text": given.text} if given.text else None))

    async def _blocked(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        held = await self._room.board.held(_id_of(given), caller.agent)
        return await self._told(held.id, counted=await held.blocked(given.text or "no reason given"))

    async def _release(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        held = await self._room.board.held(_id_of(given), caller.agent)
        return await self._told(held.id, counted=await held.release(given.text or None))

    # Leading

    async def _add(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        after = () if given.after is UNSET else given.after
        title, payload = _title_of(given.text)
        board = self._room.board
        return shown.tasks(
            [await board.add(_id_of(given), title=title, after=after, payload=payload, lead=caller.agent)]
        )

    async def _abort(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        id = _id_of(given)
        await self._must_lead(caller, id, "abort")
        person = caller.lane == "human"
        counted = await self._room.board.abort(id, given.text or None, by=caller.agent, _person=person)
        return await self._told(id, counted=counted)

    async def _reopen(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        id = _id_of(given)
        await self._must_lead(caller, id, "reopen")
        return await self._told(id, counted=await self._room.board.reopen(id))

    async def _must_lead(self, caller: Caller, id: str, deed: str) -> None:
        """In a room with tokens, a task is called off and put back by its lead or by a person."""
        lead, human = (await self._room.board.get(id)).lead, caller.lane == "human"
        deed = f"{deed} a task led by {lead or 'no agent'}"
        await self._room.call(
            lambda room: tokens.must_be_person(room.gateway, caller.agent, DOOR, deed, human=human, unless=(lead,))
        )

    async def _told(self, id: str, *, counted: bool) -> dict[str, Any]:
        return shown.tasks([await self._room.board.get(id)]) | {"counted": counted}

    # Reserving files

    async def _reserve(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        if given.files is UNSET:
            raise InvalidMessage("files", "name the files to reserve, as patterns such as src/api/**")
        why = visible(given.text) or None
        await self._room.reserve(given.files, caller.agent, given.for_s, why=why, transient=True)
        return await self._reserved()

    async def _unreserve(self, caller: Caller, given: tools.BoardCall) -> dict[str, Any]:
        ended = await self._room.unreserve(caller.agent, None if given.files is UNSET else given.files)
        return await self._reserved() | {"counted": bool(ended)}

    async def _reserved(self) -> dict[str, Any]:
        return {"tasks": []} | shown.reserved(await self._room.reservations(), MAX_TASKS)


def _why_not(task: Task) -> str:
    """Why a task that was asked for was not given."""
    if task.unmet:
        return f"it waits for {', '.join(map(quoted, task.unmet[: shown.MAX_UNMET]))}"
    return f"it is {task.state}{f' by {quoted(task.owner)}' if task.owner else ''}"


def _id_of(given: tools.BoardCall) -> str:
    if given.id is UNSET:
        raise InvalidMessage("id", f"name the task to {given.action}")
    return given.id


def _title_of(text: str) -> tuple[str, dict[str, Any] | None]:
    """A task's title is one short line; what is longer goes with it."""
    line = visible(text.partition("\n")[0])[:_MAX_TITLE]
    return line, None if line == text else {"text": text}
