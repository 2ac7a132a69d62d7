"""Commits of a files room: a step is written down in the log, and then the tree of files follows it.

The line in the log is the commit. Files are moved after it; where a process died before it had moved them, the next
holder of the lock does the rest (`recover`). Moving twice does no harm.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from postroom.core import crashpoints
from postroom.core.states import State

from .board import BoardFiles
from .intake import INBOX
from .log import Log, LogRecord
from .resting import FileRow
from .room import BY_HAND, ON_BOARD, FileTables, LogStep
from .tree import TEMP, Tree


class Commits:
    """Writes steps down, and moves files. The caller has the lock."""

    def __init__(self, tree: Tree, log: Log, board: BoardFiles, *, full_sync: bool) -> None:
        self._tree = tree
        self._log = log
        self._board = board
        self._full_sync = full_sync
        #: The ids of messages that were claimed here and taken by hand in the same moment.
        self.lost: set[str] = set()

    def commit(
        self, room: FileTables, rings: LogStep, folders: list[int], *, unread: bool = False, synced: bool = True
    ) -> None:
        """Write down what the step took. `rings` gets whom to wake, `folders` what is to be synced without the lock.

        `unread`: the tables are not those of the log, but empty ones. `synced` False: it may wait for a later sync.
        """
        in_order = self._log.mark() == self._log.size()
        while room.took:
            step = room.took
            record = room.record()
            line = self._log.append(record, sync=self._full_sync and synced, unread=unread)
            room.end_step(line, self._log.base + line.place)
            rings.everyone.update(step.everyone)
            rings.one_each += step.one_each
            room.took = LogStep()
            crashpoints.reached("files.logged")
            try:
                self._follow(record, room)
                if any(name.startswith(ON_BOARD) for name in step.cells):
                    self._board.follow(room)
                crashpoints.reached("files.followed")
                folders += self._folders_to_sync(record) if synced else []
                if in_order and not room.took:
                    self._log.set_mark(line.place)
            except OSError:
                break  # it is written down, so it counts; the next holder of the lock lets the tree follow
        room.took = LogStep()

    def sync_log(self) -> None:
        """With full sync: all that stands in the log is on the disk, whoever wrote it."""
        if self._full_sync:
            self._log.sync()

    def _folders_to_sync(self, record: LogRecord) -> list[int]:
        full = self._full_sync
        changed = {row.path.rpartition("/")[0] for row in record.rows if full or row.was.startswith(f"{TEMP}/")}
        return [self._tree.hold(folder) for folder in sorted(changed)]

    def _follow(self, record: LogRecord, room: FileTables) -> None:
        """Move the files of a step where they belong. What cannot be is a step of its own, in `room.took`."""
        for each in record.rows:
            row = room.rows[each.key]
            if each.was != each.path and not self._move(row, each.was, room) and each.was.startswith(f"{INBOX}/"):
                self._lose(room, row)
            if each.fixed is not None and row.signal is not None:
                with suppress(FileExistsError, FileNotFoundError):
                    self._tree.link(row.path, row.signal)
        self._remove(record)

    def _remove(self, record: LogRecord) -> None:
        for _, path, signal in record.gone:
            self._tree.unlink(path)
            if signal is not None:
                self._tree.unlink(signal)

    def _move(self, row: FileRow, was: str, room: FileTables) -> bool:
        """Move a message's file where it belongs now. False when it is not where it was: somebody took it."""
        try:
            if not row.path.startswith(f"{INBOX}/"):
                self._tree.rename(was, row.path)
                return True
            # a link, because it overwrites nothing, and because it does not wake processes that watch for others' files
            self._tree.link(was, row.path)
        except FileNotFoundError:
            return False
        except FileExistsError:
            if not self._tree.same(was, row.path):
                self._name_anew(room, row, was)
                return True
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            return True  # something else stands where the folder was: the file stays where it is, and is found there
        self._tree.unlink(was)
        return True

    def _lose(self, room: FileTables, row: FileRow) -> None:
        """Somebody took the file by hand in the moment in which it was claimed here: the message is theirs."""
        if row.state in (State.CLAIMED, State.ACKED):
            self.lost.add(row.id)
        if row.state is State.CLAIMED:
            row.claimed_by = row.draft.to_agent or "somebody"
            room.move(row, State.ACKED, "acked", row.claimed_by, BY_HAND)

    @staticmethod
    def _name_anew(room: FileTables, row: FileRow, was: str) -> None:
        """Somebody else's file has that name since a moment: the message takes another."""
        room.lying.pop(row.path, None)
        row.path = was
        room.touch(row)

    def recover(self, room: FileTables) -> None:
        """Let the tree follow the log where somebody died before it had."""
        mark = self._log.mark()
        behind = [line.record for line in self._log.lines_after(mark if mark <= self._log.place else 0)]
        self._log.cut_off()
        self.sync_log()  # its writer may have died before it did, and the tree must not be ahead of the log on the disk
        try:
            self._follow_again(behind, room)
            self._board.suspect = True
            self._board.take_up(room)  # what somebody wrote into the files meanwhile is not written over
            self._log.set_mark(self._log.place)
        except OSError:
            return  # the next one tries again
        folders: list[int] = []
        self.commit(room, LogStep(), folders)
        with suppress(OSError):  # written when somebody looks again
            self._board.write(room)
        with suppress(OSError):  # of steps that nobody was told of
            sync_folders(folders)

    def _follow_again(self, records: list[LogRecord], room: FileTables) -> None:
        """Bring every file of some steps where it belongs in the end, from wherever they left it.

        Whatever was moved already is left alone: in an inbox, a file of the same name may be somebody else's by now
        (tests/stores/files/test_log.py:
        test_a_file_dropped_under_the_name_of_one_that_was_being_moved_is_not_taken_for_it).
        """
        places: dict[int, list[str]] = {}
        for record in records:
            for each in record.rows:
                places.setdefault(each.key, []).append(each.was)
            self._remove(record)
        for key, before in places.items():
            row = room.rows.get(key)
            if row is not None:
                self._bring(row, before[::-1], room)

    def _bring(self, row: FileRow, before: list[str], room: FileTables) -> None:
        for was in dict.fromkeys(before):
            if was == row.path or self._tree.kind(was) is None:
                continue
            if self._tree.kind(row.path) is None:
                self._move(row, was, room)
            elif self._tree.same(was, row.path):  # somebody died between the two halves of a move into an inbox
                self._tree.unlink(was)
            elif row.path.startswith(f"{INBOX}/") and not was.startswith(f"{INBOX}/"):
                self._name_anew(room, row, was)
                return
        if row.signal is not None:
            with suppress(FileExistsError, FileNotFoundError):
                self._tree.link(row.path, row.signal)


def sync_folders(folders: list[int]) -> None:
    """Make the names in folders survive a power cut, and let go of the folders, also where one cannot be synced."""
    failed: OSError | None = None
    while folders:
        folder = folders.pop()
        try:
            os.fsync(folder)
        except OSError as error:
            failed = error
        finally:
            os.close(folder)
    if failed is not None:
        raise failed
