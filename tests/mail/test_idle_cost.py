"""What a process that only waits asks of its store: the same for ten agents and for a thousand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_loop import until

import postroom
from postroom import Room, aio
from postroom.core.clock import ManualClock, iso
from postroom.core.config import HEARTBEAT_S
from postroom.mail import housekeeping, presence
from postroom.stores.contract import Store

MANY = 1000


class Calls:
    """Counts the calls of a store that anything idle could make, from outside of it."""

    def __init__(self, store: Store, patch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        for name in ("cell_read", "cell_write", "cell_scan", "claim", "events", "number_at", "process_alive", "find"):
            patch.setattr(store, name, self._counted(name, getattr(store, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.made[name] += 1
            return call(*arguments, **options)

        return counted


def calls_of_rounds(room: Room, agents: int) -> Counter[str]:
    """The calls of a minute of rounds, without its one look at the cells of all agents."""
    for number in range(agents):
        room.agent(f"agent-{number}")
    room._upkeep._chore.close()  # the rounds are made here
    clock = room.clock
    assert isinstance(clock, ManualClock)
    room._upkeep.round()
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(room.store, patch)
        for _ in range(int(housekeeping.AGENTS_S / HEARTBEAT_S) - 1):
            clock.advance(HEARTBEAT_S)
            room._upkeep.round()
    return calls.made


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_the_rounds_of_a_process_cost_the_same_for_ten_agents_and_for_a_thousand(scheme: str, tmp_path: Path) -> None:
    made = []
    for agents in (10, MANY):
        with postroom.open(f"{scheme}:{tmp_path / str(agents)}", clock=ManualClock()) as room:
            made.append(calls_of_rounds(room, agents))

    assert made[0] == made[1]
    assert made[0]["cell_write"] > 0


def test_one_heartbeat_serves_every_agent_of_a_process(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room()
    for number in range(3 * housekeeping.AGENTS_A_ROUND):
        room.agent(f"agent-{number}")
    clock.advance(HEARTBEAT_S)
    room._upkeep.round()

    assert {agent.last_heartbeat for agent in room.agents()} == {iso(clock.wall_ms())}


def test_agents_of_a_process_that_was_taken_for_gone_come_back_with_its_next_heartbeat(
    open_room: Callable[..., Room], clock: ManualClock
) -> None:
    room = open_room()
    names = [f"agent-{number}" for number in range(3 * housekeeping.AGENTS_A_ROUND)]
    for name in names:
        room.agent(name)
    for name in names:
        presence.leave(room.gateway, name)
    presence.leave_process(room.gateway)

    room._upkeep.round()

    assert {(agent.status, agent.alive) for agent in room.agents()} == {("active", True)}


def test_a_process_that_is_taken_for_gone_in_the_middle_of_its_heartbeat_notices(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.agent("ada")
    cell, read = presence.PROCESSES + room.gateway.process, room.store.cell_read

    def read_then_lose(name: str) -> Any:
        found = read(name)
        if name == cell:
            monkeypatch.undo()
            room.store.cell_write(cell, None)
        return found

    monkeypatch.setattr(room.store, "cell_read", read_then_lose)

    assert presence.beat_process(room.gateway) is False
    assert presence.beat_process(room.gateway) is True


def test_a_closed_room_leaves_no_heartbeat(open_room: Callable[..., Room]) -> None:
    room, other = open_room(), open_room()
    room.agent("ada")
    assert presence.heartbeats(other.gateway)

    room.close()

    assert presence.heartbeats(other.gateway) == {}


@pytest.mark.slow
@pytest.mark.parametrize("agents", [10, MANY])
def test_tasks_that_wait_are_looked_after_by_one_look_a_second_for_all_of_them(
    agents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait() -> Counter[str]:
        async with await aio.open(f"sqlite:{tmp_path / 'room'}", clock=ManualClock()) as room:
            waits, gateway = room._worker.waits, room._worker.gateway
            assert gateway is not None
            names = [await room.agent(f"agent-{number}") for number in range(agents)]
            tasks = [asyncio.create_task(name.receive(timeout_s=None)) for name in names]
            await until(lambda: len(waits.pauses) == agents)
            for _ in range(3):  # the first rounds do not know yet what was before
                waits._go_round()
                await room.call(lambda _: None)
            await until(lambda: len(waits.pauses) == agents)
            calls = Calls(gateway.store, monkeypatch)
            for _ in range(5):
                waits._go_round()
                await room.call(lambda _: None)  # after the look of this round
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return calls.made

    made = asyncio.run(wait())
    assert (made["claim"], made["number_at"], made["events"]) == (5, 5, 0)
