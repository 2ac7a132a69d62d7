"""States, clocks, retries, hooks, and where a room is looked for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.core import crashpoints
from postroom.core.backoff import CAP_S, backoff_s
from postroom.core.clock import SYSTEM, ManualClock, from_iso, iso
from postroom.core.config import main_worktree, parse_url, search_places
from postroom.core.states import FINISHED, MOVES, OPEN, PUBLIC_NAME, STATUS_WORD, WAITING, State, states_named
from postroom.core.system import process
from postroom.errors import RoomError

# States


def test_every_state_can_be_reached_and_every_open_one_can_be_left() -> None:
    assert {move.target for move in MOVES} | {State.READY, State.DELAYED, State.AWAITED, State.BLOCKED} == set(State)
    assert {source for move in MOVES for source in move.sources} >= OPEN
    assert {State.ACKED, State.ANSWERED}.isdisjoint(source for move in MOVES for source in move.sources)


def test_every_state_has_a_word_for_receipts_and_one_for_the_table() -> None:
    assert set(PUBLIC_NAME) == set(STATUS_WORD) == set(State)
    assert {STATUS_WORD[state] for state in FINISHED} == {"done", "failed"}


def test_states_are_found_by_either_word() -> None:
    assert states_named("pending") == states_named("stored") == WAITING
    assert states_named("failed") == {State.REFUSED, State.EXPIRED, State.DEAD, State.WITHDRAWN}
    with pytest.raises(ValueError, match="there is no state 'lost'; the states are: stored, claimed"):
        states_named("lost")


# Clocks


def test_a_manual_clock_ends_waits_when_it_has_moved_far_enough() -> None:
    clock, ends = ManualClock(), {29: threading.Event(), 30: threading.Event()}
    reader, writer = os.pipe()
    began_ns = clock.steady_ns()
    passed_s: dict[int, float] = {}

    def wait(span_s: int) -> None:
        assert clock.wait_readable([reader], span_s) == []
        passed_s[span_s] = (clock.steady_ns() - began_ns) / 1e9
        ends[span_s].set()

    waiting = [threading.Thread(target=wait, args=(span_s,)) for span_s in ends]
    for thread in waiting:
        thread.start()
    while len(clock._sleepers) < 2:
        waiting[0].join(0.001)
    clock.advance(29)
    assert ends[29].wait(10)
    clock.advance(1)
    assert ends[30].wait(10)
    for thread in waiting:
        thread.join()
    assert passed_s == {29: 29, 30: 30}
    os.close(reader)
    os.close(writer)


def test_the_system_clock_does_not_end_a_wait_early() -> None:
    reader, writer = os.pipe()
    began_ns = SYSTEM.steady_ns()
    assert SYSTEM.wait_readable([reader], 0.0104) == []
    assert SYSTEM.steady_ns() - began_ns >= 10_400_000
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "text", ["2026-11-15T06:48:50.123Z", "2026-11-15T07:48:50.123+01:00", "2026-11-15T06:48:50.123"]
)
def test_times_are_read_as_utc_unless_they_say_otherwise(text: str) -> None:
    assert iso(from_iso(text)) == "2026-11-15T06:48:50.123Z"


# Retries


def test_delays_double_are_jittered_and_capped() -> None:
    assert [backoff_s(n, 1.0) for n in (0, 1, 2, 3, 4)] == [1, 1, 2, 4, 8]
    assert [backoff_s(n, 0.0) for n in (1, 2, 3)] == [0.5, 1, 2]
    assert backoff_s(10_000, 1.0) == CAP_S


# Hooks and test points


def test_a_test_point_does_nothing_until_it_is_armed_and_after_it_is_forgotten() -> None:
    passed: list[int] = []
    crashpoints.reached("here")
    crashpoints.at("here", lambda: passed.append(1))
    crashpoints.reached("here")
    crashpoints.reached("elsewhere")
    crashpoints.forget()
    crashpoints.reached("here")
    assert passed == [1]


def test_die_at_kills_the_process_at_the_point_after_it_was_passed() -> None:
    program = "from postroom.core import crashpoints\ncrashpoints.die_at('p', 2)\nfor n in range(9):\n    print(n, flush=True)\n    crashpoints.reached('p')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-9, "0\n1\n2\n")


# Processes


def test_a_process_is_known_by_its_start_and_not_by_its_number_alone() -> None:
    me = process.this_process()
    host, pid, started = process.without_byte(me).split(":")
    assert (int(pid), started) == (os.getpid(), process.process_started(os.getpid()))
    assert process.process_alive(me) is True
    assert process.process_alive(f"{host}:{pid}:1") is False
    assert process.process_alive(f"elsewhere:{pid}:{started}") is None


def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    started = process.process_started(child.pid)
    name = f"{process.host_id()}:{child.pid}:{started}"
    assert process.process_alive(name) is True
    assert child.stdin
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    assert process.process_alive(name) is False
    child.wait()


# Where a room is looked for


@pytest.mark.parametrize(
    ("text", "scheme", "rest", "options"),
    [
        ("sqlite:a/b?sync=full", "sqlite", "a/b", {"sync": "full"}),
        ("memory:", "memory", "", {}),
        ("some/folder", "sqlite", "some/folder", {}),
        ("/abs/a:b", "sqlite", "/abs/a:b", {}),
        ("nats://h1:4222,h2:4222/room", "nats", "//h1:4222,h2:4222/room", {}),
    ],
)
def test_addresses_are_taken_apart(text: str, scheme: str, rest: str, options: dict[str, str]) -> None:
    url = parse_url(text)
    assert (url.scheme, url.rest, url.options) == (scheme, rest, options)


def test_an_address_without_a_place_says_what_to_write() -> None:
    with pytest.raises(RoomError, match=r"has no path; write sqlite:PATH"):
        parse_url("sqlite:")


def test_a_git_worktree_shares_the_room_of_its_main_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path / "main", check=True, capture_output=True)

    (tmp_path / "main").mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    git("worktree", "add", "-q", str(tmp_path / "side"))

    assert main_worktree(tmp_path / "side") == tmp_path / "main"
    assert main_worktree(tmp_path / "main") is None
    assert search_places(tmp_path / "side")[-1] == tmp_path / "main" / ".postroom"


def test_waiting_goes_by_what_a_descriptor_is_now_not_by_what_it_was() -> None:
    """Who waits again for the same numbers waits with what was made for them before."""
    for _ in range(3):
        reader, writer = os.pipe()
        assert SYSTEM.wait_readable([reader], 0) == []
        os.write(writer, b"!")
        assert SYSTEM.wait_readable([reader], 0) == [reader]
        os.close(reader)
        os.close(writer)


def test_threads_may_wait_for_the_same_descriptor_at_once(
    in_background: Callable[[Callable[[], list[int]]], Any],
) -> None:
    reader, writer = os.pipe()
    waits = [in_background(lambda: SYSTEM.wait_readable([reader], 20)) for _ in range(3)]
    os.write(writer, b"!")
    assert [wait.result() for wait in waits] == [[reader]] * 3
    os.close(reader)
    os.close(writer)
