"""Draws a `RoomPicture` with rich, to the size of a terminal. Nothing is looked up here.

Each part gets at least its headline and a line; what is left is shared among the parts that have more to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from postroom.cli.output import visible

from .picture import RoomPicture

#: No name or text is drawn longer than this, however wide the terminal is.
MAX_CELLS: Final = 200
#: A terminal smaller than this is drawn as if it had so many lines.
MIN_LINES: Final = 10
_STATUS_STYLE: Final = {"gone": "bold red", "active": "green", "stopped": "dim", "seen": "dim"}


class Column(NamedTuple):
    """A column: how wide it is at most, and whether numbers stand in it. A share: it takes what others leave."""

    title: str
    width: int = 0
    number: bool = False
    share: int = 0


Cell = tuple[str, str]  # text, style


class ScreenPart(NamedTuple):
    """A part of the screen: its columns, its rows, and what is said when there are none."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    empty: str


def draw(picture: RoomPicture, height: int | None = None) -> RenderableType:
    """The picture as rich draws it, on `height` lines; None is as many as it takes."""
    head = _head(picture)
    parts = [_agents(picture), _mailboxes(picture), _waiting(picture), _dead(picture)]
    wanted = [len(part.rows) for part in parts]
    lines = wanted if height is None else share_lines(wanted, max(MIN_LINES, height) - len(head))
    return Group(*head, *(_table(part, count) for part, count in zip(parts, lines, strict=True)))


def share_lines(wanted: Sequence[int], lines: int) -> list[int]:
    """How many rows each part gets: its headline is always there, the rest goes round, a row at a time."""
    given = [0] * len(wanted)
    left = lines - len(wanted)
    while left > 0 and any(have < want for have, want in zip(given, wanted, strict=True)):
        for index, want in enumerate(wanted):
            if given[index] < want and left > 0:
                given[index] += 1
                left -= 1
    return given


def _head(picture: RoomPicture) -> list[Text]:
    counts = " · ".join(f"{number} {state}" for state, number in picture.states.items() if number)
    store = picture.store
    facts = [f"{picture.in_per_s:g}/s in, {picture.out_per_s:g}/s out"]
    if picture.oldest_age_s is not None:
        facts.append(f"oldest {span(picture.oldest_age_s)}")
    if "wal_bytes" in store:
        facts.append(f"log {size(store['wal_bytes'])}")
    if "wake_up" in store:
        facts.append(f"wake-up: {visible(str(store['wake_up']))}")
    return [
        _line(("postroom ", "bold"), (visible(picture.room), ""), (f"  {picture.time[11:19]} UTC", "dim")),
        _line((counts or "no messages yet", "bold")),
        _line((" · ".join(facts), "")),
    ]


def _line(*pieces: Cell) -> Text:
    return Text.assemble(*pieces, no_wrap=True, overflow="ellipsis", end="\n")


def _agents(picture: RoomPicture) -> ScreenPart:
    columns = (
        Column("AGENTS", share=3),
        Column("status", 10),
        Column("alive", 5),
        Column("beat", 6, number=True),
        Column("waiting", 7, number=True),
        Column("task", share=4),
    )
    rows = [
        (
            (agent.name, "bold"),
            (agent.status, _STATUS_STYLE.get(agent.status, "")),
            _alive(agent.alive),
            (span(agent.heartbeat_age_s), ""),
            (str(agent.pending or ""), ""),
            (agent.current_task or "", ""),
        )
        for agent in picture.agents
    ]
    return ScreenPart(columns, rows, "nobody was here yet")


def _alive(alive: bool | None) -> Cell:
    return ("", "dim") if alive is None else ("yes", "green") if alive else ("no", "red")


def _mailboxes(picture: RoomPicture) -> ScreenPart:
    columns = (
        Column("MAILBOXES", share=3),
        Column("channel", share=3),
        Column("waiting", 8, number=True),
        Column("oldest", 6, number=True),
        Column("in/s", 8, number=True),
        Column("out/s", 8, number=True),
    )
    rows = [
        (
            (box.to_agent or "(anybody)", "bold"),
            (box.channel, ""),
            (str(box.depth or ""), ""),
            ("" if box.oldest_age_s is None else span(box.oldest_age_s), ""),
            (_rate(box.in_per_s), ""),
            (_rate(box.out_per_s), ""),
        )
        for box in picture.mailboxes
    ]
    return ScreenPart(columns, rows, "no mail is waiting")


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s else ""


def _waiting(picture: RoomPicture) -> ScreenPart:
    columns = (
        Column("WAITS", share=3),
        Column("for", share=3),
        Column("since", 6, number=True),
        Column("question", 36),
        Column("", 7),
    )
    rows = [
        (
            (wait.asker, "bold"),
            (wait.peer or "(anybody)", ""),
            (span(wait.age_s), ""),
            (wait.question_id, "dim"),
            ("cycle!" if wait.cycle else "", "bold red"),
        )
        for wait in sorted(picture.waiting, key=lambda wait: not wait.cycle)
    ]
    return ScreenPart(columns, rows, "nobody waits for an answer")


def _dead(picture: RoomPicture) -> ScreenPart:
    columns = (
        Column("DEAD", 36),
        Column("for", share=2),
        Column("tries", 5, number=True),
        Column("age", 6, number=True),
        Column("error", share=4),
    )
    rows = [
        (
            (letter.id, "dim"),
            (letter.to_agent or f"#{letter.channel}", ""),
            (str(letter.delivery_count), ""),
            (span(letter.age_s), ""),
            (letter.error or "", "red"),
        )
        for letter in picture.dead
    ]
    return ScreenPart(columns, rows, "no dead letters")


def _table(part: ScreenPart, count: int) -> RenderableType:
    """The first rows of a part, one line each, under a headline that says how many there are."""
    name = part.columns[0].title
    if not part.rows:
        return Text(f"{name}  {part.empty}", style="dim", no_wrap=True, overflow="ellipsis")
    shown = f"{name} {len(part.rows)}" if count == len(part.rows) else f"{name} {count}/{len(part.rows)}"
    drawn = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="reverse")
    for column in part.columns:
        drawn.add_column(
            Text(shown if column is part.columns[0] else column.title),
            justify="right" if column.number else "left",
            width=column.width or None,
            ratio=column.share or None,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in part.rows[:count]:
        drawn.add_row(*(Text(_cut(visible(text)), style=style) for text, style in row))
    return drawn


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELLS else text[: MAX_CELLS - 1] + "…"


def span(seconds: float) -> str:
    """A span of time in at most six letters: 8s, 12min, 3h, 40d."""
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size_s:
            return f"{seconds // size_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def size(count: int) -> str:
    """A number of bytes as people read it."""
    for unit_bytes, unit in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if count >= unit_bytes:
            return f"{count / unit_bytes:.1f} {unit}"
    return f"{count} B"
