"""A disk that fails at one call of a step in a files room, at each in turn, and then works again."""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_by_hand import claim, send

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.errors import RoomUnreachable
from postroom.stores.contract import Query
from postroom.stores.files.store import FilesStore

CALLS = ("pwrite", "ftruncate", "fsync", "fdatasync", "link", "rename")


@contextmanager
def failing(at: int, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The call of that number fails. Gives the names of the calls that were made."""
    made: list[str] = []

    def fails(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            if len(made) == at:
                raise OSError(errno.EIO, "the disk fails")
            return call(*args, **kwargs)

        return instead

    with patch.context() as inner:
        for name in CALLS:
            inner.setattr(os, name, fails(name, getattr(os, name)))
        yield made


def state_of(room: Path, clock: ManualClock, sync: str) -> object:
    with closing(FilesStore(room, Config(sync=sync), clock)) as store:
        messages = [(each.payload, each.exact_state) for each in store.find(Query()).messages]
        return messages, [cell.value for cell in store.cell_scan("")], store.subscriptions()


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder whose syncs cost nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="postroom-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


STEPS: dict[str, Callable[[FilesStore], object]] = {
    "send": lambda store: send(store, payload={"n": 2}),
    "send with a key": lambda store: send(store, payload={"n": 2}, idempotency_key="once"),
    "write a cell": lambda store: store.cell_write("a", 1),
    "subscribe": lambda store: store.subscribe("news", "bob"),
    "claim": lambda store: claim(store, limit=1),
    "ack": lambda store: store.settle(claim(store, limit=1)[0].ticket, "acked"),
    "sweep": lambda store: store.sweep(),
}


@pytest.mark.parametrize("sync", ["normal", "full"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_the_disk_fails_is_not_done_or_says_that_it_was(
    name: str, sync: str, in_memory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in itertools.count(1):
        room = in_memory / f"room{at}"
        with closing(FilesStore(room, Config(sync=sync), clock)) as store:
            store.log_growth_bytes = 1  # a sweep writes the log anew
            send(store, payload={"n": 1})
            told = None
            before = state_of(room, clock, sync)
            with failing(at, monkeypatch) as made:
                try:
                    STEPS[name](store)
                except RoomUnreachable as error:
                    told = str(error)
            after = state_of(room, clock, sync)
            if told is not None and name != "ack":  # which is two steps
                assert (before == after) == ("nothing was changed" in told), (at, made[-1], told)
            send(store, payload={"n": 3})  # the room goes on
        if len(made) < at:
            break
    assert at > 1, "the step came by without the disk"


def test_what_a_dead_process_left_is_ended_later_where_the_disk_fails(
    in_memory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in itertools.count(1):
        room = in_memory / f"room{at}"
        with closing(FilesStore(room, Config(), clock)) as store:
            first = send(store)
            store._log.set_mark(0)
            with (room / ".postroom/log").open("ab") as log:
                log.write(b'0000abcd {"rows": [[1,')
            with failing(at, monkeypatch) as made, suppress(RoomUnreachable):
                store.cell_write("a", 1)
            assert [each.message.id for each in claim(store)] == [first]
            assert store.cell_write("a", 2)
        if len(made) < at:
            return
