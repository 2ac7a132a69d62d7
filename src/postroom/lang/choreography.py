"""Who sends to and receives from which mailbox, and what cannot go well between them."""

from __future__ import annotations

from .modules import Program
from .problems import Problem


def check_choreography(program: Program) -> list[Problem]:
    """Warnings about workers that wait for what nobody sends."""
    return []
