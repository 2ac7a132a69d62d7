"""What each kind of task waits for: `ask` for answers, `inbox` for mail, `board` for a task that can be claimed.

A kind looks at the room and keeps nothing of its own that a restart would lose. Between a look that found something and
the record of it, only claims are made, which `undone` gives back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import msgspec
from msgspec import UNSET

from postroom.board.actions import BOARD
from postroom.board.ready_index import TOPIC as READY_TOPIC
from postroom.core.message import GROUP_SIGN, Draft, Message
from postroom.core.states import FINISHED, State
from postroom.core.untrusted import quoted
from postroom.errors import AskFailed, AskTimeout, NotNeeded, PeerGone, UnknownMessage, UnknownTask
from postroom.mail.answers import needed_of
from postroom.mail.people import CELLS as QUESTIONS
from postroom.mail.questions import Question
from postroom.room import Room
from postroom.stores.contract import Query, Ticket, topic_cells, topic_channel, topic_message, topic_to

from . import shown, tools
from .caller import Caller
from .calls import MAX_HELD, MailCalls, ToolFailed, before_sending, enough_of, not_answered, payload_of

WORKING: Final = "working"
COMPLETED: Final = "completed"
CANCELLED: Final = "cancelled"

_NAMED: Final = 3
#: How a person's question stands that nobody has answered yet.
_OPEN: Final = "open"


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task as it is kept. Times are the wall clock's, because clients are told them."""

    id: str
    kind: str
    agent: str
    lane: str
    made_ms: int
    changed_ms: int
    until_ms: int  # so long the call waits
    status: str = WORKING
    told: bool = False  # its client was told that it has ended
    # ask
    questions: dict[str, str] = {}  # the agents that were asked, and the ids of their questions
    needed: int = 1
    several: bool = False
    failed: dict[str, str] = {}  # why an agent gave no answer, where the room will not tell later
    # inbox
    mode: str = "claim"
    limit: int = 5
    channels: tuple[str, ...] | None = None
    held: list[str] = []  # what the agent held before
    recalled: list[str] = []  # of these, the messages that it had been shown
    more: int = 0  # how many it held besides
    # board
    task: str | None = None
    for_s: float = 0
    said: str = ""  # why it cannot be claimed
    # what was taken: messages of an inbox with their tokens, a task of the board
    found: list[str] = []
    tokens: list[int] = []

    @property
    def caller(self) -> Caller:
        """The agent whose task it is."""
        return Caller(self.agent, self.lane)


class TaskKind(ABC):
    """One kind of task."""

    #: The tool whose calls they are.
    tool: ClassVar[str]
    #: Whether a call is answered at once with what its first look finds. That can be undone if the caller has left.
    may_be_at_once: ClassVar[bool] = True
    #: Whether somebody must look when the time of the call is over, also if no client does.
    needs_alarm: ClassVar[bool] = False
    #: Where a task is watched it is looked at this often without a hint, in seconds.
    look_s: ClassVar[float] = 60.0

    def __init__(self, calls: MailCalls) -> None:
        self._calls = calls
        self._room = calls.room

    @abstractmethod
    def waits(self, given: Any) -> bool:
        """Whether a call with these arguments may have to wait."""

    @abstractmethod
    async def begin(self, given: Any, record: TaskRecord) -> TaskRecord:
        """Do what the call does before it waits. Raises what the call would raise: then nothing was done."""

    @abstractmethod
    async def look(self, record: TaskRecord, *, late: bool) -> TaskRecord | None:
        """The record with what it came to; None while it waits on. `late`: the time is over, so it has come to something."""

    @abstractmethod
    async def result(self, record: TaskRecord) -> dict[str, Any]:
        """What the call returns, from the record of one that ended; ToolFailed where the call fails. Often."""

    @abstractmethod
    def topics(self, record: TaskRecord) -> list[str]:
        """What may change how it stands."""

    @abstractmethod
    def note(self, record: TaskRecord) -> str:
        """A sentence about how it stands."""

    async def undone(self, record: TaskRecord) -> None:  # noqa: B027  not every kind has something to do
        """What `look` found reaches nobody."""

    async def ended(self, record: TaskRecord) -> None:  # noqa: B027  not every kind has something to do
        """What `look` found is recorded."""

    async def cancelled(self, record: TaskRecord) -> None:  # noqa: B027  not every kind has something to do
        """It was cancelled while it waited."""

    async def forgotten(self, record: TaskRecord) -> None:  # noqa: B027  not every kind has something to do
        """Its result was kept long enough."""


class AskKind(TaskKind):
    """Questions, stored before the task is. While this server lives their answers are kept for the task; later they are mail."""

    tool = "ask"
    may_be_at_once = False
    needs_alarm = True
    look_s = 1.0  # nothing tells of an agent that died

    def __init__(self, calls: MailCalls) -> None:
        super().__init__(calls)
        self._asked: dict[str, Question] = {}  # by id; those that this server looks after
        self._looked: set[str] = set()  # of these, those that it has looked at

    def waits(self, given: tools.Ask) -> bool:
        return given.wait_s > 0 and not given.for_person

    async def begin(self, given: tools.Ask, record: TaskRecord) -> TaskRecord:
        several = given.also is not UNSET or given.to.startswith(GROUP_SIGN)
        if several:
            known, cause = await self._calls.recipients(record.caller, given, new=None)
            names = [*known]
        else:
            names = [given.to]
            _, cause = await self._room.call(lambda room: before_sending(room, record.caller, given.to, new=None))
        needed = needed_of(enough_of(given) if several else "all", len(names))
        ids = await self._room.call(lambda room: self._store(room, record.caller, names, given, cause))
        return msgspec.structs.replace(record, questions=ids, needed=needed, several=several)

    def _store(
        self, room: Room, caller: Caller, names: list[str], given: tools.Ask, cause: Message | None
    ) -> dict[str, str]:
        """In the room's thread."""
        agent, gateway = room.agent(caller.agent, transient=True), room.gateway
        drafts: list[Draft] = []
        for name in names:
            draft = agent._draft(payload_of(given), name, type=given.type, cause=cause, lane=caller.lane)  # noqa: SLF001
            draft.waiter = gateway.process
            drafts.append(draft)
        ids = gateway.ask_together(drafts)
        for id, draft in zip(ids, drafts, strict=True):
            self._asked[id] = Question(gateway, draft, given.wait_s, settle=False)
            self._asked[id].stored(id)
        return dict(zip(names, ids, strict=True))

    async def look(self, record: TaskRecord, *, late: bool) -> TaskRecord | None:
        failed = await self._room.call(lambda room: self._failed(room, record, late))
        return None if failed is None else msgspec.structs.replace(record, failed=failed)

    def _failed(self, room: Room, record: TaskRecord, late: bool) -> dict[str, str] | None:
        """Once it is over, why those whose questions are still open gave no answer; None before. In the room's thread."""
        ids = record.questions
        stand = {m.id: m for m in room.store.find(Query(ids=tuple(ids.values()), limit=len(ids))).messages}
        answered = [id for id in stand if stand[id].exact_state is State.ANSWERED]
        left = {name: stand[id] for name, id in ids.items() if id in stand and stand[id].exact_state not in FINISHED}
        enough = len(answered) >= record.needed
        failed: dict[str, str] = {}
        for name, message in left.items():
            question = self._question(room, record, name)
            question.note_open(message)
            if enough:
                failed[name] = str(NotNeeded(f"{name} had not answered question {message.id}: enough others had", ""))
            elif late:
                failed[name] = str(question.late(message))
            elif (gone := _how_it_went(question, first=message.id not in self._looked)) is not None:
                failed[name] = gone
            self._looked.add(message.id)
        return failed if len(failed) == len(left) else None

    def _question(self, room: Room, record: TaskRecord, name: str) -> Question:
        """The question that this server looks after, or one of a server before."""
        id = record.questions[name]
        if id not in self._asked:
            draft = Draft(record.agent, {}, to_agent=name)
            question = Question(room.gateway, draft, _wait_s(record), settle=False)
            question.stored(id)
            self._asked[id] = question
        return self._asked[id]

    async def result(self, record: TaskRecord) -> dict[str, Any]:
        came, missing, taken = await self._room.call(lambda room: self._take(room, record))
        if record.several:
            told = self._calls.show_answers(record.caller, came, missing, enough=len(came) >= record.needed)
        elif came:
            told = self._calls.show_answer(record.caller, came[0])
        else:
            (error,) = missing.values()
            raise not_answered(error)
        self._calls.ack_shown(taken)
        return told

    def _take(self, room: Room, record: TaskRecord) -> tuple[list[Message], dict[str, AskFailed], list[Ticket]]:
        """The answers, why the others gave none, and what was taken just now: not before, nor as mail. In the room's thread."""
        came: list[Message] = []
        taken: list[Ticket] = []
        missing: dict[str, AskFailed] = {}
        for name, id in record.questions.items():
            if name in record.failed:
                missing[name] = AskTimeout(record.failed[name], id)
                continue
            question = self._question(room, record, name)
            try:
                delivery = question.look()
            except AskFailed as error:
                missing[name] = error
            else:
                if delivery is None:  # put back since
                    missing[name] = question.late(room.store.get(id))
                else:
                    came.append(delivery.message)
                    taken += [delivery.ticket] if delivery.message.owner == room.gateway.process else []
            room.gateway.question_ends(id, abandon=False)
            self._let_go(id)
        return came, missing, taken

    async def ended(self, record: TaskRecord) -> None:
        ids = [record.questions[name] for name in record.failed]
        await self._room.call(lambda room: self._give_up(room, record, ids, withdraw=record.several))

    async def cancelled(self, record: TaskRecord) -> None:
        ids = [*record.questions.values()]
        await self._room.call(lambda room: self._give_up(room, record, ids, withdraw=True))

    async def forgotten(self, record: TaskRecord) -> None:
        ids = [id for id in record.questions.values() if id in self._asked]
        await self._room.call(lambda room: self._give_up(room, record, ids, withdraw=False))

    def _give_up(self, room: Room, record: TaskRecord, ids: list[str], *, withdraw: bool) -> None:
        """Nobody waits for these answers any more, come or to come: they are ordinary mail. In the room's thread."""
        if ids:
            room.gateway.question_ends(*ids, abandon=True)
            if withdraw:
                room.store.withdraw(ids, record.agent, "the asker waits no longer")
        for id in ids:
            self._let_go(id)

    def _let_go(self, id: str) -> None:
        self._asked.pop(id, None)
        self._looked.discard(id)

    def topics(self, record: TaskRecord) -> list[str]:
        return [topic_message(id) for id in record.questions.values()]

    def note(self, record: TaskRecord) -> str:
        names = ", ".join(quoted(name) for name in [*record.questions][:_NAMED])
        more = f" and {len(record.questions) - _NAMED} more" if len(record.questions) > _NAMED else ""
        if record.status == WORKING:
            return f"waiting for the answer of {names}{more}"
        if record.status == CANCELLED:
            return f"cancelled; where {names}{more} had the question already, the answer comes as mail"
        return f"asked {names}{more}"


class PersonKind(TaskKind):
    """A question to a person. It waits in the room by itself, whatever becomes of the task."""

    tool = "ask"
    may_be_at_once = False
    look_s = 1.0  # its default is made by whoever looks

    def waits(self, given: tools.Ask) -> bool:
        return given.wait_s > 0 and given.for_person

    async def begin(self, given: tools.Ask, record: TaskRecord) -> TaskRecord:
        id = await self._calls.ask_person(record.caller, given)
        return msgspec.structs.replace(record, questions={given.to: id})

    async def look(self, record: TaskRecord, *, late: bool) -> TaskRecord | None:
        (id,) = record.questions.values()
        try:
            state = (await self._room.people.look(id)).state
        except UnknownMessage:  # it is no longer stored
            return record
        if state != _OPEN:
            return record
        return msgspec.structs.replace(record, said=_OPEN) if late else None

    async def result(self, record: TaskRecord) -> dict[str, Any]:
        ((person, id),) = record.questions.items()
        if record.said == _OPEN:  # also if it was answered since: that comes as mail
            return {"id": id, "state": _OPEN}
        try:
            return await self._calls.people.answer(id, person, 0, _no_progress)
        except (AskFailed, UnknownMessage) as error:
            raise ToolFailed(shown.error(error)) from None

    async def cancelled(self, record: TaskRecord) -> None:
        ids = [*record.questions.values()]
        await self._room.call(lambda room: room.store.withdraw(ids, record.agent, "the asker waits no longer"))

    def topics(self, record: TaskRecord) -> list[str]:
        return [topic_cells(QUESTIONS), *map(topic_message, record.questions.values())]

    def note(self, record: TaskRecord) -> str:
        (person,) = record.questions
        if record.status == CANCELLED:
            return "cancelled; the question was withdrawn, unless it had been answered"
        return f"waiting for {quoted(person)}" if record.status == WORKING else f"asked {quoted(person)}"


class InboxKind(TaskKind):
    """Mail. What is there is claimed by the look that tells of it; until then it is anybody's who may have it."""

    tool = "inbox"

    def waits(self, given: tools.InboxCall) -> bool:
        looks = given.thread or given.mode == "dead" or given.id is not UNSET or given.search is not UNSET
        return given.wait_s > 0 and not looks

    async def begin(self, given: tools.InboxCall, record: TaskRecord) -> TaskRecord:
        channels = None if given.channels is UNSET else tuple(given.channels)
        return msgspec.structs.replace(record, mode=given.mode, limit=given.limit, channels=channels)

    async def look(self, record: TaskRecord, *, late: bool) -> TaskRecord | None:
        if record.mode == "peek":
            found = await self._room.peek(agent=record.agent, channels=record.channels, limit=record.limit)
            return msgspec.structs.replace(record, found=[m.id for m in found]) if found or late else None
        taken: list[Message] = []
        held = await self._calls.claim(record.caller, record.limit, record.channels, taken)
        new = {message.id for message in self._calls.unseen(record.caller, held)}
        if not (taken or new or late):
            return None
        again = held[:MAX_HELD]
        return msgspec.structs.replace(
            record,
            held=[message.id for message in again],
            recalled=[message.id for message in again if message.id not in new],
            more=len(held) - len(again),
            found=[message.id for message in taken],
            tokens=[message.token for message in taken],
        )

    async def result(self, record: TaskRecord) -> dict[str, Any]:
        kept = await self._room.call(lambda room: {id: room.store.get(id) for id in (*record.held, *record.found)})
        held, found = ([m for id in ids if (m := kept[id]) is not None] for ids in (record.held, record.found))
        if record.mode == "peek":
            return await self._calls.show_peeked(record.caller, found)
        return await self._calls.show_mail(record.caller, held, found, record.recalled, record.more)

    async def undone(self, record: TaskRecord) -> None:
        if record.tokens:
            tickets = [Ticket(id, token, record.agent) for id, token in zip(record.found, record.tokens, strict=True)]
            self._calls.give_back(tickets)

    def topics(self, record: TaskRecord) -> list[str]:
        return [topic_to(record.agent), *map(topic_channel, record.channels or ())]

    def note(self, record: TaskRecord) -> str:
        if record.status == COMPLETED:
            return "mail came" if record.found or record.held else "no mail came"
        return "waiting for mail" if record.status == WORKING else "cancelled; nothing was taken"


class BoardKind(TaskKind):
    """A task of the board. The look that finds one ready claims it."""

    tool = "board"

    def waits(self, given: tools.BoardCall) -> bool:
        return given.action == "claim" and given.wait_s > 0

    async def begin(self, given: tools.BoardCall, record: TaskRecord) -> TaskRecord:
        task = None if given.id is UNSET else given.id
        return msgspec.structs.replace(record, task=task, for_s=given.for_s)

    async def look(self, record: TaskRecord, *, late: bool) -> TaskRecord | None:
        try:
            if record.task is not None and (mine := await self._calls.board.held_by(record.caller, record.task)):
                await mine.extend(record.for_s)
                return msgspec.structs.replace(record, found=[mine.id])
            held = await self._room.board.claim(record.agent, record.task, lease_s=record.for_s, transient=True)
        except UnknownTask as error:
            return msgspec.structs.replace(record, said=shown.error(error))
        if held is None:
            return record if late else None
        return msgspec.structs.replace(record, found=[held.id], tokens=[held.token])

    async def result(self, record: TaskRecord) -> dict[str, Any]:
        if record.said:
            raise ToolFailed(record.said)
        try:
            return await self._calls.board.all_of(record.found[0]) if record.found else {"tasks": []}
        except UnknownTask as error:  # it was removed since
            raise ToolFailed(shown.error(error)) from None

    async def undone(self, record: TaskRecord) -> None:
        if record.tokens:
            self._calls.board.give_back(record.found[0], record.agent)

    def topics(self, record: TaskRecord) -> list[str]:
        del record
        return [READY_TOPIC, topic_to(BOARD)]

    def note(self, record: TaskRecord) -> str:
        if record.status == COMPLETED:
            return "a task was claimed" if record.found else "no task was claimed"
        return "waiting for a task" if record.status == WORKING else "cancelled; nothing was claimed"


#: The kinds by the names that stand in records.
KINDS: Final[dict[str, type[TaskKind]]] = {
    "ask": AskKind,
    "person": PersonKind,
    "inbox": InboxKind,
    "board": BoardKind,
}


async def _no_progress(*_: object) -> None:
    pass


def _wait_s(record: TaskRecord) -> float:
    return (record.until_ms - record.made_ms) / 1000


def _how_it_went(question: Question, *, first: bool) -> str | None:
    """How the agent that was asked went without answering; None while it may still answer."""
    try:
        question.look_for_peer(first)
    except PeerGone as gone:
        return str(gone)
    except AskFailed:  # it has ended meanwhile, as the next look sees
        return None
    return None
