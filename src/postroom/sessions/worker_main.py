"""The main program of a worker's process, from its task to its answer; and the will of a caller that was killed.

The task is one frame of JSON on the control socket, the answer another: {"result": …}, or {"end": …, "failure": …}.
"""

from __future__ import annotations

import importlib
import json
import runpy
import signal
import socket
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from postroom.core.clock import SYSTEM
from postroom.core.message import decode_payload
from postroom.core.system.fork_server import take_over
from postroom.core.system.framing import read_frame, send_frame
from postroom.errors import NotStartable, PostroomError
from postroom.room import open_room

from .record import Failure, SessionRecord, failure_of, raised_by
from .session import SessionHome, worker_session
from .worker import Worker, json_text

#: The program is loaded under this name, so that what stands under its `__main__` guard is left out.
MAIN_ALIAS: Final = "__postroom_main__"
#: A worker of a failed session waits so long before it tidies up: the others need the processor to abort theirs.
ABORT_PAUSE_S: Final = 0.01
EXIT_FAILED: Final = 1


def run(control: socket.socket) -> int:
    """Do one task. Returns the exit code of the process."""
    frame = read_frame(control)
    if frame is None:
        return EXIT_FAILED  # the caller is gone
    task = json.loads(frame)
    take_over(task["setting"])
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        answer = _work(task)
    except BaseException as error:  # noqa: BLE001  the room could not be opened or closed: the caller will record it
        answer = _told(raised_by(task["name"], error, SYSTEM))
    with suppress(OSError):  # nobody waits for it any more
        send_frame(control, answer)
    return 0 if answer.startswith(b'{"result"') else EXIT_FAILED


def _on_terminate(_number: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _work(task: dict[str, Any]) -> bytes:
    room = open_room(task["url"], **task["settings"])
    with room:
        host = SessionHome(room.gateway, task["url"], room.folder)
        session = worker_session(host, task["session"], task["member"], task["name"], task["parent"], task["number"])
        try:
            function = _find(task["place"], task["name"])
            positional, named = decode_payload(task["arguments"])
            result = json_text("result", function(session, *positional, **named))
        except BaseException as error:  # noqa: BLE001  whatever it was, the session is told
            return _failed(SessionRecord(room.gateway, session.id), task["name"], error)
        session.cleanup()
        return b'{"result":' + result.encode() + b"}"


def _failed(record: SessionRecord, name: str, error: BaseException) -> bytes:
    """Tell the session, then the caller."""
    if record.is_abort(error):
        SYSTEM.sleep(ABORT_PAUSE_S)
        return json.dumps({"end": "stopped with the session", "failure": None}).encode()
    failure = raised_by(name, error, SYSTEM)
    with suppress(PostroomError):  # the caller will do it
        record.fail(failure)
    SYSTEM.sleep(ABORT_PAUSE_S)
    return _told(failure)


def _told(failure: Failure) -> bytes:
    return json.dumps({"end": "failed", "failure": failure._asdict()}).encode()


def _find(place: dict[str, Any], name: str) -> Any:
    """The worker's function."""
    if place["main_path"] or place["main_module"]:
        found: Any = _load_main(place)
    else:
        found = importlib.import_module(place["module"])
    for part in place["qualname"].split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise NotStartable(
            f"worker {name} was not found as {place['qualname']} in {place['main_path'] or place['module']}; "
            "define it at the top level of a module, with @postroom.worker"
        )
    return found.function


def _load_main(place: dict[str, Any]) -> ModuleType:
    """The caller's program, without what it does when it is run."""
    main = ModuleType(MAIN_ALIAS)
    if place["main_module"]:
        content = runpy.run_module(place["main_module"], run_name=MAIN_ALIAS, alter_sys=True)
    else:
        content = runpy.run_path(place["main_path"], run_name=MAIN_ALIAS)
    main.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[MAIN_ALIAS] = main
    return main


def caller_gone(will: str) -> None:
    """The caller of a delegation was killed, and its workers with it: the session has failed."""
    said = json.loads(will)
    with open_room(said["url"], **said["settings"], create=False) as room:
        name = said["parent_name"]
        failure = failure_of(f"{name} was killed, or ended, while its workers ran", name, SYSTEM)
        SessionRecord(room.gateway, said["session"]).fail(failure)
