"""`postroom completion`: commands, options and their words from our own parsers, agents' names from the room as it is."""

from __future__ import annotations

import argparse
import os
import re
from typing import Final

from postroom.cli import options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.cli.table import COMMANDS
from postroom.errors import PostroomError
from postroom.mail import presence

SHELLS: Final = ("bash", "zsh", "fish")
#: Options whose value is an agent's name, and commands whose first word is one.
NAME_OPTIONS: Final = ("--as", "--agent", "--from", "--to")
NAME_COMMANDS: Final = ("send", "ask", "as")

#: Shells expand what they are given to complete with, so a name such as `$(reboot)` is never offered to them.
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_.@%+=:,][A-Za-z0-9_.@%+=:,/-]*")


def completion_options(parser: argparse.ArgumentParser) -> None:
    shell = "the shell (default: yours, from $SHELL)"
    parser.add_argument("shell", choices=(*SHELLS, "names"), metavar="bash|zsh|fish", nargs="?", help=shell)
    do = parser.add_mutually_exclusive_group()
    options.flag(do, "--install", "turn completion on for every new shell, and print the name of the file written")
    options.flag(do, "--uninstall", "turn it off again")


def completion(call: Invocation) -> None:
    shell = call.args.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in (*SHELLS, "names"):
        found = f"$SHELL is {os.environ['SHELL']!r}" if os.environ.get("SHELL") else "SHELL is not set"
        raise UsageError(f"which shell? {found}; expected one of {', '.join(SHELLS)}: postroom completion bash")
    if call.args.install or call.args.uninstall:
        _set_up(call, shell)
        return
    output.write(_names(call) if shell == "names" else _fish() if shell == "fish" else _filled(*_TEMPLATES[shell]))


def _set_up(call: Invocation, shell: str) -> None:
    """Switch completion on or off, by the same means as the settings of agent programs: known again, taken out whole."""
    from postroom.cli.commands import install  # all of it would be loaded for each name that a shell completes
    from postroom.doors.install import plans, work

    if shell == "names":
        raise UsageError(f"expected one of {', '.join(SHELLS)}, not names")
    home = install.home_folder()
    wish = plans.Wish(shell, plans.USER, None, home, home)
    changes = work.install(wish) if call.args.install else work.uninstall(wish)
    if call.json:
        output.document({"shell": shell, "changes": install.kinds_of(changes)})
        return
    install.write_changes(changes)
    done = "on" if call.args.install else "off"
    already = "" if changes else " already"
    then = f"; it works in a new {shell}" if changes and call.args.install else ""
    output.write(f"completion is{already} {done} for {shell}{then}")


def _names(call: Invocation) -> str:
    """The names of the room's agents, one per line; nothing when there is no room."""
    try:
        names = presence.addressees(call.room.gateway)
    except PostroomError:
        return ""
    return "\n".join(name for name in names if _HARMLESS.fullmatch(name))


def _options_of(name: str) -> list[str]:
    actions = options.command_of(name)[0]._actions  # noqa: SLF001  there is no other way to ask a parser what it knows
    words = [str(word) for action in actions if not action.option_strings for word in action.choices or ()]
    return words + [text for action in actions for text in action.option_strings if text.startswith("--")]


def _values_of(name: str) -> dict[str, str]:
    """The options of a command that take one of a few words, each with these."""
    actions = options.command_of(name)[0]._actions  # noqa: SLF001
    taking = [action for action in actions if action.option_strings and action.choices]
    return {text: " ".join(map(str, action.choices or ())) for action in taking for text in action.option_strings}


_BASH: Final = """\
# bash completion for postroom: postroom completion bash --install
_postroom() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= i offered=
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            --room|--as) ((i++)) ;;
            -*) ;;
            *) command=${{COMP_WORDS[i]}}; break ;;
        esac
    done
    COMPREPLY=()
    case $previous in
        {name_options}) offered=$(postroom completion names 2>/dev/null) ;;
        --room) return ;;
        {name_commands}) [[ $current == -* ]] || offered=$(postroom completion names 2>/dev/null) ;;
    esac
    case "$command $previous" in
{values}
    esac
    if [[ -z $offered ]]; then
        case $command in
            "") offered="{commands} --room --as --json --help --version" ;;
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
}}
complete -o default -F _postroom postroom"""


_ZSH: Final = """\
#compdef postroom
# zsh completion for postroom: postroom completion zsh --install
_postroom() {{
    local command= i
    for ((i = 2; i < CURRENT; i++)); do
        case ${{words[i]}} in
            --room|--as) ((i++)) ;;
            -*) ;;
            *) command=${{words[i]}}; break ;;
        esac
    done
    case ${{words[CURRENT-1]}} in
        {name_options}|{name_commands}) compadd -- ${{(f)"$(postroom completion names 2>/dev/null)"}}; return ;;
    esac
    case "$command ${{words[CURRENT-1]}}" in
{values}
    esac
    case $command in
        "") compadd -- {commands} --room --as --json --help --version ;;
{cases}
    esac
    [[ -n $command ]] && _files
}}
compdef _postroom postroom"""


#: A shell's script, and how it writes what may follow a command, and an option of a command.
_TEMPLATES: Final = {
    "bash": (_BASH, '            {name}) offered="{options}" ;;', '        "{name} {option}") offered="{words}" ;;'),
    "zsh": (
        _ZSH,
        "        {name}) compadd -- {options} ;;",
        '        "{name} {option}") compadd -- {words}; return ;;',
    ),
}


def _filled(script: str, case: str, value: str) -> str:
    values = "\n".join(
        value.format(name=name, option=option, words=words)
        for name in COMMANDS
        for option, words in _values_of(name).items()
    )
    cases = "\n".join(case.format(name=name, options=" ".join(_options_of(name))) for name in COMMANDS)
    return script.format(
        name_options="|".join(NAME_OPTIONS),
        name_commands="|".join(NAME_COMMANDS),
        commands=" ".join(COMMANDS),
        cases=cases,
        values=values,
    )


def _fish() -> str:
    lines = ["# fish completion for postroom: postroom completion fish --install", "complete -c postroom -f"]
    names = "'(postroom completion names 2>/dev/null)'"
    for name, command in COMMANDS.items():
        summary = command.summary.replace("'", "\\'")
        lines.append(f"complete -c postroom -n __fish_use_subcommand -a {name} -d '{summary}'")
        seen = f"'__fish_seen_subcommand_from {name}'"
        if name in NAME_COMMANDS:
            lines.append(f"complete -c postroom -n {seen} -a {names}")
        words = _values_of(name)
        for option in _options_of(name):
            if not option.startswith("--"):
                lines.append(f"complete -c postroom -n {seen} -a {option}")
                continue
            values = f" -x -a {names}" if option in NAME_OPTIONS else ""
            values = f" -x -a '{words[option]}'" if option in words else values
            lines.append(f"complete -c postroom -n {seen} -l {option[2:]}{values}")
    return "\n".join(lines)
