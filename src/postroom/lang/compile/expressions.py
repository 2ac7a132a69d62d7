"""The compiler of expressions: values, strings, calls, commands, prompts."""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Sequence
from glob import escape
from typing import Final

from postroom.lang.builtins import BUILTINS
from postroom.lang.syntax import nodes as n
from postroom.lang.values.schemas import Schema, is_text, schema_of
from postroom.lang.values.shell_words import is_open
from postroom.lang.values.values import OPERATORS

from .names import Names, at, attribute, call, constant, function, item_of, listed, load, mangled, thunk, walrus

_COMPARISONS: Final = frozenset(["==", "!=", "<", "<=", ">", ">="])
_SESSION_FIELDS: Final = frozenset(["id", "timestamp", "dir", "mailbox"])


class ExpressionCompiler:
    """Compiles expressions inside one function at a time. `block` compiles the statements of a prompt's step."""

    def __init__(self, module: n.Module, block: Callable[..., list[ast.stmt]]) -> None:
        self._block = block
        #: The names at the top of the file, as in Python; those of imports; the types.
        self.globals: dict[str, str] = {}
        self.imports: set[str] = set()
        self.types: ChainMap[str, n.TypeNode] = ChainMap()
        for item in module.items:
            if isinstance(item, n.Import):
                self.imports |= {name.name for name in item.names if name.path[0] != "std" or name.relative}
            elif isinstance(item, n.TypeDecl):
                self.types[item.name] = item.type
            else:
                self.globals[item.name] = mangled(item.name)
        self.globals |= {name: mangled(name) for name in self.imports}
        self.begin(has_self=False)
        #: The shape that a prompt is to answer with, by the prompt's identity.
        self._wanted: dict[int, Schema] = {}

    def begin(self, *, has_self: bool) -> None:
        """A function begins, with a `self` of its own or without one."""
        self.names = Names(self.globals.values())
        self._has_self = has_self
        #: Definitions that must stand before the statement at hand: the steps of its prompts.
        self.before: list[ast.stmt] = []

    # Expressions

    def expr(self, node: n.Expr) -> ast.expr:
        """The Python of an expression, with its place."""
        made: ast.expr = getattr(self, node.VISITOR)(node)
        return at(node, made)

    def exprs(self, found: Sequence[n.Expr]) -> list[ast.expr]:
        return [self.expr(node) for node in found]

    def condition(self, node: n.Expr) -> ast.expr:
        """An expression whose truth is asked for."""
        made = self.expr(node)
        return made if is_bool(node) else at(node, call("truth", made))

    def _name(self, node: n.Name) -> ast.expr:
        local = self.names.find(node.name)
        if local is not None:
            return load(local)
        if node.name in self.globals:
            return load(self.globals[node.name])
        if node.name in BUILTINS:
            return call_name(node.name)
        return call("unknown", constant(node.name))

    def _literal(self, node: n.Literal) -> ast.expr:
        return constant(node.value)

    def _self_expression(self, _: n.SelfExpression) -> ast.expr:
        return load("self") if self._has_self else call("here")

    def _exit_status(self, _: n.ExitStatus) -> ast.expr:
        return call("last_code")

    def _string(self, node: n.String) -> ast.expr:
        return self.joined(node.parts)

    def joined(self, parts: Sequence[n.TextPart | n.Interpolation | n.DoBlock]) -> ast.expr:
        """Parts of a string or prompt as one text."""
        made: list[ast.expr] = []
        for part in parts:
            if isinstance(part, n.TextPart):
                made.append(constant(part.text))
            elif isinstance(part, n.Interpolation):
                value = self.expr(part.value)
                made.append(at(part, call("joined", value)) if part.spread else value)
            else:
                made.append(constant(f"[step {part.number}]"))
        if not made:
            return constant("")
        if len(made) == 1 and isinstance(parts[0], n.TextPart | n.DoBlock):
            return made[0]
        return call("join", *made)

    def _list_expr(self, node: n.ListExpr) -> ast.expr:
        return listed(self.exprs(node.items))

    def _object_expr(self, node: n.ObjectExpr) -> ast.expr:
        keys: list[ast.expr | None] = [constant(field.key) for field in node.fields]
        return ast.Dict(keys=keys, values=[self.expr(field.value) for field in node.fields])

    def _paren(self, node: n.Paren) -> ast.expr:
        return self.expr(node.value)

    def _unary(self, node: n.Unary) -> ast.expr:
        if node.op == "!":
            return ast.UnaryOp(op=ast.Not(), operand=self.condition(node.operand))
        number = node.operand.value if isinstance(node.operand, n.Literal) else None
        if isinstance(number, int | float) and not isinstance(number, bool):
            return constant(-number)
        return call("negate", self.expr(node.operand))

    def _throw(self, node: n.Throw) -> ast.expr:
        return call("throw", self.expr(node.value))

    def _binary(self, node: n.Binary) -> ast.expr:
        if node.op in ("&&", "||"):
            return self._logic(node)
        left, right = self.expr(node.left), self.expr(node.right)
        if node.op == "!=":
            return ast.UnaryOp(op=ast.Not(), operand=call("equal", left, right))
        return call(OPERATORS[node.op], left, right)

    def _logic(self, node: n.Binary) -> ast.expr:
        """One of the two sides; the right one is looked at only if it matters."""
        if is_bool(node.left) and is_bool(node.right):
            op: ast.boolop = ast.And() if node.op == "&&" else ast.Or()
            return ast.BoolOp(op=op, values=[self.expr(node.left), self.expr(node.right)])
        kept = self.names.own("left")
        asked = call("truth", walrus(kept, self.expr(node.left)))
        right = self.expr(node.right)
        body, otherwise = (right, load(kept)) if node.op == "&&" else (load(kept), right)
        return ast.IfExp(test=asked, body=body, orelse=otherwise)

    def _range(self, node: n.Range) -> ast.expr:
        return call("span_list", self.expr(node.first), self.expr(node.last))

    # Setting

    def _assign(self, node: n.Assign) -> ast.expr:
        value = self.expr(node.value)
        if isinstance(node.target, n.Name):
            return walrus(self.name_to_set(node.target), value)
        return self._call_at("set", node.target, value)

    def _call_at(self, what: str, target: n.MemberAccess | n.Index, value: ast.expr) -> ast.expr:
        """Do something with a value at a field or an item."""
        if isinstance(target, n.MemberAccess):
            return call(f"{what}_member", self.expr(target.object), constant(target.name), value)
        return call(f"{what}_index", self.expr(target.object), self.expr(target.index), value)

    def name_to_set(self, target: n.Name) -> str:
        return self.names.find_to_set(target.name) or self.names.declare(target.name)

    def _increment(self, node: n.Increment) -> ast.expr:
        by = constant(1 if node.op == "++" else -1)
        if isinstance(node.target, n.Name):
            name = self.name_to_set(node.target)
            new = walrus(name, call("step", load(name), by))
            return item_of(ast.Tuple(elts=[load(name), new], ctx=ast.Load()), 0)
        return self._call_at("step", node.target, by)

    # Members and calls

    def session_part(self, node: n.Expr) -> str | None:
        """Which part of the session an expression is: `self`, `session`, `mailbox` or `box`; None when it is none."""
        node = n.bare(node)
        if isinstance(node, n.SelfExpression):
            return "self"
        if not isinstance(node, n.MemberAccess) or node.optional:
            return None
        inner = self.session_part(node.object)
        if inner == "mailbox":
            return "box"
        return node.name if (inner, node.name) in {("self", "session"), ("session", "mailbox")} else None

    def _member_access(self, node: n.MemberAccess) -> ast.expr:
        inner = self.session_part(node.object)
        value = self.expr(node.object)
        if not node.optional:
            if (inner == "self" and node.name == "session") or (inner == "session" and node.name in _SESSION_FIELDS):
                return attribute(value, node.name)
            if inner == "mailbox":
                return item_of(value, node.name)
            if self._is_import(node.object):
                return attribute(value, mangled(node.name) if node.name != "default" else "default")
        return call("maybe_member" if node.optional else "member", value, constant(node.name))

    def _is_import(self, node: n.Expr) -> bool:
        return isinstance(node, n.Name) and node.name in self.imports and self.names.find(node.name) is None

    def _index(self, node: n.Index) -> ast.expr:
        name = "maybe_index" if node.optional else "index"
        return call(name, self.expr(node.object), self.expr(node.index))

    def _call(self, node: n.Call) -> ast.expr:
        callee = n.bare(node.callee)
        if isinstance(callee, n.MemberAccess):
            return self._method(callee, node.args)
        args, function = self.exprs(node.args), self.expr(callee)
        if isinstance(callee, n.Name) and (callee.name in self.globals or callee.name in BUILTINS):
            return call(function, *args) if self.names.find(callee.name) is None else call("call", function, *args)
        return call("call", function, *args)

    def _method(self, callee: n.MemberAccess, given: Sequence[n.Expr]) -> ast.expr:
        part = self.session_part(callee.object)
        if part in ("self", "box"):
            function = at(callee, attribute(self.expr(callee.object), mangled(callee.name)))
            return call(function, *self.exprs(given))
        if self._is_import(callee.object) and not callee.optional:
            return call(self.expr(callee), *self.exprs(given))
        name = "maybe_method" if callee.optional else "method"
        return call(name, self.expr(callee.object), constant(callee.name), *self.exprs(given))

    def _await(self, node: n.Await) -> ast.expr:
        """Receiving and delegating wait by themselves; a worker that is awaited by itself is delegated to."""
        inner = node.value
        if isinstance(inner, n.Call) and isinstance(inner.callee, n.MemberAccess):
            part = self.session_part(inner.callee.object)
            if (part, inner.callee.name) in {("self", "delegate"), ("box", "receive")}:
                return self.expr(inner)
        return call("waited", self.expr(inner))

    def _pipe(self, node: n.Pipe) -> ast.expr:
        into = n.bare(node.into)
        if isinstance(into, n.ShellExpr):
            given = self.expr(node.value)
            return call(into.mode, self.shell(into.command), given)
        if isinstance(into, n.Call):
            return self._call(n.Call(into.span, into.callee, [node.value, *into.args]))
        return self._call(n.Call(node.span, into, [node.value]))

    def _shell_expr(self, node: n.ShellExpr) -> ast.expr:
        return call(node.mode, self.shell(node.command))

    # Commands: the source is split into words here, once; values are only ever put into words

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
        """The operator between two commands of a chain, and the second of them, made lazily."""
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
            if isinstance(part, n.Interpolation) and part.spread:
                before, after = self._glued(parts[:place]), self._glued(parts[place + 1 :])
                return at(node, call("spread", before, self.expr(part.value), after))
        texts = [part for part in parts if isinstance(part, n.TextPart)]
        if len(texts) == len(parts) and any(is_open(part.text) and not part.quoted for part in texts):
            literal = "".join(part.text for part in texts)
            pattern = "".join(escape(part.text) if part.quoted else part.text for part in texts)
            home = _begins_at_home(node)
            return at(node, call("matches", constant(pattern), constant(literal), constant(home)))
        return self._one_word(node)

    def _one_word(self, node: n.ShellWord) -> ast.expr:
        """A word that is one in any case."""
        made = self._glued(node.parts)
        if _begins_at_home(node) and all(isinstance(part, n.TextPart) for part in node.parts):
            made = call("home", made)
        return at(node, made)

    def _glued(self, parts: list[n.TextPart | n.Interpolation]) -> ast.expr:
        if all(isinstance(part, n.TextPart) for part in parts):
            return constant("".join(part.text for part in parts if isinstance(part, n.TextPart)))
        made = [constant(p.text) if isinstance(p, n.TextPart) else self.expr(p.value) for p in parts]
        return call("word", *made)

    # Prompts

    def want(self, node: n.Expr | None, type: n.TypeNode | None) -> None:
        """The value of `node` is to be of that type: the prompts in it are told so."""
        if node is None or type is None:
            return
        if isinstance(node, n.Paren):
            self.want(node.value, type)
        elif isinstance(node, n.Binary) and node.op == "||":
            self.want(node.left, type)
            self.want(node.right, type)
        elif isinstance(node, n.Prompt):
            self._wanted[id(node)] = schema_of(type, self.types)

    def _prompt(self, node: n.Prompt) -> ast.expr:
        named: dict[str, ast.expr] = {}
        schema = self._wanted.get(id(node), {})
        if not is_text(schema):
            named["schema"] = ast.parse(repr(schema), mode="eval").body
        steps = [self._step(part) for part in node.parts if isinstance(part, n.DoBlock)]
        if steps:
            named["steps"] = listed([load(name) for name in steps])
        return call(node.kind, self.joined(node.parts), **named)

    def _step(self, node: n.DoBlock) -> str:
        """A function for a step of a prompt, which stands before the statement at hand. Returns its name."""
        name = self.names.own(f"step_{node.number}")
        self.before.append(at(node, self.inner_function(name, lambda: self._block(node.body, value=True))))
        return name

    def inner_function(self, name: str, make_body: Callable[[], list[ast.stmt]]) -> ast.FunctionDef:
        """A function inside the one at hand, which sees and sets its names."""
        outer, before = self.names, self.before
        self.names, self.before = Names((), outer), []
        try:
            body = make_body()
            body = [*self.before, *body]
            nonlocals = sorted(self.names.nonlocals)
        finally:
            self.names, self.before = outer, before
        if nonlocals:
            body.insert(0, ast.Nonlocal(names=nonlocals))
            for found in nonlocals:  # it may be a name of a function further out
                outer.mark_set(found)
        return function(name, [], body, [])

    def later(self, node: n.Node, make: Callable[[], ast.expr]) -> ast.expr:
        """An expression that is worked out later, if at all. One that sets names needs a function to do so."""
        if not any(isinstance(part, n.Assign | n.Increment | n.DoBlock) for part in n.walk(node)):
            return thunk(make())
        name = self.names.own("later")
        made = self.inner_function(name, lambda: [ast.Return(value=make())])
        self.before.append(at(node, made))
        return load(name)


def call_name(name: str) -> ast.expr:
    """A function that every program knows."""
    return attribute(load("pw"), f"{name}_" if name in ("print", "len", "values", "json") else name)


def is_bool(node: n.Expr) -> bool:
    """Whether an expression gives true or false, whatever is in it."""
    node = n.bare(node)
    if isinstance(node, n.Binary):
        return node.op in _COMPARISONS or (node.op in ("&&", "||") and is_bool(node.left) and is_bool(node.right))
    if isinstance(node, n.ShellExpr):
        return node.mode == "test"
    if isinstance(node, n.Literal):
        return isinstance(node.value, bool)
    return isinstance(node, n.Unary) and node.op == "!"


def _begins_at_home(node: n.ShellWord) -> bool:
    """Whether a word begins with `~` that is meant as somebody's home."""
    first = node.parts[0] if node.parts else None
    return isinstance(first, n.TextPart) and not first.quoted and first.text.startswith("~")
