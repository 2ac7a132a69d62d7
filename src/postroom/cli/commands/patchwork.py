"""`postroom check` and `postroom fmt`: looking at Patchwork programs without running them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroom.cli import exit_codes, output
from postroom.core.system.files import write_file

from .programs import write_error

if TYPE_CHECKING:
    from postroom.cli.call import Invocation
    from postroom.lang.syntax.problems import Problem


def check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE.pw", nargs="+", help="programs; their imports are checked too")
    parser.add_argument("--graph", action="store_true", help="draw which worker sends to which, as a Mermaid diagram")
    parser.add_argument("--strict", action="store_true", help="fail on warnings too")


def check(call: Invocation) -> int:
    from postroom.lang.check.check import check_file

    found: dict[str, list[Problem]] = {file: _reading(file, check_file) for file in call.args.files}
    problems = [problem for some in found.values() for problem in some]
    graph = "".join(map(_graph, call.args.files)) if call.args.graph else None
    if call.json:
        drawn = {} if graph is None else {"graph": graph}
        output.document({"problems": [problem.plain() for problem in problems], **drawn})
    else:
        _tell(found, graph)
    errors = [problem for problem in problems if call.args.strict or problem.severity == "error"]
    return exit_codes.FAILED if errors else exit_codes.DONE


def _tell(found: dict[str, list[Problem]], graph: str | None) -> None:
    """Problems go to the standard error when a graph is asked for, so that the graph can be piped on."""
    for file, problems in found.items():
        for problem in problems:
            if graph is None:
                for line in problem.text().split("\n"):
                    output.write(output.visible(line))
            else:
                write_error(problem.text())
        if graph is None and not problems:
            output.write(f"{output.visible(file)}: no problems found")
    if graph is not None:
        output.write(graph.rstrip("\n"))


def _graph(file: str) -> str:
    from postroom.lang.check.graph import mermaid
    from postroom.lang.syntax.program import read_program

    program, _ = read_program(file)
    return mermaid(program) if program is not None else ""


def _reading(file: str, read: Any) -> Any:
    try:
        return read(file)
    except OSError as error:
        raise exit_codes.UsageError(f"the program {file} cannot be read: {error.strerror}") from None


def fmt_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE.pw", nargs="+", help="programs, formatted in place; - for standard input"
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file would change")


def fmt(call: Invocation) -> int:
    outcomes = [(file, _format(file, only_look=call.args.check)) for file in call.args.files]
    changed = [file for file, changes in outcomes if changes]
    wrong = [file for file, changes in outcomes if changes is None]
    if call.json:
        output.document({"changed": changed, "unreadable": wrong})
    elif "-" not in call.args.files:
        word = "would be reformatted" if call.args.check else "reformatted"
        for file in changed:
            output.write(f"{output.visible(file)}: {word}")
    return exit_codes.FAILED if wrong or (call.args.check and changed) else exit_codes.DONE


def _format(file: str, *, only_look: bool) -> bool | None:
    """Whether the text changes; None when it is not a program, which is then said."""
    from postroom.lang.syntax.formatter import formatted
    from postroom.lang.syntax.problems import SyntaxProblems
    from postroom.lang.syntax.program import decoded

    try:
        data = sys.stdin.buffer.read() if file == "-" else _reading(file, lambda name: Path(name).read_bytes())
        text = decoded(data, file)
        made = formatted(text, file)
    except SyntaxProblems as faults:
        write_error(str(faults))
        return None
    if file == "-" and not only_look:
        sys.stdout.write(made)
    elif made != text and not only_look:
        write_file(Path(file), made.encode())
    return made != text
