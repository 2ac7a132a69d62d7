"""`postroom build FILE.pw -o DIR`: a plugin of Claude Code; `--python`: the program as Python."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.cli import exit_codes, output
from postroom.errors import PostroomError

from .programs import read_program, report

if TYPE_CHECKING:
    from postroom.cli.call import Invocation
    from postroom.lang.syntax.program import Program


def build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.pw", help="the program")
    parser.add_argument("-o", "--output", metavar="DIR", help="write a plugin of Claude Code into this folder")
    parser.add_argument("--python", action="store_true", help="print the Python that the program becomes")


def build(call: Invocation) -> int:
    args = call.args
    if bool(args.output) == args.python:
        raise exit_codes.UsageError("say what to build: -o DIR for a plugin, or --python (see `postroom build --help`)")
    try:
        program = read_program(args.file)
        return _python(call, program) if args.python else _plugin(call, program)
    except PostroomError as error:
        return report(error, as_json=call.json)


def _python(call: Invocation, program: Program) -> int:
    from postroom.lang.compile.compiler import python_source

    texts = {str(loaded.path): python_source(loaded.module) for loaded in program.modules}
    if call.json:
        output.document({"python": texts})
    else:
        sys.stdout.write("\n\n".join(texts.values()))
    return exit_codes.DONE


def _plugin(call: Invocation, program: Program) -> int:
    from postroom.lang.compile.plugin import build_plugin

    folder = call.args.output
    written = build_plugin(program, Path(folder))
    if call.json:
        output.document({"folder": folder, "files": [str(path) for path in written]})
        return exit_codes.DONE
    for path in written:
        output.write(output.visible(str(path)))
    output.write(f"\nTry it: claude --plugin-dir {output.visible(folder)}")
    return exit_codes.DONE
