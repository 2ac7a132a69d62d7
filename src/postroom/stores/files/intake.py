"""Taking in what others left: files dropped into inboxes and outboxes, files taken from inboxes, edits of the board.

Everything here is found by looking at folders. A watch says where to look first; it is only a hint, so all folders are
looked at when a room is opened, when the watch's queue ran over, and once a second.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from postroom.core.config import SAFETY_LOOK_S
from postroom.core.message import DEFAULT_CHANNEL, Draft, key_of
from postroom.core.states import State
from postroom.core.system.watch import ANYTHING, FolderWatch, NoWatch, watch_folders
from postroom.stores.contract import FEED, topic_cells, topic_channel, topic_to
from postroom.stores.tables import steps

from .board import BOARD, PATIENCE_S, BoardFiles
from .for_board import lead_of_report, pass_on
from .message import ROUND_IT_BYTES, Body, Unreadable, draft_of, read_file, timestamp_ms_of
from .names import file_of, folder_of, is_cut, is_message_file, is_utf8, name_of
from .resting import FileRow
from .room import CHANNELS, FileTables
from .tree import OWN, Tree

#: So many files are taken in at once; others wait for the lock meanwhile.
PORTION: Final = 500
INBOX: Final = "inbox"
OUTBOX: Final = "outbox"
_CHANNEL_FOLDER: Final = f"{INBOX}/{CHANNELS}"
_CLAIMED: Final = f"{OWN}/claimed"
_KEY: Final = re.compile("[0-9a-f]{16}")
_LOOK_NS: Final = round(SAFETY_LOOK_S * 1e9)
#: A folder's time of change is believed when it is this old: the clocks of file systems are coarse.
_SETTLED_NS: Final = 1_000_000_000


class Intake:
    """What this process has yet to look at."""

    def __init__(self, tree: Tree, board: BoardFiles, take_turn: Callable[[int, int], bool]) -> None:
        self._tree = tree
        self._board = board
        self._take_turn = take_turn
        self._watch: FolderWatch | None = None
        self._watched = False
        self._drops: set[str] = set()  # paths that may be new
        self._folders: dict[str, tuple[int, int]] = {}  # folder -> (its time of change, when that was seen)
        self._absent: set[str] = set()  # paths of messages that were not there
        self._unripe: dict[str, tuple[object, int]] = {}  # path -> (what it looked like, since when)
        self._next_look_ns = 0
        self._stirred: set[str] = set()  # folders in which something happened
        self._next_stirred_ns = 0
        self._look_everywhere = True

    # Hints

    def watch(self) -> FolderWatch | None:
        """The watch over all folders, begun with the first call; None where there is none."""
        if not self._watched:
            self._watched = True
            try:
                self._watch = watch_folders()
            except NoWatch:
                return None
            for folder in (INBOX, _CHANNEL_FOLDER, OUTBOX):
                self._watch_folder(folder, of_folders=True)
            self._watch_folder(BOARD)
            for folder in self._mail_folders():
                self._watch_folder(folder)
            self._look_everywhere = True  # what came before the watch began
        return self._watch

    def _watch_folder(self, folder: str, *, of_folders: bool = False) -> None:
        if self._watch is not None and folder not in self._watch:
            try:
                self._watch.add(self._tree.root / folder, folder, of_folders=of_folders)
            except NoWatch:  # seen once a second, then
                return

    def hear(self) -> set[str]:
        """What the watch tells: the topics whose waiters should look."""
        topics: set[str] = set()
        watch = self._watch
        for folder, name, _ in [] if watch is None else watch.read():
            if folder == ANYTHING or folder in (INBOX, _CHANNEL_FOLDER, OUTBOX):
                self._look_everywhere = True
                topics.add(FEED)
            elif folder == BOARD:
                self._board.suspect = True
                topics.add(topic_cells(BOARD))
            elif name == ANYTHING:
                self._stirred.add(folder)
                topics |= {self._topic_of(folder), FEED}
            elif is_message_file(name):
                self._drops.add(f"{folder}/{name}")
                topics |= {self._topic_of(folder), FEED}
        return topics

    def _topic_of(self, folder: str) -> str:
        if folder.startswith(f"{OUTBOX}/"):
            return topic_to(BOARD)  # a report; whom else it is for is seen when it is read
        if folder.startswith(f"{_CHANNEL_FOLDER}/"):
            return topic_channel(self.name_of(folder) or "")
        return topic_to(self.name_of(folder) or "")

    def name_of(self, folder: str) -> str | None:
        """The agent or the channel that a folder in the tree is for."""
        last = folder.rpartition("/")[2]
        if not is_cut(last):
            return name_of(last)
        try:
            whole = self._tree.read(f"{OWN}/names/{last}", 4096).decode()
        except (OSError, UnicodeDecodeError):
            return None
        return whole if folder_of(whole) == last else None

    # Looking at the folders. Nobody has to wait for that: what is seen here is looked at again under the lock.

    def glance(self, room: FileTables) -> bool:
        """Look at what may have changed; whether there is something to take in. The tables may be a little old."""
        self.watch()
        self.hear()
        now_ns = room.clock.steady_ns()
        if self._look_everywhere or now_ns >= self._next_look_ns:
            everything, self._look_everywhere = self._look_everywhere, False
            self._next_look_ns = now_ns + _LOOK_NS
            if self._take_turn(now_ns, _LOOK_NS) or everything:  # one process in a second looks for all of them
                self._survey(room, everything=everything)
            self._drops.update(self._unripe)
            self._board.suspect = True
        elif self._unripe and self._watch is not None and not self._watch.tells_files:
            self._drops.update(self._unripe)  # nobody tells when one is closed
        if self._stirred and now_ns >= self._next_stirred_ns:
            self._look_at_stirred(room, now_ns)
        return bool(self._drops or self._absent or self._board.suspect)

    def _mail_folders(self) -> list[str]:
        """Every folder in which mail may lie, of agents, of channels, and of senders."""
        tree = self._tree
        inboxes = [f"{INBOX}/{name}" for name in tree.folders(INBOX) if name != CHANNELS]
        channels = [f"{_CHANNEL_FOLDER}/{name}" for name in tree.folders(_CHANNEL_FOLDER)]
        return [*inboxes, *channels, *(f"{OUTBOX}/{name}" for name in tree.folders(OUTBOX))]

    def _survey(self, room: FileTables, *, everything: bool) -> None:
        """Compare the folders with the tables: what is new there, and what is no longer there."""
        self._tree.look_again()
        folders = self._mail_folders()
        lying: dict[str, list[str]] = {}
        for path in room.lying:
            lying.setdefault(path.rpartition("/")[0], []).append(path)
        for folder in folders:
            self._watch_folder(folder)
            changed_ns = self._tree.changed_ns(folder)
            seen = self._folders.get(folder)
            if everything or seen is None or seen[0] != changed_ns or seen[1] - changed_ns < _SETTLED_NS:
                self._folders[folder] = (changed_ns, room.clock.wall_ms() * 1_000_000)
                self._compare(room, folder, lying.get(folder, []))
        for folder in lying.keys() - set(folders):
            self._absent.update(lying[folder])

    def _look_at_stirred(self, room: FileTables, now_ns: int) -> None:
        """Look at the folders that the watch named without a file, for a fifth of the time at most: our own steps stir
        them as well.
        """
        stirred, self._stirred = self._stirred, set()
        for folder in stirred:
            self._compare(room, folder, [path for path in room.lying if path.rpartition("/")[0] == folder])
        self._next_stirred_ns = now_ns + 5 * (room.clock.steady_ns() - now_ns)

    def _compare(self, room: FileTables, folder: str, lying: list[str]) -> None:
        try:
            there = {f"{folder}/{name}" for name in self._tree.names(folder) if is_message_file(name)}
        except OSError:  # not ours to read: a process that may will
            return
        self._drops.update(path for path in there - room.lying.keys() if not room.is_signal(path))
        self._absent.update(path for path in lying if path not in there)

    # Taking in. The caller has the lock, and the tables are as they are.

    def take_in(self, room: FileTables, commit: Callable[[], None]) -> None:
        """Make messages of what was dropped, and end what was taken by hand: part of the caller's step, but for what is
        too much for one, which is committed before.
        """
        absent, self._absent = self._absent, set()
        for path in absent:
            self._check_absent(room, path)
        drops, self._drops = sorted(self._drops, key=lambda path: path.rpartition("/")[::-1]), set()
        now_ns = room.clock.steady_ns()
        for number, path in enumerate(drops, 1):
            self._examine(room, path, now_ns)
            if number % PORTION == 0:
                commit()
        self._board.take_up(room)

    def _check_absent(self, room: FileTables, path: str) -> None:
        key = room.lying.get(path)
        if key is None or self._tree.kind(path) is not None:
            return
        row = room.rows[key]
        if row.state is State.READY and not room.find_stray(row):
            room.taken_by_hand(row)

    def _examine(self, room: FileTables, path: str, now_ns: int) -> None:
        """Make a message of one file; leave it alone while it is none, and set it aside when it stays so."""
        known = path in room.lying or room.is_signal(path)
        looks = None if known else self._tree.signature(path)
        if looks is None or stat.S_ISDIR(looks.mode):
            self._unripe.pop(path, None)
            return
        try:
            self._make_message(room, path)
        except FileNotFoundError:
            self._unripe.pop(path, None)
        except Unreadable as why:
            before, since_ns = self._unripe.get(path, (None, now_ns))
            if before != looks:
                since_ns = now_ns
            self._unripe[path] = (looks, since_ns)
            if max(now_ns - since_ns, looks.unchanged_ns) >= PATIENCE_S * 1e9:
                self._set_aside(room, path, str(why))
        else:
            self._unripe.pop(path, None)

    def _set_aside(self, room: FileTables, path: str, why: str) -> None:
        if path.startswith(OUTBOX):
            return  # it is read there, and not ours to move
        with suppress(OSError):  # a process that may not move it leaves it to another
            self._tree.rename(path, room.explain_rejected(path, f"{path}: {why}\n"))
            del self._unripe[path]

    def _make_message(self, room: FileTables, path: str) -> None:
        folder, _, file = path.rpartition("/")
        if not is_utf8(path):  # no line of the log can have it
            raise Unreadable("its name is not UTF-8" if is_utf8(folder) else "its folder's name is not UTF-8")
        name = self.name_of(folder)
        if name is None:
            raise Unreadable(f"{folder} is not an agent's folder; names are percent-encoded there")
        body = read_file(self._tree, path, 2 * room.config.max_payload_bytes + ROUND_IT_BYTES, merge=True)
        if folder.startswith(f"{OWN}/"):
            to_agent, channel = _addressee(body, name if folder.startswith(_CLAIMED) else None)
        else:
            to_agent, channel = (None, name) if folder.startswith(f"{_CHANNEL_FOLDER}/") else (name, None)
        is_signal = folder.startswith(f"{OUTBOX}/")
        if is_signal:
            to_agent = body.fields.get("to", lead_of_report(room, body, file))
            if not isinstance(to_agent, str):
                return  # a file to be read, for nobody in particular
            body.fields["from"] = name
        key = key_of(body.fields.get("id") or "", room.salt) if isinstance(body.fields.get("id"), str) else None
        us = room.us_given(key)
        ours = us is not None and not is_signal
        draft = draft_of(body, file, to_agent, channel, room.config)
        if draft.idempotency_key is not None and steps.sent_before(room, draft):
            raise Unreadable(f"idempotency_key: {draft.idempotency_key!r} was used by {draft.from_agent!r} before")
        if us is None or not ours:
            us = room.next_us()
        if folder.startswith(f"{OWN}/"):
            file = file_of(us, draft.type)
        row = room.row_at(draft, to_agent, us, timestamp_ms_of(body, room.clock.wall_ms()), file, path)
        row.dropped = not ours
        if is_signal:
            row.signal, row.path = path, self._tree.copy(path)
        room.store(row)
        room.bodies[row.key] = body if row.dropped else Body(body.fields, merge=False)
        self._answered(room, row, draft)
        pass_on(room, row)

    def _answered(self, room: FileTables, row: FileRow, draft: Draft) -> None:
        """A file that answers a question, from the agent that was asked, ends that question."""
        question = room.row_of(draft.answer_to or "")
        if (
            question is not None
            and question.state in (State.READY, State.CLAIMED)
            and question.draft.to_agent in (draft.from_agent, None)
        ):
            assert isinstance(question, FileRow)
            if question.state is State.READY:  # its file may still lie there
                room.claimed_by_hand(question, draft.from_agent)
            steps.settle(room, question, "answered", draft.from_agent, row.id, 0)

    # After a boot. The caller has the lock.

    def strays(self, room: FileTables) -> dict[str, int | None]:
        """The files of messages that lie where the log does not have them, each with the message's key; None: by hand.

        When the power goes, a move may be on the disk and the line that told of it not, or the line and not the move,
        unless both were synced (tests/faults/test_power_cut_files.py). What was done and is not in the log stays done.
        """
        found: dict[str, int | None] = {}
        for folder in self._mail_folders():
            unknown = [
                path for path in self._messages_in(folder) if path not in room.lying and not room.is_signal(path)
            ]
            found.update((path, self._key_of(room, path)) for path in unknown)
        claimed = [f"{_CLAIMED}/{name}" for name in self._tree.folders(_CLAIMED)]
        for folder in (*claimed, f"{OWN}/later", f"{OWN}/held", f"{OWN}/dead"):
            found.update((path, key) for path in self._messages_in(folder) if (key := _key_in(path)) not in room.rows)
        return found

    def _messages_in(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in self._tree.names(folder) if is_message_file(name)]

    def _key_of(self, room: FileTables, path: str) -> int | None:
        with suppress(FileNotFoundError, Unreadable):
            most_bytes = 2 * room.config.max_payload_bytes + ROUND_IT_BYTES
            id = read_file(self._tree, path, most_bytes, merge=True).fields.get("id")
            return key_of(id, room.salt) if isinstance(id, str) else None
        return None

    def bring_home(self, room: FileTables, strays: dict[str, int | None]) -> None:
        """Bring these where the log has them; what it does not have is a message again, with the id that it had."""
        for path, key in strays.items():
            row = room.rows.get(-1 if key is None else key)
            if row is None and path.startswith(f"{OWN}/"):
                self._examine(room, path, room.clock.steady_ns())
            elif row is not None and row.path != path:
                if self._tree.kind(row.path) is None:
                    self._tree.rename(path, row.path)
                elif self._tree.same(path, row.path):
                    self._tree.unlink(path)

    def look_again(self) -> None:
        """What was taken in last was not written down after all."""
        self._look_everywhere = True

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


def _key_in(path: str) -> int | None:
    """The key that the name of a message's file outside the inboxes begins with."""
    digits = path.rpartition("/")[2][:16]
    return int(digits, 16) if _KEY.fullmatch(digits) else None


def _addressee(body: Body, claimed_by: str | None) -> tuple[str | None, str | None]:
    """The agent or the channel that a message outside the inboxes was for."""
    to, channel = body.fields.get("to", claimed_by), body.fields.get("channel", DEFAULT_CHANNEL)
    if isinstance(to, str):
        return to, None
    if "to" not in body.fields or not isinstance(channel, str):
        raise Unreadable("it does not say whom it was for")
    return None, channel
