"""The programs of simulated agents: each operation of a plan, done by the calls that every user makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, Final, TypeVar

from postroom.board.board import Board
from postroom.board.held_task import HeldTask
from postroom.core.config import GRACE_S, RoomUrl
from postroom.core.system.process import join_thread, start_thread
from postroom.errors import (
    AskFailed,
    AskTimeout,
    NoMail,
    NotAcked,
    NotAnswered,
    PeerGone,
    Refused,
    RoomBusy,
    SessionEnded,
    SessionFailed,
    TooManyHops,
    UnknownTask,
)
from postroom.mail.agent import Agent
from postroom.mail.gateway import Gateway
from postroom.mail.received import Received
from postroom.mail.serving import Serving
from postroom.room import Room
from postroom.sessions.record import all_records
from postroom.sessions.session import Session

from .judges import Broken
from .plans import CHANNEL, NEWS, TASKS, Op
from .process import Process
from .world import World

_SECOND_NS: Final = 1_000_000_000
#: An asker may be told so much after its time: the looks that come a second apart.
_GRACE_S: Final = 1.5
#: A peer that ran, or went, so long ago was seen to run, or to be gone.
_SEEN_NS: Final = 5 * _SECOND_NS
_URL: Final = RoomUrl("memory", "simulated", {})


T = TypeVar("T")


class _Failure(Exception):
    """What a program raises in the middle of its work on a message."""


class SimulatedProgram:
    """One process at its part of the plan."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._clock = world.clock
        self._room: Room | None = None
        self._gateways: list[Gateway] = []
        self._asked = 0

    def run(self) -> None:
        """Do every operation, again and again until the calm begins; then finish that one, and close the room.

        What is left then is received at the end of the schedule. No choice is taken from the seed in the calm, so that
        to do the rest of the operations there would take time and try little.
        """
        try:
            for op in self._ops():
                self._world.point()  # also where the operation takes no step of the store
                self._world.tell(self._process, f"does: {' '.join(map(str, op))}")
                try:
                    self._do(op)
                except (NoMail, NotAcked, RoomBusy, TooManyHops) as error:
                    self._world.tell(self._process, f"is told: {type(error).__name__}")
            self._close()
        except BaseException:
            for gateway in self._gateways:
                gateway._closed = True
            raise

    def _ops(self) -> Iterator[Op]:
        process, ops = self._process, self._process.part.ops
        while ops and (process.next_op == 0 or not self._world.is_calm()):
            process.next_op += 1
            yield ops[(process.next_op - 1) % len(ops)]

    def _do(self, op: Op) -> None:
        kind, *args = op
        step: Callable[..., None] = getattr(self, "_" + str(kind).replace(" ", "_"))
        step(*args)

    def _agent(self) -> Agent:
        if self._room is None:
            store = self._world.new_store(self._process)
            self._gateways.append(Gateway(store, self._world.config, self._clock))
            self._room = Room(self._gateways[-1], _URL)
        agent = self._room.agent(self._process.part.agent)
        self._world.agent_is_open(self._process)
        return agent

    def _close(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            self._world.agent_is_left(self._process)
            room.close()
            self._world.tell(self._process, "has closed the room")
            kept = self._world.judge.held_by(self._process)
            if kept and not self._process.failed:  # what a busy room did not take back ends with its lease
                raise Broken(f"{self._process!r} has closed the room, and kept {', '.join(sorted(kept))}")

    def _payload(self) -> dict[str, Any]:
        self._asked += 1
        return {"n": f"{self._process.label}-{self._asked}"}

    # Sending

    def _send(self, to: str, priority: int, times: tuple[float, float | None], twice: bool) -> None:
        agent, payload, (delay_s, ttl_s) = self._agent(), self._payload(), times
        key = payload["n"] if twice else None
        for _ in range(2 if twice else 1):
            agent.send(to, payload, priority=priority, delay_s=delay_s, ttl_s=ttl_s, idempotency_key=key)

    def _many(self, to: str) -> None:
        self._agent().send_many([{"to": to, "payload": self._payload()} for _ in range(3)])

    def _post(self) -> None:
        self._agent().send(None, self._payload(), channel=CHANNEL)

    def _publish(self) -> None:
        self._agent().publish(NEWS, self._payload())

    def _subscribe(self) -> None:
        self._agent().subscribe(NEWS)

    def _confirmed(self, to: str, timeout_s: float) -> None:
        self._agent().send(to, self._payload(), wait="acked", timeout_s=timeout_s)
        self._world.happened("a sender was told that its message was acked")

    # Receiving

    def _receive(self, timeout_s: float, end: str) -> None:
        self._end(self._agent().receive(timeout_s), end)

    def _work(self, timeout_s: float, end: str) -> None:
        self._end(self._agent().receive(timeout_s, channels=[CHANNEL]), end)

    def _poll(self, end: str) -> None:
        message = self._agent().poll()
        if message is not None:
            self._end(message, end)

    def _lease(self, lease_s: float, hold_s: float) -> None:
        message = self._agent().receive(3.0, lease_s=lease_s)
        self._clock.sleep(hold_s)
        message.ack()

    def _end(self, message: Received, end: str) -> None:
        if end == "leave block":
            with message:
                self._clock.sleep(0.1)
        elif end == "fail in block":
            with suppress(_Failure), message:
                raise _Failure(end)
        elif end == "drop":
            return
        elif end == "extend":
            message.extend(60.0)
            self._clock.sleep(1.0)
            message.ack()
        else:
            self._settle(message, end)

    def _settle(self, message: Received, end: str) -> None:
        if end.startswith("hold"):
            self._hold(message, 40.0 if end == "hold long" else 3.0)
        if end == "reply":
            message.reply({"re": message.payload.get("n")})
        elif end.startswith("retry"):
            message.retry("simulated", 2.0 if end == "retry later" else 0)
            if end == "retry and ack":  # its last word stands; a program that has the ticket may say another
                self._gateway.settle(message.ticket, "acked")
        elif end == "dead":
            message.dead("simulated")
        elif end == "refuse":
            message.refuse("simulated")
        else:
            message.ack()
            if end == "ack twice" and message.ack():
                raise Broken("a second ack of the same message counted")

    def _hold(self, message: Received, span_s: float) -> None:
        """Work on a message for a while. While the process runs and can write, nobody else may get it."""
        stood_ns, failed = self._stood_ns(), self._process.failed
        self._clock.sleep(span_s)
        if not message.ack() and (stood_ns, failed) == (self._stood_ns(), self._process.failed):
            label = self._world.judge.label(message.id)
            raise Broken(f"{self._process!r} lost {label} while it worked on it, though it ran all the time")

    def _listen(self, prefetch: int, most: int, hold_s: float) -> None:
        agent, judge, failed = self._agent(), self._world.judge, self._process.failed
        before = judge.held_by(self._process)
        with closing(_generator(agent.listen(prefetch=prefetch, timeout_s=1.0))) as messages:
            for message in islice(messages, most):
                if hold_s:
                    self._clock.sleep(hold_s)
                self._world.tell(self._process, f"has {judge.label(message.id)} in its loop")
        kept = judge.held_by(self._process) - before
        if kept and failed == self._process.failed:
            raise Broken(f"{self._process!r} has left its loop, and kept {', '.join(sorted(kept))}")

    def _serve(self, span_s: float, how: str) -> None:
        agent = self._agent()

        def handle(message: Received) -> dict[str, Any] | None:
            if how == "fail":
                raise _Failure(how)
            if how == "slow":
                self._clock.sleep(2.0)
            return None if how == "ack" else {"re": message.payload.get("n")}

        # `serve` itself starts its threads in a way of its own; what each of them does is done here.
        want, terms = agent._serving(None, None, ...)
        serving = Serving(self._gateway, want, terms, {"*": handle}, 1, None, GRACE_S)

        def stop() -> None:
            self._clock.sleep(span_s)
            serving.finish()

        stopper = threading.Thread(target=stop, name="stop serving")
        start_thread(stopper)
        serving._work()
        serving._inbox.close()
        join_thread(stopper, None)
        if serving._crash is not None:
            raise serving._crash

    @property
    def _gateway(self) -> Gateway:
        assert self._room is not None
        return self._room.gateway

    # Asking

    def _ask(self, to: str, timeout_s: float) -> None:
        agent, payload, world = self._agent(), self._payload(), self._world
        since_ns, stood_ns = self._clock.now_ns, self._stood_ns()
        was_open = world.left_ns(to) is None
        try:
            answer = agent.ask(to, payload, timeout_s)
        except AskFailed as error:
            world.tell(self._process, f"is told: {type(error).__name__}")
            world.happened(_TOLD[type(error)])
            if isinstance(error, AskTimeout) and was_open and stood_ns == self._stood_ns():
                self._judge_silence(to, since_ns)
        else:
            if answer.payload != {"re": payload["n"]}:
                raise Broken(f"{self._process!r} asked {payload['n']}, and was answered {answer.payload}")
            world.happened("an asker got its answer")
        spent_s = (self._clock.now_ns - since_ns + stood_ns - self._stood_ns()) / _SECOND_NS
        if spent_s > timeout_s + _GRACE_S:
            raise Broken(f"{self._process!r} was told after {spent_s:.1f} s, and had asked for {timeout_s:g} s")

    def _stood_ns(self) -> int:
        return self._world.stood_ns + self._process.stood_ns

    def _judge_silence(self, peer: str, since_ns: int) -> None:
        """An asker ran out of time: its peer must not have been gone for long, having run while it waited."""
        left_ns = self._world.left_ns(peer)
        if left_ns is not None and left_ns - since_ns > _SEEN_NS and self._clock.now_ns - left_ns > _SEEN_NS:
            gone_s = (self._clock.now_ns - left_ns) / _SECOND_NS
            raise Broken(f"{self._process!r} was not told that {peer} had been gone for {gone_s:.1f} s")

    def _ask_long(self, to: str) -> None:
        self._ask(to, 15.0)

    # The board

    def _add(self, task: str) -> None:
        self._agent()
        self._board.add(task, after=TASKS[task])

    def _task(self, timeout_s: float, end: str) -> None:
        name = self._agent().name
        before = self._stood_ns(), self._process.failed  # a lease counts from before it is written
        task = self._board.claim(name, timeout_s=timeout_s)
        if task is not None:
            self._world.tell(self._process, f"has task {task.id}, token {task.token}")
            self._end_task(task, end, before)

    def _task_lease(self, hold_s: float) -> None:
        name = self._agent().name
        task = self._board.claim(name, timeout_s=3.0, lease_s=2.0, heartbeat=False)
        if task is not None:
            self._clock.sleep(hold_s)
            if not task.done():
                self._world.happened("a late word on a task was refused")

    def _end_task(self, task: HeldTask, end: str, before: tuple[int, int]) -> None:
        if end.startswith("hold"):
            self._clock.sleep(40.0 if end == "hold long" else 3.0)
        if end == "drop":
            return
        if end == "release":
            task.release("simulated")
        elif end == "blocked":
            task.blocked("simulated")
        elif not task.done({"by": self._process.label}):
            self._world.happened("a late word on a task was refused")
            if not task.aborted and before == (self._stood_ns(), self._process.failed):
                raise Broken(f"{self._process!r} lost task {task.id} while it worked on it, though it ran all the time")

    def _work_off(self, timeout_s: float) -> None:
        name = self._agent().name
        with closing(_generator(self._board.work(name, timeout_s=timeout_s))) as tasks:
            for task in islice(tasks, 3):
                self._world.tell(self._process, f"has task {task.id} in its loop")

    def _abort(self, task: str) -> None:
        self._agent()
        with suppress(UnknownTask):
            self._board.abort(task, "simulated")

    @property
    def _board(self) -> Board:
        assert self._room is not None
        return self._room.board

    # Sessions

    def _session(self, count: int, how: str, delay_ms: float) -> None:
        self._agent()
        with self._told_of_the_end():
            session = self._session_room.session()
            with self._ends(session), session, self._as_member(session):
                for number in range(count):
                    session.mailbox["tasks"].send(number, delay_ms=delay_ms)
                for _ in range(count):
                    self._take(session, "results", how)
                if how == "fail":
                    raise _Failure(how)

    def _join(self, count: int, how: str) -> None:
        self._agent()
        going_on = [id for id, record in all_records(self._gateway) if not record.over]
        if not going_on:
            return
        with self._told_of_the_end():
            session = self._session_room.session(going_on[-1], name=self._process.label)
            with session, self._as_member(session):
                for _ in range(count):
                    value = self._take(session, "tasks", how)
                    session.mailbox["results"].send(value)
                if how == "mark failed":
                    session.mark_failed("simulated")
                elif how == "fail":
                    raise _Failure(how)

    @property
    def _session_room(self) -> Room:
        assert self._room is not None
        self._room.folder = self._world.folder()
        return self._room

    def _take(self, session: Session, box: str, how: str) -> object:
        timed = how == "wait"
        with self._world.judge.waits_for(session.id, self._process, None if timed else box):
            return session.mailbox[box].receive(2000 if timed else None)

    @contextmanager
    def _ends(self, session: Session) -> Iterator[None]:
        """When its opener has left, a session is over."""
        failed = self._process.failed
        try:
            yield
        finally:
            if self._process.alive and failed == self._process.failed and session.id not in self._world.judge.over:
                raise Broken(f"{self._process!r} has left the session that it opened, and it goes on")

    @contextmanager
    def _as_member(self, session: Session) -> Iterator[None]:
        self._world.tell(self._process, "is a member")
        self._world.judge.is_member(session.id, self._process)
        try:
            yield
        finally:
            self._world.judge.leaves(session.id, self._process)

    @contextmanager
    def _told_of_the_end(self) -> Iterator[None]:
        """A session may end in many ways, and each of its members is told of it. Then it is a member no more."""
        try:
            yield
        except (SessionFailed, SessionEnded, _Failure) as error:
            self._world.tell(self._process, f"is told: {type(error).__name__}")
            self._world.happened(f"a member was told: {type(error).__name__.strip('_')}")
        if self._world.judge.standings(self._process) and not self._process.failed:
            raise Broken(f"{self._process!r} has left its session, and its cell stays")

    # The rest

    def _sleep(self, span_s: float) -> None:
        self._agent()
        self._clock.sleep(span_s)

    def _reopen(self) -> None:
        self._close()


_TOLD: Final = {
    PeerGone: "an asker was told that its peer is gone",
    Refused: "an asker was refused",
    NotAnswered: "a question ended without an answer",
    AskTimeout: "an asker ran out of time",
}


def _generator(items: Iterator[T]) -> Generator[T, None, None]:
    """An iterator that is a generator, and can be closed."""
    assert isinstance(items, Generator)
    return items
