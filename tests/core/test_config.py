"""Types that are converted to: msgspec knows all of them before several threads use them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import ROOT

SOURCE = ROOT / "src" / "postroom"

#: New types, which four threads use for the first time at once, while the garbage collector runs all the time.
AT_ONCE = """
import gc, msgspec, sys, threading, types
from postroom.core.config import prepare_types

gc.set_threshold(5)
for number in range(4000):
    module = sys.modules[f"made{number}"] = types.ModuleType(f"made{number}")
    exec('''from __future__ import annotations
import msgspec
class Part(msgspec.Struct, frozen=True):
    granted: bool
    reason: str | None = None
class Whole(msgspec.Struct, frozen=True):
    trigger: str
    parts: dict[str, Part] = {}
    names: tuple[str, ...] = ()
''', module.__dict__)
    if sys.argv[1] == "prepared":
        prepare_types(module.Whole)
    start = threading.Barrier(4)

    def convert():
        start.wait()
        msgspec.convert({"trigger": "x", "parts": {"a": {"granted": True}}}, module.Whole)

    threads = [threading.Thread(target=convert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("fine")
"""


@pytest.mark.slow
def test_several_threads_may_convert_to_a_prepared_type_for_the_first_time_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, "prepared"], capture_output=True, text=True, check=False, timeout=240
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]


#: One thread, which asks once.
ALONE = ("cli/bench/worker.py",)


def test_every_module_that_converts_to_types_prepares_them() -> None:
    converts = re.compile(r"msgspec\.convert\(|json\.decode\([^)]*type=")
    unprepared = [
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        if converts.search(text := path.read_text(encoding="utf-8")) and "prepare_types(" not in text
    ]
    assert [name for name in unprepared if name not in ALONE] == []
    assert all((SOURCE / name).exists() for name in map(Path, ALONE))
