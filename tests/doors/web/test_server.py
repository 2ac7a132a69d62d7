"""What the server tells and does, on every store, over real sockets."""

from __future__ import annotations

import re
import threading
from typing import Any

import msgspec
import pytest
from tests.support import ROOT

import postroom
from postroom.doors.web.app import MAX_BODY_BYTES, PARTS, RequestRates
from postroom.room import Room

from .browser import Site, serving
from .conftest import Client
from .story import actor


def everything_kept(room: Room) -> Any:
    """All that a store holds: messages with their ledgers, cells with their versions, subscriptions."""
    found = [room.get(message.id) for message in room.peek(state=None, order="oldest", limit=10_000)]
    # shown by the wall clock, from the room's own: a millisecond's rounding is no change
    messages = [msgspec.structs.replace(message, lease_until_ms=None, due_ms=None) for message in found]
    cells = [cell for cell in room.store.cell_scan("") if not cell.name.startswith(("agent/", "upkeep"))]
    return messages, cells, room.store.subscriptions()


def fill(room: Room) -> dict[str, str]:
    """One message of each fate; their ids."""
    ada, bob = room.agent("ada"), room.agent("bob")
    ids = {}
    for fate in ("acked", "dead", "refused", "claimed", "retried"):
        ids[fate] = ada.send("bob", {"text": f"to be {fate}"}, type="fate")
        message = bob.receive(timeout_s=5)
        match fate:
            case "acked":
                message.ack()
            case "dead":
                message.dead("ValueError: no")
            case "refused":
                message.refuse("not mine")
            case "retried":
                message.retry("later", delay_s=600)
    ids["stored"] = ada.send("bob", {"text": "to be stored", "n": [1, {"deep": True}]})
    return ids


def test_the_latest_messages_come_in_the_order_of_the_room_and_look_as_they_stand(room: Room, client: Client) -> None:
    ids = fill(room)

    data = client.get("/api/recent")

    assert {line["id"]: line["look"] for line in data["lines"]} == {id: look for look, id in ids.items()}
    assert [line["id"] for line in data["lines"]] == sorted(ids.values())
    assert data["older"] is None


def test_looking_changes_nothing(room: Room, client: Client) -> None:
    ids = fill(room)
    room.board.add("T1", title="one")
    room.board.claim("bob", "T1", transient=True)
    with room.session() as session:
        session.mailbox.box.send(1)
    before = everything_kept(room)

    paths = [
        "/",
        "/api/about",
        "/api/recent",
        "/api/older",
        "/api/recent?text=one&state=dead",
        f"/api/among?ids={next(iter(ids.values()))}",
        "/api/past",
        "/api/past?at_ms=5",
        "/api/deeds",
        "/metrics",
        "/api/events",
    ]
    paths += [f"/api/views/{view}" for view in ("agents", "mailboxes", "board", "sessions", "dead")]
    paths += [f"/api/messages/{id}" for id in ids.values()]
    statuses = {path: client(path).status for path in paths}

    assert set(statuses.values()) == {200}, statuses
    assert everything_kept(room) == before


@pytest.mark.slow
def test_looking_at_a_session_whose_opener_was_killed_blames_nobody(sqlite_room: Room, on_sqlite: Client) -> None:
    with actor("session", str(sqlite_room.url)) as opener:
        assert on_sqlite.get("/api/views/sessions")["sessions"][0]["state"] == "open"
        opener.kill()
        opener.wait()
        before = everything_kept(sqlite_room)

        told = on_sqlite.get("/api/views/sessions")
        on_sqlite.get("/api/views/agents")

    assert [session["state"] for session in told["sessions"]] == ["gone"]
    assert told["chosen"]["state"] == "gone"
    assert everything_kept(sqlite_room) == before


def test_decisions_are_shown_and_cells_that_are_none_are_left_out(sqlite_room: Room, on_sqlite: Client) -> None:
    outcomes = {"ada": {"granted": True, "confidence": 0.9}, "bob": {"granted": False, "reason": "outranked"}}
    decision = {"trigger": "quorum", "granted": ["ada"], "after_s": 0.4, "outcomes": outcomes}
    write = sqlite_room.store.cell_write
    write("decision/m1", {"owner": "x", "until_ms": 5, "decision": decision})
    write("decision/m2", {"owner": "x", "until_ms": 9, "decision": decision})
    write("decision/open", {"owner": "x", "until_ms": 9, "decision": None})
    for number, nonsense in enumerate(
        ({}, [], {"until_ms": "late", "decision": decision}, {"until_ms": 1, "decision": {}})
    ):
        write(f"decision/{number}", nonsense)

    told = on_sqlite.get("/api/views/sessions")["decisions"]

    assert [each["message_id"] for each in told] == ["m2", "m1"]
    assert told[0]["granted"] == ["ada"]
    assert told[0]["outcomes"][1] == {"name": "bob", "granted": False, "reason": "outranked", "confidence": None}


def test_mail_that_is_not_due_is_counted_in_its_mailbox(room: Room, client: Client) -> None:
    ada = room.agent("ada")
    ada.send("bob", {"n": 1})
    ada.send("bob", {"n": 2}, delay_s=600)
    ada.send("bob", {"n": 3}, delay_s=60)
    ada.send(None, {"n": 4}, channel="jobs", delay_s=60)

    boxes = {(box["to_agent"], box["channel"]): box for box in client.get("/api/views/mailboxes")["mailboxes"]}

    assert [(box["depth"], box["later"]) for box in (boxes["bob", "general"], boxes[None, "jobs"])] == [(1, 2), (0, 1)]
    assert 50_000 < boxes["bob", "general"]["next_due_ms"] - room.clock.wall_ms() <= 60_000


def test_dead_letters_are_told_by_the_kind_of_their_error(room: Room, client: Client) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ids = [ada.send("bob", {"n": n}) for n in range(4)]
    for error in ("port 80 is taken", "port 443 is taken\nand more", "lost 0x7f3a", ""):
        bob.receive(timeout_s=5).dead(error)

    told = client.get("/api/views/dead")
    ports = client.get("/api/views/dead?pick=port+%E2%80%A6+is+taken")

    assert [letter["line"]["id"] for letter in told["letters"]] == ids[::-1]
    counts = {each["group"]: each["count"] for each in told["groups"]}
    assert sorted(counts.values()) == [1, 1, 2]
    assert counts["port … is taken"] == 2
    assert counts["lost …"] == 1
    assert [letter["line"]["id"] for letter in ports["letters"]] == [ids[1], ids[0]]
    assert ports["count"] == told["count"] == 4


def test_one_message_is_told_whole(sqlite_room: Room, on_sqlite: Client) -> None:
    ada, bob = sqlite_room.agent("ada"), sqlite_room.agent("bob")
    asked: list[Any] = []
    asking = threading.Thread(target=lambda: asked.append(ada.ask("bob", {"text": "why?"}, timeout_s=10)))
    asking.start()
    question = bob.receive(timeout_s=10)
    question.reply({"text": "because"})
    asking.join()

    told = on_sqlite.get(f"/api/messages/{question.id}")
    answer = on_sqlite.get(f"/api/messages/{asked[0].id}")

    assert told["envelope"]["state"] == "answered"
    assert [entry["event"] for entry in told["ledger"]] == ["stored", "claimed", "answered"]
    assert told["payload"] == "why?"
    assert told["reason"] is None
    assert on_sqlite.get(f"/api/recent?text={told['handle']}")["lines"][0]["id"] == question.id
    assert [line["id"] for line in told["answers"]] == [asked[0].id]
    assert answer["question"]["id"] == question.id
    assert on_sqlite(f"/api/messages/{'0' * 36}").status == 404


def test_a_message_says_why_it_waits_and_by_whom_it_is_held(room: Room, client: Client) -> None:
    id = room.agent("ada").send("bob", {"n": 1})
    never_here = client.get(f"/api/messages/{id}")["reason"]
    held = room.agent("bob").receive(timeout_s=5)
    at_work = client.get(f"/api/messages/{held.id}")["reason"]

    assert "bob has not joined this room yet" in never_here
    assert "holds it until" in at_work


def test_large_payloads_come_in_pieces_and_big_numbers_are_not_rounded(sqlite_room: Room, on_sqlite: Client) -> None:
    id = sqlite_room.agent("ada").send("bob", {"n": 2**63 + 1, "text": "x" * 200_000})

    told = on_sqlite.get(f"/api/messages/{id}")
    pieces = [told["payload"]]
    while sum(map(len, pieces)) < told["payload_size"]:
        pieces.append(on_sqlite.get(f"/api/messages/{id}/payload?start={sum(map(len, pieces))}")["payload"])

    assert str(2**63 + 1) in pieces[0]
    assert len(pieces) == 4
    assert "".join(pieces).count("x") == 200_000 + "text".count("x")


def test_older_messages_follow_without_a_gap_and_a_search_finds_what_is_asked_for(
    sqlite_room: Room, on_sqlite: Client
) -> None:
    ada = sqlite_room.agent("ada")
    ids = [ada.send("bob", {"text": f"number {n}"}, type="even" if n % 2 == 0 else "odd") for n in range(50)]

    page = on_sqlite.get("/api/recent?limit=20")
    found = [line["id"] for line in page["lines"]]
    while page["older"]:
        page = on_sqlite.get(f"/api/older?limit=20&before={page['older']}")
        found = [line["id"] for line in page["lines"]] + found
    even = on_sqlite.get("/api/recent?type=even")["lines"]

    assert found == ids
    assert [line["id"] for line in even] == ids[::2]
    assert [line["text"] for line in on_sqlite.get("/api/recent?text=NUMBER%2041")["lines"]] == ["number 41"]
    assert on_sqlite.get("/api/recent?agent=eve")["lines"] == []
    assert len(on_sqlite.get("/api/recent?agent=bob&channel=general")["lines"]) == 50


def test_the_past_tells_what_was(room: Room, client: Client) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    first = ada.send("bob", {"text": "first"})
    bob.receive(timeout_s=5).retry("not yet", delay_s=0)
    between_ms = room.clock.wall_ms()
    room.clock.sleep(0.02)
    second = ada.send("bob", {"text": "second"})
    for _ in range(2):
        bob.receive(timeout_s=5).ack()

    lines = client.get(f"/api/past?at_ms={between_ms}")["lines"]

    assert [line["id"] for line in lines] == [first, second]
    until = [event for event, time_ms, _ in lines[0]["ledger"] if time_ms <= between_ms]
    assert until == ["stored", "claimed", "retried"]
    assert lines[1]["sent_ms"] > between_ms


def test_the_past_is_played_on_without_a_gap_also_where_many_were_sent_at_once(room: Room, client: Client) -> None:
    ids = room.agent("ada").send_many([{"to": "bob", "payload": {"n": n}} for n in range(120)])

    page = client.get("/api/past?at_ms=5&limit=40")
    found = [line["id"] for line in page["lines"]]
    while page["ahead"]:
        page = client.get(f"/api/past?ahead={page['ahead']}&limit=40")
        found += [line["id"] for line in page["lines"]]

    assert found == ids


# Cursors


def test_the_feed_is_read_page_by_page_and_none_is_missed(room: Room, client: Client) -> None:
    ada = room.agent("ada")
    ids = [ada.send("bob", {"n": n}) for n in range(25)]
    cursor, seen = "0", []
    while page := client.get(f"/api/events?after={cursor}&limit=10")["events"]:
        seen += page
        cursor = page[-1]["cursor"]

    assert [event["message"]["id"] for event in seen] == ids
    assert seen[3]["message"]["payload"] == {"n": 3}


def test_a_cursor_before_what_was_forgotten_has_expired(room: Room, client: Client) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"n": 1})
    early = client.get("/api/events")["cursor"]
    bob.receive(timeout_s=5).ack()
    ada.send("bob", {"n": 2})
    late = client.get("/api/recent")["cursor"]
    assert client(f"/api/events?after={early}").status == 200

    room.purge(state="acked")
    expired = client(f"/api/events?after={early}")

    assert expired.status == 410
    assert expired.json["error"]["code"] == "CURSOR_EXPIRED"
    assert int(early) < int(expired.json["error"]["oldest"]) <= int(late)
    assert client(f"/api/stream?after={early}").json["error"]["code"] == "CURSOR_EXPIRED"
    assert client(f"/api/live?after={early}").status == 410
    assert client(f"/api/events?after={late}").status == 200
    assert client("/api/events?after=0").status == 200  # the beginning of what is kept never expires


def test_a_cursor_that_nobody_gave_is_ahead(room: Room, client: Client) -> None:
    room.agent("ada").send("bob", {"n": 1})
    newest = int(client.get("/api/events")["cursor"])

    ahead = client(f"/api/events?after={newest + 2**40}")

    assert ahead.status == 410
    assert ahead.json["error"]["code"] == "CURSOR_AHEAD"
    assert ahead.json["error"]["newest"] == str(newest)


@pytest.mark.parametrize("text", ["x", "-1", "1e3", "٣", "1" * 40, "%00", "9223372036854775808"])
def test_a_cursor_that_is_no_number_is_named(any_site: Site, text: str) -> None:
    answer = Client(any_site)(f"/api/events?after={text}" if text.isascii() else "/api/events?after=%D9%A3")

    assert answer.status == 400
    assert "after" in answer.json["error"]["message"]


# Acting


def test_a_person_writes_in_its_own_lane_and_leaves_a_trace(sqlite_room: Room, on_sqlite: Client) -> None:
    sqlite_room.agent("bob")

    sent = on_sqlite.post("/api/send", {"to": "bob", "payload": {"text": "hello"}})
    message = sqlite_room.agent("bob").receive(timeout_s=5)

    assert message.id == sent["id"]
    assert (message.lane, message.from_agent) == ("human", "mia")
    assert on_sqlite.get("/api/deeds")["deeds"][0]["ids"] == [sent["id"]]


def test_a_recipient_that_was_never_here_is_refused_with_near_names(sqlite_room: Room, on_sqlite: Client) -> None:
    sqlite_room.agent("reviewer")

    refused = on_sqlite("/api/send", {"to": "reviewr", "payload": {"text": "hello"}})

    assert refused.status == 400
    assert refused.json["error"]["message"].startswith("to: no agent called 'reviewr' was ever seen")
    assert "similar names: reviewer" in refused.json["error"]["message"]
    assert on_sqlite("/api/send", {"to": "reviewr", "payload": {"text": "hello"}, "new": True}).status == 200


def test_dead_letters_are_put_back_one_or_many(room: Room, client: Client) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ids = [ada.send("bob", {"n": n}) for n in range(3)]
    for _ in ids:
        bob.receive(timeout_s=5).dead("no")
    letters = client.get("/api/views/dead")["letters"]

    done = client.post("/api/requeue", {"ids": ids[:2]})

    assert [letter["line"]["id"] for letter in letters] == ids[::-1]
    assert [attempt["error"] for attempt in letters[0]["attempts"]] == ["no"]
    assert done["ids"] == ids[:2]
    assert [(event.event, event.agent) for event in room.receipt(ids[0]).events][-2:] == [
        ("requeued", None),
        ("by_hand", "mia"),
    ]
    assert client.get("/api/views/dead")["count"] == 1


def test_dropping_deletes_what_was_chosen_and_nothing_else(room: Room, client: Client) -> None:
    ids = fill(room)

    done = client.post("/api/drop", {"ids": [ids["dead"], ids["stored"], ids["claimed"], "nonsense"]})

    assert done["ids"] == [ids["dead"]]
    left = {message.id for message in room.peek(state=None, limit=100)}
    assert left == set(ids.values()) - {ids["dead"]}
    deed = client.get("/api/deeds")["deeds"][0]
    assert (deed["by"], deed["what"], deed["ids"]) == ("mia", "dropped", [ids["dead"]])


def test_a_claim_that_is_released_goes_to_another_and_the_late_ack_changes_nothing(room: Room, client: Client) -> None:
    id = room.agent("ada").send("bob", {"n": 1})
    held = room.agent("bob").receive(timeout_s=5)

    assert client.post("/api/release", {"id": id}) == {"released": True}

    again = room.agent("bob").receive(timeout_s=5)
    assert again.id == id
    assert held.ack() is False
    assert again.ack() is True
    assert ("by_hand", "mia") in [(event.event, event.agent) for event in room.receipt(id).events]
    assert client("/api/release", {"id": id}).status == 400


def test_a_tasks_claim_is_released(sqlite_room: Room, on_sqlite: Client) -> None:
    sqlite_room.board.add("T1")
    assert sqlite_room.board.claim("bob", "T1", transient=True)

    assert on_sqlite.post("/api/release-task", {"id": "T1"}) == {"released": True}

    assert sqlite_room.board.get("T1").state == "ready"
    assert on_sqlite("/api/release-task", {"id": "T1"}).status == 400
    assert on_sqlite("/api/release-task", {"id": "T9"}).status == 404


def test_a_session_is_stopped(sqlite_room: Room, on_sqlite: Client) -> None:
    with pytest.raises(postroom.SessionFailed), sqlite_room.session() as session:
        assert on_sqlite.get("/api/views/sessions")["chosen"]["id"] == session.id
        assert on_sqlite.post("/api/stop-session", {"id": session.id}) == {"workers_gone": True}
        session.check_failed()

    assert on_sqlite.get("/api/views/sessions")["sessions"][0]["state"] == "failed"
    assert on_sqlite("/api/stop-session", {"id": "no-such"}).status == 404


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"\xff\xfe", "body"),
        (b'{"payload": 3}', "payload"),
        (b'{"payload": {}, "surprise": 1}', "surprise"),
        (b'{"payload": {}, "priority": 11, "to": null}', "priority"),
        (b'{"payload": {"a": "\\ud800"}, "to": null}', "body"),
        (b'{"payload": {}, "channel": "", "to": null}', "channel"),
        (b'{"payload": {}, "from_agent": "root", "to": null}', "from_agent"),
    ],
)
def test_what_is_wrong_with_a_wish_is_said(any_site: Site, body: bytes, names: str) -> None:
    answer = Client(any_site)("/api/send", body)

    assert answer.status == 400
    assert names in answer.json["error"]["message"]


# Limits


def test_a_body_that_is_too_large_or_no_json_is_refused(any_site: Site) -> None:
    client = Client(any_site)

    assert client("/api/requeue", b'{"ids": ["' + b"x" * MAX_BODY_BYTES + b'"]}').status == 413
    assert client("/api/requeue", b"{}", **{"Content-Type": "text/plain"}).status == 415


def test_a_message_over_the_limit_of_the_room_is_refused_and_one_below_it_is_not(sqlite_room: Room, site: Site) -> None:
    client = Client(site)

    assert client("/api/send", {"payload": {"text": "x" * 1_000_000}}).status == 200
    refused = client("/api/send", {"payload": {"text": "x" * 1_100_000}})

    assert refused.status == 400
    assert "limit" in refused.json["error"]["message"]


def test_who_asks_too_often_is_told_to_wait_and_strangers_do_not_keep_others_out(sqlite_room: Room) -> None:
    with serving(sqlite_room, RequestRates(reads_per_s=5, strangers_per_s=1, acts_per_s=1)) as site:
        client = Client(site)
        stranger = [client("/api/recent", Authorization="").status for _ in range(8)]
        reads = [client("/api/recent").status for _ in range(60)]
        acts = [client("/api/requeue", {"ids": ["x"]}).status for _ in range(10)]
        slow = client("/api/requeue", {"ids": ["x"]})

    assert (stranger[0], stranger[-1]) == (401, 429)
    assert reads[0] == 200
    assert 429 in reads
    assert (acts[0], acts[-1]) == (200, 429)
    assert slow.headers["retry-after"] == "1"


def test_the_page_opens_with_the_right_token_however_many_strangers_knock(sqlite_room: Room) -> None:
    with serving(sqlite_room, RequestRates(reads_per_s=100, strangers_per_s=0.001, acts_per_s=1)) as site:
        client = Client(site)
        knocks = [client("/x", Authorization="", Origin="http://evil.example").status for _ in range(3)]
        opened = [client(f"/?token={site.token}", Authorization="").status for _ in range(5)]
        guessed = [
            client(path, Authorization="").status for path in ("/?token=wrong", "/?token=", "/?token=x&token=y", "/")
        ]
        other = client(f"/api/about?token={site.token}", Authorization="").status

    assert knocks[-1] == 429
    assert opened == [200] * 5
    assert guessed == [429] * 4
    assert other == 429  # the token in a query opens the page and nothing else


def test_the_pages_parts_come_however_many_load_it_and_whoever_knocks(sqlite_room: Room) -> None:
    with serving(sqlite_room, RequestRates(reads_per_s=5, strangers_per_s=1, acts_per_s=1)) as site:
        client = Client(site)
        knocks = [client("/api/recent", Authorization="").status for _ in range(8)]
        parts = {(name, client(f"/page/{name}", Authorization="").status) for _ in range(6) for name in PARTS}
        no_part = [client("/page/nothing.js", Authorization="").status for _ in range(8)]
        elsewhere = client("/page/main.js", Host="evil.example").status
        reads = client("/api/recent").status

    assert knocks[-1] == 429
    assert parts == {(name, 200) for name in PARTS}
    assert no_part[-1] == 429  # what is no part of the page is counted
    assert elsewhere in (421, 429)
    assert reads == 200  # and nobody else paid for it


# The page's parts, headers, figures


def test_every_answer_carries_the_headers_that_protect_it(any_site: Site) -> None:
    client = Client(any_site)
    for path in ("/", "/page/main.js", "/page/nothing.js", "/api/about", "/nowhere", "/metrics"):
        headers = {name.lower(): value for name, value in client(path).headers.items()}
        assert headers["content-security-policy"].startswith("default-src 'none'"), path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(any_site: Site) -> None:
    client = Client(any_site)
    opened = client(f"/?token={any_site.token}", Authorization="")
    wrong = client("/?token=wrong", Authorization="")

    assert opened.status == 200
    assert (
        opened.headers["set-cookie"] == f"postroom_{any_site.port}={any_site.token}; Path=/; HttpOnly; SameSite=Strict"
    )
    assert wrong.status == 401
    assert "set-cookie" not in wrong.headers
    cookie = opened.headers["set-cookie"].partition(";")[0]
    assert client("/api/recent", Authorization="", Cookie=cookie).status == 200


def test_the_page_needs_nothing_from_elsewhere_and_has_nothing_inline(any_site: Site) -> None:
    page = ROOT / "src" / "postroom" / "doors" / "web" / "page"
    texts = {path.name: path.read_text(encoding="utf-8") for path in page.iterdir()}

    for name, text in texts.items():
        elsewhere = set(re.findall(r"https?://[^\"'\s]+", text)) - {"http://www.w3.org/2000/svg"}
        assert elsewhere == set(), name
    for name in ("index.html", "closed.html"):
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|<style", texts[name]), name
    for name, text in texts.items():
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), (
                name
            )
            for imported in re.findall(r'from "\./([\w.]+)"', text):
                assert imported in texts, f"{name} imports {imported}"
    for part in re.findall(r'(?:href|src)="/page/([\w.]+)"', texts["index.html"]):
        assert Client(any_site)(f"/page/{part}").status == 200


def test_parts_outside_of_the_page_are_not_served(any_site: Site) -> None:
    client = Client(any_site)

    for path in (
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/page/app.py",
        "/page/",
        "/page/index.html/x",
    ):
        assert client(path).status in (404, 405), path


def test_figures_are_in_prometheus_format(sqlite_room: Room, on_sqlite: Client) -> None:
    fill(sqlite_room)
    sqlite_room.agent("ada").send("eve", {"n": 1}, channel='odd "name"\\')

    answer = on_sqlite("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    for line in lines:
        assert re.fullmatch(
            r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="([^"\\]|\\.)*"(,\w+="([^"\\]|\\.)*")*\})? -?[\d.e+]+', line
        ), line
    assert 'postroom_messages{state="dead"} 1' in lines
    assert 'postroom_mailbox_depth{to="eve",channel="odd \\"name\\"\\\\"} 1' in lines
    assert 'postroom_agent_up{agent="bob",status="active"} 1' in lines
    assert 'postroom_agent_processed_total{agent="bob"} 2' in lines  # acked and refused
