"""Mail to the board: what agents that can only write messages do to tasks.

    claim    task_id                                   as `board.claim`, for the sender; one that lost is told by an `info`
    status   task_id, state (done, blocked, ready …)   as the owner's `done`, `blocked`, `release`
    status   task_id, title, after                     a task that is not there yet is added
    status   report: the id of a message of its own    what that message says, see `_heed`
    status   without a task                            kept as the sender's note
    info     anything                                  kept as the sender's note

The next look at the board applies it. Applying twice does nothing more than applying once, so a message whose reader
died in the middle is simply applied again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

from postroom.core.config import AGENT_LEASE_S
from postroom.core.message import Draft, Message, check
from postroom.core.states import State
from postroom.errors import InvalidMessage, PostroomError, RoomError, UnknownTask, WrongDirection, sentence_of
from postroom.mail import presence, tokens
from postroom.mail.gateway import Gateway
from postroom.mail.received import words
from postroom.stores.contract import Query, Want

from .actions import BOARD, LEAD, check_direction
from .held_task import HeldTask
from .records import Book, Claim
from .task import ABORTED, BLOCKED, CLAIMED, DONE, READY, STATES, Task

HUMAN_LANE: Final = "human"
NOTES: Final = "board-note/"
_WAITING: Final = Query(visible_to=BOARD, states=frozenset({State.READY}), order="claim", limit=1)


class Steps(Protocol):
    """What mail may lead to: the board's own methods."""

    def add(
        self, id: str, *, title: str, after: Iterable[str], payload: dict[str, Any] | None, lead: str | None
    ) -> Task: ...
    def get(self, id: str) -> Task: ...
    def held(self, id: str, agent: str) -> HeldTask: ...
    def abort(
        self, id: str, why: str | None = None, *, by: str | None = None, _person: bool = False, _told: str | None = None
    ) -> bool: ...
    def reopen(self, id: str) -> bool: ...


class Lost(PostroomError):
    """What the sender wanted cannot be; it is told why."""


def apply(book: Book, board: Steps) -> None:
    """Apply the mail that waits for the board. One look when there is none."""
    gateway = book.gateway
    while gateway.store.find(_WAITING).messages:
        want = Want(agent=BOARD, lease_s=30.0, owner=gateway.process, limit=10)
        deliveries = gateway.claim(want).deliveries
        for delivery in deliveries:
            message = _meant(gateway, delivery.message)
            try:
                _apply_one(book, board, message)
                outcome, problem = "acked", None
            except RoomError:  # the room's fault, not the message's: it comes again
                gateway.settle(delivery.ticket, "returned")
                raise
            except PostroomError as error:
                outcome, problem = "refused", sentence_of(error)
            except Exception as error:  # noqa: BLE001  whatever a message says, it must not keep others from the board
                outcome, problem = "refused", f"it could not be understood ({words('error', error)})"
            puts = [] if problem is None or message.from_agent == BOARD else [_info(message, problem)]
            gateway.settle(delivery.ticket, outcome, detail=problem, puts=puts)
        if not deliveries:
            return


def _info(message: Message, problem: str) -> Draft:
    said: dict[str, Any] = {"text": problem, "about": message.type, "message_id": message.id}
    task_id = task_of(message)
    return check(
        Draft(
            from_agent=BOARD,
            to_agent=message.from_agent,
            type="info",
            payload=said if task_id is None else {"task_id": task_id, **said},
            correlation_id=message.correlation_id or message.id,
            answer_to=message.id,
        )
    )


def task_of(message: Message) -> str | None:
    """The task that a message of the protocol is about."""
    named = message.payload.get("task_id", message.correlation_id)
    return named if isinstance(named, str) and named else None


def _meant(gateway: Gateway, message: Message) -> Message:
    """The message that a `status` names as its report, if its sender sent that one, too; else the message itself."""
    id = message.payload.get("report") if message.type == "status" else None
    named = gateway.store.get(id) if isinstance(id, str) else None
    return message if named is None or named.from_agent != message.from_agent else named


def _apply_one(book: Book, board: Steps, message: Message) -> None:
    sender, task_id = message.from_agent, task_of(message)
    if message.to_agent != BOARD:
        _heed(book, board, message)
        return
    check_direction(message.type, sender, BOARD, book.leads())
    if message.type == "claim":
        _claim(book, sender, task_id)
    elif message.type == "status" and task_id is not None:
        _status(book, board, message, task_id)
    else:
        note = {"payload": message.payload, "at_ms": message.timestamp_ms}
        book.store.cell_write(NOTES + sender, note)


def _heed(book: Book, board: Steps, message: Message) -> None:
    """Let the board follow what an agent told another one, by files alone: the source's protocol asks for no more.

    A report settles its task, also without a claim before. An abort calls off what its recipient holds or has not begun;
    without a task, all that it holds. What names no task of the board, or went in the wrong direction, is between those
    two.
    """
    sender, to, id = message.from_agent, message.to_agent, task_of(message)
    with suppress(WrongDirection):
        is_report = message.type in (DONE, BLOCKED)  # it counts whoever was told of it: the board tells the task's lead
        check_direction(message.type, sender, LEAD if is_report else to, book.leads())
        if message.type == "abort":
            for each, lead in _called_off(book, to, id).items():
                _must_lead(book.gateway, message, lead, "abort")
                board.abort(each, _why(message.payload), by=sender, _told=to)
        elif is_report and id is not None and book.read(id) is not None:
            _report(board, sender, id, message.type, message.payload, book=book, told=to)


def _called_off(book: Book, worker: str | None, id: str | None) -> dict[str, str | None]:
    """The tasks that an abort to a worker is about, each with its lead."""
    named = None if id is None else book.read(id)
    if id is None:
        held = {id: each.value for id, each in book.all().items() if each.value["state"] == CLAIMED}
        return {id: value["lead"] for id, value in held.items() if value["owner"] == worker}
    return {id: named.value["lead"]} if named is not None and named.value["owner"] in (None, worker) else {}


def _claim(book: Book, agent: str, task_id: str | None) -> None:
    if task_id is None:
        raise InvalidMessage("task_id", "a claim must name its task")
    book.look_over()
    taken = book.take(task_id, Claim(agent, None, AGENT_LEASE_S))
    if taken is not None:
        return
    found = book.read(task_id)
    if found is None:
        raise UnknownTask(f"there is no task {task_id} on the board")
    task = book.show(found.value)
    if task.state == CLAIMED and task.owner == agent:
        return
    if task.unmet:
        raise Lost(f"task {task_id} cannot be claimed yet: it waits for {', '.join(task.unmet)}")
    until = f" until {task.lease_until}" if task.lease_until else ""
    by = f" by {task.owner}{until}" if task.owner else ""
    raise Lost(f"task {task_id} is {task.state}{by}; your claim does not count")


def _status(book: Book, board: Steps, message: Message, id: str) -> None:
    agent, said = message.from_agent, message.payload
    found = book.read(id)
    state = said.get("state", said.get("status"))
    if state is not None and state not in STATES:
        raise InvalidMessage("state", f"must be one of {', '.join(STATES)}, not {state!r}")
    if found is None:
        if state not in (None, READY):
            raise UnknownTask(f"there is no task {id} on the board")
        lead = agent if said.get("lead") is True else None
        board.add(
            id, title=str(said.get("title", "")), after=said.get("after", ()), payload=said.get("payload"), lead=lead
        )
    elif state == CLAIMED:
        _claim(book, agent, id)
    elif state == ABORTED:
        _must_lead(book.gateway, message, found.value["lead"], "abort")
        board.abort(id, _why(said), by=agent, _person=message.lane == HUMAN_LANE)
    elif state in (BLOCKED, ABORTED) and found.value["state"] == state:
        return
    elif state == READY and found.value["state"] in (BLOCKED, ABORTED):
        _must_lead(book.gateway, message, found.value["lead"], "reopen")
        board.reopen(id)
    elif state is not None:
        _report(board, agent, id, state, said, book=book)


def _must_lead(gateway: Gateway, message: Message, lead: str | None, deed: str) -> None:
    """In a room with tokens a task is called off and put back by its lead or by a person, at every door."""
    told = f"{deed} a task led by {lead or 'no agent'}"
    human = message.lane == HUMAN_LANE
    tokens.must_be_person(gateway, message.from_agent, "board", told, human=human, unless=(lead, BOARD))


def _report(
    board: Steps, agent: str, id: str, state: str, said: dict[str, Any], *, book: Book, told: str | None = None
) -> None:
    """Done, blocked or given back, by its owner. One who has `told` its lead by files alone need not have claimed it."""
    now = board.get(id)
    if now.state == state and now.owner == agent:
        return  # applied before
    if now.state == READY and state == READY:
        return
    if told is not None and now.state == READY:
        _claim(book, agent, id)
    task = board.held(id, agent)
    if state == DONE:
        counted = task.done(_result(said) if told is not None else said.get("result"), _told=told)
    elif state == BLOCKED:
        counted = task.blocked(_why(said) or "it did not say why", _told=told)
    else:
        counted = task.release(_why(said))
    if not counted:
        raise Lost(f"task {id} is no longer {agent}'s; its report does not count")


def _result(said: dict[str, Any]) -> Any:
    """What a worker's own message says of its result: the field of that name, or all of it."""
    rest = {name: value for name, value in said.items() if name not in ("task_id", "spec")}
    return said.get("result", rest or None)


def _why(said: dict[str, Any]) -> str | None:
    why = said.get("why", said.get("notes"))
    return why if isinstance(why, str) else None


def notes(gateway: Gateway) -> dict[str, Any]:
    """The last note of each agent."""
    return {cell.name.removeprefix(NOTES): cell.value["payload"] for cell in gateway.store.cell_scan(NOTES)}


def tell(
    gateway: Gateway, book: Book, action: str, sender: str, to: str, task_id: str | None, said: dict[str, Any]
) -> str:
    """Send one of the seven actions; see `Board.tell`."""
    check_direction(action, sender, to, book.leads())
    if to == BOARD:
        presence.enter(gateway, BOARD, transient=True)
    draft = Draft(
        from_agent=sender,
        to_agent=to,
        type=action,
        payload=said if task_id is None else {"task_id": task_id, **said},
        correlation_id=task_id,
        max_deliveries=gateway.config.max_deliveries,
    )
    (id,) = gateway.put([draft])
    return id
