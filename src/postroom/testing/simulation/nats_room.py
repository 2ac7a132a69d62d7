"""A room on a simulated NATS server, which each process of a world opens for itself, over a network that is faulty."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

from postroom.core.config import RoomUrl
from postroom.stores.contract import Store
from postroom.stores.nats.link import play_background
from postroom.stores.nats.store import NatsStore

from .nats_loop import SimulatedBackground, StageLock, StageQueue
from .nats_network import FaultyNetwork
from .nats_witness import Witness, WitnessedStore
from .process import Process
from .seen import Seen
from .world import World

#: A new limit is known everywhere after two seconds (stores/nats/limits.py), and after what was on its way meanwhile.
_LEARNT_MS: Final = 20_000
_URL: Final = RoomUrl("nats", "//127.0.0.1:4222/simulated", {})
#: In every so-manieth schedule others may go on while a process opens the room. That takes many steps.
_OPENS_IN_STEPS: Final = 8
#: In every so-manieth the processes are on machines of their own.
_APART: Final = 4


class SimulatedNatsRoom:
    """The room on NATS: the shipping store, from its calls down to its requests."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._network = FaultyNetwork(world)
        self._background = SimulatedBackground(
            world, self._network, opens_at_once=world.plan.seed % _OPENS_IN_STEPS != 0
        )
        self._network.clients = self._background.clients
        self._stores: list[NatsStore] = []
        self._nonces = count(1)
        world.turns.append(self._network)
        #: Whether each process, with those that come after it in its place, is on a machine of its own.
        self._is_apart = world.plan.seed % _APART == 1
        world.judge.rings_at_once = world.judge.tells_whole_steps = False
        world.judge.sees_deaths = not self._is_apart
        world.judge.limits.learnt_ms = _LEARNT_MS
        world.judge.keeps_order = self._keeps_order
        witness = Witness(world, self._network)
        self.store = type("WitnessedStore", (WitnessedStore,), {"witness": witness})
        self._before = play_background(self._background)

    def open(self, process: str) -> Store:
        try:
            store = NatsStore(_URL, self._world.config, self._world.clock)
        finally:
            self._background.at_once = None
        self._stores.append(store)
        self._play(store, self._world.process(process))
        return store

    def _play(self, store: Any, process: Process) -> None:
        """Let a store wait as the stage wants it, and see the processes of this world."""
        world, room = self._world, store._room
        loop = self._background.loops[process]
        room._nonce = f"{next(self._nonces):06x}"
        room.lives.process = process.name
        room.lives.seen_here = partial(self._seen_from, process) if self._is_apart else world.is_alive
        for holder, name in _LOCKS:
            setattr(holder(room), name, StageLock(world, loop))
        store._ended = StageQueue(world)

    def _seen_from(self, process: Process, name: str) -> bool | None:
        """Whether another lives, as far as it can be seen on the machine of a process."""
        is_here = self._world.is_alive(name) is not None and self._world.process(name).place == process.place
        return self._world.is_alive(name) if is_here else None

    def _keeps_order(self, seen: Seen) -> bool:
        """With one receiver, which was told of everything."""
        receivers = [part for part in self._world.plan.parts if part.agent == seen.to_agent]
        return len(receivers) == 1 and not self._network.loses_pushes

    def room_ms(self) -> int:
        return self._stores[0]._room.now_ms() if self._stores else self._world.clock.wall_ms()

    def suffer(self, kind: str, process: Process, span_ns: int) -> None:
        """A planned fault of the wire comes, here to that process."""
        self._network.suffer(kind, process, span_ns)

    def heal(self) -> None:
        """The faults have stopped."""
        self._network.heal()

    def close(self) -> None:
        play_background(self._before)
        for store in self._stores:
            follower = store._room.follower
            follower.closed = True
            for known in [each for waiters in follower._waiters.values() for each in waiters]:
                waiter = known()
                if waiter is not None:
                    waiter.let_go()
        for loop in self._background.loops.values():
            loop.end()


#: The locks of an opened room for which threads wait.
_LOCKS: Final[tuple[tuple[Callable[[Any], Any], str], ...]] = (
    (lambda room: room.follower, "lock"),
    (lambda room: room.follower, "_changing"),
    (lambda room: room.follower, "_reading"),
    (lambda room: room.lives, "_beginning"),
    (lambda room: room.limits, "passing"),
)
