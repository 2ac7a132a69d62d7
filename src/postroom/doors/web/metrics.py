"""The room in Prometheus' text format (0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from postroom.room import Room

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: A mailbox is a time series; a room with more of them shows the deepest.
MAX_BOXES: Final = 1000

Sample = tuple[Mapping[str, str], float]


def metrics(room: Room) -> str:
    """Figures of this moment. Changes nothing."""
    stats, now_ms = room.stats(), room.clock.wall_ms()
    boxes = sorted(stats.mailboxes, key=lambda box: -box.depth)[:MAX_BOXES]
    named = [({"to": box.to_agent or "", "channel": box.channel}, box) for box in boxes]
    agents = room.agents()
    works = [(agent.name, room.store.work_of(agent.name)) for agent in agents]
    parts = [
        _family("postroom_messages", "gauge", "Stored messages, by state.",
                [({"state": state}, count) for state, count in stats.states.items()]),
        _family("postroom_mailbox_depth", "gauge", "Waiting messages, by mailbox.",
                [(labels, box.depth) for labels, box in named]),
        _family("postroom_mailbox_oldest_seconds", "gauge", "Age of the oldest waiting message, by mailbox.",
                [(labels, max(0, now_ms - box.oldest_ms) / 1000) for labels, box in named]),
        _family("postroom_agent_up", "gauge", "Whether a process has the agent open.",
                [({"agent": agent.name, "status": agent.status}, int(bool(agent.alive))) for agent in agents]),
        _family("postroom_agent_processed_total", "counter", "Messages that an agent finished.",
                [({"agent": name}, work.processed) for name, work in works]),
        _family("postroom_agent_failed", "gauge", "Messages that an agent failed and that were not finished since.",
                [({"agent": name}, work.errors) for name, work in works]),
        _family("postroom_waiting_questions", "gauge", "Questions whose asker is waiting.", [({}, len(room.waits()))]),
    ]  # fmt: skip
    return "".join(parts)


def _family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def _labels(labels: Mapping[str, str]) -> str:
    told = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{told}}}" if told else ""
