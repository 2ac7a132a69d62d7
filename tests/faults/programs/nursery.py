"""A process that has imported everything and opened nothing, and forks children that play a role.

Starting an interpreter costs a tenth of a second, a fork two thousandths: this is what makes a thousand kills cheap.
One line of JSON in, one line out:

    {"fork": "storm.sender", "with": {...}}     {"pid": 123}
    {"kill": [123, 124]}                        {"at_ns": steady time just before the first kill}; they are gone then
    {"wait": 123, "patience_s": 240}            {"status": exit code, or minus the signal}; once it has ended; null: it
                                                was killed because it did not end in that time
    {"ended": [123, 124]}                       {"ended": {"123": status}}: those that have ended by themselves

It ends, and takes its children with it, when its input ends or the test's process is gone. Only children that were not
yet waited for are killed, so no stranger with a reused pid can be hit.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any, NoReturn


def steady_ns() -> int:
    """The machine's steady clock, the same for all processes."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Nursery:
    """Forks, kills and waits for children."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self._parent = os.getppid()

    def fork(self, role: str, arguments: dict[str, Any]) -> dict[str, Any]:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _play(role, arguments)
        self.alive.add(pid)
        return {"pid": pid}

    def kill(self, pids: list[int]) -> dict[str, Any]:
        at_ns = steady_ns()
        victims = [pid for pid in pids if pid in self.alive]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for pid in victims:
            os.waitpid(pid, 0)
            self.alive.discard(pid)
        return {"at_ns": at_ns}

    def wait(self, pid: int, patience_s: float) -> dict[str, Any]:
        until_ns = steady_ns() + int(patience_s * 1e9)
        while not (ended := self.ended([pid])["ended"]):
            if os.getppid() != self._parent:
                self.kill(list(self.alive))
                sys.exit("the test is gone")
            if steady_ns() > until_ns:
                self.kill([pid])
                return {"status": None}
            time.sleep(0.002)
        return {"status": ended[str(pid)]}

    def ended(self, pids: list[int]) -> dict[str, Any]:
        found: dict[str, int] = {}
        for pid in set(pids) & self.alive:
            seen, status = os.waitpid(pid, os.WNOHANG)
            if seen:
                self.alive.discard(pid)
                found[str(pid)] = os.waitstatus_to_exitcode(status)
        return {"ended": found}


def _play(role: str, arguments: dict[str, Any]) -> NoReturn:
    """The child's whole life. It never closes anything on its way out: only a role that wants to does."""
    status = 1
    try:
        os.close(0)
        module, _, function = role.rpartition(".")
        getattr(importlib.import_module(f"{__package__}.{module}"), function)(**arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(f"{__package__}.{module}")
    nursery = Nursery()
    for line in sys.stdin:
        request = json.loads(line)
        if "fork" in request:
            answer = nursery.fork(request["fork"], request["with"])
        elif "kill" in request:
            answer = nursery.kill(request["kill"])
        elif "wait" in request:
            answer = nursery.wait(request["wait"], request["patience_s"])
        else:
            answer = nursery.ended(request["ended"])
        print(json.dumps(answer), flush=True)
    nursery.kill(list(nursery.alive))


if __name__ == "__main__":
    main()
