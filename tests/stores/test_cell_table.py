"""The cells of rooms in tables: a scan finds what lies under a prefix, and reads nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.stores.tables.cells import CellTable

names = st.text(alphabet="ab/", max_size=6)


@given(st.lists(st.tuples(st.booleans(), names), max_size=40), names)
def test_a_scan_finds_the_names_that_begin_so_and_no_others(steps: list[tuple[bool, str]], prefix: str) -> None:
    table, plain = CellTable(), {}
    for number, (added, name) in enumerate(steps):
        if added:
            table[name] = plain[name] = (number, "1")
        else:
            assert table.pop(name) == plain.pop(name, None)

    assert dict(table) == plain
    assert table.starting(prefix) == sorted(name for name in plain if name.startswith(prefix))
    folder = prefix[: prefix.rfind("/") + 1]
    assert table.count_in(folder) == sum(name[: name.rfind("/") + 1] == folder for name in plain)


def test_cells_that_are_taken_away_leave_nothing_behind() -> None:
    table = CellTable()
    for name in ("a/b/c", "a/b/d", "a/e", "f"):
        table[name] = (1, "1")
    for name in ("a/b/c", "f", "a/e", "a/b/d"):
        table.pop(name)

    assert not table._names
    assert not table._folders


def test_a_scan_does_not_look_at_cells_elsewhere() -> None:
    class Name(str):
        __slots__ = ()

        def startswith(self, *_: object) -> bool:
            raise AssertionError("looked at")

    table = CellTable()
    table[Name("elsewhere/1")] = (1, "1")
    table["here/1"] = (2, "1")

    assert table.starting("here/") == ["here/1"]
