"""What lies in the inboxes of a room in files and can never be a message: it is set aside, and stops nobody."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.files_by_hand import SAMPLE, claim, drop, send

from postroom.clock import ManualClock
from postroom.config import Config
from postroom.store import Query
from postroom.stores.files import FilesStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "mailbox"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(root: Path, clock: ManualClock) -> Iterator[FilesStore]:
    with closing(FilesStore(root, Config(), clock)) as store:
        yield store


@pytest.mark.parametrize("place", [b"bob/caf\xe9.json", b"b\xf6b/x.json", b"_channel/b\xf6b/x.json"])
def test_a_name_that_is_not_utf8_is_set_aside_and_disturbs_nobody(
    store: FilesStore, root: Path, clock: ManualClock, place: bytes
) -> None:
    path = root / "inbox" / os.fsdecode(place)
    drop(path, SAMPLE)
    good = send(store)
    assert [each.message.id for each in claim(store)] == [good]
    for _ in range(12):
        assert claim(store) == []
        clock.advance(1)

    assert not path.exists()
    rejected, reason = sorted((root / ".postroom/rejected").iterdir())
    assert json.loads(rejected.read_text()) == SAMPLE
    assert re.search(r"\\udc(e9|f6).*: .*not UTF-8", reason.read_text())
    with closing(FilesStore(root, Config(), clock)) as again:
        assert len(again.find(Query()).messages) == 1


def test_a_signal_whose_name_is_not_utf8_stays_where_it_is_read(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    path = drop(root / "outbox/bob" / os.fsdecode(b"f\xfcr-ada.json"), {**SAMPLE, "to": "ada"})
    for _ in range(12):
        assert claim(store, "ada") == []
        clock.advance(1)

    assert path.exists()
