"""Every step that changes a room, each as: a room made ready for it, and the one call that is made.

All of them run on a clock that stands still, with the same chance and the same process names, so that a step leaves
the very same rows behind whenever it is done, and a room can be compared row by row with the room before and after.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from postroom.core import crashpoints
from postroom.core.clock import ManualClock
from postroom.core.search_query import parse_query
from postroom.core.states import State
from postroom.core.system.process import host_id
from postroom.stores.contract import Query, Ticket
from postroom.stores.sqlite.store import SqliteStore

from .disks import CHANGES, Disk, Trap, die
from .journal import Journal
from .rooms import letter, open_room, want

#: A process of another machine, of which nobody here can say whether it runs.
ELSEWHERE = "elsewhere:1:1"
#: A process of this machine that does not run: no pid is that high.
GONE = f"{host_id()}:999999999:1"

WORDS = parse_query("words").terms

Known = Mapping[str, Any]


class Step(NamedTuple):
    """What to make ready (it may return ids and tickets), the call under test, and the moment at which it is made."""

    ready: Callable[[SqliteStore], Known]
    act: Callable[[SqliteStore, Known], object]
    at_s: float = 1.0


def _nothing(_: SqliteStore) -> Known:
    return {}


def _letter(store: SqliteStore, **fields: Any) -> Known:
    """One older letter, and one with the given fields."""
    store.put([letter(payload={"old": True})])
    return {"id": store.put([letter(**fields)])[0]}


def _held(store: SqliteStore, owner: str = ELSEWHERE, **fields: Any) -> Known:
    """A letter that somebody holds, and another that waits behind it."""
    store.put([letter(**fields)])
    delivery = store.claim(want(owner=owner)).deliveries[0]
    store.put([letter(payload={"next": True})])
    return {"id": delivery.message.id, "ticket": list(delivery.ticket)}


def _question(store: SqliteStore) -> Known:
    return _held(store, waiter=ELSEWHERE)


def _answered_question(store: SqliteStore, waiter: str = ELSEWHERE) -> Known:
    store._upkeep.next_roll_call_ns = 1 << 62  # not now: who is gone is seen to in the step
    known = _held(store, waiter=waiter)
    store.settle(_ticket(known), "answered", puts=[letter("ada", {}, from_agent="bob", answer_to=known["id"])])
    return known


def _dead(store: SqliteStore) -> Known:
    known = _held(store)
    store.settle(_ticket(known), "dead", detail="too hard")
    return known


def _finished(store: SqliteStore) -> Known:
    known = _held(store)
    store.settle(_ticket(known), "acked")
    return known


def _in_line(store: SqliteStore, **fields: Any) -> Known:
    """A letter with an order key that somebody holds, and two more behind it."""
    known = _held(store, order_key="pr-7", **fields)
    ids = store.put([letter(order_key="pr-7", payload={"behind": n}) for n in range(2)])
    return {**known, "behind": ids}


def _indexed(store: SqliteStore) -> Known:
    """An index of words, and two messages that came after it."""
    store.put([letter(payload={"text": "old words"})])
    store.find_text(Query(), WORDS)
    store.put([letter(payload={"text": f"new words {n}"}) for n in range(2)])
    return {}


def _searched(store: SqliteStore) -> Known:
    known = _indexed(store)
    store.find_text(Query(), WORDS)
    return known


def _subscribed(store: SqliteStore) -> Known:
    store.subscribe("news", "bob")
    store.subscribe("news", "carol")
    return {}


def _cell(store: SqliteStore) -> Known:
    return {"version": store.cell_write("board/1", {"n": 1})}


def _ticket(known: Known) -> Ticket:
    return Ticket(*known["ticket"])


def _settle(outcome: str, **more: Any) -> Callable[[SqliteStore, Known], object]:
    return lambda store, known: store.settle(_ticket(known), outcome, **more)


def _answer(store: SqliteStore, known: Known) -> object:
    answer = letter("ada", {"answer": 42}, from_agent="bob", answer_to=known["id"])
    return store.settle(_ticket(known), "answered", puts=[answer], claim_next=want(owner=ELSEWHERE))


STEPS: dict[str, Step] = {
    "search": Step(_indexed, lambda store, _: store.find_text(Query(), WORDS)),
    "purge what is indexed": Step(_searched, lambda store, _: store.purge(Query(limit=1))),
    "send": Step(_nothing, lambda store, _: store.put([letter(payload={"n": 1})])),
    "send a batch": Step(_nothing, lambda store, _: store.put([letter(payload={"n": n}) for n in range(3)])),
    "send with a key": Step(_nothing, lambda store, _: store.put([letter(idempotency_key="once")])),
    "send later": Step(_nothing, lambda store, _: store.put([letter(delay_s=5, ttl_s=9)])),
    "ask": Step(_nothing, lambda store, _: store.put([letter(waiter=ELSEWHERE)])),
    "publish": Step(_subscribed, lambda store, _: store.put([letter(None, channel="news", publish=True)])),
    "claim": Step(_letter, lambda store, _: store.claim(want(owner=ELSEWHERE, limit=2))),
    "claim one": Step(_letter, lambda store, _: store.claim(want(owner=ELSEWHERE))),
    "claim one of a channel": Step(
        lambda store: _letter(store, channel="work"),
        lambda store, _: store.claim(want(owner=ELSEWHERE, channels=("work",))),
    ),
    "claim and ack": Step(_letter, lambda store, _: store.claim(want(owner=ELSEWHERE, settle=True))),
    "claim what came due": Step(
        lambda store: _letter(store, delay_s=5, priority=9), lambda store, _: store.claim(want(owner=ELSEWHERE)), 6.0
    ),
    "claim after a lease": Step(_held, lambda store, _: store.claim(want(owner=ELSEWHERE)), 601.0),
    "ack": Step(_held, _settle("acked")),
    "ack and claim": Step(_held, _settle("acked", claim_next=want(owner=ELSEWHERE))),
    "answer": Step(_question, _answer),
    "refuse": Step(_held, _settle("refused", detail="no")),
    "retry": Step(_held, _settle("retry", detail="not now", delay_s=5)),
    "retry at once": Step(_held, _settle("retry", detail="not now")),
    "retry for the last time": Step(lambda store: _held(store, max_deliveries=1), _settle("retry", detail="not now")),
    "return unseen": Step(_held, _settle("returned", detail="nobody saw it", claim_next=want(owner=ELSEWHERE))),
    "dead": Step(_held, _settle("dead", detail="too hard")),
    "extend": Step(_held, lambda store, known: store.extend(_ticket(known), 900)),
    "expire": Step(lambda store: _letter(store, ttl_s=5), lambda store, _: store.sweep(), 6.0),
    "release after a lease": Step(_held, lambda store, _: store.sweep(), 601.0),
    "dead after a lease": Step(lambda store: _held(store, max_deliveries=1), lambda store, _: store.sweep(), 601.0),
    "release of the gone": Step(lambda store: _held(store, owner=GONE), lambda store, _: store.sweep()),
    "dead with the gone": Step(
        lambda store: _held(store, owner=GONE, max_deliveries=1), lambda store, _: store.sweep()
    ),
    "unhold for the gone": Step(lambda store: _answered_question(store, waiter=GONE), lambda store, _: store.sweep()),
    "abandon": Step(_answered_question, lambda store, known: store.abandon(known["id"])),
    "note": Step(_letter, lambda store, known: store.note(known["id"], "shown", "bob")),
    "requeue": Step(_dead, lambda store, known: store.requeue([known["id"]])),
    "purge": Step(_finished, lambda store, _: store.purge(Query(limit=10))),
    "forget the old": Step(_finished, lambda store, _: store.sweep(), 8 * 86400.0),
    "send in order": Step(_in_line, lambda store, _: store.put([letter(order_key="pr-7"), letter(order_key="new")])),
    "ack in order": Step(_in_line, _settle("acked")),
    "ack and claim in order": Step(_in_line, _settle("acked", claim_next=want(owner=ELSEWHERE, limit=3))),
    "retry in order for the last time": Step(lambda store: _in_line(store, max_deliveries=1), _settle("retry")),
    "dead in order after a lease": Step(
        lambda store: _in_line(store, max_deliveries=1), lambda store, _: store.sweep(), 601.0
    ),
    "purge in order": Step(
        lambda store: {"id": store.put([letter(order_key="k"), letter(order_key="k")])[0]},
        lambda store, known: store.purge(Query(ids=(known["id"],))),
    ),
    "withdraw": Step(_letter, lambda store, known: store.withdraw([known["id"]], "ada", "a mistake")),
    "withdraw in order": Step(_in_line, lambda store, known: store.withdraw(known["behind"], "ada")),
    "replace": Step(_letter, lambda store, known: store.put([letter(replaces=known["id"])])),
    "debounce": Step(
        lambda store: {"id": store.put([letter(order_key="k", delay_s=5, debounce=True)])[0]},
        lambda store, _: store.put([letter(order_key="k", delay_s=5, debounce=True)]),
    ),
    "subscribe": Step(_nothing, lambda store, _: store.subscribe("news", "bob")),
    "unsubscribe": Step(_subscribed, lambda store, _: store.unsubscribe("news", "bob")),
    "write a cell": Step(_cell, lambda store, known: store.cell_write("board/1", {"n": 2}, expect=known["version"])),
    "delete a cell": Step(_cell, lambda store, known: store.cell_write("board/1", None)),
}


def make_ready(name: str, folder: Path) -> Known:
    """Make the room in which the step is to be taken; closed when this returns."""
    store = open_room(folder, clock=ManualClock())
    known = STEPS[name].ready(store)
    store.close()
    return known


def _clock(name: str) -> ManualClock:
    clock = ManualClock()
    clock.advance(STEPS[name].at_s)
    return clock


def trace(folder: str, name: str, known: Known, points: list[str], out: str) -> None:
    """Take the step undisturbed, and write down which test points it came by, in order."""
    passed: list[str] = []
    store = open_room(folder, clock=_clock(name))
    for point in points:
        crashpoints.at(point, lambda point=point: passed.append(point))  # type: ignore[misc]
    STEPS[name].act(store, known)
    store.close()
    Path(out).write_text(json.dumps(passed), encoding="utf-8")


def die_at_point(folder: str, name: str, known: Known, point: str, times_passed: int, journal: str) -> None:
    """Take the step, and end by SIGKILL at a test point."""
    store = open_room(folder, clock=_clock(name))
    crashpoints.die_at(point, times_passed)
    STEPS[name].act(store, known)
    Journal(journal).note("returned")


def die_at_call(folder: str, name: str, known: Known, at: int, journal: str) -> None:
    """Take the step, and end by SIGKILL in the middle of one call that SQLite makes to the disk."""
    trap = Trap((*CHANGES, "lock", "unlock"), die)
    disk = Disk("dying", trap)
    store = open_room(folder, clock=_clock(name), vfs=disk.name)
    trap.arm(at)
    STEPS[name].act(store, known)
    Journal(journal).note("returned")
    trap.arm(0)
    store.close()


def die_while_closing(folder: str, name: str, known: Known, at: int, journal: str) -> None:
    """Take the step, close the room as the last one out, and end by SIGKILL in the middle of that."""
    trap = Trap((*CHANGES, "lock", "unlock"), die)
    disk = Disk("dying", trap)
    store = open_room(folder, clock=_clock(name), vfs=disk.name)
    STEPS[name].act(store, known)
    Journal(journal).note("returned")
    trap.arm(at)
    store.close()


def die_while_opening(folder: str, at: int, journal: str) -> None:
    """Make a new room, and end by SIGKILL in the middle of one call that SQLite makes to the disk."""
    trap = Trap((*CHANGES, "lock", "unlock"), die)
    disk = Disk("dying", trap)
    trap.arm(at)
    open_room(folder, clock=ManualClock(), vfs=disk.name)
    Journal(journal).note("returned")


def go_on(folder: str, name: str | None, journal: str) -> None:
    """Another process, an hour and more later: send, receive everything there is (also held answers), close properly."""
    clock = _clock(name) if name is not None else ManualClock()
    clock.advance(7200)
    store = open_room(folder, clock=clock)
    sent = store.put([letter(payload={"later": True})])
    for agent in ("bob", "ada", "carol"):
        while deliveries := store.claim(want(agent, owner=ELSEWHERE, limit=10)).deliveries:
            for delivery in deliveries:
                assert store.settle(delivery.ticket, "acked").held
    held = tuple(message.id for message in store.find(Query(states=frozenset({State.AWAITED}))).messages)
    assert len(store.claim(want("ada", owner=ELSEWHERE, ids=held, settle=True)).deliveries) == len(held)
    store.close()
    Journal(journal).note("went on", sent)
