"""The compiler: from the tree of a program to Python's own, each piece with its place: tracebacks show the `.pw` line.

The code calls nothing but `postroom.lang.runtime`. `compiled` gives code to run, `python_source` the same to read.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import CodeType
from typing import Final

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.parser import deep_recursion
from postroom.lang.syntax.problems import Problem, ProgramProblems
from postroom.lang.syntax.source import Span

from .expressions import ExpressionCompiler
from .names import RUNTIME, assign, at, attribute, call, class_, constant, function, item_of, load, mangled, store

#: The function that a bare block becomes.
MAIN_BLOCK: Final = "main_block"
_MODULE: Final = "postroom.lang"


def compiled(module: n.Module, path: str) -> CodeType:
    """The code of a file, to be run as a module. Raises ProgramProblems where it nests deeper than Python can."""
    try:
        with deep_recursion():
            return compile(tree_of(module), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        source = module.span.source
        start = source.line_starts[(error.lineno or 1) - 1]
        raise ProgramProblems([Problem(Span(source, start, start + 1), "compile", error.msg)]) from None


def python_source(module: n.Module) -> str:
    """The same as Python that people can read."""
    with deep_recursion():
        return ast.unparse(tree_of(module)) + "\n"


def tree_of(module: n.Module) -> ast.Module:
    """The Python tree of a file; every piece of it has its place in the source."""
    return ast.fix_missing_locations(ast.Module(body=_Compiler(module).module(), type_ignores=[]))


class _Compiler:
    """Compiles the declarations and statements of one file."""

    def __init__(self, module: n.Module) -> None:
        self._module = module
        self._inner = ExpressionCompiler(module, self._block)
        self._returns: n.TypeNode | None = None

    def module(self) -> list[ast.stmt]:
        """Everything in the file, in order; imports first, since what stands below may need them."""
        names = self._inner.globals
        body: list[ast.stmt] = [
            ast.Expr(value=constant(f"Compiled from {Path(self._module.span.file).name}.")),
            ast.ImportFrom(module=_MODULE, names=[ast.alias(name="runtime", asname=RUNTIME)], level=0),
        ]
        body += [
            at(item, assign(names[name.name], call("load", load("__file__"), *map(constant, name.path))))
            for item in self._module.items
            if isinstance(item, n.Import)
            for name in item.names
            if name.name in self._inner.imports
        ]
        for item in self._module.items:
            if isinstance(item, n.Function | n.Trait):
                body.append(self._function(item) if isinstance(item, n.Function) else self._trait(item))
                if item.default:
                    body.append(at(item, assign("default", load(names[item.name]))))
        if self._module.body is not None:
            body.append(self._function(self._module.body))
        return body

    def _trait(self, item: n.Trait) -> ast.stmt:
        body = [*_docstring(item), *map(self._function, item.methods)]
        return at(item, class_(self._inner.globals[item.name], attribute(load(RUNTIME), "Agent"), body))

    def _function(self, item: n.Function) -> ast.stmt:
        has_self = item.kind != "fun"
        self._inner.begin(has_self=has_self)
        params = [*(["self"] if has_self else []), *(self._inner.names.declare(param.name) for param in item.params)]
        self._returns = item.returns
        body = [*_docstring(item), *self._block(item.body, value=item.kind == "block")]
        self._returns = None
        decorators = [attribute(load(RUNTIME), "worker")] if item.kind == "worker" else []
        name = MAIN_BLOCK if item.kind == "block" else mangled(item.name)
        return at(item, function(name, params, body, decorators))

    # Statements

    def _block(self, block: n.Block, *, value: bool = False) -> list[ast.stmt]:
        """The statements of a block, with names of its own. `value`: its last value is what it gives."""
        inner = self._inner
        inner.names.open()
        inner.types = inner.types.new_child()
        before, inner.before = inner.before, []
        body: list[ast.stmt] = []
        last = len(block.statements) - 1
        for place, statement in enumerate(block.statements):
            made = self._statement(statement, value=value and place == last)
            body += inner.before + made
            inner.before = []
        inner.before = before
        inner.types = inner.types.parents
        inner.names.close()
        return body

    def _statement(self, node: n.Statement, *, value: bool) -> list[ast.stmt]:
        if value and isinstance(node, n.If):
            return self._if(node, value=True)
        made: ast.stmt | list[ast.stmt]
        if value and isinstance(node, n.WriteFile):  # of two numbers it is a comparison after all
            made = ast.Return(value=self._written(node))
        elif value and isinstance(node, n.ExprStatement) and not _gives_nothing(node.value):
            made = ast.Return(value=self._inner.expr(node.value))
        else:
            made = getattr(self, node.VISITOR)(node)
        return made if isinstance(made, list) else [at(node, made)]

    def _if(self, node: n.If, *, value: bool = False) -> list[ast.stmt]:
        test = self._inner.condition(node.condition)
        body = self._block(node.then, value=value) or [ast.Pass()]
        otherwise: list[ast.stmt] = []
        if isinstance(node.otherwise, n.If):
            before, self._inner.before = self._inner.before, []
            made = self._if(node.otherwise, value=value)
            otherwise, self._inner.before = [*self._inner.before, *made], before
        elif node.otherwise is not None:
            otherwise = self._block(node.otherwise, value=value)
        return [at(node, ast.If(test=test, body=body, orelse=otherwise))]

    def _while(self, node: n.While) -> ast.stmt:
        test = self._inner.condition(node.condition)
        return ast.While(test=test, body=self._block(node.body) or [ast.Pass()], orelse=[])

    def _for(self, node: n.For) -> ast.stmt:
        source = self._looped(n.bare(node.iterable))
        names = self._inner.names
        names.open()
        if isinstance(node.target, n.NamePattern):
            name, taken = names.declare(node.target.name), []
        else:
            name = names.own("item")
            taken = self._taken(node.target, load(name))
        body = [*taken, *self._block(node.body)] or [ast.Pass()]
        names.close()
        return ast.For(target=store(name), iter=source, body=body, orelse=[])

    def _looped(self, node: n.Expr) -> ast.expr:
        if isinstance(node, n.Range):
            return at(node, call("span", self._inner.expr(node.first), self._inner.expr(node.last)))
        return at(node, call("items", self._inner.expr(node)))

    def _var(self, node: n.Var) -> ast.stmt | list[ast.stmt]:
        names = self._inner.names
        if isinstance(node.target, n.NamePattern):
            self._inner.want(node.value, node.target.type)
        value = constant(None) if node.value is None else self._inner.expr(node.value)
        if isinstance(node.target, n.NamePattern):
            return assign(names.declare(node.target.name), value)
        if isinstance(node.target, n.IgnorePattern):
            return ast.Expr(value=value)
        name = names.own("whole")
        return [at(node, assign(name, value)), *self._taken(node.target, load(name))]

    def _taken(self, pattern: n.Pattern, value: ast.expr) -> list[ast.stmt]:
        """Set the names of a pattern from a value."""
        names = self._inner.names
        if isinstance(pattern, n.IgnorePattern):
            return []
        if isinstance(pattern, n.NamePattern):
            return [at(pattern, assign(names.declare(pattern.name), value))]
        if isinstance(pattern, n.ObjectPattern):
            return [
                at(field, assign(names.declare(field.name), call("field", value, constant(field.name))))
                for field in pattern.fields
            ]
        name = names.own("items")
        made: list[ast.stmt] = [at(pattern, assign(name, call("take", value, constant(len(pattern.items)))))]
        for place, item in enumerate(pattern.items):
            made += self._taken(item, item_of(load(name), place))
        return made

    def _type_decl(self, node: n.TypeDecl) -> list[ast.stmt]:
        self._inner.types[node.name] = node.type
        return []

    def _return(self, node: n.Return) -> ast.stmt:
        self._inner.want(node.value, self._returns)
        return ast.Return(value=None if node.value is None else self._inner.expr(node.value))

    def _jump(self, node: n.Jump) -> ast.stmt:
        made: ast.stmt = {"succeed": ast.Return, "break": ast.Break, "continue": ast.Continue}[node.word]()
        return made

    def _try(self, node: n.Try) -> ast.stmt:
        names = self._inner.names
        body = self._block(node.body) or [ast.Pass()]
        error = names.own("error")
        names.open()
        handled: list[ast.stmt] = []
        if node.name is not None:
            handled.append(assign(names.declare(node.name), call("caught", load(error))))
        handled += self._block(node.handler)
        names.close()
        handler = ast.ExceptHandler(type=load("Exception"), name=error, body=handled or [ast.Pass()])
        return ast.Try(body=body, handlers=[at(node.handler, handler)], orelse=[], finalbody=[])

    def _write_file(self, node: n.WriteFile) -> ast.stmt:
        return ast.Expr(value=self._written(node))

    def _written(self, node: n.WriteFile) -> ast.expr:
        value, target = self._inner.exprs([node.value, node.target])
        return at(node, call("write_file", value, constant(node.op), target))

    def _expr_statement(self, node: n.ExprStatement) -> ast.stmt:
        value = n.bare(node.value)
        if isinstance(value, n.Throw):
            return ast.Raise(exc=at(value, call("thrown", self._inner.expr(value.value))), cause=None)
        if isinstance(value, n.Assign) and isinstance(value.target, n.Name):
            made = self._inner.expr(value.value)
            return assign(self._inner.name_to_set(value.target), made)
        if isinstance(value, n.Increment) and isinstance(value.target, n.Name):
            name = self._inner.name_to_set(value.target)
            by = constant(1 if value.op == "++" else -1)
            return assign(name, at(value, call("step", load(name), by)))
        return ast.Expr(value=self._inner.expr(node.value))


def _docstring(item: n.Declaration) -> list[ast.stmt]:
    return [ast.Expr(value=constant(item.doc))] if item.doc else []


def _gives_nothing(value: n.Expr) -> bool:
    return isinstance(value, n.Throw) or (isinstance(value, n.ShellExpr) and value.mode == "run")
