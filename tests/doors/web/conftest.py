"""A served room for tests of the page."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.clock import ManualClock
from postroom.room import Room

from .browser import PATIENCE_MS, Site, chromium, need_browser, serving


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Another program, with the token."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __call__(self, path: str, body: Any = None, **headers: str) -> Answer:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {self.site.token}", "Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.site.base + path, data, {k: v for k, v in given.items() if v})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return Answer(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    def get(self, path: str) -> Any:
        """What a request that must end well says."""
        answer = self(path)
        assert answer.status == 200, answer
        return answer.json

    def post(self, path: str, body: Any) -> Any:
        answer = self(path, body)
        assert answer.status == 200, answer
        return answer.json


@pytest.fixture(params=[pytest.param(store, marks=pytest.mark.slow) for store in ("memory", "sqlite", "files", "nats")])
def real_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "nats":
        return f"nats://{shared_server().address}/{room_name()}"
    return f"memory:web-{tmp_path.name}" if request.param == "memory" else f"{request.param}:{tmp_path}/room"


@pytest.fixture
def room(real_url: str) -> Iterator[Room]:
    """A room on each store, in real time: a browser has no other."""
    with postroom.open(real_url) as room:
        yield room


@pytest.fixture
def sqlite_room(tmp_path: Path) -> Iterator[Room]:
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        yield room


@pytest.fixture
def site(sqlite_room: Room) -> Iterator[Site]:
    with serving(sqlite_room) as site:
        yield site


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow)])
def on_sqlite(site: Site) -> Client:
    return Client(site)


@pytest.fixture(scope="module")
def any_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server for many tests, of a room in which nothing matters."""
    with postroom.open(f"sqlite:{tmp_path_factory.mktemp('any')}/room") as room, serving(room) as site:
        yield site


@pytest.fixture
def client(room: Room) -> Iterator[Client]:
    with serving(room) as site:
        yield Client(site)


@pytest.fixture(params=["memory", "sqlite"])
def room_with(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[ManualClock], Room]]:
    """A room on each store, in a time of the test's own."""
    opened: list[Room] = []
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path}/room"

    def open_one(clock: ManualClock) -> Room:
        opened.append(postroom.open(url, clock=clock))
        return opened[-1]

    yield open_one
    for room in opened:
        room.close()


Open = Callable[..., Any]
NewTab = Callable[[], Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of a file."""
    need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def window(browser: Any) -> Iterator[Any]:
    """A window for each test. In one for all, a tab that opens as another closes may be behind, and is not drawn."""
    with browser.new_context() as window:
        yield window


@pytest.fixture
def new_tab(window: Any) -> Iterator[NewTab]:
    """Opens a tab in the window."""
    tabs = []

    def open_one() -> Any:
        tabs.append(window.new_page())
        tabs[-1].set_default_timeout(PATIENCE_MS)
        return tabs[-1]

    yield open_one
    for tab in tabs:
        tab.close()


@pytest.fixture
def open_page(browser: Any, site: Site, new_tab: NewTab) -> Iterator[Open]:
    """Opens the page, on another device in a window of its own. What goes wrong in it fails the test, also unseen.

    The tabs are closed before the server ends: what a page does without one is for the tests of that.
    """
    faults: list[str] = []
    windows = []

    def open_one(
        view: str = "conversation", width: int = 1280, height: int = 800, expect: str = "", **device: Any
    ) -> Any:
        if device:
            windows.append(browser.new_context(**device))
            page = windows[-1].new_page()
            page.set_default_timeout(PATIENCE_MS)
        else:
            page = new_tab()
        page.set_viewport_size({"width": width, "height": height})
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("console", lambda said: faults.append(f"console: {said.text}") if is_fault(said, expect) else None)
        page.goto(f"{site.address}#{view}")
        page.wait_for_selector('#live[data-how="live"]')
        return page

    yield open_one
    for window in windows:
        window.close()
    assert faults == []


def is_fault(said: Any, expected: str) -> bool:
    """Whether the console says that something went wrong, other than what the test is about."""
    return said.type == "error" and not (expected and expected in said.text)
