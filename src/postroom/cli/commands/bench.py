"""`postroom bench`: how fast Postroom is here; with --agents, whether it loses anything under load.

`bench/compare` in the repository shows its own report, with other queues in it, by the same functions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from postroom.cli import exit_codes, options, output

if TYPE_CHECKING:
    from postroom.cli.bench.rounds import BenchReport, Progress
    from postroom.cli.bench.tables import Table
    from postroom.cli.call import Invocation

#: The names of the works, here once more so that --help need not import the measuring (tests/bench compares them).
WORKS: Final = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")
FULL: Final = 1.0
FULL_ROUNDS: Final = 5


def bench_options(parser: argparse.ArgumentParser) -> None:
    measuring_options(parser, "how many times to measure everything (default: 3)")
    add = parser.add_argument
    add("--agents", metavar="N", type=options.count, help="load test: N agents send each other messages")
    add(
        "--messages",
        metavar="N",
        type=options.count,
        default=100,
        help="load test: messages per agent (default: 100)",
    )


def measuring_options(parser: argparse.ArgumentParser, rounds: str) -> None:
    """What a run of measurements can be told; `rounds` is the help of --rounds."""
    add = parser.add_argument
    add(
        "--works",
        metavar="W1,W3",
        type=names_of(WORKS),
        default=WORKS,
        help=f"which workloads: any of {', '.join(WORKS)}",
    )
    add("--rounds", metavar="N", type=options.count, help=rounds)
    add("--scale", metavar="X", type=_scale, help="how much of each to run; 1 is all of it (default: 0.1)")
    add("--full", action="store_true", help=f"the full run, about 15 minutes: --scale 1 --rounds {FULL_ROUNDS}")
    add("--save", metavar="FILE", help="write the machine, versions and every sample to this file, as JSON")
    add("--markdown", action="store_true", help="print the tables as Markdown")
    add(
        "--folder",
        metavar="DIR",
        help="where rooms and servers keep their data during the run (default: the temporary folder)",
    )


def names_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """The type of an option that names some of these."""

    def names(text: str) -> tuple[str, ...]:
        named = [name.strip() for name in text.split(",") if name.strip()]
        found = {name.lower(): name for name in known}
        unknown = [name for name in named if name.lower() not in found]
        if unknown or not named:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return tuple(name for name in known if name.lower() in {one.lower() for one in named})

    return names


def _scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero, and at most 100")
    return value


def bench(call: Invocation) -> int:
    return _load(call) if call.args.agents else _measure(call)


def _measure(call: Invocation) -> int:
    from postroom.cli.bench.tables import tables

    report = measured(call.args, ("postroom",), quiet=call.json)
    if call.json:
        output.document(report)
    else:
        show(about(report), tables(report), markdown=call.args.markdown)
    return exit_codes.DONE


def measured(
    args: argparse.Namespace, peers: Sequence[str], *, once: Collection[str] = (), quiet: bool = False
) -> BenchReport:
    """Measure as the options say, and save what was found when they say so."""
    from postroom.cli.bench.plan import Scale
    from postroom.cli.bench.rounds import run

    factor = args.scale or (FULL if args.full else 0.1)
    scale = Scale(factor, cap_s=4.0 if factor < FULL else 10.0)
    rounds = args.rounds or (FULL_ROUNDS if args.full else 3)
    with _progress(quiet=quiet) as progress:
        report = run(args.works, peers, rounds, scale, once=once, folder=args.folder, progress=progress)
    if args.save:
        Path(args.save).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return report


def show(lines: Iterable[str], found: Iterable[Table], *, markdown: bool) -> None:
    """Print what is said about a report, and its tables."""
    from postroom.cli.bench import tables

    for line in lines:
        output.write(line)
    for table in found:
        output.write("")
        if markdown:
            output.write(tables.markdown(table))
        else:
            rows = [[*row, *[""] * (len(table.columns) - len(row))] for row in table.rows]
            output.table(table.columns, rows, title=table.title)


def about(report: BenchReport) -> list[str]:
    """The machine, the versions, and how much was measured."""
    found = report.machine
    machine = f"{found['cores']} cores, {found['processor']}, {found['system']}, Python {found['python']}"
    return [
        f"{machine}; load before: {found['load_before'][0]:g}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in report.versions.items()) + ".",
        f"Medians of {report.rounds} rounds at scale {report.scale.factor:g}.",
    ]


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    """A bar for people, a word at the end of each work for logs, nothing for programs."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _load(call: Invocation) -> int:
    from postroom.cli.bench.load import load

    args = call.args
    found = load(args.agents, args.messages, args.folder, args.room)
    call.tell(
        found,
        f"{found.agents} agents, each in its own process, sent {found.sent:,} messages to each other.",
        f"Received: {found.received:,}. Lost: {found.lost:,}. Delivered twice: {found.doubled:,}.",
        f"From before the send to after the claim: p50 {found.p50_ms:.2f} ms, p99 {found.p99_ms:.2f} ms, "
        f"slowest {found.slowest_ms:.2f} ms.",
    )
    return exit_codes.FAILED if found.lost else exit_codes.DONE
