"""`postroom allow`: the user's word that a room, or a server, is trusted on this machine."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core import trust
from postroom.core.clock import iso
from postroom.core.config import (
    CREDENTIAL_OPTIONS,
    FOLDER,
    FOLDER_SCHEMES,
    RoomUrl,
    address_in,
    is_new,
    parse_url,
    place_of,
    search_places,
    shown_address,
)
from postroom.core.git_index import UnreadableIndex, tracked_of_room
from postroom.errors import RoomError, RoomNotAllowed, RoomNotFound

#: Of a folder with more in it than this not everything is looked at.
MAX_LOOKED_AT: Final = 200_000
_SHARED: Final = stat.S_ISGID | stat.S_IWGRP
#: Credentials that a server may be shown, or must show.
_FLAGS: Final = {
    "creds": "a credentials file that may be sent to this server",
    "user": "the user name for this server",
    "password_file": "a file with that user's password",
    "tls_ca": "the certificate authority (CA) that signs the server's certificate",
    "tls_cert": "your client certificate for this server",
    "tls_key": "the key of that certificate",
}


def allow_options(parser: argparse.ArgumentParser) -> None:
    target = "a folder, or nats://HOST:PORT[/ROOM] (default: the room found here)"
    parser.add_argument("target", metavar="PATH|URL", nargs="?", help=target)
    options.flag(parser, "--list", "list the trusted rooms and servers")
    options.flag(parser, "--remove", "stop trusting it")
    for name in CREDENTIAL_OPTIONS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, metavar="NAME" if name == "user" else "FILE", help=_FLAGS[name])
    options.flag(parser, "--plaintext", "let secrets be sent to this server without TLS")


def allow(call: Invocation) -> int:
    args = call.args
    given = {name: getattr(args, name) for name in CREDENTIAL_OPTIONS if getattr(args, name) is not None}
    target = args.target or args.room
    if args.list:
        return _list(call)
    if args.remove:
        return _remove(target)
    if target is not None and "://" in target:
        return _allow_server(call, parse_url(target), given)
    if given or args.plaintext:
        raise UsageError("credentials and --plaintext are for servers: postroom allow nats://HOST:PORT --user NAME")
    place = _place(target)
    check_place(place)
    _check_pointed_at(place)
    group = place.stat().st_uid != os.geteuid()
    with _kept():
        entry = trust.allow_place(place, how="allowed", group=group)
    return call.tell({"allowed": entry.path}, f"{entry.path} is allowed: {trust.describe(place)}")


@contextmanager
def _kept() -> Iterator[None]:
    """An error of the configuration's folder becomes a sentence."""
    try:
        yield
    except OSError as error:
        where = trust.config_folder() or "your configuration"
        why = error.strerror or error
        raise RoomError(f"your trust cannot be saved in {where} ({why}); name the room with --room") from None


def _place(target: str | None) -> Path:
    """The folder that is to be trusted: the one with Postroom's own files in it. Raises RoomNotFound."""
    if target is None:
        for place in search_places(Path.cwd()):
            if place.is_dir():
                return place
        raise RoomNotFound(f"there is no {FOLDER} in {Path.cwd()} or above it; name the folder: postroom allow PATH")
    url = parse_url(target)
    if url.scheme not in FOLDER_SCHEMES:
        raise UsageError(f"{target!r} is neither a folder nor an address such as nats://HOST:PORT/ROOM")
    place = place_of(url) or Path(target)
    inner = place / FOLDER
    if not is_new(url) or not inner.is_dir():
        inner = place
    if not inner.is_dir():
        raise RoomNotFound(f"there is no folder {inner}")
    if inner.name != FOLDER and is_new(RoomUrl("sqlite", str(inner), {})):
        raise RoomNotFound(f"there is no room in {inner}; make one with `postroom init`")
    return inner


def check_place(place: Path) -> None:
    """Raise RoomNotAllowed when the folder deserves no trust: a link, another's files, or files that git tracks."""
    about = os.lstat(place)
    if stat.S_ISLNK(about.st_mode):
        leads_to = os.path.realpath(place)
        raise RoomNotAllowed(f"{place} is a symbolic link; allow the folder that it leads to: {leads_to}")
    shared = about.st_mode & _SHARED == _SHARED
    if about.st_uid != os.geteuid() and not shared:
        raise RoomNotAllowed(
            f"{place} belongs to user {about.st_uid}, and only a room made with group=true is shared between users"
        )
    _check_inside(place, shared=shared)
    check_untracked(place)


def _check_pointed_at(place: Path) -> None:
    """The same for the folder that a pointer leads to: it may have come with the pointer."""
    other = place_of(parse_url(address_in(place)))
    if other is not None and other.is_dir() and os.path.realpath(other) != os.path.realpath(place):
        check_place(other)


def _check_inside(place: Path, *, shared: bool) -> None:
    looked = 0
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            looked += 1
            try:
                about = os.lstat(path)
            except FileNotFoundError:
                continue  # the room is in use
            if stat.S_ISLNK(about.st_mode):
                raise RoomNotAllowed(
                    f"{path} is a symbolic link; a room's folder may not contain links: remove it first"
                )
            if about.st_uid != os.geteuid() and not shared:
                raise RoomNotAllowed(
                    f"{path} belongs to user {about.st_uid}; every file in your room must belong to you"
                )
        if looked > MAX_LOOKED_AT:
            output.note(f"only the first {looked} files of {place} were checked")
            return


def check_untracked(place: Path, url: RoomUrl | None = None) -> None:
    """Raise RoomNotAllowed when git tracks the content of a room: each pull could bring other messages."""
    try:
        names = tracked_of_room(place, url or parse_url(address_in(place)))
    except UnreadableIndex as error:
        output.note(f"cannot tell whether git tracks {place}: {error}")
        return
    if names:
        raise RoomNotAllowed(
            f"git tracks {names[0]} in the room of {place}, so any pull could change the room's messages; "
            f"untrack it first: git rm -r --cached {FOLDER}"
        )


def _allow_server(call: Invocation, url: RoomUrl, given: dict[str, str]) -> int:
    hosts, _, name = url.rest.removeprefix("//").partition("/")
    servers = trust.servers_of(hosts)
    if url.scheme != "nats" or not servers:
        raise UsageError("write a server as nats://HOST:PORT, and a room on it as nats://HOST:PORT/ROOM")
    if "@" in hosts or url.options:
        raise UsageError(f"write the address without credentials and options: nats://{','.join(servers)}/{name}")
    shown: dict[str, Any] = {
        option: value if option == "user" else _existing(option, value) for option, value in given.items()
    }
    with _kept():
        if given or call.args.plaintext or not name:
            for server in servers:
                trust.allow_server(trust.ServerEntry(path=server, plaintext=call.args.plaintext, **shown))
        if name:
            trust.allow_address(url, how="allowed")
    what = f"nats://{','.join(servers)}" + (f"/{name}" if name else "")
    return call.tell({"allowed": what}, f"{what} is allowed" + (f", with {', '.join(given)}" if given else ""))


def _existing(option: str, path: str) -> str:
    full = os.path.abspath(os.path.expanduser(path))
    if not os.path.isfile(full):
        raise UsageError(f"--{option.replace('_', '-')}: there is no file {full}")
    return full


def _remove(target: str | None) -> int:
    what = target if target is not None and "://" in target else str(_removable(target))
    if trust.remove(what):
        output.write(f"{output.visible(shown_address(what))} is no longer trusted")
        return exit_codes.DONE
    output.note(f"{shown_address(what)} is not in the list (postroom allow --list)")
    return exit_codes.NOTHING


def _removable(target: str | None) -> Path:
    """A folder that may be gone already."""
    try:
        return _place(target)
    except RoomError:
        if target is None:
            raise
        return Path(target)


def _list(call: Invocation) -> int:
    rooms, servers = trust.rooms(), trust.servers()
    if call.json:
        output.document({"rooms": [asdict(room) for room in rooms], "servers": [asdict(server) for server in servers]})
        return exit_codes.DONE
    for room in rooms:
        where = "" if room.address.endswith(room.path) else f" -> {room.address}"
        output.write(f"room    {output.visible(room.path + where)}  ({room.how} {iso(room.time_ms)})")
    for server in servers:
        shown = ", ".join(name for name in CREDENTIAL_OPTIONS if getattr(server, name) is not None)
        more = f"; {shown}" * bool(shown) + "; plaintext" * server.plaintext
        output.write(f"server  {output.visible(server.path)}  (allowed {iso(server.time_ms)}{more})")
    if not rooms and not servers:
        output.note("no rooms or servers are trusted yet")
    return exit_codes.DONE if rooms or servers else exit_codes.NOTHING
