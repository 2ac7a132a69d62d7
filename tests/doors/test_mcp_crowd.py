"""Many MCP clients at once, each on a kept connection: every message arrives once, and no call fails but as documented."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from postroom.core.states import State
from postroom.mail import tokens
from postroom.room import open_room
from postroom.stores.contract import Query

from .served import MODERN, PATIENCE_S, envelope, http_server

pytestmark = pytest.mark.slow

#: What docs/agents.md and docs/agents/tools.md say that may happen: nobody answers in time.
DOCUMENTED = re.compile(r"no answer to question \S+ within [\d.]+ s: ")
ASK_S = 2.0


class Client:
    """One agent's program, which calls a tool at a time."""

    def __init__(self, port: int, name: str, token: str) -> None:
        self.name = name
        self.took_s: list[float] = []
        self.sent: list[str] = []
        self.read: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call",
        }
        self._connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def tool(self, name: str, **arguments: Any) -> dict[str, Any] | None:
        """The tool's result; None when it failed as documented. Anything else that goes wrong is raised."""
        body = json.dumps(envelope("tools/call", {"name": name, "arguments": arguments}))
        began_s = time.perf_counter()
        self._connection.request("POST", "/mcp", body, self._headers | {"Mcp-Name": name})
        response = self._connection.getresponse()
        answer = response.read().decode()
        if "wait_s" not in arguments:
            self.took_s.append(time.perf_counter() - began_s)
        assert response.status == 200, (response.status, answer)
        result: dict[str, Any] = json.loads(answer)["result"]
        if not result["isError"]:
            found: dict[str, Any] = result["structuredContent"]
            return found
        said = result["content"][0]["text"]
        assert name == "ask" and DOCUMENTED.match(said), (name, arguments, said)
        self.failed["no answer in time"] += 1
        return None

    def take_mail(self, **how: Any) -> int:
        """Take what is there, and end it: a question is answered, the rest is acked. Returns how many there were."""
        found = self.tool("inbox", limit=20, **how)
        assert found is not None
        done = []
        for message in found["messages"]:
            self.read[message["id"]] += 1
            if message["type"] == "question":
                reply = self.tool("reply", id=message["id"], body="yes")
                assert reply is not None and reply["counted"], reply
            else:
                done.append(message["id"])
        if done:
            acked = self.tool("ack", ids=done)
            assert acked is not None and all(each["counted"] for each in acked["results"]), acked
        return len(found["messages"])

    def work(self, chance: random.Random, others: list[str], more: Callable[[], bool]) -> None:
        while more():
            deed = chance.choice(["send", "send", "ask", "task", "receipt", "who"])
            to = chance.choice(others)
            if deed == "send":
                sent = self.tool("send", to=to, body=f"from {self.name}")
                assert sent is not None
                self.sent.append(sent["id"])
            elif deed == "ask":
                self.tool("ask", to=to, body="well?", type="question", wait_s=ASK_S)
            elif deed == "task":
                self._take_task()
            elif deed == "receipt" and self.sent:
                self.tool("receipt", id=chance.choice(self.sent))
            else:
                self.tool("who")
            self.take_mail()

    def _take_task(self) -> None:
        claimed = self.tool("board", action="claim")
        assert claimed is not None
        for task in claimed["tasks"]:
            done = self.tool("board", action="done", id=task["id"], text=f"by {self.name}")
            assert done is not None and done["counted"], done

    def close(self) -> None:
        self._connection.close()


def crowd(folder: Path, clients: int, *, seconds: float | None = None, rounds: int = 0) -> str:
    """Let so many clients work for that time, or each so many rounds; the figures of it. Raises what went wrong."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    names = [f"agent-{number}" for number in range(clients)]
    with open_room(f"sqlite:{folder}/room") as room:
        tokens.add_token(room.gateway, "me", human=True)
        proofs = {name: tokens.add_token(room.gateway, name) for name in names}
        tasks = [room.board.add(f"T{number}").id for number in range(clients)]
        with http_server(folder / "room") as http, ThreadPoolExecutor(clients) as pool:
            crew = [Client(http.port, name, proof) for name, proof in proofs.items()]
            end_s = None if seconds is None else time.monotonic() + seconds
            together = threading.Barrier(clients)

            def run(client: Client) -> None:
                left = iter(range(rounds))
                others = [name for name in names if name != client.name]
                together.wait(PATIENCE_S)
                client.work(
                    random.Random(f"{seed} {client.name}"),
                    others,
                    lambda: time.monotonic() < end_s if end_s is not None else next(left, None) is not None,
                )

            began_s = time.monotonic()
            for done in [pool.submit(run, client) for client in crew]:
                done.result()
            took_s = time.monotonic() - began_s
            while sum(client.take_mail() for client in crew):  # an answer may bring more
                pass
            for client in crew:
                client.close()
            states = {message.exact_state for message in room.store.find_all(Query(limit=1000))}
        read = sum((client.read for client in crew), Counter[str]())
        sent = [id for client in crew for id in client.sent]
        done_tasks = [task for task in room.board.tasks() if task.state == "done"]
        assert states <= {State.ACKED, State.ANSWERED}, states
        assert {id: read[id] for id in sent} == dict.fromkeys(sent, 1)
        assert set(read.values()) == {1}
        assert {task.id for task in done_tasks} <= set(tasks) and len(done_tasks) > 0
    calls_s = sorted(s for client in crew for s in client.took_s)
    failed = sum((client.failed for client in crew), Counter[str]())
    return (
        f"{clients} clients, {took_s:.0f} s: {len(calls_s)} calls without a wait, {len(calls_s) / took_s:.0f}/s, p50 "
        f"{calls_s[len(calls_s) // 2] * 1000:.0f} ms, max {calls_s[-1] * 1000:.0f} ms; {len(sent)} sent and read once; {dict(failed)}"
    )


def test_a_few_clients_at_once_lose_nothing(tmp_path: Path) -> None:
    print(crowd(tmp_path, 8, rounds=6))


@pytest.mark.long
def test_fifty_clients_for_a_minute_lose_nothing(tmp_path: Path) -> None:
    print(crowd(tmp_path, 50, seconds=60))
