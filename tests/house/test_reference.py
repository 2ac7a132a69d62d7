"""The reference has every public name, method, error, setting, command, option, exit code and environment variable."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house import reference
from tests.house.test_docs import reference_pages
from tests.support import DOCS, ROOT

import postroom
from postroom import errors
from postroom.cli import exit_codes, options, pages
from postroom.cli.table import COMMANDS
from postroom.core.config import Config

MAX_WORDS = 1500
#: Written by hand, as the others are from the code.
BY_HAND = {"reference/environment.md"}
#: Modules whose names are public, and stand in their `__all__`.
MODULES = ("postroom", "postroom.aio", "postroom.testing", "postroom.inference")


@pytest.fixture(scope="module")
def text() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference").rglob("*.md")))


def test_the_pages_are_those_that_the_code_makes() -> None:
    """When this fails: `python -m tests.house.test_docs` writes them anew."""
    found = {page.relative_to(DOCS).as_posix() for page in [DOCS / "reference.md", *(DOCS / "reference").rglob("*.md")]}
    made = reference_pages()

    assert found - BY_HAND == set(made)
    assert [name for name, page in made.items() if (DOCS / name).read_text(encoding="utf-8") != page] == []


def headings(text: str) -> set[str]:
    return set(re.findall(r"^##+ (\S+)$", text, re.M))


def test_every_public_name_has_its_place(text: str) -> None:
    modules = {"aio", "patterns", "coordinate", "communications"}  # each is described by what is in it
    wanted = {
        f"{module}.{name}".removeprefix("postroom.")
        for module in MODULES
        for name in importlib.import_module(module).__all__
        if module != "postroom" or name not in modules
    }
    wanted |= {f"patterns.{name}" for name, thing in public_functions(postroom.patterns)}
    wanted |= {kind.__name__ for kind in reference.kinds_of_errors()}

    assert sorted(wanted - headings(text)) == []


def public_functions(module: object) -> Iterator[tuple[str, object]]:
    for name, thing in vars(module).items():
        if (
            inspect.isfunction(thing)
            and not name.startswith("_")
            and thing.__module__ == getattr(module, "__name__", "")
        ):
            yield name, thing


def missing_members(cls: type, text: str) -> list[str]:
    """The members of a class that the text does not describe: attributes stand in tables, methods under headings."""
    known = headings(text) | set(re.findall(r"^\| `(\w+)\b", text, re.M))
    shown = {name for name in dir(cls) if not name.startswith("_")} | set(reference.attributes_of(cls))
    ours = {name for base in reference.ours(cls) for name in vars(base)} | set(reference.attributes_of(cls))
    promised = [name for name in sorted(shown & ours) if not reference.is_internal(cls, name)]
    names = {base.__name__ for base in cls.__mro__}
    described = {each.rpartition(".")[2] for each in known if each.rpartition(".")[0].rpartition(".")[2] in names}
    return [f"{cls.__name__}.{name}" for name in promised if name not in described and name not in known]


def test_every_method_and_attribute_has_its_place(text: str) -> None:
    assert [name for cls in reference.placed() for name in missing_members(cls, text)] == []


def test_a_method_that_is_missing_is_found_missing() -> None:
    assert "Room.peek" in missing_members(postroom.Room, "### Room.receipt\n| `url` | str | its address |")
    assert "Room.receipt" not in missing_members(postroom.Room, "### Room.receipt\n")


def test_every_member_says_what_it_is() -> None:
    silent = []
    for cls in reference.placed():
        attributes, methods = reference.attributes_of(cls), reference.methods_of(cls)
        for name in reference.members_of(cls):
            said = attributes[name].about if name in attributes else inspect.getdoc(methods[name])
            silent += [f"{cls.__name__}.{name}"] * (not said)

    assert silent == []


def test_what_is_called_internal_is_there() -> None:
    classes = {cls.__name__: cls for cls in [*reference.placed(), postroom.aio.Room]}
    classes["Room"] = postroom.aio.Room  # the synchronous one has none
    gone = [
        f"{name}.{member}"
        for name, members in reference.INTERNAL.items()
        for member in members
        if not hasattr(classes[name], member) and member not in reference.attributes_of(classes[name])
    ]

    assert gone == []


def test_every_method_of_the_asyncio_room_has_its_place() -> None:
    page = (DOCS / "reference" / "asyncio.md").read_text(encoding="utf-8")
    missing = [
        f"{name}.{method}"
        for name in postroom.aio.__all__
        if isinstance(cls := getattr(postroom.aio, name), type)
        for method in reference.methods_of(cls)
        if not reference.is_internal(cls, method) and f".{method}(" not in page.partition(f"## aio.{name}\n")[2]
    ]

    assert missing == []


def test_every_setting_has_its_meaning() -> None:
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")

    rows = dict(re.findall(r"^\| `(\w+): .*?(?<!\\)\| (.+?) \|$", page, re.M))
    assert set(rows) == set(Config.__struct_fields__)
    assert min(map(len, rows.values())) > 10


def test_every_command_and_option_has_its_place(text: str) -> None:
    missing = []
    for name in COMMANDS:
        part = text.partition(f"\n## postroom {name}\n")[2].partition("\n## ")[0]
        common = text.partition("\n## Options of every command\n")[2].partition("\n## ")[0]
        for action in options.command_of(name)[0]._actions:
            words = action.option_strings or [str(action.metavar or action.dest)]
            missing += [f"{name} {word}" for word in words if not re.search(rf"`[^`]*{re.escape(word)}", common + part)]
        missing += [example for example in COMMANDS[name].examples if f"    {example}\n" not in part + "\n"]

    assert missing == []


def test_every_exit_code_has_its_meaning() -> None:
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    ours = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    codes = (ours - {exit_codes.SIGTERM}) | {128 + exit_codes.SIGTERM}

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)} == codes


VARIABLE = re.compile(r"(POSTROOM|OLLAMA|OPENAI|XDG|CLAUDE|CODEX|GEMINI)(_[A-Z]+)+|CLAUDECODE|PLUGIN_ROOT")


def variables_in(source: str) -> set[str]:
    """The environment variables that a program names: words by their spelling, and what is asked of an environment."""
    found: set[str] = set()
    if not re.search(rf"environ|getenv|{VARIABLE.pattern}", source):
        return found  # most files name none, and need not be parsed
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
            found.add(node.value)
        if isinstance(node, ast.Call) and re.search(r"environ(ment)?\.(get|pop)$|getenv$", ast.unparse(node.func)):
            asked = node.args[:1]
        if isinstance(node, ast.Subscript) and re.search(r"environ(ment)?$", ast.unparse(node.value)):
            asked = [node.slice]
        found |= {each.value for each in asked if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


def test_every_environment_variable_has_its_meaning() -> None:
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    read = {name for path in (ROOT / "src").rglob("*.py") for name in variables_in(path.read_text(encoding="utf-8"))}
    named = {name for cell in re.findall(r"^\| (`.*?) \|", page, re.M) for name in re.findall(r"`(\w+)`", cell)}

    assert len(read) > 20
    assert sorted(read - named) == []
    # the name of the first is put together, the second is read by rich, the third through `os.get_exec_path`
    others = {"POSTROOM_CLAUDE", "NO_COLOR", "PATH"}
    assert sorted(named - read) == sorted(others)


def test_a_variable_that_is_read_is_found() -> None:
    assert variables_in("import os; a = os.environ.get('LANG'); b = environment['TZ']; C = 'POSTROOM_X'") == {
        "LANG", "TZ", "POSTROOM_X",
    }  # fmt: skip


def test_a_page_of_the_reference_has_at_most_1500_words() -> None:
    found = [DOCS / "cli.md", *(DOCS / "cli").rglob("*.md"), *(DOCS / "reference").rglob("*.md")]
    long = {page.name: words for page in found if (words := len(page.read_text(encoding="utf-8").split())) > MAX_WORDS}

    assert long == {}


def test_the_documents_name_the_address_of_the_site_that_the_program_names() -> None:
    assert pages.SITE in (DOCS / "cli.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["cli.md", "cli/messages.md"])
def test_the_commands_of_a_page_run_one_after_the_other_as_they_stand(tmp_path: Path, page: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 3
    program = ["set -e", 'postroom() { "$PYTHON" -m postroom "$@"; }']
    if page != "cli.md":  # which makes the room itself; elsewhere there is one, with mail of today
        send = "postroom send bob 'the build failed' --as ci --type build --new"
        program += ["postroom init", send, send, "postroom receive --as bob --ack"]
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "POSTROOM_CONFIG")}

    done = subprocess.run(
        ["bash", "-c", "\n".join([*program, *blocks])],
        cwd=tmp_path, env={**environment, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert errors.PostroomError.__name__ not in done.stderr
