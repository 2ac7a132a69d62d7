"""`postroom doctor`: the machine and the room, each check with what was found and what to do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.doctor import FAIL, OK, WARN, Check, doors, machine, room
from postroom.cli.pages import see
from postroom.core import trust
from postroom.core.config import FILES_MARK, FOLDER, parse_url, room_folder, shown_address
from postroom.errors import RoomDamaged, RoomError, RoomNotFound

#: The whole file is read, but for no longer than this, in seconds: nobody's log can be folded back meanwhile.
INTEGRITY_S: Final = 5.0
_SHOWN: Final = {OK: "ok", WARN: "WARN", FAIL: "FAIL"}


def doctor_options(parser: argparse.ArgumentParser) -> None:
    whole = f"spend at most this long on the integrity check (default: {INTEGRITY_S:g}; 0: skip it)"
    options.span(parser, "--integrity", whole, INTEGRITY_S)
    monitor = "a NATS server's monitoring port, http://HOST:8222, to check that it syncs to disk; may be repeated"
    parser.add_argument("--monitor", action="append", default=[], metavar="URL", help=monitor)


def doctor(call: Invocation) -> int:
    found = list(machine.machine())
    address, how = machine.find(call.args.room)
    found += how
    reached = address is not None
    if address is not None:
        try:
            _check_there(address)
            reached = _look_at_room(call, address, found)
        except (RoomNotFound, RoomDamaged) as error:
            is_lost = isinstance(error, RoomDamaged)
            advice = "" if is_lost else "make it with `postroom init`, or name another with --room"
            found[-1] = Check("room", FAIL, f"{shown_address(address)}: {error}", advice)
            reached = False
    found += doors.doors(Path.cwd(), doors.home())
    _show(call, address, found)
    if not reached:
        return exit_codes.NO_ROOM
    return exit_codes.FAILED if any(check.verdict == FAIL for check in found) else exit_codes.DONE


def _check_there(address: str) -> None:
    """Raise RoomNotFound unless there is a room, RoomDamaged where its messages were lost.

    Opening would make what is missing, and looking must not.
    """
    try:
        url = parse_url(address)
        folder = room_folder(url)
    except RoomError as error:
        raise RoomNotFound(str(error)) from None
    trust.check_whole(url)
    mark = f"{FOLDER}/{FILES_MARK}" if url.scheme == "files" else machine.DATABASE
    if folder is not None and not (folder / mark).exists():
        raise RoomNotFound(f"there is no {mark} in {folder}")


def _look_at_room(call: Invocation, address: str, found: list[Check]) -> bool:
    """Add the room's checks to those found; returns whether there is a room, in whatever state."""
    folder = room_folder(parse_url(address))
    try:
        if folder is not None:
            found.extend(machine.place(folder))
        opened = call.room
    except RoomError as error:
        found.append(Check("opening", FAIL, str(error)))
        return folder is not None
    try:
        found.extend(room.room_checks(opened, call.args.integrity))  # those before an error are kept
        if hasattr(opened.store, "servers_report"):
            from postroom.cli.doctor.nats import nats_checks  # urllib costs more than all other checks

            found.extend(nats_checks(opened.store, call.args.monitor))
    except RoomError as error:
        found.append(Check("reading", FAIL, str(error)))
    return True


def _show(call: Invocation, address: str | None, found: list[Check]) -> None:
    failed, warned = (sum(check.verdict == verdict for check in found) for verdict in (FAIL, WARN))
    if call.json:
        verdict = FAIL if failed else WARN if warned else OK
        checks = [check._asdict() for check in found]
        output.document({"room": address and shown_address(address), "verdict": verdict, "checks": checks})
        return
    width = max(len(check.check) for check in found)
    for check in found:
        output.write(f"{_SHOWN[check.verdict]:<5} {check.check:<{width}}  {output.visible(check.says)}")
        if check.advice:
            output.write(f"{'':<5} {'':<{width}}  -> {output.visible(check.advice)}")
    more = f"; {see('operations/doctor')} explains each" if failed or warned else ""
    output.write(f"{len(found)} checks: {failed} failed, {warned} warning{'s' * (warned != 1)}{more}")
