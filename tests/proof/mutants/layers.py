"""The layers of the tests, in the order in which they are tried on a mutant, and running one of them within bounds."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.proof.mutants import Mutant
from tests.support import ROOT

from postroom.testing.simulation import STORES

SIMULATED_S: Final = 60.0
#: What a layer of tests may take on a busy machine. One that takes longer hangs.
_TESTS_S: Final = 400.0
#: A test that takes so long hangs, and pytest says so. The longest of them takes a tenth of that.
_TEST_S: Final = 90
#: What a run is given to end by itself.
_GRACE_S: Final = 15.0
#: Stands in the environment of everything that a run has started.
_MARK: Final = "POSTROOM_MUTANT"
_SOURCE: Final = ROOT / "src"


class Area(NamedTuple):
    """A part of the product: the store on which it is simulated, and its tests by layer ([] where there are none)."""

    store: str
    traces: list[str]
    contract: list[str]
    histories: list[str]
    units: list[str]


def _store(name: str, histories: list[str], *units: str) -> Area:
    return Area(
        name,
        ["tests/proof/test_specification.py", "-k", f"does_what_the_specification_says and {name}"],
        ["tests/stores/test_contract.py", "tests/stores/test_model.py", "-k", _CONTRACTS[name]],
        histories,
        list(units),
    )


def _above(package: str, *models: str) -> Area:
    return Area("memory", [], list(models), [], [f"tests/{package}"])


_CONTRACTS: Final = {
    "memory": "TestMemoryStore or both_stores",
    "sqlite": "TestSqliteStore or both_stores",
    "files": "TestFilesStore or store_of_files",
    "nats": "TestNatsStore or on_nats_does",
}
_REAL: Final = "tests/proof/test_real_histories.py"
_FAULTS: Final = "tests/faults/test_"
_MEMORY: Final = _store(
    "memory",
    ["tests/proof/test_histories.py", "-k", "recorded"],
    "tests/stores/test_memory.py",
    "tests/stores/test_cells.py",
    f"{_FAULTS}interrupts.py",
)
_SQLITE: Final = _store(
    "sqlite",
    [_REAL, "-k", "on_disk and sqlite"],
    *sorted(f"tests/stores/{path.name}" for path in (ROOT / "tests/stores").glob("test_sqlite*.py")),
    *(f"{_FAULTS}{name}.py" for name in ("crash_points", "fencing", "liveness", "interrupts")),
)
#: By the beginning of the file's name; the first that fits.
AREAS: Final = {
    "stores/sqlite/": _SQLITE,
    "stores/bells/": _SQLITE._replace(
        units=["tests/stores/test_bells.py", "tests/stores/test_bell_sockets.py", "tests/stores/test_switchboards.py"]
    ),
    "stores/files/": _store(
        "files", [_REAL, "-k", "on_disk and files"], "tests/stores/files", f"{_FAULTS}files_kills.py"
    ),
    "stores/nats/": _store(
        "nats", [_REAL, "-k", "on_nats"], "tests/stores/test_nats.py", "tests/stores/test_nats_answers.py"
    ),
    "stores/": _MEMORY,
    "mail/": _above("mail"),
    "board/": _above("board", "tests/board/test_model.py"),
    "sessions/": _above("sessions"),
    "pools/": _above("pools"),
}


def area_of(mutant: Mutant) -> Area:
    return next(area for start, area in AREAS.items() if mutant.file.startswith(start))


class Layer(NamedTuple):
    """A way to look for a fault: what Python is told to run for a mutant, [] where the layer does not come to its code."""

    name: str
    limit_s: float
    words: Callable[[Mutant], list[str]]
    #: What it prints when it has found something, if it goes on after that.
    finds: str = ""


def _simulation(mutant: Mutant) -> list[str]:
    store = area_of(mutant).store
    if store not in STORES:
        return []
    return ["-m", "postroom.testing.simulation", "--count", "1000000000", "--store", store]


def _tests(words: list[str]) -> list[str]:
    if not words:
        return []
    settings = ["-m", "not long", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={_TEST_S}"]
    return ["-m", "pytest", "-q", "-x", *settings, *words]


LAYERS: Final = (
    Layer("simulation", SIMULATED_S, _simulation, r"^seed \d+ fails: (.*)"),
    Layer("traces", _TESTS_S, lambda mutant: _tests(area_of(mutant).traces)),
    Layer("contract", _TESTS_S, lambda mutant: _tests(area_of(mutant).contract)),
    Layer("histories", _TESTS_S, lambda mutant: _tests(area_of(mutant).histories)),
    Layer("units", _TESTS_S, lambda mutant: _tests(area_of(mutant).units)),
)


class Look(NamedTuple):
    """What a layer came to: whether it found something or hung, after how long, and what it said."""

    layer: str
    found: bool
    hangs: bool
    seconds: float
    said: str


class LayerFailed(Exception):
    """A layer could not be run: what it says is about itself."""


@contextmanager
def spoilt(mutant: Mutant | None) -> Iterator[Path]:
    """A folder with a copy of the sources in `src`, that mutant among them, and with room for temporary files."""
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # tests act as other users, with the copy, in folders below
        (folder / "tmp").mkdir(mode=0o711)
        shutil.copytree(_SOURCE, folder / "src")
        if mutant is not None:
            file = folder / "src" / "postroom" / mutant.file
            text = file.read_text(encoding="utf-8")
            if text.count(mutant.right) != 1:
                raise LayerFailed(f"{mutant.file} has {text.count(mutant.right)} times what must stand there once")
            file.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
        yield folder


def look(layer: Layer, words: list[str], folder: Path) -> Look:
    """Run a layer on the copy in that folder, no longer than it may take; afterwards nothing of it runs any more."""
    mark = f"{os.getpid()}-{folder.name}"
    env = {
        **os.environ,
        "PYTHONPATH": str(folder / "src"),
        "TMPDIR": str(folder / "tmp"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        _MARK: mark,
    }
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, is_over, silent_s = _listen(process, began + layer.limit_s, layer.finds)
        seconds = time.monotonic() - began
        code = process.poll()
    finally:
        _end(process, mark)
    if layer.finds:
        match = re.search(layer.finds, said, re.MULTILINE)
        if match is None and is_over and code != 1:
            raise LayerFailed(f"{layer.name} ended with {code}:\n{said[-2000:]}")
        last = said.strip().rpartition("\n")[2] if is_over else ""
        found = match is not None or is_over
        return Look(layer.name, found, silent_s > layer.limit_s / 2, seconds, match[1] if match else last)
    if code not in (0, 1, None):
        raise LayerFailed(f"{layer.name} ended with {code}:\n{said[-2000:]}")
    return Look(layer.name, code == 1, code is None, seconds, _failed_test(said) if code == 1 else "")


def _failed_test(said: str) -> str:
    match = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", said, re.MULTILINE)
    if match is None and "Timeout (" in said:
        return "a test hangs"
    return match[1].rpartition("::")[2] if match is not None else said.strip().rpartition("\n")[2]


def _listen(process: subprocess.Popen[bytes], until: float, stop_at: str) -> tuple[str, bool, float]:
    """What a process prints until it ends, prints `stop_at`, or time is over; whether it ended; how long it was silent."""
    assert process.stdout is not None
    said, heard_at = b"", time.monotonic()
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            is_over = process.poll() is not None
            if selector.select(0 if is_over else min(0.2, max(0.0, until - time.monotonic()))):
                part = process.stdout.read() or b""
                said, heard_at = said + part, time.monotonic() if part else heard_at
            text = said.decode(errors="replace")
            found = stop_at and re.search(stop_at, text, re.MULTILINE)
            if is_over or found or time.monotonic() >= until:
                return text, is_over, time.monotonic() - heard_at


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a run and everything that it has started, first with the chance to clear up."""
    assert process.stdout is not None
    with suppress(ProcessLookupError):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    for pid in _marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> Iterator[int]:
    """Of the processes of this user, those with the mark: some begin a session of their own. Linux alone tells."""
    wanted = f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
