"""Deadlocks are found, all of them and nothing else: every member waits for ever, and nothing is on its way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.core.clock import ManualClock
from postroom.room import Room, open_room
from postroom.sessions import deadlock, members
from postroom.sessions.members import MemberWait, Standing

from . import workers
from .conftest import address
from .session_model import Program, ends, make_program, perform

pytestmark = pytest.mark.slow  # a deadlock must be seen twice, a second apart

PATIENCE_S = 30.0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads here, and are looked at after milliseconds."""
    monkeypatch.setattr(members, "SHOW_AFTER_S", 0.004)
    monkeypatch.setattr(deadlock, "SETTLE_S", 0.02)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns when waits have come round without mail so often that a deadlock would have been found."""
    rested = threading.Semaphore(0)
    rest = MemberWait.rest

    def counted(wait: MemberWait) -> float:
        span_s = rest(wait)
        rested.release()
        return span_s

    def until_rested() -> None:
        for _ in range(12):
            assert rested.acquire(timeout=PATIENCE_S)

    monkeypatch.setattr(MemberWait, "rest", counted)
    return until_rested


def test_two_that_wait_for_each_other_are_told_who_waits_on_what(any_room: Room) -> None:
    with any_room.session() as session:
        with pytest.raises(postroom.Deadlock) as caught:
            session.delegate([workers.receive("a"), workers.receive("b")])

        assert str(caught.value) == (
            f"Session {session.id} failed: deadlock: caller waits for its workers (receive-1, receive-2); "
            "receive-1 waits on mailbox a; receive-2 waits on mailbox b"
        )
        assert isinstance(caught.value, postroom.SessionFailed)
        with pytest.raises(postroom.Deadlock):
            session.check_failed()


def test_nested_workers_count(any_room: Room) -> None:
    with any_room.session() as session, pytest.raises(postroom.Deadlock, match="nest waits for its workers"):
        session.delegate([workers.nest("wait")])


def test_one_that_waits_while_another_works_is_not_stuck(hasty: None) -> None:
    """The worker sleeps for longer than it takes to find a deadlock, then sends."""
    with open_room("memory:") as room, room.session() as session:
        script = [["sleep", 300], ["send", "a", 0]]
        from .session_model import play

        session.delegate([play(script), play([["receive", "a"]])])


@pytest.mark.parametrize("delay_ms", [300, 1500])
def test_delayed_mail_is_on_its_way(hasty: None, delay_ms: int) -> None:
    with open_room("memory:") as room, room.session() as session:
        session.mailbox.a.send(1, delay_ms=delay_ms)

        assert session.delegate([workers.receive("a")]) == [1]


def test_claimed_mail_is_on_its_way(hasty: None, rests: Callable[[], None], in_background: Any) -> None:
    """Somebody took it past the session, and gives it back later."""
    with open_room("memory:") as room, room.session() as session:
        room.agent("ada").send(None, {"value": 1}, channel=f"session:{session.id}/a")
        held = room.agent("eve").receive(1, channels=[f"session:{session.id}/a"])
        call = in_background(lambda: session.delegate([workers.receive("a")]))
        rests()
        assert call.running
        held.retry("not mine", delay_s=0)

        assert call.result() == [1]


def test_mail_in_another_box_helps_nobody(any_room: Room) -> None:
    with any_room.session() as session:
        session.mailbox.other.send(1)

        with pytest.raises(postroom.Deadlock):
            session.delegate([workers.receive("a")])


def test_an_outsider_that_joined_may_still_send(hasty: None, rests: Callable[[], None], in_background: Any) -> None:
    with open_room("memory:") as room, room.session() as session:
        other = room.session(session.id, name="outsider")
        call = in_background(lambda: session.delegate([workers.receive("a")]))
        rests()
        assert call.running
        other.mailbox.a.send(7)

        assert call.result() == [7]


def test_when_the_last_that_could_send_leaves_the_others_are_stuck(
    hasty: None, rests: Callable[[], None], in_background: Any
) -> None:
    with open_room("memory:") as room, room.session() as session:

        def outsider() -> None:
            with room.session(session.id, name="outsider"):
                joined.set()
                rests()

        joined = threading.Event()
        leaving = in_background(outsider)
        assert joined.wait(PATIENCE_S)
        with pytest.raises(postroom.Deadlock):
            session.delegate([workers.receive("a")])
        assert not leaving.running


def test_the_thread_that_made_the_session_may_still_send(
    hasty: None, rests: Callable[[], None], in_background: Any
) -> None:
    with open_room("memory:") as room, room.session() as session:
        call = in_background(session.mailbox.a.receive)
        rests()
        assert call.running
        session.mailbox.a.send(1)

        assert call.result() == 1


def test_an_outsider_that_waits_counts(hasty: None, in_background: Any) -> None:
    with open_room("memory:") as room, room.session() as session:
        ready = threading.Event()

        def outsider() -> Any:
            other = room.session(session.id, name="outsider")
            ready.set()
            return other.mailbox.b.receive()

        pending = in_background(outsider)
        assert ready.wait(PATIENCE_S)
        with pytest.raises(postroom.Deadlock, match="outsider waits on mailbox b"):
            session.delegate([workers.receive("a")])
        with pytest.raises(postroom.Deadlock):
            pending.result()


@pytest.mark.slow
def test_an_outsider_that_was_killed_no_longer_counts(real_room: Room) -> None:
    program = (
        "import sys, postroom\nroom = postroom.open(sys.argv[1])\n"
        "session = room.session(sys.argv[2], name='outsider')\nprint('in', flush=True)\nsys.stdin.read()\n"
    )
    with real_room.session() as session:
        words = [sys.executable, "-c", program, str(real_room.url), session.id]
        outsider = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert outsider.stdout is not None
        assert outsider.stdout.readline() == b"in\n"
        threading.Timer(1.5, outsider.kill).start()
        with pytest.raises(postroom.Deadlock, match="receive waits on mailbox a"):
            session.delegate([workers.receive("a")])
        assert outsider.wait(PATIENCE_S) < 0  # it was alive until it was killed
        outsider.communicate()


def test_a_wait_with_a_timeout_is_stuck_but_never_fails(hasty: None) -> None:
    with open_room("memory:") as room, room.session() as session:
        pending = workers.receive("a", 700)
        seen: list[bool] = []

        def look() -> None:
            standings = members.members_of(room._gateway, session.id)
            seen.append(deadlock.stuck(standings) and not deadlock.deadlocked(standings))

        timers = [threading.Timer(0.05 * n, look) for n in range(1, 12)]
        for timer in timers:
            members.bind_elsewhere(timer)  # it only looks
            timer.start()
        with pytest.raises(postroom.SessionFailed, match="ReceiveTimeout: Mailbox receive timeout after 700ms"):
            session.delegate([pending, workers.receive("b")])
        assert any(seen)


def test_a_delegate_with_a_deadline_is_a_wait_with_a_timeout(hasty: None) -> None:
    with open_room("memory:") as room, room.session() as session:
        with pytest.raises(postroom.SessionFailed, match="ran past the deadline") as caught:
            session.delegate([workers.receive("a")], deadline_s=0.5, grace_s=1)
        assert not isinstance(caught.value, postroom.Deadlock)


def test_a_timer_thread_of_a_member_may_still_send(hasty: None) -> None:
    with open_room("memory:") as room, room.session() as session:
        threading.Timer(0.3, lambda: session.mailbox.a.send(1)).start()

        assert session.mailbox.a.receive() == 1


def test_one_alone_who_waits_for_ever_is_told(room: Room, in_background: Any, pass_time: Any) -> None:
    with room.session() as session:
        call = in_background(session.mailbox.a.receive)
        # the thread of this test made the session, and could send; it goes, and only the waiting one is left
        session._member._actors.discard(threading.current_thread())
        pass_time(call)
        with pytest.raises(postroom.Deadlock, match="caller waits on mailbox a"):
            call.result()


def test_who_joins_while_the_verdict_is_near_stops_it(room: Room, clock: ManualClock, monkeypatch: Any) -> None:
    """Between the last look and the writing of the failure somebody joins: then there is no deadlock."""
    session = room.session()
    with session._member.waiting(on="mailbox", names=["a"], timed=False) as wait:
        _rest_shown(wait, clock)
        search = session._search
        assert not search.look()
        clock.advance(2)
        real = search._picture
        looks = []

        def picture() -> Any:
            looks.append(real())
            if len(looks) == 2:
                room.session(session.id, name="late")
            return looks[-1]

        monkeypatch.setattr(search, "_picture", picture)
        assert not search.look()
        assert session.failure is None
        assert len(looks) == 2


def test_the_verdict_falls_when_nothing_changed(room: Room, clock: ManualClock) -> None:
    session = room.session()
    with session._member.waiting(on="mailbox", names=["a"], timed=False) as wait:
        _rest_shown(wait, clock)
        assert not session._search.look()
        clock.advance(2)

        assert session._search.look()
    assert session.failure is not None


@pytest.mark.parametrize("act", ["send", "stir", "delayed", "receive elsewhere"])
def test_who_acts_between_the_two_looks_stops_the_verdict(room: Room, clock: ManualClock, act: str) -> None:
    session = room.session()
    with session._member.waiting(on="mailbox", names=["a"], timed=False) as wait:
        _rest_shown(wait, clock)
        assert not session._search.look()
        clock.advance(2)
        if act == "send":
            session.mailbox.a.send(1)
        elif act == "delayed":
            session.mailbox.a.send(1, delay_ms=100_000)
        elif act == "stir":
            wait.stir()
        else:
            with pytest.raises(postroom.ReceiveTimeout):
                session.mailbox.b.receive(0)

        assert not session._search.look()
    assert session.failure is None


def _rest_shown(wait: Any, clock: ManualClock) -> None:
    clock.advance(1)
    wait.rest()
    assert wait._member.blocked


def standing(id: str, *waits: dict[str, Any], blocked: bool = True) -> Standing:
    return Standing(id, id, "worker", "p", None, 1, 0, list(waits), blocked)


BOX = {"on": "mailbox", "names": ["a"], "timed": False}
TIMED = BOX | {"timed": True}


@pytest.mark.parametrize(
    ("here", "is_stuck", "is_deadlock"),
    [
        ([], False, False),
        ([standing("a", BOX)], True, True),
        ([standing("a", BOX), standing("b", BOX)], True, True),
        ([standing("a", BOX), standing("b", blocked=False)], False, False),
        ([standing("a", BOX), standing("b", TIMED)], True, False),
        ([standing("a", BOX, TIMED)], True, False),
        ([standing("c", {"on": "workers", "names": ["a"], "members": ["a"], "timed": False}), standing("a", BOX)], True, True),
        ([standing("c", {"on": "workers", "names": ["x"], "members": ["x"], "timed": False}), standing("a", BOX)], False, False),
    ],
)  # fmt: skip
def test_the_rule(here: list[Standing], is_stuck: bool, is_deadlock: bool) -> None:
    assert (deadlock.stuck(here), deadlock.deadlocked(here)) == (is_stuck, is_deadlock)


# Random programs against the model


def run_program(room: Room, program: Program) -> Counter[str] | None:
    """How a program ends in fact: who waits for what, or None."""
    session = room.session()
    others = [room.session(session.id, name=f"outsider-{number}") for number in range(len(program.outsiders))]
    errors = take_parts(room, [session, *others], [program.caller, *program.outsiders])
    failure = session.failure
    for handle in (session, *others):
        handle.cleanup()
    if failure is None:
        assert errors == []
        return None
    assert failure.kind == "Deadlock", failure
    assert {type(error) for error in errors} == {postroom.Deadlock}
    return Counter(failure.message.removeprefix("deadlock: ").split("; "))


def take_parts(room: Room, handles: list[Any], scripts: list[Any]) -> list[BaseException]:
    """Play each script in a thread of its own; what they raised."""
    errors: list[BaseException] = []

    def take_part(member: Any, script: list[Any]) -> None:
        try:
            perform(member, script)
            if member is not handles[0]:
                member.cleanup()
        except BaseException as error:
            errors.append(error)

    parts = zip(handles, scripts, strict=True)
    threads = [threading.Thread(target=take_part, args=part, daemon=True) for part in parts]
    for handle, thread in zip(handles, threads, strict=True):
        handle._member._actors.clear()  # this thread only starts those who play
        handle._member.bind(thread)
    for thread in threads:
        thread.start()
    for _ in range(int(PATIENCE_S / 0.05)):  # in small steps: a run that was stopped and went on is not late
        for thread in threads:
            thread.join(0.05)
        if not any(thread.is_alive() for thread in threads):
            return errors
    raise AssertionError(f"it hangs: {members.members_of(room.gateway, handles[0].id)}")


def check_programs(seeds: range, room: Room) -> None:
    outcomes = Counter[bool]()
    for seed in seeds:
        program = make_program(seed)
        expected = ends(program)
        assert run_program(room, program) == expected, f"seed {seed}: {program}"
        outcomes[expected is None] += 1
    print(f"{outcomes[True]} ended well, {outcomes[False]} in a deadlock")
    assert outcomes[True] > len(seeds) / 10
    assert outcomes[False] > len(seeds) / 10


def test_random_programs_end_as_the_model_says(hasty: None) -> None:
    with open_room("memory:") as room:
        check_programs(range(40), room)


@pytest.mark.slow
def test_more_random_programs_end_as_the_model_says(hasty: None) -> None:
    with open_room("memory:") as room:
        check_programs(range(1000, 1060), room)


@pytest.mark.long
@pytest.mark.parametrize("share", range(10))
def test_ten_thousand_random_programs_end_as_the_model_says(hasty: None, share: int) -> None:
    with open_room("memory:") as room:
        check_programs(range(10_000 + share * 1000, 11_000 + share * 1000), room)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "nats"])
def test_random_programs_in_processes_end_as_the_model_says(scheme: str, tmp_path: Path) -> None:
    with open_room(address(scheme, tmp_path)) as room:
        check_programs(range(20_002, 20_006), room)  # two that end well, two that do not


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["sqlite", "nats"])
def test_many_random_programs_in_processes_end_as_the_model_says(scheme: str, tmp_path: Path) -> None:
    with open_room(address(scheme, tmp_path)) as room:
        check_programs(range(30_000, 30_150 if scheme == "sqlite" else 30_020), room)
    assert os.listdir(tmp_path) in ([], ["room"])
