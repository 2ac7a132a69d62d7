"""A report as tables: the median of each entry, and what somebody works out from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from .measure import Sample
from .plan import WORKS, PlanLine, Workload
from .rounds import BenchReport

#: A column that is worked out: its title, and its figure for an entry of a work.
Column = tuple[str, Callable[[BenchReport, Workload, PlanLine], float | None]]


class Table(NamedTuple):
    """One work's figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(report: BenchReport, more: Sequence[Column] = ()) -> list[Table]:
    """A table for each work that was measured, in their order."""
    done = {measured.work for measured in report.measured}
    return [
        _depth_table(report, work) if work.name == "W7" else _table(report, work, more)
        for work in WORKS.values()
        if work.name in done
    ]


def entries_of(report: BenchReport, work: str) -> list[PlanLine]:
    """The entries of a work in the order in which they were measured."""
    return list(dict.fromkeys(measured.entry for measured in report.measured if measured.work == work))


def middle(samples: list[Sample], name: str) -> float | None:
    """The median of a figure; None when there is none."""
    values = [sample[name] for sample in samples if name in sample]
    return median(values) if values else None


def _table(report: BenchReport, work: Workload, more: Sequence[Column]) -> Table:
    timed = work.figure.endswith("_ms")
    columns = ["", "ms, p50" if timed else "per second", *(title for title, _ in more), "rounds"]
    columns += {"W4": ["lost", "doubled", "least share"], "W3": ["lost", "doubled"]}.get(work.name, [])
    columns += {"W5": ["ms, p99"], "W6": ["ms, p50", "ms, p99"]}.get(work.name, [])
    rows = [_row(report, work, entry, more) for entry in entries_of(report, work.name)]
    return Table(f"{work.name}: {work.title}", tuple(columns), rows)


def _row(report: BenchReport, work: Workload, entry: PlanLine, more: Sequence[Column]) -> tuple[str, ...]:
    samples = report.samples(work.name, entry)
    if not samples:
        why = next(m.why_not for m in report.measured if m.work == work.name and m.entry == entry)
        return (entry.label, f"not measured: {why}")
    timed = work.figure.endswith("_ms")
    values = [sample[work.figure] for sample in samples]
    low_to_high = f"{_number(min(values), timed=timed)} to {_number(max(values), timed=timed)}"
    row = [entry.label, _number(median(values), timed=timed)]
    row += [_times(figure(report, work, entry)) for _, figure in more]
    row.append(low_to_high if len(values) > 1 else "one")
    if work.name in ("W3", "W4"):
        row += [str(sum(sample[name] for sample in samples)) for name in ("lost", "doubled")]
    if work.name == "W4":
        row.append(f"{middle(samples, 'least_share') or 0:.2f}")
    if work.name == "W6":
        row.append(_number(middle(samples, "p50_ms"), timed=True))
    if work.name in ("W5", "W6"):
        row.append(_number(middle(samples, "p99_ms"), timed=True))
    return tuple(row)


def _depth_table(report: BenchReport, work: Workload) -> Table:
    columns = ("", "beside", "send µs", "of the first", "receive + ack µs", "of the first")
    rows: list[tuple[str, ...]] = []
    for entry in entries_of(report, work.name):
        for sample in report.samples(work.name, entry):
            for place, depth in enumerate(sample["depths"]):
                row: list[Any] = [entry.label if place == 0 else "", f"{depth:,}"]
                for name in ("send", "take"):
                    row += [f"{sample[f'{name}_us'][place]:.1f}", f"{sample[f'{name}_ratio'][place]:.2f}"]
                rows.append(tuple(row))
    return Table(f"{work.name}: {work.title}", columns, rows)


def _number(value: float | None, *, timed: bool) -> str:
    if value is None:
        return "?"
    return f"{value:.3f}" if timed else f"{value:,.0f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def markdown(table: Table) -> str:
    """A table as Markdown."""
    width = len(table.columns)
    lines = [f"**{table.title}**", "", "| " + " | ".join(table.columns) + " |", "| --- |" + " --: |" * (width - 1)]
    lines += ["| " + " | ".join([*row, *[""] * (width - len(row))]) + " |" for row in table.rows]
    return "\n".join(lines)
