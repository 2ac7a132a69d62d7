"""Finding the programs of peers that are servers, starting them on a loopback port, and ending them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from postroom.cli.bench.client import NotHere
from postroom.core.clock import SYSTEM

#: No server takes longer to start or to end than this, in seconds.
PATIENCE_S: Final = 15.0


def package_version(name: str) -> str:
    """The version of an installed package. Raises NotHere."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise NotHere(f"the package {name} is not installed") from None


def program(name: str, *, package: str = "", inside: str = "") -> str | None:
    """Where a program is: beside this Python, on the PATH, or inside a package that carries it."""
    beside = Path(sys.executable).with_name(name)
    if beside.is_file():
        return str(beside)
    found = shutil.which(name)
    if found is None and package and (spec := importlib.util.find_spec(package)) is not None and spec.origin:
        carried = Path(spec.origin).parent / inside / name
        found = str(carried) if carried.is_file() else None
    return found


def free_port() -> int:
    """A loopback port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(words: Sequence[str], port: int, **how: Any) -> Iterator[None]:
    """A server that answers on its port inside the block. Raises NotHere when it does not start."""
    process = subprocess.Popen(
        list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how
    )
    try:
        _await_port(process, port, Path(words[0]).name)
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    until_ns = SYSTEM.steady_ns() + round(PATIENCE_S * 1e9)
    while SYSTEM.steady_ns() < until_ns:
        if process.poll() is not None:
            raise NotHere(f"{name} ended with {process.returncode} while starting")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            SYSTEM.sleep(0.01)
        else:
            return
    raise NotHere(f"{name} did not answer on its port within {PATIENCE_S:g} s")
