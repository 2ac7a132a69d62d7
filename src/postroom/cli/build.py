"""`postroom build FILE.pw -o DIR`: a plugin of Claude Code; `--python`: the program as Python."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.errors import PostroomError

from . import exits, show
from .programs import read_program, report

if TYPE_CHECKING:
    from postroom.lang.modules import Program

    from .call import Call


def build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.pw", help="the program")
    parser.add_argument("-o", "--output", metavar="DIR", help="write a plugin of Claude Code into this folder")
    parser.add_argument("--python", action="store_true", help="print the Python that the program becomes")


def build(call: Call) -> int:
    args = call.args
    if bool(args.output) == args.python:
        raise exits.UsageError("say what to build: -o DIR for a plugin, or --python (see `postroom build --help`)")
    try:
        program = read_program(args.file)
        return _python(call, program) if args.python else _plugin(call, program)
    except PostroomError as error:
        return report(error, as_json=call.json)


def _python(call: Call, program: Program) -> int:
    from postroom.lang.compiler import python_source

    texts = {str(loaded.path): python_source(loaded.module) for loaded in program.modules}
    if call.json:
        show.document({"python": texts})
    else:
        sys.stdout.write("\n\n".join(texts.values()))
    return exits.DONE


def _plugin(call: Call, program: Program) -> int:
    from postroom.lang.plugin import build_plugin

    folder = call.args.output
    written = build_plugin(program, Path(folder))
    if call.json:
        show.document({"folder": folder, "files": [str(path) for path in written]})
        return exits.DONE
    for path in written:
        show.write(show.visible(str(path)))
    show.write(f"\nTry it: claude --plugin-dir {show.visible(folder)}")
    return exits.DONE
