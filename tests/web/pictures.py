"""Pictures of every view, for docs/: `python -m tests.web.pictures [FOLDER]`. Needs Chromium and Playwright."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from .browser import Site, browsing, serving
from .story import ROOT, an_hour, everything

OTHERS = ("agents", "mailboxes", "board", "sessions", "dead")
SETTLE_MS = 1200


def take(folder: Path) -> None:
    """Make them all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, an_hour(Path(place)) as room, serving(room) as site:
        with browsing() as page:
            conversation(page, site, folder)
        with browsing(theme="dark") as page:
            shot(page, site, "conversation", folder / "conversation-dark.png")
        with browsing(width=390, height=780) as page:
            shot(page, site, "conversation", folder / "phone.png")
    with (
        tempfile.TemporaryDirectory() as place,
        everything(Path(place)) as room,
        serving(room) as site,
        browsing() as page,
    ):
        for view in OTHERS:
            shot(page, site, view, folder / f"{view}.png")


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
