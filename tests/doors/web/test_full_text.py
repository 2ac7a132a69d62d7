"""Full-text search on the page, in a real browser, and in the answers behind it."""

from __future__ import annotations

import re

import pytest

from postroom.room import Room

from .browser import row, until
from .conftest import Client, Open

SENT = [
    ("ci", "jobs", "the build failed at step seven"),
    ("ci", "jobs", "the build is green"),
    ("ada", "general", "why has the build failed?"),
]


def send_all(room: Room) -> list[str]:
    return [room.agent(who).send("bob", {"text": text}, channel=channel) for who, channel, text in SENT]


@pytest.mark.slow
def test_words_and_fields_are_searched_at_enter_and_new_hits_come_in(sqlite_room: Room, open_page: Open) -> None:
    failed, green, asked = send_all(sqlite_room)
    page = open_page()
    for id in (failed, green, asked):
        row(page, id)

    page.keyboard.press("s")
    page.keyboard.type("failed build")
    page.keyboard.press("Enter")
    page.locator("#f-found", has_text="2 hits in all").wait_for()
    row(page, failed)
    row(page, asked)
    until(
        page, "location.hash === '#conversation?search=failed+build' || location.hash.includes('search=failed%20build')"
    )

    page.locator("#f-search").fill('"build failed" from:ci')
    page.keyboard.press("Enter")
    page.locator("#f-found", has_text="1 hit in all").wait_for()
    row(page, failed)
    sqlite_room.agent("ada").send("bob", {"text": "the build failed, but from another sender"})
    again = sqlite_room.agent("ci").send("bob", {"text": "the BUILD FAILED again"})
    row(page, again)
    page.locator("#f-found", has_text="2 hits in all").wait_for()

    page.get_by_role("button", name="Clear").click()
    row(page, green)
    assert page.input_value("#f-search") == ""


@pytest.mark.slow
def test_a_search_that_cannot_be_read_is_explained_on_the_page(sqlite_room: Room, open_page: Open) -> None:
    send_all(sqlite_room)
    page = open_page(expect="Failed to load resource")

    page.locator("#f-search").fill("form:ci build")
    page.keyboard.press("Enter")

    page.locator("#toasts .bad", has_text="did you mean from:?").wait_for()


def test_a_search_goes_with_the_other_filters(client: Client, room: Room) -> None:
    failed, green, asked = send_all(room)

    def found(wish: str) -> list[str]:
        return [line["id"] for line in client.get(f"/api/recent?{wish}")["lines"]]

    assert found("search=build") == [failed, green, asked]
    assert found("search=build&channel=jobs") == [failed, green]
    assert found("search=build+in:jobs&channel=general") == []
    assert found("search=failed+from:ci&state=stored") == [failed]
    assert found("search=failed+state:dead&state=stored") == []
    assert found("search=build+-failed") == [green]
    past = client.get("/api/past?search=green")  # which has no index to go forward with
    assert [line["id"] for line in past["lines"]] == [green]
    among = client.get(f"/api/among?search=failed+from:ci&ids={failed},{green},{asked}")
    assert among["ids"] == [failed]


def test_a_bad_search_is_answered_with_what_is_wrong(client: Client) -> None:
    answer = client("/api/recent?search=form:ci")

    assert answer.status == 400
    assert re.search("did you mean from:", answer.json["error"]["message"])
