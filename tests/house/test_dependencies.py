"""docs/dependencies.md names every dependency with its reason and licence, and every private name that we use of them.

A private name may go with any release, so a package of which one is used has an upper bound at a minor version.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tests.house.test_layers import SOURCE, THIRD_PARTY
from tests.support import DOCS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: The extras that a user may need, which `all` has.
OF_USERS = ("nats", "web", "mcp", "acp", "ollama")
#: Modules whose distribution has another name.
DISTRIBUTION = {"nats": "nats-py"}


def direct(lines: Iterable[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): each for each in found if each.name != "postroom"}


def table_of(title: str) -> dict[str, list[str]]:
    """The rows of the table below a heading, by the package in their first cell."""
    text = (DOCS / "dependencies.md").read_text(encoding="utf-8")
    part = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\| (`.*) \|$", part, re.M)]
    assert rows, title
    return {row[0].strip("`"): row[1:] for row in rows}


INSTALLED = table_of("What you install")
COMING_ALONG = table_of("What comes with them")
OF_DEVELOPERS = table_of("What only developers install")


def test_all_is_everything_that_a_user_may_need() -> None:
    (all,) = [Requirement(line) for line in EXTRAS["all"]]

    assert (all.name, all.extras) == ("postroom", set(OF_USERS))


@pytest.mark.parametrize("table", ["users", "developers"])
def test_every_dependency_is_on_the_page_with_what_needs_it_and_why(table: str) -> None:
    needed: dict[str, list[str]] = {}
    for part, lines in {"postroom": PROJECT["dependencies"], **EXTRAS}.items():
        for name in direct(lines):
            needed.setdefault(name, []).append(part)
    of_users = {name for name, parts in needed.items() if {"postroom", *OF_USERS} & set(parts)}
    rows = INSTALLED if table == "users" else OF_DEVELOPERS

    assert {name: sorted(row[0].split(", ")) for name, row in rows.items()} == {
        name: sorted(parts) for name, parts in needed.items() if (name in of_users) == (table == "users")
    }
    assert [name for name, row in rows.items() if not row[1] or not row[2]] == []


def test_what_comes_along_is_on_the_page() -> None:
    def add(requirement: Requirement, known: set[str]) -> None:
        name = canonicalize_name(requirement.name)
        if name in known:
            return
        known.add(name)
        for line in importlib.metadata.requires(name) or ():
            further = Requirement(line)
            extras = requirement.extras or {""}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                add(further, known)

    found: set[str] = set()
    for each in direct(PROJECT["dependencies"] + [line for extra in OF_USERS for line in EXTRAS[extra]]).values():
        add(each, found)

    assert found - set(INSTALLED) - set(COMING_ALONG) == set()


def test_the_licences_are_those_that_the_packages_say() -> None:
    page = {name: row[1] for name, row in (INSTALLED | COMING_ALONG | OF_DEVELOPERS).items()}
    said = {}
    for name in page:
        try:
            said[name] = importlib.metadata.metadata(name).json.get("license_expression")
        except importlib.metadata.PackageNotFoundError:
            continue
    known = {name: licence for name, licence in said.items() if licence is not None}

    assert len(known) > 20
    assert {name: page[name] for name in known} == known


def test_everything_that_is_imported_is_asked_for() -> None:
    """Also what would come along: its owner may stop using it."""
    asked = direct(PROJECT["dependencies"] + [line for extra in (*OF_USERS, "test") for line in EXTRAS[extra]])

    assert [name for name in THIRD_PARTY if DISTRIBUTION.get(name, name) not in asked] == []


#: Names of our own that a package happens to have too.
OURS = {"_config", "_json", "_listen", "_lock", "_progress", "_thread"}


def private_names_in(module: str) -> set[str]:
    """Every private name in the installed sources of a package."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    sources = [path for folder in spec.submodule_search_locations or () for path in Path(folder).rglob("*.py")]
    return {name for path in sources for name in re.findall(r"\b_[a-z]\w*", path.read_text("utf-8", "replace"))}


def test_the_private_names_of_others_are_on_the_page_and_their_packages_have_an_upper_bound() -> None:
    theirs = {module: private_names_in(module) for module in THIRD_PARTY if module not in ("pytest", "hypothesis")}
    found: dict[tuple[str, str], set[str]] = {}
    for path in (SOURCE / "postroom").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        modules = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.M)) & set(theirs)
        used = {node.attr for node in ast.walk(ast.parse(text)) if modules and isinstance(node, ast.Attribute)}
        used |= set(re.findall(r"^    (?:async )?def (\w+)", text, re.M))  # what a class of theirs calls, replaced
        for module in modules:
            if names := (used & theirs[module]) - OURS:
                file = path.relative_to(SOURCE / "postroom").as_posix()
                found[DISTRIBUTION.get(module, module), f"`{file}`"] = names

    page = table_of("Names that are not public")
    assert {(name, row[0]): set(re.findall(r"`(\w+)`", row[1])) for name, row in page.items()} == found
    asked = direct([line for extra in OF_USERS for line in EXTRAS[extra]])
    for name in {name for name, _ in found}:
        tested = Version(importlib.metadata.version(name))
        assert f"{tested.major}.{tested.minor + 1}" not in asked[name].specifier, f"{name} has no upper bound"
    assert "1.0" not in asked["uvicorn"].specifier
