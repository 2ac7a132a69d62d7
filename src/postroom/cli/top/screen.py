"""Draws a `RoomPicture` with rich, to the size of a terminal. Nothing is looked up here.

Each part gets at least its headline and a line; what is left is shared among the parts that have more to show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from postroom.cli.output import visible
from postroom.cli.terminal import console
from postroom.core.clock import from_iso
from postroom.mail.handles import handle_of

from .picture import LimitLine, RoomPicture

#: No name or text is drawn longer than this, however wide the terminal is.
MAX_CELLS: Final = 200
#: A terminal smaller than this is drawn as if it had so many lines.
MIN_LINES: Final = 10
_STATUS_STYLE: Final = {"gone": "bold red", "active": "green", "stopped": "dim", "seen": "dim"}


Cell = tuple[str, str]  # text, style


class Column(NamedTuple):
    """A column: what stands in it for each line, how wide it is at most, and whether those are numbers.

    A share: it takes what others leave.
    """

    title: str
    cell: Callable[[Any], Cell]
    width: int = 0
    number: bool = False
    share: int = 0


class ScreenPart(NamedTuple):
    """A part of the screen: its columns, its lines, what is said when there are none, and how many there are in all."""

    columns: tuple[Column, ...]
    lines: Sequence[Any]
    empty: str
    total: int = 0


def text_of(picture: RoomPicture) -> str:
    """The picture as text."""
    screen = console()
    with screen.capture() as drawn:
        screen.print(draw(picture))
    return drawn.get().rstrip("\n")


@contextmanager
def live(first: RoomPicture) -> Iterator[Callable[[RoomPicture], None]]:
    """The whole terminal shows a picture until the block ends; gives a function that shows the next."""
    screen = console()
    with Live(draw(first, screen.height), console=screen, screen=True, auto_refresh=False) as shown:
        yield lambda picture: shown.update(draw(picture, screen.height), refresh=True)


def draw(picture: RoomPicture, height: int | None = None) -> RenderableType:
    """The picture as rich draws it, on `height` lines; None is as many as it takes."""
    head = _head(picture)
    waiting = sorted(picture.waiting, key=lambda wait: not wait.cycle)
    parts = [
        ScreenPart(_AGENTS, picture.agents, "no agents yet"),
        ScreenPart(_MAILBOXES, picture.mailboxes, "no mail is waiting"),
        ScreenPart(_WAITING, waiting, "no open questions"),
        ScreenPart(_DEAD, picture.dead, "no dead letters", picture.states.get("dead", 0)),
    ]
    if picture.limits:
        parts.insert(2, ScreenPart(_LIMITS, picture.limits, ""))
    wanted = [len(part.lines) for part in parts]
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
    if picture.schedules:
        ticks = f"{picture.schedules} schedule{'s' * (picture.schedules > 1)}"
        facts.append(ticks if picture.next_tick is None else f"{ticks}, next {_next_tick(picture)}")
    if "wal_bytes" in store:
        facts.append(f"log {size(store['wal_bytes'])}")
    if "wake_up" in store:
        facts.append(f"wake-up: {visible(str(store['wake_up']))}")
    return [
        _line(("postroom ", "bold"), (visible(picture.room), ""), (f"  {picture.time[11:19]} UTC", "dim")),
        _line((counts or "no messages yet", "bold")),
        _line((" · ".join(facts), "")),
    ]


def _next_tick(picture: RoomPicture) -> str:
    assert picture.next_tick is not None
    return f"in {span(max(0, from_iso(picture.next_tick) - from_iso(picture.time)) / 1000)}"


def _line(*pieces: Cell) -> Text:
    return Text.assemble(*pieces, no_wrap=True, overflow="ellipsis", end="\n")


def _plain(text: str | None) -> Cell:
    return text or "", ""


def _alive(alive: bool | None) -> Cell:
    return ("", "dim") if alive is None else ("yes", "green") if alive else ("no", "red")


def _running(line: LimitLine) -> str:
    return (
        "" if line.running is None else str(line.running) if line.allowed is None else f"{line.running}/{line.allowed}"
    )


def _paused(line: LimitLine) -> str:
    if line.paused_by is None:
        return ""
    return f"{span(line.paused_age_s or 0)} by {line.paused_by}{f': {line.reason}' if line.reason else ''}"


def _rate(per_s: float) -> Cell:
    return _plain(f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s else "")


_AGENTS: Final = (
    Column("AGENTS", lambda agent: (agent.name, "bold"), share=3),
    Column("status", lambda agent: (agent.status, _STATUS_STYLE.get(agent.status, "")), 10),
    Column("alive", lambda agent: _alive(agent.alive), 5),
    Column("beat", lambda agent: _plain(span(agent.heartbeat_age_s)), 6, number=True),
    Column("waiting", lambda agent: _plain(str(agent.pending or "")), 7, number=True),
    Column("task", lambda agent: _plain(agent.current_task), share=4),
)
_MAILBOXES: Final = (
    Column("MAILBOXES", lambda box: (box.to_agent or "(anybody)", "bold"), share=3),
    Column("channel", lambda box: _plain(box.channel), share=3),
    Column("waiting", lambda box: _plain(str(box.depth or "")), 8, number=True),
    Column("oldest", lambda box: _plain("" if box.oldest_age_s is None else span(box.oldest_age_s)), 6, number=True),
    Column("in/s", lambda box: _rate(box.in_per_s), 8, number=True),
    Column("out/s", lambda box: _rate(box.out_per_s), 8, number=True),
)
_LIMITS: Final = (
    Column("LIMITS", lambda line: (f"#{line.channel}" if line.agent is None else line.agent, "bold"), share=3),
    Column("running", lambda line: _plain(_running(line)), 8, number=True),
    Column("allowed", lambda line: _plain(line.limits), share=3),
    Column("paused", lambda line: (_paused(line), "bold"), share=4),
)
_WAITING: Final = (
    Column("WAITS", lambda wait: (wait.asker, "bold"), share=3),
    Column("for", lambda wait: _plain(wait.peer or "(anybody)"), share=3),
    Column("since", lambda wait: _plain(span(wait.age_s)), 6, number=True),
    Column("question", lambda wait: (handle_of(wait.question_id), "dim"), 8),
    Column("", lambda wait: ("cycle!" if wait.cycle else "", "bold red"), 7),
)
_DEAD: Final = (
    Column("DEAD", lambda letter: (handle_of(letter.id), "dim"), 14),
    Column("for", lambda letter: _plain(letter.to_agent or f"#{letter.channel}"), share=2),
    Column("tries", lambda letter: _plain(str(letter.delivery_count)), 5, number=True),
    Column("age", lambda letter: _plain(span(letter.age_s)), 6, number=True),
    Column("error", lambda letter: (letter.error or "", "red"), share=4),
)


def _table(part: ScreenPart, count: int) -> RenderableType:
    """The first rows of a part, one line each, under a headline that says how many there are."""
    name = part.columns[0].title
    if not part.lines:
        return Text(f"{name}  {part.empty}", style="dim", no_wrap=True, overflow="ellipsis")
    total = max(part.total, len(part.lines))
    shown = f"{name} {total}" if count == total else f"{name} {count}/{total}"
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
    for line in part.lines[:count]:
        cells = (column.cell(line) for column in part.columns)
        drawn.add_row(*(Text(_cut(visible(text)), style=style) for text, style in cells))
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
