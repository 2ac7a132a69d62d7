"""Waking those who wait: the right ones, all or one, across threads and processes, and nobody for long when it fails."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.stores.bells import page, sockets, spinning
from postroom.stores.bells.bells import Bells, Watcher
from postroom.stores.bells.page import SLOTS, TOPICS
from postroom.stores.bells.sockets import NoBells
from postroom.stores.bells.spinning import SOON_NS
from postroom.stores.contract import FEED, topic_to
from postroom.stores.sqlite.store import SqliteStore


@pytest.fixture
def bells(tmp_path):
    bells = Bells(tmp_path, SYSTEM)
    yield bells
    bells.close()


def rung(*waiters):
    return [waiter.wait(0) for waiter in waiters]


def test_a_ring_reaches_those_who_wait_for_the_topic_and_no_others(bells):
    with bells.listen(["a"]) as a, bells.listen(["b", "a"]) as ab, bells.listen(["c"]) as c:
        bells.ring(["a"])
        assert rung(a, ab, c) == [True, True, False]


def test_a_ring_before_the_wait_is_not_missed(bells):
    with bells.listen(["a"]) as waiter:
        bells.ring(["a"])
        assert waiter.wait(0)
        assert not waiter.wait(0)


def test_in_a_crowd_a_ring_reaches_those_who_wait_for_the_topic_and_no_others(bells):
    crowd = [bells.listen([f"topic {n}", "b"] if n % 2 else ["b", f"topic {n}"]) for n in range(100)]
    every = bells.listen([f"t{n}" for n in range(TOPICS + 1)])
    crowd[60].close()

    bells.ring(["topic 7", "topic 60", "nothing"])
    assert [n for n, hinted in enumerate(rung(*crowd)) if hinted] == [7]
    assert rung(every) == [True]
    bells.ring([], ["topic 8"])
    assert [n for n, hinted in enumerate(rung(*crowd)) if hinted] == [8]
    bells.ring(["b"])
    assert sum(rung(*crowd)) == 99
    for waiter in (*crowd, every):
        waiter.close()


def test_many_rings_come_as_one_hint_and_the_next_one_is_heard_again(bells):
    with bells.listen(["a"]) as waiter:
        for _ in range(1000):
            bells.ring(["a"])
        assert rung(waiter, waiter) == [True, False]
        bells.ring(["a"])
        assert rung(waiter) == [True]


def test_ringing_one_wakes_exactly_one_and_goes_round(bells):
    waiters = [bells.listen(["work"]) for _ in range(4)]
    woken = [0] * 4
    for _ in range(200):
        bells.ring([], ["work"])
        answers = rung(*waiters)
        assert sum(answers) == 1
        woken = [total + answer for total, answer in zip(woken, answers, strict=True)]
    assert min(woken) > 10
    for waiter in waiters:
        waiter.close()


def test_several_messages_at_once_wake_several(bells):
    waiters = [bells.listen(["work"]) for _ in range(4)]
    bells.ring([], ["work", "work", "work"])
    assert sum(rung(*waiters)) == 3
    for waiter in waiters:
        waiter.close()


def test_who_leaves_with_a_hint_passes_it_on(bells):
    """It found its message by looking, and the ring was for the next one."""
    waiters = [bells.listen(["work"]) for _ in range(3)]
    bells.ring([], ["work"])
    for waiter in [waiter for waiter in waiters if select.select([waiter], [], [], 0)[0]]:
        waiter.close()
        waiters.remove(waiter)
    assert sum(rung(*waiters)) == 1
    for waiter in waiters:
        waiter.close()


def meanwhile(bells, monkeypatch, act):
    """Let something happen once when a ringer has chosen its waiter, and has not rung it yet."""
    rings, acts = bells.spinning.rings, [act]
    monkeypatch.setattr(bells._clock, "random", lambda: 0)  # the first one is chosen

    def ring_after_that(slot):
        if acts:
            acts.pop()()
        rings(slot)

    monkeypatch.setattr(bells.spinning, "rings", ring_after_that)


def test_who_leaves_at_the_moment_it_is_rung_takes_no_hint_with_it(tmp_path, monkeypatch):
    bells = Bells(tmp_path, ManualClock())
    first, other = bells.listen(["work"]), bells.listen(["work"])
    meanwhile(bells, monkeypatch, first.close)
    bells.ring([], ["work"])
    assert rung(other) == [True]
    other.close()
    bells.close()


def test_who_was_rung_by_two_at_once_and_leaves_with_one_message_passes_the_other_hint_on(tmp_path, monkeypatch):
    bells = Bells(tmp_path, ManualClock())
    first, other = bells.listen(["work"]), bells.listen(["work"])
    meanwhile(bells, monkeypatch, lambda: bells.ring([], ["work"]))
    bells.ring([], ["work"])
    assert rung(first, other) == [True, False]
    first.close()
    assert rung(other) == [True]
    other.close()
    bells.close()


def test_a_waiter_with_more_topics_than_fit_hears_everything(bells):
    with bells.listen([f"t{n}" for n in range(TOPICS + 1)]) as waiter:
        bells.ring(["something else"])
        assert rung(waiter) == [True]


def test_a_closed_waiter_hears_nothing_and_its_place_is_used_again(bells):
    for _ in range(SLOTS * 2):
        with bells.listen(["a"]):
            pass
        bells.ring(["a"])
    with bells.listen(["b"]) as waiter:
        bells.ring(["a"])
        assert rung(waiter) == [False]


def test_a_descriptor_can_be_waited_on(bells):
    with bells.listen(["a"]) as waiter:
        assert select.select([waiter], [], [], 0)[0] == []
        bells.ring(["a"])
        assert select.select([waiter], [], [], 0)[0] == [waiter]


def test_when_every_place_is_taken_a_store_watches_instead_and_still_wakes(tmp_path):
    store = SqliteStore(tmp_path / "room", Config(), SYSTEM)
    others = Bells(tmp_path / "room", SYSTEM)
    taken = [others.sockets.take(number) for number in range(SLOTS)]
    assert None not in taken
    with store.listen([topic_to("bob")]) as waiter:
        writer = threading.Thread(target=lambda: store.cell_write("x", 1))
        writer.start()
        assert isinstance(waiter, Watcher)
        assert waiter.wait(10)
        writer.join()
    assert store.stats().store["wake_up"] == "watching (all 512 places to wait in this room are taken)"
    for number, bound in enumerate(taken):
        assert bound is not None
        others.sockets.give_back(number, bound)
    assert store.stats().store["wake_up"] == "datagrams through the room's folder"
    others.close()
    store.close()


def test_a_folder_where_no_page_can_be_made_is_said_in_the_figures(tmp_path, monkeypatch):
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "map_part", full)
    with pytest.raises(NoBells):
        Bells(tmp_path, SYSTEM)
    store = SqliteStore(tmp_path / "room", Config(), SYSTEM)
    assert store.stats().store["wake_up"].startswith("watching")
    store.close()


def test_a_room_deep_in_the_tree_has_bells_too(tmp_path):
    deep = tmp_path / "/".join(["a-folder-with-a-long-name"] * 12)
    deep.mkdir(parents=True)
    bells = Bells(deep, SYSTEM)
    with bells.listen(["a"]) as waiter:
        bells.ring(["a"])
        assert rung(waiter) == [True]
    bells.close()


LISTENER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from postroom.stores.bells.bells import Bells
from postroom.core.clock import SYSTEM
with Bells(Path(sys.argv[1]), SYSTEM).listen(["a"]) as waiter:
    print("armed", flush=True)
    print(waiter.wait(20), flush=True)
"""


def start_listener(folder) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", LISTENER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "armed\n"
    return child


def test_a_ring_wakes_another_process(bells, tmp_path):
    with start_listener(tmp_path) as child:
        bells.ring(["a"])
        assert child.communicate(timeout=20)[0] == "True\n"


def test_the_place_of_a_killed_process_is_free_again_and_does_not_swallow_a_ring(bells, tmp_path):
    with start_listener(tmp_path) as child:
        child.kill()
    with bells.listen(["a"]) as waiter:
        for _ in range(20):
            bells.ring([], ["a"])
            assert rung(waiter) == [True]


@pytest.mark.parametrize("begins", [0.0, 0.99], ids=["at the living", "at the dead"])
def test_ringing_one_passes_over_the_dead_wherever_it_begins(begins, bells, tmp_path, monkeypatch):
    with bells.listen(["a"]) as waiter:  # which has the first place
        with start_listener(tmp_path) as child:
            child.kill()
        monkeypatch.setattr(bells, "_clock", SimpleNamespace(random=lambda: begins))
        bells.ring([], ["a"])
        assert rung(waiter) == [True]


def test_two_rooms_do_not_hear_each_other(tmp_path):
    for name in ("one", "two"):
        os.mkdir(tmp_path / name)
    one, two = Bells(tmp_path / "one", SYSTEM), Bells(tmp_path / "two", SYSTEM)
    with two.listen(["a"]) as waiter:
        one.ring(["a"])
        assert rung(waiter) == [False]
    one.close()
    two.close()


def test_a_hint_that_came_for_who_waited_here_before_wakes_nobody(bells):
    with bells.listen(["a"]) as first:
        bells.ring(["a"])
        assert select.select([first], [], [], 0)[0]
    with bells.listen(["b"]) as second:
        assert second.fileno() == first.fileno(), "the same place"
        assert rung(second) == [False]
        bells.ring(["b"])
        assert rung(second, second) == [True, False]


def test_who_waits_again_is_heard_again_although_somebody_died_while_it_rang(bells):
    """It took the flag down, and was killed before it rang."""
    with bells.listen(["a"]) as waiter:
        bells.page.memory[waiter._number] = 0
        assert select.select([waiter], [], [], 0)[0] == []  # a wait that ends by time
        bells.ring(["a"])
        assert rung(waiter) == [True]


# Spinning


class NoneHere(set[tuple[str, int]]):
    """Says of every place that it is another process's."""

    def __contains__(self, _):
        return False


@pytest.fixture
def neighbours(monkeypatch):
    """Waiters of this process are rung as if they were of other processes."""
    monkeypatch.setattr(spinning, "_bound_here", NoneHere())


class SpinClock(ManualClock):
    """The clock of the spinning: it stands still, but for each turn of a waiter that spins, which is a quarter of its time."""

    turns = 0

    def turn(self):
        self.turns += 1
        self.advance(SOON_NS / 4e9)

    def turns_of(self, waiter):
        """How often a waiter turns before it sleeps."""
        before = self.turns
        waiter.fileno()
        return self.turns - before


@pytest.fixture
def spin_clock(monkeypatch):
    clock = SpinClock()
    monkeypatch.setattr(spinning, "SYSTEM", clock)
    monkeypatch.setattr(os, "sched_yield", clock.turn)
    return clock


def exchange(bells, waiter) -> None:
    """A waiter that is hinted at once, and then rings somebody itself."""
    waiter.fileno()
    bells.ring({"a"})
    assert rung(waiter) == [True]
    bells.ring({"b"})


@pytest.mark.usefixtures("neighbours")
def test_in_an_exchange_a_waiter_spins_for_the_next_hint_once(bells, spin_clock):
    with bells.listen(["a"]) as waiter, bells.listen(["b"]):
        exchange(bells, waiter)
        assert spin_clock.turns_of(waiter) == 4
        assert spin_clock.turns_of(waiter) == 0, "it slept since then"


@pytest.mark.usefixtures("neighbours")
def test_a_hint_ends_spinning(bells, spin_clock, monkeypatch):
    with bells.listen(["a"]) as waiter, bells.listen(["b"]):
        exchange(bells, waiter)

        def turn():
            spin_clock.turn()
            if spin_clock.turns == 2:
                bells.ring({"a"})

        monkeypatch.setattr(os, "sched_yield", turn)
        assert spin_clock.turns_of(waiter) == 2
        assert rung(waiter) == [True]


@pytest.mark.usefixtures("neighbours")
def test_a_hint_that_came_late_is_no_exchange(bells, spin_clock):
    with bells.listen(["a"]) as waiter, bells.listen(["b"]):
        waiter.fileno()
        spin_clock.advance(SOON_NS / 1e9)
        bells.ring({"a", "b"})
        assert rung(waiter) == [True]
        assert spin_clock.turns_of(waiter) == 0


@pytest.mark.usefixtures("neighbours")
def test_a_waiter_that_rings_nobody_does_not_spin(bells, monkeypatch):
    monkeypatch.setattr(os, "sched_yield", lambda: pytest.fail("it spins"))
    with bells.listen(["a"]) as waiter:
        for _ in range(5):
            waiter.fileno()
            bells.spinning.rang = False
            bells.ring({"a"})
            bells.spinning.rang = False  # as if another process had rung
            assert rung(waiter) == [True]


@pytest.mark.usefixtures("spin_clock")
def test_a_waiter_that_its_own_process_rings_does_not_spin(bells, monkeypatch):
    monkeypatch.setattr(os, "sched_yield", lambda: pytest.fail("it spins"))
    with bells.listen(["a"]) as waiter, bells.listen(["b"]):
        for _ in range(5):
            exchange(bells, waiter)
        waiter.fileno()


@pytest.mark.parametrize(("said", "cores"), [("0", 8), (None, 1)], ids=["turned off", "one core"])
@pytest.mark.usefixtures("neighbours")
def test_spinning_is_off_where_one_says_so_and_on_one_core(tmp_path, monkeypatch, said, cores):
    monkeypatch.setattr(spinning, "core_count", lambda: cores)
    if said is not None:
        monkeypatch.setenv("POSTROOM_SPIN", said)
    bells = Bells(tmp_path, SYSTEM)
    monkeypatch.setattr(os, "sched_yield", lambda: pytest.fail("it spins"))
    with bells.listen(["a"]) as waiter:
        for _ in range(5):
            waiter.fileno()
            bells.ring({"a"})
            assert rung(waiter) == [True]
    bells.close()


def test_who_gets_no_place_for_want_of_descriptors_leaves_none_behind(bells, monkeypatch):
    def none_left():
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(sockets, "_Socket", none_left)
        with pytest.raises(NoBells, match="too many"):
            bells.listen(["a"])
    with bells.listen(["a"]) as waiter:
        bells.ring({"a"})
        assert rung(waiter) == [True]


def test_a_change_that_concerns_nobody_wakes_only_those_who_follow_the_feed(bells):
    every = [f"t{n}" for n in range(TOPICS + 1)]
    with bells.listen(["a"]) as one, bells.listen(["a", FEED]) as follower, bells.listen(every) as all_ears:
        bells.ring({FEED})
        assert rung(one, follower, all_ears) == [False, True, True]
        bells.ring({FEED, "a"})
        assert rung(one, follower, all_ears) == [True, True, True]


def test_a_change_that_concerns_nobody_wakes_who_follows_the_feed_behind_a_switchboard(bells):
    hinted = []
    switchboard = bells.switchboard(None)
    seat = switchboard.listen([FEED], lambda: hinted.append("feed"))
    bells.ring({FEED})
    switchboard.take()
    assert hinted == ["feed"]
    seat.close()
    switchboard.close()
