"""The pages of the documents that come with Postroom, and the site that shows the same ones.

A wheel has them in `postroom/docs` (pyproject.toml puts them there); a checkout has them where they are written.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

#: Where the documents stand on the web; the one place that says so. A placeholder until the project is published.
SITE: Final = "https://postroom.dev/"

_PACKAGE: Final = Path(__file__).parents[1]
_PLACES: Final = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")


@cache
def topics() -> dict[str, Path]:
    """Every page by its topic, which is its path without the ending: `guide`, `design/sqlite`. Folders come last."""
    folder = next((place for place in _PLACES if (place / "guide.md").is_file()), None)
    found = folder.rglob("*.md") if folder is not None else ()
    pages = {page.relative_to(folder or page).with_suffix("").as_posix(): page for page in found}
    return dict(sorted(pages.items(), key=lambda item: (item[0].count("/"), item[0])))


def topics_of(name: str) -> list[str]:
    """The topics that a name may mean: the one of that name, else those whose last part it is."""
    name = name.lower().removeprefix("docs/").removesuffix(".md")
    return [name] if name in topics() else [topic for topic in topics() if topic.rpartition("/")[2] == name]


def title_of(topic: str) -> str:
    """The first heading of a page."""
    with topics()[topic].open(encoding="utf-8") as page:
        return next((line.lstrip("# ").strip() for line in page if line.startswith("# ")), topic)


def address_of(topic: str) -> str:
    """The page on the web."""
    return f"{SITE}{topic}.html"


def see(topic: str) -> str:
    """How a sentence refers to a page, for readers with and without the documents' folder (tests/cli/test_help.py)."""
    return f"`postroom help {topic}`"
