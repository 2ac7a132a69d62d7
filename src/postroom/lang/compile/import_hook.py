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
from typing import Final
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
    finder = _Programs(trees or {})
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(module_name(path))
    finally:
        sys.meta_path.remove(finder)


def load_module(importer: str, path: Sequence[str]) -> ModuleType:
    """The module that an `import` in the file `importer` names."""
    return importlib.import_module(module_name(Path(importer).parent.joinpath(*path).with_suffix(SUFFIX)))


class _Programs(MetaPathFinder, Loader):
    """Finds programs by the names that `module_name` makes; reads, compiles and runs their files."""

    def __init__(self, trees: Mapping[str, n.Module]) -> None:
        self._trees = dict(trees)

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(PREFIX):
            return None
        return importlib.util.spec_from_loader(name, self, origin=unquote(name.removeprefix(PREFIX)))

    def exec_module(self, module: ModuleType) -> None:
        path = module.__file__ = unquote(module.__name__.removeprefix(PREFIX))
        tree = self._trees.pop(path, None) or parse_file(Path(path))
        exec(compiled(tree, path), module.__dict__)  # noqa: S102  it is what the compiler made


sys.meta_path.append(_Programs({}))
