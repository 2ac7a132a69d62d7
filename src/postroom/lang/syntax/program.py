"""A program: its entry file and every file that it imports, each read once. Files may import each other in a ring."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from postroom.lang.builtins import BUILTINS

from . import nodes as n
from .parser import parse
from .problems import Problem, SyntaxProblems, near
from .source import Source, Span

STD: Final = "std"


@dataclass(eq=False, repr=False)
class LoadedModule:
    """One file of a program. `id` is its path from the program's folder, without `.pw`: "main", "foo/bar".

    `imports` maps each bound name to the module it stands for; names of `std` are in `std_names` instead.
    """

    id: str
    path: Path
    module: n.Module
    imports: dict[str, LoadedModule] = field(default_factory=dict)
    std_names: set[str] = field(default_factory=set)

    def exports(self) -> dict[str, n.Declaration]:
        """The names that other files may use: all workers, all exports, and the default under "default"."""
        declared: list[n.Declaration] = [item for item in self.module.items if isinstance(item, n.Declaration)]
        found = {i.name: i for i in declared if i.exported or (isinstance(i, n.Function) and i.kind == "worker")}
        default = next((item for item in reversed(declared) if item.default), None)
        return found | {"default": default} if default else found


class ParsedProgram(NamedTuple):
    """`entry`, and `modules`: every file, those that are imported before those that import them (rings: in the order
    met).
    """

    entry: LoadedModule
    modules: list[LoadedModule]


def read_program(path: str | Path) -> tuple[ParsedProgram | None, list[Problem]]:
    """The readable part of a program, and the faults of the rest. None when the entry itself cannot be parsed.

    Raises `OSError` for an unreadable entry.
    """
    reader = _ImportReader(Path(path).parent)
    entry = reader.module(Path(path))
    return ParsedProgram(entry, reader.order) if entry else None, reader.problems


class _ImportReader:
    """Follows the imports of an entry file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[Path, LoadedModule | None] = {}
        self.order: list[LoadedModule] = []
        self.problems: list[Problem] = []

    def module(self, path: Path) -> LoadedModule | None:
        """The module of a file; None when it cannot be parsed, which is then among the problems."""
        place = path.resolve()
        if place in self.seen:
            return self.seen[place]
        self.seen[place] = None
        try:
            module = parse_file(path)
        except SyntaxProblems as faults:
            self.problems += faults.problems
            return None
        relative = path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.name)
        loaded = self.seen[place] = LoadedModule(relative.with_suffix("").as_posix(), path, module)
        for item in module.items:
            if isinstance(item, n.Import):
                for name in item.names:
                    self._follow(loaded, name)
        self.order.append(loaded)
        return loaded

    def _follow(self, importer: LoadedModule, name: n.ImportName) -> None:
        if name.path[0] == STD and not name.relative:
            self._standard(importer, name)
            return
        path = importer.path.parent.joinpath(*name.path).with_suffix(".pw")
        if not path.is_file():
            beside = [found.stem for found in path.parent.glob("*.pw")] if path.parent.is_dir() else []
            message = f"module not found: {'.'.join(name.path)} (there is no {path})"
            self.problems.append(Problem(name.span, "import", message, hint=near(name.path[-1], beside)))
            return
        found = self.module(path)
        if found is not None:
            importer.imports[name.name] = found

    def _standard(self, importer: LoadedModule, name: n.ImportName) -> None:
        if len(name.path) == 2 and name.path[1] in BUILTINS:
            importer.std_names.add(name.path[1])
            return
        wanted = ".".join(name.path[1:])
        hint = near(wanted, BUILTINS) or "std has " + ", ".join(sorted(BUILTINS))
        self.problems.append(Problem(name.span, "import", f"std has no {wanted or 'name of its own'}", hint=hint))


def parse_file(path: Path) -> n.Module:
    """The tree of a file. A text that is not UTF-8 is a problem at its first wrong byte."""
    return parse(decoded(path.read_bytes(), str(path)), str(path))


def decoded(data: bytes, file: str) -> str:
    """The text of a file. Raises `SyntaxProblems` when it is not UTF-8, with the place of the first wrong byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        source = Source(data.decode("utf-8", errors="replace"), file)
        at = len(data[: error.start].decode("utf-8", errors="replace"))
        message = f"expected text in UTF-8, found the byte 0x{data[error.start]:02x}"
        raise SyntaxProblems([Problem(Span(source, at, at + 1), "encoding", message)]) from None
