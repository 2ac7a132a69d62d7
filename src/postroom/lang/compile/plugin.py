"""A program as a plugin of Claude Code: `postroom build FILE.pw -o DIR`.

    DIR/.claude-plugin/plugin.json      the manifest
    DIR/commands/NAME.md                for each method with @command
    DIR/skills/NAME/SKILL.md            for each method with @skill
    DIR/bin/PLUGIN                      the entry point: calls `postroom run`
    DIR/program/                        the program and what it imports
    DIR/README.md

Descriptions come from the comments above the trait and its methods.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom.errors import PostroomError
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import ParsedProgram

from .entries import COMMAND, SKILL, EntryPoint, entries_of

MANIFEST: Final = Path(".claude-plugin") / "plugin.json"
#: The maker of the folder, as the manifest names it; only such a folder is made anew.
MAKER: Final = "postroom build"
VERSION: Final = "0.1.0"
_FOLDERS: Final = ("commands", "skills", "bin", "program")
_MAX_DESCRIPTION: Final = 900

_ENTRY_POINT: Final = """\
#!/bin/sh
# Starts {file}: {name} NAME ARG=VALUE...  Made by `postroom build`.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
postroom=${{POSTROOM:-postroom}}
if ! command -v "$postroom" >/dev/null 2>&1; then
    echo "{name}: postroom is not on the PATH; install it with \\`pip install postroom\\`, or set POSTROOM to where it is" >&2
    exit 127
fi
exec "$postroom" run "$here/program/{file}" "$@"
"""

_HOW: Final = """\
Run this with the Bash tool{with_arguments}:

```bash
"${{CLAUDE_PLUGIN_ROOT}}/bin/{plugin}" {usage}
```
{params}
Give every argument as one shell word, quoted with single quotes when it holds anything but letters and digits.
What it prints last is the result: tell the user what it says. If its exit code is not 0, it failed, and its last lines
say why and at which line of the program; report them as they are, and do not retry on your own.
"""


class NotAPlugin(PostroomError):
    """A program cannot be made a plugin; the sentence says what it lacks."""


class Door(NamedTuple):
    """One skill or command of a plugin."""

    kind: str
    name: str
    entry: EntryPoint


class Plugin(NamedTuple):
    """The plugin of a program, as it is written."""

    name: str
    description: str
    doors: list[Door]


def build_plugin(program: ParsedProgram, folder: Path) -> list[Path]:
    """Write the plugin of a program into a folder. Returns what was written, in order.

    A folder that this made before is made anew; one with anything else in it is refused (NotAPlugin), and stays.
    """
    plugin = plugin_of(program.entry.module)
    _check_free(folder)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    written = []
    for path, text in files_of(program, plugin):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="")
        if path.parts[0] == "bin":
            place.chmod(0o755)
        written.append(place)
    return written


def plugin_of(module: n.Module) -> Plugin:
    """The plugin that a file describes: its default trait, else its exported one, else its only one."""
    trait = _trait_of(module)
    doors = [
        Door(note.name, kebab(note.argument or entry.function.name), entry)
        for entry in entries_of(module)
        if entry.trait is trait
        for note in entry.function.annotations
        if note.name in (SKILL, COMMAND)
    ]
    if not doors:
        raise NotAPlugin(f"no method of {trait.name} has @skill or @command, so the plugin would have no entry point")
    _check_names(doors)
    description = one_line(trait.doc) or f"{trait.name}: {', '.join(sorted({door.name for door in doors}))}"
    return Plugin(kebab(trait.name), description, doors)


def _trait_of(module: n.Module) -> n.Trait:
    traits = [item for item in module.items if isinstance(item, n.Trait)]
    for wanted in ([one for one in traits if one.default], [one for one in traits if one.exported], traits):
        if len(wanted) == 1:
            return wanted[0]
        if wanted:
            names = ", ".join(trait.name for trait in wanted)
            raise NotAPlugin(f"{names} could all be the plugin; write `export default` before the one that is")
    raise NotAPlugin("a plugin needs a trait, such as `export default trait Name: Agent { @skill fun run() { } }`")


def _check_names(doors: list[Door]) -> None:
    for door in doors:
        if not door.name:
            raise NotAPlugin(f"@{door.kind} of {door.entry.function.name} has no letter or digit in its name")
        twice = [other for other in doors if (other.kind, other.name) == (door.kind, door.name)]
        if len(twice) > 1:
            methods = ", ".join(other.entry.function.name for other in twice)
            raise NotAPlugin(f"@{door.kind} {door.name} is used for several methods: {methods}")


def kebab(name: str) -> str:
    """A name as plugins write it: ReleaseNotes becomes release-notes."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", parted.lower()).strip("-")


def one_line(doc: str) -> str:
    """The first paragraph of a comment, on one line; lines that begin with @ are notes to tools."""
    kept: list[str] = []
    for line in doc.splitlines():
        if not line.strip() and kept:
            break
        if line.strip() and not line.strip().startswith("@"):
            kept.append(line.strip())
    return " ".join(kept)[:_MAX_DESCRIPTION]


# The files


def files_of(program: ParsedProgram, plugin: Plugin) -> Iterator[tuple[Path, str]]:
    """Every file of the plugin: its path, and what is in it."""
    yield MANIFEST, json.dumps(_manifest(plugin), indent=2, ensure_ascii=False) + "\n"
    yield Path("README.md"), _readme(plugin)
    for door in plugin.doors:
        if door.kind == COMMAND:
            yield Path("commands") / f"{door.name}.md", _command(plugin, door)
        else:
            yield Path("skills") / door.name / "SKILL.md", _skill(plugin, door)
    file = f"{program.entry.id}.pw"
    yield Path("bin") / plugin.name, _ENTRY_POINT.format(file=file, name=plugin.name)
    for loaded in program.modules:
        yield Path("program") / f"{loaded.id}.pw", loaded.module.span.source.text


def _manifest(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "version": VERSION,
        "description": plugin.description,
        "author": {"name": "made with Postroom"},
        "keywords": ["postroom", "patchwork"],
        "metadata": {"made_by": MAKER},
    }


def _description(door: Door) -> str:
    trait = one_line(door.entry.trait.doc) if door.entry.trait else ""
    return one_line(door.entry.function.doc) or trait or f"Runs {door.entry.function.name}"


def _command(plugin: Plugin, door: Door) -> str:
    hint = " ".join(f"{param.name}={_type(param)}" for param in door.entry.function.params)
    allowed = f"Bash(${{CLAUDE_PLUGIN_ROOT}}/bin/{plugin.name}:*), Bash({plugin.name}:*)"  # bin/ is on the tool's PATH
    head = {"description": _description(door), "allowed-tools": allowed}
    if hint:
        head["argument-hint"] = hint
    given = "\nWhat the user gave: $ARGUMENTS\n" if door.entry.function.params else ""
    return _front(head) + f"\n{_description(door)}\n{given}\n" + _how(plugin, door)


def _skill(plugin: Plugin, door: Door) -> str:
    head = {"name": door.name, "description": _description(door)}
    return (
        _front(head)
        + f"\n# {door.name}\n\n{door.entry.function.doc.strip() or _description(door)}\n\n"
        + _how(plugin, door)
    )


def _front(fields: dict[str, str]) -> str:
    # JSON's strings are YAML's too
    said = {name: value if name == "name" else json.dumps(value, ensure_ascii=False) for name, value in fields.items()}
    lines = [f"{name}: {value}" for name, value in said.items()]
    return "\n".join(["---", *lines, "---", ""])


def _how(plugin: Plugin, door: Door) -> str:
    params = door.entry.function.params
    usage = " ".join([door.entry.function.name, *(f"{param.name}='...'" for param in params)])
    listed = "".join(f"- `{param.name}`: {_type(param)}\n" for param in params)
    return _HOW.format(
        with_arguments=", each argument in place of its dots" if params else "",
        plugin=plugin.name,
        usage=usage,
        params=f"\n{listed}" if listed else "",
    )


def _type(param: n.NamePattern) -> str:
    return " ".join(param.type.span.text.split()) if param.type is not None else "text"


def _readme(plugin: Plugin) -> str:
    lines = [f"# {plugin.name}", "", plugin.description, ""]
    lines += ["A plugin for Claude Code, made from a Patchwork program with `postroom build`.", ""]
    for door in plugin.doors:
        lines.append(f"- `/{plugin.name}:{door.name}` ({door.kind}): {_description(door)}")
    lines += [
        "",
        "It runs `postroom`, which must be installed (`pip install postroom`), or be named by the variable `POSTROOM`.",
        f"`bin/{plugin.name} {plugin.doors[0].entry.usage()}` starts it without an agent.",
        "The program itself is in `program/`; change it where it came from, and build it again.",
    ]
    return "\n".join(lines) + "\n"


def _check_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotAPlugin(f"{folder} exists and is not a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        made_by = json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("metadata", {}).get("made_by")
    except (OSError, ValueError, AttributeError):
        made_by = None
    if made_by != MAKER:
        which = "name a folder that is new, empty, or made by `postroom build`"
        raise NotAPlugin(f"{folder} contains something else; {which}")
