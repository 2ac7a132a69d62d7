"""A format-preserving JSONC editor: one member is put in or taken out; comments, order, spacing and other keys stay.

Reads JSON with comments and trailing commas, as settings files have them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from postroom.errors import PostroomError

_SPACE: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.S)
_BLANK: Final = re.compile(r"\s*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_OTHER: Final = re.compile(r"[-+\w.]+")


class NotJson(PostroomError):
    """The file is not JSON with comments. Nothing was changed."""


class ObjectMember(NamedTuple):
    """One member of an object: its name, where that begins, and its value."""

    name: str
    start: int
    value: JsonNode


class JsonNode(NamedTuple):
    """A value in the text, from `start` up to `end`, as plain data; `members` of an object, None of anything else."""

    start: int
    end: int
    data: Any
    members: list[ObjectMember] | None = None


def parse(text: str) -> JsonNode:
    """The value that a text is. NotJson says where it is not one."""
    start = _skip(text, 1 if text.startswith("\ufeff") else 0)
    try:
        node = _value(text, start)
    except RecursionError:
        raise NotJson("it is nested too deeply for settings; fix the file first, nothing was changed") from None
    if _skip(text, node.end) != len(text):
        raise _wrong(text, node.end)
    return node


def value_at(text: str, path: tuple[str, ...]) -> Any:
    """The value at a path, as plain data; None when there is none."""
    node = _find(parse(text), path) if text.strip() else None
    return None if node is None else node.data


def with_member(text: str, path: tuple[str, ...], value: Any) -> str:
    """The text with that value at that path, instead of one that is there. Parsed, and all else found unchanged.

    Objects on the way are made.
    """
    if not text.strip():
        return json.dumps(_nested(path, value), indent=2) + "\n"
    root = parse(text)
    found = _find(root, path)
    if found is not None and found.data == value:
        return text
    if found is not None:
        text = without_member(text, path)
        root = parse(text)
    node, inner = root, root.data
    for depth, name in enumerate(path):
        if node.members is None or not isinstance(inner, dict):  # a name that stands twice may be both
            raise NotJson(f"{'.'.join(path[:depth]) or 'the file'} is not an object; nothing was changed")
        below = next((member.value for member in node.members if member.name == name), None)
        if below is None:
            inner[name] = made = _nested(path[depth + 1 :], value)
            return _checked(_inserted(text, node, name, made), root.data)
        node, inner = below, inner.get(name)
    raise AssertionError("it was removed")


def without_member(text: str, path: tuple[str, ...]) -> str:
    """The text without what is at that path. Parsed, and all else found unchanged.

    Objects that become empty stay: somebody may have put them there.
    """
    if not text.strip():
        return text
    root = parse(text)
    parent = _find(root, path[:-1])
    members = [] if parent is None else parent.members or []
    index = next((place for place, member in enumerate(members) if member.name == path[-1]), None)
    if parent is None or index is None:
        return text
    if _data_at(root.data, path[:-1]) is not parent.data:  # an object on the way has a namesake, which counts instead
        raise _unsafe()
    member = members[index]
    comma = _skip(text, member.value.end)
    if text[comma] == ",":
        after = text[: member.start] + text[_BLANK.match(text, comma + 1).end() :]  # type: ignore[union-attr]
    else:
        start = members[index - 1].value.end if index else parent.start + 1
        between = text[_skip(text, start) + 1 if index else start : member.start]  # behind the comma; a comment stays
        after = text[:start] + (between if between.strip() else "") + text[member.value.end :]
    parent.data.pop(path[-1])
    return _checked(after, root.data)


def _checked(after: str, expected: Any) -> str:
    if value_at(after, ()) != expected:  # as where a name stands twice in an object
        raise _unsafe()
    return after


def _unsafe() -> NotJson:
    return NotJson("it is written in a form that cannot be changed safely; nothing was changed")


def _data_at(data: Any, path: tuple[str, ...]) -> Any:
    """The plain data at a path; None when there is none."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _find(node: JsonNode, path: tuple[str, ...]) -> JsonNode | None:
    for name in path:
        inner = next((member.value for member in node.members or () if member.name == name), None)
        if inner is None:
            return None
        node = inner
    return node


def _inserted(text: str, node: JsonNode, name: str, value: Any) -> str:
    """The text with one more member at the end of an object."""
    assert node.members is not None
    indent = _indent_at(text, node.members[-1].start if node.members else node.start)
    inner = indent if node.members else indent + "  "
    written = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + inner)
    member = f'"{name}": {written}'
    if not node.members:
        rest = text[node.start + 1 :]
        gap = "" if _skip(text, node.start + 1) != node.end - 1 or rest.lstrip(" ").startswith("\n") else "\n" + indent
        return text[: node.start + 1] + f"\n{inner}{member}" + gap + rest
    last = node.members[-1].value.end
    comma = _skip(text, last)
    if text[comma] == ",":  # a trailing comma: ours comes behind it
        return text[: comma + 1] + f"\n{inner}{member}" + text[comma + 1 :]
    return text[:last] + f",\n{inner}{member}" + text[last:]


def _indent_at(text: str, place: int) -> str:
    """The indentation of a line."""
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip())]


def _skip(text: str, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]


def _value(text: str, start: int) -> JsonNode:
    if text[start : start + 1] == "{":
        return _object(text, start)
    if text[start : start + 1] == "[":
        return _array(text, start)
    match = _STRING.match(text, start) or _OTHER.match(text, start)
    if match is None:
        raise _wrong(text, start)
    try:
        return JsonNode(start, match.end(), json.loads(match[0]))
    except ValueError as error:
        raise NotJson(f"it is not JSON ({error}); fix the file first, nothing was changed") from None


def _object(text: str, start: int) -> JsonNode:
    members: list[ObjectMember] = []
    place = _skip(text, start + 1)
    while text[place : place + 1] != "}":
        match = _STRING.match(text, place)
        colon = _skip(text, match.end()) if match else place
        if match is None or text[colon : colon + 1] != ":":
            raise _wrong(text, place)
        value = _value(text, _skip(text, colon + 1))
        members.append(ObjectMember(json.loads(match[0]), place, value))
        place = _after(text, value.end, "}")
    return JsonNode(start, place + 1, {member.name: member.value.data for member in members}, members)


def _array(text: str, start: int) -> JsonNode:
    data = []
    place = _skip(text, start + 1)
    while text[place : place + 1] != "]":
        value = _value(text, place)
        data.append(value.data)
        place = _after(text, value.end, "]")
    return JsonNode(start, place + 1, data)


def _after(text: str, end: int, close: str) -> int:
    """Where the next item or the end of the list begins."""
    place = _skip(text, end)
    if text[place : place + 1] == ",":
        return _skip(text, place + 1)
    if text[place : place + 1] != close:
        raise _wrong(text, place)
    return place


def _wrong(text: str, place: int) -> NotJson:
    line = text.count("\n", 0, place) + 1
    return NotJson(f"line {line} is not JSON; fix the file first, nothing was changed")
