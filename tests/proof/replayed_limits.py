"""Traces of limits and pauses (spec/limits.pml), through the contract of stores.

Each trace has a channel of its own, whose limits it takes away when it is over. A rate of one claim in each tick.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from postroom.core.message import Draft, check
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import LIMITS
from postroom.stores.gates import ChannelLimits, LimitRule, Limits, Paused, limits_cell, parse_limits

from .replayed_messages import TICK_S, MessageReplay, Step

PAUSED = Paused("the keeper", 0)


class LimitReplay(MessageReplay):
    """One trace of limits.pml, in a channel and with agents of its own."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self.rule = LimitRule()
        self.paused: Paused | None = None

    def send(self, step: Step) -> None:
        draft = Draft(
            from_agent="a sender",
            to_agent=None,
            channel=self.name,
            payload={"number": step.message},
            max_deliveries=2,
        )
        self.ids += self.store.put([check(draft)])
        assert len(self.ids) == step.message + 1

    def extend(self, step: Step) -> None:
        super().extend(step)
        if (
            self.rule.concurrent is not None
        ):  # which writes down what time did to the others; on NATS only where it must
            self.write_down()

    def limit(self, step: Step) -> None:
        if step.how in ("pause", "resume"):
            self.paused = PAUSED if step.how == "pause" else None
        elif step.how in ("slow", "quick"):
            self.rule = replace(self.rule, per_s=1 / TICK_S if step.how == "slow" else None)
        else:
            self.rule = replace(self.rule, concurrent={"one": 1, "two": 2, "any": None}[step.how])
        self.write(ChannelLimits((self.rule,), paused=self.paused))

    def write(self, limits: ChannelLimits | None) -> None:
        def change(value: Any) -> Any:
            others = {name: each for name, each in parse_limits(value).channels.items() if name != self.name}
            return limits_cell(Limits(others if limits is None else others | {self.name: limits})) or DELETE

        update(self.store, LIMITS, change)

    def close(self) -> None:
        self.write(None)
        super().close()
