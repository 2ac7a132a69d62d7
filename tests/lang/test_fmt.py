"""The formatter: one form, twice the same, nothing lost."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from postroom.lang.syntax import formatter
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.formatter import formatted
from postroom.lang.syntax.lexer import tokens_of
from postroom.lang.syntax.parser import parse
from postroom.lang.syntax.problems import SyntaxProblems
from postroom.lang.syntax.source import Source

from .ebnf import read_grammar
from .test_grammar import EXAMPLES, GRAMMAR, SAMPLES, accepted, sentences


def made(text: str) -> str:
    """What the formatter writes before it looks whether it still means the same."""
    return formatter._Formatter(tokens_of(Source(text, "test.pw"))).run()


def comments(text: str) -> list[str]:
    return [comment.text for comment in tokens_of(Source(text, "test.pw")).comments]


def holds(text: str) -> None:
    """What must be true of every formatted text."""
    once = made(text)
    assert n.same(parse(text, "a"), parse(once, "a")), (text, once)
    assert made(once) == once, (text, once)
    assert comments(once) == comments(text)


@pytest.mark.parametrize("path", [*SAMPLES, *EXAMPLES], ids=lambda path: path.stem)
def test_every_sample_is_formatted_and_then_stays(path: Path) -> None:
    holds(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_written_the_one_way(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert formatted(text, path.name) == text


def test_the_one_way() -> None:
    text = (
        "import ./{ a,b }\n# doc\nexport  fun f( x:int,y ):string{return x+y*-1}\n\n\n\nworker w( ){\n\n  var  l=[ 1,2 , ]  # why\n"
        "    if !a&&b . c( 1 )[ 0 ]{  f ( x ) ;  }\n  else{ x ++ }\n"
        "   foo( {\n  a:1,\n  # inside\n b }, [\n1\n] )\n  var t=think   {  say $x  }||ask {\n      long ${ y }\n        indented\n\n      end\n  }\n"
        "$   git   log|head   -5   >x\n var u = a +\n b\n return - 1\n\n}\n"
    )

    assert made(text) == (
        "import ./{a, b}\n# doc\nexport fun f(x: int, y) -> string { return x + y * -1 }\n\nworker w() {\n    var l = [1, 2,]  # why\n"
        "    if !a && b.c(1)[0] { f(x) } else { x++ }\n"
        "    foo({\n        a: 1,\n        # inside\n        b }, [\n            1\n        ])\n"
        "    var t = think { say $x } || ask {\n        long ${ y }\n          indented\n\n        end\n    }\n"
        "    $ git log|head -5 >x\n    var u = a +\n        b\n    return -1\n}\n"
    )
    holds(text)


def test_comments_stay_where_they_are() -> None:
    text = "# top\n\n# doc\nfun f() { # open\n    # first\n    g() # side\n\n    # last\n} # end\n# tail\n"

    holds(text)
    assert (
        made(text)
        == "# top\n\n# doc\nfun f() {  # open\n    # first\n    g()  # side\n\n    # last\n}  # end\n# tail\n"
    )


def test_a_field_may_be_called_import() -> None:
    assert made("worker w() { var o={ import:a+b,c : o.import+1 } }\n") == (
        "worker w() { var o = { import: a + b, c: o.import + 1 } }\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        'worker w() {\n  var s = "two\n   lines ${ a  +  b }"\n}\n',
        "worker w() {\n  $ echo 'a   b'   \"c   d\" \\\n  more\n}\n",
        "worker w() {\n  $ a |\n b &&\n c\n}\n",
        "worker w() {\n  $ a||b&&\n c | d || e\n}\n",
        "worker w() {\n  think {\n      a\n        b  \n\n      do {\n   $ make\n }\n      c ${x}\n  }\n}\n",
        "worker w() { think { ${x} } }\n",
        "worker w() { think {${x}} }\n",
        "worker w() {\n  think {\n    ${x}\n    y\n  }\n}\n",
        "worker w() { f($ true); f( ($ false) ); if ( $ true ) { } }\n",
        "worker w() { x = $?; var y = a?.b?.[0]; var z = 1...3 }\n",
        "trait T: Agent {\n@skill a\n@command\nfun f() { } }\n",
        "worker w() {\r\n    think {\r\n        a\r\n          b\r\n    }\r\n}\r\n",
        "",
        "# only a comment",
        "{ }",
    ],
)
def test_what_means_something_is_kept(text: str) -> None:
    holds(text)


@pytest.mark.slow
def test_any_sentence_of_the_grammar_is_formatted() -> None:
    for text in sentences(read_grammar(GRAMMAR), 800)[0]:
        holds(text)


@pytest.mark.slow
def test_comments_may_stand_at_the_end_of_any_line() -> None:
    chance = random.Random(3)
    for text in sentences(read_grammar(GRAMMAR), 300)[0]:
        tokens = tokens_of(Source(text, "a"))
        noted, at = [], 0
        for kind, start in zip(tokens.kinds, tokens.starts, strict=True):
            if kind == "newline" and chance.random() < 0.5:
                noted += [text[at:start], chance.choice([" # c", ' # d { ( "', "\n# own\n\n# two"])]
                at = start
        messy = "".join([*noted, text[at:]])
        if accepted(messy):  # not where a command ends: there # is a character
            once = formatted(messy, "a")
            assert comments(once) == comments(messy)
            assert formatted(once, "a") == once


@pytest.mark.slow
def test_any_spacing_leads_to_the_same_text() -> None:
    chance = random.Random(7)
    changed = 0
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        for _ in range(20):
            messy = "\n".join(_messy(line, chance) for line in text.split("\n"))
            if accepted(messy) and n.same(parse(text, "a"), parse(messy, "a")):
                changed += messy != text
                assert made(messy) == text
    assert changed > 50


def _messy(line: str, chance: random.Random) -> str:
    """A line with other spaces between words and signs, and another indentation; comments stay as they are."""
    if line.lstrip().startswith("#"):
        return line
    between = r"(?<=[\w)\]}]) (?=[=+*(\[{}])|(?<=[=+*,({]) (?=[\w(\[{\"])"
    line = re.sub(between, lambda _: " " * chance.randint(1, 4), line)
    return re.sub(r"^ +(?=var|if|for|while|return|self)", lambda _: " " * chance.randint(0, 9), line)


def test_a_text_that_is_not_a_program_is_refused() -> None:
    with pytest.raises(SyntaxProblems):
        formatted("worker {", "test.pw")
