"""A message as a file: what Postroom writes, and what it makes of what others wrote.

The fields are `from to action spec task_id timestamp payload`, and beside them those of the envelope that are not as
usual. In a file written by hand, every field that is not the envelope's belongs to the payload, where its receiver
finds it; `spec` and `task_id` of a payload are shown beside it for readers of files.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from postroom.core.clock import from_iso
from postroom.core.message import DEFAULT_CHANNEL, Draft, check
from postroom.errors import InvalidMessage

from .names import action_of
from .tree import NotAFile, Tree

#: The source's own fields that a payload may carry.
BESIDE: Final = ("spec", "task_id")
#: Fields of the envelope that stand in a file when they are not as usual.
_FURTHER: Final = (
    "channel", "priority", "ttl_s", "delay_s", "correlation_id", "idempotency_key", "chain_id", "hop_count", "lane", "trace",
    "max_deliveries", "answer_to", "replay_of",
)  # fmt: skip
_ENVELOPE: Final = frozenset(("id", "from", "to", "action", "timestamp", "payload", "version", "expires_at", *_FURTHER))
_USUAL: Final = Draft(from_agent="", payload=None)
#: What stands around a payload is not longer than this.
ROUND_IT_BYTES: Final = 64 * 1024
#: Longer messages stand in one line.
SPREAD_BYTES: Final = 16 * 1024
UNKNOWN_SENDER: Final = "unknown"


class Unreadable(Exception):
    """What lies there is no message (yet); the reason is for people."""


class Body:
    """The fields of a message's file."""

    def __init__(self, fields: dict[str, Any], *, merge: bool) -> None:
        self.fields = fields
        self._merge = merge

    def payload(self) -> dict[str, Any]:
        """The payload: as it was sent, or with what a hand-written file says beside it."""
        payload = self.fields.get("payload", {})
        if isinstance(payload, str):
            payload = {"text": payload}
        if not isinstance(payload, dict):
            raise Unreadable(f"payload must be an object, not {type(payload).__name__}")
        if not self._merge:
            return payload
        beside = {name: value for name, value in self.fields.items() if name not in _ENVELOPE}
        return {**beside, **payload}


def make_file(draft: Draft, id: str, timestamp: str) -> bytes:
    """The file of a message: JSON over several lines, the source's fields first."""
    beside = {name: draft.payload[name] for name in BESIDE if isinstance(draft.payload.get(name), str)}
    further = {
        name: value
        for name in _FURTHER
        if (value := getattr(draft, name)) != getattr(_USUAL, name) and value is not None
    }
    fields = {
        "from": draft.from_agent,
        "to": draft.to_agent,
        "action": draft.type,
        **beside,
        "timestamp": timestamp,
        "payload": msgspec.Raw(draft.payload_json.encode()),
        "id": id,
        **further,
    }
    data = msgspec.json.encode(fields)
    # over several lines it is easier to read, and at the worst a hundred times as long
    return (msgspec.json.format(data, indent=2) if len(data) <= SPREAD_BYTES else data) + b"\n"


def read_file(tree: Tree, path: str, most_bytes: int, *, merge: bool) -> Body:
    """The fields of a message's file. Raises FileNotFoundError, or Unreadable with the reason."""
    try:
        data = tree.read(path, most_bytes)
    except NotAFile as error:
        raise Unreadable(str(error.strerror)) from error
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"it is not JSON ({error})" if data.strip() else "it is empty") from None
    if not isinstance(fields, dict):
        raise Unreadable(f"it must be a JSON object, not {type(fields).__name__}")
    return Body(fields, merge=merge)


def draft_of(body: Body, file: str, to_agent: str | None, channel: str | None, config: Any) -> Draft:
    """The draft of a file that somebody dropped for an agent, or in a channel. Raises Unreadable, with every fault."""
    fields = body.fields
    given = {name: fields[name] for name in _FURTHER if fields.get(name) is not None}
    given.setdefault("max_deliveries", config.max_deliveries)
    if to_agent is None:
        given["channel"] = channel or DEFAULT_CHANNEL
    draft = Draft(
        from_agent=fields.get("from") or UNKNOWN_SENDER,
        payload=body.payload(),
        to_agent=to_agent,
        type=fields.get("action") or action_of(file),
        **given,
    )
    try:
        _check_kinds(draft)
        check(draft, config.max_payload_bytes)
    except InvalidMessage as error:
        raise Unreadable("; ".join(str(fault) for fault in error.faults)) from None
    draft.lane = "agent"  # a dropped file proves nobody: the human lane needs a token or the web page
    return draft


def _check_kinds(draft: Draft) -> None:
    """What `check` takes for granted, since agents' drafts are made by our own code."""
    for name in ("hop_count", "max_deliveries"):
        value = getattr(draft, name)
        if type(value) is not int or not 0 <= value < 2**31:
            raise InvalidMessage(name, f"must be a whole number, 0 or more, not {value!r}")
    if type(draft.delay_s) not in (int, float):
        raise InvalidMessage("delay_s", f"must be a number of seconds, not {type(draft.delay_s).__name__}")
    for name in ("answer_to", "replay_of", "lane"):
        value = getattr(draft, name)
        if value is not None and not isinstance(value, str):
            raise InvalidMessage(name, f"must be text, not {type(value).__name__}")
    if draft.max_deliveries < 1:
        raise InvalidMessage("max_deliveries", "must be 1 or more")


def timestamp_ms_of(body: Body, otherwise_ms: int) -> int:
    """When a file says that it was written, as far as that can be believed."""
    said = body.fields.get("timestamp")
    try:
        ms = from_iso(said) if isinstance(said, str) else otherwise_ms
    except (ValueError, OverflowError):
        return otherwise_ms
    return ms if math.isfinite(ms) and 0 <= ms < 2**47 else otherwise_ms
