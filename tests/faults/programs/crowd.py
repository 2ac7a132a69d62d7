"""Many processes in one room at the same time, through the doors that programs use."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import postroom
from postroom import Agent, Received, Room
from postroom.core.search_query import parse_query
from postroom.core.system.process import this_process
from postroom.stores.contract import Query, Store, topic_to
from postroom.stores.sqlite.store import SqliteStore

from .journal import Journal
from .nursery import steady_ns
from .rooms import letter, open_room, want


def wait_until(start_ns: int) -> None:
    """All begin at the same moment."""
    time.sleep(max(0, start_ns - steady_ns()) / 1e9)
    while steady_ns() < start_ns:
        pass


def founder(folder: str, journal: str, start_ns: int, through_room: bool) -> None:
    """Make the room, or find that another has just made it, and send one letter."""
    wait_until(start_ns)
    if through_room:
        with postroom.open(f"sqlite:{folder}") as room:
            id = room.agent("ada").send("bob", {})
    else:
        store = open_room(folder)
        [id] = store.put([letter()])
    Journal(journal).note("sent", [id])


def worker(folder: str, journal: str, number: int, operations: int, start_ns: int) -> None:
    """So many operations of every kind, under a name of its own and one that it shares with all others."""
    note, chance = Journal(journal).note, random.Random(number)
    wait_until(start_ns)
    with postroom.open(f"sqlite:{folder}") as room:
        me, shared = room.agent(f"worker-{number}"), room.agent("everybody")
        shared.subscribe("news")
        for step in range(operations):
            _one_operation(room, me, shared, chance, note, f"{number}.{step}")


def _one_operation(
    room: Room, me: Agent, shared: Agent, chance: random.Random, note: Callable[..., None], name: str
) -> None:
    kind = chance.choice(("send", "send", "send", "many", "receive", "receive", "receive", "publish", "beat", "look"))
    if kind == "send":
        note("sent", [me.send("everybody", {"name": name})])
    elif kind == "many":
        note("sent", me.send_many([{"to": "everybody", "payload": {"name": name, "n": n}} for n in range(3)]))
    elif kind == "receive":
        message = shared.poll()
        if message is not None:
            note("acked", message.id, message.token, message.ack())
    elif kind == "publish":
        note("sent", me.publish("news", {"name": name}))
    elif kind == "beat":
        me.heartbeat("active", f"step {name}")
    else:
        room.peek(agent="everybody")
        room.stats()


# Locks


def locks_of(files: list[Path]) -> list[str]:
    """The locks that this process holds on these files, as the kernel tells it."""
    inodes = {str(path.stat().st_ino) for path in files if path.exists()}
    found = []
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if "->" not in fields and int(fields[4]) == os.getpid() and fields[5].rpartition(":")[2] in inodes:
            found.append(" ".join(fields[1:4] + fields[5:]))
    return sorted(found)


class Locks:
    """Calls things, and notes those after which the locks of the room's files are others than before."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / f"messages.db{tail}" for tail in ("", "-wal", "-shm")]
        self.at_rest = self._lasting()
        self.called: list[str] = []
        self.changed: dict[str, list[str]] = {}

    def now(self) -> list[str]:
        return locks_of(self._files)

    def _lasting(self) -> list[str]:
        """The locks that are there at every one of several looks: the room's own threads take others for a moment."""
        looks = []
        for _ in range(10):
            looks.append(set(self.now()))
            time.sleep(0.01)
        return sorted(set.intersection(*looks))

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        result = function()
        self.called.append(name)
        # a lock that another thread of the room takes for a moment is none of the call's; one that is lost stays lost
        for _ in range(50):
            if self.now() == self.at_rest:
                return result
            time.sleep(0.01)
        self.changed[name] = self.now()
        return result


def public(kind: type) -> set[str]:
    """The public methods of a class."""
    return {name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def count_locks(folder: str, file: str, out: str) -> None:
    """Make every call that a program can make, and write down which of them changed this process's locks."""
    room = postroom.open(f"sqlite:{folder}")
    ada, bob = room.agent("ada"), room.agent("bob")
    locks = Locks(Path(folder))
    _call_store(locks, open_room(folder))
    _call_room(locks, room, ada, bob, file)
    _call_agent(locks, ada, bob)
    _call_received(locks, ada, bob)
    unheard = {
        f"{kind.__name__}.{name}"
        for kind in (Store, Room, Agent, Received)
        for name in public(kind) - {"close"}
        if f"{kind.__name__}.{name}" not in locks.called
    }
    os.close(os.open(Path(folder) / "messages.db", os.O_RDONLY))  # what must never be done
    report = {"at_rest": locks.at_rest, "changed": locks.changed, "uncalled": sorted(unheard), "spoilt": locks.now()}
    Path(out).write_text(json.dumps(report), encoding="utf-8")


def _call_store(locks: Locks, store: SqliteStore) -> None:
    def call(name: str, function: Callable[[], Any]) -> Any:
        return locks.call(f"Store.{name}", function)

    [id] = call("put", lambda: store.put([letter("zoe")]))
    [first] = call("claim", lambda: store.claim(want("zoe"))).deliveries
    call("claim_answer", lambda: store.claim_answer(id, want("zoe")))
    call("extend", lambda: store.extend(first.ticket, 60))
    call("heartbeat", lambda: store.heartbeat([first.ticket], 60))
    call("note", lambda: store.note(id, "shown", "zoe"))
    call("settle", lambda: store.settle(first.ticket, "dead", detail="no"))
    call("requeue", lambda: store.requeue([id]))
    call("withdraw", lambda: store.withdraw([id], "ada"))
    call("find_text", lambda: store.find_text(Query(), parse_query("words").terms))
    call("restore", lambda: store.restore([]))
    call("put_with_cell", lambda: store.put_with_cell([letter("zoe")], "crowd/cell", 1, 0))
    call("abandon", lambda: store.abandon(id))
    call("get", lambda: store.get(id))
    call("find", lambda: store.find(Query()))
    call("count", lambda: store.count(Query()))
    call("room_ms", store.room_ms)
    call("why_only_looking", store.why_only_looking)
    call("find_all", lambda: list(store.find_all(Query())))
    call("events", store.events)
    call("number_at", lambda: store.number_at(0))
    call("forgotten", store.forgotten)
    call("work_of", lambda: store.work_of("bob"))
    call("process_alive", lambda: store.process_alive(this_process()))
    call("check_there", store.check_there)
    call("board_mail_came", store.board_mail_came)
    call("open_elsewhere", store.open_elsewhere)
    call("purge", lambda: store.purge(Query(to_agent="zoe")))
    call("subscribe", lambda: store.subscribe("news", "zoe"))
    call("subscriptions", store.subscriptions)
    call("unsubscribe", lambda: store.unsubscribe("news", "zoe"))
    call("cell_write", lambda: store.cell_write("cell", 1))
    call("cell_read", lambda: store.cell_read("cell"))
    call("cell_scan", lambda: store.cell_scan("c"))
    with call("listen", lambda: store.listen([topic_to("zoe")])) as waiter:
        call("wait", lambda: waiter.wait(0))
    switchboard = call("switchboard", store.switchboard)
    call("listen at it", lambda: switchboard.listen([topic_to("zoe")], lambda: None)).close()
    call("close it", switchboard.close)
    call("sweep", store.sweep)
    call("stats", store.stats)
    call("read_only", lambda: store.read_only("SELECT count(*) FROM messages"))


def _call_room(locks: Locks, room: Room, ada: Agent, bob: Agent, file: str) -> None:
    def call(name: str, function: Callable[[], Any]) -> Any:
        return locks.call(f"Room.{name}", function)

    id = ada.send("bob", {})
    bob.receive(timeout_s=5).dead("no")
    call("open and close it once more", lambda: postroom.open(str(room.url)).close())
    call("agent", lambda: room.agent("carol"))
    call("receipt", lambda: room.receipt(id))
    call("get", lambda: room.get(id))
    call("why", lambda: room.why(id))
    call("peek", room.peek)
    call("count", room.count)
    call("connect", lambda: room.connect("dave"))
    call("disconnect", lambda: room.disconnect("dave"))
    call("events", room.events)
    call("cursor", room.cursor)
    call("watch", lambda: list(room.watch(timeout_s=0)))
    call("stats", room.stats)
    call("mailboxes", room.mailboxes)
    call("agents", room.agents)
    call("waits", room.waits)
    call("dead_letters", room.dead_letters)
    call("requeue", lambda: room.requeue(id))
    call("thread", lambda: room.thread(id))
    call("search", lambda: room.search("words"))
    call("schedule", lambda: room.schedule("daily", every_s=86400, to="bob"))
    call("schedules", room.schedules)
    call("unschedule", lambda: room.unschedule("daily"))
    call("limit", lambda: room.limit("jobs", concurrent=4, per_s=2.0))
    call("limits", room.limits)
    call("pause", lambda: room.pause("jobs"))
    call("resume", lambda: room.resume("jobs"))
    call("unlimit", lambda: room.unlimit("jobs"))
    call("redact", lambda: room.redact("github token"))
    call("redactions", room.redactions)
    call("unredact", lambda: room.unredact("github token"))
    call("retention", lambda: room.retention("jobs", count=10))
    call("replay", lambda: room.replay(since=0))
    session = call("session", room.session)
    locks.call("Session.delegate", lambda: session.delegate([]))
    session.mark_failed("on purpose")
    session.cleanup()
    call("reserve", lambda: room.reserve(["src/**"], "ada"))
    call("reservations", room.reservations)
    call("reserved_by_others", lambda: room.reserved_by_others(["src/a"], "bob"))
    call("unreserve", lambda: room.unreserve("ada"))
    reference = call("attach", lambda: room.attach(file))
    call("artifact", lambda: room.artifact(reference))
    while (message := bob.poll()) is not None:
        message.ack()
    call("purge", room.purge)


def _call_agent(locks: Locks, ada: Agent, bob: Agent) -> None:
    def call(name: str, function: Callable[[], Any]) -> Any:
        return locks.call(f"Agent.{name}", function)

    call("subscribe", lambda: bob.subscribe("news"))
    call("publish", lambda: ada.publish("news", {}))
    call("unsubscribe", lambda: bob.unsubscribe("news"))
    call("send", lambda: ada.send("bob", {}))
    call("withdraw", lambda: ada.withdraw(ada.send("bob", {})))
    call("send_many", lambda: ada.send_many([{"to": "bob", "payload": {}}] * 2))
    message = call("receive", lambda: bob.receive(timeout_s=5))
    call("claimed", lambda: bob.claimed(message.id)).ack()
    call("poll", bob.poll).ack()
    call("listen", lambda: [m.id for m in bob.listen(timeout_s=0)])
    call("heartbeat", ada.heartbeat)
    stop = threading.Event()
    serving = threading.Thread(target=lambda: bob.serve({"*": lambda _: {"yes": True}}, concurrency=1, stop=stop))
    serving.start()
    call("ask", lambda: ada.ask("bob", {}, timeout_s=10))
    call("ask_many", lambda: ada.ask_many(["bob"], {}, timeout_s=10).answers)
    call("serve", stop.set)
    serving.join()


def _call_received(locks: Locks, ada: Agent, bob: Agent) -> None:
    def call(name: str, function: Callable[[Received], Any]) -> Any:
        ada.send("bob", {})
        message = bob.receive(timeout_s=5)
        result = locks.call(f"Received.{name}", lambda: function(message))
        if message.settled is None:
            message.ack()
        return result

    call("ack", lambda m: m.ack())
    call("retry", lambda m: m.retry("later", delay_s=1000))
    call("dead", lambda m: m.dead("no"))
    call("extend", lambda m: m.extend(60))
    call("reply", lambda m: m.reply({}))
    call("refuse", lambda m: m.refuse("no"))
    call("to_dict", lambda m: m.to_dict())
    call("was_late", lambda m: m.was_late())
    call("let_go", lambda m: m.let_go())
    with warnings.catch_warnings(record=True):
        call("tell_late", lambda m: m.tell_late())
    call("retry_verdict", lambda m: m.retry_verdict("why"))
    call("answer_verdict", lambda m: m.answer_verdict({}))
    call("conclude", lambda m: m.conclude(m.retry_verdict("why", 1000)))
    call("give_back", lambda m: m.give_back("left"))
    bob.receive(timeout_s=5).ack()
    call("return_unseen", lambda m: m.return_unseen())
    bob.receive(timeout_s=5).ack()
