"""One connection to NATS servers, and the few requests that a room needs of them.

The client (client.py) is asyncio; callers are not: every connection of this process lives on one background event loop, and
`Wire.run` waits in the caller's thread for what happens there.

A reply that is lost says nothing. `Wire.commit` therefore never guesses: it asks the leader what is there, and makes the same
change again until one or the other answers. A change carries the sequence it expects to replace, so of all its attempts
at most one counts.
"""

from __future__ import annotations

import asyncio
import itertools
from base64 import b64decode
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from postroom.errors import OutcomeUnknown, RoomClosed, RoomError, RoomNotAllowed, RoomUnreachable

from .access import Access, NotPrivate, options_of
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
#: Whoever opens a room is told after this time that nobody answers, in seconds.
OPEN_S: Final = 10.0
#: Entries asked for in one request.
PAGE: Final = 500
#: Above this, what is written must have left before more is.
_LARGE_BYTES: Final = 64 * 1024
#: What the headers of an entry take at most.
_HEADERS_BYTES: Final = 1024
#: Changes in one step; the servers refuse more.
MAX_TOGETHER: Final = 1000

_EXPECT: Final = "Nats-Expected-Last-Subject-Sequence"
_EXPECT_ON: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
_WRONG_SEQUENCE: Final = (10071, 10164)
_NOT_FOUND: Final = 10037
#: The storage of a server, or of the room's account, is used up; or more is asked for than is left.
_NO_SPACE: Final = (10023, 10002, 10047)
#: Such a refusal as the disk, or a limit that somebody set on the stream, has it (under many codes).
_NO_SPACE_WORDS: Final = ("no space left", "maximum bytes exceeded", "maximum messages exceeded")

#: Of several writes in one step none was made, and they can be made again: the leader changed in between, or too many others
#: had begun such a step.
_LATER: Final = ("batch is incomplete", "too many inflight")

#: The word to those who send that the room's reserve was given up (nats_reserve.py).
RESERVE_OUT: Final = "z.out"

#: What a subscription is given: the subject without its prefix, the sequence (0 when it is no change), what it says.
OnChange = Callable[[str, int, bytes], None]


#: The function that ends a subscription.
Unsubscribe = Callable[[], Coroutine[Any, Any, None]]

#: One message to the servers: subject, data, headers as they are sent ("" without).
Message = tuple[str, bytes, str]


class Write(NamedTuple):
    """One entry to be written, if the sequence on its subject (or on `expect_on`) is the expected one. Empty data deletes."""

    subject: str
    data: bytes
    expect: int | None = None
    expect_on: str | None = None
    ttl_s: int = 0


class StoredEntry(NamedTuple):
    """One entry as it is kept."""

    subject: str
    seq: int
    data: bytes


class Committed(NamedTuple):
    """What was written, under these sequences; or, after a lost reply, how the first of it was found to stand now."""

    seqs: list[int]
    found: StoredEntry | None = None


class Changed(Exception):
    """An expected sequence was not there: nothing was written."""


class StorageFull(RoomUnreachable):
    """The servers have no space for it: nothing was changed."""


class _NoReply(Exception):
    """Nobody answered an attempt. `sent` says whether it may have arrived all the same."""

    def __init__(self, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class Wire:
    """A connection to the servers of one room. Its methods that are not coroutines may be called from any thread."""

    def __init__(self, access: Access, room: str, timeout_s: float) -> None:
        self.room = room
        self.stream = f"POSTROOM_{room}"
        self.timeout_s = timeout_s
        self._attempt_s = min(ATTEMPT_S, timeout_s)
        #: How often hints may have been lost, and what is to be done then (on the background loop).
        self.losses = 0
        self.on_loss: Callable[[], None] = lambda: None
        #: What makes space when the servers have none; it says whether it did. And what is done when somebody else did so.
        self.on_full: Callable[[], Awaitable[bool]] = _makes_no_space
        self.on_reserve_out: Callable[[], None] = lambda: None
        self._prefix = f"pr.{room}."
        self._hints = f"prh.{room}."
        self._access = access
        self._nc: Any = None
        #: The background loop, for what is waited for by nobody.
        self.link = Link()
        self._loop = self.link.loop
        try:
            self.run(self._open())
        except BaseException:
            self.link.leave()
            raise

    # Threads

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this on the background loop, and wait for it here. Interrupted, it is cancelled there: it was done, or was not."""
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

    async def _open(self) -> None:
        try:
            from .client import Error, RoomClient
        except ImportError:
            raise RoomError(
                "rooms on NATS need the package nats-py; install it with: pip install 'postroom[nats]'"
            ) from None
        self._error = Error
        self._nc = RoomClient(self._access, self._troubled)
        self._trouble = ""
        self._up, self._refused = asyncio.Event(), asyncio.Event()
        self._not_private: set[str] = set()
        self._asked = itertools.count()
        self._replies: dict[bytes, asyncio.Future[bytes] | LoopCall] = {}
        self._unanswered = 0
        await self._connect()
        self._inbox = f"{self._nc.new_inbox()}."
        await self._nc.hear(f"{self._inbox}*", self._replied)
        await self._nc.hear(self._hints + RESERVE_OUT, lambda *_: self.on_reserve_out())
        self._up.set()

    async def _connect(self) -> None:
        connecting = asyncio.ensure_future(
            self._nc.connect(
                name=f"postroom {self.room}",
                allow_reconnect=True,
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
            await quietly(self._nc.close)
            if isinstance(error, OSError | self._error | TimeoutError):
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
                f"the NATS servers at {where} refuse us ({why}); look at user, password_file, creds and tls_ca"
            )
        return RoomUnreachable(f"no NATS server answers at {where} ({why}); is it running, and is the address right?")

    async def _troubled(self, error: Exception) -> None:
        """What a connection tells of its troubles: the operations that fail say it to their callers."""
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
        self._up.clear()
        for reply in tuple(self._replies.values()):  # they cannot come any more
            _fail(reply, True)

    async def _reconnected(self) -> None:
        self._trouble = ""
        self._refused.clear()
        self._lost_hints()
        self._up.set()

    def _lost_hints(self) -> None:
        self.losses += 1
        self.on_loss()

    def close(self) -> None:
        """End the connection. Safe to call twice, and the second call does what an interrupt kept the first from."""
        self.link.close(self._nc.close)

    @property
    def most_bytes(self) -> int:
        """What fits into one entry, beside its headers."""
        return int(self._nc.max_payload) - _HEADERS_BYTES

    @property
    def server(self) -> dict[str, Any]:
        """What the server that we are connected to says of itself."""
        return dict(self._nc.server)

    # Asking

    async def _ask(self, subject: str, data: bytes, head: str = "") -> bytes:
        """One attempt: the reply. Raises _NoReply.

        nats-py's own `request` makes two tasks and a random name for each; this makes a future, and is a third faster.
        """
        if not self._up.is_set():
            raise _NoReply(sent=False)
        name = f"{next(self._asked):x}"
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._replies[name.encode()] = reply
        alarm = self._loop.call_later(self._attempt_s, self._give_up, reply)
        try:
            self._nc.send(subject, data, self._inbox + name, head)
            if len(data) > _LARGE_BYTES:
                await self._nc.sent()
            return await reply
        except (self._error, OSError):
            raise _NoReply(sent=True) from None
        finally:
            alarm.cancel()
            del self._replies[name.encode()]
            reply.cancel()

    def _replied(self, subject: bytes, data: bytes, headers: bytes) -> None:
        reply = self._replies.get(subject.rpartition(b".")[2])
        if reply is None or reply.done():
            return
        if headers.startswith(b"NATS/1.0 503"):
            _fail(reply, False)  # the server's own word that nobody was there to take it
        else:
            self._unanswered = 0
            reply.set_result(data)

    def _call(self, messages: Sequence[Message]) -> bytes:
        """One attempt, made in the caller's thread: the reply to the last of these. Raises _NoReply, RoomClosed.

        The short way of almost every change and look: no task, and few turns of the loop. Who gets no reply takes the long one.
        """
        call = LoopCall()
        reply: bytes | None = self.link.wait_for(call, self._post, messages, call, timeout_s=self._attempt_s)
        if reply is None:
            with suppress(RoomClosed):  # at this very moment
                self.link.hand_over(self._give_up, call)
            raise _NoReply(sent=True)
        return reply

    def _post(self, messages: Sequence[Message], call: LoopCall) -> None:
        if call.is_dropped:
            return
        if not self._up.is_set():
            _fail(call, False)
            return
        name = f"{next(self._asked):x}"
        self._replies[name.encode()] = call
        self._loop.call_later(self._attempt_s, self._replies.pop, name.encode(), None)
        try:
            for subject, data, head in messages[:-1]:
                self._nc.send(subject, data, "", head)
            subject, data, head = messages[-1]
            self._nc.send(subject, data, self._inbox + name, head)
        except (self._error, OSError):
            _fail(call, True)

    def _give_up(self, reply: asyncio.Future[bytes] | LoopCall) -> None:
        """An attempt had its time. After some of these the connection itself is looked at: a cut cable makes no sound."""
        _fail(reply, True)
        self._unanswered += 1
        if self._unanswered == MOST_UNANSWERED:
            self._looking = asyncio.ensure_future(quietly(self._look_at_connection))

    async def _look_at_connection(self) -> None:
        try:
            await self._nc.flush(timeout=ATTEMPT_S)
        except self._error:
            await self._nc.force_reconnect()
        finally:
            self._unanswered = 0

    async def _until_answered(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        """Make attempts until one is answered. Raises RoomUnreachable when time ran out: nothing was changed."""
        until, is_last = self._loop.time() + self.timeout_s, False
        while True:
            try:
                return await attempt()
            except _NoReply:
                if is_last:
                    raise RoomUnreachable(f"{what}: no answer within {self.timeout_s:g} s{self._why()}") from None
            is_last = await self._pause(until)

    async def _pause(self, until: float) -> bool:
        """Wait a little, and for the connection to be there again; whether the next attempt is the last.

        One more is made when time is over: this process may have been stopped for as long (Ctrl-Z).
        """
        is_last = self._loop.time() >= until
        await asyncio.sleep(PAUSE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._up.wait()
        return is_last

    async def api(self, request: str, **fields: Any) -> dict[str, Any]:
        """One request to the servers' own interface; the answer, which may be an error."""
        return await self._until_answered(lambda: self._api(request, fields), f"the room {self.room} cannot be asked")

    def info(self, **fields: Any) -> dict[str, Any]:
        """What the servers say of the room's stream; from any thread."""
        return self.run(self.api(f"STREAM.INFO.{self.stream}", **fields))

    async def api_once(self, request: str, **fields: Any) -> dict[str, Any]:
        """The same, in one attempt. Raises RoomUnreachable when it is not answered."""
        try:
            return await self._api(request, fields)
        except _NoReply:
            raise RoomUnreachable(f"the room {self.room} did not answer{self._why()}") from None

    async def _api(self, request: str, fields: dict[str, Any]) -> dict[str, Any]:
        return _answer(await self._ask(f"$JS.API.{request}", msgspec.json.encode(fields) if fields else b""))

    # Reading

    async def last(self, subject: str) -> StoredEntry | None:
        """What stands under a subject, as the leader knows it."""
        return await self._get(last_by_subj=self._prefix + subject)

    def last_now(self, subject: str) -> StoredEntry | None:
        """The same, from any thread, in the shortest way as long as replies come."""
        request = msgspec.json.encode({"last_by_subj": self._prefix + subject})
        try:
            return self._found(_answer(self._call([(f"$JS.API.STREAM.MSG.GET.{self.stream}", request, "")])))
        except _NoReply:
            return self.run(self.last(subject))

    async def next(self, seq: int, pattern: str) -> StoredEntry | None:
        """The first entry from that sequence on whose subject fits, as the leader knows it."""
        return await self._get(seq=seq, next_by_subj=self._prefix + pattern)

    async def _get(self, **which: Any) -> StoredEntry | None:
        return self._found(await self.api(f"STREAM.MSG.GET.{self.stream}", **which))

    def _found(self, answer: dict[str, Any]) -> StoredEntry | None:
        if "error" in answer:
            if answer["error"].get("err_code") == _NOT_FOUND:
                return None
            raise self._refusal(answer["error"])
        message = answer["message"]
        data = b64decode(message["data"]) if "data" in message else b""
        return StoredEntry(message["subject"].removeprefix(self._prefix), message["seq"], data)

    async def page(self, seq: int, pattern: str, count: int = PAGE) -> tuple[list[StoredEntry], bool]:
        """Entries from that sequence on, in order, from any server (which may lag); and whether there are more."""

        async def attempt() -> tuple[list[StoredEntry], bool]:
            inbox = self._nc.new_inbox()
            subscription = await self._nc.subscribe(inbox)
            request = {"seq": seq, "batch": count, "next_by_subj": self._prefix + pattern}
            found: list[StoredEntry] = []
            try:
                await self._nc.publish(f"$JS.API.DIRECT.GET.{self.stream}", msgspec.json.encode(request), reply=inbox)
                while True:
                    message = await subscription.next_msg(timeout=ATTEMPT_S)
                    status = message.headers.get("Status")
                    if status == "204":
                        return found, int(message.headers.get("Nats-Num-Pending", "0")) > 0
                    if status == "404":
                        return found, False
                    if status is not None:
                        raise _NoReply(sent=False)
                    subject = message.headers["Nats-Subject"].removeprefix(self._prefix)
                    found.append(StoredEntry(subject, int(message.headers["Nats-Sequence"]), message.data))
            except self._error:
                raise _NoReply(sent=False) from None
            finally:
                await quietly(subscription.unsubscribe)

        return await self._until_answered(attempt, f"the room {self.room} cannot be read")

    async def scan(self, pattern: str, seq: int = 1) -> list[StoredEntry]:
        """All entries from that sequence on, each once, as the leader knew them when this began or later.

        Pages come from any server, and one that lags lacks the newest. What is written meanwhile moves to the end, past all pages
        that were read, so the last page must come from a server that knew all that those before it could know: it reaches the
        entry that was the leader's newest after them, and nothing came after it there. To wait until the leader has no more
        would take as long as others write (tests/stores/test_nats_busy.py). What a server lacks that lags is asked of the leader.
        """
        found: dict[str, StoredEntry] = {}
        position = ahead = seq
        newest = await self.last(pattern)
        while newest is not None and newest.seq >= position:
            entries, is_one = await self._pages(position, pattern)
            for entry in entries:
                known = found.get(entry.subject, entry)  # from the leader, and newer, if that server lags
                found[entry.subject] = max(known, entry)
                position = entry.seq + 1
            if not is_one:
                newest = await self.last(pattern)
            elif newest.seq >= position:
                first = await self.next(max(ahead, position), pattern)
                if first is None:
                    break
                found[first.subject] = first
                ahead = first.seq + 1
        return sorted(found.values(), key=lambda entry: entry.seq)

    async def _pages(self, seq: int, pattern: str) -> tuple[list[StoredEntry], bool]:
        """Entries from that sequence on, page after page until there are no more; and whether it was one page."""
        entries, more = await self.page(seq, pattern)
        is_one = not more
        while more:
            page, more = await self.page(entries[-1].seq + 1, pattern)
            entries += page
        return entries, is_one

    # Writing

    def commit_now(
        self, writes: Sequence[Write], is_mine: Callable[[bytes], bool], *, is_send: bool = False
    ) -> Committed:
        """The same as `commit`, from any thread, in the shortest way as long as replies come."""
        try:
            return Committed(self._read_reply(self._call(self._messages(writes)), writes))
        except _NoReply as lost:
            return self.run(self.commit(writes, is_mine, unsure=lost.sent, is_send=is_send))
        except StorageFull:
            if is_send:
                raise
            return self.run(self.commit(writes, is_mine))

    async def commit(
        self, writes: Sequence[Write], is_mine: Callable[[bytes], bool], *, unsure: bool = False, is_send: bool = False
    ) -> Committed:
        """Write all of these in one step, durably. `is_mine` tells, of the first one's subject, whether it stands there.

        Raises Changed: nothing was written, an expected sequence was not there. Raises OutcomeUnknown when neither the
        reply nor the leader's word came in time; RoomUnreachable when it surely was not written, and of those StorageFull when
        there is no space for it. `unsure`: an attempt was made before, whose reply was lost. For a send no space is made.
        """
        until, is_last = self._loop.time() + self.timeout_s, False
        while True:
            try:
                return Committed(await self._attempt(writes))
            except (Changed, StorageFull) as refused:
                if unsure:
                    committed = await self._look_back(writes, is_mine)
                    if committed is not None:
                        return committed
                    if isinstance(refused, StorageFull):  # the attempt before may still be on its way
                        raise self._how_it_ended(unsure) from None
                elif isinstance(refused, Changed) or is_last or is_send or not await self.on_full():
                    raise
            except _NoReply as lost:
                unsure |= lost.sent
                if is_last:
                    raise self._how_it_ended(unsure) from None
            is_last = await self._pause(until)

    async def _look_back(self, writes: Sequence[Write], is_mine: Callable[[bytes], bool]) -> Committed | None:
        """An attempt without a reply was followed by one that was refused: was it the first that changed things?

        None when all stands as it was expected to: the first attempt is still on its way through the servers.
        """
        try:
            found = await self.last(writes[0].subject)
            if found is not None and is_mine(found.data):
                return Committed([], found)
            for write in writes:
                if write.expect is not None:
                    now = await self.last(write.expect_on or write.subject)
                    if (0 if now is None else now.seq) != write.expect:
                        raise Changed
        except RoomUnreachable:
            raise self._how_it_ended(unsure=True) from None
        return None

    def _how_it_ended(self, unsure: bool) -> RoomError:
        if unsure:
            return OutcomeUnknown(
                f"the reply of the room {self.room} was lost, and nobody answered within {self.timeout_s:g} s: it may have "
                "happened or not; repeat it"
            )
        return RoomUnreachable(
            f"the room {self.room} did not answer within {self.timeout_s:g} s{self._why()}; nothing was changed"
        )

    def _why(self) -> str:
        return f" ({self._trouble})" if self._trouble else ""

    async def _attempt(self, writes: Sequence[Write]) -> list[int]:
        *before, (subject, data, head) = self._messages(writes)
        for each in before:
            if not self._up.is_set():
                raise _NoReply(sent=False)
            try:
                self._nc.send(each[0], each[1], "", each[2])
                await self._nc.sent()
            except (self._error, OSError):
                raise _NoReply(sent=False) from None
        return self._read_reply(await self._ask(subject, data, head), writes)

    def _read_reply(self, reply: bytes, writes: Sequence[Write]) -> list[int]:
        """The sequences that the servers gave. Raises Changed, _NoReply, and what they refuse it for."""
        answer = msgspec.json.decode(reply)
        if "error" in answer:
            error = answer["error"]
            if error.get("err_code") in _WRONG_SEQUENCE:
                raise Changed
            if _is_full(error):
                raise self.full(error)
            if error.get("code") == 503 or any(said in error.get("description", "") for said in _LATER):
                raise _NoReply(sent=False)
            raise self._refusal(error)
        last: int = answer["seq"]
        return [last - place for place in reversed(range(len(writes)))]

    def _messages(self, writes: Sequence[Write]) -> list[Message]:
        """What is sent for these: of several an atomic batch, which the last one commits."""
        batch = {"Nats-Batch-Id": self._nc.new_inbox()[-22:]} if len(writes) > 1 else {}
        messages: list[Message] = []
        for place, write in enumerate(writes, 1):
            headers = self._headers(write) | batch
            if batch:
                headers["Nats-Batch-Sequence"] = str(place)
            if batch and place == len(writes):
                headers["Nats-Batch-Commit"] = "1"
            messages.append((self._prefix + write.subject, write.data, _head(headers)))
        most = max(len(data) + len(head) for _, data, head in messages)
        if most > self._nc.max_payload:
            said = f"the servers take {self._nc.max_payload} bytes at once (max_payload), and this needs {most}"
            raise RoomError(f"{said}; nothing was changed")
        return messages

    def _headers(self, write: Write) -> dict[str, str]:
        headers: dict[str, str] = {}
        if write.expect is not None:
            headers[_EXPECT] = str(write.expect)
        if write.expect_on is not None:
            headers[_EXPECT_ON] = self._prefix + write.expect_on
        if write.ttl_s:
            headers["Nats-TTL"] = f"{write.ttl_s}s"
        return headers

    def full(self, error: dict[str, Any] | None = None) -> StorageFull:
        """The sentence for those whose write found no space."""
        said = f" ({error['description']})" if error is not None and error.get("description") else ""
        return StorageFull(
            f"the storage of the servers of the room {self.room} is full{said}; nothing was changed. Purge finished messages, or "
            "raise max_file of the servers; until then the room's reserve lets what is there be received and acked"
        )

    def _refusal(self, error: dict[str, Any]) -> RoomError:
        if _is_full(error):
            return self.full(error)
        said = error.get("description", "no reason given")
        return RoomUnreachable(f"the servers refuse it for the room {self.room}: {said}; nothing was changed")

    # Hearing

    async def subscribe(self, pattern: str, heard: OnChange, queue: str = "") -> Unsubscribe:
        """Hear of every change whose subject fits, until the returned function is called; of those who share a queue one does."""
        strip = len(self._hints)

        def on_message(subject: bytes, data: bytes, headers: bytes) -> None:
            heard(subject[strip:].decode(), sequence_of(headers), data)

        async def attempt() -> Unsubscribe:
            if not self._up.is_set():
                raise _NoReply(sent=False)
            try:
                unsubscribe = partial(self._nc.unhear, await self._nc.hear(self._hints + pattern, on_message, queue))
            except self._error:
                raise _NoReply(sent=False) from None
            try:
                await self._nc.flush(timeout=ATTEMPT_S)
            except BaseException as error:
                await quietly(unsubscribe)  # the next attempt makes another
                if isinstance(error, self._error | TimeoutError):
                    raise _NoReply(sent=False) from None
                raise
            return unsubscribe

        return await self._until_answered(attempt, f"the room {self.room} cannot be listened to")

    async def nudge(self, subject: str) -> None:
        """Tell those who listen to look, without a change."""
        await self._nc.publish(self._hints + subject, b"")


async def _makes_no_space() -> bool:
    return False


def _answer(reply: bytes) -> dict[str, Any]:
    """What the servers' own interface replied. Raises _NoReply while there is no leader."""
    answer: dict[str, Any] = msgspec.json.decode(reply)
    error = answer.get("error", {})
    if error.get("code") == 503 and not _is_full(error):
        raise _NoReply(sent=False)
    return answer


def _is_full(error: dict[str, Any]) -> bool:
    """Whether the servers refuse something because there is no space for it."""
    return error.get("err_code") in _NO_SPACE or any(words in error.get("description", "") for words in _NO_SPACE_WORDS)


def _head(headers: dict[str, str]) -> str:
    """Headers as they are sent. They are plain ASCII: names of subjects are hashes, and those of rooms are letters."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n"


_SEQUENCE: Final = b"Nats-Sequence: "


def sequence_of(headers: bytes) -> int:
    """The sequence that the servers give with a hint; 0 when somebody only nudges."""
    start = headers.find(_SEQUENCE)
    return 0 if start < 0 else int(headers[start + len(_SEQUENCE) : headers.find(b"\r", start)])


def _fail(reply: asyncio.Future[bytes] | LoopCall, sent: bool) -> None:
    if not reply.done():
        reply.set_exception(_NoReply(sent))
