"""The image and the composed servers: linted, in step with what our own commands write, and run where an engine is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.support import Cli
from tests.house.test_wheel import run, tool
from tests.support import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
SERVERS = re.findall(r"^  (nats-\d):\n    <<:", COMPOSE, re.M)


def mounted(server: str) -> set[str]:
    """The names of the files that a server is given."""
    part = COMPOSE.partition(f"\n  {server}:\n    <<:")[2].partition("\n\n")[0]
    return set(re.findall(r"- \./nats/(\S+?):/nats/\1:ro", part))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificates, is not here")
def test_each_server_is_given_the_files_that_its_configuration_names_and_no_other_key(cli: Cli, tmp_path: Path) -> None:
    cli.ok("nats", "config", "--hosts", ",".join(SERVERS), "--for", "team", "--dir", str(tmp_path / "nats"))
    written = {path.name for path in (tmp_path / "nats").iterdir()}

    assert len(SERVERS) == 3
    for number, server in enumerate(SERVERS, 1):
        text = (tmp_path / "nats" / f"n{number}.conf").read_text(encoding="utf-8")
        named = set(re.findall(r'_file: "(\S+)"', text))
        assert mounted(server) == named | {f"n{number}.conf"}
        assert mounted(server) <= written
        assert f'listen: "{server}:4222"' in text
        assert re.search(rf'store_dir: "n{number}\.data"', text)
        assert f"- {server}:/nats/n{number}.data\n" in COMPOSE
    assert set(re.findall(r"file: \./nats/([\w.]+)", COMPOSE)) <= written


def test_the_image_is_built_from_the_wheel_and_runs_without_rights() -> None:
    steps = re.findall(r"^([A-Z]+) (.*)", DOCKERFILE, re.M)

    assert ("COPY", "constraints.txt dist/*.whl /build/") in steps
    assert steps.index(("USER", "10001:10001")) > max(n for n, step in enumerate(steps) if step[0] == "RUN")
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert allowed == ["*", "!constraints.txt", "!dist/*.whl"]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_follows_the_specification() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = subprocess.run(
        [tool("check-jsonschema"), *schema, DEPLOY / "compose.yaml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout


def engine() -> str:
    """A container engine that runs; the test is skipped where there is none."""
    found = shutil.which("docker")
    asked: list[list[str]] = [[found, "info"], [found, "compose", "version"]] if found else []
    if not found or any(subprocess.run(words, capture_output=True, check=False).returncode for words in asked):
        pytest.skip("no container engine runs here: this needs docker with its compose plugin, and the right to use it")
    return found


@pytest.mark.long
def test_the_image_and_three_servers_run(tmp_path: Path) -> None:
    docker = engine()
    copy = tmp_path / "checkout"
    shutil.copytree(DEPLOY, copy / "deploy")
    shutil.copy(ROOT / "constraints.txt", copy)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", copy / "dist", cwd=ROOT)
    folder = copy / "deploy"
    run(sys.executable, "-m", "postroom", "nats", "config", "--hosts", ",".join(SERVERS), "--dir", "nats", cwd=folder)
    (folder / "nats" / "team.password").chmod(0o644)
    compose = (docker, "compose", "-p", f"postroom-test-{tmp_path.name}".lower())
    once = (*compose, "run", "--rm", "postroom")
    credentials = ("--user", "team", "--password-file", "/run/secrets/password", "--tls-ca", "/run/secrets/ca")
    try:
        run(*compose, "up", "-d", "--wait", cwd=folder)
        run(*once, "allow", f"nats://{':4222,'.join(SERVERS)}:4222/team", *credentials, cwd=folder)
        run(*once, "init", cwd=folder)
        run(*once, "send", "bob", "hello", "--as", "ada", "--new", cwd=folder)
        assert "hello" in run(*once, "receive", "--as", "bob", "--ack", cwd=folder)
    finally:
        run(*compose, "--profile", "tools", "down", "-v", "--rmi", "local", cwd=folder)
