"""What follows what: which statements end their block, and which are never reached."""

from __future__ import annotations

from postroom.lang.syntax import nodes as n


def ends(statement: n.Node | None) -> bool:
    """Whether nothing after a statement is ever reached."""
    if isinstance(statement, n.Return | n.Succeed | n.Break | n.Continue):
        return True
    if isinstance(statement, n.ExprStatement):
        return isinstance(bare(statement.value), n.Throw)
    if isinstance(statement, n.Block):
        return any(ends(inner) for inner in statement.statements)
    if isinstance(statement, n.If):
        return ends(statement.then) and ends(statement.otherwise)
    if isinstance(statement, n.Try):
        return ends(statement.body) and ends(statement.handler)
    return isinstance(statement, n.While) and is_true(statement.condition) and not has_break(statement.body)


def is_true(condition: n.Expr) -> bool:
    """Whether a condition is the word true."""
    inner = bare(condition)
    return isinstance(inner, n.Bool) and inner.value


def bare(expr: n.Expr) -> n.Expr:
    """An expression without the parentheses around it."""
    while isinstance(expr, n.Paren):
        expr = expr.value
    return expr


def has_break(node: n.Node) -> bool:
    """Whether a loop's own body ends the loop; loops inside it do not count."""
    return any(
        isinstance(child, n.Break) or (not isinstance(child, n.For | n.While | n.DoBlock) and has_break(child))
        for child in n.children(node)
    )


def unreachable(block: n.Block) -> n.Statement | None:
    """The first statement of a block that nothing leads to."""
    for before, after in zip(block.statements, block.statements[1:], strict=False):
        if ends(before):
            return after
    return None
