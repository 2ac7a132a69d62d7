"""Redaction: what a rule finds is never stored, whoever sends it, and no pattern takes long."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.in_loop import run

from postroom import aio
from postroom.core.clock import ManualClock
from postroom.errors import InvalidMessage, RoomError
from postroom.mail.redacting import REDACTION_CELL, RULES_S
from postroom.room import Room
from postroom.stores.contract import Query

rules = importlib.import_module("postroom.mail.redaction_rules")  # itself, and not what stands for it until it is used

GITHUB = "ghp_" + "aB3" * 12
MARK = "[redacted: github token]"

#: One of each kind, put together here so that no scanner takes this file for a leak.
FOUND = {
    "anthropic key": "sk-" + "ant-api03-" + "x1" * 20,
    "aws key": "AKIA" + "ABCDEFGH12345678",
    "bearer token": "Authorization: " + "Bearer abcdefghijklmnop.1234",
    "github token": GITHUB,
    "gitlab token": "glpat-" + "a1B2" * 5,
    "google key": "AIza" + "b" * 35,
    "json web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "npm token": "npm_" + "c" * 36,
    "openai key": "sk-" + "proj-" + "d2" * 20,
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----",
    "pypi token": "pypi-" + "e3" * 40,
    "slack token": "xoxb-" + "123456789012-abcdef",
    "stripe key": "sk_" + "live_" + "f4" * 12,
    "url password": "postgres://" + "app:hunter2@db.example/app",
}
INNOCENT = [
    "the build failed", "https://example.com/a?b=c@d", "task-123 is blocked", "ask-me about AKIA keys", "bearer of news",
    "eyJ is how they begin", "sk-learn", "12:30 and user@host:path", "-----BEGIN CERTIFICATE-----\nMIIB\n", "xox", "npm_config",
]  # fmt: skip


def texts(room: Room) -> list[str]:
    return [str(message.payload) + str(message.error) for message in room.store.find(Query()).messages]


@pytest.mark.parametrize("name", rules.SHIPPED)
def test_each_rule_that_ships_finds_its_kind_and_passes_its_own_check(name: str) -> None:
    shipped = rules.SHIPPED[name]
    rules.check_pattern(shipped.pattern)
    ready = rules.Rules({"shipped": [name], "own": {}})

    assert ready.redacted({"text": f"see {FOUND[name]} there"})["text"].startswith("see ")
    assert f"[redacted: {name}]" in ready.redacted_text(f"see {FOUND[name]} there")
    for part in re.findall(r"[A-Za-z0-9]{9,}", FOUND[name]):
        assert part == "Authorization" or part not in ready.redacted_text(FOUND[name])
    assert any(word in FOUND[name] for word in shipped.words)


def test_ordinary_text_is_left_alone_and_is_the_same_object() -> None:
    ready = rules.Rules({"shipped": [*rules.SHIPPED], "own": {}})
    payload = {"text": INNOCENT, "n": [1, 2.5, None, True, {"deep": ["x"]}]}

    assert ready.redacted(payload) is payload
    assert [text for text in INNOCENT if ready.redacted_text(text) != text] == []


def test_nothing_that_a_rule_finds_is_stored_by_any_way_of_sending(room: Room) -> None:
    room.redact("github token")
    ada, bob = room.agent("ada"), room.agent("bob")
    payload = {"text": f"use {GITHUB} now", "list": [GITHUB, {"deep": GITHUB}], GITHUB: 1}
    ada.send("bob", payload)
    ada.send_many([{"to": "bob", "payload": {"text": GITHUB}}, {"to": "bob", "payload": {"text": "fine"}}])
    bob.subscribe("news")
    ada.publish("news", {"text": GITHUB})
    first = bob.receive(timeout_s=0)
    first.retry(f"failed with {GITHUB}")
    second = bob.receive(timeout_s=0)
    second.reply({"text": f"my answer is {GITHUB}"})
    third = bob.receive(timeout_s=0)
    third.refuse(f"no: {GITHUB}")

    assert not any(GITHUB in text for text in texts(room))
    assert sum(MARK in text for text in texts(room)) >= 4
    assert payload["text"] == f"use {GITHUB} now"  # the sender's own
    stored = room.get(first.id)
    assert stored.payload == {"text": f"use {MARK} now", "list": [MARK, {"deep": MARK}], MARK: 1}
    assert all(GITHUB not in str(room.get(m.id).ledger) for m in room.store.find(Query()).messages)


def test_a_new_rule_is_honoured_by_a_process_that_has_the_room_open(
    open_room: Callable[[], Room], clock: ManualClock
) -> None:
    one, other = open_room(), open_room()
    ada = other.agent("ada")
    ada.send("bob", {"text": "before: CUST-123"})

    one.redact("customer", "CUST-[0-9]{3,8}")
    one.agent("eve").send("bob", {"text": "at once: CUST-123"})
    clock.advance(RULES_S + 0.1)
    ada.send("bob", {"text": "then: CUST-123"})
    assert one.unredact("customer") and not one.unredact("customer")
    clock.advance(RULES_S + 0.1)
    ada.send("bob", {"text": "after: CUST-123"})

    assert [m.payload["text"] for m in one.store.find(Query()).messages] == [
        "before: CUST-123", "at once: [redacted: customer]", "then: [redacted: customer]", "after: CUST-123",
    ]  # fmt: skip


def test_a_room_without_rules_is_asked_for_them_once_in_two_seconds(
    room: Room, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, asked = room.agent("ada"), list[str]()
    read = room.store.cell_read
    ada.send("bob", {})

    def noted(name: str) -> Any:
        asked.append(name)
        return read(name)

    monkeypatch.setattr(room.store, "cell_read", noted)

    for _ in range(20):
        ada.send("bob", {})
    assert asked == []
    clock.advance(RULES_S + 0.1)
    for _ in range(20):
        ada.send("bob", {})
    assert asked.count(REDACTION_CELL) == 1


def test_rules_are_listed_and_kept_with_the_room(room: Room) -> None:
    assert room.redactions() == []
    assert [rule.name for rule in room.redact("aws key")] == ["aws key"]
    room.redact("zebra", "Z[0-9]{2}")

    assert [(rule.name, rule.shipped) for rule in room.redactions()] == [("aws key", True), ("zebra", False)]
    assert len(room.redact("all")) == len(rules.SHIPPED) + 1
    assert room.unredact("all") and room.redactions() == []


def test_an_asyncio_room_redacts_what_is_sent_together(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.redact("github token")
            id = await room.agent("ada").send("bob", {"text": GITHUB})
            message = await room.agent("bob").receive(timeout_s=10)
            await message.reply({"text": GITHUB})

            assert (await room.get(id)).payload == {"text": MARK}
            assert all(GITHUB not in str(m.payload) for m in await room.peek(state=None, limit=99))

    run(main())


# Patterns and names that are refused

REFUSED = [
    ("(a+)+b", "has a repeat without an end (*, + or {n,}); give it one, such as {1,200}"),
    ("x*", "has a repeat without an end"),
    ("x{3,}", "has a repeat without an end"),
    ("(?:a{1,9}){1,9}b", "could take too long: there are more than 1000 ways to fit it at one place"),
    ("[a-z]{1,99}[a-z]{1,99}", "could take too long"),
    ("(?:a|ab){1,20}c", "could take too long"),
    ("(?:[a-z]{1,500}x){1,500}", "may fit a text of 250500 characters; the limit is 10000"),
    ("a?", "fits the empty text"),
    (r"(a)\1", "must do without backreferences"),
    ("a(?=b)", "must do without backreferences, conditions and lookaround"),
    ("(?<!a)b", "must do without"),
    ("(", "is not a regular expression: missing )"),
    ("[z-a]", "is not a regular expression: bad character range"),
    ("", "must be text of 1 to 1000 characters"),
    ("x" * 1001, "must be text of 1 to 1000 characters"),
    (7, "must be text of 1 to 1000 characters"),
]


@pytest.mark.parametrize(("pattern", "problem"), REFUSED)
def test_a_pattern_that_is_wrong_or_could_take_long_is_refused(pattern: Any, problem: str) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(f"pattern: {problem}")):
        rules.check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["TCK-[0-9]{4,8}", "[a-z]{1,900}", "(?i)secret: [^ ]{1,300}+", "(?>a{1,50}b{1,20})c", "a|b|cd"]
)
def test_a_pattern_with_bounded_repeats_is_taken(pattern: str) -> None:
    rules.check_pattern(pattern)


@pytest.mark.parametrize(
    ("name", "pattern", "problem"),
    [
        ("github", None, "no rule 'github' ships; did you mean 'github token'?"),
        ("", "x", "must be 1 to 40 letters"),
        ("a\nb", "x", "must be 1 to 40 letters"),
        ("x" * 41, "x", "must be 1 to 40 letters"),
        ("aws key", "x", "'aws key' is the name of a rule that ships"),
        ("all", "x", "'all' is the name of a rule that ships"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused_and_nothing_changes(room: Room, name: str, pattern: str | None, problem: str) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(problem)):
        room.redact(name, pattern)
    with pytest.raises(InvalidMessage):
        room.redact("mine", "(x+)+")
    assert room.redactions() == []


def test_a_room_has_at_most_a_hundred_rules(room: Room) -> None:
    room.store.cell_write(REDACTION_CELL, {"shipped": [], "own": {f"r{n}": "x" for n in range(rules.MAX_RULES)}})

    with pytest.raises(InvalidMessage, match="a room has at most 100 redaction rules"):
        room.redact("one more", "x")


def test_a_rule_of_a_newer_version_stops_senders_instead_of_being_ignored(room: Room) -> None:
    room.store.cell_write(REDACTION_CELL, {"shipped": ["rule of tomorrow"], "own": {}})

    with pytest.raises(
        RoomError, match="'rule of tomorrow', which this version of Postroom does not know; nothing was stored"
    ):
        room.agent("ada").send("bob", {"text": "x"})
    assert room.store.find(Query()).messages == []


# Long texts


def test_matches_are_found_wherever_the_windows_of_a_long_text_end() -> None:
    ready = rules.Rules({"shipped": ["github token"], "own": {"word": r"\bneedle\b"}})
    for place in range(4096 - 50, 4096 + 10):
        text = "x" * (place - 1) + " " + GITHUB + " needle " + "y" * 9000
        assert ready.redacted_text(text) == "x" * (place - 1) + f" {MARK} [redacted: word] " + "y" * 9000
    assert ready.redacted_text("needles" + " " * 4090 + "needle") == "needles" + " " * 4090 + "[redacted: word]"


def test_overlapping_matches_become_one_and_keys_do_not_hide_each_other() -> None:
    ready = rules.Rules({"shipped": [], "own": {"a": "abc", "b": "bcd", "n": "[0-9]{3}"}})

    assert ready.redacted_text("xabcdx") == "x[redacted: a]x"
    assert ready.redacted({"111": 1, "222": 2, "x": "333"}) == {
        "[redacted: n] 1": 1, "[redacted: n] 2": 2, "x": "[redacted: n]",
    }  # fmt: skip


@pytest.mark.slow
def test_a_text_made_to_take_long_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_TIME_S", 0.2)
    ready = rules.Rules({"shipped": [], "own": {"slow": "[a-z]{1,900}[0-9]"}})
    began_s = time.process_time()

    with pytest.raises(InvalidMessage, match="takes longer than 0 s to redact; send less at a time"):
        ready.redacted({"text": "a" * 1_000_000})

    assert time.process_time() - began_s < 20  # without a limit: half an hour
