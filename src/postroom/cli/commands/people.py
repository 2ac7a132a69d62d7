"""Questions to people: `postroom questions`, and what `ask` and `reply` do when a person is asked."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import DOOR, ID_HELP, Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core.clock import from_iso, span_text
from postroom.core.message import Message
from postroom.errors import IdentityRefused, ReceiveTimeout
from postroom.mail import people, tokens
from postroom.mail.gateway import Deadline
from postroom.mail.handles import handle_of
from postroom.stores.contract import topic_cells

from .messages import cut

#: In place of a name: any person of the room.
ANY_PERSON: Final = "*"
#: What `ask` takes for agents alone, with the value that says nothing.
_FOR_AGENTS: Final[dict[str, Any]] = {
    "also": [],
    "enough": None,
    "type": "message",
    "channel": "general",
    "priority": 5,
    "ttl": None,
}


# --- ask ---------------------------------------------------------------------------------------------------------


def ask_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("asking a person (each of these makes it a question to a person)")
    group.add_argument(
        "--option", action="append", default=[], metavar="TEXT", help="what may be answered; may be repeated"
    )
    group.add_argument("--default", metavar="TEXT", help="the answer when nobody has answered within --timeout")
    options.flag(group, "--no-wait", "print the question's id and end; `postroom questions ID` tells the answer")


def is_for_person(call: Invocation) -> bool:
    """Whether `ask` was told to ask a person."""
    args = call.args
    return bool(args.option) or args.default is not None or bool(args.no_wait)


def ask(call: Invocation, person: str | None, payload: dict[str, Any]) -> int:
    """Ask a person; wait for the answer unless told not to."""
    args = call.args
    if any(getattr(args, name) != usual for name, usual in _FOR_AGENTS.items()):
        raise UsageError("a question to a person takes none of --to, --enough, --type, --channel, --priority and --ttl")
    if args.default is not None and args.timeout is None:
        raise UsageError("--default needs --timeout: it is the answer when that time is over")
    text = payload.pop("text", None)
    if not isinstance(text, str):
        raise UsageError("a question to a person needs text: PAYLOAD is text, or an object with `text`")
    asker, room = call.agent(), call.room
    id = room.people.ask(
        person,
        text,
        asker.name,
        options=args.option,
        default=args.default,
        timeout_s=args.timeout,
        data=payload,
        idempotency_key=args.key,
        cause=call.cause(person),
    )
    if args.no_wait:
        return call.tell(room.people.look(id).to_dict(), id, write=output.say)
    if not call.json:
        output.note(f"waiting for {person or 'a person'}; `postroom questions {id} --wait 1h` waits again")
    return _wait(call, id, None)


def _wait(call: Invocation, id: str, timeout_s: float | None) -> int:
    from postroom.cli.interrupts import Interrupts

    with Interrupts(call.room):
        given = call.room.people.wait(id, timeout_s)
        question = call.room.people.look(id)
        _tell_answer(call, question, given)
        sys.stdout.flush()
    return exit_codes.DONE


def _tell_answer(call: Invocation, question: people.PersonQuestion, given: people.PersonAnswer) -> None:
    if call.json:
        output.document(question.to_dict())
        return
    write = output.say if question.options else output.write  # of options, the asker has chosen the words
    write(output.visible(given.said, "\n\t"))
    if given.is_default:
        output.end_words()
        output.note("nobody answered in time; this is the default")


# --- questions ---------------------------------------------------------------------------------------------------


def questions_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help=f"tell how this question stands; {ID_HELP}")
    parser.add_argument("--to", metavar="NAME", help="only those that this person may answer")
    options.span(parser, "--wait", "wait this long: with ID for its answer, else for a question", None)


def questions(call: Invocation) -> int | None:
    args = call.args
    if args.id is not None:
        id = call.message_id(args.id)
        return _show(call, call.room.people.look(id)) if args.wait is None else _wait(call, id, args.wait)
    found = _come(call) if args.wait else call.room.people.open(args.to)
    now_ms = call.room.clock.wall_ms()
    rows = [
        (
            handle_of(each.id),
            each.asker,
            each.person or ANY_PERSON,
            cut(each.text, 60),
            " | ".join(each.options),
            each.default,
            _left(each, now_ms),
        )
        for each in found
    ]
    columns = ("question", "asker", "person", "text", "options", "default", "ends in")
    call.tell_rows((each.to_dict() for each in found), columns, rows, "no question waits for a person")
    if found and not call.json and sys.stdout.isatty():
        output.remark("answer with: postroom reply QUESTION ANSWER")
    return exit_codes.DONE


def _come(call: Invocation) -> list[people.PersonQuestion]:
    """The open questions, waiting until there is one."""
    gateway, wait_s = call.room.gateway, call.args.wait
    deadline = Deadline(gateway.clock, wait_s)
    with gateway.listen([topic_cells(people.CELLS)]) as waiter:
        while not (found := call.room.people.open(call.args.to)):
            left_s = deadline.left_s()
            if left_s == 0:
                raise ReceiveTimeout(f"no question came within {wait_s:g} s")
            gateway.wait(waiter, left_s)
    return found


def _left(question: people.PersonQuestion, now_ms: int) -> str:
    return "" if question.deadline is None else span_text(max(0, from_iso(question.deadline) - now_ms))


def _show(call: Invocation, question: people.PersonQuestion) -> int:
    if call.json:
        output.document(question.to_dict())
        return exit_codes.DONE
    output.say(f"{question.id} is {question.state}")
    facts = {
        "from": question.asker,
        "to": question.person or ANY_PERSON,
        "text": question.text,
        "options": " | ".join(question.options) or None,
        "default": question.default,
        "asked": question.asked,
        "open until": question.deadline,
    }
    given = question.answer
    if given is not None:
        by = "nobody answered in time; this is the default" if given.is_default else f"{given.by}, {given.how}"
        facts |= {"answer": given.said, "by": f"{by}, {given.time}"}
    for name, value in facts.items():
        if value is not None:
            output.write(f"  {name:<10} {output.visible(value)}")
    return exit_codes.DONE


# --- reply -------------------------------------------------------------------------------------------------------


def answer(call: Invocation, message: Message, payload: dict[str, Any]) -> int:
    """Answer a question as the person whose token the environment has; without tokens, as the one at the terminal."""
    said = payload.get("text")
    if len(payload) != 1 or not isinstance(said, str):
        raise UsageError("a question to a person is answered with text")
    given = people.answer(call.room.gateway, message.id, said, _answerer(call, message))
    call.tell({"id": message.id, "answer": given.to_dict()}, f"{message.id} answered: {given.said}")
    return exit_codes.DONE


def _answerer(call: Invocation, message: Message) -> people.Answerer:
    token = tokens.token_in(os.environ)
    if token is not None or tokens.has_tokens(call.room.gateway):
        return people.Answerer(token, DOOR, call.said_name)
    if call.said_name is not None and message.to_agent not in (None, call.said_name):
        raise IdentityRefused(f"the question is for {output.visible(str(message.to_agent))}, not for {call.said_name}")
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or call.owner is not None:
        raise IdentityRefused(
            "in a room without tokens a person answers at a terminal, or on the page (`postroom web`); "
            "elsewhere by a person's token (`postroom agent add NAME --human` makes one)"
        )
    return people.Answerer(None, DOOR, call.said_name, "terminal")
