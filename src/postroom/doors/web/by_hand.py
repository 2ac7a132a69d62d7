"""Actions of a person on the page: answer questions, send, put back, drop, release, stop; add, abort and reopen tasks; pause and resume.

Everything leaves a trace: a line `by_hand` in the ledger of the message, and an entry in the room's list of such deeds,
which stays when the message is gone.

The actor is known by a token once the room has any, never by the request: a person's token may do all of this, an agent's
token may write as that agent and release that agent's claims (docs/web.md, tests/doors/web/test_by_hand.py).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from postroom.core.message import DEFAULT_CHANNEL, DEFAULT_PRIORITY, DEFAULT_TYPE
from postroom.core.states import FINISHED, State
from postroom.doors.strangers import never_seen
from postroom.errors import IdentityRefused, InvalidMessage
from postroom.mail import people, presence, tokens
from postroom.room import Room
from postroom.sessions import report
from postroom.stores.cells import update
from postroom.stores.contract import Query, Ticket

from .guard import UNKNOWN_COOKIE
from .views import DEEDS_CELL

HUMAN_LANE: Final = "human"
DOOR: Final = "web"
#: The last so many deeds are remembered.
MAX_DEEDS: Final = 200
#: At most so many messages in one deed.
MAX_IDS: Final = 1000
STOP_GRACE_S: Final = 2.0
_IF_NEW: Final = "mark the recipient as new if it is"


class PersonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message from a person; `to` None is the agent that claims it first. `new`: the recipient may be unknown."""

    payload: dict[str, Any]
    to: str | None = None
    channel: str = DEFAULT_CHANNEL
    type: str = DEFAULT_TYPE
    priority: int = DEFAULT_PRIORITY
    new: bool = False


class ChosenMessages(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that somebody chose."""

    ids: list[str]


class One(msgspec.Struct, forbid_unknown_fields=True):
    """A message, a task or a session."""

    id: str


class NewTask(msgspec.Struct, forbid_unknown_fields=True):
    """A task for the board; it waits for those in `after`."""

    id: str
    title: str = ""
    after: list[str] = []


class AbortedTask(msgspec.Struct, forbid_unknown_fields=True):
    """A task to call off, and why."""

    id: str
    why: str = ""


class PauseWish(msgspec.Struct, forbid_unknown_fields=True):
    """A channel, or an agent, to be paused or resumed; a pause has a reason."""

    channel: str | None = None
    agent: str | None = None
    reason: str = ""


class GivenAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """A person's answer to a question."""

    id: str
    answer: str


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """A token of this room; empty to be nobody in particular again."""

    token: str


class Person(NamedTuple):
    """The actor: its name, and whether it is a person. An agent that looks at the page has a token too."""

    name: str
    human: bool

    @property
    def lane(self) -> str:
        """The lane in which its messages travel."""
        return HUMAN_LANE if self.human else "agent"


class ByHand:
    """The actions in one room. Every method raises before it has changed anything, or has done all of it.

    `name` is the actor while the room has no tokens; `token` is the proof of a request that shows none of its own.
    """

    def __init__(self, room: Room, name: str, token: str | None = None) -> None:
        self._room = room
        self._name = name
        self._token = token

    def who(self, shown: str | None = None) -> Person:
        """The actor that shows that token of the room, or none. Looked up each time: a token may be revoked.

        Raises IdentityRefused when the room has tokens and none was shown, or one that proves nothing.
        """
        needs = tokens.has_tokens(self._room.gateway)
        token = self._counted(shown, needs)
        if token is None and needs:
            raise IdentityRefused("this room has tokens: enter yours (the key at the top of the page) first")
        credential = tokens.prove(self._room.gateway, None, token, DOOR)
        return Person(self._name, human=True) if credential is None else Person(credential.agent, credential.human)

    def about(self, shown: str | None = None) -> dict[str, Any]:
        """The actor as the page shows it: without a name when it is unknown. Changes nothing."""
        needs = tokens.has_tokens(self._room.gateway)
        token = self._counted(shown, needs)
        if not needs and token is None:
            return {"name": self._name, "human": True, "tokens": False}
        try:
            credential = tokens.credential_of(self._room.gateway, token or "")
        except IdentityRefused:
            return {"name": None, "human": False, "tokens": needs}
        return {"name": credential.agent, "human": credential.human, "tokens": needs}

    def _counted(self, shown: str | None, needs: bool) -> str | None:
        """The token that proves the actor. In a room without tokens, a cookie that was left behind claims nothing.

        In one with tokens it proves nothing: a person that signed in before does not become the server's own (test_by_hand.py).
        """
        left_behind = shown == UNKNOWN_COOKIE and not needs
        return self._token if left_behind else shown or self._token

    def send(self, wish: PersonMessage, who: Person) -> dict[str, Any]:
        """Send a message: a person's in the lane of people, an agent's in that of agents."""
        room = self._room
        if wish.to is not None and not wish.new and not presence.is_addressee(room.gateway, wish.to):
            raise InvalidMessage("to", never_seen(wish.to, presence.addressees(room.gateway), _IF_NEW, any_name=True))
        sender = room.agent(who.name, transient=True)
        id = sender.send(
            wish.to, wish.payload, channel=wish.channel, type=wish.type, priority=wish.priority, _lane=who.lane
        )
        self._remember(who, "sent", [id], "")
        return {"id": id}

    def answer(self, wish: GivenAnswer, shown: str | None) -> dict[str, Any]:
        """Answer a question to a person, by the token that the request shows or the server has.

        In a room without tokens, by the name of the one who opened the page; one that gave none answers for the person
        that was asked.
        """
        who = self.who(shown)
        proof = self._counted(shown, tokens.has_tokens(self._room.gateway))
        name = None if proof is not None or self._name == HUMAN_LANE else self._name
        answerer = people.Answerer(proof, DOOR, name, "page")
        given = people.answer(self._room.gateway, wish.id, wish.answer, answerer)
        self._remember(who, "answered", [wish.id], given.said)
        return {"id": wish.id, "answer": given.to_dict()}

    def requeue(self, wish: ChosenMessages, who: Person) -> dict[str, Any]:
        """Put dead, refused or expired messages back, with their delivery counts reset."""
        self._must_be_human(who, "put messages back")
        done = self._room.requeue(_checked(wish.ids))
        self._note(who, done, "put back")
        return {"ids": done}

    def drop(self, wish: ChosenMessages, who: Person) -> dict[str, Any]:
        """Delete messages that have ended for good. Those that are still on their way are left alone."""
        self._must_be_human(who, "drop messages")
        room, ids = self._room, _checked(wish.ids)
        query = Query(ids=tuple(ids), states=FINISHED, limit=MAX_IDS)
        found = room.store.find(query).messages
        if any(message.id not in ids for message in found):  # a store that does not know `ids` would delete everything
            raise InvalidMessage("ids", "this room's store cannot find messages by their ids; nothing was dropped")
        names = [message.id for message in found]
        told = (f"{m.id} from {m.from_agent} to {m.to_agent or m.channel}" for m in found[:20])
        self._note(who, names, "dropped", "; ".join(told))
        room.store.purge(query)
        return {"ids": names}

    def release(self, wish: One, who: Person) -> dict[str, Any]:
        """Take a claimed message from its receiver, to be delivered again: its token no longer counts."""
        room = self._room
        message = room.get(wish.id)
        if message.exact_state is not State.CLAIMED or message.claimed_by is None:
            raise InvalidMessage("id", f"no agent holds {wish.id}: it is {message.state}")
        self._must_be_human(who, f"release what {message.claimed_by} holds", unless=message.claimed_by)
        ticket = Ticket(message.id, message.token, message.claimed_by)
        held = room.gateway.settle(ticket, "retry", detail=f"released by {who.name}").held
        if held:
            self._note(who, [wish.id], "released", f"was held by {message.claimed_by}")
        return {"released": held}

    def release_task(self, wish: One, who: Person) -> dict[str, Any]:
        """Take a claimed task from its owner; it is ready again."""
        board = self._room.board
        task = board.get(wish.id)
        if task.owner is None:
            raise InvalidMessage("id", f"no agent holds task {wish.id}: it is {task.state}")
        self._must_be_human(who, f"release the task of {task.owner}", unless=task.owner)
        released = board.held(wish.id, task.owner).release(f"released by {who.name}")
        if released:
            self._remember(who, "released the task", [wish.id], f"was held by {task.owner}")
        return {"released": released}

    def add_task(self, wish: NewTask, who: Person) -> dict[str, Any]:
        """Put a task on the board. The person that adds it leads it: it is told when the task is done or blocked."""
        task = self._room.board.add(wish.id, title=wish.title, after=wish.after, lead=who.name)
        self._remember(who, "added the task", [task.id], task.title)
        return {"id": task.id}

    def abort_task(self, wish: AbortedTask, who: Person) -> dict[str, Any]:
        """Call a task off; its owner is told, and what that reports later counts no more."""
        board = self._room.board
        lead = board.get(wish.id).lead
        self._must_be_human(who, f"abort a task led by {lead or 'no agent'}", unless=lead)
        aborted = board.abort(wish.id, wish.why or None, by=who.name, _person=who.human)
        if aborted:
            self._remember(who, "aborted the task", [wish.id], wish.why)
        return {"aborted": aborted}

    def reopen_task(self, wish: One, who: Person) -> dict[str, Any]:
        """Put a blocked or aborted task back."""
        board = self._room.board
        lead = board.get(wish.id).lead
        self._must_be_human(who, f"reopen a task led by {lead or 'no agent'}", unless=lead)
        reopened = board.reopen(wish.id)
        if reopened:
            self._remember(who, "reopened the task", [wish.id], "")
        return {"reopened": reopened}

    def stop_session(self, wish: One, who: Person) -> dict[str, Any]:
        """Let a session fail, and see that its workers end. Takes seconds."""
        self._must_be_human(who, "stop sessions")
        gone = report.stop(self._room.gateway, wish.id, STOP_GRACE_S)
        self._remember(who, "stopped the session", [wish.id], "" if gone else "some of its workers are still running")
        return {"workers_gone": gone}

    def pause(self, wish: PauseWish, who: Person) -> dict[str, Any]:
        """Let nobody take from a channel, or let an agent take nothing."""
        before = self._room.limits().pause_of(wish.channel, wish.agent)
        self._may_stop(wish, who, "pause", wish.agent if before is None else before.by)
        new = self._room.pause(wish.channel, agent=wish.agent, reason=wish.reason or None, by=who.name)
        self._remember(who, "paused", [wish.agent or wish.channel or ""], wish.reason)
        return {"paused": True, "new": new}

    def resume(self, wish: PauseWish, who: Person) -> dict[str, Any]:
        """End a pause."""
        before = self._room.limits().pause_of(wish.channel, wish.agent)
        self._may_stop(wish, who, "resume", None if before is None else before.by)
        resumed = self._room.resume(wish.channel, agent=wish.agent)
        if resumed:
            self._remember(who, "resumed", [wish.agent or wish.channel or ""], "")
        return {"resumed": resumed}

    def _may_stop(self, wish: PauseWish, who: Person, deed: str, maker: str | None) -> None:
        """Pauses are for people; an agent pauses itself alone, and ends what it began itself."""
        what = f"agent {wish.agent}" if wish.agent is not None else f"channel {wish.channel}"
        self._must_be_human(who, f"{deed} {what}", unless=wish.agent if maker == wish.agent else None)

    def _must_be_human(self, who: Person, deed: str, unless: str | None = None) -> None:
        """An agent's token does not act on others. Its own claims it may release."""
        tokens.must_be_person(self._room.gateway, who.name, DOOR, deed, human=who.human, unless=(unless,))

    def _note(self, who: Person, ids: list[str], what: str, detail: str = "") -> None:
        for id in ids:
            self._room.store.note(id, "by_hand", who.name, what)
        if ids:
            self._remember(who, what, ids, detail)

    def _remember(self, who: Person, what: str, ids: list[str], detail: str) -> None:
        deed = {
            "time_ms": self._room.clock.wall_ms(),
            "by": who.name,
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
