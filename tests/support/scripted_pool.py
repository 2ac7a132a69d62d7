"""A pool whose results come when a test says, for the exact moments that a real one cannot be held to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from typing import Any

from postroom import Evaluation

PATIENCE_S = 20.0


class ScriptedRequest:
    """A request to one worker, as the pool makes them."""

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        self.outcome: Any = None
        self.done = False


class ScriptedPool:
    """Looks like a `WorkerPool` to a coordinator."""

    def __init__(self, *names: str) -> None:
        self.workers: dict[str, Any] = dict.fromkeys(names)
        self.asked: list[dict[str, Any]] = []
        self._begun = threading.Semaphore(0)
        self._requests: dict[str, dict[str, ScriptedRequest]] = {}
        self._listeners: dict[str, Callable[[str, Any], None]] = {}

    def begin(
        self,
        message: Mapping[str, Any],
        timeout_s: float | None,
        listener: Callable[[str, Any], None] | None,
        *,
        skip: Container[object] = (),
    ) -> dict[str, ScriptedRequest]:
        id = message["id"]
        self._requests[id] = {name: ScriptedRequest() for name in self.workers if name not in skip}
        assert listener is not None
        self._listeners[id] = listener
        self.asked.append(dict(message))
        self._begun.release()
        return self._requests[id]

    def wait_until_asked(self) -> None:
        assert self._begun.acquire(timeout=PATIENCE_S), "nobody asked"

    def tell(self, id: str, name: str, said: Evaluation | Exception) -> None:
        """A result of one worker comes."""
        request = self._requests[id][name]
        if isinstance(said, Evaluation):
            request.evaluations.append(said)
        request.done = isinstance(said, Exception) or said.stage == "deep"
        request.outcome = said if request.done else None
        self._listeners[id](name, request)


class InstantPool(ScriptedPool):
    """Every worker has its last word at once; what it is, a function says."""

    def __init__(self, *names: str, judge: Callable[[str, str], Evaluation]) -> None:
        super().__init__(*names)
        self._judge = judge

    def begin(
        self,
        message: Mapping[str, Any],
        timeout_s: float | None,
        listener: Callable[[str, Any], None] | None,
        *,
        skip: Container[object] = (),
    ) -> dict[str, ScriptedRequest]:
        requests = super().begin(message, timeout_s, listener, skip=skip)
        for name in requests:
            self.tell(message["id"], name, self._judge(name, message["id"]))
        return requests
