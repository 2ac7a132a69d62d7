"""`postroom demo`: a Patchwork program runs; agents talk, one is killed half-way, its message is delivered again.

Every sentence that is printed was checked first. A sentence that is not true ends the demo with an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom.cli import output
from postroom.cli.call import Invocation
from postroom.cli.demo.agents import JOBS
from postroom.cli.demo.program import EXPECTED, play
from postroom.cli.interrupts import deferred
from postroom.cli.pages import see
from postroom.core.config import FOLDER, URL_VARIABLE, address_of
from postroom.errors import PostroomError
from postroom.mail.agent import Agent
from postroom.mail.receipts import Receipt
from postroom.room import Room
from postroom.stores.contract import FEED

from .web import while_served

WORKERS: Final = ("bob", "cy")
#: Every agent that is started, with its role.
CAST: Final = {"oracle": "oracle"} | dict.fromkeys(WORKERS, "worker")
#: No step may take longer than this, in seconds.
PATIENCE_S: Final = 10.0
#: A killed receiver's message must be in other hands within this time, in seconds: a look a second, and a little.
REDELIVERY_S: Final = 2.0
PROGRAM: Final = (sys.executable, "-P", "-m", "postroom.cli.demo.agents")


class DemoFailed(PostroomError):
    """Something that Postroom promises did not happen in the demo."""


class Story(NamedTuple):
    """The course of events: the jobs' ids, the killed agent, the agent that got its job, and after how long."""

    jobs: list[str]
    held: str
    victim: str
    heir: str
    after_ms: float


def demo(call: Invocation) -> None:
    with ExitStack() as stack:
        url = call.args.room
        if not url:
            with deferred():
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="postroom-demo-"))
            url = address_of(Path(folder) / FOLDER)
        room = call.make_room(url)
        stack.callback(room.close)  # before its folder is removed
        tell = _Teller(quiet=call.json)
        tell(f"Made a room: {room.url}. It is one SQLite file; there is no server.")
        program = play(room, tell, quiet=call.json)
        if program != EXPECTED:
            raise DemoFailed(f"the program's result is {program}")
        processes = {name: stack.enter_context(_process(role, url, name)) for name, role in CAST.items()}
        _expect_agents(room, processes)
        pids = ", ".join(f"{name} (pid {process.pid})" for name, process in processes.items())
        tell(f"Started agents, each in its own process: {pids}.")
        ada = room.agent("ada")
        question = _ask(room, ada, tell)
        story = _kill_half_way(room, ada, processes, tell)
        receipts = [room.receipt(id) for id in (question, *story.jobs)]
        _check(receipts, story)
        _show(call, receipts, story, program)
        if not call.json:
            _offer_page(room)


def _offer_page(room: Room) -> None:
    """The room as a page, until Enter; without a terminal, or without the page's packages, only how to get it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty() and find_spec("uvicorn")):
        address = "http://127.0.0.1:7678/..."
        output.write(f"To see a room in the browser: `postroom web`, which prints its address ({address}).")
        return
    with while_served(room) as address:
        output.write(f"The room's web page, until you press Enter:\n\n    {address}\n")
        sys.stdin.readline()


class _Teller:
    """Prints the steps, numbered."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._step = 0

    def __call__(self, sentence: str) -> None:
        self._step += 1
        if not self._quiet:
            output.write(f"{self._step}. {sentence}")
            sys.stdout.flush()


@contextmanager
def _process(role: str, url: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent's process. It ends with this block, and with this process, however that ends.

    It is in a session of its own: Ctrl-C is for the demo, which ends its agents (tests/cli/test_demo.py).
    """
    environment = {**os.environ, URL_VARIABLE: url}  # an argument would show a password in it to every user
    process: subprocess.Popen[bytes] | None = None
    try:
        with deferred():  # an agent of which nobody knows would make the room again when it is removed
            process = subprocess.Popen(
                [*PROGRAM, role, name], stdin=subprocess.PIPE, env=environment, start_new_session=True
            )
        yield process
    finally:
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _until(room: Room, what: str, look: Callable[[], Any]) -> Any:
    """Look at every change of the room until there is something to see; DemoFailed when that takes too long."""
    until_ns = room.clock.steady_ns() + round(PATIENCE_S * 1e9)
    with room.store.listen([FEED, "cells:agent"]) as waiter:
        while True:
            seen = look()
            if seen:
                return seen
            left_s = (until_ns - room.clock.steady_ns()) / 1e9
            if left_s <= 0:
                raise DemoFailed(f"the demo gave up after {PATIENCE_S:.0f} s: {what}")
            waiter.wait(min(left_s, 0.2))


def _expect_agents(room: Room, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    def all_there() -> bool:
        for name, process in processes.items():
            if process.poll() is not None:
                raise DemoFailed(f"{name} exited before it was ready, with exit code {process.returncode}")
        return {agent.name for agent in room.agents() if agent.alive} >= set(processes)

    _until(room, "the agents did not start", all_there)


def _ask(room: Room, ada: Agent, tell: _Teller) -> str:
    clock = room.clock
    began_ns = clock.steady_ns()
    answer = ada.ask("oracle", {"text": "three and four?", "numbers": [3, 4]}, type="sum", timeout_s=PATIENCE_S)
    took_ms = (clock.steady_ns() - began_ns) / 1e6
    if answer.payload != {"text": "three and four: 7"}:
        raise DemoFailed(f"the oracle answered {answer.payload}")
    tell(
        f'ada asked the oracle "three and four?" and got the answer "{answer.payload["text"]}" after {took_ms:.1f} ms.'
    )
    return str(answer.correlation_id)


def _kill_half_way(room: Room, ada: Agent, processes: dict[str, subprocess.Popen[bytes]], tell: _Teller) -> Story:
    jobs = [ada.send(None, {"job": number, "hold": number == 3}, channel=JOBS, type="job") for number in range(1, 7)]
    held = jobs[2]
    tell(
        f"ada put {len(jobs)} jobs into the channel {JOBS!r}, each for the first worker to claim it: {' or '.join(WORKERS)}."
    )

    def holders() -> list[str | None]:
        return [entry.agent for entry in room.receipt(held).events if entry.event == "claimed"]

    victim = _until(room, "no worker claimed job 3", holders)[0]
    killed_ns = room.clock.steady_ns()
    processes[victim].send_signal(signal.SIGKILL)
    processes[victim].wait()
    tell(f"{victim} (pid {processes[victim].pid}) held job 3 when it was killed with SIGKILL.")

    _until(room, "job 3 was not delivered again", lambda: len(holders()) > 1)
    after_ms = (room.clock.steady_ns() - killed_ns) / 1e6
    heir = next(name for name in WORKERS if name != victim)
    tell(f"{heir} got job 3 instead, {after_ms:.0f} ms after the kill.")

    _until(room, "not all jobs were done", lambda: all(room.receipt(id).state == "acked" for id in jobs))
    tell(f"All {len(jobs)} jobs are acked, each exactly once. None was lost.")
    return Story(jobs, held, victim, heir, after_ms)


def _check(receipts: list[Receipt], story: Story) -> None:
    """Hold the receipts against what must have happened."""
    by_id = {receipt.id: receipt for receipt in receipts}
    steps = [(entry.event, entry.agent) for entry in by_id[story.held].events]
    expected = [("stored", "ada"), ("claimed", story.victim), ("claimed", story.heir), ("acked", story.heir)]
    if [step for step in steps if step[0] != "released"] != expected or "released" not in dict(steps):
        raise DemoFailed(f"the ledger of job 3 is {steps}")
    for id in story.jobs:
        events = [entry.event for entry in by_id[id].events]
        if id != story.held and events != ["stored", "claimed", "acked"]:
            raise DemoFailed(f"the ledger of job {id} is {events}")
    if receipts[0].state != "answered":
        raise DemoFailed(f"the question is {receipts[0].state}, not answered")
    if story.after_ms > REDELIVERY_S * 1000:
        raise DemoFailed(f"job 3 was delivered again only after {story.after_ms:.0f} ms")


def _show(call: Invocation, receipts: list[Receipt], story: Story, program: Any) -> None:
    if call.json:
        rows = [{"id": r.id, "state": r.state, "events": [list(entry) for entry in r.events]} for r in receipts]
        told = {"program": program, "killed": story.victim, "delivered_again_ms": round(story.after_ms)}
        output.document(told | {"receipts": rows})
        return
    names = ["the question", *(f"job {number}" for number in range(1, len(receipts)))]
    output.write("")
    steps = [" > ".join(f"{e.event} ({e.agent})" if e.agent else e.event for e in r.events) for r in receipts]
    rows_of_all = [(name, r.id, r.state, how) for name, r, how in zip(names, receipts, steps, strict=True)]
    output.table(("message", "id", "state", "what happened"), rows_of_all, title="The receipts")
    output.write("")
    held = next(receipt for receipt in receipts if receipt.id == story.held)
    output.table(("event", "time", "agent", "detail"), held.events, title="The ledger of job 3")
    output.write("")
    output.write(f"Every line above was checked. Next: `postroom init`, {see('guide')}, and {see('language')}.")
