"""A closed room keeps nothing open, whether or not the garbage collector comes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from tests.support.descriptors import needs_proc, open_now
from tests.support.patience import until

import postroom
from postroom.room import Room
from postroom.room import open_room as open_a_room


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def mail(room: Room) -> None:
    bob = room.agent("bob")
    bob.send("bob", {"n": 1})
    bob.receive(timeout_s=20).ack()


def questions(room: Room) -> None:
    with pytest.raises(postroom.AskTimeout):
        room.agent("bob").ask("ada", {}, timeout_s=0)


def tasks(room: Room) -> None:
    room.board.add("paint")
    held = room.board.claim("bob")
    assert held is not None
    held.done()
    room.board.remove("paint")


def schedules(room: Room) -> None:
    room.schedule("daily", every_s=86_400, to="bob", payload={})


def sessions(room: Room) -> None:
    with room.session() as session:
        session.check_failed()


@needs_proc
@pytest.mark.parametrize("use", [mail, questions, tasks, schedules, sessions])
@pytest.mark.usefixtures("without_collector")
def test_a_room_that_was_closed_and_forgotten_waits_for_no_collector(url: str, use: Callable[[Room], None]) -> None:
    """A program that opens and closes rooms has no more descriptors open than it has rooms."""
    before = open_now(collected=False)
    for _ in range(3):
        with open_a_room(url) as room:
            use(room)
        del room
    until(lambda: not open_now(collected=False) - before, "something is still open")  # threads end a moment later
