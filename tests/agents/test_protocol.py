"""The protocol's own judges: the conformance suite in both revisions, the inspector, and a real tokenizer."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests.doors.served import http_server
from tests.doors.test_tools import MAX_TOKENS, about_tokens, words_of_all

from postroom.core.trust import allow_place
from postroom.doors.install.texts import SKILL

from . import programs
from .conftest import World

BASELINES = Path(__file__).parent / "baselines"
BIN = programs.MODULES / ".bin"


def node(world: World, *words: str) -> tuple[int, str]:
    done = programs.run([str(programs.NODE), *words], world.project, programs.environment(world.home))
    return done.returncode, done.stdout + done.stderr


#: How the suite is asked for each revision: the older ones have no requirements of their own.
ALL = ("--suite", "all", "--spec-version")
REVISIONS = {"2025-03-26": ALL, "2025-06-18": ALL, "2025-11-25": ("--requirements",), "2026-07-28": ("--requirements",)}


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_conformance_suite_passes_but_for_what_is_not_offered(world: World, revision: str) -> None:
    baseline = BASELINES / f"{max(revision, '2025-11-25')}.yml"
    room = world.project / ".postroom"
    allow_place(room, how="allowed")  # the server's home is that of the tests, and not the world's
    with http_server(room, "--as", "bob", "--no-token") as http:
        url = f"http://127.0.0.1:{http.port}/mcp"
        code, said = node(
            world,
            *(str(BIN / "conformance"), "server", "--url", url, *REVISIONS[revision], revision),
            *("--expected-failures", str(baseline)),
        )

    print(said.partition("=== SUMMARY ===")[2])
    assert code == 0, said[-3000:]


def test_every_line_of_the_baselines_has_its_reason() -> None:
    for path in BASELINES.glob("*.yml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[1] == "server:"
        assert all(re.fullmatch(r"  - [\w-]+ # \w.{15,}", line) for line in lines[2:])


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_finds_nothing(world: World, era: str) -> None:
    server = [sys.executable, "-m", "postroom", "mcp", "--as", "bob", "--room", f"sqlite:{world.project}/.postroom"]
    code, said = node(
        world,
        *(str(BIN / "mcp-inspector"), "--cli", "--format", "json", "--strict", "--protocol-era", era),
        *("--method", "tools/list", "--", *server),
    )

    assert code == 0, said
    assert len(json.loads(said[said.index("{") :])["result"]["tools"]) == 8


def test_a_real_tokenizer_agrees_with_our_count(world: World, tmp_path: Path) -> None:
    program = 'const {encode}=require("gpt-tokenizer");console.log(encode(require("fs").readFileSync(0,"utf8")).length)'
    counts = {}
    for name, text in (("tools", words_of_all()), ("skill", SKILL)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        code, said = node(
            world,
            "-e",
            program.replace("readFileSync(0", f"readFileSync({json.dumps(str(tmp_path / name))}").replace(
                "gpt-tokenizer", str(programs.MODULES / "gpt-tokenizer")
            ),
        )
        assert code == 0, said
        counts[name] = int(said)

    print(counts)
    assert counts["tools"] <= MAX_TOKENS
    assert 0.95 < about_tokens(words_of_all()) / counts["tools"] < 1.05
    assert counts["skill"] <= 700
