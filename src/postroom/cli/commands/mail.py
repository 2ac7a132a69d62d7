"""Sending, receiving and settling: the commands that speak as an agent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

from postroom.cli import exit_codes, options, output, write_no_more
from postroom.cli.call import ID_HELP, LAST, Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core import near as near_names
from postroom.core.config import GRACE_S
from postroom.core.message import GROUP_SIGN
from postroom.core.states import State
from postroom.core.untrusted import is_plain, quoted
from postroom.errors import AskTimeout, InvalidMessage, MailboxFull, NoMail, PostroomError, UnknownMessage
from postroom.mail import answers, presence
from postroom.mail.gateway import Gateway
from postroom.mail.received import QUESTION, TOLD_TO_STOP, Received

from . import people

#: TO that means: the agent that claims it first in the channel; of a question to a person, any person.
ANYBODY: Final = "*"
#: Stands for the state of a message that is not kept here.
UNKNOWN: Final = "unknown"
#: A message that was given back on its last delivery.
DEAD: Final = "dead"
DEAD_NOW: Final = "is dead now: that was its last delivery (`postroom dead` shows it, `postroom requeue` puts it back)"
#: At most so many channels are named to a receiver that finds no mail.
MAX_CHANNELS: Final = 5
#: How long a command waits for somebody else unless told otherwise, in seconds.
PATIENCE_S: Final = 30.0


# --- send, ask, publish ------------------------------------------------------------------------------------------


def _envelope_options(parser: argparse.ArgumentParser, *, channel: bool = True) -> None:
    options.payload_arguments(parser)
    parser.add_argument("--type", default="message", metavar="T", help="what kind of message it is (default: message)")
    if channel:
        parser.add_argument("--channel", default="general", metavar="C", help="the channel (default: general)")
    parser.add_argument("--priority", type=options.whole, default=5, metavar="1-10", help="10 comes first (default: 5)")
    options.span(parser, "--ttl", "expires if it is not received within this time")


def _envelope(call: Invocation, to: str | None) -> dict[str, Any]:
    """The part of a message's envelope that all three have."""
    args = call.args
    sent = {"type": args.type, "priority": args.priority, "ttl_s": args.ttl}
    return {**sent, "cause": call.cause(to), "_lane": call.lane}


def _payload(call: Invocation) -> dict[str, Any]:
    """The payload that was written, with its files; they are kept before anything is sent."""
    payload = options.payload_of(call.args.payload, plain=call.args.text)
    if call.args.attach:
        from .artifacts import with_files  # few messages have files

        return with_files(call, payload)
    return payload


def send_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "to", metavar="TO", help="an agent's name, @GROUP, or '*' for the first agent to claim it in the channel"
    )
    _envelope_options(parser)
    also = "another recipient; may be repeated: each gets its own message, and all are sent or none"
    parser.add_argument("--to", dest="also", action="append", default=[], metavar="NAME", help=also)
    options.flag(parser, "--new", "allow a recipient that this room does not know yet")
    options.span(parser, "--delay", "deliver it after this time", 0)
    parser.add_argument("--correlation-id", metavar="ID", help="correlation id: the conversation that it belongs to")
    parser.add_argument("--key", metavar="KEY", help="idempotency key: messages with the same key are sent only once")
    parser.add_argument(
        "--order-key", metavar="KEY", help="messages with the same order key are delivered one at a time, in order"
    )
    parser.add_argument("--replaces", metavar="ID", help=f"withdraw this message if no receiver has it yet; {ID_HELP}")
    options.span(
        parser,
        "--debounce",
        "with --order-key: replace waiting messages of this key, and deliver this one after this time",
    )
    options.span(
        parser, "--full-wait", "into a full mailbox: wait this long for space (default: 0, it fails at once)", 0
    )
    parser.add_argument("--wait", choices=("acked", "answered"), help="return only after the receiver has done this")
    options.span(parser, "--timeout", f"how long to wait, with --wait (default: {PATIENCE_S:.0f})")


def send(call: Invocation) -> None:
    args = call.args
    if args.timeout is not None and not args.wait:
        raise UsageError("--timeout needs --wait; a send without --wait returns as soon as it is stored")
    names = [None if name == ANYBODY else name for name in _recipients(call)]
    if _is_to_several(call) and (args.wait or args.key or args.replaces or args.full_wait):
        raise UsageError("--wait, --key, --replaces and --full-wait allow only one recipient; use one command for each")
    _check_debounce(args)
    known = [to is None or must_be_known(call, to, presence.is_addressee) for to in names]
    payload = _payload(call)
    sent = {"channel": args.channel, "delay_s": args.delay, "correlation_id": args.correlation_id}
    sent |= {"order_key": args.order_key, "debounce_s": args.debounce}
    if args.replaces:
        sent["replaces"] = call.message_id(args.replaces)
    try:
        ids = _send_each(call, names, payload, sent)
    except MailboxFull as error:
        error.args = (f"{error} ({_waited(args.full_wait)}). Nothing was stored",)
        raise
    if call.json:
        told = [
            {
                "id": id,
                "state": call.room.receipt(id).state,
                "to_agent": to,
                "channel": args.channel,
                "recipient_known": seen,
            }
            for id, to, seen in zip(ids, names, known, strict=True)
        ]
        output.document(told if _is_to_several(call) else told[0])
        return
    for id in ids:
        output.write(id)
    for to, seen in zip(names, known, strict=True):
        if not seen:
            output.note(f"{to} has not joined this room yet; the message waits for it")


def _check_debounce(args: argparse.Namespace) -> None:
    if args.debounce is not None and not args.order_key:
        raise UsageError("--debounce needs --order-key: messages of one key replace each other")
    if args.debounce is not None and args.delay:
        raise UsageError("--debounce and --delay cannot be combined: a debounced message is delayed")


def _waited(full_wait_s: float) -> str:
    return f"there was no space in {full_wait_s:g} s" if full_wait_s else "--full-wait S waits for space"


def _send_each(call: Invocation, names: list[str | None], payload: dict[str, Any], sent: dict[str, Any]) -> list[str]:
    """Send the message to one agent, or a message of its own to each. Returns the ids, in their order."""
    args, agent = call.args, call.agent()
    if _is_to_several(call):
        each = [{"to": to, "payload": payload, **sent, **_envelope(call, to)} for to in names]
        lanes = {message.pop("_lane") for message in each}
        return agent.send_many(each, _lane=lanes.pop())
    timeout_s = (PATIENCE_S if args.timeout is None else args.timeout) if args.wait else None
    to, alone = names[0], {"idempotency_key": args.key, "full_wait_s": args.full_wait}
    return [agent.send(to, payload, wait=args.wait, timeout_s=timeout_s, **alone, **sent, **_envelope(call, to))]


def must_be_known(call: Invocation, to: str, is_enough: Callable[[Gateway, str], bool]) -> bool:
    """Whether the room has seen the recipient. Raises, with the near names, unless it is known enough or may be new."""
    gateway = call.room.gateway
    if to == call.maybe_name or presence.is_known(gateway, to):
        return True
    if call.args.new or is_enough(gateway, to):
        return False
    from postroom.doors.strangers import never_seen

    names = presence.addressees(gateway)
    raise UnknownRecipient(never_seen(to, names, "--new if it is new", any_name=sys.stderr.isatty()))


class UnknownRecipient(PostroomError):
    """No agent of that name was ever seen in this room."""


def ask_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("to", metavar="TO", help="the agent or person to ask, @GROUP, or '*' for any person")
    _envelope_options(parser)
    also = "ask this agent too; may be repeated: the answers are printed as they come"
    parser.add_argument("--to", dest="also", action="append", default=[], metavar="NAME", help=also)
    enough = "of several, how many answers are enough: all, any or a number (default: all)"
    parser.add_argument("--enough", type=_enough, metavar="N", help=enough)
    options.flag(parser, "--new", "allow an agent or person that this room does not know yet")
    options.span(
        parser, "--timeout", f"(default: {PATIENCE_S:.0f}); of a question to a person its deadline (default: none)"
    )
    parser.add_argument("--key", metavar="KEY", help="idempotency key: a repeat asks only once")
    people.ask_options(parser)


def ask(call: Invocation) -> int:
    """An answer that was taken is shown, whatever comes: it is acked by then, and nobody else would see it."""
    from postroom.cli.interrupts import Interrupts

    args = call.args
    if people.is_for_person(call):
        if args.to != ANYBODY and call.credential is None:
            must_be_known(call, args.to, presence.is_addressee)
        return people.ask(call, None if args.to == ANYBODY else args.to, _payload(call))
    timeout_s = PATIENCE_S if args.timeout is None else args.timeout
    names = _recipients(call)
    if args.enough is not None and not _is_to_several(call):
        raise UsageError("--enough needs several agents; name the others with --to NAME")
    for name in names:
        must_be_known(call, name, presence.is_known)
    payload = _payload(call)
    agent, envelope = call.agent(), _envelope(call, names[0]) | {"idempotency_key": args.key}
    with Interrupts(call.room):
        if _is_to_several(call):
            asked = agent.ask_many(names, payload, args.enough or "all", timeout_s, channel=args.channel, **envelope)
            return _show_answers(call, asked)
        try:
            answer = agent.ask(names[0], payload, channel=args.channel, timeout_s=timeout_s, **envelope)
        except AskTimeout as error:
            kept = call.room.store.get(error.id)
            if kept is None or kept.exact_state is not State.READY:
                raise
            stays = f"the question still waits; `postroom withdraw {error.id}` takes it back"
            raise AskTimeout(f"{error}; {stays}", error.id) from None
        if call.json:
            output.document(answer.to_dict())
        else:
            output.words_of(answer)
            output.write(output.payload_line(answer.payload, keep="\n\t"))
        sys.stdout.flush()
    return exit_codes.DONE


def _show_answers(call: Invocation, asked: answers.Answers) -> int:
    """The answers of several agents as they come, then why the others gave none."""
    for answer in asked:
        if call.json:
            output.document(answer.to_dict())
        else:
            output.words_of(answer)
            output.write(f"{output.visible(answer.from_agent)}: {output.payload_line(answer.payload)}")
        sys.stdout.flush()
    missing = {name: (type(error).__name__, error) for name, error in asked.missing.items()}
    if call.json:
        told = [
            {"to_agent": name, "error": kind, "reason": str(error), "id": error.id}
            for name, (kind, error) in missing.items()
        ]
        output.document({"enough": asked.enough, "missing": told})
    else:
        output.end_words()
        for name, (_, error) in missing.items():
            sys.stderr.write(f"postroom: {output.visible(name)}: {output.error_text(error, plain=call.args.plain)}\n")
    if asked.enough:
        return exit_codes.DONE
    late = any(isinstance(error, AskTimeout) for error in asked.missing.values())
    return exit_codes.NOTHING if late else exit_codes.FAILED


def _enough(text: str) -> str | int:
    """The value of --enough."""
    if text in answers.ENOUGH:
        return text
    try:
        return options.count(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not all, any or a whole number above zero") from None


def _recipients(call: Invocation) -> list[str]:
    """TO and each --to, with each group replaced by its members; a name that is given twice counts once."""
    name, named = call.name, list(dict.fromkeys([call.args.to, *call.args.also]))
    is_plain_list = not any(each.startswith(GROUP_SIGN) for each in named)
    return named if is_plain_list else call.room.groups.expand(named, name)


def _is_to_several(call: Invocation) -> bool:
    """Whether the command names more than an agent: also a group of one gives a list (tests/cli/test_groups.py)."""
    return bool(call.args.also) or call.args.to.startswith(GROUP_SIGN)


def publish_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("channel", metavar="CHANNEL", help="every subscriber of this channel gets a copy")
    _envelope_options(parser, channel=False)
    options.span(parser, "--delay", "deliver it after this time", 0)


def publish(call: Invocation) -> int:
    args = call.args
    payload = _payload(call)
    ids = call.agent().publish(args.channel, payload, delay_s=args.delay, **_envelope(call, None))
    call.tell({"ids": ids}, *ids)
    if not ids:
        output.note(f"{args.channel} has no subscribers; nothing was stored")
    return exit_codes.DONE if ids else exit_codes.NOTHING


def subscribe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("channel", metavar="CHANNEL", nargs="+")


def subscribe(call: Invocation) -> None:
    _for_channels(call, call.agent().subscribe, "subscribed", "to")


unsubscribe_options = subscribe_options


def unsubscribe(call: Invocation) -> None:
    _for_channels(call, call.agent().unsubscribe, "unsubscribed", "from")


def _for_channels(call: Invocation, step: Callable[[str], object], done: str, preposition: str) -> None:
    channels = call.args.channel
    for channel in channels:
        step(channel)
    shown = f"{call.name} is {done} {preposition} {', '.join(channels)}"
    call.tell({"agent": call.name, "channels": channels, done: True}, shown)


# --- receive, listen ---------------------------------------------------------------------------------------------


def receive_options(parser: argparse.ArgumentParser) -> None:
    options.span(parser, "--wait", "wait this long for a message", 0)
    parser.add_argument(
        "--channel",
        action="append",
        metavar="C",
        help="only messages in this channel, addressed to you or to any agent; may be repeated (default: all mail addressed to you)",
    )
    options.flag(parser, "--ack", "ack it once it is printed")
    options.span(parser, "--lease", "how long it stays yours (default: 600)", 600)


def receive(call: Invocation) -> None:
    from postroom.cli.interrupts import Interrupts

    args = call.args
    agent = call.agent()
    with Interrupts(call.room) as interrupts:
        try:
            if args.wait:
                message = agent.receive(timeout_s=args.wait, channels=args.channel, lease_s=args.lease)
            elif (found := agent.poll(channels=args.channel, lease_s=args.lease)) is not None:
                message = found
            else:
                raise NoMail(f"there is no mail for {call.name}; --wait S waits for some")
        except NoMail as error:
            raise type(error)(f"{error}{_for_anybody(call)}") from None
        if interrupts.pending:
            message.return_unseen("the command was interrupted")
            interrupts.end()
        _write_out(call, message, _show_received)
        if args.ack:
            message.ack()


def _for_anybody(call: Invocation) -> str:
    """The mail that a receiver passes by, without --channel or with a name that is near it, as the end of a sentence."""
    asked = call.args.channel or ()
    boxes = (box for box in call.room.mailboxes() if box.to_agent is None and box.channel not in asked)
    depths = {box.channel: box.depth for box in boxes if is_plain(box.channel)}
    if asked and depths:
        near = {name for each in asked for name in near_names.near_ones(each, depths)}
        depths = {channel: depth for channel, depth in depths.items() if channel in near}
    if not depths:
        return ""
    shown = ", ".join(f"{depth} in {channel}" for channel, depth in sorted(depths.items())[:MAX_CHANNELS])
    return f". Mail for any agent waits in channels ({shown}): take it with --channel NAME"


def _write_out(call: Invocation, message: Received, write: Callable[[Invocation, Received], None]) -> None:
    """Write a message to standard output; when that fails, give it back, so that it is not taken and seen by nobody."""
    try:
        write(call, message)
        output.end_words()
        sys.stdout.flush()
    except OSError:
        message.retry("it could not be printed", delay_s=0)
        raise


def _show_received(call: Invocation, message: Received) -> None:
    if call.json:
        output.document(message.to_dict())
        return
    sender, type, channel = map(output.name, (message.from_agent, message.type, message.channel))
    facts = [f"from {sender}", type, f"channel {channel}", f"priority {message.priority}"]
    facts += [f"delivery {message.delivery_count}", message.timestamp]
    output.say(message.id)
    output.say("  " + " · ".join(facts))
    output.words_of(message)
    for line in output.payload_lines(message.payload):
        output.write(line)
    if not call.args.ack:
        output.say(f"  when done: postroom ack {message.id} {call.again}")


def listen_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", action="append", metavar="C", help="as for receive; may be repeated")
    parser.add_argument("--limit", type=options.count, metavar="N", help="end after this many messages")
    options.span(parser, "--grace", f"on SIGTERM, wait this long for the reader ({GRACE_S:.0f})", GRACE_S)


def listen(call: Invocation) -> None:
    """Each message is acked when it was written out and the next is asked for; what dies in between comes again.

    On SIGTERM the one that is being written is the last. The room is closed before SIGTERM means death again.
    """
    from postroom.cli.interrupts import GraceOver, Leaving

    with Leaving(call.args.grace) as leaving, call.room:
        agent = call.agent(transient=False)
        for number, message in enumerate(agent.listen(channels=call.args.channel, _stop=leaving.latch), 1):
            if leaving.is_told():  # while it was claimed
                message.return_unseen(TOLD_TO_STOP)
                break
            try:
                with leaving.writing():
                    _write_out(call, message, _show_line)
            except GraceOver:
                message.return_unseen(TOLD_TO_STOP)
                write_no_more()
                break
            if leaving.is_told() or number == call.args.limit:
                message.ack()
                break


def _show_line(call: Invocation, message: Received) -> None:
    if call.json:
        output.document(message.to_dict())
    else:
        output.words_of(message)
        sender, payload = output.visible(message.from_agent), output.payload_line(message.payload)
        output.write(f"{message.timestamp}  {sender}: {payload}")


# --- what became of it -------------------------------------------------------------------------------------------


def _settle(call: Invocation, ids: list[str], step: Callable[[Received], bool], done: str) -> int:
    """Say the same of each message that this agent holds; report those that it does not hold any more.

    One that is not known keeps nothing from the others (tests/cli/test_mail.py); alone, it is the error that it is.
    """
    results = []
    for given in ids:
        id = given
        try:
            id = call.message_id(given, held=True)
            held, problem = _settle_one(call, id, step)
            state = call.room.receipt(id).state
        except UnknownMessage as error:
            if len(ids) == 1:
                raise
            held, problem, state = False, str(error), UNKNOWN
        results.append({"id": id, "held": held, "state": state})
        if held and not call.json:
            output.write(f"{id} {DEAD_NOW if state == DEAD else done}")
        if not held:
            output.note(problem)
    if call.json:
        output.document(results[0] if len(results) == 1 else results)
    failed = {result["state"] for result in results if not result["held"]}
    return exit_codes.DONE if not failed else exit_codes.NOTHING if failed == {UNKNOWN} else exit_codes.FAILED


def _settle_one(call: Invocation, id: str, step: Callable[[Received], bool]) -> tuple[bool, str]:
    """Whether it counted, and what to say if it did not."""
    holder = call.room.get(id).claimed_by
    if holder not in (None, call.name):  # asked before the agent is: a wrong name should not become one that was seen
        return False, f"message {id} is held by {quoted(str(holder))}, not by {call.name}"
    try:
        message = call.agent().claimed(id)
    except InvalidMessage as error:
        return False, str(error).removeprefix("Invalid message: id: ")
    return step(message), f"message {id} is no longer yours: another agent has taken it"


def ack_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="+", help=ID_HELP)


def ack(call: Invocation) -> int:
    return _settle(call, call.args.id, lambda message: message.ack(), "acked")


def retry_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)
    parser.add_argument("why", metavar="WHY", nargs="?", default="the receiver asked for a retry")
    options.span(parser, "--delay", "deliver it after this time (default: longer with each retry)")


def retry(call: Invocation) -> int:
    args = call.args
    return _settle(call, [args.id], lambda held: held.retry(args.why, delay_s=args.delay), "will be delivered again")


def reply_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)
    options.payload_arguments(parser)


def reply(call: Invocation) -> int:
    payload = _payload(call)
    message = call.room.store.get(call.message_id(call.args.id, held=call.args.id == LAST))
    if message is not None and message.type == QUESTION:
        return people.answer(call, message, payload)
    return _settle(call, [call.args.id], lambda message: message.reply(payload, _lane=call.lane), "answered")


def refuse_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)
    parser.add_argument("why", metavar="WHY", help="the reason; the sender can read it")


def refuse(call: Invocation) -> int:
    return _settle(call, [call.args.id], lambda message: message.refuse(call.args.why), "refused")


def extend_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)
    options.span(parser, "--lease", "from now on (default: 600)", 600)


def extend(call: Invocation) -> int:
    lease_s = call.args.lease
    return _settle(call, [call.args.id], lambda message: message.extend(lease_s), f"is yours for {lease_s:.0f} s more")


def withdraw_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)
    parser.add_argument("why", metavar="WHY", nargs="?", help="the reason; its ledger keeps it")


def withdraw(call: Invocation) -> int:
    """A message that a receiver has stays with it, and the command says so and fails."""
    id = call.message_id(call.args.id)
    done = call.agent().withdraw(id, call.args.why)
    message = call.room.get(id)
    call.tell({"id": id, "withdrawn": done, "state": message.state}, *([f"{id} withdrawn"] if done else []))
    if not done:
        by = f" by {quoted(message.claimed_by)}" if message.claimed_by else ""
        output.note(f"message {id} is {message.state}{by}: it is too late to withdraw it")
    return exit_codes.DONE if done else exit_codes.FAILED
