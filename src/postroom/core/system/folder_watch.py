"""Hearing of files that appear in folders: one thread for the whole process, and none while nobody listens.

Where the system tells (inotify), it is told at once; elsewhere the folders are looked at ten times a second.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from postroom.core.clock import SYSTEM

from .platform import CLOSED_AFTER_WRITE, MOVED_HERE, FolderEvent, FolderEvents

#: How often to look where the system does not tell, and at a file that was made but may still be being written.
_LOOK_EVERY_S: Final = 0.1

#: Called with whether the file is known to be complete; returns whether it has heard enough.
OnFile = Callable[[bool], bool]


class _Watch:
    """One file that is waited for."""

    def __init__(self, folder: Path, name: str, on_file: OnFile) -> None:
        self.folder = folder
        self.name = name
        self.on_file = on_file
        self.number = -1  # inotify's; -1: look by yourself
        self.over = False
        self.again = False

    def tell(self, complete: bool) -> None:
        if not self.over:
            self.again = not complete
            self.over = self.on_file(complete)


class FolderWatch:
    """Watches for files. One for each process, as `WATCH`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._watches: list[_Watch] = []
        self._events: FolderEvents | None = None
        self._told, self._tell = -1, -1

    def on_file(self, folder: Path, name: str, on_file: OnFile) -> Callable[[], None]:
        """Call when a file of that name appears in the folder, from a thread of its own. Returns a function that ends it.

        A file that is there already is not told of.
        """
        watch = _Watch(folder, name, on_file)
        with self._lock:
            if self._pid != os.getpid():  # forked: the thread is the other process's
                self._pid, self._watches, self._events, self._told = os.getpid(), [], None, -1
            if not self._watches:
                self._begin()
            if self._events is not None:
                with suppress(OSError):  # too many watches, or the folder is gone: it is looked at by turns
                    watch.number = self._events.add(folder)
            self._watches.append(watch)
            os.write(self._tell, b"!")
        return lambda: self._forget(watch)

    def _forget(self, watch: _Watch) -> None:
        with self._lock:
            watch.over = True
            if self._pid != os.getpid() or watch not in self._watches:
                return
            self._watches.remove(watch)
            if self._events is not None and watch.number >= 0:
                self._events.remove(watch.number)
            os.write(self._tell, b"!")

    def _begin(self) -> None:
        if self._told >= 0:
            return  # the thread is about to end for lack of work, and finds some
        try:
            self._events = FolderEvents()
        except OSError:
            self._events = None
        self._told, self._tell = os.pipe()
        threading.Thread(target=self._run, name="postroom folder watch", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._watches:
                    self._end()
                    return
                events, told, watches = self._events, self._told, tuple(self._watches)
            pause_s = _LOOK_EVERY_S if any(w.number < 0 or w.again for w in watches) else None
            ready = SYSTEM.wait_readable([told] if events is None else [told, events.fileno()], pause_s)
            if told in ready:
                os.read(told, 4096)
            happened = events.read() if events is not None and events.fileno() in ready else []
            with self._lock:  # again: what was just read may be about one that came while we waited
                watches = tuple(self._watches)
            for watch in watches:
                self._look(watch, happened)

    def _look(self, watch: _Watch, happened: list[FolderEvent]) -> None:
        about = [event.what for event in happened if event.watch == watch.number and event.name == watch.name]
        if any(what & (CLOSED_AFTER_WRITE | MOVED_HERE) for what in about):
            watch.tell(complete=True)
        elif about:
            watch.tell(complete=False)
        elif (watch.again or watch.number < 0) and (watch.folder / watch.name).exists():
            # the second look at a file that was seen half-written, or the only way to see it at all
            watch.tell(complete=watch.again)

    def _end(self) -> None:
        """Nobody listens any more. The caller holds the lock."""
        if self._events is not None:
            self._events.close()
        os.close(self._told)
        os.close(self._tell)
        self._events, self._told, self._tell = None, -1, -1


WATCH: Final = FolderWatch()
