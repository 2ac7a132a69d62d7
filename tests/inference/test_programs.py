"""Agent programs are asked as plain models: nobody's words are an argument, nothing outlives the deadline or us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from postroom import ModelError, ModelMissing, ModelTimeout
from postroom.core.clock import SystemClock
from postroom.core.system.process import process_started
from postroom.inference import Model, child_program, open_model
from postroom.inference.agent_cli import INSIDE_VARIABLE

pytestmark = pytest.mark.slow  # each is a program of its own

PROGRAM = Path(__file__).with_name("agent_program.py")
NAUGHTY = "'; touch canary; echo \" $(touch canary) `touch canary`\n--model evil\n-p\x07 \ud800 é"


@pytest.fixture(params=["claude", "codex"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of an agent program that is installed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    script = tmp_path / request.param
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAM}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv(f"POSTROOM_{request.param.upper()}", str(script))
    return str(request.param)


def told_by(model: Model, **asked: Any) -> dict[str, Any]:
    """How the program was called."""
    said = model.complete(NAUGHTY, timeout_s=30, **asked)
    assert (said.prompt_tokens, said.tokens) == (11, 3)
    assert 0 < said.first_byte_ms <= said.total_ms
    told: dict[str, Any] = json.loads(said.text)
    return told


def test_words_reach_the_program_on_its_standard_input_and_nowhere_else(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLAUDECODE", "1")
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "s1")
    monkeypatch.setenv("CODEX_THREAD_ID", "t1")

    told = told_by(open_model(f"{host}:opus"), system="You are Ada.", schema={"type": "object"})

    assert NAUGHTY.encode("utf-8", "backslashreplace").decode() in told["given"]
    assert not any("canary" in word for word in told["words"])
    assert told["words"][told["words"].index("--model") + 1] == "opus"
    assert told["environment"][INSIDE_VARIABLE] == "1"
    assert not {"CLAUDECODE", "CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID"} & set(told["environment"])
    assert told["folder"] != str(tmp_path)
    assert not os.path.exists(told["folder"])  # an empty folder, made for it and gone with it
    assert not (tmp_path / "canary").exists()


def test_a_process_that_the_system_refuses_is_said_to_be(host: str, no_more_processes: Path) -> None:
    no_more_processes.touch()

    with pytest.raises(ModelError, match=r"could not be started: the system refused a process \(Resource temp"):
        open_model(host).complete("x" * 1_000_000, timeout_s=30)


def test_the_programs_get_no_tools_and_no_hooks() -> None:
    from postroom.inference.agent_cli import ClaudeModel, CodexModel
    from postroom.inference.model import ModelRequest

    claude, given = ClaudeModel("opus")._command(
        Path("/x"), ModelRequest("hi", "You are Ada.", {"type": "object"}, 9, 9)
    )
    codex, prompt = CodexModel()._command(Path("/x"), ModelRequest("hi", "You are Ada.", None, 9, 9))

    assert claude[1:7] == ["-p", "--output-format", "json", "--tools", "", "--strict-mcp-config"]
    assert claude[claude.index("--settings") + 1] == '{"disableAllHooks": true}'
    assert claude[claude.index("--system-prompt") + 1] == "You are Ada."
    assert given == "hi"
    assert codex[codex.index("--sandbox") + 1] == "read-only"
    assert codex[codex.index("--disable") + 1] == "hooks"
    assert codex[-1] == "-"
    assert prompt == "You are Ada.\n\nhi"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fail", "ended with exit code 3: the key is not valid"),
        ("garbage", "this is not JSON"),
        ("flood", "wrote more than"),
    ],
)
def test_a_program_that_fails_says_why(host: str, how: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (host, how) == ("codex", "garbage"):
        words = "ended with exit code 0"
    monkeypatch.setenv("AGENT_PROGRAM", how)

    with pytest.raises(ModelError, match=words):
        open_model(host).complete("hello", timeout_s=300)


def test_what_claude_says_of_itself_is_told(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if host == "codex":
        monkeypatch.setenv("AGENT_PROGRAM", "silent")
        with pytest.raises(ModelError, match="ended with exit code 0"):
            open_model(host).complete("hello", timeout_s=300)
        return
    monkeypatch.setenv("AGENT_PROGRAM", "error")
    with pytest.raises(ModelError, match="Not logged in"):
        open_model(host).complete("hello", timeout_s=300)
    monkeypatch.setenv("AGENT_PROGRAM", "structured")
    assert open_model(host).complete("hello", schema={}, timeout_s=300).text == '{"confidence": 0.5}'


def test_a_program_that_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_CLAUDE", "/nowhere/claude")

    with pytest.raises(
        ModelMissing, match="'/nowhere/claude' cannot be run here .No such file.*install it, or name another"
    ):
        open_model("claude").complete("hello", timeout_s=30)


def test_a_models_name_is_no_option() -> None:
    with pytest.raises(ModelError, match="cannot begin with a dash"):
        open_model("claude:--dangerously-skip-permissions")


def gone(pids: list[int]) -> bool:
    for _ in range(1000):
        if all(process_started(pid) is None for pid in pids):
            return True
        time.sleep(0.01)
    return False


def read_pids(file: Path) -> list[int]:
    for _ in range(3000):
        if file.exists() and len(pids := file.read_text(encoding="utf-8").split()) == 2:
            return [int(pid) for pid in pids]
        time.sleep(0.01)
    raise AssertionError("the program did not start")


class HurriedClock(SystemClock):
    """The system's clock, until it is set forward."""

    skipped_s = 0

    def steady_ns(self) -> int:
        return super().steady_ns() + self.skipped_s * 10**9

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        return super().wait_readable(fds, 0.02 if timeout_s is None else min(timeout_s, 0.02))


def test_at_the_deadline_the_program_and_all_it_started_are_killed(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_background: Callable[[Callable[[], Any]], Any]
) -> None:
    clock = HurriedClock()
    monkeypatch.setattr(child_program, "SYSTEM", clock)
    monkeypatch.setenv("AGENT_PROGRAM", f"hang {tmp_path}/pids")
    asking = in_background(lambda: open_model(host).complete("hello", timeout_s=900))
    pids = read_pids(tmp_path / "pids")
    clock.skipped_s = 901

    with pytest.raises(ModelTimeout, match="did not finish within (900|8..) s; it was killed"):
        asking.result()

    assert gone(pids)


def test_when_we_are_killed_the_program_and_all_it_started_go_too(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT_PROGRAM", f"hang {tmp_path}/pids")
    program = f"from postroom.inference import open_model; open_model({host!r}).complete('hello', timeout_s=600)"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        pids = read_pids(tmp_path / "pids")
        os.kill(child.pid, signal.SIGKILL)
        child.wait()

        assert gone(pids)
