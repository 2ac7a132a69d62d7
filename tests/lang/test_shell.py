"""Commands: what a program gets as its words, where its output goes, how it ends, and that nothing is looked at twice."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.support.descriptors import open_now, opened_since

from postroom.core.system import children
from postroom.core.system.children import ForkServer
from postroom.lang.run import pipeline
from postroom.lang.values.raised import CommandFailed, WrongValue

from .programs import PATIENCE_S, function_of

pytestmark = pytest.mark.slow  # hundreds of real commands

#: Writes its words, and the variable A if there is one, each with a NUL behind it.
SHOW = """\
#!/bin/sh
[ $# -eq 0 ] || printf '%s\\0' "$@"
[ -z "${A+set}" ] || printf '%s\\0' "$A"
"""
META = ["$(touch CANARY)", "`touch CANARY`", "; touch CANARY", "| touch CANARY", "&& touch CANARY", "\n touch CANARY\n"]
META += [
    "> CANARY",
    "'; touch CANARY; '",
    '"; touch CANARY; "',
    "${CANARY}",
    "$@",
    "$*",
    "~",
    "*",
    "?",
    "[a-z]",
    "{a,b}",
]
META += [
    "\\",
    "\\\\",
    "\t",
    "\r",
    "\n",
    " ",
    "  ",
    "-rf",
    "--",
    "",
    "#",
    "!",
    "%s",
    "%",
    "=",
    "A=b",
    "é",
    "漢",
    "🎈",
    "\x7f",
    "\x01",
    "'",
    '"',
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the program `show` on the PATH."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "show").write_text(SHOW, encoding="utf-8")
    (bin / "show").chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("A", raising=False)
    return work


Make = Callable[..., Any]


@pytest.fixture
def program(here: Path) -> Make:
    """Makes a program of a body; `a` and `b` are its parameters."""

    def make(body: str, params: str = "") -> Callable[..., Any]:
        return function_of(here.parent / "programs", f"fun main({params}) {{\n{body}\n}}\n")

    return make


def said(text: str) -> list[str]:
    return text.split("\0")[:-1]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show a  b", ["a", "b"]),
        ('show "a   b" c', ["a   b", "c"]),
        ("show 'a $x b'", ["a $x b"]),
        ('show ""', [""]),
        ('show "${a}"..HEAD', ["v 1..HEAD"]),
        ("show --flag=${a} -x", ["--flag=v 1", "-x"]),
        ("show $a ${a} pre${a}post", ["v 1", "v 1", "prev 1post"]),
        ("show ${a}/file $a/file", ["v 1/file", "v 1/file"]),
        ("show a#b # {x} a=b", ["a#b", "#", "{x}", "a=b"]),
        ("A=${a} show x", ["x", "v 1"]),
        ("show $@{list} end", ["one", "two words", "3", "end"]),
        ("show --f=$@{list}", ["--f=one", "--f=two words", "--f=3"]),
        ("show ${list} ${null} ${1.0} ${true}", ["one, two words, 3", "null", "1", "true"]),
        ("show $(echo inner) ${$(echo x)}", ["inner", "x"]),
        ("show ~root '~root' \"~root\" a~", [os.path.expanduser("~root"), "~root", "~root", "a~"]),
        ("show *.txt '*.txt' \"*.txt\" *.none", ["a.txt", "b.txt", "*.txt", "*.txt", "*.none"]),
        ("show ${star} pre${star}", ["*.txt", "pre*.txt"]),
        ("show ${tilde}", ["~root"]),
    ],
)
def test_a_command_gets_the_words_that_were_written(command: str, words: list[str], program: Make, here: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden.txt"):
        (here / name).write_text("", encoding="utf-8")
    main = program(
        f'var list = ["one", "two words", 3]\nvar star = "*.txt"\nvar tilde = "~root"\nreturn $({command})', "a"
    )

    assert said(main("v 1")) == words


# Every place where a value can reach a command; what arrives is said by `show`, or read back from the file. WORDS are
# the words of several values, which need not be started one by one, each written like the second text.
PLACES = {
    "a word": ("return $(show WORDS)", "${NAME}"),
    "a quoted word": ("return $(show WORDS)", '"${NAME}"'),
    "a short name": ("return $(show WORDS)", "$NAME"),
    "a part of a word": ("return $(show WORDS)", 'pre"${NAME}"post'),
    "a flag": ("return $(show WORDS)", "--flag=${NAME}"),
    "an item of a list": ("return $(show WORDS)", "$@{[NAME]}"),
    "the environment": ("return $(A=${v0} show)", ""),
    "a word of a pipeline": ("return $(show WORDS | cat)", "${NAME}"),
    "a word after &&": ("return $(true && show WORDS)", "${NAME}"),
    "a word after ||": ("return $(false || show WORDS)", "${NAME}"),
    "a statement": ('$ show WORDS > out\nreturn read("out")', "${NAME}"),
    "a test": ('if ($ show WORDS > out) { }\nreturn read("out")', "${NAME}"),
    "a loop": (
        'var all = []\nfor var line in ($ show WORDS) { all.push(line) }\nreturn all.join("\\n")',
        "${NAME}",
    ),
}
PIECES = {"a part of a word": ("pre", "post"), "a flag": ("--flag=", "")}


def metacharacter_strings(count: int, seed: int) -> list[str]:
    print(f"seed {seed}")
    chance = random.Random(seed)
    alphabet = "".join(META) + "".join(map(chr, range(1, 128))) + "äß€漢🎈\u200d\u2028\u0085"
    made = list(META)
    while len(made) < count:
        mixed = "".join(chance.choice(alphabet) for _ in range(chance.randrange(1, 24)))
        made.append(mixed if chance.random() < 0.6 else chance.choice(META) + mixed + chance.choice(META))
    return made


def in_groups(strings: list[str], size: int) -> Iterator[list[str]]:
    """So many at a time; the last group is filled up with empty ones."""
    for start in range(0, len(strings), size):
        group = strings[start : start + size]
        yield group + [""] * (size - len(group))


def check_strings(program: Make, here: Path, place: str, strings: list[str]) -> None:
    body, word = PLACES[place]
    names = [f"v{number}" for number in range(8 if "WORDS" in body else 1)]
    words = " ".join(word.replace("NAME", name) for name in names)
    main = program(body.replace("WORDS", words), ", ".join(names))
    before, after = PIECES.get(place, ("", ""))
    for texts in in_groups(strings, len(names)):
        assert said(main(*texts)) == [before + text + after for text in texts], (place, texts)
    assert [path.name for path in here.iterdir() if path.name != "out"] == []


@pytest.mark.parametrize("place", PLACES)
def test_no_string_means_anything_to_a_command(place: str, program: Make, here: Path) -> None:
    check_strings(program, here, place, metacharacter_strings(len(META), seed=1))


def test_hundreds_of_strings_arrive_byte_for_byte(program: Make, here: Path) -> None:
    storm(program, here, 150, seed=20261115)


@pytest.mark.long
def test_ten_thousand_strings_arrive_byte_for_byte(program: Make, here: Path) -> None:
    storm(program, here, 10_000, seed=20261116)


def storm(program: Make, here: Path, count: int, seed: int) -> None:
    """Each string goes through every place at once; files and variables are read back too. No canary is ever made."""
    names = [f"v{number}" for number in range(5)]
    every = " ".join(f'${{{v}}} "${{{v}}}" ${v} pre"${{{v}}}"post --flag=${{{v}}} $@{{[{v}, {v}]}}' for v in names)
    plain = " ".join(f"${{{v}}}" for v in names)
    main = program(
        f"""
        var all = $(show {every})
        var piped = $(show {plain} | cat)
        var more = $(false || show {plain})
        var given = [{", ".join(f"{v} | $(cat)" for v in names)}]
        var here = [{", ".join(f"$(cat <<< ${{{v}}})" for v in names)}]
        $ {" ".join(f"{v}=${{{v}}}" for v in names)} printenv {" ".join(names)} > out.txt
        return {{ all, piped, more, given, here, env: read("out.txt") }}
        """,
        ", ".join(names),
    )
    for texts in in_groups(metacharacter_strings(count, seed), len(names)):
        got = main(*texts)
        wanted = [[text, text, text, f"pre{text}post", f"--flag={text}", text, text] for text in texts]
        assert said(got["all"]) == [word for words in wanted for word in words], texts
        assert said(got["piped"]) == said(got["more"]) == texts
        assert got["given"] == got["here"] == [text.rstrip("\n") for text in texts], texts
        assert got["env"] == "".join(text + "\n" for text in texts), texts
    assert sorted(path.name for path in here.iterdir()) == ["out.txt"]


def test_a_value_names_one_file_whatever_is_in_it(program: Make, here: Path) -> None:
    main = program(
        """
        $ printf "%s" hi > ${a}
        $ printf "%s" there >> "${a}"
        return $(cat < ${a})
        """,
        "a",
    )
    for name in ("a b", "$(touch CANARY)", "; touch CANARY", "*", "&1", "-n", "ü🎈", "a\nb", "'"):
        assert main(name) == "hithere"
        assert [path.name for path in here.iterdir()] == [name]
        (here / name).unlink()


def test_bytes_that_are_no_text_survive_the_way_through_a_program(program: Make, here: Path) -> None:
    main = program("var raw = $(printf '\\377x')\n$ printf %s ${raw} > out")

    main()

    assert (here / "out").read_bytes() == b"\xffx"


def test_text_that_no_command_can_get_is_refused(program: Make) -> None:
    with pytest.raises(WrongValue, match="NUL"):
        program("$ echo ${a}", "a")("a\0b")
    with pytest.raises(WrongValue, match="surrogate"):
        program("$ echo ${a}", "a")("\ud800")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return $(printf 'a\\n\\n')", "a"),
        ("return $(printf 'b\\na\\n' | sort | head -1)", "a"),
        ("return $(echo one && echo two)", "one\ntwo"),
        ("return $(false && echo two || echo three)", "three"),
        ("return $(true || echo never)", ""),
        ("return $(true || echo never && echo two)", "two"),
        ("return $(echo one || echo never && echo two | tr a-z A-Z)", "one\nTWO"),
        ("if !($ false && echo never || false && echo never) { return $? }", 1),
        ("return [($ true), ($ false), ($ grep -q x /dev/null)]", [True, False, False]),
        ("if !($ test -d /nowhere) { return $? }", 1),
        ("if ($ sh -c 'exit 7') { }\nreturn $?", 7),
        ("$ true\nreturn $?", 0),
        ("return $(sh -c 'echo out; echo err >&2' 2>&1)", "out\nerr"),
        ("return $(sh -c 'echo out; echo err >&2' 2> /dev/null)", "out"),
        ("return $(sh -c 'echo out; echo err >&2' 2>&1 > /dev/null)", "err"),
        ("$ sh -c 'echo out; echo err >&2' &> both\nreturn read(\"both\")", "out\nerr\n"),
        ("$ echo a > f\n$ echo b >> f\nreturn $(cat < f | tr a-z A-Z)", "A\nB"),
        ('$ echo a > f 2> g\nreturn read("f") + read("g")', "a\n"),
        ("return $(yes | head -2)", "y\ny"),
        ('return "piped\\n" | $(tr a-z A-Z)', "PIPED"),
        ('return "x" | ($ grep -q x)', True),
        ('cat({ a: 1 }) > "f.json"\nreturn json(read("f.json"))', {"a": 1}),
        ('{ a: 1 } > "f.json"\n[2] >> "f.json"\nreturn read("f.json")', '{\n  "a": 1\n}\n[\n  2\n]\n'),
        ('"exact" > "f"\nreturn read("f")', "exact"),
        ('write("f", "t"); return exists("f") && !exists("g") && read("f") == "t"', True),
        ("var all = []\nfor var line in ($ printf 'a\\nb c\\n') { all.push(line) }\nreturn all", ["a", "b c"]),
        ("var all = []\nfor var line in ($ true) { all.push(line) }\nreturn all", []),
        ("return $(echo ${3 > 2})", "true"),
    ],
)
def test_commands_and_files_do_what_is_written_down(body: str, expected: Any, program: Make) -> None:
    assert program(body)() == expected


@pytest.mark.parametrize("first", ["&&", "||"])
@pytest.mark.parametrize("second", ["&&", "||"])
def test_commands_in_a_chain_run_as_a_shell_runs_them(first: str, second: str, program: Make) -> None:
    main = program(f'return [($ sh -c ${{a}} {first} sh -c ${{b}} {second} sh -c ${{c}}), read("ran")]', "a, b, c")
    for codes in product("01", repeat=3):
        one, two, three = (f"echo {name} >> ran; exit {code}" for name, code in zip("abc", codes, strict=True))
        Path("ran").unlink(missing_ok=True)
        code = subprocess.run(["sh", "-c", f"({one}) {first} ({two}) {second} ({three})"], check=False).returncode
        expected = [code == 0, Path("ran").read_text()]
        Path("ran").unlink()

        assert main(one, two, three) == expected, codes


@pytest.mark.parametrize(
    ("body", "code", "parts"),
    [
        ("$ sh -c 'echo first >&2; echo the reason >&2; exit 3'", 3, ["failed with exit code 3: first\nthe reason"]),
        ("var x = $(sh -c 'echo why >&2; exit 4')", 4, ["`sh -c 'echo why >&2; exit 4'` failed with exit code 4: why"]),
        ("$ true && false", 1, ["the command `false` failed with exit code 1"]),
        ("$ echo x | grep y", 1, ["the command `echo x | grep y` failed"]),
        ("$ sh -c 'kill -9 $$'", 137, ["failed with signal 9 (SIGKILL)"]),
        ("$ no-such-program x", 127, ["could not be started: there is no program no-such-program"]),
        ("$ echo x | no-such-program", 127, ["there is no program no-such-program"]),
        ("$ no-such-program | cat", 127, ["there is no program no-such-program"]),
        ("$ /etc/passwd", 126, ["/etc/passwd cannot be run (Permission denied)"]),
        ("$ cd /tmp", 127, ["there is no program cd (each command runs in the program's folder"]),
        ("$ cat < /no/such/file", 1, ["/no/such/file: No such file or directory"]),
        ("$ echo x > /no/such/folder/file", 1, ["/no/such/folder/file: No such file or directory"]),
        ("for var x in ($ sh -c 'exit 5') { }", 5, ["failed with exit code 5"]),
    ],
)
def test_a_command_that_fails_raises_with_its_code_and_what_it_complained(
    body: str, code: int, parts: list[str], program: Make
) -> None:
    with pytest.raises(CommandFailed) as caught:
        program(body)()

    assert caught.value.code == code
    assert [part for part in parts if part not in str(caught.value)] == []
    assert caught.value.place is not None and caught.value.place.line == 2


def test_the_error_can_be_caught_and_looked_at(program: Make) -> None:
    main = program("try { $ sh -c 'echo no >&2; exit 9' } catch e { return [e.kind, e.code, e.stderr, e.line, $?] }")

    assert main() == ["CommandFailed", 9, "no", 2, 9]


def test_what_a_command_complains_is_kept_in_its_last_part_only(program: Make) -> None:
    main = program("$ sh -c 'yes complaint | head -100000 >&2; echo the end >&2; exit 1'")

    with pytest.raises(CommandFailed) as caught:
        main()

    assert caught.value.stderr.endswith("the end")
    assert len(caught.value.stderr) <= 4096
    assert len(str(caught.value)) < 1000


def test_much_input_and_much_output_pass_through(program: Make) -> None:
    main = program("return (a | $(cat | cat)) == a", "a")

    assert main("line\n" * 400_000 + "end")


def test_descriptors_are_not_left_open(program: Make) -> None:
    main = program("if ($ sh -c 'exit 1' | cat < /dev/null 2>&1) { }\nreturn $(echo x <<< y)")
    main()
    before = open_now()

    for _ in range(5):
        main()

    assert opened_since(before) == []


def test_threads_that_run_their_first_commands_at_once_share_one_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.end_own()
    made: list[ForkServer] = []

    class Counted(ForkServer):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(children, "ForkServer", Counted)
    threads = 4
    together = threading.Barrier(threads)

    def run() -> int:
        together.wait(PATIENCE_S)
        commands = [pipeline.ProgramCommand(["true"], {}, ())]
        return pipeline.run_pipeline(commands, given=None, capture=False, timeout_s=PATIENCE_S, guarded=True).code

    with ThreadPoolExecutor(threads) as pool:
        codes = [running.result(PATIENCE_S) for running in [pool.submit(run) for _ in range(threads)]]
    pipeline.end_own()
    left = [server for server in made if server.alive]
    for server in left:
        server.kill()

    assert codes == [0] * threads
    assert (len(made), left) == (1, [])
