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
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
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
    assert (told["url"], told["token"]) == (base, token)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--token-file", "POSTROOM_WEB_TOKEN_FILE"])
def test_with_a_token_file_the_address_is_the_same_after_a_restart(cli: Cli, tmp_path: Path, how: str) -> None:
    file = tmp_path / "web.token"
    words = ["--token-file", str(file)] if how.startswith("--") else []
    env = clean_environment() | ({} if words else {how: str(file)})
    tokens = []
    for _ in range(2):
        process = start("web", "--no-open", "--json", "--port", "0", *words, cwd=tmp_path, env=env)
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        tokens.append(told["token"])
        scrape = urllib.request.Request(
            f"{told['url']}/metrics", headers={"Authorization": f"Bearer {file.read_text().strip()}"}
        )
        with urllib.request.urlopen(scrape, timeout=PATIENCE_S) as answer:
            assert b"postroom_messages" in answer.read()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)

    assert tokens[0] == tokens[1]
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if "token" in path.name] == ["web.token"]


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("x" * 43, 0o644, "mode 0644): chmod 600"),
        ("x" * 43, 0o640, "mode 0640): chmod 600"),
        ("x" * 31, 0o600, "32 to 256 letters, digits or any of . _ ~ -; it has 31 characters"),
        ("x" * 300, 0o600, "32 to 256"),
        ("a b" * 20, 0o600, "32 to 256"),
        ("", 0o600, "it has 0 characters"),
    ],
)
def test_a_token_file_that_is_not_private_or_too_short_is_refused(
    cli: Cli, tmp_path: Path, text: str, mode: int, says: str
) -> None:
    file = tmp_path / "web.token"
    file.write_text(text)
    file.chmod(mode)

    result = cli("web", "--no-open", "--token-file", str(file))

    assert result.code == 1
    assert says in result.err
    assert file.read_text() == text


def test_a_token_file_that_cannot_be_made_or_is_none_is_named(cli: Cli, tmp_path: Path) -> None:
    nowhere = cli("web", "--no-open", "--token-file", str(tmp_path / "no" / "web.token"))
    folder = cli("web", "--no-open", "--token-file", str(tmp_path))

    assert (nowhere.code, folder.code) == (1, 1)
    assert "No such file or directory" in nowhere.err
    assert "Is a directory" in folder.err
