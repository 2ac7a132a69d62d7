"""Answering messages with functions."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import PROGRAMS

import postroom
from postroom import Agent, InvalidMessage, Received, Room, RoomBusy
from postroom.core.clock import ManualClock
from postroom.core.config import LEASE_S
from postroom.stores.contract import Ticket

PATIENCE_S = 20


@pytest.fixture
def ada(room: Room) -> Agent:
    return room.agent("ada")


@pytest.fixture
def serve(room: Room, in_background: Callable[..., Any]) -> Iterator[Callable[..., threading.Event]]:
    """Serves as bob in the background; stops at the end of the test."""
    running = []

    def start(handlers: dict[str, Any], concurrency: int = 2, **options: Any) -> threading.Event:
        stop = threading.Event()
        bob = room.agent("bob")
        running.append((stop, in_background(lambda: bob.serve(handlers, concurrency, stop=stop, **options))))
        return stop

    yield start
    for stop, call in running:
        stop.set()
        call.result()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_functions_answer_by_the_type_of_the_message(ada: Agent, serve: Callable[..., Any], concurrency: int) -> None:
    serve({"double": lambda m: {"n": 2 * m.payload["n"]}, "*": lambda m: {"type": m.type}}, concurrency)

    assert [ada.ask("bob", {"n": n}, type="double").payload["n"] for n in range(5)] == [0, 2, 4, 6, 8]
    assert ada.ask("bob", {}, type="other").payload == {"type": "other"}


def test_none_acks_the_message(ada: Agent, serve: Callable[..., Any]) -> None:
    serve({"note": lambda m: None})

    with pytest.raises(postroom.NotAnswered, match="was acked by bob"):
        ada.ask("bob", {}, type="note")


def test_a_type_without_a_function_is_refused(ada: Agent, serve: Callable[..., Any]) -> None:
    serve({"a": lambda m: None, "b": lambda m: None})

    with pytest.raises(postroom.Refused, match="no handler for type 'c'; the handlers are for: a, b"):
        ada.ask("bob", {}, type="c")


def test_a_function_that_settled_its_message_is_left_alone(room: Room, ada: Agent, serve: Callable[..., Any]) -> None:
    def settle(message: Received) -> dict[str, Any]:
        message.refuse("by hand")
        return {"ignored": True}

    serve({"*": settle})

    with pytest.raises(postroom.Refused, match="by hand"):
        ada.ask("bob", {})
    assert room.peek(agent="ada") == []


def test_a_function_that_raises_is_tried_again_later(
    room: Room, ada: Agent, serve: Callable[..., Any], clock: ManualClock, caplog: pytest.LogCaptureFixture,
    in_background: Callable[..., Any], pass_time: Callable[..., None],
) -> None:  # fmt: skip
    failures = iter([ValueError("one"), ValueError("two")])

    def fail_twice(message: Received) -> dict[str, Any]:
        for error in failures:
            raise error
        return {"delivery": message.delivery_count}

    serve({"*": fail_twice})
    asked = in_background(lambda: ada.ask("bob", {}, timeout_s=100))
    pass_time(asked)

    answer = asked.result()
    assert answer.payload == {"delivery": 3}
    details = [e.detail for e in room.receipt(answer.message.answer_to).events if e.event == "retried"]
    assert details == ["ValueError: one", "ValueError: two"]
    assert [r.action for r in caplog.records if r.levelno == logging.WARNING] == ["handler_failed"] * 2  # type: ignore[attr-defined]


def test_a_function_for_which_something_was_cancelled_is_tried_again_later(
    room: Room, ada: Agent, serve: Callable[..., Any],
    in_background: Callable[..., Any], pass_time: Callable[..., None],
) -> None:  # fmt: skip
    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    def work(message: Received) -> dict[str, Any]:
        if message.delivery_count == 1:
            asyncio.run(cancel_itself())
        return {"delivery": message.delivery_count}

    serve({"*": work})
    asked = in_background(lambda: ada.ask("bob", {}, timeout_s=100))
    pass_time(asked)

    answer = asked.result()
    assert answer.payload == {"delivery": 2}
    details = [e.detail for e in room.receipt(answer.message.answer_to).events if e.event == "retried"]
    assert details == ["RuntimeError: something the handler awaited was cancelled"]


@pytest.mark.parametrize("answer", [["not", "a", "dict"], "", 0, {"x": float("nan")}])
def test_an_answer_that_is_not_valid_is_a_failure_and_in_the_end_a_dead_letter(
    room: Room, ada: Agent, serve: Callable[..., Any], in_background: Callable[..., Any],
    pass_time: Callable[..., None], answer: Any,
) -> None:  # fmt: skip
    serve({"*": lambda m: answer})
    asked = in_background(lambda: ada.ask("bob", {}, timeout_s=100))
    pass_time(asked)

    with pytest.raises(postroom.NotAnswered, match="dead letter .InvalidMessage: Invalid message: payload"):
        asked.result()
    assert len(room.dead_letters()[0].attempts) == 3


def test_a_loop_of_agents_ends_as_a_dead_letter(
    open_room: Callable[..., Room], in_background: Callable[..., Any]
) -> None:
    room = open_room(max_hops=3)
    ada, bob = room.agent("ada"), room.agent("bob")

    def pass_on(agent: Agent, to: str) -> Callable[[Received], None]:
        def pass_on_one(message: Received) -> None:
            agent.send(to, {}, cause=message)

        return pass_on_one

    died = threading.Event()
    room.hooks.on("after_settle", lambda _, step: died.set() if step["outcome"] == "dead" else None)
    stop = threading.Event()
    loops = [
        in_background(lambda a=a, to=to: a.serve({"*": pass_on(a, to)}, 1, stop=stop))
        for a, to in [(ada, "bob"), (bob, "ada")]
    ]
    ada.send("bob", {})

    assert died.wait(PATIENCE_S)
    stop.set()
    for loop in loops:
        loop.result()
    (letter,) = room.dead_letters()
    assert letter.message.hop_count == 3
    assert letter.error is not None and "this room allows 3" in letter.error


def test_leases_are_extended_while_a_function_runs(
    room: Room, ada: Agent, serve: Callable[..., Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    extended = threading.Semaphore(0)
    heartbeat = room.store.heartbeat

    def watched(*args: Any) -> list[Ticket]:
        lost = heartbeat(*args)
        extended.release()
        return lost

    monkeypatch.setattr(room.store, "heartbeat", watched)

    def slow(message: Received) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    serve({"*": slow})
    id = ada.send("bob", {})
    assert begun.wait(PATIENCE_S)
    for _ in range(9):
        clock.advance(LEASE_S / 3 + 0.01)
        assert extended.acquire(timeout=PATIENCE_S)

    assert room.receipt(id).state == "claimed"
    assert room.agent("bob").poll() is None
    go_on.set()


def test_as_many_run_at_a_time_as_was_said(ada: Agent, serve: Callable[..., Any]) -> None:
    together = threading.Barrier(3)
    serve({"*": lambda m: {"place": together.wait(PATIENCE_S)}}, concurrency=3)
    for _ in range(3):
        ada.send("bob", {})

    # each function returns only when three of them run
    assert sorted(ada.receive().payload["place"] for _ in range(3)) == [0, 1, 2]


def test_running_functions_finish_after_stop(room: Room, ada: Agent, in_background: Callable[..., Any]) -> None:
    begun, go_on, stop = threading.Event(), threading.Event(), threading.Event()

    def slow(message: Received) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return {"done": True}

    bob = room.agent("bob")
    serving = in_background(lambda: bob.serve({"*": slow}, 1, stop=stop))
    ada.send("bob", {"n": 1})
    second = ada.send("bob", {"n": 2})
    assert begun.wait(PATIENCE_S)

    stop.set()
    assert serving.running
    go_on.set()
    serving.result()

    assert ada.receive(timeout_s=0).payload == {"done": True}
    assert room.receipt(second).state == "stored"


def test_closing_the_room_lets_running_functions_finish(
    open_room: Callable[..., Room], in_background: Callable[..., Any]
) -> None:
    room, other = open_room(), open_room()
    begun, go_on = threading.Event(), threading.Event()

    def slow(message: Received) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return {"done": True}

    bob = room.agent("bob")
    serving = in_background(lambda: bob.serve({"*": slow}))
    other.agent("ada").send("bob", {})
    assert begun.wait(PATIENCE_S)
    closing = in_background(room.close)
    go_on.set()

    serving.result()
    closing.result()
    assert other.agent("ada").receive(timeout_s=0).payload == {"done": True}


def test_a_function_may_close_the_room(open_room: Callable[..., Room], in_background: Callable[..., Any]) -> None:
    room, other = open_room(), open_room()
    bob = room.agent("bob")
    serving = in_background(lambda: bob.serve({"*": lambda m: room.close()}))

    id = other.agent("ada").send("bob", {})

    serving.result()
    assert other.receipt(id).events[-1].detail == "the room was closed before it was settled"


def test_a_function_that_ends_the_program_gives_its_message_back(
    room: Room, ada: Agent, in_background: Callable[..., Any]
) -> None:
    def leave(message: Received) -> None:
        raise SystemExit(3)

    bob = room.agent("bob")
    serving = in_background(lambda: bob.serve({"*": leave}))
    id = ada.send("bob", {})

    with pytest.raises(SystemExit):
        serving.result()
    assert bob.receive(timeout_s=0).id == id


def test_a_busy_room_does_not_end_the_serving(
    room: Room, ada: Agent, serve: Callable[..., Any], caplog: pytest.LogCaptureFixture,
    in_background: Callable[..., Any], pass_time: Callable[..., None],
) -> None:  # fmt: skip
    troubles = {"before_claim": 2, "before_settle": 2}

    def busy(event: str, _: object) -> None:
        if troubles[event]:
            troubles[event] -= 1
            raise RoomBusy("for a moment")

    room.agent("bob")
    for event in troubles:
        room.hooks.on(event, busy)
    serve({"*": lambda m: {"fine": True}})
    asked = in_background(lambda: ada.ask("bob", {}, timeout_s=1000))
    pass_time(asked)

    assert asked.result().payload == {"fine": True}
    assert troubles == {"before_claim": 0, "before_settle": 0}
    assert "serving goes on after: for a moment" in caplog.text


@pytest.mark.parametrize(
    ("handlers", "concurrency", "field"),
    [({}, 4, "handlers"), ({"a": 3}, 4, "handlers['a']"), ({"a": print}, 0, "concurrency"), (print, 4, "handlers")],
)
def test_what_could_never_run_is_named(room: Room, handlers: Any, concurrency: int, field: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        room.agent("bob").serve(handlers, concurrency)

    assert [fault.field for fault in error.value.faults] == [field]


def test_work_in_a_channel_goes_to_every_server(room: Room, ada: Agent, in_background: Callable[..., Any]) -> None:
    """Two agents serve one channel; both must be at work for the barrier to open."""
    together, stop = threading.Barrier(2), threading.Event()
    bob, carol = room.agent("bob"), room.agent("carol")
    handlers = {"*": lambda m: {"place": together.wait(PATIENCE_S)}}
    serving = [
        in_background(lambda: bob.serve(handlers, 1, channels=["jobs"], stop=stop)),
        in_background(lambda: carol.serve(handlers, 1, channels=["jobs"], stop=stop)),
    ]
    for _ in range(2):
        ada.send(None, {}, channel="jobs")

    assert sorted(ada.receive().payload["place"] for _ in range(2)) == [0, 1]
    stop.set()
    for call in serving:
        call.result()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["receive", "serve", "a busy serve"])
def test_an_interrupt_leaves_nothing_claimed(tmp_path: Path, what: str) -> None:
    url = f"sqlite:{tmp_path}/room"
    program = PROGRAMS / "interrupted.py"
    with postroom.open(url) as room:
        ada = room.agent("ada")
        id = ada.send("bob", {}) if what == "a busy serve" else None
        with subprocess.Popen([sys.executable, str(program), url, what], stdout=subprocess.PIPE, text=True) as process:
            impatience = threading.Timer(PATIENCE_S, process.kill)
            impatience.start()
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "interrupted\n"
            impatience.cancel()
        assert room.stats().states["claimed"] == 0
        assert id is None or room.receipt(id).state == "answered"  # the running function has finished
        later = ada.send("bob", {})
        assert room.agent("bob").receive(timeout_s=0).id == later
