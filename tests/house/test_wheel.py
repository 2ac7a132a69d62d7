"""The built wheel installs into an empty environment, and its command works there."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from tests.support import ROOT

pytestmark = pytest.mark.slow


def run(*words: str | Path, cwd: Path) -> str:
    """Run a program that must end well, without our own sources and settings in its environment."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "PYTHONPATH"))
    }
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, also when several processes run the tests: the first of them builds it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "a wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            # with our own builder where it is installed (as `make` does), else with one that pip fetches
            isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
            run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *isolation, "-w", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("postroom-*.whl")
    return wheel


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {
        "postroom/py.typed",
        "postroom/stores/sqlite/schema.sql",
        "postroom/stores/files/readme.md",
        "postroom/cli/__init__.py",
        "postroom/docs/guide.md",
    } <= set(names)
    pages = {f"postroom/docs/{page.relative_to(ROOT / 'docs').as_posix()}" for page in (ROOT / "docs").rglob("*.md")}
    assert {name for name in names if name.startswith("postroom/docs/")} == pages
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"postroom"}
    assert not [name for name in names if name.endswith((".pyc", ".db"))]


def test_the_wheel_installs_into_an_empty_environment_and_its_command_runs(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "an environment"
    venv.create(place, with_pip=False)  # ours installs into it: another pip would take as long as all the rest
    python, postroom = place / "bin" / "python", place / "bin" / "postroom"

    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)

    assert run(postroom, "--version", cwd=tmp_path).startswith("postroom ")
    assert run(postroom, "help", "guide", cwd=tmp_path) == (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    run(postroom, "init", cwd=tmp_path)
    id = run(postroom, "send", "bob", "hello from a wheel", "--as", "ada", "--new", cwd=tmp_path).strip()
    taken = run(postroom, "receive", "--as", "bob", "--ack", cwd=tmp_path)
    assert id in taken
    assert "hello from a wheel" in taken
    assert f"{id} is acked" in run(postroom, "receipt", id, cwd=tmp_path)
    assert "W1: send one by one" in run(
        postroom, "bench", "--works", "W1", "--rounds", "1", "--scale", "0.001", cwd=tmp_path
    )
