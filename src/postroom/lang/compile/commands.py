"""Commands to Python: what the source says is split into words here, once; values are only ever put into words."""

from __future__ import annotations

import ast
from glob import escape
from typing import Final

from postroom.lang.syntax import nodes as n
from postroom.lang.values.shell_words import is_open

from .expressions import ExpressionCompiler
from .names import at, call, constant, listed

_HOME: Final = "~"


class ShellCompiler(ExpressionCompiler):
    """Compiles commands."""

    def shell(self, node: n.ShellNode) -> ast.expr:
        if isinstance(node, n.ShellChain):
            first, *others = node.parts
            made = call("chain", self.shell(first), *map(self._link, node.ops, others))
        elif isinstance(node, n.ShellPipeline):
            made = call("pipeline", *[self.shell(command) for command in node.commands])
        else:
            made = self._command(node)
        return at(node, made)

    def _link(self, op: str, node: n.ShellNode) -> ast.expr:
        """What stands between two commands of a chain, and the second of them, which is made only when it is its turn."""
        return ast.Tuple(elts=[constant(op), self.later(node, lambda: self.shell(node))], ctx=ast.Load())

    def _command(self, node: n.ShellCommand) -> ast.expr:
        named: dict[str, ast.expr] = {}
        if node.assignments:
            keys: list[ast.expr | None] = [constant(assignment.name) for assignment in node.assignments]
            values = [self._one_word(assignment.value) for assignment in node.assignments]
            named["environment"] = ast.Dict(keys=keys, values=values)
        if node.redirects:
            named["redirects"] = listed([self._redirect(redirect) for redirect in node.redirects])
        return call("command", listed([self._word(word) for word in node.words]), **named)

    def _redirect(self, node: n.ShellRedirect) -> ast.expr:
        args = [constant(node.op), constant(node.fd)]
        if node.target is not None:
            args.append(self._one_word(node.target))
        elif node.to_fd is not None:
            args += [constant(None), constant(node.to_fd)]
        return call("redirect", *args)

    def _word(self, node: n.ShellWord) -> ast.expr:
        """A word of a command, or the several that a pattern or a list gives."""
        parts = node.parts
        for place, part in enumerate(parts):
            if isinstance(part, n.ShellValue) and part.spread:
                before, after = self._glued(parts[:place]), self._glued(parts[place + 1 :])
                return at(node, call("spread", before, self.expr(part.value), after))
        texts = [part for part in parts if isinstance(part, n.ShellText)]
        if len(texts) == len(parts) and any(is_open(part.text) and not part.quoted for part in texts):
            literal = "".join(part.text for part in texts)
            pattern = "".join(escape(part.text) if part.quoted else part.text for part in texts)
            home = _begins_at_home(node)
            return at(node, call("matches", constant(pattern), constant(literal), constant(home)))
        return self._one_word(node)

    def _one_word(self, node: n.ShellWord) -> ast.expr:
        """A word that is one in any case."""
        made = self._glued(node.parts)
        if _begins_at_home(node) and all(isinstance(part, n.ShellText) for part in node.parts):
            made = call("home", made)
        return at(node, made)

    def _glued(self, parts: list[n.ShellText | n.ShellValue]) -> ast.expr:
        if all(isinstance(part, n.ShellText) for part in parts):
            return constant("".join(part.text for part in parts if isinstance(part, n.ShellText)))
        made = [constant(p.text) if isinstance(p, n.ShellText) else self.expr(p.value) for p in parts]
        return call("word", *made)


def _begins_at_home(node: n.ShellWord) -> bool:
    """Whether a word begins with `~` that is meant as somebody's home."""
    first = node.parts[0] if node.parts else None
    return isinstance(first, n.ShellText) and not first.quoted and first.text.startswith(_HOME)
