"""The curves of a soak: samples in small text files, one for each part, and one picture of all of them.

    python -m tests.faults.curves build/soak docs/pictures/soak.svg

A file begins with the machine, then has the names of its columns, then one line of whole numbers for each sample. A
column is `seconds`, `kills`, `wal_kib`, or a process and what was seen of it: `receiver.rss_kib`. The picture is SVG, and
has its colours for a light and for a dark page in itself.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple
from xml.sax.saxutils import escape

import apsw

Row = dict[str, int]

#: What is seen of each process, and the gain of its median that is no leak: a cache grows a little, a thread folds the log.
GAIN_MOST = {"rss_kib": 4096, "descriptors": 3, "threads": 2}


def machine() -> str:
    """The machine of these samples, in a few words."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    return (
        f"{os.cpu_count()} cores ({model}), Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    )


class Part(NamedTuple):
    """The samples of one part, and the machine that they are from."""

    machine: str
    rows: list[Row]

    def write(self, path: Path) -> None:
        names = list(self.rows[0])
        lines = [f"# {self.machine}", " ".join(names)]
        lines += [" ".join(str(row[name]) for name in names) for row in self.rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Part:
        first, names, *lines = path.read_text(encoding="utf-8").splitlines()
        rows = [dict(zip(names.split(), map(int, line.split()), strict=True)) for line in lines]
        return cls(first.removeprefix("# "), rows)

    def medians(self) -> dict[str, float]:
        return {name: median(row[name] for row in self.rows) for name in self.rows[0]}


def gains(early: Part, late: Part) -> dict[str, float]:
    """The curves whose median in a later part is higher than in an earlier one by more than is allowed, and by how much."""
    before, after = early.medians(), late.medians()
    found = {name: after[name] - before[name] for name in before if "." in name}
    return {name: gain for name, gain in found.items() if gain > GAIN_MOST[name.partition(".")[2]]}


# The picture


class Panel(NamedTuple):
    """One chart: its title, with the unit; the columns it shows by their ends; the number that makes one unit."""

    title: str
    column: str
    unit: int


PANELS = (
    Panel("Resident memory, MiB", "rss_kib", 1024),
    Panel("Open descriptors", "descriptors", 1),
    Panel("Threads", "threads", 1),
    Panel("Write-ahead log, MiB", "wal_kib", 1024),
)
WIDTH, LEFT, RIGHT, TOP = 840, 56, 150, 64
HEIGHT, GAP = 132, 46
STYLE = """
svg { font: 13px system-ui, sans-serif; background: #fff }
text { fill: #24292f } .quiet { fill: #57606a } .grid { stroke: #d0d7de; stroke-width: 1 }
path { fill: none; stroke-width: 1.6; stroke-linejoin: round }
.c0 { stroke: #0969da } .c1 { stroke: #cf222e } .c2 { stroke: #1a7f37 }
.c3 { stroke: #8250df } .c4 { stroke: #9a6700 } .c5 { stroke: #0a7d91 }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117 } text { fill: #e6edf3 } .quiet { fill: #9198a1 } .grid { stroke: #30363d }
  .c0 { stroke: #58a6ff } .c1 { stroke: #ff7b72 } .c2 { stroke: #3fb950 }
  .c3 { stroke: #bc8cff } .c4 { stroke: #d29922 } .c5 { stroke: #39c5cf }
}
"""


def ticks(most: float) -> list[int]:
    """Three to six whole numbers from 0 to the first that is not below `most`."""
    step = next(n * 10**zeros for zeros in range(9) for n in (1, 2, 5) if most <= 5 * n * 10**zeros)
    return list(range(0, int(-(-most // step)) * step + 1, step))


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """A line through points; of those that are level with both their neighbours, none is written."""
    at = [(round(x, 1), round(y, 1)) for x, y in points]
    kept = [
        here
        for number, here in enumerate(at)
        if not (0 < number < len(at) - 1 and at[number - 1][1] == here[1] == at[number + 1][1])
    ]
    return "M" + " ".join(f"{x:g},{y:g}" for x, y in kept)


def chart(panel: Panel, rows: Sequence[Row], names: Sequence[str], top: float) -> list[str]:
    """One chart: its title, a grid with numbers, and a line for each process."""
    columns = {name: column for name in names if (column := f"{name}.{panel.column}") in rows[0]}
    columns = columns or {"": panel.column}
    last_s = rows[-1]["seconds"]
    scale = ticks(max(row[column] for row in rows for column in columns.values()) / panel.unit)
    right = WIDTH - RIGHT

    def x(seconds: float) -> float:
        return LEFT + (right - LEFT) * seconds / last_s

    def y(value: float) -> float:
        return top + HEIGHT * (1 - value / scale[-1])

    drawn = [f'<text x="{LEFT}" y="{top - 10:g}" font-weight="600">{escape(panel.title)}</text>']
    for value in scale:
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        drawn.append(f'<text class="quiet" x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    minutes = ticks(last_s / 60)
    for minute in (each for each in minutes if each * 60 <= last_s + 30):
        text = f"{minute} min" if minute == minutes[0] else str(minute)
        drawn.append(
            f'<text class="quiet" x="{x(minute * 60):.1f}" y="{top + HEIGHT + 17:g}" text-anchor="middle">{text}</text>'
        )
    for name, column in columns.items():
        line = path_of((x(row["seconds"]), y(row[column] / panel.unit)) for row in rows)
        number = names.index(name) if name else 0
        drawn.append(f'<path class="c{number}" d="{line}"><title>{escape(name or panel.title)}</title></path>')
        last = median(row[column] for row in rows[-60:]) / panel.unit
        at = top + 12 + number * 19
        said = f"{name or 'log'} {last:.0f}"
        if name:
            drawn.append(f'<path class="c{number}" d="M{right + 14},{at - 4:g} h16"/>')
        drawn.append(f'<text x="{right + 36}" y="{at:g}">{escape(said)}</text>')
    return drawn


def picture(parts: Sequence[Part]) -> str:
    """All curves of these parts, one after another, as SVG."""
    rows = [row for part in parts for row in part.rows]
    names = [name.partition(".")[0] for name in rows[0] if name.endswith(".threads")]
    minutes, kills = rows[-1]["seconds"] / 60, rows[-1]["kills"]
    title = f"{minutes:.0f} minutes of one room, {kills:,} processes killed beside those that are shown"
    height = TOP + len(PANELS) * (HEIGHT + GAP)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text class="quiet" x="{LEFT}" y="40" font-size="12">{escape(parts[0].machine)}</text>',
    ]
    for number, panel in enumerate(PANELS):
        drawn += chart(panel, rows, names, TOP + 12 + number * (HEIGHT + GAP))
    return "\n".join([*drawn, "</svg>"]) + "\n"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print(f"usage: python -m tests.faults.curves FOLDER PICTURE\n\n{__doc__}", file=sys.stderr)
        return 2
    files = sorted(Path(arguments[0]).glob("part-*.txt"))
    if not files:
        print(f"no part-*.txt in {arguments[0]}", file=sys.stderr)
        return 1
    Path(arguments[1]).write_text(picture([Part.read(file) for file in files]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
