"""Prompts: what the model and the person get to read, and what a program gets back."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.lang.compile.import_hook import load_program_module
from postroom.lang.run import human, prompts
from postroom.lang.run.context import Context, Settings, enter
from postroom.lang.runtime import run_in
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.parser import parse
from postroom.lang.values.raised import NoAnswer
from postroom.lang.values.schemas import from_text, said, schema_of
from postroom.room import open_room

from .programs import PATIENCE_S, command, environment, postroom, write

Answers = Callable[..., list[dict[str, str]]]


class Conversation:
    """Runs programs whose prompts are answered from a list, and keeps what was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.asked: list[tuple[str, str]] = []
        self.schemas: list[Any] = []

    def run(self, body: str, answers: list[str], *given: Any, types: str = "") -> Any:
        left = list(answers)

        def answer(context: Context, kind: str, prompt: str, get: object) -> str:
            self.asked.append((kind, prompt))
            return left.pop(0)

        self._monkeypatch.setattr(prompts, "_answered", answer)
        names = ", ".join("abc"[: len(given)])
        path = write(
            self._folder, f"{types}\nworker main({names}) {{\n{body}\n}}\n", f"p{len(self.asked)}-{id(body)}.pw"
        )
        main: Any = load_program_module(path).main
        result = run_in(Context("main", Settings()), main.body, *given)
        assert left == []
        return result

    @property
    def prompts(self) -> list[str]:
        return [prompt for _, prompt in self.asked]


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conversation:
    return Conversation(tmp_path, monkeypatch)


def test_a_prompt_keeps_its_lines_and_loses_the_indentation_that_all_have(talk: Conversation) -> None:
    body = """
        return think {
            Review this:
              - first ${a}
              - second, with { braces } and $'$'5

            Thanks, ${a}.
        }
    """

    assert talk.run(body, [" fine \n"], "x\ny") == "fine"
    assert talk.prompts == ["Review this:\n  - first x\ny\n  - second, with { braces } and $5\n\nThanks, x\ny."]


def test_interpolation_adds_no_spaces(talk: Conversation) -> None:
    talk.run("think { a${a}b$a,(${a}) $@{[1, 2]}! $'{'$a$'}' }", ["x"], "V")

    assert talk.prompts == ["aVbV,(V) 1, 2! {V}"]


def test_the_session_and_commands_and_calls_may_stand_in_a_prompt(talk: Conversation) -> None:
    talk.run('think { ${[1, 2].join("-")} ${$(echo out)} ${a[0].name} ${a.length + 1} }', ["x"], [{"name": "n"}])

    assert talk.prompts == ["1-2 out n 2"]


def test_a_fence_around_all_of_an_answer_is_taken_off(talk: Conversation) -> None:
    assert talk.run("return think { x }", ["```text\n  kept\n```\n"]) == "  kept"


@pytest.mark.parametrize("nothing", ["", "  \n"])
def test_ask_is_asked_when_think_gave_nothing(nothing: str, talk: Conversation) -> None:
    assert talk.run("return think { t } || ask { q }", [nothing, "answer"]) == "answer"
    assert talk.asked == [("think", "t"), ("ask", "q")]


def test_ask_is_not_asked_when_think_gave_something(talk: Conversation) -> None:
    assert talk.run("return think { t } || ask { q }", ["0"]) == "0"


TYPES = 'type Plan = { steps: [string], risk: "low" | "high", hours?: number }'


@pytest.mark.parametrize(
    "answer",
    [
        '{"steps": ["a"], "risk": "low"}',
        '```json\n{"steps": ["a"], "risk": "low"}\n```',
        'Here it is:\n```json\n{"steps": ["a"], "risk": "low"}\n```\nGood luck!',
    ],
)
def test_a_typed_prompt_gives_a_value_of_that_shape(answer: str, talk: Conversation) -> None:
    result = talk.run("var plan: Plan = think { Plan it }\nreturn plan", [answer], types=TYPES)

    assert result == {"steps": ["a"], "risk": "low"}
    (prompt,) = talk.prompts
    schema = json.loads(prompt.splitlines()[-1])
    assert schema["required"] == ["steps", "risk"]
    assert schema["properties"]["risk"] == {"enum": ["low", "high"]}


def test_an_answer_that_does_not_fit_is_sent_back_once_with_what_is_wrong(talk: Conversation) -> None:
    answers = ['{"steps": "a", "risk": "none"}', '{"steps": [], "risk": "low"}']

    assert talk.run("var p: Plan = think { x }\nreturn p.risk", answers, types=TYPES) == "low"
    assert 'steps must be a list, each item a string, not the string "a"' in talk.prompts[1]
    assert 'risk must be "low" or "high", not the string "none"' in talk.prompts[1]


def test_after_two_answers_that_do_not_fit_it_is_an_error_with_the_line(talk: Conversation) -> None:
    with pytest.raises(NoAnswer, match="not an object with steps, risk, hours: this is not JSON") as caught:
        talk.run("\nvar p: Plan = think { x }", ["no", "still no"], types=TYPES)

    assert caught.value.place is not None and caught.value.place.line == 4


@pytest.mark.parametrize(
    ("type", "answer", "value"),
    [
        ("string", "plain text", "plain text"),
        ("number", " 4.5\n", 4.5),
        ("int", "4", 4),
        ("bool", "true", True),
        ("[string]", '["a"]', ["a"]),
        ('"yes" | "no"', "yes", "yes"),
        ('"yes" | "no"', '"no"', "no"),
        ("string | null", "null", None),
        ("any", "text", "text"),
    ],
)
def test_answers_are_read_as_their_type_says(type: str, answer: str, value: Any, talk: Conversation) -> None:
    assert talk.run(f"var x: {type} = think {{ q }}\nreturn x", [answer]) == value


TREE = "type Tree = { name: string, children: [Tree] }"


def test_a_type_that_has_itself_inside_is_held_against_at_any_depth(talk: Conversation) -> None:
    leaf = {"name": "leaf", "children": []}
    good = {"name": "root", "children": [leaf, {"name": "branch", "children": [leaf]}]}
    bad = {"name": "root", "children": [leaf, {"name": "branch", "children": ["we well", {"name": 1, "children": []}]}]}

    got = talk.run("var t: Tree = think { q }\nreturn t", [json.dumps(bad), json.dumps(good)], types=TREE)

    assert got == good
    assert "That does not fit: children[1].children[0] must be an object with name, children" in talk.prompts[1]
    assert "children[1].children[1].name must be a string, not the number 1" in talk.prompts[1]


@pytest.mark.parametrize(
    ("types", "fits", "does_not"),
    [
        ("type T = number | { op: string, args: [T] }", '{"op": "+", "args": [1, {"op": "-", "args": [2]}]}', '{"op": "+", "args": ["x"]}'),
        ("type T = { b: [B] }\ntype B = { t: T | null, more?: B }", '{"b": [{"t": {"b": []}, "more": {"t": null}}]}', '{"b": [{"t": {"b": [1]}}]}'),
        ("type T = [B]\ntype B = string | T", '["a", ["b", []]]', '["a", [1]]'),
        ("type T = string | T", '"anything"', None),
    ],
)  # fmt: skip
def test_types_may_have_each_other_inside(types: str, fits: str, does_not: str | None, talk: Conversation) -> None:
    body = "var t: T = think { q }\nreturn t"

    assert talk.run(body, [fits], types=types) == (json.loads(fits) if does_not else fits)
    if does_not:
        with pytest.raises(NoAnswer):
            talk.run(body, [does_not, does_not], types=types)


def test_a_schema_names_what_it_has_inside_itself() -> None:
    module = parse(f"{TREE}\nfun f(t: [Tree]) {{ }}\n", "a.pw")
    tree, function = module.items
    assert isinstance(tree, n.TypeDecl) and isinstance(function, n.Function)
    ref = {"$ref": "#/$defs/Tree"}

    schema = schema_of(function.params[0].type or tree.type, {"Tree": tree.type})

    inner = schema["$defs"]["Tree"]
    assert (schema["type"], schema["items"], said(schema)) == ("array", ref, "a list, each item a Tree")
    assert inner["properties"] == {"name": {"type": "string"}, "children": {"type": "array", "items": ref}}


def test_an_answer_that_is_nested_without_end_does_not_fit() -> None:
    (item,) = parse("type T = number | [T]\n", "a.pw").items
    assert isinstance(item, n.TypeDecl)
    schema = schema_of(n.TypeName(item.span, "T"), {"T": item.type})

    assert from_text("[[1], [[2]]]", schema) == [[1], [[2]]]
    with pytest.raises(ValueError, match="nested too deeply"):
        from_text("[" * 800 + "]" * 800, schema)


def test_the_type_that_a_function_returns_is_wanted_too(talk: Conversation) -> None:
    path_text = "fun size(): int { return think { How many? } }"

    assert talk.run("return size() + 1", ["3"], types=path_text) == 4


def test_a_step_is_run_when_the_model_asks_for_it_and_sees_the_names_around_it(talk: Conversation) -> None:
    body = """
        var count = 0
        var answer = think {
            Count, with
            do { count = count + 1; var word = "times"; "$count $word, $a" }
            and then
            do { throw "not now" }
        }
        return [answer, count]
    """

    assert talk.run(body, ["DO 1", "do 2", "`DO 1`", "DO 9"], "ü") == ["DO 9", 2]
    assert talk.prompts[0].startswith("Count, with\n[step 1]\nand then\n[step 2]\n")
    assert "It gave:\n1 times, ü" in talk.prompts[1]
    assert "You asked for step 2. It failed: not now" in talk.prompts[2]


def test_a_step_that_compares_with_more_than_gives_true_or_false(talk: Conversation) -> None:
    talk.run("think { Is it large? do { a > 2 } }", ["DO 1", "yes"], 3)

    assert "It gave:\ntrue" in talk.prompts[1]


def test_a_model_that_only_asks_for_steps_is_stopped(talk: Conversation) -> None:
    with pytest.raises(NoAnswer, match="asked for steps 50 times"):
        talk.run('think { x do { "again" } }', ["DO 1"] * (prompts.MAX_STEPS + 2))


def test_prompts_nest_through_steps(talk: Conversation) -> None:
    body = "return think { outer do { think { inner do { 7 } } } }"

    assert talk.run(body, ["DO 1", "DO 1", "inner done", "outer done"]) == "outer done"
    assert "It gave:\ninner done" in talk.prompts[3]


def test_a_person_is_asked_again_for_an_answer_that_does_not_fit(talk: Conversation) -> None:
    assert talk.run("var n: int = ask { How many? }\nreturn n", ["many", "4"]) == 4
    assert "It must be a whole number.\nHow many?" in talk.prompts[1]


# As processes


@pytest.mark.slow
def test_without_a_model_nothing_runs_and_the_error_says_how_to_set_one(tmp_path: Path) -> None:
    program = write(tmp_path, 'worker main() {\n    $ touch CANARY\n    print("ran")\n    return think { x }\n}\n')

    ran = postroom("run", program, cwd=tmp_path)

    assert (ran.code, ran.out) == (1, "")
    assert "Set POSTROOM_MODEL to one of ollama:NAME" in ran.err
    assert not (tmp_path / "CANARY").exists()


@pytest.mark.slow
def test_a_run_is_recorded_and_replayed_without_a_model(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        worker thinker(n) { return think { about $n } }
        worker main() {
            var [a, b] = self.delegate([thinker(1), thinker(2)]).await
            return [a, b, think { sum up $a and $b }, ask { well? }]
        }
        """,
    )
    recorded = postroom(
        "run", program, "--model", "mock:7", "--record", "t.jsonl", "--json", cwd=tmp_path, given="yes\u2028ü\n"
    )
    replayed = postroom("run", program, "--replay", "t.jsonl", "--json", cwd=tmp_path)

    assert (recorded.code, replayed.code) == (0, 0)
    assert replayed.result == recorded.result
    assert recorded.result[3] == "yes\u2028ü"
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().split("\n") if line]
    assert sorted((line["worker"], line["kind"]) for line in lines) == [
        ("main", "ask"),
        ("main", "think"),
        ("thinker-1", "think"),
        ("thinker-2", "think"),
    ]


@pytest.mark.slow
def test_a_new_record_begins_anew_and_one_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    program = write(tmp_path, 'worker main() { print("ran"); return think { x } }\n')
    for _ in range(2):
        assert postroom("run", program, "--model", "mock", "--record", "t.jsonl", cwd=tmp_path).code == 0

    ran = postroom("run", program, "--model", "mock", "--record", "no/folder/t.jsonl", cwd=tmp_path)

    assert (tmp_path / "t.jsonl").read_text().count("\n") == 1
    assert (ran.code, ran.out, "cannot be written" in ran.err) == (1, "", True)


def test_a_question_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(human.Terminal, "_line", lambda self: b"yes\r\n")

    assert human.TERMINAL.ask("a\x1b[2Jb\nü 🎈", "main") == "yes"
    assert capsys.readouterr().err == "a\\x1b[2Jb\nü 🎈\n[main] > "


@pytest.mark.slow
def test_a_transcript_of_other_prompts_is_not_taken_for_this_one(tmp_path: Path) -> None:
    program = write(tmp_path, "worker main(x) { return think { about $x } }\n")
    (tmp_path / "t.jsonl").write_text(json.dumps({"kind": "think", "prompt": "about 1", "answer": "a"}) + "\n")

    assert postroom("run", program, "x=1", "--replay", "t.jsonl", cwd=tmp_path).out == "a\n"
    other = postroom("run", program, "x=2", "--replay", "t.jsonl", cwd=tmp_path)
    assert (other.code, "was given to another prompt: 'about 1' then, 'about 2' now" in other.err) == (1, True)
    (tmp_path / "t.jsonl").write_text("nonsense\n")
    bad = postroom("run", program, "x=2", "--replay", "t.jsonl", cwd=tmp_path)
    assert (bad.code, "line 1 of t.jsonl is not an answer" in bad.err) == (1, True)


ASKING = """
worker asker(n) { return ask { What is $n? } }
worker main() {
    var mine: int = ask { A number, please }
    return [mine] + self.delegate([asker("one"), asker("two")]).await
}
"""


@pytest.mark.slow
def test_people_are_asked_at_the_terminal_also_by_workers(tmp_path: Path) -> None:
    ran = postroom("run", write(tmp_path, ASKING), "--json", cwd=tmp_path, given="x\n4\nü 1\nü 2\n")

    assert ran.code == 0
    assert ran.result[0] == 4
    assert sorted(ran.result[1:]) == ["ü 1", "ü 2"]


@pytest.mark.slow
def test_when_nobody_can_answer_the_error_says_so(tmp_path: Path) -> None:
    ran = postroom("run", write(tmp_path, ASKING), cwd=tmp_path, given="4\n")

    assert ran.code == 5
    assert "standard input has ended" in ran.err
    assert "program.pw:2" in ran.err


@pytest.mark.slow
def test_people_are_asked_through_the_room(tmp_path: Path) -> None:
    program = write(tmp_path, ASKING)
    assert postroom("init", cwd=tmp_path).code == 0
    unknown = postroom("run", program, "--human", "adda", cwd=tmp_path)
    assert (unknown.code, "no agent called adda was ever in this room" in unknown.err) == (1, True)
    assert postroom("send", "ada", "hi", "--as", "bob", "--new", cwd=tmp_path).code == 0
    postroom("receive", "--as", "ada", "--ack", cwd=tmp_path)

    process = subprocess.Popen(
        command("run", str(program), "--human", "ada", "--json"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for number in range(3):
            got = json.loads(postroom("receive", "--as", "ada", "--wait", "30", "--json", cwd=tmp_path).out)
            assert got["type"] == "question"
            answer = "7" if number == 0 else got["payload"]["text"].upper()
            assert postroom("reply", got["id"], answer, "--as", "ada", cwd=tmp_path).code == 0
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["result"] == [7, "WHAT IS ONE?", "WHAT IS TWO?"]


def test_several_agents_are_asked_through_the_room(tmp_path: Path) -> None:
    """They are a thread of this process, which answers before the time of the program is over."""
    body = 'var asked = askMany(["bob", "cy"], { port: true }, "any")\nreturn [asked.answers, keys(asked.missing), asked.enough]'
    program = write(tmp_path, f"worker main() {{\n{body}\n}}\n")
    assert postroom("check", program, cwd=tmp_path).code == 0
    assert postroom("init", cwd=tmp_path).code == 0
    with open_room(f"sqlite:{tmp_path}/.postroom") as room:
        bob = room.agent("bob")
        room.agent("cy")
        stop = threading.Event()
        served = threading.Thread(
            target=bob.serve, args=({"question": lambda m: {"was": m.payload}},), kwargs={"stop": stop}
        )
        served.start()
        run = postroom("run", program, "--json", "--record", "said.jsonl", cwd=tmp_path)
        stop.set()
        served.join()

        expected = [{"bob": {"was": {"port": True}}}, ["cy"], True]
        assert json.loads(run.out.splitlines()[-1])["result"] == expected
        assert room.waits() == []
    again = postroom("run", program, "--json", "--replay", "said.jsonl", cwd=tmp_path)
    assert json.loads(again.out.splitlines()[-1])["result"] == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ('"bob", "hi"', "takes a list of the names of agents"),
        ('["bob"], "hi", "most"', "askMany\\(\\): enough: must be all, any or a whole number from 1 to 1"),
        ('["bob"], "hi", "all", "soon"', "takes milliseconds as its fourth value, not the string"),
    ],
)
def test_several_agents_are_not_asked_with_wrong_values(tmp_path: Path, arguments: str, sentence: str) -> None:
    program = write(tmp_path, f"worker main() {{\nreturn askMany({arguments})\n}}\n")
    assert postroom("init", cwd=tmp_path).code == 0
    with open_room(f"sqlite:{tmp_path}/.postroom") as room:
        ran = postroom("run", program, cwd=tmp_path)

        assert ran.code == 1
        assert re.search(sentence, ran.err)
        assert room.count(state=None) == 0


@pytest.fixture(autouse=True)
def _no_context() -> Any:
    yield
    enter(None)
