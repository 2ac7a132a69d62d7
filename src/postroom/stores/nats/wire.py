"""The stream of one room on NATS JetStream, and the few requests to it: get, scan, compare-and-set, subscribe.

A reply that is lost says nothing. `Wire.commit` therefore never guesses: it asks the leader what is there, and makes
the same change again until one or the other answers. A change carries the sequence it expects to replace, so of all its
attempts at most one counts.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from postroom.errors import OutcomeUnknown, RoomError, RoomUnreachable

from .access import Access
from .connection import ATTEMPT_S, Connection, Message, NoReply
from .link import quietly

#: Entries asked for in one request.
PAGE: Final = 500
#: Changes in one step; the servers refuse more.
MAX_TOGETHER: Final = 1000

_WRONG_SEQUENCE: Final = (10071, 10164)
_NOT_FOUND: Final = 10037
#: The storage of a server, or of the room's account, is used up; or more is asked for than is left.
_NO_SPACE: Final = (10023, 10002, 10047)
#: Such a refusal as the disk, or a limit that somebody set on the stream, has it (under many codes).
_NO_SPACE_WORDS: Final = ("no space left", "maximum bytes exceeded", "maximum messages exceeded")

#: Of several writes in one step none was made, and they can be made again: the leader changed in between, or too many
#: others had begun such a step.
_LATER: Final = ("batch is incomplete", "too many inflight")

#: The hint to senders that the room's reserve was given up (reserve.py).
RESERVE_OUT: Final = "z.out"

#: The callback of a subscription: the subject without its prefix, the sequence (0 when it is no change), the data.
OnChange = Callable[[str, int, bytes], None]

#: Whether an entry is what a write was to make of it: asked after a lost reply.
IsMine = Callable[[bytes], bool]

#: The function that ends a subscription.
Unsubscribe = Callable[[], Coroutine[Any, Any, None]]


class Write(NamedTuple):
    """One entry to be written, if the sequence on its subject (or on `expect_on`) is the expected one.

    Empty data deletes. One that expects nothing, or deletes, has a `name`, by which the servers know its attempts (for two
    minutes): a late one must not undo what was written since, and that something is gone does not tell by whom.
    """

    subject: str
    data: bytes
    expect: int | None = None
    expect_on: str | None = None
    ttl_s: int = 0
    name: str = ""


class StoredEntry(NamedTuple):
    """One entry as it is kept."""

    subject: str
    seq: int
    data: bytes
    #: Where the leader gave it: its headers, as they came.
    headers: str = ""


class Committed(NamedTuple):
    """The end of a write: its sequences; or, after a lost reply, how the first of it was found to stand now."""

    seqs: list[int]
    found: StoredEntry | None = None


class Changed(Exception):
    """An expected sequence was not there: nothing was written."""


class StorageFull(RoomUnreachable):
    """The servers have no space for it: nothing was changed."""


class Wire:
    """The stream of one room. Methods that are not coroutines may be called from any thread."""

    def __init__(self, access: Access, room: str, timeout_s: float) -> None:
        self.room = room
        self.stream = f"POSTROOM_{room}"
        #: The callback that makes space when the servers have none, and says whether it did; and that for when another
        #: did so. The room's reserve sets both.
        self.on_full: Callable[[], Awaitable[bool]]
        self.on_reserve_out: Callable[[], None] = lambda: None
        self._prefix = f"pr.{room}."
        self._hints = f"prh.{room}."
        ears = {self._hints + RESERVE_OUT: lambda *_: self.on_reserve_out()}
        self.connection = Connection(access, f"postroom {room}", timeout_s, ears)
        self.run, self.run_all, self.results = self.connection.run, self.connection.run_all, self.connection.results

    # Asking

    async def api(self, request: str, **fields: Any) -> dict[str, Any]:
        """One request to the servers' own interface; the answer, which may be an error."""
        return await self.connection.until_answered(
            lambda: self._api(request, fields), f"the room {self.room} cannot be asked"
        )

    def info(self, **fields: Any) -> dict[str, Any]:
        """The servers' report of the room's stream; from any thread."""
        return self.run(self.api(f"STREAM.INFO.{self.stream}", **fields))

    async def api_once(self, request: str, **fields: Any) -> dict[str, Any]:
        """The same, in one attempt; nothing when it is not answered."""
        try:
            return await self._api(request, fields)
        except NoReply:
            return {}

    async def _api(self, request: str, fields: dict[str, Any]) -> dict[str, Any]:
        return _answer(await self.connection.ask(_request(request, fields)))

    # Reading

    async def last(self, subject: str) -> StoredEntry | None:
        """The entry under a subject, as the leader knows it."""
        return await self._get(last_by_subj=self._prefix + subject)

    def last_now(self, subject: str) -> StoredEntry | None:
        """The same, from any thread, in the shortest way as long as replies come."""
        request = _request(f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": self._prefix + subject})
        try:
            return self._found(_answer(self.connection.call(request)))
        except NoReply:
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
        subject = message["subject"].removeprefix(self._prefix)
        return StoredEntry(subject, message["seq"], data, message.get("hdrs", ""))

    async def page(self, seq: int, pattern: str, count: int = PAGE) -> tuple[list[StoredEntry], bool]:
        """Entries from that sequence on, in order, from any server (which may lag); and whether there are more."""
        client = self.connection.client
        request, data, _ = _request(
            f"DIRECT.GET.{self.stream}", {"seq": seq, "batch": count, "next_by_subj": self._prefix + pattern}
        )

        async def attempt() -> tuple[list[StoredEntry], bool]:
            inbox = client.new_inbox()
            subscription = await client.subscribe(inbox)
            found: list[StoredEntry] = []
            try:
                await client.publish(request, data, reply=inbox)
                while True:
                    message = await subscription.next_msg(timeout=ATTEMPT_S)
                    status = message.headers.get("Status")
                    if status in ("204", "404"):
                        return found, int(message.headers.get("Nats-Num-Pending", "0")) > 0
                    if status is not None:
                        raise NoReply(sent=False)
                    subject = message.headers["Nats-Subject"].removeprefix(self._prefix)
                    found.append(StoredEntry(subject, int(message.headers["Nats-Sequence"]), message.data))
            except self.connection.error:
                raise NoReply(sent=False) from None
            finally:
                await quietly(subscription.unsubscribe)

        return await self.connection.until_answered(attempt, f"the room {self.room} cannot be read")

    async def scan(self, pattern: str, seq: int = 1) -> list[StoredEntry]:
        """All entries from that sequence on, each once, as the leader knew them when this began or later.

        Pages come from any server, and one that lags lacks the newest. What is written meanwhile moves to the end, past
        all pages that were read, so the last page must come from a server that knew all that those before it could
        know: it reaches the entry that was the leader's newest after them, and nothing came after it there. To wait
        until the leader has no more would take as long as others write (tests/stores/test_nats_busy.py). What a server
        lacks that lags is asked of the leader.
        """
        found: dict[str, StoredEntry] = {}
        position = ahead = seq
        newest = await self.last(pattern)
        while newest is not None and newest.seq >= position:
            pages, more = 0, True
            while more:
                entries, more = await self.page(position, pattern)
                pages += 1
                for entry in entries:
                    known = found.get(entry.subject, entry)  # from the leader, and newer, if that server lags
                    found[entry.subject] = max(known, entry)
                    position = entry.seq + 1
            if pages > 1:
                newest = await self.last(pattern)
            elif newest.seq >= position:
                first = await self.next(max(ahead, position), pattern)
                if first is None:
                    break
                found[first.subject] = first
                ahead = first.seq + 1
        return sorted(found.values(), key=lambda entry: entry.seq)

    # Writing

    def commit_now(self, writes: Sequence[Write], is_mine: IsMine, *, is_send: bool = False) -> Committed:
        """The same as `commit`, from any thread, in the shortest way as long as replies come."""
        try:
            return Committed(self._read_reply(self.connection.call(*self._messages(writes)), writes))
        except NoReply as lost:
            return self.run(self.commit(writes, is_mine, unsure=lost.sent, is_send=is_send))
        except StorageFull:
            if is_send:
                raise
            return self.run(self.commit(writes, is_mine))

    async def commit(
        self, writes: Sequence[Write], is_mine: IsMine, *, unsure: bool = False, is_send: bool = False
    ) -> Committed:
        """Write all of these in one step, durably. `is_mine` tells, of the first one's subject, whether it stands
        there.

        Raises Changed: nothing was written, an expected sequence was not there. Raises OutcomeUnknown when neither the
        reply nor the leader's word came in time; RoomUnreachable when it surely was not written, and of those
        StorageFull when there is no space for it. `unsure`: an attempt was made before, whose reply was lost. For a
        send no space is made.
        """
        until, is_last = self.connection.link.loop.time() + self.connection.timeout_s, False
        while True:
            try:
                return Committed(self._read_reply(await self.connection.ask(*self._messages(writes)), writes))
            except (Changed, StorageFull) as refused:
                if unsure:
                    committed = await self._look_back(writes, is_mine)
                    if committed is not None:
                        return committed
                    if isinstance(refused, StorageFull):  # the attempt before may still be on its way
                        raise self._how_it_ended(unsure) from None
                elif isinstance(refused, Changed) or is_last or is_send or not await self.on_full():
                    raise
            except NoReply as lost:
                unsure |= lost.sent
                if is_last:
                    raise self._how_it_ended(unsure) from None
            is_last = await self.connection.pause(until)

    async def _look_back(self, writes: Sequence[Write], is_mine: IsMine) -> Committed | None:
        """An attempt without a reply was followed by one that was refused: was it the first that changed things?

        None when all stands as it was expected to: the first attempt is still on its way through the servers.
        """
        try:
            found = await self.last(writes[0].subject)
            name = writes[0].name.encode()
            if found is not None and is_mine(found.data) and name in b64decode(found.headers):
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
                f"the reply of the room {self.room} was lost, and there was no answer within {self.connection.timeout_s:g} s: it may or may "
                "not have happened; repeat it"
            )
        return RoomUnreachable(
            f"the room {self.room} did not answer within {self.connection.timeout_s:g} s{self.connection.why()}; nothing was changed"
        )

    def _read_reply(self, reply: bytes, writes: Sequence[Write]) -> list[int]:
        """The sequences that the servers gave. Raises Changed, NoReply, and what they refuse it for."""
        answer = msgspec.json.decode(reply)
        if "error" in answer:
            error = answer["error"]
            if error.get("err_code") in _WRONG_SEQUENCE:
                raise Changed
            is_later = error.get("code") == 503 or any(said in error.get("description", "") for said in _LATER)
            if is_later and not _is_full(error):
                raise NoReply(sent=False)
            raise self._refusal(error)
        last: int = answer["seq"]
        return [last - place for place in reversed(range(len(writes)))]

    def _messages(self, writes: Sequence[Write]) -> list[Message]:
        """The messages that make these writes: for several an atomic batch, which the last one commits."""
        last = len(writes)
        batch = self.new_name() if last > 1 else ""
        messages: list[Message] = []
        for place, write in enumerate(writes, 1):
            lines = ["NATS/1.0", *self._headers(write)]
            if batch:
                lines += [f"Nats-Batch-Id: {batch}", f"Nats-Batch-Sequence: {place}"]
            if batch and place == last:
                lines.append("Nats-Batch-Commit: 1")
            messages.append((self._prefix + write.subject, write.data, "\r\n".join([*lines, "", ""])))
        most = max(len(data) + len(head) for _, data, head in messages)
        if most > self.connection.client.max_payload:
            said = f"the servers take {self.connection.client.max_payload} bytes at once (max_payload), but this needs {most}"
            raise RoomError(f"{said}; nothing was changed")
        return messages

    def pause(self, seconds: float) -> None:
        """Wait that long."""
        self.run(asyncio.sleep(seconds))

    def new_name(self) -> str:
        """A name that no other write or batch of writes has, of any process."""
        name: str = self.connection.client.new_inbox()[-22:]
        return name

    def _headers(self, write: Write) -> Iterator[str]:
        """They are plain ASCII: names of subjects are hashes, and those of rooms are letters."""
        if write.expect is not None:
            yield f"Nats-Expected-Last-Subject-Sequence: {write.expect}"
        if write.expect_on is not None:
            yield f"Nats-Expected-Last-Subject-Sequence-Subject: {self._prefix}{write.expect_on}"
        if write.ttl_s:
            yield f"Nats-TTL: {write.ttl_s}s"
        if write.name:
            yield f"Nats-Msg-Id: {write.name}"

    def full(self, error: dict[str, Any] | None = None) -> StorageFull:
        """The sentence for those whose write found no space."""
        said = f" ({error['description']})" if error is not None and error.get("description") else ""
        return StorageFull(
            f"the storage of the servers of the room {self.room} is full{said}; nothing was changed. Purge finished messages, or "
            "raise max_file of the servers; until then the room's reserve lets stored messages be received and acked"
        )

    def _refusal(self, error: dict[str, Any]) -> RoomError:
        if _is_full(error):
            return self.full(error)
        said = error.get("description", "no reason given")
        return RoomUnreachable(f"the servers refuse it for the room {self.room}: {said}; nothing was changed")

    # Hearing

    async def subscribe(self, pattern: str, heard: OnChange, queue: str = "") -> Unsubscribe:
        """Hear of every change whose subject fits, until the returned function is called; of several in one queue group
        one does.
        """
        strip = len(self._hints)

        def on_message(subject: bytes, data: bytes, headers: bytes) -> None:
            heard(subject[strip:].decode(), sequence_of(headers), data)

        client = self.connection.client

        async def attempt() -> Unsubscribe:
            if not self.connection.up.is_set():
                raise NoReply(sent=False)
            try:
                unsubscribe = partial(client.unhear, await client.hear(self._hints + pattern, on_message, queue))
                try:
                    await client.flush(timeout=ATTEMPT_S)
                except BaseException:
                    await quietly(unsubscribe)  # the next attempt makes another
                    raise
            except (self.connection.error, TimeoutError):
                raise NoReply(sent=False) from None
            return unsubscribe

        return await self.connection.until_answered(attempt, f"the room {self.room} cannot be listened to")

    async def nudge(self, subject: str) -> None:
        """Tell the listeners to look, without a change."""
        await self.connection.client.publish(self._hints + subject, b"")


def _request(request: str, fields: dict[str, Any]) -> Message:
    """A request to the servers' own interface."""
    return f"$JS.API.{request}", msgspec.json.encode(fields) if fields else b"", ""


def _answer(reply: bytes) -> dict[str, Any]:
    """The reply of the servers' own interface. Raises NoReply while there is no leader."""
    answer: dict[str, Any] = msgspec.json.decode(reply)
    error = answer.get("error", {})
    if error.get("code") == 503 and not _is_full(error):
        raise NoReply(sent=False)
    return answer


def _is_full(error: dict[str, Any]) -> bool:
    """Whether the servers refuse something because there is no space for it."""
    return error.get("err_code") in _NO_SPACE or any(words in error.get("description", "") for words in _NO_SPACE_WORDS)


_SEQUENCE: Final = b"Nats-Sequence: "


def sequence_of(headers: bytes) -> int:
    """The sequence that the servers give with a hint; 0 when somebody only nudges."""
    start = headers.find(_SEQUENCE)
    return 0 if start < 0 else int(headers[start + len(_SEQUENCE) : headers.find(b"\r", start)])
