"""Full-text search: the query language, and the same finds on every store."""

from __future__ import annotations

import importlib
import random
import re
from typing import Any

import pytest
from tests.support.in_loop import run

from postroom import aio
from postroom.core.search_query import Term, has_terms, parse_query, words_of
from postroom.errors import InvalidMessage
from postroom.room import Room

searching = importlib.import_module("postroom.mail.searching")  # itself, and not what stands for it until it is used

# The query language


@pytest.mark.parametrize(
    ("text", "terms", "fields"),
    [
        ("build failed", ["build", "failed"], {}),
        ('"Build failed" now', ["Build failed", "now"], {}),
        ("build -green", ["build", "-green"], {}),
        ('build -"all green"', ["build", "-all green"], {}),
        ("buil*", ["buil*"], {}),
        ("src/api.py", ["src/api.py"], {}),
        ("http://x.example/a 12:30", ["http://x.example/a", "12:30"], {}),
        ("from:ada in:jobs x", ["x"], {"from": "ada", "in": "jobs"}),
        ('to:"a name" type:review.done', [], {"to": "a name", "type": "review.done"}),
        ("FROM:ada before:2026-11-01 after:2d state:dead", [], {"from": "ada", "before": "2026-11-01", "after": "2d", "state": "dead"}),
        ('"from:ada"', ["from:ada"], {}),
        ("-green in:jobs", ["-green"], {"in": "jobs"}),
    ],
)  # fmt: skip
def test_a_query_is_words_phrases_and_fields(text: str, terms: list[str], fields: dict[str, str]) -> None:
    parsed = parse_query(text)

    assert ["-" * t.is_excluded + t.text + "*" * t.is_beginning for t in parsed.terms] == terms
    assert parsed.fields == fields


BAD = [
    ("", "names nothing to look for; write words, or fields such as from:ada"),
    ("   ", "names nothing to look for"),
    (7, "must be text, not int"),
    ("x" * 1001, "must have at most 1000 characters, and has 1001"),
    ('"build failed', "has a quote that is not closed"),
    ('say"x"', "has a quote that is not closed, or stands inside a word"),
    ('"a"b', "needs a space after the closing quote"),
    ("!!", "'!!' has no letter or digit to look for"),
    ('x ""', "has no letter or digit"),
    ("-", "'-' has no letter or digit"),
    ("*", "'*' has no letter or digit"),
    ("bu*ld", "a * may only stand at the end of a word, as in build*"),
    ("-green", "only says what to leave out (-green); add a word to look for, or one of from:, to:, in:, type:"),
    ("-green after:2d", "only says what to leave out"),
    ("form:ada x", "there is no field form: (did you mean from:?); the fields are from:, to:, in:, type:, state:, "),
    ("error:x", 'to find the text itself, quote it: "error:x"'),
    ("from: ada", "from: lacks its value; write it without a space, as in from:ada"),
    ("from:a from:b", "from: is given twice"),
    ("x -from:a", "-from: only words and phrases can be left out with a minus"),
    ("x state:lost", "state: there is no state 'lost'; the states are: stored"),
    ("x before:soon", "before: must be a time such as"),
    ("x after:yesterday", "after: must be a time such as"),
    ("x in:" + "c" * 300, "in: must be at most 255 bytes long"),
]


@pytest.mark.parametrize(("text", "problem"), BAD)
def test_a_query_that_cannot_be_read_is_told_what_is_wrong(room: Room, text: Any, problem: str) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(problem)):
        room.search(text)


def test_words_are_runs_of_letters_and_digits_without_case_and_latin_accents() -> None:
    assert words_of("Éa ÑU_x9-é\u0301 ÅÄ") == ("ea", "nu", "x9", "e", "aa")
    assert words_of("Привет, МИР й 東京") == ("привет", "мир", "й", "東京")
    assert words_of("Straße") == ("straße",)


# Finding, on every store

SENT: list[tuple[str, str | None, str, dict[str, Any]]] = [
    ("ada", "bob", "jobs", {"text": "The build FAILED at step seven", "log": ["see src/api.py", {"line": 812}]}),
    ("ada", "bob", "jobs", {"text": "the build is green"}),
    ("ci", "cy", "general", {"text": 'Café: deploy of naïve build failed\nwith a "quote" and \\ back'}),
    ("ci", None, "jobs", {"text": "deployment", "nested": {"deep": [["failed", True, None, 3.5]]}}),
    ("bob", "ada", "general", {"text": "build-failed"}),
]  # fmt: skip
FINDS = [
    ("build", [4, 2, 1, 0]),
    ("BUILD failed", [4, 2, 0]),
    ('"build failed"', [4, 2, 0]),
    ('"failed build"', []),
    ("failed -step", [4, 3, 2]),
    ('build -"build failed"', [1]),
    ("deploy*", [3, 2]),
    ("deploy", [2]),
    ("cafe naive", [2]),
    ("quote back", [2]),
    ("src/api.py", [0]),
    ("api", [0]),
    ("812", [0]),
    ('"3 5"', [3]),
    ("text", []),  # keys are not searched
    ("true", []),
    ("build from:ada", [1, 0]),
    ("build to:ada", [4]),
    ("in:jobs", [3, 1, 0]),
    ("failed in:jobs from:ci", [3]),
    ("build from:ad", []),  # a name is whole
    ("build from:ADA", []),
    ("build state:acked", [0]),
    ("build state:pending", [4, 2, 1]),
    ("type:review", [4]),
    ("build after:1h", [4, 2, 1, 0]),
    ("build before:1h", []),
    ("build after:2020-11-01 before:2108-11-01", [4, 2, 1, 0]),
    ("-green in:jobs", [3, 0]),
    ("NOT", []),
    ("body NEAR build", []),
]


def fill(room: Room) -> list[str]:
    ids = []
    for sender, to, channel, payload in SENT:
        type = "review" if sender == "bob" else "message"
        ids.append(room.agent(sender).send(to, payload, channel=channel, type=type))
    room.agent("bob").receive(timeout_s=0, channels=["jobs"]).ack()
    return ids


@pytest.mark.parametrize(("text", "numbers"), FINDS)
def test_every_store_finds_the_same(room: Room, text: str, numbers: list[int]) -> None:
    ids = fill(room)

    found = room.search(text)

    assert [message.id for message in found] == [ids[number] for number in numbers]
    assert (found.complete, found.more, found.note) == (True, False, "")


def test_what_an_agent_may_read_is_what_it_sent_gets_or_claimed(room: Room) -> None:
    ids = fill(room)
    room.agent("eve").receive(timeout_s=0, channels=["jobs"])  # the one for anybody

    assert [m.id for m in room.search("failed", agent="bob")] == [ids[4], ids[0]]
    assert [m.id for m in room.search("failed", agent="cy")] == [ids[2]]
    assert [m.id for m in room.search("failed", agent="eve")] == [ids[3]]
    assert not room.search("failed", agent="nobody")
    with pytest.raises(InvalidMessage, match="agent: must not be empty"):
        room.search("failed", agent="")


def test_a_limit_gives_the_newest_and_says_that_there_are_more(room: Room) -> None:
    ids = fill(room)

    found = room.search("build", limit=2)

    assert [message.id for message in found] == [ids[4], ids[2]] and found.more
    assert found[0].id == ids[4] and found[1:] == [found.messages[1]] and len(found) == 2
    assert not room.search("build", limit=4).more
    with pytest.raises(InvalidMessage, match="limit: must be a whole number of 1 or more"):
        room.search("build", limit=0)


def test_what_is_sent_after_a_search_is_found_by_the_next_and_what_is_purged_is_not(room: Room) -> None:
    ids = fill(room)
    assert len(room.search("build")) == 4
    new = room.agent("ada").send("bob", {"text": "one more build"})

    assert room.search("build")[0].id == new
    room.purge(ids=[new, ids[2]])
    assert [m.id for m in room.search("build")] == [ids[4], ids[1], ids[0]]


def test_a_store_without_an_index_says_how_far_it_looked(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MAX_READ", 1000)
    monkeypatch.setattr(type(room.store), "find_text", lambda *_: None)
    first = room.agent("ada").send("bob", {"text": "needle"})
    for _ in range(3):
        room.agent("ada").send_many([{"to": "bob", "payload": {"text": "hay"}} for _ in range(500)])

    found = room.search("needle")

    assert not found and not found.complete and found.read == 1000
    assert re.match("only the latest 1000 messages were searched, back to 20..-", found.note)
    monkeypatch.setattr(searching, "MAX_READ", 2000)
    assert [m.id for m in room.search("needle")] == [first] and room.search("needle").complete


def test_words_of_any_kind_reach_the_index_as_words(room: Room) -> None:
    """No text is taken for the language of the index itself, whatever it is made of."""
    chance = random.Random(7)
    said = [
        "NEAR(a b)",
        'a"b',
        "body:x",
        "{sender} : x",
        "x AND NOT y",
        "a^b",
        "--",
        "(",
        "a + b",
        "'; DROP",
        "\\",
        "x*",
    ]
    for text in said:
        room.agent("ada").send("bob", {"text": text})
    for _ in range(200):
        query = " ".join(
            chance.choices([*said, '"', "-", "*", ":", "from:", "ada", "é", "^", "NOT", "OR", "\x00", "{"], k=3)
        )
        try:
            parsed = parse_query(query)
        except InvalidMessage:
            continue
        if parsed.fields:
            continue
        expected = {text for text in said if has_terms({"text": text}, parsed.terms)}
        assert {message.payload["text"] for message in room.search(query)} == expected, query


def test_excluded_words_and_beginnings_mean_the_same_without_an_index() -> None:
    payload = {"a": "one two", "b": ["three"]}

    assert has_terms(payload, (Term("two three", ("two", "three")),))  # values follow each other
    assert has_terms(payload, (Term("thr", ("thr",), True),))
    assert not has_terms(payload, (Term("thr", ("thr",)),))
    assert not has_terms(payload, (Term("one", ("one",)), Term("two", ("two",), False, True)))


def test_an_asyncio_room_searches_too(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            id = await room.agent("ada").send("bob", {"text": "the build failed"})

            found = await room.search("failed from:ada")

            assert [message.id for message in found] == [id]

    run(main())
