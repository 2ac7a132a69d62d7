"""The tree of a Patchwork program: what the parser makes, and what the checks, the formatter and the compiler read.

Every node has a `span`: `span.file`, `span.line`, `span.column`, `span.end_line`, `span.end_column`, `span.text`.
Nodes compare by identity; `same` compares two trees by what they say, without their places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, dataclass_transform

from .source import Span


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class _Dataclass:
    """Makes a dataclass of each class below it, which compares by identity."""

    #: The names of the fields that say something: all but the places.
    FIELDS: ClassVar[tuple[str, ...]]
    #: The method of a visitor that is for such nodes: `_member_access` for `MemberAccess`.
    VISITOR: ClassVar[str]

    def __init_subclass__(cls) -> None:
        made: Any = dataclass(eq=False)(cls)
        cls.FIELDS = tuple(f.name for f in fields(made) if f.name not in {"span", "name_span", "comments"})
        cls.VISITOR = re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), cls.__name__)


class Node(_Dataclass):
    """Anything that stands in a source."""

    span: Span = field(repr=False)


class Statement(Node):
    """A statement: a block holds them, one after the other."""


class Expr(Node):
    """An expression: it has a value."""


# ---------------------------------------------------------------- a file


class Comment(Node):
    """`# text`; `own_line` when nothing but spaces stands before it on its line. Only the formatter needs them."""

    text: str
    own_line: bool


class Module(Node):
    """One file. `body` is its bare block, as a function of the kind "block"; the last value in it is the result."""

    items: list[Item]
    body: Function | None
    comments: list[Comment] = field(repr=False)


# ---------------------------------------------------------------- declarations


class ImportName(Node):
    """One imported module. `path` ("std", "log") is bound as `name`, its last part; `relative`: with `./`."""

    path: tuple[str, ...]
    name: str
    relative: bool


class Import(Node):
    """`import ./{a, b}`, `import ./a`, `import foo.bar`, `import std.log`."""

    names: list[ImportName]


class Annotation(Node):
    """`@skill narrate`; without an argument the method's own name is meant (`argument` is None then)."""

    name: str
    argument: str | None


class Declaration(Statement):
    """A name that a file declares, with the words before it.

    `doc` is the text of the comment lines right above it, without their `#`; "" when there are none.
    """

    doc: str
    exported: bool
    default: bool
    name: str
    name_span: Span = field(repr=False)


class Function(Declaration):
    """`worker`, `skill`, `fun`, a trait's method ("method") or a file's bare block ("block"), by `kind`."""

    kind: str
    params: list[NamePattern]
    returns: TypeNode | None
    body: Block
    annotations: list[Annotation]


class Trait(Declaration):
    """`trait Name: Agent { methods }`: a plugin; its annotated methods are the entry points."""

    base: TypeNode | None
    methods: list[Function]


class TypeDecl(Declaration):
    """`type Name = Type`, at the top of a file or as a statement."""

    type: TypeNode


# ---------------------------------------------------------------- types


class TypeName(Node):
    """A named type: `string number int float bool boolean null void any object list`, or a declared one."""

    name: str


class TypeLiteral(Node):
    """A single value as a type: `"ok"`, `3`, `true`."""

    value: str | int | float | bool


class TypeList(Node):
    """`[element]`: a list of any length."""

    element: TypeNode


class TypeField(Node):
    """One field of an object type; `optional` when written `name?: type`."""

    name: str
    type: TypeNode
    optional: bool


class TypeObject(Node):
    """`{ field: type, ... }`."""

    fields: list[TypeField]


class TypeUnion(Node):
    """`A | B`: one of them."""

    options: list[TypeNode]


# ---------------------------------------------------------------- statements


class Block(Node):
    """`{ statements }`: a scope of its own."""

    statements: list[Statement]


class If(Statement):
    """`if condition { } else ...`; `otherwise` is a block, another `If` (else-if), or None."""

    condition: Expr
    then: Block
    otherwise: Block | If | None


class For(Statement):
    """`for var pattern in iterable { }`: the items of a list, the lines of a string, the keys of an object."""

    target: Pattern
    iterable: Expr
    body: Block


class While(Statement):
    """`while condition { }`, with or without parentheses."""

    condition: Expr
    body: Block


class Var(Statement):
    """`var pattern = value`; without a value the name is null."""

    target: Pattern
    value: Expr | None


class Return(Statement):
    """`return value`, or `return` alone, which gives null."""

    value: Expr | None


class Jump(Statement):
    """`succeed` ends the function well, with null; `break` ends the innermost loop, `continue` its turn. By `word`."""

    word: str


class Try(Statement):
    """`try { } catch name { }`; `name` is None when the error is not looked at."""

    body: Block
    name: str | None
    name_span: Span | None = field(repr=False)
    handler: Block


class WriteFile(Statement):
    """`value > "file"` or `value >> "file"` as a statement. Two numbers are compared instead."""

    value: Expr
    op: str
    target: Expr


class ExprStatement(Statement):
    """An expression for its effect; the last one of a bare block is the program's result."""

    value: Expr


# ---------------------------------------------------------------- patterns


class IgnorePattern(Node):
    """`_`: takes a value and forgets it."""


class NamePattern(Node):
    """A new name, with its type when one is written: of a variable, a parameter, or a field that is taken out."""

    name: str
    type: TypeNode | None


class ObjectPattern(Node):
    """`{ a, b: Type }`."""

    fields: list[NamePattern]


class ListPattern(Node):
    """`[a, _, [b, c]]`."""

    items: list[Pattern]


# ---------------------------------------------------------------- expressions


class Name(Expr):
    """A variable, parameter, function, import or builtin."""

    name: str


class Literal(Expr):
    """`3` (int), `1.5`, `2e3` (float), `true`, `false` or `null`."""

    value: int | float | bool | None


class SelfExpression(Expr):
    """`self`: only `self.session...` and `self.delegate([...])` mean something."""


class ExitStatus(Expr):
    """`$?`: the exit code of the last command."""


class TextPart(Node):
    """Literal text of a string, a prompt or a word: escapes are resolved; in prompts the common indentation is gone.

    Only what is not `quoted` in a word of a command is open to globs and `~`.
    """

    text: str
    quoted: bool = True


class Interpolation(Node):
    """A value inside a string, a prompt or a word: `$x`, `${expr}`, in a string `$(expr)`, elsewhere `$(command)`.

    `spread` when written `$@{list}`: in a word each item is a word of its own, elsewhere they are joined with ", ".
    """

    value: Expr
    spread: bool


class String(Expr):
    """`"text ${expr}"`, or `'text'` (nothing is interpolated). Parts are in order; the empty string has none."""

    parts: list[TextPart | Interpolation]


class ListExpr(Expr):
    """`[a, b]`."""

    items: list[Expr]


class ObjectField(Node):
    """`key: value`, `"any key": value`, or the shorthand `x` (its value is then the `Name` x, `shorthand` is true)."""

    key: str
    value: Expr
    shorthand: bool


class ObjectExpr(Expr):
    """`{ key: value, ... }`."""

    fields: list[ObjectField]


class Paren(Expr):
    """`(expr)`: means what is inside."""

    value: Expr


class Unary(Expr):
    """`!x` or `-x`."""

    op: str
    operand: Expr


class Throw(Expr):
    """`throw value`: an expression, so that `x || throw "none"` reads well."""

    value: Expr


class Binary(Expr):
    """`left op right`; op is one of `|| && == != < > <= >= + - * / %`. `||` and `&&` give one of their sides."""

    op: str
    left: Expr
    right: Expr


class Range(Expr):
    """`first...last`, both included."""

    first: Expr
    last: Expr


class Pipe(Expr):
    """`value | into`: a command gets the value as standard input, a function as its first argument."""

    value: Expr
    into: Expr


class Assign(Expr):
    """`target = value`. Its value is the value."""

    target: Name | MemberAccess | Index
    value: Expr


class Increment(Expr):
    """`x++` or `x--`; its value is what x was before."""

    target: Name | MemberAccess | Index
    op: str


class MemberAccess(Expr):
    """`object.name`; with `?.` (`optional`) a null object or a missing field gives null."""

    object: Expr
    name: str
    name_span: Span = field(repr=False)
    optional: bool


class Index(Expr):
    """`object[index]`, or `object?.[index]`."""

    object: Expr
    index: Expr
    optional: bool


class Call(Expr):
    """`callee(args)`."""

    callee: Expr
    args: list[Expr]


class Await(Expr):
    """`value.await`."""

    value: Expr


class DoBlock(Node):
    """`do { code }` inside a prompt: a step that the model may run. `number` counts from 1 within its prompt."""

    number: int
    body: Block


class Prompt(Expr):
    """`think { }` or `ask { }`, by `kind`. The text of the parts is dedented, and has no blank lines around it."""

    kind: str
    parts: list[TextPart | Interpolation | DoBlock]


class ShellExpr(Expr):
    """A command. `mode`: "run" `$ cmd`, a statement: output streams, and failing raises; "capture" `$(cmd)`, its
    output; "test" `($ cmd)`, true or false; "lines" `($ cmd)` right after a loop's `in`, the lines of its output.
    """

    mode: str
    command: ShellNode


# ---------------------------------------------------------------- commands


class ShellWord(Node):
    """One argument, of parts without spaces between: `"${x}"..HEAD`. `""` is a word with one empty quoted text."""

    parts: list[TextPart | Interpolation]


class ShellAssignment(Node):
    """`NAME=word` before a command: its environment alone."""

    name: str
    value: ShellWord


class ShellRedirect(Node):
    """`op`: `>` `>>` `<` open the file `target` for descriptor `fd`; `<<<` gives the word itself as input;
    `&>` `&>>` send descriptors 1 and 2 to a file; `>&` makes `fd` a copy of `to_fd` (target is None).
    """

    op: str
    fd: int
    target: ShellWord | None
    to_fd: int | None


class ShellCommand(Node):
    """One program: its environment, its words (the first is the program), its redirections in order."""

    assignments: list[ShellAssignment]
    words: list[ShellWord]
    redirects: list[ShellRedirect]


class ShellPipeline(Node):
    """`a | b | c`: at least two commands."""

    commands: list[ShellCommand]


class ShellChain(Node):
    """`a && b || c`: two or more, taken from the left, as in every shell. `ops` stand before each but the first."""

    parts: list[ShellCommand | ShellPipeline]
    ops: list[str]


# ---------------------------------------------------------------- what may stand where

TypeNode = TypeName | TypeLiteral | TypeList | TypeObject | TypeUnion
Pattern = IgnorePattern | NamePattern | ObjectPattern | ListPattern
ShellNode = ShellCommand | ShellPipeline | ShellChain
Item = Import | Function | Trait | TypeDecl


def functions_of(module: Module) -> Iterator[tuple[Trait | None, Function]]:
    """The functions of a file and the methods of its traits, each with its trait; without the bare block."""
    for item in module.items:
        if isinstance(item, Function):
            yield None, item
        elif isinstance(item, Trait):
            yield from ((item, method) for method in item.methods)


def bare(expr: Expr) -> Expr:
    """An expression without the parentheses around it."""
    while isinstance(expr, Paren):
        expr = expr.value
    return expr


def children(node: Node) -> Iterator[Node]:
    """The nodes right under a node, in the order in which they are written."""
    for name in node.FIELDS:
        value = getattr(node, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Node):
                    yield item


def words_of(node: Node) -> Iterator[ShellWord]:
    """The words of a command; those of commands inside them are not among them."""
    for child in children(node):
        if isinstance(child, ShellWord):
            yield child
        else:
            yield from words_of(child)


def walk(node: Node) -> Iterator[Node]:
    """A node and everything under it, in the order in which it is written."""
    waiting = [node]
    while waiting:
        at = waiting.pop()
        yield at
        waiting.extend(reversed(list(children(at))))


def same(one: Node, other: Node) -> bool:
    """Whether two trees say the same; where it stands does not matter."""
    waiting: list[tuple[Any, Any]] = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        if type(left) is not type(right):
            return False
        if isinstance(left, Node):
            waiting += [(getattr(left, name), getattr(right, name)) for name in left.FIELDS]
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            waiting += zip(left, right, strict=True)
        elif left != right:
            return False
    return True
