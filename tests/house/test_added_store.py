"""Another distribution adds a store: it is installed, found by its scheme, and keeps the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import EXAMPLES

import postroom

DISTRIBUTION = EXAMPLES / "audited_store"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the distribution was installed, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("site")
    words = (
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    )
    subprocess.run([sys.executable, *words, "--target", str(folder), str(DISTRIBUTION)], check=True)
    return folder


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("tests", ["claim", pytest.param("", marks=pytest.mark.long)], ids=["some", "all"])
def test_an_installed_store_keeps_the_contract_of_every_store(site: Path, tests: str) -> None:
    words = ["-q", "-p", "no:cacheprovider", "-n", "0", "-k", tests]
    done = run(site, "-m", "pytest", *words, str(DISTRIBUTION / "tests"))
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_the_command_line_opens_an_installed_store_by_its_address(site: Path, tmp_path: Path) -> None:
    room = f"audited:{tmp_path}/room"
    sent = run(site, "-m", "postroom", "send", "bob", "hi", "--as", "ada", "--new", "--room", room)
    assert sent.returncode == 0, sent.stderr
    assert sent.stdout.strip() in (tmp_path / "room" / "audit.jsonl").read_text()


def test_a_scheme_that_nobody_adds_is_refused_with_the_schemes_there_are() -> None:
    with pytest.raises(postroom.RoomError, match=r"there is no store 'pigeon' .* memory:, sqlite:, files:, nats:"):
        postroom.open("pigeon:somewhere")


def test_a_store_that_cannot_be_loaded_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[postroom.stores]\nbroken = no_such_module:Store\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(
        postroom.RoomError, match=r"'broken' \(no_such_module:Store\) is installed but cannot be loaded"
    ):
        postroom.open("broken:somewhere")
    with pytest.raises(postroom.RoomError, match=r"nats:, broken:$"):
        postroom.open("pigeon:somewhere")
