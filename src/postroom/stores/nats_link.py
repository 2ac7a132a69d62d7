"""What a connection to NATS servers stands on: the background loop, and hearing without delay.

Nothing here imports nats-py: its client class is given by nats_wire.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Loop:
    """The background loop of this process. It runs while somebody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def enter(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._users == 0:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="postroom nats", daemon=True)
                self._thread.start()
            self._users += 1
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()


_background = Loop()


def background() -> Loop:
    """The loop of this process."""
    return _background


def forget_loop_after_fork() -> None:
    """The loop of the process before belongs to it alone: its thread did not come along."""
    global _background  # noqa: PLW0603  (one process, one loop)
    _background = Loop()


class Call:
    """One attempt that a caller waits for in its own thread, without a task on the loop. Answered as a future is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._done = False
        self._reply = b""
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: bytes) -> None:
        self._reply, self._done = reply, True
        self._lock.release()

    def set_exception(self, error: BaseException) -> None:
        self._error, self._done = error, True
        self._lock.release()

    def wait(self, timeout_s: float) -> bytes | None:
        """The reply; None when time ran out."""
        if not self._lock.acquire(timeout=timeout_s):
            return None
        if self._error is not None:
            raise self._error
        return self._reply


#: What hears a message as it came: its subject, what it says, its headers.
Ear = Callable[[bytes, bytes, bytes], None]


class Heard(NamedTuple):
    """Something that is listened to."""

    client: Any
    subscription: Any

    async def unsubscribe(self) -> None:
        self.client.ears.pop(self.subscription._id, None)  # noqa: SLF001
        await self.subscription.unsubscribe()


def hearing_at_once(client: type[Any]) -> type[Any]:
    """nats-py's client, which hands over what comes for one of our ears as soon as it is read, and does not go deaf.

    By itself it reads the headers line by line and puts each message into a queue, from which a task takes it: with that, one
    change took ten turns of the loop. And by itself it ends its reading, with a line in the log and nothing else, when
    anything is raised there: the connection stands, and nothing is heard on it for half a minute.
    """

    class Hearing(client):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.ears: dict[int, Ear] = {}

        async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            ear = self.ears.get(sid)
            if ear is None:
                await super()._process_msg(sid, subject, reply, data, headers)
                return
            try:
                ear(bytes(subject), data, headers or b"")
            except Exception as error:  # noqa: BLE001  (nats-py would end its reading)
                await self._error_cb(error)

        async def _process_pong(self) -> None:
            """The servers' word that they heard us; whoever asked for it may have given up, which nats-py does not expect."""
            if self._pongs and self._pongs[0].done():
                self._pongs[0] = asyncio.get_running_loop().create_future()
            await super()._process_pong()

        async def _read_loop(self) -> None:
            self._ps.reset()  # the connection before may have left half a line
            await super()._read_loop()
            if self.is_connected and self._reading_task is asyncio.current_task():
                # neither closed nor cut off: something was raised while it read
                await self._process_op_err(ConnectionError("the reading of this connection ended"))

    return Hearing


_SEQUENCE: Final = b"Nats-Sequence: "


def sequence_of(headers: bytes) -> int:
    """The sequence that the servers give with a hint; 0 when somebody only nudges."""
    start = headers.find(_SEQUENCE)
    return 0 if start < 0 else int(headers[start + len(_SEQUENCE) : headers.find(b"\r", start)])
