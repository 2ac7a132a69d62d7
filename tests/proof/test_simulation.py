"""Simulated schedules: every promise holds in all of them, and faults that are put into the product are found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import until

from postroom.board.records import Book
from postroom.core.states import State
from postroom.mail import gateway, presence
from postroom.mail.gateway import Gateway
from postroom.mail.leases import LeaseHeartbeat
from postroom.pools import coordinator
from postroom.sessions import members
from postroom.sessions.deadlock import Search
from postroom.sessions.members import Member
from postroom.stores.contract import ANY
from postroom.stores.tables import steps
from postroom.stores.tables.store import TableStore
from postroom.stores.tables.tables import Row, Tables
from postroom.testing.simulation import RARE, draw, run, shrink, simulate, stage

#: In the suite; the long run has a million, in parts.
SOME = 5000
SOME_PARTS = 5
EVERY = 1_000_000
PARTS = 50
#: A fault of the product is found within so many schedules.
WITHIN = 1000


def hold_all(first: int, count: int, store: str = "memory", theme: str | None = None) -> Counter[str]:
    """Run so many schedules, all of which must hold. Returns the rare states that they reached."""
    reached: Counter[str] = Counter()
    for seed in range(first, first + count):
        outcome = simulate(seed, store=store, theme=theme)
        if outcome.failure is not None:
            pytest.fail("\n".join(shrink(outcome, store=store).report()))
        reached += outcome.reached
    return reached


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SOME_PARTS))
def test_every_promise_holds_in_every_schedule_and_each_rare_state_is_reached(part: int) -> None:
    count = SOME // SOME_PARTS
    reached = hold_all(1 + part * count, count)
    assert [state for state in RARE if not reached[state]] == []


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_a_million_schedules(part: int) -> None:
    count = EVERY // PARTS
    reached = hold_all(1_000_000 + part * count, count)
    assert [state for state in RARE if not reached[state]] == []


#: States that a few hundred schedules of a theme come to.
OFTEN = {
    "orders": ("the next of its order key came", "a message was replaced", "a message could not be withdrawn"),
    "limits": (
        "a limit was reached: so many a second",
        "a limit was reached: so many at once",
        "a late holder had its message again under a limit",
        "a mailbox was full",
        "something was paused",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("store", "count"), [("memory", 300), ("sqlite", 40), ("files", 15), ("nats", 15)])
@pytest.mark.parametrize("theme", OFTEN)
def test_every_promise_holds_with_order_keys_and_with_limits(theme: str, store: str, count: int) -> None:
    reached = hold_all(1, count, store, theme)
    assert store != "memory" or [state for state in OFTEN[theme] if not reached[state]] == []


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("store", "count"), [("memory", 10_000), ("sqlite", 1000), ("files", 500), ("nats", 500)])
@pytest.mark.parametrize("theme", OFTEN)
def test_every_promise_holds_in_many_schedules_with_order_keys_and_with_limits(
    theme: str, store: str, count: int, part: int
) -> None:
    hold_all(1_000_000 + part * count, count, store, theme)


def test_a_schedule_has_three_agents_fifty_steps_and_a_fault() -> None:
    for seed in range(200):
        plan = draw(seed, 50)
        assert len(plan.parts) >= 3
        assert len(plan.picks) >= 50
        assert plan.faults
    assert min(simulate(seed).steps for seed in range(20)) >= 50


TRACES = """
from postroom.testing.simulation import simulate
for store, count in (("memory", 40), ("sqlite", 12), ("files", 12)):
    for seed in range(count):
        print("\\n".join(simulate(seed, store=store, traced=True).report()))
"""


def test_the_same_seed_is_the_same_run_also_in_another_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert len(traces[0]) > 10_000
    assert traces[0] == traces[1]


# Faults put into the product, each as it was before it was mended or as it might be made tomorrow


def forget_the_fence(patch: pytest.MonkeyPatch) -> None:
    def row_held_by(room: Any, ticket: Any) -> Any:
        row = room.row_of(ticket.id)
        return row if row is not None and row.state in (State.CLAIMED, State.READY) else None

    patch.setattr(steps, "row_held_by", row_held_by)


def look_for_a_deadlock_past_the_mail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Search, "_has_mail", lambda *_: False)


def skip_the_heartbeats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseHeartbeat, "_extend", lambda *_: True)


def lose_the_good_bye(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(presence, "leave", lambda *_, **__: None)


def hold_answers_for_ever(patch: pytest.MonkeyPatch) -> None:
    def question_ends(self: Gateway, *ids: str, abandon: bool) -> None:
        for id in ids:
            self._questions.pop(id, None)

    patch.setattr(Gateway, "question_ends", question_ends)


def never_unblock_a_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "unblock", lambda _: None)


def leave_a_member_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(members, "strike_off", lambda *_: None)


def write_cells_whatever_is_expected(patch: pytest.MonkeyPatch) -> None:
    write = TableStore.cell_write
    patch.setattr(TableStore, "cell_write", lambda self, name, value, expect=ANY: write(self, name, value, ANY))


def make_ready_without_a_hint(patch: pytest.MonkeyPatch) -> None:
    move = Tables.move

    def silent(self: Any, *args: Any) -> str:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Tables, "ring_mail", lambda *_: None)
            return move(self, *args)

    patch.setattr(Tables, "move", silent)


def count_leases_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """A claim was returned after a jump of the clock."""
    patch.setattr(Tables, "now_ns", lambda self: self.clock.wall_ms() * 1_000_000)


def forget_the_note_of_a_claim(patch: pytest.MonkeyPatch) -> None:
    """A lead was never told of a task whose owner died before it could tell."""
    patch.setattr(Book, "note_claim", lambda *_, **__: None)


def look_only_after_a_hint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gateway, "_span_s", lambda timeout_s: timeout_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "first"),  # the search begins not far before the seed that finds it
    [
        (forget_the_fence, 1),
        (skip_the_heartbeats, 1),
        (lose_the_good_bye, 440),
        (hold_answers_for_ever, 1),
        (look_for_a_deadlock_past_the_mail, 1900),
        (never_unblock_a_member, 1),
        (leave_a_member_behind, 1),
        (write_cells_whatever_is_expected, 1),
        (make_ready_without_a_hint, 260),
        (count_leases_by_the_wall_clock, 1),
        (forget_the_note_of_a_claim, 220),
        (look_only_after_a_hint, 1),
    ],
)
def test_a_fault_of_the_product_is_found_and_shrinks(
    fault: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    found = next((each for each in map(simulate, range(first, first + WITHIN)) if each.failure is not None), None)
    assert found is not None
    smaller = shrink(found, most_runs=40)
    assert smaller.failure is not None
    assert len(list(smaller.plan.lines())) < len(list(found.plan.lines()))
    assert any("FAILS" in line for line in smaller.trace)
    monkeypatch.undo()
    assert run(smaller.plan).failure is None


def test_a_step_that_never_ends_is_a_failure_and_the_next_schedule_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SPINS_S", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(Row, "expired", lambda *_: False)  # the timer of what is too old runs out again and again
        found = next(each for each in map(simulate, range(1, WITHIN)) if each.failure is not None)
    assert isinstance(found.failure, stage.Hangs)
    assert "runs in a circle" in str(found.failure)
    assert run(found.plan).failure is None


def test_a_coordinator_that_goes_round_while_nobody_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SPINS_S", 0.2)
    with monkeypatch.context() as patch:  # it waits for a moment that is over
        patch.setattr(coordinator, "next_moment", lambda _, config, __: config.began_at + 0.1)
        found = next(each for each in map(simulate, range(1, WITHIN)) if each.failure is not None)
    assert "runs in a circle" in str(found.failure)
    assert run(found.plan).failure is None


# From a shell

COMMAND = (sys.executable, "-m", "postroom.testing.simulation")


def test_the_command_tells_the_rate_and_the_rare_states() -> None:
    done = subprocess.run([*COMMAND, "--count", "5", "--seed", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "5 schedules in " in done.stdout
    assert "a second; no failure" in done.stdout
    assert all(state in done.stdout for state in RARE)


def test_the_command_ends_with_1_and_the_smaller_schedule_at_a_failure() -> None:
    spoilt = "from postroom.mail.receiving import Prefetcher; Prefetcher.__exit__ = lambda *_: None\n"
    program = f"import sys; {spoilt}from postroom.testing.simulation.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--count", "200"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "fails: " in done.stderr
    assert "has left its loop, and kept " in done.stdout


def test_ctrl_c_ends_the_command_with_what_it_has_done() -> None:
    with subprocess.Popen([*COMMAND, "--count", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"schedules" in process.stderr.readline()  # it runs
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"schedules in " in out
    assert b"Traceback" not in err


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see which files are open")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_and_leaves_no_room_behind(number: signal.Signals, code: int) -> None:
    words = [*COMMAND, "--count", "1000000", "--store", "sqlite"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"schedules" in process.stderr.readline()
        rooms: set[Path] = set()

        def find() -> bool:
            rooms.update(path.parent for path in _open_files(process.pid) if path.name == "messages.db")
            return bool(rooms)

        until(find, "no room was opened")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert [room for room in rooms if room.exists()] == []


def _open_files(pid: int) -> list[Path]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed a moment ago
            found.append(link.readlink())
    return found


def test_a_reader_that_leaves_ends_the_command_without_a_traceback() -> None:
    with subprocess.Popen([*COMMAND, "--count", "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


def test_a_wrong_count_is_refused() -> None:
    done = subprocess.run([*COMMAND, "--count", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "must be 1 or more, not 0" in done.stderr
