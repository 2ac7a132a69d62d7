"""The cells of a room in tables: a dict that also knows which names lie under which, so that a scan reads no others."""

from __future__ import annotations

from collections.abc import Iterator

Value = tuple[int, str]


class CellTable(dict[str, Value]):
    """Name -> (version, JSON text).

    Names are paths with slashes, and each folder of theirs lists what lies in it: a scan by prefix costs what it finds, however many
    cells there are besides (tests/stores/test_tables.py).
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, dict[str, None]] = {}  # folder, with its slash -> the cells in it
        self._folders: dict[str, dict[str, None]] = {}  # folder -> the folders in it, each with its slash

    def __setitem__(self, name: str, value: Value) -> None:
        folder = _folder_of(name)
        if name not in self._names.get(folder, ()):
            self._enter(folder, name)
        super().__setitem__(name, value)

    def _enter(self, folder: str, name: str) -> None:
        self._names.setdefault(folder, {})[name] = None
        while folder:
            parent = _folder_of(folder[:-1])
            self._folders.setdefault(parent, {})[folder] = None
            folder = parent

    def pop(self, name: str, default: Value | None = None) -> Value | None:  # type: ignore[override]
        """Take a cell away, if it is there."""
        was = super().pop(name, default)
        folder = _folder_of(name)
        names = self._names.get(folder)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._names[folder]
                self._leave(folder)
        return was

    def _leave(self, folder: str) -> None:
        while folder and folder not in self._names and folder not in self._folders:
            parent = _folder_of(folder[:-1])
            siblings = self._folders.get(parent, {})
            siblings.pop(folder, None)
            if not siblings:
                self._folders.pop(parent, None)
            folder = parent

    def starting(self, prefix: str) -> list[str]:
        """The names that begin so, in their order."""
        folder = _folder_of(prefix)
        found = [name for name in self._names.get(folder, ()) if name.startswith(prefix)]
        for inner in self._folders.get(folder, ()):
            if inner.startswith(prefix):
                found += self._all_in(inner)
        return sorted(found)

    def _all_in(self, folder: str) -> Iterator[str]:
        yield from self._names.get(folder, ())
        for inner in self._folders.get(folder, ()):
            yield from self._all_in(inner)

    def count_in(self, folder: str) -> int:
        """How many cells lie in a folder, which is named with its slash."""
        return len(self._names.get(folder, ()))


def _folder_of(name: str) -> str:
    return name[: name.rfind("/") + 1]
