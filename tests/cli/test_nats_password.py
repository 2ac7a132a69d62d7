"""A password in the address of a room on NATS is shown nowhere: not by a command, not on the page, not in a list of processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doors.web.browser import serving
from tests.doors.web.conftest import Client
from tests.support.nats_servers import room_name, running_server

import postroom
from postroom.cli import exit_codes
from postroom.cli.table import COMMANDS

from .support import PATIENCE_S, Cli, start

CANARY = "canary-9f3c"
USERS = f'accounts {{ A: {{ users: [ {{ user: "ada", password: "{CANARY}" }} ], jetstream: enabled }} }}'
#: Commands that open no room, and those that start others, which have tests of their own below.
WITHOUT_ROOM = {"check", "fmt", "build", "install", "uninstall", "completion", "nats", "pool", "bench", "hook", "help"}
ELSEWHERE = {"web", "mcp", "demo", "as", "run"}
#: With an answer or without: what matters is what they write.
WORDS = {
    "send": ["bob", "hi", "--new", "--wait", "acked", "--timeout", "0.1"],
    "receive": ["--wait", "0.1"],
    "ack": ["{id}"],
    "withdraw": ["{id}"],
    "retry": ["{id}"],
    "reply": ["{id}", "yes"],
    "refuse": ["{id}", "no"],
    "extend": ["{id}"],
    "ask": ["bob", "why?", "--timeout", "0.1"],
    "listen": ["--limit", "1"],
    "publish": ["news", "hi"],
    "subscribe": ["news"],
    "unsubscribe": ["news"],
    "group": ["list"],
    "board": ["list"],
    "reserve": ["src/*"],
    "schedule": ["add", "beat", "--every", "60"],
    "unreserve": ["src/*"],
    "status": [],
    "top": ["--once"],
    "agents": [],
    "mailboxes": [],
    "peek": ["--agent", "bob"],
    "search": ["hi"],
    "redact": ["add", "all"],
    "limit": ["news", "--concurrent", "5"],
    "pause": ["news"],
    "resume": ["news"],
    "retention": ["set", "news", "--count", "5"],
    "log": [],
    "show": ["{id}"],
    "thread": ["{id}"],
    "questions": [],
    "receipt": ["{id}"],
    "dead": [],
    "sql": ["select 1"],
    "session": ["list"],
    "init": [],
    "allow": ["--remove", "{url}"],
    "doctor": [],
    "requeue": ["{id}"],
    "purge": ["--all"],
    "attach": ["{id}"],
    "artifact": ["get", "sha256:" + "0" * 64],
    "replay": ["--since", "1h", "--to", "bob"],
    "export": ["-"],
    "backup": ["{id}.backup"],
    "import": ["{id}.backup", "--merge"],
    "restore": ["{id}.backup", "{url}"],
    "move": ["{url}", "{url}"],
    "agent": ["list"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_server(USERS) as running:
        yield running.address


@pytest.fixture
def url(server: str) -> str:
    return f"nats://ada:{CANARY}@{server}/{room_name()}?server_timeout_s=5"


def test_every_command_is_looked_at() -> None:
    assert {*WORDS, *WITHOUT_ROOM, *ELSEWHERE} == {*COMMANDS}


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_no_command_shows_the_password(
    cli: Cli, url: str, more: tuple[str, ...], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    with postroom.open(url) as room:
        id, *_ = [room.agent("bob").send("ada", {"text": "hi"}) for _ in range(5)]

    for command, words in WORDS.items():
        given = [word.replace("{id}", id).replace("{url}", url) for word in words]
        result = cli(command, *given, "--room", url, "--as", "ada", *more)
        assert result.code != exit_codes.USAGE, (command, result)
        assert CANARY not in result.out + result.err, (command, result)
    monkeypatch.setenv("POSTROOM_URL", url)
    for command in ("status", "doctor", "receive"):
        result = cli(command, *WORDS[command], "--as", "ada", *more)
        assert CANARY not in result.out + result.err, (command, result)
    assert CANARY not in caplog.text


def test_a_layout_keeps_no_password_in_the_project(cli: Cli, url: str, tmp_path: Path) -> None:
    result = cli.ok("init", str(tmp_path / "project"), "--layout", "windsurf", "--room", url)

    assert CANARY not in result.out + result.err
    files = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
    assert any(path.name == "room" for path in files)
    assert not [path for path in files if CANARY in path.read_text(errors="replace")]


def test_the_room_and_its_page_do_not_show_the_password(url: str) -> None:
    with postroom.open(url) as room:
        assert CANARY not in repr(room)
        assert CANARY not in f"{room.url}{room.url!r}"
        room.agent("ada").send("bob", {})
        with serving(room) as site:
            for path in (
                "/metrics",
                "/api/about",
                "/api/recent",
                "/api/deeds",
                "/api/views/agents",
                "/api/views/graph",
            ):
                assert CANARY.encode() not in Client(site)(path).body, path
            assert url.partition("@")[2] in Client(site).get("/api/about")["room"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_the_command_that_serves_the_page_does_not_show_the_password(url: str, more: tuple[str, ...]) -> None:
    postroom.open(url).close()
    process = start("web", "--no-open", "--room", url, *more)
    impatience = threading.Timer(PATIENCE_S, process.kill)  # an address that stays in a buffer is never read
    impatience.start()
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
    finally:
        impatience.cancel()
        process.terminate()
        out, err = process.communicate()

    assert url.partition("@")[2] in first + out
    assert CANARY not in first + out + err


WITH_WORKERS = """
import os, subprocess, sys
import postroom

@postroom.worker
def look(session):
    return subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout

if __name__ == "__main__":
    with postroom.open(os.environ["ADDRESS"]) as room, room.session() as session:
        print(session.delegate([look()])[0])
"""


@pytest.mark.slow
def test_no_process_that_is_started_has_the_password_among_its_words(url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITH_WORKERS)

    done = subprocess.run(
        [sys.executable, str(program)], env={**os.environ, "ADDRESS": url}, capture_output=True, text=True, check=False
    )

    assert "program.py" in done.stdout, done
    assert CANARY not in done.stdout
