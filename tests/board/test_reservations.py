"""Reservations of files on every store, and the patterns they are made with."""

from __future__ import annotations

import fnmatch
import itertools
import random
import re
from collections.abc import Callable

import pytest

import postroom
from postroom.board.globs import covers, overlap
from postroom.core.clock import ManualClock
from postroom.room import Room
from postroom.testing import gone_process, together

# Patterns


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        ("src/api/**", "src/api/users.py", True),
        ("src/api/**", "src/web/**", False),
        ("src/api", "src/api/v1/users.py", True),
        ("src", "src/api/**", True),
        ("src/ap", "src/api", False),
        ("**/*.py", "src/api/**", True),
        ("**/*.py", "docs/*.md", True),  # a folder `x.py` below docs/y.md could be meant by both
        ("*.py", "*.md", False),
        ("src/*.py", "src/a?.py", True),
        ("src/[ab].py", "src/[bc].py", True),
        ("src/[ab].py", "src/[!ab].py", False),
        ("src/[!a].py", "src/[!b].py", True),
        ("src/[a-c]x", "src/bx", True),
        ("src/a*b*c", "src/axxbyyc", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "b/**/z", False),
        ("**", "anything/at/all", True),
        ("[", "[", True),
        ("a[b", "a[b", True),
    ],
)
def test_patterns_that_can_mean_the_same_file(first: str, second: str, meet: bool) -> None:
    assert overlap(first, second) is meet
    assert overlap(second, first) is meet


def by_expression(glob: str) -> re.Pattern[str]:
    """The same patterns by another way, to compare with."""
    parts = [
        "(?:[^/]+/)*" if part == "**" else fnmatch.translate(part)[4:-3].replace(".*", "[^/]*") + "/"
        for part in glob.split("/")
    ]
    text = "".join(parts)
    return re.compile(f"(?s:{text}(?:[^/]+/)*)\\Z")


@pytest.mark.slow
def test_patterns_agree_with_another_way_to_read_them() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    alphabet = ["a", "b", "ab", "*", "a*", "*b", "**", "?", "a?"]
    paths = ["/".join(way) for length in (1, 2, 3) for way in itertools.product(["a", "b", "ab", "aab"], repeat=length)]
    for _ in range(300):
        first, second = ("/".join(chance.choices(alphabet, k=chance.randint(1, 3))) for _ in range(2))
        means = [{path for path in paths if by_expression(glob).match(path + "/")} for glob in (first, second)]

        assert {path for path in paths if covers(first, path)} == means[0], first
        if means[0] & means[1]:
            assert overlap(first, second), (first, second)


def test_a_pattern_that_could_take_for_ever_does_not() -> None:
    assert not overlap("*a" * 60 + "b", "*a" * 60 + "c")
    assert overlap("/".join(["**", "a"] * 60 + ["b"]), "/".join(["**", "a"] * 60 + ["c"]))


def test_a_path_with_special_characters_is_only_itself() -> None:
    assert covers("src/*.py", "src/[x].py")
    assert not covers("src/a.py", "src/*.py")


# Reserving


def test_a_conflict_names_the_holder_and_what_it_works_on(room: Room) -> None:
    room.board.add("T3", title="the API")
    held = room.board.claim("ada")
    assert held is not None
    made = room.reserve(["src/api/**", "docs/api.md"], agent="ada", ttl_s=600)

    with pytest.raises(postroom.ReservationConflict) as caught:
        room.reserve(["src/*/users.py"], agent="bob")
    (shown,) = room.reservations()
    assert caught.value.holders == ["ada"]
    assert str(caught.value) == (
        f"src/*/users.py meets src/api/**, reserved by ada until {shown.until} (working on T3 the API)"
    )
    assert shown.to_dict() == {
        "id": made.id,
        "agent": "ada",
        "globs": ["src/api/**", "docs/api.md"],
        "exclusive": True,
        "why": None,
        "until": shown.until,
        "since": shown.since,
    }

    assert made.release() and not made.release()
    room.reserve(["src/*/users.py"], agent="bob")


def test_the_holder_says_what_it_works_on_in_its_own_words_or_by_its_heartbeat(room: Room) -> None:
    room.agent("eve").heartbeat(current_task="tidying")
    room.reserve(["a"], agent="ada", why="the big rename")
    room.reserve(["b"], agent="eve")
    room.reserve(["c"], agent="kim")

    with pytest.raises(postroom.ReservationConflict) as caught:
        room.reserve(["**"], agent="bob")
    assert caught.value.holders == ["ada", "eve", "kim"]
    for said in ("(the big rename)", "(working on tidying)", "(it did not say what for)"):
        assert said in str(caught.value)


def test_ones_own_and_shared_ones_are_not_in_the_way(room: Room) -> None:
    room.reserve(["src/**"], agent="ada", exclusive=False)
    room.reserve(["src/api/**"], agent="bob", exclusive=False)
    room.reserve(["docs/**"], agent="ada")
    room.reserve(["docs/api.md"], agent="ada")

    with pytest.raises(postroom.ReservationConflict, match="shared reserved by ada"):
        room.reserve(["src/web/**"], agent="eve")
    with pytest.raises(postroom.ReservationConflict, match="reserved by ada"):
        room.reserve(["docs/**"], agent="eve", exclusive=False)
    assert len(room.reservations()) == 4


def test_a_reservation_ends_by_time_and_lasts_when_extended(room: Room, clock: ManualClock) -> None:
    made = room.reserve(["a"], agent="ada", ttl_s=10)
    clock.jump_wall(3600)
    clock.advance(9)
    assert made.extend(10)
    clock.advance(9)
    with pytest.raises(postroom.ReservationConflict):
        room.reserve(["a"], agent="bob")
    clock.advance(2)

    assert room.reservations() == [] and not made.extend() and not made.release()
    room.reserve(["a"], agent="bob")


def test_a_reservation_ends_with_its_process(room: Room) -> None:
    room.reserve(["a"], agent="ada", transient=True, process=gone_process())

    assert room.reservations() == []
    room.reserve(["a"], agent="bob")


def test_a_reservation_ends_with_its_room_unless_it_is_the_agents(open_room: Callable[..., Room]) -> None:
    here, there = open_room(), open_room()
    here.reserve(["a"], agent="ada")
    here.reserve(["b"], agent="ada", transient=True)
    assert len(there.reservations()) == 2
    here.close()

    assert [each.globs for each in there.reservations()] == [("b",)]


def test_a_block_releases_at_its_end(room: Room) -> None:
    with room.reserve(["a"], agent="ada"):
        assert len(room.reservations()) == 1
    assert room.reservations() == []


def test_of_those_who_reserve_at_the_same_moment_one_wins(open_room: Callable[..., Room]) -> None:
    rooms = [open_room() for _ in range(4)]
    for number in range(10):

        def reserve(place: int, number: int = number) -> bool:
            try:
                rooms[place].reserve([f"src/{number}/**"], agent=f"agent-{place}")
            except postroom.ReservationConflict:
                return False
            return True

        assert sum(together(*(lambda place=place: reserve(place) for place in range(4)))) == 1


@pytest.mark.parametrize(
    ("globs", "said"),
    [
        ("src", r"globs: must be a list of patterns, such as \['src'\]"),
        ([], "globs: must name 1 to 100 patterns, not 0"),
        (["/etc/passwd"], "without a slash in front"),
        (["src/../../etc"], r"must not go up with `..`"),
        (["./"], r"must not be empty; everything is `\*\*`"),
        ([7], "globs: must be text, not int"),
        (["a\x00b"], "must not contain control characters"),
        (["x" * 2000], "at most 1024 bytes"),
    ],
)
def test_patterns_that_are_not_valid_are_refused(room: Room, globs: list[str], said: str) -> None:
    with pytest.raises(postroom.InvalidMessage, match=said):
        room.reserve(globs, agent="ada")
    assert room.reservations() == []


def test_patterns_are_kept_in_one_form(room: Room) -> None:
    made = room.reserve(["./src//api/", "src/api"], agent="ada")

    assert made.globs == ("src/api",)
