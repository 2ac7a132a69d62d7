"""`postroom session list | show ID | stop ID | clean`: looking at sessions, and stopping them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core.clock import from_iso
from postroom.sessions import report
from postroom.sessions.report import SessionInfo

ACTIONS: Final = ("list", "show", "stop", "clean")
WEEK_S: Final = 7 * 86400.0


def session_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="list, show, stop or clean")
    parser.add_argument("id", metavar="ID", nargs="?", help="the session, for show and stop")
    options.span(parser, "--older-than", "for clean: 10s, 5m, 2h, 7d (default: 7d)", WEEK_S, metavar="SPAN")
    options.span(parser, "--grace", "for stop: seconds before workers are killed", 2.0)
    options.listing(parser, 50, "for list: the newest N (default: 50)", action="for list: ")


def session(call: Invocation) -> int | None:
    args = call.args
    if (args.action in ("show", "stop")) != (args.id is not None):
        needs = "needs the ID of a session" if args.id is None else "takes no ID"
        raise UsageError(f"`postroom session {args.action}` {needs}; `postroom session list` shows them")
    step: Callable[[Invocation], int | None] = globals()[f"_{args.action}"]
    return step(call)


def _list(call: Invocation) -> None:
    found, count = report.list_sessions(call.room.gateway, limit=call.args.limit)
    now_ms = call.room.clock.wall_ms()
    rows = (
        (info.id, info.state, output.ago(from_iso(info.opened), now_ms), info.members, _why(info))
        for info in reversed(found)
    )
    columns = ("session", "state", "opened", "members", "failure")
    call.tell_rows(map(report.info_dict, found), columns, rows, empty="no sessions")
    call.tell_count(len(found), count)


def _why(info: SessionInfo) -> str:
    return "" if info.failure is None else info.failure.message.partition("\n")[0][:100]


def _show(call: Invocation) -> None:
    about = report.report(call.room.gateway, call.args.id)
    if call.json:
        output.document(report.to_dict(about))
        return
    info = about.info
    for name, value in (("session", info.id), ("state", info.state), ("opened", info.opened), ("folder", info.folder)):
        output.write(f"{name:<8} {output.visible(str(value))}")
    rows = [(w.number, w.name, w.role, w.state, "; ".join(w.waits), w.pid) for w in about.workers]
    output.table(("#", "worker", "role", "state", "waits", "pid"), rows, title="members", empty="none")
    boxes = [(box.name, box.sent, box.received, box.waiting) for box in about.mailboxes]
    output.table(("mailbox", "sent", "received", "waiting"), boxes, title="mailboxes", empty="no messages")
    if info.failure is not None:
        failure = info.failure
        output.write(f"failed at {failure.timestamp}" + (f" through {failure.worker}" if failure.worker else ""))
        output.write("    " + output.visible(failure.message, keep="\n").replace("\n", "\n    "))
        for line in failure.stack.splitlines():
            output.write("    " + output.visible(line))


def _stop(call: Invocation) -> int:
    room, id = call.room, call.args.id
    call.must_be_person("stop sessions")
    before = report.report(room.gateway, id).info
    gone = report.stop(room.gateway, id, call.args.grace)
    after = report.report(room.gateway, id).info
    said = f"session {id} is stopped" + ("" if gone else "; some of its workers still run")
    if before.state in (report.FAILED, report.ENDED):
        said = f"session {id} had already ended ({before.state})"
    call.tell(report.info_dict(after) | {"workers_gone": gone}, said)
    return exit_codes.DONE if gone else exit_codes.FAILED


def _clean(call: Invocation) -> None:
    call.must_be_person("remove sessions")
    ids = report.clean(call.room.gateway, call.args.older_than)
    call.tell({"ids": ids}, f"{len(ids)} session{'s' * (len(ids) != 1)} removed")
