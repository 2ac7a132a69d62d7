"""How fast a session fails together, and what starting its workers costs.

    python bench/micro/abort_latency.py [--runs 300] [--starts 10] [--json]

Abort: 8 workers in processes of their own; 7 wait in `receive`, one raises. Measured from the moment before it raises to
the moment the last of the other 7 has left its receive. The floor is one write to a pipe that wakes 7 processes.
Start: `delegate` of 4 workers that return at once, in a fresh program (cold) and in one that delegated before (warm),
beside `multiprocessing` with its own spawn and forkserver, to start, join and answer over a pipe.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from session_workers import STAMP, WAITERS, nothing, raiser, waiter

import postroom

STARTED = 4


def abort_ms(room: Any, folder: Path) -> tuple[float, float]:
    """One failure: from the raise to the first and to the last of the others that has heard of it."""
    raised, heard = folder / "raised", folder / "heard"
    for path in (raised, heard):
        path.write_bytes(b"")
    with room.session() as session:
        try:
            session.delegate([*(waiter(str(heard)) for _ in range(WAITERS)), raiser(str(raised))], show=False)
        except postroom.SessionFailed:
            pass
    (start,) = STAMP.unpack(raised.read_bytes())
    ends = sorted(end for (end,) in STAMP.iter_unpack(heard.read_bytes()))
    assert len(ends) == WAITERS, ends
    return (ends[0] - start) / 1e6, (ends[-1] - start) / 1e6


# The floor


def _wake(shared: int, own: int, told: int) -> None:
    """A process that notes when a byte in a pipe, of which there is one for each of the seven, has woken it."""
    while os.read(shared, 1) == b"!":
        os.write(told, STAMP.pack(time.monotonic_ns()))
        os.read(own, 1)  # not before all were woken: each byte is for another


def floor_ms(runs: int) -> Iterator[float]:
    """One write, seven processes that wake."""
    shared, go = os.pipe()
    told, tell = os.pipe()
    owns = [os.pipe() for _ in range(WAITERS)]
    # forked, here and only here: the floor is about waking, and nothing else runs in this program yet
    pids = []
    for own, _ in owns:
        pid = os.fork()
        if pid == 0:
            _wake(shared, own, tell)
            os._exit(0)
        pids.append(pid)
    for _ in range(runs):
        time.sleep(0.01)
        start = time.monotonic_ns()
        os.write(go, b"!" * WAITERS)
        ends = [STAMP.unpack(os.read(told, STAMP.size))[0] for _ in range(WAITERS)]
        yield (max(ends) - start) / 1e6
        for _, again in owns:
            os.write(again, b"!")
    os.write(go, b"." * WAITERS)
    for pid in pids:
        os.waitpid(pid, 0)


# Starting


def _nothing(answer: Any) -> None:
    answer.send(1)


def started_ours(rounds: int, folder: str) -> list[float]:
    """Milliseconds for each delegation of four workers, the first one with everything that has to be started."""
    with postroom.open(f"sqlite:{folder}/room") as room, room.session() as session:
        return [_timed(lambda: session.delegate([nothing()] * STARTED, show=False)) for _ in range(rounds)]


def started_theirs(method: str, rounds: int) -> list[float]:
    """The same for four processes of multiprocessing."""
    context: Any = multiprocessing.get_context(method)

    def once() -> None:
        ends = [context.Pipe() for _ in range(STARTED)]
        children = [context.Process(target=_nothing, args=(theirs,)) for _, theirs in ends]
        for child in children:
            child.start()
        for ours, _ in ends:
            ours.recv()
        for child in children:
            child.join()

    return [_timed(once) for _ in range(rounds)]


def _timed(call: Any) -> float:
    start = time.monotonic_ns()
    call()
    return (time.monotonic_ns() - start) / 1e6


def fresh(what: str, rounds: int) -> list[float]:
    """The same measured in a program of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--measure", what, "--starts", str(rounds), "--folder", folder]
        found: list[float] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
        return found


def measure_starts(rounds: int) -> dict[str, float]:
    """Cold: the median of the first of several programs. Warm: the median of what comes after the first."""
    cold: dict[str, list[float]] = {"ours": [], "spawn": []}
    warm: dict[str, list[float]] = {"ours": [], "forkserver": []}
    for _ in range(rounds):  # in turns, so that a busy moment falls on all of them
        ours = fresh("ours", 4)
        cold["ours"].append(ours[0])
        warm["ours"] += ours[1:]
        cold["spawn"] += fresh("spawn", 1)
        warm["forkserver"] += fresh("forkserver", 4)[1:]
    figures = {f"cold_{name}_ms_for_{STARTED}": quantile(values, 0.5) for name, values in cold.items()}
    figures |= {f"warm_{name}_ms_per_worker": quantile(values, 0.5) / STARTED for name, values in warm.items()}
    figures["cold_ours_to_spawn"] = quantile(cold["ours"], 0.5) / quantile(cold["spawn"], 0.5)
    return figures


def quantile(values: list[float], share: float) -> float:
    """The value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measure(runs: int, starts: int) -> dict[str, float]:
    """All figures."""
    figures: dict[str, float] = {}
    floor = list(floor_ms(runs))
    with tempfile.TemporaryDirectory() as folder, postroom.open(f"sqlite:{folder}/room") as room:
        abort_ms(room, Path(folder))  # the first one starts the fork server
        found = [abort_ms(room, Path(folder)) for _ in range(runs)]
    for name, values in (("floor", floor), ("first", [a for a, _ in found]), ("last", [b for _, b in found])):
        for share in (0.5, 0.9, 0.99):
            figures[f"{name}_p{share * 100:.0f}_ms"] = quantile(values, share)
    return figures | measure_starts(starts)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="failures to measure (300)")
    parser.add_argument("--starts", type=int, default=10, help="programs to start of each kind (10)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--measure", choices=["ours", "spawn", "forkserver"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure == "ours":
        print(json.dumps(started_ours(args.starts, args.folder)))
    elif args.measure:
        print(json.dumps(started_theirs(args.measure, args.starts)))
    else:
        figures = {name: round(value, 3) for name, value in measure(args.runs, args.starts).items()}
        print(
            json.dumps(figures)
            if args.json
            else "\n".join(f"{name:<36} {value:>10}" for name, value in figures.items())
        )


if __name__ == "__main__":
    main()
