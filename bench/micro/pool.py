"""A pool of workers beside others of its kind, measured in one run.

    python bench/micro/pool.py [--rounds 5] [--json]

Ping: one small call and its answer, one after the other, to a pool of two; the echo over `multiprocessing.Pipe` is the
floor. Requests: many small calls at once, per second, each a task of its own. Beside work: how long a ping to a fifth
worker takes while four others use the processor or sleep, next to the same while they do nothing.
Peers that are not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pool_minds

import postroom

WORKERS = 2
CONTEXT = "forkserver"  # what Python's own pools use from 3.14 on; a fork of a program with threads is no peer
MESSAGE = {"id": "m1", "content": "could somebody look at the build?", "sender_id": "ada"}
Calls = tuple[Callable[[], Any], Callable[[int], Any]]


def echo(end: Any) -> None:
    """The other end of the floor."""
    while (value := end.recv()) is not None:
        end.send(value)


@contextmanager
def by_pipe() -> Iterator[Calls]:
    """The floor: a process that echoes."""
    context: Any = multiprocessing.get_context(CONTEXT)
    ours, theirs = context.Pipe()
    child = context.Process(target=echo, args=(theirs,))
    child.start()

    def call() -> None:
        ours.send(MESSAGE)
        ours.recv()

    yield call, lambda count: spans_us(call, count)
    ours.send(None)
    child.join()


@contextmanager
def by_postroom() -> Iterator[Calls]:
    """Ours."""
    with postroom.WorkerPool("pool_minds:quick", workers=["ada", "bob"]) as pool:
        ada = pool.workers["ada"]
        yield ada.ping, lambda count: _exhaust(pool.map(MESSAGE for _ in range(count)))


@contextmanager
def by_multiprocessing() -> Iterator[Calls]:
    """The pool of `multiprocessing`."""
    with multiprocessing.get_context(CONTEXT).Pool(WORKERS) as pool:
        yield (
            lambda: pool.apply(pool_minds.quick_dict, (MESSAGE,)),
            lambda count: _exhaust(pool.imap(pool_minds.quick_dict, [MESSAGE] * count)),
        )
        pool.close()
        pool.join()


@contextmanager
def by_executor() -> Iterator[Calls]:
    """The pool of `concurrent.futures`."""
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context(CONTEXT)) as pool:
        yield _executor_calls(pool)


@contextmanager
def by_loky() -> Iterator[Calls]:
    """The pool that joblib and scikit-learn use."""
    import loky

    pool = loky.ProcessPoolExecutor(WORKERS)
    yield _executor_calls(pool)
    pool.shutdown()


@contextmanager
def by_pebble() -> Iterator[Calls]:
    """The pool whose tasks can be killed."""
    import pebble

    with pebble.ProcessPool(WORKERS, context=multiprocessing.get_context(CONTEXT)) as pool:
        yield (
            lambda: pool.schedule(pool_minds.quick_dict, args=[MESSAGE]).result(),
            lambda count: _exhaust(pool.map(pool_minds.quick_dict, [MESSAGE] * count).result()),
        )


def _executor_calls(pool: Executor) -> Calls:
    return (
        lambda: pool.submit(pool_minds.quick_dict, MESSAGE).result(),
        lambda count: _exhaust(pool.map(pool_minds.quick_dict, [MESSAGE] * count)),
    )


def _exhaust(results: Iterator[Any]) -> int:
    return sum(1 for _ in results)


WAYS: dict[str, Callable[[], Any]] = {
    "pipe": by_pipe,
    "postroom": by_postroom,
    "multiprocessing.Pool": by_multiprocessing,
    "ProcessPoolExecutor": by_executor,
    "loky": by_loky,
    "pebble": by_pebble,
}


def quantile(values: list[float], share: float) -> float:
    """The value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def spans_us(call: Callable[[], Any], count: int) -> list[float]:
    """How long each of so many calls takes."""
    found = []
    for _ in range(count):
        start = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - start) / 1000)
    return found


def measure_peers(rounds: int, pings: int, requests: int) -> dict[str, dict[str, float]]:
    """Each peer in turn, several times; the median of the rounds."""
    there = [name for name in WAYS if name not in ("loky", "pebble") or importlib.util.find_spec(name)]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in there}
    for _ in range(rounds):
        for name in there:
            with WAYS[name]() as (ping, many):
                spans_us(ping, pings // 10)
                many(requests // 10)
                spans = spans_us(ping, pings)
                start = time.perf_counter()
                many(requests)
                rate = requests / (time.perf_counter() - start)
                found[name].append((quantile(spans, 0.5), quantile(spans, 0.99), rate))
    names = ("ping_p50_us", "ping_p99_us", "requests_per_s")
    return {
        name: dict(zip(names, (statistics.median(column) for column in zip(*rows, strict=True)), strict=True))
        for name, rows in found.items()
    }


def measure_beside(pings: int) -> dict[str, dict[str, float]]:
    """Pings to a fifth worker while four others do nothing, wait for a model elsewhere, or use the processor."""
    found = {}
    names = ["a", "b", "c", "d", "e"]
    for what, content in (("idle", ""), ("four wait", "wait"), ("four compute", "compute")):
        with postroom.WorkerPool("pool_minds:busy", workers=names) as pool:
            fifth = pool.workers["e"]
            requests = [pool.workers[n].submit({"id": n, "content": content}, None) for n in names[:4] if content]
            spans_us(fifth.ping, 100)
            late: list[float] = []

            def once(late: list[float] = late, fifth: Any = fifth) -> None:
                before = time.perf_counter_ns()
                time.sleep(0.001)
                late.append((time.perf_counter_ns() - before) / 1000 - 1000)
                fifth.ping()

            spans = [fifth.ping() * 1000 for _ in range(pings)]
            spans_us(once, pings // 5)
            assert not any(request.done for request in requests)
            found[what] = {
                "ping_p50_us": quantile(spans, 0.5),
                "ping_p99_us": quantile(spans, 0.99),
                "parent_late_p99_us": quantile(late, 0.99),
            }
    return found


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pings", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--peers", help="only these, separated by commas")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args()
    if args.peers:
        for name in set(WAYS) - set(args.peers.split(",")):
            del WAYS[name]
    figures = measure_peers(args.rounds, args.pings, args.requests)
    figures |= {f"beside: {name}": row for name, row in measure_beside(args.pings).items()}
    if args.json:
        print(json.dumps(figures))
        return
    for name, row in figures.items():
        print(f"{name:<22}" + "   ".join(f"{key} {value:>9.1f}" for key, value in row.items()))


if __name__ == "__main__":
    main()
