"""Postroom: programs and AI agents send each other messages without losing any, and without losing each other.

    import postroom

    room = postroom.open()
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"text": "hi"})
    with bob.receive(timeout_s=5) as message:
        print(message.payload)

Names are loaded when they are first used: the command line starts fast because it imports little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import aio, coordinate, patterns
    from .agent import Agent
    from .board import Board
    from .clock import ManualClock
    from .communications import CommunicationSystem, Message
    from .config import Config
    from .coordinate import Decision
    from .coordinator import Coordinator
    from .errors import (
        AskFailed,
        AskTimeout,
        CircuitOpen,
        Deadlock,
        DependencyCycle,
        EvaluationAborted,
        EvaluatorFailed,
        Fault,
        IdentityRefused,
        InvalidMessage,
        ModelError,
        ModelMissing,
        ModelTimeout,
        NoMail,
        NotAcked,
        NotAnswered,
        NotStartable,
        OutcomeUnknown,
        PeerGone,
        PoolFailed,
        PostroomError,
        QueueFull,
        RateLimited,
        ReceiveTimeout,
        Refused,
        RequestDropped,
        ReservationConflict,
        RoomBusy,
        RoomClosed,
        RoomDamaged,
        RoomError,
        RoomGone,
        RoomNotAllowed,
        RoomNotFound,
        RoomUnreachable,
        RoomUnsafe,
        SessionEnded,
        SessionFailed,
        TooManyHops,
        UnknownMessage,
        UnknownSession,
        UnknownTask,
        WorkerDied,
        WorkerError,
        WorkerNotReady,
        WorkerStopped,
        WorkerTimeout,
        WrongDirection,
    )
    from .evaluation import Evaluation
    from .held_task import HeldTask
    from .limits import CircuitBreaker, CircuitState, TokenBucket
    from .mailbox import Mailbox, Mailroom
    from .pool import WorkerPool
    from .pool_worker import PoolWorker
    from .presence import AgentInfo
    from .receipts import Attempt, DeadLetter, Event, Receipt, Wait
    from .received import Received
    from .reservations import Reservation, Reserved
    from .room import Room
    from .room import open_room as open  # noqa: A004  `postroom.open` is the name people read
    from .session import Session
    from .session_record import Failure
    from .states import State
    from .supervisor import RestartPolicy
    from .tasks import Task
    from .worker_calls import Worker, WorkerCall, worker

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022  grouped for readers
    # rooms and those in them
    "open", "Room", "Agent", "Received", "Config", "ManualClock", "aio",
    # what a room tells
    "Receipt", "Event", "DeadLetter", "Attempt", "AgentInfo", "Wait", "State",
    # mailboxes by name, and workers that fail together
    "Session", "Mailroom", "Mailbox", "worker", "Worker", "WorkerCall", "Failure",
    # tasks and files
    "Board", "Task", "HeldTask", "Reservation", "Reserved", "patterns",
    # personas that judge messages
    "Evaluation", "WorkerPool", "PoolWorker", "RestartPolicy",
    "Coordinator", "Decision", "coordinate",
    # the plain broker
    "CommunicationSystem", "Message", "TokenBucket", "CircuitBreaker", "CircuitState",
    # errors; errors.py draws the tree
    "PostroomError",
    "InvalidMessage", "Fault", "TooManyHops", "RateLimited", "IdentityRefused", "UnknownMessage",
    "UnknownTask", "DependencyCycle", "WrongDirection", "ReservationConflict",
    "NoMail", "ReceiveTimeout", "NotAcked",
    "AskFailed", "PeerGone", "Refused", "NotAnswered", "AskTimeout",
    "CircuitOpen",
    "ModelError", "ModelMissing", "ModelTimeout",
    "WorkerError", "WorkerNotReady", "WorkerTimeout", "WorkerDied", "EvaluatorFailed", "EvaluationAborted",
    "RequestDropped", "QueueFull", "WorkerStopped", "PoolFailed",
    "SessionFailed", "Deadlock", "SessionEnded", "UnknownSession", "NotStartable",
    "RoomError", "RoomNotFound", "RoomNotAllowed", "RoomClosed", "RoomBusy", "RoomUnsafe", "RoomDamaged", "RoomUnreachable",
    "RoomGone", "OutcomeUnknown",
]  # fmt: skip

#: Which module holds each name.
_HOMES: Final = {
    "room": ("open", "Room"),
    "agent": ("Agent",),
    "received": ("Received",),
    "config": ("Config",),
    "clock": ("ManualClock",),
    "receipts": ("Receipt", "Event", "DeadLetter", "Attempt", "Wait"),
    "presence": ("AgentInfo",),
    "states": ("State",),
    "session": ("Session",),
    "session_record": ("Failure",),
    "mailbox": ("Mailroom", "Mailbox"),
    "worker_calls": ("worker", "Worker", "WorkerCall"),
    "board": ("Board",),
    "held_task": ("HeldTask",),
    "tasks": ("Task",),
    "reservations": ("Reservation", "Reserved"),
    "evaluation": ("Evaluation",),
    "coordinate": ("Decision",),
    "coordinator": ("Coordinator",),
    "supervisor": ("RestartPolicy",),
    "pool": ("WorkerPool",),
    "pool_worker": ("PoolWorker",),
    "communications": ("CommunicationSystem", "Message"),
    "limits": ("TokenBucket", "CircuitBreaker", "CircuitState"),
}
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("aio", "coordinate", "patterns"):  # modules that are used by their own names
        return importlib.import_module(f".{name}", __name__)
    module = importlib.import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__)
    value = getattr(module, "open_room" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
