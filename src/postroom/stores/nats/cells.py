"""The small documents of a room on NATS, each changed by compare-and-set: cells, subscriptions, counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from postroom.core.message import decode_payload, payload_text
from postroom.core.states import State
from postroom.errors import Fault, raise_faults
from postroom.stores.contract import ANY, LIMITS, Cell, Subscription, WorkDone

from .entries import CellDoc, cell_subject, decode_cell, hex_of
from .room import LIMITS_LAYOUT, NatsRoom
from .wire import Changed, StoredEntry, Write

#: A deleted entry is remembered for this long, so that a process that was away for a moment learns of it.
TOMBSTONE_S: Final = 60


def _cell_of(found: StoredEntry) -> Cell:
    doc = decode_cell(found.data)
    return Cell(doc.name, found.seq, decode_payload(bytes(doc.value)))


def cell_read(room: NatsRoom, name: str) -> Cell | None:
    """A cell as the leader knows it."""
    found = room.wire.last_now(cell_subject(name))
    return None if found is None or not found.data else _cell_of(found)


def cell_scan(room: NatsRoom, prefix: str) -> list[Cell]:
    """All cells whose names begin so."""
    first, slash, _ = prefix.partition("/")
    pattern = f"c.{hex_of(first)}.>" if slash else "c.>"
    found = [_cell_of(entry) for entry in room.wire.run(room.wire.scan(pattern)) if entry.data]
    return sorted((cell for cell in found if cell.name.startswith(prefix)), key=lambda cell: cell.name)


def cell_write(room: NatsRoom, name: str, value: Any, expect: int = ANY) -> int | None:
    """Write a cell where its version is the expected one; its new version."""
    write = room.moment().write
    subject = cell_subject(name)
    data = cell_data(room, name, value, write)
    ttl_s = TOMBSTONE_S if value is None else 0
    expected: int | None = None if expect == ANY else expect
    name_of_write = room.wire.new_name() if expect == ANY or value is None else ""

    def is_mine(there: bytes) -> bool:
        return there == data if not data else bool(there) and decode_cell(there).write == write

    while True:
        writes = [Write(subject, data, expected, None, ttl_s, name_of_write)]
        try:  # also when there is nothing to delete: the waiters for such cells are to be woken
            (seq,) = room.note_written(writes, room.wire.commit_now(writes, is_mine)).seqs
        except Changed:
            if expect != 0:
                return None
            found = room.wire.last_now(subject)
            if found is not None and found.data:
                return None
            expected = 0 if found is None else found.seq  # it was deleted: its tombstone may be replaced
            continue
        return 0 if value is None else seq


def cell_data(room: NatsRoom, name: str, value: Any, write: str) -> bytes:
    """A cell as it is written; nothing for one that is deleted. InvalidMessage for what is not JSON.

    Before the first limit, the room says that programs which keep none are too old for it.
    """
    faults: list[Fault] = []
    text = payload_text(value, faults)
    raise_faults(faults)
    if name == LIMITS and value is not None:
        room.announce_layout(LIMITS_LAYOUT)
    data = b"" if value is None else msgspec.json.encode(CellDoc(name, msgspec.Raw(text.encode()), write))
    room.lives.beat_if_named(data)
    return data


# Subscriptions: one document for each channel, which several change


def _channel_subject(channel: str) -> str:
    return f"s.{hex_of(channel)}"


def _read_doc(room: NatsRoom, subject: str, default: Any) -> tuple[Any, int]:
    """A document as the leader knows it, and its sequence; the default where there is none."""
    found = room.wire.last_now(subject)
    doc = decode_payload(found.data) if found is not None and found.data else default
    return doc, 0 if found is None else found.seq


def _change(room: NatsRoom, channel: str, step: Callable[[dict[str, int]], dict[str, int]]) -> bool:
    """Change the subscribers of a channel (agent -> since when) by compare-and-set. Whether that changed anything."""
    subject = _channel_subject(channel)
    while True:
        doc, seq = _read_doc(room, subject, {"agents": {}})
        before = doc["agents"]
        agents = step(before)
        if agents == before:
            return False
        data = msgspec.json.encode({"channel": channel, "agents": agents}) if agents else b""
        write = Write(subject, data, seq, None, 0 if agents else TOMBSTONE_S)
        with suppress(Changed):
            room.wire.commit_now([write], data.__eq__)
            return True


def subscribe(room: NatsRoom, channel: str, agent: str) -> None:
    """The agent is subscribed from now on."""
    now_ms = room.clock.wall_ms()
    _change(room, channel, lambda agents: {agent: now_ms, **agents})


def unsubscribe(room: NatsRoom, channel: str, agent: str) -> bool:
    """The agent is not subscribed any more. Whether it was."""
    return _change(room, channel, lambda agents: {name: since_ms for name, since_ms in agents.items() if name != agent})


def subscribers(room: NatsRoom, channel: str) -> list[str]:
    """The agents that get a copy of each publication in a channel."""
    return list(_read_doc(room, _channel_subject(channel), {"agents": {}})[0]["agents"])


def subscriptions(room: NatsRoom) -> list[Subscription]:
    """All subscriptions."""
    docs = [decode_payload(entry.data) for entry in room.wire.run(room.wire.scan("s.>")) if entry.data]
    return sorted(
        Subscription(doc["channel"], agent, since_ms) for doc in docs for agent, since_ms in doc["agents"].items()
    )


def work_subject(agent: str) -> str:
    """Where an agent's work is counted."""
    return f"w.{hex_of(agent)}"


def tally_of(room: NatsRoom, agent: str) -> tuple[WorkDone, int]:
    """The work of an agent on messages that were put away or deleted, and the sequence of that count."""
    doc, seq = _read_doc(room, work_subject(agent), {"processed": 0, "errors": 0})
    return WorkDone(doc["processed"], doc["errors"]), seq


class Archive(msgspec.Struct, frozen=True):
    """How many messages were put away, by state, and how large those are that may be forgotten."""

    counts: dict[str, int] = {}
    size: int = 0

    def plus(self, state: int, size: int, times: int = 1) -> Archive:
        """With one more (or, `times` -1, one less)."""
        counts = {**self.counts, str(state): self.counts.get(str(state), 0) + times}
        return Archive(counts, self.size + (0 if state == State.DEAD else times * size))

    @property
    def forgettable(self) -> int:
        """How many may be forgotten: all but dead letters."""
        return sum(count for state, count in self.counts.items() if int(state) != State.DEAD)


ARCHIVE_SUBJECT: Final = "a.all"


def archive_of(room: NatsRoom) -> tuple[Archive, int]:
    """The count of messages that were put away, and its sequence."""
    doc, seq = _read_doc(room, ARCHIVE_SUBJECT, {})
    return Archive(**doc), seq


def tally_data(agent: str, work: WorkDone) -> bytes:
    """That count as it is kept."""
    return msgspec.json.encode({"agent": agent, "processed": work.processed, "errors": work.errors})
