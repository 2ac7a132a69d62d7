"""What newcomers read first (README, tutorial, glossary, comparison) is true: commands and programs are taken from the
pages, literally, and run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from tests.house.test_docs import programs_of
from tests.support import DOCS, ROOT

from postroom.cli.table import COMMANDS

README = (ROOT / "README.md").read_text(encoding="utf-8")
JOBS, SERVICES, AGENTS = (
    "Background jobs that survive crashes",
    "Services that ask each other",
    "Claude Code and Codex that talk",
)
#: Far more than anything takes; a command that hangs is ended, and the test fails.
PATIENCE_S = 240.0
#: What a newcomer's shell has; the settings of pip, as the package index may be anywhere; and how this run is to be run.
KEPT = re.compile(
    r"(?i)POSTROOM_PORTABLE|LANG|LC_.*|TERM|TMPDIR|PIP_.*|UV_.*|.*_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)
#: Starts a program that has no network at all, not even its own machine's.
WITHOUT_NETWORK = ["unshare", "--map-current-user", "--net"]
NOT_IN_A_CHECKOUT = ".git .venv* __pycache__ .*_cache .hypothesis .postroom .agents-* dist build".split()


class Block(NamedTuple):
    """A fenced block of the README: its language and its text."""

    language: str
    text: str


def blocks(heading: str) -> list[Block]:
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    assert section, f"the README has no section {heading!r}"
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", section[1], re.M | re.S)]


class Newcomer:
    """A person with an empty home and an empty folder, who copies what the README says."""

    def __init__(self, place: Path, path: Path) -> None:
        self.home, self.folder = place / "home", place / "a folder"
        #: What every command is started by.
        self.through: list[str] = []
        self.home.mkdir(parents=True)
        self.folder.mkdir()
        kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
        self.environment = kept | {"HOME": str(self.home), "PATH": f"{path}:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}

    def save(self, programs: list[Block]) -> None:
        """Save each program under the name that its first line gives it."""
        for program in programs:
            name = re.match(r"# (\w+\.py)\n", program.text)
            assert name, program.text
            (self.folder / name[1]).write_text(program.text, encoding="utf-8")

    @contextmanager
    def shell(self, script: str, folder: Path | None = None) -> Iterator[subprocess.Popen[str]]:
        """The commands in a shell; whatever they leave running ends with the block, and must not have complained."""
        with (self.home.parent / "complaints").open("w+", encoding="utf-8") as complaints:
            shell = subprocess.Popen(
                [*self.through, "bash", "-e", "-c", script],
                cwd=folder or self.folder, env=self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True,
            )  # fmt: skip
            too_long = threading.Timer(PATIENCE_S, os.killpg, (shell.pid, signal.SIGKILL))
            too_long.start()
            assert shell.stdout
            try:
                yield shell
                code = shell.wait()
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGTERM)
                shell.stdout.read()  # until all have ended
                complaints.seek(0)
                assert (code, complaints.read()) == (0, "")
            finally:
                too_long.cancel()
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
                shell.stdout.close()

    def type(self, console: Block) -> None:
        """Type the lines that begin with a dollar; the others must be what is printed."""
        assert console.language == "console"
        lines = console.text.splitlines(keepends=True)
        script = "".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
        expected = [line for line in lines if not line.startswith("$ ")]
        with self.shell(script) as shell:
            assert shell.stdout
            printed = [shell.stdout.readline() for _ in expected]
            assert printed == expected, (self.home.parent / "complaints").read_text(encoding="utf-8")
            self._wait_for_acks()

    def _wait_for_acks(self) -> None:
        """Wait until nothing is claimed: a worker that is ended after its last line, and before its ack, does it again."""
        until_s = time.monotonic() + PATIENCE_S
        for path in self.folder.glob("*/messages.db"):
            with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as look:
                look.set_busy_timeout(10_000)
                while look.execute("SELECT count(*) FROM messages WHERE state = 1").fetchall() != [(0,)]:
                    assert time.monotonic() < until_s, f"something in {path} is never acked"
                    time.sleep(0.01)

    def open_door(self, heading: str) -> None:
        found = blocks(heading)
        self.save([block for block in found if block.language == "python"])
        self.type(found[-1])

    def servers(self) -> dict[str, StdioServerParameters]:
        """The servers that Claude Code and Codex would start now, by what they find in their settings."""
        plugin = json.loads((self.home / ".claude/skills/postroom/.mcp.json").read_text(encoding="utf-8"))
        settings = tomllib.loads((self.home / ".codex/config.toml").read_text(encoding="utf-8"))
        (claude,) = plugin["mcpServers"].values()
        codex = settings["mcp_servers"]["postroom"]
        told = {"CLAUDECODE": "1", "CLAUDE_PROJECT_DIR": str(self.folder)}  # as Claude Code tells what it starts
        servers = {}
        for name, entry, more in (("claude", claude, told), ("codex", codex, {"POSTROOM_AGENT": "codex"})):
            words = [*self.through, entry["command"], *entry["args"]]
            servers[name] = StdioServerParameters(
                command=words[0], args=words[1:], env=self.environment | more, cwd=self.folder
            )
        return servers

    def let_agents_talk(self) -> None:
        """Claude asks Codex; a client stands in for each of the two programs."""

        async def call(client: Client, tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result.content
            return result.structured_content

        async def talk() -> None:
            servers = self.servers()
            async with Client(servers["claude"]) as claude, Client(servers["codex"]) as codex:
                await call(codex, "who")  # as with the first words to it: nobody can write to a Codex before
                sent = await call(claude, "send", to="codex", body="which port does the server use?")
                found = await call(codex, "inbox", wait_s=60)
                (question,) = found["messages"]
                assert (question["id"], question["from"]) == (sent["id"], "claude")
                await call(codex, "reply", id=question["id"], body="8765")
                (answer,) = (await call(claude, "inbox", wait_s=60))["messages"]
                assert answer["from"] == "codex"
                assert "| 8765\n" in answer["body"]

        asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))


@pytest.fixture
def here(tmp_path: Path) -> Newcomer:
    """A newcomer for whom Postroom is installed already."""
    return Newcomer(tmp_path, Path(sys.executable).parent)


@pytest.mark.slow
@pytest.mark.parametrize("heading", [JOBS, SERVICES])
def test_the_programs_of_a_door_print_what_the_readme_shows(here: Newcomer, heading: str) -> None:
    here.open_door(heading)
    here.open_door(heading)  # and again, in the same folder


@pytest.mark.slow
def test_two_agents_talk_after_the_three_commands_of_the_readme(here: Newcomer) -> None:
    (commands,) = blocks(AGENTS)
    assert commands.text.count("$ ") == 3

    here.open_door(AGENTS)

    here.let_agents_talk()


@pytest.mark.long
def test_a_newcomer_with_nothing_but_the_readme_is_there_within_a_minute(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Everything from an empty environment on. The time that the clock shows is told; how long a machine that others use
    takes is no fault of ours, so what is held is the processor's."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_IN_A_CHECKOUT))
    newcomer = Newcomer(tmp_path / "newcomer", Path(sys.base_prefix) / "bin")
    install, build = blocks("Install")
    began_s, spent_s = time.monotonic(), processor_s()

    with newcomer.shell(install.text, checkout) as shell:
        assert shell.stdout
        assert "Every line above was checked" in shell.stdout.read()
    (activated,) = re.findall(r"\. ~/(\S+)/activate", install.text)
    newcomer.environment["PATH"] = f"{newcomer.home / activated}:{newcomer.environment['PATH']}"
    installed_s = time.monotonic() - began_s
    if may_be_cut_off():
        newcomer.through = WITHOUT_NETWORK
    newcomer.open_door(JOBS)
    talking_s, spent_s = time.monotonic() - began_s, processor_s() - spent_s
    newcomer.open_door(SERVICES)
    newcomer.open_door(AGENTS)
    newcomer.let_agents_talk()
    all_s = time.monotonic() - began_s

    figure(
        f"a newcomer, from an empty home: installed and shown the demo after {installed_s:.0f} s, two processes talk after "
        f"{talking_s:.0f} s ({spent_s:.0f} s of processor time), two agents after {all_s:.0f} s"
        f"{', without a network since it was installed' if newcomer.through else ''}"
    )
    assert spent_s < 60

    newcomer.through = []
    with newcomer.shell(f"pip uninstall -qy postroom\n{build.text}postroom --version", checkout) as shell:
        assert shell.stdout
        assert shell.stdout.read().splitlines()[-1].startswith("postroom 0.")


def may_be_cut_off() -> bool:
    """Whether this machine lets us start programs without a network."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True, check=False).returncode
    )


def processor_s() -> float:
    """The processor time of all programs that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_readme_is_at_most_150_lines_and_begins_with_one_sentence() -> None:
    lines = README.splitlines()

    assert len(lines) <= 150
    assert re.fullmatch(r"Postroom [^.]+\.", lines[2])


def test_every_block_of_the_readme_is_run_by_a_test() -> None:
    run_here = [block for heading in ("Install", JOBS, SERVICES, AGENTS) for block in blocks(heading)]

    assert len(run_here) == README.count("\n```") / 2
    assert not re.search(r"^ {4}\S", re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S), re.M)


def test_every_command_that_the_readme_names_is_there() -> None:
    named = set(
        re.findall(r"\bpostroom ([a-z]+)\b", " ".join(re.findall(r"`[^`]*`|^\$ .*$|^postroom .*$", README, re.M)))
    )

    assert {"demo", "web", "mcp", "install"} <= named
    assert named - COMMANDS.keys() == set()


@pytest.mark.slow
def test_the_tutorial_can_be_begun_anew_in_the_same_folder_wherever_it_was_left(here: Newcomer) -> None:
    programs = programs_of("guide.md")

    for many in (len(programs) // 2, len(programs), len(programs)):
        (here.folder / "tutorial.py").write_text("\n".join(program for program, _ in programs[:many]), encoding="utf-8")
        # left in the middle, a thread that serves still runs
        last_words = "" if many == len(programs) else "\nimport os\nos._exit(0)\n"
        with (here.folder / "tutorial.py").open("a", encoding="utf-8") as file:
            file.write(last_words)
        with here.shell("python tutorial.py") as shell:
            assert shell.stdout
            assert shell.stdout.read() == "".join(printed for _, printed in programs[:many])


@pytest.mark.slow
def test_the_commands_of_the_tutorial_work(here: Newcomer) -> None:
    (script,) = re.findall(r"^```sh\n(.*?)^```$", (DOCS / "guide.md").read_text(encoding="utf-8"), re.M | re.S)

    with here.shell(f"exec 2>&1\n{script}") as shell:  # a note that bob has not joined this room yet is no complaint
        assert shell.stdout
        printed = shell.stdout.read()

    assert "please review" in printed
    assert "1 acked" in printed


def entries() -> dict[str, str]:
    """The words of the glossary with what it says of each."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    return {word.lower(): said for word, said in re.findall(r"^## (.*)\n\n(.*)\n", text, re.M)}


def test_the_glossary_says_each_word_in_a_sentence_or_two_and_in_order() -> None:
    asked = """room agent channel claim lease token ledger receipt board session door delivery mailbox settle store task
        pool worker artifact reservation lane fence peek replay requeue""".split()
    found = entries()

    assert set(asked) | {"dead letter"} <= found.keys()
    assert list(found) == sorted(found)
    assert {word for word, said in found.items() if len(re.findall(r"[.?!](?= |$)", said)) > 2} == set()


def test_pages_lead_to_the_glossary() -> None:
    leading = [path.name for path in DOCS.rglob("*.md") if "glossary.md" in path.read_text(encoding="utf-8")]

    assert len(leading) >= 6


def test_the_words_that_the_tutorial_marks_are_in_the_glossary() -> None:
    marked = re.findall(r"(?<!\*)\*([a-z ]+)\*(?!\*)", (DOCS / "guide.md").read_text(encoding="utf-8"))

    assert len(marked) > 6
    assert {word for word in marked if word != "italics"} - entries().keys() - {"settles"} == set()


#: What the comparison calls the rows of the bench's tables.
ROWS = {
    "Postroom": ("postroom listen", "postroom ask", "postroom"),
    "Postroom, `sync=full`": ("postroom listen (sync=full)", "postroom (sync=full)"),
    "Redis": ("redis",),
    "Redis, `always`": ("redis (sync=full)",),
    "NATS": ("nats",),
    "PostgreSQL": ("postgres",),
}


def test_the_figures_of_the_comparison_are_those_of_the_recorded_run() -> None:
    compared = (DOCS / "compare.md").read_text(encoding="utf-8").partition("<!-- speed: begin")[2]
    run = (ROOT / "bench" / "README.md").read_text(encoding="utf-8").partition("## One run")[2]
    recorded = {
        (work, row): figure
        for work, table in re.findall(r"^\*\*(W\d): .*?\*\*\n\n(.*?)\n\n", run, re.M | re.S)
        for row, figure in re.findall(r"^\| (.+?) \| ([\d.,]+) \|", table, re.M)
    }
    checked = 0

    for head, table in re.findall(r"^\| messages per second \| (.*) \|\n.*\n((?:\|.*\n)+)", compared, re.M):
        for line in table.splitlines():
            label, *figures = line.strip("| ").split(" | ")
            for peer, figure in zip(head.split(" | "), figures, strict=True):
                names = ROWS.get(peer, (peer,))
                expected = next(recorded[label[:2], name] for name in names if (label[:2], name) in recorded)
                assert (label, peer, figure) == (label, peer, expected)
                checked += 1
    for peer, figure in re.findall(r"(Postroom|Redis|litequeue|NATS) ([\d.]+) ms", compared):
        assert recorded["W5", "postroom" if peer == "Postroom" else peer.lower()] == figure
        checked += 1

    assert checked == 5 * 4 + 3 * 5 + 4
