"""One connection to NATS servers: opened, kept through reconnects, and asked from any thread.

The client (client.py) is asyncio; callers are not: every connection of this process lives on one background event loop,
and `Connection.run` waits in the caller's thread for what happens there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from postroom.errors import RoomClosed, RoomError, RoomNotAllowed, RoomUnreachable

from .access import Access, NotPrivate, options_of
from .callbacks import Ear
from .link import Errand, Link, LoopCall, quietly

T = TypeVar("T")

#: An attempt that is not answered in this time is made again. Longer than any server that is well takes.
ATTEMPT_S: Final = 2.0
#: Between attempts that failed at once (no leader is elected yet).
PAUSE_S: Final = 0.1
#: After so many attempts without an answer it is looked whether the connection still stands.
MOST_UNANSWERED: Final = 3
#: How often a connection that nobody uses is tried, in seconds; twice without an answer, and another is made.
PING_S: Final = 10
#: Opening a room fails after this time without an answer, in seconds.
OPEN_S: Final = 10.0

#: One message to the servers: subject, data, headers as they are sent ("" without).
Message = tuple[str, bytes, str]


class NoReply(Exception):
    """Nobody answered an attempt. `sent` says whether it may have arrived all the same."""

    def __init__(self, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class Connection:
    """A connection to servers of NATS. Its methods that are not coroutines may be called from any thread."""

    def __init__(self, access: Access, name: str, timeout_s: float, ears: Mapping[str, Ear]) -> None:
        self.timeout_s = timeout_s
        self._attempt_s = min(ATTEMPT_S, timeout_s)
        #: How often hints may have been lost, and the callback for that (on the background loop).
        self.losses = 0
        self.on_loss: Callable[[], None] = lambda: None
        self._access = access
        self._name = name
        self.client: Any = None
        #: The background loop, also for what is waited for by nobody.
        self.link = Link()
        self._loop = self.link.loop
        try:
            self.run(self._open(ears))
        except BaseException:
            self.link.leave()
            raise

    # Threads

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this on the background loop, and wait for it here.

        Interrupted, it is cancelled there: it was done, or was not.
        """
        return self.results([work])[0]

    def results(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Do these at once; what one of them raises is raised here."""
        results: list[T] = []
        for result in self.run_all(works):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def run_all(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """Do these at once; the result of each, or what it raised."""
        if not works:
            return []
        errand = Errand(works)
        results: list[T | BaseException] = self.link.wait_for(errand, errand.begin)
        return results

    # Opening and closing

    async def _open(self, ears: Mapping[str, Ear]) -> None:
        """Connect, and hear."""
        #: And the errors of nats-py.
        self.client, self.error = self.link.background.client(self._access, self._troubled)
        self._trouble = ""
        self.up, self._refused = asyncio.Event(), asyncio.Event()
        self._not_private: set[str] = set()
        self._asked = itertools.count()
        self._replies: dict[bytes, asyncio.Future[bytes] | LoopCall] = {}
        self._unanswered = 0
        await self._connect()
        self._inbox = f"{self.client.new_inbox()}."
        for subject, ear in {f"{self._inbox}*": self._replied, **ears}.items():
            await self.client.hear(subject, ear)
        self.up.set()

    async def _connect(self) -> None:
        connecting = asyncio.ensure_future(
            self.client.connect(
                name=self._name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,
                connect_timeout=ATTEMPT_S,
                ping_interval=PING_S,
                max_outstanding_pings=2,
                error_cb=self._troubled,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
                closed_cb=self._disconnected,
                **options_of(self._access),
            )
        )
        refused = asyncio.ensure_future(self._refused.wait())  # nats-py would go on knocking
        try:
            # a second, short wait: this process may have been stopped for as long as the first one (Ctrl-Z)
            for within_s in (min(self.timeout_s, OPEN_S), min(self.timeout_s, ATTEMPT_S)):
                await asyncio.wait({connecting, refused}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
                if connecting.done() or refused.done():
                    break
            if not connecting.done():
                raise TimeoutError
            await connecting
        except BaseException as error:
            connecting.cancel()
            await asyncio.wait({connecting})
            await quietly(self.client.close)
            if isinstance(error, OSError | self.error | TimeoutError):
                raise self._unreachable(error) from error
            raise
        finally:
            refused.cancel()

    def _unreachable(self, error: BaseException) -> RoomError:
        where = ", ".join(self._access.hosts)
        if self._not_private:
            return RoomNotAllowed(self._trouble)
        why = self._trouble or str(error) or type(error).__name__
        if self._refused.is_set():
            return RoomUnreachable(
                f"the NATS servers at {where} refused the connection ({why}); check user, password_file, creds and tls_ca"
            )
        return RoomUnreachable(f"no NATS server answers at {where} ({why}); is it running, and is the address right?")

    async def _troubled(self, error: Exception) -> None:
        """The callback for a trouble of the connection: operations that fail tell their callers of it."""
        if not self._refused.is_set():
            self._trouble = str(error) or self._trouble
        if isinstance(error, NotPrivate):
            self._not_private.add(error.host)
            if len(self._not_private) == len({*self._access.hosts}):
                self._refused.set()
        if "authorization" in self._trouble.lower():
            self._refused.set()
        if type(error).__name__ == "SlowConsumerError":
            self._lost_hints()  # they came faster than they were read, and some were dropped

    async def _disconnected(self) -> None:
        self.up.clear()
        for reply in tuple(self._replies.values()):  # they cannot come any more
            _fail(reply, True)

    async def _reconnected(self) -> None:
        self._trouble = ""
        self._refused.clear()
        self._lost_hints()
        self.up.set()

    def _lost_hints(self) -> None:
        self.losses += 1
        self.on_loss()

    def close(self) -> None:
        """End the connection. Safe to call twice, and the second call does what an interrupt kept the first from."""
        self.link.close(self.client.close)

    # Asking

    async def ask(self, *messages: Message) -> bytes:
        """One attempt: the reply to the last of these. Raises NoReply.

        nats-py's own `request` makes two tasks and a random name for each; this makes a future, and is a third faster.
        """
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._post(messages, reply)
        alarm = self._loop.call_later(self._attempt_s, self._give_up, reply)
        try:
            if not reply.done():
                await self.client.sent()
            return await reply
        except OSError:
            raise NoReply(sent=True) from None
        finally:
            alarm.cancel()
            reply.cancel()

    def call(self, *messages: Message) -> bytes:
        """One attempt, made in the caller's thread: the reply to the last of these. Raises NoReply, RoomClosed.

        The short way of almost every change and look: no task, and few turns of the loop. Without a reply comes the
        long one.
        """
        call = LoopCall()
        reply: bytes | None = self.link.wait_for(call, self._post, messages, call, timeout_s=self._attempt_s)
        if reply is None:
            with suppress(RoomClosed):  # at this very moment
                self.link.hand_over(self._give_up, call)
            raise NoReply(sent=True)
        return reply

    def _post(self, messages: Sequence[Message], reply: asyncio.Future[bytes] | LoopCall) -> None:
        """Send these. On the loop."""
        if isinstance(reply, LoopCall) and reply.is_dropped:
            return
        if not self.up.is_set():
            _fail(reply, False)
            return
        name = f"{next(self._asked):x}"
        self._replies[name.encode()] = reply
        self._loop.call_later(self._attempt_s, self._replies.pop, name.encode(), None)
        try:
            for subject, data, head in messages[:-1]:
                self.client.send(subject, data, "", head)
            subject, data, head = messages[-1]
            self.client.send(subject, data, self._inbox + name, head)
        except OSError:
            _fail(reply, True)

    def _replied(self, subject: bytes, data: bytes, headers: bytes) -> None:
        reply = self._replies.pop(subject.rpartition(b".")[2], None)
        if reply is None or reply.done():
            return
        if headers.startswith(b"NATS/1.0 503"):
            _fail(reply, False)  # the server's own word that nobody was there to take it
        else:
            self._unanswered = 0
            reply.set_result(data)

    def _give_up(self, reply: asyncio.Future[bytes] | LoopCall) -> None:
        """An attempt had its time.

        After some of these the connection itself is looked at: a cut cable makes no sound.
        """
        _fail(reply, True)
        self._unanswered += 1
        if self._unanswered == MOST_UNANSWERED:
            self.link.soon(self._look_at_connection)

    async def _look_at_connection(self) -> None:
        try:
            await self.client.flush(timeout=ATTEMPT_S)
        except self.error:
            await self.client.force_reconnect()
        finally:
            self._unanswered = 0

    # Trying again

    async def until_answered(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        """Make attempts until one is answered. Raises RoomUnreachable when time ran out: nothing was changed."""
        until, is_last = self._loop.time() + self.timeout_s, False
        while True:
            try:
                return await attempt()
            except NoReply:
                if is_last:
                    raise RoomUnreachable(f"{what}: no answer within {self.timeout_s:g} s{self.why()}") from None
            is_last = await self.pause(until)

    async def pause(self, until: float) -> bool:
        """Wait a little, and for the connection to be there again; whether the next attempt is the last.

        One more is made when time is over: this process may have been stopped for as long (Ctrl-Z).
        """
        is_last = self._loop.time() >= until
        await asyncio.sleep(PAUSE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.up.wait()
        return is_last

    def why(self) -> str:
        """The last trouble of the connection, as the end of a sentence."""
        return f" ({self._trouble})" if self._trouble else ""


def _fail(reply: asyncio.Future[bytes] | LoopCall, sent: bool) -> None:
    if not reply.done():
        reply.set_exception(NoReply(sent))
