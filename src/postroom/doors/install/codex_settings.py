"""Our part of Codex's config.toml: one server and the hooks, found by what they run and never by a mark.

Codex writes into the same file (features, trust, servers, the state of hooks), moves comments and drops them. So nothing is
known by its place: the server is the table `mcp_servers.postroom` if it starts Postroom, and a hook is ours if its command
is Postroom's. What is there already is brought up to date where it stands, so that other hooks keep their numbers, which
Codex's trust in them hangs on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from . import texts, toml_text
from .ours import AGENT, is_hook, is_server
from .toml_text import NotToml, Path

SERVER: Final = ("mcp_servers", "postroom")
#: Comments that earlier versions put around their part.
OLD_MARKS: Final = ("# postroom:start (written by `postroom install codex`)", "# postroom:end")


class Wanted(NamedTuple):
    """The server and the hooks that are to be there."""

    #: The words that start the server.
    words: list[str]
    agent: str | None
    #: The hooks' command line, and how many seconds it may take at each event.
    hook: str
    events: dict[str, int]

    @property
    def server(self) -> dict[str, Any]:
        named = {"env": {AGENT: self.agent}} if self.agent else {}
        return {"command": self.words[0], "args": self.words[1:], "tool_timeout_sec": 3700, **named}

    def group(self, event: str) -> dict[str, Any]:
        return texts.handler(event, self.hook, self.events[event], texts.CODEX_EDIT_TOOLS)


def with_ours(text: str, wanted: Wanted) -> str:
    """The text with the server and the hooks, whatever of them was there. NotToml when that cannot be done safely."""
    before = toml_text.data_of(text)
    server = _at(before, SERVER)
    if server is not None and not is_server(server):
        raise NotToml(
            "it has an entry for postroom that `postroom install` did not write; remove it first, nothing was changed"
        )
    changed = _with_server(_without_marks(text), wanted, server)
    changed = _with_hooks(changed, wanted)
    after = toml_text.data_of(changed)
    if _others(after) != _others(before) or not _has_all(after, wanted):
        raise NotToml("it is written in a form that cannot be added to safely; nothing was changed")
    return changed


def without_ours(text: str) -> str:
    """The text without our server and our hooks. NotToml when they cannot be taken out safely."""
    before = toml_text.data_of(text)
    changed = _without_marks(text)
    if is_server(_at(before, SERVER)):
        changed = toml_text.without(changed, SERVER)
    for path in _superfluous(before, kept=()):
        changed = toml_text.without(changed, path)
    after = toml_text.data_of(changed)
    if _others(after) != _others(before) or any(_our_hooks(after)) or is_server(_at(after, SERVER)):
        raise NotToml("Postroom's part cannot be removed from it safely; remove it by hand, nothing was changed")
    return changed


def _without_marks(text: str) -> str:
    """Only lines that are exactly our old marks: a comment that begins like one is somebody's."""
    for item in reversed(toml_text.items(text)):
        if item.kind == toml_text.COMMENT and text[item.start : item.end].rstrip() in OLD_MARKS:
            text = toml_text.without_lines(text, item)
    return text


# Finding our part


def _our_hooks(data: dict[str, Any]) -> Iterator[Path]:
    """The path of each handler of ours."""
    for event, groups in _table(data, "hooks").items():
        for place, group in enumerate(groups if isinstance(groups, list) else ()):
            handlers = group.get("hooks") if isinstance(group, dict) else None
            for number, handler in enumerate(handlers if isinstance(handlers, list) else ()):
                if is_hook(handler):
                    yield ("hooks", event, place, "hooks", number)


def _superfluous(data: dict[str, Any], kept: Collection[Path]) -> list[Path]:
    """The paths to remove so that only those of our hooks are left, the last first; a group of ours alone goes whole."""
    going = [path for path in _our_hooks(data) if path not in kept]
    found: dict[Path, None] = {}
    for path in reversed(going):
        for level in (2, 3, 5):  # the list of an event, a group in it, a handler in that
            below = [each for each in going if each[:level] == path[:level]]
            if level == 5 or len(below) == _handlers(_at(data, path[:level])):
                found[path[:level]] = None
                break
    return list(found)


def _handlers(groups: Any) -> int:
    """How many handlers are in a list of groups, or in one. A group that is none counts: it is not ours to take."""
    return sum(
        len(group["hooks"]) if isinstance(group, dict) and isinstance(group.get("hooks"), list) else 1
        for group in (groups if isinstance(groups, list) else [groups])
    )


def _others(data: dict[str, Any]) -> dict[str, Any]:
    """Everything that is not ours, without tables and lists that are empty but for us."""
    servers = {
        name: each for name, each in _table(data, "mcp_servers").items() if not (name == "postroom" and is_server(each))
    }
    hooks: dict[str, Any] = {}
    for event, groups in _table(data, "hooks").items():
        left = groups
        if isinstance(groups, list):
            left = [other for group in groups if (other := _others_in_group(group)) is not None]
        hooks |= {event: left} if left != [] else {}
    rest = {
        name: each for name, each in data.items() if name not in {"mcp_servers", "hooks"} or not isinstance(each, dict)
    }
    return rest | ({"mcp_servers": servers} if servers else {}) | ({"hooks": hooks} if hooks else {})


def _others_in_group(group: Any) -> Any:
    handlers = group.get("hooks") if isinstance(group, dict) else None
    if not isinstance(handlers, list) or not any(map(is_hook, handlers)):
        return group
    left = [each for each in handlers if not is_hook(each)]
    return {**group, "hooks": left} if left else None


def _has_all(data: dict[str, Any], wanted: Wanted) -> bool:
    """Whether the server and each hook is there, once, as it is wanted."""
    server, found = _at(data, SERVER), [(path[1], _at(data, path)) for path in _our_hooks(data)]
    expected = {event: wanted.group(event)["hooks"][0] for event in wanted.events}
    return (
        len(found) == len(expected)
        and all(dict(found).get(event, {}).items() >= handler.items() for event, handler in expected.items())
        and isinstance(server, dict)
        and {**server, "env": None}.items() >= {**wanted.server, "env": None}.items()
        and (server.get("env") or {}).get(AGENT) == wanted.agent
    )


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def _at(data: Any, path: Path) -> Any:
    for name in path:
        if isinstance(data, dict):
            data = data.get(name)
        elif isinstance(data, list) and isinstance(name, int) and name < len(data):
            data = data[name]
        else:
            return None
    return data


# Putting it there


def _with_server(text: str, wanted: Wanted, there: dict[str, Any] | None) -> str:
    if there is None:
        if any(item.path == SERVER[:1] and item.value >= 0 for item in toml_text.items(text)):
            return toml_text.with_value(text, SERVER, wanted.server)
        lines = [f"{name} = {toml_text.literal(value)}" for name, value in wanted.server.items()]
        return toml_text.appended(text, [f"[{'.'.join(SERVER)}]", *lines])
    if not any(item.path == SERVER and item.kind != toml_text.COMMENT for item in toml_text.items(text)):
        raise NotToml(
            "Postroom's entry in it has dotted keys; remove it with `postroom uninstall codex`, nothing was changed"
        )
    environment = there.get("env")
    for name, value in wanted.server.items():
        if name == "env" and isinstance(environment, dict):
            if environment.get(AGENT) != value[AGENT]:
                text = toml_text.with_value(text, (*SERVER, "env", AGENT), value[AGENT])
        elif there.get(name) != value:
            text = toml_text.with_value(text, (*SERVER, name), value)
    if not wanted.agent and isinstance(environment, dict) and AGENT in environment:
        text = toml_text.without(text, (*SERVER, "env") if len(environment) == 1 else (*SERVER, "env", AGENT))
    return text


def _with_hooks(text: str, wanted: Wanted) -> str:
    data = toml_text.data_of(text)
    there: dict[str, Path] = {}
    for path in _our_hooks(data):
        if path[1] in wanted.events:
            there.setdefault(str(path[1]), path)
    for path in _superfluous(data, kept=there.values()):  # a kept one is the first of its event: its numbers hold
        text = toml_text.without(text, path)
    for event, handler in ((event, wanted.group(event)["hooks"][0]) for event in wanted.events):
        if event in there:
            now = _at(data, there[event])
            for name, value in handler.items():
                if now.get(name) != value:
                    text = toml_text.with_value(text, (*there[event], name), value)
        else:
            text = _with_group(text, wanted, event)
    return text


def _with_group(text: str, wanted: Wanted, event: str) -> str:
    """One more group of hooks for an event, in the form in which the others are written."""
    found, path = toml_text.items(text), ("hooks", event)
    if any(item.path == path and item.value >= 0 for item in found):
        return toml_text.with_value(text, (*path, len(_at(toml_text.data_of(text), path))), wanted.group(event))
    if any(item.path == path[:1] and item.value >= 0 for item in found):
        return toml_text.with_value(text, path, [wanted.group(event)])
    group = wanted.group(event)
    (handler,) = group.pop("hooks")
    only, lines = (
        [f"{name} = {toml_text.literal(value)}" for name, value in table.items()] for table in (group, handler)
    )
    return toml_text.appended(text, [f"[[hooks.{event}]]", *only, f"[[hooks.{event}.hooks]]", *lines])
