"""Tests with the real agent programs. They run by `make test-agents`, which installs the programs and says where they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import clean_environment

from postroom.room import Room, open_room

from .model_server import ID, ModelServer, ids_of, mail_agent

collect_ignore_glob = [] if os.environ.get("POSTROOM_AGENTS") else ["test_*.py"]


class World:
    """A home, a project with a room, and a model."""

    def __init__(self, folder: Path, model: ModelServer) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self.model = model
        self.home.mkdir()
        self.project.mkdir()
        self.postroom("init")  # by the same user: hooks open only rooms that were made or allowed
        self.room: Room = open_room(f"sqlite:{self.project}/.postroom")

    def in_another_home(self, name: str) -> World:
        """The same project, room and model, for programs with a home of their own."""
        other = copy(self)
        other.home = self.home.with_name(name)
        other.home.mkdir()
        other.postroom("allow")
        return other

    def postroom(self, *words: str, **more: str) -> str:
        """Run a command of ours in the project, with this home, and more variables."""
        return self.postroom_in(self.project, *words, **more)

    def postroom_in(self, folder: Path, *words: str, **more: str) -> str:
        """The same in another folder."""
        environment = clean_environment(HOME=str(self.home), **more)
        for name in ("PYTHONDONTWRITEBYTECODE", "POSTROOM_CONFIG"):  # what is trusted is in this home, where hooks look
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "postroom", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def send(self, to: str, text: str) -> str:
        return self.room.agent("ada").send(to, {"text": text})

    def events(self, id: str) -> list[str]:
        return [event.event for event in self.room.receipt(id).events]

    def until_acked(self, ids: list[str], timeout_s: float = 60) -> None:
        """Return when all are acked; otherwise say what became of those that are not."""
        end = time.monotonic() + timeout_s
        while left := {id: self.events(id) for id in ids if self.events(id)[-1] != "acked"}:
            assert time.monotonic() < end, left
            time.sleep(0.1)  # what is waited for happens in programs that tell nobody

    def until(self, true: Callable[[], Any], timeout_s: float = 60, what: str = "it") -> Any:
        """What `true` gives, as soon as it gives something."""
        end = time.monotonic() + timeout_s
        while not (found := true()):
            assert time.monotonic() < end, f"{what} did not happen within {timeout_s:g} s"
            time.sleep(0.05)  # what is waited for happens in programs that tell nobody
        return found


def inbox_results(world: World) -> list[tuple[str, str]]:
    """What the model was given, in order: ("read", id) for each message in a result of inbox, ("acked", id) for each ack."""
    found: list[tuple[str, str]] = []
    known: set[tuple[int, str]] = set()
    for seen in world.model.log:
        for place, turn in enumerate(turn for turn in seen.turns if turn.role == "result"):
            if (place, turn.text) in known:
                continue
            known.add((place, turn.text))
            found += [("read", id) for id in ids_of(turn)]
            text = turn.text.replace("\\", "")
            if '"results"' in text:
                found += [("acked", id) for id in re.findall(rf'"id":"({ID})","counted":true', text)]
    return found


def check_story(world: World, ids: list[str]) -> None:
    """None was lost, none was shown again after its ack, and the receipts say what the model's log says."""
    given = inbox_results(world)
    acked: set[str] = set()
    for what, id in given:
        assert not (what == "read" and id in acked), f"{id} was shown again after its ack"
        if what == "acked":
            acked.add(id)
    read = {id for what, id in given if what == "read"}
    assert read == set(ids)
    for id in ids:
        events = world.events(id)
        assert (events[0], events[-1]) == ("stored", "acked"), events
        assert ("shown" in events) == (id in read)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ModelServer(mail_agent).running() as model:
        world = World(tmp_path, model)
        yield world
        world.room.close()
