"""What the tests of rooms in files share: short words, and files left by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from postroom.core.message import Draft, check
from postroom.stores.contract import Delivery, Want
from postroom.stores.files.store import FilesStore

#: The sample of the design that this store comes from.
SAMPLE = {
    "from": "lead",
    "to": "worker-1",
    "action": "implement",
    "spec": "taskrunner",
    "task_id": "T3",
    "timestamp": "2026-02-09T22:30:00Z",
    "payload": {"notes": "T1 and T2 are done. You can start T3."},
}


def send(store: FilesStore, to: str | None = "bob", **fields: Any) -> str:
    payload = fields.pop("payload", {"text": "hi"})
    (id,) = store.put([check(Draft(from_agent=fields.pop("sender", "ada"), to_agent=to, payload=payload, **fields))])
    return id


def claim(store: FilesStore, agent: str = "bob", **fields: Any) -> list[Delivery]:
    return store.claim(Want(**{"agent": agent, "lease_s": 30.0, "limit": 100, **fields})).deliveries


def drop(path: Path, content: object) -> Path:
    """Leave a file as a careful program does: whole, by a move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.part")
    half.write_text(content if isinstance(content, str) else json.dumps(content))
    half.rename(path)
    return path


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
