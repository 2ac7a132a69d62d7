"""Names and files that chance made: nobody gets out of the tree, nothing breaks, no message is lost.

The story. Names of agents, channels and actions of every kind: dots and slashes, bytes of zero, long ones, ones that look
encoded, ones with surrogates. Then files of every kind in inboxes: cut, mixed up, of odd types and sizes, under odd
names, also such as are not UTF-8, links and pipes among them.

The invariant. A name leads to one folder of its own below its parent, and back. Every file that was dropped is a message,
or is set aside with its reason, or lies where it lay because it was not meant as one; and the room goes on.
"""

from __future__ import annotations

import json
import os
import random
import string
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.errors import InvalidMessage
from postroom.stores.contract import Query, Want
from postroom.stores.files.names import (
    another_of,
    file_of,
    folder_of,
    is_cut,
    is_message_file,
    kept_as,
    key_of_us,
    name_of,
    us_of_key,
)
from postroom.stores.files.store import FilesStore

from .support import count, seed

PIECES = (
    "..", ".", "/", "\\", "\0", "~", "%", "%2F", "%2E%2E", "%00", "_channel", "_", "-", " ", "\n", "\x7f", "\ud800", "ü",
    "\u202e", "\U0001f4ee", "a", "B", "é", "e\u0301", ".postroom", "inbox", "x" * 40, "ÿ" * 30, ".json", "con", ":", "*", "?",
)  # fmt: skip


def any_name(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.6:
        return "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 6)))
    if kind < 0.8:
        return "".join(chr(chance.randrange(0x250)) for _ in range(chance.randint(1, 90)))
    return "".join(chance.choice(string.printable) for _ in range(chance.randint(1, 255)))


def is_valid(name: str) -> bool:
    try:
        check(Draft(from_agent=name, payload={}))
    except InvalidMessage:
        return False
    return True


def check_names(names: int, figure: Callable[[str], None]) -> None:
    chance = random.Random(seed())
    folders: dict[str, str] = {}
    valid = 0
    for number in range(names):
        name = any_name(chance)
        try:
            decoded = name_of(name)  # as a folder that somebody made by hand
            assert decoded is None or is_valid(decoded)
            kept = kept_as(number, name)
            assert "/" not in kept or "/" in name
        except UnicodeEncodeError:
            assert not is_valid(name)
        if not is_valid(name):
            continue
        valid += 1
        folder = folder_of(name)
        assert_is_a_file_name(folder)
        assert folders.setdefault(folder, name) == name, "two names share a folder"
        assert is_cut(folder) or name_of(folder) == name
        us = chance.randrange(2**52)
        file = file_of(us, name)
        assert_is_a_file_name(file)
        assert_is_a_file_name(another_of(file, 3))
        assert_is_a_file_name(kept_as(key_of_us(us), file))
        assert is_message_file(file)
        assert us_of_key(key_of_us(us)) == us
    figure(f"files: {names} names by chance (seed {seed()}), {valid} of them valid; none leads out of its folder")


def assert_is_a_file_name(text: str) -> None:
    assert text.isascii(), text
    assert 0 < len(text) <= 255
    assert text[0] not in "._"
    assert not {"/", "\0", "\n"} & set(text)


@pytest.mark.slow
def test_names_by_chance_lead_nowhere_else(figure: Callable[[str], None]) -> None:
    check_names(count("FILE_NAMES", 10_000), figure)


@pytest.mark.long
def test_a_million_names_lead_nowhere_else(figure: Callable[[str], None]) -> None:
    check_names(count("FILE_NAMES_LONG", 1_000_000), figure)


@pytest.mark.slow
def test_mail_under_names_by_chance_stays_in_the_tree_and_arrives(tmp_path: Path) -> None:
    chance = random.Random(seed() + 1)
    outside = {path.name for path in tmp_path.iterdir()}
    with closing(FilesStore(tmp_path / "room", Config(), ManualClock())) as store:
        for _ in range(count("NAMED_MAIL", 150)):
            name = any_name(chance)
            if not is_valid(name):
                continue
            draft = check(Draft(from_agent=name, to_agent=name, channel=name, type=name, payload={"name": name}))
            (id,) = store.put([draft])
            (delivery,) = store.claim(Want(agent=name, lease_s=60, limit=2)).deliveries
            assert (delivery.message.id, delivery.message.payload) == (id, {"name": name})
            assert store.settle(delivery.ticket, "acked").held
    assert {path.name for path in tmp_path.iterdir()} - outside == {"room"}


# Files

GOOD = {
    "from": "lead", "to": "bob", "action": "implement", "spec": "s", "task_id": "T3", "timestamp": "2026-02-09T22:30:00Z",
    "payload": {"notes": "n", "list": [1, 2.5, None, {"deep": True}]}, "priority": 5, "channel": "general", "ttl_s": 1e6,
    "correlation_id": "c", "answer_to": "00000000-0000-7000-8000-000000000000", "hop_count": 1, "lane": "agent",
}  # fmt: skip
ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    1e308,
    10**30,
    "",
    "\0",
    "x" * 300,
    [],
    {},
    [[[]]],
    {"a": {"b": []}},
    "../../x",
    "\ud800",
)


def any_file(chance: random.Random) -> bytes:
    """A message that something happened to."""
    fields: dict[str, object] = dict(GOOD)
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        fields[chance.choice([*GOOD, "id", "further", "max_deliveries", "delay_s"])] = chance.choice(ODD)
    for _ in range(chance.choice((0, 1, 5))):
        fields.pop(chance.choice([*GOOD]), None)
    data = json.dumps(fields).encode()
    kind = chance.random()
    if kind < 0.2:
        return data[: chance.randrange(len(data))]
    if kind < 0.4:
        spoilt = bytearray(data)
        for _ in range(chance.randint(1, 5)):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        return bytes(spoilt)
    if kind < 0.45:
        return chance.randbytes(chance.randrange(200))
    if kind < 0.5:
        return chance.choice((b"", b"null", b"[]", b'""', b"\xef\xbb\xbf" + data, b"[" * 100_000, data + data))
    return data


def leave(inbox: Path, number: int, chance: random.Random) -> None:
    """One more file, or something else, in an inbox."""
    path = inbox / f"{number:07d}{chance.choice(('', '-implement', '-' + 'x' * 200, ' ü', '-%2F..%2F'))}.json"
    kind = chance.random()
    if kind < 0.01:
        path.symlink_to(chance.choice(("/etc/passwd", "nowhere", ".", "../../../../outside.json")))
    elif kind < 0.015:
        os.mkfifo(path)
    elif kind < 0.025:
        path.with_name(f"{number:07d} \udcff.json").write_bytes(any_file(chance))
    else:
        path.write_bytes(any_file(chance))


def check_files(folder: Path, files: int, figure: Callable[[str], None]) -> None:
    chance, clock = random.Random(seed()), ManualClock()
    secret = folder.parent / "outside.json"
    secret.write_text(json.dumps({**GOOD, "payload": {"secret": True}}))
    messages: dict[str, str] = {}
    with closing(FilesStore(folder, Config(), clock)) as store:
        inbox = folder / "inbox" / "bob"
        inbox.mkdir()
        for start in range(0, files, 1000):
            for number in range(start, min(files, start + 1000)):
                leave(inbox, number, chance)
            for _ in range(13):
                for delivery in store.claim(Want(agent="bob", lease_s=1e6, limit=5000)).deliveries:
                    assert delivery.message.payload != {"secret": True}
                    messages[delivery.message.id] = delivery.message.from_agent
                    assert store.settle(delivery.ticket, "acked").held
                clock.advance(1.1)
        rejected = [path.name for path in (folder / ".postroom/rejected").iterdir()]
        waiting = len(store.find(Query(to_agent="bob", limit=files)).messages) - len(messages)
        assert list(inbox.iterdir()) == []
    reasons = [name for name in rejected if name.endswith(".reason.txt")]
    assert len(rejected) == 2 * len(reasons)
    assert len(messages) + waiting + len(reasons) == files, "a file is neither a message nor set aside"
    assert len(messages) > files / 4
    assert len(reasons) > files / 8
    assert json.loads(secret.read_text())["payload"] == {"secret": True}
    figure(
        f"files: {files} files by chance (seed {seed()}): {len(messages)} messages, {len(reasons)} set aside, none lost"
    )


@pytest.mark.slow
def test_files_by_chance_are_messages_or_set_aside(folder: Path, figure: Callable[[str], None]) -> None:
    check_files(folder, count("FUZZED_FILES", 600), figure)


@pytest.mark.long
def test_a_hundred_thousand_files_by_chance(folder: Path, figure: Callable[[str], None]) -> None:
    check_files(folder, count("FUZZED_FILES_LONG", 100_000), figure)
