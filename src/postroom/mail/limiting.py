"""Limits, pauses and back-pressure, as users set them: one cell of the room, which the stores go by (`stores/gates.py`)."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from postroom.core.clock import iso
from postroom.core.message import Draft, Message, check_name
from postroom.core.states import State
from postroom.core.untrusted import quoted
from postroom.errors import Fault, InvalidMessage, MailboxFull, RoomError, raise_faults
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import BUCKETS, LIMITS, Query, Store, topic_space
from postroom.stores.gates import BY, ChannelLimits, Gates, Group, LimitRule, Limits, Paused, limits_cell, parse_limits

from .gateway import Deadline, Gateway, Pause, Steps
from .received import check_names, check_seconds, words

#: So many channels of a room have limits or are paused, and so many agents are paused, at most.
MAX_LIMITED: Final = 1000
_MAX_COUNT: Final = 2**31 - 1
#: Rates are from one in four months to a million a second.
_MIN_PER_S: Final = 1e-7
_MAX_PER_S: Final = 1e6
_PAGE: Final = 500


class LimitedChannel(msgspec.Struct, frozen=True):
    """A channel that has limits or is paused, and how many of its messages are claimed at this moment."""

    channel: str  # its name
    rules: tuple[LimitRule, ...]  # the limits on taking
    waiting: int | None  # so many messages may wait in each of its mailboxes; None: any number
    pass_failed: bool  # whether a failed message with an order key is set aside at once
    paused: Paused | None  # the pause; None while it is not paused
    running: int  # how many messages are claimed, answers left out

    def allowed(self) -> int | None:
        """So many of its messages may be claimed at once, those of all senders together; None: any number."""
        return next((rule.concurrent for rule in self.rules if rule.by is None), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the time of a pause as ISO 8601 text."""
        rules = [{name: getattr(rule, name) for name in rule.__struct_fields__} for rule in self.rules]
        own = {name: getattr(self, name) for name in ("channel", "waiting", "pass_failed", "running")}
        return own | {"rules": rules, "paused": pause_dict(self.paused)}


class RoomLimits(msgspec.Struct, frozen=True):
    """Everything that limits a room at this moment."""

    channels: tuple[LimitedChannel, ...] = ()  # in the order of their names
    agents: dict[str, Paused] = {}  # the agents that are paused

    def __bool__(self) -> bool:
        return bool(self.channels or self.agents)

    def pause_of(self, channel: str | None, agent: str | None) -> Paused | None:
        """The pause of an agent, or else of a channel; None while it is not paused."""
        if agent is not None:
            return self.agents.get(agent)
        return next((each.paused for each in self.channels if each.channel == channel), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the times of pauses as ISO 8601 text."""
        agents = [{"agent": name, "paused": pause_dict(paused)} for name, paused in self.agents.items()]
        return {"channels": [each.to_dict() for each in self.channels], "agents": agents}


class LimitChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call of `room.limit` names; what it does not name stays as it was."""

    by: str | None = None
    concurrent: int | None = None
    per_s: float | None = None
    burst: int | None = None
    waiting: int | None = None
    pass_failed: bool | None = None


def look(store: Store) -> RoomLimits:
    """The limits and pauses of a room, with what runs. Changes nothing."""
    limits = _read(store)
    channels = tuple(
        LimitedChannel(name, each.rules, each.waiting, each.pass_failed, each.paused, len(_groups_running(store, name)))
        for name, each in sorted(limits.channels.items())
    )
    return RoomLimits(channels, dict(sorted(limits.agents.items())))


def _read(store: Store) -> Limits:
    cell = store.cell_read(LIMITS)
    return parse_limits(None if cell is None else cell.value)


def _groups_running(store: Store, channel: str) -> list[Group]:
    """What is claimed in a channel, answers left out."""
    claimed = store.find_all(Query(channels=(channel,), states=frozenset({State.CLAIMED}), limit=_PAGE))
    return [Group(each.from_agent, each.order_key) for each in claimed if each.answer_to is None]


def limit(store: Store, channel: str, asked: LimitChange) -> None:
    """Set what the asked names for a channel. Raises InvalidMessage with everything that is wrong; nothing was changed."""
    _check(channel, asked)

    def change(limits: Limits) -> Limits:
        return _with_channel(limits, channel, _limited(limits.channels.get(channel, ChannelLimits()), asked))

    _update(store, change)


def _limited(before: ChannelLimits, asked: LimitChange) -> ChannelLimits:
    rules = {rule.by: rule for rule in before.rules}
    rule = rules.get(asked.by, LimitRule(asked.by))
    given = {name: value for name in ("concurrent", "per_s", "burst") if (value := getattr(asked, name)) is not None}
    if given:
        rule = rules[asked.by] = replace(rule, **given)
        if rule.per_s is None and asked.burst is not None:
            raise InvalidMessage("burst", "goes with a rate: name per_s too")
    return replace(
        before,
        rules=tuple(rules.values()),
        waiting=before.waiting if asked.waiting is None else asked.waiting,
        pass_failed=before.pass_failed if asked.pass_failed is None else asked.pass_failed,
    )


def _check(channel: object, asked: LimitChange) -> None:
    faults: list[Fault] = []
    check_name("channel", channel, faults)
    if asked.by is not None and asked.by not in BY:
        faults.append(Fault("by", f"must be {' or '.join(BY)}, not {asked.by!r}"))
    for name in ("concurrent", "burst", "waiting"):
        value = getattr(asked, name)
        if value is not None and (type(value) is not int or not 1 <= value <= _MAX_COUNT):
            faults.append(Fault(name, f"must be a whole number from 1 to {_MAX_COUNT}, not {value!r}"))
    rate: Any = asked.per_s
    if rate is not None and (type(rate) not in (int, float) or not _MIN_PER_S <= rate <= _MAX_PER_S):
        faults.append(Fault("per_s", f"must be a number from {_MIN_PER_S:g} to {_MAX_PER_S:.0f}, not {rate!r}"))
    passing: Any = asked.pass_failed
    if passing is not None and type(passing) is not bool:
        faults.append(Fault("pass_failed", f"must be True or False, not {asked.pass_failed!r}"))
    if asked == LimitChange(by=asked.by):
        faults.append(Fault("limit", "must name at least one of: concurrent, per_s, waiting, pass_failed"))
    elif asked.by is not None and asked.concurrent is None and asked.per_s is None and asked.burst is None:
        faults.append(Fault("by", "goes with concurrent or per_s: a mailbox is full for all senders alike"))
    raise_faults(faults)


def unlimit(store: Store, channel: str) -> bool:
    """Take all limits of a channel away; a pause stays. Returns whether there were any."""
    check_names(channel=channel)
    found = False

    def change(limits: Limits) -> Limits:
        nonlocal found
        before = limits.channels.get(channel, ChannelLimits())
        after = ChannelLimits(paused=before.paused)
        found = after != before
        return _with_channel(limits, channel, after)

    _update(store, change)
    return found


def pause(store: Store, channel: str | None, agent: str | None, reason: str | None, by: str | None) -> bool:
    """Pause a channel or an agent. Returns whether it was not paused before; its reason is the new one in any case."""
    _check_one(channel, agent)
    since_ms = store.clock.wall_ms()
    paused = Paused(system_user() if by is None else by, since_ms, None if reason is None else words("reason", reason))
    check_names(by=paused.by)
    return _change_pause(store, channel, agent, paused) is None


def resume(store: Store, channel: str | None, agent: str | None) -> bool:
    """End a pause. Returns whether there was one."""
    _check_one(channel, agent)
    return _change_pause(store, channel, agent, None) is not None


def follow_name(store: Store, old: str, new: str | None) -> bool:
    """The pause of an agent goes with it to another name; None: it ends. Returns whether it was paused."""
    if not store.limits or old not in _read(store).agents:
        return False

    def change(limits: Limits) -> Limits:
        agents = dict(limits.agents)
        paused = agents.pop(old, None)
        if new is not None and paused is not None:
            agents[new] = paused
        return replace(limits, agents=agents)

    _update(store, change)
    return True


def _change_pause(store: Store, channel: str | None, agent: str | None, paused: Paused | None) -> Paused | None:
    """Set or end a pause; the one that there was before."""
    before: Paused | None = None

    def change(limits: Limits) -> Limits:
        nonlocal before
        if channel is not None:
            of_channel = limits.channels.get(channel, ChannelLimits())
            before = of_channel.paused
            return _with_channel(limits, channel, replace(of_channel, paused=paused))
        name = str(agent)
        before = limits.agents.get(name)
        agents = {other: pause for other, pause in limits.agents.items() if other != name}
        if paused is not None:
            agents[name] = paused
        return replace(limits, agents=_not_too_many("agent", agents))

    _update(store, change)
    return before


def _with_channel(limits: Limits, channel: str, changed: ChannelLimits) -> Limits:
    channels = {name: each for name, each in limits.channels.items() if name != channel}
    if changed != ChannelLimits():
        channels[channel] = changed
    return replace(limits, channels=_not_too_many("channel", channels))


def _not_too_many(field: str, named: dict[str, Any]) -> dict[str, Any]:
    if len(named) > MAX_LIMITED:
        raise InvalidMessage(field, f"at most {MAX_LIMITED} of a room are limited or paused at once")
    return named


def _update(store: Store, change: Callable[[Limits], Limits]) -> None:
    if not store.limits:
        raise RoomError("the store of this room keeps no limits and no pauses; nothing was changed")

    def changed(value: Any) -> Any:
        before = parse_limits(value)
        after = change(before)
        return None if after == before else limits_cell(after, value) or DELETE

    update(store, LIMITS, changed)


def _check_one(channel: str | None, agent: str | None) -> None:
    if (channel is None) == (agent is None):
        raise InvalidMessage("channel", "must be given, or agent, and not both")
    check_names(**{"channel": channel} if agent is None else {"agent": agent})


def system_user() -> str:
    """The name of the system's user that runs this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in many containers
        return f"user {os.getuid()}"


# What follows from limits


def rule_text(rule: LimitRule) -> str:
    """A limit on taking in words: "4 at once for each sender"."""
    parts = [] if rule.concurrent is None else [f"{rule.concurrent} at once"]
    if rule.per_s is not None:
        parts.append(f"{rule.per_s:g} a second" + (f" in bursts of {rule.burst}" if rule.burst > 1 else ""))
    groups = {"sender": " for each sender", "order_key": " for each order key"}
    return " and ".join(parts) + groups.get(rule.by or "", "")


def limits_text(each: LimitedChannel) -> str:
    """All limits of a channel in words; "" when it is only paused."""
    parts = [rule_text(rule) for rule in each.rules]
    if each.waiting is not None:
        parts.append(f"{each.waiting} waiting in each mailbox")
    if each.pass_failed:
        parts.append("failed messages with an order key are passed")
    return "; ".join(parts)


def running_text(each: LimitedChannel) -> str:
    """What runs, of what is allowed: "3 of 4"."""
    allowed = each.allowed()
    return str(each.running) if allowed is None else f"{each.running} of {allowed}"


def pause_dict(paused: Paused | None) -> dict[str, Any] | None:
    """A pause as JSON."""
    return None if paused is None else {"by": paused.by, "since": iso(paused.since_ms), "reason": paused.reason}


def pause_text(paused: Paused) -> str:
    """A pause in words: by whom, since when, and why."""
    reason = "" if paused.reason is None else f": {paused.reason}"
    return f"paused by {quoted(paused.by)} at {iso(paused.since_ms)}{reason}"


def held_back(store: Store, message: Message) -> tuple[str, str] | None:
    """Whether a pause or a limit keeps a message that is ready: "paused" or "limited", and a sentence; None: neither."""
    limits = _read(store)
    if message.to_agent is not None and message.to_agent in limits.agents:
        return "paused", f"{quoted(message.to_agent)} is {pause_text(limits.agents[message.to_agent])}"
    of_channel = limits.channels.get(message.channel)
    if of_channel is None:
        return None
    if of_channel.paused is not None:
        return "paused", f"channel {quoted(message.channel)} is {pause_text(of_channel.paused)}"
    gates = Gates(
        limits, store.room_ms(), lambda channel: _groups_running(store, channel), lambda name: _value(store, name)
    )
    if gates.lets_pass(message.channel, Group(message.from_agent, message.order_key)):
        return None
    allowed = "; ".join(map(rule_text, of_channel.rules))
    return "limited", f"channel {quoted(message.channel)} lets no more pass at this moment; it allows {allowed}"


def _value(store: Store, name: str) -> Any:
    cell = store.cell_read(name)
    return None if cell is None else cell.value


def putting(gateway: Gateway, drafts: Sequence[Draft], full_wait_s: float | None) -> Steps[list[str]]:
    """Store messages, waiting up to so long (None: for ever) for space in a mailbox that is full. Their ids.

    Raises MailboxFull when there was none in time: nothing was stored.
    """
    if full_wait_s is not None:
        check_seconds("full_wait_s", full_wait_s)
    deadline = Deadline(gateway.clock, full_wait_s)
    try:
        return gateway.put(drafts)
    except MailboxFull:
        if full_wait_s == 0:
            raise
    with gateway.listen(map(topic_space, {draft.channel for draft in drafts})) as waiter:
        while True:
            try:
                return gateway.put(drafts, limited=False)  # the sender's rate has counted them
            except MailboxFull:
                left_s = deadline.left_s()
                if left_s == 0:
                    raise
            yield Pause(waiter, left_s)


def sending(gateway: Gateway, draft: Draft, full_wait_s: float | None) -> Steps[str]:
    """The same for one message that goes to one mailbox."""
    (id,) = yield from putting(gateway, [draft], full_wait_s)
    return id


def forget_full_buckets(store: Store) -> int:
    """Delete the cells of token buckets that are full again: they say nothing that no cell does not say. How many."""
    now_ms, deleted = store.room_ms(), 0
    for cell in store.cell_scan(f"{BUCKETS}/"):
        full = isinstance(cell.value, (int, float)) and cell.value <= now_ms
        if full and store.cell_write(cell.name, None, expect=cell.version) is not None:
            deleted += 1
    return deleted
