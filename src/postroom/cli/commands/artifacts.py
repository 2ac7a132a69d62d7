"""Files beside the messages: attaching them, and getting them back."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from postroom.cli import options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.errors import PostroomError

#: Where `--attach` puts references into a payload.
ATTACHMENTS: Final = "attachments"


class NoFilesHere(PostroomError):
    """The room has no place for files."""


class NotWritten(PostroomError):
    """A file could not be written."""


def attach_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="+")


def attach(call: Invocation) -> None:
    kept = [_keep(call, file) for file in call.args.file]
    lines = (f"{each['artifact']}  {each['bytes']} bytes  {each['name']}" for each in kept)
    call.tell(kept[0] if len(kept) == 1 else kept, *lines)


def _keep(call: Invocation, file: str) -> dict[str, Any]:
    room, _ = call.room, call.credential  # a room with tokens takes nothing from a caller without one
    if room.folder is None:
        raise NoFilesHere(
            f"the room {room.url} is on NATS servers and stores no files; send the address of a place that others can reach"
        )
    return room.attach(options.path_of(file))


def with_files(call: Invocation, payload: dict[str, Any]) -> dict[str, Any]:
    """The payload with references to the files of --attach, which are kept first."""
    if not call.args.attach:
        return payload
    there = payload.get(ATTACHMENTS, [])
    if not isinstance(there, list):
        raise UsageError(f"--attach adds to the list {ATTACHMENTS!r} in PAYLOAD, but that value is not a list")
    return {**payload, ATTACHMENTS: [*there, *(_keep(call, file) for file in call.args.attach)]}


def artifact_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="get", choices=("get",), help="get the file behind a reference")
    parser.add_argument("reference", metavar="REF", help="sha256:…, as `attach` and `show` print it")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write a copy there, `-` for stdout (default: print its path)"
    )


def artifact(call: Invocation) -> None:
    args = call.args
    path = call.room.artifact(args.reference)
    if args.output == "-":
        _write_out(path)
        return
    if args.output is None:
        target = path
    else:
        target = options.path_of(args.output)
        try:
            shutil.copyfile(path, target)
        except OSError as error:
            raise NotWritten(f"{target} could not be written: {error.strerror or error}") from None
    bytes_ = path.stat().st_size
    call.tell({"artifact": args.reference, "path": str(target), "bytes": bytes_}, str(target), write=output.say)


def _write_out(path: Path) -> None:
    sys.stdout.flush()
    with path.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()
