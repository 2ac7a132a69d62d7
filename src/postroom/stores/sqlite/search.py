"""Full-text search in a SQLite room: an inverted index (FTS5) in the room's own file.

The index is made by the first search and knows every message up to a key, the mark: keys are in the order of commits, so
what is behind the mark is all that is missing. A search first indexes that, in steps of some milliseconds; the process
that keeps house does so in its rounds, so that little is left to do. A process that dies leaves a mark that is true.
Messages that are deleted are taken out in the step that deletes them (docs/design/search.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from postroom.core.clock import SYSTEM
from postroom.core.search_query import Term, words_of
from postroom.errors import RoomUnreachable
from postroom.stores.contract import Query

from .reading import WordMatch
from .rows import SEARCH_MARK
from .transactions import Transactions, whole

#: Messages, and bytes of payloads, that one step indexes at most: other writers wait meanwhile.
_INDEXED_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 500_000
#: So many at once are taken out word by word, so that nothing of them is left. More are crossed out, which takes a
#: hundredth of the time, and their words go when the parts of the index are merged.
_ERASED_AT_ONCE: Final = 50
#: In `meta`, while words are crossed out.
_MERGE: Final = "search merge"
_CROSSED_OUT, _MERGING, _CROSSED_OUT_MEANWHILE = 1, 2, 3
#: Pages that one step merges; a round of the housekeeping takes so many steps.
_MERGED_PAGES: Final = 200
_MERGES_IN_A_ROUND: Final = 10
#: In the background a pause follows each step, in which others get the write lock, and a round ends after so long: the
#: heartbeats of agents wait for it.
_PAUSE_S: Final = 0.004
_ROUND_NS: Final = 3_000_000_000
_HOUR_MS: Final = 3_600_000
_ANY_KEY: Final = (0, 2**63 - 1)
#: Stands for the recipient of a message to nobody in particular (`said` in schema.sql).
_ANYONE: Final = "anyone"
_to_json = msgspec.json.Encoder().encode


class SearchIndex:
    """The index of words of one room. It holds nothing itself: the file has all there is to know."""

    def __init__(self, steps: Transactions) -> None:
        self._steps = steps
        self._file = steps.file

    # Keeping it

    def is_current(self) -> bool:
        """Whether there is an index, and nothing is missing from it."""
        mark = self._mark()
        return mark is not None and mark >= self._last_key()

    @whole
    def bring_up_to_date(self, told: Callable[[int, int], object] | None = None) -> bool:
        """Index everything that is stored by now; False where the room cannot be written."""
        try:
            self._make()
            last, mark = self._last_key(), self._mark() or 0
            total = self._file.execute("count_behind", (mark,))[0][0] if told is not None else 0
            done = 0
            while mark < last:
                mark, indexed = self._index_some()
                done += indexed
                if told is not None:
                    told(min(done, total), total)
        except RoomUnreachable:
            return False
        return True

    @whole
    def look_after(self) -> None:
        """A round of the housekeeping: index what is new, and merge what is crossed out. Gives way to other writers.

        What a round does not come to is left to the next one, and to searches.
        """
        last, until_ns = self._last_key(), SYSTEM.steady_ns() + _ROUND_NS
        while self._index_some()[0] < last:
            if SYSTEM.steady_ns() >= until_ns:
                return
            SYSTEM.sleep(_PAUSE_S)
        for _ in range(_MERGES_IN_A_ROUND):
            if not self._merge_some() or SYSTEM.steady_ns() >= until_ns:
                return
            SYSTEM.sleep(_PAUSE_S)

    def _make(self) -> None:
        if self._mark() is None:
            with self._steps.step():
                if self._mark() is None:  # nobody made it meanwhile
                    self._file.select(self._file.statements["search_schema"])

    def _index_some(self) -> tuple[int, int]:
        """Index the next messages behind the mark. Returns the mark after it, and how many they were."""
        mark = self._mark() or 0
        if mark >= self._last_key():
            return mark, 0  # mostly, in the background: a room that rests is not locked for it
        with self._steps.step():
            mark = self._mark() or 0
            (end,) = self._file.execute("search_batch", (mark, _INDEXED_AT_ONCE, _BYTES_AT_ONCE))[0]
            if end is None:
                return mark, 0
            self._leave_no_traces()
            indexed = self._file.change("words_add", (mark, end))
            self._file.change("hours_add", (mark, end))
            self._file.change("meta_write", (SEARCH_MARK, end))
        return end, indexed

    def _mark(self) -> int | None:
        rows = self._file.execute("meta_read", (SEARCH_MARK,))
        return int(rows[0][0]) if rows else None

    def _last_key(self) -> int:
        return int(self._file.execute("last_key")[0][0])

    # Taking messages out

    def take_out(self, keys: Sequence[int], mark: int) -> None:
        """Part of a step that deletes messages: before they go, take their words out of the index."""
        self._leave_no_traces()
        erase = len(keys) <= _ERASED_AT_ONCE
        if erase:
            self._file.change("words_option", ("secure-delete", 1))
        self._file.change("words_remove", (_to_json(list(keys)).decode(), mark))
        if erase:
            self._file.change("words_option", ("secure-delete", 0))
        else:
            merging = self._merge_state() in (_MERGING, _CROSSED_OUT_MEANWHILE)
            self._file.change("meta_write", (_MERGE, _CROSSED_OUT_MEANWHILE if merging else _CROSSED_OUT))

    @whole
    def merge_all(self) -> None:
        """Merge until no word is crossed out."""
        while self._merge_some():
            pass

    def _merge_some(self) -> bool:
        """Go on merging. Whether there is more to do."""
        if self._merge_state() == 0:
            return False
        with self._steps.step():
            state = self._merge_state()
            self._leave_no_traces()
            before = self._file.connection().total_changes()
            begins = state == _CROSSED_OUT
            self._file.change("words_option", ("merge", -_MERGED_PAGES if begins else _MERGED_PAGES))
            # FTS5 says that it is done by changing nothing but its own note of that
            if begins:
                state = _MERGING
            elif self._file.connection().total_changes() - before < 2:
                state = _CROSSED_OUT if state == _CROSSED_OUT_MEANWHILE else 0
            self._file.change("meta_write", (_MERGE, state))
        return state != 0

    def _merge_state(self) -> int:
        rows = self._file.execute("meta_read", (_MERGE,))
        return int(rows[0][0]) if rows else 0

    def _leave_no_traces(self) -> None:
        """Let SQLite overwrite what this connection deletes: pages that it gives free have words in them."""
        self._file.select("PRAGMA secure_delete = ON")

    # Looking

    def match(self, query: Query, terms: Sequence[Term]) -> WordMatch | None:
        """What to look for in the index, so that no message is missed that the query means; None: for nothing in it.

        Names are looked for by their words, too, which finds a little too much; the query's own conditions follow.
        """
        wanted = [f"body : {_quoted(term.text, term.is_beginning)}" for term in terms if not term.is_excluded]
        wanted += _named("sender", (query.from_agent,)) + _named("recipient", (query.to_agent,))
        wanted += _named("kind", (query.type,)) + _named("place", query.channels or (None,))
        if query.visible_to is not None and query.channels is None:
            wanted += _named("recipient", (query.visible_to,))
        if query.concerns is not None and words_of(query.concerns):
            name = _quoted(query.concerns)
            wanted.append(f"({{sender recipient}} : {name} OR recipient : {_quoted(_ANYONE)})")
        if not wanted:
            return None
        text = " AND ".join(wanted)
        excluded = [f"body : {_quoted(term.text, term.is_beginning)}" for term in terms if term.is_excluded]
        if excluded:
            text = f"({text}) NOT ({' OR '.join(excluded)})"
        return WordMatch(text, *self._between(query))

    def _between(self, query: Query) -> tuple[int, int]:
        """Between which keys the messages of that time lie: keys follow the room's time, which is not the wall clock's."""
        first, last = _ANY_KEY
        if query.sent_after_ms is not None:
            (found,) = self._file.execute("hours_after", (query.sent_after_ms // _HOUR_MS,))[0]
            first = last if found is None else found
        if query.sent_before_ms is not None:
            (found,) = self._file.execute("hours_before", (query.sent_before_ms // _HOUR_MS,))[0]
            last = 0 if found is None else found
        return first, last


def _quoted(text: str, is_beginning: bool = False) -> str:
    """Words as FTS5 takes them, whatever they are: a string, in which a quote is written twice."""
    text = text.replace('"', '""').replace("\0", " ")
    return f'"{text}"{" *" if is_beginning else ""}'


def _named(column: str, names: Iterable[str | None]) -> list[str]:
    """The condition that a column has one of these names; none, where a name has no words."""
    names = tuple(names)
    if not all(name is not None and words_of(name) for name in names):
        return []
    return [f"{column} : ({' OR '.join(_quoted(name) for name in names if name is not None)})"]
