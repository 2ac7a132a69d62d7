"""Pictures of every view, for docs/: `python -m tests.doors.web.pictures [FOLDER]`. Needs Chromium and Playwright."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tests.support import ROOT

from .browser import Site, browsing, serving
from .moving import Frame, moving
from .story import an_hour, everything, talk

OTHERS = ("agents", "mailboxes", "board", "sessions", "dead")
#: Views that have more to show than a screen.
TALL = {"sessions": 1180}
SETTLE_MS = 1200
#: The moving picture: how large, and how many rounds of talk it shows.
FILM = {"width": 1040, "height": 560}
FILM_ROUNDS = 2
FRAME_MS, LAST_FRAME_MS = 700, 4000


@contextmanager
def shop() -> Iterator[Path]:
    """A folder whose name may stand in a picture; when somebody has it already, another."""
    folder = Path(tempfile.gettempdir()) / "shop"
    try:
        folder.mkdir()
    except FileExistsError:
        with tempfile.TemporaryDirectory() as another:
            yield Path(another)
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def take(folder: Path) -> None:
    """Make them all."""
    folder.mkdir(parents=True, exist_ok=True)
    with shop() as place, an_hour(place) as room, serving(room) as site:
        with browsing() as page:
            conversation(page, site, folder)
        with browsing(theme="dark") as page:
            shot(page, site, "conversation", folder / "conversation-dark.png")
        with browsing(width=390, height=780) as page:
            shot(page, site, "conversation", folder / "phone.png")
    with (
        shop() as place,
        everything(place) as room,
        serving(room) as site,
        browsing() as page,
    ):
        for view in OTHERS:
            page.set_viewport_size({"width": 1440, "height": TALL.get(view, 900)})
            shot(page, site, view, folder / f"{view}.png")
    film(folder / "live.webp", "light")
    film(folder / "live-dark.webp", "dark")


def film(path: Path, theme: Literal["light", "dark"]) -> None:
    """The conversation while agents talk: a frame after each of their steps."""
    frames: list[Frame] = []
    with shop() as place, an_hour(place) as room, serving(room) as site, browsing(theme, **FILM) as page:

        def frame(_: float = 0) -> None:
            page.wait_for_timeout(SETTLE_MS / 2)
            frames.append(Frame(page.screenshot(), FRAME_MS))

        page.goto(f"{site.address}#conversation")
        page.wait_for_selector('#live[data-how="live"]')
        frame()
        talk(room, FILM_ROUNDS, frame)
        frame()
        frames[-1] = frames[-1]._replace(ms=LAST_FRAME_MS)
        page.goto("about:blank")
        path.write_bytes(moving(page, frames))


def conversation(page: Any, site: Site, folder: Path) -> None:
    """The conversation, one message of it, and how it was half an hour ago."""
    shot(page, site, "conversation", folder / "conversation.png")
    page.locator('.row[data-look="dead"]').first.click()
    page.wait_for_selector("#drawer .steps")
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=folder / "message.png")
    page.keyboard.press("Escape")
    page.locator("#t-slider").fill("5000")
    page.wait_for_selector('#live[data-how="past"]')
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=folder / "past.png")


def shot(page: Any, site: Site, view: str, path: Path) -> None:
    """One view, as it is now."""
    page.goto(f"{site.address}#{view}")
    page.wait_for_selector('#live[data-how="live"]')
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=path)


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
