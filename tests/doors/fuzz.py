"""Frames that no client should send: broken JSON-RPC, made from whole requests by chance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from .served import envelope

_TOOLS = ("send", "inbox", "ack", "reply", "ask", "board", "who", "receipt", "", "nonsense", "__class__")
_METHODS = (
    *("tools/call", "tools/list", "resources/list", "resources/read", "initialize", "ping", "server/discover"),
    *("notifications/cancelled", "notifications/initialized", "prompts/list", "completion/complete", "x", ""),
    *("resources/subscribe", "logging/setLevel", "resources/templates/list", "notifications/progress"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, 2**63, -(2**70), 1e308, "", "x", "a" * 300, "\u202e", "\x00", "\ud83d\ude00"),
    *([], {}, [[]], {"": {}}, ["x"] * 60, {"a": {"b": {"c": []}}}, "../../etc/passwd", "; DROP TABLE messages", "%s%n"),
)
_NAMES = ("to", "body", "id", "ids", "mode", "limit", "wait_s", "offset", "action", "from", "priority", "data", "_", "")


def frames(seed: int, count: int) -> Iterator[bytes]:
    """So many frames without a line break in them."""
    chance = random.Random(seed)
    for _ in range(count):
        frame = _frame(chance)
        yield frame.replace(b"\n", b" ").replace(b"\r", b" ")


def _frame(chance: random.Random) -> bytes:
    request = _request(chance)
    text = json.dumps(request).encode()
    kind = chance.randrange(10)
    if kind == 0:  # cut somewhere
        return text[: chance.randrange(len(text))]
    if kind == 1:  # some bytes are others
        wrong = bytearray(text)
        for _ in range(chance.randrange(1, 5)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        return bytes(wrong)
    if kind == 2:  # not JSON-RPC at all
        return json.dumps(chance.choice(_VALUES)).encode()
    if kind == 3:  # deep
        return b"[" * chance.randrange(2000) + text
    return text


def _request(chance: random.Random) -> Any:
    arguments: Any = {chance.choice(_NAMES): chance.choice(_VALUES) for _ in range(chance.randrange(4))}
    arguments.pop("wait_s", None)  # a frame that asks to wait may wait: that is no fault
    method = chance.choice(_METHODS) if chance.random() < 0.4 else "tools/call"
    request = envelope(method, {"name": chance.choice(_TOOLS), "arguments": arguments}, chance.randrange(5))
    if arguments.get("to") and chance.random() < 0.9:
        arguments["to"] = "nobody"
    for _ in range(chance.randrange(3)):
        _spoil(chance, request)
    return [request] * chance.randrange(3) if chance.random() < 0.05 else request


def _spoil(chance: random.Random, request: dict[str, Any]) -> None:
    place = chance.choice([request, request.get("params")])
    if not isinstance(place, dict) or not place:
        return
    name = chance.choice(list(place))
    if chance.random() < 0.5:
        place[name] = deepcopy(chance.choice(_VALUES))  # it may be spoiled next, and even be put into itself
    else:
        del place[name]
