"""How long 10,000 lines of Patchwork take to read, beside Python's own parser: on the Python that they become, and on ours.

.venv/bin/python bench/micro/parse_patchwork.py
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from pathlib import Path

from postroom.lang.check.check import check_file
from postroom.lang.compile.compiler import python_source
from postroom.lang.syntax.formatter import formatted
from postroom.lang.syntax.lexer import tokens_of
from postroom.lang.syntax.parser import parse
from postroom.lang.syntax.source import Source

LINES = 10_000
ROUNDS = 7
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "patchwork").glob("*.pw"))
MODULES = sorted((Path(__file__).parents[2] / "src" / "postroom" / "lang").rglob("*.py"))


def lines_of(texts: list[str]) -> str:
    """Whole programs, again and again, until there are that many lines."""
    found: list[str] = []
    count = 0
    while count < LINES:
        text = texts[len(found) % len(texts)]
        found.append(text)
        count += text.count("\n")
    return "".join(found)


def best_ms(work: Callable[[], object]) -> float:
    """The shortest of some rounds: what others do on the machine only makes it longer."""
    spans = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        spans.append(time.perf_counter() - start)
    return min(spans) * 1000


def figures() -> dict[str, float]:
    """Milliseconds for each, and how many times longer we take than Python."""
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES]
    ours = lines_of(texts)
    theirs = lines_of([python_source(parse(text, "a.pw")).rstrip("\n") + "\n" for text in texts])
    written = lines_of([path.read_text(encoding="utf-8").partition("annotations\n")[2] for path in MODULES])
    found = {
        "tokens": best_ms(lambda: tokens_of(Source(ours, "a.pw"))),
        "parse": best_ms(lambda: parse(ours, "a.pw")),
        "python": best_ms(lambda: ast.parse(theirs)),
        "by hand": best_ms(lambda: ast.parse(written)),
        "format": best_ms(lambda: formatted(ours, "a.pw")),
        "check": max(best_ms(lambda path=path: check_file(path)) for path in EXAMPLES),  # type: ignore[misc]
    }
    return {**found, "ratio": found["parse"] / min(found["python"], found["by hand"])}


def main() -> None:
    """Measure and print."""
    found = figures()
    print(f"{LINES} lines of Patchwork: tokens {found['tokens']:.0f} ms, tree {found['parse']:.0f} ms")
    print(f"{LINES} lines of Python, the same programs: ast.parse {found['python']:.0f} ms")
    print(f"{LINES} lines of Python, written by hand: ast.parse {found['by hand']:.0f} ms")
    print(f"ratio {found['ratio']:.1f} (at most 60 is allowed)")
    print(
        f"formatting them all: {found['format']:.0f} ms; checking the example that takes longest: {found['check']:.0f} ms"
    )


if __name__ == "__main__":
    main()
