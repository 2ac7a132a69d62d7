"""Order keys, and messages that their senders take back, replace, or send once things are quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from postroom.testing.simulation.plans import CHANNEL

from .program import Program


def _keyed(
    program: Program, to: str, key: str, priority: int, times: tuple[float, float | None], channel: str | None
) -> None:
    delay_s, ttl_s = times
    more: dict[str, Any] = {} if channel is None else {"channel": channel}
    _sent(program, to, order_key=key, priority=priority, delay_s=delay_s, ttl_s=ttl_s, **more)


def _post_keyed(program: Program, key: str) -> None:
    _sent(program, None, order_key=key, channel=CHANNEL)


def _many_keyed(program: Program, to: str, key: str) -> None:
    drafts = [{"to": to, "payload": program.payload(), "order_key": key} for _ in range(3)]
    program.sent += [str(sent) for sent in program.agent().send_many(drafts)]


def _debounced(program: Program, to: str, key: str, debounce_s: float) -> None:
    _sent(program, to, order_key=key, debounce_s=debounce_s)


def _replace(program: Program, to: str, key: str | None, place: int) -> None:
    """Send a message in the place of an earlier one, or a first one."""
    _sent(program, to, order_key=key, replaces=_earlier(program, place))


def _withdraw(program: Program, place: int) -> None:
    """Take back one of the latest messages of this process, which may be with a receiver or over."""
    id = _earlier(program, place)
    if id is not None:
        program.agent().withdraw(id, "simulated")


def _sent(program: Program, to: str | None, **terms: Any) -> None:
    program.sent.append(str(program.agent().send(to, program.payload(), **terms)))


def _earlier(program: Program, place: int) -> str | None:
    return program.sent[-place] if len(program.sent) >= place else None


OPERATIONS: Final[dict[str, Callable[..., None]]] = {
    "keyed": _keyed,
    "post keyed": _post_keyed,
    "many keyed": _many_keyed,
    "debounced": _debounced,
    "replace": _replace,
    "withdraw": _withdraw,
}
