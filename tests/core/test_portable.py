"""POSTROOM_PORTABLE=1: nothing is called that only Linux has, and what stands in its place keeps the promises."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support import ROOT

from postroom.core.system.files import is_local
from postroom.core.system.watch import ANYTHING, LookingWatch

#: Not the proxy of a deferred module, which cannot be patched.
ps = importlib.import_module("postroom.core.system.ps")

SOURCE = ROOT / "src" / "postroom"
#: Names of what only Linux has, as code has them.
LINUX_NAMES = re.compile(
    r'"/proc/|"/proc"|inotify|pidfd|prctl|epoll\(|eventfd|memfd|F_OFD|sched_getaffinity|fallocate|fdatasync'
    r"|CLOCK_BOOTTIME|O_TMPFILE|renameat2|SO_PEERCRED|SOCK_CLOEXEC|MSG_CMSG_CLOEXEC|/sys/kernel|copy_file_range|xattr"
)
#: Outside of core/system: each chooses by its `LINUX`.
BESIDE_THEIR_TWINS = ["core/clock.py", "stores/bells/sockets.py"]
LINUX_CALLS = (
    "inotify_init1,inotify_add_watch,pidfd_open,pidfd_send_signal,eventfd2,memfd_create,renameat2,"
    "signalfd4,timerfd_create,sched_getaffinity,copy_file_range,splice,prctl,fcntl,open,openat,readlink,readlinkat,"
    "bind,connect,sendto,recvmsg,statfs"
)
#: What shows that one of these calls asks for something that only Linux has. The C library looks at memory and processors
#: by itself; and `selectors`, of the standard library, chooses epoll here and kqueue elsewhere.
LINUX_ONLY = re.compile(
    r"^\d+ +(?:inotify|pidfd|eventfd|memfd|renameat2|signalfd|timerfd|sched_getaffinity|copy_file|splice|statfs)"
    r'|F_OFD_|PR_SET_PDEATHSIG|MSG_CMSG_CLOEXEC|sun_path=@|"/proc/(?!meminfo|cpuinfo|stat"|self/maps)'
)
#: The programs of the system that are asked read what their system has.
ASKED = ("ps", "mount", "fuser")

STORM = """
import sys, threading, postroom

def storm(room):
    ada, bob = room.agent("ada"), room.agent("bob")
    for n in range(10):
        ada.send("bob", {"n": n})
        message = bob.receive(timeout_s=20)
        assert message.payload["n"] == n
        message.ack()
    answering = threading.Thread(target=lambda: bob.receive(timeout_s=20).reply({"yes": 1}))
    answering.start()
    assert ada.ask("bob", {"is": "it"}, timeout_s=20).payload == {"yes": 1}
    answering.join()
    room.board.add("T1", title="a task", lead="ada")
    assert room.board.claim(agent="bob").done()
    assert room.agents() and room.stats()

for address in sys.argv[1:]:
    with postroom.open(address) as room:
        storm(room)
with postroom.WorkerPool(evaluator="postroom.inference:mock") as pool:
    pool.initialize_worker("ada", think_ms=1, seed=1)
    message = {"id": "m1", "content": "Who knows why the build is red?", "sender_id": "carl"}
    assert pool.evaluate_message(message, timeout_s=20)["ada"].state == "ok"
print("done")
"""


def run(program: str, *words: str, before: tuple[str, ...] = (), more: dict[str, str] | None = None) -> str:
    """What a program prints that may use nothing that only Linux has."""
    return subprocess.run(
        [*before, sys.executable, "-c", program, *words],
        env={**os.environ, "POSTROOM_PORTABLE": "1", **(more or {})}, capture_output=True, text=True, check=True, timeout=120,
    ).stdout.strip()  # fmt: skip


def test_what_only_linux_has_is_named_where_its_twin_is() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if LINUX_NAMES.search(path.read_text(encoding="utf-8"))]
    names = sorted(str(path.relative_to(SOURCE)) for path in paths)
    assert [name for name in names if not name.startswith("core/system/")] == BESIDE_THEIR_TWINS


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows what a program calls")
@pytest.mark.slow
def test_no_call_that_only_linux_has_is_made(tmp_path: Path) -> None:
    shown = tmp_path / "calls"
    trace = ("strace", "-f", "-qq", "-s", "200", "-e", f"trace={LINUX_CALLS},execve", "-o", str(shown))
    assert run(STORM, f"sqlite:{tmp_path}/room", f"files:{tmp_path}/files", "memory:", before=trace) == "done"

    calls = shown.read_text(encoding="utf-8", errors="replace").splitlines()
    asked = {line.split()[0] for line in calls if re.search(rf'execve\(".*/(?:{"|".join(ASKED)})"', line)}
    assert asked and len(calls) > 100, "there is something to see"
    assert [line for line in calls if LINUX_ONLY.search(line) and line.split()[0] not in asked] == []


def test_a_room_is_used_without_a_look_at_proc(tmp_path: Path) -> None:
    watched = (
        "import sys; seen = []\n"
        "sys.addaudithook(lambda event, args: seen.append(str(args[0])) if event == 'open' else None)\n" + STORM
        + "print([name for name in seen if name.startswith(('/proc', '/sys'))])"
    )  # fmt: skip
    assert run(watched, f"sqlite:{tmp_path}/room", f"files:{tmp_path}/files") == "done\n[]"


def test_a_process_has_one_name_whatever_the_time_zone_and_the_language() -> None:
    program = "import sys; from postroom.core.system.process import process_name; print(process_name(int(sys.argv[1])))"
    settings = [{"TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8"}, {"TZ": "America/New_York"}, {}]
    names = {run(program, str(os.getpid()), more=setting) for setting in settings}
    assert len(names) == 1 and "None" not in names


def test_a_process_that_ended_is_seen_to_have_ended_before_it_is_reaped() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ps.started(child.pid) is None
    child.wait()
    assert ps.started(os.getpid()) is not None


def test_a_process_is_not_taken_for_dead_when_ps_cannot_be_started() -> None:
    program = (
        "import os, resource\nfrom postroom.core.system.process import process_alive, process_name\n"
        "name = process_name(os.getppid())\nassert name and process_alive(name) is True\n"
        "most = max(map(int, os.listdir('/dev/fd')))\nresource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "print(process_alive(name))"
    )
    assert run(program) == "None"


def test_a_ps_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ps, "_PATIENCE_S", 0.01)
    with pytest.raises(TimeoutError):
        ps._answer("sleep", "600")
    assert ps._ask("sleep", "600") == ""


def test_the_systems_own_ps_is_asked_not_one_that_a_project_puts_before_it(tmp_path: Path) -> None:
    (tmp_path / "ps").write_text("#!/bin/sh\ntouch $0.was-run\n")
    (tmp_path / "ps").chmod(0o755)
    program = (
        "import os, sys; os.chdir(sys.argv[1]); from postroom.core.system.process import this_process; this_process()"
    )
    run(program, str(tmp_path), more={"PATH": f"{tmp_path}:.:{os.environ['PATH']}"})
    assert not (tmp_path / "ps.was-run").exists()


def test_a_program_that_only_the_current_folder_has_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "answers").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([".", "", os.environ["PATH"]]))
    assert ps._ask("answers") == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ps._ask("answers") == "hello\n"


def test_kinds_of_file_systems_are_read_from_what_mount_says_on_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    says = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//me@server/share on /Volumes/my share (smbfs, nodev, nosuid, mounted by me)
/dev/ada0p2 on /usr (ufs, local, journaled soft-updates)
/dev/vda1 on /srv/a b type ext4 (rw,relatime)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
"""
    monkeypatch.setattr(ps, "_ask", lambda *_: says)
    ps.mounts.cache_clear()
    kinds = dict(ps.mounts(-1))
    ps.mounts.cache_clear()
    assert kinds == {
        "/": "apfs", "/Volumes/my share": "smbfs", "/usr": "ufs", "/srv/a b": "ext4", "/System/Volumes/Data/home": "autofs",
    }  # fmt: skip


def test_a_room_on_a_local_disk_is_judged_by_locks(tmp_path: Path) -> None:
    program = "import postroom, sys; print(postroom.open(sys.argv[1]).stats().store['liveness'])"
    assert run(program, f"sqlite:{tmp_path}/room") == "locks"
    assert not is_local(tmp_path, "nfs4")


def test_a_path_that_is_too_long_for_sockets_is_shortened_by_a_link_that_goes_with_the_room(tmp_path: Path) -> None:
    deep = tmp_path / "/".join(["a-folder-with-a-long-name"] * 6)
    program = (
        "import os, postroom, sys, tempfile\n"
        "with postroom.open(sys.argv[1]) as room:\n"
        "    print(room.stats().store['wake_up'], len(os.listdir(tempfile.gettempdir())))\n"
        "print(os.listdir(tempfile.gettempdir()))"
    )
    with TemporaryDirectory(prefix="t-") as short:  # the folder of a test may have a long path, too
        said = run(program, f"sqlite:{deep}", more={"TMPDIR": short})
    assert said.splitlines() == ["datagrams through the room's folder 1", "[]"]


def test_bells_are_heard_after_a_cleaner_of_temporary_files_removed_the_link(tmp_path: Path) -> None:
    deep, short = tmp_path / "/".join(["a-folder-with-a-long-name"] * 6), tmp_path / "t"
    deep.mkdir(parents=True)
    (deep / "bells").touch()
    short.mkdir()
    program = (
        "import pathlib, shutil, sys, tempfile\nfrom postroom.stores.bells.sockets import BellSockets\n"
        "listener, ringer = (BellSockets(pathlib.Path(sys.argv[1], 'bells')) for _ in range(2))\n"
        "bells = [listener.take(1)]\nheard = [ringer.ring(1)]\n"
        "shutil.rmtree(tempfile.gettempdir())\npathlib.Path(tempfile.gettempdir()).mkdir()\n"
        "bells.append(listener.take(2))\nheard += [ringer.ring(1), ringer.ring(2)]\n"
        "print(heard, [len(bell.recv(100)) for bell in (bells[0], *bells)])"
    )
    assert run(program, str(deep), more={"TMPDIR": os.path.relpath(short)}) == "[True, True, True] [1, 1, 1]"


HANGS = "import ctypes; ctypes.PyDLL(None).sleep(600)"  # with the interpreter's lock: no thread of it runs


@pytest.mark.slow
def test_a_child_that_hangs_in_c_ends_with_its_fork_server_and_its_caller(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(f"def hang(control):\n    print('hangs', flush=True)\n    {HANGS}\n")
    program = (
        "import os, sys\nfrom postroom.core.system import children\n"
        "server = children.shared_server()\nchild = server.start('hanging:hang')\n"
        "children.SYSTEM.wait_readable([child.output], 60)\n"
        "print(server._process.pid, child.pid, flush=True)\nsys.stdin.read()"
    )
    environment = {**os.environ, "POSTROOM_PORTABLE": "1", "PYTHONPATH": str(tmp_path)}
    caller = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None and caller.stdin is not None
    with caller:
        server, child = map(int, caller.stdout.readline().split())
        caller.kill()
        os.kill(server, signal.SIGKILL)
        until_s = time.monotonic() + 60
        while ps.started(child) is not None:
            assert time.monotonic() < until_s, "the child hangs on"


def test_a_folder_is_seen_to_change_twice_in_one_tick_of_the_clock(tmp_path: Path) -> None:
    watch = LookingWatch()
    watch.add(tmp_path, "here")
    assert watch.read() == []
    now_ns = time.time_ns() + 10**9  # the clocks of file systems need not be this machine's
    for name in "ab":
        (tmp_path / name).touch()
        os.utime(tmp_path, ns=(now_ns, now_ns))  # as if the clock stood still
        assert watch.read() == [("here", ANYTHING, False)]
        assert watch.read() == []


def test_a_watch_that_looks_forgets_a_folder_that_is_gone(tmp_path: Path) -> None:
    watch = LookingWatch()
    (tmp_path / "x").mkdir()
    watch.add(tmp_path / "x", "x")
    (tmp_path / "x").rmdir()
    assert watch.read() == [] and "x" not in watch
