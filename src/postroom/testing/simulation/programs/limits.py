"""Limits and pauses: operators that set them, workers that share a channel, and senders that find it full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from postroom.core.config import LEASE_S
from postroom.core.states import State
from postroom.stores import cells
from postroom.stores.contract import LIMITS, Query, Want
from postroom.stores.gates import ChannelLimits, LimitRule, Limits, Paused, limits_cell
from postroom.testing.simulation.plans import CHANNEL
from postroom.testing.simulation.store import SimulatedStore

from .mail import end_message
from .program import Program

_LIMITS: Final[dict[str, ChannelLimits]] = {
    "one at once": ChannelLimits((LimitRule(concurrent=1),)),
    "two at once": ChannelLimits((LimitRule(concurrent=2),)),
    "one of each sender": ChannelLimits((LimitRule(by="sender", concurrent=1),)),
    "one of each key": ChannelLimits((LimitRule(by="order_key", concurrent=1), LimitRule(concurrent=2))),
    "one a second": ChannelLimits((LimitRule(per_s=1.0),)),
    "one in two seconds, or three": ChannelLimits((LimitRule(per_s=0.5, burst=3),)),
    "two a second of each sender": ChannelLimits((LimitRule(by="sender", per_s=2.0, burst=2),)),
    "one a second, and three in five": ChannelLimits((LimitRule(per_s=1.0), LimitRule(per_s=0.2, burst=3))),
    "one a second, two at once": ChannelLimits((LimitRule(concurrent=2, per_s=1.0, burst=2),)),
    "two wait": ChannelLimits(waiting=2),
    "no limit": ChannelLimits(),
}
_PAUSED: Final = Paused("operator", 0, "simulated")


def _change(program: Program, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the limits by compare-and-set; in a room that keeps none, do nothing."""
    program.agent()
    store = program.gateway.open_store
    assert isinstance(store, SimulatedStore)
    if not store.keeps_limits:
        return

    def changed(value: Any) -> Any:
        limits = {"channels": dict((value or {}).get("channels", {})), "agents": dict((value or {}).get("agents", {}))}
        change(limits)
        left = {name: part for name, part in limits.items() if part}
        return left or (None if value is None else cells.DELETE)

    cells.update(store, LIMITS, changed)


def _limit(program: Program, channel: str, name: str) -> None:
    """Give a channel other rules; its pause stays."""

    def change(limits: dict[str, Any]) -> None:
        paused = {key: said for key, said in limits["channels"].get(channel, {}).items() if key == "paused"}
        of_it = ((limits_cell(Limits({channel: _LIMITS[name]})) or {}).get("channels", {})).get(channel, {})
        limits["channels"][channel] = {**of_it, **paused}
        if not limits["channels"][channel]:
            del limits["channels"][channel]

    _change(program, change)


def _pause(program: Program, channel: str) -> None:
    def change(limits: dict[str, Any]) -> None:
        paused = limits_cell(Limits({channel: ChannelLimits(paused=_PAUSED)})) or {}
        limits["channels"][channel] = {**limits["channels"].get(channel, {}), **paused["channels"][channel]}

    _change(program, change)


def _pause_agent(program: Program, agent: str) -> None:
    def change(limits: dict[str, Any]) -> None:
        paused = limits_cell(Limits(agents={agent: _PAUSED})) or {}
        limits["agents"].update(paused["agents"])

    _change(program, change)


def resume(program: Program) -> None:
    """Let everything go on that is paused; the rules stay."""

    def change(limits: dict[str, Any]) -> None:
        limits["agents"].clear()
        rules = {
            channel: {key: said for key, said in of_it.items() if key != "paused"}
            for channel, of_it in limits["channels"].items()
        }
        limits["channels"] = {channel: of_it for channel, of_it in rules.items() if of_it}

    _change(program, change)


def _jobs(program: Program, key: str | None) -> None:
    """Three for the first that take them; a channel that has no room for all of them has none of them."""
    drafts = [{"to": None, "payload": program.payload(), "channel": CHANNEL, "order_key": key} for _ in range(3)]
    program.agent().send_many(drafts)


def _lease_at_work(program: Program, lease_s: float, hold_s: float) -> None:
    """Work on a message for as long as its lease, or longer; then ask for more time, and be done."""
    message = program.agent().receive(3.0, channels=[CHANNEL], lease_s=lease_s)
    program.clock.sleep(hold_s)
    message.extend(lease_s)
    program.clock.sleep(1.0)
    message.ack()


def _late_at_work(program: Program, hold_s: float) -> None:
    """Be late with a message that nobody else may take: others take its place, not the message."""
    agent = program.agent()
    agent.send(agent.name, program.payload(), channel=CHANNEL, priority=9)
    agent.send(None, program.payload(), channel=CHANNEL)
    _lease_at_work(program, 2.0, hold_s)


def _work_fast(program: Program, timeout_s: float, most: int) -> None:
    """Take one after the other, and be done with each at once."""
    for _ in range(most):
        end_message(program, program.agent().receive(timeout_s, channels=[CHANNEL]), "ack")


def _take_by_id(program: Program) -> None:
    """Take what lies in the channel by name, as a person does, as far as it may be taken."""
    agent = program.agent()
    store = program.gateway.open_store
    there = store.find(Query(channels=(CHANNEL,), states=frozenset({State.READY}), limit=2)).messages
    want = Want(agent=agent.name, lease_s=LEASE_S, ids=tuple(each.id for each in there), owner=program.gateway.process)
    for delivery in program.gateway.claim(want).deliveries if there else ():
        program.gateway.settle(delivery.ticket, "acked")


OPERATIONS: Final[dict[str, Callable[..., None]]] = {
    "limit": _limit,
    "pause": _pause,
    "pause agent": _pause_agent,
    "resume": resume,
    "jobs": _jobs,
    "late at work": _late_at_work,
    "lease at work": _lease_at_work,
    "work fast": _work_fast,
    "take by id": _take_by_id,
}
