"""What a power cut leaves of a file: what was synced, and any part of what was written since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from postroom.core.clock import Chance

SECTOR_BYTES: Final = 512
#: A change to a file: where, and the data; or the new size, and None.
Change = tuple[int, bytes | None]


class CutFile:
    """One file: what is safe of it, and what was done to it since, each with the number of its event.

    After a cut each sector of 512 bytes or 4 KB of each write is there, is not there or is rubbish, by chance and
    whatever the order. The length is on its own: it may have grown without the data (then zeros lie there, or rubbish,
    or something that the file had there once), or not have grown although the data was written. A truncation happened
    or not. This is harsher than real disks, and allowed by what a system promises.
    """

    def __init__(self, safe: bytes = b"") -> None:
        self._safe = bytearray(safe)
        self._since: list[tuple[int, Change]] = []
        self._once = bytearray(safe)  # whatever lay at a place last, also behind a later end

    def change(self, number: int, place: int, data: bytes | None) -> None:
        """A write; or, without data, a truncation to that place."""
        self._since.append((number, (place, data)))
        if data is not None:
            _apply([(place, data)], self._once)

    def sync(self, began: int) -> None:
        """A sync that began at that event has ended."""
        done = 0
        while done < len(self._since) and self._since[done][0] < began:
            done += 1
        _apply((change for _, change in self._since[:done]), self._safe)
        del self._since[:done]

    def is_safe(self) -> bool:
        """Whether a cut can take nothing of it."""
        return not self._since

    def whole(self) -> bytes:
        """The file with all that was done to it."""
        return bytes(_apply((change for _, change in self._since), bytearray(self._safe)))

    def after_a_cut(self, chance: Chance, rubbish: float = 0.05, *, in_order: bool = False) -> bytes:
        """`rubbish` is the share of sectors that are. `in_order`: as the system's memory is written out, a sector at a
        time, so that none has a later write without the earlier ones, and a file of one sector is never rubbish.
        """
        changes = [change for _, change in self._since]
        if in_order and max(self._lengths(changes)) <= SECTOR_BYTES:
            rubbish = 0
        mood = chance.choice(("none", "all", "first", "pieces", "pieces", "pieces"))
        if mood == "none" or not changes:
            return bytes(self._safe)
        if mood == "all":
            return self.whole()
        if mood == "first":
            return bytes(_apply(changes[: chance.randrange(len(changes) + 1)], bytearray(self._safe)))
        filling = chance.choice((b"", b"", chance.randbytes(4096), self._once)) if rubbish else b""
        pieces = _pieces(changes, chance, rubbish, in_order=in_order)
        found = _apply(pieces, bytearray(self._safe), filling)
        if chance.random() < 0.5:
            _resize(found, chance.choice(self._lengths(changes)), filling)
        return bytes(found)

    def _lengths(self, changes: list[Change]) -> list[int]:
        """How long the file was, since it was last synced."""
        lengths = [len(self._safe)]
        for place, data in changes:
            lengths.append(place if data is None else max(lengths[-1], place + len(data)))
        return lengths


def _resize(content: bytearray, size: int, filling: bytes | bytearray) -> None:
    """Cut it off, or fill it up: with what the filling has at that place (a short one is repeated), else with zeros."""
    del content[size:]
    start = len(content)
    if start < size and 0 < len(filling) <= 4096:
        content.extend((filling * ((size - start) // len(filling) + 1))[: size - start])
    elif start < size:
        content.extend(filling[start:size])
        content.extend(bytes(size - len(content)))


def _apply(changes: Iterable[Change], content: bytearray, filling: bytes | bytearray = b"") -> bytearray:
    for place, data in changes:
        if data is None:
            _resize(content, place, filling)
        else:
            if place > len(content):
                _resize(content, place, filling)
            content[place : place + len(data)] = data
    return content


def _pieces(changes: list[Change], chance: Chance, rubbish: float, *, in_order: bool) -> list[Change]:
    """The changes in sectors, some of them lost, some of them rubbish."""
    sector = chance.choice((SECTOR_BYTES, 4096))
    kept = chance.choice((0.1, 0.5, 0.9))
    found: list[Change] = []
    lost: set[int] = set()
    for place, data in changes:
        if data is None:
            found += [(place, None)] if chance.random() < 0.5 else []
            continue
        at, end = place, place + len(data)
        while at < end:
            to = min(end, (at // sector + 1) * sector)
            if chance.random() < kept and at // sector not in lost:
                spoilt = chance.random() < rubbish
                found.append((at, chance.randbytes(to - at) if spoilt else data[at - place : to - place]))
            elif in_order:
                lost.add(at // sector)
            at = to
    return found
