"""What the parser reads, what it makes of it, and how it says what it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.parser import parse
from postroom.lang.syntax.problems import SyntaxProblems

from .test_grammar import EXAMPLES, SAMPLES


def body_of(code: str) -> list[n.Statement]:
    """The statements of a worker with that body."""
    item = parse(f"worker w() {{\n{code}\n}}\n", "test.pw").items[0]
    assert isinstance(item, n.Function)
    return item.body.statements


def value_of(code: str) -> n.Expr:
    statement = body_of(f"var x = {code}")[0]
    assert isinstance(statement, n.Var)
    assert statement.value is not None
    return statement.value


def command_of(code: str) -> n.ShellNode:
    statement = body_of(f"$ {code}")[0]
    assert isinstance(statement, n.ExprStatement)
    assert isinstance(statement.value, n.ShellExpr)
    assert statement.value.mode == "run"
    return statement.value.command


def words_of(code: str) -> list[list[tuple[str, str]]]:
    """Each word as its parts: what kind, and what it says."""
    command = command_of(code)
    assert isinstance(command, n.ShellCommand)
    return [[_part(part) for part in word.parts] for word in command.words]


def _part(part: n.TextPart | n.Interpolation) -> tuple[str, str]:
    if isinstance(part, n.TextPart):
        return ("quoted" if part.quoted else "open", part.text)
    return ("items" if part.spread else "value", part.value.span.text)


def problems_of(text: str) -> list[str]:
    with pytest.raises(SyntaxProblems) as caught:
        parse(text, "test.pw")
    return [problem.headline().removeprefix("test.pw:") for problem in caught.value.problems]


@pytest.mark.parametrize("path", [*SAMPLES, *EXAMPLES], ids=lambda path: path.stem)
def test_every_sample_is_read(path: Path) -> None:
    module = parse(path.read_text(encoding="utf-8"), path.name)

    assert module.items or module.body


# ---------------------------------------------------------------- what the language has


def test_else_if_is_an_if_inside_an_else() -> None:
    statement = body_of("if a { } else if b { }\nelse { return }")[0]

    assert isinstance(statement, n.If)
    assert isinstance(statement.otherwise, n.If)
    assert isinstance(statement.otherwise.otherwise, n.Block)


@pytest.mark.parametrize("code", ["while i < 3 { i++ }", "while (i < 3) { i++ }"])
def test_while_needs_no_parentheses(code: str) -> None:
    assert isinstance(body_of(code)[0], n.While)


@pytest.mark.parametrize(("code", "value"), [("1.5", 1.5), ("2e3", 2000.0), ("12", 12), ("1e-2", 0.01)])
def test_numbers(code: str, value: float) -> None:
    node = value_of(code)

    assert isinstance(node, n.Literal)
    assert node.value == value
    assert type(node.value) is type(value)


def test_a_range_of_whole_numbers_is_no_fraction() -> None:
    node = value_of("1...3")

    assert isinstance(node, n.Range)
    assert [node.first.span.text, node.last.span.text] == ["1", "3"]


@pytest.mark.parametrize("op", ["<=", ">=", "%", "==", "!=", "<", "&&", "||", "+", "-", "*", "/"])
def test_operators(op: str) -> None:
    node = value_of(f"a {op} b")

    assert isinstance(node, n.Binary)
    assert node.op == op


def test_precedence_is_that_of_the_grammar() -> None:
    assert n.same(value_of("a || b && c == d + e * -f"), value_of("a || (b && (c == (d + (e * (-f)))))")) is False
    for loose, tight in [
        ("a || b && c", "b && c"),
        ("a && b == c", "b == c"),
        ("a == b...c", "b...c"),
        ("a...b + c", "b + c"),
        ("a + b * c", "b * c"),
        ("a | b || c", "b || c"),
    ]:
        node = value_of(loose)
        right = node.last if isinstance(node, n.Range) else node.into if isinstance(node, n.Pipe) else node.right  # type: ignore[attr-defined]
        assert right.span.text == tight


def test_what_is_thrown_is_the_whole_sum_but_not_the_or_after_it() -> None:
    node = value_of('a && throw "x" + y || b')

    assert isinstance(node, n.Binary)
    assert node.op == "||"
    assert isinstance(node.left, n.Binary)
    assert isinstance(node.left.right, n.Throw)
    assert node.left.right.value.span.text == '"x" + y'


@pytest.mark.parametrize(
    "code",
    [
        "a +\n b",
        "a &&\n b",
        "(a\n && b)",
        "[\n1,\n2,\n]",
        "f(\n1,\n2,\n)",
        "{\na: 1,\nb,\n}",
        "a\n.b\n.c()",
        "think { x } ||\n ask { y }",
    ],
)
def test_an_expression_goes_on_after_an_operator_and_inside_brackets(code: str) -> None:
    assert len(body_of(f"var x = {code}")) == 1


def test_a_return_at_the_end_of_its_line_returns_nothing() -> None:
    first, second = body_of("return\nf()")

    assert isinstance(first, n.Return)
    assert first.value is None
    assert isinstance(second, n.ExprStatement)


def test_null_continue_try_and_question_dots() -> None:
    null, jump = value_of("null"), body_of("continue")[0]
    assert isinstance(null, n.Literal)
    assert null.value is None
    assert isinstance(jump, n.Jump)
    assert jump.word == "continue"
    attempt = body_of("try { f() }\ncatch e { }")[0]
    assert isinstance(attempt, n.Try)
    assert attempt.name == "e"
    chain = value_of("a?.b?.[0]")
    assert isinstance(chain, n.Index)
    assert chain.optional
    assert isinstance(chain.object, n.MemberAccess)
    assert chain.object.optional


def test_patterns_nest_and_ignore() -> None:
    statement = body_of("var [a, _, [b, { c, d: int }]] = x")[0]

    assert isinstance(statement, n.Var)
    names = [node.name for node in n.walk(statement.target) if isinstance(node, n.NamePattern)]
    assert names == ["a", "b", "c", "d"]


def test_types_annotations_return_types_and_doc_comments_stay_on_their_declaration() -> None:
    text = """
# far away

# Adds.
#   Really.
export fun add(a: number, b: "x" | [int],) -> { ok: bool, why?: string } { return a }
# A plugin.
export default trait T: Agent {
    # Goes.
    @skill go
    @command
    fun run() { }
}
"""
    add, trait = parse(text, "test.pw").items

    assert isinstance(add, n.Function)
    assert isinstance(trait, n.Trait)
    assert add.doc == "Adds.\n  Really."
    assert isinstance(add.returns, n.TypeObject)
    assert [field.optional for field in add.returns.fields] == [False, True]
    assert (trait.doc, trait.default, trait.exported) == ("A plugin.", True, True)
    method = trait.methods[0]
    assert (method.doc, [(a.name, a.argument) for a in method.annotations]) == (
        "Goes.",
        [("skill", "go"), ("command", None)],
    )


def test_imports_of_every_form() -> None:
    module = parse("import std.log\nimport foo.bar\nimport ./{a, b/c}\nimport ./d\n", "test.pw")

    names = [name for item in module.items if isinstance(item, n.Import) for name in item.names]
    assert [(name.path, name.name, name.relative) for name in names] == [
        (("std", "log"), "log", False),
        (("foo", "bar"), "bar", False),
        (("a",), "a", True),
        (("b", "c"), "c", True),
        (("d",), "d", True),
    ]


def test_a_bare_block_is_a_program_and_may_have_declarations_beside_it() -> None:
    module = parse("fun f() { return 1 }\n{\n  f()\n}\n", "test.pw")

    assert module.body is not None
    assert len(module.body.body.statements) == 1


# ---------------------------------------------------------------- strings and prompts


def parts_of(code: str) -> list[str]:
    node = value_of(code)
    assert isinstance(node, n.String)
    return [part.text if isinstance(part, n.TextPart) else f"<{part.value.span.text}>" for part in node.parts]


def test_strings_take_names_and_expressions() -> None:
    assert parts_of('"a $x b ${y.z} c $(1 + (2)) d $@{e}"') == [
        "a ",
        "<x>",
        " b ",
        "<y.z>",
        " c ",
        "<1 + (2)>",
        " d ",
        "<e>",
    ]


def test_escapes_are_resolved_and_unknown_ones_stay() -> None:
    assert parts_of(r'"\n\t\\\"\'\$x\0\d"') == ["\n\t\\\"'$x\0\\d"]


def test_a_single_quoted_string_takes_nothing() -> None:
    assert parts_of(r"'it\'s $x ${y}'") == ["it's $x ${y}"]


def test_a_string_may_have_many_lines() -> None:
    assert parts_of('"one\n  two"') == ["one\n  two"]


def test_a_dollar_alone_is_a_dollar() -> None:
    assert parts_of('"5$ and $5 and $"') == ["5$ and $5 and $"]


def prompt_of(code: str) -> list[str]:
    node = value_of(code)
    assert isinstance(node, n.Prompt)
    return [
        part.text
        if isinstance(part, n.TextPart)
        else "<do>"
        if isinstance(part, n.DoBlock)
        else f"<{part.value.span.text}>"
        for part in node.parts
    ]


def test_a_prompt_keeps_its_lines_and_loses_what_they_share() -> None:
    prompt = """think {

        First ${x}with no space.
          Indented,

        $y at the start of a line.
    }"""

    assert prompt_of(prompt) == ["First ", "<x>", "with no space.\n  Indented,\n\n", "<y>", " at the start of a line."]


def test_prompt_escapes_braces_commands_and_lists() -> None:
    prompt = "think { {a: {b}} $'{' $'}' $'$'x $@{l} $(git log) and do it }"

    assert prompt_of(prompt) == ["{a: {b}} { } $x ", "<l>", " ", "<$(git log)>", " and do it"]


def test_code_stands_in_a_prompt_and_prompts_in_code_to_any_depth() -> None:
    depth = 240
    code = "x"
    for _ in range(depth):
        code = 'think { a ${ f("${ ' + code + ' }") } do { $ echo "$(' + "1" + ')" } }'

    node = value_of(code)

    assert sum(isinstance(inner, n.Prompt) for inner in n.walk(node)) == depth


# ---------------------------------------------------------------- commands


def test_words_are_lists_of_parts() -> None:
    assert words_of('git log "${base}"..HEAD --flag=value --x="$y z" $dir/file *.py ~') == [
        [("open", "git")],
        [("open", "log")],
        [("value", "base"), ("open", "..HEAD")],
        [("open", "--flag=value")],
        [("open", "--x="), ("value", "y"), ("quoted", " z")],
        [("value", "dir"), ("open", "/file")],
        [("open", "*.py")],
        [("open", "~")],
    ]


def test_quotes_escapes_lists_and_empty_words() -> None:
    assert words_of(r"""echo 'a $b \n' \* "" $@{files} $? ${a.b} $(date)""") == [
        [("open", "echo")],
        [("quoted", r"a $b \n")],
        [("quoted", "*")],
        [("quoted", "")],
        [("items", "files")],
        [("value", "$?")],
        [("value", "a.b")],
        [("value", "$(date)")],
    ]


def test_environment_before_a_command() -> None:
    command = command_of('A=b C="$d" E= make all X=y')

    assert isinstance(command, n.ShellCommand)
    assert [(a.name, [_part(p) for p in a.value.parts]) for a in command.assignments] == [
        ("A", [("open", "b")]),
        ("C", [("value", "d")]),
        ("E", []),
    ]
    assert [word.span.text for word in command.words] == ["make", "all", "X=y"]


def test_every_redirection() -> None:
    command = command_of('c > a >> b < d 2> e 2>> f 2>&1 1>&2 >&2 &> g &>> h <<< "i" 3> j')

    assert isinstance(command, n.ShellCommand)
    found = [(r.fd, r.op, r.target.span.text if r.target else r.to_fd) for r in command.redirects]
    assert found == [
        (1, ">", "a"),
        (1, ">>", "b"),
        (0, "<", "d"),
        (2, ">", "e"),
        (2, ">>", "f"),
        (2, ">&", 1),
        (1, ">&", 2),
        (1, ">&", 2),
        (1, "&>", "g"),
        (1, "&>>", "h"),
        (0, "<<<", '"i"'),
        (3, ">", "j"),
    ]


def test_pipes_bind_tighter_than_and_and_or_which_are_equal() -> None:
    chain = command_of("a || b | c && d || e")

    assert isinstance(chain, n.ShellChain)
    assert [part.span.text for part in chain.parts] == ["a", "b | c", "d", "e"]
    assert isinstance(chain.parts[1], n.ShellPipeline)
    assert chain.ops == ["||", "&&", "||"]


def test_a_command_goes_on_after_an_operator_or_a_backslash() -> None:
    assert len(body_of("$ a |\n b &&\n c \\\n d\n$ e")) == 2


def test_a_command_ends_with_its_block() -> None:
    statement = body_of("if a { $ echo {} b }")[0]

    assert isinstance(statement, n.If)
    shell = statement.then.statements[0]
    assert isinstance(shell, n.ExprStatement)
    assert isinstance(shell.value, n.ShellExpr)
    assert shell.span.text == "$ echo {} b"


def test_commands_as_values() -> None:
    assert isinstance(value_of("$(ls | wc)"), n.ShellExpr)
    test = value_of("!($ git diff --quiet)")
    assert isinstance(test, n.Unary)
    assert isinstance(test.operand, n.ShellExpr)
    assert test.operand.mode == "test"
    call = value_of("f($ true)")
    assert isinstance(call, n.Call)
    assert isinstance(call.args[0], n.ShellExpr)
    loop = body_of("for var d in ($ ls -1) { }")[0]
    assert isinstance(loop, n.For)
    assert isinstance(loop.iterable, n.ShellExpr)
    assert loop.iterable.mode == "lines"


def test_a_value_is_written_to_a_file_in_a_statement_and_compared_elsewhere() -> None:
    write, append, compared = body_of('cat(x) > "a"\ny >> "b"\nvar z = p > q')

    assert isinstance(write, n.WriteFile)
    assert isinstance(append, n.WriteFile)
    assert (write.op, append.op) == (">", ">>")
    assert isinstance(compared, n.Var)
    assert isinstance(compared.value, n.Binary)


# ---------------------------------------------------------------- Unicode and places


def test_names_are_unicodes_and_composed() -> None:
    module = parse("fun gro\u0308\u00dfe(\u0928\u0940\u0932, \u540d\u524d) { return \u540d\u524d }\n", "test.pw")

    function = module.items[0]
    assert isinstance(function, n.Function)
    assert function.name == "gr\u00f6\u00dfe"
    assert [param.name for param in function.params] == ["\u0928\u0940\u0932", "\u540d\u524d"]


def test_places_are_counted_in_characters() -> None:
    statement = body_of('var \u00fc = "\U0001f600" + x')[0]

    assert isinstance(statement, n.Var)
    assert isinstance(statement.value, n.Binary)
    name = statement.value.right
    assert (name.span.line, name.span.column, name.span.end_column) == (2, 15, 16)
    assert name.span.text == "x"


def test_every_node_says_what_it_stands_for() -> None:
    for path in [*SAMPLES, *EXAMPLES]:
        text = path.read_text(encoding="utf-8")
        module = parse(text, path.name)
        for node in n.walk(module):
            assert 0 <= node.span.start <= node.span.end <= len(text)
            for child in n.children(node):
                assert node.span.start <= child.span.start, (node, child)
                assert child.span.end <= node.span.end, (node, child)


# ---------------------------------------------------------------- errors that point


def test_an_error_shows_file_line_column_caret_and_what_was_expected() -> None:
    with pytest.raises(SyntaxProblems) as caught:
        parse("worker w() {\n    var x = (1 + 2\n}\n", "some/file.pw")

    assert str(caught.value) == (
        "some/file.pw:2:13: error: this ( is never closed: expected )\n      var x = (1 + 2\n              ^"
    )


def test_several_errors_are_told_in_one_go() -> None:
    text = "worker a() {\n    var = 1\n    f(\n    if { }\n    ok()\n}\nfun b( { }\nfun c() { return 1 }\nworker d() { $ | x }\n"

    lines = [problem.partition(":")[0] for problem in problems_of(text)]
    assert lines == ["2", "3", "4", "7", "9"]


def test_a_fault_on_each_line_is_told_for_each_line() -> None:
    faults = [
        "x += 1",
        "let y = 2",
        "// no",
        "var o = {a: 1 b: 2}",
        "foo bar",
        "return x ? 1 : 2",
        "elif x { }",
        "f(g(1)",
        "$ a | | b",
    ]
    text = "worker w() {\n" + "\n".join(faults) + "\nok()\n}\nworker v() { ok() }\n"

    lines = [int(problem.partition(":")[0]) for problem in problems_of(text)]
    assert lines == list(range(2, 2 + len(faults)))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("var x = await f()", "await comes after what is awaited"),
        ("var x = $ ls", "$(cmd)"),
        ("var x = $y", "a variable is written without $ in code"),
        ("$ make & echo", "self.delegate"),
        ("$ (cd x)", "quote a ("),
        ("var y = $(a; b)", "join commands with &&"),
        ("$ cat << EOF", "<<<"),
        ("$ don't", "apostrophe"),
        ("var type = 1", "type is a reserved word"),
        ("var { type } = m", "var x = value.type"),
        ("1 = x", "cannot be assigned to"),
        ("a + b = c", "cannot be assigned to"),
        ("1e999", "too large"),
        ("x ? y : z", "?."),
        ("a & b", "&& is and"),
        ("x += 1", "write x = x + ..."),
        ("const x = 1", "a variable is declared with var"),
        ("def f() { }", "fun"),
        ("// comment", "a comment begins with #"),
        ("f(1,\nvar x = 2", "this ( is never closed"),
        ('var s = "abc', "this string is never closed"),
        ("think { {{ abc", "this prompt is never closed"),
    ],
)  # fmt: skip
def test_an_error_says_what_was_probably_meant(code: str, said: str) -> None:
    with pytest.raises(SyntaxProblems) as caught:
        body_of(code)

    assert said in str(caught.value)
    assert caught.value.problems[0].span.line == 2


def test_an_open_block_is_told_where_it_begins() -> None:
    assert problems_of("worker w() {\n    if a {\n        f()\n")[0].startswith("2:10: error: this { is never closed")


def test_nesting_that_no_person_writes_is_an_error_with_a_place() -> None:
    for text in (
        "{ " + "(" * 5000,
        "{ x = " + "[" * 5000 + "]" * 5000 + " }",
        "{ " + "if a { " * 5000,
        "{ " + "!" * 5000 + "x }",
    ):
        assert any(
            "nested" in problem or "never closed" in problem or "expected" in problem for problem in problems_of(text)
        )


def test_a_file_that_is_not_utf_8_is_told_at_its_first_wrong_byte(tmp_path: Path) -> None:
    from postroom.lang.check.check import check_file

    path = tmp_path / "latin.pw"
    path.write_bytes(b'# ok\nworker w() { print("gr\xfc\xdfe") }\n')

    problem = check_file(path)[0]

    assert (problem.span.line, problem.span.column) == (2, 23)
    assert "0xfc" in problem.message
