"""Servers that die and networks that are cut, while programs on many machines work on one room.

The story. Three servers keep a room three times. Senders and receivers, each a process of its own, work on it while the
leader of the room is killed with SIGKILL again and again, then all three at once; or while a part of them is cut off, in
one direction or in both, as when a cable is pulled.

The invariant. A send that returned is kept. Of all acks of one message one counts at most, and after it nobody gets the
message again. What is in the stream is looked at without Postroom.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.programs.rooms import UNTIRING, letter, want
from tests.support.nats_proxy import Proxy
from tests.support.nats_servers import Cluster, Server, room_name, running_cluster, running_server

from postroom.core.clock import SYSTEM
from postroom.core.config import Config, parse_url
from postroom.stores.contract import Ticket
from postroom.stores.nats.store import NatsStore
from postroom.testing import together

from .support import Nursery, count, in_parts, journal, seed

ACKED = 2
PATIENCE_S = 120.0


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "children.log", "journal", "afar")
    yield nursery
    nursery.close()


def raw(addresses: str, work: Callable[[Any], Any]) -> Any:
    """Do something with a plain connection of nats-py."""
    import nats

    async def main() -> Any:
        client = await nats.connect([f"nats://{each}" for each in addresses.split(",")], connect_timeout=5)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(main())


def stream_info(addresses: str, room: str) -> dict[str, Any]:
    async def ask(client: Any) -> Any:
        return json.loads((await client.request(f"$JS.API.STREAM.INFO.POSTROOM_{room}", b"", timeout=2)).data)

    info: dict[str, Any] = raw(addresses, ask)
    return info


def entries(addresses: str, room: str) -> dict[str, dict[str, Any]]:
    """Every message's entry as it lies in the stream, by id."""

    async def read(client: Any) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        seq = 1
        while True:
            request = {"seq": seq, "next_by_subj": f"pr.{room}.m.>"}
            reply = await client.request(
                f"$JS.API.STREAM.MSG.GET.POSTROOM_{room}", json.dumps(request).encode(), timeout=10
            )
            message = json.loads(reply.data).get("message")
            if message is None:
                return found
            seq = message["seq"] + 1
            if message.get("data"):
                entry = json.loads(base64.b64decode(message["data"]))
                found[entry["id"]] = entry

    result: dict[str, dict[str, Any]] = raw(addresses, read)
    return result


def until(what: str, holds: Callable[[], bool]) -> None:
    end_ns = SYSTEM.steady_ns() + int(PATIENCE_S * 1e9)
    while SYSTEM.steady_ns() < end_ns:
        try:
            if holds():
                return
        except Exception as error:
            what = f"{what.partition(' (')[0]} ({error})"
        SYSTEM.sleep(0.2)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


def is_whole(addresses: str, room: str) -> bool:
    """Whether the room has a leader and all copies are current."""
    info = stream_info(addresses, room)
    replicas = info["cluster"].get("replicas") or []
    return bool(info["cluster"].get("leader")) and len(replicas) == 2 and all(each["current"] for each in replicas)


def sent_so_far(notes: Path) -> int:
    return sum(line.event == "sent" for line in journal.read(notes))


def check_journal(notes: Path, kept: dict[str, dict[str, Any]]) -> Counter[str]:
    """What must be true of what the children wrote down and of what is kept. Returns how often what happened."""
    lines = journal.read(notes)
    told = [id for line in lines if line.event == "sent" for id in line.details[0]]
    assert set(told) <= set(kept), "a send that returned is lost"
    assert len(told) == len(set(told)), "two sends were given one id"
    acked = {line.details[0]: line.details[1] for line in lines if line.event == "settled" and line.details[3]}
    counted = Counter(line.details[0] for line in lines if line.event == "settled" and line.details[3])
    assert [id for id, times in counted.items() if times > 1] == [], "two acks of one message counted"
    late = [line for line in lines if line.event == "claimed" and line.details[1] > acked.get(line.details[0], 2**62)]
    assert late == [], "a message was delivered after its ack had counted"
    assert [id for id, entry in kept.items() if entry.get("state") != ACKED] == [], "something was never received"
    by_key = Counter(entry["idempotency_key"] for entry in kept.values() if "idempotency_key" in entry)
    assert [key for key, times in by_key.items() if times > 1] == [], "one key is two messages"
    sent = Counter((entry["payload"]["by"], entry["payload"]["n"]) for entry in kept.values())
    assert [one for one, times in sent.items() if times > 1] == [], "one send was stored twice"
    assert {id for id, entry in kept.items() if entry["state"] == ACKED} == set(acked), (
        "an ack that counted was not told"
    )
    return Counter(line.event for line in lines)


class Crowd:
    """So many senders and receivers at each of these addresses; the fewer they are, the less they send."""

    def __init__(
        self, crew: Nursery, places: list[str], room: str, folder: Path, each: int, timeout_s: float, lease_s: float
    ) -> None:
        self._crew = crew
        self._stop, self._nothing_more = folder / "stop", folder / "nothing-more"
        self.notes = folder / "notes"
        self._senders: list[int] = []
        self._receivers: list[int] = []
        pause_s = 0.005 if each * len(places) > 2 else 0.02
        for place, address in enumerate(places):
            for number in range(each):
                common: dict[str, Any] = {
                    "journal": str(self.notes),
                    "timeout_s": timeout_s,
                    "url": f"nats://{address}/{room}",
                    "seed": place * 100 + number,
                }
                sender = crew.fork("afar.sender", **common, stop=str(self._stop), pause_s=pause_s)
                receiver = crew.fork("afar.receiver", **common, stop=str(self._nothing_more), lease_s=lease_s)
                self._senders.append(sender)
                self._receivers.append(receiver)

    def wait_for(self, what: str, sends: int = 50) -> None:
        """Wait until so many more were sent."""
        before = sent_so_far(self.notes)
        until(what, lambda: sent_so_far(self.notes) > before + sends)

    def finish(self) -> None:
        """Let the senders end, and then the receivers: a send may take long to return."""
        self._stop.touch()
        self._crew.finish(*self._senders)
        self._nothing_more.touch()
        self._crew.finish(*self._receivers)


def kill_leaders(crew: Nursery, cluster: Cluster, tmp_path: Path, each: int, kills: int, all_at_once: int) -> str:
    room = room_name()
    until("three servers that know each other", lambda: _make_room(cluster.addresses, room))
    crowd = Crowd(crew, [cluster.addresses], room, tmp_path, each=each, timeout_s=20, lease_s=30)
    names = {server.name: server for server in cluster.servers}
    for _ in range(kills):
        until("the room is whole", lambda: is_whole(cluster.addresses, room))
        crowd.wait_for("they work")
        victim = names[stream_info(cluster.addresses, room)["cluster"]["leader"]]
        victim.kill()
        crowd.wait_for("they work without it", 20)
        victim.start()
    for _ in range(all_at_once):
        crowd.wait_for("they work")
        cluster.kill()
        cluster.start()
    until("the room is whole", lambda: is_whole(cluster.addresses, room))
    crowd.finish()
    happened = check_journal(crowd.notes, entries(cluster.addresses, room))
    return f"{kills} leaders and {all_at_once} times all three killed: {dict(happened)}"


def _make_room(addresses: str, room: str) -> bool:
    NatsStore(parse_url(f"nats://{addresses}/{room}"), Config(server_timeout_s=5), SYSTEM).close()
    return True


@pytest.mark.slow
def test_a_leader_that_is_killed_takes_nothing_with_it(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with running_cluster() as cluster:
        figure("nats: " + kill_leaders(crew, cluster, tmp_path, 2, count("LEADERS", 1), 1))


@pytest.mark.long
@in_parts(8)
@pytest.mark.usefixtures("part")
def test_forty_leaders_and_all_servers_that_are_killed_take_nothing_with_them(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with running_cluster() as cluster:
        figure("nats: " + kill_leaders(crew, cluster, tmp_path, 4, count("LEADERS_LONG", 40) // 8, 2))


def cut_off(crew: Nursery, server: Server, tmp_path: Path, each: int, cut_s: float, timeout_s: float) -> str:
    """Half of them work through a network that is cut: towards the server, towards them, both ways."""
    room = room_name()
    _make_room(server.address, room)
    proxy = Proxy(server.port)
    try:
        places = [server.address, proxy.address]
        crowd = Crowd(crew, places, room, tmp_path, each=each, timeout_s=timeout_s, lease_s=cut_s / 2)
        for to_server, to_client in ((True, False), (False, True), (True, True)):
            crowd.wait_for("they work")
            proxy.cut(to_server=to_server, to_client=to_client)
            SYSTEM.sleep(cut_s)
            proxy.cut(to_server=False, to_client=False)
        crowd.finish()
    finally:
        proxy.close()
    happened = check_journal(crowd.notes, entries(server.address, room))
    return f"cut off for {cut_s:g} s three times: {dict(happened)}"


@pytest.mark.slow
def test_those_who_are_cut_off_for_a_while_lose_nothing(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with running_server() as server:
        figure("nats: " + cut_off(crew, server, tmp_path, each=1, cut_s=2, timeout_s=0.7))


@pytest.mark.long
def test_those_who_are_cut_off_for_twenty_seconds_lose_nothing(
    crew: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with running_server() as server:
        figure("nats: " + cut_off(crew, server, tmp_path, each=2, cut_s=20, timeout_s=8))


def ack_at_the_end_of_leases(address: str, times: int) -> str:
    """One acks at the very moment at which its lease ends and another claims: both are told, and must agree."""
    room, chance = room_name(), random.Random(seed())
    url, config, lease_s = parse_url(f"nats://{address}/{room}"), Config(server_timeout_s=120), 0.03
    owner, rival = NatsStore(url, config, SYSTEM), NatsStore(url, config, SYSTEM)
    ends: Counter[str] = Counter()
    try:
        for number in range(times):
            (id,) = owner.put([letter(payload={"n": number}, max_deliveries=UNTIRING)])
            (delivery,) = owner.claim(want(lease_s=lease_s, ids=(id,))).deliveries
            end_ns = SYSTEM.steady_ns() + int(lease_s * 1e9)
            early_ns = chance.randrange(-4_000_000, 6_000_000)

            def ack(end_ns: int = end_ns, early_ns: int = early_ns, ticket: Ticket = delivery.ticket) -> bool:
                SYSTEM.sleep(max(0, end_ns - early_ns - SYSTEM.steady_ns()) / 1e9)
                return owner.settle(ticket, "acked").held

            def take(end_ns: int = end_ns, id: str = id) -> bool:
                SYSTEM.sleep(max(0, end_ns - 2_000_000 - SYSTEM.steady_ns()) / 1e9)
                while SYSTEM.steady_ns() < end_ns + 20_000_000:
                    for taken in rival.claim(want(lease_s=600, limit=5)).deliveries:
                        return taken.message.id == id and rival.settle(taken.ticket, "acked").held
                return False

            acked, taken = together(ack, take)
            assert acked is not taken, f"round {number}: acked {acked}, delivered again and acked {taken}"
            ends["in time" if acked else "taken by another"] += 1
    finally:
        owner.close()
        rival.close()
    assert {entry["state"] for entry in entries(address, room).values()} == {ACKED}
    return f"{times} acks at the very end of their leases: {dict(ends)}"


@pytest.mark.slow
def test_an_ack_at_the_very_end_of_its_lease_counts_or_the_message_comes_again_never_both(
    figure: Callable[[str], None],
) -> None:
    with running_server() as server:
        figure("nats: " + ack_at_the_end_of_leases(server.address, count("LATE_ACKS", 30)))


@pytest.mark.long
def test_a_thousand_acks_at_the_very_end_of_their_leases(figure: Callable[[str], None]) -> None:
    with running_server() as server:
        figure("nats: " + ack_at_the_end_of_leases(server.address, count("LATE_ACKS", 1000)))


@pytest.mark.long
def test_a_thousand_acks_at_the_very_end_of_their_leases_where_three_servers_keep_them(
    figure: Callable[[str], None],
) -> None:
    with running_cluster() as cluster:
        until("three servers that know each other", lambda: _make_room(cluster.addresses, room_name()))
        figure("nats, three servers: " + ack_at_the_end_of_leases(cluster.addresses, count("LATE_ACKS", 1000)))
