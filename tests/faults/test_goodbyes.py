"""SIGTERM comes while programs serve: a deploy, `systemctl stop`, `docker stop`.

The story. Programs that listen, serve and run pools are told to stop at random moments, and started again; some of their
functions end within the grace, some do not.

The invariant. Each program ends with 0 and its agent is stopped. No message is lost, and none has a delivery counted that
it did not finish: a message that is in the middle of its work at every deploy is not a dead letter after the third.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count as count_up
from pathlib import Path

import pytest
from tests.support.containers import CONTAINERS, need_containers
from tests.support.interrupting import interrupted_at
from tests.support.nats_servers import room_name, shared_server
from tests.support.patience import until

import postroom
from postroom.cli import main
from postroom.core.system import goodbye
from postroom.core.system.process import process_started
from postroom.room import Room

from .programs.goodbye import KINDS
from .support import PATIENCE_S, SOME_AND_ALL, Nursery, count, environment, program, seed

DONE = "the receiver was told to stop"
HERE = str(Path(postroom.__file__).parent)


def url_of(kind: str, folder: Path) -> str:
    return f"nats://{shared_server().address}/{room_name()}" if kind == "nats" else f"{kind}:{folder}"


def hears_sigterm(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM: it has none any more once it was told."""
    (mask,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@contextmanager
def serving(kind: str, url: str, grace_s: float = 30, inside: Iterable[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A program that serves bob. It is ended with the block if nothing else has ended it."""
    process = subprocess.Popen(
        [*inside, *program("goodbye", kind, url, str(grace_s))],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def work(room: Room, text: str, process: subprocess.Popen[str], journal: Path | None) -> str:
    """Give bob something to do; returns the message's id when the work has begun. Workers of a pool say so in a file."""
    id = room.agent("ada").send("bob", {"text": text, "journal": journal and str(journal)})
    if journal is None:
        assert process.stdout is not None
        assert process.stdout.readline() == f"began {id}\n"
    else:
        until(lambda: journal.exists() and journal.read_text().endswith("\n"), "no worker is at it")
    return id


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def status_of_bob(room: Room) -> str:
    return next(agent.status for agent in room.agents() if agent.name == "bob")


@pytest.fixture
def room(folder: Path) -> Iterator[Room]:
    with postroom.open(f"sqlite:{folder}") as room:
        yield room


def url(room: Room) -> str:
    return room.url.with_secrets()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serve", "aio", "plain", "pool"])
def test_a_function_that_ends_within_the_grace_is_done_and_the_next_message_waits(
    room: Room, tmp_path: Path, kind: str
) -> None:
    fifo, journal = tmp_path / "fifo", tmp_path / "journal" if kind == "pool" else None
    os.mkfifo(fifo)
    with serving(kind, url(room)) as process:
        id = work(room, f"read {fifo}", process, journal)
        process.send_signal(signal.SIGTERM)
        until(lambda: not hears_sigterm(process.pid), "the program was not told")
        later = room.agent("ada").send("bob", {"text": "quick"})
        fifo.write_text("go on")
        code, _, err = end(process)

    assert (code, err) == (0, "")
    assert (room.get(id).state, room.get(id).delivery_count) == ("acked", 1)
    assert (room.get(later).state, room.get(later).delivery_count) == ("stored", 0)
    assert status_of_bob(room) == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serve", "forget", "aio", "plain", "pool"])
def test_a_function_that_does_not_end_within_the_grace_gives_its_message_back_uncounted(
    room: Room, tmp_path: Path, kind: str
) -> None:
    """The process ends although the function still runs (test_a_plain_handler_that_never_ends_keeps_no_process)."""
    journal = tmp_path / "journal" if kind == "pool" else None
    with serving(kind, url(room), grace_s=0.05) as process:
        id = work(room, "hang", process, journal)
        process.send_signal(signal.SIGTERM)
        code, _, err = end(process)

    message = room.get(id)
    assert (code, err) == (0, "")
    assert (message.state, message.delivery_count, message.claimed_by) == ("stored", 0, None)
    assert (message.ledger[-1].event, message.ledger[-1].detail) == ("returned", DONE)
    assert status_of_bob(room) == "stopped"
    if journal is not None:
        worker = int(journal.read_text().split()[2])
        assert process_started(worker) is None, "a worker is left"


@pytest.mark.slow
def test_a_worker_that_dies_of_the_signal_that_its_pool_got_costs_its_message_nothing(
    room: Room, tmp_path: Path
) -> None:
    """As where a service's signal is sent to all of its processes."""
    journal = tmp_path / "journal"
    with serving("pool", url(room), grace_s=600) as process:
        id = work(room, "hang", process, journal)
        process.send_signal(signal.SIGTERM)
        until(lambda: not hears_sigterm(process.pid), "the program was not told")
        os.kill(int(journal.read_text().split()[2]), signal.SIGTERM)
        code, _, _ = end(process)

    message = room.get(id)
    assert (code, message.state, message.delivery_count, message.ledger[-1].detail) == (0, "stored", 0, DONE)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "files", pytest.param("nats", marks=pytest.mark.long)])
def test_three_deploys_in_the_middle_of_the_same_message_cost_it_nothing(folder: Path, store: str) -> None:
    with postroom.open(url_of(store, folder)) as room:
        id = room.agent("ada").send("bob", {"text": "hang"})
        for _ in range(3):
            with serving("serve", url(room), grace_s=0.01) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == f"began {id}\n"
                assert room.get(id).delivery_count == 1
                process.send_signal(signal.SIGTERM)
                assert end(process) == (0, "", "")
        message = room.get(id)

        assert (message.state, message.delivery_count) == ("stored", 0)
        stored, *rest = [entry.event for entry in message.ledger]
        # a thread that was in the middle of a claim gives back what it gets: then there is a pair more
        assert stored == "stored" and len(rest) >= 6 and rest == ["claimed", "returned"] * (len(rest) // 2)
        assert status_of_bob(room) == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serve", "aio", "pool"])
def test_a_second_signal_ends_the_program_at_once_and_its_message_comes_again(
    room: Room, tmp_path: Path, kind: str
) -> None:
    journal = tmp_path / "journal" if kind == "pool" else None
    with serving(kind, url(room), grace_s=600) as process:
        id = work(room, "hang", process, journal)
        process.send_signal(signal.SIGTERM)
        until(lambda: not hears_sigterm(process.pid), "the program was not told")
        process.send_signal(signal.SIGTERM)
        code, _, err = end(process)

    assert (code, err) == (-signal.SIGTERM, "")
    with room.agent("bob").receive(timeout_s=PATIENCE_S) as message:
        assert message.id == id


@need_containers
@pytest.mark.slow
@pytest.mark.parametrize(("grace_s", "code"), [(0.05, 0), (600, 143)], ids=["the first", "the second"])
def test_the_first_process_of_a_container_hears_the_first_signal_and_the_second(
    room: Room, grace_s: float, code: int
) -> None:
    """The kernel keeps every signal from it that it has no handler for."""
    with serving("serve", url(room), grace_s, inside=CONTAINERS["pid"]) as outer:
        id = work(room, "hang", outer, None)
        (pid,) = map(int, Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
        first = os.pidfd_open(pid)
        signal.pidfd_send_signal(first, signal.SIGTERM)
        while code and outer.poll() is None:  # a signal that comes while one is pending is the same one
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(first, signal.SIGTERM)
            time.sleep(0.05)
        os.close(first)
        ended, _, err = end(outer)

    assert (ended, err) == (code, "")
    assert code or (room.get(id).state, room.get(id).delivery_count) == ("stored", 0)


def test_a_function_that_acks_after_the_grace_is_told_that_it_is_late(room: Room) -> None:
    began, late, said = threading.Event(), threading.Event(), list[bool]()
    ended = threading.Event()

    def handler(message: postroom.Received) -> None:
        began.set()
        late.wait(PATIENCE_S)
        said.append(message.ack())
        ended.set()

    def deploy() -> None:
        began.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGTERM)

    id = room.agent("ada").send("bob", {})
    thread = threading.Thread(target=deploy)
    thread.start()
    room.agent("bob").serve({"*": handler}, grace_s=0)
    thread.join()
    assert room.get(id).ledger[-1].detail == DONE
    late.set()
    assert ended.wait(PATIENCE_S)

    assert said == [False]
    assert (room.get(id).state, room.get(id).delivery_count) == ("stored", 0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_the_program_installed_is_left_alone(room: Room) -> None:
    stop, came = threading.Event(), list[int]()

    def own(number: int, _frame: object) -> None:
        came.append(number)

    def handler(message: postroom.Received) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: came, "the program's handler is called")
        stop.set()

    before = signal.signal(signal.SIGTERM, own)
    try:
        room.agent("ada").send("bob", {})
        room.agent("bob").serve({"*": handler}, stop=stop)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)

    assert came == [signal.SIGTERM]


def test_outside_of_the_main_thread_signals_are_left_alone(room: Room) -> None:
    stop, seen = threading.Event(), list[object]()

    def handler(message: postroom.Received) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        stop.set()

    room.agent("ada").send("bob", {})
    thread = threading.Thread(target=lambda: room.agent("bob").serve({"*": handler}, stop=stop))
    thread.start()
    thread.join(PATIENCE_S)

    assert seen == [signal.SIG_DFL]


def test_several_listeners_are_told_and_the_default_comes_back_with_the_last_one() -> None:
    told: list[str] = []
    with goodbye.heard(lambda: told.append("outer")):
        with goodbye.heard(lambda: told.append("inner")):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the second one ends
        with goodbye.heard(lambda: told.append("late")):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with goodbye.heard(lambda: told.append("another time")):
        pass

    assert told == ["outer", "inner", "late"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_forked_child_of_a_program_that_serves_ends_by_sigterm() -> None:
    """Unless it serves, too."""
    told: list[str] = []
    codes = []
    with goodbye.heard(lambda: told.append("parent")):
        for serves in (False, True):
            child = os.fork()
            if child == 0:
                try:
                    with goodbye.heard(lambda: told.append("child")) if serves else nullcontext():
                        signal.raise_signal(signal.SIGTERM)
                finally:
                    os._exit(7 if told == ["child"] else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert (codes, told) == ([-signal.SIGTERM, 7], [])


#: Of the moments at which `listen` can be told, each so-manieth is tried.
STRIDE = 15


@pytest.mark.slow
@SOME_AND_ALL
def test_listen_told_at_any_step_has_shown_a_message_and_acked_it_or_given_it_back(
    room: Room, capsys: pytest.CaptureFixture[str], every: int
) -> None:
    """At every moment at which SIGTERM is a goodbye: the very first ones come before there is a room.

    In the last steps nobody listens any more, and the handler is still there: SIGTERM ends the process then, as it should.
    """
    words = ["listen", "--room", url(room), "--as", "bob", "--json", "--limit", "1"]
    ada, told, codes = room.agent("ada"), 0, list[int]()

    def handler() -> None:
        if goodbye._listeners and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            signal.raise_signal(signal.SIGTERM)

    for place in count_up():
        id = ada.send("bob", {})
        capsys.readouterr()
        came = interrupted_at(every * STRIDE * place, lambda: codes.append(main(words)), HERE, handler)
        shown, message = id in capsys.readouterr().out, room.get(id)
        assert codes.pop() == 0
        assert (message.state, message.delivery_count) in (("acked", 1), ("stored", 0)), place
        assert shown == (message.state == "acked"), place
        assert status_of_bob(room) == "stopped"
        told += message.state == "stored"
        room.purge(state="stored")
        if not came:
            break
    assert told > 2


# The storm

#: How many programs are told to stop, of each kind and in each kind of room.
SOME = count("GOODBYES", 4)
MANY = {"sqlite": count("GOODBYES", 110), "files": count("GOODBYES", 110), "nats": count("GOODBYES_NATS", 30)}
#: Each pool starts processes of its own, which takes seconds on a busy machine.
POOLS = count("GOODBYES_POOLS", 60)
STORES = ["sqlite", "files", "nats"]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "children.log", "goodbye")
    yield nursery
    nursery.close()


def storm(nursery: Nursery, tmp_path: Path, kind: str, store: str, times: int) -> None:
    chance = random.Random(f"{seed()} {kind} {store}")
    output = tmp_path / "output"
    with postroom.open(url_of(store, tmp_path / "room")) as room:
        ada = room.agent("ada")
        sent: list[str] = []
        for number in range(times):
            texts = [chance.choice(["quick", f"nap {chance.random() / 50:.4f}", "nap 5"]) for _ in range(4)]
            if kind == "listen":
                texts = ["quick"] * 50
            sent += ada.send_many([{"to": "bob", "payload": {"text": text}} for text in texts])
            ready = tmp_path / f"ready-{number}"
            grace_s = chance.choice([0, 0.005, 0.1])
            role = {"kind": kind, "url": url(room), "grace_s": grace_s, "ready": str(ready), "output": str(output)}
            pid = nursery.fork("goodbye.until_told", **role)
            until(ready.exists, "a program serves")
            time.sleep(10 ** chance.uniform(-4, -0.7))
            os.kill(pid, signal.SIGTERM)
            nursery.finish(pid)

            assert status_of_bob(room) == "stopped"
            assert {message.delivery_count for message in room.peek(agent="bob", limit=100_000)} <= {0}
            assert room.peek(agent="bob", state="claimed") == []
        kept = [room.get(id) for id in sent]
        assert {(message.state, message.delivery_count) for message in kept} <= {("stored", 0), ("acked", 1)}
        assert len(room.peek(agent="bob", limit=100_000)) == sum(message.state == "stored" for message in kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("listen", "sqlite"),
        ("serve", "files"),
        ("aio", "sqlite"),
        ("plain", "files"),
        ("pool", "sqlite"),
        ("serve", "nats"),
    ],
)
def test_programs_told_to_stop_at_random_moments_lose_and_count_nothing(
    nursery: Nursery, tmp_path: Path, kind: str, store: str
) -> None:
    storm(nursery, tmp_path, kind, store, SOME)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_programs_told_to_stop_at_random_moments_lose_and_count_nothing(
    nursery: Nursery, tmp_path: Path, kind: str, store: str
) -> None:
    storm(nursery, tmp_path, kind, store, min(MANY[store], POOLS) if kind == "pool" else MANY[store])
