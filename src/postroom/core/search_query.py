"""The query language of full-text search, and what it means that a message has the words: the same rule on every store.

`words "a phrase" -without begin* from:ada to:bob in:jobs type:review state:dead after:2d before:2026-11-01`

Words are runs of letters and digits; large and small letters, and accents on Latin letters, make no difference. That is
the rule of SQLite's tokenizer `unicode61`, which indexes with it (tests/mail/test_search.py compares the two).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from postroom.errors import InvalidMessage

from . import near

#: What can be asked for besides words, each with an example of what may stand behind the colon.
FIELDS: Final = {
    "from": "ada",
    "to": "bob",
    "in": "jobs",
    "type": "review",
    "state": "dead",
    "before": "2026-11-01",
    "after": "2d",
}
MAX_QUERY_CHARS: Final = 1000
#: A word of a query: perhaps a minus, perhaps a name and a colon, and then a quoted text or one without spaces.
_PART: Final = re.compile(
    r'(?P<minus>-?)(?:(?P<name>[A-Za-z_]+):(?!/))?(?:"(?P<quoted>[^"]*)"(?P<after>\S*)|(?P<bare>\S*))'
)
_SPACE: Final = re.compile(r"\s*")


class Term(NamedTuple):
    """Words that must stand one after the other (mostly it is one word)."""

    text: str  # as it was written, without quotes, minus and star
    words: tuple[str, ...]  # folded
    is_beginning: bool = False  # of the last word only the beginning is given
    is_excluded: bool = False  # messages that have it are left out


class SearchQuery(NamedTuple):
    """A query as it was understood. `fields` holds the text behind each name of `FIELDS` that was given."""

    terms: tuple[Term, ...]
    fields: dict[str, str]


def parse_query(text: object) -> SearchQuery:
    """Read a query. Raises InvalidMessage that says what is wrong with it, and what was expected."""
    if not isinstance(text, str):
        raise _wrong(f"must be text, not {type(text).__name__}")
    if len(text) > MAX_QUERY_CHARS:
        raise _wrong(f"must have at most {MAX_QUERY_CHARS} characters, and has {len(text)}")
    terms: list[Term] = []
    fields: dict[str, str] = {}
    for part in _parts(text):
        if part["name"] is None:
            terms.append(_term(part))
        else:
            _add_field(part, fields)
    if not terms and not fields:
        raise _wrong("names nothing to look for; write words, or fields such as from:ada")
    if all(term.is_excluded for term in terms) and terms and not fields.keys() & {"from", "to", "in", "type"}:
        raise _wrong(
            f"only says what to leave out (-{terms[0].text}); add a word to look for, or one of from:, to:, in:, type:"
        )
    return SearchQuery(tuple(terms), fields)


def _parts(text: str) -> Iterator[re.Match[str]]:
    place = _end(_SPACE, text, 0)
    while place < len(text):
        part = _PART.match(text, place)
        assert part is not None  # it matches any text
        written = part.group()
        if part["quoted"] is None and '"' in part["bare"]:
            raise _wrong(f"has a quote that is not closed, or stands inside a word: {written[:60]}")
        if part["after"]:
            raise _wrong(f"needs a space after the closing quote: {written[:60]}")
        yield part
        place = _end(_SPACE, text, part.end())


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _term(part: re.Match[str]) -> Term:
    quoted, bare = part["quoted"], part["bare"]
    text = bare if quoted is None else quoted
    starred = quoted is None and text.endswith("*")
    text = text.removesuffix("*") if starred else text
    words = words_of(text)
    if quoted is None and "*" in text and words:
        raise _wrong(f"{part.group()!r}: a * may only stand at the end of a word, as in build*")
    if not words:
        raise _wrong(f"{part.group()!r} has no letter or digit to look for")
    return Term(text, words, starred, part["minus"] == "-")


def _add_field(part: re.Match[str], fields: dict[str, str]) -> None:
    name, value = part["name"].lower(), part["bare"] if part["quoted"] is None else part["quoted"]
    if name not in FIELDS:
        meant = near.nearest(name, FIELDS)
        known = ", ".join(f"{field}:" for field in FIELDS)
        raise _wrong(
            f"there is no field {name}:{f' (did you mean {meant}:?)' if meant else ''}; the fields are {known}; "
            f'to find the text itself, quote it: "{part.group()}"'
        )
    if part["minus"]:
        raise _wrong(f"-{name}: only words and phrases can be left out with a minus")
    if not value:
        raise _wrong(f"{name}: lacks its value; write it without a space, as in {name}:{FIELDS[name]}")
    if name in fields:
        raise _wrong(f"{name}: is given twice")
    fields[name] = value


def _wrong(problem: str) -> InvalidMessage:
    return InvalidMessage("search", problem)


# What a message says


def payload_words(payload: Any) -> str:
    """The words of a payload's texts and numbers, in their order, with a space around each."""
    return f" {' '.join(words_of(chr(10).join(_values(payload))))} "


def has_terms(payload: Any, terms: tuple[Term, ...]) -> bool:
    """Whether a payload has the words of a query, and none that is to be left out."""
    if not terms:
        return True
    said = payload_words(payload)
    return all((_as_said(term) in said) is not term.is_excluded for term in terms)


def _as_said(term: Term) -> str:
    return f" {' '.join(term.words)}{'' if term.is_beginning else ' '}"


def _values(payload: Any) -> Iterator[str]:
    """The texts and numbers in a payload, in their order. Its keys are the sender's form, not its words."""
    todo = [payload]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            todo += reversed(value.values())
        elif isinstance(value, list):
            todo += reversed(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def words_of(text: str) -> tuple[str, ...]:
    """The words in a text, folded."""
    if text.isascii():
        return tuple(_ASCII_WORD.findall(text.lower()))
    return tuple("".join(map(_folded, text)).split())


_ASCII_WORD: Final = re.compile(r"[a-z0-9]+")


@lru_cache(maxsize=10_000)
def _folded(char: str) -> str:
    """A character of a word as it is compared; a space for one that is between words."""
    kind = unicodedata.category(char)
    if kind[0] == "M":
        return ""  # an accent of its own belongs to the letter before it
    if kind[0] not in "LN" and kind != "Co":
        return " "
    lower = char.lower()
    base = unicodedata.normalize("NFD", lower)[0]
    return base if "a" <= base <= "z" else lower
