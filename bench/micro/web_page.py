"""What an open page shows how fast, how smoothly, and what it costs those who send.

    python bench/micro/web_page.py latency | smooth | senders  [--seconds 20] [--kept 100000] [--json]

latency   ten messages a second: from the return of `send` (it is stored) to the arrow being drawn in Chromium
smooth    so many messages kept, a thousand a second pass: how long the tasks of the page's main thread take
senders   processor time per message of a sender at a thousand a second, without a page and with one, in turns

The server (`postroom web`), the sender and the browser are processes of their own. Needs Chromium and Playwright.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import postroom

#: Notes when each arrow was drawn: in the frame after its row got the message's id.
WATCH = """() => {
  window.drawn = {};
  const note = (row) => { const id = row.dataset.id; if (id && !(id in window.drawn)) { window.drawn[id] = 0; requestAnimationFrame(() => { window.drawn[id] = Date.now(); }); } };
  new MutationObserver((changes) => changes.forEach((change) => note(change.target)))
    .observe(document.querySelector('#sheet'), { subtree: true, attributes: true, attributeFilter: ['data-id'] });
}"""


def send(url: str, per_s: float, seconds: float, rounds: int = 1) -> None:
    """Send at a steady rate, receive and ack each; write ids with the moment they were stored, and the processor time."""
    with postroom.open(url) as room:
        ada, bob = room.agent("ada"), room.agent("bob")
        for _ in range(rounds):
            sys.stdin.readline()
            stored: list[tuple[str, float]] = []
            before = resource.getrusage(resource.RUSAGE_SELF)
            due = time.perf_counter()
            for _ in range(int(per_s * seconds)):
                stored.append((ada.send("bob", {"text": "a message like any other"}, type="note"), time.time() * 1000))
                message = bob.poll()
                if message is not None:
                    message.ack()
                due += 1 / per_s
                left = due - time.perf_counter()
                if left > 0:
                    time.sleep(left)
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            late_s = time.perf_counter() - due
            print(
                json.dumps({"stored": stored[:5000], "cpu_s": cpu_s, "count": len(stored), "late_s": late_s}),
                flush=True,
            )


@contextmanager
def sender(url: str, per_s: float, seconds: float, rounds: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A sender in a process of its own; `said` lets it do a round."""
    words = [sys.executable, __file__, "send", "--url", url, "--rate", str(per_s), "--seconds", str(seconds)]
    process = subprocess.Popen(
        [*words, "--rounds", str(rounds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(process: subprocess.Popen[str]) -> Any:
    """Let the sender do its round, and tell."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@contextmanager
def served(url: str) -> Iterator[str]:
    """`postroom web` on a room; gives its address."""
    words = [sys.executable, "-m", "postroom", "web", "--no-open", "--json", "--port", "0", "--room", url]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("POSTROOM_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as play:
        yield play.chromium.launch(executable_path=path, args=["--no-sandbox"])


def opened(chromium: Any, address: str) -> Any:
    """A page that follows the room."""
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.wait_for_selector('#live[data-how="live"]')
    return page


def share(values: list[float], part: float) -> float:
    """The value that this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def latency(url: str, seconds: float) -> dict[str, Any]:
    """From stored to drawn."""
    with served(url) as address, browser() as chromium, sender(url, 10, seconds) as process:
        page = opened(chromium, address)
        page.evaluate(WATCH)
        stored = said(process)["stored"]
        page.wait_for_timeout(500)
        drawn = page.evaluate("window.drawn")
    took = [drawn[id] - at for id, at in stored if drawn.get(id)]
    return {
        "messages": len(stored),
        "drawn": len(took),
        "p50_ms": round(share(took, 0.5), 1),
        "p95_ms": round(share(took, 0.95), 1),
        "p99_ms": round(share(took, 0.99), 1),
    }


def fill(url: str, kept: int) -> None:
    """Messages that were sent and done with."""
    with postroom.open(url) as room:
        ada, bob = room.agent("ada"), room.agent("bob")
        for _ in range(kept // 500):
            ada.send_many([{"to": "bob", "payload": {"text": "kept"}} for _ in range(500)])
            for message in bob.listen(timeout_s=0, prefetch=500):
                message.ack()


def smooth(url: str, seconds: float, kept: int) -> dict[str, Any]:
    """How long the tasks of the page take while much happens."""
    fill(url, kept)
    with served(url) as address, browser() as chromium, sender(url, 1000, seconds) as process:
        page = opened(chromium, address)
        page.evaluate(WATCH)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            chromium.start_tracing(page=page, path=path, categories=["toplevel", "devtools.timeline", "__metadata"])
            told = said(process)
            chromium.stop_tracing()
            tasks = tasks_ms(path)
        drawn = page.evaluate("Object.keys(window.drawn).length")
        rows = page.locator(".row").count()
    return {
        "kept": kept,
        "per_s": round(told["count"] / (seconds + max(0.0, told["late_s"]))),
        "tasks": len(tasks),
        "p50_ms": round(share(tasks, 0.5), 2),
        "p95_ms": round(share(tasks, 0.95), 2),
        "p99_ms": round(share(tasks, 0.99), 2),
        "longest_ms": round(max(tasks), 1),
        "over_50_ms": sum(task > 50 for task in tasks),
        "busy_share": round(sum(tasks) / 1000 / seconds, 3),
        "arrows_drawn": drawn,
        "rows": rows,
    }


def tasks_ms(path: Path) -> list[float]:
    """How long each task of the page's main thread took that did something (a tenth of a millisecond at least)."""
    raw = path.read_bytes()
    events = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event["dur"] / 1000
        for event in events
        if event.get("name") in ("RunTask", "ThreadControllerImpl::RunTask")
        and (event["pid"], event["tid"]) in mains
        and event.get("dur", 0) >= 100
    ]


def senders(url: str, seconds: float) -> dict[str, Any]:
    """What a page costs those who send."""
    rounds, span_s = 6, max(1.0, seconds / 6)
    with served(url) as address, browser() as chromium, sender(url, 1000, span_s, 1 + rounds) as process:
        said(process)  # warm
        without: list[float] = []
        with_page: list[float] = []
        for number in range(rounds):
            page = opened(chromium, address) if number % 2 else None
            told = said(process)
            (with_page if page else without).append(told["cpu_s"] / told["count"] * 1e6)
            if page:
                page.close()
    ratios = [b / a for a, b in zip(without, with_page, strict=True)]
    return {
        "without_us": [round(us, 1) for us in without],
        "with_page_us": [round(us, 1) for us in with_page],
        "ratio": round(statistics.median(ratios), 3),
    }


def main() -> None:
    """Measure what was asked for, in a room of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["latency", "smooth", "senders", "send"])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--kept", type=int, default=100_000)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=10, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what == "send":
        send(args.url, args.rate, args.seconds, args.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/room"
        postroom.open(url).close()
        if args.what == "latency":
            result = latency(url, args.seconds)
        elif args.what == "smooth":
            result = smooth(url, args.seconds, args.kept)
        else:
            result = senders(url, args.seconds)
    print(json.dumps({args.what: result}))


if __name__ == "__main__":
    main()
