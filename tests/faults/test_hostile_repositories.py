"""A cloned repository, however it is made, takes nothing, changes nothing elsewhere and speaks to no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.programs.hostile import KINDS, WAYS, Recorder, Repository, Victim, faults

from postroom.cli.table import COMMANDS

REPOSITORIES = 204
PART = 17  # all kinds once
#: What is run of each command; a new one needs a line here.
EVERY_COMMAND: dict[str, list[str]] = {
    "top": ["--once"],
    "web": ["--no-open", "--port", "0"],
    "doctor": [],
    "init": [],
    "allow": ["--list"],
    "status": [],
    "agents": [],
    "mailboxes": [],
    "send": ["bob", "hi", "--as", "ada", "--new"],
    "receive": ["--as", "claude"],
    "ack": ["x", "--as", "claude"],
    "withdraw": ["x", "--as", "claude"],
    "retry": ["x", "--as", "claude"],
    "reply": ["x", "y", "--as", "claude"],
    "refuse": ["x", "y", "--as", "claude"],
    "extend": ["x", "--as", "claude"],
    "ask": ["bob", "hi", "--as", "ada", "--new", "--timeout", "1"],
    "listen": ["--as", "claude"],
    "publish": ["news", "hi", "--as", "ada"],
    "subscribe": ["news", "--as", "ada"],
    "unsubscribe": ["news", "--as", "ada"],
    "group": ["list"],
    "questions": [],
    "peek": [],
    "thread": ["x"],
    "receipt": ["x"],
    "dead": [],
    "requeue": ["--all"],
    "replay": ["--since", "1h"],
    "export": ["-"],
    "import": ["room.jsonl"],
    "backup": ["room.backup"],
    "restore": ["room.backup", "sqlite:restored"],
    "move": [".postroom", "sqlite:moved"],
    "purge": ["--all"],
    "search": ["hi", "--agent", "claude"],
    "redact": ["list"],
    "retention": ["list"],
    "limit": [],
    "pause": ["jobs"],
    "resume": ["jobs"],
    "show": ["@last"],
    "log": [],
    "attach": ["README.md"],
    "artifact": ["get", "sha256:" + "0" * 64],
    "sql": ["SELECT * FROM messages"],
    "session": ["list"],
    "pool": ["check", "skeleton"],
    "as": ["claude", "--", "true"],
    "agent": ["list"],
    "install": ["claude-code", "--scope", "project", "--dry-run"],
    "uninstall": ["claude-code", "--scope", "project", "--dry-run"],
    "mcp": ["--as", "claude"],
    "hook": ["auto"],
    "board": ["list"],
    "reserve": [],
    "schedule": ["add", "beat", "--every", "60"],
    "unreserve": ["--all", "--as", "ada"],
    "run": ["nowhere.pw"],
    "build": ["nowhere.pw", "-o", "made"],
    "check": ["nowhere.pw"],
    "fmt": ["nowhere.pw"],
    "demo": ["--help"],
    "bench": ["--help"],
    "nats": ["config", "--dir", "made-nats", "--no-tls"],
    "completion": ["bash"],
    "help": ["guide"],
}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    recorder = Recorder()
    yield Victim(tmp_path, recorder)
    recorder.close()


def try_all(victim: Victim, numbers: range, ways: tuple[Callable[..., str], ...]) -> list[str]:
    wrong = []
    for number in numbers:
        repo = Repository(number, victim.base / f"clone-{number}", victim)
        before = victim.snapshot()
        for way in ways:
            said = way(victim, repo)
            wrong += [
                f"{number} {repo.kind} {way.__name__}: {fault}" for fault in faults(victim, repo, way, before, said)
            ]
    return wrong


@pytest.mark.slow
def test_no_way_to_find_a_room_gives_a_hostile_repository_anything(victim: Victim) -> None:
    """Each kind of repository by one of the ways; all of them by all ways in the long run."""
    wrong = []
    for number in range(1020, 1020 + len(KINDS)):
        wrong += try_all(victim, range(number, number + 1), (WAYS[number % len(WAYS)],))
    assert wrong == []


@pytest.mark.long
@pytest.mark.parametrize("part", range(REPOSITORIES // PART))
def test_two_hundred_hostile_repositories_get_nothing(victim: Victim, part: int) -> None:
    assert try_all(victim, range(part * PART, (part + 1) * PART), WAYS) == []


def test_every_command_is_tried_on_hostile_repositories() -> None:
    assert sorted(EVERY_COMMAND) == sorted(COMMANDS)


@pytest.mark.long
@pytest.mark.parametrize("number", range(500, 520))
def test_no_command_gives_a_hostile_repository_anything(victim: Victim, number: int) -> None:
    repo = Repository(number, victim.base / "clone", victim)
    before = victim.snapshot()
    wrong = []
    for name, words in EVERY_COMMAND.items():
        said = victim.run(repo, name, *words, timeout_s=5 if repo.environment else 60)
        wrong += [f"{repo.kind} {name}: {fault}" for fault in faults(victim, repo, _command, before, said)]
    assert wrong == []


def _command() -> str:  # a way that no model reads
    return ""
