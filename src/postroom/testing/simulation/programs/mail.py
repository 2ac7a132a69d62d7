"""Sending and receiving, as simulated agents do it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from typing import Any, Final

from postroom.core.config import GRACE_S, LEASE_S
from postroom.core.states import State
from postroom.core.system.process import join_thread, start_thread
from postroom.errors import RoomBusy
from postroom.mail.received import Received
from postroom.mail.serving import Handler, Serving
from postroom.stores.contract import Query
from postroom.testing.simulation.broken import Broken
from postroom.testing.simulation.plans import CHANNEL, NEWS

from .program import SECOND_NS, Program, WorkFailed, generator

_SET_ASIDE: Final = Query(states=frozenset({State.DEAD, State.REFUSED, State.EXPIRED}), limit=10)
#: Longer than a lease without heartbeats, and longer than the grace after that.
LONG_S: Final = 40.0
_PACES_S: Final = {"slow": 2.0, "very slow": 4.0}


# Sending


def _send(
    program: Program, to: str, priority: int, times: tuple[float, float | None], twice: bool, channel: str | None
) -> None:
    agent, payload, (delay_s, ttl_s) = program.agent(), program.payload(), times
    more: dict[str, Any] = {} if channel is None else {"channel": channel}
    key = payload["n"] if twice else None
    for _ in range(2 if twice else 1):
        agent.send(to, payload, priority=priority, delay_s=delay_s, ttl_s=ttl_s, idempotency_key=key, **more)


def _many(program: Program, to: str) -> None:
    program.agent().send_many([{"to": to, "payload": program.payload()} for _ in range(3)])


def _post(program: Program) -> None:
    program.agent().send(None, program.payload(), channel=CHANNEL)


def _publish(program: Program) -> None:
    program.agent().publish(NEWS, program.payload())


def _subscribe(program: Program) -> None:
    program.agent().subscribe(NEWS)


def _confirmed(program: Program, to: str, timeout_s: float) -> None:
    program.agent().send(to, program.payload(), wait="acked", timeout_s=timeout_s)
    program.world.happened("a sender was told that its message was acked")


def _requeue(program: Program) -> None:
    """An operator puts back what was set aside."""
    program.agent()
    store = program.gateway.open_store
    program.room.requeue([message.id for message in store.find(_SET_ASIDE).messages])


# Receiving


def _receive(program: Program, timeout_s: float, end: str) -> None:
    end_message(program, program.agent().receive(timeout_s), end)


def _work(program: Program, timeout_s: float, end: str) -> None:
    end_message(program, program.agent().receive(timeout_s, channels=[CHANNEL]), end)


def _poll(program: Program, end: str) -> None:
    message = program.agent().poll()
    if message is not None:
        end_message(program, message, end)


def _lease(program: Program, lease_s: float, hold_s: float) -> None:
    message = program.agent().receive(3.0, lease_s=lease_s)
    program.clock.sleep(hold_s)
    message.ack()


def _peek(program: Program) -> None:
    """Wait at the channel for a moment, and take nothing: a hint that comes then is somebody else's."""
    program.agent()
    with program.gateway.listen([program.judge.topic_of_channel]) as waiter:
        program.clock.sleep(0.3)
        waiter.fileno()


def end_message(program: Program, message: Received, end: str) -> None:
    """Do with a message what the plan says."""
    if end == "leave block":
        with message:
            program.clock.sleep(0.1)
    elif end == "fail in block":
        with suppress(WorkFailed), message:
            raise WorkFailed(end)
    elif end == "drop":
        return
    elif end == "extend":
        message.extend(60.0)
        program.clock.sleep(1.0)
        message.ack()
    elif end == "extend and stand still":
        _extend_and_stand_still(program, message)
    elif end.startswith("hold"):
        _hold(program, message, LONG_S if end == "hold long" else 3.0)
    else:
        _settle(program, message, end)


def _extend_and_stand_still(program: Program, message: Received) -> None:
    """Keep a message for longer than any heartbeat would, before the process is stopped for a while."""
    message.extend(300.0)
    program.clock.sleep(12.0)  # heartbeats go on, and must not make it less
    program.world.freeze(program.process, 100.0)
    program.world.point()
    message.ack()


def _settle(program: Program, message: Received, end: str) -> None:
    if end.startswith("reply"):
        _reply(program, message, end)
    elif end.startswith("retry"):
        message.retry("simulated", 2.0 if end == "retry later" else 0)
        if end == "retry and ack":  # its last word stands; a program that has the ticket may say another
            program.gateway.settle(message.ticket, "acked")
    elif end == "put back and ack":
        message.dead("simulated")
        program.room.requeue([message.id])
        program.gateway.settle(message.ticket, "acked")
    elif end == "dead":
        message.dead("simulated")
    elif end == "refuse":
        message.refuse("simulated")
    elif end == "ack twice":
        message.ack()
        if message.ack():
            raise Broken("a second ack of the same message counted")
    else:
        _ack(program, message, in_a_busy_room=end == "ack in a busy room")


def _reply(program: Program, message: Received, end: str) -> None:
    if end == "reply and die":  # after a second, when its asker looks whether it still runs
        program.clock.sleep(1.0)
        program.process.dies_after = None if program.world.is_calm() else 0
    message.reply({"re": message.payload.get("n")})
    program.process.dies_after = None
    if end == "reply and go":
        program.close()


def _ack(program: Program, message: Received, *, in_a_busy_room: bool) -> None:
    """Ack; where the room was busy, again after a while, in which the message stays this process's."""
    program.process.fails += in_a_busy_room and not program.world.is_calm()
    stood_ns = program.stood_ns()
    try:
        message.ack()
    except RoomBusy:
        failed = program.process.failed
        program.clock.sleep(LONG_S)
        if not message.ack() and (stood_ns, failed) == program.troubles():
            label = program.judge.label(message.id)
            raise Broken(f"{program.process!r} could not ack {label} in a busy room, and lost it meanwhile") from None


def _hold(program: Program, message: Received, span_s: float) -> None:
    """Work on a message for a while. While the process runs and can write, nobody else may get it."""
    # a claim may be kept by servers for longer than its lease before its reply is here, where everything stands still
    before = program.troubles() if program.judge.tells_whole_steps else program.began
    program.clock.sleep(span_s)
    if not message.ack() and before == program.troubles():
        label = program.judge.label(message.id)
        raise Broken(f"{program.process!r} lost {label} while it worked on it, though it ran all the time")


def _listen(program: Program, prefetch: int, most: int, hold_s: float) -> None:
    agent, judge, failed = program.agent(), program.judge, program.process.failed
    before = judge.held_by(program.process)
    with closing(generator(agent.listen(prefetch=prefetch, timeout_s=1.0))) as messages:
        for message in islice(messages, most):
            judge.handed_out(program.process, message.ticket)
            if hold_s > LEASE_S:  # the loop's process is stopped, and others may take what it has not come to
                program.world.freeze(program.process, hold_s)
                program.world.point()
            elif hold_s:
                program.clock.sleep(hold_s)
            program.tell(f"has {judge.label(message.id)} in its loop")
    kept = judge.held_by(program.process) - before
    if kept and failed == program.process.failed:
        raise Broken(f"{program.process!r} has left its loop, and kept {', '.join(sorted(kept))}")


def _serve(program: Program, span_s: float, how: str) -> None:
    def handle(message: Received) -> dict[str, Any] | None:
        if how == "fail":
            raise WorkFailed(how)
        if how in _PACES_S:
            program.clock.sleep(_PACES_S[how])
        return None if how == "ack" else {"re": message.payload.get("n")}

    serve(program, handle, span_s)


def serve(program: Program, handle: Handler, span_s: float, stop: threading.Event | None = None) -> None:
    """Serve for a while with that handler.

    `Agent.serve` itself starts its threads in a way of its own; what each of them does is done here.
    """
    want, terms = program.agent()._serving(None, None, ...)
    told_at: list[int] = []

    def judged(message: Received) -> dict[str, Any] | None:
        if told_at:
            program.judge.was_taken_before(program.process, message.ticket, told_at[0])
        return handle(message)

    serving = Serving(program.gateway, want, terms, {"*": judged}, 1, stop, GRACE_S)

    def tell_to_stop() -> None:
        program.clock.sleep(span_s)
        serving.finish()
        told_at.append(program.world.step)

    stopper = threading.Thread(target=tell_to_stop, name="stop serving")
    start_thread(stopper)
    serving._work()
    serving._inbox.close()
    join_thread(stopper, None)
    if serving._crash is not None:
        raise serving._crash


# The rest


def _sleep(program: Program, span_s: float) -> None:
    program.agent()
    program.clock.sleep(span_s)


def _sleep_two(program: Program) -> None:
    """As long as the leases of late owners: what is over then is over exactly now."""
    _sleep(program, 2.0)


def _set_the_clock(program: Program, by_s: float) -> None:
    """Set the wall clock of the machine; leases know nothing of it."""
    program.clock.wall_offset_ns += round(by_s * SECOND_NS)


def _reopen(program: Program) -> None:
    program.close()


OPERATIONS: Final[dict[str, Callable[..., None]]] = {
    "send": _send,
    "many": _many,
    "post": _post,
    "publish": _publish,
    "subscribe": _subscribe,
    "confirmed": _confirmed,
    "requeue": _requeue,
    "receive": _receive,
    "work": _work,
    "poll": _poll,
    "peek": _peek,
    "lease": _lease,
    "listen": _listen,
    "serve": _serve,
    "sleep": _sleep,
    "sleep two": _sleep_two,
    "set the clock": _set_the_clock,
    "reopen": _reopen,
}
