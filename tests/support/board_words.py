"""What tests of the board say most."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import postroom
from postroom.board.board import Board

PATIENCE_S = 20.0


def states(board: Board) -> dict[str, str]:
    return {task.id: task.state for task in board.tasks()}


def claim(board: Board, agent: str = "ada", task_id: str | None = None, **more: Any) -> postroom.HeldTask:
    held = board.claim(agent, task_id, **more)
    assert held is not None, f"{agent} got nothing of {states(board)}"
    return held


def soon(true: Callable[[], bool]) -> bool:
    """Whether something becomes so within real time, without the test's clock moving."""
    wait = threading.Event()
    for _ in range(int(PATIENCE_S * 200)):
        if true():
            return True
        wait.wait(0.005)
    return False
