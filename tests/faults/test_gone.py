"""A room that is deleted, moved away, replaced or restored from a backup while programs have it open.

The story. Somebody removes the room's folder, puts another room in its place, moves a backup over the file, or copies one
over it, while a sender sends and others wait in every way in which one can wait.

The invariant. Within five seconds of the room's time every one of them is told by a RoomGone (which is a RoomUnreachable), and
from then on no call returns an id: what it stored would lie where nobody looks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_loop import pass_time, run

import postroom
from postroom import CommunicationSystem, Room, RoomGone, RoomUnreachable, WorkerPool, aio
from postroom.core.clock import ManualClock
from postroom.core.system.process import processes_with
from postroom.mail.gateway import LOOK_S
from postroom.room import open_room

PATIENCE_S = 60.0
#: Within so many seconds of the room's time everybody has noticed.
NOTICED_S = 5.0
EVALUATOR = "tests.faults.test_gone:judge"


def judge(message: dict[str, Any]) -> dict[str, Any]:
    return {"confidence": 0.5, "should_respond": False, "reasoning": message["id"]}


def outside(code: str, *words: object) -> None:
    """Run some Python in a process of its own: closing a database's file here would drop this process's locks on it."""
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True)


BACK_UP = """
import apsw, sys
here, there = apsw.Connection(sys.argv[1]), apsw.Connection(sys.argv[2])
with there.backup("main", here, "main") as copying:
    copying.step()
"""
FOLD = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.pragma("user_version")  # which opens the log
assert connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
"""
SEND = "import postroom, sys; postroom.open(sys.argv[1]).agent('x', transient=True).send('y', {})"
COPY = "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"


def delete(folder: Path) -> None:
    while folder.exists():  # those who begin to wait meanwhile make files in it
        shutil.rmtree(folder, ignore_errors=True)


def move_away(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def put_another_there(folder: Path) -> None:
    move_away(folder)
    outside(SEND, f"{'files' if (folder.with_name('elsewhere') / 'inbox').exists() else 'sqlite'}:{folder}")


def put_another_own_folder_there(folder: Path) -> None:
    """Only what Postroom keeps for itself in a files room."""
    (folder / ".postroom").rename(folder / "elsewhere")
    outside(SEND, f"files:{folder}")


def move_backup_over(folder: Path) -> None:
    outside(BACK_UP, folder / "messages.db", folder / "backup.db")
    os.replace(folder / "backup.db", folder / "messages.db")


def copy_backup_over_and_delete_the_log(folder: Path) -> None:
    outside(BACK_UP, folder / "messages.db", folder / "backup.db")
    outside(COPY, folder / "backup.db", folder / "messages.db")
    for name in ("messages.db-wal", "messages.db-shm"):
        (folder / name).unlink()


WAYS: dict[str, list[Callable[[Path], None]]] = {
    "sqlite": [delete, move_away, put_another_there, move_backup_over, copy_backup_over_and_delete_the_log],
    "files": [delete, move_away, put_another_there, put_another_own_folder_there],
}
CASES = [pytest.param(scheme, way, id=f"{scheme}-{way.__name__}") for scheme, ways in WAYS.items() for way in ways]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "room"


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "lose"), CASES)
def test_a_sender_is_told_and_no_call_returns_an_id_any_more(
    scheme: str, lose: Callable[[Path], None], folder: Path, clock: ManualClock
) -> None:
    with open_room(f"{scheme}:{folder}", clock=clock) as room:
        ada = room.agent("ada")
        ada.send("bob", {})
        lose(folder)
        clock.advance(LOOK_S)

        for _ in range(3):
            with pytest.raises(RoomUnreachable, match="while (the room|it) was open") as told:
                ada.send("bob", {})
            assert isinstance(told.value, RoomGone)
        with pytest.raises(RoomGone):
            room.agent("bob").poll()
        with pytest.raises(RoomGone):
            room.board.add("T1")
        with pytest.raises(RoomGone):
            room.stats()


def test_a_room_that_is_gone_stays_gone_though_it_comes_back(folder: Path, clock: ManualClock) -> None:
    with open_room(f"sqlite:{folder}", clock=clock) as room:
        ada = room.agent("ada")
        ada.send("bob", {})
        move_away(folder)
        clock.advance(LOOK_S)
        with pytest.raises(RoomGone, match="was deleted or moved away while the room was open"):
            ada.send("bob", {})

        folder.with_name("elsewhere").rename(folder)
        with pytest.raises(RoomGone):
            ada.send("bob", {})
        with open_room(f"sqlite:{folder}", clock=clock) as anew:
            assert anew.agent("ada").send("bob", {})
            assert len(anew.peek(agent="bob")) == 2


def test_another_thread_never_writes_into_the_file_that_lies_there_now(folder: Path, clock: ManualClock) -> None:
    """Its connection is new, and would open whatever has the name; time stands still, so nobody has looked yet."""
    with open_room(f"sqlite:{folder}", clock=clock) as room:
        ada = room.agent("ada")
        ada.send("bob", {})
        put_another_there(folder)
        ends: list[object] = []

        def send() -> None:
            try:
                ends.append(ada.send("bob", {}))
            except RoomGone as error:
                ends.append(type(error))

        thread = threading.Thread(target=send)
        thread.start()
        thread.join()

        assert ends == [RoomGone]


def test_a_backup_that_is_copied_over_the_file_is_noticed_by_a_heartbeat_that_is_missing(
    folder: Path, clock: ManualClock
) -> None:
    database, backup = folder / "messages.db", folder.with_name("backup.db")
    with open_room(f"sqlite:{folder}", clock=clock) as room:
        ada = room.agent("ada")
        ada.send("bob", {"n": 1})
        outside(BACK_UP, database, backup)
        ada.heartbeat("active", "after the backup")
        ada.send("bob", {"n": 2})
        outside(FOLD, database)  # what lies in the log would be read from there, and nothing would be lost
        outside(COPY, backup, database)
        outside(SEND, f"sqlite:{folder}")
        clock.advance(LOOK_S)

        with pytest.raises(RoomGone, match="was set back to an earlier state"):
            ada.send("bob", {"n": 3})


def test_a_smaller_backup_that_is_copied_over_the_file_is_noticed_by_its_size(folder: Path, clock: ManualClock) -> None:
    database, backup = folder / "messages.db", folder.with_name("backup.db")
    with open_room(f"sqlite:{folder}", clock=clock) as room:
        ada = room.agent("ada")
        outside(BACK_UP, database, backup)
        for _ in range(20):
            ada.send("bob", {"text": "x" * 2000})
        outside(FOLD, database)
        clock.advance(LOOK_S)
        ada.send("bob", {})
        outside(COPY, backup, database)
        clock.advance(LOOK_S)

        with pytest.raises(RoomGone, match="was truncated, as when a backup is copied over it, while the room was"):
            ada.send("bob", {})


def test_a_cell_that_somebody_deletes_is_no_sign_of_a_room_that_was_set_back(folder: Path, clock: ManualClock) -> None:
    with open_room(f"sqlite:{folder}", clock=clock) as room, open_room(f"sqlite:{folder}", clock=clock) as other:
        room.store.cell_write("x/1", {"n": 1})
        other.store.cell_write("x/1", None)
        clock.advance(LOOK_S)
        room.store.check_there()

        room.store.cell_write("x/2", {"n": 1})
        other.store.cell_write("x/2", {"n": 2})
        room.store.check_there()
        assert room.agent("ada").send("bob", {})


# Those who wait


class Waiters:
    """Everybody who waits in a room, each in a thread of its own; `ends` is how each of them ended."""

    def __init__(self, room: Room, clock: ManualClock) -> None:
        self._clock = clock
        self.ends: dict[str, BaseException | None] = {}
        ada, bob = room.agent("ada"), room.agent("bob")
        self._threads = [
            threading.Thread(target=self._run, args=(name, wait), daemon=True)
            for name, wait in {
                "receive": lambda: bob.receive(channels=["a"], timeout_s=None),
                "listen": lambda: next(iter(bob.listen(channels=["b"]))),
                "ask": lambda: ada.ask("carl", {}, timeout_s=None),
                "send": lambda: ada.send("carl", {}, wait="acked", timeout_s=None),
                "serve": lambda: room.agent("dora").serve({"*": lambda _: None}, 2),
                "watch": lambda: [None for _ in room.watch()],
                "board": lambda: room.board.claim("bob", timeout_s=None),
                "board watch": lambda: [None for _ in room.board.watch()],
            }.items()
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str, wait: Callable[[], object]) -> None:
        self.ends[name] = None
        try:
            wait()
        except Exception as error:
            self.ends[name] = error

    def pass_time(self) -> None:
        """Let time pass until all of them have ended."""
        waited_s = 0.0
        while any(thread.is_alive() for thread in self._threads):
            self._clock.advance(0.5)
            for thread in self._threads:
                thread.join(0.01)
            waited_s += 0.1
            assert waited_s < PATIENCE_S, f"still waiting: {[t.name for t in self._threads if t.is_alive()]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "lose"),
    [
        case if case.id in ("sqlite-delete", "sqlite-move_backup_over", "files-delete") else
        pytest.param(*case.values, id=case.id, marks=pytest.mark.long)
        for case in CASES
    ],
)  # fmt: skip
def test_everybody_who_waits_is_told(
    scheme: str,
    lose: Callable[[Path], None],
    folder: Path,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_room(f"{scheme}:{folder}", clock=clock) as room:
        waiters = Waiters(room, clock)
        while len(waiters.ends) < 8 or room.stats().states["stored"] < 2:  # all have begun, and both messages are sent
            threading.Event().wait(0.01)
        lose(folder)
        with caplog.at_level(logging.WARNING, "postroom"):
            waiters.pass_time()

    # one that comes while the files are being removed, one by one, may find the rest of them
    assert [name for name, end in waiters.ends.items() if not isinstance(end, RoomUnreachable)] == [], waiters.ends
    assert isinstance(waiters.ends["serve"], RoomGone)
    assert sum("serving goes on" in record.message for record in caplog.records) <= 2


def waits_of(room: aio.Room) -> dict[str, Callable[[], Coroutine[Any, Any, object]]]:
    """What can be waited for under asyncio."""

    async def listen() -> object:
        async for message in (await room.agent("bob")).listen(channels=["b"]):
            return message
        return None

    async def watch() -> object:
        async for change in room.watch():
            del change
        return None

    async def serve() -> None:
        await (await room.agent("dora")).serve({"*": lambda _: None}, 2)

    async def ask() -> object:
        return await (await room.agent("ada")).ask("carl", {}, timeout_s=None)

    async def send() -> object:
        return await (await room.agent("ada")).send("carl", {}, wait="acked", timeout_s=None)

    async def receive() -> object:
        return await (await room.agent("bob")).receive(channels=["a"], timeout_s=None)

    async def claim() -> object:
        return await room.board.claim("bob", timeout_s=None)

    waits: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (listen, watch, serve, ask, send, receive, claim)
    return dict(zip("listen watch serve ask send receive claim".split(), waits, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_everybody_who_waits_in_a_loop_is_told(scheme: str, folder: Path, clock: ManualClock) -> None:
    async def main() -> None:
        room = await aio.open(f"{scheme}:{folder}", clock=clock)
        tasks = {name: asyncio.create_task(wait(), name=name) for name, wait in waits_of(room).items()}
        while len(room._worker.waits.pauses) < len(tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        delete(folder)
        for task in tasks.values():
            with suppress(RoomGone):
                await pass_time(room, clock, task)
        ends = await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert {name: type(end) for name, end in zip(tasks, ends, strict=True)} == dict.fromkeys(tasks, RoomGone)
        with pytest.raises(RoomGone):
            await (await room.agent("ada")).send("bob", {})
        await room.close()

    run(main())


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(evaluator=EVALUATOR) as pool:
        pool.initialize_worker("ada")
        yield pool


@pytest.mark.slow
def test_a_pool_that_works_for_a_room_is_told(pool: WorkerPool, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with postroom.open(f"sqlite:{folder}") as room:
        asker = room.agent("ada")
        ends: list[object] = []

        def serve() -> None:
            try:
                pool.serve(room, "bob")
            except RoomGone as error:
                ends.append(error)

        with pool.follow(room, ["general"]) as following, caplog.at_level(logging.WARNING, "postroom"):
            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            assert asker.ask("bob", {"content": "?"}, timeout_s=PATIENCE_S).payload["confidence"] == 0.5
            delete(folder)
            thread.join(PATIENCE_S)
            assert following._thread is not None
            following._thread.join(PATIENCE_S)

            assert [type(end) for end in ends] == [RoomGone]
            assert not following._thread.is_alive()
        assert [record.levelname for record in caplog.records if "following" in record.message] == ["ERROR"]


def test_the_plain_broker_is_told(folder: Path, clock: ManualClock) -> None:
    with CommunicationSystem(folder, clock=clock) as system:
        system.initialize()
        assert system.send_message("ada", "t", {"n": 1}, to_agent="bob")
        delete(folder)
        clock.advance(LOOK_S)

        with pytest.raises(RoomGone):
            system.send_message("ada", "t", {"n": 2}, to_agent="bob")
        with pytest.raises(RoomGone):
            system.wait_for_response("ada", "c", ["general"], timeout_seconds=0)


@pytest.mark.slow
def test_commands_that_follow_end_with_the_room(folder: Path) -> None:
    url = f"sqlite:{folder}"
    postroom.open(url).close()
    words = (
        ["listen", "--as", "bob"],
        ["board", "watch"],
        ["ask", "carl", "?", "--as", "ada", "--new", "--timeout", "60"],
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "postroom", *line, "--room", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in words
    ]
    with postroom.open(url) as room:
        while not room.waits() or len(room.agents()) < 2:
            threading.Event().wait(0.05)
    while not {process.pid for process in started} <= set(processes_with(folder / "messages.db")):
        threading.Event().wait(0.05)  # whoever watches the board tells nobody that it has begun
    delete(folder)

    ended = [(*process.communicate(timeout=PATIENCE_S), process.returncode) for process in started]

    assert [code for *_, code in ended] == [4, 4, 4], ended
    assert all("was deleted or moved away while the room was open" in err for _, err, _ in ended), ended
