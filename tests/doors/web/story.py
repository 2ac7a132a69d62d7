"""A room in which a little of everything has happened, for tests of the page and for its pictures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support import ROOT

import postroom
from postroom.core.clock import SystemClock
from postroom.room import Room

HOUR_S = 3600


class LeapingClock(SystemClock):
    """The system's clock, an hour behind, that can leap forward: an hour's history in a second."""

    def __init__(self, behind_s: float = HOUR_S) -> None:
        super().__init__()
        self.behind_ns = round(behind_s * 1e9)

    def wall_ms(self) -> int:
        return super().wall_ms() - self.behind_ns // 1_000_000

    def steady_ns(self) -> int:
        return super().steady_ns() - self.behind_ns

    def leap(self, seconds: float) -> None:
        """Time passes, though never beyond the present."""
        self.behind_ns = max(0, self.behind_ns - round(seconds * 1e9))


@contextmanager
def actor(*words: str) -> Iterator[subprocess.Popen[str]]:
    """An agent in a process of its own, which has said its first word. It ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.doors.web.actors", *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


JOBS = (
    "read dates in both orders",
    "make the retry delay grow",
    "say which field is wrong",
    "index the table by owner",
    "close the file on every path",
)


def talk(room: Room, rounds: int, leap: Any = lambda _: None) -> None:
    """Planner, coder, reviewer and tester build something; a review is refused now and then."""
    planner, coder, reviewer, tester = (room.agent(name) for name in ("planner", "coder", "reviewer", "tester"))
    stop = threading.Event()
    helpers = [
        threading.Thread(target=reviewer.serve, args=({"review": _review},), kwargs={"stop": stop}),
        threading.Thread(target=tester.serve, args=({"test": _test},), kwargs={"stop": stop}),
    ]
    for helper in helpers:
        helper.start()
    try:
        for number in range(rounds):
            job = JOBS[number % len(JOBS)]
            planner.send("coder", {"text": f"please {job}"}, type="task", priority=7)
            leap(0.4 + number % 4)
            coder.receive(timeout_s=5).ack()
            with suppress(postroom.Refused):
                coder.ask("reviewer", {"text": f"{job}: {2 + number % 5} files"}, type="review", timeout_s=10)
            leap(7 + number % 3)
            coder.ask("tester", {"text": f"run the tests for {job}"}, type="test", timeout_s=10)
            coder.send("planner", {"text": f"done: {job}"}, type="report")
            leap(0.2 + number % 2)
            planner.receive(timeout_s=5).ack()
            leap(20 + 31 * (number % 3))
    finally:
        stop.set()
        for helper in helpers:
            helper.join()


def _review(message: Any) -> dict[str, object] | None:
    if "6 files" in message.payload["text"]:
        message.refuse("too large: split it in two")
        return None
    return {"text": "looks right; name the constant on line 42"}


def _test(_: Any) -> dict[str, object]:
    return {"text": "212 passed"}


def jobs(room: Room, count: int = 4) -> list[str]:
    """Work for whoever is free, done by two; the last fails for good."""
    planner, bob, cy = (room.agent(name) for name in ("planner", "bob", "cy"))
    ids = [planner.send(None, {"text": f"render page {n + 1}"}, channel="render", type="job") for n in range(count)]
    for worker, _ in zip((bob, cy) * count, range(count - 1), strict=False):
        worker.receive(timeout_s=5, channels=["render"]).ack()
    message = cy.receive(timeout_s=5, channels=["render"])
    message.dead(f"RenderError: page {count} refers to a font that is not there")
    return ids


def failures(room: Room, leap: Any = lambda _: None) -> str:
    """A message that fails three times; returns its id."""
    bob = room.agent("bob")
    id = room.agent("planner").send("bob", {"text": "convert the report of 2019 to the new format"}, type="convert")
    for reason in (*["UnicodeDecodeError: byte 0xff in position 0"] * 2, "gave up: not text"):
        bob.receive(timeout_s=5).retry(reason, delay_s=0)
        leap(3)
    return id


def board(room: Room) -> None:
    """A board half done, with somebody at work and files reserved."""
    board = room.board
    for id, title, after in (
        ("T1", "the schema", []),
        ("T2", "the endpoints", ["T1"]),
        ("T3", "the client", ["T2"]),
        ("T4", "dark mode", []),
        ("T5", "release notes", ["T3", "T4"]),
        ("T6", "the import of old files", []),
        ("T7", "measure the start-up", []),
        ("T8", "a logo with more pixels", []),
    ):
        board.add(id, title=title, after=after)
    _claimed(room, "coder", "T1", 600).done({"tables": 4})
    _claimed(room, "tester", "T7", 600).done({"ms": 38})
    _claimed(room, "bob", "T6", 600).blocked("the files of 2019 have no dates")
    board.abort("T8", "nobody asked for it")
    _claimed(room, "coder", "T2", 600).extend(240)
    _claimed(room, "cy", "T4", 600).extend(95)
    room.reserve(["src/api/**"], "coder", 900, why="T2: the endpoints")
    room.reserve(["web/theme.css", "docs/*.md"], "cy", 420, why="T4: dark mode", exclusive=False)


def _claimed(room: Room, agent: str, id: str, lease_s: float) -> Any:
    task = room.board.claim(agent, id, transient=True, lease_s=lease_s)
    assert task is not None
    return task


def run_sessions(folder: Path, url: str) -> None:
    """Sessions of a program that lies in the folder, so that tracebacks name it and nothing of this machine."""
    (folder / "workers.py").write_text(
        (Path(__file__).parent / "actors.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    program = "import sys, workers; workers.sessions(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, url], cwd=folder, check=False, capture_output=True)


@contextmanager
def judges(room: Room) -> Iterator[postroom.WorkerPool]:
    """A pool that judges messages, one of whose workers was killed and is back, and a decision of its coordinator."""
    with postroom.WorkerPool("postroom.inference:mock", workers=["critic", "editor", "lawyer"]) as pool:
        pool.report_to(room, "judges")
        coordinator = postroom.Coordinator(pool, room=room, deadline_s=30)
        for number in range(3):
            content = f"Shall we ship version {number + 2}?"
            coordinator.consider({"id": f"release-{number + 2}", "content": content, "sender_id": "planner"})
        back = threading.Event()
        pool.on("ready", lambda _event, _detail: back.set())
        pid = pool.workers["editor"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert back.wait(300)
        yield pool


def a_little(room: Room) -> str:
    """A little of everything but sessions and pools, in a second. Returns the id of a message that was answered."""
    talk(room, 2)
    failures(room)
    jobs(room)
    board(room)
    planner, bob = room.agent("planner"), room.agent("bob")
    planner.send("tester", {"text": "is the staging server up?"}, type="question")
    room.agent("tester").receive(timeout_s=5)
    planner.send("bob", {"text": "convert the report of 2020"}, type="convert")
    bob.receive(timeout_s=5).retry("the disk was busy", delay_s=600)
    planner.send("bob", {"text": "not before noon"}, delay_s=3600)
    planner.send("bob", {"text": "a word\u202e and more"}, type="note")
    return next(m.id for m in room.peek(state="answered", limit=1))


@contextmanager
def an_hour(folder: Path) -> Iterator[Room]:
    """A room in which agents talked for an hour, and still do."""
    clock = LeapingClock()
    with postroom.open(f"sqlite:{folder}/.postroom", clock=clock) as room:
        talk(room, 56, clock.leap)
        failures(room, clock.leap)
        clock.leap(HOUR_S)
        talk(room, 1)
        jobs(room)
        room.agent("planner").send("tester", {"text": "is the staging server up?"}, type="question")
        room.agent("tester").receive(timeout_s=5)
        room.agent("planner").send("bob", {"text": "convert the report of 2020"}, type="convert")
        room.agent("bob").receive(timeout_s=5).retry("the disk was busy", delay_s=30)
        id = room.agent("coder").send("planner", {"text": "two of three migrations are through"}, type="report")
        room.store.note(id, "notified", "planner")
        room.agent("planner").send("coder", {"text": "good. and the third?"}, type="question")
        yield room


@contextmanager
def everything(folder: Path) -> Iterator[Room]:
    """The same, with a board, sessions, three who wait for each other, and one who was killed."""
    with ExitStack() as stack:
        room = stack.enter_context(an_hour(folder))
        url = str(room.url)
        run_sessions(folder, url)
        board(room)
        room.agent("planner").send(None, {"text": "render the cover"}, channel="render", type="job")
        with actor("hold", url, "dora", "render") as dora:
            dora.send_signal(signal.SIGKILL)
            dora.wait()
        for name in ("bob", "reviewer", "tester"):
            room.agent(name).heartbeat()
        for name, task in (
            ("coder", "T2: the endpoints"),
            ("cy", "T4: dark mode"),
            ("planner", "watching the release"),
        ):
            room.agent(name).heartbeat(current_task=task)
        stack.enter_context(judges(room))
        for asker, peer in (("eve", "frank"), ("frank", "grace"), ("grace", "eve"), ("heidi", "planner")):
            stack.enter_context(actor("ask", url, asker, peer))
        yield room
