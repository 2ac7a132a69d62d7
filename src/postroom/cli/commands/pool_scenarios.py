"""The scenarios of `postroom pool check`: what a pool of workers must do, tried for real on this machine.

Four phases, each of which stands on the one before: workers that answer, workers that judge, a real model, and several of
them that decide together. A scenario says what it measured and whether that is good enough; what it raises is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from postroom.core.clock import SYSTEM, iso
from postroom.errors import ModelMissing, WorkerTimeout
from postroom.inference import default_spec
from postroom.pools.coordinator import Coordinator
from postroom.pools.decide import Decision
from postroom.pools.evaluation import Evaluation
from postroom.pools.pool import WorkerPool
from postroom.pools.worker import PoolWorker

MOCK: Final = "postroom.inference:mock"
MODEL: Final = "postroom.inference:by_spec"
MEETING: Final = "postroom.cli.commands.pool_scenarios:meet"
READY_MS: Final = 5000.0
#: An answer that takes longer is none. How quick answers are is for the limits, as far as a scenario has one.
PATIENCE_S: Final = 10.0
PING_MS: Final = 10.0
SHUTDOWN_MS: Final = 1000.0
MOCK_MS: Final = 500.0
TURN_MS: Final = 500.0
STOPPED_MS: Final = 1200.0
DECIDE_S: Final = 0.4
DECIDED_MS: Final = 1400.0
#: A real model gets so long for one answer, in seconds; so many answers are asked for.
MODEL_S: Final = 120.0
QUESTIONS: Final = ("Who knows why the build is red?", "Could somebody review the parser?", "lol")
#: The parent is held up when it comes back so much later than it wanted to, in milliseconds.
HELD_UP_MS: Final = 250.0


class Finding(NamedTuple):
    """The result of a scenario."""

    passed: bool
    notes: str
    metrics: dict[str, float]


class Phase(NamedTuple):
    """One phase: its title, and its scenarios by name."""

    title: str
    scenarios: dict[str, Callable[[], Finding]]


#: The phases in their order; `scenario` fills them.
PHASES: Final = {
    "skeleton": Phase("Phase 1: Skeleton", {}),
    "evaluation": Phase("Phase 2: Mock Evaluation", {}),
    "inference": Phase("Phase 3: Real Inference", {}),
    "integration": Phase("Phase 4: Coordinator", {}),
}


def scenario(phase: str, title: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """The function is a scenario of that phase."""

    def enter(run: Callable[[], Finding]) -> Callable[[], Finding]:
        PHASES[phase].scenarios[title] = run
        return run

    return enter


def message(content: str, id: str = "m1", **more: Any) -> dict[str, Any]:
    """A message as evaluators get it."""
    return {"id": id, "content": content, "sender_id": "pool-check", **more}


@contextmanager
def worker(evaluator: str = MOCK, **context: Any) -> Iterator[PoolWorker]:
    """A pool of one."""
    with WorkerPool(evaluator, start_timeout_s=MODEL_S if evaluator == MODEL else 5.0) as pool:
        yield pool.initialize_worker("test-persona-123", **context)


def passed_ms(started_ns: int) -> float:
    """Milliseconds since that moment."""
    return (SYSTEM.steady_ns() - started_ns) / 1e6


# Phase 1: workers that answer


@scenario("skeleton", "Worker Startup")
def startup() -> Finding:
    """A worker says that it is ready."""
    started_ns = SYSTEM.steady_ns()
    with worker():
        took_ms = passed_ms(started_ns)
    return Finding(took_ms < READY_MS, f"ready after {took_ms:.0f} ms (limit {READY_MS:.0f})", {"latency": took_ms})


@scenario("skeleton", "Ping-Pong Communication")
def ping_pong() -> Finding:
    """Ten pings, one after the other."""
    with worker() as one:
        found = [one.ping(PATIENCE_S) for _ in range(10)]
    mean_ms = sum(found) / len(found)
    metrics = {"latency": mean_ms, "throughput": 1000 / mean_ms}
    return Finding(mean_ms < PING_MS, f"{mean_ms:.3f} ms on average (limit {PING_MS:.0f})", metrics)


@scenario("skeleton", "Rapid Fire Stress Test")
def rapid_fire() -> Finding:
    """A hundred pings at the same time."""
    count = 100
    with worker() as one:
        started_ns = SYSTEM.steady_ns()
        with ThreadPoolExecutor(count) as threads:
            pings = [threads.submit(one.ping, PATIENCE_S) for _ in range(count)]
        errors = sum(ping.exception() is not None for ping in pings)
        took_ms = passed_ms(started_ns)
    metrics = {"throughput": count * 1000 / took_ms, "errorRate": errors / count}
    return Finding(errors == 0, f"{errors} errors in {count} pings at once, {took_ms:.0f} ms for all", metrics)


@scenario("skeleton", "A Thousand Pings")
def thousand_pings() -> Finding:
    """A thousand pings in a row, without an error and without an answer out of order."""
    count = 1000
    with worker() as one:
        mean_ms = sum(one.ping(PATIENCE_S) for _ in range(count)) / count
        said = one.stats()
    odd = said.get("late", 0) + said.get("unknown", 0)
    return Finding(odd == 0, f"{mean_ms:.3f} ms on average, {odd} answers out of order", {"latency": mean_ms})


@scenario("skeleton", "Clean Shutdown")
def clean_shutdown() -> Finding:
    """A worker ends when it is told to."""
    with worker() as one:
        started_ns = SYSTEM.steady_ns()
        one.shutdown()
        took_ms = passed_ms(started_ns)
    return Finding(
        took_ms < SHUTDOWN_MS, f"stopped after {took_ms:.1f} ms (limit {SHUTDOWN_MS:.0f})", {"latency": took_ms}
    )


# Phase 2: workers that judge


@scenario("evaluation", "Result With Correct Message Id")
def correct_id() -> Finding:
    """The result names the message that was asked about."""
    with worker(think_ms=10) as one:
        found = [one.evaluate(message("Test message", id=f"test-msg-{n}")) for n in range(5)]
    right = [each.message_id for each in found] == [f"test-msg-{n}" for n in range(5)]
    sure = ", ".join(f"{each.confidence:.2f}" for each in found if each.confidence is not None)
    return Finding(right, f"5 results, each for its message; confidence {sure}", {"latency": found[-1].round_trip_ms})


@scenario("evaluation", "Multiple Evaluations In Sequence")
def in_sequence() -> Finding:
    """Several evaluations, one after the other."""
    count = 20
    with worker(think_ms=5) as one:
        started_ns = SYSTEM.steady_ns()
        found = [one.evaluate(message(f"number {n}", id=f"m{n}")) for n in range(count)]
        took_ms = passed_ms(started_ns)
    good = sum(each.state == "ok" for each in found)
    return Finding(good == count, f"{good} of {count} in {took_ms:.0f} ms", {"throughput": count * 1000 / took_ms})


@scenario("evaluation", "Processing Time")
def processing_time() -> Finding:
    """The mock takes as long as it is told to, and the pool adds next to nothing."""
    with worker(think_ms=[100, 400]) as one:
        found = [one.evaluate(message("hm", id=f"m{n}")) for n in range(3)]
    worst_ms = max(each.processing_time_ms for each in found)
    added_ms = max(each.round_trip_ms - each.processing_time_ms for each in found)
    notes = f"{worst_ms:.0f} ms at most (limit {MOCK_MS:.0f}), {added_ms:.2f} ms of it not in the evaluator"
    return Finding(worst_ms < MOCK_MS, notes, {"latency": worst_ms})


@scenario("evaluation", "Timeout Handling")
def timeout() -> Finding:
    """A worker that does not answer in time is told apart from one that does, and serves on."""
    with worker(think_ms=5) as quick, worker(think_ms=60_000) as slow:
        started_ns = SYSTEM.steady_ns()
        try:
            slow.evaluate(message("take your time"), timeout_s=0.2)
        except WorkerTimeout as error:
            took_ms, said = passed_ms(started_ns), str(error)
        else:
            return Finding(passed=False, notes="it answered after all", metrics={})
        alive = slow.ping(PATIENCE_S) > 0 and quick.evaluate(message("and you?")).state == "ok"
    return Finding(alive and took_ms < STOPPED_MS, f"{said}; it answers pings again", {"latency": took_ms})


# Phase 3: a real model


def model_spec() -> str:
    """The model that the surroundings ask for. A mock is none."""
    spec = default_spec()
    if spec.partition(":")[0] == "mock":
        raise ModelMissing(f"{spec} is not a real model; set POSTROOM_MODEL to one")
    return spec


@scenario("inference", "Real Inference Completes")
def real_inference() -> Finding:
    """A model answers, and its answer can be read."""
    spec = model_spec()
    with worker(MODEL, model=spec) as one:
        found = [one.evaluate(message(text, id=f"m{n}"), MODEL_S) for n, text in enumerate(QUESTIONS)]
    states = [each.state for each in found]
    slowest_ms = max(each.processing_time_ms for each in found)
    told = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    why = next((f": {each.error}" for each in found if each.error), "")
    good = "ok" in states and "error" not in states
    return Finding(good, f"{spec}: {told} of {len(found)}, {slowest_ms:.0f} ms at most{why}", {"latency": slowest_ms})


@scenario("inference", "Main Thread Never Blocked")
def never_blocked() -> Finding:
    """While a model works, the parent runs on, and another worker answers."""
    with worker(MODEL, model=model_spec()) as busy, worker() as idle:
        request = busy.submit(message(QUESTIONS[0]), MODEL_S)
        late_ms, pings = [0.0], []
        while not request.done:
            before_ns = SYSTEM.steady_ns()
            SYSTEM.sleep(0.005)
            late_ms.append(passed_ms(before_ns) - 5)
            pings.append(idle.ping(PATIENCE_S))
        took_ms = (request.ended_ns - request.asked_ns) / 1e6
    good = request.error is None and max(late_ms) < HELD_UP_MS
    notes = f"inference of {took_ms:.0f} ms; parent at most {max(late_ms):.1f} ms late, {len(pings)} pings answered meanwhile"
    return Finding(good, notes, {"latency": max(late_ms)})


@scenario("inference", "Worker Recovers From Timeout")
def recovers() -> Finding:
    """A model that is too slow for the deadline is called off, and the worker serves on."""
    with worker(MODEL, model=model_spec()) as one:
        try:
            one.evaluate(message(QUESTIONS[0]), timeout_s=0.001)
        except WorkerTimeout:
            after = one.evaluate(message(QUESTIONS[1], id="m2"), MODEL_S)
            restarts = one.figures.counts["restarts"]
        else:
            return Finding(passed=False, notes="it answered within a millisecond: that is no model", metrics={})
    notes = f"timed out, then answered ({after.state}); {restarts} restarts"
    return Finding(after.state in ("ok", "unparsed"), notes, {"latency": after.round_trip_ms})


@scenario("inference", "Workers In Parallel")
def in_parallel() -> Finding:
    """Two workers ask the model at once, and each gets its own answer."""
    spec = model_spec()
    names = ["ada", "bob"]
    with WorkerPool(MODEL, workers={name: {"model": spec} for name in names}, start_timeout_s=MODEL_S) as pool:
        started_ns = SYSTEM.steady_ns()
        requests = [
            pool.workers[name].submit(message(text, id=name), MODEL_S)
            for name, text in zip(names, QUESTIONS, strict=False)
        ]
        found = [request.result() for request in requests]
        took_ms = passed_ms(started_ns)
    right = [each.message_id for each in found] == names and all(each.state != "error" for each in found)
    alone_ms = sum(each.processing_time_ms for each in found)
    return Finding(right, f"2 answers in {took_ms:.0f} ms ({alone_ms:.0f} ms of work)", {"latency": took_ms})


# Phase 4: several that decide together


@scenario("integration", "Same Message In Parallel")
def same_message() -> Finding:
    """All workers judge the same message at the same time."""
    names = ["ada", "bob", "carl", "dora"]
    with TemporaryDirectory(prefix="postroom-") as folder:
        everybody: dict[str, Any] = {"folder": folder, "of": len(names)}
        with WorkerPool(MEETING, workers=dict.fromkeys(names, everybody)) as pool:
            started_ns = SYSTEM.steady_ns()
            found = pool.evaluate_message(message("What do you all think?"), timeout_s=2 * PATIENCE_S)
            took_ms = passed_ms(started_ns)
    good = [each for each in found.values() if isinstance(each, Evaluation) and each.state == "ok"]
    notes = f"{len(good)} of {len(names)} were at work at the same time; {took_ms:.0f} ms"
    return Finding(len(good) == len(names), notes, {"latency": took_ms})


def meet(message: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> Evaluation:
    """An evaluator that is sure once all others are at work too, and fails where they are not in time.

    How long it took would say nothing on a machine that does other things.
    """
    settings = context or {}
    folder, of = Path(settings["folder"]), int(settings["of"])
    (folder / f"{os.getpid()}").touch()
    until_ns = SYSTEM.steady_ns() + round(PATIENCE_S * 1e9)
    while (here := len(os.listdir(folder))) < of:
        if SYSTEM.steady_ns() > until_ns:
            return Evaluation.failed(message["id"], f"only {here} of {of} were at work")
        SYSTEM.sleep(0.001)
    return Evaluation(message["id"], confidence=1.0, should_respond=True)


@scenario("integration", "Temporal Decay")
def decay() -> Finding:
    """The confidence in an old message is halved after each half-life; the confidence as said is kept."""
    age_s, half_life_s = 10.0, 5.0
    with WorkerPool(MOCK, workers={"ada": {"think_ms": 10}}) as pool:
        coordinator = Coordinator(pool, half_life_s=half_life_s)
        sent = iso(SYSTEM.wall_ms() - round(age_s * 1000))
        decision = coordinator.consider(message("still there?", timestamp=sent))
    outcome = decision.outcomes["ada"]
    if outcome.confidence is None or outcome.decayed is None:
        return Finding(passed=False, notes=f"nothing to decay: {decision}", metrics={})
    wanted = outcome.confidence * 0.5 ** ((age_s + decision.after_s) / half_life_s)
    off = abs(outcome.decayed - wanted)
    notes = f"{outcome.confidence:.3f} is {outcome.decayed:.3f} after {age_s + decision.after_s:.2f} s of a half-life of {half_life_s:g} s"
    return Finding(off < 0.01, notes, {"errorRate": off})


@scenario("integration", "Decision With Partial Results")
def partial() -> Finding:
    """One that is slow does not keep the others from being heard."""
    thinks = {"ada": 20, "bob": 20, "carl": 60_000}
    with WorkerPool(MOCK, workers={name: {"think_ms": ms} for name, ms in thinks.items()}) as pool:
        started_ns = SYSTEM.steady_ns()
        decision = Coordinator(pool, deadline_s=DECIDE_S, max_responders=2).consider(message("Anybody?"))
        took_ms = passed_ms(started_ns)
    heard = sorted(name for name, outcome in decision.outcomes.items() if outcome.confidence is not None)
    told = all(outcome.granted or outcome.reason is not None for outcome in decision.outcomes.values())
    notes = f"decided by {decision.trigger} after {took_ms:.0f} ms with {', '.join(heard)}; carl: {decision.outcomes['carl'].reason}"
    return Finding(heard == ["ada", "bob"] and told and took_ms < DECIDED_MS, notes, {"latency": took_ms})


@scenario("integration", "AI-AI Conversation")
def conversation() -> Finding:
    """Two personas answer each other, each turn soon enough to feel natural."""
    turns_ms: list[float] = []
    with WorkerPool(MOCK, workers={name: {"think_ms": 100} for name in ("ada", "bob")}) as pool:
        coordinator = Coordinator(pool, deadline_s=2.0)
        speaker = "ada"
        for turn in range(6):
            started_ns = SYSTEM.steady_ns()
            said = message(f"turn {turn}", id=f"turn-{turn}") | {"sender_id": speaker, "hop_count": turn}
            decision: Decision = coordinator.consider(said)
            if len(decision.granted) != 1:
                return Finding(passed=False, notes=f"no worker answered turn {turn}: {decision.outcomes}", metrics={})
            speaker = decision.granted[0]
            turns_ms.append(passed_ms(started_ns))
    worst_ms = max(turns_ms)
    notes = f"{len(turns_ms)} turns, {worst_ms:.0f} ms for the slowest (limit {TURN_MS:.0f}), 100 of them to think"
    return Finding(worst_ms < TURN_MS, notes, {"latency": worst_ms})
