"""The network of a simulated world: requests, replies and pushes are lost, late and repeated as the plan says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from postroom.core.clock import Chance

from . import plans
from .nats_calls import CALL, WitnessedCall
from .nats_client import INBOX, Network, SimulatedClient
from .nats_server import Packet
from .process import Process
from .stage import NEVER_NS
from .world import ThreadlessTurn, World

#: What the next write of a process suffers.
_OF_THE_NEXT: Final = (plans.LOSE_REQUEST, plans.LOSE_REPLY, plans.LATE_REQUEST, plans.REPEAT_REQUEST, plans.SEVER)
#: By this a write to the room begins; heartbeats of processes are none that counts here.
_WRITE: Final = "pr."
_BEAT: Final = ".p."
_SECOND_NS: Final = 1_000_000_000


class FaultyNetwork(Network, ThreadlessTurn):
    """Between the processes of a world and their server."""

    max_payload = 16 * 1024  # the reserve of a room is as large, and is copied

    def __init__(self, world: World) -> None:
        chance = Chance(world.plan.seed)
        Network.__init__(self, self._now_ns, lambda count: int(chance.random() * count))
        ThreadlessTurn.__init__(self, None)
        self._world = world
        #: The clients, and the processes that have them.
        self.clients: dict[SimulatedClient, Process] = {}
        #: The call whose request the server works on.
        self.call: WitnessedCall | None = None
        #: Whether a push was ever lost, late or repeated.
        self.loses_pushes = False
        self._next: dict[Process, tuple[str, int]] = {}
        self._late: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._drops_replies = False
        self._down_ns = self._leaderless_ns = 0
        self._cut_ns: dict[Process, int] = {}
        self._stalled_ns: dict[Process, int] = {}
        self._held: dict[SimulatedClient, list[Callable[[], None]]] = {}
        self._pushes: tuple[str, int, int] = ("", 0, 0)

    def _now_ns(self) -> int:
        return self._world.clock.now_ns

    # What is late

    def next_ns(self) -> int:
        return self._late[0][0] if self._late else NEVER_NS

    def take(self) -> None:
        """Do what was late until now."""
        while self._late and self._late[0][0] <= self._now_ns():
            heappop(self._late)[2]()

    def _after(self, span_ns: int, call: Callable[[], None]) -> None:
        self._numbers += 1
        heappush(self._late, (self._now_ns() + span_ns, self._numbers, call))

    # Faults

    def suffer(self, kind: str, process: Process, span_ns: int) -> None:
        """A planned fault begins."""
        now_ns = self._now_ns()
        self._after(span_ns, self._hit_all)  # some call has waited for the end of it
        if kind in _OF_THE_NEXT:
            self._next[process] = kind, span_ns
        elif kind == plans.CUT:
            self._hit(process, "a connection was cut")
            self._cut_ns[process] = now_ns + span_ns
            self._cut(process)
        elif kind == plans.STALL:
            self._hit(process, "a connection stalled")
            self._stalled_ns[process] = now_ns + span_ns
            self._after(span_ns, self._release)
        elif kind == plans.LAG:
            self.server.lag(span_ns)
            self._world.happened("a copy lagged")
        elif kind in (plans.RESTART_SERVER, plans.NO_LEADER):
            self._stop_server(kind, span_ns)
        else:
            self._pushes = kind, now_ns + span_ns, span_ns

    def _stop_server(self, kind: str, span_ns: int) -> None:
        self._hit_all()
        if kind == plans.NO_LEADER:
            self._world.happened("there was no leader")
            self.server.has_leader = False
            self._leaderless_ns = self._now_ns() + span_ns
            self._after(span_ns, self._elect)
            return
        self._world.happened("the server restarted")
        self._down_ns = self._now_ns() + span_ns
        self.server.restart()
        for process in dict.fromkeys(self.clients.values()):
            self._cut(process)

    def _hit_all(self) -> None:
        for process in dict.fromkeys(self.clients.values()):
            self._hit(process, "")

    def _elect(self) -> None:
        self.server.has_leader = self._leaderless_ns <= self._now_ns()

    def _hit(self, process: Process, what: str) -> None:
        """A fault concerns this process: what it does may fail, and take its time."""
        process.failed += 1
        if what:
            self._world.tell(process, what)
            self._world.happened(what)

    def heal(self) -> None:
        """The faults have stopped; what is late comes."""
        self._hit_all()
        self._next.clear()
        self._cut_ns.clear()
        self._stalled_ns.clear()
        self._down_ns = self._leaderless_ns = 0
        self._pushes = ("", 0, 0)
        self._elect()
        self._release()

    def _cut(self, process: Process) -> None:
        for client, owner in self.clients.items():
            if owner is process:
                self._held.pop(client, None)
                client.cut()

    def _is_stalled(self, process: Process) -> bool:
        return self._now_ns() < self._stalled_ns.get(process, 0)

    def _release(self) -> None:
        for client in tuple(self._held):
            if not self._is_stalled(self.clients[client]):
                for call in self._held.pop(client):
                    call()

    # What is sent

    def down_s(self, client: SimulatedClient) -> float:
        process = self.clients[client]
        self._held.pop(client, None)  # they were on the connection before
        until_ns = max(self._down_ns, self._cut_ns.get(process, 0), self._stalled_ns.get(process, 0))
        return max(0, until_ns - self._now_ns()) / _SECOND_NS

    def send(self, client: SimulatedClient, packets: Sequence[Packet]) -> None:
        process, call = self.clients[client], CALL.get()
        if not process.alive:
            return
        take = partial(self._take, packets, call)
        if self._is_stalled(process):
            self._held.setdefault(client, []).append(take)
            return
        subject = packets[0].subject
        kind, span_ns = "", 0
        if subject.startswith(_WRITE) and _BEAT not in subject:
            kind, span_ns = self._next.pop(process, ("", 0))
        if kind:
            self._hit(process, _HAPPENED[kind])
        if kind == plans.LATE_REQUEST:
            self._after(span_ns, take)
        elif kind != plans.LOSE_REQUEST:
            self._take(packets, call, drops_replies=kind in (plans.LOSE_REPLY, plans.SEVER))
        if kind == plans.SEVER:
            self._cut_ns[process] = self._now_ns() + span_ns
            self._cut(process)
        if kind == plans.REPEAT_REQUEST:
            self._after(span_ns, take)

    def _take(self, packets: Sequence[Packet], call: WitnessedCall | None, drops_replies: bool = False) -> None:
        if self._now_ns() < self._down_ns:
            return
        before = self.call, self._drops_replies
        self.call, self._drops_replies = call, drops_replies
        try:
            Network.send(self, _NOBODY, packets)
        finally:
            self.call, self._drops_replies = before

    # What is heard

    def route(self, subject: str, data: bytes, headers: bytes) -> None:
        self._forget_the_dead()
        super().route(subject, data, headers)

    def _forget_the_dead(self) -> None:
        for client, process in self.clients.items():
            if client.is_connected and not process.alive:
                client.vanish()

    def deliver(self, client: SimulatedClient, call: Callable[[], None], subject: bytes = INBOX.encode()) -> None:
        if subject.startswith(INBOX.encode()):
            if not self._drops_replies:
                self._pass_on(client, call)
            return
        kind, until_ns, span_ns = self._pushes
        if self._world.hints_go_astray():
            kind, until_ns, span_ns = plans.LOSE_PUSHES, NEVER_NS, 0
        if self._now_ns() >= until_ns:
            self._pass_on(client, call)
            return
        self._world.happened(_HAPPENED[kind])
        self.loses_pushes = True
        if kind == plans.REPEAT_PUSHES:
            self._pass_on(client, call)
        if kind != plans.LOSE_PUSHES:
            self._after(span_ns, partial(self._pass_on, client, call))

    def _pass_on(self, client: SimulatedClient, call: Callable[[], None]) -> None:
        process = self.clients[client]
        if self._is_stalled(process):
            self._held.setdefault(client, []).append(partial(self._pass_on, client, call))
        elif process.alive:
            client.come(call)


_NOBODY: Final[Any] = None
_HAPPENED: Final = {
    plans.LOSE_REQUEST: "a request was lost",
    plans.LOSE_REPLY: "a reply was lost",
    plans.LATE_REQUEST: "a request was late",
    plans.REPEAT_REQUEST: "a request was repeated",
    plans.SEVER: "a connection broke before the reply",
    plans.LOSE_PUSHES: "a push was lost",
    plans.LATE_PUSHES: "a push was late",
    plans.REPEAT_PUSHES: "a push was repeated",
}
