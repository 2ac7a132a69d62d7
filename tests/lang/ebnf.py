"""Reads `patchwork.ebnf`: makes sentences from it, and says whether a list of tokens is one (Earley's way).

It knows nothing of the parser, so that the two can be held against each other.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TOKEN = re.compile(
    r'\s+|\(\*.*?\*\)|(?P<lit>"(?:[^"\\]|\\.)+")|(?P<name>\w+)(?P<form><\w+>)?|(?P<mark>[=;|()\[\]{}])', re.DOTALL
)
_TERMINAL = re.compile(r"^%token\s+(\w+)\s+/(.*?)/(?:\s*\(\*.*\*\))?\s*$", re.MULTILINE)
FORMS = ("line", "free")

Symbol = str
Production = tuple[Symbol, ...]


@dataclass
class Grammar:
    """Rules as plain productions (helpers made for [ ], { } and ( ) have a number in their name), and patterns of tokens."""

    rules: dict[str, list[Production]]
    terminals: dict[str, str]
    start: str = "file"

    def keywords(self) -> set[str]:
        literals = {s[1:-1] for ps in self.rules.values() for p in ps for s in p if s.startswith('"')}
        return {word for word in literals if word.isidentifier()}


def read_grammar(path: Path) -> Grammar:
    text = path.read_text(encoding="utf-8")
    terminals = dict(_TERMINAL.findall(text))
    body = _TERMINAL.sub("", text)
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(body):
        found = _TOKEN.match(body, at)
        assert found, f"cannot read the grammar at {body[at : at + 40]!r}"
        at = found.end()
        if found["lit"]:
            tokens.append(("symbol", found["lit"]))
        elif found["name"]:
            tokens.append(("symbol", found["name"] + (found["form"] or "")))
        elif found["mark"]:
            tokens.append(("mark", found["mark"]))
    grammar = Grammar({}, terminals)
    _Reader(tokens, grammar).read()
    unknown = {
        s for ps in grammar.rules.values() for p in ps for s in p if not s.startswith('"') and s not in grammar.rules
    } - set(terminals)
    assert not unknown, unknown
    return grammar


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]], grammar: Grammar) -> None:
        self.tokens, self.grammar, self.at, self.helpers = tokens, grammar, 0, 0

    def read(self) -> None:
        while self.at < len(self.tokens):
            start = self.at
            name = self.tokens[start][1]
            forms = FORMS if name.endswith("<n>") else ("",)
            for form in forms:
                self.at = start + 2
                self.form = form
                self.rule = name.replace("<n>", f"<{form}>")
                self.grammar.rules[self.rule] = self._choice()
                assert self.tokens[self.at] == ("mark", ";"), self.tokens[self.at]
                self.at += 1

    def _choice(self) -> list[Production]:
        options = [self._sequence()]
        while self.tokens[self.at] == ("mark", "|"):
            self.at += 1
            options.append(self._sequence())
        return options

    def _sequence(self) -> Production:
        found: list[Symbol] = []
        while self.tokens[self.at][1] not in {";", "|", ")", "]", "}"} or self.tokens[self.at][0] == "symbol":
            kind, text = self.tokens[self.at]
            self.at += 1
            if kind == "symbol":
                found.append(text.replace("<n>", f"<{self.form}>"))
                continue
            inner = self._choice()
            self.at += 1
            found.append(self._helper(text, inner))
        return tuple(found)

    def _helper(self, mark: str, inner: list[Production]) -> Symbol:
        self.helpers += 1
        name = f"{self.rule} {self.helpers}"
        options = list(inner)
        if mark == "[":
            options = [(), *inner]
        elif mark == "{":
            options = [(), *((*p, name) for p in inner)]
        self.grammar.rules[name] = options
        return name


# ---------------------------------------------------------------- making sentences


class Maker:
    """Makes sentences by chance, or through a chosen production; `used` counts how often each was taken."""

    def __init__(self, grammar: Grammar, seed: int) -> None:
        self.grammar, self.random = grammar, random.Random(seed)
        self.used = {(name, place): 0 for name, options in grammar.rules.items() for place in range(len(options))}
        self.cost = _costs(grammar)

    def sentence(self, budget: int, through: tuple[str, int] | None = None) -> list[str]:
        """A sentence of about that many tokens; `through` is a production that it must use."""
        out: list[str] = []
        waiting = [(self.grammar.start, through is not None)]
        steps = self._steps_to(through[0]) if through else {}
        while waiting:
            symbol, steered = waiting.pop()
            if symbol not in self.grammar.rules:
                out.append(symbol)
                continue
            options = self.grammar.rules[symbol]
            if steered and through and symbol == through[0]:
                place, goal = through[1], -1
            elif steered:
                place, goal = self._steer(options, steps)
            else:
                room = budget - len(out) - sum(self.cost.get(s, 1) for s, _ in waiting)
                place, goal = self._choose(symbol, options, room), -1
            self.used[symbol, place] += 1
            waiting.extend((s, k == goal) for k, s in reversed(list(enumerate(options[place]))))
        return out

    def _choose(self, symbol: str, options: list[Production], room: int) -> int:
        costs = [sum(self.cost.get(s, 1) for s in option) for option in options]
        share = room * self.random.random()  # or the first expression eats the whole budget
        return self.random.choice([k for k, cost in enumerate(costs) if cost <= max(share, min(costs))])

    def _steps_to(self, target: str) -> dict[str, int]:
        """How many rules lie between each rule and the one that must be used."""
        steps, changed = {target: 0}, True
        while changed:
            changed = False
            for name, options in self.grammar.rules.items():
                near = min((steps[s] for option in options for s in option if s in steps), default=None)
                if near is not None and near + 1 < steps.get(name, 10**6):
                    steps[name], changed = near + 1, True
        return steps

    def _steer(self, options: list[Production], steps: dict[str, int]) -> tuple[int, int]:
        places = [(steps[s], k, at) for k, option in enumerate(options) for at, s in enumerate(option) if s in steps]
        _, option, at = min(places)
        return option, at


def _costs(grammar: Grammar) -> dict[str, int]:
    """The fewest tokens that each rule can be."""
    costs = dict.fromkeys(grammar.rules, 10**6)
    changed = True
    while changed:
        changed = False
        for name, options in grammar.rules.items():
            best = min(sum(costs.get(s, 1) for s in option) for option in options)
            if best < costs[name]:
                costs[name], changed = best, True
    return costs


# ---------------------------------------------------------------- recognising sentences


class Recogniser:
    """Says whether a list of tokens is a sentence of the grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.nullable: set[str] = set()
        changed = True
        while changed:
            changed = False
            for name, options in grammar.rules.items():
                if name not in self.nullable and any(all(s in self.nullable for s in option) for option in options):
                    self.nullable.add(name)
                    changed = True
        self.first = self._firsts()

    def _firsts(self) -> dict[str, set[str]]:
        first: dict[str, set[str]] = {name: set() for name in self.grammar.rules}
        changed = True
        while changed:
            changed = False
            for name, options in self.grammar.rules.items():
                before = len(first[name])
                for option in options:
                    for symbol in option:
                        first[name] |= first.get(symbol, {symbol})
                        if symbol not in self.nullable:
                            break
                changed = changed or len(first[name]) != before
        return first

    def accepts(self, tokens: list[str]) -> bool:  # noqa: C901  Earley's three steps, which read best together
        rules, nullable, first = self.grammar.rules, self.nullable, self.first
        start = ("^", (self.grammar.start,), 0, 0)
        columns: list[dict[Any, None]] = [{start: None}]
        waits: list[dict[str, list[Any]]] = []
        for at in range(len(tokens) + 1):
            token = tokens[at] if at < len(tokens) else None
            column, queue = columns[at], list(columns[at])
            following: dict[Any, None] = {}
            waiting: dict[str, list[Any]] = {}
            waits.append(waiting)

            def add(item, column=column, queue=queue) -> None:
                if item not in column:
                    column[item] = None
                    queue.append(item)

            while queue:
                name, body, dot, origin = item = queue.pop()
                if dot == len(body):
                    for parent in list((waits[origin] if origin < at else waiting).get(name, ())):
                        add((parent[0], parent[1], parent[2] + 1, parent[3]))
                    continue
                symbol = body[dot]
                if symbol not in rules:
                    if symbol == token:
                        following[name, body, dot + 1, origin] = None
                    continue
                known = symbol in waiting
                waiting.setdefault(symbol, []).append(item)
                if symbol in nullable:
                    add((name, body, dot + 1, origin))
                if not known:
                    for option in rules[symbol]:
                        if token is not None and any(
                            token in first.get(s, {s}) for s in _until_not_nullable(option, nullable)
                        ):
                            add((symbol, option, 0, at))
            if at < len(tokens):
                if not following:
                    return False
                columns.append(following)
        return ("^", (self.grammar.start,), 1, 0) in columns[-1]


def _until_not_nullable(option: Production, nullable: set[str]) -> list[str]:
    found = []
    for symbol in option:
        found.append(symbol)
        if symbol not in nullable:
            break
    return found
