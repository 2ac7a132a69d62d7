"""Plugins: what is written, that it starts, and that Claude Code accepts it where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import EXAMPLES

from postroom.lang.compile.plugin import NotAPlugin, build_plugin, kebab, one_line

from .programs import PATIENCE_S, SAMPLES, environment, load_program, postroom, write

#: Where Claude Code is: on the PATH, or named by this variable.
CLAUDE = os.environ.get("POSTROOM_TEST_CLAUDE") or shutil.which("claude")


def test_a_plugin_has_a_manifest_commands_skills_and_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "plugin"

    written = build_plugin(load_program(EXAMPLES / "patchwork" / "historian.pw"), folder)

    assert sorted(str(path.relative_to(folder)) for path in written) == [
        ".claude-plugin/plugin.json",
        "README.md",
        "bin/historian",
        "commands/rewrite.md",
        "program/historian.pw",
        "skills/rewrite/SKILL.md",
    ]
    manifest = json.loads((folder / ".claude-plugin" / "plugin.json").read_text())
    assert (manifest["name"], manifest["version"]) == ("historian", "0.1.0")
    skill = (folder / "skills" / "rewrite" / "SKILL.md").read_text()
    assert skill.startswith(
        '---\nname: rewrite\ndescription: "Tells the commits of a branch anew, as a clean story."\n---\n'
    )
    command = (folder / "commands" / "rewrite.md").read_text()
    assert "\"${CLAUDE_PLUGIN_ROOT}/bin/historian\" rewrite branch='...' base='...'" in command
    assert 'argument-hint: "branch=string base=string"' in command
    assert "$ARGUMENTS" in command
    same = (folder / "program" / "historian.pw").read_text() == (EXAMPLES / "patchwork" / "historian.pw").read_text()
    assert same


def test_imports_come_along_and_descriptions_come_from_comments(tmp_path: Path) -> None:
    write(tmp_path, "export fun twice(n) { return n * 2 }\n", "lib/more.pw")
    text = """\
    import lib.more
    # Does "this: that"
    # and more.
    #
    # Details nobody needs.
    trait BigThing: Agent {
        # Says ü.
        @skill
        fun say_it(n: int) { return more.twice(n) }
    }
    """
    folder = tmp_path / "plugin"

    build_plugin(load_program(write(tmp_path, text)), folder)

    assert (folder / "program" / "lib" / "more.pw").exists()
    assert (
        json.loads((folder / ".claude-plugin" / "plugin.json").read_text())["description"]
        == 'Does "this: that" and more.'
    )
    assert (
        (folder / "skills" / "say-it" / "SKILL.md")
        .read_text()
        .startswith('---\nname: say-it\ndescription: "Says ü."\n')
    )


@pytest.mark.slow
def test_the_entry_point_starts_the_program_from_anywhere(tmp_path: Path) -> None:
    folder = tmp_path / "a plugin; touch CANARY"
    build_plugin(load_program(SAMPLES / "06_plugin.pw"), folder)
    starter = tmp_path / "start"
    starter.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m postroom "$@"\n')
    starter.chmod(0o755)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    entry = str(folder / "bin" / "pipeline")

    done = subprocess.run(
        [entry, "run", "count=2", "--json"],
        cwd=elsewhere,
        env=environment(POSTROOM=str(starter)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    missing = subprocess.run(
        [entry, "run", "count=2"], env=environment(POSTROOM="/no/postroom"), capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1]) == {"result": "drained"}
    assert (missing.returncode, "postroom is not on the PATH" in missing.stderr) == (127, True)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker main() { }\n", "a plugin needs a trait"),
        ("trait A: Agent { fun f() { } }\n", "no method of A has @skill or @command"),
        (
            "trait A: Agent { @skill fun f() { } }\ntrait B: Agent { @skill fun f() { } }\n",
            "A, B could all be the plugin",
        ),
        (
            "trait A: Agent { @skill x\nfun f() { }\n@skill x\nfun g() { } }\n",
            "@skill x is used for several methods: f, g",
        ),
    ],
)
def test_what_is_no_plugin_is_refused_with_what_it_lacks(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(NotAPlugin, match=said):
        build_plugin(load_program(write(tmp_path, text)), tmp_path / "plugin")

    assert not (tmp_path / "plugin").exists()


def test_only_a_folder_of_its_own_is_made_anew(tmp_path: Path) -> None:
    program = load_program(SAMPLES / "06_plugin.pw")
    folder = tmp_path / "plugin"
    build_plugin(program, folder)
    (folder / "skills" / "old").mkdir()
    build_plugin(program, folder)
    assert sorted(path.name for path in (folder / "skills").iterdir()) == ["run"]

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    with pytest.raises(NotAPlugin, match="contains something else"):
        build_plugin(program, mine)
    assert [path.name for path in mine.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ReleaseNotes", "release-notes"), ("HTTPServer", "http-server"), ("a_b c", "a-b-c"), ("Ü", "")],
)
def test_names_are_written_as_plugins_write_them(name: str, expected: str) -> None:
    assert kebab(name) == expected


def test_the_first_paragraph_describes() -> None:
    assert one_line("\n@color purple\nOne\ntwo.\n\nthree") == "One two."


@pytest.mark.slow
@pytest.mark.skipif(CLAUDE is None, reason="Claude Code is not installed; POSTROOM_TEST_CLAUDE says where it is")
@pytest.mark.parametrize("program", ["historian.pw", "pipeline.pw"])
def test_claude_code_accepts_the_plugin(program: str, tmp_path: Path) -> None:
    folder = tmp_path / "plugin"
    assert postroom("build", EXAMPLES / "patchwork" / program, "-o", folder, cwd=tmp_path).code == 0

    done = subprocess.run(
        [str(CLAUDE), "plugin", "validate", str(folder), "--strict", "--json"],
        env=environment(HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    said = json.loads(done.stdout)
    assert (done.returncode, said["success"], said["manifest"]["warnings"]) == (0, True, [])
