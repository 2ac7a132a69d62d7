"""Many who wait behind one descriptor: each is hinted for its own topics, whoever dies, leaves or rings meanwhile."""

from __future__ import annotations

import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from postroom.core.clock import SYSTEM
from postroom.stores.bells.bells import Bells
from postroom.stores.bells.page import SEATS, SLOTS, SWITCHBOARDS
from postroom.stores.contract import Switchboard, Waiter


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[Bells]:
    bells = Bells(tmp_path, SYSTEM)
    yield bells
    bells.close()


@pytest.fixture
def switchboard(bells: Bells) -> Iterator[Switchboard]:
    switchboard = bells.switchboard(None)
    assert switchboard is not None
    yield switchboard
    switchboard.close()


class Sitting:
    """Those who sit at a switchboard, by a name of ours, and how often each was hinted."""

    def __init__(self, switchboard: Switchboard) -> None:
        self.switchboard = switchboard
        self.hints: Counter[str] = Counter()
        self.waiters: dict[str, Waiter] = {}

    def sit(self, name: str, *topics: str) -> Waiter:
        waiter = self.switchboard.listen(topics, lambda: self.hints.update([name]))
        assert waiter is not None
        self.waiters[name] = waiter
        return waiter

    def hinted(self) -> set[str]:
        """Who was hinted since the last time, as the descriptor, the switchboard and the waiters tell it."""
        ready = bool(select.select([self.switchboard], [], [], 0)[0])
        self.hints.clear()
        self.switchboard.take()
        rung = {name for name, waiter in self.waiters.items() if waiter.wait(0)}
        assert set(self.hints) == rung
        assert ready >= bool(rung)
        return rung


def test_a_ring_hints_those_at_the_board_who_wait_for_the_topic_and_no_others(
    bells: Bells, switchboard: Switchboard
) -> None:
    sitting = Sitting(switchboard)
    sitting.sit("a", "a")
    sitting.sit("ab", "a", "b")
    sitting.sit("c", "c")
    assert sitting.hinted() == set()
    bells.ring(["a"])
    assert sitting.hinted() == {"a", "ab"}
    bells.ring(["b", "c", "nothing"])
    assert sitting.hinted() == {"ab", "c"}
    assert sitting.hinted() == set()


def test_while_the_board_has_not_looked_more_rings_add_up(bells: Bells, switchboard: Switchboard) -> None:
    sitting = Sitting(switchboard)
    for name in "abc":
        sitting.sit(name, name)
    for topic in "abab" * 300:
        bells.ring([topic])
    assert sitting.hinted() == {"a", "b"}
    bells.ring(["c"])
    assert sitting.hinted() == {"c"}


def test_ringing_one_hints_one_of_those_at_boards_and_elsewhere_and_goes_round(
    bells: Bells, switchboard: Switchboard
) -> None:
    sitting = Sitting(switchboard)
    for name in "abc":
        sitting.sit(name, "work")
    got: Counter[str] = Counter()
    with bells.listen(["work"]) as alone:
        for _ in range(200):
            bells.ring([], ["work"])
            woken = [*sitting.hinted(), *(["alone"] if alone.wait(0) else [])]
            assert len(woken) == 1
            got.update(woken)
    assert min(got[name] for name in ("a", "b", "c", "alone")) > 10


def test_several_messages_at_once_hint_several(bells: Bells, switchboard: Switchboard) -> None:
    sitting = Sitting(switchboard)
    for name in "abcdefgh":
        sitting.sit(name, "work")
    bells.ring([], ["work"] * 40)  # each of them begins somewhere else
    assert len(sitting.hinted()) > 3


def test_who_leaves_a_board_at_the_moment_it_is_rung_takes_no_hint_with_it(
    bells: Bells, switchboard: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ringer has chosen it, and has not rung it yet."""
    at_board = Sitting(switchboard)
    first = at_board.sit("first", "work")
    at_board.sit("other", "work")
    seats_for = bells.page.seats_for

    def leave_when_chosen(marks: Iterable[bytes], flags: bytes) -> list[tuple[int, list[int]]]:
        chosen = seats_for(marks, flags)
        first.close()
        return chosen

    monkeypatch.setattr(bells.page, "seats_for", leave_when_chosen)
    monkeypatch.setattr(SYSTEM, "random", lambda: 0)
    bells.ring([], ["work"])
    assert at_board.hinted() == {"other"}
    at_board.waiters["other"].close()


def test_who_leaves_a_board_with_a_hint_passes_it_on(bells: Bells, switchboard: Switchboard) -> None:
    sitting = Sitting(switchboard)
    for name in "abc":
        sitting.sit(name, "work")
    bells.ring([], ["work"])
    left = []
    for _ in range(3):
        switchboard.take()
        (name,) = sitting.hints
        sitting.hints.clear()
        sitting.waiters.pop(name).close()  # without having looked
        left.append(name)
    assert sorted(left) == ["a", "b", "c"]


def test_a_seat_that_was_left_is_used_again_and_hears_nothing_of_before(bells: Bells, switchboard: Switchboard) -> None:
    sitting = Sitting(switchboard)
    for number in range(3 * SEATS):
        waiter = sitting.sit("a", f"topic {number}")
        waiter.close()
        bells.ring([f"topic {number}"])
    sitting.sit("a", "a")
    assert sitting.hinted() == set()
    bells.ring(["a"])
    assert sitting.hinted() == {"a"}


def test_a_full_board_takes_nobody_and_there_is_not_always_another(bells: Bells, switchboard: Switchboard) -> None:
    full = [switchboard.listen([f"{n}"], lambda: None) for n in range(SEATS)]
    assert None not in full
    assert switchboard.listen(["one more"], lambda: None) is None
    full[7].close()  # type: ignore[union-attr]
    assert switchboard.listen(["one", "more"], lambda: None) is None
    assert switchboard.listen(["one more"], lambda: None) is not None

    others = [bells.switchboard(None) for _ in range(SWITCHBOARDS - 1)]
    assert None not in others
    assert bells.switchboard(None) is None
    others[3].close()  # type: ignore[union-attr]
    others[3] = bells.switchboard(None)
    assert others[3] is not None
    for other in others:
        other.close()  # type: ignore[union-attr]


def test_a_board_that_is_closed_hints_nobody_and_may_be_closed_again(bells: Bells, switchboard: Switchboard) -> None:
    sitting = Sitting(switchboard)
    waiter = sitting.sit("a", "a")
    switchboard.close()
    switchboard.close()
    bells.ring(["a"])
    switchboard.take()
    waiter.close()
    assert not sitting.hints


SITTING = """
import sys, time
from pathlib import Path
from postroom.stores.bells.bells import Bells
from postroom.core.clock import SYSTEM
switchboard = Bells(Path(sys.argv[1]), SYSTEM).switchboard(None)
waiter = switchboard.listen(["a"], lambda: None)
print("sits", flush=True)
sys.stdin.readline()
switchboard.take()
print(waiter.wait(0), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("awake", [False, True])
def test_a_board_whose_process_was_killed_swallows_no_ring_and_is_free_again(
    awake: bool, bells: Bells, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", SITTING, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdin
        assert child.stdout.readline() == "sits\n"
        bells.ring(["a"])
        if not awake:  # it has looked, and sleeps again
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "True\n"
        child.kill()
    with bells.listen(["a"]) as waiter:
        for _ in range(20):  # ringing one passes over the dead wherever it begins
            bells.ring([], ["a"])
            assert waiter.wait(0)
    for _ in range(300):
        bells.ring(["a"])
    assert not any(bells.page.memory[512:544]), "nobody looks for it any more"
    switchboards = [bells.switchboard(None) for _ in range(SWITCHBOARDS)]
    assert None not in switchboards
    for switchboard in switchboards:
        switchboard.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("left_as", [0, 2], ids=["away", "awake"])
def test_what_somebody_left_who_died_while_it_rang_is_mended_by_a_look(
    left_as: int, bells: Bells, switchboard: Switchboard
) -> None:
    sitting = Sitting(switchboard)
    sitting.sit("a", "a")
    bells.page.memory[SLOTS] = left_as
    switchboard.take()
    bells.ring(["a"])
    assert select.select([switchboard], [], [], 0)[0] == [switchboard]
    assert sitting.hinted() == {"a"}

    bells.page.memory[SLOTS] = left_as
    sitting.sit("b", "b")
    if left_as == 0:
        bells.ring(["b"])
        assert sitting.hinted() == {"b"}


RINGING = """
import sys
from pathlib import Path
from postroom.stores.bells.bells import Bells
from postroom.core.clock import SYSTEM
bells, topic = Bells(Path(sys.argv[1]), SYSTEM), sys.argv[2]
for _ in range(int(sys.argv[3])):
    bells.ring([topic])
    sys.stdin.buffer.read(1)
"""


@pytest.mark.slow
def test_no_ring_is_lost_between_processes_that_ring_and_the_one_that_looks(
    bells: Bells, switchboard: Switchboard, tmp_path: Path
) -> None:
    """Each rings its own topic, and rings again only when it is told that this was heard."""
    words = [sys.executable, "-c", RINGING, str(tmp_path)]
    rounds, heard, children = 1500, [0] * 3, []
    for number in range(len(heard)):
        child = subprocess.Popen([*words, f"topic {number}", str(rounds)], stdin=subprocess.PIPE, bufsize=0)
        children.append(child)

        def tell(number: int = number, child: subprocess.Popen[bytes] = child) -> None:
            assert child.stdin
            heard[number] += 1
            if heard[number] <= rounds:
                child.stdin.write(b"!")

        assert switchboard.listen([f"topic {number}"], tell) is not None
    while sum(heard) < rounds * len(heard):
        if not select.select([switchboard], [], [], 10)[0]:
            break
        switchboard.take()
    for child in children:
        child.kill() if sum(heard) < rounds * len(heard) else child.wait()
        child.communicate()
    assert heard == [rounds] * len(heard)
