"""The mailboxes in a program's text: which function sends to each, which receives from it. Nothing is run for this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from postroom.lang.builtins import MAIN
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import LoadedModule, ParsedProgram
from postroom.lang.syntax.source import Span
from postroom.lang.values.attributes import OBJECT

ANYWHERE: Final = "*"  # a mailbox whose name is worked out when the program runs
#: Members of every object, which no message need have as fields.
OBJECT_MEMBERS: Final = frozenset([*OBJECT, "length"])


@dataclass(frozen=True)
class MailUse:
    """One `send` or `receive`; `who` is the worker, method or block in which it stands."""

    op: str
    mailbox: str
    who: str
    call: n.Call


@dataclass(frozen=True)
class Part:
    """One function of a program that can take part in a session, or its bare block."""

    name: str
    loaded: LoadedModule
    function: n.Function


def parts_of(program: ParsedProgram) -> Iterator[Part]:
    """Every worker, skill and method of a program, and its bare block."""
    for loaded in program.modules:
        for trait, function in n.functions_of(loaded.module):
            if function.kind != "fun":
                yield Part(f"{trait.name}.{function.name}" if trait else function.name, loaded, function)
        if loaded.module.body is not None:
            yield Part(MAIN, loaded, loaded.module.body)


def uses_of(part: Part) -> list[MailUse]:
    """Every `send` and `receive` of a part, in the order in which they are written."""
    aliases: dict[str, n.Expr] = {}
    for node in n.walk(part.function.body):
        if isinstance(node, n.Var) and isinstance(node.target, n.NamePattern) and node.value is not None:
            aliases.setdefault(node.target.name, node.value)
    found = []
    for call, callee in _member_calls(part, {"send", "receive"}):
        mailbox = _mailbox(callee.object, aliases)
        if mailbox is not None:
            found.append(MailUse(callee.name, mailbox, part.name, call))
    return found


def _member_calls(part: Part, names: set[str]) -> Iterator[tuple[n.Call, n.MemberAccess]]:
    """The calls of members with one of these names."""
    for node in n.walk(part.function.body):
        if isinstance(node, n.Call) and isinstance(node.callee, n.MemberAccess) and node.callee.name in names:
            yield node, node.callee


def delegates_of(part: Part) -> list[n.Call]:
    """The calls of `self.delegate` in a part."""
    calls = _member_calls(part, {"delegate"})
    return [call for call, callee in calls if isinstance(callee.object, n.SelfExpression)]


def fields_of_message(call: n.Call) -> set[str] | None:
    """The fields of the object that is sent, when it is written there; None when it comes from elsewhere."""
    message = n.bare(call.args[0]) if call.args else None
    return {field.key for field in message.fields} if isinstance(message, n.ObjectExpr) else None


def reads_of(part: Part) -> list[tuple[str, str, Span]]:
    """Mailbox, field and place of every field that is read from a message, where the message has a name of its own."""
    received = {id(use.call): use.mailbox for use in uses_of(part) if use.op == "receive"}
    names: dict[str, str] = {}
    found: list[tuple[str, str, Span]] = []
    again: set[str] = set()
    for node in n.walk(part.function.body):
        if isinstance(node, n.Var) and isinstance(value := node.value, n.Await) and id(value.value) in received:
            mailbox = received[id(value.value)]
            if isinstance(node.target, n.NamePattern):
                names.setdefault(node.target.name, mailbox)
                again |= {node.target.name} if names[node.target.name] != mailbox else set()
            elif isinstance(node.target, n.ObjectPattern):
                found += [(mailbox, field.name, field.span) for field in node.target.fields]
        elif isinstance(node, n.Var) and isinstance(node.target, n.NamePattern):
            again.add(node.target.name)
        elif isinstance(node, n.Assign | n.Increment):
            again.update(inner.name for inner in n.walk(node.target) if isinstance(inner, n.Name))
    for node in n.walk(part.function.body):
        if isinstance(node, n.MemberAccess) and isinstance(node.object, n.Name) and not node.optional:
            name = node.object.name
            if name in names and name not in again and node.name not in OBJECT_MEMBERS:
                found.append((names[name], node.name, node.name_span))
    return found


def _followed(node: n.Expr, aliases: dict[str, n.Expr], most: int = 8) -> n.Expr:
    """The expression that a name stands for; any other expression as it is."""
    node = n.bare(node)
    if isinstance(node, n.Name) and node.name in aliases and most > 0:
        return _followed(aliases[node.name], aliases, most - 1)
    return node


def _mailbox(node: n.Expr, aliases: dict[str, n.Expr]) -> str | None:
    """The name of the mailbox that an expression stands for; None when it stands for something else."""
    node = _followed(node, aliases)
    if isinstance(node, n.MemberAccess) and _is_mailroom(node.object, aliases):
        return node.name
    if isinstance(node, n.Index) and _is_mailroom(node.object, aliases):
        index = n.bare(node.index)
        texts = index.parts if isinstance(index, n.String) else []
        return texts[0].text if len(texts) == 1 and isinstance(texts[0], n.TextPart) else ANYWHERE
    return None


def _is_mailroom(node: n.Expr, aliases: dict[str, n.Expr]) -> bool:
    node = _followed(node, aliases)
    if not isinstance(node, n.MemberAccess) or node.name != "mailbox":
        return False
    session = _followed(node.object, aliases, 1)
    if not isinstance(session, n.MemberAccess) or session.name != "session":
        return False
    return isinstance(session.object, n.SelfExpression)
