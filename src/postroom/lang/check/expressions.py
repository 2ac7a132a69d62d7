"""The type checker of expressions: names, how many values a call takes, kinds of values, `self`, and `.await`."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from postroom.lang.builtins import ANY_NUMBER, BUILTINS, ONLY_IMPORTED, Signature
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.problems import ERROR, WARNING, Problem, near
from postroom.lang.syntax.program import LoadedModule
from postroom.lang.syntax.source import Span, shortened

from .kinds import (
    ANY,
    BOOLEAN,
    INT,
    LIST,
    NULL,
    NUMBER,
    STRING,
    UNKNOWN,
    Kind,
    common,
    fits,
    kind_of_type,
    literal_kind,
    misfits,
    plain_kind,
)  # fmt: skip
from .members import SELF, SESSION, kind_of_member, members_of

_NUMBERS: Final = frozenset(["int", "number"])
_GIVEN_BY: Final = {"run": NULL, "capture": STRING, "test": BOOLEAN, "lines": Kind("list", element=STRING)}
_NOT_CALLED: Final = frozenset(
    ["string", "int", "number", "boolean", "null", "list", "job", "mailbox", "mailroom", "session"]
)


@dataclass
class Symbol:
    """The meaning of a name. `what` is one of: variable parameter function trait module builtin."""

    name: str
    what: str
    span: Span | None
    kind: Kind = ANY
    module: LoadedModule | None = None


class ExpressionChecker:
    """Checks the expressions of one file; gives the kind of each, as far as it is known.

    `names` and `types` are those of the block at hand and of the blocks around it. `check_step` checks the statements
    of a prompt's step.
    """

    def __init__(self, loaded: LoadedModule, check_step: Callable[[n.Block], None]) -> None:
        self.problems: list[Problem] = []
        builtins = [name for name in BUILTINS if name not in ONLY_IMPORTED or name in loaded.std_names]
        self.names = ChainMap({name: Symbol(name, "builtin", None, Kind("builtin", title=name)) for name in builtins})
        self.types: ChainMap[str, n.TypeDecl] = ChainMap()
        self.function: n.Function
        self.later: dict[str, Span] = {}  # names of the function that are declared somewhere in it
        self._source = loaded.module.span.source
        self._check_step = check_step
        self._awaited: n.Node | None = None
        self._in_command = False

    # ---------------------------------------------------------------- saying what is wrong

    def error(self, span: Span, code: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(span, code, message, hint=hint, severity=ERROR))

    def warn(self, span: Span, code: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(span, code, message, hint=hint, severity=WARNING))

    def wants(self, span: Span, given: Kind, wanted: Kind, what: str) -> None:
        """An error when a value is known not to be of the kind that is wanted."""
        if fits(given, wanted):
            return
        detail = misfits(given, wanted) if given.name == wanted.name == "object" else ""
        self.error(span, "type", f"{what} must be {wanted}, not {given}" if not detail else f"{what}: {detail}")

    def kind(self, node: n.Expr) -> Kind:
        """Checks an expression; the kind of its value."""
        found: Kind = getattr(self, node.VISITOR)(node)
        return found

    # ---------------------------------------------------------------- names and literals

    def _name(self, node: n.Name) -> Kind:
        symbol = self._find(node)
        if symbol is None:
            return ANY
        if symbol.what == "module":
            hint = "use what it exports: " + ", ".join(f"{node.name}.{name}" for name in _exports(symbol)[:6])
            self.error(node.span, "module", f"{node.name} is a module, not a value", hint)
            return ANY
        if symbol.what == "trait":
            self.error(node.span, "trait", f"{node.name} is a trait: its methods are entry points, not values")
        return symbol.kind

    def _find(self, node: n.Name) -> Symbol | None:
        symbol = self.names.get(node.name)
        if symbol is None:
            self.error(node.span, "undefined", f"{node.name} is not defined", self._hint_for(node))
        return symbol

    def _hint_for(self, node: n.Name) -> str:
        text, start = node.span.source.text, node.span.start
        if node.name in self.later and self.later[node.name].start > start:
            return f"it is declared further down, in line {self.later[node.name].line}"
        found = near(node.name, self.names)
        if found:
            return found
        if node.name in BUILTINS:
            return f"import std.{node.name} makes it known"
        if node.name in {"None", "nil", "undefined"}:
            return "did you mean null?"
        if text[:start].rstrip().endswith("$("):
            return f"in a string $( ) holds an expression; the output of a command is ${{$({node.name} ...)}}"
        if self._in_command and text[start - 1 : start] == "$":
            return f"in a command $name is a variable of the program; one of the environment is $(printenv {node.name})"
        return ""

    def _literal(self, node: n.Literal) -> Kind:
        return literal_kind(node.value)

    def _exit_status(self, _: n.ExitStatus) -> Kind:
        return INT

    def _paren(self, node: n.Paren) -> Kind:
        return self.kind(node.value)

    def _self_expression(self, node: n.SelfExpression) -> Kind:
        self.error(node.span, "self", "self cannot stand alone", "self.session and self.delegate([...]) are known")
        return ANY

    def _string(self, node: n.String) -> Kind:
        self._parts(node.parts)
        if all(isinstance(part, n.TextPart) for part in node.parts):
            return literal_kind("".join(part.text for part in node.parts if isinstance(part, n.TextPart)))
        return STRING

    def _parts(self, parts: Iterable[n.Node], does: str = "joins") -> None:
        for part in parts:
            if isinstance(part, n.Interpolation):
                kind = self.kind(part.value)
                if part.spread:
                    self.wants(part.span, kind, LIST, f"what $@{{ }} {does}")
            elif isinstance(part, n.DoBlock):
                self._check_step(part.body)

    def _list_expr(self, node: n.ListExpr) -> Kind:
        items = tuple(self.kind(item) for item in node.items)
        return Kind("list", element=common(items) if items else ANY, items=items)

    def _object_expr(self, node: n.ObjectExpr) -> Kind:
        self.fields_once([(field.key, field.span) for field in node.fields])
        return Kind("object", fields={field.key: self.kind(field.value) for field in node.fields})

    def fields_once(self, names: list[tuple[str, Span]]) -> None:
        """An error for each field that is given again."""
        seen: set[str] = set()
        for name, span in names:
            if name in seen:
                self.error(span, "duplicate", f"the field {name} is given twice")
            seen.add(name)

    def _prompt(self, node: n.Prompt) -> Kind:
        self._parts(node.parts)
        return ANY

    # ---------------------------------------------------------------- operators

    def _unary(self, node: n.Unary) -> Kind:
        kind = self.kind(node.operand)
        if node.op == "!":
            return BOOLEAN
        self.wants(node.operand.span, kind, NUMBER, "the value that - negates")
        return INT if kind.name == "int" else NUMBER

    def _throw(self, node: n.Throw) -> Kind:
        self.kind(node.value)
        return ANY

    def _range(self, node: n.Range) -> Kind:
        for end in (node.first, node.last):
            self.wants(end.span, self.kind(end), NUMBER, "an end of a range")
        return Kind("list", element=INT)

    def _binary(self, node: n.Binary) -> Kind:
        left, right = self.kind(node.left), self.kind(node.right)
        if node.op in {"||", "&&"}:
            return common([left, right])
        known = left.name not in UNKNOWN and right.name not in UNKNOWN
        if node.op in {"==", "!="}:
            self._equality(node, left, right)
            return BOOLEAN
        if node.op == "+":
            return self._plus(node, left, right, known)
        if node.op in {"<", ">", "<=", ">="}:
            comparable = {left.name, right.name} <= _NUMBERS or left.name == right.name == "string"
            if known and not comparable:
                message = f"{node.op} compares two numbers or two strings, not {left} and {right}"
                self.error(node.span, "type", message)
            return BOOLEAN
        for side, kind in ((node.left, left), (node.right, right)):
            self.wants(side.span, kind, NUMBER, f"the value beside {node.op}")
        return INT if node.op != "/" and left.name == right.name == "int" else NUMBER

    def _plus(self, node: n.Binary, left: Kind, right: Kind, known: bool) -> Kind:
        if "string" in (left.name, right.name):
            return STRING
        if not known:
            return ANY
        if {left.name, right.name} <= _NUMBERS:
            return common([left, right])
        if left.name != "list" or right.name != "list":
            self.error(node.span, "type", f"+ adds numbers, joins lists or joins text, not {left} and {right}")
        return LIST

    def _equality(self, node: n.Binary, left: Kind, right: Kind) -> None:
        names = {"number" if kind.name == "int" else kind.name for kind in (left, right)}
        if len(names) == 2 and not names & {*UNKNOWN, "null"}:
            word = "never" if node.op == "==" else "always"
            self.warn(node.span, "compare", f"this is {word} true: {left} is not {right}")

    def _pipe(self, node: n.Pipe) -> Kind:
        value = self.kind(node.value)
        into = n.bare(node.into)
        if isinstance(into, n.Call):  # value | f(x) is f(value, x)
            kind = self.kind(into.callee)
            return self._arguments(into.span, kind, [value, *map(self.kind, into.args)], into.callee.span.text)
        kind = self.kind(into)
        if isinstance(into, n.ShellExpr) or kind.name in {"any", "union", "method", "builtin"}:
            return kind if isinstance(into, n.ShellExpr) else ANY
        if kind.name == "function":
            return self._arguments(into.span, kind, [value], into.span.text)
        self.error(into.span, "pipe", "| gives a value to a command, $(cmd), or to a function")
        return ANY

    # ---------------------------------------------------------------- setting

    def _assign(self, node: n.Assign) -> Kind:
        value = self.kind(node.value)
        if isinstance(node.target, n.Name):
            symbol = self._settable(node.target)
            if symbol is not None:
                self.wants(node.value.span, value, symbol.kind, node.target.name)
        else:
            self._settable_part(node.target, value)
        return value

    def _settable(self, node: n.Name) -> Symbol | None:
        symbol = self._find(node)
        if symbol is not None and symbol.what not in {"variable", "parameter"}:
            self.error(node.span, "assignment", f"{node.name} is a {symbol.what} and cannot be set")
            return None
        return symbol

    def _settable_part(self, node: n.MemberAccess | n.Index, value: Kind) -> None:
        kind = self.kind(node.object)
        if isinstance(node, n.Index):
            self.kind(node.index)
        if node.optional or kind.name in {"mailroom", "session", "string"}:
            self.error(node.span, "assignment", "this cannot be set")
        elif isinstance(node, n.MemberAccess) and kind.name == "object" and kind.closed and kind.fields is not None:
            if node.name in kind.fields:
                self.wants(node.span, value, kind.fields[node.name], f"the field {node.name}")
            else:
                self.error(node.name_span, "field", f"{kind} has no field {node.name}", near(node.name, kind.fields))

    def _increment(self, node: n.Increment) -> Kind:
        if isinstance(node.target, n.Name):
            self._settable(node.target)
        kind = self.kind(node.target)
        self.wants(node.target.span, kind, NUMBER, f"the value that {node.op} counts")
        return kind

    # ---------------------------------------------------------------- members

    def _member_access(self, node: n.MemberAccess) -> Kind:
        if isinstance(node.object, n.SelfExpression):
            return self._self_member(node)
        module = self._module_of(node.object)
        if module is not None:
            return self._exported(node, module)
        kind = self.kind(node.object)
        if kind.name == "mailroom":
            return Kind("mailbox")
        found = kind_of_member(kind, node.name)
        if found is None and not (node.optional and kind.name in {"object", "null"}):
            known = members_of(kind)
            hint = near(node.name, known) or (f"it has {', '.join(sorted(known)[:8])}" if known else "")
            self.error(node.name_span, "member", f"{kind} has no {node.name}", hint)
        return found or ANY

    def _self_member(self, node: n.MemberAccess) -> Kind:
        if self.function.kind == "fun":
            hint = "give it what it needs as a parameter, or make it a skill"
            message = "self belongs to workers, skills and methods: a fun has no session"
            self.error(node.object.span, "self", message, hint)
        if node.name in SELF:
            return SELF[node.name]
        hint = near(node.name, SELF) or "self has session and delegate([...])"
        hint = f"did you mean self.session.{node.name}?" if node.name in SESSION else hint
        self.error(node.name_span, "self", f"self has no {node.name}", hint)
        return ANY

    def _module_of(self, node: n.Expr) -> Symbol | None:
        symbol = self.names.get(node.name) if isinstance(node, n.Name) else None
        return symbol if symbol is not None and symbol.what == "module" else None

    def _exported(self, node: n.MemberAccess, symbol: Symbol) -> Kind:
        if symbol.module is None:
            return ANY  # the import itself is at fault, and was named
        exports = symbol.module.exports()
        item = exports.get(node.name)
        if item is None:
            hidden = any(not isinstance(i, n.Import) and i.name == node.name for i in symbol.module.module.items)
            hint = f"write export before it in {symbol.module.path.name}" if hidden else near(node.name, exports)
            self.error(node.name_span, "export", f"{symbol.name} exports no {node.name}", hint)
            return ANY
        if isinstance(item, n.Function):
            return Kind("function", declared=item)
        message = f"{symbol.name}.{node.name} is a {type(item).__name__.lower()}, not a value"
        self.error(node.name_span, "export", message)
        return ANY

    def _index(self, node: n.Index) -> Kind:
        kind, index = self.kind(node.object), self.kind(node.index)
        if kind.name == "mailroom":
            return Kind("mailbox")
        if kind.name in {*_NUMBERS, "boolean", "null", "function", "job"} and not (
            node.optional and kind.name == "null"
        ):
            self.error(node.object.span, "type", f"[ ] is for lists, strings and objects, not {kind}")
        elif kind.name in {"list", "string"}:
            self.wants(node.index.span, index, NUMBER, "the place of an item")
        elif kind.name == "object":
            self.wants(node.index.span, index, STRING, "the name of a field")
        return (kind.element or ANY) if kind.name == "list" else STRING if kind.name == "string" else ANY

    # ---------------------------------------------------------------- calls

    def _await(self, node: n.Await) -> Kind:
        self._awaited = n.bare(node.value)
        kind = self.kind(node.value)
        return ANY if kind.name == "job" else kind  # a worker that is awaited runs, by itself

    def _call(self, node: n.Call) -> Kind:
        awaited, self._awaited = self._awaited is node, None
        module = self._module_of(node.callee)
        if module is not None and isinstance(node.callee, n.Name):
            hint = f"{node.callee.name}.default(...)" if "default" in _exports(module) else ""
            self.error(node.callee.span, "module", f"{node.callee.name} is a module and cannot be called", hint)
            kind = ANY
        else:
            kind = self.kind(node.callee)
        args = [self.kind(arg) for arg in node.args]
        if kind.name in {"receive", "delegate"} and not awaited:
            self.error(node.span, "await", f"{kind.name} needs .await", f"{_short(node.span.text)}.await")
        if kind.name == "builtin":
            self.count(node.span, BUILTINS[kind.title], len(args), kind.title)
            return plain_kind(BUILTINS[kind.title].gives)
        if kind.name in {"send", "receive", "delegate"}:
            return self._mail_call(node, kind.name, args)
        if kind.name in _NOT_CALLED:
            self.error(node.callee.span, "call", f"{kind} cannot be called")
        return self._arguments(node.span, kind, args, _short(node.callee.span.text), node)

    def count(self, span: Span, signature: Signature, given: int, name: str) -> None:
        """An error when a call has too few or too many values."""
        least, most = signature.least, signature.most
        if least <= given <= most:
            return
        wanted = f"{least}" if least == most else f"at least {least}" if most == ANY_NUMBER else f"{least} to {most}"
        values = "value" if wanted == "1" else "values"
        self.error(span, "arity", f"{name} takes {wanted if wanted != '0' else 'no'} {values}, here are {given}")

    def _mail_call(self, node: n.Call, name: str, args: list[Kind]) -> Kind:
        least, most = (0, 1) if name == "receive" else (1, 1)
        self.count(node.span, Signature(least, most), len(args), name)
        if name == "receive" and args:
            self.wants(node.args[0].span, args[0], NUMBER, "the time to wait, in milliseconds,")
        if name != "delegate" or not args:
            return NULL if name == "send" else ANY
        self.wants(node.args[0].span, args[0], LIST, "the argument of delegate")
        for place, kind in enumerate(args[0].items or ()):
            if kind.name not in {"job", "any", "union"}:
                items = n.bare(node.args[0])
                span = items.items[place].span if isinstance(items, n.ListExpr) else node.args[0].span
                hint = f"call it: {span.text}()" if kind.name == "function" else ""
                self.error(span, "delegate", f"delegate takes called workers, not {kind}", hint)
        crew = args[0].items
        return Kind("list", element=ANY, items=tuple(ANY for _ in crew)) if crew is not None else LIST

    def _arguments(self, span: Span, kind: Kind, args: list[Kind], name: str, node: n.Call | None = None) -> Kind:
        declared = kind.declared
        if kind.name != "function" or declared is None:
            return ANY if kind.name != "method" else kind.element or ANY
        self.count(span, Signature(len(declared.params), len(declared.params)), len(args), name)
        for place, (given, param) in enumerate(zip(args, declared.params, strict=False)):
            if param.type is not None:
                at = node.args[place].span if node is not None else span
                self.wants(at, given, self.kind_of(param.type, declared), f"{param.name} of {declared.name}")
        if declared.kind == "worker":
            return Kind("job", declared=declared)
        return self.kind_of(declared.returns, declared) if declared.returns is not None else ANY

    def kind_of(self, type_: n.TypeNode, where: n.Function | None = None) -> Kind:
        """The kind of a type; the names in it are those of the file in which it is written."""
        own = where is None or type_.span.source is self._source
        return kind_of_type(type_, self.types if own else {})

    # ---------------------------------------------------------------- commands

    def _shell_expr(self, node: n.ShellExpr) -> Kind:
        before, self._in_command = self._in_command, True
        for word in n.words_of(node.command):
            self._word(word)
        self._in_command = before
        return _GIVEN_BY[node.mode]

    def _word(self, word: n.ShellWord) -> None:
        first = word.parts[0] if word.parts else None
        if isinstance(first, n.TextPart) and not first.quoted and first.text.startswith("#"):
            hint = "put the comment on a line of its own"
            self.warn(word.span, "comment", "# is an ordinary character in a command", hint)
        self._parts(word.parts, "spreads")


def _exports(symbol: Symbol) -> list[str]:
    return list(symbol.module.exports()) if symbol.module else []


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), 60)
