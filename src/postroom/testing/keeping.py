"""What is kept, and for how long: cells, retention, closing and opening again, forks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from postroom.core.config import Config
from postroom.core.states import State
from postroom.errors import InvalidMessage, RoomClosed
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import ANY, Cell, Query, Store, Ticket, Want

from .workbench import NO_ID, StoreBench, needs, together

#: Every method of a store but `close`, with a harmless call of it.
CALLS: dict[str, Callable[[Store], Any]] = {
    "put": lambda store: store.put([]),
    "claim": lambda store: store.claim(Want(agent="bob", lease_s=1)),
    "settle": lambda store: store.settle(Ticket(NO_ID, 1, "bob"), "acked"),
    "extend": lambda store: store.extend(Ticket(NO_ID, 1, "bob"), 1),
    "heartbeat": lambda store: store.heartbeat([Ticket(NO_ID, 1, "bob")], 1),
    "note": lambda store: store.note(NO_ID, "shown", "bob"),
    "abandon": lambda store: store.abandon(NO_ID),
    "get": lambda store: store.get(NO_ID),
    "find": lambda store: store.find(Query()),
    "events": lambda store: store.events(),
    "requeue": lambda store: store.requeue([NO_ID]),
    "purge": lambda store: store.purge(Query()),
    "subscribe": lambda store: store.subscribe("news", "bob"),
    "unsubscribe": lambda store: store.unsubscribe("news", "bob"),
    "subscriptions": lambda store: store.subscriptions(),
    "cell_read": lambda store: store.cell_read("a"),
    "cell_write": lambda store: store.cell_write("a", 1),
    "put_with_cell": lambda store: store.put_with_cell([], "a", 1, 1),
    "cell_scan": lambda store: store.cell_scan(""),
    "listen": lambda store: store.listen(["to:bob"]),
    "sweep": lambda store: store.sweep(),
    "stats": lambda store: store.stats(),
    "work_of": lambda store: store.work_of("bob"),
    "number_at": lambda store: store.number_at(0),
    "restore": lambda store: store.restore([]) if store.restores else store.number_at(0),
}


class Keeping(StoreBench):
    """Cells, `sweep`'s retention, `close`."""

    # Cells

    @pytest.mark.parametrize("value", [0, False, "", [], {}, "text", 1.5, {"a": [1, {"b": None}]}, [None]])
    def test_a_cell_gives_back_what_was_written(self, value: Any) -> None:
        version = self.store.cell_write("a/b", value)

        assert version and self.store.cell_read("a/b") == Cell("a/b", version, value)

    def test_a_cell_that_was_never_written_is_not_there(self) -> None:
        assert self.store.cell_read("a") is None
        assert self.store.cell_scan("") == []

    def test_what_a_reader_changes_is_not_in_the_cell(self) -> None:
        value = {"list": [1]}
        self.store.cell_write("a", value)
        value["list"].append(2)
        self.cell_value("a")["list"].append(3)

        assert self.cell_value("a") == {"list": [1]}

    def test_a_cell_is_written_only_over_the_version_that_is_expected(self) -> None:
        first = self.store.cell_write("a", 1, expect=0)
        assert first is not None
        assert self.store.cell_write("a", 2, expect=0) is None
        assert self.store.cell_write("a", 2, expect=first + 1) is None
        assert self.store.cell_read("a") == Cell("a", first, 1)

        second = self.store.cell_write("a", 2, expect=first)

        assert second is not None
        assert second != first
        assert self.store.cell_read("a") == Cell("a", second, 2)
        assert self.store.cell_write("a", 3, expect=first) is None
        assert self.store.cell_write("a", 3, expect=ANY) not in (None, first, second)

    def test_a_cell_is_deleted_only_in_the_version_that_is_expected(self) -> None:
        version = self.store.cell_write("a", 1)
        assert version is not None
        assert self.store.cell_write("a", None, expect=version + 1) is None
        assert self.store.cell_write("a", None, expect=0) is None
        assert self.store.cell_read("a") is not None

        assert self.store.cell_write("a", None, expect=version) == 0

        assert self.store.cell_read("a") is None
        assert self.store.cell_write("a", None) == 0
        assert self.store.cell_write("a", 2, expect=version) is None
        assert self.store.cell_write("a", 2, expect=0) is not None

    def test_messages_are_stored_with_a_cell_only_over_the_version_that_is_expected(self) -> None:
        first = self.store.cell_write("a/b", 1)
        assert first is not None
        assert self.store.put_with_cell([self.draft()], "a/b", 2, first + 1) is None
        assert self.store.put_with_cell([self.draft()], "a/c", 2, first) is None
        assert self.store.find(Query()).messages == []

        ids = self.store.put_with_cell([self.draft(text=1), self.draft(text=2)], "a/b", 2, first)

        assert ids is not None
        assert [(m.id, m.payload["text"]) for m in self.store.find(Query()).messages] == list(
            zip(ids, (1, 2), strict=True)
        )
        cell = self.store.cell_read("a/b")
        assert cell is not None and cell.value == 2 and cell.version != first
        assert self.store.put_with_cell([self.draft()], "a/b", 3, first) is None
        assert self.store.put_with_cell([], "a/b", 3, cell.version) == []
        assert self.cell_value("a/b") == 3
        assert len(self.store.find(Query()).messages) == 2

    def test_a_late_writer_stores_nothing_though_what_the_first_stored_is_forgotten(self) -> None:
        version = self.store.cell_write("a/b", 1)
        assert version is not None
        ids = self.store.put_with_cell([self.draft()], "a/b", 2, version)
        assert ids is not None
        self.store.purge(Query(ids=tuple(ids)))

        assert self.store.put_with_cell([self.draft()], "a/b", 2, version) is None

        assert self.store.find(Query()).messages == []

    def test_a_refused_message_leaves_the_cell_that_came_with_it_as_it_was(self) -> None:
        self.store.put([self.draft(idempotency_key="k")])
        version = self.store.cell_write("a", 1)
        assert version is not None

        with pytest.raises(InvalidMessage):
            self.store.put_with_cell([self.draft(), self.draft(text="another", idempotency_key="k")], "a", 2, version)

        assert self.store.cell_read("a") == Cell("a", version, 1)
        assert len(self.store.find(Query()).messages) == 1

    def test_of_many_that_store_with_the_same_version_of_a_cell_one_does(self) -> None:
        version = self.store.cell_write("a", 0)
        assert version is not None

        ends = together(*(partial(self.store.put_with_cell, [self.draft(text=n)], "a", n, version) for n in range(4)))

        (stored,) = [end for end in ends if end is not None]
        (message,) = self.store.find(Query()).messages
        assert stored == [message.id]
        assert self.cell_value("a") == message.payload["text"]

    def test_a_version_never_comes_back(self) -> None:
        versions = []
        for number in range(5):
            versions += [self.store.cell_write("a", number), self.store.cell_write("a", number)]
            self.store.cell_write("a", None)

        assert None not in versions
        assert len(set(versions)) == 10

    @pytest.mark.parametrize(
        "name",
        ["a" * 1600, "\U0001f4ee" * 500, "board/" + "x.*>/" * 300, "session:20260101-0-a/record", "a. b\t>/*/.."],
        ids=["long", "four bytes each", "long with slashes", "a session's", "odd"],
    )
    def test_a_cell_may_have_any_name(self, name: str) -> None:
        version = self.store.cell_write(name, 1, expect=0)
        self.store.cell_write(name + "2", 2)

        assert version is not None
        assert self.store.cell_read(name) == (name, version, 1)
        assert [cell.name for cell in self.store.cell_scan(name)] == [name, name + "2"]
        assert self.store.cell_write(name, None, expect=version) == 0
        assert [cell.name for cell in self.store.cell_scan(name)] == [name + "2"]

    def test_cells_are_listed_by_the_beginning_of_their_names(self) -> None:
        for name in "agent/b agent/a agent agent0 agen agent/\U0001f4ee agent/\uffff Agent/a agent/%".split():
            self.store.cell_write(name, name)

        names = [cell.name for cell in self.store.cell_scan("agent/")]

        assert names == ["agent/%", "agent/a", "agent/b", "agent/\uffff", "agent/\U0001f4ee"]
        assert [cell.value for cell in self.store.cell_scan("agent/")] == names
        assert len(self.store.cell_scan("")) == 9
        assert [cell.name for cell in self.store.cell_scan("agent/%")] == ["agent/%"]
        assert self.store.cell_scan("agent_") == self.store.cell_scan("*") == []

    def test_counting_in_a_cell_loses_nothing(self) -> None:
        def count() -> None:
            for _ in range(40):
                update(self.store, "counter", lambda value: (value or 0) + 1)

        together(count, count, count)

        assert self.cell_value("counter") == 120

    def test_two_writers_who_race_both_see_the_others_value(self) -> None:
        def add(name: str) -> None:
            update(self.store, "names", lambda names: [*(names or ()), name])

        for number in range(10):
            together(partial(add, f"a{number}"), partial(add, f"b{number}"))

        assert sorted(self.cell_value("names")) == sorted(f"{who}{number}" for who in "ab" for number in range(10))

    def test_a_cell_that_many_delete_is_deleted_by_one_of_them(self) -> None:
        self.store.cell_write("a", 1)
        seen: list[bool] = []

        def delete() -> None:
            last: list[Any] = []

            def change(value: Any) -> Any:
                last[:] = [value]
                return None if value is None else DELETE

            update(self.store, "a", change)
            seen.append(last != [None])

        together(delete, delete, delete)

        assert self.store.cell_read("a") is None
        assert seen.count(True) == 1

    def test_a_cell_is_made_by_one_of_those_who_race(self) -> None:
        for number in range(20):
            made = together(*[partial(self.store.cell_write, f"lock/{number}", 1, expect=0)] * 3)
            assert [version is not None for version in made].count(True) == 1

    # Retention

    def finish(self, count: int, size: int = 1) -> list[str]:
        """Send that many messages and ack them, a second apart."""
        ids = []
        for _ in range(count):
            ids.append(self.send(text="x" * size))
            self.take(settle=True)
            self.clock.advance(1)
        return ids

    def test_finished_messages_are_forgotten_after_their_time(self) -> None:
        self.store = self.open_again(config=Config(keep_s=100))
        old = self.finish(3)
        waiting = self.send()
        self.clock.advance(90)
        new = self.finish(2)
        assert self.store.sweep().purged == 0
        self.clock.advance(10)

        assert self.store.sweep().purged == 3

        assert self.found() == [waiting, *new]
        assert self.store.get(old[0]) is None

    def test_finished_messages_beyond_a_number_are_forgotten_the_oldest_first(self) -> None:
        self.store = self.open_again(config=Config(keep_count=3))
        waiting = self.send("eve")
        ids = self.finish(8)

        assert self.store.sweep().purged == 5
        assert self.found() == [waiting, *ids[-3:]]
        assert self.store.sweep().purged == 0

    def test_finished_messages_beyond_a_size_are_forgotten_the_oldest_first(self) -> None:
        self.store = self.open_again(config=Config(keep_bytes=1_000_000))
        waiting = self.send("eve")
        ids = self.finish(40, size=100_000)

        for _ in range(3):
            self.store.sweep()
        kept = self.found()

        assert kept[0] == waiting
        assert kept[1:] == ids[-(len(kept) - 1) :]
        assert 3 <= len(kept) - 1 <= 12

    def test_what_is_not_finished_is_never_forgotten(self) -> None:
        self.store = self.open_again(config=Config(keep_s=1, keep_count=0, keep_bytes=1))
        ready, delayed, claimed = self.send(), self.send(delay_s=1e6), self.send("eve")
        self.take("eve", lease_s=1e6)
        self.clock.advance(1000)

        assert self.store.sweep().purged == 0
        assert self.found() == [ready, delayed, claimed]

    # Closing, opening again

    def test_closing_twice_is_closing_once(self) -> None:
        self.store.close()
        self.store.close()

    @pytest.mark.parametrize("method", CALLS)
    def test_a_closed_room_says_so(self, method: str) -> None:
        self.store.close()

        with pytest.raises(RoomClosed):
            CALLS[method](self.store)

    def test_the_suite_leaves_out_only_what_the_store_cannot_do(self) -> None:
        assert [ability for ability in self.lacks if self.has(ability)] == []

    @needs("durable")
    def test_what_was_put_is_there_when_the_room_is_opened_again(self) -> None:
        id, claimed = self.send(delay_s=5, correlation_id="c"), self.send()
        ticket = self.take().ticket
        self.store.subscribe("news", "bob")
        version = self.store.cell_write("a", {"b": 1})
        self.store.close()

        self.store = self.open_again()

        assert version is not None
        assert self.found() == [id, claimed]
        assert self.state(id) is State.DELAYED
        assert self.ack(ticket).held
        assert self.events_of(claimed) == ["stored", "claimed", "acked"]
        assert [entry[:2] for entry in self.store.subscriptions()] == [("news", "bob")]
        assert self.store.cell_read("a") == Cell("a", version, {"b": 1})
        self.clock.advance(5)
        assert self.drain() == [id]

    @needs("shared")
    def test_all_who_have_the_room_open_see_the_same(self) -> None:
        other = self.open_again()
        id = self.send(None, channel="work")

        (delivery,) = other.claim(self.want("eve", channels=("work",))).deliveries
        assert self.claim(channels=("work",)) == []
        assert self.ack(delivery.ticket).held
        assert other.settle(delivery.ticket, "acked").held is False
        version = other.cell_write("a", 1)
        assert version is not None
        assert self.store.cell_read("a") == Cell("a", version, 1)
        assert self.state(id) is State.ACKED

    @needs("shared")
    def test_one_who_closes_does_not_close_the_room_for_others(self) -> None:
        other = self.open_again()
        other.close()

        id = self.send()
        assert self.drain() == [id]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    @pytest.mark.parametrize("method", CALLS)
    def test_a_forked_process_is_told_to_open_the_room_itself(self, method: str) -> None:
        self.send()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads, which the child does not use
            child = os.fork()
        if child == 0:
            try:
                CALLS[method](self.store)
            except RoomClosed:
                os._exit(0)
            finally:
                os._exit(1)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(self.claim()) == 1
