"""`postroom web`: a process that serves, prints its address, and ends at once and cleanly."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from .support import PATIENCE_S, Cli, clean_environment, start


def test_without_a_room_it_says_where_it_looked(cli: Cli) -> None:
    result = cli("web", "--no-open", "--room", "sqlite:nowhere")

    assert result.code == 4
    assert "nowhere" in result.err


@pytest.mark.parametrize(
    "words", [["--port", "x"], ["--port", "-1"], ["--port", "70000"], ["--as", "", "--port", "a\x00"]]
)
def test_a_port_that_is_none_is_wrong_usage(cli: Cli, words: list[str]) -> None:
    assert cli("web", "--no-open", *words).code == 2


def test_a_port_that_is_taken_is_named(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        result = cli("web", "--no-open", "--port", str(port))

    assert result.code == 1
    assert str(port) in result.err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_serves_until_a_signal_also_while_somebody_follows(cli: Cli, tmp_path: Path, number: int, code: int) -> None:
    process = start("web", "--no-open", "--json", "--port", "0", cwd=tmp_path, env=clean_environment())
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    base, _, token = told["address"].partition("/?token=")
    stream = urllib.request.Request(f"{base}/api/live", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(stream, timeout=PATIENCE_S) as following:
        assert following.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == code
    assert errors == ""
    assert told["port"] == int(base.rpartition(":")[2])
    assert base.startswith("http://127.0.0.1:")
