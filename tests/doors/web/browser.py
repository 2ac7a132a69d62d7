"""The server in a thread, and a real browser in front of it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import pytest

from postroom.doors.web import server
from postroom.doors.web.app import RequestRates
from postroom.doors.web.guard import new_token
from postroom.room import Room

#: Far more than anything takes: a machine that others use may stand still for a minute, and that is no fault of the page.
PATIENCE_MS = 120_000


class Site(NamedTuple):
    """A served room."""

    port: int
    token: str

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.base}/?token={self.token}"


#: Enough for a fuzzer; the limits have a test of their own.
UNLIMITED = RequestRates(1e9, 1e9, 1e9)


@contextmanager
def serving(room: Room, rates: RequestRates | None = UNLIMITED, at: Site | None = None) -> Iterator[Site]:
    """Serve a room in a thread (where another was served before); when the block ends, so does the thread."""
    sock = server.listening("127.0.0.1", 0 if at is None else at.port)
    token = new_token() if at is None else at.token
    site = Site(sock.getsockname()[1], token)
    ends: list[Any] = []
    began = threading.Event()

    def note(end: Any) -> None:
        ends.append(end)
        began.set()

    thread = threading.Thread(
        target=server.serve, args=(room, sock, token), kwargs={"name": "mia", "began": note, "rates": rates}
    )
    thread.start()
    assert began.wait(20)
    try:
        yield site
    finally:
        ends[0]()
        thread.join(PATIENCE_MS / 1000)
        assert not thread.is_alive(), "the server did not end"


def chromium() -> str | None:
    """Where this machine's Chromium is."""
    named = os.environ.get("POSTROOM_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def need_browser() -> None:
    """Skip where there is no browser; fail where there must be one (POSTROOM_REQUIRE_BROWSER, which CI sets)."""
    missing = None
    try:
        import playwright  # noqa: F401
    except ModuleNotFoundError:
        missing = "Playwright is not installed: pip install 'postroom[browser]'"
    if missing is None and chromium() is None:
        missing = "there is no Chromium: apt-get install chromium, or set POSTROOM_CHROMIUM"
    if missing and os.environ.get("POSTROOM_REQUIRE_BROWSER"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)


@contextmanager
def browsing(theme: Literal["light", "dark"] = "light", width: int = 1440, height: int = 900) -> Iterator[Any]:
    """A page of a real browser. What goes wrong in it, in the console or unseen, fails at the end."""
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: faults.append(f"error: {error}"))
            page.on("console", lambda said: faults.append(f"console: {said.text}") if said.type == "error" else None)
            yield page
        finally:
            browser.close()
    assert faults == []


def row(page: Any, id: str, look: str | None = None) -> Any:
    """The arrow of a message, when it is there (and looks so)."""
    found = page.locator(f'.row[data-id="{id}"]' + (f'[data-look="{look}"]' if look else ""))
    found.wait_for()
    return found


def until(page: Any, true: str) -> None:
    """Wait until something is true in the page. Playwright's own way would need `eval`, which the page's policy forbids."""
    for _ in range(PATIENCE_MS // 50):
        if page.evaluate(true):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"it did not become true: {true}")


def rows_shown(page: Any, count: int) -> None:
    """Wait until so many arrows are shown."""
    until(page, f"document.querySelectorAll('.row[data-id]').length === {count}")
