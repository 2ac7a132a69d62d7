"""Deadlocks among askers: a search for cycles in the graph of agents that wait for each other's answers."""

from __future__ import annotations

from collections.abc import Sequence


def in_cycles(waits: Sequence[tuple[str, str | None]]) -> list[bool]:
    """For each pair of asker and asked, whether the one asked waits for the asker, itself or through others."""
    asked: dict[str, set[str]] = {}
    for asker, peer in waits:
        if peer is not None:
            asked.setdefault(asker, set()).add(peer)
    return [peer is not None and asker in _reached_from(peer, asked) for asker, peer in waits]


def _reached_from(start: str, asked: dict[str, set[str]]) -> set[str]:
    reached, left = {start}, [start]
    while left:
        new = asked.get(left.pop(), set()) - reached
        reached |= new
        left += new
    return reached
