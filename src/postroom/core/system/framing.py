"""Frames on a stream socket: a length, then so many bytes; descriptors may come along."""

from __future__ import annotations

import socket
from typing import Final

HEADER_BYTES: Final = 4
#: What is not longer than this is one piece for the system: it takes all of it or nothing. (Linux takes 32 KiB at once,
#: others as much as they keep free for a writer.)
WHOLE_BYTES: Final = 2048 - HEADER_BYTES


def send_frame(to: socket.socket, frame: bytes, descriptors: list[int] | None = None) -> None:
    """Send one frame, with descriptors if any.

    If it raises, for instance because of Ctrl-C, a frame of up to WHOLE_BYTES has left whole or not at all. Of a longer
    one any part may have left: nothing more can be said over that socket.
    """
    whole = len(frame).to_bytes(HEADER_BYTES, "big") + frame
    # One call: the other side would wait for ever for a body whose sender was interrupted after the length
    # (tests/sessions/test_processes.py).
    sent = socket.send_fds(to, [whole], descriptors) if descriptors else to.send(whole)
    if sent < len(whole):
        to.sendall(memoryview(whole)[sent:])


def read_frame(source: socket.socket) -> bytes | None:
    """The next frame; None when the other side is gone."""
    head = read_exactly(source, HEADER_BYTES)
    return None if head is None else read_exactly(source, int.from_bytes(head, "big"))


def read_exactly(source: socket.socket, size: int) -> bytes | None:
    """So many bytes; None when the other side is gone before."""
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
