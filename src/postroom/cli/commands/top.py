"""`postroom top`: the room, live. It is woken by changes, looks by itself now and then, and changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.top.keys import Keys, TerminalKeys
from postroom.cli.top.picture import Lookout, RoomPicture
from postroom.errors import RoomBusy
from postroom.room import Room
from postroom.stores.contract import FEED, LIMITS, Waiter, topic_cells

#: At most one picture in this time, in seconds, however much happens.
INTERVAL_S: Final = 0.25
#: One picture in this time although nothing happened: heartbeats grow old, processes end.
LOOK_S: Final = 1.0
#: A look may take this share of the time, no more: a room of millions is counted less often.
MAX_SHARE: Final = 0.1
#: Where nothing wakes us, keys are looked for this often, in seconds.
_KEYS_S: Final = 0.1


def top_options(parser: argparse.ArgumentParser) -> None:
    options.flag(parser, "--once", "print one snapshot and exit, as it does without a terminal")
    idle = "once a second when nothing happens"
    options.span(
        parser, "--interval", f"redraw at most once in this time (default: {INTERVAL_S:g}); {idle}", INTERVAL_S
    )


def top(call: Invocation) -> int:
    """Until q, Ctrl-C or a signal, at a terminal, which is as before when it ends; else one picture, or documents."""
    lookout = Lookout(call.room)
    interval_s = max(0.05, call.args.interval)
    if call.json:
        output.document(lookout.look())
        if not call.args.once:
            for picture in pictures(call.room, lookout, interval_s, Keys()):
                output.document(picture)
        return exit_codes.DONE
    from postroom.cli.top import screen  # with rich, which programs do not need

    first = lookout.look()
    if call.args.once or not sys.stdout.isatty():
        output.write(screen.text_of(first))
        return exit_codes.DONE
    with TerminalKeys() as keys, screen.live(first) as show:
        for picture in pictures(call.room, lookout, interval_s, keys):
            show(picture)
    return exit_codes.DONE if keys.ended_by is None else 128 + keys.ended_by


def pictures(room: Room, lookout: Lookout, interval_s: float, keys: Keys) -> Iterator[RoomPicture]:
    """A picture after each change, and one now and then without, until it is over."""
    with room.store.listen([FEED, topic_cells("agent/"), topic_cells(LIMITS)]) as waiter:
        took_s = 0.0
        while True:
            gap_s = max(interval_s, took_s / MAX_SHARE)
            # While we would not look anyway, nobody need wake us: the bell is armed again by the wait that follows.
            keys.pause(room.clock, gap_s)
            _wait(room, waiter, keys, max(0.0, LOOK_S - gap_s))
            if keys.over:
                return
            waiter.wait(0)  # armed before we look, so that no change is missed
            began_ns = room.clock.steady_ns()
            try:
                picture = lookout.look()
            except RoomBusy:  # the next look will do
                continue
            took_s = (room.clock.steady_ns() - began_ns) / 1e9
            yield picture


def _wait(room: Room, waiter: Waiter, keys: Keys, timeout_s: float) -> None:
    """Wait for a change, or for a key, a signal or a new size of the window."""
    if keys.over:
        return
    try:
        bell = waiter.fileno()
    except OSError:  # this room has no bells: it is looked at, and so are the keys
        until_ns = room.clock.steady_ns() + round(timeout_s * 1e9)
        while not keys.stirred and not waiter.wait(_KEYS_S) and room.clock.steady_ns() < until_ns:
            keys.take(room.clock.wait_readable(keys.fds, 0))
    else:
        keys.take(room.clock.wait_readable([bell, *keys.fds], 0 if keys.stirred else timeout_s))
    keys.stirred = False
