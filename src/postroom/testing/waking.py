"""What `listen` promises: from the moment it returned, no change is missed. The machine's own clock runs here."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from postroom.core.clock import SYSTEM
from postroom.stores.contract import FEED, Ticket, topic_cells, topic_channel, topic_message, topic_to

from .workbench import PATIENCE_S, StoreBench, gone_process, needs, together

#: A hint that does not come within this time does not come, in real seconds.
HINT_S = 10.0


class Waking(StoreBench):
    """`listen`, and the waiter it gives."""

    @pytest.fixture(autouse=True)
    def _real(self, _bench: None, request: pytest.FixtureRequest) -> None:
        """The room on the machine's own clock, for the tests of this file."""
        if request.function.__module__ == __name__:
            self.store = self.open_again(clock=SYSTEM)

    def held(self, **fields: Any) -> Ticket:
        self.send(**fields)
        return self.take(channels=("general",)).ticket

    @pytest.mark.parametrize(
        ("topic", "act"),
        [
            (topic_to("bob"), lambda self: self.send("bob")),
            (topic_to("bob"), lambda self: self.send("bob", delay_s=60)),
            (topic_to("bob"), lambda self: self.store.put([self.draft("eve"), self.draft("bob", channel="x")])),
            (topic_channel("work"), lambda self: self.send(None, channel="work")),
            (topic_cells("agent/bob"), lambda self: self.store.cell_write("agent/eve", 1)),
            (topic_cells("agent"), lambda self: self.store.cell_write("agent", 1)),
            (topic_cells("agent/eve"), lambda self: self.store.cell_write("agent/eve", None)),
            (topic_cells("agent/eve"), lambda self: self.store.cell_write("agent/eve", None, expect=0)),
            (FEED, lambda self: self.send("bob")),
            (FEED, lambda self: self.store.put([self.draft(), self.draft()])),
        ],
        ids=[
            "mail",
            "delayed",
            "batch",
            "channel",
            "cell",
            "cell without slash",
            "deleting a cell that is not there",
            "expecting no cell and deleting it",
            "feed",
            "feed of a batch",
        ],
    )
    def test_a_waiter_is_woken_by(self, topic: str, act: Callable[[Waking], Any]) -> None:
        with self.store.listen(["to:somebody else", topic]) as waiter:
            assert waiter.wait(0) is False
            act(self)

            assert waiter.wait(HINT_S) is True

    @pytest.mark.parametrize("topic", [topic_to("bob"), topic_cells("agent"), FEED])
    def test_who_waits_for_mail_or_a_cell_is_woken_by_what_is_stored_with_a_cell(self, topic: str) -> None:
        version = self.store.cell_write("agent/eve", 1)
        assert version is not None
        with self.store.listen([topic]) as waiter:
            assert self.store.put_with_cell([self.draft("bob")], "agent/eve", 2, version)

            assert waiter.wait(HINT_S) is True

    def test_a_heartbeat_wakes_nobody(self) -> None:
        ticket = self.held()
        rooms = [self.store, self.open_again(clock=SYSTEM)] if self.store.shared else [self.store]
        for room in rooms:
            room.events()  # a reader of the feed
        for room in rooms:
            room.claim(self.want())  # and a receiver
        topics = [FEED, topic_to("bob"), topic_channel("general"), topic_message(ticket.id)]
        waiters = [room.listen([topic]) for room in rooms for topic in topics]
        others = [room.listen([topic_to("eve")]) for room in rooms]

        assert self.store.heartbeat([ticket], 60) == []
        quiet = [waiter.wait(0) for waiter in waiters]
        self.store.put([self.draft("eve", channel="elsewhere")])  # hints come in the order of the changes

        assert [waiter.wait(HINT_S) for waiter in others] == [True] * len(rooms)
        woken = [waiter.wait(0) for waiter in waiters]
        for waiter in (*waiters, *others):
            waiter.close()
        assert not any(quiet)
        assert woken == [True, False, False, False] * len(rooms)

    @needs("switchboard")
    def test_who_sits_at_a_switchboard_is_hinted_for_its_own_topics(self) -> None:
        switchboard = self.store.switchboard()
        assert switchboard is not None
        hints: list[str] = []
        topics = {"bob": topic_to("bob"), "eve": topic_to("eve"), "work": topic_channel("work")}
        waiters = {name: switchboard.listen([topic], partial(hints.append, name)) for name, topic in topics.items()}
        try:
            for name, to, channel in (("bob", "bob", "general"), ("work", None, "work")):
                self.send(to, channel=channel)
                assert select.select([switchboard], [], [], HINT_S)[0] == [switchboard]
                switchboard.take()
                assert hints == [name]
                hints.clear()
                assert [each for each, waiter in waiters.items() if waiter is not None and waiter.wait(0)] == [name]
            assert select.select([switchboard], [], [], 0)[0] == []
        finally:
            switchboard.close()

    @pytest.mark.parametrize("outcome", ["acked", "answered", "refused", "dead", "retry"])
    def test_who_follows_a_message_hears_what_becomes_of_it(self, outcome: str) -> None:
        ticket = self.held()
        with self.store.listen([topic_message(ticket.id)]) as waiter, self.store.listen([FEED]) as feed:
            self.store.settle(ticket, outcome)

            assert waiter.wait(HINT_S) is True
            assert feed.wait(HINT_S) is True

    @pytest.mark.parametrize(
        ("topic", "to"), [(topic_to("bob"), "bob"), (topic_channel("general"), None)], ids=["to one", "to anyone"]
    )
    @pytest.mark.parametrize("how", ["retry", "returned", "requeue", "gone owner"])
    def test_mail_that_comes_back_wakes_like_new_mail(self, topic: str, to: str | None, how: str) -> None:
        owner = gone_process() if how == "gone owner" else None
        id = self.send(to)
        ticket = self.take(channels=("general",), lease_s=600, owner=owner).ticket
        if how == "requeue":
            self.store.settle(ticket, "dead")
        with self.store.listen([topic]) as waiter:
            if how in ("retry", "returned"):
                self.store.settle(ticket, how)
            elif how == "requeue":
                self.store.requeue([id])
            else:
                self.store.sweep()

            assert waiter.wait(HINT_S) is True

    def test_all_who_wait_for_an_agents_mail_are_woken(self) -> None:
        waiters = [self.store.listen([topic_to("bob")]) for _ in range(3)]
        self.send("bob")

        assert [waiter.wait(HINT_S) for waiter in waiters] == [True] * 3
        for waiter in waiters:
            waiter.close()

    def test_as_many_are_woken_as_there_are_messages_for_anyone(self) -> None:
        """One for each message at the least; a waiter that is not woken is not needed."""
        waiters = [self.store.listen([topic_channel("work")]) for _ in range(3)]
        for _ in waiters:
            self.send(None, channel="work")

        woken, taken = 0, 0
        while taken < 3:
            ready, _, _ = select.select([waiter.fileno() for waiter in waiters], [], [], HINT_S)
            assert ready, "messages are there and nobody is woken"
            for waiter in waiters:
                if waiter.fileno() in ready:
                    assert waiter.wait(0) is True
                    woken += 1
                    while self.claim(channels=("work",), settle=True):
                        taken += 1
        assert woken >= 1
        for waiter in waiters:
            waiter.close()

    def test_a_hint_that_came_while_nobody_waited_is_not_lost(self) -> None:
        with self.store.listen([topic_to("bob")]) as waiter:
            self.send("bob")
            self.take("bob")

            assert waiter.wait(HINT_S) is True

    def test_a_waiter_can_be_woken_again_and_again(self) -> None:
        with self.store.listen([topic_to("bob")]) as waiter:
            for _ in range(5):
                self.send("bob")
                assert waiter.wait(HINT_S) is True

    def test_a_waiters_descriptor_can_be_read_while_there_is_a_hint(self) -> None:
        with self.store.listen([topic_to("bob")]) as waiter:
            assert select.select([waiter.fileno()], [], [], 0)[0] == []
            self.send("bob")

            assert select.select([waiter.fileno()], [], [], HINT_S)[0] == [waiter.fileno()]
            assert waiter.wait(0) is True
            assert select.select([waiter.fileno()], [], [], 0)[0] == []
            assert waiter.wait(0) is False

    def test_closing_a_waiter_twice_is_closing_it_once(self) -> None:
        waiter = self.store.listen([topic_to("bob")])
        waiter.close()
        waiter.close()
        self.send("bob")

        with self.store.listen([topic_to("bob")]) as another:
            self.send("bob")
            assert another.wait(HINT_S) is True

    def test_a_new_waiter_hears_nothing_old(self) -> None:
        with self.store.listen([topic_to("bob")]) as waiter:
            self.send("bob")
            assert waiter.wait(HINT_S) is True
        with self.store.listen([topic_to("eve")]) as waiter:
            assert waiter.wait(0) is False

    def test_many_waiters_can_wait_at_once(self) -> None:
        waiters = [self.store.listen([topic_to(f"agent-{n}")]) for n in range(60)]
        for number in range(60):
            self.send(f"agent-{number}")

        assert all(waiter.wait(HINT_S) for waiter in waiters)
        for waiter in waiters:
            waiter.close()

    def test_a_waiter_may_have_many_topics(self) -> None:
        with self.store.listen([topic_channel(f"c{n}") for n in range(50)]) as waiter:
            for number in (0, 49):
                self.send(None, channel=f"c{number}")
                assert waiter.wait(HINT_S) is True

    def test_a_wait_in_another_thread_ends_with_the_hint(self) -> None:
        with self.store.listen([topic_to("bob")]) as waiter:
            about_to_wait = threading.Event()

            def wait() -> bool:
                about_to_wait.set()
                return waiter.wait(HINT_S)

            def send() -> bool:
                return about_to_wait.wait(PATIENCE_S) and bool(self.send("bob"))

            assert together(wait, send) == [True, True]

    @pytest.mark.parametrize("to", ["bob", None], ids=["to one", "to anyone"])
    def test_who_arms_then_looks_then_waits_misses_nothing(self, to: str | None) -> None:
        """Two threads pass a message to and fro; one missed hint and a wait runs out."""
        rounds = 150

        def play(me: str, first: bool) -> bool:
            other = {"bob": "ada", "ada": "bob"}[me]
            channel, reply = f"for-{me}", f"for-{other}"
            if first:
                self.send(to and other, channel=reply)
            for _ in range(rounds):
                if not self.receive(me, channel):
                    return False
                self.send(to and other, channel=reply)
            return True

        assert together(lambda: play("ada", first=True), lambda: play("bob", first=False)) == [True, True]

    def receive(self, agent: str, channel: str) -> str | None:
        """Take one message as a receiver does; its text, or None when no hint came."""
        with self.store.listen([topic_to(agent), topic_channel(channel)]) as waiter:
            while not (taken := self.claim(agent, channels=(channel,), settle=True)):
                if not waiter.wait(HINT_S):
                    return None
        return str(taken[0].message.payload["text"])

    def test_a_crowd_that_waits_for_one_channel_misses_nothing(self) -> None:
        count, crowd = 60, 3
        taken = threading.Semaphore(0)

        def work(name: str) -> int:
            done = 0
            while text := self.receive(name, "work"):
                done += 1
                taken.release()
                if text == "go home":
                    break
            return done

        def feed() -> int:
            for text in ["work"] * count + ["go home"] * crowd:
                self.send(None, text, channel="work")
                assert taken.acquire(timeout=PATIENCE_S), "a message waits and nobody was woken"
            return 0

        done = together(*(partial(work, f"w{n}") for n in range(crowd)), feed)

        assert sum(done) == count + crowd

    @needs("shared")
    def test_one_opening_of_the_room_wakes_the_others(self) -> None:
        other = self.open_again(clock=SYSTEM)
        with self.store.listen([topic_to("bob")]) as mail, self.store.listen([topic_cells("a")]) as cells:
            other.put([self.draft("bob")])
            other.cell_write("a/b", 1)

            assert mail.wait(HINT_S) is True
            assert cells.wait(HINT_S) is True
            other.cell_write("a/none", None, expect=0)
            assert cells.wait(HINT_S) is True
