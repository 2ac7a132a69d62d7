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
    from postroom.lang.syntax.program import ParsedProgram


def build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.pw", help="the program")
    parser.add_argument("-o", "--output", metavar="DIR", help="write a Claude Code plugin to this folder")
    parser.add_argument("--python", action="store_true", help="print the Python code that the program compiles to")


def build(call: Invocation) -> int | None:
    args = call.args
    if bool(args.output) == args.python:
        raise exit_codes.UsageError("say what to build: -o DIR for a plugin, or --python (see `postroom build --help`)")
    try:
        program = read_program(args.file)
        (_python if args.python else _plugin)(call, program)
    except PostroomError as error:
        return report(error, as_json=call.json)
    return exit_codes.DONE


def _python(call: Invocation, program: ParsedProgram) -> None:
    from postroom.lang.compile.compiler import python_source

    texts = {str(loaded.path): python_source(loaded.module) for loaded in program.modules}
    if call.json:
        output.document({"python": texts})
    else:
        sys.stdout.write("\n\n".join(texts.values()))


def _plugin(call: Invocation, program: ParsedProgram) -> None:
    from postroom.lang.compile.plugin import build_plugin

    folder = call.args.output
    files = [str(path) for path in build_plugin(program, Path(folder))]
    call.tell({"folder": folder, "files": files}, *files, "", f"Try it: claude --plugin-dir {folder}")
