"""The works, how much of each is done, and who does it in which way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from .client import Peer

#: How many consumers and producers meet in W4.
CROWD: Final = 4
BATCH: Final = 100
#: In W5 a message is sent this often, in seconds: long enough for the receiver to have gone to sleep.
PAUSE_S: Final = 0.02
#: W7: the depth with which the others are compared.
SHALLOW: Final = 10
#: W7: so many agents in so many channels.
SPREAD: Final = 1000


class Workload(msgspec.Struct, frozen=True):
    """One kind of work, with how often it is done at full scale, and what its figure is."""

    name: str
    title: str
    count: int
    figure: str


WORKS: Final = {
    work.name: work
    for work in (
        Workload("W1", "send one by one", 20_000, "rate"),
        Workload("W2", f"send in batches of {BATCH}", 40_000, "rate"),
        Workload("W3", "one sends, one receives", 12_000, "rate"),
        Workload("W4", f"{CROWD} send, {CROWD} receive", 20_000, "rate"),
        Workload("W5", "wake a receiver that waits", 250, "p50_ms"),
        Workload("W6", "question and answer", 4_000, "rate"),
        Workload("W7", "send and receive beside many messages", 2_000, "send_us"),
    )
}

#: Works that are measured once more with every message on disk before a call returns.
WORKS_WITH_FULL_SYNC: Final = frozenset({"W1", "W3", "W4"})


class PlanLine(msgspec.Struct, frozen=True, order=True):
    """One line of a work's table: a peer, a way of using it, and how safe its calls are."""

    peer: str
    way: str = ""
    sync: str = "normal"

    @property
    def label(self) -> str:
        """How it is called in tables."""
        words = [self.peer, self.way, "" if self.sync == "normal" else f"(sync={self.sync})"]
        return " ".join(word for word in words if word)


class Scale(msgspec.Struct, frozen=True):
    """How much is done: 1 is a full run, and no single measurement lasts longer than the cap."""

    factor: float = 0.2
    cap_s: float = 4.0

    def count(self, work: Workload) -> int:
        """How often the work is done: whole batches, and the same number for every producer of a crowd."""
        least = {"W2": BATCH, "W4": CROWD * 5}.get(work.name, 20)
        count = max(least, round(work.count * self.factor))
        return count - count % {"W2": BATCH, "W4": CROWD}.get(work.name, 1)

    def depths(self, peer: type[Peer]) -> list[int]:
        """Beside how many messages W7 is measured: beside few first, with which the others are compared."""
        depths = [max(SHALLOW, round(100_000 * self.factor)), max(SHALLOW, round(1_000_000 * self.factor))]
        return [SHALLOW, *(depth for depth in depths if peer.most_pending is None or depth <= peer.most_pending)]


def entries(work: str, peer: type[Peer]) -> Iterable[PlanLine]:
    """In which ways a peer does a work."""
    if work in peer.not_measured:
        return
    ways_of = {"W3": peer.receive_ways, "W4": peer.receive_ways, "W6": peer.ask_ways, "W7": peer.depth_ways}
    ways = ways_of.get(work, ("",))
    for sync in ("normal", "full") if peer.has_full_sync and work in WORKS_WITH_FULL_SYNC else ("normal",):
        for way in ways:
            yield PlanLine(peer.name, way, sync)
