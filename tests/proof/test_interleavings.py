"""Threads that meet at any line: no hint is lost, nothing is handed out twice, nothing stands still or stays open."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tests.support.descriptors import open_now, opened_since
from tests.support.interleaving import Explored, Found, Run, explore
from tests.support.systems import needs_linux

import postroom
from postroom import aio
from postroom.aio import bridge
from postroom.core.clock import SYSTEM
from postroom.core.system import children, fork_server
from postroom.errors import RoomClosed
from postroom.pools import line, loop, process
from postroom.pools.protocol import Pong, Splitter, pack
from postroom.stores.bells import bells, page, switchboards
from postroom.stores.contract import Waiter
from postroom.stores.nats import link

from .played_processes import played_processes

FAR_NS = 1 << 60


# Bells


def wait_for(waiter: Waiter, there: Callable[[], object]) -> None:
    """Look, sleep until there is a hint, and look again: as a receiver does, but without a look once a second."""
    while not there():
        SYSTEM.wait_readable([waiter.fileno()], None)
        waiter.wait(0)


class Desk:
    """Messages that receivers take, and the bells of two processes that ring for them."""

    def __init__(self, folder: Path) -> None:
        self.receiving, self.sending = bells.Bells(folder, SYSTEM), bells.Bells(folder, SYSTEM)
        self.messages: deque[str] = deque()
        self.taken: list[str] = []

    def receive(self) -> None:
        """Take one message, and leave."""
        with self.receiving.listen(["work"]) as waiter:
            wait_for(waiter, lambda: self.messages)
            self.taken.append(self.messages.popleft())

    def send(self, message: str) -> None:
        self.messages.append(message)
        self.sending.ring((), ["work"])

    def close(self, *sent: str) -> None:
        assert sorted(self.taken) == sorted(sent)
        assert not any(self.sending.page.memory[: page.FLAGS])
        self.sending.close()
        self.receiving.close()


def two_senders_ring_one_receiver(run: Run, folder: Path) -> None:
    """A message to a channel wakes one receiver, and that one leaves with one message: the other has its own hint."""
    desk = Desk(folder)
    run.together(desk.receive, desk.receive, lambda: desk.send("a"), lambda: desk.send("b"))
    desk.close("a", "b")


def a_switchboard_is_rung_as_it_goes_to_sleep(run: Run, folder: Path) -> None:
    """While its loop is awake it is rung without a datagram: it looks at all seats once more before it sleeps."""
    ours, theirs = bells.Bells(folder, SYSTEM), bells.Bells(folder, SYSTEM)
    switchboard = ours.switchboard(None)
    assert switchboard is not None
    sent: set[str] = set()
    seen: set[str] = set()
    seats = [switchboard.listen([name], partial(lambda name: seen.update(sent & {name}), name)) for name in ("a", "b")]

    def attend() -> None:
        while len(seen) < 2:
            SYSTEM.wait_readable([switchboard.fileno()], None)
            switchboard.take()

    def send(name: str) -> None:
        sent.add(name)
        theirs.ring([name])

    send("a")
    run.together(attend, lambda: send("b"))
    for seat in seats:
        assert seat is not None
        seat.close()
    switchboard.close()
    theirs.close()
    ours.close()


# The hand-over between threads and the background loop of NATS


async def nothing() -> None:
    """What a connection does as its last."""


class Call(link.LoopCall):
    """A set of these is gone through in the same order in each run."""

    __hash__ = lambda _: 1  # noqa: E731


class Errand(link.Errand):
    __hash__ = lambda _: 2  # noqa: E731


class Asker:
    """What threads ask of the background loop, and what became of it."""

    def __init__(self) -> None:
        self.works: list[Any] = []
        self.answers: list[str] = []

    def ask(self, room: link.Link) -> None:
        """The long way: a task of the loop."""

        async def work() -> str:
            await asyncio.sleep(0)
            return "done"

        self.works.append(work())
        errand = Errand(self.works[-1:])
        self._note(lambda: room.wait_for(errand, errand.begin)[0])

    def call(self, room: link.Link) -> None:
        """The short way: a call of the loop."""
        reply = Call()

        def answer() -> None:
            if not reply.done():
                reply.set_result("done")

        self._note(lambda: room.wait_for(reply, answer))

    def _note(self, asking: Callable[[], str]) -> None:
        try:
            self.answers.append(asking())
        except RoomClosed:
            self.answers.append("closed")

    def check(self) -> None:
        assert [work.cr_frame for work in self.works] == [None] * len(self.works)  # each was done, or forgotten


def a_room_on_nats_is_closed_while_it_is_asked(run: Run) -> None:
    """Each caller is answered or told, and the loop's thread is over."""
    link.forget_loop_after_fork()
    room, asker = link.Link(), Asker()
    run.together(lambda: asker.ask(room), lambda: asker.call(room), lambda: room.close(nothing))
    assert {*asker.answers} <= {"done", "closed"}
    assert len(asker.answers) == 2
    assert room.loop.is_closed()
    assert not room._calls
    asker.check()


def one_room_on_nats_is_opened_as_another_is_closed(run: Run) -> None:
    """The last user of the loop stops it; the next has one that runs."""
    link.forget_loop_after_fork()
    first, asker = link.Link(), Asker()
    first.soon(asyncio.Event().wait)  # a task that the loop has to end

    def another() -> None:
        second = link.Link()
        asker.ask(second)
        second.close(nothing)

    run.together(lambda: first.close(nothing), another)
    assert asker.answers == ["done"]
    assert first.loop.is_closed()
    asker.check()


# Lines to the workers of a pool


class Talk(process.Life):
    """The process of a worker as the pool sees it, with one line. The test plays the other side."""

    def __init__(self) -> None:
        self._loop = loop.PoolLoop()
        ours, self.theirs = socket.socketpair()
        output, ended = os.pipe()
        os.close(ended)
        self.owner = SimpleNamespace(life_over=lambda _: self.told.append("over"))
        self.told: list[str] = []
        self.outcomes: dict[int, str] = {}
        self._written, self._timers, self._pings, self._left = bytearray(), [], {}, 1
        self._child = SimpleNamespace(output=output, errors=output, close=lambda: os.close(output))  # type: ignore[assignment]
        self.work = self.side = line.Line(ours, self._loop, self.take_side, self._count_down)

    def ask(self, name: int) -> None:
        self.outcomes[name] = "over" if self.ping(FAR_NS) is None else "answered"

    def answer(self, count: int) -> None:
        """Answer so many pings, as the worker does."""
        incoming = Splitter(in_worker=True)
        while count > 0:
            for frame in incoming.feed(self.theirs.recv(4096)):
                self.theirs.sendall(pack(Pong(frame.number, None, 0)))
                count -= 1

    def finish(self) -> None:
        """The process has ended."""
        self.theirs.close()
        self._loop.call(self.side.finish)

    def close(self) -> None:
        self._loop.stop()
        assert self.told == ["over"]


def two_threads_ask_one_worker(run: Run) -> None:
    """One reads for both. When it has its answer, somebody else reads on."""
    talk = Talk()
    run.together(lambda: talk.ask(1), lambda: talk.ask(2), lambda: talk.answer(2))
    assert talk.outcomes == {1: "answered", 2: "answered"}
    talk.finish()
    talk.close()


def a_worker_ends_while_two_threads_ask_it(run: Run) -> None:
    """Each caller has its answer, or is told; and the pool is told once."""
    talk = Talk()

    def end() -> None:
        talk.answer(1)
        talk.finish()

    run.together(lambda: talk.ask(1), lambda: talk.ask(2), end)
    assert set(talk.outcomes) == {1, 2}
    assert "answered" in talk.outcomes.values()
    talk.close()


# The asyncio bridge


def a_task_is_cancelled(run: Run, claim: Callable[[aio.Agent], Awaitable[Any]]) -> None:
    """Its message was acknowledged, or is back as if nobody had claimed it."""

    async def main() -> None:
        async with aio.open("memory:") as room:
            bob = await room.agent("bob")
            id = await room.agent("ada").send("bob", {})
            claiming = asyncio.ensure_future(claim(bob))
            tell = asyncio.get_running_loop().call_soon_threadsafe
            canceller = threading.Thread(target=lambda: tell(claiming.cancel), name="canceller")
            with run.exploring():
                canceller.start()
                await asyncio.wait({claiming})
                canceller.join()
                await room.call(lambda _: None)  # after what was given back
            message = await room.get(id)
            was = (message.exact_state.name, message.delivery_count)
            assert was == ("ACKED", 1) or (claiming.cancelled() and was == ("READY", 0))

    asyncio.run(main())


def a_task_that_listens_is_cancelled(run: Run) -> None:
    async def listen(bob: aio.Agent) -> None:
        async with aclosing(bob.listen()) as stream:
            await (await anext(stream)).ack()

    a_task_is_cancelled(run, listen)


def a_task_that_polls_is_cancelled(run: Run) -> None:
    async def poll(bob: aio.Agent) -> None:
        message = await bob.poll()
        assert message is not None
        await message.ack()

    a_task_is_cancelled(run, poll)


def tasks_send_while_the_room_is_closed(run: Run) -> None:
    """What was sent is stored, and what was not is told; every task goes on."""
    sent: list[str] = []

    async def main() -> None:
        room = await aio.open("memory:interleaved")
        ada = await room.agent("ada")

        async def send() -> None:
            with suppress(RoomClosed):
                sent.append(await ada.send("bob", {}))

        with run.exploring():
            sending = [asyncio.ensure_future(send()) for _ in range(2)]
            await asyncio.sleep(0)
            await room.close()
            await asyncio.gather(*sending)

    with postroom.open("memory:interleaved") as outside:
        asyncio.run(main())
        assert {message.id for message in outside.peek(agent="bob")} == set(sent)


# The fork server


def children_end_and_are_killed(run: Run) -> None:
    """Each end is told once, and no signal reaches a number that is somebody else's by now."""
    with played_processes(run) as system:
        server = children.ForkServer()
        ends: list[children.Ended | None] = []

        def start(kill: bool) -> None:
            child = server.start("module:function")
            if kill:
                child.send_signal(signal.SIGKILL)
            ends.append(child.wait())
            child.close()

        run.together(lambda: start(False), lambda: start(True))
        server.close()
        assert set(ends) <= {children.Ended(0, None), children.Ended(None, signal.SIGKILL)}
        assert children.Ended(0, None) in ends
        assert system.strays == []


def the_fork_server_breaks_down_under_two_callers(run: Run) -> None:
    """Their children are lost, or started by the next server. No caller meets an error, and nothing stays open."""
    with played_processes(run, breaks=True):
        ends: list[children.Ended | None] = []

        def start() -> None:
            child = children.shared_server().start("module:function")
            child.send_signal(signal.SIGTERM)
            ends.append(child.wait())
            child.close()

        run.together(start, start)
        children.close_shared_server()
        lost, ended = children.Ended(None, None), {children.Ended(0, None), children.Ended(None, signal.SIGTERM)}
        assert len(ends) == 2
        assert lost in ends
        assert set(ends) <= {lost, *ended}


# The search


class Mistake(NamedTuple):
    """A mistake that is put into a function of the product for a test: other text in the place of some."""

    place: Any
    name: str
    right: str
    wrong: str

    def made(self) -> Any:
        """The function with the mistake; its lines are steps as before."""
        function = getattr(self.place, self.name)
        source = textwrap.dedent(inspect.getsource(function))
        right, wrong = textwrap.dedent(self.right).strip(), textwrap.dedent(self.wrong).strip()
        lines = source.splitlines()
        first = right.splitlines()[0]
        (at,) = [number for number, line in enumerate(lines) if first in line]
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        old, new = textwrap.indent(right, indent).lstrip(), textwrap.indent(wrong, indent).lstrip()
        assert source.count(old) == 1, f"{self.name} does not say this once:\n{old}"
        spoilt: dict[str, Any] = {}
        code = compile(
            "from __future__ import annotations\n" + source.replace(old, new), inspect.getfile(function), "exec"
        )
        exec(code, vars(sys.modules[function.__module__]), spoilt)
        return spoilt[self.name]


class Subject(NamedTuple):
    """A scenario, the modules whose lines are steps, and a mistake in them that the search must find."""

    scenario: Callable[..., None]
    within: tuple[ModuleType, ...]
    mistake: Mistake
    every: int  # of the orders with one departure, each so-manieth is tried in the suite
    shown: int = 0  # in which of these shares the mistake shows
    parts: int = 1  # of those with two, in the long run


BELLS, NATS, LINES = (bells, switchboards), (link,), (line, loop, process)
BRIDGE, FORKS = (bridge,), (children, fork_server)
SUBJECTS = (
    Subject(
        two_senders_ring_one_receiver, BELLS,
        Mistake(bells.Slot, "close", "self._bells.page.disarm(self._number)", "pass"), 6, parts=4,
    ),
    Subject(
        a_switchboard_is_rung_as_it_goes_to_sleep, BELLS,
        Mistake(
            switchboards.BellSwitchboard, "take",
            """
            self._page[self._place] = ASLEEP
            rung = self._boards[self._rung_at : self._rung_at + SEATS]
            """,
            """
            rung = self._boards[self._rung_at : self._rung_at + SEATS]
            self._page[self._place] = ASLEEP
            """,
        ), 1,
    ),
    Subject(
        a_room_on_nats_is_closed_while_it_is_asked, NATS,
        Mistake(
            link.Link, "wait_for",
            """
            self._calls.add(call)
            if self._is_closed:
                raise RoomClosed
            """,
            """
            if self._is_closed:
                raise RoomClosed
            self._calls.add(call)
            """,
        ), 4, shown=3, parts=3,
    ),
    Subject(
        one_room_on_nats_is_opened_as_another_is_closed, NATS,
        Mistake(link.Loop, "enter", "if self._loop is None or not self._users:", "if self._loop is None:"), 2, parts=3,
    ),
    Subject(
        two_threads_ask_one_worker, LINES,
        Mistake(line.Line, "_leave", "elif self._expected > 0:", "elif self._expected > 1:"), 2,
    ),
    Subject(
        a_worker_ends_while_two_threads_ask_it, LINES,
        Mistake(process.Life, "ping", "if self._left == 0:", "if False:"), 4, parts=3,
    ),
    Subject(
        a_task_that_listens_is_cancelled, BRIDGE,
        Mistake(bridge.Course, "_close_steps", "_return_unseen(unseen)", "pass"), 2, parts=2,
    ),
    Subject(
        a_task_that_polls_is_cancelled, BRIDGE,
        Mistake(bridge.WorkerThread, "_end", "job.undo()", "pass"), 1,
    ),
    Subject(
        tasks_send_while_the_room_is_closed, BRIDGE,
        Mistake(
            bridge.WorkerThread, "_deliver",
            """
            self._told = False
            while self._done:
            """,
            """
            while True:
                if not self._done:
                    self._told = False
                    return
            """,
        ), 1,
    ),
    Subject(
        children_end_and_are_killed, FORKS,
        Mistake(
            fork_server._Server, "run",
            """
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._reap(os.WNOHANG)
            """,
            """
            self._reap(os.WNOHANG)
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            """,
        ), 14, parts=14,
    ),
    Subject(
        the_fork_server_breaks_down_under_two_callers, FORKS,
        Mistake(children, "shared_server", "with _lock:", "if True:"), 6, shown=2, parts=4,
    ),
)  # fmt: skip


def named(subject: Any) -> str:
    return str(subject.scenario.__name__.replace("_", " "))


def search(subject: Subject, folder: Path, **bounds: Any) -> Explored:
    """Explore a subject; no run may leave a descriptor open."""
    takes_folder = "folder" in inspect.signature(subject.scenario).parameters

    def scenario(run: Run) -> None:
        before = open_now(collected=False)
        subject.scenario(*((run, folder) if takes_folder else (run,)))
        assert opened_since(before) == []

    explored = explore(scenario, subject.within, **bounds)
    print(f"{named(subject)}, {bounds}: {explored.runs} interleavings of {explored.steps} steps")
    return explored


def tried(subject: Subject, *more: Any, name: str) -> Any:
    """The fork server of other systems has a guard, a process that cannot be played by a thread."""
    marks = [needs_linux("a fork server without a guard")] if subject.within is FORKS else []
    return pytest.param(subject, *more, id=name, marks=marks)


each = pytest.mark.parametrize("subject", [tried(one, name=named(one)) for one in SUBJECTS])


@each
def test_what_must_hold_holds_wherever_one_thread_gives_way(subject: Subject, tmp_path: Path) -> None:
    assert search(subject, tmp_path, departures=1, part=(0, subject.every)).runs > 20


@each
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what a run that fails leaves behind
def test_a_mistake_in_the_product_is_found(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.mistake.place, subject.mistake.name, subject.mistake.made())
    with pytest.raises(Found):
        search(subject, tmp_path, departures=1, part=(subject.shown, subject.every))


@pytest.mark.long
@pytest.mark.parametrize(
    ("subject", "part"),
    [tried(one, part, name=f"{named(one)} {part + 1}") for one in SUBJECTS for part in range(one.parts)],
)
def test_what_must_hold_holds_wherever_threads_give_way_twice(subject: Subject, part: int, tmp_path: Path) -> None:
    search(subject, tmp_path, departures=2, part=(part, subject.parts))


@pytest.mark.long
@each
def test_what_must_hold_holds_wherever_one_thread_gives_way_between_instructions(
    subject: Subject, tmp_path: Path
) -> None:
    search(subject, tmp_path, departures=1, opcodes=True)
