"""Which message a message is sent because of, at doors where nobody says so.

What an agent sends while it holds a message (claimed, not settled) is taken to be caused by it. So a loop of agents that
keep each other busy is one chain, its hops are counted, and the room's limit ends it. Who settles a message first and
then sends begins something new; the rate of a pair is what limits that.
"""

from __future__ import annotations

from postroom.core.message import Message

from .gateway import Gateway
from .presence import held_by


def held_cause(gateway: Gateway, agent: str, to: str | None) -> Message | None:
    """What the agent would send a message to `to` because of: what it holds from there, else the newest that it holds."""
    held = held_by(gateway, agent)
    return next((message for message in held if message.from_agent == to), next(iter(held), None))
