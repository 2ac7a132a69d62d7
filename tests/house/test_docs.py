"""The documents say what the code says: the diagram of states, the reference, the programs of the guide.

`python -m tests.house.test_docs` writes the generated parts again.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.house import command_reference, reference
from tests.house.test_layers import EXCEPTIONS, LAYERS, SOURCE, all_imports, reachable
from tests.support import DOCS, ROOT

import postroom
from postroom.board.actions import ACTIONS
from postroom.board.task import MOVES as TASK_MOVES
from postroom.core.config import GRACE_S
from postroom.core.states import FINISHED, MOVES, PUBLIC_NAME, State


def states_text() -> str:
    """The states and the moves between them, as a diagram and as a table."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {state.name} : {state.name} [{PUBLIC_NAME[state]}]" for state in State]
    lines += [
        "    [*] --> READY : send",
        "    [*] --> DELAYED : send with a delay",
        "    [*] --> AWAITED : answer to one who waits",
    ]
    lines += [
        f"    {source.name} --> {move.target.name} : {move.event}" for move in MOVES for source in sorted(move.sources)
    ]
    lines += [f"    {state.name} --> [*]" for state in sorted(FINISHED)]
    lines += ["```", "", "| event | from | to | meaning |", "| --- | --- | --- | --- |"]
    for move in MOVES:
        sources = ", ".join(source.name for source in sorted(move.sources))
        lines.append(f"| {move.event} | {sources} | {move.target.name} | {move.meaning} |")
    return "\n".join(lines)


def task_states_text() -> str:
    """The states of a task and the moves between them."""
    lines = ["| move | from | to | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| {move.word} | {', '.join(move.sources)} | {move.target} | {move.meaning} |" for move in TASK_MOVES]
    return "\n".join(lines)


def actions_text() -> str:
    """The seven actions and their directions."""
    lines = ["| action | direction | purpose |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {rule.sender} → {rule.recipient} | {rule.purpose} |" for name, rule in ACTIONS.items()]
    return "\n".join(lines)


def packages_text() -> str:
    """The packages and their imports, without those that follow from others, as Mermaid."""
    graph: dict[str, set[str]] = {name: set() for names in LAYERS for name in names if name != "__main__"}
    for step in all_imports():
        here, there = step.importer.partition(".")[0], step.imported.partition(".")[0]
        if (
            step.ours
            and here in graph
            and there in graph
            and here != there
            and (step.importer, step.imported) not in EXCEPTIONS
        ):
            graph[here].add(there)
    lines = ["```mermaid", "graph TD"]
    for here, all_below in graph.items():
        indirect = {name for there in all_below for name in reachable(graph, there)}
        lines += [f"    {here} --> {there}" for there in sorted(all_below - indirect)]
    return "\n".join([*lines, "```"])


def hosted_programs_text() -> str:
    """What each hosted program stated and did, as tests/agents/test_acp.py has captured it."""
    captured = json.loads((ROOT / "tests" / "agents" / "acp_captured.json").read_text(encoding="utf-8"))
    titles = ("program", "version of ACP", "takes our server from the host", "goes on with its session after a kill")
    lines = [f"| {' | '.join(titles)} | woken when idle within 1 s |", "| --- | --- | --- | --- | --- |"]
    for each in captured.values():
        facts = [each[name] for name in ("server_from_host", "goes_on", "wakes_within_1_s")]
        told = " | ".join("yes" if fact else "no" for fact in facts)
        lines.append(f"| {each['program'].removeprefix('@agentclientprotocol/')} | {each['protocol']} | {told} |")
    return "\n".join(lines)


#: Which part of which page is generated, by what.
GENERATED = {
    ("architecture.md", "packages"): packages_text,
    ("guarantees/states.md", "states"): states_text,
    ("board.md", "task-states"): task_states_text,
    ("board.md", "actions"): actions_text,
    ("agents/acp.md", "programs"): hosted_programs_text,
}


def part_of(page: str, part: str) -> re.Match[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    match = re.search(rf"(<!-- {part}: begin[^\n]*-->\n)(.*?)(<!-- {part}: end -->)", text, re.S)
    assert match, f"docs/{page} has no part {part!r}"
    return match


@pytest.mark.parametrize(("page", "part"), GENERATED, ids=str)
def test_the_generated_part_is_what_the_code_says(page: str, part: str) -> None:
    """When this fails: `python -m tests.house.test_docs` writes it again."""
    assert part_of(page, part)[2] == f"\n{GENERATED[page, part]()}\n\n"


def write_generated() -> None:
    for (page, part), make in GENERATED.items():
        match = part_of(page, part)
        text = match.string[: match.start(2)] + f"\n{make()}\n\n" + match.string[match.end(2) :]
        (DOCS / page).write_text(text, encoding="utf-8")
    for page, text in reference_pages().items():
        (DOCS / page).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / page).write_text(text, encoding="utf-8")


def reference_pages() -> dict[str, str]:
    """Every page that is generated as a whole."""
    pages = reference.pages() | command_reference.pages()
    return {"reference.md": reference.index()} | {f"reference/{name}": text for name, text in pages.items()}


def test_every_path_on_the_map_is_there() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([a-z_]+/[a-z_/.]+\.py)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (SOURCE / "postroom" / path).is_file() and not (ROOT / path).is_file()] == []


def test_every_line_of_the_threat_model_names_a_test() -> None:
    rows = re.findall(r"^\| (?!asset|---)(.*) \|$", (DOCS / "security.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) >= 12
    assert [row for row in rows if not re.search(r"\]\(\.\./tests/[\w/]+\.py\)$", row)] == []


def test_every_guarantee_has_a_number_of_its_own_and_tests_that_are_there() -> None:
    page, tests = ((DOCS / name).read_text(encoding="utf-8") for name in ("guarantees.md", "guarantees/tests.md"))
    promised = re.findall(r"^\*\*(\d+)\. (.+?)\.?\*\*", page, re.M)
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", tests, re.M)
    paths = [re.findall(r"\]\(\.\./\.\./([\w/]+\.py)\)", links) for _, _, links in rows]

    assert [int(number) for number, _ in promised] == list(range(1, 20))
    assert [(number, title) for number, title, _ in rows] == promised
    assert all(paths)
    assert [path for found in paths for path in found if not (ROOT / path).is_file()] == []


def programs_of(page: str) -> list[tuple[str, str]]:
    """A page's programs, each with what the page says that it prints."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.S)
    return [(program, printed) for program, printed in found]


#: Pages whose programs run here, one after the other: how many there are at least.
RUN_HERE = {
    "index.md": 1,
    "guide.md": 8,
    "conversations.md": 4,
    "people.md": 1,
    "search.md": 1,
    "keeping.md": 2,
    "schedules.md": 2,
    "limits.md": 6,
    "board.md": 8,
    "communications.md": 3,
    "pool.md": 7,
    "inference.md": 4,
}
SLOW_PAGES = {"pool.md", "inference.md"}
#: All others that show programs, and where those run.
RUN_ELSEWHERE = {
    "sessions.md": "tests/sessions/test_example.py",
    "language.md": "tests/lang/test_language_page.py",
    "checking.md": "tests/lang/test_language_page.py",
    "operations/export.md": "tests/moving/test_backups.py",
    "operations/deploy.md": "tests/house/test_docs.py",
    **{f"from/{path.name}": "tests/house/test_from_pages.py" for path in (DOCS / "from").glob("*.md")},
}


def test_the_programs_of_every_page_are_run_by_a_test() -> None:
    texts = {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    shown = {page for page, text in texts.items() if re.search(r"^```(?:python|patchwork)", text, re.M)}

    assert sorted(shown - {*RUN_HERE, *RUN_ELSEWHERE}) == []
    assert [test for test in RUN_ELSEWHERE.values() if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize(
    ("page", "least"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] in SLOW_PAGES)) for each in RUN_HERE.items()],
)
def test_a_pages_programs_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, least: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    for file, text in re.findall(
        r"```python title=\"(\S+)\"\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S
    ):
        (tmp_path / file).write_text(text, encoding="utf-8")
    names: dict[str, object] = {"__name__": "page"}
    steps, threads_before = programs_of(page), threading.active_count()
    assert len(steps) >= least

    for program, expected in steps:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, f"docs/{page}", "exec"), names)
        assert printed.getvalue() == expected, program

    assert threading.active_count() == threads_before


class Service(NamedTuple):
    """The service of the operations page, moved from /srv/team to another folder."""

    file: Path
    settings: configparser.SectionProxy


@pytest.fixture
def service(tmp_path: Path) -> Service:
    page = (DOCS / "operations/deploy.md").read_text(encoding="utf-8")
    ((program, _),) = programs_of("operations/deploy.md")
    (tmp_path / "worker.py").write_text(program, encoding="utf-8")
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (unit,) = re.findall(r"```ini\n(.*?)```", page, re.S)
    file = tmp_path / "bob.service"
    file.write_text(unit.replace("/srv/team", str(tmp_path)), encoding="utf-8")
    read = configparser.ConfigParser(interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read(file)
    return Service(file, read["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_accepts_the_unit_of_the_operations_page(service: Service) -> None:
    done = subprocess.run(["systemd-analyze", "verify", service.file], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_of_the_operations_page_starts_works_and_stops_as_it_says(service: Service) -> None:
    """Its start and stop lines, carried out as systemd would."""
    settings = service.settings
    name, _, address = settings["Environment"].partition("=")
    with postroom.open(address) as room:
        with subprocess.Popen(
            shlex.split(settings["ExecStart"]),
            cwd=settings["WorkingDirectory"],
            env={**os.environ, name: address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            id = room.agent("ada").send("bob", {}, wait="acked", timeout_s=60)
            process.send_signal(signal.Signals[settings["KillSignal"]])
            out, err = process.communicate(timeout=float(settings["TimeoutStopSec"]))

        assert (process.returncode, out, err) == (0, f"at work on {id}\n", "")
        assert [agent.status for agent in room.agents() if agent.name == "bob"] == ["stopped"]
    assert float(settings["TimeoutStopSec"]) > GRACE_S


if __name__ == "__main__":
    write_generated()
