"""The built wheel installs into an empty environment, by every installer, and its command works there."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from tests.support import ROOT

import postroom

pytestmark = pytest.mark.slow


def ended(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """How a program ended, without our own sources and settings in its environment."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "PYTHONPATH"))
    }
    words = tuple(map(str, words))
    return subprocess.run(words, cwd=cwd, env=environment | more, capture_output=True, text=True, check=False)


def run(*words: str | Path, cwd: Path, **more: str) -> str:
    """Run a program that must end well."""
    done = ended(*words, cwd=cwd, **more)
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
    for command, extra in (("mcp", "mcp"), ("web", "web")):
        done = ended(postroom, command, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert f"pip install 'postroom[{extra}]'" in done.stderr
    assert "W1: send one by one" in run(
        postroom, "bench", "--works", "W1", "--rounds", "1", "--scale", "0.001", cwd=tmp_path
    )


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds it: pip install 'postroom[test]'")
    build = (sys.executable, "-m", "hatchling", "build")
    run(*build, "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("postroom-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extraction_filter = staticmethod(lambda member, _: member)  # Python 3.11.2 has no argument for it
        opened.extractall(tmp_path)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    run(*build, "-t", "wheel", "-d", tmp_path, cwd=unpacked)
    (again,) = tmp_path.glob("postroom-*.whl")

    def contents(path: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(path) as opened:
            return {name: opened.read(name) for name in opened.namelist()}

    assert contents(again) == contents(wheel)
    assert all((unpacked / name).exists() for name in ("LICENSE", "Makefile", "tests", "docs", "deploy", "plugins"))


# With the programs of others. They take what they need from the package index that is configured.


def tool(name: str) -> str:
    """A program of the extra `dist`; the test is skipped where it is not."""
    found = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here: `make dist` brings it, or pip install 'postroom[dist]'")
    return found


class Home:
    """A home without anything, and what is run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "home"
        self.folder.mkdir()
        self.more = {"HOME": str(self.folder), "UV_PYTHON": sys.executable, "PIPX_DEFAULT_PYTHON": sys.executable}
        self.more |= {"PATH": f"{self.folder}/.local/bin:/usr/bin:/bin", "XDG_DATA_HOME": "", "XDG_CACHE_HOME": ""}

    def run(self, *words: str | Path) -> str:
        return run(*words, cwd=self.folder, **self.more)

    def ended(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return ended(*words, cwd=self.folder, **self.more)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def extras_work(python: Path, cwd: Path) -> None:
    """Whatever needs a package of an extra can be loaded."""
    modules = ("stores.nats.client", "doors.web.app", "doors.mcp.server", "inference.ollama_model", "mail.cron")
    run(python, "-c", "; ".join(f"import postroom.{name}" for name in modules), cwd=cwd)


@pytest.mark.long
def test_offline_everything_installs_from_a_folder_of_wheels(wheel: Path, tmp_path: Path) -> None:
    folder, place = tmp_path / "wheels", tmp_path / "environment"
    run(sys.executable, "-m", "pip", "download", "-q", "-d", folder, f"{wheel}[all]", cwd=tmp_path)
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"

    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "", "PIP_EXTRA_INDEX_URL": ""}
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--find-links", folder)
    run(*pip, "postroom[all]", cwd=tmp_path, **offline)

    assert run(place / "bin" / "postroom", "--version", cwd=tmp_path).startswith("postroom ")
    extras_work(python, tmp_path)


@pytest.mark.long
def test_pipx_installs_runs_and_uninstalls_it(wheel: Path, home: Home) -> None:
    pipx = tool("pipx")
    home.run(pipx, "install", f"postroom[all] @ {wheel.as_uri()}")
    assert home.run("postroom", "--version").startswith("postroom ")
    extras_work(home.folder / ".local/share/pipx/venvs/postroom/bin/python", home.folder)

    home.run(pipx, "uninstall", "postroom")
    assert not (home.folder / ".local/bin/postroom").exists()


@pytest.mark.long
def test_uv_installs_runs_and_uninstalls_it(wheel: Path, home: Home) -> None:
    uv = tool("uv")
    home.run(uv, "tool", "install", f"postroom[all] @ {wheel.as_uri()}")
    assert home.run("postroom", "--version").startswith("postroom ")
    extras_work(home.folder / ".local/share/uv/tools/postroom/bin/python", home.folder)

    home.run(uv, "tool", "uninstall", "postroom")
    assert not (home.folder / ".local/bin/postroom").exists()


@pytest.mark.long
def test_uvx_shows_the_demo_without_installing_anything(wheel: Path, home: Home) -> None:
    shown = home.run(tool("uvx"), "--from", wheel, "postroom", "demo")

    assert "killed" in shown
    assert not (home.folder / ".local/bin").exists()


@pytest.mark.long
@pytest.mark.parametrize("runner", [("uvx", "--from"), ("pipx", "run", "--spec")])
def test_an_entry_never_names_the_environment_of_a_single_run(wheel: Path, home: Home, runner: tuple[str, ...]) -> None:
    once: list[str | Path] = [tool(runner[0]), *runner[1:], wheel, "postroom", "install", "cursor"]
    settings = home.folder / ".cursor" / "mcp.json"

    refused = home.ended(*once)
    assert refused.returncode == 1
    assert "in a cache folder that is cleared without warning" in refused.stderr
    assert f"uv tool install 'postroom[all] @ {wheel.as_uri()}'" in refused.stderr
    assert not settings.exists()

    home.run(tool("uv"), "tool", "install", f"postroom[all] @ {wheel.as_uri()}")
    home.run(*once)
    command = json.loads(settings.read_text(encoding="utf-8"))["mcpServers"]["postroom"]["command"]
    shutil.rmtree(home.folder / ".cache")
    assert home.run(command, "--version").startswith("postroom ")


@pytest.mark.long
def test_make_dist_builds_checks_and_lists_what_is_in_it(tmp_path: Path) -> None:
    copy = tmp_path / "a checkout"
    ignored = shutil.ignore_patterns(".git", ".venv*", ".agents-under-test", "build", "dist", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)

    # an environment as make leaves it, that borrows the packages of ours: another whole one takes minutes to make
    place = copy / ".venv"
    venv.create(place, with_pip=False)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    for stamp in (".made-by-make", ".installed"):
        (place / stamp).touch()

    said = run("make", "dist", f"PYTHON={sys.executable}", "ENV=.venv", cwd=copy, MAKEFLAGS="")

    assert said.count("PASSED") == 2
    (bill,) = (copy / "dist").glob("postroom-*.cdx.json")
    listed = json.loads(bill.read_text(encoding="utf-8"))
    assert listed["bomFormat"] == "CycloneDX"
    assert (listed["metadata"]["component"]["name"], listed["metadata"]["component"]["version"]) == (
        "postroom",
        postroom.__version__,
    )
    assert {"apsw", "msgspec", "rich", "nats-py", "starlette", "mcp", "ollama"} <= {
        each["name"] for each in listed["components"]
    }
    assert [each["name"] for each in listed["components"] if not each.get("licenses")] == []
    assert str(tmp_path) not in bill.read_text(encoding="utf-8")


@pytest.mark.long
def test_the_commands_of_the_page_about_installing_work_in_their_order(wheel: Path, home: Home) -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    script = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S))
    # uv and pipx share a folder for commands: the one that comes first makes place for the other
    script = script.replace("pipx install", "uv tool uninstall postroom\npipx install", 1)
    script = script.replace("uv tool install --force", "pipx uninstall postroom\nuv tool install --force", 1)
    places = {os.path.dirname(tool(name)) for name in ("uv", "uvx", "pipx")}
    programs = home.folder / "programs"  # a Python, without the postroom that stands beside ours
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    (programs / "python3").chmod(0o755)
    home.more["PATH"] = ":".join([f"{home.folder}/.local/bin", str(programs), *places, "/usr/bin:/bin"])
    (home.folder / "dist").mkdir()
    shutil.copy(wheel, home.folder / "dist")
    (home.folder / "page.sh").write_text(script, encoding="utf-8")

    home.run("bash", "-eu", "page.sh")

    assert script.count("postroom") > 10
    assert not (home.folder / ".claude").exists()
    assert not (home.folder / ".local/bin/postroom").exists()
