"""Compiled programs: Python that can be read, and places in it that are those of the source."""

from __future__ import annotations

import ast
import random
import re
import traceback
from pathlib import Path

import pytest
from tests.support import EXAMPLES

from postroom.lang import runtime
from postroom.lang.builtins import BUILTINS
from postroom.lang.check.check import check_file, checked_program
from postroom.lang.compile.compiler import compiled, python_source, tree_of
from postroom.lang.compile.expressions import call_name
from postroom.lang.syntax.parser import parse
from postroom.lang.syntax.problems import ERROR, ProgramProblems
from postroom.lang.syntax.program import parse_file
from postroom.lang.values.raised import Thrown, WrongValue

from .programs import SAMPLES, function_of, postroom, write

PROGRAMS = sorted([*SAMPLES.glob("*.pw"), *(EXAMPLES / "patchwork").glob("*.pw")])


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_every_piece_of_python_has_a_place_in_the_source(path: Path) -> None:
    module = parse_file(path)
    lines = path.read_text(encoding="utf-8").splitlines()

    for node in ast.walk(tree_of(module)):
        if "lineno" in node._attributes:
            assert 1 <= node.lineno <= node.end_lineno <= len(lines) + 1  # type: ignore[attr-defined]
    assert compiled(module, str(path)).co_filename == str(path)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_what_is_printed_is_python_and_calls_the_runtime_alone(path: Path) -> None:
    source = python_source(parse_file(path))

    tree = ast.parse(source)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pw"
    }
    imported = [
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom | ast.Import) for alias in node.names
    ]
    assert imported == ["runtime"]
    assert [name for name in used if not hasattr(runtime, name)] == []


def test_every_function_that_the_checks_know_is_there() -> None:
    for name in BUILTINS:
        made = call_name(name)
        assert isinstance(made, ast.Attribute)
        assert callable(getattr(runtime, made.attr))


def test_an_error_points_at_its_line_and_column_also_behind_wide_characters(tmp_path: Path) -> None:
    main = function_of(tmp_path, 'fun main(x) {\n    var a = "漢字 🎈"\n    return "ü" + x.fehlt.und\n}\n')

    with pytest.raises(WrongValue) as caught:
        main({"da": 1})

    place = caught.value.place
    assert place is not None
    assert (Path(place.file).parent, place.line, place.column, place.function) == (tmp_path, 3, 18, "main")


def test_a_traceback_shows_the_source_and_ends_in_the_program(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun inner(x) {
            return x.field
        }
        fun main() {
            return inner(null)
        }
        """,
    )

    with pytest.raises(WrongValue) as caught:
        main()

    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [(frame.lineno, frame.line) for frame in frames if frame.filename.endswith(".pw")]
    assert ours == [(6, "return inner(null)"), (3, "return x.field")]
    assert frames[-1].filename.endswith(".pw")


def test_whatever_is_thrown_keeps_its_value_type_and_line(tmp_path: Path) -> None:
    for text, value, kind in (
        ('"früh"', "früh", "string"),
        ("{ code: 1 }", {"code": 1}, "object"),
        ("[1, 2.0]", [1, 2], "array"),
        ("null", None, "null"),
        ("false", False, "boolean"),
        ("42", 42, "number"),
    ):
        with pytest.raises(Thrown) as caught:
            function_of(tmp_path, f"fun main() {{\n    throw {text}\n}}\n")()
        error = caught.value
        assert (error.value, error.type, error.place and error.place.line) == (value, kind, 2)


def test_what_is_caught_can_be_looked_at_and_thrown_again(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun fails() { throw { code: 7 } }
        fun main() {
            var seen = []
            try { fails() } catch e { seen.push([e.message, e.kind, e.type, e.value, e.line, "$e"]) }
            try { try { fails() } catch e { throw e } } catch again { seen.push(again.value.code) }
            try { var x = null || throw "in an expression" } catch e { seen.push(e.message) }
            try { 1 + null } catch { seen.push("no name") }
            return seen
        }
        """,
    )

    message = '{"code": 7}'
    assert main() == [[message, "Thrown", "object", {"code": 7}, 2, message], 7, "in an expression", "no name"]


def test_steps_and_late_commands_set_the_names_around_them(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun main() {
            var n = 0
            if ($ true && test ${n++} = 0) { n = n + 10 }
            if ($ false && test ${n++} = 0) { n = n + 100 }
            return n
        }
        """,
    )

    assert main() == 11


def test_deep_programs_compile(tmp_path: Path) -> None:
    depth = 60
    text = "fun main() { return " + "(" * depth + "1" + " + 1)" * depth + " }\n"
    nested = "fun main(x) { " + "if x { " * 15 + "return 1" + " }" * 15 + " }\n"

    assert function_of(tmp_path, text)() == depth + 1
    assert function_of(tmp_path, nested)(True) == 1


def test_what_python_cannot_nest_is_a_problem_with_its_line(tmp_path: Path) -> None:
    text = "fun main() {\n" + "while true {\n" * 30 + "}" * 30 + "\n}\n"

    with pytest.raises(ProgramProblems, match="too many statically nested blocks") as caught:
        compiled(parse(text, "deep.pw"), "deep.pw")

    assert caught.value.problems[0].span.line > 15


@pytest.mark.parametrize(
    ("opening", "closing", "most"),
    [
        ("while x {", "}", 20),
        ("for var y in x {", "}", 20),
        ("try {", "} catch e { }", 19),
        ("try { } catch {", "}", 10),
        ("if x { while x {", "} }", 20),
    ],
)
def test_what_python_cannot_nest_is_told_by_the_checks(opening: str, closing: str, most: int, tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        return "fun main(x) {\n" + f"{opening} " * depth + f"{closing} " * depth + "\n}\n"

    assert [problem for problem in check_file(write(tmp_path, nested(most))) if problem.severity == ERROR] == []
    compiled(parse(nested(most), "deep.pw"), "deep.pw")
    error = check_file(write(tmp_path, nested(most + 1)))[0]
    assert (error.severity, error.code, error.span.line, error.span.text) == (ERROR, "nesting", 2, "{")


def test_a_step_of_a_prompt_may_nest_as_deep_as_what_is_around_it(tmp_path: Path) -> None:
    inner = "while true { " * 20 + "} " * 20
    text = "fun main() { " + "while true { " * 20 + f"think {{ x do {{ {inner} }} }} " + "} " * 20 + "}\n"

    assert check_file(write(tmp_path, text)) == []
    compiled(parse(text, "deep.pw"), "deep.pw")


@pytest.mark.slow
def test_whatever_is_checked_without_an_error_compiles(tmp_path: Path) -> None:
    """Programs with lines and words left out, doubled and exchanged."""
    seed = 20261115
    print(f"seed {seed}")
    chance = random.Random(seed)
    fine = 0
    for _ in range(300):
        text = mutated(chance.choice(PROGRAMS).read_text(encoding="utf-8"), chance)
        path = write(tmp_path, "", "mutant.pw")
        path.write_text(text, encoding="utf-8")
        try:
            program, _ = checked_program(path)
        except ProgramProblems:
            continue
        compiled(program.entry.module, str(path))
        ast.parse(python_source(program.entry.module))
        fine += 1
    assert fine > 30


def mutated(text: str, chance: random.Random) -> str:
    """The text with one to three lines or words moved, doubled or dropped."""
    for _ in range(chance.randrange(1, 4)):
        parts = text.splitlines(keepends=True) if chance.random() < 0.6 else re.split(r"(\W)", text)
        place, other = chance.randrange(len(parts)), chance.randrange(len(parts))
        how = chance.randrange(3)
        if how == 0:
            parts[place] = ""
        elif how == 1:
            parts.insert(other, parts[place])
        else:
            parts[place], parts[other] = parts[other], parts[place]
        text = "".join(parts)
    return text


def test_a_bare_blocks_last_value_is_the_result_also_out_of_a_branch(tmp_path: Path) -> None:
    program = write(tmp_path, '{\n  var x = 3\n  if x > 2 { "big" } else { "small" }\n}\n')

    assert postroom("run", program, cwd=tmp_path).out == "big\n"


@pytest.mark.parametrize(("block", "said"), [("a > 2", "true"), ("2 < a", "true"), ("if a { a > 7 }", "false")])
def test_a_comparison_that_looks_like_writing_to_a_file_is_a_blocks_value_too(
    block: str, said: str, tmp_path: Path
) -> None:
    program = write(tmp_path, f"{{\n  var a = 3\n  {block}\n}}\n")

    assert postroom("run", program, cwd=tmp_path).out == f"{said}\n"


def test_a_name_with_two_underscores_is_a_name_like_any_other_also_in_a_trait(tmp_path: Path) -> None:
    text = """
        fun __help(x) { return x + 1 }
        fun _pw__help(x) { return x + 10 }
        fun __file__() { return 100 }
        export default trait T: Agent {
            @skill go
            fun __go(__n: int) {
                var __x = __help(__n)
                if true { var __x = _pw__help(__n); __n = __x }
                return [__x, __n, __file__()]
            }
        }
        """

    assert postroom("run", write(tmp_path, text), "go", "__n=1", "--json", cwd=tmp_path).result == [2, 11, 100]


def test_readable_python(tmp_path: Path) -> None:
    text = 'worker a(n) {\n    self.session.mailbox.jobs.send({ n })\n    if n > 1 { return $(echo "${n}"..x) }\n}\n'

    assert python_source(parse(text, "a.pw")) == (
        '"""Compiled from a.pw."""\n'
        "from postroom.lang import runtime as pw\n\n"
        "@pw.worker\n"
        "def a(self, n):\n"
        "    self.session.mailbox['jobs'].send({'n': n})\n"
        "    if pw.more(n, 1):\n"
        "        return pw.capture(pw.command(['echo', pw.word(n, '..x')]))\n"
    )
