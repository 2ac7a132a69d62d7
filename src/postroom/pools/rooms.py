"""A pool and a room: taking work from it, and evaluating what is written there before anybody asks.

Work is taken as an agent takes it (`mail/serving.py`): claimed, with its lease extended while it runs, and settled. A
worker that is killed half-way costs nothing but the time: its message is delivered again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import Any, Final, Protocol, Self

from postroom.core.chore import Chore
from postroom.core.config import SAFETY_LOOK_S
from postroom.core.message import Message
from postroom.core.system import goodbye
from postroom.errors import (
    ROOM_IS_OVER,
    InvalidMessage,
    PoolFailed,
    RoomClosed,
    RoomError,
    RoomGone,
    WorkerDied,
    WorkerError,
    WorkerNotReady,
    WorkerStopped,
    WorkerTimeout,
)
from postroom.mail.agent import Agent
from postroom.mail.received import TOLD_TO_STOP, Received
from postroom.room import Room
from postroom.stores.contract import FEED

from .evaluation import Evaluation
from .message import as_message
from .request import Request

log = logging.getLogger("postroom")

ANSWERS: Final = ("asked", "always", "never")


class Minds(Protocol):
    """What is needed of a pool here; see `WorkerPool`."""

    failure: PoolFailed | None
    workers: Mapping[str, Any]

    @property
    def takes_work(self) -> bool: ...

    def evaluate(self, message: Mapping[str, Any], timeout_s: float | None) -> Evaluation: ...

    def begin(self, message: Mapping[str, Any], timeout_s: float | None, *, keep: int | None) -> dict[str, Request]: ...


@dataclass(eq=False)
class Answering:
    """One call of `WorkerPool.serve`."""

    pool: Minds
    agent: Agent
    channels: Iterable[str] | None
    timeout_s: float | None
    lease_s: float | None
    answer: str
    stop: threading.Event
    grace_s: float
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.answer not in ANSWERS:
            raise InvalidMessage("answer", f"must be one of {', '.join(ANSWERS)}, not {self.answer!r}")

    def run(self) -> None:
        """Serve until told to stop. Raises PoolFailed when the pool did."""
        try:
            self.agent.serve(
                {"*": self._judge},
                max(1, len(self.pool.workers)),
                channels=self.channels,
                lease_s=self.lease_s,
                stop=self.stop,
                grace_s=self.grace_s,
            )
        finally:
            self.over.set()
        if self.pool.failure is not None:
            raise self.pool.failure

    def _judge(self, message: Received) -> dict[str, Any] | None:
        """Let a worker judge one message.

        What befalls the worker is not the message's fault: it comes again at once.
        """
        try:
            evaluation = self.pool.evaluate(as_message(message), self.timeout_s)
        except (WorkerDied, WorkerTimeout) as error:
            if goodbye.is_said():  # to all processes of a group, perhaps: the worker died of the same signal
                message.return_unseen(TOLD_TO_STOP)
                return None
            message.retry(f"{type(error).__name__}: {error}", delay_s=0)
            return None
        except (WorkerStopped, WorkerNotReady, PoolFailed):
            if not (self.pool.takes_work and self.pool.workers):
                self.stop.set()
            message.return_unseen()
            return None
        wanted = self.answer == "always" or (self.answer == "asked" and message.message.waiter is not None)
        return evaluation.to_dict() if wanted else None

    def close(self, timeout_s: float | None) -> None:
        """Claim nothing more, and wait until what was claimed is settled."""
        self.stop.set()
        self.over.wait(timeout_s)


class Following(Chore):
    """Evaluates new messages of some channels as they come. Made by `WorkerPool.follow`.

    When it is closed it evaluates nothing more; evaluations under way go on.
    """

    def __init__(self, pool: Minds, room: Room, channels: Iterable[str], timeout_s: float | None, keep: int) -> None:
        self._pool = pool
        self._room = room
        self._channels = frozenset(channels)
        if not self._channels:
            raise InvalidMessage("channels", "must name at least one channel")
        self._timeout_s = timeout_s
        self._keep = keep
        self._cursor = room.cursor()
        self._since_ms = room.clock.wall_ms()
        self._seen: dict[str, None] = {}
        #: How many messages were given to the workers.
        self.count = 0
        ends_on = (*ROOM_IS_OVER, WorkerError)  # the pool is over: so is this
        super().__init__("postroom follow", self._look, room.clock, every_s=SAFETY_LOOK_S, first_s=0, ends_on=ends_on)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _look(self) -> None:
        try:
            self._follow()
        except RoomGone as end:
            log.error("following has ended: %s", end, extra={"action": "follow_ended"})  # noqa: TRY400
            raise
        except RoomClosed:
            raise
        except RoomError as trouble:  # busy, or its server is away for a while
            log.warning("following goes on after: %s", trouble, extra={"action": "follow_trouble"})

    def _follow(self) -> None:
        gateway = self._room.gateway
        with gateway.listen([FEED]) as waiter:
            while not self.closed:
                changes = self._room.events(self._cursor)
                for change in takewhile(lambda _: not self.closed, changes):
                    self._look_at(change.message)
                    self._cursor = change.number
                if not changes:
                    gateway.wait(waiter, None, self)

    def _look_at(self, message: Message) -> None:
        """Give a message to the workers, if it is new."""
        if message.channel not in self._channels or message.id in self._seen or message.timestamp_ms < self._since_ms:
            return
        self._seen[message.id] = None
        while len(self._seen) > self._keep:
            del self._seen[next(iter(self._seen))]
        self._pool.begin(as_message(message), self._timeout_s, keep=self._keep)
        self.count += 1
