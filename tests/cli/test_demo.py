"""Ctrl-C in `postroom demo`, the first command that a newcomer tries, on a real terminal."""

from __future__ import annotations

import os
import random
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroom.core.clock import SYSTEM
from postroom.core.system import LINUX

from .support import Terminal, command

#: What the demo shows, in order. After the third its agents start, after the fifth they work.
STEPS = (
    "1. A room",
    "2. A Patchwork program",
    "3. It ran",
    "4. Started agents",
    "6. ada put",
    "7. ",
    "8. ",
    "Every line",
    "until you press Enter",
)


def _interrupt(folder: Path, step: str, after_s: float = 0) -> None:
    """The demo ends with 130, without a word of Python's, and leaves neither a file nor an agent behind."""
    with closing(Terminal(command("demo"), TMPDIR=str(folder))) as terminal:
        terminal.until(step)
        SYSTEM.sleep(after_s)
        terminal.press(b"\x03")
        code = terminal.end()  # only when none of its agents has the terminal open any more

        assert code == 130
        for word in ("Traceback", "KeyboardInterrupt", "Exception ignored", "Fatal"):
            assert word not in terminal.shown, terminal.shown
        assert os.listdir(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("step", ["3. It ran", "6. ada put"])
def test_ctrl_c_ends_the_demo_and_its_agents_without_a_word(tmp_path: Path, step: str) -> None:
    _interrupt(tmp_path, step)


#: The demo, to which Ctrl-C comes in the middle of starting an agent, or of making its folder.
IN_THE_MIDDLE = """
import os, signal, subprocess, sys, tempfile
owner, name = {"agent": (subprocess.Popen, "_execute_child"), "folder": (tempfile, "mkdtemp")}[sys.argv.pop(1)]
step = getattr(owner, name)

def interrupted(*words, **options):
    done = step(*words, **options)
    if "demo.agents" in str(words) or "postroom-demo-" in str(words):
        os.kill(os.getpid(), signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a handler runs here at the latest
    return done

setattr(owner, name, interrupted)
from postroom.cli import program
program()
"""

#: An agent that notices late that the demo has ended has opened the room by then.
SLOW_TO_NOTICE = """
import os, sys, time
read = os.read
if "postroom.cli.demo.agents" in sys.orig_argv:
    os.read = lambda file, size: (time.sleep(1) if file == 0 else None) or read(file, size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["agent", "folder"])
def test_ctrl_c_in_the_middle_of_making_something_leaves_nothing_behind(tmp_path: Path, step: str) -> None:
    words = [sys.executable, "-c", IN_THE_MIDDLE, step, "demo"]
    site, temporary = tmp_path / "site", tmp_path / "temporary"
    site.mkdir()
    temporary.mkdir()
    (site / "sitecustomize.py").write_text(SLOW_TO_NOTICE)
    with closing(Terminal(words, TMPDIR=str(temporary), PYTHONPATH=str(site))) as terminal:
        assert terminal.end() == 130, terminal.shown
        assert "Traceback" not in terminal.shown
    left = os.listdir(temporary)
    if not LINUX:  # what a killed agent leaves of its bell goes with the next process that ends
        left = [name for name in left if not re.fullmatch(r"postroom-[0-9]+-[0-9]+", name)]
    assert left == []


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
def test_ctrl_c_ends_the_demo_without_a_word_at_any_moment(tmp_path: Path, step: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(12):
        _interrupt(tmp_path, step, chance.uniform(0, 0.4))
