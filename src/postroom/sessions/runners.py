"""The runners of a delegation's workers: in processes of their own; in threads where no other process sees the room."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from postroom.core.clock import Clock
from postroom.core.message import decode_payload
from postroom.core.system.children import Child, caller_setting, shared_server
from postroom.core.system.framing import HEADER_BYTES, send_frame
from postroom.errors import PostroomError

from . import members
from .output import ERR, OUT, OutputStream, Screen, output_path
from .record import Failure, failure_of, raised_by
from .worker import FunctionPlace, WorkerCall, json_text

#: What a worker's process runs, and what is called when the caller is killed.
MODULE: Final = "postroom.sessions.worker_main"
TARGET: Final = f"{MODULE}:run"
WILL: Final = f"{MODULE}:caller_gone"
#: The end of a worker that never began, because another could not be started.
NOT_STARTED: Final = "was not started"


class WorkerRun:
    """One worker of a delegation, and how it fares."""

    def __init__(self, call: WorkerCall, name: str, member_id: str, number: int) -> None:
        self.call = call
        self.name = name
        self.member_id = member_id
        self.number = number
        self.pid: int | None = None
        self.over = False
        #: "done", or in words how it ended otherwise.
        self.end = ""
        self.result: Any = None
        #: What it failed with; None when it returned, and when it only stopped because another failed.
        self.failure: Failure | None = None

    def leave_out(self) -> None:
        """Its worker never began, and will not."""
        self.over, self.end = True, NOT_STARTED


class _WorkerProcess:
    """A worker's process, and what came from it so far."""

    def __init__(self, post: WorkerRun, child: Child, folder: Path, screen: Screen) -> None:
        self.post = post
        self.child = child
        self.streams = [
            OutputStream(fd, output_path(folder, post.number, post.name, kind), post.name, screen, error=kind == ERR)
            for kind, fd in ((OUT, child.output), (ERR, child.errors))
        ]
        self.has_task = False
        self.said = bytearray()
        self.listening = True
        self.answer: dict[str, Any] | None = None

    def listen(self) -> None:
        """Take what the worker said over its socket."""
        while True:
            try:
                part = self.child.control.recv(1 << 20)
            except (BlockingIOError, ConnectionResetError):
                break
            if not part:
                self.listening = False
                break
            self.said += part
        size = int.from_bytes(self.said[:HEADER_BYTES], "big")
        if self.answer is None and len(self.said) >= HEADER_BYTES + size > HEADER_BYTES:
            self.answer = decode_payload(bytes(self.said[HEADER_BYTES : HEADER_BYTES + size]))

    def give_task(self, task: dict[str, Any]) -> None:
        """Tell the worker what to do; waits until it has taken that."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it ended already: its status says how
            send_frame(self.child.control, json.dumps(task).encode())
        self.has_task = True
        self.child.control.setblocking(False)

    def give_none(self) -> None:
        """No task will come, or no more of it: a worker that waits for one ends."""
        self.child.control.setblocking(False)
        with suppress(OSError):  # it ended already
            self.child.control.shutdown(socket.SHUT_WR)

    def conclude(self, clock: Clock) -> None:
        """The process has ended: what does that mean?"""
        for stream in self.streams:
            stream.pump()  # takes more than a pipe can hold
            stream.finish()
        post, ended = self.post, self.child.ended
        post.pid = self.child.pid or None
        if self.answer is not None and "result" in self.answer:
            post.result, post.end = self.answer["result"], "done"
        elif self.answer is not None:
            post.end = self.answer["end"]
            post.failure = None if self.answer["failure"] is None else Failure(**self.answer["failure"])
        elif not self.has_task:
            post.leave_out()
        else:
            post.end = str(ended)
            begun = " before it returned" if post.pid else ""
            post.failure = failure_of(f"worker {post.name} {ended}{begun}", post.name, clock)
        post.over = True


@dataclass(eq=False)
class ProcessRunner:
    """Each worker in a process of its own. All methods are called in the thread that delegates."""

    posts: Sequence[WorkerRun]
    places: Sequence[FunctionPlace]
    task: dict[str, Any]
    folder: Path
    screen: Screen
    clock: Clock

    def __post_init__(self) -> None:
        self._runners: list[_WorkerProcess] = []
        self._will = f"{self.task['session']}/{self.task['parent']}/{self.posts[0].member_id}"
        self._server = shared_server([MODULE, self.task["store"]])

    def start(self) -> None:
        """Start all workers.

        If it raises, posts without a worker are `over`; the others are to be attended to as ever.
        """
        try:
            self._start()
        except BaseException:
            # Ctrl-C, or no descriptors left: a worker that waits for its task would wait for ever, and we for it
            # (tests/sessions/test_delegate.py).
            for runner in self._runners:
                runner.give_none()
            for post in self.posts[len(self._runners) :]:
                post.leave_out()
            raise

    def _start(self) -> None:
        will = {name: self.task[name] for name in ("url", "settings", "session", "parent_name")}
        self._server.will(self._will, WILL, json.dumps(will))
        for post in self.posts:
            self._runners.append(_WorkerProcess(post, self._server.start(TARGET), self.folder, self.screen))
        shared = self.task | {"setting": caller_setting()}
        for runner, place in zip(self._runners, self.places, strict=True):
            post = runner.post
            own = {"member": post.member_id, "name": post.name, "number": post.number, "place": place._asdict()}
            runner.give_task(shared | own | {"arguments": post.call.arguments})

    def descriptors(self) -> list[int]:
        """Those that can be read when there is something to attend to."""
        found: list[int] = []
        for runner in self._running():
            found += [runner.child.status, *(stream.fd for stream in runner.streams if stream.open)]
            if runner.listening:
                found.append(runner.child.control.fileno())
        return found

    def attend(self) -> None:
        """See what happened; never waits. Posts whose worker has ended are `over` after it."""
        for runner in self._running():
            for stream in runner.streams:
                stream.pump()
            ended = runner.child.read_status()
            runner.listen()
            if ended is not None:
                runner.conclude(self.clock)

    def send_signal(self, number: int) -> None:
        """Send a signal to all workers that still run."""
        for runner in self._running():
            runner.child.send_signal(number)

    def _running(self) -> list[_WorkerProcess]:
        return [runner for runner in self._runners if not runner.post.over]

    def close(self) -> None:
        """Leave nothing behind. Workers that still run are killed."""
        for runner in self._runners:
            runner.child.close()
            for stream in runner.streams:
                stream.finish()
        self._server.will(self._will, None)


#: Runs one worker in this thread as the member of that id, name and number; returns its result.
RunHere = Callable[[WorkerRun], Any]


class ThreadRunner:
    """The same with each worker in a thread of this process. Threads cannot be killed: one that does not stop is left behind."""

    def __init__(
        self, posts: Sequence[WorkerRun], run: RunHere, is_abort: Callable[[BaseException], bool], clock: Clock
    ) -> None:
        self.posts = posts
        self._run = run
        self._is_abort = is_abort
        self._clock = clock
        self._told, self._tell = os.pipe()
        os.set_blocking(self._told, False)
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        for place, post in enumerate(self.posts):
            thread = threading.Thread(target=self._work, args=(post,), name=f"worker {post.name}", daemon=True)
            members.bind_elsewhere(thread)
            try:
                thread.start()
            except BaseException:  # Ctrl-C, or the system starts no more threads
                for left in self.posts[place if thread.ident is None else place + 1 :]:
                    left.leave_out()
                raise

    def _work(self, post: WorkerRun) -> None:
        try:
            result = self._run(post)
            post.result, post.end = decode_payload(json_text("result", result)), "done"
        except BaseException as error:  # noqa: BLE001  whatever it was, the session is told
            post.end = "stopped with the session" if self._is_abort(error) else "failed"
            if not self._is_abort(error):
                post.failure = raised_by(post.name, error, self._clock)
        post.over = True
        with self._lock:
            if not self._closed:
                os.write(self._tell, b"!")

    def descriptors(self) -> list[int]:
        return [self._told]

    def attend(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._told, 4096)

    def send_signal(self, number: int) -> None:
        """Threads have no signals of their own."""

    def close(self) -> None:
        with self._lock, suppress(PostroomError):
            if not self._closed:
                self._closed = True
                os.close(self._told)
                os.close(self._tell)


Runner = ProcessRunner | ThreadRunner
