"""What a worker did, counted; and how long it took, measured apart: in the queue, at work, there and back."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any, Final, NamedTuple

from .evaluation import Evaluation

#: The spans of so many evaluations are kept.
KEPT_SPANS: Final = 256


class Spans(NamedTuple):
    """Milliseconds, of the latest evaluations."""

    number: int
    p50: float
    p95: float
    max: float


NO_SPANS: Final = Spans(0, 0.0, 0.0, 0.0)


def spans_of(values: deque[float]) -> Spans:
    """What there is to tell about these milliseconds."""
    ordered = sorted(values)
    if not ordered:
        return NO_SPANS
    return Spans(
        len(ordered), ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)], ordered[-1]
    )


class WorkerFigures:
    """The figures of one worker, over all its processes.

    Counted: done, failed, timed_out, aborted, died, dropped, refused; late (results that came when nobody waited any
    more) and unknown (results of no request); restarts, recycled.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._queue_delay: deque[float] = deque(maxlen=KEPT_SPANS)
        self._processing: deque[float] = deque(maxlen=KEPT_SPANS)
        self._round_trip: deque[float] = deque(maxlen=KEPT_SPANS)

    def count(self, what: str) -> None:
        """Count something. From any thread: none is lost."""
        with self._lock:
            self.counts[what] += 1

    def add(self, evaluation: Evaluation) -> None:
        """One more evaluation is done."""
        self.count("done")
        self._queue_delay.append(evaluation.queue_delay_ms)
        self._processing.append(evaluation.processing_time_ms)
        self._round_trip.append(evaluation.round_trip_ms)

    @property
    def queue_delay_ms(self) -> Spans:
        """From the request until the evaluator was called."""
        return spans_of(self._queue_delay)

    @property
    def processing_ms(self) -> Spans:
        """Inside of the evaluator."""
        return spans_of(self._processing)

    @property
    def round_trip_ms(self) -> Spans:
        """From the request until its result was here."""
        return spans_of(self._round_trip)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        spans = {name: getattr(self, name)._asdict() for name in ("queue_delay_ms", "processing_ms", "round_trip_ms")}
        return {**{name: count for name, count in sorted(self.counts.items()) if count}, **spans}
