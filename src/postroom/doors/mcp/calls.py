"""The MCP tools, in an asyncio room, for callers whose names are proved already.

Claims made here belong to the agent: they end by time (ten minutes), and a message that was not acked comes again, marked
as seen before, also to a host that was restarted. A call that is cancelled leaves nothing claimed.

The ledger says what is known and no more. That a result was handed to the host is "notified". That the model has seen it
is known when the model names the id (to ack or answer it): then it is "shown".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import UNSET

from postroom import aio
from postroom.core.config import AGENT_LEASE_S
from postroom.core.message import GROUP_SIGN, Message, MessageWithLedger
from postroom.core.states import State
from postroom.core.untrusted import quoted, visible
from postroom.doors.strangers import never_seen
from postroom.errors import AskFailed, IdentityRefused, InvalidMessage, PostroomError, ReceiveTimeout, UnknownMessage
from postroom.mail import people, presence, tokens
from postroom.mail.rate_limit import SenderLimit
from postroom.mail.received import UNSEEN
from postroom.room import Room
from postroom.stores.contract import Query, Ticket, Want, topic_channel, topic_to

from . import shown, tools
from .board_calls import BoardCalls
from .caller import DOOR, Caller, Progress
from .people_calls import PeopleCalls
from .shown import Words

T = TypeVar("T")

#: A waiting caller gets a sign of progress this often, in seconds.
PROGRESS_S: Final = 5.0
#: The rate limit of each pair of agents, where the room has none of its own: so many at once, then one per second.
PAIR_RATE_PER_S: Final = 1.0
PAIR_BURST: Final = 60
ANYBODY: Final = "*"
MAX_AGENTS: Final = 50
MAX_CHANNELS: Final = 20
MAX_HELD: Final = 20
_MAX_GIVEN: Final = 1000
_OLDER_HITS: Final = "there are older hits: narrow the search with from:, in:, after: or before:"
#: The way out when a recipient was never seen here.
NEW_TO_SEND: Final = "new=true if it is new"
NEW_TO_ASK: Final = (
    "only agents that have joined this room can be asked; send with new=true leaves a message for one that has not"
)
#: What a model is told of a message that it could not end, or not as it wanted.
LOST: Final = "it is no longer yours: it has been taken or finished"
TOO_LATE: Final = "it was not taken back: a receiver has it, or it has ended"
LAST_DELIVERY: Final = "that was its last delivery: it was set aside as a dead letter, and will not come again"


class ToolFailed(PostroomError):
    """A tool could not do what was asked; the text is for the model."""


class MailCalls:
    """The eight tools. One for each server."""

    def __init__(self, room: aio.Room) -> None:
        self.room = room
        self._given: dict[str, dict[str, None]] = {}  # agent -> ids whose bodies this server has shown it
        self._left: set[asyncio.Task[Any]] = set()  # what is still done for callers that were cancelled
        self.board = BoardCalls(room, self._with_progress)
        self.people = PeopleCalls(room, self._with_progress)

    async def call(
        self, caller: Caller, name: str, arguments: dict[str, Any] | None, progress: Progress
    ) -> dict[str, Any]:
        """Run a tool. ToolFailed, with a sentence for the model, when it cannot; LookupError for no such tool."""
        tool = tools.BY_NAME[name]
        step: Callable[..., Coroutine[Any, Any, dict[str, Any]]] = getattr(self, f"_{name}")
        with self.in_words(caller):
            return await step(caller, tools.read_arguments(tool, arguments), progress)

    @contextmanager
    def in_words(self, caller: Caller) -> Iterator[None]:
        """What goes wrong in the block becomes a sentence for the model (ToolFailed)."""
        try:
            yield
        except tools.IdentityArgument as error:
            self.refused(caller, f"argument {error.faults[0].field}")
            raise ToolFailed(visible(str(error))) from None
        except PostroomError as error:
            raise ToolFailed(shown.error(error)) from None

    def refused(self, caller: Caller, claimed: str) -> None:
        """Record a claim to be, or to read as, somebody else."""
        self.room.post(lambda room: tokens.record_refusal(room.gateway, DOOR, claimed, caller.agent))

    # Sending

    async def _send(self, caller: Caller, given: tools.SendCall, _: Progress) -> dict[str, Any]:
        if given.also is not UNSET or given.to.startswith(GROUP_SIGN):
            return await self._send_each(caller, given)
        to = None if given.to == ANYBODY else given.to
        known, cause = await self.room.call(lambda room: before_sending(room, caller, to, new=given.new))
        id = await self.room.agent(caller.agent, transient=True).send(
            to,
            payload_of(given),
            type=given.type,
            channel=given.channel,
            priority=given.priority,
            delay_s=given.delay_s,
            idempotency_key=None if given.key is UNSET else given.key,
            cause=cause,
            _lane=caller.lane,
        )
        # a repeat under the same key is the message of then, which may be far by now
        state = "stored" if given.key is UNSET else await self._state(id)
        where = {"channel": shown.name_of(given.channel)} if to is None else {"recipient_known": known}
        return {"id": id, "state": state, **where}

    async def _ask(self, caller: Caller, given: tools.Ask, progress: Progress) -> dict[str, Any]:
        if given.for_person:
            id = await self.ask_person(caller, given)
            return await self.people.answer(id, given.to, given.wait_s, progress)
        if given.also is not UNSET or given.to.startswith(GROUP_SIGN):
            return await self._ask_many(caller, given, progress)
        _, cause = await self.room.call(lambda room: before_sending(room, caller, given.to, new=None))
        asking = self.room.agent(caller.agent, transient=True).ask(
            given.to,
            payload_of(given),
            timeout_s=given.wait_s,
            type=given.type,
            cause=cause,
            _lane=caller.lane,
            _settle=False,
        )
        try:
            answer = await self._with_progress(asking, progress, given.wait_s, f"waiting for {quoted(given.to)}")
        except AskFailed as error:
            raise not_answered(error) from None
        told = self.show_answer(caller, answer.message)
        self.ack_shown([answer.ticket])
        return told

    async def ask_person(self, caller: Caller, given: tools.Ask) -> str:
        """Ask a person; returns the id of the question."""
        if given.also is not UNSET or given.type != "message":
            raise InvalidMessage("also" if given.also is not UNSET else "type", "is not for questions to people")
        to = None if given.to == ANYBODY else given.to

        def prepared(room: Room) -> Message | None:
            known_by_token = tokens.has_tokens(room.gateway)  # then asking says whether there is such a person
            return before_sending(room, caller, to, new=known_by_token)[1]

        cause = await self.room.call(prepared)
        return await self.people.ask(caller, given, payload_of(given), cause)

    def ack_shown(self, tickets: Sequence[Ticket]) -> None:
        """These are handed over now, in this turn of the loop: until then, an asker that leaves gets them as mail."""
        self.room.post(lambda room: [room.gateway.settle(ticket, "acked") for ticket in tickets])

    def show_answer(self, caller: Caller, answer: Message) -> dict[str, Any]:
        """The answer to a question, as its asker gets it."""
        self.room.post(_noting([answer.id], caller.agent, "notified", "mcp ask"))
        return shown.mail(answer, Words(), seen_before=False, most=shown.MAX_PART)

    def show_answers(
        self, caller: Caller, came: list[Message], missing: Mapping[str, AskFailed], *, enough: bool
    ) -> dict[str, Any]:
        """The answers of several agents, and why the others gave none."""
        self.room.post(_noting([answer.id for answer in came], caller.agent, "notified", "mcp ask"))
        return shown.answers(came, missing) | {"enough": enough}

    async def recipients(
        self, caller: Caller, given: tools.SendCall | tools.Ask, *, new: bool | None
    ) -> tuple[dict[str, bool], Message | None]:
        """Each of several, with whether it was ever here, and the cause of what they are sent."""
        also = () if given.also is UNSET else given.also
        names = await self.room.groups.expand([given.to, *also], caller.agent)
        seen = [await self.room.call(partial(before_sending, caller=caller, to=to, new=new)) for to in names]
        return {name: known for name, (known, _) in zip(names, seen, strict=True)}, seen[0][1]

    async def _send_each(self, caller: Caller, given: tools.SendCall) -> dict[str, Any]:
        known, cause = await self.recipients(caller, given, new=given.new)
        ids = await self.room.agent(caller.agent, transient=True).send(
            [*known],
            payload_of(given),
            type=given.type,
            channel=given.channel,
            priority=given.priority,
            delay_s=given.delay_s,
            idempotency_key=None if given.key is UNSET else given.key,
            cause=cause,
            _lane=caller.lane,
        )
        states = ["stored" if given.key is UNSET else await self._state(id) for id in ids]
        told = zip(known.items(), ids, states, strict=True)
        return {
            "sent": [
                {"to": shown.name_of(name), "id": id, "state": state, "recipient_known": seen}
                for (name, seen), id, state in told
            ]
        }

    async def _ask_many(self, caller: Caller, given: tools.Ask, progress: Progress) -> dict[str, Any]:
        names, cause = await self.recipients(caller, given, new=None)
        asking = self.room.agent(caller.agent, transient=True).ask_many(
            [*names],
            payload_of(given),
            enough_of(given),
            given.wait_s,
            type=given.type,
            cause=cause,
            _lane=caller.lane,
            _settle=False,
        )
        try:
            async with asking as asked:
                await self._with_progress(asked.over(), progress, given.wait_s, f"waiting for {len(names)} agents")
        except BaseException:
            self.give_back([answer.ticket for answer in asking.answers.values()])
            raise
        came = asked.answers.values()
        told = self.show_answers(caller, [answer.message for answer in came], asked.missing, enough=asked.enough)
        self.ack_shown([answer.ticket for answer in came])
        return told

    # Reading

    async def _inbox(self, caller: Caller, given: tools.InboxCall, progress: Progress) -> dict[str, Any]:
        if given.thread:
            return await self._read_thread(caller, given)
        if given.id is not UNSET:
            return await self._read_one(caller, str(given.id), given.offset)
        if given.search is not UNSET:
            return await self._search(caller, str(given.search), given.limit)
        channels = None if given.channels is UNSET else tuple(given.channels)
        if given.mode == "dead":
            return await self._dead(caller, given.limit)
        if given.mode == "peek":
            return await self._peek(caller, given, channels, progress)
        taken: list[Message] = []
        try:
            held = await self.claim(caller, given.limit, channels, taken)
            if not taken and given.wait_s and not self.unseen(caller, held):
                await self._wait_and_claim(caller, given, channels, taken, progress)
            new = {message.id for message in self.unseen(caller, held)}
            recalled = [message.id for message in held if message.id not in new]
            return await self.show_mail(caller, held[:MAX_HELD], taken, recalled, max(len(held) - MAX_HELD, 0))
        except BaseException:
            self.give_back(tickets_of(caller.agent, taken))
            raise

    def unseen(self, caller: Caller, held: list[Message]) -> list[Message]:
        """Those of what the caller holds that this server has not shown it yet."""
        known = self._given.get(caller.agent, {})
        return [message for message in held[:MAX_HELD] if message.id not in known]

    async def show_mail(
        self, caller: Caller, held: Sequence[Message], taken: Sequence[Message], recalled: Collection[str], more: int
    ) -> dict[str, Any]:
        """What the caller holds, of which some are only recalled, and what was taken for it now; `more` are left out.

        When this raises, nothing was shown.
        """
        box = await self._box(caller)
        words = Words()
        bodies = [shown.MAX_RECALLED if message.id in recalled else shown.MAX_BODY for message in held]
        told = [shown.mail(m, words, seen_before=True, most=most) for m, most in zip(held, bodies, strict=True)]
        told += [shown.mail(m, words, seen_before=m.delivery_count > 1) for m in taken]
        self._remember(caller.agent, [message.id for message in (*held, *taken)])
        self.room.post(_noting([message.id for message in taken], caller.agent, "notified", "mcp inbox"))
        return {"messages": told, **box, **({"more": more} if more else {})}

    async def _box(self, caller: Caller) -> dict[str, Any]:
        """What else waits: the caller's own mail, and in which channels mail waits for anybody."""
        boxes = await self.room.mailboxes()
        open_to_all = [{"name": shown.name_of(b.channel), "waiting": b.depth} for b in boxes if b.to_agent is None]
        waiting = sum(box.depth for box in boxes if box.to_agent == caller.agent)
        found: dict[str, Any] = {"waiting": waiting}
        if open_to_all:
            found["channels"] = open_to_all[:MAX_CHANNELS]
        if len(open_to_all) > MAX_CHANNELS:
            found["channels_more"] = len(open_to_all) - MAX_CHANNELS
        return found

    async def claim(
        self, caller: Caller, limit: int, channels: tuple[str, ...] | None, taken: list[Message]
    ) -> list[Message]:
        """Claim what is there, into `taken`; returns what the agent held before."""
        claiming = self.room.call(lambda room: _claim_now(room, caller.agent, limit, channels))
        job = asyncio.ensure_future(claiming)
        try:
            held, fresh = await asyncio.shield(job)
        except asyncio.CancelledError:
            self.afterwards(job, lambda result: self.give_back(tickets_of(caller.agent, result[1])))
            raise
        taken += fresh
        return held

    async def _wait_and_claim(
        self,
        caller: Caller,
        given: tools.InboxCall,
        channels: tuple[str, ...] | None,
        taken: list[Message],
        progress: Progress,
    ) -> None:
        receiving = self.room.agent(caller.agent, transient=True).receive(timeout_s=given.wait_s, channels=channels)
        with suppress(ReceiveTimeout):
            message = await self._with_progress(receiving, progress, given.wait_s, "waiting for mail")
            taken.append(message.message)
            if given.limit > 1:  # what came together is given together
                await self.claim(caller, given.limit - 1, channels, taken)

    async def _peek(
        self, caller: Caller, given: tools.InboxCall, channels: tuple[str, ...] | None, progress: Progress
    ) -> dict[str, Any]:
        found = await self.room.peek(agent=caller.agent, channels=channels, limit=given.limit)
        if not found and given.wait_s:
            coming = self._mail_comes(caller.agent, channels, given.wait_s)
            await self._with_progress(coming, progress, given.wait_s, "waiting for mail")
            found = await self.room.peek(agent=caller.agent, channels=channels, limit=given.limit)
        return await self.show_peeked(caller, found)

    async def show_peeked(self, caller: Caller, found: Sequence[Message]) -> dict[str, Any]:
        """What is there to look at."""
        words = Words()
        self.room.post(_noting([message.id for message in found], caller.agent, "notified", "mcp peek"))
        told = [shown.mail(message, words, seen_before=message.delivery_count > 0) for message in found]
        return {"messages": told, **await self._box(caller)}

    async def _mail_comes(self, agent: str, channels: tuple[str, ...] | None, wait_s: float) -> None:
        """Return when something is there to look at, or when the time is over. Nothing is taken."""

        async def come() -> None:
            async with self.room.hints([topic_to(agent), *map(topic_channel, channels or ())]) as hints:
                async for _ in hints:
                    if await self.room.peek(agent=agent, channels=channels, limit=1):
                        return

        with suppress(TimeoutError):
            await asyncio.wait_for(come(), wait_s)

    async def _search(self, caller: Caller, text: str, limit: int) -> dict[str, Any]:
        """What the caller may read (`_must_concern`) and what has these words, whatever became of it. Nothing is taken."""
        found = await self.room.search(text, limit, agent=caller.agent)
        words = Words()
        told = [shown.mail(message, words, seen_before=message.delivery_count > 0) for message in found]
        note = found.note or (_OLDER_HITS if found.more else "")
        return {"messages": told, **await self._box(caller), **({"note": note} if note else {})}

    async def _dead(self, caller: Caller, limit: int) -> dict[str, Any]:
        """The newest dead letters of what the caller sent or was to get, each with the reason."""
        query = Query(states=frozenset({State.DEAD}), concerns=caller.agent, order="newest", limit=limit)
        found = await self.room.call(lambda room: room.store.find(query).messages)
        words = Words()
        told = [shown.mail(message, words, seen_before=True) for message in found]
        for entry, message in zip(told, found, strict=True):
            entry["why"] = words.fenced(message.error or "no reason given", None)
        return {"messages": told, **await self._box(caller)}

    async def _read_one(self, caller: Caller, id: str, offset: int) -> dict[str, Any]:
        message = await self.room.get(id)
        self._must_concern(caller, message)
        self._named(caller, message)
        seen = offset > 0 or message.delivery_count > 0
        text = shown.mail(message, Words(), seen_before=seen, offset=offset, most=shown.MAX_PART)
        return {"messages": [text], **await self._box(caller)}

    async def _read_thread(self, caller: Caller, given: tools.InboxCall) -> dict[str, Any]:
        """The newest messages of a conversation, but those that the caller neither sent nor got."""
        if given.id is UNSET:
            raise InvalidMessage("id", "name a message of the conversation")
        found = await self.room.thread(str(given.id))
        self._must_concern(caller, next(message for message in found if message.id == given.id))
        own = [message for message in found if self._concerns(caller, message)]
        words = Words()
        told = [shown.mail(m, words, seen_before=m.delivery_count > 0) for m in own[-given.limit :]]
        more = {"more": left} if (left := len(own) - len(told)) > 0 else {}
        return {"messages": told, **await self._box(caller), **more}

    @staticmethod
    def _concerns(caller: Caller, message: Message) -> bool:
        """Whether the caller sent, got or holds it, or held it before another did."""
        ledger = message.ledger if isinstance(message, MessageWithLedger) else ()
        held = {entry.agent for entry in ledger if entry.event == "claimed"}
        return caller.agent in (message.to_agent, message.from_agent, message.claimed_by, *held)

    def _must_concern(self, caller: Caller, message: Message) -> None:
        """Others' mail is, as far as the caller can tell, not there."""
        if not self._concerns(caller, message):
            self.refused(caller, f"reader of {message.id}")
            raise UnknownMessage(f"this room has no message {message.id}")

    def _named(self, caller: Caller, message: MessageWithLedger) -> None:
        """The model names a message: if a result had it, the model has seen that result."""
        results = ("mcp inbox", "mcp ask")
        if any(e.event == "notified" and e.agent == caller.agent and e.detail in results for e in message.ledger):
            self.room.post(_noting([message.id], caller.agent, "shown", "mcp: it named the id"))

    def _remember(self, agent: str, ids: list[str]) -> None:
        known = self._given.setdefault(agent, {})
        known.update(dict.fromkeys(ids))
        while len(known) > _MAX_GIVEN:
            known.pop(next(iter(known)))

    # Settling

    async def _ack(self, caller: Caller, given: tools.Ack, _: Progress) -> dict[str, Any]:
        if given.outcome in ("retry", "refuse") and not given.why:
            raise InvalidMessage("why", f"say why, with outcome {given.outcome}")
        return {"results": [await self._settle(caller, id, given) for id in dict.fromkeys(given.ids)]}

    async def _settle(self, caller: Caller, id: str, given: tools.Ack) -> dict[str, Any]:
        try:
            if given.outcome == "withdraw":
                return await self._withdraw(caller, id, given.why or None)
            message = await self._claimed(caller, id)
        except UnknownMessage as error:
            return {"id": visible(id), "counted": False, "state": "unknown", "problem": visible(str(error))}
        except InvalidMessage as error:
            if given.outcome == "retry" and await self._state(id) == "dead":
                return await self._requeue(caller, id)
            problem = visible(str(error).removeprefix("Invalid message: id: "))
            return {"id": visible(id), "counted": False, "state": await self._state(id), "problem": problem}
        self.room.post(_noting([id], caller.agent, "shown", "mcp: it named the id"))
        words = () if given.outcome == "done" else (given.why,)
        end: Any = {"done": message.ack, "retry": message.retry, "refuse": message.refuse}[given.outcome]
        counted = await end(*words)
        state = await self._state(id)
        problem = LAST_DELIVERY if counted and given.outcome == "retry" and state == "dead" else "" if counted else LOST
        return {"id": id, "counted": counted, "state": state, **({"problem": problem} if problem else {})}

    async def _withdraw(self, caller: Caller, id: str, why: str | None) -> dict[str, Any]:
        """Take back what the caller sent, also what is not due yet. Raises UnknownMessage for others' mail."""
        self._must_concern(caller, await self.room.get(id))
        try:
            counted, problem = await self.room.agent(caller.agent, transient=True).withdraw(id, why), TOO_LATE
        except IdentityRefused:
            counted, problem = False, "only its sender takes it back"
        return {"id": id, "counted": counted, "state": await self._state(id)} | (
            {} if counted else {"problem": problem}
        )

    async def _requeue(self, caller: Caller, id: str) -> dict[str, Any]:
        """Put a dead letter of the caller's back; in a room with tokens a person does that."""

        def put_back(room: Room) -> bool:
            human = caller.lane == "human"
            tokens.must_be_person(room.gateway, caller.agent, DOOR, "put dead letters back", human=human)
            return bool(room.requeue(id))

        try:
            counted = await self.room.call(put_back)
        except IdentityRefused as error:
            return {"id": id, "counted": False, "state": "dead", "problem": str(error)}
        return {"id": id, "counted": counted, "state": await self._state(id)}

    async def _claimed(self, caller: Caller, id: str) -> aio.Received:
        """A message that the caller holds. Raises InvalidMessage where it does not, UnknownMessage for others' mail."""
        try:
            return await self.room.agent(caller.agent, transient=True).claimed(id)
        except InvalidMessage:
            self._must_concern(caller, await self.room.get(id))
            raise

    async def _reply(self, caller: Caller, given: tools.Reply, _: Progress) -> dict[str, Any]:
        message = await self._claimed(caller, given.id)
        self.room.post(_noting([given.id], caller.agent, "shown", "mcp: it named the id"))
        counted = await message.reply(payload_of(given), _lane=caller.lane)
        answer = {"answer_id": message.answer_id} if message.answer_id else {}
        return {"id": given.id, "counted": counted, "state": await self._state(given.id), **answer}

    async def _state(self, id: str) -> str:
        try:
            return (await self.room.receipt(id)).state
        except UnknownMessage:
            return "unknown"

    # The board, and the agents of the room

    async def _board(self, caller: Caller, given: tools.BoardCall, progress: Progress) -> dict[str, Any]:
        return await self.board.call(caller, given, progress)

    async def _who(self, caller: Caller, _: tools.Who, __: Progress) -> dict[str, Any]:
        agents = await self.room.agents()
        agents.sort(key=lambda agent: agent.last_heartbeat, reverse=True)
        return shown.people(caller.agent, agents, MAX_AGENTS)

    async def _receipt(self, caller: Caller, given: tools.ReceiptCall, _: Progress) -> dict[str, Any]:
        found = await self.room.receipt(given.id)
        self._must_concern(caller, found.message)
        self._named(caller, found.message)
        told = shown.receipt(found, await self.room.why(found.message))
        if caller.agent == found.message.from_agent and people.is_question(found.message):
            told |= {"question": await self.people.told_of(found.id)}
        return told

    # Waiting, and leaving

    async def _with_progress(self, waiting: Coroutine[Any, Any, T], progress: Progress, total_s: float, text: str) -> T:
        """Wait, telling the caller now and then that we do. Cancelled, what came for it at that moment goes back."""
        job = asyncio.ensure_future(waiting)
        passed_s = 0.0
        try:
            while True:
                done, _ = await asyncio.wait({job}, timeout=PROGRESS_S)
                if done:
                    return job.result()
                passed_s += PROGRESS_S
                await progress(min(passed_s, total_s), total_s, text)
        except BaseException:
            job.cancel()
            self.afterwards(job, self._return_received)
            raise

    def _return_received(self, result: Any) -> None:
        if isinstance(result, aio.Received) and result.settled is None:
            self.give_back([result.ticket])
        elif isinstance(result, aio.HeldTask):
            self.board.give_back(result.id, result.agent)

    def afterwards(self, job: asyncio.Future[T], undo: Callable[[T], None]) -> None:
        """The job's caller has left: when the job is done, undo its result."""

        async def see() -> None:
            with suppress(asyncio.CancelledError, PostroomError):
                undo(await job)

        task = asyncio.ensure_future(see())
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    def give_back(self, tickets: list[Ticket]) -> None:
        """These were shown to no one: they are ready again, and the delivery does not count."""
        if tickets:
            self.room.post(lambda room: [room.gateway.settle(ticket, "returned", detail=UNSEEN) for ticket in tickets])


def tickets_of(agent: str, messages: list[Message]) -> list[Ticket]:
    """The tickets of messages that were claimed for an agent."""
    return [Ticket(message.id, message.token, agent) for message in messages]


def not_answered(error: AskFailed) -> ToolFailed:
    """What the asker is told of a question that ended without an answer."""
    gap = "\n" if error.quotes_others else " "  # nothing stands on the last line of a fence but its mark
    return ToolFailed(f"{shown.error(error)}{gap}(question {error.id})")


def enough_of(given: tools.Ask) -> int | str:
    """How many answers the asker of several agents waits for."""
    return int(given.enough) if given.enough.isdecimal() else given.enough


def payload_of(given: tools.SendCall | tools.Ask | tools.Reply) -> dict[str, Any]:
    """The content of a message: its text, with the fields of `data` beside it. Raises InvalidMessage; nothing is lost."""
    if given.body is UNSET and given.data is UNSET:
        raise InvalidMessage("body", "say something, here or in data")
    data: dict[str, Any] = {} if given.data is UNSET else dict(given.data)
    if given.body is UNSET or (given.body == "" and data):
        return data
    if data.get("text", given.body) != given.body:
        raise InvalidMessage("data.text", "is where body is kept: leave one of the two out")
    return {"text": given.body, **data}


def before_sending(room: Room, caller: Caller, to: str | None, *, new: bool | None) -> tuple[bool, Message | None]:
    """Whether the recipient was ever here, and the message's cause. Raises when it may not be sent.

    `new` allows a recipient that was never seen here; None where there is no such choice, as for a question.
    """
    known = to is None or to == caller.agent or presence.is_known(room.gateway, to)
    if not known and not new and (new is None or not presence.is_addressee(room.gateway, str(to))):
        if_new = NEW_TO_SEND if new is not None else NEW_TO_ASK
        raise UnknownMessage(never_seen(str(to), presence.addressees(room.gateway), if_new))
    if to is not None and room.config.pair_rate_per_s is None:
        SenderLimit(room.store, PAIR_RATE_PER_S, PAIR_BURST, room.clock).take_pair(caller.agent, to)
    return known, presence.held_cause(room.gateway, caller.agent, to)


def _claim_now(
    room: Room, agent: str, limit: int, channels: tuple[str, ...] | None
) -> tuple[list[Message], list[Message]]:
    """The agent's earlier claims, their leases extended, and its new ones; both the oldest first.

    A claim of this process is an answer that an `ask` of the same agent hands over at this moment.
    """
    held = [each for each in presence.held_by(room.gateway, agent)[::-1] if each.owner != room.gateway.process]
    presence.keep(room.gateway, held)
    want = Want(agent=agent, lease_s=AGENT_LEASE_S, channels=channels, limit=limit)
    return held, [delivery.message for delivery in room.gateway.claim(want).deliveries]


def _noting(ids: list[str], agent: str, event: str, detail: str) -> Callable[[Room], None]:
    """Write an event into the ledgers of messages: once for each door, and that it was shown once for all."""

    def note(room: Room) -> None:
        for id in ids:
            message = room.store.get(id)
            ledger = () if message is None else message.ledger
            noted = any(entry.event == event and (event == "shown" or entry.detail == detail) for entry in ledger)
            if message is not None and not noted:
                room.store.note(id, event, agent, detail)

    return note
