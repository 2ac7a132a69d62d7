"""What the workers of bench/micro/pool.py do."""

from __future__ import annotations

import time
from typing import Any

from postroom.pools.evaluation import Evaluation


def quick(message: dict[str, Any]) -> Evaluation:
    """As little as there is to do."""
    return Evaluation(message["id"], 0.7, True)


def quick_dict(message: dict[str, Any]) -> dict[str, Any]:
    """The same for pools that know no evaluations."""
    return {"message_id": message["id"], "confidence": 0.7, "should_respond": True}


def busy(message: dict[str, Any]) -> Evaluation:
    """Works until it is stopped: as a model in another process would (wait), or one in this (compute)."""
    if message["content"] == "wait":
        time.sleep(600)
    while message["content"] == "compute":
        sum(range(1000))
    return quick(message)
