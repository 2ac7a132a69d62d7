"""Control flow: which statements end their block, and which are never reached."""

from __future__ import annotations

from postroom.lang.syntax import nodes as n


def ends(statement: n.Node | None) -> bool:
    """Whether nothing after a statement is ever reached."""
    if isinstance(statement, n.Return | n.Jump):
        return True
    if isinstance(statement, n.ExprStatement):
        return isinstance(n.bare(statement.value), n.Throw)
    if isinstance(statement, n.Block):
        return any(ends(inner) for inner in statement.statements)
    if isinstance(statement, n.If):
        return ends(statement.then) and ends(statement.otherwise)
    if isinstance(statement, n.Try):
        return ends(statement.body) and ends(statement.handler)
    if not isinstance(statement, n.While):
        return False
    condition = n.bare(statement.condition)
    return isinstance(condition, n.Literal) and condition.value is True and not has_break(statement.body)


def has_break(node: n.Node) -> bool:
    """Whether a loop's own body ends the loop; loops inside it do not count."""
    return any(
        child.word == "break"
        if isinstance(child, n.Jump)
        else not isinstance(child, n.For | n.While | n.DoBlock) and has_break(child)
        for child in n.children(node)
    )


def unreachable(block: n.Block) -> n.Statement | None:
    """The first statement of a block that nothing leads to."""
    for before, after in zip(block.statements, block.statements[1:], strict=False):
        if ends(before):
            return after
    return None
