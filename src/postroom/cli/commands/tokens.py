"""`postroom agent add | revoke | list | recover | forget | rename`: agents, and the tokens that prove their names."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import DOOR, Invocation
from postroom.cli.exit_codes import UsageError
from postroom.errors import IdentityRefused
from postroom.mail import forgetting, tokens

ACTIONS: Final = ("add", "revoke", "list", "recover", "forget", "rename")


def agent_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("agent", metavar="NAME", nargs="?", help="the agent, for all but list")
    parser.add_argument("new", metavar="NEW", nargs="?", help="for rename: the new name")
    options.flag(parser, "--human", "for add: the token is for a person; only such a token may write as a person")
    file = "for add and recover: write the token to a new file that only you can read"
    parser.add_argument("--file", metavar="PATH", help=file)
    options.flag(parser, "--all", "for revoke: every token, instead of NAME; names are then no longer checked")
    options.flag(parser, "--mail", "for forget: also delete the messages that wait for it")
    options.flag(parser, "--yes", "for forget --mail: delete without asking")
    options.flag(parser, "--lost", "for recover: every person's token is lost; they are revoked")


def agent(call: Invocation) -> int | None:
    args = call.args
    if (args.action == "list" or args.all) != (args.agent is None):
        needs = "needs the NAME of an agent" if args.agent is None else "takes no NAME"
        raise UsageError(f"`postroom agent {args.action}{' --all' * args.all}` {needs}")
    if args.all and args.action != "revoke":
        raise UsageError("--all is for `postroom agent revoke`")
    if (args.human and args.action != "add") or (args.file and args.action not in ("add", "recover")):
        raise UsageError("--human is for `postroom agent add`, and --file for add and recover")
    if args.lost and args.action != "recover":
        raise UsageError("--lost is for `postroom agent recover`")
    if (args.action == "rename") != (args.new is not None):
        raise UsageError("`postroom agent rename` needs two names, OLD and NEW; no other action takes NEW")
    if (args.mail and args.action != "forget") or (args.yes and not args.mail):
        raise UsageError("--mail is for `postroom agent forget`, and --yes for --mail")
    step: Callable[[Invocation], int | None] = globals()[f"_{args.action}"]
    return step(call)


def _must_be_allowed(call: Invocation) -> None:
    """Once a room has tokens, only a person's makes and revokes others; a caller without one is no person."""
    gateway = call.room.gateway
    if tokens.token_in(os.environ) is None and tokens.has_tokens(gateway):
        tokens.record_refusal(gateway, DOOR, f"to {call.args.action} tokens", None)
        if not tokens.has_person(gateway):
            raise IdentityRefused(f"this room has tokens, and no person has a valid one: {tokens.RECOVERS}")
    call.must_be_person("make or revoke tokens")


def _add(call: Invocation) -> None:
    _must_be_allowed(call)
    human = call.args.human
    _make(call, human, lambda: tokens.add_token(call.room.gateway, call.args.agent, human=human))


def _recover(call: Invocation) -> None:
    """No token is asked for, there being none that counts: instead, no other process may have the room open."""
    lost = call.args.lost
    if lost and tokens.has_person(call.room.gateway):
        _must_be_confirmed(call.args.agent)
    _make(call, True, lambda: tokens.recover(call.room.gateway, call.args.agent, os.getuid(), lost=lost))


def _must_be_confirmed(name: str) -> None:
    """An agent that runs commands has no terminal, as a rule; a person says so again."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("--lost needs a person at a terminal, who is asked to confirm")
    sys.stderr.write(
        f"This revokes every person's token of this room and makes a new one for {output.visible(name)}.\n"
    )
    sys.stderr.write("Type that name to continue: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != name:
        raise IdentityRefused("the name does not match; nothing was changed")


def _make(call: Invocation, human: bool, make: Callable[[], str]) -> None:
    args = call.args
    descriptor = _new_file(args.file) if args.file else None
    try:
        token = make()
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
            os.unlink(options.path_of(args.file))  # made a moment ago, and still empty
        raise
    if descriptor is not None:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
    shown = {"agent": args.agent, "human": human} | ({"file": args.file} if args.file else {"token": token})
    call.tell(shown, f"the token of {args.agent} is in {args.file}" if args.file else token)
    if args.file and not call.json:
        output.note(f"set {tokens.TOKEN_FILE_VARIABLE} to that path")
    elif not call.json:
        output.note(
            f"it is shown only once; give it to {args.agent} as {tokens.TOKEN_VARIABLE}. "
            "From now on every command that speaks in this room needs a token"
        )


def _new_file(path: str) -> int:
    """A file that is ours alone from its first moment, in a folder that is so too if it has to be made.

    One that is there already is left alone.
    """
    place = options.path_of(path)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{place} already exists; name a new file. No token was made") from None


def _revoke(call: Invocation) -> int:
    name, gateway = call.args.agent, call.room.gateway
    _must_be_allowed(call)
    if call.args.all:
        by = call.credential.agent if call.credential is not None else ""
        count = tokens.switch_off(gateway, by, os.getuid())
        revoked = f"{count} token{'s' * (count != 1)} revoked"
        said = [f"{revoked}: this room has none left, and names are not checked"]
    else:
        count = tokens.revoke_tokens(gateway, name)
        said = [f"{count} token{'s' * (count > 1)} of {name} revoked"] if count else []
    call.tell({"agent": name, "revoked": count}, *said)
    if not said and not call.json:
        output.note(f"{name} has no token")
    return exit_codes.DONE if said else exit_codes.NOTHING


def _forget(call: Invocation) -> int:
    name, gateway, args = call.args.agent, call.room.gateway, call.args
    _must_be_allowed(call)
    waiting = forgetting.waiting_for(gateway, name)
    if (
        args.mail
        and waiting
        and not args.yes
        and not _agrees(f"{waiting} messages that wait for {name} would be deleted")
    ):
        output.note("nothing was changed")
        return exit_codes.NOTHING
    done = forgetting.forget(gateway, name, mail=args.mail)
    parts = [f"{done.subscriptions} subscriptions", f"{done.tokens} tokens", f"{done.deleted} messages"]
    said = [f"{name} is forgotten: {', '.join(parts)}"] if done.known or done.deleted else []
    call.tell({"agent": name, **done._asdict()}, *said)
    if not said and not call.json:
        output.note(f"this room knows no agent {name}")
    if done.waiting and not call.json:
        output.note(f"{done.waiting} messages still wait for {name}; --mail deletes them")
    return exit_codes.DONE if said else exit_codes.NOTHING


def _agrees(number: str) -> bool:
    """Whether the person at the terminal agrees; where there is none, --yes is needed."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{number}; add --yes to confirm")
    sys.stderr.write(output.visible(f"{number} for good. Continue? [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _rename(call: Invocation) -> None:
    old, new = call.args.agent, call.args.new
    _must_be_allowed(call)
    done = forgetting.rename(call.room.gateway, old, new)
    parts = f"{done.subscriptions} subscriptions, {done.tokens} tokens, {done.messages} messages"
    call.tell({"agent": new, "was": old, **done._asdict()}, f"{old} is called {new} now: {parts} followed")
    if not call.json:
        output.note(f"what it did so far stays under the name {old}")


def _list(call: Invocation) -> None:
    gateway = call.room.gateway
    found = tokens.tokens(gateway)
    count, refused = tokens.refusals(gateway)
    if call.json:
        output.document(
            {
                "tokens": [each._asdict() for each in found],
                "refusals": count,
                "newest": [each._asdict() for each in refused],
                "log": [each._asdict() for each in tokens.deeds(gateway)],
            }
        )
        return
    rows = [(e.id, e.agent, "human" if e.human else "", e.made_at, e.revoked_at or "") for e in found]
    none = "this room has no tokens: names are not checked"
    output.table(("token", "agent", "", "made", "revoked"), rows, empty=none)
    call.tell_count(len(found), len(found))
    if found and not tokens.has_person(gateway):
        output.note(tokens.nobody_comes_in(gateway) or f"no person has a valid token; {tokens.RECOVERS}")
    if refused:
        output.write("")
        claims = [(e.time, e.door, e.claimed, e.real or "unknown") for e in refused[-10:]]
        output.table(("refused", "door", "claimed", "was"), claims, title=f"{count} refused; the newest")
