"""Questions to people: with options, a deadline and a default, answered once, by a person, while no process waits.

A question is an ordinary message of the type "question.person"; its time to live is the deadline. Beside it stands the cell
"question/<id>", and that is the truth about its answer, as a task's cell is about a task:

    {"answer": None}          later {"answer": {"said": "yes", "by": "mia", "how": "token", "time_ms": …, …}}

The answer is decided by compare-and-set, in one step with an ordinary answer to the asker (`Store.put_with_cell`): of two
that come together one counts, and a process that is killed in between has done both or nothing. What other programs do
with the message (claim it, ack it, let it die) decides nothing.

An answer counts where a person's token has signed it (`tokens.sign`): the question as it was asked, what was said, by
whom, when. So a program that can write in the room, but has no such token, forges none: what it writes into the cell is
passed over, and the person's answer takes its place. In a room without tokens nothing can be proved, and an answer counts
that was given at a terminal or on the page. docs/people.md tells what that is worth.

The default is decided the same way, after the deadline, by whichever process looks first. It is no person's word, and says
so: its `how` is "deadline".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from postroom.core.clock import from_iso, iso
from postroom.core.config import prepare_types
from postroom.core.message import Draft, Message, check_name
from postroom.core.states import WITHDRAWABLE, State
from postroom.core.untrusted import quoted
from postroom.errors import (
    AskTimeout,
    Fault,
    IdentityRefused,
    InvalidMessage,
    NotAnswered,
    PostroomError,
    QuestionClosed,
    RoomUnreachable,
    UnknownMessage,
    Withdrawn,
    raise_faults,
)
from postroom.stores.contract import Cell, Query, Want, topic_cells, topic_message

from . import tokens
from .gateway import Deadline, Gateway, Pause, Steps
from .received import NO_CAUSE, QUESTION, Envelope, check_seconds, check_timeout, follow

#: Cells of questions begin so.
CELLS: Final = "question/"
#: Where questions lie that any person may answer.
CHANNEL: Final = "people"
#: The sender of answers that are the default.
NOBODY: Final = "postroom"
#: In place of a person's name, at doors: any person of the room.
ANYBODY: Final = "*"
MAX_OPTIONS: Final = 20
MAX_ANSWER_CHARS: Final = 10_000
#: Where a person may answer in a room without tokens.
PLACES: Final = ("terminal", "page")
TOKEN: Final = "token"  # noqa: S105  a word
DEADLINE: Final = "deadline"
#: A claim that only ends a message.
_MOMENT_S: Final = 5.0
_LOOK_S: Final = 0.02
_AT_ONCE: Final = 500
_TRIES: Final = 100


class PersonAnswer(NamedTuple):
    """What was answered, by whom, how and when."""

    said: str  # one of the options, or free text where the question has none
    by: str  # the person; "postroom" for a default
    how: str  # "token", "terminal", "page", or "deadline" for a default
    time: str  # ISO 8601 text

    @property
    def is_default(self) -> bool:
        """Whether no person answered in time, and this is what the asker had named for that case."""
        return self.how == DEADLINE

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**self._asdict(), "is_default": self.is_default}


class PersonQuestion(NamedTuple):
    """A question to a person, and how it stands. Times are ISO 8601 text."""

    id: str  # its message's
    asker: str  # the agent that asks
    person: str | None  # who is asked; None: any person
    text: str  # what is asked
    options: tuple[str, ...]  # what may be answered; empty: free text
    default: str | None  # what counts after the deadline; None: then there is no answer
    data: dict[str, Any]  # what the asker gave beside the text
    asked: str  # when it was asked
    deadline: str | None  # until when it can be answered; None: waits until it is answered or withdrawn
    state: str  # open, answered, default, expired (nobody answered, and it has no default) or withdrawn
    answer: PersonAnswer | None  # what was answered, or the default

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**self._asdict(), "answer": None if self.answer is None else self.answer.to_dict()}


class _Wording(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The payload of a question."""

    text: str
    options: list[str] = []
    default: str | None = None
    data: dict[str, Any] = {}


class _Decision(msgspec.Struct, forbid_unknown_fields=True):
    """What a cell keeps of an answer. `token` is the id of the token that signed it."""

    said: str
    by: str
    how: str
    time_ms: int
    token: str = ""
    signature: str = ""

    def answer(self) -> PersonAnswer:
        return PersonAnswer(self.said, self.by, self.how, iso(self.time_ms))


class People:
    """Questions to people: asking, answering, looking. `room.people`.

    A question waits without a process: it may be asked by one, answered in another and its answer read in a third.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def ask(
        self,
        person: str | None,
        text: str,
        asker: str,
        *,
        options: Iterable[str] = (),
        default: str | None = None,
        timeout_s: float | None = None,
        data: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        cause: Envelope | Message | None = None,
    ) -> str:
        """Ask a person (None: any person of the room), and return the question's id without waiting.

        It is open for `timeout_s` (None: until it is answered or withdrawn by `Agent.withdraw`). After that the `default`
        is its answer, where it has one, which must be one of the `options`, where it has any. The answer also comes to the
        asker as mail. A repeat under one key returns the first id.
        Raises InvalidMessage with everything that is wrong, and IdentityRefused where the room has tokens and that
        person has none, so that nobody could ever answer: nothing was stored.
        """
        wording = {"text": text, "options": [*options], "default": default, "data": data or {}}
        return ask(self._gateway, asker, person, _read(wording), timeout_s, key=idempotency_key, cause=cause)

    def look(self, id: str) -> PersonQuestion:
        """A question and how it stands. One whose deadline has passed gets its default now.

        UnknownMessage when it is not kept here; InvalidMessage when the message is no question to a person.
        """
        return look(self._gateway, id)

    def wait(self, id: str, timeout_s: float | None = None, *, _take: bool = True) -> PersonAnswer:
        """The answer to a question, or its default, waiting for it. It is taken out of the asker's mail.

        Raises AskTimeout when there is none within `timeout_s`: the question stays open. NotAnswered when the deadline
        has passed without a default, Withdrawn when it was taken back.
        """
        check_timeout(timeout_s)
        return self._gateway.finish(waiting(self._gateway, id, timeout_s, take=_take))

    def open(self, person: str | None = None) -> list[PersonQuestion]:
        """The questions that can be answered, oldest first; with a name, those that this person may answer."""
        return open_questions(self._gateway, person)

    def answer(self, id: str, said: str, *, token: str) -> PersonAnswer:
        """Answer a question, by a person's token. The answer is kept, and with the asker, when this returns.

        Raises IdentityRefused for a token that is not the person's, InvalidMessage for an answer that is none of the
        options, QuestionClosed when it was answered, withdrawn or is over: nothing was changed. A repeat of the same
        person's same answer returns the first one.
        """
        return answer(self._gateway, id, said, Answerer(token, "library"))


class Answerer(NamedTuple):
    """Who answers: by a token (None in rooms without), at which door; by name and place where names are not proved."""

    token: str | None
    door: str
    name: str | None = None
    place: str | None = None


# Asking


def ask(
    gateway: Gateway,
    asker: str,
    person: str | None,
    wording: _Wording,
    timeout_s: float | None,
    *,
    key: str | None = None,
    cause: Envelope | Message | None = None,
) -> str:
    """See `People.ask`."""
    _check(person, wording, timeout_s)
    _check_answerable(gateway, person)
    config = gateway.config
    chain_id, hop_count, trace = NO_CAUSE if cause is None else follow(cause, config.max_hops)
    draft = Draft(
        asker,
        {name: value for name, value in msgspec.structs.asdict(wording).items() if value not in (None, [], {})},
        person,
        channel=CHANNEL,
        type=QUESTION,
        ttl_s=timeout_s,
        idempotency_key=key,
        chain_id=chain_id,
        hop_count=hop_count,
        trace=trace,
        max_deliveries=config.max_deliveries,
    )
    (id,) = gateway.put([draft])  # here and now, also in a room under asyncio: its cell follows
    _cell_of(gateway, id)
    return id


def wording_of_call(text: str, options: Iterable[str], data: dict[str, Any]) -> _Wording:
    """The wording of a question without a default, for `ask`."""
    return _read({"text": text, "options": [*options], "default": None, "data": data})


def _read(wording: dict[str, Any]) -> _Wording:
    """The wording of a question, with every field of its type; InvalidMessage names the one that is not."""
    try:
        return msgspec.convert(wording, _Wording)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise InvalidMessage(place.strip("`").removeprefix("$.") or "text", problem) from None


def _check(person: str | None, wording: _Wording, timeout_s: float | None) -> None:
    faults: list[Fault] = []
    if person is not None:
        check_name("person", person, faults)
    if not wording.text.strip():
        faults.append(Fault("text", "must say what is asked"))
    _check_options(wording.options, faults)
    if wording.default is not None:
        _check_default(wording, faults)
        if timeout_s is None:
            faults.append(Fault("timeout_s", "must be given with a default, which counts when that time is over"))
    raise_faults(faults)
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s, zero=False)


def _check_options(options: Sequence[str], faults: list[Fault]) -> None:
    for option in options:
        check_name("options", option, faults)
    if len(set(options)) < len(options):
        faults.append(Fault("options", "must differ from each other"))
    if len(options) > MAX_OPTIONS:
        faults.append(Fault("options", f"must be at most {MAX_OPTIONS}, not {len(options)}"))


def _check_default(wording: _Wording, faults: list[Fault]) -> None:
    if not wording.default:
        faults.append(Fault("default", "must not be empty"))
    elif wording.options and wording.default not in wording.options:
        faults.append(Fault("default", f"must be one of the options ({', '.join(wording.options)})"))


def _check_answerable(gateway: Gateway, person: str | None) -> None:
    """In a room with tokens, a question that no person's token could answer is not asked."""
    gateway.check_open()
    if not tokens.has_tokens(gateway):
        return
    if person is None and not tokens.has_person(gateway):
        raise IdentityRefused(f"no person has a token in this room, so nobody could answer; {tokens.RECOVERS}")
    if person is not None and not tokens.is_persons(gateway, person):
        raise IdentityRefused(
            f"{quoted(person)} has no person's token in this room, so the question could not be answered; "
            f"`postroom agent add {quoted(person)} --human` makes one"
        )


def _cell_of(gateway: Gateway, id: str) -> Cell:
    """The question's cell, made if it is not there: its asker may have been killed before it was."""
    name = CELLS + id
    for _ in range(_TRIES):
        cell = gateway.open_store.cell_read(name)
        if cell is not None:
            return cell
        gateway.store.cell_write(name, {"answer": None}, expect=0)
    raise PostroomError(f"the cell of question {id} could not be made; try again")


# Looking


def look(gateway: Gateway, id: str) -> PersonQuestion:
    """See `People.look`."""
    message = gateway.open_store.get(id)
    if message is None:
        raise UnknownMessage(f"this room has no message {id}")
    return _judged(gateway, message, gateway.store.cell_read(CELLS + id))


def is_question(message: Message) -> bool:
    """Whether a message asks a person."""
    return message.type == QUESTION and _wording_of(message) is not None


def _judged(gateway: Gateway, message: Message, cell: Cell | None, *, write: bool = True) -> PersonQuestion:
    """How a question stands. A default that is due is decided now, unless nothing may be written: it counts all the same."""
    wording = _wording_of(message)
    if wording is None or message.type != QUESTION:
        raise InvalidMessage("id", f"message {message.id} is no question to a person")
    found = _decision_in(cell)
    if found is not None and _counts(gateway, message, wording, found):
        return _shown(message, wording, "default" if found.how == DEADLINE else "answered", found.answer())
    if message.exact_state is State.WITHDRAWN:
        return _shown(message, wording, "withdrawn")
    if not _is_over(gateway, message):
        return _shown(message, wording, "open")
    if wording.default is None:
        return _shown(message, wording, "expired")
    made = _Decision(wording.default, NOBODY, DEADLINE, gateway.clock.wall_ms())
    late = f"nobody answered in time: {message.to_agent or 'any person'} was asked, and this is the default"
    if not write:
        return _shown(message, wording, "default", made.answer())
    try:
        return _decide(gateway, message, made, {"text": made.said, "default": True, "why": late})
    except RoomUnreachable:  # a room that can only be looked at: it counts all the same, and is kept later
        return _shown(message, wording, "default", made.answer())


def _wording_of(message: Message) -> _Wording | None:
    try:
        return msgspec.convert(message.payload, _Wording)
    except msgspec.ValidationError:
        return None


def _shown(message: Message, wording: _Wording, state: str, given: PersonAnswer | None = None) -> PersonQuestion:
    return PersonQuestion(
        message.id,
        message.from_agent,
        message.to_agent,
        wording.text,
        tuple(wording.options),
        wording.default,
        wording.data,
        message.timestamp,
        message.expires_at,
        state,
        given,
    )


def _is_over(gateway: Gateway, message: Message) -> bool:
    """Whether the deadline has passed: by the room's time, and by the wall clock where a receiver has the message."""
    if message.exact_state in WITHDRAWABLE or message.exact_state is State.EXPIRED:
        return message.exact_state is State.EXPIRED
    return message.expires_at_ms is not None and gateway.clock.wall_ms() >= message.expires_at_ms


def open_questions(gateway: Gateway, person: str | None = None, *, write: bool = True) -> list[PersonQuestion]:
    """See `People.open`. Those that are over get their defaults, unless nothing is to be written (`write` False)."""
    cells = {cell.name.removeprefix(CELLS): cell for cell in gateway.open_store.cell_scan(CELLS)}
    found = []
    for message in _messages_of(gateway, list(cells)):
        cell = cells[message.id]
        if cell.value["answer"] is not None and _is_over(gateway, message):
            continue  # whatever stands there: nobody can answer it any more
        if person is None or message.to_agent in (None, person):
            with suppress(InvalidMessage):
                found.append(_judged(gateway, message, cell, write=write))
    return sorted((each for each in found if each.state == "open"), key=lambda each: each.id)


def _messages_of(gateway: Gateway, ids: Sequence[str]) -> Iterable[Message]:
    for start in range(0, len(ids), _AT_ONCE):
        yield from gateway.store.find_all(Query(ids=tuple(ids[start : start + _AT_ONCE]), limit=_AT_ONCE))


def tend(gateway: Gateway) -> float | None:
    """A chore: give questions whose deadline has passed their defaults, and forget those whose messages are kept no more.

    Returns in how many seconds the next deadline passes; None where none is known.
    """
    cells = gateway.open_store.cell_scan(CELLS)
    if not cells:
        return None
    kept = {message.id: message for message in _messages_of(gateway, [c.name.removeprefix(CELLS) for c in cells])}
    now_ms, left_ms = gateway.clock.wall_ms(), []
    for cell in cells:
        message = kept.get(cell.name.removeprefix(CELLS))
        if message is None:
            if gateway.store.get(cell.name.removeprefix(CELLS)) is None:  # not one that was asked a moment ago
                gateway.store.cell_write(cell.name, None, expect=cell.version)
        elif cell.value["answer"] is None and message.expires_at_ms is not None:
            with suppress(InvalidMessage):
                if _judged(gateway, message, cell).state == "open":
                    left_ms.append(max(0, message.expires_at_ms - now_ms))
    return min(left_ms) / 1000 if left_ms else None


# Waiting


def waiting(gateway: Gateway, id: str, timeout_s: float | None, *, take: bool = True) -> Steps[PersonAnswer]:
    """The steps to the answer; see `People.wait`. `take` False leaves it in the asker's mail."""
    deadline = Deadline(gateway.clock, timeout_s)
    with gateway.listen([topic_cells(CELLS), topic_message(id)]) as waiter:
        while True:
            question = look(gateway, id)
            if question.answer is not None:
                if take:
                    take_mail(gateway, id)
                return question.answer
            if question.state == "withdrawn":
                raise Withdrawn(f"question {id} was withdrawn by its asker", id)
            if question.state == "expired":
                raise NotAnswered(f"nobody answered question {id} in time, and it has no default", id)
            left_s = deadline.left_s()
            if left_s == 0:
                until = "" if question.deadline is None else f" until {question.deadline}"
                who = "nobody has" if question.person is None else f"{quoted(question.person)} has not"
                raise AskTimeout(f"{who} answered question {id} yet; it stays open{until}", id)
            yield Pause(waiter, _sooner(left_s, _left_s(gateway, question)))


def _left_s(gateway: Gateway, question: PersonQuestion) -> float | None:
    """In how many seconds to look whether the deadline has passed, which the room's own time decides."""
    if question.deadline is None:
        return None
    return max(_LOOK_S, (from_iso(question.deadline) - gateway.clock.wall_ms()) / 1000)


def _sooner(one_s: float | None, other_s: float | None) -> float | None:
    return min((each for each in (one_s, other_s) if each is not None), default=None)


def take_mail(gateway: Gateway, id: str) -> None:
    """The asker has its answer: it need not come as mail too. One that it has read already is left alone."""
    with suppress(PostroomError):
        found = gateway.store.find(Query(answer_to=id, limit=_AT_ONCE)).messages
        for each in found:
            if each.exact_state is State.READY and each.to_agent is not None:
                gateway.claim(Want(agent=each.to_agent, lease_s=_MOMENT_S, ids=(each.id,), settle=True))


# Answering


def answer(gateway: Gateway, id: str, said: str, who: Answerer) -> PersonAnswer:
    """See `People.answer`."""
    message = gateway.open_store.get(id)
    if message is None:
        raise UnknownMessage(f"this room has no message {id}")
    wording = _wording_of(message)
    if wording is None or message.type != QUESTION:
        raise InvalidMessage("id", f"message {id} is no question to a person")
    by, credential = _proved(gateway, message, who)
    said = _checked(wording, said)
    payload = {"text": said}
    rules = gateway.redaction.learn(gateway.clock.steady_ns())
    if rules is not None:  # before it is signed: what is signed is what is kept
        payload = rules.redacted(payload)
        said = str(payload["text"])
    made = _Decision(said, by, str(TOKEN if credential else who.place), gateway.clock.wall_ms())
    question = _judged(gateway, message, _cell_of(gateway, id))
    if question.state == "open":
        if credential is not None:
            made.token = credential.token_id
            made.signature = tokens.sign(gateway, str(who.token), _signed(message, made))
        question = _decide(gateway, message, made, payload)
    if question.answer is None or (question.answer.said, question.answer.by) != (said, by):
        raise QuestionClosed(f"question {id} {_why_closed(question)}; nothing was changed", id)
    return question.answer


def _proved(gateway: Gateway, message: Message, who: Answerer) -> tuple[str, tokens.Credential | None]:
    """The name of the person that answers, and its proof; IdentityRefused, which is recorded, for anything else."""
    credential = tokens.prove(gateway, who.name, who.token, who.door)
    if credential is None:
        if who.place not in PLACES:
            raise IdentityRefused(
                "in a room without tokens a person answers at a terminal (`postroom reply`) or on the page "
                "(`postroom web`); in one with tokens, by a person's token"
            )
        return who.name or message.to_agent or "somebody", None
    if not credential.human:
        tokens.record_refusal(gateway, who.door, f"to answer for {message.to_agent or 'a person'}", credential.agent)
        raise IdentityRefused(
            f"{credential.agent} is an agent; the question is for a person (a token made with --human)"
        )
    if message.to_agent not in (None, credential.agent):
        tokens.record_refusal(gateway, who.door, f"to answer for {message.to_agent}", credential.agent)
        raise IdentityRefused(f"the question is for {quoted(str(message.to_agent))}, not for {credential.agent}")
    return credential.agent, credential


def _checked(wording: _Wording, said: str) -> str:
    if not said.strip():
        raise InvalidMessage("answer", "must not be empty")
    if len(said) > MAX_ANSWER_CHARS:
        raise InvalidMessage("answer", f"must be at most {MAX_ANSWER_CHARS} characters long, and is {len(said)}")
    if wording.options and said.strip() in wording.options:
        return said.strip()
    if wording.options and said not in wording.options:
        raise InvalidMessage("answer", f"must be one of {', '.join(map(quoted, wording.options))}, not {quoted(said)}")
    return said


def _why_closed(question: PersonQuestion) -> str:
    given = question.answer
    if given is not None and not given.is_default:
        return f"was answered already by {given.by} at {given.time}: {quoted(given.said)}"
    default = f"; its default counts: {quoted(given.said)}" if given is not None else ""
    if question.state == "withdrawn":
        return "was withdrawn by its asker"
    return f"was open until {question.deadline}{default}"


def _decide(gateway: Gateway, message: Message, made: _Decision, payload: dict[str, Any]) -> PersonQuestion:
    """Decide a question, unless it is decided already. Returns how it stands then."""
    wording = _wording_of(message)
    assert wording is not None
    for _ in range(_TRIES):
        cell = _cell_of(gateway, message.id)
        found = _decision_in(cell)
        if found is not None and _counts(gateway, message, wording, found):
            break
        value = {**cell.value, "answer": msgspec.to_builtins(made)}
        if gateway.put_with_cell([_answer_draft(gateway, message, made, payload)], cell.name, value, cell.version):
            found = made
            _end(gateway, message, made)
            break
    else:
        raise PostroomError(f"too many processes are answering question {message.id}; try again")
    return _shown(message, wording, "default" if found.how == DEADLINE else "answered", found.answer())


def _answer_draft(gateway: Gateway, message: Message, made: _Decision, payload: dict[str, Any]) -> Draft:
    is_default = made.how == DEADLINE
    return Draft(
        made.by,
        payload,
        message.from_agent,
        channel=message.channel,
        type=f"{QUESTION}.default" if is_default else f"{QUESTION}.response",
        priority=message.priority,
        correlation_id=message.correlation_id or message.id,
        chain_id=message.chain_id or message.id,
        hop_count=min(message.hop_count + 1, gateway.config.max_hops),  # a person's answer is never a hop too many
        lane="agent" if is_default else "human",
        trace=message.trace,
        max_deliveries=gateway.config.max_deliveries,
        answer_to=message.id,
    )


def _end(gateway: Gateway, message: Message, made: _Decision) -> None:
    """The question's message has done its work. Should this fail, it ends with its time to live."""
    with suppress(PostroomError):
        if made.how != DEADLINE:
            gateway.store.note(message.id, "by_hand", made.by, f"answered: {made.said[:200]}")
        want = Want(
            agent=message.to_agent or made.by,
            lease_s=_MOMENT_S,
            channels=None if message.to_agent is not None else (message.channel,),
            ids=(message.id,),
            settle=True,
        )
        gateway.claim(want)


# Which answers count


def _decision_in(cell: Cell | None) -> _Decision | None:
    """What stands in a cell; None also for what is no decision, which only a program that forges one writes."""
    try:
        return None if cell is None else msgspec.convert(cell.value["answer"], _Decision | None)
    except (msgspec.ValidationError, KeyError, TypeError):
        return None


def _counts(gateway: Gateway, message: Message, wording: _Wording, found: _Decision) -> bool:
    """Whether a decision is one: the default after the deadline, or what a person has said."""
    if found.how == DEADLINE:
        return found.said == wording.default and found.by == NOBODY and _is_over(gateway, message)
    if wording.options and found.said not in wording.options:
        return False
    cells = gateway.store.cell_scan(tokens.TOKEN_CELLS)
    if not cells:
        return found.how in (TOKEN, *PLACES)
    if found.how != TOKEN:  # given before there was anything to prove it by?
        return found.how in PLACES and _was_stored_before(gateway, message, min(c.value["made_ms"] for c in cells))
    signer = tokens.signer_of(gateway, found.token, found.by, _signed(message, found), found.signature)
    return (
        signer is not None
        and (message.to_agent is None or message.to_agent in signer.names)
        and (signer.revoked_ms is None or _was_stored_before(gateway, message, signer.revoked_ms))
    )


def _was_stored_before(gateway: Gateway, message: Message, wall_ms: int) -> bool:
    """Whether an answer of a person's lane was stored before that moment, as the store has dated it."""
    answers = gateway.store.find(Query(answer_to=message.id, limit=_AT_ONCE)).messages
    return any(each.lane == "human" and each.timestamp_ms < wall_ms for each in answers)


def _signed(message: Message, made: _Decision) -> bytes:
    """What a person's token signs: this answer to this question, as it was worded, to this asker."""
    asked = msgspec.json.encode([message.from_agent, message.payload], order="deterministic")
    parts = ["postroom answer 1", message.id, sha256(asked).hexdigest(), made.said, made.by, made.time_ms, made.token]
    return msgspec.json.encode(parts)


prepare_types(_Wording, _Decision)
