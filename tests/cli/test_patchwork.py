"""`postroom check` and `postroom fmt`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests import support

from .support import Cli, command
from .test_start import cpu_ms_of

EXAMPLES = support.EXAMPLES / "patchwork"

WRONG = "worker main() {\n    var total = 1\n    print(totl)\n}\n"
DOUBTFUL = "worker main() {\n    return 1\n    print(2)\n}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_check_shows_each_mistake_with_its_line(cli: Cli, folder: Path) -> None:
    (folder / "a.pw").write_text(WRONG)

    result = cli("check", "a.pw")

    assert result.code == 1
    assert result.out == (
        "a.pw:3:11: error: totl is not defined\n      print(totl)\n            ^^^^\n  did you mean total?\n"
    )


def test_check_of_what_is_right_says_so(cli: Cli, folder: Path) -> None:
    for path in sorted(EXAMPLES.glob("*.pw")):
        assert cli.ok("check", str(path)).out == f"{path}: no problems found\n"


def test_warnings_fail_only_when_asked(cli: Cli, folder: Path) -> None:
    (folder / "a.pw").write_text(DOUBTFUL)

    assert "warning: this is never reached" in cli.ok("check", "a.pw").out
    assert cli("check", "a.pw", "--strict").code == 1


def test_check_as_data(cli: Cli, folder: Path) -> None:
    (folder / "a.pw").write_text(WRONG)

    result = cli("check", "a.pw", "--json", "--graph")

    assert result.code == 1
    assert result.json == {
        "problems": [
            {
                "file": "a.pw",
                "line": 3,
                "column": 11,
                "end_line": 3,
                "end_column": 15,
                "severity": "error",
                "code": "undefined",
                "message": "totl is not defined",
                "hint": "did you mean total?",
            }
        ],
        "graph": "flowchart LR\n",
    }


def test_the_graph_is_mermaid_and_nothing_else(cli: Cli, folder: Path) -> None:
    result = cli.ok("check", str(EXAMPLES / "coordinator.pw"), "--graph")

    assert result.lines[0] == "flowchart LR"
    assert all(line.startswith("    ") for line in result.lines[1:])


def test_a_file_that_is_not_there(cli: Cli, folder: Path) -> None:
    result = cli("check", "nothing.pw")

    assert result.code == 2
    assert "nothing.pw cannot be read: No such file or directory" in result.err


def test_control_characters_of_a_program_do_not_reach_the_terminal(cli: Cli, folder: Path) -> None:
    (folder / "a.pw").write_text("worker w() { print(x) } \x1b[31m\n")

    result = cli("check", "a.pw")

    assert "\x1b" not in result.out


def test_fmt_writes_a_file_anew_and_then_leaves_it(cli: Cli, folder: Path) -> None:
    path = folder / "a.pw"
    path.write_text("worker   main( ){ print( 1 ) } # x\n")
    path.chmod(0o640)

    assert cli("fmt", "a.pw", "--check").code == 1
    assert path.read_text().startswith("worker   main")
    assert cli.ok("fmt", "a.pw").out == "a.pw: reformatted\n"
    assert path.read_text() == "worker main() { print(1) }  # x\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert cli.ok("fmt", "a.pw").out == ""
    assert not (folder / ".a.pw.new").exists()


def test_fmt_of_standard_input(cli: Cli, folder: Path) -> None:
    assert cli.ok("fmt", "-", stdin=b"worker   w( ){ }\n").out == "worker w() {}\n"


def test_fmt_leaves_what_is_not_a_program(cli: Cli, folder: Path) -> None:
    (folder / "a.pw").write_text("worker {\n")
    (folder / "b.pw").write_text("worker   b() { }\n")

    result = cli("fmt", "a.pw", "b.pw")

    assert result.code == 1
    assert "a.pw:1:8: error: expected the name of the worker, found {" in result.err
    assert (folder / "a.pw").read_text() == "worker {\n"
    assert (folder / "b.pw").read_text() == "worker b() {}\n"


def test_check_loads_no_room_and_no_runtime(folder: Path) -> None:
    import subprocess

    program = (
        "import sys; from postroom.cli import main; "
        f"main(['check', {str(EXAMPLES / 'message_demo.pw')!r}]); print('\\n', *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    loaded = set(run.stdout.splitlines()[-1].split())
    assert not loaded & {
        "postroom.room",
        "postroom.sessions.session",
        "apsw",
        "asyncio",
        "postroom.lang.runtime",
        "rich",
    }


@pytest.mark.slow
def test_checking_an_example_takes_at_most_twenty_starts_of_a_bare_interpreter(folder: Path) -> None:
    bare_ms = min(cpu_ms_of([sys.executable, "-c", "pass"], folder) for _ in range(5))
    for path in sorted(EXAMPLES.glob("*.pw")):
        words = command("check", str(path))
        assert any(cpu_ms_of(words, folder) < 20 * bare_ms for _ in range(3)), (path.name, bare_ms)
