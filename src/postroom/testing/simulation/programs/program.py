"""A simulated process at its part of the plan: its room, its agent, and what its operations have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, TypeVar

from postroom.board.board import Board
from postroom.core.config import RoomUrl
from postroom.mail.agent import Agent
from postroom.mail.gateway import Gateway
from postroom.room import Room
from postroom.testing.simulation.broken import Broken
from postroom.testing.simulation.process import Process
from postroom.testing.simulation.world import World

SECOND_NS: Final = 1_000_000_000
_URL: Final = RoomUrl("memory", "simulated", {})

T = TypeVar("T")


class WorkFailed(Exception):
    """What a program raises in the middle of its work."""


class Program:
    """What the operations of one process share. Each operation is a function that is given this."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.judge = world.judge
        self.clock = world.clock
        self.gateways: list[Gateway] = []
        #: What an operation has open beside the room, by name: closed before the room is.
        self.kept: dict[str, Any] = {}
        self._room: Room | None = None
        #: The ids of messages that this process may take back, the latest last.
        self.sent: list[str] = []
        self._numbered = 0
        #: The troubles before the operation that it does now.
        self.began = self.troubles()

    @property
    def room(self) -> Room:
        """The room, opened where it was not."""
        if self._room is None:
            store = self.world.new_store(self.process)
            self.gateways.append(self.world.new_gateway(store))
            self._room = Room(self.gateways[-1], _URL)
        return self._room

    def agent(self) -> Agent:
        """The agent that this process is, in the room."""
        agent = self.room.agent(self.process.part.agent)
        self.world.agent_is_open(self.process)
        return agent

    @property
    def gateway(self) -> Gateway:
        return self.room.gateway

    @property
    def board(self) -> Board:
        return self.room.board

    def close(self) -> None:
        """Close the room. Nothing that it held may be held then."""
        room, self._room = self._room, None
        if room is None:
            return
        self.world.agent_is_left(self.process)
        for each in self.kept.values():
            each.close()
        self.kept.clear()
        room.close()
        self.world.tell(self.process, "has closed the room")
        kept = self.judge.held_by(self.process)
        if kept and not self.process.failed:  # what a busy room did not take back ends with its lease
            raise Broken(f"{self.process!r} has closed the room, and kept {', '.join(sorted(kept))}")

    def payload(self) -> dict[str, Any]:
        """A payload that no other message has."""
        self._numbered += 1
        return {"n": f"{self.process.label}-{self._numbered}"}

    def tell(self, what: str) -> None:
        """Write a line of the trace."""
        self.world.tell(self.process, what)

    def stood_ns(self) -> int:
        """For how long this process could not run, by now."""
        return self.world.stood_ns + self.process.stood_ns

    def troubles(self) -> tuple[int, int]:
        """Changes when the process stands still, or a write of it fails."""
        return self.stood_ns(), self.process.failed


def generator(items: Iterator[T]) -> Generator[T, None, None]:
    """An iterator that is a generator, and can be closed."""
    assert isinstance(items, Generator)
    return items
