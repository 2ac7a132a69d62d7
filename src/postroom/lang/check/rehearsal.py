"""Abstract interpretation of one worker: its code is followed with stand-ins, and stops where it would wait.

A coroutine of generators: a part yields when it receives or delegates, and is sent the message or the results.
Commands, files and prompts are not touched; their results are stand-ins.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, MutableMapping
from types import GeneratorType
from typing import Any, Final, NamedTuple, NoReturn

from postroom.lang.builtins import BUILTINS
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import LoadedModule

from .kinds import kind_of_type
from .rehearsal_values import Judge, binary, builtin, call_method, key_of, known, member_of, walk_through
from .stand_ins import CalledWorker, Code, Method, Namespace, Raised, StandIn, Unclear, bounded, copied, stand_in

Steps = Generator["Receive | Delegate", Any, Any]
MAX_CALLS: Final = 40
MAX_DEPTH: Final = 100


class Receive(NamedTuple):
    """A part waits for a message."""

    box: str
    call: n.Call
    can_time_out: bool


class Delegate(NamedTuple):
    """A part waits for workers."""

    jobs: list[CalledWorker]


class _Jump(Exception):
    """Leaves a turn of a loop, the loop or the function, by `word`."""

    def __init__(self, word: str, value: Any = None) -> None:
        self.word = word
        self.value = value
        super().__init__()


#: The names of a block, and those around it.
Env = ChainMap[str, Any]


def _holder(env: Env, name: str) -> MutableMapping[str, Any] | None:
    """The block that declares a name."""
    return next((names for names in env.maps if name in names), None)


class PartFollower:
    """Follows the code of one part of one file. `send` takes what it puts into mailboxes."""

    def __init__(
        self, judge: Judge, send: Callable[[str, Any, n.Call], None], loaded: LoadedModule, tries: list[int]
    ) -> None:
        self.judge = judge
        self.send = send
        self.loaded = loaded
        self.tries = tries  # how many `try` blocks are open, in one item that all functions of the part share
        self.calls = 0
        self.depth = 0  # where a loop or a `try` goes on after something was thrown past it, it sets this back
        self.top = {item.name: item for item in loaded.module.items if isinstance(item, n.Function)}
        self.types = {item.name: item for item in loaded.module.items if isinstance(item, n.TypeDecl)}

    def run(self, function: n.Function, args: Iterable[Any]) -> Steps:
        """Follows a function, or a bare block, to its end; its result."""
        env: Env = ChainMap({param.name: value for param, value in zip(function.params, args, strict=False)})
        try:
            yield from self.block(function.body, env)
        except _Jump as jump:
            return jump.value
        return None

    def stand_in(self, type_: n.TypeNode | None) -> Any:
        if type_ is None:
            return StandIn(given=True)
        return stand_in(kind_of_type(type_, self.types), self.judge.size)

    # ---------------------------------------------------------------- statements

    def block(self, block: n.Block, env: Env) -> Steps:
        self._go_deeper()
        for statement in block.statements:
            self.judge.step()
            made = getattr(self, statement.VISITOR)(statement, env)
            if isinstance(made, GeneratorType):
                yield from made
        self.depth -= 1

    def _if(self, node: n.If, env: Env) -> Steps:
        if self.judge.truth((yield from self.value(node.condition, env)), node.condition):
            yield from self.block(node.then, env.new_child())
        elif isinstance(node.otherwise, n.If):
            yield from self._if(node.otherwise, env)
        elif node.otherwise is not None:
            yield from self.block(node.otherwise, env.new_child())

    def _for(self, node: n.For, env: Env) -> Steps:
        items = walk_through((yield from self.value(node.iterable, env)), self.judge)
        depth = self.depth
        for item in items:
            inner = env.new_child()
            self._bind(node.target, item, inner)
            if not (yield from self._turn(node.body, inner, depth)):
                return

    def _while(self, node: n.While, env: Env) -> Steps:
        depth = self.depth
        while self.judge.truth((yield from self.value(node.condition, env)), node.condition):
            self.judge.step()
            if not (yield from self._turn(node.body, env.new_child(), depth)):
                return

    def _turn(self, body: n.Block, env: Env, depth: int) -> Steps:
        """One turn of a loop, and whether another one may follow."""
        self.depth = depth
        try:
            yield from self.block(body, env)
        except _Jump as jump:
            if jump.word not in {"break", "continue"}:
                raise
            return jump.word == "continue"
        return True

    def _var(self, node: n.Var, env: Env) -> Steps:
        value = (yield from self.value(node.value, env)) if node.value is not None else None
        typed = isinstance(node.target, n.NamePattern) and node.target.type
        if typed and node.value is not None and isinstance(value, StandIn) and not value.known:
            value = self.stand_in(typed)
        self._bind(node.target, value, env)

    def _bind(self, pattern: n.Pattern, value: Any, env: Env) -> None:
        if isinstance(pattern, n.NamePattern):
            env[pattern.name] = value
        elif isinstance(pattern, n.ObjectPattern):
            for field in pattern.fields:
                member = n.MemberAccess(field.span, n.Literal(field.span, None), field.name, field.span, False)
                env[field.name] = member_of(value, member, self.judge)
        elif isinstance(pattern, n.ListPattern):
            items = walk_through(value, self.judge)
            if isinstance(value, StandIn):
                items = [*items, *(StandIn() for _ in pattern.items)]
            if len(items) < len(pattern.items):
                raise Unclear
            for inner, item in zip(pattern.items, items, strict=False):
                self._bind(inner, item, env)

    def _return(self, node: n.Return, env: Env) -> Steps:
        raise _Jump("return", (yield from self.value(node.value, env)) if node.value is not None else None)

    def _jump(self, node: n.Jump, _env: Env) -> NoReturn:
        raise _Jump(node.word)

    def _try(self, node: n.Try, env: Env) -> Steps:
        depth = self.depth
        self.tries[0] += 1
        try:
            yield from self.block(node.body, env.new_child())
        except Raised:
            self.depth = depth
            inner = env.new_child()
            if node.name is not None:
                inner[node.name] = StandIn()
            self.tries[0] -= 1
            try:
                yield from self.block(node.handler, inner)
            finally:
                self.tries[0] += 1
        finally:
            self.tries[0] -= 1

    def _write_file(self, node: n.WriteFile, env: Env) -> Steps:
        return self.values([node.value, node.target], env)

    def _expr_statement(self, node: n.ExprStatement | n.Paren, env: Env) -> Steps:
        return self.value(node.value, env)

    _paren = _expr_statement

    def _type_decl(self, _node: n.TypeDecl, _env: Env) -> None:
        """Nothing happens."""

    # ---------------------------------------------------------------- expressions

    def value(self, node: n.Expr, env: Env) -> Steps:
        self.judge.step()
        self._go_deeper()
        value = getattr(self, node.VISITOR)(node, env)
        if isinstance(value, GeneratorType):  # else it is a method that never waits
            value = yield from value
        self.depth -= 1
        return value

    def values(self, nodes: Iterable[n.Expr], env: Env) -> Steps:
        """The values of several expressions, one after the other."""
        found = []
        for node in nodes:
            found.append((yield from self.value(node, env)))  # noqa: PERF401  a comprehension cannot wait
        return found

    def _go_deeper(self) -> None:
        """Generators inside generators take room of the machine's stack: too deeply nested code is left alone."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unclear

    def _literal(self, node: n.Literal, _env: Env) -> Any:
        return node.value

    def _self_expression(self, _node: n.SelfExpression, _env: Env) -> Namespace:
        return Namespace("self")

    def _exit_status(self, _node: n.ExitStatus, _env: Env) -> StandIn:
        return StandIn()

    def _name(self, node: n.Name, env: Env) -> Any:
        holder = _holder(env, node.name)
        if holder is not None:
            return holder[node.name]
        if node.name in self.top:
            return Code(self.top[node.name], self.loaded)
        if node.name in self.loaded.imports:
            return Namespace("module", node.name, self.loaded.imports[node.name])
        if node.name in BUILTINS:
            return Namespace("builtin", node.name)
        raise Unclear

    def _string(self, node: n.String, env: Env) -> Steps:
        texts: list[str] = []
        exact = True
        for part in node.parts:
            if isinstance(part, n.TextPart):
                texts.append(part.text)
            else:
                value = yield from self.value(part.value, env)
                plain = isinstance(value, str | int) and not isinstance(value, bool) and not part.spread
                exact = exact and plain
                texts.append(str(value) if plain else key_of(value))
        return bounded("".join(texts)) if exact else self.judge.derived(tuple(texts))

    def _list_expr(self, node: n.ListExpr, env: Env) -> Steps:
        return self.values(node.items, env)

    def _object_expr(self, node: n.ObjectExpr, env: Env) -> Steps:
        found = yield from self.values([field.value for field in node.fields], env)
        return dict(zip((field.key for field in node.fields), found, strict=True))

    def _unary(self, node: n.Unary, env: Env) -> Steps:
        value = yield from self.value(node.operand, env)
        if node.op == "!":
            return not self.judge.truth(value, node.operand)
        return binary("-", 0, value, node, self.judge)

    def _throw(self, node: n.Throw, env: Env) -> Steps:
        yield from self.value(node.value, env)
        raise Raised

    def _binary(self, node: n.Binary, env: Env) -> Steps:
        left = yield from self.value(node.left, env)
        if node.op in {"||", "&&"}:
            if self.judge.truth(left, node.left) == (node.op == "||"):
                return left
            return (yield from self.value(node.right, env))
        right = yield from self.value(node.right, env)
        return binary(node.op, left, right, node, self.judge)

    def _range(self, node: n.Range, env: Env) -> Steps:
        first = binary("+", 0, (yield from self.value(node.first, env)), node.first, self.judge)
        last = binary("+", 0, (yield from self.value(node.last, env)), node.last, self.judge)
        first = 1 if isinstance(first, StandIn) else first
        last = first + self.judge.size - 1 if isinstance(last, StandIn) else last
        if not isinstance(first, int) or not isinstance(last, int) or last - first > 200:
            raise Unclear
        return list(range(first, last + 1))

    def _pipe(self, node: n.Pipe, env: Env) -> Steps:
        value = yield from self.value(node.value, env)
        into = n.bare(node.into)
        if isinstance(into, n.ShellExpr):
            return (yield from self.value(into, env))
        callee = yield from self.value(into.callee if isinstance(into, n.Call) else into, env)
        more = yield from self.values(into.args if isinstance(into, n.Call) else [], env)
        return (yield from self._apply(callee, [value, *more], node))

    def _assign(self, node: n.Assign, env: Env) -> Steps:
        value = yield from self.value(node.value, env)
        yield from self._set(node.target, value, env)
        return value

    def _set(self, target: n.Name | n.MemberAccess | n.Index, value: Any, env: Env) -> Steps:
        if isinstance(target, n.Name):
            holder = _holder(env, target.name)
            if holder is None:
                raise Unclear
            holder[target.name] = value
            return
        of = yield from self.value(target.object, env)
        key = target.name if isinstance(target, n.MemberAccess) else (yield from self.value(target.index, env))
        if isinstance(of, StandIn):
            of.fields[_field(key)] = value
        elif isinstance(of, dict) and isinstance(key, str | StandIn):
            of[key if isinstance(key, str) else _unknown_key(key)] = value
        elif isinstance(of, list) and isinstance(key, int) and 0 <= key < len(of):
            of[key] = value
        else:
            raise Unclear

    def _increment(self, node: n.Increment, env: Env) -> Steps:
        before = yield from self.value(node.target, env)
        after = binary("+" if node.op == "++" else "-", before, 1, node, self.judge)
        yield from self._set(node.target, after, env)
        return before

    # ---------------------------------------------------------------- members and calls

    def _member_access(self, node: n.MemberAccess, env: Env) -> Steps:
        return member_of((yield from self.value(node.object, env)), node, self.judge)

    def _index(self, node: n.Index, env: Env) -> Steps:
        of = yield from self.value(node.object, env)
        key = yield from self.value(node.index, env)
        if isinstance(of, Namespace) and of.what == "mailroom" and isinstance(key, str):
            return of.member(key)
        if isinstance(of, StandIn):
            return of.fields.setdefault(_field(key), StandIn(given=of.given))
        if isinstance(of, dict) and isinstance(key, StandIn):
            return of.get(_unknown_key(key), None if node.optional else StandIn())
        if isinstance(of, dict) and isinstance(key, str) and (key in of or node.optional):
            return of.get(key)
        if isinstance(of, list | str) and isinstance(key, int) and 0 <= key < len(of):
            return of[key]
        if isinstance(of, list) and isinstance(key, StandIn) and of:
            return of[0]
        if node.optional:
            return None
        raise Unclear

    def _call(self, node: n.Call, env: Env) -> Steps:
        callee = yield from self.value(node.callee, env)
        args = yield from self.values(node.args, env)
        if isinstance(callee, Method) and isinstance(callee.of, Namespace) and callee.of.what == "mailbox":
            return (yield from self._mail(callee.of.name, callee.name, args, node))
        return (yield from self._apply(callee, args, node))

    def _mail(self, box: str, op: str, args: list[Any], node: n.Call) -> Steps:
        if op == "send" and args:
            self.send(box, copied(args[0]), node)
            return None
        if op != "receive":
            raise Unclear
        return (yield Receive(box, node, bool(args) and self.tries[0] > 0))

    def _apply(self, callee: Any, args: list[Any], node: n.Node) -> Steps:
        if isinstance(callee, Method) and isinstance(callee.of, Namespace) and callee.name == "delegate":
            jobs = args[0] if args else None
            if not isinstance(jobs, list) or not all(isinstance(job, CalledWorker) for job in jobs):
                raise Unclear
            return (yield Delegate(list(jobs)))
        if isinstance(callee, Code):
            if callee.function.kind == "worker":
                return CalledWorker(callee, args)
            return (yield from self._call_function(callee, args))
        if isinstance(callee, Namespace) and callee.what == "builtin":
            return builtin(callee.name, args, self.judge)
        if isinstance(callee, Method):
            return (yield from self._method(callee, args, node))
        if isinstance(callee, StandIn):
            return self.judge.derived(("()", key_of(callee), *map(key_of, args)))
        raise Unclear

    def _call_function(self, callee: Code, args: list[Any]) -> Steps:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise Unclear
        inner = PartFollower(self.judge, self.send, callee.loaded, self.tries)
        inner.calls = self.calls
        result = yield from inner.run(callee.function, args)
        self.calls -= 1
        return result

    def _method(self, method: Method, args: list[Any], node: n.Node) -> Steps:
        """A member of a value; those that take a function call it here, since it may wait."""
        if method.name in {"map", "filter"} and isinstance(method.of, list | StandIn) and args:
            found = []
            for item in walk_through(method.of, self.judge):
                made = yield from self._apply(args[0], [item], node)
                if method.name == "map":
                    found.append(made)
                elif self.judge.truth(made, node):
                    found.append(item)
            return found
        return call_method(method, args, self.judge)

    def _await(self, node: n.Await, env: Env) -> Steps:
        value = yield from self.value(node.value, env)
        if isinstance(value, CalledWorker):
            return (yield Delegate([value]))[0]
        return value

    # ---------------------------------------------------------------- what is not touched

    def _prompt(self, node: n.Prompt, env: Env) -> Steps:
        for part in node.parts:
            if isinstance(part, n.Interpolation):
                yield from self.value(part.value, env)
            elif isinstance(part, n.DoBlock) and _changes_something(part):
                raise Unclear  # whether the model takes the step is its own affair
        return StandIn()

    def _shell_expr(self, node: n.ShellExpr, env: Env) -> Steps:
        parts = [part for word in n.words_of(node.command) for part in word.parts]
        yield from self.values([part.value for part in parts if isinstance(part, n.Interpolation)], env)
        return [StandIn() for _ in range(self.judge.size)] if node.mode == "lines" else StandIn()


def _changes_something(step: n.DoBlock) -> bool:
    """Whether a step of a prompt does something that its worker, or another one, can see."""
    return any(isinstance(node, n.SelfExpression | n.Assign | n.Increment) for node in n.walk(step))


def _field(key: Any) -> str | int:
    """The field of a stand-in that a key names."""
    return key if isinstance(key, str | int) else key_of(key)


def _unknown_key(key: StandIn) -> str:
    """The name of a field whose name is not known: one that no program writes."""
    return known(key) if isinstance(known(key), str) else f"\0{key.number}"
