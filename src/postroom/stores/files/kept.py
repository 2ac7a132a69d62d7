"""What a process remembers of messages that have ended: where the log tells of each of them, and little else.

A room keeps a hundred thousand of them, and hardly any is looked at again. So a row leaves the tables when its message has
ended, and is read from the log when it is asked for (`room.py`). What must be known without reading lies here in plain arrays,
about a tenth of a kilobyte for each message; `bench/micro/growth_kept.py` measures it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from postroom.core.states import State

#: In place of a state: no longer here.
_GONE: Final = 255
#: Arrays are put in order when so many items came since, or an eighth of what they hold.
_LEAST_NEW: Final = 1000


class KeptMessage(NamedTuple):
    """One message that has ended, as it is remembered."""

    key: int
    state: State
    since_ms: int
    size_bytes: int
    #: Its numbers in the feed: when it was stored, and its last change.
    first: int
    number: int
    #: The places in the log that tell of it, in order.
    spots: Sequence[int]


class KeptMessages:
    """The messages that have ended, in the order in which they were put in."""

    def __init__(self) -> None:
        self.names = NameIndex()
        # by key: the place in the other arrays, or one that holds it no longer
        self._keys = array("q")
        self._places = array("I")
        self._states = bytearray()
        self._key = array("q")
        self._since_ms = array("q")
        self._size_bytes = array("q")
        self._first = array("q")
        self._number = array("q")
        self._spots = array("Q")
        self._ends = array("Q")  # where the spots of each end
        self._gone = 0

    def __len__(self) -> int:
        return len(self._states) - self._gone

    def __contains__(self, key: int) -> bool:
        return self._place_of(key) is not None

    def _place_of(self, key: int) -> int | None:
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            place = self._places[at]
            if self._states[place] != _GONE:
                return place
        return None

    def put(self, kept: KeptMessage) -> None:
        """Remember a message."""
        place, at = len(self._states), bisect_left(self._keys, kept.key)
        if at < len(self._keys) and self._keys[at] == kept.key:
            self._places[at] = place
        else:
            self._keys.insert(at, kept.key)
            self._places.insert(at, place)
        self._states.append(kept.state)
        self._key.append(kept.key)
        self._since_ms.append(kept.since_ms)
        self._size_bytes.append(kept.size_bytes)
        self._first.append(kept.first)
        self._number.append(kept.number)
        self._spots.extend(kept.spots)
        self._ends.append(len(self._spots))

    def take(self, key: int) -> None:
        """Forget a message, if it is here."""
        place = self._place_of(key)
        if place is not None:
            self._states[place] = _GONE
            self._gone += 1
            if self._gone > _LEAST_NEW and 2 * self._gone > len(self._states):
                self._close_gaps()

    def _close_gaps(self) -> None:
        left = KeptMessages()
        for kept in self._all():
            left.put(kept)
        left.names = self.names
        self.__dict__ = left.__dict__

    def _all(self) -> Iterator[KeptMessage]:
        for place, state in enumerate(self._states):
            if state != _GONE:
                yield self._at(place)

    def _at(self, place: int) -> KeptMessage:
        begin = self._ends[place - 1] if place else 0
        return KeptMessage(
            self._key[place], State(self._states[place]), self._since_ms[place], self._size_bytes[place],
            self._first[place], self._number[place], self._spots[begin : self._ends[place]],
        )  # fmt: skip

    def get(self, key: int) -> KeptMessage | None:
        """What is remembered of a message; None when it is not here."""
        place = self._place_of(key)
        return None if place is None else self._at(place)

    def numbers(self, key: int) -> tuple[int, int] | None:
        """The numbers of a message in the feed."""
        place = self._place_of(key)
        return None if place is None else (self._first[place], self._number[place])

    def keys(self, states: frozenset[State] | None = None) -> list[int]:
        """The keys, in their order; of messages in these states."""
        wanted = {*State} if states is None else states
        return [key for key, place in zip(self._keys, self._places, strict=True) if self._states[place] in wanted]

    def oldest(self, states: frozenset[State]) -> Iterator[tuple[int, int, int]]:
        """Messages in these states, as they were put in: key, when it ended, size."""
        for place, state in enumerate(self._states):
            if state in states:
                yield self._key[place], self._since_ms[place], self._size_bytes[place]

    def last(self) -> tuple[int, int]:
        """The highest key, and the last moment at which one ended. 0 where there is none."""
        return (self._keys[-1] if self._keys else 0), max(self._since_ms, default=0)


class NameIndex:
    """Which keys a name has. It knows names by their hashes alone: it may give a key of another name as well."""

    def __init__(self) -> None:
        self._new: dict[int, list[int]] = {}
        self._hashes = array("q")
        self._keys = array("q")  # 0: taken out

    def add(self, name: tuple[str, object], key: int) -> None:
        """The name has this key, too."""
        self._new.setdefault(hash(name), []).append(key)
        if len(self._new) > _LEAST_NEW + len(self._hashes) // 8:
            self._put_in_order()

    def _put_in_order(self) -> None:
        new = ((each, key) for each, keys in self._new.items() for key in keys)
        pairs = sorted((*(pair for pair in zip(self._hashes, self._keys, strict=True) if pair[1]), *new))
        self._hashes, self._keys, self._new = array("q", [p[0] for p in pairs]), array("q", [p[1] for p in pairs]), {}

    def find(self, name: tuple[str, object]) -> list[int]:
        """Its keys."""
        each = hash(name)
        return [*self._new.get(each, ()), *(self._keys[at] for at in self._places(each) if self._keys[at])]

    def _places(self, each: int) -> Iterator[int]:
        at = bisect_left(self._hashes, each)
        while at < len(self._hashes) and self._hashes[at] == each:
            yield at
            at += 1

    def discard(self, name: tuple[str, object], key: int) -> None:
        """The name has this key no more."""
        each = hash(name)
        if key in (keys := self._new.get(each, [])):
            keys.remove(key)
            return
        for at in self._places(each):
            if self._keys[at] == key:
                self._keys[at] = 0
