"""The private names of nats-py that rooms on NATS use: they stand in one file, and every version that the extra allows
has them.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from tests.support import ROOT

import postroom.stores.nats
from postroom.stores.nats.client import RoomClient

PACKAGE = Path(inspect.getfile(postroom.stores.nats)).parent
ADAPTER = PACKAGE / "client.py"
PIN = re.compile(r"nats-py >= (\d+)\.(\d+), < (\d+)\.(\d+)")
#: Names of Python, and of the adapter itself, that begin with an underscore too.
OURS = {"_getframe", "_replace", "_access", "_ears", "_troubled"}
#: What the names below belong to, where it is not the client itself.
OWNERS = {
    "_io_writer": TcpTransport(),
    "_id": Subscription(Client()),
    "_over_ssl": asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=(loop := asyncio.new_event_loop())), loop=loop),
}
loop.close()


def foreign_names(file: Path) -> Iterator[str]:
    """Private names that a file uses of objects which are not its own."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in OURS:
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if file == ADAPTER or not is_own:
                yield node.attr


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.name)
def test_only_the_adapter_uses_private_names_of_others(file: Path) -> None:
    assert file == ADAPTER or not [*foreign_names(file)]


def test_nats_py_has_every_private_name_that_the_adapter_uses() -> None:
    names = {*foreign_names(ADAPTER)}
    client = Client()

    assert len(names) > 5
    assert not [name for name in names if not hasattr(OWNERS.get(name, client), name)]


def test_the_adapters_own_names_are_none_of_nats_py() -> None:
    own = {name for name in vars(RoomClient) if name[0] != "_"} | {"server", "_access", "_ears", "_troubled"}

    assert own >= {"hear", "send", "sent", "unhear"}
    assert not [name for name in own if hasattr(Client(), name)]


def test_nats_py_takes_what_the_overridden_methods_are_given() -> None:
    overridden = [name for name in vars(RoomClient) if re.match("_[a-z]", name)]

    assert len(overridden) >= 5
    for name in overridden:
        ours, theirs = (inspect.signature(getattr(each, name)).parameters for each in (RoomClient, Client))
        assert [*ours] == [*theirs], name


def test_the_version_of_nats_py_is_one_of_those_that_were_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (pin,) = filter(None, map(PIN.fullmatch, extras["nats"]))
    first, until = (int(pin[1]), int(pin[2])), (int(pin[3]), int(pin[4]))
    here = tuple(int(part) for part in version("nats-py").split(".")[:2])

    assert first <= here < until, (
        f"not tried with nats-py {here}: run the tests of the stores with it, then widen the pin"
    )
    assert (first, until) == ((2, 15), (2, 17)), "the tests of the stores were run with 2.15 and with 2.16"
    assert "postroom[nats]" in extras["test"]
    assert not [each for name in extras for each in extras[name] if each.startswith("nats-py") and each != pin[0]]
