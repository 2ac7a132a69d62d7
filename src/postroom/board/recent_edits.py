"""Recent edits: which agent wrote which file a short while ago, so that the next one to write it knows.

All of them lie in one cell, `edits`, because whether a file is free and that it is taken must be one step:

    {"<file>": {"<agent>": [when, until]}}      in milliseconds of the wall clock

A mark ends by its time. It says nothing about whether its agent still runs: callers ask that of presence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from postroom.core.clock import iso
from postroom.mail.gateway import Gateway
from postroom.stores.cells import DELETE, update

CELL: Final = "edits"
#: How long a file counts as edited after the last write, and as about to be written before the first.
KEPT_S: Final = 600
CLAIMED_S: Final = 60
#: So many files are remembered; the oldest are forgotten first.
MAX_FILES: Final = 500

Marks = dict[str, dict[str, list[int]]]


class Edit(NamedTuple):
    """That an agent wrote a file, or is about to."""

    file: str
    agent: str
    at_ms: int
    until_ms: int

    def to_dict(self) -> dict[str, Any]:
        """The edit as plain data; its file as it is called in its checkout."""
        file = self.file.partition("/")[2]
        return {"edited": file, "agent": self.agent, "since": iso(self.at_ms), "until": iso(self.until_ms)}


def note(gateway: Gateway, agent: str, files: Sequence[str]) -> list[Edit]:
    """The agent has written these files. Returns the edits of others that it was not yet told of by this.

    These are the ones after its own last edit of the same file: each comes once.
    """
    found: list[Edit] = []
    now_ms = gateway.clock.wall_ms()

    def change(before: Marks | None) -> Marks:
        marks = _living(before, now_ms)
        found[:] = [
            edit for file in files for edit in _others(marks, file, agent) if edit.at_ms >= _last(marks, file, agent)
        ]
        return _marked(marks, files, agent, now_ms, KEPT_S)

    update(gateway.store, CELL, change)
    return found


def take(gateway: Gateway, agent: str, files: Sequence[str], is_gone: Callable[[str], bool]) -> list[Edit]:
    """Take files that the agent is about to write, for a minute. Returns what is in the way: then nothing was taken.

    Of two agents that try at the same moment one gets the file. Agents that are gone are in nobody's way.
    """
    found: list[Edit] = []
    now_ms = gateway.clock.wall_ms()

    def change(before: Marks | None) -> Marks | None:
        marks = _living(before, now_ms)
        found[:] = [edit for file in files for edit in _others(marks, file, agent) if not is_gone(edit.agent)]
        return None if found else _marked(marks, files, agent, now_ms, CLAIMED_S)

    update(gateway.store, CELL, change)
    return found


def all_edits(gateway: Gateway) -> list[Edit]:
    """What counts as edited at this moment, the oldest first."""
    cell = gateway.open_store.cell_read(CELL)
    marks = _living(None if cell is None else cell.value, gateway.clock.wall_ms())
    found = [Edit(file, agent, at, until) for file, agents in marks.items() for agent, (at, until) in agents.items()]
    return sorted(found, key=lambda edit: edit.at_ms)


def forget(gateway: Gateway, agent: str) -> None:
    """The agent has ended, or lets others have its files."""

    def change(before: Marks | None) -> Any:
        if before is None or not any(agent in agents for agents in before.values()):
            return None
        left = {file: {name: at for name, at in agents.items() if name != agent} for file, agents in before.items()}
        return {file: agents for file, agents in left.items() if agents} or DELETE

    update(gateway.store, CELL, change)


def _living(before: Marks | None, now_ms: int) -> Marks:
    """Without those that have ended; one from the future was made before the clock was set back."""
    alive = {
        file: {agent: [at, until] for agent, (at, until) in agents.items() if at - KEPT_S * 1000 <= now_ms < until}
        for file, agents in (before or {}).items()
    }
    return {file: agents for file, agents in alive.items() if agents}


def _others(marks: Marks, file: str, agent: str) -> list[Edit]:
    return [Edit(file, name, at, until) for name, (at, until) in marks.get(file, {}).items() if name != agent]


def _last(marks: Marks, file: str, agent: str) -> int:
    """When the agent itself wrote the file last; 0 for never, or too long ago."""
    return marks.get(file, {}).get(agent, [0])[0]


def _marked(marks: Marks, files: Sequence[str], agent: str, now_ms: int, span_s: int) -> Marks:
    until_ms = now_ms + span_s * 1000
    after = {file: dict(agents) for file, agents in marks.items()}
    for file in files:
        mine = after.setdefault(file, {})
        mine[agent] = [now_ms, max(until_ms, mine.get(agent, [0, 0])[1])]
    newest = sorted(after, key=lambda file: max(at for at, _ in after[file].values()))[-MAX_FILES:]
    return {file: after[file] for file in newest}
