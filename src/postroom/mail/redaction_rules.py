"""Redaction rules: regular expressions for what must not be stored, those that ship, and how their time is bounded.

Python's own engine tries the ways in which a pattern can fit one after the other, and has no limit. So a pattern is read
before it is accepted: each repeat must end, the ways to try at one place are counted (`MAX_WAYS`), and so is its longest
match. Long texts are searched window by window, with a look at the clock between (tests/mail/test_redaction.py).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from postroom.core import near
from postroom.core.clock import SYSTEM
from postroom.core.message import MAX_DEPTH
from postroom.errors import InvalidMessage, RoomError
from postroom.stores.cells import DELETE
from postroom.stores.cells import update as update_cell
from postroom.stores.contract import Store


class Shipped(NamedTuple):
    """A rule that ships: its pattern, and words of which one is in every text that it fits, which are looked for first."""

    pattern: str
    words: tuple[str, ...]


#: The rules that ship, each on by choice.
SHIPPED: Final = {
    "anthropic key": Shipped(r"\bsk-ant-[A-Za-z0-9_-]{20,255}+", ("sk-ant-",)),
    "aws key": Shipped(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", ("AKIA", "ASIA")),
    "bearer token": Shipped(
        r"\b(?:Bearer|bearer|BEARER)\s{1,3}+[A-Za-z0-9._~+/=-]{16,4000}+", ("Bearer", "bearer", "BEARER")
    ),
    "github token": Shipped(
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}+|github_pat_[A-Za-z0-9_]{22,255}+)",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    "gitlab token": Shipped(r"\bglpat-[A-Za-z0-9_.-]{20,255}+", ("glpat-",)),
    "google key": Shipped(r"\bAIza[A-Za-z0-9_-]{35}", ("AIza",)),
    "json web token": Shipped(
        r"\beyJ[A-Za-z0-9_-]{10,3000}+\.eyJ[A-Za-z0-9_-]{10,3000}+\.[A-Za-z0-9_-]{10,3000}+", (".eyJ",)
    ),
    "npm token": Shipped(r"\bnpm_[A-Za-z0-9]{36}", ("npm_",)),
    "openai key": Shipped(r"\bsk-[A-Za-z0-9_-]{20,255}+", ("sk-",)),
    "private key": Shipped(
        r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=\s:,-]{1,9000}+", ("PRIVATE KEY-----",)
    ),
    "pypi token": Shipped(r"\bpypi-[A-Za-z0-9_-]{50,255}+", ("pypi-",)),
    "slack token": Shipped(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}+", ("xox",)),
    "stripe key": Shipped(r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,255}+", ("k_live_", "k_test_")),
    "url password": Shipped(r"\b[a-z][a-z0-9+.-]{1,20}+://[^\s/:@]{0,100}+:[^\s/@]{1,200}+@", ("://",)),
}
#: Stands for all of them.
ALL: Final = "all"
MAX_RULES: Final = 100
MAX_NAME_CHARS: Final = 40
MAX_PATTERN_CHARS: Final = 1000
#: At one place of a text so many ways are tried at most, and no match is longer than so many characters.
MAX_WAYS: Final = 1000
MAX_WIDTH: Final = 10_000
#: Texts are searched in windows of so many characters. A message that takes longer than this is refused.
_WINDOW: Final = 4096
MAX_TIME_S: Final = 2.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")
_parser: Any = importlib.import_module("re._parser")  # what `re` itself reads patterns with
_MANY: Final = 10**9


class _Size(NamedTuple):
    """What a part of a pattern may cost: ways to fit at one place, and the shortest and the longest text that it fits."""

    ways: int
    least: int
    most: int


class Rule(NamedTuple):
    """One rule: what stands in the place of a match, and what is looked for."""

    name: str  # as it stands in the mark
    pattern: str  # the regular expression
    shipped: bool  # whether it ships with Postroom


def rules_in(value: Any) -> list[Rule]:
    """The rules that a room's cell holds, by name. Raises RoomError for a rule that this version does not know."""
    if value is None:
        return []
    try:
        rules = [Rule(name, SHIPPED[name].pattern, True) for name in value["shipped"]]
    except KeyError as error:
        raise RoomError(
            f"this room has the redaction rule {error}, which this version of Postroom does not know; nothing was stored. "
            "Upgrade Postroom, or remove the rule"
        ) from None
    return sorted(rules + [Rule(name, pattern, False) for name, pattern in value["own"].items()])


def add(store: Store, cell: str, name: str, pattern: str | None) -> list[Rule]:
    """Add a rule: one that ships (or `ALL` of them), or one's own. Raises InvalidMessage, and nothing was changed."""
    _check_name(name, own=pattern is not None)
    if pattern is not None:
        check_pattern(pattern)

    def change(value: Any) -> Any:
        shipped, own = _parts(value)
        if pattern is not None:
            own[name] = pattern
        else:
            shipped |= {*SHIPPED} if name == ALL else {name}
        if len(shipped) + len(own) > MAX_RULES:
            raise InvalidMessage(
                "name", f"would be rule {MAX_RULES + 1}; a room has at most {MAX_RULES} redaction rules"
            )
        return {"shipped": sorted(shipped), "own": own}

    return rules_in(update_cell(store, cell, change))


def remove(store: Store, cell: str, name: str) -> bool:
    """Remove a rule, or `ALL`. Whether it was there."""
    found = False

    def change(value: Any) -> Any:
        nonlocal found
        shipped, own = _parts(value)
        found = bool(shipped or own) if name == ALL else name in shipped or name in own
        if not found:
            return None
        shipped, own = ({*()}, {}) if name == ALL else (shipped - {name}, {n: p for n, p in own.items() if n != name})
        return {"shipped": sorted(shipped), "own": own} if shipped or own else DELETE

    update_cell(store, cell, change)
    return found


def _parts(value: Any) -> tuple[set[str], dict[str, str]]:
    return ({*()}, {}) if value is None else (set(value["shipped"]), dict(value["own"]))


def _check_name(name: object, *, own: bool) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidMessage(
            "name", f"must be 1 to {MAX_NAME_CHARS} letters, digits, spaces, dots, dashes or underscores, not {name!r}"
        )
    if own and (name in SHIPPED or name == ALL):
        raise InvalidMessage("name", f"{name!r} is the name of a rule that ships; give your rule another")
    if not own and name != ALL and name not in SHIPPED:
        meant = near.nearest(name, SHIPPED)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise InvalidMessage(
            "name",
            f"no rule {name!r} ships{hint} Those that do: {', '.join(SHIPPED)}. A rule of your own needs a pattern",
        )


# Patterns


def check_pattern(pattern: object) -> None:
    """Raise InvalidMessage unless this is a regular expression whose time is bounded."""
    if not isinstance(pattern, str) or not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        raise _wrong(f"must be text of 1 to {MAX_PATTERN_CHARS} characters")
    try:
        parsed = _parser.parse(pattern)
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _wrong(f"is not a regular expression: {error}") from None
    size = _in_row(parsed)
    if size.least == 0:
        raise _wrong("fits the empty text, so it would be found everywhere; let it require a character")
    if size.most > MAX_WIDTH:
        raise _wrong(f"may fit a text of {size.most} characters; the limit is {MAX_WIDTH}: use smaller repeats")
    if size.ways > MAX_WAYS:
        raise _wrong(
            f"could take too long: there are more than {MAX_WAYS} ways to fit it at one place. Use smaller repeats, or "
            "possessive ones, which give nothing back: [a-z]{1,200}+"
        )


def _wrong(problem: str) -> InvalidMessage:
    return InvalidMessage("pattern", problem)


def _in_row(parts: Any) -> _Size:
    ways = 1
    least = most = 0
    for operation, argument in parts:
        size = _size(str(operation), argument)
        ways, least, most = min(ways * size.ways, _MANY), least + size.least, min(most + size.most, _MANY)
    return _Size(ways, least, most)


def _size(operation: str, argument: Any) -> _Size:
    """The size of one part of a pattern, as `re` names those."""
    if operation in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        return _Size(1, 1, 1)
    if operation == "AT":
        return _Size(1, 0, 0)
    if operation == "SUBPATTERN":
        return _in_row(argument[3])
    if operation == "ATOMIC_GROUP":
        return _in_row(argument)
    if operation == "BRANCH":
        sizes = [_in_row(branch) for branch in argument[1]]
        return _Size(sum(s.ways for s in sizes), min(s.least for s in sizes), max(s.most for s in sizes))
    if operation in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return _repeat(*argument, gives_back=operation != "POSSESSIVE_REPEAT")
    raise _wrong("must do without backreferences, conditions and lookaround ((?=…), (?<=…), \\1)")


def _repeat(least: int, most: int, parts: Any, *, gives_back: bool) -> _Size:
    if most == _parser.MAXREPEAT:
        raise _wrong("has a repeat without an end (*, + or {n,}); give it one, such as {1,200}")
    body = _in_row(parts)
    if not gives_back:
        ways = 1 if body.ways == 1 else min(body.ways * most, _MANY)
    elif body.ways == 1:
        ways = most - least + 1
    else:  # each turn has all the ways of the body, after each way of the turns before
        ways = (
            _MANY
            if body.ways > MAX_WAYS or most > MAX_WAYS
            else min(sum(body.ways**n for n in range(least, most + 1)), _MANY)
        )
    return _Size(ways, body.least * least, min(body.most * most, _MANY))


# Redacting


class _Ready(NamedTuple):
    """A rule that is ready for use."""

    mark: str
    pattern: re.Pattern[str]
    reach: int  # so many characters a match may need
    words: tuple[str, ...]


class Rules:
    """The rules of a room, ready for use."""

    def __init__(self, value: Any) -> None:
        self._rules = [
            _Ready(
                f"[redacted: {rule.name}]",
                re.compile(rule.pattern),
                _in_row(_parser.parse(rule.pattern)).most + 1,
                SHIPPED[rule.name].words if rule.shipped else ("",),
            )
            for rule in rules_in(value)
        ]

    def redacted(self, payload: Any) -> Any:
        """A payload without what the rules find in its texts and keys; itself, when that is nothing.

        Raises InvalidMessage when it takes longer than MAX_TIME_S.
        """
        return self._value(payload, SYSTEM.steady_ns() + round(MAX_TIME_S * 1e9), 0)

    def redacted_text(self, text: str) -> str:
        """The same for one text."""
        return self._text(text, SYSTEM.steady_ns() + round(MAX_TIME_S * 1e9))

    def _value(self, value: Any, until_ns: int, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value, until_ns)
        if depth > MAX_DEPTH:
            return value  # which is refused, as every payload of that depth is
        if isinstance(value, dict):
            items = {self._key(key, until_ns): self._value(item, until_ns, depth + 1) for key, item in value.items()}
            # keys that became the same would hide each other: then the place alone tells them apart
            if len(items) != len(value):
                items = {
                    key if (new := self._key(key, until_ns)) == key else f"{new} {place}": self._value(
                        item, until_ns, depth + 1
                    )
                    for place, (key, item) in enumerate(value.items(), 1)
                }
            return items if any(items.get(key, self) is not item for key, item in value.items()) else value
        if isinstance(value, list | tuple):
            made = [self._value(item, until_ns, depth + 1) for item in value]
            return made if any(new is not old for new, old in zip(made, value, strict=True)) else value
        return value

    def _key(self, key: Any, until_ns: int) -> Any:
        return self._text(key, until_ns) if isinstance(key, str) else key

    def _text(self, text: str, until_ns: int) -> str:
        rules = [rule for rule in self._rules if any(word in text for word in rule.words)]
        found = sorted(span for rule in rules for span in _spans(text, rule, until_ns))
        if not found:
            return text
        parts, place = [], 0
        for start, end, mark in _apart(found):
            parts += [text[place:start], mark]
            place = end
        return "".join([*parts, text[place:]])


def _spans(text: str, rule: _Ready, until_ns: int) -> Iterator[tuple[int, int, str]]:
    """Where a rule fits, each with its mark: window by window, each with as much behind it as a match may need."""
    place = 0
    while place < len(text):
        end = min(len(text), place + _WINDOW)
        if place and SYSTEM.steady_ns() > until_ns:
            raise InvalidMessage("payload", f"takes longer than {MAX_TIME_S:.0f} s to redact; send less at a time")
        following = end
        for match in rule.pattern.finditer(text, place, end + rule.reach):
            if match.start() >= end:
                break
            yield match.start(), match.end(), rule.mark
            following = max(following, match.end())
        place = following


def _apart(found: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Spans that overlap as one, under the first of their marks."""
    start, end, mark = found[0]
    for later_start, later_end, later_mark in found[1:]:
        if later_start < end:
            end = max(end, later_end)
        else:
            yield start, end, mark
            start, end, mark = later_start, later_end, later_mark
    yield start, end, mark
