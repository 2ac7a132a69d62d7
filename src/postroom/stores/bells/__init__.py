"""Bells: waking waiters across threads and processes without polling.

- `page`: memory that all processes of a room map. It says which slot waits for which topics, so that ringing where
  nobody waits is one look at it (a tenth of a microsecond).
- `sockets`: a datagram socket for each slot, in the room's folder; the kernel frees the slot when its owner dies.
- `switchboards`: one slot for many waiters of one event loop, each with a byte of its own on the page, so that a
  thousand of them keep one socket.
- `spinning`: a latency trick, behind one setting.
- `bells`: all of it together, and the waiter that owns one slot. A store has one `Bells`, rings it after each commit,
  and listens through it.

A ring is a hint. The waiter looks again, and looks by itself once a second in case a hint was lost.
"""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: Programs without an event loop have no switchboard, and mostly ring none; few rooms have a path that is too long.
__getattr__ = deferring(__name__, "shortcuts", "switchboards")
