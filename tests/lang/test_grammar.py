"""The grammar file is the reference, the parser is written by hand: here they are held against each other."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tests import support

from postroom.lang.syntax import lexer
from postroom.lang.syntax.lexer import KEYWORDS, OPENERS, Tokens, tokens_of
from postroom.lang.syntax.parser import parse
from postroom.lang.syntax.problems import SyntaxProblems
from postroom.lang.syntax.source import Source

from .ebnf import Grammar, Maker, Recogniser, read_grammar

GRAMMAR = Path(lexer.__file__).with_name("patchwork.ebnf")
SAMPLES = sorted(Path(__file__).with_name("samples").glob("*.pw"))
EXAMPLES = sorted((support.EXAMPLES / "patchwork").rglob("*.pw"))
SEED = 20261115

PLAIN = {
    "name": "NAME",
    "number": "NUMBER",
    "newline": "NEWLINE",
    '"': "QUOTE",
    'end"': "END_QUOTE",
    "text": "TEXT",
    "single": "SINGLE",
    "$name": "DOLLAR_NAME",
    "$(e": "EXPR_PAREN",
    "prompt{": "PROMPT",
    "do{": "DO",
    "$(": "CAPTURE",
    "$": "SHELL",
    "lit": "LITERAL",
}
COMMAND = {"statement", "parens"}
PARTS_OF_WORDS = {"WORD", "LITERAL", "ASSIGN", "DOLLAR_NAME", '"${"', '"$@{"', "CAPTURE", '"$?"', "QUOTE"}


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return read_grammar(GRAMMAR)


@pytest.fixture(scope="module")
def recogniser(grammar: Grammar) -> Recogniser:
    return Recogniser(grammar)


def terminals_of(tokens: Tokens) -> list[str]:
    """The lexer's tokens in the grammar's words. GLUE stands between parts of one word of a command."""
    text, found = tokens.source.text, []
    modes, after_word = ["code"], False
    for place, kind in enumerate(tokens.kinds[:-1]):
        start, end = tokens.starts[place], tokens.ends[place]
        touches = place > 0 and tokens.ends[place - 1] == start
        name = PLAIN.get(kind) or f'"{kind}"'
        if kind == "word":
            name = "WORD"
        elif kind == "($":
            name = "TIGHT_TEST" if touches and tokens.kinds[place - 1] != "newline" else "TEST"
        elif kind == "redirect":
            name = "COPY" if re.fullmatch(r"\d*>&\d+", text[start:end]) else "REDIRECT"
            name = "BAD" if re.fullmatch(r"\d*(>&|<<|<&)", text[start:end]) else name
        in_word = modes[-1] in COMMAND and name in PARTS_OF_WORDS
        glued = in_word and touches and after_word
        if glued:
            found.append("GLUE")
        elif kind == "word" and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", text[start:end]):
            name = "ASSIGN"
        found.append(name)
        _step(modes, kind)
        ends_a_part = (in_word and kind not in OPENERS) or kind in {'end"', "}", ")"}
        after_word = modes[-1] in COMMAND and ends_a_part
    return found


def _step(modes: list[str], kind: str) -> None:
    """Follows the lexer's modes, only to know what stands in a command."""
    if modes[-1] == "statement" and kind in {"newline", ";", "}", ")"}:
        modes.pop()
    if kind in {"$(", "($", "$"}:
        modes.append("statement" if kind == "$" else "parens")
    elif kind in {"${", "$@{", "$(e", "do{", "prompt{", "(", "[", "{", '"'}:
        modes.append(kind)
    elif kind in {")", "]", "}", 'end"'} and len(modes) > 1:
        modes.pop()


WORDS = {
    "NAME": ["alpha", "b2", "größe", "名前"],
    "NUMBER": ["0", "12", "3.5", "1e3"],
    "TEXT": ["some text, really", "#1: ünï", "a (b) 'c'"],
    "SINGLE": ["'one'", "'it\\'s $x'"],
    "DOLLAR_NAME": ["$alpha", "$名前"],
    "WORD": ["git", "--flag=v", "*.py", "..HEAD", "a;b".replace(";", ",")],
    "LITERAL": ["'raw $x'", "\\;"],
    "ASSIGN": ["A=b", "PATH="],
    "REDIRECT": [">", ">>", "2>", "<", "<<<", "&>"],
    "COPY": ["2>&1", ">&2"],
    "NEWLINE": ["\n"],
    "QUOTE": ['"'],
    "END_QUOTE": ['"'],
    "EXPR_PAREN": ["$("],
    "PROMPT": ["{"],
    "DO": ["do {"],
    "CAPTURE": ["$("],
    "TEST": ["($ "],
    "TIGHT_TEST": ["($ "],
    "SHELL": ["$ "],
    "GLUE": [""],
}
NO_SPACE_BEFORE = {"TEXT", "END_QUOTE", "GLUE", "TIGHT_TEST", "NEWLINE"}


def written(terminals: list[str], chance: random.Random) -> str:
    """A text for a list of terminals. Inside strings nothing is put between; elsewhere a space where it means nothing."""
    out: list[str] = []
    quotes: list[str] = []  # what is open: '"' for a string, "{" for anything else
    before = "NEWLINE"
    for terminal in terminals:
        text = chance.choice(WORDS[terminal]) if terminal in WORDS else terminal[1:-1]
        in_string = bool(quotes) and quotes[-1] == '"'
        tight = terminal in NO_SPACE_BEFORE or before == "GLUE" or in_string
        out.append(text if tight else " " + text)
        if terminal == "QUOTE":
            quotes.append('"')
        elif terminal == "END_QUOTE":
            quotes.pop()
        elif terminal in {
            '"${"',
            '"$@{"',
            "EXPR_PAREN",
            "PROMPT",
            "DO",
            "CAPTURE",
            "TEST",
            "TIGHT_TEST",
            '"{"',
            '"("',
            '"["',
        }:
            quotes.append("{")
        elif terminal in {'"}"', '")"', '"]"'} and quotes:
            quotes.pop()
        before = terminal
    return "".join(out)


def accepted(text: str) -> bool:
    try:
        parse(text, "sentence.pw")
    except SyntaxProblems:
        return False
    return True


def by_grammar(text: str, recogniser: Recogniser) -> bool:
    tokens = tokens_of(Source(text, "sentence.pw"))
    return not tokens.problems and recogniser.accepts(terminals_of(tokens))


@pytest.mark.parametrize("path", [*SAMPLES, *EXAMPLES], ids=lambda path: path.stem)
def test_the_grammar_accepts_every_sample(path: Path, recogniser: Recogniser) -> None:
    assert by_grammar(path.read_text(encoding="utf-8"), recogniser)


def test_the_words_of_the_language_are_those_of_the_grammar(grammar: Grammar) -> None:
    assert grammar.keywords() == KEYWORDS


def sentences(grammar: Grammar, count: int) -> tuple[list[str], Maker]:
    """So many sentences by chance, and one through each production that chance did not take."""
    maker = Maker(grammar, SEED)
    chance = random.Random(SEED)
    made = [maker.sentence(chance.choice([5, 20, 60])) for _ in range(count)]
    made += [maker.sentence(5, key) for key in list(maker.used) if maker.used[key] == 0]
    return [written(sentence, chance) for sentence in made], maker


def test_sentences_made_from_the_grammar_are_read_and_every_production_is_reached(grammar: Grammar) -> None:
    texts, maker = sentences(grammar, 1500)
    refused = [text for text in texts if not accepted(text)]

    assert refused[:3] == []
    assert [key for key, count in maker.used.items() if count == 0] == []


def test_every_token_looks_as_the_grammar_says(grammar: Grammar) -> None:
    texts = [*sentences(grammar, 200)[0], *(path.read_text(encoding="utf-8") for path in SAMPLES)]
    seen = set()
    for text in texts:
        tokens = tokens_of(Source(text, "sentence.pw"))
        names = [name for name in terminals_of(tokens) if name != "GLUE"]
        for name, start, end in zip(names, tokens.starts, tokens.ends, strict=False):
            seen.add(name)
            pattern = grammar.terminals.get(name) or re.escape(name[1:-1])
            assert re.fullmatch(pattern, text[start:end]), (name, text[start:end])

    assert set(grammar.terminals) - seen == {"GLUE"}


def mutants(texts: list[str], count: int) -> list[str]:
    chance = random.Random(SEED)
    made = []
    for _ in range(count):
        text = chance.choice(texts)
        tokens = tokens_of(Source(text, "sentence.pw"))
        places = range(len(tokens.kinds) - 1)
        if not places:
            continue
        one, other = chance.choice(places), chance.choice(places)
        a, b = (tokens.starts[one], tokens.ends[one]), (tokens.starts[other], tokens.ends[other])
        kind = chance.randrange(4)
        if kind == 0:
            made.append(text[: a[0]] + text[a[1] :])
        elif kind == 1:
            made.append(text[: a[0]] + text[b[0] : b[1]] + " " + text[a[0] :])
        elif kind == 2:
            made.append(text[: a[0]] + text[b[0] : b[1]] + text[a[1] :])
        else:
            made.append(text[: a[1]] + chance.choice(["\n", ";", " ", "}", ")", ","]) + text[a[1] :])
    return made


@pytest.mark.slow
def test_what_the_grammar_refuses_the_parser_refuses_and_the_other_way_round(
    grammar: Grammar, recogniser: Recogniser
) -> None:
    print("seed", SEED)
    samples = [path.read_text(encoding="utf-8") for path in SAMPLES]
    texts = [text for text in sentences(grammar, 400)[0] if text.strip()] + samples
    made = mutants(texts, 3000)
    differ = [text for text in made if accepted(text) != by_grammar(text, recogniser)]

    assert differ[:3] == []
    assert 200 < sum(map(accepted, made)) < len(made) - 200
