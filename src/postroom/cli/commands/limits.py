"""`postroom limit`, `pause` and `resume`: concurrency and rate limits, full mailboxes, pauses."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core.near import near_ones
from postroom.core.untrusted import is_plain, quoted
from postroom.mail import limiting, presence
from postroom.mail.limiting import RoomLimits
from postroom.stores.gates import BY, Paused

#: The options that set a limit.
_SETTING: Final = ("concurrent", "per_s", "burst", "by", "waiting", "pass_failed")
_ABOUT = """
Without options it shows the limits and pauses: all of them, or those of CHANNEL.
With options it sets what they name, and leaves the rest; `--by` says for which groups.
What is claimed already goes on. What runs is counted from the claims of this moment."""


def limit_options(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description}\n{_ABOUT}"
    parser.add_argument("channel", metavar="CHANNEL", nargs="?", help="the channel")
    parser.add_argument("--concurrent", type=options.count, metavar="N", help="so many of its messages run at once")
    parser.add_argument("--per-s", type=_rate, metavar="R", help="so many are taken in a second (0.5: one in 2 s)")
    burst = "with --per-s: so many at once, after a rest (default: 1)"
    parser.add_argument("--burst", type=options.count, metavar="N", help=burst)
    by = "--concurrent and --per-s hold for each sender, or for each order key, by itself"
    parser.add_argument("--by", choices=BY, help=by)
    waiting = "so many messages may wait in each mailbox of the channel; more cannot be sent"
    parser.add_argument("--waiting", type=options.count, metavar="N", help=waiting)
    passed = "set a failed message with an order key aside at once, as a dead letter, so that the next one passes"
    parser.add_argument("--pass-failed", action=argparse.BooleanOptionalAction, help=passed)
    options.flag(parser, "--remove", "remove all limits of the channel; a pause stays")


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number; write how many a second, such as 10 or 0.5"
        ) from None


def limit(call: Invocation) -> int:
    args = call.args
    asked = {name: value for name in _SETTING if (value := getattr(args, name)) is not None}
    if args.channel is None and (asked or args.remove):
        raise UsageError("say which CHANNEL: `postroom limit jobs --concurrent 4`")
    if args.remove and asked:
        raise UsageError("--remove takes all limits away; it cannot be combined with options that set some")
    if not asked and not args.remove:
        return _show(call)
    call.must_be_person("change the limits of a channel")
    if args.remove:
        return _remove(call)
    call.room.limit(args.channel, **asked)
    (found,) = (each for each in call.room.limits().channels if each.channel == args.channel)
    return call.tell(found.to_dict(), f"{args.channel}: {limiting.limits_text(found)}", write=output.say)


def _remove(call: Invocation) -> int:
    channel = call.args.channel
    if not call.room.unlimit(channel):
        output.note(f"the channel {channel!r} has no limits")
        return exit_codes.NOTHING
    return call.tell({"removed": channel}, f"{channel!r} has no limits any more", write=output.say)


def _show(call: Invocation) -> int:
    found, channel = call.room.limits(), call.args.channel
    if channel is not None:
        found = RoomLimits(tuple(each for each in found.channels if each.channel == channel))
        if not found:
            output.note(f"the channel {channel!r} has no limits and is not paused")
            return exit_codes.NOTHING
    if call.json:
        output.document(found.to_dict() if channel is None else found.channels[0].to_dict())
    elif found:
        show_limits(found, call.room.clock.wall_ms())
    else:
        output.say("no limits and no pauses; `postroom limit CHANNEL --concurrent N` sets one")
    return exit_codes.DONE


def show_limits(limits: RoomLimits, now_ms: int) -> None:
    """Write the limits of a room and its pauses, each as a table, where there are any."""
    limited = [
        (each.channel, text, limiting.running_text(each))
        for each in limits.channels
        if (text := limiting.limits_text(each))
    ]
    if limited:
        output.table(("channel", "limits", "running"), limited)
    paused = [(f"channel {each.channel}", each.paused) for each in limits.channels if each.paused is not None]
    paused += [(f"agent {name}", each) for name, each in limits.agents.items()]
    if paused:
        output.table(("paused", "by", "since", "reason"), _pause_rows(paused, now_ms))


def _pause_rows(paused: Iterable[tuple[str, Paused]], now_ms: int) -> Iterable[tuple[object, ...]]:
    return ((what, each.by, output.ago(each.since_ms, now_ms), each.reason) for what, each in paused)


def pause_options(parser: argparse.ArgumentParser) -> None:
    resume_options(parser)
    parser.add_argument("--reason", metavar="TEXT", help="why, for all who look at the room")


def resume_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("channel", metavar="CHANNEL", nargs="?", help="the channel")
    parser.add_argument("--agent", metavar="NAME", help="this agent, instead of a channel")


def pause(call: Invocation) -> int:
    args = call.args
    before = _paused(call)
    _must_be_allowed(call, "pause", args.agent if before is None else before.by)
    if args.agent is not None and not presence.is_addressee(call.room.gateway, args.agent):
        near = [
            quoted(name) for name in near_ones(args.agent, presence.addressees(call.room.gateway)) if is_plain(name)
        ]
        hint = f"; similar names: {', '.join(near)}" if near else ""
        output.note(f"no agent called {args.agent!r} was ever seen in this room{hint}")
    new = call.room.pause(**_target(call), reason=args.reason, by=call.maybe_name)
    told = _target(call) | {"paused": limiting.pause_dict(_paused(call)), "new": new}
    again = "" if new else ", as it was before"
    return call.tell(
        told, f"{_what(call)} is paused{again}; `postroom resume {_words(call)}` ends it", write=output.say
    )


def resume(call: Invocation) -> int:
    before = _paused(call)
    _must_be_allowed(call, "resume", None if before is None else before.by)
    if not call.room.resume(**_target(call)):
        output.note(f"{_what(call)} is not paused")
        return exit_codes.NOTHING
    return call.tell(_target(call) | {"resumed": True}, f"{_what(call)} is resumed", write=output.say)


def _must_be_allowed(call: Invocation, deed: str, maker: str | None) -> None:
    """In a room with tokens, pauses are for persons; an agent pauses itself alone, and ends what it began itself."""
    agent = call.args.agent
    own = agent is not None and maker == agent
    call.must_be_person(f"{deed} {_what(call)}", unless=[agent] if own else ())


def _target(call: Invocation) -> dict[str, Any]:
    """The channel or the agent that the command names."""
    args = call.args
    if (args.channel is None) == (args.agent is None):
        raise UsageError("name a CHANNEL, or an agent with --agent NAME, and not both")
    return {"channel": args.channel} if args.agent is None else {"agent": args.agent}


def _paused(call: Invocation) -> Paused | None:
    _target(call)
    return call.room.limits().pause_of(call.args.channel, call.args.agent)


def _what(call: Invocation) -> str:
    kind, name = next(iter(_target(call).items()))
    return f"{kind} {name}"


def _words(call: Invocation) -> str:
    kind, name = next(iter(_target(call).items()))
    return f"--agent {name}" if kind == "agent" else name
