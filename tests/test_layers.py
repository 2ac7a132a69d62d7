"""The layer table: a module imports only from lines above its own, and from what stands before it on its own line.

To add a module, add its name here first. A package's name stands for everything inside it.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src"

TABLES = ("stores.tables", "stores.steps", "stores.tabled")
MEMORY = ("stores.memory_room", "stores.memory")
SQLITE = (
    *(
        "stores.sqlite_rows",
        "stores.sqlite_import",
        "stores.sqlite_log",
        "stores.sqlite_patience",
        "stores.sqlite_connection",
        "stores.sqlite_file",
        "stores.sqlite_whole",
    ),
    *("stores.sqlite_reading", "stores.sqlite"),
)
SESSION = (
    *("session_record", "members", "deadlock", "mailbox", "folder_watch"),
    *("worker_calls", "worker_output", "crews", "progress", "delegation", "session", "session_report"),
)
BOARD = (
    *("tasks", "actions", "board_index", "board_book", "held_task", "board_keeper", "board_mail", "board"),
    *("globs", "reservations"),
)
FILES = tuple(
    f"stores.files{part}"
    for part in ("_names", "_tree", "_log", "_message", "_room", "_board", "_intake", "_waiter", "_readme", "")
)
WEB = (
    *("web.guard", "web.lines", "web.hour", "web.follower", "web.reading", "web.views", "web.by_hand", "web.metrics"),
    *("web.hub", "web.streams", "web.app", "web.server", "web"),
)
HOOK = ("lean_start", "codex_terminals", "hook", "hook_gate")
HTTP = ("http_guard", "http_server")
MCP = ("mcp_frames", "mcp_tools", "mcp_words", "mcp_desk", "mcp_guard", "mcp_server")
NATS = (
    *(
        "stores.nats_access",
        "stores.nats_link",
        "stores.nats_wire",
        "stores.nats_entries",
        "stores.nats_tables",
        "stores.nats_following",
    ),
    *("stores.nats_lives", "stores.nats_unsure", "stores.nats_reserve", "stores.nats_room"),
    *("stores.nats_cells", "stores.nats_putting", "stores.nats_claims", "stores.nats_reading", "stores.nats_keeping"),
    "stores.nats",
)
ROOM = (
    *("desk", "inbox", "received", "ahead", "receipts", "artifacts", "presence", "identity"),
    *("hosts", "doorway", *BOARD),
    *("asking", "serving", "upkeep", "agent", "causes", *SESSION, "room", "patterns", "worker_process"),
)
POOL = (
    *("frames", "supervisor", "pool_loop", "pool_line", "pool_request", "pool_figures", "pool_process"),
    *("pool_life", "pool_worker", "pool_serving", "pool_report", "pool"),
)

COORDINATOR = ("coordinate", "decisions", "coordinator")

#: The table of the design. Stores stand on one line, yet never import each other (see STORES).
LAYERS = (
    ("facts", ("errors", "states", "clock", "message", "config", "tracking", "trust", "platform")),
    (
        "contracts",
        ("store", "events", "crashpoints", "retry", "limits", "rate_limit", "fence", "fork_server", "processes"),
    ),
    ("stores", ("liveness", "bell_sockets", "bells", *TABLES, *MEMORY, *FILES, *SQLITE, *NATS, "stores")),
    (
        "objects",
        (*ROOM, "communications", "aio_waiting", "worker_thread", "aio_calls", "aio_serving", "aio_board", "aio"),
    ),
    ("running", ("evaluation", *POOL, "inference", *COORDINATOR)),
    ("language", ("lang",)),
    ("doors", (*HOOK, *HTTP, *MCP, "ringer", "install", "testing", "bench", *WEB, "cli", "__main__")),
)

#: The modules of each store. They never import another store's, whatever their order.
STORES = (MEMORY, FILES, SQLITE, NATS)
STORE_OF = {module: store[-1] for store in STORES for module in store}

#: Where each package that others wrote may appear. The standard library may appear everywhere.
THIRD_PARTY = {
    "apsw": ("stores.sqlite_connection", "stores.sqlite_file", "bench.peers.bare_apsw"),
    "msgspec": (
        *("message", "config", "trust", "store", "stores", "evaluation", "frames", "inference"),
        *(*COORDINATOR, "testing", "bench", "web", "cli"),
        *("hook", "mcp_frames", "mcp_tools", "mcp_words", "mcp_desk", "mcp_server"),
    ),
    "mcp": ("mcp_server",),
    "anyio": ("mcp_server",),
    "rich": ("cli",),
    "starlette": ("web.app",),
    "uvicorn": ("http_server",),
    "h11": ("http_server",),
    "ollama": ("inference.ollama_model",),
    "httpx": ("inference.ollama_model",),
    "hypothesis": ("testing",),
    "pytest": ("testing",),
    "redis": ("bench.peers.redis_streams",),
    "litequeue": ("bench.peers.lite_queue",),
    "persistqueue": ("bench.peers.persist_queue",),
    "huey": ("bench.peers.huey_storage",),
    "nats": ("stores.nats_wire", "bench.peers.jetstream"),
    "psycopg": ("bench.peers.postgres",),
}

RANK = {name: (line, place) for line, (_, names) in enumerate(LAYERS) for place, name in enumerate(names)}


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


def entry_of(module: str) -> str | None:
    """The table's entry that a module belongs to: the longest one that is it, or is a package around it."""
    fits = [name for name in RANK if module == name or module.startswith(name + ".")]
    return max(fits, key=len) if fits else None


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
    here = entry_of(step.importer)
    if here is None and step.importer:
        return f"{step.importer} stands nowhere in the layer table"
    if not step.ours:
        package = step.imported.partition(".")[0]
        allowed = THIRD_PARTY.get(package)
        if allowed is not None and not any(step.importer == a or step.importer.startswith(a + ".") for a in allowed):
            return f"{step.importer or 'postroom'} imports {package}; only {', '.join(allowed)} may"
        return None
    if here is None:  # postroom/__init__.py loads everything, lazily; tests/test_house.py holds it to that
        return None
    if step.imported == "":
        # the package's own lazy names: only doors, which stand above everything, use them
        return None if LAYERS[RANK[here][0]][0] == "doors" else f"{step.importer} imports the package that holds it"
    there = entry_of(step.imported)
    if there is None:
        return f"{step.importer} imports {step.imported}, which stands nowhere in the layer table"
    if here in STORE_OF and there in STORE_OF and STORE_OF[here] != STORE_OF[there]:
        return f"{step.importer} imports {step.imported}: stores never import each other"
    if RANK[there] > RANK[here]:
        return f"{step.importer} imports {step.imported}, which stands after it"
    return None


def all_files() -> list[Path]:
    return sorted((SOURCE / "postroom").rglob("*.py"))


def test_every_module_stands_in_the_table() -> None:
    missing = [name for name in map(module_name, all_files()) if name and entry_of(name) is None]

    assert missing == []


def test_every_line_of_the_table_is_a_module() -> None:
    missing = [name for name in RANK if not _is_module(f"postroom.{name}")]

    assert missing == []


def test_no_module_imports_a_later_layer() -> None:
    steps = [step for path in all_files() for step in imports_of(path, path.read_text(encoding="utf-8"))]
    faults = [f"line {step.line}: {fault}" for step in steps if (fault := faults_of(step))]

    assert len(steps) > 20
    assert faults == []


def test_no_modules_import_each_other_in_a_ring() -> None:
    """The table keeps rings out between entries; this keeps them out inside a package too."""
    graph: dict[str, set[str]] = {}
    for path in all_files():
        for step in imports_of(path, path.read_text(encoding="utf-8")):
            if step.ours and step.importer and step.imported and step.imported != step.importer:
                graph.setdefault(step.importer, set()).add(step.imported)

    rings = [name for name in graph if name in _reachable(graph, name)]

    assert rings == []


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
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

    steps = [step for path in all_files() for step in imports_of(path, path.read_text(encoding="utf-8"))]
    others = {step.imported.partition(".")[0] for step in steps if not step.ours}

    assert others - sys.stdlib_module_names <= set(THIRD_PARTY)


@pytest.mark.parametrize(
    ("file", "code", "fault"),
    [
        ("clock.py", "from .store import Store", "clock imports store, which stands after it"),
        ("message.py", "from . import config", "message imports config, which stands after it"),
        (
            "room.py",
            "def f():\n    from postroom.aio import open",
            "room imports aio, which stands after it",
        ),
        ("stores/sqlite.py", "from .memory import MemoryStore", "stores never import each other"),
        ("stores/memory.py", "from postroom.stores import sqlite", "stores never import each other"),
        (
            "stores/memory.py",
            "import apsw",
            "stores.memory imports apsw; only stores.sqlite_connection, stores.sqlite_file, bench.peers.bare_apsw may",
        ),
        ("room.py", "import rich.table", "room imports rich; only cli may"),
        ("room.py", "import postroom", "room imports the package that holds it"),
        ("telegraph.py", "import os", "telegraph stands nowhere in the layer table"),
    ],
)
def test_the_table_catches(file: str, code: str, fault: str) -> None:
    found = [faults_of(step) for step in imports_of(SOURCE / "postroom" / file, code)]

    assert any(fault in (text or "") for text in found), found


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("store.py", "from .message import Message"),
        ("stores/sqlite_file.py", "import apsw"),
        ("stores/sqlite.py", "from ..store import Store\nfrom .. import bells\nfrom .sqlite_file import SqliteFile"),
        ("stores/__init__.py", "from .memory import MemoryStore"),
        ("cli/mail.py", "import postroom\nfrom postroom.errors import PostroomError\nfrom . import show"),
    ],
)
def test_the_table_lets_pass(file: str, code: str) -> None:
    assert [faults_of(step) for step in imports_of(SOURCE / "postroom" / file, code) if faults_of(step)] == []
