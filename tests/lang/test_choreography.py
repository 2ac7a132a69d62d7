"""The choreography check: what it finds, what it leaves alone, and how much of what really goes wrong it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.lang.check.check import check_file
from postroom.lang.check.graph import mermaid
from postroom.lang.syntax.problems import Problem
from postroom.sessions import deadlock, members

from .mutants import Mutant, chosen
from .programs import load_program
from .real_runs import CALLS, result_of
from .test_grammar import EXAMPLES, SAMPLES

SEED = 20261115


def check(text: str, folder: Path) -> list[Problem]:
    path = folder / "test.pw"
    path.write_text(text, encoding="utf-8")
    return check_file(path)


def said(text: str, folder: Path) -> list[str]:
    return [f"{problem.code}:{problem.span.line} {problem.message}" for problem in check(text, folder)]


def crew(one: str, other: str) -> str:
    """A program of two workers."""
    return (
        f"worker one() {{\n{one}\n}}\nworker other() {{\n{other}\n}}\n"
        "worker main() { self.delegate([one(), other()]).await }\n"
    )


SEND = "self.session.mailbox.{}.send({})"
TAKE = "var m{} = self.session.mailbox.{}.receive(100).await"


def test_a_mailbox_that_nobody_sends_to_is_told_with_the_near_name(tmp_path: Path) -> None:
    problems = check(crew(SEND.format("tasks", "1"), TAKE.format("", "task")), tmp_path)

    assert [(p.code, p.span.line, p.hint) for p in problems] == [
        ("never-received", 2, "did you mean task?"),
        ("never-sent", 5, "did you mean tasks?"),
    ]
    assert {problem.severity for problem in problems} == {"warning"}


def test_workers_that_all_wait_before_anyone_sends_are_told_with_the_ring(tmp_path: Path) -> None:
    one = f"{TAKE.format('', 'b')}\n{SEND.format('a', '1')}"
    other = f"{TAKE.format('', 'a')}\n{SEND.format('b', '1')}"

    assert said(crew(one, other), tmp_path) == [
        "deadlock:2 one waits forever: one waits for b in line 2, other waits for a in line 6 (one -> other -> one)"
    ]


def test_a_message_that_lacks_what_its_receiver_reads_is_told_where_it_is_read(tmp_path: Path) -> None:
    one = SEND.format("a", '{ kind: "x", nmae: 1 }')
    other = f"{TAKE.format('', 'a')}\nprint(m.kind, m.name)"

    problems = check(crew(one, other), tmp_path)

    assert [(p.code, p.span.line, p.message, p.hint) for p in problems] == [
        ("message-field", 6, "no message to a has a name", "did you mean nmae?")
    ]


def test_a_field_that_only_some_messages_have_may_be_read_when_those_come(tmp_path: Path) -> None:
    one = "\n".join([SEND.format("a", '{ type: "job", seq: 1 }'), SEND.format("a", '{ type: "done" }')])
    loop = "while true {\n" + TAKE.format("", "a") + "\n%s\n}"

    right = loop % 'if m.type == "done" { break }\nprint(m.seq)'
    wrong = loop % 'print(m.seq)\nif m.type == "done" { break }'

    assert said(crew(one, right), tmp_path) == []
    assert said(crew(one, wrong), tmp_path) == [
        "message-field:8 the message from a has no seq: it is sent in line 3 with type"
    ]


def test_one_message_too_few_is_told(tmp_path: Path) -> None:
    one = "for n in 1...3 { " + SEND.format("a", "n") + " }"
    other = "for n in 1...4 { " + TAKE.format("", "a") + "\nprint(m) }"

    found = said(crew(one, other), tmp_path)
    assert found == ["deadlock:5 other waits forever: other waits for a in line 5"]


def test_a_message_that_is_never_read_is_told(tmp_path: Path) -> None:
    one = SEND.format("a", '"stop"') + "\n" + SEND.format("a", '"job"')
    other = "while true {\n" + TAKE.format("", "a") + '\nif m == "stop" { return null }\n}'

    assert said(crew(one, other), tmp_path) == [
        "unread:3 the message sent to a here is never read: the session ends first"
    ]


def test_a_wait_that_depends_on_a_condition_is_told_with_the_condition(tmp_path: Path) -> None:
    one = f"if ($ test -f x) {{ {SEND.format('a', '1')} }}"
    other = TAKE.format("", "a")

    problems = check(crew(one, other), tmp_path)

    assert [problem.message for problem in problems] == ["other may wait forever: other waits for a in line 5"]
    assert problems[0].hint == "when ($ test -f x) in line 2 is false"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # a time-out that is caught
        (f"if ($ true) {{ {SEND.format('a', '1')} }}", "try { " + TAKE.format("", "a") + "\nprint(m) } catch { }"),
        # a worker that throws ends the session for the one that waits
        ('throw "no"', TAKE.format("", "never")),
        # the same unknown is the same on both sides
        (
            'var x = think { yes or no }\nself.session.mailbox.a.send({ x })\nif x == "yes" { self.session.mailbox.b.send(1) }',
            TAKE.format("", "a") + '\nif m.x == "yes" { ' + TAKE.format("2", "b") + " }",
        ),
        # as many as there are, however many that is
        (
            "var l = $(ls).lines()\nself.session.mailbox.n.send(l.length)\nfor x in l { self.session.mailbox.a.send(x) }",
            TAKE.format("", "n") + "\nfor i in 1...m { " + TAKE.format("2", "a") + "\nprint(m2) }",
        ),
        # whoever is first wins, the others are not read
        ("for n in 1...3 { self.session.mailbox.a.send(n) }", TAKE.format("", "a")),
        # the same question about the same thing has the same answer
        (
            'var x = think { yes or no }\nself.session.mailbox.a.send(x)\nif x.trim() == "yes" { self.session.mailbox.b.send(1) }',
            TAKE.format("", "a") + '\nif m.trim() == "yes" { ' + TAKE.format("2", "b") + " }",
        ),
        # what a model may do in a step, it may do
        ("think { go do { self.session.mailbox.a.send(1) } }", TAKE.format("", "a")),
        # a mailbox by another name
        (
            "var box = self.session.mailbox.a\nbox.send(1)",
            "var room = self.session.mailbox\nprint(room.a.receive().await)",
        ),
        # a mailbox whose name is worked out
        ("var k = think { which? }\nself.session.mailbox[k].send(1)", TAKE.format("", "b")),
    ],
)
def test_what_goes_well_is_not_complained_about(one: str, other: str, tmp_path: Path) -> None:
    assert said(crew(one, other), tmp_path) == []


def test_workers_without_a_delegate_are_taken_to_run_together(tmp_path: Path) -> None:
    text = "worker one() { self.session.mailbox.a.send(1) }\nworker other() { print(self.session.mailbox.b.receive().await) }\n"

    assert [line.partition(" ")[0] for line in said(text, tmp_path)] == ["never-received:1", "never-sent:2"]


def test_who_delegates_may_send_before_and_receive_after(tmp_path: Path) -> None:
    text = (
        "worker w() { self.session.mailbox.out.send(self.session.mailbox.in_.receive().await) }\n"
        "worker main() {\nself.session.mailbox.in_.send(1)\nself.delegate([w()]).await\n"
        "return self.session.mailbox.out.receive().await\n}\n"
    )

    assert said(text, tmp_path) == []
    late = text.replace(
        "self.session.mailbox.in_.send(1)\nself.delegate([w()]).await",
        "self.delegate([w()]).await\nself.session.mailbox.in_.send(1)",
    )
    assert said(late, tmp_path)[0].startswith("deadlock:1 w waits forever")


def test_a_leader_that_is_led_is_rehearsed_where_it_is_started(tmp_path: Path) -> None:
    text = (
        "worker small() { self.session.mailbox.done.send(1) }\n"
        "worker lead() {\nvar go = self.session.mailbox.go.receive().await\nself.delegate([small()]).await\nreturn go\n}\n"
        "worker main() {\nself.session.mailbox.go.send(1)\nself.delegate([lead()]).await\n"
        "return self.session.mailbox.done.receive().await\n}\n"
    )

    assert said(text, tmp_path) == []


def test_what_a_library_keeps_for_others_is_not_judged(tmp_path: Path) -> None:
    library = "export worker giver() { self.session.mailbox.things.send({ a: 1 }) }\n"
    (tmp_path / "library.pw").write_text(library, encoding="utf-8")
    user = "import ./{library}\nworker taker() { print(self.session.mailbox.things.receive().await.%s) }\n"
    main = "worker main() { self.delegate([library.giver(), taker()]).await }\n"

    assert said(library, tmp_path) == []
    assert said(user % "a" + main, tmp_path) == []
    assert said(user % "b" + main, tmp_path)[0].startswith("message-field:2 the message from things has no b")


def test_a_program_that_never_ends_is_not_rehearsed_for_ever(tmp_path: Path) -> None:
    text = crew("var i = 0\nwhile true { i++ }", TAKE.format("", "a") + "\n" + SEND.format("a", "1"))

    assert check(text, tmp_path) is not None


@pytest.mark.parametrize(
    ("first", "grow"),
    [
        ('"ab"', "x = x + x"),
        ('"ab"', 'x = "$x$x"'),
        ('"ab"', "x = x.repeat(x.length)"),
        ('"ab"', 'x = x.replace("a", x)'),
        ("3", "x = x * x"),
        ("[1]", "x = x + x"),
        ("[1]", "x = x.concat(x)"),
        ("[1]", "x = [x, x]"),
        ("{ a: 1 }", "x = { a: x, b: x }"),
        ("[1]", "x.push(x)"),
    ],
)
def test_a_value_that_grows_without_end_is_not_followed(first: str, grow: str, tmp_path: Path) -> None:
    one = f"var x = {first}\nfor var _ in 1...60 {{ {grow} }}\nif x == 1 {{ x = 2 }}\n{SEND.format('a', 'x')}"

    assert said(crew(one, TAKE.format("", "a")), tmp_path) == []


def test_the_graph_shows_who_starts_whom_and_who_sends_what_where(tmp_path: Path) -> None:
    path = next(path for path in EXAMPLES if path.stem == "pipeline")

    assert mermaid(load_program(path)) == (
        "flowchart LR\n"
        '    w0["numbers"]\n'
        '    w1["squares"]\n'
        '    w2["total"]\n'
        '    w3["Pipeline.main"]\n'
        '    m0(["raw"])\n'
        '    m1(["squared"])\n'
        "    w0 --> m0\n"
        "    m0 --> w1\n"
        "    w1 --> m1\n"
        "    m1 --> w2\n"
        "    w3 -.->|delegate| w0\n"
        "    w3 -.->|delegate| w1\n"
        "    w3 -.->|delegate| w2\n"
    )


# ---------------------------------------------------------------- mutants


def programs() -> dict[str, str]:
    found = {path.stem: path.read_text(encoding="utf-8") for path in [*EXAMPLES, *SAMPLES]}
    return {name: text for name, text in found.items() if name in CALLS}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads here: a deadlock is told after a tenth of a second, not after one or two."""
    monkeypatch.setattr(members, "SHOW_AFTER_S", 0.01)
    monkeypatch.setattr(deadlock, "SETTLE_S", 0.1)


def judged(mutants: list[Mutant], folder: Path) -> tuple[list[Mutant], list[Mutant]]:
    """Those that really go wrong when they are run, and of those the ones that the check did not find."""
    right = {name: result_of(name, text, folder / name) for name, text in programs().items()}
    assert not any(str(result).startswith("!") for result in right.values()), right
    wrong, missed = [], []
    for number, mutant in enumerate(mutants):
        if result_of(mutant.program, mutant.text, folder / f"run-{number}") != right[mutant.program]:
            wrong.append(mutant)
            path = folder / f"mutant-{number}.pw"
            path.write_text(mutant.text, encoding="utf-8")
            if not check_file(path):
                missed.append(mutant)
    return wrong, missed


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_mutants_that_really_go_wrong_are_found(tmp_path: Path) -> None:
    print("seed", SEED)
    wrong, missed = judged(chosen(programs(), 10, SEED), tmp_path)

    assert len(wrong) >= 8
    assert [(mutant.program, mutant.what) for mutant in missed] == []


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_of_200_mutants_at_least_95_of_100_that_really_go_wrong_are_found(tmp_path: Path) -> None:
    print("seed", SEED)
    mutants = chosen(programs(), 200, SEED)
    wrong, missed = judged(mutants, tmp_path)

    assert len(mutants) == 200
    assert len(wrong) >= 150
    print(f"{len(wrong)} of 200 go wrong, {len(missed)} of them were not found:", [(m.program, m.what) for m in missed])
    assert len(missed) <= 0.05 * len(wrong)
