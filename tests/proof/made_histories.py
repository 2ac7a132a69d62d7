"""Histories that surely can have happened: what a plain model did step by step, seen by processes that took their time.

Every step happens in the model at one moment; the call around it begins a little before and returns a little after, so
that calls of different processes overlap. Some processes are killed in the middle of a call, which has happened or not.
"""

from __future__ import annotations

import random
from typing import Any

from tests.support.store_model import Model

from postroom.core.states import FINISHED
from postroom.testing.histories import RecordedCall
from postroom.testing.histories.record import FOREVER, UNKNOWN

MS = 1_000_000
AGENTS = ("bob", "eve")
CELLS = ("one", "two")
UNTIRING = 1_000_000


class Maker:
    """Makes one history. `calls` is what it has come to."""

    def __init__(self, seed: int, processes: int = 4) -> None:
        self.chance = random.Random(seed)
        self.model = Model()
        self.model.now = 1000
        self.calls: list[RecordedCall] = []
        self._sent = 0
        self._born = 0
        self._free_ns: dict[str, int] = {}  # processes, and when each has returned from its last call
        self._tickets: dict[str, list[tuple[int, int]]] = {}
        self._told: list[int] = []  # the messages whose ids somebody was told
        self._versions: dict[str, list[int]] = {name: [0] for name in CELLS}
        for _ in range(processes):
            self._bear()

    def _bear(self) -> None:
        self._born += 1
        process = f"p{self._born}"
        self._free_ns[process], self._tickets[process] = self.model.now * MS, []

    def run(self, steps: int, kills: bool = True) -> list[RecordedCall]:
        """So many calls, then everything that is left is received and looked at."""
        for _ in range(steps):
            self._pass(self.chance.choice((1, 1, 2, 5)))
            process = self._idle_process()
            if kills and self.chance.random() < 0.03:
                self._kill(process)
            else:
                self._call(process, *self._any(process))
        self._drain()
        self.calls.sort(key=lambda call: call.begin_ns)
        return self.calls

    def _pass(self, ms: int) -> None:
        self.model.now += ms

    def _idle_process(self) -> str:
        while not (idle := [name for name, free_ns in self._free_ns.items() if free_ns < self.model.now * MS]):
            self._pass(1)
        return self.chance.choice(idle)

    def _call(self, process: str, operation: str, arguments: dict[str, Any], result: Any) -> RecordedCall:
        at_ns = self.model.now * MS
        begin_ns = max(self._free_ns[process] + 1, at_ns - self.chance.randrange(1, 6 * MS))
        end_ns = at_ns + self.chance.randrange(1, 6 * MS)
        self._free_ns[process] = end_ns
        call = RecordedCall(process, operation, begin_ns, end_ns, arguments, result)
        self.calls.append(call)
        if operation == "send" and result is not UNKNOWN:
            self._tell(result)
        elif operation == "settle" and result is not UNKNOWN:
            self._tell(result[2] + [given[0] for given in result[3] or ()])
        elif operation == "claim" and result is not UNKNOWN:
            self._tell([given[0] for given in result])
        return call

    def _tell(self, ids: list[str]) -> None:
        self._told += [number for id in ids if (number := int(id[3:])) not in self._told]

    def _kill(self, process: str) -> None:
        """In the middle of a call, which has happened or not; its mail is free a moment later."""
        if self.chance.random() < 0.5:
            operation, arguments, _ = self._any(process)
            call = self._call(process, operation, arguments, UNKNOWN)
            call.end_ns = FOREVER
        elif self.chance.random() < 0.5:
            wanted = self._wanted(process)
            self._call(process, "claim", {k: v for k, v in wanted.items() if k != "owner"}, UNKNOWN).end_ns = FOREVER
        at_ns = self.model.now * MS
        self._pass(1)
        self.calls.append(
            RecordedCall("killer", "kill", at_ns + 1, self.model.now * MS + 1, {"processes": [process]}, None)
        )  # fmt: skip
        self.model.bury(process)
        del self._free_ns[process]
        self._bear()

    # What processes do

    def _any(self, process: str) -> tuple[str, dict[str, Any], Any]:
        what = self.chance.random()
        if what < 0.3:
            return self._send()
        if what < 0.55 or (what < 0.8 and not self._tickets[process]):
            return self._claim(process)
        if what < 0.75:
            return self._settle(process)
        if what < 0.8:
            return self._extend(process)
        if what < 0.86:
            return self._look(self.chance.choice(self._told)) if self._told else self._send()
        if what < 0.88 and self._told:
            return self._requeue()
        return self._cell(process)

    def _draft(self, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """A message for the model, and what the history says of it."""
        self._sent += 1
        chance, label = self.chance, f"m{self._sent}"
        said: dict[str, Any] = {
            "label": label, "to": chance.choice((*AGENTS, None)), "channel": "general",
            "priority": chance.choice((0, 0, 0, 5)), "most": chance.choice((2, 3, UNTIRING, UNTIRING)), **more,
        }  # fmt: skip
        if said["to"] is None:
            said["channel"] = "jobs"
        if chance.random() < 0.1:
            said["delay_s"] = 0.05
        if chance.random() < 0.1:
            said["ttl_s"] = 0.2
        draft = {
            "sender": "ada", "key": None, "publish": False, "channel": said["channel"], "to": said["to"],
            "delay": int(said.get("delay_s", 0) * 1000), "waiter": None, "answer_to": None, "text": label,
            "ttl": int(said["ttl_s"] * 1000) if "ttl_s" in said else None, "priority": said["priority"],
            "most": said["most"],
        }  # fmt: skip
        return draft, said

    def _send(self) -> tuple[str, dict[str, Any], Any]:
        made = [self._draft() for _ in range(self.chance.choice((1, 1, 1, 2, 3)))]
        numbers = self.model.put([draft for draft, _ in made])
        return "send", {"messages": [said for _, said in made]}, [f"id-{number}" for number in numbers]

    def _wanted(self, process: str) -> dict[str, Any]:
        wanted: dict[str, Any] = {
            "agent": self.chance.choice(AGENTS), "limit": self.chance.choice((1, 1, 3)),
            "lease_s": self.chance.choice((0.02, 0.05, 0.5)),
        }  # fmt: skip
        if self.chance.random() < 0.7:
            wanted["owned"] = True
        if self.chance.random() < 0.3:
            wanted["channels"] = ["jobs"]
        return wanted

    def _given(self, process: str, wanted: dict[str, Any]) -> list[list[Any]]:
        numbers = self.model.claim(
            {
                "agent": wanted["agent"], "limit": wanted["limit"], "lease": int(wanted["lease_s"] * 1000), "ids": None,
                "owner": process if wanted.get("owned") else None, "settle": False,
                "channels": tuple(wanted["channels"]) if "channels" in wanted else None,
            }
        )  # fmt: skip
        messages = [self.model.messages[number] for number in numbers]
        self._tickets[process] += [(m["number"], m["token"]) for m in messages]
        return [[f"id-{m['number']}", m["text"], m["token"], m["deliveries"]] for m in messages]

    def _claim(self, process: str) -> tuple[str, dict[str, Any], Any]:
        wanted = self._wanted(process)
        return "claim", wanted, self._given(process, wanted)

    def _ticket(self, process: str) -> tuple[int, int]:
        """One that it was given; seldom one that it has used already, which stays in its hands."""
        ticket = self.chance.choice(self._tickets[process])
        if self.chance.random() < 0.8:
            self._tickets[process].remove(ticket)
        return ticket

    def _settle(self, process: str) -> tuple[str, dict[str, Any], Any]:
        ticket = self._ticket(process)
        outcome = self.chance.choice(
            ("acked", "acked", "acked", "answered", "retry", "retry", "returned", "dead", "refused")
        )
        delay_s = self.chance.choice((0, 0.03)) if outcome == "retry" else 0
        puts = [self._draft()] if outcome == "answered" else []
        wanted = self._wanted(process) if self.chance.random() < 0.3 else None
        held, state, stored, _ = self.model.settle(
            ticket, outcome, "said", int(delay_s * 1000), [draft for draft, _ in puts], None
        )
        given = None if wanted is None else self._given(process, wanted)
        arguments = {
            "id": f"id-{ticket[0]}", "token": ticket[1], "outcome": outcome, "delay_s": delay_s,
            "puts": [said for _, said in puts], "next": wanted,
        }  # fmt: skip
        said = None if state is None else state.name.lower()
        return "settle", arguments, [held, said, [f"id-{number}" for number in stored], given]

    def _extend(self, process: str) -> tuple[str, dict[str, Any], Any]:
        ticket, lease_s = self._ticket(process), self.chance.choice((0.02, 0.5))
        arguments = {"id": f"id-{ticket[0]}", "token": ticket[1], "lease_s": lease_s}
        return "extend", arguments, self.model.extend(ticket, int(lease_s * 1000))

    def _look(self, number: int) -> tuple[str, dict[str, Any], Any]:
        m = self.model.messages[number]
        return "look", {"id": f"id-{number}"}, [self.model.judged(m).name.lower(), m["deliveries"]]

    def _requeue(self) -> tuple[str, dict[str, Any], Any]:
        numbers = self.chance.choices(self._told, k=2)
        done = self.model.requeue(numbers)
        return "requeue", {"ids": [f"id-{n}" for n in dict.fromkeys(numbers)]}, [f"id-{n}" for n in done]

    def _cell(self, process: str) -> tuple[str, dict[str, Any], Any]:
        name = self.chance.choice(CELLS)
        version, value = self.model.cells.get(name, (0, None))
        if self.chance.random() < 0.4:
            return "read", {"cell": name}, [version, value] if version else None
        expect = self.chance.choice((-1, version, version, self.chance.choice(self._versions[name])))
        self._sent += 1
        new = None if self.chance.random() < 0.1 else f"{process} {self._sent}"
        written = self.model.cell_write(name, new, None if expect == -1 else expect)
        version = self.model.cells.get(name, (0, None))[0]
        self._versions[name].append(version)
        return "write", {"cell": name, "value": new, "expect": expect}, version if written else None

    # The end

    def _drain(self) -> None:
        """Receive all that is left when every lease is over, and look at everything."""
        self._pass(1000)
        self._bear()
        process = f"p{self._born}"
        for agent in AGENTS:
            for channels in ({}, {"channels": ["jobs"]}):
                given: list[list[Any]] = [[]]
                while given:
                    self._pass(10)
                    wanted = {"agent": agent, "limit": 4, "lease_s": 10.0, **channels}
                    given = self._given(process, wanted)
                    self._call(process, "claim", wanted, given)
                    for id, _, token, _ in given:
                        self._pass(10)
                        settled = self.model.settle((int(id[3:]), token), "acked", "", 0, [], None)
                        arguments = {
                            "id": id,
                            "token": token,
                            "outcome": "acked",
                            "delay_s": 0,
                            "puts": [],
                            "next": None,
                        }
                        self._call(process, "settle", arguments, [settled[0], "acked", [], None])
        for m in self.model.messages:
            assert self.model.judged(m) in FINISHED
            if m["number"] in self._told:
                self._pass(10)
                self._call(process, *self._look(m["number"]))
        for name in CELLS:
            self._pass(10)
            version, value = self.model.cells.get(name, (0, None))
            self._call(process, "read", {"cell": name}, [version, value] if version else None)
