"""How fast a command starts: agents' hooks call one at every step they take, and most of its time is imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.systems import needs_linux

import postroom

from .support import Cli, clean_environment, command, listing_modules

#: Everything of ours that a program loads which opens a room that is there, sends and receives. Workers are started for
#: few messages, and a line more is half a millisecond more of each.
OF_A_LIBRARY = """
    core core.backoff core.chore core.clock core.config core.crashpoints core.events core.message core.moments core.states
    core.system core.system.process core.system.files core.system.startup errors
    board board.clerk sessions room stores stores.bells stores.bells.bells stores.bells.sockets stores.contract stores.liveness
    stores.cells stores.sqlite stores.bells.page stores.bells.spinning
    stores.sqlite.connection stores.sqlite.contention stores.sqlite.figures stores.sqlite.file stores.sqlite.reading
    stores.sqlite.rows stores.sqlite.store stores.sqlite.wal stores.sqlite.claiming stores.sqlite.layout
    stores.sqlite.transactions stores.sqlite.housekeeping stores.sqlite.limiting stores.sqlite.putting stores.sqlite.settling
    mail mail.agent mail.gateway mail.housekeeping mail.leases mail.moved mail.presence mail.received mail.redacting
    mail.ticker mail.view mail.waiting
""".split()
#: Everything of ours that `postroom send` loads. A line more is a millisecond more of every hook: is it worth that?
OURS = [*OF_A_LIBRARY, *"""
    core.trust core.untrusted
    cli cli.call cli.commands cli.commands.mail cli.exit_codes cli.options cli.output cli.table
""".split()]  # fmt: skip
THIRD_PARTY = {"apsw", "msgspec"}
#: Parts of the standard library that cost a millisecond or more, and that sending needs nothing of.
TOO_DEAR = """
    asyncio bz2 concurrent difflib email hmac http json logging lzma multiprocessing secrets shutil signal subprocess
    tempfile
""".split()

#: What `postroom send` may take, in times of a bare interpreter; 5 to 6 as measured.
MAX_TIMES_BARE = 7


def loaded_by(*words: str) -> set[str]:
    """The modules that a command loads, beyond those of a bare interpreter."""
    program = listing_modules(*words)
    bare, full = (
        subprocess.run(
            [sys.executable, "-c", text], env=clean_environment(), capture_output=True, text=True, check=True
        )
        for text in ("import sys; print(*sys.modules)", program)
    )
    return set(full.stdout.splitlines()[-1].split()) - set(bare.stdout.split())


@needs_linux("a start without `ps` and `mount`")
def test_sending_loads_what_it_needs_and_no_more(cli: Cli) -> None:
    loaded = loaded_by("send", "bob", "hi", "--as", "ada", "--new")

    ours = {name.removeprefix("postroom.") for name in loaded if name.startswith("postroom.")}
    tops = {name.partition(".")[0] for name in loaded}
    assert sorted(ours) == sorted(OURS)
    assert tops - sys.stdlib_module_names - THIRD_PARTY == {"postroom"}
    assert sorted(tops & set(TOO_DEAR)) == []


@needs_linux("a start without `ps` and `mount`")
def test_a_program_that_opens_a_room_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path}/room"
    postroom.open(address).close()
    program = (
        "import sys, postroom; room = postroom.open(sys.argv[1]); ada = room.agent('ada'); ada.send('ada', {})\n"
        "ada.receive(timeout_s=30).ack(); room.close(); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, address],
        env=clean_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())

    assert sorted(name.removeprefix("postroom.") for name in loaded if name.startswith("postroom.")) == sorted(
        OF_A_LIBRARY
    )
    assert sorted(loaded & {"encodings.ascii", "shlex", *TOO_DEAR}) == []


def cpu_ms_of(words: list[str], folder: Path) -> float:
    """The processor time that a program takes: what a busy machine does to its wall time is not its fault."""
    environment = clean_environment()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return (usage.ru_utime + usage.ru_stime) * 1000


@needs_linux("a start without `ps` and `mount`")
@pytest.mark.slow
def test_sending_takes_little_more_than_its_imports(cli: Cli, tmp_path: Path) -> None:
    """Against a bare interpreter in the same run: how fast a machine is, is not Postroom's doing."""
    send, bare = command("send", "bob", "hi", "--as", "ada", "--new"), [sys.executable, "-c", "pass"]

    mine_ms, bare_ms = [cpu_ms_of(send, tmp_path)], [cpu_ms_of(bare, tmp_path) for _ in range(5)]
    while min(mine_ms) >= MAX_TIMES_BARE * min(bare_ms):
        assert len(mine_ms) < 20, (mine_ms, bare_ms)
        mine_ms.append(cpu_ms_of(send, tmp_path))
        bare_ms.append(cpu_ms_of(bare, tmp_path))


@pytest.mark.parametrize(
    ("before", "code", "written"),
    [
        ("", 3, "said, at the end"),
        ("import threading; t = threading.Thread(target=lambda: print(', by a thread')); ", 3, "said"),
    ],
)
def test_leaving_at_once_leaves_nothing_out(before: str, code: int, written: str) -> None:
    program = (
        f"import atexit, sys; {before}from postroom.core.system.startup import leave; sys.stdout.write('said')\n"
        "atexit.register(lambda: sys.stdout.write(', at the end'))\nif 't' in globals(): t.start()\nleave(3)"
    )
    environment = clean_environment()
    environment.pop("PYTHONUNBUFFERED", None)  # with which there would be nothing left to write
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert done.stdout.startswith(written)
    assert done.stdout.endswith(", at the end")
    assert ("by a thread" in done.stdout) == bool(before)
    assert done.stderr == ""


def test_who_cannot_be_written_to_is_told_as_ever(cli: Cli) -> None:
    """The process does not leave before what it wrote has arrived: a full disk is not a success."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("--help"), env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode != 0
    assert "No space left" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_were_closed_does_its_work_and_writes_nowhere(closed: str, tmp_path: Path) -> None:
    """The numbers of what was closed are given out again: without care a room's file would be standard output."""
    url = f"sqlite:{tmp_path}/room"
    postroom.open(url).close()
    words = command("--room", url, "--as", "ada", "send", "bob", "hi", "--new")
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *words], env=clean_environment(), check=False)

    assert done.returncode == 0
    with postroom.open(url) as room:
        assert [message.payload for message in room.peek(agent="bob")] == [{"text": "hi"}]


def test_modules_that_wait_are_loaded_when_something_of_them_is_used() -> None:
    program = (
        "import sys; from postroom.core.system import startup; startup.load_lazily(['ipaddress', 'platform']); import urllib.parse, uuid\n"
        "print(*('ip_address' in vars(sys.modules[name]) or 'machine' in vars(sys.modules[name]) for name in ('ipaddress', 'platform')))\n"
        "print(urllib.parse.urlsplit('http://[::1]:80/').hostname, uuid.UUID(int=1).version)\n"
        "import ipaddress, platform; print(ipaddress.ip_address('::1'), platform.system(), platform.machine() != '')\n"
        "from platform import node; print(node() != '')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split("\n") == ["False False", "::1 None", f"::1 {os.uname().sysname} True", "True", ""]


def said_by(program: str) -> list[str]:
    """The lines that a Python program prints which has `startup`."""
    program = f"import sys; from postroom.core.system import startup\n{program}"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_a_deferred_module_is_loaded_once_by_threads_that_use_it_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; print('loaded'); time.sleep(0.1)\ndef f(): return last\nlast = 1\n")
    program = (
        f"import threading; sys.path.insert(0, {str(tmp_path)!r}); startup.load_lazily(['slow']); import slow\n"
        "threads = [threading.Thread(target=lambda: print(slow.f())) for _ in range(8)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]"
    )

    assert said_by(program) == ["loaded", *["1"] * 8]


def test_others_get_the_real_module_and_the_proxy_passes_on_to_it() -> None:
    program = (
        "startup.load_lazily(['difflib', 'json']); import difflib, json; print(type(difflib).__name__)\n"
        "from difflib import SequenceMatcher; print(type(sys.modules['difflib']).__name__)\n"
        "print(difflib.SequenceMatcher is SequenceMatcher, hasattr(difflib, 'nothing'))\n"
        "import json.tool; print(type(json).__name__, json.tool.__name__)\n"
        "sys.modules['difflib'].new = 1; print(difflib.new); difflib.new = 2; print(sys.modules['difflib'].new)"
    )

    assert said_by(program) == ["LazyModule", "module", "True False", "module json.tool", "1", "2"]


def test_a_deferred_module_that_cannot_be_loaded_says_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_at_all\n")
    program = (
        f"sys.path.insert(0, {str(tmp_path)!r}); startup.load_lazily(['broken']); import broken\n"
        "for _ in range(2):\n    try: broken.x\n    except ImportError as error: print(error.name)"
    )

    assert said_by(program) == ["nowhere_at_all"] * 2


def test_a_package_defers_its_own_modules_for_those_who_import_them_from_it() -> None:
    program = (
        "from postroom.mail import tokens; print('postroom.mail.tokens' in sys.modules)\n"
        "print(tokens.Credential.__module__, 'postroom.mail.tokens' in sys.modules)\n"
        "from postroom.mail import tokens as again; import postroom.mail.tokens; print(again is postroom.mail.tokens)\n"
        "print(hasattr(postroom.mail, 'nothing'))\n"
        "import pickle; print(pickle.loads(pickle.dumps(tokens.Credential)) is again.Credential)"
    )

    assert said_by(program) == ["False", "postroom.mail.tokens True", "True", "False", "True"]


def test_times_are_as_ever_where_datetime_is_the_one_in_c() -> None:
    program = (
        "startup.load_lazily([]); import datetime, pickle, msgspec; now = datetime.datetime.now(datetime.UTC)\n"
        "print(pickle.loads(pickle.dumps(now)) == now == msgspec.json.decode(msgspec.json.encode(now), type=type(now)))\n"
        "print(datetime.datetime.strptime('2026', '%Y').year, type(now).__module__)"
    )

    assert said_by(program) == ["True", "2026 datetime"]
