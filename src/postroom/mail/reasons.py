"""Why a message is where it is, and until when: what a receipt's events do not say by themselves.

The command line, the page and programs ask this one function. A module of its own, so that it is deferred: a sender asks
for no reasons.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from postroom.core.clock import iso, span_text
from postroom.core.message import MessageWithLedger
from postroom.core.near import near_ones
from postroom.core.states import State
from postroom.core.untrusted import quoted
from postroom.stores.contract import Query

from . import limiting, presence
from .gateway import Gateway

#: So many messages are looked at, to count those before one and to know which channels are in use.
_LOOKED_AT: Final = 1000

#: What an agent's status means to mail for it, when no process has the agent open.
_AWAY: Final = {
    presence.STOPPED: "has stopped",
    presence.GONE: "is gone: its process died",
    presence.SEEN: "has no waiting process; it takes its mail with commands",
}


class Reason(NamedTuple):
    """Why a message is where it is.

    `kind`: not_due, retry, held, held_for_asker, blocked, paused, limited, unknown_recipient, not_running, in_line,
    untaken_channel, in_channel or ended. `until`: when that ends on its own, as ISO 8601 text; None when only an action can end it. `near`: names
    that were perhaps meant. `text` says all of it in one sentence, in which the names and words of others stand.
    """

    kind: str  # one of those words
    text: str  # the whole reason as a sentence
    until: str | None = None  # when that ends on its own
    near: tuple[str, ...] = ()  # names that were perhaps meant


def why(gateway: Gateway, message: MessageWithLedger) -> Reason:
    """Why a message that was read with its ledger is where it is. Changes nothing."""
    state = message.exact_state
    if state is State.DELAYED:
        found = _later(gateway, message)
    elif state is State.CLAIMED:
        until = message.lease_until_ms
        text = f"{_name(message.claimed_by)} holds it{_at(gateway, until)}; {_deliveries(message)}"
        found = Reason("held", text, None if until is None else iso(until))
    elif state is State.AWAITED:
        found = Reason("held_for_asker", f"it is an answer, held for {_name(message.to_agent)}, which waits for it")
    elif state is State.BLOCKED:
        found = Reason("blocked", f"another message with the order key {quoted(message.order_key or '')} comes first")
    elif state is not State.READY:
        return Reason("ended", _end_of(message))
    elif (kept := limiting.held_back(gateway.store, message)) is not None:
        found = Reason(*kept)
    elif message.to_agent is None:
        found = _in_channel(gateway, message)
    else:
        found = _for_agent(gateway, message, message.to_agent)
    if message.expires_at_ms is None or state is State.AWAITED:
        return found
    return found._replace(text=f"{found.text}; it expires{_at(gateway, message.expires_at_ms, 'at')}")


def _name(agent: str | None) -> str:
    return "nobody" if agent is None else quoted(agent)


def _at(gateway: Gateway, moment_ms: int | None, word: str = "until") -> str:
    if moment_ms is None:
        return ""
    return f" {word} {iso(moment_ms)} (in {span_text(moment_ms - gateway.clock.wall_ms())})"


def _deliveries(message: MessageWithLedger) -> str:
    return f"delivery {message.delivery_count} of {message.max_deliveries}"


def _later(gateway: Gateway, message: MessageWithLedger) -> Reason:
    until = None if message.due_ms is None else iso(message.due_ms)
    if not message.delivery_count:
        return Reason("not_due", f"it is not due{_at(gateway, message.due_ms)}", until)
    failed = next((entry for entry in reversed(message.ledger) if entry.event == "retried"), None)
    by = f" by {_name(failed.agent)}" if failed else ""
    error = f": {message.error}" if message.error else ""
    text = f"{_deliveries(message)} failed{by}{error}; it will be delivered again{_at(gateway, message.due_ms, 'at')}"
    return Reason("retry", text, until)


def _end_of(message: MessageWithLedger) -> str:
    last = next((entry for entry in reversed(message.ledger) if entry.event == message.state), None)
    by = f" by {_name(last.agent)}" if last is not None and last.agent is not None else ""
    at = f" at {iso(last.time_ms)}" if last is not None else ""
    if message.exact_state is State.EXPIRED:
        ended = "" if message.expires_at is None else f" at {message.expires_at}"
        return f"its time to live ended{ended}, before a receiver finished it"
    if message.exact_state is State.DEAD:
        error = f": {message.error}" if message.error else ""
        return f"set aside after {_deliveries(message)}{by}{at}{error}; `postroom requeue` puts it back"
    said = f": {message.error}" if message.exact_state is State.REFUSED and message.error else ""
    return f"{message.state}{by}{at}{said}"


def _for_agent(gateway: Gateway, message: MessageWithLedger, to: str) -> Reason:
    known = presence.look(gateway, to)
    if known is None and not presence.is_known(gateway, to):
        near = near_ones(to, presence.names(gateway))
        return Reason("unknown_recipient", f"{quoted(to)} has not joined this room yet{_or(near)}", near=near)
    running = False if known is None else presence.is_running(gateway, known)
    if known is not None and running:
        return Reason("in_line", f"{_name(to)} runs; {_place(gateway, message, to)}")
    if known is None:
        how = "is known but has never joined this room"
    else:
        status = presence.GONE if known["processes"] and running is False else known["status"]
        how = f"{_AWAY.get(status, 'is not running')} (last seen {iso(presence.last_heard(gateway, known)['heartbeat_ms'])})"
    return Reason("not_running", f"{_name(to)} {how}")


def _place(gateway: Gateway, message: MessageWithLedger, to: str) -> str:
    query = Query(states=frozenset({State.READY}), visible_to=to, order="claim", limit=_LOOKED_AT)
    line = [each.id for each in gateway.store.find(query).messages]
    before = line.index(message.id) if message.id in line else len(line)
    if not before:
        return "this message is its next"
    more = "or more " if before >= _LOOKED_AT else ""
    return f"{before} {more}message{'s come' if before > 1 else ' comes'} before this one"


def _in_channel(gateway: Gateway, message: MessageWithLedger) -> Reason:
    channel = message.channel
    lately = gateway.store.find(Query(order="newest", limit=_LOOKED_AT)).messages
    taken = {each.channel for each in lately if each.claimed_by is not None}
    if channel not in taken:  # perhaps long ago
        here = gateway.store.find(Query(channels=(channel,), limit=_LOOKED_AT)).messages
        taken |= {channel} if any(each.claimed_by is not None for each in here) else set()
    if channel in taken:
        return Reason("in_channel", f"it is for the first agent to receive from channel {quoted(channel)}")
    near = near_ones(channel, taken)
    text = f"no agent has received from channel {quoted(channel)} so far{_or(near)}"
    return Reason("untaken_channel", text, near=near)


def _or(near: tuple[str, ...]) -> str:
    return f"; similar names: {', '.join(map(quoted, near))}" if near else ""
