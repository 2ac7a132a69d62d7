"""Answering messages with handler functions in a pool of threads, of which one at a time waits for mail."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from postroom.core.config import SAFETY_LOOK_S
from postroom.core.system import goodbye
from postroom.errors import (
    ROOM_IS_OVER,
    Fault,
    InvalidMessage,
    LateAck,
    PostroomError,
    RoomClosed,
    RoomError,
    TooManyHops,
    raise_faults,
)
from postroom.stores.contract import Delivery, Settled, Ticket, Want

from .gateway import Deadline, Gateway, Latch
from .leases import Terms
from .received import ACKED, TOLD_TO_STOP, Received, Settlement, check_seconds, words
from .waiting import Inbox

log = logging.getLogger("postroom")

Handler = Callable[[Received], dict[str, Any] | None]

#: The handler of every type that has none of its own.
ANY_TYPE: Final = "*"
#: A handler that is done is asked to be recorded this often before its message is left to the end of its lease.
SETTLE_TRIES: Final = 3


@dataclass(slots=True)
class ServedMessage:
    """One message on its way through `serve`: each step fills in its part."""

    message: Received
    handler: Handler | None = None
    answer: dict[str, Any] | None = None
    error: BaseException | None = None


def find_handler(run: ServedMessage, handlers: Mapping[str, Handler]) -> ServedMessage:
    """The function for the message's type, else that for every type, else none."""
    run.handler = handlers.get(run.message.type, handlers.get(ANY_TYPE))
    return run


def call_handler(run: ServedMessage) -> ServedMessage:
    """Run the function; what it returns or raises is kept."""
    if run.handler is not None:
        try:
            run.answer = run.handler(run.message)
        except BaseException as error:  # noqa: BLE001  whatever it is, the message must not stay claimed
            run.error = as_failure(error)
    return run


def as_failure(error: BaseException) -> BaseException:
    """What a function raised. That something it waited for was cancelled is a failure like any other.

    It would end the serving otherwise: see test_a_handler_for_which_something_was_cancelled_is_tried_again.
    """
    if isinstance(error, Exception):
        return error
    asyncio = sys.modules.get("asyncio.exceptions")  # slow to load; without it nothing was cancelled
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return error
    failure = RuntimeError("something the handler awaited was cancelled")
    failure.__cause__ = error
    return failure


def judge(run: ServedMessage, handlers: Mapping[str, Handler]) -> Settlement:
    """What becomes of the message."""
    if run.handler is None:
        known = ", ".join(sorted(handlers)) or "nothing"
        return Settlement(
            "refused", words("reason", f"no handler for type {run.message.type!r}; the handlers are for: {known}")
        )
    answer: Any = run.answer  # a function may return anything; what is no dict is a fault of the answer
    if run.error is None and answer is None:
        return ACKED
    if run.error is None:
        try:
            return run.message.answer_verdict(answer)
        except InvalidMessage as error:
            run.error = error
    if isinstance(run.error, TooManyHops):  # the same at every delivery
        return Settlement("dead", words("reason", run.error))
    failed = isinstance(run.error, Exception)
    return run.message.retry_verdict(run.error, None if failed else 0, failed=failed)


class Farewell:
    """What SIGTERM means to one call of `serve`: it takes nothing more, and has `grace_s` to finish what it runs.

    What is not finished by then goes back without counting the delivery: that the program was told to stop is no fault
    of the message.
    """

    def __init__(self, gateway: Gateway, grace_s: float) -> None:
        self._gateway = gateway
        self._grace_s = check_seconds("grace_s", grace_s)
        self._until: Deadline | None = None
        self._running: dict[Ticket, threading.Thread] = {}
        #: The threads of functions that did not end in time: nobody waits for them.
        self.left_alone: set[threading.Thread] = set()

    @property
    def said(self) -> bool:
        """Whether SIGTERM came."""
        return self._until is not None

    def left_s(self) -> float | None:
        """How long functions may still run; None while there is no end."""
        return None if self._until is None else self._until.left_s()

    def say(self) -> None:
        """SIGTERM came. In its handler."""
        self._until = self._until or Deadline(self._gateway.clock, self._grace_s)

    def begins(self, message: Received) -> bool:
        """A function is about to get the message; False when SIGTERM came first: then `return_running` is next."""
        self._running[message.ticket] = threading.current_thread()
        return not self.said

    def ends(self, message: Received) -> None:
        """The message is settled."""
        self._running.pop(message.ticket, None)

    def return_running(self, *messages: Received) -> None:
        """Let others have these messages; without any, all that are still being worked on."""
        if not messages:
            self.left_alone |= set(self._running.values())
        for ticket in [message.ticket for message in messages] or tuple(self._running):
            self._running.pop(ticket, None)
            self._gateway.unseen.add(ticket)  # should the room be busy, it does the same when it is closed
            with suppress(PostroomError):
                self._gateway.settle(ticket, "returned", detail=TOLD_TO_STOP)
                self._gateway.unseen.discard(ticket)

    def close(self) -> None:
        """The serving is over. After SIGTERM so is the program, mostly: its agents are stopped then, not gone."""
        if self.said:
            atexit.register(self._gateway.close)


def conclude(run: ServedMessage, verdict: Settlement, claim_next: Want | None) -> Settled:
    """Record what became of the message, and say so when that came too late. Claims the next one in the same step."""
    was_open = run.message.settled is None
    settled = run.message.conclude(verdict, claim_next)
    if was_open and not settled.held and run.message.was_late():
        log.warning("%s", LateAck(run.message.id, run.message.delivery_count), extra={"action": "late_ack"})
    return settled


class Serving:
    """One call of `Agent.serve`.

    Idle threads take turns: one waits for mail, the others wait for their turn. The thread that takes a message leaves
    the place to the next and runs it, then settles it and claims the following one in one step, as long as there is
    one.
    """

    def __init__(
        self,
        gateway: Gateway,
        want: Want,
        terms: Terms,
        handlers: Mapping[str, Handler],
        concurrency: int,
        stop: threading.Event | None,
        grace_s: float,
    ) -> None:
        check_handlers(handlers, concurrency)
        self._gateway = gateway
        self._terms = terms
        self._farewell = Farewell(gateway, grace_s)
        self._handlers = dict(handlers)
        self._inbox = Inbox(gateway, want)
        self._turn = threading.Lock()
        self._leaving = Latch(gateway.clock)  # also when a thread has ended: then all of them will
        self._stop: threading.Event | Latch = self._leaving if stop is None else stop
        self._crash: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"postroom {want.agent} {number}", daemon=True)
            for number in range(concurrency)
        ]

    def run(self) -> None:
        """Serve until told to stop; then let running handlers finish.

        Raises what a handler ended the program with; RoomGone when the room was deleted or replaced.
        """
        with goodbye.heard(self._say_goodbye):
            self._run()
        if self._crash is not None:
            raise self._crash

    def _say_goodbye(self) -> None:
        """SIGTERM came. In its handler."""
        self._farewell.say()
        self._leaving.set()

    def _run(self) -> None:
        forget = self._gateway.at_close(self.finish)
        try:
            for thread in self._threads:
                thread.start()
            while not self._told_to_stop():
                self._stop.wait(SAFETY_LOOK_S)
        except KeyboardInterrupt:
            log.info("interrupted: running handlers finish", extra={"action": "serve_interrupted"})
        finally:
            self._leaving.set()
            self._wait_for_handlers()
            forget()
            self._inbox.close()
            self._farewell.close()

    def _wait_for_handlers(self) -> None:
        """Until they are done; after SIGTERM no longer than the grace. The thread of one that goes on is a daemon.

        A thread that is in the middle of a claim is waited for in any case: it gives back what it gets.
        """
        for thread in self._threads:
            while thread.is_alive():
                left_s = self._farewell.left_s()
                if left_s == 0:
                    self._farewell.return_running()
                    if thread in self._farewell.left_alone:
                        break
                thread.join(min(left_s or SAFETY_LOOK_S, SAFETY_LOOK_S))

    def finish(self) -> None:
        """The room closes: take nothing more, and give running handlers the length of a lease to finish."""
        self._leaving.set()
        if threading.current_thread() not in self._threads:
            self._join(self._inbox.want.lease_s)

    def _join(self, timeout_s: float | None) -> None:
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt may come before all of them were started
                thread.join(timeout_s)

    # A thread

    def _work(self) -> None:
        try:
            while not self._told_to_stop():
                self._serve_some()
        except RoomClosed:
            pass
        except BaseException as crash:  # noqa: BLE001  raised again by `run`
            self._crash = crash
        self._leaving.set()  # they only ever end together

    def _told_to_stop(self) -> bool:
        return self._leaving.is_set() or self._stop.is_set()

    def _serve_some(self) -> None:
        """Wait for a message, run it, and run those that follow without a pause."""
        try:
            with self._turn:
                delivery = self._inbox.next(None, self._leaving)
            while delivery is not None:
                delivery = self._serve_one(delivery)
        except ROOM_IS_OVER:
            raise
        except RoomError as trouble:  # busy, or its disk is full: nothing was lost, so go on
            log.warning("serving goes on after: %s", trouble, extra={"action": "serve_trouble"})
            self._leaving.wait(SAFETY_LOOK_S)

    def _serve_one(self, delivery: Delivery) -> Delivery | None:
        """Run one message; returns the next one if it could be claimed in the same step."""
        run = ServedMessage(Received(self._gateway, delivery, self._terms))
        if not self._farewell.begins(run.message):
            self._farewell.return_running(run.message)
            return None
        try:
            run = call_handler(find_handler(run, self._handlers))
            if run.error is not None and not isinstance(run.error, Exception):
                self._leaving.set()  # before the message is back, so that no thread here takes it again
            settled = self._settle(run, judge(run, self._handlers))
        finally:
            self._farewell.ends(run.message)
        report(run)
        following = settled.claimed.deliveries if settled.claimed is not None else []
        return following[0] if following else None

    def _settle(self, run: ServedMessage, verdict: Settlement) -> Settled:
        """Record what became of the message, in spite of a room that is busy for a while."""
        for tries_left in reversed(range(SETTLE_TRIES)):
            try:
                self._gateway.redaction.refresh(self._gateway.clock.steady_ns())  # nothing is read after the decision
                claim_next = None if self._told_to_stop() else self._inbox.want
                return conclude(run, verdict, claim_next)
            except ROOM_IS_OVER:
                raise
            except RoomError:
                if tries_left == 0:
                    run.message.let_go()
                    raise
                self._leaving.wait(SAFETY_LOOK_S)
        raise AssertionError("unreachable")


def report(run: ServedMessage) -> None:
    """Say that a function failed.

    SystemExit and the like, which end the serving, are raised; the message is back already.
    """
    if run.error is None:
        return
    if not isinstance(run.error, Exception):
        raise run.error
    log.warning(
        "handling %s from %s failed (delivery %d)",
        run.message.id,
        run.message.from_agent,
        run.message.delivery_count,
        exc_info=run.error,
        extra={"action": "handler_failed"},
    )


def check_handlers(handlers: Any, concurrency: Any) -> None:
    """Raise InvalidMessage for handlers that could never run."""
    faults: list[Fault] = []
    if not isinstance(handlers, Mapping) or not handlers:
        faults.append(Fault("handlers", "must be a dict of at least one type and its function"))
    else:
        faults += [Fault(f"handlers[{t!r}]", "must be a function") for t, fn in handlers.items() if not callable(fn)]
    if type(concurrency) is not int or concurrency < 1:
        faults.append(Fault("concurrency", f"must be a whole number of 1 or more, not {concurrency!r}"))
    raise_faults(faults)
