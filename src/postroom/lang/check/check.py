"""The linter: `check_program` gives every problem of a program, errors and warnings, before anything runs.

An error is something that cannot go well; a warning is something that is hardly meant.
A program with errors is not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.parser import deep_recursion
from postroom.lang.syntax.problems import ERROR, Problem, ProgramProblems, near
from postroom.lang.syntax.program import LoadedModule, ParsedProgram, read_program
from postroom.lang.syntax.source import Span

from .choreography import check_choreography
from .expressions import ExpressionChecker, Symbol
from .flow import ends, unreachable
from .kinds import ANY, LIST, NULL, OBJECT, TYPE_NAMES, Kind

_ENTRY_ANNOTATIONS: Final = ("skill", "command")
_TRAITS: Final = ("Agent",)
#: Loops and `try` blocks inside each other; the block after `catch` counts twice.
MAX_NESTED: Final = 20


def check_file(path: str | Path) -> list[Problem]:
    """Every problem of a program, by its entry file. OSError when that cannot be read."""
    return in_order(_read_and_checked(path)[1])


def checked_program(path: str | Path) -> tuple[ParsedProgram, list[Problem]]:
    """A program that can be run, and the warnings about it. `ProgramProblems`, with every fault, for any other."""
    program, problems = _read_and_checked(path)
    errors = [problem for problem in problems if problem.severity == ERROR]
    if errors or program is None:
        raise ProgramProblems(errors)
    return program, problems


def _read_and_checked(path: str | Path) -> tuple[ParsedProgram | None, list[Problem]]:
    program, problems = read_program(path)
    return program, [*problems, *check_program(program)] if program is not None else problems


def check_program(program: ParsedProgram) -> list[Problem]:
    """Every problem of a program that could be read. The choreography is looked at only when nothing else is wrong."""
    problems: list[Problem] = []
    with deep_recursion():
        for loaded in program.modules:
            problems += ModuleChecker(loaded).check()
        if not any(problem.severity == ERROR for problem in problems):
            problems += check_choreography(program)
    return in_order(problems)


def in_order(problems: list[Problem]) -> list[Problem]:
    """By file and place, without repetitions."""
    first = {(problem.span.file, problem.span.start, problem.message): problem for problem in reversed(problems)}
    return [first[key] for key in sorted(first)]


class ModuleChecker:
    """Checks the declarations and statements of one file."""

    def __init__(self, loaded: LoadedModule) -> None:
        self._loaded = loaded
        self._inner = ExpressionChecker(loaded, self._step)
        self._kind, self._kind_of, self._wants = self._inner.kind, self._inner.kind_of, self._inner.wants
        self._error, self._warn = self._inner.error, self._inner.warn
        self._loops = 0
        self._nested = 0  # how many loops and `try` of this function are open
        self._assigned: set[str] = set()  # names of the function that are set again after they were declared

    def check(self) -> list[Problem]:
        module = self._loaded.module
        with self._inner_scope():
            for item in module.items:
                self._declare_item(item)
            self._check_defaults()
            for item in module.items if module.body is None else [*module.items, module.body]:
                if isinstance(item, n.Function):
                    self._function(item)
                elif isinstance(item, n.Trait):
                    self._trait(item)
                elif isinstance(item, n.TypeDecl):
                    self._type_declaration(item)
        return self._inner.problems

    # ---------------------------------------------------------------- declarations

    def _declare_item(self, item: n.Item) -> None:
        if isinstance(item, n.Import):
            for name in item.names:
                if name.path[0] == "std" and not name.relative:
                    continue
                self._declare(Symbol(name.name, "module", name.span, ANY, module=self._loaded.imports.get(name.name)))
        elif isinstance(item, n.TypeDecl):
            self._declare_type(item)
        elif isinstance(item, n.Function):
            kind = Kind("function", declared=item)
            self._declare(Symbol(item.name, "function", item.name_span, kind))
        else:
            self._declare(Symbol(item.name, "trait", item.name_span))

    def _declare(self, symbol: Symbol) -> None:
        """A new name in the innermost scope; a second one of the same name is an error, at the second."""
        before = self._inner.names.maps[0].get(symbol.name)
        if before is not None and symbol.span is not None:
            where = f", in line {before.span.line}" if before.span is not None else ""
            self._error(symbol.span, "duplicate", f"{symbol.name} is already declared{where}")
            return
        self._inner.names[symbol.name] = symbol

    def _declare_type(self, item: n.TypeDecl) -> None:
        innermost = self._inner.types.maps[0]
        if item.name in TYPE_NAMES or item.name in innermost:
            self._error(item.name_span, "duplicate", f"the type {item.name} is already declared")
        innermost.setdefault(item.name, item)

    def _check_defaults(self) -> None:
        defaults = [i for i in self._loaded.module.items if isinstance(i, n.Declaration) and i.default]
        for item in defaults[1:]:
            self._error(
                item.name_span, "duplicate", f"there can be only one default, and {defaults[0].name} already is"
            )

    def _trait(self, trait: n.Trait) -> None:
        base = trait.base
        if isinstance(base, n.TypeName) and base.name not in _TRAITS:
            hint = near(base.name, _TRAITS) or "Agent is known"
            self._error(base.span, "trait", f"there is no trait {base.name} to build on", hint)
        names: set[str] = set()
        entries: set[tuple[str, str]] = set()
        for method in trait.methods:
            if method.name in names:
                self._error(method.name_span, "duplicate", f"the method {method.name} is already declared")
            names.add(method.name)
            self._annotations(method, entries)
            self._function(method)

    def _annotations(self, method: n.Function, entries: set[tuple[str, str]]) -> None:
        for annotation in method.annotations:
            if annotation.name not in _ENTRY_ANNOTATIONS:
                if hint := near(annotation.name, _ENTRY_ANNOTATIONS):
                    self._warn(annotation.span, "annotation", f"@{annotation.name} means nothing here", hint)
                continue
            key = (annotation.name, annotation.argument or method.name)
            if key in entries:
                self._error(annotation.span, "duplicate", f"there is already a {key[0]} {key[1]}")
            entries.add(key)

    # ---------------------------------------------------------------- functions

    def _enter_function(self, function: n.Function) -> None:
        self._inner.function = function
        self._loops = self._nested = 0
        self._assigned, self._inner.later = set(), {}
        for node in n.walk(function.body):
            if isinstance(node, n.Assign | n.Increment) and isinstance(node.target, n.Name):
                self._assigned.add(node.target.name)
            elif isinstance(node, n.NamePattern):
                self._inner.later.setdefault(node.name, node.span)

    def _function(self, function: n.Function) -> None:
        self._enter_function(function)
        with self._inner_scope():
            for param in function.params:
                if param.type is not None:
                    self._type(param.type)
                kind = ANY if param.type is None else self._kind_of(param.type, function)
                self._declare(Symbol(param.name, "parameter", param.span, kind))
            if function.returns is not None:
                self._type(function.returns)
                kind = self._kind_of(function.returns, function)
                if not fits_null(kind) and not ends(function.body):
                    message = f"{function.name} can end without a value, but must return {kind}"
                    self._warn(function.name_span, "return", message)
            self._statements(function.body)

    # ---------------------------------------------------------------- types

    def _type_declaration(self, item: n.TypeDecl) -> None:
        self._type(item.type)
        seen, node = {item.name}, item.type
        while isinstance(node, n.TypeName) and (found := self._inner.types.get(node.name)) is not None:
            if node.name in seen:
                self._error(item.name_span, "type", f"the type {item.name} refers to itself")
                return
            seen.add(node.name)
            node = found.type

    def _type(self, node: n.TypeNode) -> None:
        for child in n.walk(node):
            if isinstance(child, n.TypeName):
                if child.name not in TYPE_NAMES and child.name not in self._inner.types:
                    hint = near(child.name, [*TYPE_NAMES, *self._inner.types])
                    self._error(child.span, "type", f"there is no type {child.name}", hint)
            elif isinstance(child, n.TypeObject):
                self._inner.fields_once([(field.name, field.span) for field in child.fields])

    # ---------------------------------------------------------------- statements

    def _block(self, block: n.Block) -> None:
        with self._inner_scope():
            self._statements(block)

    @contextmanager
    def _inner_scope(self) -> Iterator[None]:
        inner = self._inner
        inner.names, inner.types = inner.names.new_child(), inner.types.new_child()
        yield
        inner.names, inner.types = inner.names.parents, inner.types.parents

    def _step(self, block: n.Block) -> None:
        """A step of a prompt: a function of its own, as far as loops are concerned."""
        around, self._loops, self._nested = (self._loops, self._nested), 0, 0
        self._block(block)
        self._loops, self._nested = around

    def _statements(self, block: n.Block) -> None:
        for statement in block.statements:
            getattr(self, statement.VISITOR)(statement)
        if (never := unreachable(block)) is not None:
            self._warn(never.span, "unreachable", "this is never reached")

    def _while(self, node: n.While) -> None:
        self._condition(node.condition)
        self._loop(node.body)

    def _jump(self, node: n.Jump) -> None:
        if not self._loops and node.word != "succeed":
            self._error(node.span, "loop", f"{node.word} is not inside a loop")

    def _type_decl(self, node: n.TypeDecl) -> None:
        self._declare_type(node)
        self._type_declaration(node)

    def _write_file(self, node: n.WriteFile) -> None:
        self._kind(node.value)
        kind = self._kind(node.target)
        if kind.name not in {"int", "number"}:
            self._wants(node.target.span, kind, Kind("string"), f"the file after {node.op}")

    def _if(self, node: n.If) -> None:
        self._condition(node.condition)
        self._block(node.then)
        if isinstance(node.otherwise, n.If):
            self._if(node.otherwise)
        elif node.otherwise is not None:
            self._block(node.otherwise)

    def _condition(self, node: n.Expr) -> None:
        self._kind(node)
        waiting = [node]
        while waiting:
            part = n.bare(waiting.pop())
            if isinstance(part, n.Assign):
                left, right = part.target.span.text, part.value.span.text
                self._error(part.span, "equals", "= assigns; a condition compares with ==", f"{left} == {right}")
            elif isinstance(part, n.Unary):
                waiting.append(part.operand)
            elif isinstance(part, n.Binary) and part.op in {"&&", "||"}:
                waiting += [part.left, part.right]

    def _loop(self, body: n.Block) -> None:
        self._loops += 1
        self._inner_block(body, 1)
        self._loops -= 1

    def _inner_block(self, block: n.Block, levels: int) -> None:
        """A block of a loop or a `try`. Python limits nesting (test_what_python_cannot_nest_is_told_by_the_checks)."""
        before = self._nested
        self._nested += levels
        if before <= MAX_NESTED < self._nested:
            start = block.span.start
            message = f"loops and try are nested more than {MAX_NESTED} levels deep here"
            hint = "move the inner ones into a function"
            self._error(Span(block.span.source, start, start + 1), "nesting", message, hint)
        self._block(block)
        self._nested = before

    def _for(self, node: n.For) -> None:
        kind = self._kind(node.iterable)
        if kind.name in {"int", "number", "boolean", "null", "function", "job", "mailbox"}:
            hint = f"1...{node.iterable.span.text} counts up to it" if kind.name in {"int", "number"} else ""
            self._error(node.iterable.span, "type", f"for goes through lists, strings and objects, not {kind}", hint)
        item = kind.element if kind.name == "list" else Kind("string") if kind.name in {"string", "object"} else ANY
        with self._inner_scope():
            self._bind(node.target, item or ANY)
            self._loop(node.body)

    def _try(self, node: n.Try) -> None:
        self._inner_block(node.body, 1)
        with self._inner_scope():
            if node.name is not None:
                self._declare(Symbol(node.name, "variable", node.name_span))
            self._inner_block(node.handler, 2)

    def _var(self, node: n.Var) -> None:
        kind = self._kind(node.value) if node.value is not None else None
        if node.value is not None and isinstance(n.bare(node.value), n.Prompt):
            kind = None  # a prompt gives what is asked for
        self._bind(node.target, kind if kind is not None else ANY, node.value.span if node.value is not None else None)

    def _bind(self, pattern: n.Pattern, kind: Kind, value: Span | None = None) -> None:
        if isinstance(pattern, n.NamePattern):
            self._bind_name(pattern, kind, value)
        elif isinstance(pattern, n.ObjectPattern):
            if kind.name not in {"object", "any", "union"}:
                self._error(pattern.span, "type", f"{{ }} takes an object apart, not {kind}")
            for field in pattern.fields:
                if kind.closed and kind.fields is not None and field.name not in kind.fields:
                    self._error(field.span, "field", f"{kind} has no field {field.name}", near(field.name, kind.fields))
                self._bind_name(field, (kind.fields or {}).get(field.name, ANY), value)
        elif isinstance(pattern, n.ListPattern):
            self._bind_list(pattern, kind)

    def _bind_list(self, pattern: n.ListPattern, kind: Kind) -> None:
        if kind.name not in {"list", "any", "union", "string"}:
            self._error(pattern.span, "type", f"[ ] takes a list apart, not {kind}")
        if kind.items is not None and len(kind.items) < len(pattern.items):
            message = f"there are only {len(kind.items)} items to take, and {len(pattern.items)} are wanted"
            self._error(pattern.span, "type", message)
        for place, item in enumerate(pattern.items):
            known = kind.items[place] if kind.items is not None and place < len(kind.items) else kind.element or ANY
            self._bind(item, known)

    def _bind_name(self, node: n.NamePattern, kind: Kind, value: Span | None) -> None:
        if node.type is not None:
            self._type(node.type)
            wanted = self._kind_of(node.type)
            self._wants(value or node.span, kind, wanted, node.name)
            kind = wanted
        elif node.name in self._assigned:
            kind = ANY  # it may be something else by then
        elif kind.name == "list" and kind.items is not None:
            kind = LIST
        elif kind.name == "object":
            kind = kind if kind.closed else OBJECT  # others may give it more fields
        elif kind.value is not None:
            kind = Kind(kind.name)
        self._declare(Symbol(node.name, "variable", node.span, kind))

    def _return(self, node: n.Return) -> None:
        kind = self._kind(node.value) if node.value is not None else NULL
        if self._inner.function.returns is not None:
            wanted = self._kind_of(self._inner.function.returns, self._inner.function)
            self._wants(node.span, kind, wanted, f"the value returned by {self._inner.function.name}")

    def _expr_statement(self, node: n.ExprStatement) -> None:
        kind = self._kind(node.value)
        value = n.bare(node.value)
        if kind.name == "job":
            hint = "self.delegate([...]).await runs workers"
            self._warn(node.span, "worker", "this worker is named but not run", hint)
        elif isinstance(value, n.Binary) and value.op == "==" and self._inner.function.kind != "block":
            self._warn(node.span, "equals", "the result of this comparison is not used", "= assigns")


def fits_null(kind: Kind) -> bool:
    """Whether a function that must give such a value may end without one."""
    return kind.name in {"null", "any"} or any(fits_null(option) for option in kind.options)
