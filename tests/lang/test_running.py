"""Programs as people run them: `postroom run`, with real workers in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from postroom.core.system.process import process_started
from postroom.lang.compile import import_hook
from postroom.lang.run.context import Settings
from postroom.lang.run.run import Run

from .programs import PATIENCE_S, SAMPLES, Ran, command, environment, load_program, postroom, write

pytestmark = pytest.mark.slow


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_sample_1_control_flow(tmp_path: Path) -> None:
    sample = SAMPLES / "01_control_flow.pw"

    assert postroom("run", sample, "calc", "limit=9", "--json", cwd=tmp_path).result == {"total": 9, "ok": True}
    failed = postroom("run", sample, "calc", "limit=2", cwd=tmp_path)
    assert failed.code == 1
    assert "01_control_flow.pw:7:82: bad total 6" in failed.err


def test_sample_2_destructuring(tmp_path: Path) -> None:
    given = 'r={"status": "ok", "files": ["a", "b", "c"]}'

    assert postroom("run", SAMPLES / "02_destructuring.pw", "parts", given, "--json", cwd=tmp_path).result == "c"


def test_sample_3_shell_forms(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "f").write_text("1\n")
    git(tmp_path, "add", "f")
    git(tmp_path, "commit", "-qm", "first")

    ran = postroom("run", SAMPLES / "03_shell_forms.pw", "sh", "dir=d e", "--json", cwd=tmp_path)

    assert (ran.code, ran.result) == (0, "trunk")
    assert "missing" in ran.out
    assert (tmp_path / "d e" / "out" / "log.txt").read_text().endswith(" first\n")
    (tmp_path / "f").write_text("2\n")
    dirty = postroom("run", SAMPLES / "03_shell_forms.pw", "sh", "dir=d e", cwd=tmp_path)
    assert (dirty.code, "dirty tree on trunk" in dirty.err) == (1, True)


def test_sample_4_prompts(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    prompt = 'Plan this work: tidy up\nReply as JSON like {steps: ["a"]} and keep { and } as they are.'
    lines = [
        {"kind": "think", "prompt": prompt, "answer": ""},
        {"kind": "ask", "prompt": "What should the plan for tidy up be?", "answer": "sweep"},
    ]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))

    ran = postroom("run", SAMPLES / "04_prompts.pw", "task=tidy up", "--replay", answers, "--json", cwd=tmp_path)

    assert (ran.code, ran.result) == (0, "sweep")


def test_sample_5_and_6_mailboxes_and_a_plugin(tmp_path: Path) -> None:
    ran = postroom("run", SAMPLES / "06_plugin.pw", "run", "count=3", "--json", cwd=tmp_path)

    assert (ran.code, ran.result) == (0, "drained")
    assert [line for line in ran.out.splitlines() if "job" in line] == [f"[consumer] job {n}" for n in range(3)]
    text = (
        SAMPLES / "05_mailboxes.pw"
    ).read_text() + "worker main() { return self.delegate([producer(2), consumer()]).await }\n"
    assert postroom("run", write(tmp_path, text), "--json", cwd=tmp_path).result == [None, "drained"]


def test_sample_7_imports(tmp_path: Path) -> None:
    ran = postroom("run", SAMPLES / "07_main.pw", cwd=tmp_path)

    assert (ran.code, ran.out, ran.err) == (0, "", "aa\n")
    assert postroom("run", SAMPLES / "helper.pw", "helper", "m=x", cwd=tmp_path).out == "H: x\n"


def test_sample_8_code_in_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all:\n\t@echo made >> made\n")
    answers = [("think", "DO 1"), ("think", "f1"), ("think", "f2"), ("think", "f3"), ("think", "all well")]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps({"kind": kind, "answer": answer}) + "\n" for kind, answer in answers))

    ran = postroom("run", SAMPLES / "08_code_in_a_prompt.pw", "nested", "--replay", file, cwd=tmp_path)

    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "made").read_text() == "made\n" * 3


def test_sample_9_a_bare_block(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in ("one", "two ü"):
        (work / name).mkdir(parents=True)
        (work / name / "metadata.json").write_text(json.dumps({"author": f"Ada of {name}"}))
        (work / name / "t.txt").write_text(f"text {name}")
    answers = tmp_path / "answers.jsonl"
    lines = [
        {"kind": "think", "prompt": f"Clean up the text by Ada of {n}: text {n}", "answer": f"clean {n}"}
        for n in ("one", "two ü")
    ]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))

    ran = postroom("run", SAMPLES / "09_bare_block.pw", "--replay", answers, cwd=work)

    assert (ran.code, ran.out) == (0, "done one\ndone two ü\n")
    assert (work / "two ü" / "clean.txt").read_text() == "clean two ü"


def test_sample_10_a_failing_worker_shows_its_line_in_the_callers_error(tmp_path: Path) -> None:
    ran = postroom("run", SAMPLES / "10_failure.pw", "go", cwd=tmp_path)

    assert ran.code == 5
    assert 'worker boom raised Thrown: {"code": 500} (' in ran.err
    assert "10_failure.pw:2" in ran.err
    assert "worker boom() { throw { code: 500 } }" in ran.err
    assert "called from go, " in ran.err


def test_the_thrown_value_reaches_the_one_who_delegated(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        worker boom() {
            throw { code: 500, why: ["ü", null] }
        }
        worker waiter() { return self.session.mailbox.never.receive(60000).await }
        worker main() {
            try {
                self.delegate([boom(), waiter()]).await
            } catch e {
                var again = null
                try { self.session.mailbox.x.send(1) } catch f { again = f.kind }
                return { kind: e.kind, type: e.type, value: e.value, worker: e.worker, line: e.line, again }
            }
        }
        """,
    )

    assert postroom("run", program, "--json", cwd=tmp_path).result == {
        "kind": "SessionFailed",
        "type": "object",
        "value": {"code": 500, "why": ["ü", None]},
        "worker": "boom",
        "line": 8,
        "again": "SessionFailed",
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("var x = {}\n    return x.missing", "worker boom raised WrongValue: the object has no field 'missing'"),
        ("$ sh -c 'echo no >&2; exit 3'\n    ", "worker boom raised CommandFailed: the command"),
        (
            "\n    self.session.mailbox.m.receive(1).await",
            "raised ProgramError: ReceiveTimeout: Mailbox receive timeout",
        ),
        ("\n    boom_again()", "worker boom raised ProgramError: functions call each other too deeply"),
    ],
)
def test_whatever_fails_in_a_worker_is_told_with_its_line(body: str, said: str, tmp_path: Path) -> None:
    text = f"fun boom_again() {{ return boom_again() }}\nworker boom() {{\n    {body}\n}}\n"
    program = write(tmp_path, text + "worker main() { self.delegate([boom()]).await }\n")

    ran = postroom("run", program, cwd=tmp_path)

    assert ran.code == 5
    assert said in ran.err
    line = 1 if "deeply" in said else 3 if "CommandFailed" in said else 4
    assert f"program.pw:{line}" in ran.err


def test_the_failed_file_tells_the_line_too(tmp_path: Path) -> None:
    program = write(tmp_path, 'worker boom() {\n    throw "früh"\n}\nworker main() { self.delegate([boom()]).await }\n')
    assert postroom("init", cwd=tmp_path).code == 0

    ran = postroom("run", program, cwd=tmp_path)

    (failed,) = (tmp_path / ".postroom" / "sessions").glob("*/.failed")
    told = json.loads(failed.read_text())
    assert ran.code == 5
    assert told["message"] == "worker boom raised Thrown: früh (program.pw:2)"
    assert told["worker"] == "boom"
    assert 'line 2, in boom\n    throw "früh"' in told["stack"]


def test_a_program_without_a_room_leaves_nothing_behind(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()

    ran = postroom("run", SAMPLES / "06_plugin.pw", "run", "count=1", cwd=work)

    assert ran.code == 0
    assert list(work.iterdir()) == []  # TMPDIR is there too


def test_names_of_mailboxes_are_free(tmp_path: Path) -> None:
    names = ["session", "mailboxes", "constructor", "toString", "send", "receive", "__init__", "self", "type", "if"]
    lines = "\n".join(f"    box.push(0); self.session.mailbox.{name}.send({n})" for n, name in enumerate(names))
    gets = ", ".join(f"self.session.mailbox.{name}.receive(5000).await" for name in names)
    program = write(tmp_path, f"worker main() {{\n    var box = []\n{lines}\n    return [{gets}]\n}}\n")

    assert postroom("run", program, "--json", cwd=tmp_path).result == list(range(len(names)))


def test_a_mailbox_may_be_named_when_the_program_runs(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        worker main() {
            var boxes = self.session.mailbox
            for var n in 1...2 { boxes["box ${n}/ü"].send(n) }
            boxes.plain.send(3)
            var box = self.session.mailbox.plain
            return [boxes["box 2/ü"].receive(1000).await, box.receive(1000).await]
        }
        """,
    )

    assert postroom("run", program, "--json", cwd=tmp_path).result == [2, 3]


def test_what_is_sent_is_a_copy_and_many_sends_keep_their_order(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        worker main() {
            var message = { list: [0] }
            for var i in 1...200 { message.list[0] = i; self.session.mailbox.m.send(message) }
            message.list[0] = "changed"
            var got = []
            for var i in 1...200 { got.push(self.session.mailbox.m.receive(1000).await.list[0]) }
            return got == 1...200
        }
        """,
    )

    assert postroom("run", program, "--json", cwd=tmp_path).result is True


def test_a_receive_that_timed_out_takes_nothing_later(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        worker main() {
            var said = ""
            try { self.session.mailbox.m.receive(20).await } catch e { said = e.message }
            self.session.mailbox.m.send("kept")
            return [said, self.session.mailbox.m.receive(1000).await]
        }
        """,
    )

    expected = ["Mailbox receive timeout after 20ms", "kept"]
    assert postroom("run", program, "--json", cwd=tmp_path).result == expected


def test_workers_that_are_imported_run_in_processes_too(tmp_path: Path) -> None:
    write(tmp_path, "import ./{main}\nexport default worker helper(n) { return [n, main.twice(n)] }\n", "helper.pw")
    write(tmp_path, 'worker deep() { return "deep" }\n', "lib/more.pw")
    program = write(
        tmp_path,
        """
        import ./{helper}
        import lib.more
        export fun twice(n) { return n * 2 }
        worker main() {
            var all = self.delegate([helper.default(1), helper.helper(2), more.deep()]).await
            return all + [helper.default(3).await]
        }
        """,
        "main.pw",
    )

    assert postroom("run", program, "--json", cwd=tmp_path).result == [[1, 2], [2, 4], "deep", [3, 6]]


def test_a_worker_that_delegates_and_workers_of_one_name(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        worker leaf(n) { print("leaf $n"); return n * n }
        worker branch(n) { return self.delegate([leaf(n), leaf(n + 1)]).await.sum() }
        worker main() { return self.delegate([branch(1), branch(3)]).await }
        """,
    )

    assert postroom("run", program, "--json", cwd=tmp_path).result == [5, 25]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "the program has no worker 'nowhere'"),
        (["mian"], "did you mean main?"),
        (["n=x"], "n must be a whole number, and 'x' is not"),
        (["n=1", "m=2"], "main takes no 'm'"),
        ([], "main needs n; call it as: main n=INT"),
        (["n=1", "n=2"], "n is given twice"),
        (["main", "1"], "arguments are written NAME=VALUE, and '1' is not"),
    ],
)
def test_a_wrong_call_says_how_to_call(words: list[str], said: str, tmp_path: Path) -> None:
    program = write(tmp_path, "worker main(n: int) { print(n) }\n")

    ran = postroom("run", program, *words, cwd=tmp_path)

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_arguments_are_converted_where_the_parameter_has_a_type(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        type Level = "low" | "high"
        worker main(a, s: string, n: number, b: bool, l: [int], o: { x: int }, e: Level) { return [a, s, n, b, l, o, e] }
        """,
    )
    words = ["a=1", "s=2", "n=3.5", "b=true", "l=[4]", 'o={"x": 5}', "e=high"]

    assert postroom("run", program, *words, "--json", cwd=tmp_path).result == [
        "1",
        "2",
        3.5,
        True,
        [4],
        {"x": 5},
        "high",
    ]


def test_errors_are_documents_for_programs(tmp_path: Path) -> None:
    program = write(tmp_path, "worker main() {\n    throw { code: 7 }\n}\n")

    ran = postroom("run", program, "--json", cwd=tmp_path)

    error = json.loads(ran.out)["error"]
    assert (ran.code, error["type"], error["value"], error["line"]) == (1, "Thrown", {"code": 7}, 2)


def test_a_program_that_is_not_there_or_not_patchwork(tmp_path: Path) -> None:
    missing = postroom("run", "none.pw", cwd=tmp_path)
    assert (missing.code, "none.pw cannot be read" in missing.err) == (2, True)

    broken = postroom("run", write(tmp_path, "worker main( {\n}\n"), cwd=tmp_path)
    assert broken.code == 2
    assert "program.pw:1:" in broken.err


def test_commands_of_the_program_stream_as_they_come(tmp_path: Path) -> None:
    program = write(tmp_path, 'worker main() {\n    $ echo first\n    $ cat\n    print("last")\n}\n')
    process = subprocess.Popen(
        command("run", str(program)),
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "first\n"  # before the program is over
        process.stdin.write("typed\n")
        process.stdin.flush()
        assert process.stdout.readline() == "typed\n"
        process.stdin.close()
        assert process.stdout.read() == "last\n"
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


HANG = """
worker hang() {
    $ sh -c 'echo $$ > pid; sleep 1000 & echo $! >> pid; wait'
}
worker main() { self.delegate([hang()]).await }
"""


def pids_in(folder: Path) -> list[int]:
    from postroom.core.clock import SYSTEM

    until_ns = SYSTEM.steady_ns() + round(PATIENCE_S * 1e9)
    while SYSTEM.steady_ns() < until_ns:
        file = folder / "pid"
        if file.exists() and len(file.read_text().split()) == 2:
            return [int(word) for word in file.read_text().split()]
        SYSTEM.sleep(0.01)
    raise AssertionError("the command did not start")


def is_gone(pid: int) -> bool:
    from postroom.core.clock import SYSTEM

    until_ns = SYSTEM.steady_ns() + round(PATIENCE_S * 1e9)
    while SYSTEM.steady_ns() < until_ns:
        if process_started(pid) is None:
            return True
        SYSTEM.sleep(0.01)
    return False


@pytest.mark.parametrize("worker", ["hang", "main"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_a_program_is_ended_no_command_of_it_is_left(
    number: int, code: int, worker: str, tmp_path: Path
) -> None:
    """`hang` runs the command in the program's own process, `main` in a worker's."""
    program = write(tmp_path, HANG)
    words = command("run", str(program), worker)
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(
            words, cwd=tmp_path, env=environment(TMPDIR=str(tmp_path)), stdout=said, stderr=said, start_new_session=True
        )
    try:
        pids = pids_in(tmp_path)
        os.kill(process.pid, number)
        assert process.wait(PATIENCE_S) == code
        assert "Traceback" not in (tmp_path / "said").read_text()
        assert [pid for pid in pids if not is_gone(pid)] == []
    finally:
        process.kill()
        process.wait()


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    ran = postroom("run", write(tmp_path, HANG), "hang", "--command-timeout", "0.5", cwd=tmp_path)

    assert ran.code == 1
    assert "was stopped after 0.5 s" in ran.err
    assert "program.pw:3:" in ran.err
    assert [pid for pid in pids_in(tmp_path) if not is_gone(pid)] == []


def run_noisy(folder: Path, body: str, *words: str) -> Ran:
    """Run a program that complains without end to somebody who reads slowly. What was read is not kept."""
    from postroom.core.clock import SYSTEM

    program = write(folder, f"worker main() {{\n    {body}\n}}\n")
    until_ns = SYSTEM.steady_ns() + round(PATIENCE_S * 1e9)
    with open(folder / "said", "w+b") as said:
        process = subprocess.Popen(
            command("run", str(program), *words),
            cwd=folder,
            env=environment(TMPDIR=str(folder)),
            stdout=said,
            stderr=subprocess.PIPE,
        )
    assert process.stderr is not None
    try:
        while os.read(process.stderr.fileno(), 4096):
            assert SYSTEM.steady_ns() < until_ns, "the program does not end"
            SYSTEM.sleep(0.01)
        return Ran(process.wait(PATIENCE_S), (folder / "said").read_text(), "")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize("body", ["$ yes >&2", "$ yes | cat >&2"])
def test_a_command_that_never_stops_writing_is_ended_in_time(body: str, tmp_path: Path) -> None:
    ran = run_noisy(tmp_path, body, "--command-timeout", "0.1", "--json")

    error = json.loads(ran.out)["error"]
    assert (ran.code, error["type"], error["line"]) == (1, "CommandTimeout", 2)


def test_nobody_waits_for_what_a_command_left_writing_in_the_background(tmp_path: Path) -> None:
    ran = run_noisy(tmp_path, "$ sh -c 'yes >&2 & sleep 0.1'\n    print(\"after\")")

    assert (ran.code, ran.out) == (0, "after\n")


def test_what_a_program_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    program = write(tmp_path, "worker main() { $ sh -c 'sleep 1000 & echo $! > pid; echo $$ >> pid' }\n")

    assert postroom("run", program, cwd=tmp_path).code == 0
    assert [pid for pid in pids_in(tmp_path) if not is_gone(pid)] == []


CHAIN = "worker deep(x) { return think { $x } }\nworker main() { return self.delegate([deep(1), deep(2)]).await }\n"


@pytest.mark.parametrize("room", ["memory:", None])
def test_settings_reach_workers_and_no_environment(
    room: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads and in processes of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "chain.pw").write_text(CHAIN, encoding="utf-8")
    answers = [{"worker": f"deep-{number}", "kind": "think", "answer": f"{number}!"} for number in (1, 2)]
    (tmp_path / "said").write_text("".join(json.dumps(line) + "\n" for line in answers), encoding="utf-8")
    before = dict(os.environ)
    written: list[str] = []
    monkeypatch.setattr(os, "putenv", lambda name, _value: written.append(name))

    result = Run(load_program("chain.pw"), Settings(replay=str(tmp_path / "said")), room).start(None, [])

    assert result == ["1!", "2!"]
    assert dict(os.environ) == before
    assert written == []


def test_files_that_were_parsed_for_the_checks_are_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.pw").write_text("import ./other\n{ other.twice(2) }\n", encoding="utf-8")
    (tmp_path / "other.pw").write_text("export fun twice(x) { return 2 * x }\n", encoding="utf-8")
    program = load_program(tmp_path / "main.pw")
    monkeypatch.setattr(import_hook, "parse_file", pytest.fail)

    assert Run(program, Settings()).start(None, []) == 4
