"""`postroom redact add | list | remove | test`: what must not be stored in the room."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.mail import redaction_rules

ACTIONS: Final = ("add", "list", "remove", "test")
_ABOUT = """
add NAME              turn on a rule that ships; `all` turns on all of them
add NAME --pattern P  add a rule of your own: a regular expression whose repeats have an end
list                  list the rules of the room, and those that ship
remove NAME           remove a rule; `all` removes all of them
test TEXT             show what would be stored of a text

Text that a rule finds is replaced by "[redacted: NAME]" before a message is stored, by every sender.
Processes that have the room open honour a new rule within two seconds. What is stored already stays."""


def redact_options(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description}\n{_ABOUT}"
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="add, list, remove or test")
    parser.add_argument("what", metavar="NAME|TEXT", nargs="?", help="the rule; for test, the text")
    parser.add_argument("--pattern", metavar="P", help="for add: the regular expression of a rule of your own")


def redact(call: Invocation) -> int | None:
    args = call.args
    if (args.action == "list") != (args.what is None):
        needs = f"needs a {'TEXT' if args.action == 'test' else 'NAME'}" if args.what is None else "takes no NAME"
        raise UsageError(f"`postroom redact {args.action}` {needs}")
    if args.pattern is not None and args.action != "add":
        raise UsageError("--pattern is for `postroom redact add`")
    step: Callable[[Invocation], int | None] = globals()[f"_{args.action}"]
    return step(call)


def _add(call: Invocation) -> None:
    call.must_be_person("change the redaction rules")
    rules = call.room.redact(call.args.what, call.args.pattern)
    added = "every rule that ships is" if call.args.what == redaction_rules.ALL else f"{call.args.what!r} is"
    call.tell(
        {"rules": [rule._asdict() for rule in rules]},
        f"{added} redacted from now on, by other processes within two seconds",
    )


def _list(call: Invocation) -> None:
    rules = call.room.redactions()
    on = {rule.name for rule in rules}
    off = [
        redaction_rules.Rule(name, each.pattern, True)
        for name, each in redaction_rules.SHIPPED.items()
        if name not in on
    ]
    rows = [(r.name, "on", "ships" if r.shipped else "own", r.pattern) for r in rules]
    rows += [(r.name, "off", "ships", r.pattern) for r in off]
    documents = [{**rule._asdict(), "on": rule.name in on} for rule in (*rules, *off)]
    call.tell_rows(documents, ("rule", "is", "kind", "pattern"), rows, empty="no rules")


def _remove(call: Invocation) -> int:
    call.must_be_person("change the redaction rules")
    if not call.room.unredact(call.args.what):
        output.note(f"this room has no redaction rule {call.args.what!r}")
        return exit_codes.NOTHING
    return call.tell({"removed": call.args.what}, f"{call.args.what!r} is no longer redacted")


def _test(call: Invocation) -> None:
    payload = options.payload_of(call.args.what, plain=False)
    cell = {rule.name: rule for rule in call.room.redactions()}
    value = {
        "shipped": [rule.name for rule in cell.values() if rule.shipped],
        "own": {rule.name: rule.pattern for rule in cell.values() if not rule.shipped},
    }
    stored = redaction_rules.Rules(value).redacted(payload)
    call.tell(stored, output.payload_line(stored))
