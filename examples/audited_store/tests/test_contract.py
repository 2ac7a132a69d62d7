"""The audited store keeps the contract of every store, and an audit log besides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from postroom_audited import AuditedStore

import postroom
from postroom.core.clock import Clock
from postroom.core.config import Config, RoomUrl
from postroom.stores.contract import Store
from postroom.testing import StoreContract


class TestAuditedStore(StoreContract):
    def open(self, clock: Clock, config: Config) -> Store:
        return AuditedStore(RoomUrl("audited", str(self.folder), {}), config, clock)


def test_a_room_is_opened_by_its_scheme_and_every_message_stands_in_the_log(tmp_path: Path) -> None:
    with postroom.open(f"audited:{tmp_path}/room") as room:
        id = room.agent("ada").send("bob", {"text": "hi"})
        answered = room.agent("bob").receive(timeout_s=5).reply({"text": "yes"})

    lines = [json.loads(line) for line in (tmp_path / "room" / "audit.jsonl").read_text().splitlines()]
    assert answered
    assert lines[0]["stored"] == id
    assert len(lines) == 2


def test_a_log_that_is_a_link_is_refused_and_nothing_is_written_through_it(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "audit.jsonl").symlink_to(other)

    with pytest.raises(postroom.RoomError, match="symbolic link"):
        postroom.open(f"audited:{tmp_path}/room")
    assert other.read_text() == "mine"
