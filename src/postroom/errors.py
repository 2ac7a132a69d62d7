"""Every error that Postroom raises, named by whose fault it is.

PostroomError
├── InvalidMessage (ValueError)      you: what was sent or asked for is not valid; lists every fault
│   ├── TooManyHops                  you: a chain of messages causing messages is too long
│   ├── WrongDirection               you: an action was sent from or to somebody that it does not go from or to
│   └── DependencyCycle              you: tasks would wait for each other
├── RateLimited                      you: sending faster than the room allows; says when to try again
├── MailboxFull                      you: as many messages wait in the mailbox as its channel allows
├── IdentityRefused                  you: a token that proves nothing, or a name that it does not prove
├── UnknownMessage (LookupError)     you: no message with that id is kept in this room
├── UnknownGroup (LookupError)       you: this room has no group of that name
├── UnknownTask (LookupError)        you: no task with that id is on the board
├── ReservationConflict              another agent has reserved those files; says who, and what it works on
├── NoMail
│   └── ReceiveTimeout (TimeoutError)    nobody wrote in time
├── NotAcked (TimeoutError)          the receiver did not ack in time; the message is still stored
├── LateAck (UserWarning)            the message belonged to another by then; a warning, or raised with late="raise"
├── AskFailed                        a question that ended without an answer
│   ├── PeerGone                     the one asked died or stopped
│   ├── Refused                      the one asked said no
│   ├── NotAnswered                  the one asked ended the message without answering it
│   ├── Withdrawn                    the asker took the question back, or replaced it
│   ├── AskTimeout (TimeoutError)    no answer in time
│   └── NotNeeded                    one of several that were asked; enough others had answered
├── QuestionClosed                   you: a question to a person was answered already, withdrawn, or is over
├── CircuitOpen                      a circuit breaker is open: the call was not made
├── ModelError                       a language model did not do what was asked
│   ├── ModelMissing                 there is none: not set, or its program or server is not there; says how to set one
│   └── ModelTimeout (TimeoutError)  it did not answer in time
├── WorkerError                      a worker of a pool gave no result; says which worker, and why
│   ├── WorkerNotReady               it was not ready in time, or could not start; with its last words
│   ├── WorkerTimeout (TimeoutError) the deadline of the request has passed
│   ├── WorkerDied                   its process ended while it worked on the request
│   ├── EvaluatorFailed              the evaluator raised, or gave what is no evaluation
│   ├── EvaluationAborted            somebody called it off
│   ├── RequestDropped               a newer request took its place in the queue
│   ├── QueueFull                    you: asking faster than the worker works, and the queue refuses more
│   ├── WorkerStopped                you: the worker, or its pool, is shut down or about to be
│   └── PoolFailed                   a worker died too often, or could not start again; with the history
├── SessionFailed                    somebody in the session failed, and with it everybody
│   └── Deadlock                     all members of the session waited for each other
├── WorkerTraceback                  what a SessionFailed was caused by, in a worker's own words
├── SessionEnded                     you: the session was closed by its opener, or left from here
├── UnknownSession (LookupError)     you: there is no session with that id in this room
├── NotStartable                     you: a worker that cannot be run in a process of its own; says what to do
└── RoomError                        the room itself
    ├── RoomNotFound                 there is no room where one was looked for
    ├── RoomNotAllowed               a room was found that you neither made nor allowed; says what it is, and how to allow it
    ├── RoomClosed                   you: the room was closed, or belongs to the process before a fork
    ├── RoomBusy                     others held the write lock for longer than the time-out
    ├── RoomUnsafe                   this machine cannot keep a room safely (SQLite version, network file system)
    ├── RoomDamaged                  what is on disk is not what was written, or was written by a newer Postroom
    ├── RoomUnreachable              a server or a disk did not answer, or answered with an error
    │   └── RoomGone                 what is open here is no longer what lies there: deleted, replaced, set back, upgraded
    │       └── RoomMoved            the room was moved to another address, which it names, or a move is under way
    └── OutcomeUnknown               the reply was lost: the operation may or may not have happened; safe to repeat
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple


class PostroomError(Exception):
    """Anything that goes wrong in Postroom."""

    #: Whether the sentence repeats what another agent wrote freely (a reason, an error): a model gets it behind a fence.
    quotes_others: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else (self.__doc__ or type(self).__name__))


class Fault(NamedTuple):
    """One thing that is wrong with a message: which field, and what was expected there."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


_INVALID: Final = "Invalid message: "


class InvalidMessage(PostroomError, ValueError):
    """The message is not valid. `faults` names every fault found; nothing was stored."""

    def __init__(self, faults: list[Fault] | str, problem: str | None = None) -> None:
        if isinstance(faults, str):
            faults = [Fault(faults, problem or "not valid")]
        self.faults = faults
        super().__init__(_INVALID + "; ".join(str(fault) for fault in faults))


def sentence_of(error: Exception) -> str:
    """What an error says to a reader for whom the value is an option, a field or a file, not a message."""
    return str(error).removeprefix(_INVALID)


def how_many_wait(messages: int) -> str:
    """The words for so many messages that wait."""
    return "1 message waits" if messages == 1 else f"{messages} messages wait"


def raise_faults(faults: list[Fault]) -> None:
    """Raise InvalidMessage with these faults, if there are any."""
    if faults:
        raise InvalidMessage(faults)


class TooManyHops(InvalidMessage):
    """A chain of messages that cause messages is longer than the room allows."""


class WrongDirection(InvalidMessage):
    """An action was sent from or to an agent that it is not for; the error text states the rule."""


class DependencyCycle(InvalidMessage):
    """Tasks would wait for each other. `cycle` names them, the first again at the end; nothing was added."""

    quotes_others = True

    def __init__(self, cycle: list[str]) -> None:
        self.cycle = cycle
        super().__init__("after", f"these tasks would wait for each other: {' -> '.join(cycle)}")


class RateLimited(PostroomError):
    """The sender is over the room's rate; nothing was stored. Try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class MailboxFull(PostroomError):
    """The mailbox holds as many waiting messages as its channel allows; nothing was stored.

    `channel` and `to` name the mailbox (None: it is for anyone), `waiting` is the limit.
    """

    def __init__(self, channel: str, to: str | None, waiting: int) -> None:
        box = f"the mailbox of {to} in {channel!r}" if to is not None else f"the channel {channel!r}"
        super().__init__(f"{box} is full: {how_many_wait(waiting)} there; send later")
        self.channel = channel  # where it lies
        self.to = to  # whose it is; None: anyone's
        self.waiting = waiting  # so many messages may wait there


class IdentityRefused(PostroomError):
    """The token is not valid here, or does not prove the name that was claimed. Nothing was done."""


class UnknownMessage(PostroomError, LookupError):
    """No message with that id is kept in this room."""


class UnknownGroup(PostroomError, LookupError):
    """This room has no group of that name. Nothing was changed or sent."""


class UnknownTask(PostroomError, LookupError):
    """No task with that id is on the board."""


class ReservationConflict(PostroomError):
    """Another agent has reserved those files. `holders` names the agents; nothing was reserved."""

    quotes_others = True

    def __init__(self, message: str, holders: list[str]) -> None:
        self.holders = holders
        super().__init__(message)


class NoMail(PostroomError):
    """There was nothing to receive."""


class ReceiveTimeout(NoMail, TimeoutError):
    """No message came in time. Nothing was taken."""


class NotAcked(PostroomError, TimeoutError):
    """The receiver did not ack in time. The message is still stored, under `id`."""

    quotes_others = True

    def __init__(self, message: str, id: str) -> None:
        self.id = id
        super().__init__(message)


class LateAck(PostroomError, UserWarning):
    """An ack at the end of a block, or of a round of a loop, came too late: the message was no longer this receiver's.

    Another may have done the same work. A warning (`warnings.simplefilter("error", LateAck)` makes it an error), and
    raised where the receiver was asked with `late="raise"`. `delivery` is the number of the delivery that was late.
    """

    def __init__(self, id: str, delivery: int) -> None:
        self.id = id
        self.delivery = delivery
        super().__init__(
            f"the ack of message {id} (delivery {delivery}) came too late: this receiver no longer held the message, "
            "and another may have done the same work"
        )

    def __reduce__(self) -> tuple[type[LateAck], tuple[str, int]]:
        return type(self), (self.id, self.delivery)


class AskFailed(PostroomError):
    """A question ended without an answer. `id` is the question's."""

    def __init__(self, message: str, id: str) -> None:
        self.id = id
        super().__init__(message)


class PeerGone(AskFailed):
    """The agent that was asked died or stopped without answering."""


class Refused(AskFailed):
    """The agent that was asked refused. `reason` says why, in its own words."""

    quotes_others = True

    def __init__(self, message: str, id: str, reason: str) -> None:
        self.reason = reason
        super().__init__(message, id)


class NotAnswered(AskFailed):
    """The message was ended (acked, expired or set aside) without an answer."""

    quotes_others = True


class Withdrawn(AskFailed):
    """The question was withdrawn, or replaced by another, before a receiver had claimed it."""


class AskTimeout(AskFailed, TimeoutError):
    """No answer came in time. One that comes later is ordinary mail."""


class NotNeeded(AskFailed):
    """One of several agents that were asked had not answered when enough others had, or when the asker stopped waiting."""


class QuestionClosed(PostroomError):
    """A question to a person was answered already, withdrawn, or is over. `id` is the question's; nothing was changed."""

    quotes_others = True

    def __init__(self, message: str, id: str) -> None:
        self.id = id
        super().__init__(message)


class CircuitOpen(PostroomError):
    """The circuit breaker is open: the call was not made."""


class ModelError(PostroomError):
    """A language model did not do what was asked."""


class ModelMissing(ModelError):
    """There is no language model to ask; the error text says how to set one."""


class ModelTimeout(ModelError, TimeoutError):
    """The language model did not answer in time."""


class WorkerError(PostroomError):
    """A worker of a pool gave no result. `worker` names it; `output` is the last text it wrote, where that may help."""

    def __init__(self, message: str, worker: str = "", output: str = "") -> None:
        self.worker = worker
        self.output = output
        super().__init__(message)


class WorkerNotReady(WorkerError):
    """The worker was not ready in time, or could not start."""


class WorkerTimeout(WorkerError, TimeoutError):
    """The deadline of the request has passed. A worker that does not stop working on it is killed and replaced."""


class WorkerDied(WorkerError):
    """The worker's process ended while it worked on the request. It may have done its work; another takes its place."""


class EvaluatorFailed(WorkerError):
    """The evaluator raised, or returned no evaluation. `trace` is the traceback in the worker's process."""

    def __init__(self, message: str, worker: str = "", trace: str = "") -> None:
        self.trace = trace
        super().__init__(message, worker)


class EvaluationAborted(WorkerError):
    """The evaluation was cancelled."""


class RequestDropped(WorkerError):
    """A newer request took the place of this one in the worker's queue."""


class QueueFull(WorkerError):
    """The worker's queue is full. Nothing was asked; try again later."""


class WorkerStopped(WorkerError):
    """The worker, or its pool, is shut down or about to be."""


class PoolFailed(WorkerError):
    """A worker died too often, or could not start again, and the pool stopped. `history` has its last exits."""

    def __init__(self, message: str, worker: str = "", output: str = "", history: list[Any] | None = None) -> None:
        self.history = history or []
        super().__init__(message, worker, output)


class SessionFailed(PostroomError):
    """The session failed. `failure` tells when, why, through which worker, and with which traceback."""

    def __init__(self, message: str, session_id: str, failure: Any = None) -> None:
        self.session_id = session_id
        self.failure = failure
        super().__init__(message)


class Deadlock(SessionFailed):
    """Every member of the session waited for mail that no member was left to send."""


class WorkerTraceback(PostroomError):
    """The traceback of an error in another process or thread, as text: the cause of a SessionFailed."""


class SessionEnded(PostroomError):
    """The session has ended."""


class UnknownSession(PostroomError, LookupError):
    """There is no session with that id in this room."""


class NotStartable(PostroomError):
    """The worker cannot be run in a process of its own. Nothing was started."""


class RoomError(PostroomError):
    """The room cannot be used as asked; the sentence says what to do."""


class RoomNotFound(RoomError):
    """There is no room here. Make one with `postroom init`."""


class RoomNotAllowed(RoomError):
    """A room was found that you neither made nor allowed on this machine. Nothing in it was opened."""


class RoomClosed(RoomError):
    """The room is closed."""


class RoomBusy(RoomError):
    """Others held the room's write lock for too long. Nothing was changed; try again."""


class RoomUnsafe(RoomError):
    """This machine cannot keep a room safely."""


class RoomDamaged(RoomError):
    """The contents of the room's folder are not what was written there."""


class RoomUnreachable(RoomError):
    """The room's disk or server did not do what was asked."""


class RoomGone(RoomUnreachable):
    """The room was deleted, moved away, replaced, set back or upgraded while it was open. It stays gone: reopen it."""


class RoomMoved(RoomGone):
    """The room was moved to another address, is being moved there, or is being filled by a move. `address` is the other.

    `for_good`: the move is over, and this room is not used again.
    """

    def __init__(self, said: str, address: str = "", *, for_good: bool = False) -> None:
        super().__init__(said)
        self.address = address
        self.for_good = for_good


class OutcomeUnknown(RoomError):
    """The reply was lost: the operation may or may not have happened. Repeating it is safe.

    `ids` are those of the messages that may have been stored; `room.receipt` tells of one as soon as the room answers.
    """

    def __init__(self, said: str, ids: Iterable[str] = ()) -> None:
        super().__init__(said)
        self.ids = tuple(ids)


#: What ends work in the background for good: the next try would end the same way.
ROOM_IS_OVER = (RoomClosed, RoomGone)
