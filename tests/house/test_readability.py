"""Pages are short, and long sentences are rare.

`python -m tests.house.test_readability` prints the figures of each page,
and the long sentences of those pages that are named after it.

A page's words are those of its prose, lists, tables and headings; code blocks, comments and the addresses of links are
left out. A sentence counts a piece of inline code as one word. Each list item and each cell of a table is a text of its
own, and neither a colon nor a semicolon ends a sentence.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support import DOCS, ROOT

MAX_PAGE_WORDS = 1500
MAX_SENTENCE_WORDS = 30
#: Of a page's sentences at most this share may be longer than that, and one may in any case.
MAX_LONG_SHARE = 0.02


class Reading(NamedTuple):
    """What is counted of a page."""

    words: int
    sentences: int
    long: list[str]

    @property
    def readable(self) -> bool:
        return self.words <= MAX_PAGE_WORDS and len(self.long) <= max(1, MAX_LONG_SHARE * self.sentences)


def prose_of(text: str) -> str:
    """A page without its code blocks and comments."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2$", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    kept: list[str] = []
    code = False
    for line in text.splitlines():  # an indented block stands after a blank line, and not inside a list
        if line.strip():
            code = line.startswith("    ") and (code or not kept or not kept[-1].strip())
        kept.append("" if code else line)
    return "\n".join(kept)


def sentences_of(prose: str) -> list[str]:
    """The sentences of a page's paragraphs, list items and table cells; headings are none."""
    blocks: list[str] = []
    open_block = False
    for line in prose.splitlines():
        plain = re.sub(r"\]\([^)\s]*\)|\[(?=[^\]]*\]\()", "", re.sub(r"``?[^`]+``?", "code", line)).strip()
        if plain.startswith("|"):
            blocks += re.split(r"(?<!\\)\|", plain.strip("|"))
            open_block = False
        elif not plain or plain.startswith("#"):
            open_block = False
        elif (item := re.match(r"(?:[-*+]|\d+\.) +", plain)) or not open_block:
            blocks.append(plain[item.end() :] if item else plain)
            open_block = True
        else:
            blocks[-1] += f" {plain}"
    return [
        sentence
        for block in blocks
        for sentence in re.split(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*(?:[A-Z0-9]|code\b))", block.strip())
        if re.search(r"[A-Za-z]", sentence)
    ]


def words_in(text: str) -> int:
    return len(re.findall(r"[^\s|#*`()\[\]]*\w[^\s|]*", text))


def read(text: str) -> Reading:
    prose = prose_of(text)
    sentences = sentences_of(prose)
    shown = re.sub(r"\]\([^)\s]*\)", "]", prose)
    return Reading(words_in(shown), len(sentences), [each for each in sentences if words_in(each) > MAX_SENTENCE_WORDS])


def pages() -> dict[str, Reading]:
    paths = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return {str(path.relative_to(ROOT)): read(Path(path).read_text(encoding="utf-8")) for path in paths}


def test_a_page_is_short_and_its_long_sentences_are_rare() -> None:
    found = pages()

    assert set(found) > {"README.md", "docs/agents.md", "docs/design/sqlite.md"}
    assert {name: page for name, page in found.items() if not page.readable} == {}


@pytest.mark.parametrize(
    ("text", "words", "sentences"),
    [
        ("# Two words\n\nOne sentence here. Another one\nover two lines.\n", 10, 2),
        ("- an item\n  goes on: and on; and on\n- `a b c` is code. `d` too\n", 15, 3),
        ("| a | b |\n| --- | --- |\n| cell one. Two | `x \\| y` |\n", 7, 5),
        ("Before:\n\n    code = 1\n\n    more\n\nAfter.\n\n```python\nx = 1\n```\n<!-- not\nseen -->\n", 2, 2),
        ("See [the map](architecture.md), version 3.11.2 of e.g. this.\n", 8, 1),
    ],
)
def test_words_and_sentences_are_counted(text: str, words: int, sentences: int) -> None:
    assert read(text)[:2] == (words, sentences)


def test_a_sentence_is_long_from_31_words_on_and_a_page_from_1501() -> None:
    as_long_as_it_may_be = " ".join(["word"] * 30) + "."
    too_long = f"`one two` {as_long_as_it_may_be}"

    assert read(as_long_as_it_may_be).long == []
    assert len(read(too_long).long) == 1
    assert not read(f"{too_long} X {too_long}").readable
    assert [read("Word. " * count).readable for count in (1500, 1501)] == [True, False]


if __name__ == "__main__":
    all_pages = pages()
    for name in sys.argv[1:]:
        print(f"{name}:", *all_pages[name].long, sep="\n- ")
    for name, page in sorted(all_pages.items(), key=lambda each: -each[1].words):
        mark = "" if page.readable else "   <- over the limit"
        print(f"{page.words:6} words  {page.sentences:4} sentences  {len(page.long):3} long  {name}{mark}")
    words, sentences, long = (
        sum(numbers) for numbers in zip(*((p.words, p.sentences, len(p.long)) for p in all_pages.values()), strict=True)
    )
    print(f"{words:6} words  {sentences:4} sentences  {long:3} long ({long / sentences:.1%})  {len(all_pages)} pages")
