"""Sends on NATS: the entries that are written for messages, in one atomic step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, Final

import msgspec

from postroom.core.message import Draft, MessageWithLedger, draft_of
from postroom.core.states import FINISHED, State
from postroom.errors import InvalidMessage, OutcomeUnknown, RoomError

from .cells import cell_data, cell_read, cell_write, subscribers
from .entries import (
    Entry,
    Kept,
    WriteTime,
    box_subject,
    cell_subject,
    first_entry,
    line_of,
    line_subject,
    make_id,
    name_hash,
    parts_of,
    restored,
    with_answers,
    withdrawn,
)
from .following import ARCHIVE, OPEN_PART
from .gated import check_space
from .room import ORDER_LAYOUT, NatsRoom
from .unsure import DraftWrites
from .wire import MAX_TOGETHER, Changed, Write


class KeyDoc(msgspec.Struct, frozen=True):
    """An idempotency key as it is kept: the ids that it gave, and a hash of what was sent under it."""

    sender: str
    key: str
    content: str
    ids: tuple[str, ...]
    #: Of a message that came from another room nobody knows whether it was published: the hash if it was.
    published: str = ""


_decode_key: Final = msgspec.json.Decoder(KeyDoc).decode


class WritePlan:
    """The writes that store some drafts. Made anew when somebody else was faster."""

    def __init__(self, room: NatsRoom, moment: WriteTime, questions: Mapping[str, Kept]) -> None:
        self.writes: list[Write] = []
        self.parts: list[DraftWrites] = []
        self.ids: list[str] = []
        #: The questions that were given, and the answers that are held for their askers.
        self.held: dict[str, list[str]] = {}
        self._room = room
        self._moment = moment
        #: The name of the write under which the first of these is made: that of the first try, for a repeat.
        self.name: str | None = None
        self._given = questions
        self._questions: dict[str, Kept | None] = dict(questions)
        self._keys: dict[str, tuple[KeyDoc | None, int]] = {}
        #: What these replace: the withdrawals, by id, which are made anew for a repeat; and the debounced ones among
        #: these, by sender and line, each with the place of its entry in `writes`.
        self._withdrawals: dict[str, Write] = {}
        self._debounced: dict[tuple[str, str], tuple[int, Entry]] = {}

    def add(self, drafts: Sequence[Draft], repeats: Sequence[DraftWrites | None] = ()) -> None:
        """Plan to store these, some of which are repeats.

        Raises InvalidMessage for a known key with another content, MailboxFull where there is no space.
        """
        self._read_what_is_needed(drafts)
        for draft, repeat in zip_longest(drafts, repeats):
            part = self._add_part(draft) if repeat is None else repeat
            if repeat is not None and self._room.read(part.ids[0]) is None:
                self.writes += part.writes
                self._withdraw_old(draft, draft.to_agent, part.ids[0])
            if self.name is None and self.writes:
                self.name = part.name
            self.ids += part.ids
            self.parts.append(part)
        self.writes += self._withdrawals.values()
        for id, answers in self.held.items():
            question = self._questions[id]
            if id not in self._given and question is not None:
                self.writes.append(self._room.write_of(with_answers(question, answers), question.seq))
        if drafts:
            check_space(self._room, self.writes)
        if len(self.writes) > MAX_TOGETHER:
            raise InvalidMessage(
                "messages", f"at most {MAX_TOGETHER} entries can be stored in one step, not {len(self.writes)}"
            )

    def _add_part(self, draft: Draft) -> DraftWrites:
        start = len(self.writes)
        ids = self._add_keyed(draft) if draft.idempotency_key is not None else self._add(draft)
        return DraftWrites(draft, ids, self.writes[start:], self._moment.write)

    def _read_what_is_needed(self, drafts: Sequence[Draft]) -> None:
        room = self._room
        keyed = [draft for draft in drafts if draft.idempotency_key is not None]
        keys = dict.fromkeys(key_subject(draft.from_agent, draft.idempotency_key) for draft in keyed)
        ids = [draft.answer_to for draft in drafts if draft.answer_to is not None]
        for found, subject in zip(room.wire.results([room.wire.last(key) for key in keys]), keys, strict=True):
            doc = _decode_key(found.data) if found is not None and found.data else None
            self._keys[subject] = (doc, 0 if found is None else found.seq)
        for kept in room.read_open(id for id in ids if id not in self._questions):
            self._questions[kept.entry.id] = kept

    def _add_keyed(self, draft: Draft) -> list[str]:
        subject = key_subject(draft.from_agent, draft.idempotency_key)
        known, seq = self._keys[subject]
        content = _content(draft)
        if known is not None:
            if content not in (known.content, known.published):
                problem = f"{draft.idempotency_key!r} was used by {draft.from_agent!r} before, for another message"
                raise InvalidMessage("idempotency_key", problem)
            return list(known.ids)
        ids = self._add(draft)
        if ids:  # a publication that reached nobody is not remembered
            doc = KeyDoc(draft.from_agent, str(draft.idempotency_key), content, tuple(ids))
            self._keys[subject] = (doc, seq)
            self.writes.append(Write(subject, msgspec.json.encode(doc), seq))
        return ids

    def _add(self, draft: Draft) -> list[str]:
        if not draft.publish:
            return [self._add_one(draft, draft.to_agent)]
        return [self._add_one(draft, agent) for agent in sorted(subscribers(self._room, draft.channel))]

    def _add_one(self, draft: Draft, to_agent: str | None) -> str:
        room = self._room
        id = make_id(room.next_key(), to_agent, draft.channel, draft.priority, room.clock.random())
        held_for = self._held_for(draft)
        entry = first_entry(draft, id, to_agent, self._moment, held_for=held_for)
        place = len(self.writes)
        self.writes.append(room.write_of(entry, 0))
        self.writes += [Write(f"b.{id}.{number}", part) for number, part in enumerate(parts_of(draft))]
        line = line_of(entry)
        if line is not None:
            self.writes.append(Write(f"{line}.{id}", b"-", 0))
        self._withdraw_old(draft, to_agent, id)
        if draft.debounce and line is not None:
            self._replace_in_plan(draft.from_agent, line, id)
            self._debounced[draft.from_agent, line] = (place, entry)
        if held_for is not None:
            self.held.setdefault(str(draft.answer_to), []).append(id)
        return id

    def _withdraw_old(self, draft: Draft, to_agent: str | None, id: str) -> None:
        """Withdraw what a message replaces, where it is still to be had."""
        if draft.replaces is None and not draft.debounce:
            return
        room = self._room
        ids = [] if draft.replaces is None else [draft.replaces]
        if draft.debounce:
            places = room.wire.run(room.wire.scan(f"{line_subject(to_agent, draft.channel, str(draft.order_key))}.>"))
            ids += [place.subject.rpartition(".")[2] for place in places]
        for kept in room.read_open(ids):
            gone = bool(room.gone_owners([kept]))
            entry = withdrawn(kept, draft.from_agent, f"replaced by {id}", self._moment, gone=gone)
            if entry is not None:
                self._withdrawals.setdefault(kept.entry.id, room.write_of(entry, kept.seq))

    def _replace_in_plan(self, sender: str, line: str, id: str) -> None:
        """Of several debounced messages of one step the last wins: the one before it is stored as withdrawn."""
        before = self._debounced.get((sender, line))
        if before is not None:
            place, first = before
            entry = withdrawn(Kept(0, first), sender, f"replaced by {id}", self._moment)
            if entry is not None:
                self.writes[place] = self._room.write_of(entry, 0)

    def _held_for(self, draft: Draft) -> Entry | None:
        """The question whose asker waits for this answer."""
        question = self._questions.get(draft.answer_to or "")
        if draft.waiter is not None or question is None or question.state is State.AWAITED:
            return None
        return None if question.entry.waiter is None else question.entry


def put(room: NatsRoom, drafts: Sequence[Draft]) -> list[str]:
    """Store messages, all or none; their ids.

    Raises StorageFull when the servers have no space but the room's reserve.
    """
    if not drafts:
        return []
    room.reserve.check()
    if any(draft.waiter == room.lives.process for draft in drafts):
        room.lives.beat()
    if any(draft.order_key is not None or draft.replaces is not None for draft in drafts):
        room.announce_layout(ORDER_LAYOUT)
    repeats = room.unsure.repeats_of(drafts)
    try:
        return _put(room, drafts, repeats)
    except RoomError as error:
        first = [part for part in repeats if part is not None]
        if not first or isinstance(error, OutcomeUnknown):
            raise
        room.unsure.remember(first)  # this try changed nothing, but the one before may have
        raise OutcomeUnknown(str(error), [id for part in first for id in part.ids]) from error


def _put(room: NatsRoom, drafts: Sequence[Draft], repeats: Sequence[DraftWrites | None]) -> list[str]:
    write: str | None = None
    while True:
        moment = room.moment(write)
        write = moment.write
        plan = WritePlan(room, moment, {})
        plan.add(drafts, repeats)
        if not plan.writes:
            return plan.ids
        try:
            room.commit(plan.writes, plan.name or write, is_send=True)
        except Changed:  # a key was used, a question moved on, or an id was taken: all of it is planned anew
            continue
        except OutcomeUnknown as error:
            room.unsure.remember(plan.parts)
            raise OutcomeUnknown(str(error), plan.ids) from None
        return plan.ids


def put_with_cell(room: NatsRoom, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
    """Store messages and write a cell where its version is the expected one, in one step; None where it is not."""
    room.reserve.check()
    write: str | None = None
    while True:
        moment = room.moment(write)
        write = moment.write
        data = cell_data(room, name, value, write)
        plan = WritePlan(room, moment, {})
        plan.add(drafts)
        if not plan.writes:  # nothing is new: the cell alone is written
            return None if cell_write(room, name, value, expect) is None else plan.ids
        writes = [*plan.writes, Write(cell_subject(name), data, expect)]
        try:
            room.commit(writes, write, is_send=True)
        except Changed:  # the cell has, or an id was taken
            cell = cell_read(room, name)
            if cell is None or cell.version != expect:
                return None
            continue
        return plan.ids


#: Messages of another room that are written in one step: so many at most, of about so many bytes.
_RESTORED_TOGETHER: Final = 100
_RESTORED_BYTES: Final = 2_000_000


def restore(room: NatsRoom, messages: Sequence[MessageWithLedger]) -> int:
    """Take over messages of another room, in as many steps as it takes; see `Store.restore`.

    Where it raised, the first of them may be kept: the next try leaves those alone.
    """
    room.reserve.check()
    if any(message.order_key is not None or message.exact_state is State.WITHDRAWN for message in messages):
        room.announce_layout(ORDER_LAYOUT)
    room.follower.know(OPEN_PART, ARCHIVE)
    new = {message.id: message for message in messages if message.id not in room.tables.rows}
    together: list[tuple[MessageWithLedger, Draft]] = []
    size = 0
    for message in new.values():
        draft = draft_of(message)
        if len(together) >= _RESTORED_TOGETHER or size + len(draft.payload_json) > _RESTORED_BYTES:
            _restore(room, together)
            together, size = [], 0
        together.append((message, draft))
        size += len(draft.payload_json)
    _restore(room, together)
    return len(new)


def _restore(room: NatsRoom, messages: Sequence[tuple[MessageWithLedger, Draft]]) -> None:
    write: str | None = None
    while messages:
        moment = room.moment(write)
        write = moment.write
        entries = [restored(message, draft, moment) for message, draft in messages]
        # where it was deleted a moment ago, there is a mark
        there = room.wire.results([room.wire.last(box_subject(entry)) for entry in entries])
        writes = [
            room.write_of(entry, 0 if was is None else was.seq) for entry, was in zip(entries, there, strict=True)
        ]
        for message, draft in messages:
            writes += [Write(f"b.{message.id}.{place}", part) for place, part in enumerate(parts_of(draft))]
        lines = [(line_of(entry), entry) for entry in entries if entry.state not in FINISHED]
        writes += [Write(f"{line}.{entry.id}", b"-") for line, entry in lines if line is not None]
        with suppress(Changed):
            room.commit([*writes, *_restored_keys(room, messages)], write)
            return


def _restored_keys(room: NatsRoom, messages: Sequence[tuple[MessageWithLedger, Draft]]) -> list[Write]:
    """The idempotency keys of messages of another room, with those of them that are here already."""
    keyed: dict[str, list[tuple[MessageWithLedger, Draft]]] = {}
    for each in messages:
        if each[1].idempotency_key is not None:
            keyed.setdefault(key_subject(each[1].from_agent, each[1].idempotency_key), []).append(each)
    writes = []
    found = room.wire.results([room.wire.last(subject) for subject in keyed])
    for (subject, group), there in zip(keyed.items(), found, strict=True):
        draft = group[0][1]
        known = _decode_key(there.data) if there is not None and there.data else None
        ids = (*(() if known is None else known.ids), *(message.id for message, _ in group))
        published = _content(msgspec.structs.replace(draft, publish=True))
        doc = KeyDoc(
            draft.from_agent, str(draft.idempotency_key), _content(draft), tuple(dict.fromkeys(ids)), published
        )
        writes.append(Write(subject, msgspec.json.encode(doc), 0 if there is None else there.seq))
    return writes


def key_subject(sender: str, key: str | None) -> str:
    """Where an idempotency key is kept."""
    return f"k.{name_hash(f'{len(sender)}:{sender}:{key}'):032x}"


def _content(draft: Draft) -> str:
    """A digest of everything that must be the same when a sender repeats an idempotency key."""
    to: Any = None if draft.publish else draft.to_agent
    said = msgspec.json.encode([draft.publish, to, draft.channel, draft.type, draft.payload_json])
    return blake2b(said, digest_size=16).hexdigest()


def key_without(found_data: bytes, ids: set[str]) -> KeyDoc | None:
    """A key without messages that are no longer kept; None when no message is left."""
    doc = _decode_key(found_data)
    left = tuple(id for id in doc.ids if id not in ids)
    return msgspec.structs.replace(doc, ids=left) if left else None


def part_subjects(kept: Kept) -> list[str]:
    """Where the parts of a large payload lie."""
    return [f"b.{kept.entry.id}.{part}" for part in range(kept.entry.parts)]
