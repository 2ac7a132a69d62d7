"""Full-text search over all messages of a room."""

from __future__ import annotations

import argparse
import sys
from typing import Self

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.mail.handles import handle_of

from .look import listed
from .messages import ANYBODY, short

_DEFAULT_LIMIT = 20
_LANGUAGE = """
what to look for:
  build failed       both words, in any order; case and accents make no difference
  '"build failed"'   the phrase
  'build*'           words that begin so
  'build -green'     without the word green
  from:ci to:bob     the sender, the recipient
  in:jobs type:x     the channel, the type
  state:dead         the state (see `postroom peek --help`)
  after:2d           sent since a time (2026-11-01) or in a span (2d); before: likewise

The texts and numbers in payloads are searched, not their keys. Quote what your shell would change.
The first search of a SQLite room makes an index. Other rooms are searched by reading their latest 10,000 messages."""


def search_options(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description}\n{_LANGUAGE}"
    parser.add_argument("query", metavar="QUERY", nargs="+", help="what to look for")
    parser.add_argument("--agent", metavar="NAME", help="only messages that this agent sent, gets or claimed last")
    options.listing(parser, _DEFAULT_LIMIT)


def search(call: Invocation) -> int:
    args, room = call.args, call.room
    limit = args.limit or options.NO_LIMIT - 1
    with _IndexProgress() as progress:
        found = room.search(" ".join(args.query), limit, agent=args.agent, told=progress.told)
    now_ms = room.clock.wall_ms()
    rows = (
        (
            handle_of(m.id),
            output.ago(m.timestamp_ms, now_ms),
            m.from_agent,
            m.to_agent or ANYBODY,
            m.channel,
            m.state,
            short(m, 60),
        )
        for m in found
    )
    columns = ("handle", "sent", "from", "to", "channel", "state", "payload")
    call.tell_rows(map(listed, found), columns, rows, empty="nothing matches")
    if found.more:
        output.note(f"the newest {len(found)} are shown; use --all, or a larger --limit N, for more")
    if found.note:
        output.note(found.note)
    return exit_codes.DONE if found else exit_codes.NOTHING


class _IndexProgress:
    """How much is indexed, for a person at a terminal."""

    def __init__(self) -> None:
        self._shown = False

    def told(self, done: int, total: int) -> None:
        """See `Room.search`."""
        if sys.stderr.isatty():
            self._shown = True
            sys.stderr.write(f"\rindexing messages: {done} of {total}")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\n")
