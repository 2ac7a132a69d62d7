"""A simulated server of NATS JetStream: one stream with the newest entry of each subject, and what a room asks of it.

Everything here happens at once and in one thread. What is lost, late or repeated on the way is the network's doing
(`nats_client.py`). It is held to a real server by the traces of the specification, by the contract of stores, and by
comparing replies (tests/proof/test_simulated_nats.py).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

VERSION: Final = "2.12.0"
_API: Final = "$JS.API."
_SECOND_NS: Final = 1_000_000_000
#: For so long messages are known by their ids.
_REMEMBERED_NS: Final = 120 * _SECOND_NS
_NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"
#: The words of a real server, by the codes that a room reads.
_ERRORS: Final = {
    10037: (404, "no message found"),
    10058: (400, "stream name already in use with a different configuration"),
    10059: (404, "stream not found"),
    10071: (400, "wrong last sequence: {}"),
    10164: (400, "wrong last sequence: {}"),
    10043: (404, "sequence {} not found"),
}


class Packet(NamedTuple):
    """One message on the wire; `headers` as they are sent, "" without."""

    subject: str
    data: bytes
    reply: str = ""
    headers: str = ""


class Stored(NamedTuple):
    """One entry of the stream."""

    subject: str
    seq: int
    data: bytes
    time_ns: int
    expires_ns: int | None
    headers: str


class RoomStream(NamedTuple):
    """What a room has made."""

    config: dict[str, Any]
    prefix: str
    dest: str


#: What a batch changed: the entry that was there before (None without), and the one that is there now.
Change = tuple[Stored | None, Stored]
#: Sends a message to all that hear its subject: subject, data, headers.
Route = Callable[[str, bytes, bytes], None]


class SimulatedServer:
    """A server with the stream of one room."""

    def __init__(self, now_ns: Callable[[], int], route: Route) -> None:
        self._now_ns = now_ns
        self._route = route
        #: Called with what each write changed, before anybody is told of it.
        self.on_commit: Callable[[Sequence[Change]], None] = lambda _: None
        self.stream: RoomStream | None = None
        self._by_seq: dict[int, Stored] = {}  # in order
        self._last: dict[str, Stored] = {}
        self._seq = 0
        self._expiring: dict[str, int] = {}
        self._batches: dict[str, list[Packet]] = {}
        self._named: dict[str, tuple[int, int]] = {}  # messages with ids: when they came, and their sequences
        #: While one of its copies lags: the entries that it has, and until when.
        self._lagging: tuple[dict[int, Stored], int] | None = None
        self.has_leader = True

    def lag(self, span_ns: int) -> None:
        """For so long pages come from a copy of the stream that learns of nothing new."""
        self._lagging = dict(self._by_seq), self._now_ns() + span_ns

    def restart(self) -> None:
        """What is not in the stream is forgotten."""
        self._batches.clear()

    def take(self, packet: Packet) -> None:
        """Do what a message asks for, and answer it."""
        self._expire()
        subject = packet.subject
        if subject.startswith(_API):
            self._answer_api(packet, subject[len(_API) :])
        elif self.stream is not None and subject.startswith(self.stream.prefix):
            if self.has_leader:
                self._publish(packet)
            elif packet.reply:
                self._route(packet.reply, b"", _NO_RESPONDERS)
        else:
            self._route(subject, packet.data, packet.headers.encode())
            if packet.reply:
                self._route(packet.reply, b"", _NO_RESPONDERS)

    def _expire(self) -> None:
        if self._expiring:
            now_ns = self._now_ns()
            for subject in [each for each, at_ns in self._expiring.items() if at_ns <= now_ns]:
                self._remove(self._last[subject])

    def _remove(self, entry: Stored) -> None:
        del self._by_seq[entry.seq], self._last[entry.subject]
        self._expiring.pop(entry.subject, None)

    # Writing

    def _publish(self, packet: Packet) -> None:
        headers = parse_headers(packet.headers)
        batch = headers.get("Nats-Batch-Id")
        if batch is None:
            self._store([(packet, headers)], packet.reply, "")
            return
        parts = self._batches.setdefault(batch, [])
        parts.append(packet)
        if "Nats-Batch-Commit" in headers:
            del self._batches[batch]
            self._store([(each, parse_headers(each.headers)) for each in parts], packet.reply, batch)

    def _known_seq(self, id: str) -> int:
        """Under which sequence a message of that id was stored a while ago; 0 when none was."""
        came_ns, seq = self._named.get(id, (0, 0))
        return seq if self._now_ns() - came_ns < _REMEMBERED_NS else 0

    def _store(self, packets: Sequence[tuple[Packet, dict[str, str]]], reply: str, batch: str) -> None:
        """Store all of these, if what they expect is there; one whose id was stored before is not stored again."""
        assert self.stream is not None
        answer: dict[str, Any] = {"stream": self.stream.config["name"], "seq": 0}
        for packet, headers in packets:
            expected = headers.get("Nats-Expected-Last-Subject-Sequence")
            there = self._last.get(headers.get("Nats-Expected-Last-Subject-Sequence-Subject", packet.subject))
            seq = 0 if there is None else there.seq
            if expected is not None and int(expected) != seq:
                self._reply(reply, {"error": _error(10071, seq), **answer})
                return
        id = packets[0][1].get("Nats-Msg-Id", "")
        if known := self._known_seq(id):
            self._reply(reply, {**answer, "seq": known, "duplicate": True})
            return
        changes = [self._put(packet, headers) for packet, headers in packets]
        self.on_commit(changes)
        answer["seq"] = self._seq
        if id:
            self._named[id] = self._now_ns(), self._seq
        if batch:
            answer |= {"batch": batch, "count": len(packets)}
        self._reply(reply, answer)
        for _, stored in changes:
            self._republish(stored)

    def _put(self, packet: Packet, headers: dict[str, str]) -> Change:
        self._seq += 1
        before = self._last.get(packet.subject)
        if before is not None:
            self._remove(before)
        now_ns = self._now_ns()
        ttl = headers.get("Nats-TTL")
        expires_ns = None if ttl is None else now_ns + int(ttl.removesuffix("s")) * _SECOND_NS
        stored = Stored(packet.subject, self._seq, packet.data, now_ns, expires_ns, packet.headers)
        self._by_seq[self._seq] = self._last[packet.subject] = stored
        if expires_ns is not None:
            self._expiring[packet.subject] = expires_ns
        return before, stored

    def _republish(self, stored: Stored) -> None:
        assert self.stream is not None
        subject = self.stream.dest + stored.subject.removeprefix(self.stream.prefix)
        self._route(subject, stored.data, self._headers(stored))

    def _headers(self, stored: Stored, pending: int | None = None) -> bytes:
        assert self.stream is not None
        lines = [
            "NATS/1.0",
            f"Nats-Stream: {self.stream.config['name']}",
            f"Nats-Subject: {stored.subject}",
            f"Nats-Sequence: {stored.seq}",
        ]
        if pending is not None:
            lines.append(f"Nats-Num-Pending: {pending}")
        return "\r\n".join([*lines, "", ""]).encode()

    # The interface of JetStream

    def _answer_api(self, packet: Packet, request: str) -> None:
        if not self.has_leader:
            self._route(packet.reply, b"", _NO_RESPONDERS)
            return
        fields: dict[str, Any] = msgspec.json.decode(packet.data) if packet.data else {}
        if request == "INFO":
            self._reply(packet.reply, {"limits": {"max_storage": -1}, "storage": 0})
            return
        what, _, name = request.rpartition(".")
        if what == "STREAM.CREATE":
            self._create(packet.reply, fields)
        elif self.stream is None or self.stream.config["name"] != name:
            self._reply(packet.reply, {"error": _error(10059)})
        elif what == "DIRECT.GET":
            self._page(packet.reply, fields)
        else:
            self._reply(packet.reply, _REQUESTS[what](self, fields))

    def _reply(self, to: str, answer: dict[str, Any]) -> None:
        if to:
            self._route(to, msgspec.json.encode(answer), b"")

    def _create(self, to: str, config: dict[str, Any]) -> None:
        if self.stream is not None and self.stream.config != config:
            self._reply(to, {"error": _error(10058)})
            return
        republish = config["republish"]
        self.stream = RoomStream(config, republish["src"].removesuffix(">"), republish["dest"].removesuffix(">"))
        self._reply(to, self._info({}))

    def _info(self, fields: dict[str, Any]) -> dict[str, Any]:
        assert self.stream is not None
        now_ns = self._now_ns()
        state: dict[str, Any] = {
            "messages": len(self._by_seq),
            "bytes": sum(len(each.data) for each in self._by_seq.values()),
            "first_seq": next(iter(self._by_seq), self._seq + 1),
            "last_seq": self._seq,
            "num_subjects": len(self._last),
        }
        if "subjects_filter" in fields:
            fits = _fitting(fields["subjects_filter"])
            state["subjects"] = {subject: 1 for subject in self._last if fits(subject)} or None
        told = datetime.fromtimestamp(now_ns / _SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        defaults = {"max_msgs": -1, "max_bytes": -1, "max_age": 0}
        return {"config": {**defaults, **self.stream.config}, "state": state, "ts": told}

    def _get(self, fields: dict[str, Any]) -> dict[str, Any]:
        if "last_by_subj" in fields:
            found = self._newest(fields["last_by_subj"])
        else:
            found = next(self._from(self._by_seq, fields["seq"], fields["next_by_subj"]), None)
        if found is None:
            return {"error": _error(10037)}
        message: dict[str, Any] = {"subject": found.subject, "seq": found.seq}
        if found.data:
            message["data"] = b64encode(found.data).decode()
        if found.headers:
            message["hdrs"] = b64encode(found.headers.encode()).decode()
        return {"message": message}

    def _newest(self, pattern: str) -> Stored | None:
        if "*" not in pattern and not pattern.endswith(">"):
            return self._last.get(pattern)
        fits = _fitting(pattern)
        return next((each for each in reversed(self._by_seq.values()) if fits(each.subject)), None)

    @staticmethod
    def _from(entries: dict[int, Stored], seq: int, pattern: str) -> Iterator[Stored]:
        fits = _fitting(pattern)
        return (each for each in entries.values() if each.seq >= seq and fits(each.subject))

    def _page(self, to: str, fields: dict[str, Any]) -> None:
        entries = self._by_seq
        if self._lagging is not None and self._now_ns() < self._lagging[1]:
            entries = self._lagging[0]
        found = list(self._from(entries, fields["seq"], fields["next_by_subj"]))
        if not found:
            self._route(to, b"", b"NATS/1.0 404 Message Not Found\r\n\r\n")
            return
        page = found[: fields["batch"]]
        for place, each in enumerate(page, 1):
            self._route(to, each.data, self._headers(each, len(found) - place))
        pending = len(found) - len(page)
        self._route(to, b"", f"NATS/1.0 204 EOB\r\nNats-Num-Pending: {pending}\r\n\r\n".encode())

    def _delete(self, fields: dict[str, Any]) -> dict[str, Any]:
        entry = self._by_seq.get(fields["seq"])
        if entry is None:
            return {"success": False, "error": _error(10043, fields["seq"])}
        self._remove(entry)
        return {"success": True}

    def _purge(self, fields: dict[str, Any]) -> dict[str, Any]:
        fits = _fitting(fields["filter"])
        gone = [each for each in self._by_seq.values() if fits(each.subject)]
        for each in gone:
            self._remove(each)
        return {"success": True, "purged": len(gone)}


_REQUESTS: Final[dict[str, Callable[[SimulatedServer, dict[str, Any]], dict[str, Any]]]] = {
    "STREAM.INFO": SimulatedServer._info,
    "STREAM.MSG.GET": SimulatedServer._get,
    "STREAM.MSG.DELETE": SimulatedServer._delete,
    "STREAM.PURGE": SimulatedServer._purge,
}


def parse_headers(headers: str) -> dict[str, str]:
    """The headers of a message by name; of a server's word alone, its "Status"."""
    first, *lines = headers.split("\r\n")
    found = dict(line.split(": ", 1) for line in lines if line)
    status = first.removeprefix("NATS/1.0").split()
    return {"Status": status[0], **found} if status else found


def _error(code: int, said: object = "") -> dict[str, Any]:
    http, description = _ERRORS[code]
    return {"code": http, "err_code": code, "description": description.format(said)}


def _fitting(pattern: str) -> Callable[[str], bool]:
    """Whether a subject fits a pattern."""
    start = pattern[:-1]
    if "*" in start:
        words = [r"[^.]+" if word == "*" else ".+" if word == ">" else re.escape(word) for word in pattern.split(".")]
        found = re.compile(r"\.".join(words)).fullmatch
        return lambda subject: found(subject) is not None
    if pattern.endswith(">"):
        return lambda subject: subject.startswith(start) and len(subject) > len(start)
    if pattern.endswith("*"):
        return lambda subject: subject.startswith(start) and "." not in subject[len(start) :]
    return pattern.__eq__


class Subscriptions:
    """Which connections hear which subjects."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._numbers = 0
        #: Number -> pattern, queue group, and what is called with a message.
        self._all: dict[int, tuple[str, str, Hears]] = {}

    def add(self, pattern: str, queue: str, hears: Hears) -> int:
        self._numbers += 1
        self._all[self._numbers] = pattern, queue, hears
        return self._numbers

    def remove(self, number: int) -> None:
        self._all.pop(number, None)

    def hearers(self, subject: str) -> list[Hears]:
        """All that hear a subject: of each queue group one."""
        found: list[Hears] = []
        groups: dict[str, list[Hears]] = {}
        for pattern, queue, hears in self._all.values():
            if _fitting(pattern)(subject):
                if queue:
                    groups.setdefault(queue, []).append(hears)
                else:
                    found.append(hears)
        return found + [group[self._choose(len(group))] for group in groups.values()]


#: Called with what is heard: subject, data, headers.
Hears = Callable[[bytes, bytes, bytes], None]
