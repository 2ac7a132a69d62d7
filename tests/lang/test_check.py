"""What is found before a program runs. Each case is a body of a worker, or a whole file, and what must be said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.lang.check.check import check_file, checked_program
from postroom.lang.syntax.problems import Problem, ProgramProblems

from .test_grammar import EXAMPLES, SAMPLES


def check(text: str, folder: Path, **others: str) -> list[Problem]:
    for name, other in others.items():
        (folder / f"{name}.pw").write_text(other, encoding="utf-8")
    path = folder / "test.pw"
    path.write_text(text, encoding="utf-8")
    return check_file(path)


def said(problems: list[Problem]) -> list[str]:
    return [f"{problem.span.line}:{problem.span.column} {problem.message}" for problem in problems]


def in_worker(code: str) -> str:
    return f"worker w(a, b: int, s: string) {{\n{code}\n}}\n"


@pytest.mark.parametrize("path", [*SAMPLES, *EXAMPLES], ids=lambda path: path.stem)
def test_every_sample_is_without_a_warning(path: Path) -> None:
    assert said(check_file(path)) == []


@pytest.mark.parametrize(
    ("code", "place", "message", "hint"),
    [
        ("print(foo)", "2:7", "foo is not defined", ""),
        ("var total = 1\nprint(totl)", "3:7", "totl is not defined", "did you mean total?"),
        ('print("$foo")', "2:9", "foo is not defined", ""),
        ('print("${foo.bar}")', "2:10", "foo is not defined", ""),
        ("think { about $foo }", "2:16", "foo is not defined", ""),
        ("think { do { print(foo) } }", "2:20", "foo is not defined", ""),
        ("$ echo $foo", "2:9", "foo is not defined", "$(printenv foo)"),
        ('$ echo "x${foo}"', "2:12", "foo is not defined", ""),
        ("$ echo > $foo", "2:11", "foo is not defined", ""),
        ("$ A=$foo b", "2:6", "foo is not defined", ""),
        ('print("$(foo)")', "2:10", "foo is not defined", "${$(foo ...)}"),
        ("print(later)\nvar later = 1", "2:7", "later is not defined", "in line 3"),
        ("log(1)", "2:1", "log is not defined", "import std.log"),
        ("var x = 1\nvar x = 2", "3:5", "x is already declared, in line 2", ""),
        ("var a = 1", "2:5", "a is already declared, in line 1", ""),
        ("var [x, x] = a", "2:9", "x is already declared", ""),
        ("if a { var x = 1 }\nprint(x)", "3:7", "x is not defined", ""),
        ("for x in a { }\nprint(x)", "3:7", "x is not defined", ""),
        ("try { } catch e { }\nprint(e)", "3:7", "e is not defined", ""),
        ("var o = { k: 1, k: 2 }", "2:17", "the field k is given twice", ""),
        ("len()", "2:1", "len takes 1 value, here are 0", ""),
        ("write(s)", "2:1", "write takes 2 values, here are 1", ""),
        ("w(1)", "2:1", "w takes 3 values, here are 1", ""),
        ("return 1\nprint(2)", "3:1", "this is never reached", ""),
        ("throw 1\nprint(2)", "3:1", "this is never reached", ""),
        ("while true { }\nprint(2)", "3:1", "this is never reached", ""),
        ("while true { break\nprint(2) }", "3:1", "this is never reached", ""),
        ("if a { return 1 } else { throw 2 }\nprint(2)", "3:1", "this is never reached", ""),
        ("break", "2:1", "break is not inside a loop", ""),
        ("for x in a { think { do { continue } } }", "2:27", "continue is not inside a loop", ""),
        ("var x = self", "2:9", "self cannot stand alone", ""),
        ("self.timestamp", "2:6", "self has no timestamp", "self.session.timestamp"),
        ("self.sesion.id", "2:6", "self has no sesion", "did you mean session?"),
        ("print(self.session.name)", "2:20", "session has no name", ""),
        ("self.session.mailbox.x.recieve().await", "2:24", "a mailbox has no recieve", "did you mean receive?"),
        ("var m = self.session.mailbox.x.receive(1)", "2:9", "receive needs .await", ".await"),
        ("self.delegate([w(1, 2, s)])", "2:1", "delegate needs .await", ".await"),
        ("self.delegate([w]).await", "2:16", "delegate takes called workers, not a function", "w()"),
        ("self.delegate(w(1, 2, s)).await", "2:15", "the argument of delegate must be a list, not a called worker", ""),
        ("w(1, 2, s)", "2:1", "this worker is named but not run", "self.delegate"),
        ("if a = 1 { }", "2:4", "= assigns; a condition compares with ==", "a == 1"),
        ("while (a && (b = 1)) { }", "2:14", "= assigns; a condition compares with ==", "b == 1"),
        ("a == 1", "2:1", "the result of this comparison is not used", "= assigns"),
        ("w = 1", "2:1", "w is a function and cannot be set", ""),
        ("print = 1", "2:1", "print is a builtin and cannot be set", ""),
        ("var x: string = 1", "2:17", "x must be a string, not 1", ""),
        ("var x: int = 1.5", "2:14", "x must be a whole number, not 1.5", ""),
        ('var x: "a" | "b" = "c"', "2:20", 'x must be "a" | "b", not "c"', ""),
        ('var x: [int] = ["a"]', "2:16", "x must be [a whole number], not [a string]", ""),
        ("var x: { k: int } = { }", "2:21", "x: the field k is missing", ""),
        ("var x: { k: int } = { k: 1, l: 2 }", "2:21", "x: there is no field l in it", ""),
        ("b = s", "2:5", "b must be a whole number, not a string", ""),
        ("s - 1", "2:1", "the value beside - must be a number, not a string", ""),
        ("print(s < 1)", "2:7", "< compares two numbers or two strings, not a string and 1", ""),
        ("print([] + 1)", "2:7", "+ adds numbers, joins lists or joins text, not a list and 1", ""),
        ("print(b == s)", "2:7", "this is never true: a whole number is not a string", ""),
        ("print(s.uper())", "2:9", "a string has no uper", "did you mean upper"),
        ("print([1].lenght)", "2:11", "[a whole number] has no lenght", "did you mean length?"),
        ("s()", "2:1", "a string cannot be called", ""),
        ("for x in b { }", "2:10", "for goes through lists, strings and objects, not a whole number", "1...b"),
        ("var { x } = s", "2:5", "{ } takes an object apart, not a string", ""),
        ("var [x, y, z] = [1, 2]", "2:5", "there are only 2 items to take, and 3 are wanted", ""),
        (
            "var [x, y] = self.delegate([w(1, 2, s)]).await",
            "2:5",
            "there are only 1 items to take, and 2 are wanted",
            "",
        ),
        ("w(1, s, s).await", "2:6", "b of w must be a whole number, not a string", ""),
        ("var x: Strng = 1", "2:8", "there is no type Strng", ""),
        ("$ echo # not a comment", "2:8", "# is an ordinary character in a command", ""),
        ("s | 3", "2:5", "| gives a value to a command, $(cmd), or to a function", ""),
        ("$ echo $@{s}", "2:8", "what $@{ } spreads must be a list, not a string", ""),
    ],
)
def test_a_mistake_in_a_worker(code: str, place: str, message: str, hint: str, tmp_path: Path) -> None:
    problems = check(in_worker(code), tmp_path)

    assert f"{place} {message}" in [line[: len(f"{place} {message}")] for line in said(problems)], said(problems)
    found = next(problem for problem in problems if problem.message.startswith(message))
    assert hint in found.hint


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fun f() { }\nfun f() { }\n", "2:5 f is already declared, in line 1"),
        ("export default fun f() { }\ndefault fun g() { }\n", "2:13 there can be only one default, and f already is"),
        ("type T = { a: int, a: int }\n", "1:20 the field a is given twice"),
        ("type A = B\ntype B = A\n", "1:6 the type A refers to itself"),
        ("type int = string\n", "1:6 the type int is already declared"),
        ("trait T: Agnt { }\n", "1:10 there is no trait Agnt to build on"),
        ("trait T { @skil x\nfun x() { } }\n", "1:11 @skil means nothing here"),
        ("trait T { @skill x\nfun x() { }\n@skill x\nfun y() { } }\n", "3:1 there is already a skill x"),
        ("fun f() -> int { if 1 { return 2 } }\n", "1:5 f can end without a value, but must return a whole number"),
        ('fun f() -> int { return "x" }\n', '1:18 the value returned by f must be a whole number, not "x"'),
        (
            "fun f() { return self.session.id }\n",
            "1:18 self belongs to workers, skills and methods: a fun has no session",
        ),
        (
            "trait T { fun f() { } }\nworker w() { print(T) }\n",
            "2:20 T is a trait: its methods are entry points, not values",
        ),
        ("import std.logg\n", "1:8 std has no logg"),
        ("import ./nope\n", "1:10 module not found: nope"),
        ("import ./{helper}\nworker w() { print(helper) }\n", "2:20 helper is a module, not a value"),
        ("import ./{helper}\nworker w() { helper(1) }\n", "2:14 helper is a module and cannot be called"),
        ("import ./{helper}\nworker w() { print(helper.twise(1)) }\n", "2:27 helper exports no twise"),
        ("import ./{helper}\nworker w() { print(helper.hidden()) }\n", "2:27 helper exports no hidden"),
        ("import ./{helper}\nworker w() { print(helper.twice()) }\n", "2:20 helper.twice takes 1 value, here are 0"),
    ],
)
def test_a_mistake_between_declarations_and_files(text: str, found: str, tmp_path: Path) -> None:
    helper = "export default worker helper(m) { return m }\nexport fun twice(s) { return s }\nfun hidden() { }\n"
    problems = check(text, tmp_path, helper=helper)

    assert any(line.startswith(found) for line in said(problems)), said(problems)


@pytest.mark.parametrize(
    "code",
    [
        "if a { var x = 1 } else { var x = 2 }",
        "var x = 1\nif a { var x = 2\nprint(x) }",
        "for x in a { if x { continue }\nbreak }",
        "while true { if a { break } }\nprint(1)",
        "var x = 1\nx = s",
        "var o = {}\no.k = 1\nprint(o.k)",
        'var x = a || throw "none"',
        "var box = self.session.mailbox.jobs\nbox.send(1)\nprint(box.receive(1).await)",
        "var crew = [w(1, 2, s)]\ncrew.push(w(1, 2, s))\nself.delegate(crew).await",
        "print(w(1, 2, s).await)",
        "var x: int | null = null\nx = 3",
        'print(1 + 1.5, "n " + 1, [1] + [2])',
        "print(a.anything.at[0].all())",
        "s | print",
        's > "file"',
        "var p: { k: int, l?: string } = { k: 1 }\nprint(p.k, p?.l)",
        "var t: [string] = think { list }\nfor x in t { print(x.upper()) }",
    ],
)  # fmt: skip
def test_what_is_right_is_not_complained_about(code: str, tmp_path: Path) -> None:
    assert [line for line in said(check(in_worker(code), tmp_path)) if "nobody" not in line] == []


def test_files_that_import_each_other_are_fine(tmp_path: Path) -> None:
    one = "import ./{other}\nexport fun f() { return other.g() }\nworker main() { print(f()) }\n"
    other = "import ./{test}\nexport fun g() { return 1 }\nexport fun h() { return test.f() }\n"

    assert said(check(one, tmp_path, other=other)) == []


def test_faults_of_every_file_are_told_together(tmp_path: Path) -> None:
    problems = check(
        "import ./{helper}\nworker main() { print(x) }\n", tmp_path, helper="export fun f() { return y }\n"
    )

    assert [(Path(p.span.file).name, p.message) for p in problems] == [
        ("helper.pw", "y is not defined"),
        ("test.pw", "x is not defined"),
    ]


def test_a_program_with_errors_is_not_given_out_and_one_with_warnings_is(tmp_path: Path) -> None:
    path = tmp_path / "test.pw"
    path.write_text("worker main() { return 1\nprint(2) }\n")
    program, warnings = checked_program(path)

    assert program.entry.id == "test"
    assert [warning.severity for warning in warnings] == ["warning"]
    path.write_text("worker main() { print(x) }\n")
    with pytest.raises(ProgramProblems, match="x is not defined"):
        checked_program(path)


def test_the_functions_that_the_checks_know_are_those_of_the_runtime() -> None:
    import inspect

    from postroom.lang import runtime
    from postroom.lang.builtins import ANY_NUMBER, BUILTINS

    for name, signature in BUILTINS.items():
        function = getattr(runtime, f"{name}_", None) or getattr(runtime, name)
        params = list(inspect.signature(function).parameters.values())
        many = any(param.kind is param.VAR_POSITIONAL for param in params)
        least = sum(param.default is param.empty for param in params if param.kind is not param.VAR_POSITIONAL)
        assert (signature.least, signature.most == ANY_NUMBER) == (least, many), name


def test_the_members_that_the_checks_know_are_those_of_the_runtime() -> None:
    from postroom.lang.check.members import _GIVES
    from postroom.lang.values.attributes import METHODS

    for kind, gives in _GIVES.items():
        assert set(gives) <= set(METHODS["array" if kind == "list" else kind]), kind
