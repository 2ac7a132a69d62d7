"""An index of the tasks that can be claimed, so that a claim does not read all tasks.

Every task has a number that says its place: first added, first claimed. The numbers of those that can be claimed lie in
buckets of 64, each a cell `board-ready/<bucket>`; the cell `board-ready/index` names the buckets that are not empty (in runs,
from one to another), the next number, and when the whole was last mended. A claim therefore reads two small cells and the
task's own, whether the board has ten tasks or a hundred thousand.

All of this is a hint. An entry may stand here though its task is not claimable any more; the next claimer takes it out.
A claimable task that is missing here (somebody was killed between two writes, or a task was edited by hand) is put in
by the next mending, see `Board.mend`. Two rules keep living processes from losing entries:

- a process that makes a task claimable writes the task first and the bucket after it, always, also when the entry
  stands there: so a claimer that takes entries out on the ground of an older reading fails on the bucket's version;
- taking an empty bucket out of the index is followed by a look at the bucket, filling a bucket by a look at the index.
  One of the two sees the other.

These cells begin with a word of their own so that waking works: a waiting claimer hears of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from postroom.core.clock import Clock
from postroom.core.crashpoints import reached
from postroom.stores.cells import update
from postroom.stores.contract import Store, topic_cells

BUCKET_SIZE: Final = 64
TOPIC: Final = topic_cells("board-ready")
_INDEX: Final = "board-ready/index"

Value = dict[str, Any]


class ReadyBucket(NamedTuple):
    """The entries of one bucket, in order, as they were read."""

    number: int
    version: int
    entries: dict[int, str]  # place -> task


class ReadyIndex:
    """The places of the tasks that can be claimed."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def next_place(self, count: int = 1) -> int:
        """The first of so many new places. Some may never be used; none is given twice."""

        def take(value: Value | None) -> Value:
            value = _whole(value)
            return {**value, "next": value["next"] + count}

        taken: int = update(self._store, _INDEX, take)["next"]
        return taken - count

    def insert(self, places: Mapping[int, str]) -> None:
        """These tasks can be claimed. To be called after their cells say so."""
        by_bucket: dict[int, dict[int, str]] = {}
        for place, id in places.items():
            by_bucket.setdefault(place // BUCKET_SIZE, {})[place] = id
        for number, entries in by_bucket.items():

            def fill(value: Any, more: dict[int, str] = entries) -> list[list[Any]]:
                return _listed({**_entries(value), **more})

            update(self._store, _bucket_cell(number), fill)
            reached("board.bucket_filled")
        self._open(by_bucket)

    def _open(self, numbers: Iterable[int]) -> None:
        more = [[number, number] for number in numbers]

        def add(value: Value | None) -> Value | None:
            whole = _whole(value)
            after = _joined([*whole["runs"], *more])
            return None if after == whole["runs"] and value is not None else {**whole, "runs": after}

        update(self._store, _INDEX, add)

    def buckets(self) -> Iterator[ReadyBucket]:
        """The buckets that may hold something, in order, each read when it is asked for."""
        cell = self._store.cell_read(_INDEX)
        for first, last in _whole(None if cell is None else cell.value)["runs"]:
            for number in range(first, last + 1):
                found = self._store.cell_read(_bucket_cell(number))
                yield ReadyBucket(number, found.version if found else 0, _entries(found.value if found else None))

    def take_out(self, bucket: ReadyBucket, places: Iterable[int]) -> bool:
        """Take entries out, if nobody has changed the bucket since it was read. An empty bucket leaves the index."""
        gone = set(places)
        left = {place: id for place, id in bucket.entries.items() if place not in gone}
        if (gone or not left) and bucket.version:
            written = self._store.cell_write(_bucket_cell(bucket.number), _listed(left) or None, expect=bucket.version)
            if written is None:
                return False
        if not left:
            reached("board.bucket_emptied")
            self._close(bucket.number)
        return True

    def _close(self, number: int) -> None:
        def remove(value: Value | None) -> Value | None:
            whole = _whole(value)
            left = _without(whole["runs"], number)
            return None if left == whole["runs"] else {**whole, "runs": left}

        update(self._store, _INDEX, remove)
        reached("board.bucket_closed")
        if self._store.cell_read(_bucket_cell(number)) is not None:
            self._open([number])

    # Mending

    def mending_is_due(self, every_s: float) -> bool:
        """Whether nobody mended it for so long, or for a hundred times as long as it took, whichever is longer."""
        cell = self._store.cell_read(_INDEX)
        match _whole(None if cell is None else cell.value)["mended"]:
            case [boot, int(at_ns), int(took_ns)] if boot == self._clock.boot_id():
                ago_ns = self._clock.steady_ns() - at_ns
                return not 0 <= ago_ns < max(every_s * 1_000_000_000, 100 * took_ns)
        return True

    def note_mending(self, since_ns: int) -> None:
        """Somebody mends it, or has: others need not for a while."""
        now_ns = self._clock.steady_ns()
        mended = [self._clock.boot_id(), now_ns, now_ns - since_ns]
        update(self._store, _INDEX, lambda value: {**_whole(value), "mended": mended})

    def raise_next(self, least: int) -> None:
        """No new place is below this one: an index that was lost begins anew behind what is there."""

        def lift(value: Value | None) -> Value | None:
            whole = _whole(value)
            return {**whole, "next": least} if whole["next"] < least else None

        update(self._store, _INDEX, lift)


def _bucket_cell(number: int) -> str:
    return f"board-ready/{number:010d}"


def _whole(value: object) -> Value:
    found = value if isinstance(value, dict) else {}
    whole: Value = {"next": 0, "mended": None, **found}
    # `open` named every bucket, before there were runs: what an older program puts in is found
    single = [[number, number] for number in whole.pop("open", ())]
    return {**whole, "runs": _joined([*whole.get("runs", ()), *single])}


def _joined(runs: Iterable[list[int]]) -> list[list[int]]:
    """The same numbers in as few runs as there can be, in order."""
    joined: list[list[int]] = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def _without(runs: Iterable[list[int]], number: int) -> list[list[int]]:
    """The runs without one of their numbers."""
    parts = ([[first, min(last, number - 1)], [max(first, number + 1), last]] for first, last in runs)
    return _joined(part for both in parts for part in both if part[0] <= part[1])


def _entries(value: object) -> dict[int, str]:
    return {int(place): str(id) for place, id in value} if isinstance(value, list) else {}


def _listed(entries: Mapping[int, str]) -> list[list[Any]]:
    return [[place, entries[place]] for place in sorted(entries)]
