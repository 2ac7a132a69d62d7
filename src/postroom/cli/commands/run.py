"""`postroom run FILE.pw`: run a Patchwork program."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING, NoReturn

from postroom.cli import exit_codes, options, output
from postroom.core.system import goodbye
from postroom.errors import PostroomError

from .programs import read_program, report

if TYPE_CHECKING:
    from postroom.cli.call import Invocation


def run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.pw", help="the program")
    parser.add_argument(
        "words", metavar="WORKER ARG=VALUE", nargs="*", help="the worker to start (default: `main`), and its arguments"
    )
    parser.add_argument("--model", metavar="SPEC", help="the language model for `think` (default: $POSTROOM_MODEL)")
    parser.add_argument(
        "--human", metavar="NAME", help="the agent that answers `ask` (default: the person at the terminal)"
    )
    parser.add_argument("--record", metavar="FILE", help="write every prompt and its answer to a file")
    parser.add_argument("--replay", metavar="FILE", help="answer prompts from such a file, without a model")
    parser.add_argument(
        "--command-timeout", metavar="SPAN", type=options.seconds, help="stop a command that takes longer"
    )
    parser.add_argument("--answer-timeout", metavar="SPAN", type=options.seconds, help="how long an answer may take")


def run(call: Invocation) -> int:
    from postroom.lang.run.context import Settings
    from postroom.lang.run.run import Run
    from postroom.lang.values import values

    args = call.args
    words = args.words
    name = words.pop(0) if words and "=" not in words[0] else None
    settings = Settings(
        model=args.model,
        human=args.human,
        record=args.record,
        replay=args.replay,
        command_timeout_s=args.command_timeout,
        answer_timeout_s=args.answer_timeout,
    )
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        result = Run(read_program(args.file), settings, args.room).start(name, words)
    except PostroomError as error:
        return report(error, as_json=call.json)
    if call.json:
        output.document({"result": result})
    elif result is not None:
        output.write(result if isinstance(result, str) else values.pretty(result))
    return exit_codes.DONE


def _on_terminate(_number: int, _frame: object) -> NoReturn:
    goodbye.next_one_ends()
    raise SystemExit(goodbye.TERMINATED)
