"""Faults that the first implementation of this language had when programs ran, each held here under its name.

Faults of reading and checking programs are in test_reading_faults.py, those of sessions in tests/sessions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postroom.lang.compile.import_hook import load_program_module
from postroom.lang.compile.plugin import build_plugin
from postroom.lang.run import prompts
from postroom.lang.run.context import Context, Settings
from postroom.lang.runtime import run_in
from postroom.lang.values.raised import CommandFailed, Thrown

from .programs import SAMPLES, function_of, load_program, postroom, value_of, write

# Commands


def test_an_interpolated_value_does_not_run_as_a_command(tmp_path: Path) -> None:
    assert function_of(tmp_path, "fun main(x) { return $(echo hi ${x}) }\n")("; echo INJECTED") == "hi ; echo INJECTED"


def test_double_quotes_in_a_command_are_not_dropped(tmp_path: Path) -> None:
    assert value_of(tmp_path, '$(echo "a   b")') == "a   b"


def test_adjacent_parts_of_a_word_stay_one_word(tmp_path: Path) -> None:
    assert value_of(tmp_path, "$(printf '<%s>' \"${a}\"..HEAD)", "base") == "<base..HEAD>"


def test_a_pipeline_of_three_is_one_pipeline(tmp_path: Path) -> None:
    assert value_of(tmp_path, "$(printf 'b\\na\\nb\\n' | sort | uniq -c | wc -l)").strip() == "2"


def test_a_pipeline_can_be_captured(tmp_path: Path) -> None:
    assert value_of(tmp_path, "$(echo hi | tr h H)") == "Hi"


def test_standard_error_can_be_sent_where_standard_output_goes(tmp_path: Path) -> None:
    assert value_of(tmp_path, "$(sh -c 'echo e >&2' 2>&1)") == "e"


def test_a_tested_command_gives_true_or_false_and_never_throws(tmp_path: Path) -> None:
    assert value_of(tmp_path, "[($ true), ($ false), !($ false)]") == [True, False, True]


def test_a_command_may_have_several_redirections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function_of(tmp_path, "fun main() { $ sh -c 'cat; echo e >&2' < in > out 2> err }\n", "main")
    (tmp_path / "in").write_text("i\n")

    function_of(tmp_path, "fun main() { $ sh -c 'cat; echo e >&2' < in > out 2> err }\n")()

    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("i\n", "e\n")


def test_listing_files_gives_text_whatever_its_arguments_are(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")

    assert value_of(tmp_path, "$(ls -1 ${a}/x)", str(tmp_path)) == f"{tmp_path}/x"


def test_a_failing_command_tells_its_complaint_also_when_its_output_is_not_captured(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="exit code 3: because"):
        function_of(tmp_path, "fun main() { $ sh -c 'echo because >&2; exit 3' }\n")()


def test_flags_with_values_and_variables_before_a_command_are_read(tmp_path: Path) -> None:
    assert value_of(tmp_path, "$(A=b sh -c 'echo $A $1' - --flag=value)") == "b --flag=value"


def test_a_value_is_written_to_a_file_and_not_compared_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function_of(tmp_path, 'fun main() { cat({ a: 1 }) > "state.json" }\n')()

    assert json.loads((tmp_path / "state.json").read_text()) == {"a": 1}


# Functions and statements


def test_functions_of_the_program_can_be_called(tmp_path: Path) -> None:
    assert function_of(tmp_path, "fun f(n) { return n + 1 }\nfun main() { return f(f(1)) }\n")() == 3


def test_return_returns_out_of_loops_and_branches(tmp_path: Path) -> None:
    assert function_of(tmp_path, "fun main() { for var i in 1...9 { if i == 3 { return i } }; return 0 }\n")() == 3


def test_break_ends_a_loop(tmp_path: Path) -> None:
    text = "fun main() { var n = 0; while true { n++; if n == 4 { break } }; return n }\n"

    assert function_of(tmp_path, text)() == 4


def test_increments_count_and_give_the_value_before(tmp_path: Path) -> None:
    assert function_of(tmp_path, "fun main() { var n = 1; var a = n++; var b = n--; return [a, b, n] }\n")() == [
        1,
        2,
        1,
    ]


def test_fields_and_items_can_be_assigned(tmp_path: Path) -> None:
    assert function_of(tmp_path, "fun main() { var o = { l: [1] }; o.l[0] = 2; o.n = 3; return o }\n")() == {
        "l": [2],
        "n": 3,
    }


def test_and_and_or_stop_early_and_give_a_side(tmp_path: Path) -> None:
    text = 'fun boom() { throw "evaluated" }\nfun main() { return ["x" || boom(), null && boom()] }\n'

    assert function_of(tmp_path, text)() == ["x", None]


def test_succeed_ends_the_function(tmp_path: Path) -> None:
    assert function_of(tmp_path, 'fun main() { if true { succeed }\n throw "went on" }\n')() is None


def test_a_thrown_object_is_not_made_a_string(tmp_path: Path) -> None:
    with pytest.raises(Thrown) as caught:
        function_of(tmp_path, "fun main() { throw { code: 500 } }\n")()

    assert caught.value.value == {"code": 500}


def test_names_of_a_block_are_gone_after_an_error_in_it(tmp_path: Path) -> None:
    text = 'fun main() { var x = 1; for var i in [1] { try { var x = 2; throw "e" } catch e { } }; return x }\n'

    assert function_of(tmp_path, text)() == 1


def test_a_variable_may_be_declared_in_both_branches(tmp_path: Path) -> None:
    text = "fun main(a) { var r = 0; if a { var x = 1; r = x } else { var x = 2; r = x }; return r }\n"

    assert [function_of(tmp_path, text)(flag) for flag in (True, False)] == [1, 2]


def test_ranges_and_nested_patterns_and_pipes_compile(tmp_path: Path) -> None:
    text = "fun main() { var [a, [b, _]] = [1...2, [3, 4]]; return [a, b, a | len] }\n"

    assert function_of(tmp_path, text)() == [[1, 2], 3, 2]


def test_a_pipe_gives_what_is_left_of_it(tmp_path: Path) -> None:
    assert value_of(tmp_path, '"b\\na\\n" | $(sort)') == "a\nb"


def test_objects_are_equal_by_content_and_never_shown_as_object_object(tmp_path: Path) -> None:
    assert value_of(tmp_path, '[{ a: 1 } == { a: 1 }, "${{ a: 1 }}"]') == [True, '{"a": 1}']


def test_a_string_may_end_in_a_backslash(tmp_path: Path) -> None:
    assert value_of(tmp_path, '"a\\\\" + "b"') == "a\\b"


def test_escapes_are_resolved(tmp_path: Path) -> None:
    assert value_of(tmp_path, '"\\n\\t\\r\\\\\\"\\$"') == '\n\t\r\\"$'


def test_places_are_right_behind_text_that_is_not_ascii(tmp_path: Path) -> None:
    with pytest.raises(Thrown) as caught:
        function_of(tmp_path, 'fun main() { var x = "🎈ü漢"; throw x }\n')()

    assert caught.value.place is not None
    assert caught.value.place.column == 29


# Prompts


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Prompts are answered with "fine", and kept here."""
    kept: list[tuple[str, str]] = []

    def answer(context: Context, kind: str, prompt: str, get: object) -> str:
        kept.append((kind, prompt))
        return "fine"

    monkeypatch.setattr(prompts, "_answered", answer)
    return kept


def test_prompts_keep_their_lines_and_spaces(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    function_of(tmp_path, "fun main(n) {\n    think {\n        Dear ${n} with\n          two  spaces\n    }\n}\n")(
        "Ada"
    )

    assert asked == [("think", "Dear Ada with\n  two  spaces")]


def test_calls_commands_and_steps_may_stand_in_a_prompt(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    text = 'fun f(x) { return x + 1 }\nfun main() { var n = 1; return think { ${f(n)} ${n++} ${$(echo out)} ${"x".upper()} } }\n'

    assert function_of(tmp_path, text)() == "fine"
    assert asked == [("think", "2 1 out X")]


def test_prompts_may_stand_in_functions_and_in_methods(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    path = write(
        tmp_path, "fun f() { return think { a } }\ntrait T: Agent { @skill fun go() { return [f(), ask { b }] } }\n"
    )

    result = run_in(Context("main", Settings()), load_program_module(path).T.go)

    assert result == ["fine", "fine"]
    assert asked == [("think", "a"), ("ask", "b")]


@pytest.mark.slow
def test_the_session_may_stand_in_a_prompt(tmp_path: Path) -> None:
    program = write(tmp_path, "worker main() { return think { Session ${self.session.id}! } }\n")
    ran = postroom("run", program, "--model", "mock", "--record", "t.jsonl", cwd=tmp_path)

    assert ran.code == 0
    prompt = json.loads((tmp_path / "t.jsonl").read_text())["prompt"]
    assert prompt.startswith("Session 20") and prompt.endswith("!")


@pytest.mark.slow
def test_prompts_of_workers_side_by_side_get_their_own_answers(tmp_path: Path) -> None:
    lines = [{"worker": f"w-{n}", "kind": "think", "prompt": f"number {n}", "answer": f"answer {n}"} for n in (3, 1, 2)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    program = write(
        tmp_path,
        "worker w(n) { return think { number $n } }\nworker main() { return self.delegate([w(1), w(2), w(3)]).await }\n",
    )

    result = postroom("run", program, "--replay", "t.jsonl", "--json", cwd=tmp_path).result
    assert result == ["answer 1", "answer 2", "answer 3"]


@pytest.mark.slow
def test_what_programs_and_commands_print_never_mixes_with_the_result(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import std.log
        worker noisy() { print("{\\"result\\": 1}"); log("logged"); $ echo '{"result": 2}'
            return 3 }
        worker main() { print("{\\"result\\": 4}"); return self.delegate([noisy()]).await }
        """,
    )
    ran = postroom("run", program, "--json", cwd=tmp_path)

    assert ran.result == [3]
    assert "logged" in ran.err


@pytest.mark.slow
def test_a_question_after_the_end_of_the_input_does_not_hang(tmp_path: Path) -> None:
    program = write(tmp_path, "worker main() { try { ask { a } } catch e { }\n    return ask { b } }\n")

    ran = postroom("run", program, cwd=tmp_path)

    assert (ran.code, "standard input has ended" in ran.err) == (1, True)


# Workers, modules, plugins


@pytest.mark.slow
def test_workers_run_in_processes_of_their_own(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "worker pid() { return $(sh -c 'echo $PPID') }\n"
        "worker main() { return self.delegate([pid(), pid()]).await + [$(sh -c 'echo $PPID')] }\n",
    )

    assert len(set(postroom("run", program, "--json", cwd=tmp_path).result)) == 3


@pytest.mark.slow
def test_a_second_delegate_still_fails_together(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        worker fine() { return 1 }
        worker boom() { throw "second" }
        worker waits() { return self.session.mailbox.m.receive(60000).await }
        worker main() {
            self.delegate([fine(), fine()]).await
            self.delegate([waits(), boom()]).await
        }
        """,
    )
    ran = postroom("run", program, cwd=tmp_path)

    assert (ran.code, "worker boom raised Thrown: second (program.pw:3)" in ran.err) == (5, True)


def test_a_default_traits_method_can_be_started_by_its_name(tmp_path: Path) -> None:
    program = write(tmp_path, "export default trait T: Agent {\n    @skill start\n    fun go() { return 1 }\n}\n")

    for name in ("go", "start", "T.go"):
        assert postroom("run", program, name, cwd=tmp_path).out == "1\n"


def test_a_plugin_needs_no_export_and_brings_its_modules(tmp_path: Path) -> None:
    write(tmp_path, "export fun f() { return 1 }\n", "helper.pw")
    program = write(
        tmp_path, "import ./{helper}\nimport std.log\n# Says.\ntrait T: Agent { @skill fun go() { log(helper.f()) } }\n"
    )

    build_plugin(load_program(program), tmp_path / "plugin")

    there = {path.name: path.read_text() for path in (tmp_path / "plugin" / "program").iterdir()}
    assert sorted(there) == ["helper.pw", "program.pw"]
    assert 'description: "Says."' in (tmp_path / "plugin" / "skills" / "go" / "SKILL.md").read_text()


@pytest.mark.slow
def test_the_plugins_skill_calls_what_there_is(tmp_path: Path) -> None:
    """The command in the skill's text is run as it stands, with values for the dots."""
    build_plugin(load_program(SAMPLES / "06_plugin.pw"), tmp_path / "plugin")
    skill = (tmp_path / "plugin" / "skills" / "run" / "SKILL.md").read_text()
    line = next(line for line in skill.splitlines() if "CLAUDE_PLUGIN_ROOT" in line).replace("'...'", "1")
    import shlex
    import subprocess
    import sys

    from .programs import PATIENCE_S, environment

    starter = tmp_path / "postroom"
    starter.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m postroom "$@"\n')
    starter.chmod(0o755)
    words = [word.replace("${CLAUDE_PLUGIN_ROOT}", str(tmp_path / "plugin")) for word in shlex.split(line)]
    done = subprocess.run(
        words, env=environment(POSTROOM=str(starter)), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "drained")


def test_importing_std_log_works_beside_everything_else(tmp_path: Path, capsys: Any) -> None:
    function_of(tmp_path, 'import std.log\nfun main() { log("a", 1, [2]); print("b") }\n')()

    assert capsys.readouterr() == ("b\n", "a 1 2\n")
