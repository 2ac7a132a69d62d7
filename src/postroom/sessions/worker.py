"""Workers as descriptions: which function is to run, with which arguments, and whether another process can find it.

@postroom.worker
def analyzer(session, target): ...

analyzer("src/main.rs")         a description, which session.delegate([...]) runs
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

from postroom.core.message import decode_payload, payload_text
from postroom.errors import Fault, InvalidMessage, NotStartable, raise_faults

#: Arguments and results go through a pipe, not through the room: they may be larger than messages.
MAX_VALUE_BYTES: Final = 256 * 1024 * 1024
MAX_NAME: Final = 100
_MAIN: Final = "__main__"


class WorkerCall(NamedTuple):
    """One call of a worker that was not made yet: what `delegate` takes."""

    worker: Worker  # which worker is called
    #: Positional and named arguments as JSON text, so that what the caller changes later is not in it.
    arguments: str

    @property
    def name(self) -> str:
        """The worker's."""
        return self.worker.name

    def decoded(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, a fresh copy."""
        positional, named = decode_payload(self.arguments)
        return positional, named


class Worker:
    """A function that can be delegated to. Calling it makes a description; `function` is the function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise InvalidMessage("worker", f"must be a function, not {type(function).__name__}")
        self.function = function  # the function itself
        self.name: str = getattr(function, "__name__", type(function).__name__)[:MAX_NAME]  # the function's name
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> WorkerCall:
        """Describe a call with these arguments, which must be JSON. The session is put before them when it is run."""
        return WorkerCall(self, json_text("arguments", [list(args), kwargs]))

    def __repr__(self) -> str:
        return f"<Worker {self.name}>"


def worker(function: Callable[..., Any]) -> Worker:
    """Make a worker of a function `f(session, ...)` that returns a JSON value."""
    return Worker(function)


def json_text(field: str, value: object) -> str:
    """The value as JSON; InvalidMessage that names the place when it cannot be."""
    faults: list[Fault] = []
    text = payload_text(value, faults, MAX_VALUE_BYTES)
    if faults:
        raise InvalidMessage(
            [Fault(f"{field}{fault.field.removeprefix('payload')}", fault.problem) for fault in faults]
        )
    return text


def check_calls(workers: object) -> list[WorkerCall]:
    """The descriptions that `delegate` was given; InvalidMessage that says what is wrong with them."""
    if isinstance(workers, WorkerCall | Worker) or not isinstance(workers, Sequence) or isinstance(workers, str):
        raise InvalidMessage("workers", f"must be a list of called workers, such as [f(1), g()], not {_kind(workers)}")
    faults = [
        Fault(f"workers[{place}]", f"must be a called worker, such as f(1), not {_kind(call)}")
        for place, call in enumerate(workers)
        if not isinstance(call, WorkerCall)
    ]
    raise_faults(faults)
    return list(workers)


def _kind(value: object) -> str:
    if isinstance(value, Worker):
        return f"the worker {value.name} itself (call it: {value.name}())"
    return f"a single {value.name}()" if isinstance(value, WorkerCall) else type(value).__name__


def names_of(calls: Sequence[WorkerCall]) -> list[str]:
    """A name for each: its function's, with a number where several have the same."""
    all_names = [call.name for call in calls]
    seen: dict[str, int] = {}
    names = []
    for name in all_names:
        seen[name] = seen.get(name, 0) + 1
        names.append(f"{name}-{seen[name]}" if all_names.count(name) > 1 else name)
    return names


# Whether another process can find the function


class FunctionPlace(NamedTuple):
    """Where a worker's function is found: its module and its name there. For the program itself, its file or module."""

    module: str
    qualname: str
    main_path: str | None = None
    main_module: str | None = None


def place_of(call: WorkerCall) -> FunctionPlace:
    """Where another process finds the worker. NotStartable, with what to do, when it cannot."""
    module = getattr(call.worker.function, "__module__", None) or ""
    qualname = getattr(call.worker.function, "__qualname__", "")
    if "<" in qualname or not qualname:
        raise NotStartable(
            f"worker {call.name} is defined inside a function ({qualname}), where another process cannot find it; "
            "define it at the top level of a module"
        )
    if module != _MAIN:
        return FunctionPlace(module, qualname)
    main = sys.modules[_MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:  # python -m
        _check_guard(call, getattr(main, "__file__", None))
        return FunctionPlace(module, qualname, main_module=spec.name)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path) or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        raise NotStartable(
            f"worker {call.name} is defined in an interactive session, where another process cannot find it; "
            "put it into a .py file and import it from there"
        )
    _check_guard(call, path)
    return FunctionPlace(module, qualname, main_path=os.path.abspath(path))


def _check_guard(call: WorkerCall, path: str | None) -> None:
    """Refuse a program that would delegate again when a worker's process loads it to find the worker."""
    line = _line_of_main()
    if path is None or line is None or _is_guarded(path, line):
        return
    raise NotStartable(
        f"line {line} of {path} delegates to {call.name} at the top level, so every worker that loads this program would "
        'delegate again; put that part under `if __name__ == "__main__":`'
    )


def _line_of_main() -> int | None:
    """The line at which the top level of the program is right now; None when it is another thread, or over."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  the one way to see the caller
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == _MAIN:
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_guarded(path: str, line: int) -> bool:
    """Whether that line stands in a block that asks for the program's name."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return True  # it cannot be judged; the worker's process will say what is wrong
    return any(
        isinstance(node, ast.If)
        and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)
        for node in tree.body
    )
