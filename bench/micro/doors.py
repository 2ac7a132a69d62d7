"""What the doors for agent programs cost: hooks and commands, which start at every step, and the MCP server.

    python bench/micro/doors.py [--runs 20] [--json]

Wall time of `postroom hook` and `postroom send` as a host starts them, beside a bare interpreter of the same run.
The MCP server: from its start to its first answer, and its memory then. And how long a waiting receiver takes to have a message:
through the library in another process, and through the tool `inbox` over stdio, in turns, with the same sender.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import postroom

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
LIBRARY = """
import sys, postroom
room = postroom.open(sys.argv[1])
bob = room.agent("carl")
print("ready", flush=True)
for message in bob.listen():
    print(message.id, flush=True)
"""


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "POSTROOM_CONFIG" or not name.startswith("POSTROOM_")
    }
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # a program that was run before has its bytecode
    return kept | more


def wall_ms(words: list[str], folder: Path, stdin: bytes, **more: str) -> float:
    start = time.perf_counter()
    subprocess.run(words, cwd=folder, input=stdin, env=environment(**more), capture_output=True, check=True)
    return (time.perf_counter() - start) * 1000


def starts(folder: Path, runs: int) -> dict[str, float]:
    """The median wall time of each program, in turns; the first run of each is not counted."""
    script = str(Path(sys.executable).with_name("postroom"))
    event = {"hook_event_name": "PostToolUse", "session_id": "s", "cwd": str(folder), "tool_name": "Bash"}
    claude = {"CLAUDECODE": "1", "CLAUDE_PID": str(os.getpid()), "CLAUDE_PROJECT_DIR": str(folder)}
    stdin = json.dumps(event).encode()
    programs: dict[str, Callable[[], float]] = {
        "python": lambda: wall_ms([sys.executable, "-c", "pass"], folder, b""),
        "hook": lambda: wall_ms([script, "hook", "auto"], folder, stdin, **claude),
        "send": lambda: wall_ms([script, "send", "bob", "hi", "--as", "ada"], folder, b""),
    }
    took: dict[str, list[float]] = {name: [] for name in programs}
    for run in range(runs + 1):
        for name, program in programs.items():
            ms = program()
            if run:
                took[name].append(ms)
    return {f"{name}_ms": statistics.median(each) for name, each in took.items()}


class Server:
    """`postroom mcp` on pipes."""

    def __init__(self, folder: Path) -> None:
        script = str(Path(sys.executable).with_name("postroom"))
        start = time.perf_counter()
        self.process = subprocess.Popen(
            [script, "mcp", "--as", "bob"], cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.call("who", {})
        self.ready_ms = (time.perf_counter() - start) * 1000
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            self.mib = next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024

    def begin(self, tool: str, arguments: dict[str, Any]) -> None:
        params = {"name": tool, "arguments": arguments, "_meta": META}
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode() + b"\n"
        )
        self.process.stdin.flush()

    def end(self) -> Any:
        assert self.process.stdout is not None
        while True:
            message = json.loads(self.process.stdout.readline())
            if message.get("id") == 1:
                return message["result"]["structuredContent"]

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        self.begin(tool, arguments)
        return self.end()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def wakes(folder: Path, server: Server, runs: int) -> dict[str, float]:
    """From before a send to when the receiver's process has said that it has the message: the library, and MCP."""
    words = [sys.executable, "-c", LIBRARY, str(folder / ".postroom")]
    listener = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment())
    assert listener.stdout is not None
    listener.stdout.readline()
    library, mcp = [], []
    with postroom.open(str(folder / ".postroom")) as room:
        ada = room.agent("ada")
        for run in range(runs + 1):
            time.sleep(0.02)
            start = time.perf_counter()
            ada.send("carl", {"n": run})
            listener.stdout.readline()
            library.append((time.perf_counter() - start) * 1000)
            server.begin("inbox", {"wait_s": 30})
            time.sleep(0.05)  # it waits by now
            start = time.perf_counter()
            ada.send("bob", {"n": run})
            found = server.end()
            mcp.append((time.perf_counter() - start) * 1000)
            server.call("ack", {"ids": [message["id"] for message in found["messages"]]})
    listener.kill()
    listener.wait()
    listener.stdout.close()
    return {"library_wake_ms": statistics.median(library[1:]), "mcp_wake_ms": statistics.median(mcp[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with postroom.open(str(folder / ".postroom")) as room:
            for name in ("ada", "bob"):
                room.agent(name, transient=True)
        figures = starts(folder, args.runs)
        ready: list[float] = []
        for _ in range(args.runs + 1):
            server = Server(folder)
            ready.append(server.ready_ms)
            server.close()
        server = Server(folder)
        ready_ms = statistics.median(ready[1:])  # by the second start everything has its bytecode
        figures |= {"mcp_ready_ms": ready_ms, "mcp_mib": server.mib} | wakes(folder, server, args.runs)
        server.close()
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        beside = (
            f"  ({value / figures['python_ms']:.1f} times a bare interpreter)" if name in ("hook_ms", "send_ms") else ""
        )
        print(f"{name:<16} {value:8.2f}{beside}")


if __name__ == "__main__":
    main()
