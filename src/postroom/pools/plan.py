"""How the workers of a pool are run: the settings of a pool, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from postroom.core.message import check_span
from postroom.errors import Fault, raise_faults

from .restarts import Recycling, RestartPolicy

Policy = Literal["block", "drop_oldest", "refuse"]
POLICIES: Final[tuple[Policy, ...]] = ("block", "drop_oldest", "refuse")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How the workers of a pool are run. Raises InvalidMessage for settings that no worker can be run with."""

    evaluator: str
    queue_size: int
    policy: Policy
    #: How many requests a worker has in hand at once: one that it works on, the others to go on with at once.
    in_hand: int
    start_timeout_s: float
    #: How long a worker may take to stop an evaluation, or to end, before it is killed.
    grace_s: float
    restart: RestartPolicy
    recycling: Recycling
    show: bool

    def __post_init__(self) -> None:
        faults: list[Fault] = []
        given: Any = self.evaluator
        module, colon, function = given.partition(":") if isinstance(given, str) else ("", "", "")
        if not (module and colon and function):
            faults.append(Fault("evaluator", f'must be "module:function", not {given!r}'))
        elif module == "__main__":
            faults.append(Fault("evaluator", "must be in a module of its own: a worker cannot import a program"))
        if self.policy not in POLICIES:
            faults.append(Fault("policy", f"must be one of {', '.join(POLICIES)}, not {self.policy!r}"))
        for name, number in (("queue_size", self.queue_size), ("in_hand", self.in_hand)):
            if type(number) is not int or number < 1:
                faults.append(Fault(name, f"must be a whole number of 1 or more, not {number!r}"))
        check_span("start_timeout_s", self.start_timeout_s, faults, zero=False)
        check_span("grace_s", self.grace_s, faults, zero=False)
        raise_faults(faults)
