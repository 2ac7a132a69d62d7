"""The page in a real browser: Chromium, driven by Playwright, in front of a real server and real agents."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.doors.web.views import deeds
from postroom.mail import tokens
from postroom.room import Room

from .browser import row, rows_shown, serving, until
from .conftest import NewTab, Open
from .story import actor, board, run_sessions

pytestmark = pytest.mark.slow


def test_two_agents_talk_and_the_arrows_appear(sqlite_room: Room, open_page: Open) -> None:
    page = open_page()
    assert "No messages yet" in page.locator("#empty").inner_text()
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")

    id = ada.send("bob", {"text": "please review"}, type="review")
    arrow = row(page, id, "stored")
    assert "please review" in arrow.inner_text()
    colours = [arrow.evaluate("row => getComputedStyle(row).color")]
    message = bob.receive(timeout_s=5)
    colours.append(row(page, id, "claimed").evaluate("row => getComputedStyle(row).color"))
    message.ack()
    colours.append(row(page, id, "acked").evaluate("row => getComputedStyle(row).color"))

    assert len(set(colours)) == 3
    assert page.locator(".lane").all_inner_texts() == ["ada", "bob"]
    assert page.evaluate("location.search") == ""  # the key does not stay in the address


def test_a_question_and_its_answer_belong_together_and_a_click_shows_the_ledger(
    sqlite_room: Room, open_page: Open
) -> None:
    page = open_page()
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(ada.ask("bob", {"text": "which port?"}, timeout_s=10)))
    asking.start()
    question = bob.receive(timeout_s=10)
    question.reply({"text": "7678"})
    asking.join()

    back = row(page, answers[0].id)
    assert "answer" in str(back.get_attribute("class"))
    page.locator(".bar:not([hidden])").wait_for()
    row(page, question.id, "answered").click()
    steps = page.locator("#drawer .steps").first
    steps.wait_for()

    assert steps.locator("b").all_inner_texts() == ["stored", "claimed", "answered"]
    assert "which port?" in page.locator("#drawer pre").inner_text()
    assert "kin" in str(back.get_attribute("class"))
    page.locator("#drawer .kinlink").click()
    page.locator(f'#drawer[data-id="{answers[0].id}"]').wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#drawer").is_hidden()


def test_a_killed_worker_is_seen_to_be_gone(sqlite_room: Room, open_page: Open) -> None:
    id = sqlite_room.agent("ada").send(None, {"text": "heavy"}, channel="jobs")
    with actor("hold", str(sqlite_room.url), "bob", "jobs") as bob:
        page = open_page("agents")
        page.locator('.person.alive[data-agent="bob"] .held').wait_for()
        bob.send_signal(signal.SIGKILL)
        bob.wait()
        page.locator('.person.dead[data-agent="bob"]').wait_for()

    page.keyboard.press("1")
    row(page, id)
    assert sqlite_room.agent("cy").receive(timeout_s=10, channels=["jobs"]).ack()
    row(page, id, "acked")
    assert page.locator(f'.row[data-id="{id}"] .count').inner_text() == "\u00d72"


def test_a_dead_letter_is_put_back_after_a_confirmation(sqlite_room: Room, open_page: Open) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    ids = [ada.send("bob", {"n": n}) for n in range(3)]
    for _ in ids:
        bob.receive(timeout_s=5).dead("ValueError: no such thing")
    page = open_page("dead")
    letter = page.locator(f'.letter[data-id="{ids[0]}"]')
    letter.wait_for()
    assert "ValueError: no such thing" in letter.inner_text()

    letter.get_by_role("button", name="Put back").click()
    assert len(sqlite_room.dead_letters()) == 3  # nothing happens before it is confirmed
    page.locator("dialog[open] button[type=submit]").click()
    letter.wait_for(state="detached")
    assert bob.receive(timeout_s=5).id == ids[0]

    page.locator('.head input[type="checkbox"]').check()
    page.locator(".head .right button.danger").click()
    page.locator("dialog[open] button[type=submit]").click()
    page.locator(".letters .letter").first.wait_for(state="detached")
    assert sqlite_room.dead_letters() == []
    until(page, "document.querySelector('#dead-count').textContent === ''")


def test_those_who_wait_for_each_other_are_shown_in_red(sqlite_room: Room, open_page: Open) -> None:
    url = str(sqlite_room.url)
    page = open_page("agents")
    with actor("ask", url, "eve", "frank"):
        page.locator(".waits .edge").wait_for()
        assert page.locator(".waits .edge.cycle").count() == 0
        with actor("ask", url, "frank", "eve"):
            page.locator(".graph .alarm").wait_for()
            red = page.locator(".waits .edge.cycle")
            assert red.count() == 2
            dead = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--dead')").strip()
            shown = red.first.evaluate("edge => getComputedStyle(edge).stroke")
            assert shown == "rgb({}, {}, {})".format(*(int(dead[at : at + 2], 16) for at in (1, 3, 5)))


HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    "\x1b[31mred\x1b[0m \u202egnp.exe\u202c \x00\x07 \u2066x\u2069 </textarea><!-- "
)


def test_a_hostile_message_shows_as_text_and_the_page_stays_alive(sqlite_room: Room, open_page: Open) -> None:
    page = open_page()
    ada = sqlite_room.agent("ada")
    ids = [
        ada.send("bob", {"text": HOSTILE}, type="<b>type</b>"),
        ada.send("bob", {"text": "x" * 1_000_000}),
        ada.send("<img src=x onerror=hacked=3>", {"<script>hacked=4</script>": HOSTILE}, channel="\u202eevil"),
    ]
    for id in ids:
        row(page, id).click()
        page.locator(f'#drawer[data-id="{id}"] pre').wait_for()
    row(page, ids[0]).click()
    page.locator(f'#drawer[data-id="{ids[0]}"] pre').wait_for()
    text = page.locator("#drawer pre").inner_text()

    assert "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>" in text
    assert {"ESC", "RLO", "PDF", "NUL", "BEL", "LRI", "PDI"} <= set(page.locator("#drawer pre .ctl").all_inner_texts())
    assert "\x1b" not in text
    assert "\u202e" not in text
    row(page, ids[1]).click()
    page.locator("#drawer .more").click()
    until(page, "document.querySelector('#drawer pre').textContent.length >= 131072")
    for view in ("agents", "mailboxes", "dead", "conversation"):
        page.goto(f"{page.url.partition('#')[0]}#{view}")
    later = ada.send("bob", {"text": "still here?"})
    assert "still here?" in row(page, later).inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#sheet script, #sheet img, #drawer img, .lane img").count() == 0


def test_going_back_in_time_shows_what_was(sqlite_room: Room, open_page: Open) -> None:
    ada, bob, clock = sqlite_room.agent("ada"), sqlite_room.agent("bob"), sqlite_room.clock
    first = ada.send("bob", {"text": "first"})
    clock.sleep(0.15)
    held = bob.receive(timeout_s=5)
    clock.sleep(0.15)
    at_ms = clock.wall_ms()
    clock.sleep(0.3)
    held.ack()
    second = ada.send("bob", {"text": "second"})
    page = open_page()
    row(page, first, "acked")
    row(page, second, "stored")

    slider = page.locator("#t-slider")
    about = page.evaluate("fetch('/api/about').then(answer => answer.json())")
    value = (at_ms - about["oldest_ms"]) / (about["now_ms"] - about["oldest_ms"]) * 10000
    slider.fill(str(int(value)))
    page.wait_for_selector('#live[data-how="past"]')
    row(page, first, "claimed")
    assert page.locator(f'.row[data-id="{second}"]').count() == 0

    # what comes meanwhile does not disturb, and playing forward arrives at now
    third = ada.send("bob", {"text": "third"})
    page.locator("#t-speed").select_option("10")
    page.locator("#t-play").click()
    page.wait_for_selector('#live[data-how="live"]')
    row(page, first, "acked")
    row(page, third, "stored")


def test_what_is_looked_for_is_found(sqlite_room: Room, open_page: Open) -> None:
    ada = sqlite_room.agent("ada")
    ids = [ada.send(to, {"text": f"for {to}"}, type=kind) for to in ("bob", "cy") for kind in ("plan", "code")]
    page = open_page()
    for id in ids:
        row(page, id)

    page.locator("#f-agent").select_option("cy")
    rows_shown(page, 2)
    page.locator("#f-type").select_option("code")
    rows_shown(page, 1)
    later = ada.send("cy", {"text": "one more"}, type="code")
    ada.send("bob", {"text": "not looked for"}, type="code")
    row(page, later)
    assert page.locator(".row[data-id]").count() == 2
    page.locator("#f-clear").click()
    rows_shown(page, 6)
    page.keyboard.press("/")
    page.keyboard.type("for bob")
    rows_shown(page, 2)


def test_the_keyboard_is_enough(sqlite_room: Room, open_page: Open) -> None:
    ada, _ = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    ids = [ada.send("bob", {"n": n}) for n in range(3)]
    page = open_page()
    row(page, ids[2])

    page.keyboard.press("ArrowUp")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.locator(f'#drawer[data-id="{ids[1]}"]').wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    page.locator("#view-mailboxes:not([hidden]) .mailbox").wait_for()
    page.keyboard.press("?")
    page.locator("dialog[open] dt").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    page.keyboard.press("w")
    page.locator('dialog[open] input[name="to"]').fill("bob")
    page.locator("dialog[open] textarea").fill("a word from a human")
    page.keyboard.press("Control+Enter")
    page.locator("dialog[open]").wait_for(state="detached")

    sent = next(m for m in sqlite_room.peek(limit=10) if m.from_agent == "mia")
    assert (sent.lane, sent.payload) == ("human", {"text": "a word from a human"})
    page.keyboard.press("1")
    page.locator("#view-conversation:not([hidden])").wait_for()
    row(page, sent.id)
    assert page.locator(".lane.human").inner_text() == "mia"


def test_every_view_fits_a_phone(sqlite_room: Room, open_page: Open) -> None:
    sqlite_room.agent("ada").send("bob", {"text": "hi " * 40})
    board(sqlite_room)
    page = open_page(width=360, height=640, has_touch=True, is_mobile=True)
    tabs = page.locator("#tabs button")
    assert page.locator("#tabs").bounding_box()["y"] > 560  # within the thumb's reach
    for number in range(6):
        tabs.nth(number).tap()
        page.wait_for_timeout(250)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, number
        assert tabs.nth(number).bounding_box()["height"] >= 36


def test_schedules_are_shown_below_the_mailboxes_and_what_they_say_is_only_text(
    sqlite_room: Room, open_page: Open
) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    sqlite_room.schedule("stand-up", cron="0 9 * * 1-5", zone="Europe/Berlin", to="bob", payload={"text": evil})
    sqlite_room.schedule("sweep", every_s=600, channel="chores", missed="skip")
    page = open_page("mailboxes")
    table = page.locator(".schedules table")
    table.wait_for()

    rows = [row.split("\t") for row in table.inner_text().splitlines()[1:]]
    assert [row[:4] for row in rows] == [
        ["stand-up", "0 9 * * 1-5 (Europe/Berlin)", "bob", "one"],
        ["sweep", "every 10 min", "# chores", "skip"],
    ]
    assert rows[0][-1] == evil and page.evaluate("window.hacked") is None
    assert re.fullmatch(r"\d\d:\d\d:\d\d", rows[1][4]) and rows[1][5] == "0"


def test_limits_and_pauses_are_shown_below_the_mailboxes_and_reasons_are_only_text(
    sqlite_room: Room, open_page: Open
) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    sqlite_room.limit("jobs", concurrent=4, waiting=1000)
    sqlite_room.limit("builds", pass_failed=True)
    sqlite_room.pause("jobs", reason=evil, by="mia")
    sqlite_room.pause(agent="bob", by="<b>mia</b>")
    sqlite_room.agent("ada").send(None, {}, channel="jobs")
    sqlite_room.agent("ada").send("bob", {}, channel="news")
    sqlite_room.agent("ada").send(None, {}, channel="news")
    page = open_page("mailboxes")
    table = page.locator(".limits table")
    table.wait_for()

    rows = [row.split("\t") for row in table.inner_text().splitlines()[1:]]
    assert [row[:4] for row in rows] == [
        ["# jobs", "4 at once", "0 of 4", "1\u202f000"],
        ["bob", "", "", ""],
        ["# builds", "failed messages with an order key are passed", "0", ""],
    ]
    assert re.fullmatch(rf"paused by mia since \d\d:\d\d:\d\d: {re.escape(evil)}", rows[0][4])
    assert rows[1][4].startswith("paused by <b>mia</b> since") and rows[2][4] == ""
    assert page.evaluate("window.hacked") is None
    shown = {box: page.locator(f'[data-box="{box}"] .paused').is_visible() for box in ("#jobs", "bob#news", "#news")}
    assert shown == {"#jobs": True, "bob#news": True, "#news": False}


def test_a_person_pauses_and_resumes_a_channel(sqlite_room: Room, open_page: Open) -> None:
    sqlite_room.limit("jobs", concurrent=4)
    page = open_page("mailboxes")
    page.locator(".limits button", has_text="Pause").click()
    page.get_by_label("Why").fill("the database is down")
    page.locator("dialog button[type=submit]").click()
    page.locator(".limits .paused").wait_for()
    paused = sqlite_room.limits().channels[0].paused
    assert paused is not None and paused.reason == "the database is down"

    page.locator(".limits button", has_text="Resume").click()
    page.locator("dialog button[type=submit]").click()
    page.locator(".limits .paused").wait_for(state="detached")

    assert sqlite_room.limits().channels[0].paused is None
    assert [deed["what"] for deed in deeds(sqlite_room)] == ["resumed", "paused"]


def test_the_board_and_its_leases_are_shown_and_a_claim_is_released(sqlite_room: Room, open_page: Open) -> None:
    board(sqlite_room)
    page = open_page("board")
    task = page.locator('.column.t-claimed [data-task="T2"]')
    task.wait_for()

    assert re.search(r"\d+ (s|min)", task.inner_text())
    assert page.locator('.column.t-waiting [data-task="T5"] .unmet').all_inner_texts() == ["T3", "T4"]
    assert "src/api/**" in page.locator(".reserved").inner_text()
    task.get_by_role("button", name="Release").click()
    page.locator("dialog[open] button[type=submit]").click()
    page.locator('.column.t-ready [data-task="T2"]').wait_for()
    assert sqlite_room.board.get("T2").why == "released by mia"


def test_a_failed_session_shows_its_traceback_and_output(sqlite_room: Room, open_page: Open, tmp_path: Path) -> None:
    run_sessions(tmp_path, str(sqlite_room.url))
    outcomes = {"ada": {"granted": True}, "bob": {"granted": False, "reason": "outranked"}}
    decision = {"trigger": "quorum", "granted": ["ada"], "outcomes": outcomes}
    sqlite_room.store.cell_write("decision/m1", {"owner": "x", "until_ms": 5, "decision": decision})
    page = open_page("sessions")
    page.locator('[data-worker="parser"]').wait_for()

    assert "invalid literal for int()" in page.locator(".failure pre").inner_text()
    assert page.locator('[data-worker="parser"] .chip').inner_text() == "failed"
    page.locator('[data-worker="parser"] summary').click()
    assert "parsing seventeen" in page.locator('[data-worker="parser"] pre').inner_text()
    decided = page.locator("table", has_text="may answer").inner_text()
    assert "quorum" in decided
    assert "bob: outranked" in decided
    page.locator(".pick button").nth(1).click()
    page.locator('[data-worker="reader"]').wait_for()


def test_the_workers_of_a_pool_and_their_restarts_are_shown_as_they_happen(sqlite_room: Room, open_page: Open) -> None:
    page = open_page("sessions")
    page.locator("#view-sessions .void").wait_for()
    with postroom.WorkerPool("postroom.inference:mock", workers=["ada", "bob"]) as pool:
        pool.report_to(sqlite_room, "judges")
        ada = page.locator('.pool tr[data-worker="ada"]')
        ada.locator(".chip.p-ready").wait_for()
        before = pool.workers["ada"].pid
        assert before is not None
        assert f"pid {before}" in ada.inner_text()
        assert "judges" in page.locator(".pool h2").inner_text()
        assert page.locator("#view-sessions .void").is_hidden()

        os.kill(before, signal.SIGKILL)
        page.locator('.pool tr[data-worker="ada"] .bad', has_text=re.compile("^1$")).wait_for()
        page.locator('.pool tr[data-worker="ada"]', has_text="SIGKILL").wait_for()
        assert "1 restart " in page.locator(".pool > p").first.inner_text()
        page.locator('.pool tr[data-worker="bob"] .chip.p-ready').wait_for()
    page.locator(".pool").wait_for(state="detached")
    page.locator("#view-sessions .void").wait_for()


def test_what_people_did_by_hand_is_listed_also_when_the_message_is_gone(sqlite_room: Room, open_page: Open) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    id = ada.send("bob", {"n": 1})
    bob.receive(timeout_s=5).dead("no")
    page = open_page("dead")
    page.locator(f'.letter[data-id="{id}"]').get_by_role("button", name="Drop").click()
    page.locator("dialog[open] button[type=submit]").click()

    listed = page.locator("#view-dead tbody tr")
    listed.wait_for()
    assert re.search(f"mia\\s+dropped\\s+{id}", listed.inner_text())
    assert "from ada to bob" in listed.inner_text()


def test_in_a_room_with_tokens_a_person_says_who_it_is_before_it_acts(sqlite_room: Room, open_page: Open) -> None:
    sqlite_room.agent("bob")
    page = open_page(expect="403")
    assert page.locator("#who").is_hidden()  # without tokens every name is believed
    token = tokens.add_token(sqlite_room.gateway, "zoe", human=True)

    page.keyboard.press("w")
    page.locator('dialog[open] input[name="to"]').fill("bob")
    page.locator("dialog[open] textarea").fill("a word from zoe")
    page.keyboard.press("Control+Enter")
    page.locator("dialog[open] .fault", has_text="this room has tokens").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Who are you?").click()
    page.locator('dialog[open] input[name="token"]').fill(token)
    page.keyboard.press("Enter")
    page.locator("#who", has_text="zoe").wait_for()
    assert token not in page.evaluate("document.cookie")
    page.keyboard.press("w")
    page.locator("dialog[open] p", has_text="sent as zoe").wait_for()
    page.locator('dialog[open] input[name="to"]').fill("bob")
    page.locator("dialog[open] textarea").fill("a word from zoe")
    page.keyboard.press("Control+Enter")
    page.locator("dialog[open]").wait_for(state="detached")

    (sent,) = sqlite_room.peek(agent="bob")
    assert (sent.from_agent, sent.lane) == ("zoe", "human")


def test_the_arrows_go_from_view_to_view_and_each_has_a_name_also_where_only_its_sign_fits(open_page: Open) -> None:
    page = open_page(width=800)
    names = ["Conversation", "Agents", "Mailboxes", "Board", "Sessions", "Dead letters"]
    for name in names:
        assert page.get_by_role("tab", name=name, exact=True).count() == 1
    page.get_by_role("tab", name="Conversation").focus()
    for key, view in (("ArrowDown", "agents"), ("End", "dead"), ("ArrowDown", "conversation"), ("ArrowUp", "dead")):
        page.keyboard.press(key)
        page.locator(f"#view-{view}:not([hidden])").wait_for()
    assert page.evaluate("document.activeElement.dataset.view") == "dead"


def test_a_session_is_stopped_from_the_page(sqlite_room: Room, open_page: Open) -> None:
    with suppress(postroom.SessionFailed), sqlite_room.session() as session:
        page = open_page("sessions")
        page.get_by_role("button", name="Stop").click()
        page.locator("dialog[open] button[type=submit]").click()
        page.locator(".failure").wait_for()
        assert session.failure is not None


def test_a_page_whose_server_was_away_goes_on_without_a_gap(new_tab: NewTab, tmp_path: Path) -> None:
    page = new_tab()
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        ada = room.agent("ada")
        with serving(room) as site:
            page.goto(site.address)
            first = ada.send("bob", {"n": 1})
            row(page, first)
        page.wait_for_selector('#live[data-how="lost"]')
        assert "continues when the server is back" in page.locator("#notice").inner_text()
        missed = ada.send("bob", {"n": 2})
        with serving(room, at=site):
            page.wait_for_selector('#live[data-how="live"]')
            row(page, missed)
            row(page, ada.send("bob", {"n": 3}))
            assert page.locator("#notice").is_hidden()


def test_a_page_whose_key_is_no_longer_right_says_so_and_tries_no_more(new_tab: NewTab, tmp_path: Path) -> None:
    page = new_tab()
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        with serving(room) as site:
            page.goto(site.address)
            page.wait_for_selector('#live[data-how="live"]')
        with serving(room, at=site._replace(token="another")):
            page.wait_for_selector('#live[data-how="shut"]')
            assert "Open the address" in page.locator("#notice").inner_text()


def test_what_cannot_be_had_while_the_server_is_away_is_told_and_breaks_nothing(
    new_tab: NewTab, tmp_path: Path
) -> None:
    page, faults = new_tab(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        with serving(room) as site:
            room.agent("ada").send("bob", {"n": 1})
            page.goto(site.address)
            page.locator(".row[data-id]").wait_for()
        page.wait_for_selector('#live[data-how="lost"]')
        page.locator("#t-slider").fill("10")
        page.locator("#toasts .bad", has_text="cannot be reached").wait_for()
    assert faults == []


def test_of_many_lanes_an_arrow_beside_what_is_seen_is_pointed_at_and_comes_into_view(
    sqlite_room: Room, open_page: Open
) -> None:
    ada = sqlite_room.agent("ada")
    for number in range(40):
        ada.send(f"agent-with-a-long-name-{number}", {"n": number})
    far = sqlite_room.agent("agent-with-a-long-name-38").send("agent-with-a-long-name-39", {"text": "far away"})
    page = open_page()
    label = row(page, far).locator(".label.off-right")
    label.wait_for()
    box = label.bounding_box()
    assert box["x"] + box["width"] <= 1280
    assert len(set(page.locator(".lane b").all_inner_texts())) == 41  # cut, and still told apart

    row(page, far).click(position={"x": 20, "y": 18})
    row(page, far).locator(".label:not(.off-right)").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelector('#scroll').scrollLeft") > 1000


def test_many_messages_need_few_rows(sqlite_room: Room, open_page: Open) -> None:
    ada = sqlite_room.agent("ada")
    page = open_page()
    batches = [ada.send_many([{"to": "bob", "payload": {"n": n}} for n in range(250)]) for _ in range(8)]
    row(page, batches[-1][-1])

    assert page.locator(".row").count() < 60
    page.evaluate("document.querySelector('#scroll').scrollTop = 0")
    until(page, "document.querySelectorAll('.row[data-id]').length > 5")
    fresh = ada.send("bob", {"text": "below"})
    page.locator("#fresh:not([hidden])").click()
    row(page, fresh)
