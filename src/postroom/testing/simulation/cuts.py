"""Steps that were cut: each has happened whole or not at all; and what a power cut may take.

A step whose process died in it has not returned. It may have happened, and it may still happen: a commit that is whole
in SQLite's log, and that nobody has seen yet, is found there when all others have died, too. So before every step the
room is looked at, until the cut step is seen or another step was written in its place. A step that raised because the
disk failed has changed nothing.

After a power cut, what is left is a prefix of what was done: some moment of the past. With full sync, it holds every
step that waits for the disk and that had returned. The judge goes on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from postroom.core.message import Draft, Message, MessageWithLedger
from postroom.core.states import FINISHED, PUBLIC_NAME, State
from postroom.errors import RoomUnreachable
from postroom.stores.contract import ANY, Claimed, Delivery, Query, Settled, Store, Ticket, Want

from .broken import Broken
from .judges import ScheduleJudge
from .process import Around, Process

_ALL: Final = 10_000
#: Steps that wait for the disk with full sync; a claim does not, unless it settles what it takes.
_SYNCED: Final = ("put", "settle", "cell_write", "put_with_cell")
#: Steps on several messages that return those for which they were done, and the ledger's words for them.
_OF_SEVERAL: Final = {"requeue": "requeued", "withdraw": "withdrawn"}
#: Steps that no ledger tells of: the list of subscribers does.
_SUBSCRIBING: Final = ("subscribe", "unsubscribe")


class StoreStep(NamedTuple):
    """A call of the store, and the room's time in which it was made."""

    process: Process
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    room_ms: int

    def drafts(self) -> Sequence[Draft]:
        """What it puts."""
        found: Sequence[Draft] = self.args[0] if self.name in ("put", "put_with_cell") else self.kwargs.get("puts", ())
        return found

    def want(self) -> Want | None:
        """What it claims."""
        if self.name == "settle":
            return self.kwargs.get("claim_next")
        found: Want | None = self.args[-1] if self.name in ("claim", "claim_answer") else None
        return found


class Effect(NamedTuple):
    """What a step did, as it can be seen later."""

    name: str
    synced: bool
    #: The entries of ledgers: a message, the word, and how many of these there are since.
    entries: list[tuple[str, str, int]]
    #: The versions of cells; 0 where one was deleted.
    cells: list[tuple[str, int]]


class CutSteps:
    """Knows which steps were cut, and what the others did."""

    def __init__(self, world: Around, judge: ScheduleJudge, *, full_sync: bool) -> None:
        self._world = world
        self._judge = judge
        self._full_sync = full_sync
        #: Those of which it is not known yet whether they happened.
        self.open: list[StoreStep] = []
        self._effects: list[Effect] = []
        self._entries: Counter[tuple[str, str]] = Counter()
        self._base: dict[str, int] = {}  # the versions of cells before the first of these effects

    # Steps that were not cut

    def done(self, step: StoreStep, result: Any, *, wrote: bool) -> None:
        """A step has returned. If it wrote something, cut steps that were not seen until now never happen."""
        if wrote:
            self.open.clear()
        if step.name not in (
            "put",
            "claim",
            "claim_answer",
            "settle",
            "cell_write",
            "put_with_cell",
            "requeue",
            "withdraw",
        ):
            return
        entries, cells = list(self._entries_of(step, result)), []
        if step.name == "cell_write" and result is not None:
            name, value = step.args[:2]
            cells.append((name, 0 if value is None else result))
        if step.name == "put_with_cell" and result[1] is not None:
            cells.append((step.args[1], result[1]))
        if entries or cells:
            want = step.want()
            synced = self._full_sync and (step.name in _SYNCED or (want is not None and want.settle))
            self._effects.append(Effect(step.name, synced, entries, cells))

    def _entries_of(self, step: StoreStep, result: Any) -> Iterator[tuple[str, str, int]]:
        if step.name == "put":
            yield from (self._entry(id, "stored") for id in result if id not in self._judge.seen)
        elif step.name == "put_with_cell":
            yield from (self._entry(id, "stored") for id in result[0] or ())
        elif step.name == "claim":
            yield from (self._entry(each.message.id, "claimed") for each in result.deliveries)
        elif step.name == "claim_answer" and result is not None:
            yield self._entry(result.message.id, "claimed")
        elif step.name in _OF_SEVERAL:
            yield from (self._entry(id, _OF_SEVERAL[step.name]) for id in result)
        elif step.name == "settle":
            if result.held:
                yield self._entry(step.args[0].id, _word(step.args[1], result.state))
            yield from (self._entry(id, "stored") for id in result.ids if id not in self._judge.seen)
            deliveries = () if result.claimed is None else result.claimed.deliveries
            yield from (self._entry(each.message.id, "claimed") for each in deliveries)

    def _entry(self, id: str, word: str) -> tuple[str, str, int]:
        self._entries[id, word] += 1
        return id, word, self._entries[id, word]

    # Steps that failed or were cut

    def failed(self, step: StoreStep, error: RoomUnreachable, store: Store) -> None:
        """A step raised, because the disk failed: nothing of it is there. After a failed sync, it says what may be."""
        look = _Look(store, self._judge)
        if self._happened(step, look):
            if "it was done" not in str(error):
                raise Broken(f"{step.process!r} was told that its {step.name} failed, and it was done")
            self._tell_judge(step, look)  # at once: its process lives, and what it holds counts from now on
        elif "may be after a crash" in str(error):
            self.open.append(step)

    def settle(self, store: Store) -> None:
        """Somebody looks at the room: what is seen of a cut step has happened, all of it."""
        look = _Look(store, self._judge)
        if any(step.name in _SUBSCRIBING for step in self.open):
            self._judge.subscribers = _subscribers(store)
        for step in tuple(self.open):
            if self._happened(step, look):
                self.open.remove(step)
                self._world.tell(step.process, f"had done its {step.name}, all of it, before it died")
                self._world.happened("died inside a step, which was done")
                self._tell_judge(step, look)
                look = _Look(store, self._judge)
        strangers = [] if self.open else look.strangers
        if strangers:
            raise Broken(f"there are {len(strangers)} messages that nobody sent, the first with {strangers[0].payload}")

    def _happened(self, step: StoreStep, look: _Look) -> bool:
        """Whether a step is seen to have happened. Raises Broken where only a part of it has."""
        if step.name == "cell_write":
            name, value = step.args[:2]
            there, known = look.version(name), self._judge.version(name)
            return there > known if value is not None else there == 0 and known > 0
        parts: list[bool] = []
        if step.name == "requeue":
            parts += [self._is_back(id, look) for id in step.args[0]]
        if step.name == "withdraw":
            return bool(self._withdrawn(step, look))
        new = [draft for draft in step.drafts() if not self._judge.is_repeat(draft)]
        parts += [bool(look.stored(draft)) for draft in new if not draft.publish]
        if step.name == "settle":
            parts.append(self._is_settled(step, look))
        if step.name == "put_with_cell":
            parts.append(look.version(step.args[1]) > self._judge.version(step.args[1]))
        if parts and any(parts) != all(parts):
            raise Broken(f"{step.process!r} died in its {step.name}, and a part of it was done")
        taken = step.want() is not None and bool(self._taken(step, look))
        if parts and taken and not parts[0] and self._judge.counts(step.args[0]):
            raise Broken(
                f"{step.process!r} died in its {step.name}, which claimed what comes next, and settled nothing"
            )
        published = any(look.stored(draft) for draft in new if draft.publish)
        return taken or published or any(parts)

    def _is_back(self, id: str, look: _Look) -> bool:
        return look.count(id, "requeued") > self._entries[id, "requeued"]

    def _withdrawn(self, step: StoreStep, look: _Look) -> list[str]:
        """What a withdrawal that was cut had taken back."""
        known = self._judge.seen
        taken = [id for id in step.args[0] if id in known and known[id].final is not State.WITHDRAWN]
        return [id for id in taken if look.get(id).exact_state is State.WITHDRAWN]

    def _is_settled(self, step: StoreStep, look: _Look) -> bool:
        ticket, outcome = step.args[:2]
        message = look.get(ticket.id)
        words = ("retried", "dead") if outcome == "retry" else (outcome,)
        by_us = [entry.event for entry in message.ledger if entry.event in words and entry.agent == ticket.agent]
        return len(by_us) > sum(self._entries[ticket.id, word] for word in words)

    def _taken(self, step: StoreStep, look: _Look) -> list[MessageWithLedger]:
        """What a claim that was cut had taken."""
        want = step.want()
        assert want is not None
        taken = []
        for id in self._judge.seen:
            message = look.get(id)
            claims = [entry.agent for entry in message.ledger if entry.event == "claimed"]
            if len(claims) > self._entries[id, "claimed"] and claims[-1] == want.agent:
                taken.append(message)
        return taken

    def _tell_judge(self, step: StoreStep, look: _Look) -> None:
        """Let the judge know of a step that was cut and has happened, as if it had returned then."""
        judge, want = self._judge, step.want()
        ids = [message.id for draft in step.drafts() for message in look.stored(draft)]
        deliveries = [] if want is None else [_delivery(message, want) for message in self._taken(step, look)]
        with judge.back_at(step.room_ms):
            if step.name == "put":
                self.done(step, ids, wrote=False)
                judge.put(step.process, step.drafts(), ids, look.state)
            elif step.name == "withdraw":
                withdrawn = self._withdrawn(step, look)
                self.done(step, withdrawn, wrote=False)
                judge.withdrawn(step.process, withdrawn)
            elif step.name == "cell_write":
                name, value, expect = (*step.args, ANY)[:3]
                version = look.version(name)
                self.done(step, version, wrote=False)
                judge.cell_written(step.process, name, value, expect, version)
            elif step.name == "put_with_cell":
                _, name, value, expect = step.args
                version = look.version(name)
                self.done(step, (ids, version), wrote=False)
                judge.put(step.process, step.drafts(), ids)
                judge.cell_written(step.process, name, value, expect, version)
            elif step.name == "settle":
                ticket, outcome = step.args[:2]
                held = self._is_settled(step, look)
                state = _state_of(outcome, look.get(ticket.id)) if held else None
                settled = Settled(held, state, ids, Claimed(deliveries, None))
                self.done(step, settled, wrote=False)
                judge.settled(step.process, ticket, outcome, step.drafts(), settled)
            elif step.name == "requeue":
                self.done(step, step.args[0], wrote=False)
                judge.requeued(step.process, step.args[0])
            else:
                self.done(step._replace(name="claim"), Claimed(deliveries, None), wrote=False)
            if want is not None:
                judge.claimed(step.process, want, deliveries)

    # Power cuts

    def after_power_cut(self, store: Store) -> None:
        """All processes are dead, and this is what the disk has kept."""
        # that a cell is gone does not tell whether it was deleted, or never made
        deletes = [each for each in self.open if each.name == "cell_write" and each.args[1] is None]
        self.open = [each for each in self.open if each not in deletes]
        self.settle(store)
        self.open.clear()
        look = _Look(store, self._judge)
        kept = self._kept_until(look, {each.args[0] for each in deletes})
        if kept < len(self._effects):
            self._world.happened("a power cut took what had returned")
        self._world.tell(None, f"the power cut took the last {len(self._effects) - kept} of {len(self._effects)} steps")
        self._effects.clear()
        self._entries.clear()
        for id in self._judge.seen:
            if look.has(id):
                self._entries.update((id, entry.event) for entry in look.get(id).ledger)
        cells = {cell.name: (cell.version, cell.value) for cell in store.cell_scan("")}
        self._base = {name: version for name, (version, _) in cells.items()}
        self._judge.subscribers = _subscribers(store)
        self._judge.goes_on_from({id: look.get(id) for id in self._judge.seen if look.has(id)}, cells)

    def _kept_until(self, look: _Look, deleted: set[str]) -> int:
        """How many steps were kept. Raises Broken where that is no prefix, or something synced is lost.

        These cells may be deleted besides, after the last of the steps.
        """
        there = [[look.count(id, word) >= number for id, word, number in each.entries] for each in self._effects]
        for effect, seen in zip(self._effects, there, strict=True):
            if seen and any(seen) != all(seen):
                raise Broken(f"a power cut left a part of one step ({effect.name})")
        least = max((place for place, seen in enumerate(there, 1) if seen and seen[0]), default=0)
        most = next((place for place, seen in enumerate(there) if seen and not seen[0]), len(there))
        if least > most:
            raise Broken(f"a power cut left step {least}, and took step {most + 1}, which came before it")
        synced = max((place for place, each in enumerate(self._effects, 1) if each.synced), default=0)
        fitting = [place for place in range(least, most + 1) if self._cells_fit(place, look, set())]
        if not fitting and most == len(there) and self._cells_fit(most, look, deleted):
            fitting = [most]
        if not fitting:
            raise Broken(f"a power cut left cells that are not as they were at any moment ({least} to {most})")
        if synced > fitting[-1]:
            raise Broken(
                f"a power cut took step {synced} ({self._effects[synced - 1].name}), which waited for the disk"
            )
        return fitting[-1]

    def _cells_fit(self, place: int, look: _Look, deleted: set[str]) -> bool:
        """Whether the cells are as they were after so many steps, but for those that were deleted then."""
        names = {name for each in self._effects for name, _ in each.cells if name not in deleted or look.version(name)}
        then = {name: version for each in self._effects[:place] for name, version in each.cells}
        return all(look.version(name) == then.get(name, self._base.get(name, 0)) for name in names)


class _Look:
    """The room as somebody sees it at one moment."""

    def __init__(self, store: Store, judge: ScheduleJudge) -> None:
        self._store = store
        self._messages: dict[str, MessageWithLedger | None] = {}
        #: Messages that the judge does not know.
        self.strangers = [each for each in _all_messages(store) if each.id not in judge.seen]

    def stored(self, draft: Draft) -> list[Message]:
        """The messages that a draft has become, and that the judge does not know yet."""
        return [each for each in self.strangers if _is_of(each, draft)]

    def has(self, id: str) -> bool:
        if id not in self._messages:
            self._messages[id] = self._store.get(id)
        return self._messages[id] is not None

    def get(self, id: str) -> MessageWithLedger:
        """A message that is there; one that is lost has an empty ledger."""
        found = self._messages[id] if self.has(id) else None
        return MessageWithLedger(id=id) if found is None else found

    def state(self, id: str) -> State:
        return self.get(id).exact_state

    def count(self, id: str, word: str) -> int:
        if word == "stored":
            return int(self.has(id))
        return sum(entry.event == word for entry in self.get(id).ledger)

    def version(self, name: str) -> int:
        cell = self._store.cell_read(name)
        return 0 if cell is None else cell.version


def _subscribers(store: Store) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for channel, agent, _ in store.subscriptions():
        found.setdefault(channel, set()).add(agent)
    return found


def _all_messages(store: Store) -> Iterable[Message]:
    return store.find(Query(limit=_ALL)).messages


def _is_of(message: Message, draft: Draft) -> bool:
    return (
        message.from_agent == draft.from_agent
        and message.channel == draft.channel
        and (draft.publish or message.to_agent == draft.to_agent)
        and message.answer_to == draft.answer_to
        and message.payload == draft.payload
        and (draft.correlation_id is None or message.correlation_id == draft.correlation_id)
    )


def _word(outcome: str, state: State | None) -> str:
    """What a ledger says of an outcome."""
    if outcome in ("retry", "returned"):
        return "dead" if state is State.DEAD else "retried" if outcome == "retry" else outcome
    return outcome if state is None else PUBLIC_NAME[state]


def _state_of(outcome: str, message: MessageWithLedger) -> State:
    """The state into which an outcome has brought a message."""
    state = message.exact_state
    return state if outcome != "retry" or state in FINISHED else State.READY


def _delivery(message: MessageWithLedger, want: Want) -> Delivery:
    return Delivery(message, Ticket(message.id, message.token, want.agent))
