"""A room in plain files: `inbox/`, `outbox/` and `board/` for everybody who can read and write files.

Every step of Postroom is one line of a log, written under a lock (`log.py`); the tables of each process follow that
log (`room.py`), and so does the tree of files: a ready message lies in its inbox, a claimed one under
`.postroom/claimed/`, and so on. What others do with files alone is found by looking (`intake.py`). A process that dies
between the log and the tree leaves the rest to the next holder of the lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from postroom.core import crashpoints
from postroom.core.clock import Clock
from postroom.core.config import Config
from postroom.core.message import Draft, new_salt, room_start_ms
from postroom.core.system.files import file_system_type, make_private_folder, sync_path_to, why_unwritable
from postroom.errors import PostroomError, RoomClosed, RoomGone, RoomUnreachable
from postroom.stores import contract, layouts
from postroom.stores.bells.bells import WATCHING, Bells, Watcher
from postroom.stores.bells.sockets import NoBells
from postroom.stores.contract import ANY, LIMITS, Claimed, Settled, Swept, Ticket, Want, topic_to
from postroom.stores.liveness import Attendance
from postroom.stores.tables import steps
from postroom.stores.tables.store import TableStore, Turn, whole

from . import upgrade
from .board import BOARD, BOARD_FILES, LATE_S, BoardFiles
from .board_mark import BoardMark
from .commit import Commits, sync_folders
from .intake import INBOX, Intake
from .late_board import NEVER_S, LateBoard
from .layout import COPIED, LAYOUT, LIMITED, MARK, About, make_folders, read_about, read_about_for_looking, read_layout
from .log import Log, LogRecord
from .names import us_of_key
from .room import FileTables, LogStep, Prepared, prepare
from .tree import OWN, TEMP, Tree
from .waiter import FilesWaiter

#: A power cut takes no more than this of a log's end: files that say that they are from later still are not believed.
_LOST_MS: Final = 24 * 3600 * 1000


class FilesStore(TableStore):
    """Keeps a room in files below a folder."""

    durable: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    #: A log is written anew when it has grown by this much, and to twice what it began with.
    log_growth_bytes = 4 * 1024 * 1024

    def __init__(self, folder: Path, config: Config, clock: Clock) -> None:
        self.clock = clock
        self.folder = folder
        self._config = config
        self._pid = os.getpid()
        self._open = True
        self._gone = False
        self.turn = Turn()
        self._undone = True  # no step is to be undone
        self._room: FileTables | None = None
        self._prepared: dict[int, Prepared] = {}
        self._first_line = 0
        self._waiters = 0
        self._late_board = LateBoard(self.write_board, clock)
        self._parts: list[Any] = []  # what is to be closed
        #: Why the room can only be looked at; "" where it can be written, as far as can be seen beforehand.
        self._looks = "" if os.access(folder / OWN, os.W_OK) else _why_only_looking(folder)
        try:
            self._open_tree()
        except RoomUnreachable:
            if self._looks or not (why := _why_only_looking(folder)):
                raise
            self._looks = why  # a full disk is seen when something was tried
            self._open_tree()
        self._no_bells = ""
        self._bells = self._hang_bells()

    def _open_tree(self) -> None:
        folder, group = self.folder, self._config.group
        try:
            make_private_folder(folder, sync=False)  # that is done when the room is laid out
            self._tree = Tree(folder, group=group)
            self._parts.append(self._tree)
            timeout_s, mode = self._config.busy_timeout_s, 0o660 if group else 0o600
            self._open_room(Log(folder / OWN, timeout_s, mode, looks=bool(self._looks)))
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise RoomUnreachable(f"the room's folder {folder} cannot be used: {error}") from error
            raise

    def _open_room(self, log: Log) -> None:
        self._log = log
        self._parts.append(log)
        mode = 0o660 if self._config.group else 0o600
        mark = None if self._looks else BoardMark(self.folder / OWN / "board", mode)
        self._board = BoardFiles(self._tree, mark)
        self._intake = Intake(self._tree, self._board, log.take_turn)
        self._commits = Commits(self._tree, log, self._board, full_sync=self._config.sync == "full")
        self._parts += [self._intake, *([mark] if mark else [])]
        with log.locked():
            self._attendance = Attendance(self.folder / OWN, file_system_type(self.folder), mode=mode)
            self._parts.append(self._attendance)
            self._tree.process = self._attendance.process
            (self._look_at if self._looks else self._lay_out)()
            self._current_log()

    def _let_go(self) -> None:
        while self._parts:  # one whose closing was interrupted is closed again by the next call
            self._parts[-1].close()
            self._parts.pop()

    def _hang_bells(self) -> Bells | None:
        try:
            return Bells(self.folder / OWN, self.clock, group=self._config.group)
        except NoBells as why:
            self._no_bells = f"{WATCHING} ({why})"
            return None

    # Opening. The caller has the lock.

    def _lay_out(self) -> None:
        """Make what is missing of the tree, and know what the room is."""
        make_folders(self._tree)
        about = read_about(self._tree)
        if about is None:
            sync_path_to(self.folder)
            about = About(LAYOUT, new_salt(), "", 0)
        elif about.is_old(self._tree):
            about = upgrade.upgrade(self._tree, about)
        self._log.path = self.folder / about.log_path()
        if not self._log.path.exists():
            self._log.begin_anew([LogRecord(base=0)])
        self._about = about
        if about.boot != self.clock.boot_id() and not self._goes_on(about):
            self._after_boot(about)
        if self._tree.signature("README.md") is None:
            self._tree.replace("README.md", Path(__file__).with_name("readme.md").read_bytes())
        missing = [path for path in BOARD_FILES if self._tree.signature(path) is None]
        if missing:
            self._board.write(self._tables(), missing)  # and not the other, which somebody may have edited

    def _look_at(self) -> None:
        """Know what the room is, and change nothing."""
        self._about = about = read_about_for_looking(self._tree, self._looks)
        self._log.path = self.folder / about.log_path()
        if about.boot != self.clock.boot_id() and not self._goes_on(about):
            self._after_boot(about)

    def _goes_on(self, about: About) -> bool:
        """Whether others use that time now: containers on one kernel may show different boot ids over one steady clock.

        One that lies behind what happened here is of another clock.
        """
        now_ms = (about.base_ns + self.clock.steady_ns()) // 1_000_000
        return self._attendance.open_twice() and now_ms >= _last_ms(self._tables(), self._log)

    def _after_boot(self, about: About) -> None:
        """The first to come after a boot fixes the room's time, for all, behind everything that happened before.

        The machine may have lost power: the tree follows the whole log once more, and what the log lost is taken in.
        """
        room = self._tables()
        last_ms = _last_ms(room, self._log)
        strays = self._intake.strays(room)
        numbered_ms = [us_of_key(key) // 1000 for key in strays.values() if key is not None]
        believed_ms = max(last_ms, self.clock.wall_ms()) + _LOST_MS
        last_ms = max([last_ms, *(each_ms for each_ms in numbered_ms if each_ms < believed_ms)])
        base_ns = room_start_ms(self.clock, last_ms + 1) * 1_000_000 - self.clock.steady_ns()
        self._about = msgspec.structs.replace(about, boot=self.clock.boot_id(), base_ns=base_ns)
        self._room = None
        if self._looks:
            return
        self._log.set_mark(0)
        self._board.forget()
        if strays:
            folders: list[int] = []
            self._intake.bring_home(room := self._caught_up(), strays)
            self._commits.commit(room, LogStep(), folders)
            sync_folders(folders)
        self._tree.replace(MARK, msgspec.json.encode(self._about))
        self._tree.sync("", OWN, INBOX)

    # The tables

    def check(self) -> None:
        if self._pid != os.getpid():
            raise RoomClosed(
                f"the room in {self.folder} was opened by process {self._pid}, from which this process was forked; "
                "fork before you open the room, or start processes with spawn"
            )
        if not self._open:
            raise RoomClosed(f"the room in {self.folder} is closed")

    def _tables(self) -> FileTables:
        """The tables, as the log says now."""
        self._current_log()
        if self._room is None:
            self._log.place = 0
            self._room = self._new_tables()
        room = self._room
        for line in self._log.read_on():
            if line.record.base is not None:
                self._first_line = line.place
            room.apply(line, self._log.base + line.place)
        room.put_to_rest()
        return room

    def _current_log(self) -> None:
        """Have that log open which is there now; when it was written anew, the tables are to be read anew."""
        try:
            while self._log.is_new():
                self.check_there()  # it may be the log of another room, which has taken the place of this one
                self._log.reopen()
                self._room = None
                self._first_line = 0
        except FileNotFoundError:
            raise _how_lost(self._tree, self._log) from None

    def _new_tables(self) -> FileTables:
        about = self._about
        room = FileTables(self._config, self.clock, about.salt, about.base_ns, self._tree, self._log)
        room.prepared = self._prepared
        room.process_alive = self.process_alive
        return room

    def _caught_up(self) -> FileTables:
        """The tables; and what somebody began and did not end is ended. The caller has the lock."""
        room = self._tables()
        if self._log.mark() != self._log.size():
            self._commits.recover(room)
        return room

    def undo(self) -> None:
        """What was written down counts; all else is forgotten, and the tables are read anew."""
        self._undone = False
        self._room = None
        if self._open:
            self._intake.look_again()
            self._log.unlock()
        self._undone = True

    @contextmanager
    def reading(self) -> Iterator[FileTables]:
        """The tables, for the one whose turn it is."""
        self._begin()
        if not self._looks and self._intake.glance(self._tables()):
            try:
                with self.step():
                    pass
            except RoomUnreachable as error:  # on a full disk, what others left is taken in later
                if isinstance(error, RoomGone) or not why_unwritable(self.folder):
                    raise
        yield self._tables()

    def _begin(self) -> None:
        self.check()
        if not self._undone:  # that was interrupted, too
            self.undo()

    @contextmanager
    def step(self, *, look: bool = True, blind: bool = False, synced: bool = True) -> Iterator[FileTables]:
        """The tables for one step. `look` False: what others left need not be taken in. `blind`: the step only adds,
        and need not know what is there, so that a mere sender need not read what all others do. `synced` False: it is
        on the disk only with a later step. It is the caller's turn.
        """
        self._begin()
        if self._looks:
            raise _unwritten(self.folder, self._looks)
        rings = LogStep()
        folders: list[int] = []

        def commit() -> None:
            self._commits.commit(room, rings, folders, unread=room is not self._room, synced=synced)

        due = look and self._intake.glance(self._tables())
        with self._log.locked():
            crashpoints.reached("files.locked")
            self._current_log()
            in_order = self._log.mark() == self._log.size()  # where it is not, that is to be put right first
            room = self._new_tables() if blind and in_order else self._caught_up()
            try:
                if due:
                    self._intake.take_in(room, commit)
                yield room
                commit()
            except BaseException as error:
                sync_folders(folders)
                if room.took and room is self._room:
                    self._room = None  # what was not written down did not happen
                    self._intake.look_again()
                room.took = LogStep()
                if isinstance(error, OSError | RoomUnreachable) and not isinstance(error, RoomGone):
                    raise _in_our_words(error, self.folder) from error
                raise
            finally:
                room.bodies.clear()
        crashpoints.reached("files.committed")
        bells = self._bells  # once: another thread may close the room meanwhile
        if bells is not None:
            bells.ring(rings.everyone, rings.one_each)
        self._late_board.follow(self._board.due_ns)
        if due and topic_to(BOARD) in rings.everyone:
            self.board_mail_came()
        try:
            sync_folders(folders)
        except OSError as error:
            raise RoomUnreachable(
                f"the disk of {self.folder} failed to sync ({error.strerror}); it was done, but may not survive a power cut"
            ) from error

    @whole
    def write_board(self, *, now: bool = False) -> float:
        """Let the board's files follow, where they lie behind and that is due. In how many seconds to call again."""
        due_ns = self._board.due_ns
        left_s = 0 if due_ns is None or now else (due_ns - self.clock.steady_ns()) / 1e9
        if left_s > 0:
            return left_s
        if due_ns is not None:
            self._board.suspect, self._board.must_write = True, now or self._board.must_write
            with self.step():  # which looks at the files, and lets them follow
                pass
        self._late_board.knows = self._board.due_ns is not None
        return LATE_S if self._late_board.knows else NEVER_S

    def quiet_step(self) -> AbstractContextManager[FileTables]:
        return self.step(look=False, synced=False)

    def sync_what_is_there(self) -> None:
        self._commits.sync_log()

    # The methods that do more than a step on the tables

    @contextmanager
    def _files_for(self, drafts: Sequence[Draft]) -> Iterator[None]:
        """Write the files of messages before the room is locked, so that nobody waits for the disk."""
        self.check()
        if self._looks:
            raise _unwritten(self.folder, self._looks)
        mine = [draft for draft in drafts if not draft.publish]
        try:
            us = self._log.reserve((self._about.base_ns + self.clock.steady_ns()) // 1000, len(mine)) if mine else 0
            for draft in mine:
                if id(draft) not in self._prepared:
                    self._prepared[id(draft)] = prepare(self._tree, self.clock, self._about.salt, draft, us)
                us += 1
            yield
        except OSError as error:
            self.check()  # a room that another thread closes says so
            self.check_there()  # and so does one that is gone
            raise _unwritten(self.folder, why_unwritable(self.folder) or error.strerror) from error
        finally:
            for draft in mine:
                unused = self._prepared.pop(id(draft), None)
                if unused is not None:
                    self._tree.drop(unused.path)

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        blind = not any(
            draft.publish or draft.answer_to or draft.idempotency_key or draft.order_key or draft.replaces
            for draft in drafts
        )
        with self._files_for(drafts):
            return self._put_prepared(drafts, blind=blind and self._tree.kind(LIMITED) is None)

    @whole
    def _put_prepared(self, drafts: Sequence[Draft], *, blind: bool) -> list[str]:
        with self.step(look=False, blind=blind) as room:
            repeated = [] if blind else [key for draft in drafts for key in steps.sent_before(room, draft)]
            ids = steps.put(room, drafts)
            if repeated:  # the first sender may not have come to its sync yet, or was killed before it
                self.sync_what_is_there()
                with suppress(FileNotFoundError):
                    self._tree.sync(*sorted({room.rows[key].path.rpartition("/")[0] for key in repeated}))
            return ids

    def claim(self, want: Want) -> Claimed:
        self._attendance.hold()
        while True:
            claimed = super().claim(want)
            kept = self._really_ours(claimed)
            if kept.deliveries or not claimed.deliveries:
                return kept

    def settle(
        self,
        ticket: Ticket,
        outcome: str,
        *,
        detail: str | None = None,
        delay_s: float = 0,
        puts: Sequence[Draft] = (),
        claim_next: Want | None = None,
    ) -> Settled:
        with self._files_for(puts):
            settled = super().settle(ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next)
        if settled.claimed is None:
            return settled
        return settled._replace(claimed=self._really_ours(settled.claimed))

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        if name == LIMITS and value is not None:
            try:
                self._tree.tell(LIMITED, "Mailboxes here may be full: senders count first.\n")
            except OSError as error:  # (tests/proof/test_simulated_disks.py: test_limits_that_a_disk_does_not_take_are_refused_in_our_words)
                self.check()
                self.check_there()
                raise _in_our_words(error, self.folder) from error
        return super().cell_write(name, value, expect)

    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        with self._files_for(drafts):
            return super().put_with_cell(drafts, name, value, expect)

    def _really_ours(self, claimed: Claimed) -> Claimed:
        """Without what somebody took by hand in the same moment."""
        lost = self._commits.lost
        if not lost:
            return claimed
        with self.turn.lock:
            ours = [delivery for delivery in claimed.deliveries if delivery.message.id not in lost]
            lost -= {delivery.message.id for delivery in claimed.deliveries}
        return Claimed(ours, claimed.next_due_s)

    def room_ms(self) -> int:
        return (self._about.base_ns + self.clock.steady_ns()) // 1_000_000

    def about(self) -> dict[str, Any]:
        told = {"kind": "files", "path": str(self.folder), "log_bytes": self._log.size(), "wake_up": self._wake_up()}
        return {**told, "liveness": self._attendance.judged_by()} | (
            {"only_looking": self._looks} if self._looks else {}
        )

    def layout(self) -> tuple[int, Path]:
        """The number of the room's layout, and what the names of copies that upgrades keep begin with."""
        return self._about.layout, self.folder / COPIED

    @property
    def process(self) -> str:
        return self._attendance.process

    def process_alive(self, process: str) -> bool | None:
        return self._attendance.is_alive(process)

    def _wake_up(self) -> str:
        bells = self._bells
        if bells is None:
            return self._no_bells
        watch = self._intake.watch()
        if watch is not None and watch.look_every_s is None:
            return bells.way()
        often = "once a second" if watch is None else f"every {watch.look_every_s:g} s"
        return f"{bells.way()}; the inbox is checked for new files {often}, because folders cannot be watched"

    # Waiting, housekeeping, the end

    def listen(self, topics: Iterable[str]) -> contract.Waiter:
        self.check()
        names = tuple(dict.fromkeys(topics))
        with self.turn.lock:
            self.turn.check()
            self.check()
            if self._bells is not None:
                watch = self._intake.watch()
                with suppress(NoBells):
                    bell = self._bells.listen(names)
                    self._waiters += 1
                    return FilesWaiter(bell, names, watch, self._hear, self._forget, self.clock)
            return Watcher(self._log.size, self.clock)

    def _hear(self) -> set[str]:
        """Take what the watch tells, for everybody in this process; the topics that it is about."""
        with self.turn.lock:
            topics = self._intake.hear() if self._open and not self.turn.taken else set()
        bells = self._bells
        if topics and self._waiters > 1 and bells is not None:
            bells.ring(topics)
        if topic_to(BOARD) in topics:
            self.board_mail_came()
        return topics

    def _forget(self) -> None:
        """A waiter leaves."""
        if self._pid != os.getpid():  # a forked child: another thread of the parent may have had the mutex
            return
        with self.turn.lock:
            self._waiters -= 1

    def check_there(self) -> None:
        self.check()
        if self._gone or not self._tree.is_there():
            self._gone = True
            how = "moved away or replaced" if self.folder.exists() else "deleted or moved away"
            raise RoomGone(f"{self.folder} was {how} while the room was open; close the room and reopen it")

    def why_only_looking(self) -> str:
        return self._looks or why_unwritable(self.folder)

    def open_elsewhere(self) -> bool:
        return self._attendance.open_elsewhere()

    def sweep(self) -> Swept:
        swept = super().sweep()
        self._tidy()
        return swept

    @whole
    def _tidy(self) -> None:
        with self.step(look=False) as room:
            for path in _left_behind(self._tree, room, self.process_alive):
                self._tree.unlink(path)
        if self._log.size() - self._first_line > max(self.log_growth_bytes, self._first_line):
            with self._log.locked():
                room = self._caught_up()
                with suppress(OSError):  # the log stays as long as it is
                    self._log.begin_anew(room.whole(self._log.base + self._log.place))

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        if self._late_board.close(0 if self.turn.taken else None):  # it may wait for the step that this is called in
            with suppress(PostroomError):  # otherwise the next process that looks at the room writes them
                self.write_board(now=True)
        with self.turn.lock:
            self._open = False
            if self.turn.taken:
                self.turn.afterwards = self.close
                return
            self._let_go()
            if self._bells is not None:
                self._bells.close()
                self._bells = None  # a map of its page keeps a descriptor, for as long as it is known

    def __del__(self) -> None:
        try:  # noqa: SIM105  suppress is gone by then
            self.close()
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass


def _why_only_looking(folder: Path) -> str:
    """Why a room that is there can only be looked at; "" where none is."""
    return why_unwritable(folder / OWN) if (folder / MARK).exists() else ""


def _in_our_words(error: OSError | RoomUnreachable, folder: Path) -> RoomUnreachable:
    """What kept a step from being written down."""
    why = why_unwritable(folder)
    if why:
        return _unwritten(folder, why)
    if isinstance(error, RoomUnreachable):
        return error
    return RoomUnreachable(f"{folder} could not be read or written ({error.strerror}); nothing was changed")


def _unwritten(folder: Path, why: str | None) -> RoomUnreachable:
    return RoomUnreachable(
        f"{folder} cannot be written: {why}. The room can be read but not written; nothing was changed"
    )


def _last_ms(room: FileTables, log: Log) -> int:
    """The room's time when something last happened."""
    return max(log.last_key_us() // 1000, room.last_ms())


def _how_lost(tree: Tree, log: Log) -> RoomGone:
    """Why there is no log where it was."""
    with suppress(OSError):
        layout = read_layout(tree)
        if layout != LAYOUT:
            return layouts.upgraded(tree.root, layout, LAYOUT)
    return RoomGone(f"{log.path} is gone; its room was deleted or moved away while it was open")


def _left_behind(tree: Tree, room: FileTables, process_alive: Callable[[str], bool | None]) -> list[str]:
    """What processes that died had not finished writing."""
    needed = {row.before for row in room.rows.values()}
    paths = (f"{TEMP}/{name}" for name in tree.names(TEMP))
    return [
        path
        for path in paths
        if path not in needed and process_alive(path.rpartition("/")[2].partition("~")[0]) is False
    ]
