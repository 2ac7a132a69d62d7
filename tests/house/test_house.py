"""The rules of the house, as tests: sizes, where time and chance come from, what is public, where links lead."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.conftest import LONG_ON_NATS, SHORT_ON_NATS
from tests.support import ROOT

PACKAGE = ROOT / "src" / "postroom"
MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = sorted(
    [*MODULES, ROOT / "conftest.py", *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
)

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60
MAX_P95_FUNCTION_LINES = 40
MAX_METHODS = 45
MAX_CLASS_CODE_LINES = 450

#: The names that programs lean on. Adding is free; taking away or renaming breaks somebody.
PUBLIC_NAMES = """
    open Room Agent Received Answers Groups People PersonQuestion PersonAnswer Message Receipt Schedule
    Session Mailroom Mailbox worker SessionFailed Deadlock SessionEnded UnknownSession NotStartable
    Board Task HeldTask Reservation patterns
    CommunicationSystem TokenBucket CircuitBreaker CircuitState
    PostroomError InvalidMessage TooManyHops RateLimited IdentityRefused UnknownMessage UnknownGroup NoMail ReceiveTimeout NotAcked
    LateAck
    UnknownTask DependencyCycle WrongDirection ReservationConflict
    AskFailed PeerGone Refused NotAnswered Withdrawn AskTimeout NotNeeded QuestionClosed CircuitOpen
    Evaluation Coordinator Decision coordinate ModelError ModelMissing ModelTimeout
    WorkerPool WorkerError WorkerNotReady WorkerTimeout WorkerDied EvaluatorFailed EvaluationAborted
    RequestDropped QueueFull WorkerStopped PoolFailed
    RoomError RoomNotFound RoomNotAllowed RoomClosed RoomBusy RoomUnsafe RoomDamaged RoomUnreachable RoomGone RoomMoved OutcomeUnknown
""".split()

ROOM_NAMES = "agent groups people session board reserve receipt thread peek search events watch replay dead_letters requeue redact unredact redactions retention stats agents attach close".split()
AGENT_NAMES = "send withdraw publish subscribe unsubscribe receive poll listen ask ask_many serve heartbeat".split()
SESSION_NAMES = "mark_failed check_failed failure cleanup delegate".split()
RECEIVED_NAMES = "ack retry dead extend reply refuse".split()
BOARD_NAMES = "add claim abort tasks watch".split()
POOL_NAMES = "workers initialize_worker evaluate_message serve follow drain shutdown".split()
POOL_WORKER_NAMES = "pid ping on abort evaluate shutdown".split()
HELD_NAMES = "done blocked release extend aborted".split()


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file with its length in lines, its docstring left out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = len((ast.get_docstring(node, clean=False) or "").splitlines())
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1 - said


def test_no_file_is_longer_than_800_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in PYTHON_FILES
        if (lines := path.read_text(encoding="utf-8").count("\n")) > MAX_FILE_LINES
    }

    assert long == {}


def test_functions_fit_on_a_screen() -> None:
    lengths = dict(function for path in MODULES for function in functions_of(path))
    long = {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    ordered = sorted(lengths.values())

    assert long == {}
    assert ordered[int(len(ordered) * 0.95)] < MAX_P95_FUNCTION_LINES


class ClassSize(NamedTuple):
    """How many methods the body of a class has itself, and how many lines of code; docstrings and comments are none."""

    methods: int
    code_lines: int


_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines_of(text: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines of a file that are neither blank nor comment nor docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for each in tokens if each.type not in _NO_CODE for n in range(each.start[0], each.end[0] + 1)}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def large_classes(text: str) -> dict[str, ClassSize]:
    """The classes of a file that have too many methods or too many lines of code."""
    tree = ast.parse(text)
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            lines = {*range(node.lineno, (node.end_lineno or 0) + 1)}
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > MAX_METHODS or len(lines) > MAX_CLASS_CODE_LINES:  # few files need be read by tokens
                size = ClassSize(methods, len(lines & code_lines_of(text, tree)))
                if size.methods > MAX_METHODS or size.code_lines > MAX_CLASS_CODE_LINES:
                    found[node.name] = size
    return found


#: Classes that are larger, and not cut yet: their parts would have to know each other. They must not grow.
LARGER = {"World": ClassSize(67, 485), "ScheduleJudge": ClassSize(51, 452)}


def test_a_class_has_at_most_45_methods_and_450_lines_of_code() -> None:
    large = {name: size for path in MODULES for name, size in large_classes(path.read_text(encoding="utf-8")).items()}

    assert {name: size for name, size in large.items() if size > LARGER.get(name, ClassSize(0, 0))} == {}


def test_the_rule_about_classes_counts_their_own_methods_and_lines_of_code_alone() -> None:
    method = '    def m{}(self):\n        """Says\n        it."""\n\n        # why\n{}'
    text = 'class A:\n    """Words."""\n\n    class B:\n        def inner(self):\n            pass\n'
    few, many = (
        text + "".join(method.format(n, '        return """a\nb"""\n' * times) for n in range(45)) for times in (4, 5)
    )

    assert large_classes(few) == {}
    assert large_classes(many) == {"A": ClassSize(45, 1 + 3 + 45 * (1 + 5 * 2))}
    assert large_classes(few + method.format(45, "")) == {"A": ClassSize(46, 1 + 3 + 45 * (1 + 4 * 2) + 1)}


#: Class names that stand for two things, each meant: the twins of `postroom.aio`, and words that two parts both need.
MAX_NAMES_TWICE = 12


def test_few_class_names_stand_for_two_things() -> None:
    found: dict[str, set[Path]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).add(path)
    twice = sorted(name for name, paths in found.items() if len(paths) > 1)

    assert len(twice) <= MAX_NAMES_TWICE, twice


#: Imports stand at the top of a file. Inside a function they save the start of a command, or belong to an optional
#: dependency; a module that few need is deferred by its package (`core/system/startup.py`).
MAX_INNER_IMPORTS = 50
MAY_IMPORT_INSIDE = ("cli/", "doors/hook/entry.py")
OPTIONAL_IMPORTS = {"from .client import Error, RoomClient": "nats-py"}


def inner_imports(text: str) -> list[str]:
    """The imports inside the functions of a file."""
    if not re.search(r"^[ \t].*\bimport\b", text, re.MULTILINE):
        return []  # most files have none, and need not be parsed
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inner = {node for function in functions for node in ast.walk(function)}
    return [ast.unparse(node) for node in inner if isinstance(node, ast.Import | ast.ImportFrom)]


def test_imports_stand_at_the_top_but_where_a_command_starts() -> None:
    inner = {str(path.relative_to(PACKAGE)): inner_imports(path.read_text(encoding="utf-8")) for path in MODULES}
    elsewhere = [
        f"{name}: {text}"
        for name, texts in inner.items()
        for text in texts
        if not name.startswith(MAY_IMPORT_INSIDE) and text not in OPTIONAL_IMPORTS
    ]

    assert elsewhere == []
    assert sum(map(len, inner.values())) <= MAX_INNER_IMPORTS


def test_the_rule_about_imports_inside_functions_catches() -> None:
    text = "import os\nif TYPE_CHECKING:\n    import re\nclass A:\n    async def f(self):\n        def g():\n            import x.y"

    assert inner_imports(text) == ["import x.y"]


def test_every_deferred_module_is_there() -> None:
    from postroom.cli import DEFERRED

    packages = [path for path in MODULES if "= deferring(" in path.read_text(encoding="utf-8")]
    own = [
        path.with_name(f"{argument.value}.py")
        for path in packages
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "deferring"
        for argument in call.args[1:]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]

    assert len(packages) >= 8
    assert [path for path in own if not path.is_file()] == []
    assert [name for name in DEFERRED if find_spec(name) is None] == []


#: What brings in time or chance past the clock: module, and the names in it that do.
TIME_AND_CHANCE = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "random": {"*"},
    "uuid": {"uuid1", "uuid4"},
    "datetime": {"now", "utcnow", "today"},
}


def time_and_chance_in(text: str) -> list[str]:
    """Where a file takes time or chance from the machine: `time.time()`, `from time import sleep`, `import random`."""
    found: list[str] = []
    if not re.search(rf"\b(?:{'|'.join(TIME_AND_CHANCE)})\.|\bfrom (?:{'|'.join(TIME_AND_CHANCE)})\b", text):
        return found  # most files say nothing of that kind, and need not be parsed
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = TIME_AND_CHANCE.get(node.value.id, set())
            if node.attr in names or "*" in names:
                found.append(f"line {node.lineno}: {node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in TIME_AND_CHANCE:
            names = TIME_AND_CHANCE[node.module]
            found += [
                f"line {node.lineno}: {node.module}.{a.name}" for a in node.names if a.name in names or "*" in names
            ]
    return found


def test_time_and_chance_come_in_through_the_clock_alone() -> None:
    found = {
        str(path.relative_to(PACKAGE)): places
        for path in MODULES
        if path.name != "clock.py" and (places := time_and_chance_in(path.read_text(encoding="utf-8")))
    }

    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.time()",
        "import time\ntime.sleep(1)",
        "from time import sleep",
        "import random\nrandom.random()",
        "from uuid import uuid4",
        "import uuid\nuuid.uuid4()",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_the_rule_about_time_and_chance_catches(code: str) -> None:
    assert time_and_chance_in(code)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ["apsw", "msgspec", "rich", "argparse", "subprocess", "asyncio"]
    program = f"import sys, postroom; print([name for name in {heavy} if name in sys.modules])"

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import postroom

    missing = [name for name in PUBLIC_NAMES if not hasattr(postroom, name)]

    assert missing == []
    assert [name for name in PUBLIC_NAMES if name not in dir(postroom)] == []


def test_no_module_takes_the_place_of_a_public_name_of_its_package() -> None:
    """Importing `package.name` sets `package.name` to the module: a function of that name would be gone from then on."""
    folders = [path.parent for path in MODULES if path.name == "__init__.py"]
    packages = [import_module(".".join(folder.relative_to(PACKAGE.parent).parts)) for folder in folders]
    both = [
        (package, name)
        for package in packages
        for name in getattr(package, "__all__", ())
        if find_spec(f"{package.__name__}.{name}")
    ]

    assert [
        name for package, name in both if getattr(package, name) is not import_module(f"{package.__name__}.{name}")
    ] == []
    assert {name for _, name in both} == {"aio", "communications", "patterns"}


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        ("Room", ROOM_NAMES),
        ("Agent", AGENT_NAMES),
        ("Received", RECEIVED_NAMES),
        ("Session", SESSION_NAMES),
        ("Board", BOARD_NAMES),
        ("HeldTask", HELD_NAMES),
        ("PoolWorker", POOL_WORKER_NAMES),
        ("Reservation", ["release"]),
    ],
)
def test_every_public_method_is_there(owner: str, names: list[str]) -> None:
    import postroom

    assert [name for name in names if not hasattr(getattr(postroom, owner), name)] == []


def test_the_database_file_is_opened_by_sqlite_alone() -> None:
    """Closing any descriptor on the file drops the process's locks on it: no open(), no Path.read_bytes(), no copy.

    Simulated rooms are in one process, whose connections keep each other out without the system's locks.
    """
    readers = re.compile(r"\b(?:open|copy2?|copyfile|read_bytes|write_bytes|read_text)\(")
    suspects = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in MODULES
        if "simulation" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if readers.search(line) and re.search(r"messages\.db|MESSAGES_DB|\bDATABASE\b|db_path", line)
    ]

    assert suspects == []


def test_the_standard_librarys_sqlite_is_nowhere() -> None:
    """Two copies of SQLite in one process do not see each other's locks."""
    found = [
        str(path)
        for path in MODULES
        if re.search(r"^\s*(?:import|from) sqlite3", path.read_text(encoding="utf-8"), re.M)
    ]

    assert found == []


def markdown_files() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")])


def test_every_link_in_the_documents_leads_somewhere() -> None:
    broken = []
    for path in markdown_files():
        for target in re.findall(r"(?:\]\(|(?:src|srcset|href)=\")([^)\s\"]+)[)\"]", path.read_text(encoding="utf-8")):
            place, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            there = (path.parent / place).resolve() if place else path
            if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors_of(there)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")

    assert broken == []


def anchors_of(path: Path) -> set[str]:
    """The anchors of a page's headings, as they are commonly made, and those that it writes down (`<a id="...">`)."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    made = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([\w-]+)">', text))


def test_the_constraints_name_no_host() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")

    assert all(
        re.fullmatch(r"[A-Za-z0-9_.\-]+==[\w.+]+", line) for line in text.splitlines() if not line.startswith("#")
    )


def test_the_one_screen_pages_are_one_screen() -> None:
    lengths = {name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in ("CONTRIBUTING.md", "AGENTS.md")}

    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}


def of_its_own() -> dict[str, str]:
    """The environment of a run inside this one, without what pytest says in it about the outer one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return own | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take a second each time


@pytest.mark.slow
def test_the_shares_of_the_long_tests_are_all_of_them_and_none_twice(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: minutes\n", encoding="utf-8")
    (tmp_path / "test_storms.py").write_text(
        "import pytest\n\n@pytest.mark.long\n@pytest.mark.parametrize('n', range(4))\ndef test_storm(n): pass\n"
        "\ndef test_short(): pass\n",
        encoding="utf-8",
    )

    def run(share: str) -> tuple[int, set[str]]:
        words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "long", "--long-share", share]
        done = subprocess.run(words, cwd=tmp_path, env=of_its_own(), capture_output=True, text=True, check=False)
        return done.returncode, set(re.findall(r"test_storm\[\d\]", done.stdout))

    shares = [run(f"{number}/5") for number in range(5)]

    assert [code for code, _ in shares] == [0] * 5  # also of the one that is empty
    assert sorted(len(names) for _, names in shares) == [0, 1, 1, 1, 1]
    assert len(set().union(*(names for _, names in shares))) == 4


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_share_of_a_run_is_not_that_of_the_runs_inside_it(tmp_path: Path, processes: str) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_inside.py").write_text(
        "import os, pytest\n\n@pytest.mark.parametrize('n', range(4))\n"
        "def test_sees(n): assert not [name for name in os.environ if 'SHARE' in name or 'LONG' in name]\n",
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "pytest", "-v", "-p", "xdist", "-p", "no:cacheprovider", "-n", processes]
    share = {"POSTROOM_SHARE": "1/4", "POSTROOM_LONG_SHARE": "0/1", "POSTROOM_LONG_FOR_S": "60"}
    done = subprocess.run(
        words, cwd=tmp_path, env=of_its_own() | share, capture_output=True, text=True, check=False
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"test_sees\[\d\]", done.stdout)) == {"test_sees[1]"}


@pytest.mark.slow
def test_what_tests_leave_among_the_temporary_files_goes_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: minutes\n", encoding="utf-8")
    (tmp_path / "test_left.py").write_text(
        "import tempfile\n\ndef test_that_leaves_something(tmp_path): print('left', tempfile.mkdtemp())\n",
        encoding="utf-8",
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = [sys.executable, "-m", "pytest", "-v", "-rP", "-p", "xdist", "-p", "no:cacheprovider", "-n"]
    for processes in ("0", "1"):
        done = subprocess.run(
            [*words, processes], cwd=tmp_path, env=of_its_own() | {"TMPDIR": str(temporary)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

        assert done.returncode == 0, done.stdout
        assert f"left {temporary}" in done.stdout
        assert [each.name for each in temporary.iterdir() if not each.name.startswith("pytest-of-")] == []
        assert list(temporary.glob("pytest-of-*/*/test_that_leaves_something*")), "pytest keeps its own"


@pytest.mark.slow
def test_a_run_that_is_cut_off_has_told_its_failures_and_leaves_out_what_is_too_late(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    settings = "faulthandler_timeout = 2\nfaulthandler_exit_on_timeout = true\nmarkers =\n    long: minutes\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}", encoding="utf-8")
    (tmp_path / "test_storms.py").write_text(
        "import threading\nimport pytest\n\n@pytest.mark.long\ndef test_late(): raise AssertionError\n"
        "\ndef test_wrong(): assert 0, 'it is wrong'\n\ndef test_hangs(): threading.Event().wait()\n",
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--long-for", "0"]

    done = subprocess.run(
        words, cwd=tmp_path, env=of_its_own(), capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 1
    assert "test_late SKIPPED (not run" in done.stdout
    assert "call of test_storms.py::test_wrong failed" in done.stdout
    assert "it is wrong" in done.stdout
    assert "in test_hangs" in done.stderr


def test_the_suites_that_are_long_on_nats_are_there() -> None:
    assert [name for name in LONG_ON_NATS if not (ROOT / name).exists()] == []
    kept = [name.rstrip("[").partition("::") for name in SHORT_ON_NATS]
    assert [test for path, _, test in kept if f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8")] == []
