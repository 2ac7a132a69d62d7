"""The site has every page in its section, and what `make docs` builds works in a real browser, offline."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.doors.web.browser import PATIENCE_MS, browsing, need_browser
from tests.support import DOCS, ROOT

PAGES = [
    "index",
    "guide",
    "architecture",
    "guarantees",
    "cli",
    "reference/rooms",
    "reference/settings",
    "reference/commands",
]


def of_site(name: str) -> ModuleType:
    """A program of docs/site, which is no package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hooks() -> ModuleType:
    return of_site("hooks")


def test_every_page_stands_in_one_section(hooks: ModuleType) -> None:
    placed = [topic for topics in hooks.ordered().values() for topic in topics]
    written = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}

    assert sorted([*placed, hooks.HOME]) == sorted(written)
    assert list(hooks.ordered()) == ["Tutorial", "How-to guides", "Concepts", "Reference"]


def test_a_new_page_finds_its_place_by_itself(hooks: ModuleType, tmp_path: Path) -> None:
    pages = {
        "index": "# Home", "guide": "# Guide", "cli": "# Shell\n\nSee [the second](cli/b.md).", "cli/a": "# A",
        "cli/b": "# B", "reference": "# Reference", "from/x": "# From X", "unheard-of": "# New",
    }  # fmt: skip
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")
    vars(hooks)["DOCS"] = tmp_path

    assert hooks.ordered() == {
        "Tutorial": ["guide"],
        "How-to guides": ["cli", "cli/b", "cli/a", "from/x", "unheard-of"],  # as the first page links to them
        "Concepts": [],
        "Reference": ["reference"],
    }
    assert hooks.menu(["cli", "cli/b", "guide"]) == [{"Shell": [{"Overview": "cli.md"}, "cli/b.md"]}, "guide.md"]


def run_on(text: str) -> list[str]:
    """Lists and tables that begin on the line behind a paragraph: other readers show them, the site's does not."""
    lines = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S).split("\n")
    begins, goes_on = re.compile(r"- |\d+\. |\|"), re.compile(r"\s*(- |\d+\. |\|)|\s{2,}|\s*$")
    return [here for before, here in pairwise(lines) if begins.match(here) and not goes_on.match(before)]


def test_lists_and_tables_stand_behind_a_blank_line() -> None:
    found = {str(page.relative_to(DOCS)): run_on(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")}

    assert {name: lines for name, lines in found.items() if lines} == {}
    assert run_on("These:\n- one\n- two\n\n- three\n```\nx\n- no\n```\nso\n| a |") == ["- one", "| a |"]


def test_the_list_for_models_names_every_page_with_its_first_sentence(hooks: ModuleType) -> None:
    text = hooks.llms_text("About.")

    rows = [line for line in text.splitlines() if line.startswith("- [")]
    assert len(rows) == sum(map(len, hooks.ordered().values()))
    assert [row for row in rows if row.partition("): ")[2] == ""] == []


def test_what_is_wrong_with_a_site_is_found(tmp_path: Path) -> None:
    check = of_site("check")
    (tmp_path / "b.html").write_text('<h2 id="there">B</h2>', encoding="utf-8")
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">fine</a><a href="https://elsewhere.example/">fine</a><a href="c.html">1</a>'
        '<a href="b.html#gone">2</a><script src="https://cdn.example/x.js"></script>',
        encoding="utf-8",
    )

    faults, pages, _ = check.faults_of(tmp_path)

    assert pages == 2
    assert faults == [
        "a.html fetches https://cdn.example/x.js",
        "a.html: b.html#gone has no such anchor",
        "a.html: c.html leads nowhere",
    ]
    assert check.faults_of(tmp_path / "nowhere")[0] == ["there is no page"]


# What follows needs MkDocs, which `make docs` installs, and builds the site once.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed: `make docs` installs it, and runs this test")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site on a plain server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_the_site_is_whole_and_has_every_page_as_markdown_too(site: Path) -> None:
    assert of_site("check").faults_of(site)[0] == []
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    assert [
        page for page in pages if not (site / page).is_file() or not (site / page.with_suffix(".html")).is_file()
    ] == []
    assert (site / "llms.txt").is_file()
    assert '<svg id="drawing' in (site / "architecture.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen_heed_the_colour_scheme_and_fetch_nothing_from_elsewhere(
    address: str, theme: Any, width: int
) -> None:
    need_browser()
    with browsing(theme, width, 844) as page:
        fetched: list[str] = []
        page.on("request", lambda request: fetched.append(request.url))
        for name in PAGES:
            page.goto(f"{address}/{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
            scheme = page.evaluate("document.body.dataset.mdColorScheme")
            assert scheme == {"light": "default", "dark": "slate"}[theme]

    assert len(fetched) > len(PAGES)
    assert [url for url in fetched if not url.startswith((address, "data:"))] == []


@pytest.mark.slow
def test_searching_finds_a_name_of_the_reference_without_a_network(address: str) -> None:
    need_browser()
    with browsing(width=1280) as page:
        found = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
        wanted = f"{found}.some(link => /reference.errors.html.*#reservationconflict$/.test(link))"
        for _ in range(PATIENCE_MS // 10_000):  # the page's search may not have come up, on a busy machine
            page.goto(f"{address}/index.html")
            box = page.locator(".md-search__input")
            box.click()
            for _ in range(5):  # nor does it hear what is typed before
                box.fill("")
                box.fill("ReservationConflict")
                page.wait_for_timeout(1000)
                if page.evaluate(wanted):
                    return
        assert page.evaluate(wanted)
