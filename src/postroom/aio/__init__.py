"""The same room, agents and messages, with await.

    async with postroom.aio.open() as room:
        ada, bob = room.agent("ada"), room.agent("bob")
        await ada.send("bob", {"text": "hi"})
        async with await bob.receive(timeout_s=5) as message:
            print(message.payload)

Names, arguments and errors are those of the synchronous room, whose code does the work: its calls run in one thread for
each room, and its waiting is done by the loop, on descriptors, so that a thousand receivers keep no thread.

Cancelling. A cancelled task leaves at once, whatever the store does. A message that was being claimed for it goes back
unseen, and the delivery does not count. A send that had begun may have been stored: one with an idempotency key can be
repeated. The word of a receiver on a message (ack, retry, …) is carried out all the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from postroom import room
from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import GRACE_S, Config
from postroom.core.events import Hooks
from postroom.core.message import Draft
from postroom.errors import AskFailed, PostroomError, RoomClosed
from postroom.mail import agent, groups, people, received
from postroom.mail import answers as mail_answers
from postroom.mail.gateway import Gateway, Pause, Series, Steps
from postroom.mail.received import Envelope
from postroom.room import open_through
from postroom.stores.contract import Store, Waiter

from .board import Board, HeldTask, Reservation
from .bridge import Course, WorkerThread
from .methods import Mirror, Stream, as_it_is, giving, if_any, in_steps, in_stream, in_thread, of_what_is_held
from .serving import Handler, Serving

__all__ = ["Agent", "Answers", "Board", "Groups", "HeldTask", "People", "Received", "Reservation", "Room", "open"]

T = TypeVar("T")
P = ParamSpec("P")


class LoopGateway(Gateway):
    """A gateway whose callers are coroutines: the ends of their calls (`send`, `finish`, `each`) are to be awaited.

    Everything else is for the worker thread.
    """

    claims_in_callers_thread = False

    def __init__(self, store: Store, config: Config, clock: Clock, *, worker: WorkerThread) -> None:
        super().__init__(store, config, clock)
        self._worker = worker
        worker.gateway = self

    def send(self, draft: Draft) -> Any:
        return self._worker.run(None, draft=draft)

    def work(self, call: Callable[[], T]) -> Any:
        return self._worker.run(call)

    def listen(self, topics: Iterable[str]) -> Waiter:
        self.check_open()
        return self._worker.waits.listen(self.store, topics)

    def close(self) -> None:
        self._worker.waits.close_switchboards()
        super().close()

    def finish(self, steps: Steps[T]) -> Any:
        return Course[T](self._worker, steps).finish()

    def each(self, steps: Series[T]) -> Any:
        return Course[T](self._worker, steps)


class Received(Envelope):
    """A message that was claimed; see `postroom.Received`.

    With `async with` it is acked at the end of the block and delivered again if the block raises. A block that is
    cancelled gives it back at once.
    """

    __slots__ = ("_sync", "_worker")

    def __init__(self, worker: WorkerThread, message: received.Received) -> None:
        super().__init__(message.message, message.ticket)
        self._worker = worker
        self._sync = message

    @property
    def settled(self) -> bool | None:
        """None while it is the receiver's to settle; then whether settling counted."""
        return self._sync.settled

    @property
    def answer_id(self) -> str | None:
        """The id of the answer, after a `reply` that counted."""
        return self._sync.answer_id

    @property
    def newer_waiting(self) -> Awaitable[bool]:
        """Whether a newer message of the same sender and order key waits behind this one. To be awaited."""
        return self._worker.run(lambda: self._sync.newer_waiting)

    ack = in_thread(received.Received.ack, anyway=True)
    retry = in_thread(received.Received.retry, anyway=True)
    dead = in_thread(received.Received.dead, anyway=True)
    refuse = in_thread(received.Received.refuse, anyway=True)
    reply = in_thread(received.Received.reply, anyway=True)
    extend = in_thread(received.Received.extend, anyway=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            try:
                counted = self._sync.settled is not None or await self.ack()
            except BaseException:
                self._sync.let_go()
                raise
            if not counted and await self._worker.run(self._sync.was_late, keep=True):
                self._sync.tell_late()
            return
        with suppress(RoomClosed):  # which gave it back
            await self._worker.run(partial(self._sync.give_back, error), keep=True)


class Answers(Stream[Received]):
    """The answers of several agents that were asked at once; see `postroom.Answers`.

    `async for` gives each answer as it comes. Await it to wait until it is over. `answers`, `missing` and `enough` tell
    what is known so far. Leaving `async with`, or `await answers.aclose()`, cancels the rest; so does, a moment later, a
    loop that ends in the middle.
    """

    def __init__(
        self, worker: WorkerThread, ready: Callable[[], Awaitable[None]], begun: asyncio.Future[mail_answers.Answers]
    ) -> None:
        self._begun = begun

        async def begin() -> Course[Any]:  # it does not know this object, which is to go when nobody reads it any more
            await ready()
            return cast("Course[Any]", (await asyncio.shield(begun))._coming)  # noqa: SLF001  see LoopGateway.each

        super().__init__(worker, begin, partial(Received, worker))

    @property
    def answers(self) -> dict[str, Received]:
        """The answers so far by the names of the agents, in the order in which they came."""
        came = {} if self._questions is None else dict(self._questions.answers)
        return {name: Received(self._worker, answer) for name, answer in came.items()}

    @property
    def missing(self) -> dict[str, AskFailed]:
        """Why each of the others gave no answer, by name, as far as it is known; see `postroom.Answers.missing`."""
        return {} if self._questions is None else dict(self._questions.missing)

    @property
    def enough(self) -> bool:
        """Whether as many have answered so far as were asked for."""
        return self._questions is not None and self._questions.enough

    @property
    def _questions(self) -> mail_answers.Questions | None:
        if not self._begun.done() or self._begun.cancelled() or self._begun.exception() is not None:
            return None
        return self._begun.result()._questions  # noqa: SLF001  the same ones

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.over().__await__()

    async def over(self) -> Self:
        """Wait until it is over, as awaiting it does: a coroutine, for a task."""
        async for _ in self:
            pass
        return self

    async def aclose(self) -> None:
        """Wait no more: those that have not answered are `missing`. Safe to call twice."""
        await super().aclose()
        with suppress(PostroomError):  # it could not be asked, as its reader is told; or the room is closed
            asked = await asyncio.shield(self._begun)
            await self._worker.run(asked.close, keep=True)


def _asking(
    method: Callable[Concatenate[agent.Agent, P], mail_answers.Answers],
) -> Callable[Concatenate[Any, P], Answers]:
    """The synchronous method, which begins in the room's thread with the call; see `Answers`."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Answers:
        worker: WorkerThread = self._worker
        return Answers(worker, self._ready, worker.begin(partial(method, self._sync, *args, **kwargs)))

    return call


class Agent(Mirror[agent.Agent]):
    """One agent of a room; see `postroom.Agent`. `await` it to be sure that it is registered, or just use it."""

    def __init__(self, worker: WorkerThread, open_room: room.Room, name: str, *, transient: bool) -> None:
        super().__init__(worker, agent.Agent(open_room.gateway, name, transient=transient))
        self.name = self._sync.name
        self.transient = transient
        self._register = partial(open_room.agent, name, transient=transient)
        self._registering: asyncio.Future[agent.Agent] | None = worker.begin(self._register)

    async def _ready(self) -> None:
        """Return when the agent is registered; raise why it cannot be (and try again the next time)."""
        if self._registering is None:
            return
        self._worker.check_loop()
        try:
            await asyncio.shield(self._registering)
        except PostroomError:
            if not self._worker.closing:
                self._registering = self._worker.begin(self._register)
            raise
        self._registering = None

    def __await__(self) -> Generator[Any, Any, Self]:
        yield from self._ready().__await__()
        return self

    # Sending; many sends that are under way at the same time share commits

    send = in_steps(agent.Agent.send)
    send_many = in_thread(agent.Agent.send_many)
    withdraw = in_thread(agent.Agent.withdraw)
    publish = in_thread(agent.Agent.publish)
    subscribe = in_thread(agent.Agent.subscribe)
    unsubscribe = in_thread(agent.Agent.unsubscribe)

    # Receiving

    receive = giving(Received, in_steps(agent.Agent.receive))
    poll = giving(if_any(Received), in_thread(agent.Agent.poll))
    claimed = giving(Received, of_what_is_held(agent.Agent.claimed))
    listen = in_stream(Received, agent.Agent.listen, here=True)

    async def serve(
        self,
        handlers: Mapping[str, Handler],
        concurrency: int = 4,
        *,
        channels: Iterable[str] | None = None,
        lease_s: float | None = None,
        max_hold_s: agent.MaxHold = ...,
        stop: asyncio.Event | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Answer messages with functions, by their type; see `postroom.Agent.serve`.

        A coroutine function gets an `aio.Received` and runs in the loop. A plain function gets a `postroom.Received`
        and runs in a thread. Returns when `stop` is set or the room is closed, after the running functions have
        finished. Cancelled, it cancels running coroutines, whose messages go back at once, and waits for plain
        functions. SIGTERM is a goodbye where the loop runs in the main thread; coroutines that still run after
        `grace_s` are cancelled.
        """
        await self._ready()
        want, terms = self._sync._serving(channels, lease_s, max_hold_s)  # noqa: SLF001  the same checks
        gateway, hand_over = self._sync._gateway, partial(Received, self._worker)  # noqa: SLF001
        serving = Serving(self._worker, gateway, want, terms, handlers, concurrency, hand_over, grace_s)
        self._worker.servings.add(serving)
        try:
            await serving.run(stop)
        finally:
            self._worker.servings.discard(serving)

    # Asking, and being here

    ask = giving(Received, in_steps(agent.Agent.ask))
    ask_many = _asking(agent.Agent.ask_many)
    heartbeat = in_thread(agent.Agent.heartbeat)


def _hints(sync: room.Room, topics: Iterable[str]) -> Iterable[bool]:
    """An item whenever one of the store's topics may have changed; the first one at once.

    A reader that looks after each item misses nothing that happened after the call.
    """
    gateway, topics = sync.gateway, tuple(topics)

    def steps() -> Series[bool]:
        with gateway.listen(topics) as waiter:
            yield True
            while True:
                if (yield Pause(waiter, None)):
                    yield True

    return gateway.each(steps())


class Groups(Mirror[groups.Groups]):
    """The groups of a room; see `postroom.Groups`."""

    add = in_thread(groups.Groups.add)
    remove = in_thread(groups.Groups.remove)
    members = in_thread(groups.Groups.members)
    all = in_thread(groups.Groups.all)
    expand = in_thread(groups.Groups.expand)


class People(Mirror[people.People]):
    """Questions to people; see `postroom.People`."""

    ask = in_thread(people.People.ask)
    look = in_thread(people.People.look)
    wait = in_steps(people.People.wait)
    open = in_thread(people.People.open)
    answer = in_thread(people.People.answer)


class Room(Mirror[room.Room]):
    """An open room in one event loop; see `postroom.Room`."""

    def __init__(self, worker: WorkerThread, open_room: room.Room) -> None:
        super().__init__(worker, open_room)
        self.url = open_room.url
        self.folder = open_room.folder
        self._agents: dict[tuple[str, bool], Agent] = {}
        self._board: Board | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def config(self) -> Config:
        return self._sync.config

    @property
    def clock(self) -> Clock:
        return self._sync.clock

    @property
    def hooks(self) -> Hooks:
        """Listeners to every step; they are called in the room's thread."""
        return self._sync.hooks

    @property
    def closed(self) -> bool:
        """Whether the room was closed."""
        return self._worker.closing or self._sync.closed

    def agent(self, name: str, *, transient: bool = False) -> Agent:
        """The agent of that name; the same one each time. It is registered before anything else is done in its name.

        `await room.agent(name)` returns it when it is registered.
        """
        if self.closed:
            raise RoomClosed("this room is closed")
        known = self._agents.get((name, transient))
        if known is None:
            known = self._agents[name, transient] = Agent(self._worker, self._sync, name, transient=transient)
        return known

    @property
    def groups(self) -> Groups:
        """The room's groups of agents; see `postroom.Groups`."""
        return Groups(self._worker, self._sync.groups)

    @property
    def people(self) -> People:
        """Questions to people; see `postroom.People`."""
        return People(self._worker, self._sync.people)

    @property
    def board(self) -> Board:
        """The room's tasks; see `postroom.Board`."""
        if self._board is None:
            self._board = Board(self._worker, self._sync.board)
        return self._board

    connect = in_thread(room.Room.connect)
    disconnect = in_thread(room.Room.disconnect, anyway=True)
    reserve = giving(Reservation, in_thread(room.Room.reserve))
    reservations = in_thread(room.Room.reservations)
    unreserve = in_thread(room.Room.unreserve, anyway=True)
    reserved_by_others = in_thread(room.Room.reserved_by_others)
    schedule = in_thread(room.Room.schedule)
    unschedule = in_thread(room.Room.unschedule, anyway=True)
    schedules = in_thread(room.Room.schedules)
    limit = in_thread(room.Room.limit)
    unlimit = in_thread(room.Room.unlimit)
    limits = in_thread(room.Room.limits)
    pause = in_thread(room.Room.pause)
    resume = in_thread(room.Room.resume)
    receipt = in_thread(room.Room.receipt)
    why = in_thread(room.Room.why)
    get = in_thread(room.Room.get)
    thread = in_thread(room.Room.thread)
    peek = in_thread(room.Room.peek)
    count = in_thread(room.Room.count)
    search = in_thread(room.Room.search)
    events = in_thread(room.Room.events)
    cursor = in_thread(room.Room.cursor)
    stats = in_thread(room.Room.stats)
    mailboxes = in_thread(room.Room.mailboxes)
    agents = in_thread(room.Room.agents)
    waits = in_thread(room.Room.waits)
    dead_letters = in_thread(room.Room.dead_letters)
    requeue = in_thread(room.Room.requeue)
    purge = in_thread(room.Room.purge)
    replay = in_thread(room.Room.replay)
    retention = in_thread(room.Room.retention)
    redact = in_thread(room.Room.redact)
    unredact = in_thread(room.Room.unredact)
    redactions = in_thread(room.Room.redactions)
    attach = in_thread(room.Room.attach)
    artifact = in_thread(room.Room.artifact)

    watch = in_stream(as_it_is, room.Room.watch)

    # For code that builds on rooms

    async def call(self, function: Callable[[room.Room], T]) -> T:
        """Call a function with the synchronous room, in the room's thread. It must not wait, nor send as an agent."""
        return await self._worker.run(partial(function, self._sync), keep=True)

    def post(self, function: Callable[[room.Room], object]) -> None:
        """The same, for which nobody waits; before everything that is asked for after this."""
        self._worker.begin(partial(function, self._sync))

    hints = in_stream(as_it_is, _hints, here=True)

    # The end

    async def close(self) -> None:
        """Let go of everything; see `postroom.Room.close`. Tasks that wait get RoomClosed. Safe to call twice.

        A function that `serve` runs may close the room. Where another task closes it already this returns at once: that
        task waits for the function to finish.
        """
        self._worker.check_loop()
        closer = asyncio.current_task()
        if self._closing is None:
            self._closing = self._worker.loop.create_task(self._close(closer))
        elif any(serving.runs(closer) for serving in self._worker.servings):
            return  # guarded by test_of_two_handlers_that_close_the_room_neither_waits_for_the_other
        await asyncio.shield(self._closing)

    async def _close(self, closer: asyncio.Task[Any] | None) -> None:
        for serving in tuple(self._worker.servings):
            await serving.finish(closer)
        self._worker.wake_all()
        try:
            await self._worker.run(self._sync.close, keep=True)
        finally:
            self._worker.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Opening:
    """A room that is being opened, for `await` and for `async with`."""

    def __init__(self, call: Callable[[Callable[..., Gateway]], room.Room], clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._room: Room | None = None

    async def _open(self) -> Room:
        worker = WorkerThread(self._clock)
        try:
            opened = await worker.run(partial(self._call, partial(LoopGateway, worker=worker)))
        except BaseException:
            worker.give_up()
            raise
        return Room(worker, opened)

    def __await__(self) -> Generator[Any, Any, Room]:
        return self._open().__await__()

    async def __aenter__(self) -> Room:
        self._room = await self._open()
        return self._room

    async def __aexit__(self, *_: object) -> None:
        if self._room is not None:
            await self._room.close()


def open(
    url: str | os.PathLike[str] | None = None, *, create: bool = True, clock: Clock = SYSTEM, **settings: Any
) -> _Opening:
    """Open a room: `async with postroom.aio.open(...) as room`, or `room = await postroom.aio.open(...)`.

    Arguments and errors are those of `postroom.open`.
    """
    return _Opening(lambda make_gateway: open_through(make_gateway, url, create, clock, settings), clock)
