"""The parser of verdicts in the words of a model. A text without one is said to have none; no number is made up.

Two forms are read: one JSON object with `confidence` (anywhere in the text, also cut short after it), or one line
`CONFIDENCE: 0.8`. Two verdicts that differ are none: one of them may be an echo of the message that was judged. Lines
that stand behind a bar are such an echo (`core/untrusted.py`), and are not looked at.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NamedTuple

from postroom.pools.evaluation import MAX_REASONING, RESPOND_ABOVE

MAX_TEXT: Final = 100_000
_MAX_OBJECTS: Final = 64
_THINKING: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.S | re.I)
_NUMBER: Final = re.compile(r"([+-]?(?:\d{1,20}(?:[.,]\d{0,40})?|[.,]\d{1,40})(?:[eE][+-]?\d{1,3})?)\s*(%?)")
#: Possessive (`*+`): characters that were passed over are not given back. With every way to share a row of asterisks
#: among the parts of this, a long row would take hours (test_verdict.py).
_LINE: Final = re.compile(r"^[ \t>*#_-]*+confidence[ \t*_]*+[:=][ \t*_]*+(\S[^\n]{0,60}?)[ \t*_.]*+$", re.I | re.M)
_REASON: Final = re.compile(r"^[ \t>*#_-]*reason(?:ing)?[ \t*_]*[:=][ \t*_]*(\S.*)", re.I | re.M | re.S)
_CUT: Final = re.compile(
    r'\{\s*"confidence"\s*:\s*("?[^\s,"{}\[\]]{1,40}"?)\s*,(?:\s*"should_respond"\s*:\s*(true|false)\s*[,}])?', re.I
)
_YES: Final = frozenset(("true", "yes", "y", "1"))
_NO: Final = frozenset(("false", "no", "n", "0"))


class Verdict(NamedTuple):
    """What a model made of a message."""

    confidence: float
    should_respond: bool
    reasoning: str


class NoVerdict(ValueError):
    """The text holds no verdict; says why not."""


def read_verdict(text: str) -> Verdict:
    """The verdict in what a model said. Raises NoVerdict, and nothing else; the confidence lies within 0 and 1."""
    text = _unfenced(_THINKING.sub(" ", text[:MAX_TEXT]))
    objects, rest = _objects(text)
    verdicts = [_from_object(found) for found in objects if "confidence" in found]
    if not verdicts and (cut := _CUT.search(rest)) and "{" not in rest[: cut.start()]:
        said = None if cut[2] is None else cut[2].lower() == "true"
        verdicts = [_verdict(cut[1].strip('"'), said, "")]
    reason = _REASON.search(rest)
    verdicts += [_verdict(line, None, reason[1] if reason else "") for line in _LINE.findall(rest)]
    return _one(verdicts)


def _unfenced(text: str) -> str:
    """Without lines that stand behind a bar: those are an echo of the message."""
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("|"))


def _one(verdicts: list[Verdict]) -> Verdict:
    if not verdicts:
        raise NoVerdict("the answer has no verdict")
    if len({(verdict.confidence, verdict.should_respond) for verdict in verdicts}) > 1:
        raise NoVerdict("the answer has several verdicts that differ")
    return verdicts[0]


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name.strip().lower() for name, _ in pairs]
    if len(set(names)) != len(names):
        raise NoVerdict("the answer says the same thing twice in one object")
    return {name: value for name, (_, value) in zip(names, pairs, strict=True)}


_decoder: Final = json.JSONDecoder(object_pairs_hook=_pairs)


def _objects(text: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects in a text that stand in no other, and the text without them."""
    found: list[dict[str, Any]] = []
    rest: list[str] = []
    done, at = 0, text.find("{")
    for _ in range(_MAX_OBJECTS):
        if at < 0:
            break
        try:
            value, end = _decoder.raw_decode(text, at)
        except NoVerdict:
            raise
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found.append(value)
            rest.append(text[done:at])
            done = end
        at = text.find("{", end)
    return found, "".join((*rest, text[done:]))


def _from_object(found: dict[str, Any]) -> Verdict:
    reason = found.get("reasoning", found.get("reason", ""))
    said = found.get("should_respond", found.get("shouldrespond"))
    return _verdict(found["confidence"], said, reason if isinstance(reason, str) else "")


def _verdict(confidence: Any, said: Any, reason: str) -> Verdict:
    sure = _unit(confidence)
    respond = sure > RESPOND_ABOVE if said is None else _yes_or_no(said)
    return Verdict(sure, respond, reason.strip()[:MAX_REASONING])


def _yes_or_no(said: Any) -> bool:
    if isinstance(said, bool):
        return said
    word = said.strip().lower() if isinstance(said, str) else ""  # a list cannot be looked up in a set
    if word not in _YES | _NO:
        raise NoVerdict(f"should_respond must be true or false, not {str(said)[:40]!r}")
    return word in _YES


def _unit(value: Any) -> float:
    """A number from 0 to 1: 0.9, "0.9", "0,9", "90%". Anything else is refused, never bent into the range."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        if match is None:
            raise NoVerdict(f"confidence must be a number from 0 to 1, not {value[:40]!r}")
        value = float(match[1].replace(",", ".")) / (100 if match[2] else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
        raise NoVerdict(f"confidence must be a number from 0 to 1, not {str(value)[:40]}")
    return abs(float(value))  # -0.0 is 0.0
