"""Postroom: programs and AI agents send each other messages that survive crashes, and always know who is still there.

    import postroom

    room = postroom.open()
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"text": "hi"})
    with bob.receive(timeout_s=5) as message:
        print(message.payload)

The packages, from the bottom up; each imports from those before it (docs/architecture.md is the whole map):

    errors          every error
    core            time, messages, settings, trust, the operating system
    stores          the contract of a store, and the stores: memory, sqlite, files, nats
    mail            agents and messages
    board           tasks with owners, and reserved files
    sessions        members that talk through mailboxes and fail together
    room            Room and open()
    aio, pools, patterns, communications
                    rooms with await; personas that judge messages; ways to work together; the plain broker
    inference       language models
    lang            Patchwork, the language of programs that talk
    doors           hooks, MCP, the page, installing
    cli             the command line
    testing         the contract of stores as a suite

Names are loaded when they are first used: the command line starts fast because it imports little.
"""

# ruff: noqa: F405  (`__all__` names errors that the star brings)

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import aio, communications, patterns
    from .board.board import Board
    from .board.held_task import HeldTask
    from .board.reservations import Reservation, Reserved
    from .board.task import Task
    from .communications import CommunicationSystem
    from .core.clock import ManualClock
    from .core.config import Config
    from .core.limits import CircuitBreaker, CircuitState, TokenBucket
    from .core.message import Message, MessageWithLedger
    from .core.states import State
    from .errors import *  # noqa: F403  which of them are public, `__all__` says
    from .mail.agent import Agent
    from .mail.answers import Answers
    from .mail.groups import Groups
    from .mail.people import People, PersonAnswer, PersonQuestion
    from .mail.presence import AgentInfo
    from .mail.receipts import Attempt, DeadLetter, Event, Receipt, Wait
    from .mail.received import Received
    from .mail.schedule import Schedule
    from .pools import decide as coordinate
    from .pools.coordinator import Coordinator
    from .pools.decide import Decision
    from .pools.evaluation import Evaluation
    from .pools.pool import WorkerPool
    from .pools.restarts import RestartPolicy
    from .pools.worker import PoolWorker
    from .room import Room
    from .room import open_room as open  # noqa: A004  `postroom.open` is the name people read
    from .sessions.mailbox import Mailbox, Mailroom
    from .sessions.record import Failure
    from .sessions.session import Session
    from .sessions.worker import Worker, WorkerCall, worker

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022  grouped for readers
    # rooms and those in them
    "open", "Room", "Agent", "Message", "MessageWithLedger", "Received", "Answers", "Groups", "Config", "ManualClock", "aio",
    "People", "PersonQuestion", "PersonAnswer",
    # what a room tells
    "Receipt", "Event", "DeadLetter", "Attempt", "AgentInfo", "Wait", "Schedule", "State",
    # mailboxes by name, and workers that fail together
    "Session", "Mailroom", "Mailbox", "worker", "Worker", "WorkerCall", "Failure",
    # tasks and files
    "Board", "Task", "HeldTask", "Reservation", "Reserved", "patterns",
    # personas that judge messages
    "Evaluation", "WorkerPool", "PoolWorker", "RestartPolicy",
    "Coordinator", "Decision", "coordinate",
    # the plain broker
    "CommunicationSystem", "communications", "TokenBucket", "CircuitBreaker", "CircuitState",
    # errors; errors.py draws the tree
    "PostroomError",
    "InvalidMessage", "Fault", "TooManyHops", "RateLimited", "MailboxFull", "IdentityRefused", "UnknownMessage", "UnknownGroup",
    "UnknownTask", "DependencyCycle", "WrongDirection", "ReservationConflict",
    "NoMail", "ReceiveTimeout", "NotAcked", "LateAck",
    "AskFailed", "PeerGone", "Refused", "NotAnswered", "Withdrawn", "AskTimeout", "NotNeeded", "QuestionClosed",
    "CircuitOpen",
    "ModelError", "ModelMissing", "ModelTimeout",
    "WorkerError", "WorkerNotReady", "WorkerTimeout", "WorkerDied", "EvaluatorFailed", "EvaluationAborted",
    "RequestDropped", "QueueFull", "WorkerStopped", "PoolFailed",
    "SessionFailed", "Deadlock", "SessionEnded", "UnknownSession", "NotStartable",
    "RoomError", "RoomNotFound", "RoomNotAllowed", "RoomClosed", "RoomBusy", "RoomUnsafe", "RoomDamaged", "RoomUnreachable",
    "RoomGone", "RoomMoved", "OutcomeUnknown",
]  # fmt: skip

#: Which module holds each name.
_HOMES: Final = {
    "room": ("open", "Room"),
    "mail.agent": ("Agent",),
    "mail.answers": ("Answers",),
    "mail.groups": ("Groups",),
    "mail.people": ("People", "PersonAnswer", "PersonQuestion"),
    "mail.received": ("Received",),
    "core.config": ("Config",),
    "core.clock": ("ManualClock",),
    "mail.receipts": ("Receipt", "Event", "DeadLetter", "Attempt", "Wait"),
    "mail.presence": ("AgentInfo",),
    "mail.schedule": ("Schedule",),
    "core.states": ("State",),
    "sessions.session": ("Session",),
    "sessions.record": ("Failure",),
    "sessions.mailbox": ("Mailroom", "Mailbox"),
    "sessions.worker": ("worker", "Worker", "WorkerCall"),
    "board.board": ("Board",),
    "board.held_task": ("HeldTask",),
    "board.task": ("Task",),
    "board.reservations": ("Reservation", "Reserved"),
    "pools.evaluation": ("Evaluation",),
    "pools.decide": ("Decision",),
    "pools.coordinator": ("Coordinator",),
    "pools.restarts": ("RestartPolicy",),
    "pools.pool": ("WorkerPool",),
    "pools.worker": ("PoolWorker",),
    "communications": ("CommunicationSystem",),
    "core.message": ("Message", "MessageWithLedger"),
    "core.limits": ("TokenBucket", "CircuitBreaker", "CircuitState"),
}
#: Modules that are used by their own names.
_MODULES: Final = {
    "aio": ".aio",
    "coordinate": ".pools.decide",
    "patterns": ".patterns",
    "communications": ".communications",
}
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name], __name__)
    module = importlib.import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__)
    value = getattr(module, "open_room" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
