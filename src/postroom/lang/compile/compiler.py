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
from .names import (
    RUNTIME,
    Names,
    assign,
    at,
    attribute,
    call,
    class_,
    constant,
    function,
    load,
    mangled,
    place_rest,
    store,
)

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
    tree = ast.Module(body=_Compiler(module).module(), type_ignores=[])
    place_rest(tree)
    return tree


class _Compiler(ExpressionCompiler):
    """Compiles one file."""

    def __init__(self, module: n.Module) -> None:
        self._module = module
        names: dict[str, str] = {}
        imports: set[str] = set()
        types: dict[str, n.TypeNode] = {}
        for item in module.items:
            if isinstance(item, n.Import):
                for name in item.names:
                    if name.path[0] != "std" or name.relative:
                        imports.add(name.name)
                        names[name.name] = mangled(name.name)
            elif isinstance(item, n.TypeDecl):
                types[item.name] = item.type
            else:
                names[item.name] = mangled(item.name)
        super().__init__(names, imports, types)

    def module(self) -> list[ast.stmt]:
        """Everything in the file, in order; imports first, since what stands below may need them."""
        body: list[ast.stmt] = [
            ast.Expr(value=constant(f"Compiled from {Path(self._module.span.file).name}.")),
            ast.ImportFrom(module=_MODULE, names=[ast.alias(name="runtime", asname=RUNTIME)], level=0),
        ]
        for item in self._module.items:
            if isinstance(item, n.Import):
                body += self._import(item)
        for item in self._module.items:
            if isinstance(item, n.Function):
                body.append(self._function(item))
            elif isinstance(item, n.Trait):
                body.append(self._trait(item))
            if isinstance(item, n.Function | n.Trait) and item.default:
                body.append(at(item, assign("default", load(self.globals[item.name]))))
        if self._module.body is not None:
            body.append(self._bare_block(self._module.body))
        return body

    def _import(self, item: n.Import) -> list[ast.stmt]:
        return [
            at(item, assign(self.globals[name.name], call("load", load("__file__"), *map(constant, name.path))))
            for name in item.names
            if name.name in self.imports
        ]

    def _trait(self, item: n.Trait) -> ast.stmt:
        body: list[ast.stmt] = [ast.Expr(value=constant(item.doc))] if item.doc else []
        body += [self._function(method) for method in item.methods]
        return at(item, class_(self.globals[item.name], attribute(load(RUNTIME), "Agent"), body))

    def _bare_block(self, block: n.Block) -> ast.stmt:
        self._begin(has_self=True)
        body = self.block(block, value=True)
        return at(block, function(MAIN_BLOCK, ["self"], body, []))

    def _begin(self, *, has_self: bool) -> None:
        self.names = Names({*self.globals.values(), "self", RUNTIME})
        self.has_self = has_self
        self.before = []

    def _function(self, item: n.Function) -> ast.stmt:
        self._begin(has_self=item.kind != "fun")
        params = [self.names.declare(param.name) for param in item.params]
        self._returns = item.returns
        body: list[ast.stmt] = [ast.Expr(value=constant(item.doc))] if item.doc else []
        body += self.block(item.body)
        self._returns = None
        if self.has_self:
            params.insert(0, "self")
        decorators = [attribute(load(RUNTIME), "worker")] if item.kind == "worker" else []
        name = self.globals[item.name] if item.kind != "method" else mangled(item.name)
        return at(item, function(name, params, body, decorators))

    _returns: n.TypeNode | None = None

    # Statements

    def block(self, block: n.Block, *, value: bool = False) -> list[ast.stmt]:
        """The statements of a block, with names of its own. `value`: its last value is what it gives."""
        self.names.open()
        self.types.append({})
        body: list[ast.stmt] = []
        last = len(block.statements) - 1
        for place, statement in enumerate(block.statements):
            made = self._statement(statement, value=value and place == last)
            body += self.before + made
            self.before = []
        self.types.pop()
        self.names.close()
        return body

    def _statement(self, node: n.Statement, *, value: bool) -> list[ast.stmt]:
        if value and isinstance(node, n.ExprStatement) and not isinstance(node.value, n.Throw):
            return [at(node, ast.Return(value=self.expr(node.value)))]
        if value and isinstance(node, n.WriteFile):  # of two numbers it is a comparison after all
            return [at(node, ast.Return(value=self._written(node)))]
        if value and isinstance(node, n.If):
            return self._if(node, value=True)
        made: list[ast.stmt] = getattr(self, node.VISITOR)(node)
        return made

    def _if(self, node: n.If, *, value: bool = False) -> list[ast.stmt]:
        test = self.condition(node.condition)
        before, self.before = self.before, []
        body = self.block(node.then, value=value) or [ast.Pass()]
        otherwise: list[ast.stmt] = []
        if isinstance(node.otherwise, n.If):
            otherwise = self._if(node.otherwise, value=value)
            otherwise = [*self.before, *otherwise]
        elif node.otherwise is not None:
            otherwise = self.block(node.otherwise, value=value)
        self.before = before
        return [at(node, ast.If(test=test, body=body, orelse=otherwise))]

    def _while(self, node: n.While) -> list[ast.stmt]:
        test = self.condition(node.condition)
        before, self.before = self.before, []
        body = self.block(node.body) or [ast.Pass()]
        self.before = before
        return [at(node, ast.While(test=test, body=body, orelse=[]))]

    def _for(self, node: n.For) -> list[ast.stmt]:
        source = self._looped(node.iterable)
        before, self.before = self.before, []
        self.names.open()
        if isinstance(node.target, n.NamePattern):
            name, taken = self.names.declare(node.target.name), []
        else:
            name = self.names.own("item")
            taken = self._taken(node.target, load(name))
        body = [*taken, *self.block(node.body)] or [ast.Pass()]
        self.names.close()
        self.before = before
        return [at(node, ast.For(target=store(name), iter=source, body=body, orelse=[]))]

    def _looped(self, node: n.Expr) -> ast.expr:
        node = n.bare(node)
        if isinstance(node, n.Range):
            made = call("span", self.expr(node.first), self.expr(node.last))
        else:
            made = call("items", self.expr(node))
        return at(node, made)

    def _var(self, node: n.Var) -> list[ast.stmt]:
        if isinstance(node.target, n.NamePattern):
            self.want(node.value, node.target.type)
        value = constant(None) if node.value is None else self.expr(node.value)
        if isinstance(node.target, n.NamePattern):
            return [at(node, assign(self.names.declare(node.target.name), value))]
        if isinstance(node.target, n.IgnorePattern):
            return [at(node, ast.Expr(value=value))]
        name = self.names.own("whole")
        return [at(node, assign(name, value)), *self._taken(node.target, load(name))]

    def _taken(self, pattern: n.Pattern, value: ast.expr) -> list[ast.stmt]:
        """Set the names of a pattern from a value."""
        if isinstance(pattern, n.IgnorePattern):
            return []
        if isinstance(pattern, n.NamePattern):
            return [at(pattern, assign(self.names.declare(pattern.name), value))]
        if isinstance(pattern, n.ObjectPattern):
            return [
                at(field, assign(self.names.declare(field.name), call("field", value, constant(field.name))))
                for field in pattern.fields
            ]
        name = self.names.own("items")
        made: list[ast.stmt] = [at(pattern, assign(name, call("take", value, constant(len(pattern.items)))))]
        for place, item in enumerate(pattern.items):
            made += self._taken(item, ast.Subscript(value=load(name), slice=constant(place), ctx=ast.Load()))
        return made

    def _type_decl(self, node: n.TypeDecl) -> list[ast.stmt]:
        self.types[-1][node.name] = node.type
        return []

    def _return(self, node: n.Return) -> list[ast.stmt]:
        self.want(node.value, self._returns)
        return [at(node, ast.Return(value=None if node.value is None else self.expr(node.value)))]

    def _succeed(self, node: n.Succeed) -> list[ast.stmt]:
        return [at(node, ast.Return(value=None))]

    def _break(self, node: n.Break) -> list[ast.stmt]:
        return [at(node, ast.Break())]

    def _continue(self, node: n.Continue) -> list[ast.stmt]:
        return [at(node, ast.Continue())]

    def _try(self, node: n.Try) -> list[ast.stmt]:
        body = self.block(node.body) or [ast.Pass()]
        error = self.names.own("error")
        self.names.open()
        handled: list[ast.stmt] = []
        if node.name is not None:
            handled.append(assign(self.names.declare(node.name), call("caught", load(error))))
        handled += self.block(node.handler)
        self.names.close()
        handler = ast.ExceptHandler(type=load("Exception"), name=error, body=handled or [ast.Pass()])
        made = ast.Try(body=body, handlers=[at(node.handler, handler)], orelse=[], finalbody=[])
        return [at(node, made)]

    def _run_shell(self, node: n.RunShell) -> list[ast.stmt]:
        return [at(node, ast.Expr(value=at(node, call("run", self.shell(node.command)))))]

    def _write_file(self, node: n.WriteFile) -> list[ast.stmt]:
        return [at(node, ast.Expr(value=self._written(node)))]

    def _written(self, node: n.WriteFile) -> ast.expr:
        return at(node, call("write_file", self.expr(node.value), constant(node.op), self.expr(node.target)))

    def _expr_statement(self, node: n.ExprStatement) -> list[ast.stmt]:
        value = n.bare(node.value)
        if isinstance(value, n.Throw):
            return [at(node, ast.Raise(exc=at(value, call("thrown", self.expr(value.value))), cause=None))]
        if isinstance(value, n.Assign) and isinstance(value.target, n.Name):
            made = self.expr(value.value)
            return [at(node, assign(self.name_to_set(value.target), made))]
        if isinstance(value, n.Increment) and isinstance(value.target, n.Name):
            name = self.name_to_set(value.target)
            by = constant(1 if value.op == "++" else -1)
            return [at(node, assign(name, at(value, call("step", load(name), by))))]
        return [at(node, ast.Expr(value=self.expr(node.value)))]
