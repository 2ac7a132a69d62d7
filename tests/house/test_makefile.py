"""The Makefile makes an environment for each Python, and clears none that it did not make.

It runs in a stand-in checkout, with stand-ins for Python that write down what they were asked to do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support import ROOT

pytestmark = pytest.mark.slow

PYTHON = """#!/bin/sh
# A Python {version} as far as make needs one.
echo "python{version} $*" >>"$LOG"
case "$1 $2" in
    "-c import sys; print"*) echo {version} ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""


class Checkout:
    """A folder with the Makefile and nothing that it could install."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a checkout"
        self.programs = folder / "programs"
        self.log = folder / "log"
        for made in (self.folder, self.programs):
            made.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            (self.folder / name).write_bytes((ROOT / name).read_bytes())
        self.add_python("3", "3.11")
        self.add_python("3.13", "3.13")
        (self.programs / "python3.12").write_text("#!/bin/sh\necho 'command not found' >&2; exit 127\n")
        (self.programs / "python3.12").chmod(0o755)

    def add_python(self, name: str, version: str) -> None:
        path = self.programs / f"python{name}"
        path.write_text(PYTHON.format(version=version))
        path.chmod(0o755)

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS", "ENV")}
        environment |= {"PATH": f"{self.programs}:{environment['PATH']}", "LOG": str(self.log)}
        return subprocess.run(
            ["make", *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def asked(self) -> str:
        return self.log.read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_default_python_has_its_environment_in_venv_and_makes_it_once(checkout: Checkout) -> None:
    first = checkout.make("lint")
    assert first.returncode == 0, first.stderr
    assert (checkout.folder / ".venv/.installed").exists()
    assert "python3.11 -m venv .venv\n" in checkout.asked()
    assert "python3.11 -m ruff check ." in checkout.asked()

    assert checkout.make("lint").returncode == 0
    assert "-m venv" not in checkout.asked()
    assert "pip install" not in checkout.asked()


def test_another_python_has_an_environment_of_its_own_and_uses_it(checkout: Checkout) -> None:
    assert checkout.make("lint").returncode == 0
    assert checkout.make("lint", "PYTHON=python3.13").returncode == 0

    assert "python3.13 -m venv .venv-3.13\n" in checkout.asked()
    assert "python3.13 -m ruff check ." in checkout.asked()
    assert "python3.11" not in checkout.asked()
    assert (checkout.folder / ".venv/.installed").exists()


def test_every_target_stays_within_the_environment_of_its_python(checkout: Checkout) -> None:
    targets = ("demo", "docs", "bench", "check", "test", "test-long", "soak", "prove", "model", "dist")
    said = checkout.make("-n", "PYTHON=python3.13", *targets)
    assert said.returncode == 0, said.stderr
    assert ".venv-3.13/bin/python -m pytest" in said.stdout
    assert not re.findall(r"\.venv/", said.stdout)


@pytest.mark.parametrize("fails", ["ruff", "mypy", "pytest"])
def test_the_quick_look_fails_with_each_of_its_parts(checkout: Checkout, fails: str) -> None:
    assert checkout.make("check").returncode == 0
    assert all(f"-m {part} " in f"{checkout.asked()} ".replace("\n", " ") for part in ("ruff", "mypy", "pytest"))

    python = checkout.folder / ".venv" / "bin" / "python"
    python.write_text(f'{python.read_text()}[ "$2" != {fails} ]\n')
    assert checkout.make("check").returncode != 0


def test_in_a_new_environment_the_tests_are_compiled_before_several_processes_run_them(checkout: Checkout) -> None:
    assert checkout.make("test").returncode == 0
    collected, ran = (line for line in checkout.asked().splitlines() if "-m pytest" in line)
    assert "--collect-only" in collected
    assert "--dist worksteal" in ran

    assert checkout.make("test").returncode == 0
    assert "--collect-only" not in checkout.asked()


def test_a_python_that_does_not_run_is_named(checkout: Checkout) -> None:
    said = checkout.make("lint", "PYTHON=python3.12")
    assert said.returncode != 0
    assert "PYTHON=python3.12 does not run" in said.stderr
    assert not list(checkout.folder.glob(".venv*"))


def test_an_environment_that_make_did_not_make_is_neither_cleared_nor_removed(checkout: Checkout) -> None:
    mine = checkout.folder / ".venv" / "lib" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")

    said = checkout.make("lint")
    assert said.returncode != 0
    assert ".venv is here, and make did not make it" in said.stdout

    assert checkout.make("clean").returncode == 0
    assert mine.read_text() == "years of work"

    assert checkout.make("lint", "ENV=.venv-make").returncode == 0
    assert (checkout.folder / ".venv-make/.installed").exists()


def test_an_environment_of_make_is_cleared_when_what_it_is_made_from_changes(checkout: Checkout) -> None:
    assert checkout.make("lint").returncode == 0
    left = checkout.folder / ".venv" / "left-behind"
    left.touch()
    os.utime(checkout.folder / ".venv/.installed", (0, 0))

    assert checkout.make("lint").returncode == 0
    assert "-m venv .venv" in checkout.asked()
    assert not left.exists()


def test_a_half_made_environment_is_made_again(checkout: Checkout) -> None:
    assert checkout.make("lint").returncode == 0
    (checkout.folder / ".venv/.installed").unlink()

    assert checkout.make("lint").returncode == 0
    assert "-m venv .venv" in checkout.asked()
    assert (checkout.folder / ".venv/.installed").exists()


def test_clean_removes_every_environment_that_make_made(checkout: Checkout) -> None:
    assert checkout.make("lint").returncode == 0
    assert checkout.make("lint", "PYTHON=python3.13").returncode == 0
    assert checkout.make("clean").returncode == 0
    assert not list(checkout.folder.glob(".venv*"))


SAYS = """#!/bin/sh
echo "$1 ${POSTROOM_PORTABLE:-0} ${POSTROOM_SHARE:-all} $POSTROOM_LONG_SHARE"
"""


def ci_on(day: int, programs: Path) -> list[list[str]]:
    """What CI asks make for on a day: what, whether portable, and the shares of tests and of long tests."""
    for name, text in {
        "make": SAYS,
        "date": f"#!/bin/sh\necho {day * 86400}\n",
        "chromium": "",
        "python3.13": "exit 1",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    left_out = ("POSTROOM_PORTABLE", "PYENV_ROOT", "HOME")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "HOME": str(programs)}
    ran = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=True)
    return [line.split() for line in ran.stdout.splitlines() if line.startswith("test")]


def test_ci_runs_the_whole_suite_in_portable_mode_each_week_and_the_long_tests_in_eight(tmp_path: Path) -> None:
    days = [ci_on(day, tmp_path) for day in range(20000, 20056)]
    for ran in days:
        assert [what for what, *_ in ran] == ["test", "test-portable", "test-long"]
        assert ran[0][1:3] == ["0", "all"], "the suite as it is runs every day"
    for week in range(8):
        shares = {ran[1][2] for ran in days[7 * week : 7 * week + 7]}
        assert shares == {f"{k}/7" for k in range(7)}
    long_ones = {(portable, share) for *_, (_, portable, _, share) in days}
    assert long_ones == {(portable, f"{k}/28") for portable in "01" for k in range(28)}


def test_the_shares_of_the_suite_are_all_of_it_and_no_test_is_in_two(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_bytes((ROOT / "conftest.py").read_bytes())
    (tmp_path / "test_some.py").write_text(
        "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\ndef test_d(): pass\n"
    )
    seen: list[str] = []
    for k in range(3):
        words = ["-q", "--collect-only", "--share", f"{k}/3", "-p", "no:cacheprovider", "-p", "no:xdist"]
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        seen += re.findall(r"::test_(.)", ran.stdout)
    assert seen == ["a", "d", "b", "c"]


def test_the_classifiers_name_the_pythons_that_ci_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        one.rpartition(" ")[2]
        for one in project["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", one)
    }
    least = project["requires-python"].removeprefix(">= ")
    newer = re.search(r"^NEWER=(.+)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.M)
    assert newer is not None
    assert named == {least, newer[1]}
