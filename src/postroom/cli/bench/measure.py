"""Measuring one work of one entry once, with processes, a folder and a server of its own."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import msgspec

from .client import Setup
from .crew import MeasuredProcess
from .peers import peer
from .plan import CROWD, WORKS, PlanLine, Scale
from .task import BenchTask, Found

#: What one measurement gave: numbers by name, and lists where they tell more (shares).
Sample = dict[str, Any]

BOX: Final = "box"
BACK: Final = "back"


class MeasuringPlace:
    """Where one measurement happens: a fresh folder, and the peer's server if it has one."""

    def __init__(self, entry: PlanLine, address: str, folder: Path) -> None:
        self.entry = entry
        self.address = address
        self.done_flag = folder / "done"
        self._stack = ExitStack()

    def setup(self, me: str, to: str, *, crowd: bool = False) -> Setup:
        """How a client here is opened."""
        return Setup(self.address, me, to, self.entry.sync, self.entry.way, crowd)

    def start(self, role: str, setup: Setup, **more: Any) -> MeasuredProcess:
        """A process with that role; it ends with this place at the latest."""
        task = BenchTask(role, self.entry.peer, setup, done_flag=str(self.done_flag), **more)
        return self._stack.enter_context(MeasuredProcess(task, peer(self.entry.peer).program))

    def close(self) -> None:
        """End all processes that were started here."""
        self._stack.close()


@contextmanager
def place_for(entry: PlanLine, base: str | None) -> Iterator[MeasuringPlace]:
    """A place that is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-", dir=base, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        data = folder / "data"
        data.mkdir()
        with peer(entry.peer).serve(data, entry.sync) as address:
            place = MeasuringPlace(entry, address, folder)
            try:
                yield place
            finally:
                place.close()


def percentile(values: list[float], percent: int) -> float:
    """The value below which that many of a hundred lie."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _rate(count: int, begun_ns: int, ended_ns: int) -> float:
    return count / max(1, ended_ns - begun_ns) * 1e9


def _send(place: MeasuringPlace, count: int, cap_s: float, role: str = "send") -> Sample:
    hand = place.start(role, place.setup(BACK, BOX), count=count, cap_s=cap_s)
    hand.await_ready()
    hand.go()
    found = hand.found()
    return {"rate": _rate(found["sent"], found["begun_ns"], found["ended_ns"])}


def _send_batches(place: MeasuringPlace, count: int, cap_s: float) -> Sample:
    return _send(place, count, cap_s, "send_batches")


def _cycle(place: MeasuringPlace, count: int, cap_s: float, crowd: int = 1) -> Sample:
    """Producers and consumers at once. The clock runs from the first send to the last ack."""
    shared = crowd > 1
    consumers: list[MeasuredProcess] = []
    for _ in range(crowd):
        consumers.append(place.start("consume", place.setup(BOX, BACK, crowd=shared), cap_s=4 * cap_s))
        if len(consumers) == 1:
            consumers[0].await_ready()  # who comes first makes files and tables; the others find them
    each = count // crowd
    producers = [
        place.start("produce", place.setup(BACK, BOX, crowd=shared), count=each, first=each * i, cap_s=cap_s)
        for i in range(crowd)
    ]
    for hand in [*consumers[1:], *producers]:
        hand.await_ready()
    for hand in [*consumers, *producers]:
        hand.go()
    sent = [hand.found() for hand in producers]
    place.done_flag.touch()
    return _cycle_sample(sent, [hand.found() for hand in consumers])


def _cycle_sample(sent: list[Found], got: list[Found]) -> Sample:
    seen = Counter(number for found in got for number in found["numbers"])
    total = sum(found["sent"] for found in sent)
    shares = sorted(len(found["numbers"]) for found in got)
    begun_ns, ended_ns = min(found["begun_ns"] for found in sent), max(found["ended_ns"] for found in got)
    missing = total - len(seen)
    drained = all(found["drained"] for found in got)
    return {
        "rate": _rate(len(seen), begun_ns, ended_ns),
        "sent": total,
        # what was still in the queue when time was up is not lost
        "lost": missing if drained else 0,
        "left": 0 if drained else missing,
        "doubled": sum(seen.values()) - len(seen),
        "shares": shares,
        "least_share": shares[0] / max(1, sum(shares)) * len(shares),
    }


def _crowd(place: MeasuringPlace, count: int, cap_s: float) -> Sample:
    return _cycle(place, count, cap_s, CROWD)


def _wake(place: MeasuringPlace, count: int, cap_s: float) -> Sample:
    waiter = place.start("wait", place.setup(BOX, BACK), count=count, cap_s=cap_s + count * 0.03)
    waiter.await_ready()
    ringer = place.start("ring", place.setup(BACK, BOX), count=count, cap_s=cap_s + count * 0.03)
    ringer.await_ready()
    waiter.go()
    ringer.go()
    ringer.found()
    waits_ms = waiter.found()["ms"][min(5, count // 4) :]
    return {"p50_ms": percentile(waits_ms, 50), "p99_ms": percentile(waits_ms, 99), "count": len(waits_ms)}


def _ask(place: MeasuringPlace, count: int, cap_s: float) -> Sample:
    answerer = place.start("answer", place.setup(BOX, BACK), cap_s=cap_s)
    answerer.await_ready()
    asker = place.start("ask", place.setup(BACK, BOX), count=count, cap_s=cap_s)
    asker.await_ready()
    answerer.go()
    asker.go()
    found = asker.found()
    place.done_flag.touch()
    answerer.found()
    took_ms = found["ms"]
    return {
        "rate": _rate(len(took_ms), found["begun_ns"], found["ended_ns"]),
        "p50_ms": percentile(took_ms, 50),
        "p99_ms": percentile(took_ms, 99),
    }


def _depth(place: MeasuringPlace, count: int, cap_s: float, scale: Scale) -> Sample:
    """One process for all depths; they differ by folder, and on a server by box."""
    depths = scale.depths(peer(place.entry.peer))
    if place.entry.way != "pending":
        depths = [depths[0], depths[-1]]
    places = []
    for depth in depths:
        box = f"{BOX}{depth}"
        setup = place.setup(box, box)
        if os.path.isdir(place.address):
            os.makedirs(folder := f"{place.address}/{depth}", exist_ok=True)
            setup = msgspec.structs.replace(setup, address=folder)
        places.append(setup)
    hand = place.start("depth", places[0], count=count, places=places, depths=depths, cap_s=cap_s, patience_s=300)
    hand.await_ready()
    hand.go()
    found = hand.found()
    ratios = {
        f"{name}_ratio": [value / found[f"{name}_us"][0] for value in found[f"{name}_us"]] for name in ("send", "take")
    }
    return {"depths": depths, **found, **ratios}


_MEASURE: Final[dict[str, Callable[[MeasuringPlace, int, float], Sample]]] = {
    "W1": _send,
    "W2": _send_batches,
    "W3": _cycle,
    "W4": _crowd,
    "W5": _wake,
    "W6": _ask,
}


def measure(work: str, entry: PlanLine, scale: Scale, base: str | None = None) -> Sample:
    """One measurement of a work. Raises NotHere when the entry cannot do it."""
    with place_for(entry, base) as place:
        if work == "W7":
            return _depth(place, scale.count(WORKS[work]), 4 * scale.cap_s, scale)
        return _MEASURE[work](place, scale.count(WORKS[work]), scale.cap_s)
