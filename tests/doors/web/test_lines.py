"""How messages look, and that the page has a colour and a picture for every look."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support import ROOT

from postroom.core.message import Message
from postroom.core.states import MOVES, NOTES, PUBLIC_NAME, State
from postroom.doors.web.lines import LOOK_AFTER, LOOKS, folded, line_of, look_of, text_of
from postroom.stores.contract import Change

PAGE = ROOT / "src" / "postroom" / "doors" / "web" / "page"


def message(**more: Any) -> Message:
    return Message(**{"id": "1", "from_agent": "ada", "to_agent": "bob", "payload": {"text": "hi"}, **more})


def test_every_state_and_every_event_has_a_look() -> None:
    assert {look_of(message(exact_state=state)) for state in State} <= set(LOOKS)
    assert set(PUBLIC_NAME.values()) <= set(LOOKS)
    assert {move.event for move in MOVES} | {"stored"} <= set(LOOK_AFTER)
    assert set(LOOK_AFTER.values()) <= set(LOOKS)
    assert set(LOOK_AFTER) <= {move.event for move in MOVES} | {"stored", *NOTES}


def test_the_page_has_a_colour_in_both_themes_and_a_picture_for_every_look() -> None:
    style = (PAGE / "base.css").read_text(encoding="utf-8")
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    for look in LOOKS:
        colours = re.findall(rf"--{look}: (#[0-9a-f]{{6}});", style)
        assert len(colours) == 3, look  # light, dark by the system's wish, dark by the reader's
        assert colours[1] == colours[2] != colours[0], look
        assert f".look-{look} {{ --c: var(--{look}); }}" in style
        assert f'id="i-{look}"' in page


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def mixed(one: str, other: str, share: float) -> str:
    """What CSS makes of `color-mix(in srgb, one share, other)`."""
    pairs = ((int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in pairs)


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_can_be_told_from_the_paper(theme: int) -> None:
    """At least 3 to 1 for arrows and edges, 4.5 to 1 for words, as the guidelines for readable pages ask."""
    style = (PAGE / "base.css").read_text(encoding="utf-8")

    def colour(name: str) -> str:
        return str(re.findall(rf"--{name}: (#[0-9a-f]{{6}})", style)[theme])

    ink, papers = colour("ink"), [colour("paper"), colour("surface")]
    chosen = mixed(colour("wash"), colour("paper"), 0.09)  # a row that is chosen
    faults = {}
    for look in LOOKS:
        signs = [contrast(colour(look), paper) for paper in (*papers, chosen)]
        word = mixed(colour(look), ink, 0.66)
        chips = [mixed(colour(look), paper, 0.12) for paper in papers]
        words = [contrast(word, paper) for paper in (*papers, chosen, *chips)]
        if min(signs) < 3 or min(words) < 4.5:
            faults[look] = (min(signs), min(words))
    assert faults == {}
    plain = [*papers, chosen, colour("hair"), colour("raised")]
    assert {
        name for name in ("ink", "soft", "faint") for paper in plain if contrast(colour(name), paper) < 4.5
    } == set()
    assert {paper for paper in papers if contrast(colour("edge"), paper) < 3} == set()
    assert contrast(colour("accent-ink"), colour("dead")) >= 4.5


def test_what_is_notified_or_waits_again_can_be_seen() -> None:
    assert look_of(message()) == "stored"
    assert look_of(message(), "notified") == "notified"
    assert look_of(message(), "shown") == "notified"
    assert look_of(message(delivery_count=1)) == "retried"
    assert look_of(message(exact_state=State.DELAYED)) == "delayed"
    assert look_of(message(exact_state=State.DELAYED, delivery_count=1)) == "retried"
    assert look_of(message(exact_state=State.ACKED), "by_hand") == "acked"


def test_changes_of_one_message_are_folded_into_its_last() -> None:
    one, other = message(id="1", exact_state=State.ACKED), message(id="2")
    changes = [
        Change(1, "stored", 10, "ada", None, one),
        Change(2, "stored", 11, "ada", None, other),
        Change(3, "acked", 12, "bob", None, one),
    ]

    lines = folded(changes)

    assert [(line.id, line.event, line.time_ms) for line in lines] == [("1", "acked", 12), ("2", "stored", 11)]


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ({"text": "hello"}, "hello"),
        ({"text": "deployed", "pr": 64}, "deployed · pr: 64"),
        ({"pr": 64, "message": "deployed", "by": {"name": "ada"}}, "deployed · pr: 64 · by: {name: ada}"),
        ({"text": {"a": 1}, "b": 2}, "text: {a: 1}, b: 2"),
        ({"value": 7}, "7"),
        ({"value": [1, "two", None, True]}, "[1, two, null, true]"),
        ({"a": 1, "b": {"c": "d"}}, "a: 1, b: {c: d}"),
        ({}, ""),
        ({"text": "x" * 1000}, "x" * 160),
        ({"list": list(range(1000))}, None),
        ({"deep": {str(n): {"x": "y" * 10_000} for n in range(100)}}, None),
    ],
)
def test_a_preview_shows_the_beginning(payload: dict[str, Any], shown: str | None) -> None:
    assert len(text_of(payload)) <= 160
    if shown is not None:
        assert text_of(payload) == shown


def test_a_preview_of_a_large_payload_does_not_go_through_it() -> None:
    class Counting(dict[str, Any]):
        seen = 0

        def items(self) -> Any:
            for pair in super().items():
                Counting.seen += 1
                yield pair

    text_of(Counting({str(n): n for n in range(100_000)}))

    assert Counting.seen < 200


def test_a_line_tells_when_its_message_is_due_while_it_waits() -> None:
    assert line_of(message(exact_state=State.DELAYED, due_ms=7)).due_ms == 7
    assert line_of(message(exact_state=State.READY, due_ms=7)).due_ms is None
