"""Questions to people on the page: seen above every view, answered by a button, by a person alone."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.doors.web.hour import Hour
from postroom.doors.web.views import Views
from postroom.mail import tokens
from postroom.room import Room

from .browser import serving
from .conftest import Client, Open

pytestmark = pytest.mark.slow
YES_OR_NO: dict[str, Any] = {"options": ["yes", "no"], "default": "no", "timeout_s": 7200}


def test_a_person_answers_by_a_button_in_any_view(sqlite_room: Room, open_page: Open) -> None:
    page = open_page("board")
    assert page.locator("#questions").is_hidden()
    first = sqlite_room.people.ask("mia", "Deploy 1.4?", "ada", **YES_OR_NO)
    second = sqlite_room.people.ask("mia", "What shall it be called?", "bob")

    card = page.locator(f'[data-question="{first}"]')
    card.wait_for()
    words = card.inner_text()
    for word in ("ada asks mia", "Deploy 1.4?", "yes", "no", "open until", "then the answer is: no"):
        assert word in words
    page.locator(f'[data-question="{second}"]').wait_for()
    page.wait_for_timeout(700)  # a click that comes at once is not taken: the card may have just moved there
    card.get_by_role("button", name="yes").click()
    card.wait_for(state="detached")
    page.wait_for_timeout(700)
    page.locator(f'[data-question="{second}"] input').fill("postroom")
    page.keyboard.press("Enter")
    page.locator("#questions").wait_for(state="hidden")

    answer = sqlite_room.people.wait(first, timeout_s=5)
    assert (answer.said, answer.by, answer.how) == ("yes", "mia", "page")
    assert sqlite_room.people.wait(second, timeout_s=5).said == "postroom"


def test_a_click_on_a_card_that_has_just_come_there_is_not_taken(sqlite_room: Room, open_page: Open) -> None:
    page = open_page()
    id = sqlite_room.people.ask("mia", "Delete all?", "ada", options=["yes", "no"])
    page.locator(f'[data-question="{id}"]').wait_for()
    clicked = """id => new Promise(done => {
        const again = document.querySelector(`[data-question="${id}"]`);
        again.remove();
        const watch = new MutationObserver(() => {
            const button = document.querySelector("#questions button");
            if (button) { watch.disconnect(); button.click(); done(true); }
        });
        watch.observe(document.querySelector("#questions"), { childList: true, subtree: true });
    })"""
    other = sqlite_room.people.ask("mia", "And this?", "ada", options=["yes", "no"])
    assert page.evaluate(clicked, id)
    page.wait_for_timeout(300)
    assert [sqlite_room.people.look(each).state for each in (id, other)] == ["open", "open"]


def test_what_an_agent_asks_is_only_text(sqlite_room: Room, open_page: Open) -> None:
    page = open_page()
    evil = "<img src=x onerror=document.title='owned'>\x1b[2J\u202e"
    id = sqlite_room.people.ask("mia", evil, "<b>ada</b>", options=["<i>yes</i>", "no"])

    page.locator(f'[data-question="{id}"]').wait_for()

    assert page.locator("#questions img, #questions b, #questions i").count() == 0
    assert "owned" not in page.title()


def test_in_a_room_with_tokens_only_the_persons_own_token_answers(sqlite_room: Room, open_page: Open) -> None:
    mia = tokens.add_token(sqlite_room.gateway, "mia", human=True)
    id = sqlite_room.people.ask("mia", "Deploy?", "ada", **YES_OR_NO)
    page = open_page(expect="403")
    button = page.locator(f'[data-question="{id}"]').get_by_role("button", name="yes")
    button.wait_for()
    page.wait_for_timeout(700)
    button.click()
    page.locator("#toasts", has_text="this room has tokens").wait_for()
    assert sqlite_room.people.look(id).state == "open"

    page.get_by_role("button", name="Who are you?").click()
    page.locator('dialog[open] input[name="token"]').fill(mia)
    page.keyboard.press("Enter")
    page.locator("#who", has_text="mia").wait_for()
    button.click()
    page.locator("#questions").wait_for(state="hidden")

    answer = sqlite_room.people.wait(id, timeout_s=5)
    assert (answer.said, answer.by, answer.how) == ("yes", "mia", "token")


def test_the_page_refuses_whatever_is_no_persons_answer(sqlite_room: Room) -> None:
    gateway = sqlite_room.gateway
    mia = tokens.add_token(gateway, "mia", human=True)
    bob, zoe = tokens.add_token(gateway, "bob"), tokens.add_token(gateway, "zoe", human=True)
    id = sqlite_room.people.ask("mia", "Deploy?", "ada", **YES_OR_NO)
    with serving(sqlite_room) as site:
        client = Client(site)
        for token in (None, "", bob, zoe, mia[:-1], "prt_x_y"):
            shown = {} if token is None else {"X-Postroom-Token": token}
            assert client("/api/answer", {"id": id, "answer": "yes"}, **shown).status == 403, token
        shown = {"X-Postroom-Token": mia}
        assert client("/api/answer", {"id": id, "answer": "perhaps"}, **shown).status == 400
        assert client("/api/answer", {"id": "x", "answer": "yes"}, **shown).status == 404
        assert client("/api/answer", {"id": id, "answer": "yes", "by": "mia"}, **shown).status == 400
        assert sqlite_room.people.look(id).state == "open"
        assert client("/api/answer", {"id": id, "answer": "no"}, **shown).status == 200
        assert client("/api/answer", {"id": id, "answer": "yes"}, **shown).status == 409
    assert sqlite_room.people.wait(id, timeout_s=0).said == "no"


def test_looking_at_the_page_decides_nothing(sqlite_room: Room) -> None:
    id = sqlite_room.people.ask("mia", "Deploy?", "ada", default="no", timeout_s=0.001)
    views = Views(sqlite_room, Hour)

    assert views.pulse()["questions"] == {"list": [], "more": 0}
    kept = sqlite_room.store.cell_read(f"question/{id}")
    assert kept is not None
    assert kept.value == {"answer": None}
