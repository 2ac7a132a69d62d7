"""Queries of the page and of other programs: messages now and at a time in the past, one message whole, the feed.

Numbers of the feed and cursors have 63 bits, more than a browser's numbers: outside they are text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from postroom.core.message import Message, readable
from postroom.core.states import OPEN, WAITING
from postroom.errors import InvalidMessage, PostroomError
from postroom.mail.handles import handle_of
from postroom.mail.receipts import attempts_of
from postroom.room import Room
from postroom.stores.contract import Change, Query

from .lines import MessageLine, line_of, line_with_ledger
from .searching import matches, query_of, search

Data = dict[str, Any]
Wanted = Mapping[str, str]

MAX_LINES: Final = 2000
MAX_EVENTS: Final = 1000
#: So many messages may be asked for by their ids at once.
MAX_IDS: Final = 200
#: Of a payload, so many characters are shown at a time.
PAYLOAD_PIECE: Final = 64 * 1024
#: Of a conversation, so many messages are shown beside one of them: the newest.
MAX_TURNS: Final = 100
#: Of messages that wait, so many are asked whether somebody was notified.
_MAX_ASKED: Final = 200


class CursorError(PostroomError):
    """A cursor that the feed cannot go on from. `code` is CURSOR_EXPIRED or CURSOR_AHEAD."""

    def __init__(self, after: int, oldest: int, newest: int) -> None:
        self.code = "CURSOR_AHEAD" if after > newest else "CURSOR_EXPIRED"
        self.oldest, self.newest = oldest, newest
        expired = f"not all changes after {after} are kept any more; start over, or continue from {oldest}"
        ahead = f"the feed has only reached {newest}; this cursor is from another room"
        super().__init__(ahead if after > newest else expired)


class RoomReading:
    """Questions to one room. Nothing is changed by any of them."""

    def __init__(self, room: Room) -> None:
        self._room = room

    # The conversation now

    def recent(self, limit: int, wanted: Wanted) -> Data:
        """The latest messages, the oldest of them first, and the feed's number from which to follow."""
        number = self._room.cursor()  # before the messages: what comes between is told twice, not never
        return {"cursor": str(number), **self.older(None, limit, wanted)}

    def older(self, before: int | None, limit: int, wanted: Wanted) -> Data:
        """Messages stored before a place, the oldest first. `older` is the cursor to go on from; None at the end.

        With a wish there may be fewer, or none, and more to search all the same: `reached_ms` says how far it came.
        """
        found = search(self._room, wanted, limit, before, order="newest")
        return {
            "lines": self._lines(found.messages)[::-1],
            "older": _text(found.cursor),
            "reached_ms": found.reached_ms,
        }

    def among(self, ids: Sequence[str], wanted: Wanted) -> Data:
        """Which of these messages are wanted."""
        if not 1 <= len(ids) <= MAX_IDS:
            raise InvalidMessage("ids", f"must name 1 to {MAX_IDS} messages, not {len(ids)}")
        found = self._room.store.find(query_of(self._room, wanted, ids=tuple(ids), limit=MAX_IDS)).messages
        return {"ids": [message.id for message in found if matches(message, wanted)]}

    def _lines(self, messages: list[Message]) -> list[MessageLine]:
        waiting = [message.id for message in messages if message.exact_state in WAITING][:_MAX_ASKED]
        asked = {id: whole.ledger[-1:] for id in waiting if (whole := self._room.store.get(id)) is not None}
        last = {id: (entry.event, entry.time_ms) for id, ledger in asked.items() for entry in ledger}
        return [line_of(message, *last.get(message.id, ())) for message in messages]

    # The past

    def span(self) -> Data:
        """From when to when messages are kept."""
        first = self._room.store.find(Query(order="oldest", limit=1)).messages
        return {"oldest_ms": first[0].timestamp_ms if first else None, "now_ms": self._room.clock.wall_ms()}

    def past(self, at_ms: int, limit: int, wanted: Wanted) -> Data:
        """The messages around a moment, each with its whole ledger: half of them sent before it, half after.

        `ahead` is the place to go on from; None at the end. `older` is not None when a wish was not searched to the end.
        """
        half = max(1, limit // 2)
        before = search(self._room, wanted, half, sent_before_ms=at_ms + 1, order="newest")
        after = search(self._room, wanted, half, sent_after_ms=at_ms + 1, order="oldest")
        lines = self._with_ledgers([*before.messages[::-1], *after.messages])
        places = {"ahead": _text(after.cursor), "older": _text(before.cursor), "reached_ms": before.reached_ms}
        return {"lines": lines, **places, "at_ms": at_ms, **self.span()}

    def further(self, cursor: int, limit: int, wanted: Wanted) -> Data:
        """The messages that were stored after a place, each with its whole ledger. `ahead` is the next place."""
        found = search(self._room, wanted, limit, cursor, order="oldest")
        return {"lines": self._with_ledgers(found.messages), "ahead": _text(found.cursor)}

    def _with_ledgers(self, messages: list[Message]) -> list[MessageLine]:
        whole = (self._room.store.get(message.id) for message in messages)
        return [line_with_ledger(message) for message in whole if message is not None]

    # One message

    def message(self, id: str) -> Data:
        """A message with its ledger, its attempts, its question, its answer and its conversation."""
        room = self._room
        receipt = room.receipt(id)
        message = receipt.message
        text = readable(message.payload, indent=2)
        answers = room.store.find(Query(answer_to=id, limit=10)).messages
        question = None if message.answer_to is None else room.store.get(message.answer_to)
        thread = room.thread(id)
        envelope = message.to_dict()
        del envelope["payload"]
        return {
            "envelope": envelope,
            "handle": handle_of(id),
            "reason": room.why(message).text if message.exact_state in OPEN else None,
            "line": line_with_ledger(message),
            "payload": text[:PAYLOAD_PIECE],
            "payload_size": len(text),
            "recipient_known": receipt.recipient_known,
            "ledger": [entry._asdict() for entry in receipt.events],
            "attempts": [attempt._asdict() for attempt in attempts_of(message)],
            "question": None if question is None else line_of(question),
            "answers": [line_of(answer) for answer in answers],
            "thread": {"count": len(thread), "lines": [line_of(each) for each in thread[-MAX_TURNS:]]},
            "lease_until_ms": message.lease_until_ms,
            "due_ms": message.due_ms,
            "max_deliveries": message.max_deliveries,
            "waits": message.waiter is not None,
        }

    def payload(self, id: str, start: int) -> Data:
        """A piece of a message's payload, as text."""
        text = readable(self._room.get(id).payload, indent=2)
        return {"payload": text[start : start + PAYLOAD_PIECE], "start": start, "payload_size": len(text)}

    # The feed, for other programs

    def check_cursor(self, after: int) -> None:
        """Raise CursorError when the feed cannot go on from there without a gap. 0 is the beginning of what is kept."""
        newest = self._room.cursor()
        forgotten = self._room.store.forgotten()
        if after > newest or 0 < after < forgotten:
            raise CursorError(after, forgotten, newest)

    def events(self, after: int, limit: int) -> list[Data]:
        """The changes after a number, oldest first, with whole envelopes. Raises CursorError."""
        self.check_cursor(after)
        return [event_data(change) for change in self._room.events(after, limit)]


def _text(cursor: int | None) -> str | None:
    return None if cursor is None else str(cursor)


def event_data(change: Change) -> Data:
    """A change of the feed as other programs get it."""
    return {
        "cursor": str(change.number),
        "event": change.event,
        "time_ms": change.time_ms,
        "agent": change.agent,
        "detail": change.detail,
        "message": change.message.to_dict(),
    }


def whole_number(field: str, text: str | None, default: int, least: int, most: int) -> int:
    """A number that was asked for, or InvalidMessage that names the field."""
    if text is None or text == "":
        return default
    # `isdecimal` alone lets other scripts' digits through; thirty of them are more than any number here has
    if not (text.isascii() and text.isdecimal() and len(text) <= 30 and least <= int(text) <= most):
        raise InvalidMessage(field, f"must be a whole number from {least} to {most}, not {text[:40]!r}")
    return int(text)
