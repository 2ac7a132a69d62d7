"""Entry points: the parts of a program that can be started from outside, and their arguments from a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from postroom.errors import PostroomError
from postroom.lang.builtins import MAIN
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.problems import near
from postroom.lang.values.schemas import from_text, is_text, said, schema_of

#: Annotations that make a method an entry point of a plugin.
SKILL: Final = "skill"
COMMAND: Final = "command"


class WrongCall(PostroomError):
    """A program was not called as it can be; the sentence says how."""


class EntryPoint(NamedTuple):
    """Something that can be started: a worker, a function, a skill, a method of a trait, or the file's bare block."""

    function: n.Function
    trait: n.Trait | None = None

    def usage(self) -> str:
        """How it is called."""
        return " ".join([self.function.name, *(f"{param.name}={_wanted(param)}" for param in self.function.params)])


def _wanted(param: n.NamePattern) -> str:
    return param.type.span.text.upper().replace("\n", " ") if isinstance(param.type, n.TypeName) else "VALUE"


def entries_of(module: n.Module) -> list[EntryPoint]:
    """Everything of a file that can be started, in the order of the file; the bare block is `main`."""
    found = [EntryPoint(module.body)] if module.body is not None else []
    return [*found, *(EntryPoint(function, trait) for trait, function in n.functions_of(module))]


def find_entry(module: n.Module, name: str | None) -> EntryPoint:
    """The entry point to start: by its name, by that of its annotation, or as Trait.method; without a name `main`.

    Without a name and without a `main`: the only entry point of a trait, else the only worker. WrongCall when that
    leaves a choice, or nothing.
    """
    entries = entries_of(module)
    wanted = name or MAIN
    for entry in entries:
        short = entry.function.name
        full = f"{entry.trait.name}.{short}" if entry.trait else short
        if wanted in (short, full, *(note.argument for note in entry.function.annotations)):
            return entry
    candidates = [entry for entry in entries if entry.trait] or [e for e in entries if e.function.kind == "worker"]
    if name is None and len(candidates) == 1:
        return candidates[0]
    names = [entry.function.name for entry in entries]
    known = f"it has {', '.join(names)}" if names else "it has none"
    hint = near(wanted, names)
    raise WrongCall(f"the program has no worker {wanted!r}{'; ' + hint if hint else ''} ({known})")


def arguments_of(entry: EntryPoint, words: Sequence[str], module: n.Module) -> list[object]:
    """The arguments in order, from words NAME=VALUE. WrongCall, with the usage, when one is missing or wrong."""
    types = {item.name: item.type for item in module.items if isinstance(item, n.TypeDecl)}
    given: dict[str, str] = {}
    params = entry.function.params
    names = [param.name for param in params]
    for word in words:
        name, found, value = word.partition("=")
        if not found:
            raise WrongCall(f"arguments are written NAME=VALUE, and {word!r} is not; call it as: {entry.usage()}")
        if name not in names:
            hint = near(name, names)
            raise WrongCall(
                f"{entry.function.name} takes no {name!r}{'; ' + hint if hint else ''}; call it as: {entry.usage()}"
            )
        if name in given:
            raise WrongCall(f"{name} is given twice; call it as: {entry.usage()}")
        given[name] = value
    missing = [name for name in names if name not in given]
    if missing:
        raise WrongCall(f"{entry.function.name} needs {', '.join(missing)}; call it as: {entry.usage()}")
    return [_value(param, given[param.name], types) for param in params]


def _value(param: n.NamePattern, text: str, types: dict[str, n.TypeNode]) -> object:
    """A string, converted where the parameter has a type."""
    schema = schema_of(param.type, types) if param.type is not None else {}
    if is_text(schema):
        return text
    try:
        return from_text(text, schema)
    except ValueError:
        raise WrongCall(f"{param.name} must be {said(schema)}, and {text!r} is not") from None
