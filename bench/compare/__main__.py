"""Measure Postroom and its peers, and show them next to each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from compare import COMPARED, NAMES
from compare.ratios import COLUMNS
from postroom.cli.bench.rounds import BenchReport
from postroom.cli.bench.tables import tables
from postroom.cli.commands import bench


def options() -> argparse.ArgumentParser:
    """Those of `postroom bench`, and which peers."""
    parser = argparse.ArgumentParser(prog="bench/compare", description=__doc__)
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        type=bench.names_of(NAMES),
        default=NAMES,
        help=f"which peers, of {', '.join(NAMES)}",
    )
    rounds = "how often everything is measured; unless told, 3 times what is compared, and the others once"
    bench.measuring_options(parser, rounds)
    return parser


def about(report: BenchReport) -> list[str]:
    """What `postroom bench` says of a report, and which peers are not here."""
    lines = [*bench.about(report), "`of bare` and `of Redis` are ratios."]
    return lines + [f"Left out: {name}, for {why}." for name, why in report.left_out.items()]


def main() -> None:
    """Measure and show."""
    args = options().parse_args()
    once = () if args.full or args.rounds else set(NAMES) - set(COMPARED)
    report = bench.measured(args, args.peers, once=once)
    bench.show(about(report), tables(report, COLUMNS), markdown=args.markdown)


if __name__ == "__main__":
    main()
