"""Our end of a line to a worker (leader and followers): one waiting thread reads, and reads for all others.

A thread that asks and waits does its own writing and reading, as long as nobody else reads: no other thread has to be
woken, so a ping costs little more than the system's own part. When it has what it waited for while others still wait,
it leaves the reading to the loop; the loop leaves it to nobody when nothing more is expected.

Ctrl-C may end a thread's reading at any step, also while it tidies up after another one. So the thread that reads holds
a lock of its own in a `with`, which Python leaves in every case: one that no longer holds it no longer reads, whatever
it did not come to say (tests/pools/test_line.py). The rest of its duty is made such that half of it harms nobody.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from postroom.core.clock import SYSTEM

from .loop import PoolLoop
from .protocol import BrokenFrame, Splitter, ToWorker, pack

#: A read of more than the allocator keeps at hand costs twenty microseconds for nothing.
_CHUNK: Final = 32 * 1024
#: The system counts the milliseconds of a wait in 32 bits.
_LONGEST_WAIT_MS: Final = 86_400_000
#: A thread that reads when the process has ended says when it leaves. So often is looked whether it left without a
#: word.
_LOOK_AGAIN_NS: Final = 50_000_000
_INTERRUPTED: Final = "was killed: the reading of its line was interrupted"


class Line:
    """One line to one process of a worker.

    `take` is called with the frames that came, by whichever thread reads, one thread at a time and with no lock held.
    `gone` is called once, in the loop's thread, when the other side has hung up and all that it said was taken.
    """

    def __init__(
        self, end: socket.socket, loop: PoolLoop, take: Callable[[Sequence[Any]], None], gone: Callable[[], None]
    ) -> None:
        end.setblocking(False)
        self._end = end  # its recv waits, with a timeout; the loop, which must not wait, reads by the number
        self._fd = end.fileno()
        self._loop = loop
        self._take = take
        self._gone = gone
        self._lock = threading.Lock()
        self._incoming = Splitter(in_worker=False)
        self._outgoing = b""
        self._expected = 0
        self._wait_ms = 0  # how long a read of `_end` waits
        self._leader: threading.Lock | None = None  # held by the thread that reads, as long as it does
        self._by_loop = False  # the loop reads
        #: Whether nothing more will come over it.
        self.hung_up = False
        self._finishing = False
        self._told_gone = False
        #: Why the line was given up, if it was; follows the worker's name.
        self.broken = ""

    # Writing

    def send(self, frame: ToWorker, *, answers: int = 1) -> None:
        """Send a frame. Never waits: the rest that does not fit now is sent by the loop.

        `answers` is how many are expected (`answered` counts them off). If the frame cannot be packed, nothing was
        sent. A line that was hung up takes everything, and nobody answers.
        """
        data = pack(frame)
        with self._lock:
            self._expected += answers
            if self._outgoing or self.hung_up:
                self._outgoing += data
                return
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:  # the other side is gone: the end of its process tells the rest
                return
            if sent < len(data):
                self._outgoing = data[sent:]
                self._loop.call(self._watch)

    def _flush(self) -> None:
        """In the loop: send what is left."""
        with self._lock:
            try:
                sent = os.write(self._fd, self._outgoing) if self._outgoing else 0
            except BlockingIOError:
                return
            except OSError:
                sent = len(self._outgoing)
            self._outgoing = self._outgoing[sent:]

    # Reading

    def expect(self, answers: int) -> None:
        """So many more answers are to come, although nothing was sent."""
        with self._lock:
            self._expected += answers

    def answered(self) -> None:
        """One answer less is expected."""
        with self._lock:
            self._expected -= 1

    def leave_to_loop(self) -> None:
        """No thread waits here for the answer: let the loop read, unless a thread does."""
        with self._lock:
            if not self._is_led() and not self.hung_up:
                self._loop.call(self._watch)
                self._by_loop = True

    def _is_led(self) -> bool:
        """Whether somebody reads: the loop, or a thread that waits. With the lock."""
        leader = self._leader
        if leader is None or leader.locked():
            return self._by_loop or leader is not None
        self._give_up(_INTERRUPTED)  # it left without a word
        self._leave()
        return False

    def read_until(self, over: Callable[[], bool], until_ns: int) -> None:
        """If nobody reads, read in this thread until `over()`, until that moment, or until the other side hangs up."""
        mine = threading.Lock()
        with mine:
            try:
                with self._lock:
                    if self._is_led() or self.hung_up:
                        return
                    self._leader = mine
                while not over():
                    left_ns = until_ns - SYSTEM.steady_ns()
                    if left_ns <= 0 or not self._read(left_ns):
                        break
                with self._lock:
                    self._leave()
            except BaseException:
                # Ctrl-C: bytes that were read just now may be lost, and with them the place in the line
                with self._lock:
                    if self._leader is mine:
                        self._give_up(_INTERRUPTED)
                        self._leave()
                raise

    def _leave(self) -> None:
        """A thread reads no more, and the loop may have to.

        With the lock; the loop is told first: an interrupt may come between.
        """
        if self._finishing or self.hung_up:
            self._loop.call(self.finish if self._finishing else self._tell_gone)
        elif self._expected > 0:
            self._loop.call(self._watch)
            self._by_loop = True
        self._leader = None

    def _read(self, wait_ns: int = 0) -> bool:
        """Take what is there, or comes within that time. False when the other side has hung up. By the leader only."""
        try:
            part = self._wait_and_read(wait_ns) if wait_ns else os.read(self._fd, _CHUNK)
        except (BlockingIOError, TimeoutError):
            return True
        except OSError:
            part = b""
        if part:
            try:
                frames = self._incoming.feed(part)
            except BrokenFrame as broken:
                with self._lock:
                    self._give_up(f"sent an invalid frame ({broken})")
                return False
            self._take(frames)
            return True
        with self._lock:
            self.hung_up = True
        return False

    def _wait_and_read(self, wait_ns: int) -> bytes:
        """Python waits and reads in one call, and knows how much time is left when a signal came between.

        The system's own limit of a read (SO_RCVTIMEO) begins anew after each signal (tests/pools/test_worker.py).
        """
        wait_ms = min(wait_ns // 1_000_000 + 1, _LONGEST_WAIT_MS)
        if self._wait_ms != wait_ms:
            self._end.settimeout(wait_ms / 1000)
            self._wait_ms = wait_ms
        return self._end.recv(_CHUNK)

    def _give_up(self, why: str) -> None:
        """Read no more: where the next frame begins is not known. With the lock."""
        self.broken = self.broken or why
        self.hung_up = True

    # In the loop's thread

    def _watch(self) -> None:
        """Be called when there is something to read or to write here."""
        if not self._told_gone:
            with self._lock:  # the caller's thread may be about to set what is watched for
                read, write = self._by_loop, bool(self._outgoing)
            self._loop.watch(self._fd, self._on_ready, read=read, write=write)

    def _on_ready(self) -> None:
        if self._outgoing:
            self._flush()
        alive = self._read() if self._by_loop else True
        with self._lock:
            if self._by_loop and not (alive and self._expected > 0):
                self._by_loop = False
        self._watch()
        if not alive:
            self._tell_gone()

    def finish(self) -> None:
        """The process has ended: take what it still said, then call `gone`. Safe to call twice."""
        if self._told_gone:
            return
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)  # a thread that waits here wakes up, reads the rest, and leaves
        with self._lock:
            self._finishing = True
            if self._is_led() and not self._by_loop:
                self._loop.call_at(SYSTEM.steady_ns() + _LOOK_AGAIN_NS, self.finish)  # or sooner, when it leaves
                return
            self._by_loop = True
        while not self.hung_up and self._read():
            pass
        self._tell_gone()

    def _tell_gone(self) -> None:
        if not self._told_gone:
            self._told_gone = True
            self._loop.unwatch(self._fd)
            self._gone()

    def hang_up(self) -> None:
        """Say that nothing more will be sent. Frames of the other side are still read."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of the socket, after `gone`."""
        self._loop.unwatch(self._fd)
        with self._lock:
            self._fd = -1  # a late write fails, and does not reach the next file of that number
        self._end.close()
