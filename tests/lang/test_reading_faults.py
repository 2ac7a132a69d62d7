"""Faults of the first implementation of this language, one test each: lexing, parsing, checking, imports, messages.

What concerns running programs is tested where they run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.lang.check.check import check_file
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.parser import parse
from postroom.lang.syntax.problems import ProgramProblems, SyntaxProblems

from .programs import load_program
from .test_check import check, in_worker, said
from .test_parser import body_of, command_of, parts_of, prompt_of, value_of, words_of


def fine(code: str, folder: Path) -> None:
    assert said(check(in_worker(code), folder)) == []


# ---------------------------------------------------------------- lexing


def test_an_unquoted_value_in_a_command_is_the_value_and_not_a_name_with_braces() -> None:
    assert words_of("cat ${task.target} $dir/file") == [
        [("open", "cat")],
        [("value", "task.target")],
        [("value", "dir"), ("open", "/file")],
    ]


def test_parentheses_nest_inside_a_string_s_expression_and_inside_commands() -> None:
    assert parts_of('"$(f((1), g(2))) x"') == ["<f((1), g(2))>", " x"]
    node = value_of("f($(echo $(date)), (1))")
    assert isinstance(node, n.Call)
    assert len(node.args) == 2


def test_a_call_whose_first_argument_is_a_command_s_output_is_a_call() -> None:
    node = value_of("log($(date))")

    assert isinstance(node, n.Call)
    assert isinstance(node.args[0], n.ShellExpr)
    assert node.args[0].mode == "capture"


def test_a_string_that_ends_in_a_backslash_ends() -> None:
    assert parts_of(r'"C:\\"') == ["C:\\"]


def test_fractions_are_numbers() -> None:
    fraction = value_of("1.5")

    assert isinstance(fraction, n.Literal)
    assert fraction.value == 1.5


def test_single_quotes_are_strings() -> None:
    assert parts_of("'a'") == ["a"]


def test_text_that_is_not_ascii_moves_no_place() -> None:
    with pytest.raises(SyntaxProblems) as caught:
        parse('worker w() {\n    var s = "äöü 名前" +\n}\n', "test.pw")

    problem = caught.value.problems[0]
    assert (problem.span.line, problem.span.column) == (3, 1)


def test_flags_with_values_environment_and_line_continuation_are_commands() -> None:
    assert [word.span.text for word in _words("A=b cmd --flag=value \\\n  more")] == ["cmd", "--flag=value", "more"]


def _words(code: str) -> list[n.ShellWord]:
    command = command_of(code)
    assert isinstance(command, n.ShellCommand)
    return command.words


# ---------------------------------------------------------------- parsing


@pytest.mark.parametrize(
    "code",
    [
        "if a { } else if b { }",
        "if a { }\nelse { }",
        "while a < 3 { }",
        "f(1, 2,)",
        "var l = [1,]",
        "var o = { a, }",
        "var x = a <= 1 && b >= 2 && c % 2 == 0",
        "try { } catch e { }",
        "for x in l { continue }",
        "var y = a ||\n b",
        "var [a, [b, c]] = l",
        "var r = 1...3",
        "$ cmd > a 2> b < c",
        '$ "${tool}" x',
        "var z = null",
    ],
)  # fmt: skip
def test_what_only_the_editor_s_grammar_knew_is_read(code: str) -> None:
    assert body_of(code)


def test_a_function_may_say_what_it_gives() -> None:
    assert parse("fun f(a) -> int { return a }\n", "test.pw").items


def test_a_syntax_error_inside_a_prompt_is_an_error_and_not_the_word_do() -> None:
    with pytest.raises(SyntaxProblems, match="expected"):
        body_of("think {\n  do {\n    var = 1\n  }\n}")


def test_adjacent_parts_of_a_word_stay_one_word() -> None:
    assert words_of('git log "${base}"..HEAD')[2] == [("value", "base"), ("open", "..HEAD")]


def test_quotes_keep_their_spaces() -> None:
    assert words_of('echo "a   b"') == [[("open", "echo")], [("quoted", "a   b")]]


def test_a_pipe_of_three_is_one_pipeline() -> None:
    pipeline = command_of("a | b | c")

    assert isinstance(pipeline, n.ShellPipeline)
    assert len(pipeline.commands) == 3


def test_a_prompt_keeps_lines_and_adds_no_spaces() -> None:
    assert prompt_of("think {\n    a ${x}with\n      more\n}") == ["a ", "<x>", "with\n  more"]


def test_a_program_may_have_functions_beside_its_bare_block() -> None:
    module = parse("{ f() }\nfun f() { return 1 }\n", "test.pw")

    assert module.body is not None
    assert len(module.items) == 1


# ---------------------------------------------------------------- checking


def test_every_error_has_a_place_and_the_first_does_not_stop_the_rest(tmp_path: Path) -> None:
    problems = check(in_worker("print(x)\nprint(y)\nprint(z)"), tmp_path)

    assert [(p.span.line, p.span.column) for p in problems] == [(2, 7), (3, 7), (4, 7)]


def test_branches_and_loops_are_scopes(tmp_path: Path) -> None:
    fine("if a { var x = 1 } else { var x = 2 }\nwhile a { var x = 3 }", tmp_path)
    assert said(check(in_worker("while a { var x = 3 }\nprint(x)"), tmp_path)) == ["3:7 x is not defined"]


def test_unknown_names_inside_strings_prompts_and_commands_are_found(tmp_path: Path) -> None:
    problems = check(in_worker('print("$p")\nthink { ${q} }\n$ echo $r "${t}"'), tmp_path)

    assert [problem.message for problem in problems] == [f"{name} is not defined" for name in "pqrt"]


def test_an_imported_module_is_known_where_it_is_used(tmp_path: Path) -> None:
    text = 'import ./{helper}\nimport std.log\nworker main() { log(helper.twice("a")) }\n'

    assert said(check(text, tmp_path, helper="export fun twice(s) { return s + s }\n")) == []


def test_targets_of_redirections_are_words_and_not_names(tmp_path: Path) -> None:
    fine("$ echo a > out.txt\n$ echo b 2>&1\nprint($?)", tmp_path)


def test_a_program_s_own_function_may_have_a_builtin_s_name(tmp_path: Path) -> None:
    assert said(check("import std.cat\nfun print(x) { return x }\nworker w() { print(cat(1)) }\n", tmp_path)) == []


def test_prompts_stand_in_methods_too(tmp_path: Path) -> None:
    assert said(check("export trait T: Agent { @skill x\nfun x() { return think { hello } } }\n", tmp_path)) == []


def test_steps_ranges_pipes_nested_patterns_and_deep_values_in_prompts_are_allowed(tmp_path: Path) -> None:
    fine(
        "var [x, [y, _]] = a\nfor i in 1...3 { print(i) }\nprint(s | $(sort))\n"
        "think { ${a.b[0].c.upper()} ${$(ls)} ${x + y} do { $ make } }",
        tmp_path,
    )


def test_written_types_are_looked_at(tmp_path: Path) -> None:
    assert said(check(in_worker("var x: Nope = 1"), tmp_path)) == ["2:8 there is no type Nope"]
    assert said(check(in_worker('var x: int = "a"'), tmp_path)) == ['2:14 x must be a whole number, not "a"']


def test_adding_text_gives_text(tmp_path: Path) -> None:
    fine('var x: string = "a" + 1\nprint(x.upper())', tmp_path)


def test_a_condition_that_assigns_is_an_error(tmp_path: Path) -> None:
    assert said(check(in_worker('if a = "b" { }'), tmp_path)) == ["2:4 = assigns; a condition compares with =="]


def test_receiving_without_await_is_an_error(tmp_path: Path) -> None:
    code = "self.session.mailbox.a.send(1)\nvar m = self.session.mailbox.a.receive()"

    assert said(check(in_worker(code), tmp_path)) == ["3:9 receive needs .await"]


def test_mailboxes_may_have_any_name(tmp_path: Path) -> None:
    for name in ("session", "mailboxes", "constructor", "toString", "default", "type"):
        fine(f"self.session.mailbox.{name}.send(1)\nprint(self.session.mailbox.{name}.receive().await)", tmp_path)


def test_what_is_not_exported_cannot_be_used(tmp_path: Path) -> None:
    problems = check("import ./{h}\nworker w() { h.f() }\n", tmp_path, h="fun f() { return 1 }\n")

    assert said(problems) == ["2:16 h exports no f"]
    assert "export" in problems[0].hint


def test_imports_may_go_round(tmp_path: Path) -> None:
    (tmp_path / "a.pw").write_text("import ./{b}\nexport fun f() { return b.g() }\n")
    (tmp_path / "b.pw").write_text("import ./{a}\nexport fun g() { return 1 }\nexport fun h() { return a.f() }\n")

    program = load_program(tmp_path / "a.pw")

    assert sorted(module.id for module in program.modules) == ["a", "b"]
    assert check_file(tmp_path / "a.pw") == []


def test_a_single_relative_import_and_a_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo" / "bar.pw").write_text("export fun f() { return 1 }\n")
    (tmp_path / "main.pw").write_text("import foo.bar\nimport ./helper\nworker main() { print(bar.f(), helper.g()) }\n")
    (tmp_path / "helper.pw").write_text("export fun g() { return 2 }\n")

    assert check_file(tmp_path / "main.pw") == []


def test_a_module_that_is_not_there_is_told_at_its_import(tmp_path: Path) -> None:
    (tmp_path / "main.pw").write_text("import ./{helpr}\n")
    (tmp_path / "helper.pw").write_text("")

    with pytest.raises(ProgramProblems) as caught:
        load_program(tmp_path / "main.pw")

    problem = caught.value.problems[0]
    assert (problem.span.line, problem.span.column, problem.hint) == (1, 11, "did you mean helper?")


def test_the_word_import_in_a_text_imports_nothing(tmp_path: Path) -> None:
    fine('print("import ./{nothing} ")', tmp_path)


def test_a_run_of_comments_far_above_is_not_a_description() -> None:
    trait = parse("# far\n\nexport trait T {\n    # near\n    @skill x\n    fun x() { }\n}\n", "test.pw").items[0]

    assert isinstance(trait, n.Trait)
    assert (trait.doc, trait.methods[0].doc) == ("", "near")
