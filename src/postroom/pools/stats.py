"""Metrics of a worker: counters, and spans of time measured apart: in the queue, at work, there and back."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from .evaluation import Evaluation

#: The spans of so many evaluations are kept.
KEPT_SPANS: Final = 256
#: From the request until the evaluator was called; inside of the evaluator; from the request until its result was here.
SPANS: Final = ("queue_delay_ms", "processing_ms", "round_trip_ms")


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The value that so many of a hundred do not exceed. There must be one."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def spans_of(values: Iterable[float]) -> dict[str, float]:
    """What there is to tell about these milliseconds."""
    ordered = sorted(values)
    known = ordered or (0.0,)
    return {"number": len(ordered), "p50": percentile(known, 50), "p95": percentile(known, 95), "max": known[-1]}


class WorkerFigures:
    """The figures of one worker, over all its processes.

    Counted: done, failed, timed_out, aborted, died, dropped, refused; late (results that came when nobody waited any
    more) and unknown (results of no request); restarts, recycled.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._spans: deque[tuple[float, float, float]] = deque(maxlen=KEPT_SPANS)

    def count(self, what: str) -> None:
        """Count something. From any thread: none is lost."""
        with self._lock:
            self.counts[what] += 1

    def add(self, evaluation: Evaluation) -> None:
        """One more evaluation is done."""
        self.count("done")
        self._spans.append((evaluation.queue_delay_ms, evaluation.processing_time_ms, evaluation.round_trip_ms))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        kept = tuple(self._spans)
        spans = {name: spans_of(span[place] for span in kept) for place, name in enumerate(SPANS)}
        return {**{name: count for name, count in sorted(self.counts.items()) if count}, **spans}
