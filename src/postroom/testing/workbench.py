"""The bench on which a store is tested: a room of its own for each test, a clock that stands still, and short words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from postroom.core.clock import Clock, ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, MessageWithLedger, check
from postroom.core.states import State
from postroom.core.system.process import host_id
from postroom.stores.contract import Claimed, Delivery, Query, Settled, Store, Ticket, Want

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: What a store may lack, and what that means. A test of an ability is marked with `needs`.
ABILITIES = {
    "durable": "it keeps nothing when it is closed",
    "shared": "no second opening sees its room",
    "atomic_settle": "settling, answering and claiming the next are several steps there",
    "exact_fifo": "several claimers may get messages out of order there",
    "limits": "limits, pauses and full mailboxes are not kept there",
    "restores": "messages of another room cannot be taken over there",
    "switchboard": "each waiter there has a descriptor of its own",
}

#: An id as stores give them, which none has given.
NO_ID = "00000000-0000-7000-8000-000000000000"
#: No thread of a test takes this long, in real seconds; one that does hangs.
PATIENCE_S = 30.0


def needs(ability: str) -> Callable[[F], F]:
    """A decorator: this test is for stores with that ability (`ABILITIES`)."""
    assert ability in ABILITIES

    def mark(test: F) -> F:
        test.__dict__["needs"] = (*test.__dict__.get("needs", ()), ability)
        return test

    return mark


class StoreBench:
    """One room for each test. `self.store` is open and empty; `self.clock` stands still until the test advances it."""

    #: The abilities that this store does not have: their tests are not collected for it.
    lacks: ClassVar[Collection[str]] = ()

    store: Store  # the room of this test, open and empty
    clock: ManualClock  # its clock, which stands still until it is advanced
    folder: Path  # a path of this test's own

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls):
            if not {*cls.lacks}.isdisjoint(getattr(getattr(cls, name), "needs", ())):
                setattr(cls, name, None)  # pytest collects what can be called

    def open(self, clock: Clock, config: Config) -> Store:
        """Open the room of this test in `self.folder`; the first call makes it."""
        raise NotImplementedError(f"{type(self).__name__} must say how to open its store")

    @pytest.fixture(autouse=True)
    def _bench(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
        self.folder = tmp_path / "room"
        self.clock = ManualClock()
        self._opened: list[Store] = []
        self.store = self.open_again()
        for ability in (each for each in getattr(request.function, "needs", ()) if not self.has(each)):
            pytest.skip(f"{type(self.store).__name__} lacks {ability!r}: {ABILITIES[ability]}; say so in `lacks`")
        yield
        for store in reversed(self._opened):
            store.close()

    def open_again(self, *, clock: Clock | None = None, config: Config | None = None) -> Store:
        """Open the room once more. A store that is neither durable nor shared opens an empty one."""
        store = self.open(clock or self.clock, config or Config())
        self._opened.append(store)
        return store

    def has(self, ability: str) -> bool:
        """Whether the store has that ability."""
        if ability != "switchboard":
            return bool(getattr(self.store, ability))
        switchboard = self.store.switchboard()
        if switchboard is not None:
            switchboard.close()
        return switchboard is not None

    # Short words for what tests do most

    def draft(self, to: str | None = "bob", text: Any = "hello", sender: str = "ada", **fields: Any) -> Draft:
        return check(Draft(from_agent=sender, to_agent=to, payload={"text": text}, **fields))

    def send(self, to: str | None = "bob", text: Any = "hello", sender: str = "ada", **fields: Any) -> str:
        """Put one message; its id."""
        (id,) = self.store.put([self.draft(to, text, sender, **fields)])
        return id

    def ask(self, to: str = "bob", waiter: str = "elsewhere:1:1", **fields: Any) -> str:
        """Put a question that a process waits to see answered; its id. Nobody can tell whether that process lives."""
        return self.send(to, "question?", waiter=waiter, **fields)

    def want(self, agent: str = "bob", **fields: Any) -> Want:
        return Want(**{"agent": agent, "lease_s": 30.0, **fields})

    def keyed(self, key: str = "pr-7", to: str | None = "bob", text: str = "hello", **fields: Any) -> str:
        """Put one message with an order key; its id."""
        return self.send(to, text, order_key=key, **fields)

    def next(self, agent: str = "bob", **fields: Any) -> str | None:
        """The id of what the next claim gives, or None. It stays claimed."""
        deliveries = self.claim(agent, **fields)
        return deliveries[0].message.id if deliveries else None

    def claim(self, agent: str = "bob", **fields: Any) -> list[Delivery]:
        return self.store.claim(self.want(agent, **fields)).deliveries

    def take(self, agent: str = "bob", **fields: Any) -> Delivery:
        """Claim the next message; there must be one."""
        deliveries = self.claim(agent, **fields)
        assert deliveries, f"nothing to claim for {agent}"
        return deliveries[0]

    def drain(self, agent: str = "bob", **fields: Any) -> list[str]:
        """Claim everything; the ids in the order in which they came."""
        return ids_of(self.store.claim(self.want(agent, limit=10_000, **fields)))

    def end(self, outcome: str, agent: str = "bob", ids: tuple[str, ...] | None = None, **fields: Any) -> Settled:
        """Claim the next message (of these) and settle it so."""
        return self.store.settle(self.take(agent, ids=ids).ticket, outcome, **fields)

    def publish(self, text: Any = "hello", channel: str = "news", **fields: Any) -> list[str]:
        """Put a copy for every subscriber; the ids."""
        return self.store.put([self.draft(None, text, channel=channel, publish=True, **fields)])

    def cell_value(self, name: str) -> Any:
        """What a cell holds; there must be one."""
        cell = self.store.cell_read(name)
        assert cell is not None, f"there is no cell {name}"
        return cell.value

    def ack(self, ticket: Ticket, **fields: Any) -> Settled:
        return self.store.settle(ticket, "acked", **fields)

    def read(self, id: str) -> MessageWithLedger:
        message = self.store.get(id)
        assert message is not None, f"{id} is not kept"
        return message

    def state(self, id: str) -> State:
        return self.read(id).exact_state

    def events_of(self, id: str) -> list[str]:
        """The ledger's words, in order."""
        return [entry.event for entry in self.read(id).ledger]

    def found(self, **fields: Any) -> list[str]:
        """The ids that a query finds."""
        return [message.id for message in self.store.find(Query(**fields)).messages]

    def kill_by_retries(self, id: str) -> None:
        """Fail a message until it is dead."""
        while self.state(id) is not State.DEAD:
            self.end("retry", ids=(id,), detail="it fails")


def ids_of(claimed: Claimed | None) -> list[str]:
    """What a claim gave. There must have been one."""
    assert claimed is not None
    return [delivery.message.id for delivery in claimed.deliveries]


def gone_process() -> str:
    """The name of a process of this machine that does not run: no system gives out that pid."""
    return f"{host_id()}:{2**31 - 1}:1"


def together(*works: Callable[[], T]) -> list[T]:
    """Run all at once, each in a thread of its own; their results in order. What one raises is raised here."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(place: int) -> None:
        try:
            start.wait(PATIENCE_S)
            results[place] = works[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    assert len(results) == len(works), f"a thread did not come back within {PATIENCE_S:g} s"
    return [results[place] for place in range(len(works))]
