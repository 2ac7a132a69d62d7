"""A message as evaluators get it, whether it comes from a room or from a caller as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroom.core.message import Message
from postroom.errors import InvalidMessage
from postroom.mail.received import Envelope


def as_message(message: Mapping[str, Any] | Message | Envelope) -> dict[str, Any]:
    """Its envelope (or the caller's dict, whose own fields stay), with `content` and `sender_id` as evaluators say.

    `content` is the payload's text, or the whole payload as JSON text. Raises InvalidMessage when it is no message.
    """
    if isinstance(message, Message | Envelope):
        plain = message.to_dict()
    elif isinstance(message, Mapping):
        plain = dict(message)
    else:
        raise InvalidMessage("message", f"must be a message or a dict, not {type(message).__name__}")
    if not isinstance(plain.get("id"), str) or not plain["id"]:
        raise InvalidMessage("message.id", f"must be text, not {plain.get('id')!r}")
    if type(plain.get("hop_count", 0)) is not int:
        raise InvalidMessage("message.hop_count", f"must be a whole number, not {plain['hop_count']!r}")
    payload = plain.get("payload")
    if "content" not in plain and isinstance(payload, Mapping):
        text = payload.get("text", payload.get("content"))
        plain["content"] = text if isinstance(text, str) else json.dumps(payload, ensure_ascii=False, default=str)
    if plain.get("sender_id") is None and plain.get("from_agent") is not None:
        plain["sender_id"] = plain["from_agent"]
    return plain
