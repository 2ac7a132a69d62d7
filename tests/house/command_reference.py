"""The reference of the command line, drawn from its parsers, like tests/house/reference.py that of the library."""

from __future__ import annotations

import argparse

from tests.house.reference import WRITTEN

from postroom.cli import exit_codes, options
from postroom.cli.table import COMMANDS, GROUPS

#: What else there is to say of an exit code, beyond its word in `exit_codes`.
MORE = {
    exit_codes.FAILED: ": refused, no longer held, or the one asked is gone",
    exit_codes.USAGE: ", or a message that is not valid",
    exit_codes.RESERVED: ": `reserve --check`, and nothing else, ends so",
    exit_codes.OUTCOME_UNKNOWN: ": the room did not answer in time; repeating is safe, for a send with `--key`",
}
BY_SIGNAL = {
    exit_codes.INTERRUPTED: "interrupted (Ctrl-C); nothing stays claimed",
    exit_codes.BROKEN_PIPE: "the reader of its output went away",
    128
    + exit_codes.SIGTERM: "told to stop (SIGTERM) before it was done; nothing stays claimed. `listen`, `web` and `mcp` "
    "end with 0: they run until then",
}
USAGE = "    postroom [--room URL] [--json] [--plain] [--as NAME] COMMAND ..."


def slug(title: str) -> str:
    """The file name of a group of commands."""
    return title.partition(",")[0].lower().replace(" ", "-")


def label_of(action: argparse.Action) -> str:
    """An argument as it is typed."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    value = "" if action.nargs == 0 else f" {action.metavar or choices}"
    return ", ".join(action.option_strings) + value


def arguments_of(name: str, *, common: bool) -> list[argparse.Action]:
    """The arguments of a command: those that every command has, or its own."""
    number = len(options.parser_for(name)._actions)
    actions = options.command_of(name)[0]._actions
    return actions[:number] if common else actions[number:]


def described(actions: list[argparse.Action]) -> list[str]:
    """The arguments, each with its help where it has one; a star in it is no Markdown."""
    return [
        f"- `{label_of(action)}`" + (": " + action.help.replace("*", "\\*") if action.help else "")
        for action in actions
    ]


def command_text(name: str) -> str:
    """One command: how it is called, its arguments, and examples."""
    command, own = COMMANDS[name], arguments_of(name, common=False)
    words = [label_of(action) for action in own if not action.option_strings]
    parts = [f"## postroom {name}", f"{command.summary[0].upper()}{command.summary[1:]}."]
    parts.append(f"    {' '.join(['postroom', name, *words])}{' [OPTIONS]' * any(a.option_strings for a in own)}")
    parts += ["\n".join(lines)] if (lines := described(own)) else []
    parts.append("Examples:" if len(command.examples) > 1 else "Example:")
    return "\n\n".join([*parts, "\n".join(f"    {example}" for example in command.examples)])


def overview_text() -> str:
    codes = [(code, word + MORE.get(code, "")) for code, word in exit_codes.MEANING.items()]
    rows = [f"| {code} | {meaning} |" for code, meaning in (*codes, *sorted(BY_SIGNAL.items()))]
    parts = ["# Commands", WRITTEN, "[The command line](../cli.md) tells how to use it.", USAGE]
    parts += ["## Options of every command", "\n".join(described(arguments_of("receive", common=True)))]
    parts.append(
        "They may stand before or after the command's name. Variables are on [a page of their own](environment.md)."
    )
    for title, names in GROUPS:
        parts.append(f"## {title}")
        parts.append(
            "\n".join(
                f"- [`{name}`](commands/{slug(title)}.md#postroom-{name}): {COMMANDS[name].summary}" for name in names
            )
        )
    parts += ["## Exit codes", "\n".join(["| exit code | meaning |", "| --- | --- |", *rows])]
    parts.append("Which error ends with which code, [the page of errors](errors.md#every-error) says.")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """The pages of the command line's reference by their file names."""
    made = {"commands.md": overview_text()}
    for title, names in GROUPS:
        head = [f"# Commands: {title[0].lower()}{title[1:]}", WRITTEN]
        head.append("Every command takes [some options more](../commands.md#options-of-every-command).")
        made[f"commands/{slug(title)}.md"] = "\n\n".join([*head, *map(command_text, names)]) + "\n"
    return made
