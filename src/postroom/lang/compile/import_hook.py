"""The import hook: `postroom.lang.compile.import_hook.<path of the file>` is a `.pw` file.

A worker is found by its module and its name, in whatever process it is to run; so a program's file is a module that
every process can import by that name alone.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote, unquote

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import parse_file
from postroom.lang.values.raised import SUFFIX

from .compiler import compiled

PREFIX: Final = f"{__name__}."
#: It has modules under it, though they lie in no folder of its own.
__path__: list[str] = []


def module_name(path: str | os.PathLike[str]) -> str:
    """The name under which a program's file can be imported."""
    return PREFIX + quote(os.path.abspath(path), safe="/").replace(".", "%2E")


def load_program_module(path: str | os.PathLike[str], trees: Mapping[str, n.Module] | None = None) -> ModuleType:
    """The program of a file, compiled and ready. `trees`, by absolute path, are files that need not be parsed again."""
    finder = _Finder(trees or {})
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(module_name(path))
    finally:
        sys.meta_path.remove(finder)


def load_module(importer: str, path: Sequence[str]) -> ModuleType:
    """What `import` means in the file `importer`."""
    return importlib.import_module(module_name(Path(importer).parent.joinpath(*path).with_suffix(SUFFIX)))


class _Finder(MetaPathFinder):
    """Finds programs by the names that `module_name` makes."""

    def __init__(self, trees: Mapping[str, n.Module]) -> None:
        self._trees = trees

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(PREFIX):
            return None
        path = unquote(name.removeprefix(PREFIX))
        return importlib.util.spec_from_loader(name, _Loader(path, self._trees.get(path)), origin=path)


class _Loader(Loader):
    """Reads, compiles and runs the file of a program."""

    def __init__(self, path: str, tree: n.Module | None) -> None:
        self._path = path
        self._tree = tree

    def exec_module(self, module: ModuleType) -> None:
        scope: dict[str, Any] = module.__dict__
        scope["__file__"] = self._path
        tree, self._tree = self._tree or parse_file(Path(self._path)), None
        exec(compiled(tree, self._path), scope)  # noqa: S102  it is what the compiler made


sys.meta_path.append(_Finder({}))
