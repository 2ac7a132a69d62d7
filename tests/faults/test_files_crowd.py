"""A crowd in a room of files: sixteen send, sixteen claim; and fifty thousand files that somebody left while nobody looked.

The invariant. Each message is delivered once, whole, to one who lives. No file that lay there is overlooked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.programs.files import open_files
from tests.faults.programs.nursery import steady_ns
from tests.faults.programs.rooms import want

from .support import PATIENCE_S, Nursery, count, in_parts


def run_crowd(nursery: Nursery, folder: Path, tmp_path: Path, messages: int, figure: Callable[[str], None]) -> None:
    senders, claimers = count("SENDERS", 16), count("CLAIMERS", 16)
    open_files(folder).close()
    start_ns = steady_ns() + 1_500_000_000
    common = {"folder": str(folder), "start_ns": start_ns}
    sending = [
        nursery.fork(
            "files.crowd_sender", out=str(tmp_path / f"sent{n}"), number=n, count=messages // senders, **common
        )
        for n in range(senders)
    ]
    claiming = [
        nursery.fork("files.crowd_claimer", out=str(tmp_path / f"taken{n}"), number=n, **common)
        for n in range(claimers)
    ]
    patience_s = PATIENCE_S + messages / 20
    nursery.finish(*sending, patience_s=patience_s)
    (tmp_path / "stop").touch()
    nursery.finish(*claiming, patience_s=patience_s)
    took_s = (steady_ns() - start_ns) / 1e9
    sent = [id for n in range(senders) for id in json.loads((tmp_path / f"sent{n}").read_text())]
    reports = [json.loads((tmp_path / f"taken{n}").read_text()) for n in range(claimers)]
    taken = Counter(id for report in reports for id, _ in report["taken"])
    assert [id for report in reports for id in report["partial"]] == []
    assert {times for report in reports for _, times in report["taken"]} == {1}, "a message was delivered twice"
    assert taken == Counter(sent), "a message was lost, or had two owners"
    assert sum(1 for path in (folder / ".postroom/done").rglob("*.json")) == len(sent)
    assert list((folder / "inbox").rglob("*.json")) == []
    figure(
        f"files: {senders} senders, {claimers} claimers, {len(sent)} messages in {took_s:.0f} s, each delivered once"
    )


@pytest.mark.slow
def test_sixteen_senders_and_sixteen_claimers(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    run_crowd(nursery, folder, tmp_path, count("CROWD", 320), figure)


@pytest.mark.long
@in_parts(5)
@pytest.mark.usefixtures("part")
def test_a_hundred_thousand_messages_among_thirty_two(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    run_crowd(nursery, folder, tmp_path, count("CROWD_LONG", 100_000) // 5, figure)


@pytest.mark.slow
def test_files_that_were_dropped_while_nobody_watched_are_all_seen(folder: Path, figure: Callable[[str], None]) -> None:
    take_dropped(folder, count("DROPPED", 2_000), figure)


@pytest.mark.long
def test_fifty_thousand_files_that_were_dropped_while_nobody_watched_are_all_seen(
    folder: Path, figure: Callable[[str], None]
) -> None:
    take_dropped(folder, count("DROPPED_LONG", 50_000), figure)


def take_dropped(folder: Path, files: int, figure: Callable[[str], None]) -> None:
    open_files(folder).close()
    inbox = folder / "inbox" / "bob"
    inbox.mkdir()
    for number in range(files):
        (inbox / f"{number:06d}.json").write_text(json.dumps({"payload": {"n": number}}))
    began_ns = steady_ns()
    with closing(open_files(folder)) as store:
        taken: list[int] = []
        while deliveries := store.claim(want(limit=5000, settle=True)).deliveries:
            taken += [delivery.message.payload["n"] for delivery in deliveries]
    assert taken == list(range(files))
    figure(f"files: {files} dropped files found and taken in {(steady_ns() - began_ns) / 1e9:.1f} s")
