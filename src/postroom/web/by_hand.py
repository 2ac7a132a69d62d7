"""What a person does from the page: send, put back, drop, release, stop.

Everything leaves a trace: a line `by_hand` in the ledger of the message, and an entry in the room's list of such deeds,
which stays when the message is gone.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

import msgspec

from postroom import presence, session_report
from postroom.board_index import update
from postroom.errors import InvalidMessage
from postroom.message import DEFAULT_CHANNEL, DEFAULT_PRIORITY, DEFAULT_TYPE, Draft, Message
from postroom.room import Room
from postroom.states import FINISHED, State
from postroom.store import Query, Ticket

HUMAN_LANE: Final = "human"
DEEDS_CELL: Final = "web-deeds"
#: The last so many deeds are remembered.
MAX_DEEDS: Final = 200
#: At most so many messages in one deed.
MAX_IDS: Final = 1000
STOP_GRACE_S: Final = 2.0


class Send(msgspec.Struct, forbid_unknown_fields=True):
    """A message from a person; `to` None is whoever claims it first. `new`: the recipient need not have been seen."""

    payload: dict[str, Any]
    to: str | None = None
    channel: str = DEFAULT_CHANNEL
    type: str = DEFAULT_TYPE
    priority: int = DEFAULT_PRIORITY
    new: bool = False


class Chosen(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that somebody chose."""

    ids: list[str]


class One(msgspec.Struct, forbid_unknown_fields=True):
    """A message, a task or a session."""

    id: str


class Hand:
    """The hand of one person. Every method raises before it has changed anything, or has done all of it."""

    def __init__(self, room: Room, name: str) -> None:
        self._room = room
        self.name = name

    def send(self, wish: Send) -> dict[str, Any]:
        """Send a message in the lane of people."""
        room = self._room
        if wish.to is not None and not wish.new and not presence.is_known(room.desk, wish.to):
            near = get_close_matches(wish.to, presence.names(room.desk), n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise InvalidMessage("to", f"nobody called {wish.to!r} was ever in this room{hint}")
        room.agent(self.name, transient=True)
        draft = Draft(
            from_agent=self.name,
            payload=wish.payload,
            to_agent=wish.to,
            channel=wish.channel,
            type=wish.type,
            priority=wish.priority,
            lane=HUMAN_LANE,
            max_deliveries=room.config.max_deliveries,
        )
        id = room.desk.send(draft)
        self._remember("sent", [id], "")
        return {"id": id}

    def requeue(self, wish: Chosen) -> dict[str, Any]:
        """Put dead, refused or expired messages back, with all their deliveries anew."""
        done = self._room.requeue(_checked(wish.ids))
        self._note(done, "put back")
        return {"ids": done}

    def drop(self, wish: Chosen) -> dict[str, Any]:
        """Delete messages that have ended for good. Those that are still on their way are left alone."""
        room, ids = self._room, _checked(wish.ids)
        query = Query(ids=tuple(ids), states=FINISHED, limit=MAX_IDS)
        found = room.store.find(query).messages
        if any(message.id not in ids for message in found):  # a store that does not know `ids` would delete everything
            raise InvalidMessage("ids", "this room's store cannot find messages by their ids; nothing was dropped")
        names = [message.id for message in found]
        self._note(names, "dropped", "; ".join(_told(message) for message in found[:20]))
        room.store.purge(query)
        return {"ids": names}

    def release(self, wish: One) -> dict[str, Any]:
        """Take a claimed message from its receiver, to be delivered again: its token no longer counts."""
        room = self._room
        message = room.get(wish.id)
        if message.state is not State.CLAIMED or message.claimed_by is None:
            raise InvalidMessage("id", f"nobody holds {wish.id}: it is {message.state_name}")
        ticket = Ticket(message.id, message.token, message.claimed_by)
        held = room.desk.settle(ticket, "retry", detail=f"released by {self.name}").held
        if held:
            self._note([wish.id], "released", f"was held by {message.claimed_by}")
        return {"released": held}

    def release_task(self, wish: One) -> dict[str, Any]:
        """Take a claimed task from its owner; it is ready again."""
        board = self._room.board
        task = board.get(wish.id)
        if task.owner is None:
            raise InvalidMessage("id", f"nobody holds task {wish.id}: it is {task.state}")
        released = board.held(wish.id, task.owner).release(f"released by {self.name}")
        if released:
            self._remember("released the task", [wish.id], f"was held by {task.owner}")
        return {"released": released}

    def stop_session(self, wish: One) -> dict[str, Any]:
        """Let a session fail, and see that its workers end. Takes seconds."""
        gone = session_report.stop(self._room.desk, wish.id, STOP_GRACE_S)
        self._remember("stopped the session", [wish.id], "" if gone else "some of its workers still run")
        return {"workers_gone": gone}

    def deeds(self) -> list[dict[str, Any]]:
        """What people did from the page, the latest first."""
        cell = self._room.store.cell_read(DEEDS_CELL)
        return [] if cell is None else list(reversed(cell.value["deeds"]))

    def _note(self, ids: list[str], what: str, detail: str = "") -> None:
        for id in ids:
            self._room.store.note(id, "by_hand", self.name, what)
        if ids:
            self._remember(what, ids, detail)

    def _remember(self, what: str, ids: list[str], detail: str) -> None:
        deed = {
            "time_ms": self._room.clock.wall_ms(),
            "by": self.name,
            "what": what,
            "ids": ids[:20],
            "count": len(ids),
            "detail": detail[:2000],
        }

        def change(before: dict[str, Any] | None) -> dict[str, Any]:
            return {"deeds": [*(before or {"deeds": []})["deeds"], deed][-MAX_DEEDS:]}

        update(self._room.store, DEEDS_CELL, change)


def _checked(ids: list[str]) -> list[str]:
    if not 1 <= len(ids) <= MAX_IDS:
        raise InvalidMessage("ids", f"must name 1 to {MAX_IDS} messages, not {len(ids)}")
    return list(dict.fromkeys(ids))


def _told(message: Message) -> str:
    return f"{message.id} from {message.from_agent} to {message.to_agent or message.channel}"
