"""Drawing with rich, for a person at a terminal: loading it costs 44 ms, and only a person is worth that."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def console() -> Console:
    """Standard output, on which nothing in a text means anything but itself."""
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def draw_table(columns: Sequence[str], rows: list[list[str]], title: str) -> None:
    """Write a table."""
    drawn = Table(title=Text(title, style="bold") if title else None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        drawn.add_column(Text(column), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    sys.stdout.flush()
    console().print(drawn)


def draw_page(text: str) -> None:
    """Write a page of the documents, which is Markdown."""
    from rich.markdown import Markdown  # tables do not need it, and it takes longer to load than they do

    sys.stdout.flush()
    console().print(Markdown(text, hyperlinks=False))
