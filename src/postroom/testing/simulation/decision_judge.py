"""The judge of coordinators: one decision for each message, which stands, and whose it was to make."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from postroom.pools.decide import Decision, Trigger
from postroom.pools.decision_store import PREFIX

from .broken import Broken
from .process import Around, Process

#: What may be added to a decision that stands, and what each coordinator says for itself.
_BESIDE: Final = ("late", "made_here")


class DecisionJudge:
    """Sees every write of a decision's cell, and every decision that a coordinator returned."""

    def __init__(self, world: Around, is_gone: Callable[[str], bool]) -> None:
        self._world = world
        self._is_gone = is_gone  # of a process by its name: whether others may take it for that
        self._cells: dict[str, dict[str, Any]] = {}
        self._made: dict[str, Process] = {}  # the coordinator that acts on the decision
        #: The messages that somebody began to consider.
        self.considered: set[str] = set()

    def cell_written(self, process: Process, name: str, value: Any) -> None:
        """The cell of a decision was written, or deleted."""
        id = name.removeprefix(PREFIX)
        before = self._cells.get(id)
        if before is not None and before["decision"] is not None:
            stands = _plain(before["decision"])
            if value is None or value["decision"] is None or _plain(value["decision"]) != stands:
                raise Broken(f"{process!r} wrote over the decision on {id}")
            if len(value["decision"]["late"]) < len(before["decision"]["late"]):
                raise Broken(f"{process!r} wrote over what came late to the decision on {id}")
        elif before is not None and value is not None and value["owner"] != before["owner"]:
            self._judge_take_over(process, id, before)
        if value is None:
            self._cells.pop(id, None)
            return
        self.considered.add(id)
        self._cells[id] = value
        if value["decision"] is not None and (before is None or before["decision"] is None):
            self._world.tell(process, f"decides on {id}: {', '.join(value['decision']['granted']) or 'nobody'}")

    def goes_on_from(self, cells: dict[str, Any]) -> None:
        """A power cut has ended all processes, and these cells are left."""
        kept = {name.removeprefix(PREFIX): value for name, value in cells.items() if name.startswith(PREFIX)}
        self._cells = kept
        self._made.clear()
        self.considered &= kept.keys()

    def _judge_take_over(self, process: Process, id: str, before: dict[str, Any]) -> None:
        is_gone = self._is_gone(before["owner"])
        if not is_gone and self._world.clock.steady_ns() <= before["steady"][1]:
            raise Broken(f"{process!r} took the decision on {id} from one that was at it")
        self._world.happened("a decision was taken over")

    def returned(self, process: Process, decision: Decision, hops: int, max_hops: int) -> None:
        """A coordinator returned a decision on a message with so many hops behind it."""
        id = decision.message_id
        if not decision.closed:
            raise Broken(f"{process!r} returned an open decision on {id}")
        cell = self._cells.get(id)
        if cell is None or cell["decision"] is None or _plain(cell["decision"]) != _plain(decision.to_dict()):
            raise Broken(f"{process!r} returned another decision on {id} than the one that stands")
        if decision.made_here and self._made.setdefault(id, process) is not process:
            raise Broken(f"{process!r} acts on the decision on {id}, and so does {self._made[id]!r}")
        if (decision.trigger is Trigger.HOP_CAP) != (hops >= max_hops) or (hops >= max_hops and decision.granted):
            raise Broken(f"a message with {hops} of at most {max_hops} hops was decided by {decision.trigger}")
        for name, outcome in decision.outcomes.items():
            if outcome.granted != (name in decision.granted) or (not outcome.granted and outcome.reason is None):
                raise Broken(f"{name} was not granted an answer to {id}, and no reason is told")
        self._world.happened("a decision was made" if decision.made_here else "a decision of another was found")


def _plain(decision: dict[str, Any]) -> dict[str, Any]:
    """What stands of a decision, as a cell gives it back."""
    plain: dict[str, Any] = json.loads(json.dumps({name: v for name, v in decision.items() if name not in _BESIDE}))
    return plain
