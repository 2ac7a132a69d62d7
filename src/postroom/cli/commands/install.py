"""`postroom install HOST` and `postroom uninstall HOST`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from postroom.cli import options, output
from postroom.cli.call import Invocation
from postroom.cli.doctor import doors
from postroom.cli.exit_codes import UsageError
from postroom.doors import edits
from postroom.doors.hosts import EDIT, HOSTS
from postroom.doors.install import lasting, plans, work
from postroom.errors import PostroomError

#: The step that is left for the user, by host.
NEXT: Final = {
    "claude-code": "start `claude` in a project with a room (`postroom init`); a project copy asks for your trust once",
    "codex": 'start `codex`; it asks once about new hooks ("Hooks need review"): trust them to be told of mail',
    "gemini": "start `gemini` in a project with a room",
    "opencode": "start `opencode` in a project with a room",
    "qwen": "start `qwen` in a project with a room",
    "copilot": "start `copilot` in a project with a room",
    "kimi": "start `kimi` in a project with a room",
    "cline": "start `cline` in a project with a room",
    "cursor": "open Settings, MCP, and switch postroom on",
    "vscode": "run the command `MCP: List Servers` and start postroom",
    "windsurf": "restart it; the server is listed under MCP servers",
}
#: The programs that can be guarded.
HOOKED: Final = tuple(name for name, host in HOSTS.items() if EDIT in host.events.values())


def uninstall_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", choices=list(HOSTS), help=", ".join(HOSTS))
    options.flag(parser, "--dry-run", "show what would change, as a diff, and change nothing")
    scope = "for all your projects, or for this one (default: user; vscode: project)"
    parser.add_argument("--scope", choices=plans.SCOPES, help=scope)
    project = "the project's folder, for --scope project (default: here)"
    parser.add_argument("--project", metavar="DIR", default=".", help=project)


def install_options(parser: argparse.ArgumentParser) -> None:
    uninstall_options(parser)
    guard = (
        "what happens before the agent edits a file: nothing (off), a file reserved by another agent is refused (warn), "
        "and so is one that another agent has just edited (refuse) (default: warn)"
    )
    asked = "whom to ask when the program asks for a permission (claude-code): a person's name, or '*' for any (default: nobody)"
    parser.add_argument("--permissions", metavar="NAME", default="", help=asked)
    parser.add_argument("--edits", choices=edits.MODES, default=edits.WARN, help=guard)


def _wish(call: Invocation) -> plans.Wish:
    args = call.args
    scope = args.scope or plans.DEFAULT_SCOPE.get(args.host, plans.USER)
    project = options.path_of(args.project).resolve()
    home = home_folder()
    if scope == plans.PROJECT and not project.is_dir():
        raise UsageError(f"{project} is not a folder")
    return plans.Wish(args.host, scope, args.name, project, home)


def home_folder() -> Path:
    """The user's home; PostroomError where it is unknown."""
    home = doors.home()
    if home is None:
        raise PostroomError(f"{doors.NO_HOME}; {doors.SET_HOME}, nothing was changed")
    return home


def install(call: Invocation) -> None:
    wish = _wish(call)
    if call.args.edits != edits.WARN and wish.host not in HOOKED:
        raise UsageError(f"--edits is for {', '.join(HOOKED)}; {wish.host} has no hook before an edit")
    if call.args.permissions and wish.host != "claude-code":
        raise UsageError("--permissions is for claude-code; `postroom as NAME --acp` relays those of other programs")
    asked = {"edits": call.args.edits, "permissions": call.args.permissions}
    wish = wish._replace(command=tuple(lasting.lasting_command(wish.base)), **asked)
    _do(call, wish, work.plan_install if call.args.dry_run else work.install, "installed")
    if wish.program != lasting.own_command() and not call.json:
        output.write(f"it starts {wish.program[0]}: this Postroom runs from a temporary environment")


def uninstall(call: Invocation) -> None:
    _do(call, _wish(call), work.plan_uninstall if call.args.dry_run else work.uninstall, "uninstalled")


def _do(call: Invocation, wish: plans.Wish, do: Callable[[plans.Wish], list[work.FileChange]], done: str) -> None:
    changes = do(wish)
    if call.json:
        told = {"host": wish.host, "scope": wish.scope, "dry_run": call.args.dry_run}
        output.document(told | {"changes": kinds_of(changes)})
        return
    if call.args.dry_run:
        for change in changes:
            output.write(output.visible(change.diff(), keep="\n\t").rstrip("\n"))
        output.write(f"{len(changes)} files would change" if changes else "nothing would change")
        return
    write_changes(changes)
    output.write(f"postroom is {done} for {HOSTS[wish.host].title}" + ("" if changes else " already"))
    if done == "installed":
        if not doors.has_tools():
            output.write(f"first: {lasting.extra_line('mcp')} ({doors.NO_TOOLS})")
        output.write(f"next: {NEXT[wish.host]}")


def kinds_of(changes: Iterable[work.FileChange]) -> list[dict[str, str]]:
    """The changed files, each with what was done to it."""
    return [
        {"path": str(c.path), "change": "removed" if c.after is None else "made" if c.before is None else "changed"}
        for c in changes
    ]


def write_changes(changes: Iterable[work.FileChange]) -> None:
    for change in changes:
        output.write(f"{'removed' if change.after is None else 'wrote  '} {output.visible(str(change.path))}")
