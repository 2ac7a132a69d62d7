"""Programs with one mistake each: a send or receive taken away, a mailbox misspelt, an order turned round, a field dropped."""

from __future__ import annotations

import random
from dataclasses import dataclass

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.parser import parse


@dataclass(frozen=True)
class Mutant:
    """What was done to which program, and what came of it."""

    program: str
    what: str
    text: str


def mutants_of(program: str, text: str) -> list[Mutant]:
    """Every mutant that one change makes, in the order of the text."""
    module = parse(text, program)
    found: list[tuple[str, str]] = []
    for node in n.walk(module):
        if isinstance(node, n.Block):
            found += _without_mail(text, node)
            found += _turned_round(text, node)
        elif isinstance(node, n.MemberAccess) and _is_mailroom(node.object):
            found += [(f"misspell {node.name} as {name}", _renamed(text, node, name)) for name in _misspelt(node.name)]
        elif isinstance(node, n.Call) and _is_mail(node, "send") and isinstance(node.args[0], n.ObjectExpr):
            found += _without_field(text, node.args[0])
    return [Mutant(program, what, made) for what, made in found]


def chosen(programs: dict[str, str], count: int, seed: int) -> list[Mutant]:
    """So many mutants, by chance."""
    every = [mutant for name, text in sorted(programs.items()) for mutant in mutants_of(name, text)]
    chance = random.Random(seed)
    return chance.sample(every, min(count, len(every)))


def _is_mailroom(node: n.Node) -> bool:
    return isinstance(node, n.MemberAccess) and node.name == "mailbox"


def _is_mail(node: n.Node, *ops: str) -> bool:
    return (
        isinstance(node, n.Call)
        and isinstance(node.callee, n.MemberAccess)
        and node.callee.name in ops
        and isinstance(node.callee.object, n.MemberAccess)
        and _is_mailroom(node.callee.object.object)
    )


def _has_mail(node: n.Node, *ops: str) -> bool:
    return any(_is_mail(child, *ops) for child in n.walk(node))


def _simple(node: n.Node) -> bool:
    return isinstance(node, n.ExprStatement | n.Var | n.Return)


def _cut(text: str, node: n.Node, instead: str = "") -> str:
    return text[: node.span.start] + instead + text[node.span.end :]


def _without_mail(text: str, block: n.Block) -> list[tuple[str, str]]:
    found = []
    for statement in block.statements:
        if not _simple(statement):
            continue
        if isinstance(statement, n.ExprStatement) and _has_mail(statement, "send"):
            found.append((f"remove the send of line {statement.span.line}", _cut(text, statement)))
        elif isinstance(statement, n.Var) and _has_mail(statement, "receive"):
            name = statement.target.span.text
            found.append(
                (f"remove the receive of line {statement.span.line}", _cut(text, statement, f"var {name} = {{}}"))
            )
    return found


def _turned_round(text: str, block: n.Block) -> list[tuple[str, str]]:
    found = []
    mail = [statement for statement in block.statements if _has_mail(statement, "send", "receive")]
    for place, one in enumerate(mail):
        for other in mail[place + 1 :]:
            middle = text[one.span.end : other.span.start]
            made = text[: one.span.start] + other.span.text + middle + one.span.text + text[other.span.end :]
            found.append((f"turn round lines {one.span.line} and {other.span.line}", made))
    return found


def _misspelt(name: str) -> list[str]:
    return [name + "x", name[:-1], name[1] + name[0] + name[2:], name[0] + name]


def _renamed(text: str, node: n.MemberAccess, name: str) -> str:
    return text[: node.name_span.start] + name + text[node.name_span.end :]


def _without_field(text: str, message: n.ObjectExpr) -> list[tuple[str, str]]:
    found = []
    for field in message.fields:
        rest = ", ".join(other.span.text for other in message.fields if other is not field)
        found.append((f"drop {field.key} in line {field.span.line}", _cut(text, message, f"{{ {rest} }}")))
    return found
