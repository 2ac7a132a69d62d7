"""Broken programs by the thousand: no crash, no hang, every refusal with a place; what is accepted can be checked and formatted."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroom.lang.check.check import check_program
from postroom.lang.syntax.formatter import formatted
from postroom.lang.syntax.parser import parse
from postroom.lang.syntax.problems import SyntaxProblems
from postroom.lang.syntax.program import LoadedModule, ParsedProgram

from .test_grammar import EXAMPLES, SAMPLES

SEED = 20261115
#: Many times what the slowest hundred takes: only what stands still takes longer.
MAX_CPU_S = 15.0
PIECES = [
    *(
        "{ } ( ) [ ] \" ' $ ${ $( ($ $@{ $? $' do think ask \\ ; | || && > >> 2>&1 <<< = == . ... ?. # @ - ! , : ++".split()
    ),
    *("worker fun trait var if else for while try catch import self throw return in null .await".split()),
    *["think {", "do {", "$ ", "($ ", "\n", "\r", "\t", "\x00", "\ufeff", "\u00e9", "\u540d", "\u0301", "\U0001f600"],
    *["1e999", "9" * 400, "(" * 500, "{" * 500, "x" * 500, "\u2028", "\ud800"],
]


def broken(texts: list[str], chance: random.Random) -> str:
    """One text with a few wounds."""
    text = chance.choice(texts)
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.randint(0, 12))
        kind = chance.randrange(6)
        if kind == 0:
            text = text[:at] + text[end:]
        elif kind == 1:
            text = text[:at] + chance.choice(PIECES) + text[at:]
        elif kind == 2:
            text = text[:at] + chance.choice(PIECES) + text[end:]
        elif kind == 3:
            other = chance.choice(texts)
            start = chance.randrange(len(other))
            text = text[:at] + other[start : start + chance.randint(0, 80)] + text[at:]
        elif kind == 4:
            lines = text.split("\n")
            one, two = chance.randrange(len(lines)), chance.randrange(len(lines))
            lines[one], lines[two] = lines[two], lines[one]
            text = "\n".join(lines)
        else:
            text = text[:at]
    return text


def survives(text: str, *, whole: bool) -> bool:
    """Whether a text is a program. Either way nothing crashes, and what is wrong with it has its place.

    With `whole`, a program is checked and formatted too, which takes ten times as long.
    """
    try:
        module = parse(text, "fuzzed.pw")
    except SyntaxProblems as faults:
        problems = faults.problems
        assert problems
        for problem in problems:
            assert 0 <= problem.span.start <= problem.span.end <= len(text)
            assert problem.span.line >= 1
            assert "\n" in problem.text()
        return False
    if not whole:
        return True
    loaded = LoadedModule("fuzzed", Path("fuzzed.pw"), module)
    for problem in check_program(ParsedProgram(loaded, [loaded])):
        assert 0 <= problem.span.start <= len(text)
        assert problem.text()
    once = formatted(text, "fuzzed.pw")
    assert formatted(once, "fuzzed.pw") == once
    return True


@contextmanager
def not_standing_still() -> Iterator[None]:
    """Fails what takes so much of the processor's time that it would never end."""

    def too_long(_number: int, _frame: object) -> None:
        raise AssertionError(f"more than {MAX_CPU_S} s of the processor")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def fuzz(count: int, seed: int, whole_each: int = 1) -> None:
    print("seed", seed)
    texts = [path.read_text(encoding="utf-8") for path in [*SAMPLES, *EXAMPLES]]
    chance = random.Random(seed)
    accepted = 0
    for start in range(0, count, 100):
        text = ""
        try:
            with not_standing_still():
                for _ in range(100):
                    text = broken(texts, chance)
                    accepted += survives(text, whole=accepted % whole_each == 0)
        except BaseException:
            print(f"in the hundred from {start}:\n{text!r}")
            raise
    assert count * 0.05 < accepted < count * 0.9


ODD = [*range(0x30), *range(0x3A, 0x41), *range(0x5B, 0x61), *range(0x7B, 0xA1), 0x1680, 0x2028, 0x3000, 0xD800, 0xFEFF]
PLACES = ["%s", '"%s"', "'%s'", "$ a%sb", "$ a %s", "$(a %s b)", "think { a%sb }", '$ "%s"', "${%s}", '"${a%sb}"']


def test_every_character_can_stand_everywhere() -> None:
    """A character that no pattern of a mode knew once made the lexer stand still."""
    for place in PLACES:
        with not_standing_still():
            for char in map(chr, ODD):
                survives("worker w() { " + place % char + " }", whole=False)
                survives("worker w() {\n" + place % char, whole=False)


@pytest.mark.slow
def test_2000_broken_programs_crash_nothing() -> None:
    fuzz(2_000, SEED, whole_each=20)


@pytest.mark.long
def test_200000_broken_programs_crash_nothing() -> None:
    fuzz(200_000, SEED + 1, whole_each=5)


def test_a_few_broken_programs_crash_nothing() -> None:
    fuzz(400, SEED + 2)
