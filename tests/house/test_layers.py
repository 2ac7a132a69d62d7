"""The picture of the house: packages, and the direction in which they import.

A package imports from the lines above its own, and never from its neighbours on the same line. Inside a package no modules
import each other in a ring, and neither do its sub-packages. A new package gets a line here first.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support import ROOT

SOURCE = ROOT / "src"

LAYERS = (
    ("errors",),  # every error
    ("core",),  # time, messages, the operating system
    ("stores",),  # where messages are kept: the contract, and the stores that keep it
    ("mail",),  # agents and messages
    ("board", "sessions"),  # tasks; members that fail together
    ("room",),  # Room and open()
    ("aio", "pools", "patterns", "communications", "moving"),  # what is built on rooms
    ("inference",),  # language models
    ("lang",),  # Patchwork
    ("testing",),  # the contract suite: nothing imports it
    ("doors",),  # hooks, MCP, the page, installing
    ("cli",),  # the command line
    ("__main__",),
)
LINE_OF = {name: line for line, names in enumerate(LAYERS) for name in names}

#: Packages that never import each other, though they stand in one package.
STRANGERS = (("stores.memory", "stores.sqlite", "stores.files", "stores.nats"),)

#: Imports against the direction, each with its reason.
EXCEPTIONS = {
    ("sessions.worker_main", "room"): "the main program of a worker's process opens the room that it works in",
}

#: Where each package that others wrote may appear. The standard library may appear everywhere.
THIRD_PARTY = {
    "apsw": ("stores.sqlite", "cli.bench.filling", "testing.simulation.vfs"),
    "cronsim": ("mail.cron",),
    "msgspec": ("core", "stores", "mail", "moving", "pools", "inference", "testing", "doors", "cli"),
    "mcp": ("doors.mcp.server",),
    "anyio": ("doors.mcp.server",),
    "rich": ("cli",),
    "starlette": ("doors.web.app",),
    "uvicorn": ("doors.http_server",),
    "h11": ("doors.http_server",),
    "ollama": ("inference.ollama_model",),
    "httpx": ("inference.ollama_model",),
    "hypothesis": ("testing",),
    "pytest": ("testing",),
    "nats": ("stores.nats.client",),
}


class Import(NamedTuple):
    """`importer` imports `imported`; both are dotted names, ours without `postroom.`."""

    importer: str
    imported: str
    line: int
    ours: bool


def module_name(path: Path) -> str:
    """The dotted name of a file inside the package; "" for the package itself."""
    parts = path.relative_to(SOURCE / "postroom").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, text: str) -> list[Import]:
    """Every import in a file, also those inside functions and those for the type checker alone."""
    importer = module_name(path)
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    found: list[Import] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = _names_imported_from(node, package)
        else:
            continue
        for name in names:
            ours = name == "postroom" or name.startswith("postroom.")
            found.append(
                Import(importer, name.removeprefix("postroom").removeprefix(".") if ours else name, node.lineno, ours)
            )
    return found


def _names_imported_from(node: ast.ImportFrom, package: str) -> list[str]:
    if node.level == 0:
        base = node.module or ""
        if base != "postroom" and not base.startswith("postroom."):
            return [base]
    else:
        around = package.split(".") if package else []
        kept = around[: len(around) - (node.level - 1)]
        base = ".".join(["postroom", *kept, *([node.module] if node.module else [])])
    # `from . import clock` names a module, `from .clock import iso` a thing inside one
    return [f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}") else base for alias in node.names]


def _is_module(dotted: str) -> bool:
    path = SOURCE.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def faults_of(step: Import) -> str | None:
    """What is wrong with an import, or None."""
    here = step.importer.partition(".")[0]
    if step.importer and here not in LINE_OF:
        return f"{step.importer} stands nowhere in the picture"
    if not step.ours:
        package = step.imported.partition(".")[0]
        allowed = THIRD_PARTY.get(package)
        if allowed is not None and not any(_is_in(step.importer, place) for place in allowed):
            return f"{step.importer or 'postroom'} imports {package}; only {', '.join(allowed)} may"
        return None
    if not step.importer:  # postroom/__init__.py loads everything, lazily; test_house.py holds it to that
        return None
    if (
        step.imported == ""
    ):  # the package's own lazy names: only doors and commands, which stand above everything, use them
        return None if here in ("doors", "cli", "__main__") else f"{step.importer} imports the package that holds it"
    return _fault_between(step.importer, step.imported)


def _fault_between(importer: str, imported: str) -> str | None:
    here, there = importer.partition(".")[0], imported.partition(".")[0]
    if there not in LINE_OF:
        return f"{importer} imports {imported}, which stands nowhere in the picture"
    if here == there:
        apart = [
            [name for name in strangers if _is_in(module, name)]
            for strangers in STRANGERS
            for module in (importer, imported)
        ]
        mine, theirs = apart
        return (
            f"{importer} imports {imported}: {mine[0]} and {theirs[0]} are strangers"
            if mine and theirs and mine != theirs
            else None
        )
    if LINE_OF[there] >= LINE_OF[here] and (importer, imported) not in EXCEPTIONS:
        return f"{importer} imports {imported}, which stands beside or below it"
    return None


def _is_in(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def all_files() -> list[Path]:
    return sorted((SOURCE / "postroom").rglob("*.py"))


@cache
def all_imports() -> list[Import]:
    return [step for path in all_files() for step in imports_of(path, path.read_text(encoding="utf-8"))]


def test_every_package_stands_in_the_picture() -> None:
    assert {module_name(path).partition(".")[0] for path in all_files()} - {""} == set(LINE_OF)


def test_the_picture_is_small_enough_to_be_seen_at_once() -> None:
    top = [path for path in (SOURCE / "postroom").iterdir() if path.name != "__pycache__"]

    assert len(LAYERS) <= 20
    assert len([path for path in top if path.is_file()]) <= 8
    assert len([path for path in top if (path / "__init__.py").is_file()]) == 13


def test_packages_import_in_one_direction() -> None:
    steps = all_imports()
    faults = [f"line {step.line}: {fault}" for step in steps if (fault := faults_of(step))]

    assert len(steps) > 1000
    assert faults == []


def test_every_exception_is_needed() -> None:
    assert {(step.importer, step.imported) for step in all_imports() if step.ours} >= set(EXCEPTIONS)


def test_no_modules_import_each_other_in_a_ring() -> None:
    graph: dict[str, set[str]] = {}
    for step in all_imports():
        if step.ours and step.importer and step.imported and step.imported != step.importer:
            graph.setdefault(step.importer, set()).add(step.imported)

    assert [name for name in graph if name in reachable(graph, name)] == []


def test_no_sub_packages_import_each_other_in_a_ring() -> None:
    """A package's own modules may stand on both sides: `lang.runtime` is what compiled programs call, and runs them."""
    packages = {module_name(path.parent / "__init__.py") for path in all_files()}
    graph: dict[str, set[str]] = {}
    for step in all_imports():
        here, there = _package_of(step.importer, packages), _package_of(step.imported, packages)
        if step.ours and here.count(".") == there.count(".") == 1 and here != there:
            graph.setdefault(here, set()).add(there)

    assert len(graph) > 5
    assert [name for name in graph if name in reachable(graph, name)] == []


def _package_of(module: str, packages: set[str]) -> str:
    return module if module in packages else module.rpartition(".")[0]


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph.get(name, ()))
    return found


def test_only_known_packages_are_imported() -> None:
    import sys

    others = {step.imported.partition(".")[0] for step in all_imports() if not step.ours}

    assert others - sys.stdlib_module_names <= set(THIRD_PARTY)


@pytest.mark.parametrize(
    ("file", "code", "fault"),
    [
        ("core/clock.py", "from postroom.stores.contract import Store", "which stands beside or below it"),
        (
            "core/message.py",
            "from ..mail import agent",
            "core.message imports mail.agent, which stands beside or below",
        ),
        ("room.py", "def f():\n    from postroom.aio import open", "room imports aio, which stands beside or below it"),
        ("board/board.py", "from postroom.sessions.record import Failure", "stands beside or below it"),
        ("sessions/session.py", "from postroom.room import open_room", "stands beside or below it"),
        ("doors/waker.py", "from postroom.testing import contract", None),
        ("mail/agent.py", "from postroom.testing import contract", "stands beside or below it"),
        ("stores/sqlite/store.py", "from postroom.stores.memory.store import MemoryStore", "are strangers"),
        ("stores/memory/store.py", "from postroom.stores import sqlite", "are strangers"),
        ("stores/memory/store.py", "import apsw", "stores.memory.store imports apsw; only stores.sqlite, "),
        ("room.py", "import rich.table", "room imports rich; only cli may"),
        ("room.py", "import postroom", "room imports the package that holds it"),
        ("telegraph.py", "import os", "telegraph stands nowhere in the picture"),
        ("room.py", "from . import telegraph", "room imports the package that holds it"),
    ],
)
def test_the_picture_catches(file: str, code: str, fault: str | None) -> None:
    found = [faults_of(step) for step in imports_of(SOURCE / "postroom" / file, code)]

    assert found == [None] if fault is None else any(fault in (text or "") for text in found), found


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("stores/contract.py", "from postroom.core.message import Message"),
        ("stores/sqlite/file.py", "import apsw"),
        ("stores/sqlite/store.py", "from postroom.stores.contract import Store\nfrom .file import SqliteFile"),
        ("stores/__init__.py", "from .memory.store import MemoryStore"),
        ("sessions/worker_main.py", "from postroom.room import open_room"),
        (
            "cli/commands/mail.py",
            "import postroom\nfrom postroom.errors import PostroomError\nfrom postroom.cli import output",
        ),
    ],
)
def test_the_picture_lets_pass(file: str, code: str) -> None:
    assert [faults_of(step) for step in imports_of(SOURCE / "postroom" / file, code) if faults_of(step)] == []
