"""`postroom board ...`: the tasks of a room, for people and for agents that speak by commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from postroom.board.held_task import HeldTask
from postroom.board.task import STATES, Task
from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.cli.interrupts import Interrupts
from postroom.core.untrusted import quoted
from postroom.errors import InvalidMessage, PostroomError

#: The actions of `postroom board`, each with its arguments.
ACTIONS: Final = {
    "add": "ID [TITLE] [--after ID]... [--payload P]",
    "claim": "[ID] [--wait S] [--lease S]",
    "done": "ID [RESULT]",
    "blocked": "ID WHY",
    "release": "ID [WHY]",
    "extend": "ID [--lease S]",
    "abort": "ID [WHY]",
    "list": "[--tree] [--state WORD] [--limit N]",
    "show": "ID",
    "reopen": "ID",
    "remove": "ID",
    "watch": "[--limit N]",
}
#: How many words may follow the id.
_WORDS: Final = {"add": 1, "done": 1, "blocked": 1, "release": 1, "abort": 1}


def board_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "postroom board [-h] [--room URL] [--as NAME] " + "|".join(ACTIONS) + " [ID] [TEXT] ..."
    actions = "one of (default: list): " + "; ".join(f"`{name} {takes}`" for name, takes in ACTIONS.items())
    parser.add_argument("action", metavar="ACTION", nargs="?", default="list", choices=list(ACTIONS), help=actions)
    parser.add_argument("id", metavar="ID", nargs="?", help="the task")
    text = "add: the title; done: the result, JSON or text; otherwise: the reason"
    parser.add_argument("text", metavar="TEXT", nargs="?", help=text)
    parser.add_argument(
        "--after", action="append", metavar="ID", default=[], help="add: a task to wait for; may be repeated"
    )
    payload = "add: the worker's input; a JSON object, `-` for stdin, or text"
    parser.add_argument("--payload", metavar="P", help=payload)
    options.span(parser, "--wait", "claim: wait this long for a task to be ready", 0)
    options.span(parser, "--lease", "claim, extend: how long it stays yours (default: 600)", 600)
    options.flag(parser, "--tree", "list: show what waits for what, as a tree")
    parser.add_argument(
        "--state", choices=STATES, metavar="WORD", help=f"list: only tasks in this state; one of {', '.join(STATES)}"
    )
    limit = "list: at most N tasks (default: all); watch: end after N changes"
    options.listing(parser, None, limit, action="list: ")


def board(call: Invocation) -> int | None:
    args = call.args
    if args.action in ("list", "watch") and (args.id or args.text):
        raise UsageError(f"`postroom board {args.action}` takes no ID")
    if args.id is None and args.action not in ("claim", "list", "watch"):
        raise UsageError(f"name the task: postroom board {args.action} {ACTIONS[args.action]}")
    if args.text is not None and args.action not in _WORDS:
        raise UsageError(f"{args.text!r} is one argument too many: postroom board {args.action} {ACTIONS[args.action]}")
    step: Callable[[Invocation], int | None] = globals()[f"_{args.action}"]
    return step(call)


def _tell(call: Invocation, task: Task, said: str) -> int:
    return call.tell(task.to_dict(), f"{task.id} {said}")


def _add(call: Invocation) -> None:
    args = call.args
    payload = None if args.payload is None else options.payload_of(args.payload, plain=False)
    if call.maybe_name is not None:
        call.agent()
    board = call.room.board
    task = board.add(args.id, title=args.text or "", after=args.after, payload=payload, lead=call.maybe_name)
    waits = f", waits for {', '.join(task.unmet)}" if task.unmet else ""
    _tell(call, task, f"is on the board: {task.state}{waits}")


def _claim(call: Invocation) -> int:
    args = call.args
    call.agent()
    with Interrupts(call.room) as interrupts:
        held = call.room.board.claim(
            call.name, args.id, timeout_s=args.wait, lease_s=args.lease, transient=True, process=call.owner
        )
        if held is None:
            output.note(_why_not(call) if args.id else "nothing is ready; --wait S waits for a task")
            if call.json:
                output.document(None)
            return exit_codes.NOTHING
        if interrupts.pending:
            held.release("the command was interrupted")
            interrupts.end()
        try:
            _show_claimed(call, call.room.board.get(held.id))
            sys.stdout.flush()
        except (OSError, PostroomError):  # a task that nobody saw must not stay claimed
            if interrupts.holding:
                held.return_unseen()
            raise
    return exit_codes.DONE


def _show_claimed(call: Invocation, task: Task) -> None:
    if call.json:
        output.document(task.to_dict())
        return
    output.write(f"{output.visible(task.id)}  {output.visible(task.title)}".rstrip())
    output.write(f"  yours until {task.lease_until}, token {task.token}")
    for line in output.payload_lines(task.payload) if task.payload else ():
        output.write(line)
    output.say(f"  when done: postroom board done {output.name(task.id)} {call.again}")


def _why_not(call: Invocation) -> str:
    task = call.room.board.get(call.args.id)
    if task.unmet and task.state == "ready":
        return f"{task.id} waits for {', '.join(map(quoted, task.unmet))}"
    until = f" until {task.lease_until}" if task.lease_until else ""
    return f"{task.id} is {task.state}{f' by {quoted(task.owner)}' if task.owner else ''}{until}"


def _held(call: Invocation, step: Callable[[HeldTask], bool], said: str) -> int:
    """Say something of a task that this agent holds."""
    board = call.room.board
    try:
        counted = step(board.held(call.args.id, call.name))
        problem = f"{call.args.id} is no longer yours: another agent has taken it"
    except InvalidMessage as error:
        if [fault.field for fault in error.faults] != ["id"]:
            raise
        counted, problem = False, error.faults[0].problem
    if not counted:
        output.note(problem)
        if call.json:
            output.document(board.get(call.args.id).to_dict())
        return exit_codes.FAILED
    return _tell(call, board.get(call.args.id), said)


def _done(call: Invocation) -> int:
    result = _result_of(call.args.text)
    return _held(call, lambda task: task.done(result), "is done")


def _result_of(text: str | None) -> Any:
    """A result as it was written: JSON when it is JSON, else text."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


def _blocked(call: Invocation) -> int:
    if not call.args.text:
        raise UsageError("say why: postroom board blocked ID WHY")
    return _held(call, lambda task: task.blocked(call.args.text), "is blocked")


def _release(call: Invocation) -> int:
    board = call.room.board
    task = board.get(call.args.id)
    if task.state in ("blocked", "aborted"):
        return _reopen(call)
    return _held(call, lambda task: task.release(call.args.text), "is ready again")


def _extend(call: Invocation) -> int:
    lease_s = call.args.lease
    return _held(call, lambda task: task.extend(lease_s), f"is yours for {lease_s:.0f} s more")


def _abort(call: Invocation) -> int:
    args, board = call.args, call.room.board
    lead = board.get(args.id).lead
    call.must_be_person(f"abort a task led by {lead or 'no agent'}", unless=(lead,))
    if board.abort(args.id, args.text, by=call.maybe_name, _person=call.lane == "human"):
        return _tell(call, board.get(args.id), "is aborted")
    output.note(f"{args.id} is already {board.get(args.id).state}")
    return exit_codes.FAILED


def _list(call: Invocation) -> None:
    tasks = call.room.board.tasks()
    if call.args.state is not None:
        tasks = [task for task in tasks if task.state == call.args.state]
    found, tasks = len(tasks), tasks[: call.args.limit]
    if call.args.tree and not call.json:
        for line in tree(tasks) or ["no tasks"]:
            output.write(line)
        call.tell_count(len(tasks), found)
        return
    rows = ((t.id, _state(t), t.owner, t.title, ", ".join(t.unmet), t.lease_until, t.why) for t in tasks)
    columns = ("task", "state", "owner", "title", "waits for", "lease until", "why")
    call.tell_rows((task.to_dict() for task in tasks), columns, rows, empty="no tasks")
    call.tell_count(len(tasks), found)


def _show(call: Invocation) -> None:
    task = call.room.board.get(call.args.id)
    if call.json:
        output.document(task.to_dict())
        return
    output.say(f"{output.name(task.id)} is {_state(task)}")
    result = None if task.result is None else msgspec.json.encode(task.result).decode()
    facts = {
        "title": task.title,
        "owner": task.owner,
        "lease until": task.lease_until,
        "after": ", ".join(task.after),
        "waits for": ", ".join(task.unmet),
        "why": task.why,
        "lead": task.lead,
        "result": result,
    }
    for name, value in facts.items():
        if value:
            output.write(f"  {name:<11}  {output.visible(value)}")
    for line in output.payload_lines(task.payload) if task.payload else ():
        output.write(line)


def _reopen(call: Invocation) -> int:
    id, board = call.args.id, call.room.board
    task = board.get(id)
    call.must_be_person(f"reopen a task led by {task.lead or 'no agent'}", unless=(task.lead,))
    if board.reopen(id):
        return _tell(call, board.get(id), "is ready again")
    output.note(f"{id} is {task.state}; only a blocked or aborted task can be reopened")
    return exit_codes.FAILED


def _remove(call: Invocation) -> int:
    id, board = call.args.id, call.room.board
    task = board.get(id)
    call.must_be_person(f"remove a task led by {task.lead or 'no agent'}", unless=(task.lead,))
    if board.remove(id):
        return _tell(call, task, "is off the board")
    output.note(f"{_why_not(call)}; abort it first: postroom board abort {output.name(id)}")
    return exit_codes.FAILED


def _state(task: Task) -> str:
    return "waiting" if task.state == "ready" and task.unmet else task.state


def tree(tasks: list[Task]) -> list[str]:
    """The dependencies as a tree: each task stands once, below the last one that it waits for."""
    known = {task.id: task for task in tasks}
    below: dict[str | None, list[Task]] = {}
    for task in tasks:
        above = [id for id in task.after if id in known]
        last = next((id for id in reversed(above) if id in task.unmet), above[-1] if above else None)
        below.setdefault(last, []).append(task)
    lines: list[str] = []
    shown: set[str] = set()
    roots = [*below.get(None, ()), *tasks]  # tasks that wait for each other, written so by hand, have no root
    todo = [(task, "", "") for task in reversed(roots)]
    while todo:  # not by calls of calls: a chain may be longer than those can be deep
        task, lead, indent = todo.pop()
        if task.id in shown:
            continue
        shown.add(task.id)
        lines.append(lead + _tree_line(task, known))
        under = [each for each in below.get(task.id, ()) if each.id not in shown]
        for place, each in enumerate(reversed(under)):
            todo.append((each, indent + ("├─ " if place else "└─ "), indent + ("│  " if place else "   ")))
    return lines


def _tree_line(task: Task, known: dict[str, Task] | None = None) -> str:
    facts = [_state(task)]
    if task.owner and task.state != "ready":
        facts.append(task.owner)
    missing = [id for id in task.unmet if known is not None and id not in known]
    if len(task.unmet) > 1 or missing or (known is None and task.unmet):
        facts.append("waits for " + ", ".join(f"{id} (not on the board)" if id in missing else id for id in task.unmet))
    if task.why:
        facts.append(task.why)
    return output.visible(f"{task.id}  {task.title}".rstrip() + f"  [{'; '.join(facts)}]")


def _watch(call: Invocation) -> None:
    for number, task in enumerate(call.room.board.watch(), 1):
        if call.json:
            output.document(task.to_dict())
        else:
            output.write(_tree_line(task))
            output.end_words()
            sys.stdout.flush()
        if number == call.args.limit:
            break
