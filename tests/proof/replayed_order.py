"""Traces of order keys and withdrawing (spec/order.pml), through the contract of stores.

All messages of a trace are of one sender in one mailbox, and but for the free ones of one order key.
"""

from __future__ import annotations

from typing import Any

from postroom.core.message import Draft, check

from .replayed_messages import DELAY_S, LIFE_S, MessageReplay, Step

KEY = "the key"


class OrderReplay(MessageReplay):
    """One trace of order.pml, in a channel and with agents of its own."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self.sender = f"{self.name}-sender"

    def shows(self, seen: str) -> set[str]:
        if self.sweeps and seen == "blocked":
            return {"ready", "delayed"}  # there a message's place in its line alone says that it is blocked
        return super().shows(seen)

    def send(self, step: Step) -> None:
        draft = Draft(
            from_agent=self.sender,
            to_agent=None,
            channel=self.name,
            payload={"number": step.message},
            max_deliveries=1 if step.how == "fragile" else 2,
            ttl_s=LIFE_S if step.how == "brief" else None,
            delay_s=DELAY_S if step.how in ("later", "debounced") else 0,
            order_key=None if step.how == "free" else KEY,
            replaces=self.ids[-1] if step.how == "replacing" else None,
            debounce=step.how == "debounced",
        )
        self.ids += self.store.put([check(draft)])
        assert len(self.ids) == step.message + 1
        if step.how in ("replacing", "debounced"):
            self.write_down()

    def claim(self, step: Step) -> None:
        self.write_down()  # else a claim there may give a message of no key before one whose turn has come by time alone
        super().claim(step)

    def withdraw(self, step: Step) -> None:
        id = self.ids[step.message]
        done = self.store.withdraw([id], self.sender if step.how == "own" else "a stranger")
        assert done == ([id] if step.done else []), f"withdrawing gave {done}"
        self.write_down()
