"""Finding things on the page, in a real browser: text, filters, links, threads, lanes, and the keys for them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support.patience import until as wait_until

from postroom.doors.web import searching
from postroom.doors.web.lines import LOOKS
from postroom.doors.web.views import deeds
from postroom.room import Room
from postroom.stores.contract import Query

from .browser import row, rows_shown, until
from .conftest import Open
from .story import a_little, board

pytestmark = pytest.mark.slow


def many(room: Room, count: int) -> None:
    for _ in range(count // 500):
        room.agent("ada").send_many([{"to": "bob", "payload": {"text": "hay"}} for _ in range(500)])


def found(page: Any, text: str | re.Pattern[str]) -> None:
    page.locator("#f-found", has_text=text).wait_for()


def test_the_oldest_of_many_messages_is_found_by_the_end_of_its_text(
    sqlite_room: Room, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MAX_SEARCHED", 500)
    first = sqlite_room.agent("ada").send("bob", {"text": "hay " * 200 + "needle"})
    many(sqlite_room, 2000)
    page = open_page()

    page.keyboard.press("/")
    page.keyboard.type("needle")
    row(page, first)
    found(page, "1 hit in all")
    page.locator("#f-text").fill("thimble")
    page.locator("#empty", has_text="Every message in this room was searched").wait_for()

    # what comes meanwhile is found by its whole text too
    page.locator("#f-text").fill("needle")
    row(page, first)
    sqlite_room.agent("ada").send("bob", {"text": "nothing of that kind"})
    last = sqlite_room.agent("ada").send("bob", {"text": "straw " * 200 + "NEEDLE"})
    row(page, last)
    found(page, "2 hits in all")


def test_what_is_typed_while_the_address_changes_stays_in_the_field(sqlite_room: Room, open_page: Open) -> None:
    """The browser tells of a new address a moment after it was set: on a slow machine letters come between."""
    id = sqlite_room.agent("ada").send("bob", {"text": "needle"})
    page = open_page()
    page.evaluate("""() => {
        const really = window.setTimeout, field = document.querySelector("#f-text");
        window.setTimeout = (call, ...rest) => really(() => {
            window.setTimeout = really;
            call(); // sets the address
            field.value = "needle";
            field.dispatchEvent(new Event("input"));
        }, ...rest);
    }""")

    page.locator("#f-text").fill("need me not")
    until(page, "location.hash === '#conversation?text=needle'")
    found(page, "1 hit in all")

    assert page.input_value("#f-text") == "needle"
    row(page, id)


def test_escape_in_the_search_field_clears_the_field_and_the_filter(sqlite_room: Room, open_page: Open) -> None:
    ids = [sqlite_room.agent("ada").send("bob", {"text": text}) for text in ("one", "two")]
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("three")
    page.locator("#empty", has_text="Nothing matches").wait_for()

    page.keyboard.press("Escape")

    for id in ids:
        row(page, id)
    assert page.locator("#f-text").input_value() == ""
    assert page.locator("#f-found").is_hidden()
    assert page.evaluate("location.hash") == "#conversation"
    page.keyboard.press("Escape")  # and then leaves it
    assert page.evaluate("document.activeElement.id") != "f-text"


def test_a_search_that_stops_early_says_so_and_goes_on_when_told(
    sqlite_room: Room, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(sqlite_room, 5500)
    page = open_page("conversation?text=hay")

    found(page, re.compile(r"the latest 5.000 hits, searched back to \d{4}-"))
    page.get_by_role("button", name="Search further").click()
    found(page, re.compile(r"5.500 hits in all"))
    assert page.locator("#f-on").is_hidden()


def test_a_search_is_given_up_when_the_text_changes(
    sqlite_room: Room, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MAX_SEARCHED", 250)
    many(sqlite_room, 3000)
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/older" in request.url else None)
    page.locator("#f-text").fill("straw")
    until(page, "document.querySelector('#f-found').textContent.includes('so far')")
    page.locator("#f-text").fill("hay")
    found(page, "3\u202f000 hits in all")

    after = next(n for n, url in enumerate(asked) if "text=hay" in url)
    assert [url for url in asked[after:] if "text=straw" in url] == []


def test_a_new_message_that_could_not_be_asked_about_is_asked_about_again(sqlite_room: Room, open_page: Open) -> None:
    ada = sqlite_room.agent("ada")
    ada.send("bob", {"text": "needle"})
    page = open_page("conversation?text=needle", expect="Failed to load resource")
    found(page, "1 hit in all")
    page.route("**/api/among*", lambda route: route.abort(), times=1)

    missed = ada.send("bob", {"text": "a needle"})
    page.locator("#toasts .bad", has_text="cannot be reached").wait_for()
    ada.send("bob", {"text": "hay"})
    row(page, missed)
    found(page, "2 hits in all")


def test_hits_that_keep_coming_are_not_all_kept_and_the_page_says_so(open_page: Open) -> None:
    page = open_page()
    told = page.evaluate("""async () => {
        const { Search } = await import("/page/search.js");
        const search = new Search({ agent: "ada" }, () => {});
        search.how = "done";
        const line = (n) => ({ id: String(n).padStart(9, "0"), look: "stored", type: "message", from_agent: "ada", channel: "general", sent_ms: n });
        const first = search.take(Array.from({ length: 10000 }, (_, n) => line(n)));
        const second = search.take([line(10000), line(10001)]);
        return [first, second, search.how, search.reached, search.model.all.length];
    }""")

    assert told == [{"fresh": 10000, "gone": 0}, {"fresh": 2, "gone": 2}, "trimmed", 2, 10000]


def test_a_filter_by_state_follows_what_happens(sqlite_room: Room, open_page: Open) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    ids = [ada.send("bob", {"n": n}) for n in range(3)]
    page = open_page()
    page.locator("#f-state").select_option("claimed")
    page.locator("#empty", has_text="Nothing matches").wait_for()

    held = bob.receive(timeout_s=5)
    row(page, held.id, "claimed")
    rows_shown(page, 1)
    held.ack()
    rows_shown(page, 0)
    page.locator("#totals a", has_text="acked").click()
    row(page, ids[0], "acked")
    found(page, "1 hit in all")


def test_a_link_carries_view_filter_and_message_and_the_back_button_works(sqlite_room: Room, open_page: Open) -> None:
    ada = sqlite_room.agent("ada")
    ids = [ada.send(to, {"text": f"for {to}"}) for to in ("bob", "cy", "dora & co")]
    page = open_page(f"conversation?agent=dora+%26+co&message={ids[2]}")
    row(page, ids[2])
    rows_shown(page, 1)
    page.locator(f'#drawer[data-id="{ids[2]}"]').wait_for()
    assert page.locator("#f-agent").input_value() == "dora & co"

    page.locator("#f-agent").select_option("cy")
    row(page, ids[1])
    page.keyboard.press("3")
    page.locator("#view-mailboxes:not([hidden])").wait_for()
    page.go_back()
    row(page, ids[1])
    rows_shown(page, 1)
    page.go_back()
    row(page, ids[2])
    assert page.locator("#f-agent").input_value() == "dora & co"
    page.keyboard.press("2")
    page.keyboard.press("1")  # a view is found as it was left
    page.locator("#view-conversation:not([hidden])").wait_for()
    assert page.locator("#f-agent").input_value() == "dora & co"


def test_what_is_looked_for_is_also_looked_for_in_the_past(sqlite_room: Room, open_page: Open) -> None:
    ada, clock = sqlite_room.agent("ada"), sqlite_room.clock
    old = ada.send("bob", {"text": "hay " * 100 + "needle, the old one"})
    ada.send("bob", {"text": "hay"})
    clock.sleep(0.3)
    new = ada.send("bob", {"text": "needle, the new one"})
    page = open_page("conversation?text=needle")
    found(page, "2 hits in all")

    page.locator("#t-slider").fill("100")
    page.wait_for_selector('#live[data-how="past"]')
    row(page, old)
    rows_shown(page, 1)
    found(page, "1 hit until this moment")
    page.locator("#f-text").fill("the new one")
    page.locator("#empty", has_text="Nothing matches around this moment").wait_for()
    page.locator("#t-live").click()
    row(page, new)
    found(page, "1 hit in all")


def test_cards_open_what_they_name(sqlite_room: Room, open_page: Open) -> None:
    ada = sqlite_room.agent("ada")
    mine = ada.send("bob", {"text": "in bob's box"})
    job = ada.send(None, {"text": "for whoever is free"}, channel="jobs")
    sqlite_room.agent("bob").send("ada", {"text": "the other way"})

    page = open_page("mailboxes")
    page.locator('.mailbox[data-box="bob#general"]').click()
    row(page, mine)
    rows_shown(page, 1)
    page.locator("#f-more", has_text="mail for bob").click()
    row(page, mine)
    page.go_back()
    page.go_back()
    page.locator('.mailbox[data-box="#jobs"]').click()
    row(page, job)
    rows_shown(page, 1)

    page.keyboard.press("2")
    page.locator('.person[data-agent="bob"]').click()
    rows_shown(page, 2)
    page.keyboard.press("2")
    page.locator('.person[data-agent="bob"] .figures a').click()
    rows_shown(page, 1)
    row(page, mine)


def test_a_message_leads_to_its_thread_and_to_what_it_answers(sqlite_room: Room, open_page: Open) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    first = ada.send("bob", {"text": "begin"})
    held = bob.receive(timeout_s=5)
    second = bob.send("cy", {"text": "go on"}, cause=held)
    held.reply({"text": "begun"})
    (answer,) = (m.id for m in sqlite_room.store.find(Query(answer_to=first)).messages)
    many(sqlite_room, 500)
    page = open_page(f"conversation?message={second}")

    page.locator("#drawer").get_by_role("link", name="Show the whole thread").click()
    for id in (first, second, answer):
        row(page, id)
    rows_shown(page, 3)
    assert page.locator("#f-more").inner_text() == "one thread"
    assert page.locator(".lane").all_inner_texts() == ["ada", "bob", "cy"]

    # a link from a message to one that is not shown goes to the moment at which that was sent
    page.goto(f"{page.url.partition('#')[0]}#dead?message={answer}")
    page.locator("#drawer .kinlink").click()
    page.locator(f'#drawer[data-id="{first}"]').wait_for()
    row(page, first)


def test_a_message_shows_the_conversation_that_it_belongs_to(sqlite_room: Room, open_page: Open) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    first = ada.send("bob", {"text": "which <b>port</b>?"})
    held = bob.receive(timeout_s=5)
    second = bob.send("cy", {"text": "do you know?"}, cause=held)
    alone = ada.send("bob", {"text": "lunch?"})
    many(sqlite_room, 300)
    page = open_page(f"conversation?message={second}")

    turns = page.locator("#drawer .thread li")
    turns.nth(1).wait_for()
    assert page.locator("#drawer .thread .words").all_inner_texts() == ["which <b>port</b>?", "do you know?"]
    assert page.locator('#drawer .thread [aria-current="true"] .words').inner_text() == "do you know?"
    held.reply({"text": "7678"})  # it is told as it goes on
    turns.nth(2).wait_for()
    assert page.locator("#drawer h3", has_text="Conversation of 3 messages").is_visible()
    assert "bob" in turns.nth(2).inner_text() and "7678" in turns.nth(2).inner_text()

    turns.nth(0).get_by_role("button").click()
    page.locator(f'#drawer[data-id="{first}"]').wait_for()
    page.locator('#drawer .thread [aria-current="true"] .words', has_text="port").wait_for()
    page.goto(f"{page.url.partition('#')[0]}#dead?message={alone}")
    page.locator(f'#drawer[data-id="{alone}"]').wait_for()
    assert page.locator("#drawer .thread").count() == 0


def test_lanes_stand_in_the_same_order_at_every_load_and_in_the_past(sqlite_room: Room, open_page: Open) -> None:
    zoe, ada = sqlite_room.agent("zoe"), sqlite_room.agent("ada")
    zoe.send(None, {"text": "a job"}, channel="a-channel")
    zoe.send("mia-2", {"text": "first"})
    page = open_page()
    until(page, "document.querySelectorAll('.lane').length === 3")
    assert page.locator(".lane").all_inner_texts() == ["mia-2", "zoe", "# a-channel"]

    ada.send("zoe", {"text": "later"})
    until(page, "document.querySelectorAll('.lane').length === 4")
    order = ["ada", "mia-2", "zoe", "# a-channel"]
    assert page.locator(".lane").all_inner_texts() == order
    page.reload()
    until(page, "document.querySelectorAll('.lane').length === 4")
    assert page.locator(".lane").all_inner_texts() == order
    page.locator("#t-slider").fill("9990")
    page.wait_for_selector('#live[data-how="past"]')
    assert page.locator(".lane").all_inner_texts() == order


def test_lanes_beside_what_is_seen_are_counted_and_come_with_a_click(sqlite_room: Room, open_page: Open) -> None:
    for number in range(24):
        sqlite_room.agent("ada").send(f"agent-{number:02}", {"n": number})
    page = open_page()
    right = page.locator("#lanes-right:not([hidden])")
    right.wait_for()
    assert re.fullmatch(r"1\d more ▸", right.inner_text())
    assert page.locator("#lanes-left").is_hidden()

    for _ in range(4):
        if right.is_visible():
            right.click()
            page.wait_for_timeout(100)
    page.locator("#lanes-left:not([hidden])").wait_for()
    assert page.locator("#lanes-right").is_hidden()


def test_the_first_j_chooses_the_last_message_that_is_seen(sqlite_room: Room, open_page: Open) -> None:
    ids = sqlite_room.agent("ada").send_many([{"to": "bob", "payload": {"n": n}} for n in range(60)])
    page = open_page()
    row(page, ids[-1])
    page.keyboard.press("j")
    page.locator(f'.row.chosen[data-id="{ids[-1]}"]').wait_for()
    page.keyboard.press("k")
    page.locator(f'.row.chosen[data-id="{ids[-2]}"]').wait_for()


def test_the_link_to_the_content_moves_the_focus_and_not_the_view(open_page: Open) -> None:
    page = open_page("agents")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("[document.activeElement.id, location.hash]") == ["main", "#agents"]


def test_number_keys_work_while_the_slider_has_the_focus(sqlite_room: Room, open_page: Open) -> None:
    sqlite_room.agent("ada").send("bob", {"n": 1})
    page = open_page()
    page.locator("#t-slider").focus()
    page.keyboard.press("3")
    page.locator("#view-mailboxes:not([hidden])").wait_for()


def test_due_times_and_next_tries_are_shown(sqlite_room: Room, open_page: Open) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    tried = ada.send("bob", {"text": "again"})
    bob.receive(timeout_s=5).retry("busy", delay_s=600)
    later = ada.send("bob", {"text": "not now"}, delay_s=3600)
    page = open_page()

    assert re.match(r"due \d\d:\d\d:\d\d", row(page, later, "delayed").locator(".due").inner_text())
    assert re.match(r"next try \d\d:\d\d:\d\d", row(page, tried, "retried").locator(".due").inner_text())
    row(page, later).click()
    page.locator("#drawer .due", has_text=re.compile(r"Not due until 20.*, in 59 min")).wait_for()
    row(page, tried).click()
    page.locator("#drawer .due", has_text="Failed 1 of 3 times; the next try is at").wait_for()
    page.keyboard.press("3")
    page.locator('.mailbox[data-box="bob#general"]', has_text=re.compile(r"2 later, next \d\d:")).wait_for()


def test_nothing_is_cut_or_runs_over(sqlite_room: Room, open_page: Open) -> None:
    answered = a_little(sqlite_room)
    long = sqlite_room.agent("ada").send("bob", {"text": "w" * 400}, type="t" * 100, priority=10)
    assert sqlite_room.agent("bob").receive(timeout_s=5, lease_s=600).id == long
    page = open_page(width=1400)

    legend = page.locator("#legend span")
    assert legend.count() == len(LOOKS)
    page.locator("#f-state").select_option("acked")
    for width in (1400, 900, 700):
        page.set_viewport_size({"width": width, "height": 800})
        inside = "spans => spans.every(span => { const box = span.getBoundingClientRect(), all = span.parentElement.getBoundingClientRect(); return box.right <= all.right && box.bottom <= all.bottom })"
        assert legend.evaluate_all(inside), width
    page.set_viewport_size({"width": 1400, "height": 800})
    page.goto(f"{page.url.partition('#')[0]}#agents")
    page.locator('.person[data-agent="bob"] .held').first.wait_for()
    assert page.locator(".person").evaluate_all("cards => cards.every(card => card.scrollWidth <= card.clientWidth)")
    for id in (answered, long):
        page.goto(f"{page.url.partition('#')[0]}#agents?message={id}")
        chip = page.locator(f'#drawer[data-id="{id}"] header .chip')
        chip.wait_for()
        assert chip.evaluate("chip => chip.scrollWidth <= chip.clientWidth")
        assert chip.evaluate(
            "chip => chip.getBoundingClientRect().right <= chip.nextSibling.getBoundingClientRect().left"
        )


def test_on_a_phone_names_words_the_room_and_its_counts_can_be_read(sqlite_room: Room, open_page: Open) -> None:
    for name in ("documentation-writer", "deployment-checker", "database-migrator"):
        sqlite_room.agent(name).send("planner", {"text": "hello"})
    page = open_page(width=360, height=640, has_touch=True, is_mobile=True)
    until(page, "document.querySelectorAll('.lane').length === 4")

    names = page.locator(".lane b").all_inner_texts()
    assert "planner" in names
    assert "deployment-checker" in names
    assert page.locator(".lane b").evaluate_all(
        "names => names.every(name => name.scrollHeight <= name.clientHeight + 1)"
    )
    for tab in page.locator("#tabs button").all():
        assert tab.locator("span").bounding_box()["width"] > 20
        assert tab.evaluate("tab => tab.scrollWidth <= tab.clientWidth + 1")
    assert page.locator("#room").bounding_box()["width"] > 200
    assert page.locator("#totals").inner_text().split()[:2] == ["3", "stored"]
    assert page.get_by_role("button", name="Write").inner_text() == "Write"
    page.locator("#help").tap()
    assert page.locator("dialog .signs .chip").count() == len(LOOKS)


def test_tasks_that_wait_are_told_from_those_that_are_ready_and_people_act_on_them(
    sqlite_room: Room, open_page: Open
) -> None:
    board(sqlite_room)
    page = open_page("board")
    page.locator('.column.t-waiting [data-task="T5"]').wait_for()
    assert "tables: 4" in page.locator('[data-task="T1"]').inner_text()

    page.get_by_role("button", name="Add a task").click()
    page.locator('dialog input[name="id"]').fill("T9")
    page.locator('dialog input[name="title"]').fill("a last look")
    page.locator('dialog input[name="after"]').fill("T1, T7")
    page.keyboard.press("Enter")
    page.locator('.column.t-ready [data-task="T9"]', has_text="a last look").wait_for()
    assert sqlite_room.board.get("T9").lead == "mia"

    page.locator('[data-task="T6"]').get_by_role("button", name="Reopen").click()
    page.locator("dialog[open] button[type=submit]").click()
    page.locator('.column.t-ready [data-task="T6"]').wait_for()

    page.locator('[data-task="T4"]').get_by_role("button", name="Abort").click()
    page.locator('dialog input[name="why"]').fill("too late")
    page.locator("dialog[open] button[type=submit]").click()
    page.locator('.column.t-aborted [data-task="T4"]', has_text="too late").wait_for()
    # the board changes first, and the page shows that; what was done is written down next
    done = ["aborted the task", "reopened the task", "added the task"]
    wait_until(lambda: [deed["what"] for deed in deeds(sqlite_room)] == done)


def test_dead_letters_are_grouped_by_error_and_filtered(sqlite_room: Room, open_page: Open) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    errors = ["line 3: no such file", "line 17: no such file", "out of memory"]
    ids = [ada.send("bob", {"n": n}) for n in range(3)]
    for error in errors:
        bob.receive(timeout_s=5).dead(error)
    page = open_page("dead")
    groups = page.locator(".same:visible > h2")
    groups.nth(1).wait_for()
    assert [" ".join(text.split()) for text in groups.all_inner_texts()] == [
        "line …: no such file 2",
        "out of memory 1",
    ]

    page.get_by_label("Find in these").fill("memory")
    until(page, "[...document.querySelectorAll('.letter')].filter(card => card.offsetHeight).length === 1")
    page.get_by_label("Find in these").fill("")
    page.get_by_label("Error", exact=True).select_option("line …: no such file")
    page.locator(f'.letter[data-id="{ids[2]}"]').wait_for(state="detached")
    assert "pick=" in page.evaluate("location.hash")
    page.get_by_label("Choose all: line …: no such file").check()
    page.get_by_role("button", name="Drop 2").click()
    assert "They are deleted for good" in page.locator("dialog[open]").inner_text()
    page.keyboard.press("Escape")
    page.locator(f'.letter[data-id="{ids[0]}"]').get_by_role("button", name="Drop").click()
    assert "It is deleted for good, with its ledger." in page.locator("dialog[open]").inner_text()
    page.locator("dialog[open] button[type=submit]").click()
    page.locator(f'.letter[data-id="{ids[0]}"]').wait_for(state="detached")
    assert len(sqlite_room.dead_letters()) == 2
