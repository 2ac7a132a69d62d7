"""The tree of a Patchwork program: what the parser makes, and what the checks, the formatter and the compiler read.

Every node has a `span`: `span.file`, `span.line`, `span.column`, `span.end_line`, `span.end_column`, `span.text`.
Nodes compare by identity; `same` compares two trees by what they say, without their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .source import Span


@dataclass(slots=True, eq=False)
class Node:
    """Anything that stands in a source."""

    span: Span = field(repr=False)


# ---------------------------------------------------------------- a file


@dataclass(slots=True, eq=False)
class Comment(Node):
    """`# text`; `own_line` when nothing but spaces stands before it on its line. Only the formatter needs them."""

    text: str
    own_line: bool


@dataclass(slots=True, eq=False)
class Module(Node):
    """One file. `body` is the bare block of a file that is a program without a `main` worker; its last value is the result."""

    items: list[Item]
    body: Block | None
    comments: list[Comment] = field(repr=False)


# ---------------------------------------------------------------- declarations


@dataclass(slots=True, eq=False)
class ImportName(Node):
    """One imported module. `path` ("std", "log") is bound as `name` ("log"): its last part. Relative: written with `./`."""

    path: tuple[str, ...]
    name: str
    relative: bool


@dataclass(slots=True, eq=False)
class Import(Node):
    """`import ./{a, b}`, `import ./a`, `import foo.bar`, `import std.log`."""

    names: list[ImportName]


@dataclass(slots=True, eq=False)
class Param(Node):
    """A parameter, with its type when one is written."""

    name: str
    type: TypeNode | None


@dataclass(slots=True, eq=False)
class Annotation(Node):
    """`@skill narrate`; without an argument the method's own name is meant (`argument` is None then)."""

    name: str
    argument: str | None


@dataclass(slots=True, eq=False)
class Function(Node):
    """`worker`, `skill`, `fun`, or a trait's method; `kind` says which ("method" for the last).

    `doc` is the text of the comment lines right above it, without their `#`; "" when there are none.
    """

    kind: str
    name: str
    name_span: Span = field(repr=False)
    params: list[Param]
    returns: TypeNode | None
    body: Block
    exported: bool
    default: bool
    annotations: list[Annotation]
    doc: str


@dataclass(slots=True, eq=False)
class Trait(Node):
    """`trait Name: Agent { methods }`: a plugin; its annotated methods are the entry points."""

    name: str
    name_span: Span = field(repr=False)
    base: TypeNode | None
    methods: list[Function]
    exported: bool
    default: bool
    doc: str


@dataclass(slots=True, eq=False)
class TypeDecl(Node):
    """`type Name = Type`, at the top of a file or as a statement."""

    name: str
    name_span: Span = field(repr=False)
    type: TypeNode
    exported: bool
    doc: str


# ---------------------------------------------------------------- types


@dataclass(slots=True, eq=False)
class TypeName(Node):
    """A named type: `string number int float bool boolean null void any object list`, or a declared one."""

    name: str


@dataclass(slots=True, eq=False)
class TypeLiteral(Node):
    """A single value as a type: `"ok"`, `3`, `true`."""

    value: str | int | float | bool


@dataclass(slots=True, eq=False)
class TypeList(Node):
    """`[element]`: a list of any length."""

    element: TypeNode


@dataclass(slots=True, eq=False)
class TypeField(Node):
    """One field of an object type; `optional` when written `name?: type`."""

    name: str
    type: TypeNode
    optional: bool


@dataclass(slots=True, eq=False)
class TypeObject(Node):
    """`{ field: type, ... }`."""

    fields: list[TypeField]


@dataclass(slots=True, eq=False)
class TypeUnion(Node):
    """`A | B`: one of them."""

    options: list[TypeNode]


# ---------------------------------------------------------------- statements


@dataclass(slots=True, eq=False)
class Block(Node):
    """`{ statements }`: a scope of its own."""

    statements: list[Statement]


@dataclass(slots=True, eq=False)
class If(Node):
    """`if condition { } else ...`; `otherwise` is a block, another `If` (else-if), or None."""

    condition: Expr
    then: Block
    otherwise: Block | If | None


@dataclass(slots=True, eq=False)
class For(Node):
    """`for var pattern in iterable { }`: the items of a list, the lines of a string, the keys of an object."""

    target: Pattern
    iterable: Expr
    body: Block


@dataclass(slots=True, eq=False)
class While(Node):
    """`while condition { }`, with or without parentheses."""

    condition: Expr
    body: Block


@dataclass(slots=True, eq=False)
class Var(Node):
    """`var pattern = value`; without a value the name is null."""

    target: Pattern
    value: Expr | None


@dataclass(slots=True, eq=False)
class Return(Node):
    """`return value`, or `return` alone, which gives null."""

    value: Expr | None


@dataclass(slots=True, eq=False)
class Succeed(Node):
    """`succeed`: ends the function well, with null."""


@dataclass(slots=True, eq=False)
class Break(Node):
    """`break`: ends the innermost loop."""


@dataclass(slots=True, eq=False)
class Continue(Node):
    """`continue`: goes on with the innermost loop's next turn."""


@dataclass(slots=True, eq=False)
class Try(Node):
    """`try { } catch name { }`; `name` is None when the error is not looked at."""

    body: Block
    name: str | None
    name_span: Span | None = field(repr=False)
    handler: Block


@dataclass(slots=True, eq=False)
class RunShell(Node):
    """`$ command`: runs it, output streams; a failing command raises."""

    command: ShellNode


@dataclass(slots=True, eq=False)
class WriteFile(Node):
    """`value > "file"` or `value >> "file"` as a statement. Two numbers are compared instead: that is the statement's value."""

    value: Expr
    op: str
    target: Expr


@dataclass(slots=True, eq=False)
class ExprStatement(Node):
    """An expression for its effect; the last one of a bare block is the program's result."""

    value: Expr


# ---------------------------------------------------------------- patterns


@dataclass(slots=True, eq=False)
class IgnorePattern(Node):
    """`_`: takes a value and forgets it."""


@dataclass(slots=True, eq=False)
class NamePattern(Node):
    """A new name, with its type when one is written."""

    name: str
    type: TypeNode | None


@dataclass(slots=True, eq=False)
class PatternField(Node):
    """One field of an object pattern: the field's name is the new name; what may follow is its type."""

    name: str
    type: TypeNode | None


@dataclass(slots=True, eq=False)
class ObjectPattern(Node):
    """`{ a, b: Type }`."""

    fields: list[PatternField]


@dataclass(slots=True, eq=False)
class ListPattern(Node):
    """`[a, _, [b, c]]`."""

    items: list[Pattern]


# ---------------------------------------------------------------- expressions


@dataclass(slots=True, eq=False)
class Name(Node):
    """A variable, parameter, function, import or builtin."""

    name: str


@dataclass(slots=True, eq=False)
class Number(Node):
    """`3` (int) or `1.5`, `2e3` (float)."""

    value: int | float


@dataclass(slots=True, eq=False)
class Bool(Node):
    """`true` or `false`."""

    value: bool


@dataclass(slots=True, eq=False)
class Null(Node):
    """`null`."""


@dataclass(slots=True, eq=False)
class SelfExpression(Node):
    """`self`: only `self.session...` and `self.delegate([...])` mean something."""


@dataclass(slots=True, eq=False)
class ExitStatus(Node):
    """`$?`: the exit code of the last command."""


@dataclass(slots=True, eq=False)
class TextPart(Node):
    """Literal text of a string or prompt: escapes are resolved and, in prompts, the common indentation is gone."""

    text: str


@dataclass(slots=True, eq=False)
class Interpolation(Node):
    """A value inside a string or prompt: `$x`, `${expr}`, in a string `$(expr)`, in a prompt `$(command)`.

    `joined` when written `$@{list}`: the items, joined with ", ".
    """

    value: Expr
    joined: bool


@dataclass(slots=True, eq=False)
class String(Node):
    """`"text ${expr}"`, or `'text'` (nothing is interpolated). Parts alternate as written; no parts: the empty string."""

    parts: list[TextPart | Interpolation]


@dataclass(slots=True, eq=False)
class ListExpr(Node):
    """`[a, b]`."""

    items: list[Expr]


@dataclass(slots=True, eq=False)
class ObjectField(Node):
    """`key: value`, `"any key": value`, or the shorthand `x` (its value is then the `Name` x, `shorthand` is true)."""

    key: str
    value: Expr
    shorthand: bool


@dataclass(slots=True, eq=False)
class ObjectExpr(Node):
    """`{ key: value, ... }`."""

    fields: list[ObjectField]


@dataclass(slots=True, eq=False)
class Paren(Node):
    """`(expr)`: means what is inside."""

    value: Expr


@dataclass(slots=True, eq=False)
class Unary(Node):
    """`!x` or `-x`."""

    op: str
    operand: Expr


@dataclass(slots=True, eq=False)
class Throw(Node):
    """`throw value`: an expression, so that `x || throw "none"` reads well."""

    value: Expr


@dataclass(slots=True, eq=False)
class Binary(Node):
    """`left op right`; op is one of `|| && == != < > <= >= + - * / %`. `||` and `&&` give one of their sides, and stop early."""

    op: str
    left: Expr
    right: Expr


@dataclass(slots=True, eq=False)
class Range(Node):
    """`first...last`, both included."""

    first: Expr
    last: Expr


@dataclass(slots=True, eq=False)
class Pipe(Node):
    """`value | into`: `into` is a command, which gets the value as standard input, or a function, which gets it as argument."""

    value: Expr
    into: Expr


@dataclass(slots=True, eq=False)
class Assign(Node):
    """`target = value`; the target is a `Name`, `MemberAccess` or `Index`. Its value is the value."""

    target: Expr
    value: Expr


@dataclass(slots=True, eq=False)
class Increment(Node):
    """`x++` or `x--`; its value is what x was before."""

    target: Expr
    op: str


@dataclass(slots=True, eq=False)
class MemberAccess(Node):
    """`object.name`; with `?.` (`optional`) a null object or a missing field gives null."""

    object: Expr
    name: str
    name_span: Span = field(repr=False)
    optional: bool


@dataclass(slots=True, eq=False)
class Index(Node):
    """`object[index]`, or `object?.[index]`."""

    object: Expr
    index: Expr
    optional: bool


@dataclass(slots=True, eq=False)
class Call(Node):
    """`callee(args)`."""

    callee: Expr
    args: list[Expr]


@dataclass(slots=True, eq=False)
class Await(Node):
    """`value.await`."""

    value: Expr


@dataclass(slots=True, eq=False)
class DoBlock(Node):
    """`do { code }` inside a prompt: a step that the model may run. `number` counts from 1 within its prompt."""

    number: int
    body: Block


@dataclass(slots=True, eq=False)
class Prompt(Node):
    """`think { }` or `ask { }`; `kind` says which. The text of the parts is ready: dedented, and without its outer blank lines."""

    kind: str
    parts: list[TextPart | Interpolation | DoBlock]


@dataclass(slots=True, eq=False)
class ShellExpr(Node):
    """A command as a value. `mode`: "capture" `$(cmd)`, its output; "test" `($ cmd)`, true or false;
    "lines" `($ cmd)` right after a loop's `in`, the lines of its output.
    """

    mode: str
    command: ShellNode


# ---------------------------------------------------------------- commands


@dataclass(slots=True, eq=False)
class ShellText(Node):
    """Literal characters of a word. Only unquoted ones (`quoted` false) are open to globs, `~`."""

    text: str
    quoted: bool


@dataclass(slots=True, eq=False)
class ShellValue(Node):
    """A value in a word: always literal characters, never looked at again. `spread` (`$@{list}`): each item a word of its own."""

    value: Expr
    quoted: bool
    spread: bool


@dataclass(slots=True, eq=False)
class ShellWord(Node):
    """One argument: its parts are glued together, so `"${x}"..HEAD` is one word. `""` is a word with one empty quoted text."""

    parts: list[ShellText | ShellValue]


@dataclass(slots=True, eq=False)
class ShellAssignment(Node):
    """`NAME=word` before a command: its environment alone."""

    name: str
    value: ShellWord


@dataclass(slots=True, eq=False)
class ShellRedirect(Node):
    """`op`: `>` `>>` `<` open the file `target` for descriptor `fd`; `<<<` gives the word itself as input;
    `&>` `&>>` send descriptors 1 and 2 to a file; `>&` makes `fd` a copy of `to_fd` (target is None).
    """

    op: str
    fd: int
    target: ShellWord | None
    to_fd: int | None


@dataclass(slots=True, eq=False)
class ShellCommand(Node):
    """One program: its environment, its words (the first is the program), its redirections in order."""

    assignments: list[ShellAssignment]
    words: list[ShellWord]
    redirects: list[ShellRedirect]


@dataclass(slots=True, eq=False)
class ShellPipeline(Node):
    """`a | b | c`: at least two commands."""

    commands: list[ShellCommand]


@dataclass(slots=True, eq=False)
class ShellChain(Node):
    """`a && b || c`: two or more, taken from the left, as in every shell. `ops` has what stands before each but the first."""

    parts: list[ShellCommand | ShellPipeline]
    ops: list[str]


# ---------------------------------------------------------------- what may stand where

TypeNode = TypeName | TypeLiteral | TypeList | TypeObject | TypeUnion
Pattern = IgnorePattern | NamePattern | ObjectPattern | ListPattern
ShellNode = ShellCommand | ShellPipeline | ShellChain
Item = Import | Function | Trait | TypeDecl
Expr = (
    Name
    | Number
    | Bool
    | Null
    | SelfExpression
    | ExitStatus
    | String
    | ListExpr
    | ObjectExpr
    | Paren
    | Unary
    | Throw
    | Binary
    | Range
    | Pipe
    | Assign
    | Increment
    | MemberAccess
    | Index
    | Call
    | Await
    | Prompt
    | ShellExpr
)
Statement = (
    If | For | While | Var | TypeDecl | Return | Succeed | Break | Continue | Try | RunShell | WriteFile | ExprStatement
)

_FIELDS: Final[dict[type, tuple[str, ...]]] = {}


def fields_of(node: Node) -> tuple[str, ...]:
    """The names of a node's fields, without the places."""
    kind = type(node)
    if kind not in _FIELDS:
        names = kind.__dataclass_fields__
        _FIELDS[kind] = tuple(name for name in names if name not in {"span", "name_span", "comments"})
    return _FIELDS[kind]


def children(node: Node) -> Iterator[Node]:
    """The nodes right under a node, in the order in which they are written."""
    for name in fields_of(node):
        value = getattr(node, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Node):
                    yield item


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
            waiting += [(getattr(left, name), getattr(right, name)) for name in fields_of(left)]
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            waiting += zip(left, right, strict=True)
        elif left != right:
            return False
    return True
