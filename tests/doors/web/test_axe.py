"""No view of the page keeps anybody from using it, as far as axe can tell: light and dark, on a desk and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import postroom

from .browser import browsing, need_browser, serving
from .story import a_little, run_sessions

pytestmark = pytest.mark.slow

VIEWS = ("conversation", "agents", "mailboxes", "board", "sessions", "dead")


def axe() -> str:
    """The script, from the package that brings it; skips like a missing browser where it is not installed."""
    try:
        return (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    except ModuleNotFoundError:
        missing = "axe is not installed: pip install 'postroom[browser]'"
        if os.environ.get("POSTROOM_REQUIRE_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page on which axe is, of a served room in which everything has something to show."""
    need_browser()
    script = axe()
    with TemporaryDirectory() as folder, postroom.open(f"sqlite:{folder}/room") as room:
        run_sessions(Path(folder), str(room.url))
        outcomes = {"ada": {"granted": True}, "bob": {"granted": False, "reason": "outranked"}}
        decision = {"trigger": "quorum", "granted": ["ada"], "outcomes": outcomes}
        room.store.cell_write("decision/m1", {"owner": "x", "until_ms": 5, "decision": decision})
        room.schedule("stand-up", cron="0 9 * * 1-5", to="bob", payload={"text": "stand-up!"})
        id = a_little(room)
        room.limit("jobs", concurrent=4, waiting=100)
        room.pause("jobs", reason="the database is down", by="mia")
        room.pause(agent="bob", by="mia")
        room.people.ask("mia", "Deploy 1.4?", "ada", options=["yes", "no"], default="no", timeout_s=7200)
        room.people.ask("mia", "What shall it be called?", "ada")
        with serving(room) as site, browsing() as page:
            page.emulate_media(reduced_motion="reduce")
            page.goto(site.address)
            page.wait_for_selector('#live[data-how="live"]')
            page.evaluate(script)
            page.message_id = id
            yield page


def faults_of(page: Any, where: str, rules: str = "{}") -> list[str]:
    """What axe finds on the page as it stands."""
    found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], ...{rules}}})")
    return [
        f"{where}: {fault['id']} ({fault['impact']}): {node['target']} {node['failureSummary']}"
        for fault in found["violations"]
        for node in fault["nodes"]
    ]


#: In the dark only the colours are others, and they are the same on a phone.
COLOURS = "{runOnly: {type: 'rule', values: ['color-contrast', 'link-in-text-block']}}"


@pytest.mark.parametrize(
    ("theme", "rules", "width"),
    [
        ("light", "{}", 1280),
        ("light", "{}", 390),
        ("dark", COLOURS, 1280),
        pytest.param("dark", COLOURS, 390, marks=pytest.mark.long),
    ],
)
def test_axe_finds_nothing_on_any_view(page: Any, theme: str, rules: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    faults = []
    for view in VIEWS:
        page.evaluate(f"location.hash = '{view}'")
        page.wait_for_selector(f"#view-{view} {'.row[data-id]' if view == 'conversation' else '.card'}")
        faults += faults_of(page, view, rules)
    page.evaluate(f"location.hash = 'conversation?text=files&message={page.message_id}'")
    page.wait_for_selector("#drawer .steps")
    page.wait_for_selector("#f-clear:not([hidden])")
    faults += faults_of(page, "a message", rules)
    for key, name in (("?", "keys"), ("w", "write")):
        page.keyboard.press(key)
        page.wait_for_selector("dialog[open]")
        faults += faults_of(page, name, rules)
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog:not([open])", state="attached")

    assert faults == []


def test_axe_finds_what_is_wrong(page: Any) -> None:
    page.evaluate("location.hash = 'agents'")
    name = page.locator("#view-agents h1")
    name.wait_for()
    name.evaluate("name => Object.assign(name.style, {color: '#777777', background: '#888888'})")

    broken = faults_of(page, "agents", COLOURS)

    assert [fault.split()[1] for fault in broken] == ["color-contrast"]


def test_axe_finds_nothing_where_the_key_is_missing(page: Any) -> None:
    page.goto(f"{page.url.partition('#')[0]}page/closed.html")
    page.evaluate(axe())

    assert faults_of(page, "closed") == []
