"""Histories of real processes on real rooms, judged from outside.

The story. Several processes send, receive, ack, retry, return, extend, ask, answer and write cells, each at its own pace
and some with a wall clock that jumps by hours. They are killed with SIGKILL, stopped for longer than their leases and let
go on; where there is a server, it is killed and started again, and the way to it is cut. Each writes down when it called
what, and what came back. In the end everything that is left is received and looked at.

The invariant. There is an order of all these calls in which every message and every cell did only what
`docs/guarantees.md` allows (`postroom.testing.histories` knows it, and no store), and nothing is left unreceived.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest
from tests.faults.support import Nursery, count, in_parts, seed, worked_s
from tests.support.nats_proxy import Proxy
from tests.support.nats_servers import Server, room_name, running_server

from postroom.core.clock import SYSTEM
from postroom.testing.histories import Recorder, judge, read

AT_ONCE = 5
#: Children are stopped for up to so long: longer than a short lease.
STOPPED_S = 0.3
#: How often it is looked what may befall them.
TICK_S = 0.02
PATIENCE_S = 200.0


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "children.log", "histories")
    yield nursery
    nursery.close()


@pytest.fixture
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Which part of a long run this is: its seeds are others than those of the parts before."""
    monkeypatch.setenv("POSTROOM_FAULTS_SEED", str(seed() + 10_000 * request.param))
    return int(request.param)


class Company:
    """Processes that work in one room, and what befalls them. `places` are ways to the room.

    Each lives for up to `life_s` of processor time, so that it comes as far on a busy machine as on an idle one.
    """

    def __init__(self, crew: Nursery, places: list[str], folder: Path, life_s: float) -> None:
        self._crew, self._places, self._life_s = crew, places, life_s
        self.history, self._stop = folder / "history", folder / "stop"
        self._killer = Recorder(self.history, "killer")
        self._chance = random.Random(seed())
        self._alive: dict[int, tuple[str, float]] = {}  # pid -> its name, and how long it works
        self._read_bytes, self._lines = 0, 0
        self.befell: Counter[str] = Counter()

    def calls(self) -> int:
        """How many calls there have been so far, nearly."""
        with self.history.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        self._read_bytes += len(data)
        self._lines += data.count(b"\n[")
        return self._lines // 2

    def work(self, calls: int, mishap: Callable[[], str | None]) -> None:
        """Let them work until there were so many calls; `mishap` is called again and again, and says what it did.

        On a quick machine so many calls can come before the first kill. A history with few kills shows little: as many as
        work at once are waited for.
        """
        until_s = SYSTEM.steady_ns() / 1e9 + PATIENCE_S
        while self.calls() < calls or self.befell["killed"] < AT_ONCE:
            assert SYSTEM.steady_ns() / 1e9 < until_s, (
                f"only {self.calls()} calls in {PATIENCE_S:g} s:\n{self._crew.log()}"
            )
            self._fill()
            SYSTEM.sleep(TICK_S)
            victims = [pid for pid, (_, life_s) in self._alive.items() if worked_s(pid) > life_s]
            if victims and self._chance.random() < 0.1:
                victims = list(self._alive)
            self._kill(victims)
            if self._alive and self._chance.random() < 0.02:
                self._halt(self._chance.choice(list(self._alive)))
            if (what := mishap()) is not None:
                self.befell[what] += 1

    def _fill(self) -> None:
        while len(self._alive) < AT_ONCE:
            self.befell["started"] += 1
            born = self.befell["started"]
            name = f"w{born}"
            pid = self._crew.fork(
                "histories.worker", url=self._places[born % len(self._places)], history=str(self.history), name=name,
                seed=seed() + born, stop=str(self._stop), skewed=born % 2 == 0,
            )  # fmt: skip
            self._alive[pid] = name, self._chance.random() * self._life_s

    def _kill(self, pids: list[int]) -> None:
        if not pids:
            return
        failed = self._crew.ended(pids)
        assert not failed, f"children ended by themselves ({failed}):\n{self._crew.log()}"
        number = self._killer.call("kill", processes=[self._alive.pop(pid)[0] for pid in pids])
        self._crew.kill(*pids)
        self._killer.returned(number, None)
        self.befell["killed"] += len(pids)

    def _halt(self, pid: int) -> None:
        """Stop it, in the middle of whatever it does, for longer than a short lease."""
        os.kill(pid, signal.SIGSTOP)
        SYSTEM.sleep(self._chance.random() * STOPPED_S)
        os.kill(pid, signal.SIGCONT)
        self.befell["stopped"] += 1

    def finish(self) -> None:
        """Nobody begins anything more; then what is left is received."""
        self._stop.touch()
        self._crew.finish(*self._alive)
        last = self._crew.fork("histories.drain", url=self._places[0], history=str(self.history), name="drain")
        self._crew.finish(last, patience_s=90)


def judged(company: Company, ordered: bool, slack_s: float = 0.002, lingers_s: float = 0) -> str:
    """Fail unless all of it can have happened. Figures about it."""
    calls = read(company.history)
    begin_ns = SYSTEM.steady_ns()
    verdict = judge(calls, ordered=ordered, slack_s=slack_s, lingers_s=lingers_s)
    assert not verdict.impossible, f"seed {seed()}: {verdict}"
    took_s = (SYSTEM.steady_ns() - begin_ns) / 1e9
    happened = Counter(call.operation for call in calls)
    unknown = sum(call.is_unknown for call in calls if call.operation != "leave")
    assert min(happened[name] for name in ("send", "claim", "settle", "extend", "look", "read", "write")) > 0
    return (
        f"{verdict.calls} calls in {verdict.parts} parts, none impossible, judged in {took_s:.1f} s; {unknown} with unknown "
        f"outcome; {dict(company.befell)}"
    )


def quiet() -> None:
    """No further mishap."""


def on_disk(crew: Nursery, kind: str, folder: Path, calls: int, life_s: float) -> str:
    company = Company(crew, [f"{kind}:{folder / 'room'}"], folder, life_s)
    company.work(calls, quiet)
    company.finish()
    return f"histories on {kind}: {judged(company, ordered=True)}"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "life_s"), [("sqlite", 0.05), ("files", 0.2)], ids=["sqlite", "files"])
def test_what_processes_saw_of_a_room_on_disk_can_have_happened(
    crew: Nursery, kind: str, life_s: float, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figure(on_disk(crew, kind, tmp_path, count("CALLS", 3000), life_s))


@pytest.mark.long
@in_parts(10)
@pytest.mark.usefixtures("part")
def test_a_million_calls_on_sqlite_can_have_happened(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figure(on_disk(crew, "sqlite", tmp_path, count("CALLS_LONG", 1_000_000) // 10, life_s=0.1))


@pytest.mark.long
@in_parts(20)
@pytest.mark.usefixtures("part")
def test_two_hundred_thousand_calls_on_files_can_have_happened(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figure(on_disk(crew, "files", tmp_path, count("CALLS_LONG", 200_000) // 20, life_s=1))


class Weather:
    """What happens to a server and the way to it: now and then it is killed, or the way is cut for a moment."""

    def __init__(self, server: Server, proxy: Proxy, every_s: float) -> None:
        self._server, self._proxy, self._every_s = server, proxy, every_s
        self._chance = random.Random(seed())
        self._next_s = SYSTEM.steady_ns() / 1e9 + every_s
        self._mishaps = cycle(("server killed", "cut both ways", "dropped", "cut to the server", "cut to the clients"))

    def __call__(self) -> str | None:
        if SYSTEM.steady_ns() / 1e9 < self._next_s:
            return None
        what = next(self._mishaps)
        if what == "server killed":
            self._server.kill()
            self._server.start()
        elif what == "dropped":
            self._proxy.drop()
        else:
            self._proxy.cut(to_server=what != "cut to the clients", to_client=what != "cut to the server")
            SYSTEM.sleep(self._chance.random())
            self._proxy.cut(to_server=False, to_client=False)
        self._next_s = SYSTEM.steady_ns() / 1e9 + self._chance.random() * 2 * self._every_s
        return what


def on_nats(crew: Nursery, folder: Path, calls: int, every_s: float, life_s: float) -> str:
    with running_server() as server:
        proxy = Proxy(server.port)
        try:
            room = room_name()
            company = Company(
                crew, [f"nats://{address}/{room}" for address in (server.address, proxy.address)], folder, life_s
            )
            company.work(calls, Weather(server, proxy, every_s))
            company.finish()
        finally:
            proxy.close()
    return f"histories on nats: {judged(company, ordered=False, lingers_s=30)}"


@pytest.mark.slow
def test_what_processes_saw_of_a_room_on_nats_can_have_happened(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figure(on_nats(crew, tmp_path, count("CALLS", 1500), every_s=1, life_s=0.6))


@pytest.mark.long
@in_parts(10)
@pytest.mark.usefixtures("part")
def test_a_hundred_thousand_calls_on_nats_can_have_happened(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figure(on_nats(crew, tmp_path, count("CALLS_LONG", 100_000) // 10, every_s=2, life_s=2))
