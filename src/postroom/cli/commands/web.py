"""`postroom web`: the room as a page in the browser, on this machine alone unless told otherwise."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.core.system import goodbye
from postroom.errors import PostroomError
from postroom.mail import tokens
from postroom.mail.received import check_names
from postroom.room import Room

#: The name of a person on the page, unless --as says another.
HUMAN: Final = "human"
LOOPBACK: Final = "127.0.0.1"


def web_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, metavar="P", help="the port (default: 7678, or any free one)")
    options.flag(parser, "--no-open", "only print the address; do not open a browser")
    host = f"listen on this address (default: {LOOPBACK}, this machine only)"
    parser.add_argument("--host", default=LOOPBACK, metavar="ADDRESS", help=host)
    file = "keep the page's token in FILE, so that it stays the same (default: $POSTROOM_WEB_TOKEN_FILE, or a new token at each start)"
    parser.add_argument("--token-file", metavar="FILE", help=file)
    name = "another host name that browsers may use for this server"
    parser.add_argument("--name", action="append", default=[], dest="names", metavar="HOST", help=name)


def port(text: str) -> int:
    """A port's number; 0 is any that is free."""
    number = options.whole(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: they go from 0 to 65535")
    return number


def web(call: Invocation) -> int:
    with goodbye.heard(lambda: None):  # the server is told of a SIGTERM that comes before it runs
        return _serve(call)


def _serve(call: Invocation) -> int:
    guard, server, token_file = _modules()
    kept = call.args.token_file or os.environ.get(token_file.VARIABLE)
    token = token_file.token_in(Path(kept).expanduser()) if kept else guard.new_token()
    who = tokens.token_in(os.environ)
    # a person without a name or a token may look: in a room with tokens, the page asks for one before it acts
    name = (call.maybe_name if who is not None or call.said_name is not None else None) or HUMAN
    check_names(**{"--as": name})
    room = call.room
    sock = server.listening(call.args.host, call.args.port)
    address = server.address_of(sock, token)
    with _opened(address, wanted=not call.args.no_open and not call.json) as open_it:
        if call.json:
            url = address.partition("/?")[0]
            about = {"address": address, "url": url, "token": token, "port": sock.getsockname()[1]}
            output.document({**about, "room": str(room.url)})
        else:
            output.write(f"The room {output.visible(str(room.url))} is at\n\n    {address}\n\nPress Ctrl-C to stop.")
            sys.stdout.flush()  # also into a pipe: the address is of use only while the page is there
        serving = {"name": name, "who": who, "names": call.args.names}
        ended_by = server.serve(room, sock, token, **serving, began=lambda _: open_it())
    return exit_codes.after_signal(ended_by)


def _modules() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The guard, the server and the token file of the page, which need packages that not everybody has."""
    try:
        from postroom.doors.web import guard, server, token_file
    except ModuleNotFoundError as error:
        from postroom.doors.install.lasting import extra_line

        raise PostroomError(f"the page needs {error.name}: {extra_line('web')}") from None
    return guard, server, token_file


@contextmanager
def while_served(room: Room) -> Iterator[str]:
    """Serve a room in a thread of its own as long as the block lasts; gives its address."""
    guard, server, _ = _modules()
    sock = server.listening(LOOPBACK, None)
    token = guard.new_token()
    began: Future[Callable[[], object]] = Future()
    thread = threading.Thread(target=server.serve, args=(room, sock, token), kwargs={"began": began.set_result})
    try:  # also while it starts: Ctrl-C would leave a thread that nobody ends (tests/cli/test_demo.py)
        thread.start()
        began.result()
        yield server.address_of(sock, token)
    finally:
        if thread.ident is not None:
            began.result()()
            thread.join()


@contextmanager
def _opened(address: str, *, wanted: bool) -> Iterator[Callable[[], None]]:
    """Lets a browser open the address, by way of a file that only its owner can read.

    Programs' arguments can be read by every user of a machine, and the address has the token in it.
    """
    if not wanted:
        yield lambda: None
        return
    descriptor, path = tempfile.mkstemp(prefix="postroom-", suffix=".html")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={address}">')
            file.write(f'<title>Postroom</title><a href="{address}">Postroom</a>\n')

        def open_it() -> None:
            # a browser may take seconds to say that it opened, and some only when they are closed
            threading.Thread(target=webbrowser.open, args=(f"file://{path}",), daemon=True).start()

        yield open_it
    finally:
        with suppress(OSError):
            os.unlink(path)
