"""`postroom agent add | revoke | list`: the tokens that prove an agent's name."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Final

from postroom import identity
from postroom.errors import IdentityRefused

from . import exits, options, show

if TYPE_CHECKING:
    from .call import Call

ACTIONS: Final = ("add", "revoke", "list")


def agent_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="add, revoke or list")
    parser.add_argument("agent", metavar="NAME", nargs="?", help="the agent, for add and revoke")
    parser.add_argument("--human", action="store_true", help="for add: a person holds it; only such may write as one")
    parser.add_argument("--file", metavar="PATH", help="for add: write the token to a new file that only you can read")


def agent(call: Call) -> int:
    args = call.args
    if (args.action == "list") != (args.agent is None):
        needs = "needs the NAME of an agent" if args.agent is None else "takes no NAME"
        raise exits.UsageError(f"`postroom agent {args.action}` {needs}")
    if args.action != "add" and (args.human or args.file):
        raise exits.UsageError("--human and --file go with `postroom agent add`")
    return {"add": _add, "revoke": _revoke, "list": _list}[args.action](call)


def _must_be_allowed(call: Call) -> None:
    """An agent whose environment holds its token makes no tokens for others, nor takes theirs back."""
    token = identity.token_in(os.environ)
    if token is None:
        return  # the one at the terminal; processes of one system user are trusted
    desk = call.room.desk
    held = identity.prove(desk, None, token, "postroom agent")
    if held is not None and not held.human:
        identity.record_refusal(desk, "postroom agent", call.args.agent, held.agent)
        raise IdentityRefused(f"{held.agent} may not make or revoke tokens; a person may (a token made with --human)")


def _add(call: Call) -> int:
    args = call.args
    _must_be_allowed(call)
    descriptor = _new_file(args.file) if args.file else None
    token = identity.add_token(call.room.desk, args.agent, human=args.human)
    if descriptor is not None:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
    shown = {"agent": args.agent, "human": args.human} | ({"file": args.file} if args.file else {"token": token})
    if call.json:
        show.document(shown)
    elif args.file:
        show.write(f"the token of {show.visible(args.agent)} is in {show.visible(args.file)}")
        print(f"postroom: set {identity.TOKEN_FILE_VARIABLE} to that path", file=sys.stderr)
    else:
        show.write(token)
        print(
            f"postroom: shown this once; give it to {show.visible(args.agent)} as {identity.TOKEN_VARIABLE}. "
            "From now on every command that speaks in this room needs a token",
            file=sys.stderr,
        )
    return exits.DONE


def _new_file(path: str) -> int:
    """A file that is ours alone from its first moment, in a folder that is so too if it has to be made.

    One that is there already is left alone.
    """
    place = options.path_of(path)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise exits.UsageError(f"{place} is there already; name a new file, no token was made") from None


def _revoke(call: Call) -> int:
    name = call.args.agent
    _must_be_allowed(call)
    count = identity.revoke_tokens(call.room.desk, name)
    if call.json:
        show.document({"agent": name, "revoked": count})
    elif count:
        show.write(f"{count} token{'s' * (count > 1)} of {show.visible(name)} revoked")
    else:
        print(f"postroom: {show.visible(name)} has no token", file=sys.stderr)
    return exits.DONE if count else exits.NOTHING


def _list(call: Call) -> int:
    desk = call.room.desk
    found = identity.tokens(desk)
    count, refused = identity.refusals(desk)
    if call.json:
        show.document(
            {
                "tokens": [each._asdict() for each in found],
                "refusals": count,
                "newest": [each._asdict() for each in refused],
            }
        )
        return exits.DONE
    rows = [(e.id, e.agent, "human" if e.human else "", e.made_at, e.revoked_at or "") for e in found]
    show.table(("token", "agent", "", "made", "revoked"), rows, empty="this room has no tokens: every name is believed")
    if refused:
        show.write("")
        claims = [(e.time, e.door, e.claimed, e.real or "nobody known") for e in refused[-10:]]
        show.table(("refused", "door", "claimed", "was"), claims, title=f"{count} refused")
    return exits.DONE
