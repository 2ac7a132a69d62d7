"""Recording a history: a line when a call begins, a line when it returns.

A line goes to the system in one write, so a process that is killed leaves whole lines and at most one half-written one.
A call without a second line was never answered: it may have done its work, at any moment since it began, or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from postroom.core.clock import SYSTEM
from postroom.core.message import Draft, MessageWithLedger
from postroom.errors import InvalidMessage, OutcomeUnknown, RoomBusy, RoomUnreachable
from postroom.stores.contract import ANY, Cell, Claimed, Settled, Store, Ticket, Want

T = TypeVar("T")

#: A moment after the end of every history.
FOREVER: Final = 2**62
#: The result of a call that nobody saw return.
UNKNOWN: Final = "unknown"
#: The payload's field that names a message before the store has given it an id. Every message needs another one.
LABEL: Final = "label"

#: Errors after which nothing was changed.
_UNCHANGED = (RoomBusy, RoomUnreachable, InvalidMessage)


class RecordedCall:
    """One call of one process: when it began and when it returned on the steady clock of the machine, and with what."""

    __slots__ = ("arguments", "begin_ns", "end_ns", "operation", "process", "result")

    process: str  # the name of the process that called
    operation: str  # what it called: "send", "claim", "settle" and so on
    begin_ns: int  # when it began
    end_ns: int  # when it returned
    arguments: dict[str, Any]  # those that matter
    result: Any  # what matters of what it returned; "unknown" where it was not seen to

    def __init__(
        self,
        process: str,
        operation: str,
        begin_ns: int,
        end_ns: int = FOREVER,
        arguments: dict[str, Any] | None = None,
        result: Any = UNKNOWN,
    ) -> None:
        self.process = process
        self.operation = operation
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self.arguments = arguments or {}
        self.result = result

    @property
    def is_unknown(self) -> bool:
        """Whether nobody saw it return."""
        return self.result is UNKNOWN

    def __repr__(self) -> str:
        return (
            f"Call({self.process!r}, {self.operation!r}, {self.begin_ns}, {self.end_ns}, {self.arguments}, "
            f"{self.result!r})"
        )


class Recorder:
    """Appends what one process does to a file that many may share.

    `process` is a name that no other process of the history has, whatever its pid.
    """

    def __init__(self, path: str | Path, process: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._process = process
        self._number = 0

    def _write(self, *line: Any) -> None:
        # a line end before it too: whatever a killed process left half-written stands on a line of its own
        os.write(self._descriptor, b"\n" + msgspec.json.encode([self._process, *line]) + b"\n")

    def call(self, operation: str, **arguments: Any) -> int:
        """A call begins; its number."""
        self._number += 1
        self._write(self._number, SYSTEM.steady_ns(), operation, arguments)
        return self._number

    def returned(self, number: int, result: Any) -> None:
        """That call has returned this."""
        self._write(number, SYSTEM.steady_ns(), result)

    def refused(self, number: int) -> None:
        """That call has raised an error which says that nothing was changed."""
        self._write(number, SYSTEM.steady_ns())

    def leave(self) -> None:
        """From now on the process may be taken to be gone: it is about to end."""
        self.call("leave")

    def close(self) -> None:
        """Close the file. Safe to leave out: each line has been handed over."""
        os.close(self._descriptor)


def read(*paths: str | Path) -> list[RecordedCall]:
    """The calls of these files together, in the order in which they began. Lines that a kill has cut count as not there."""
    calls: dict[tuple[str, int], RecordedCall] = {}
    decode = msgspec.json.decode
    for path in paths:
        for text in Path(path).read_bytes().splitlines():
            try:
                process, number, at_ns, *rest = decode(text)
            except ValueError:  # empty, or cut
                continue
            if len(rest) == 2:
                calls[process, number] = RecordedCall(process, rest[0], at_ns, FOREVER, rest[1])
            elif rest:
                call = calls[process, number]
                call.end_ns, call.result = at_ns, rest[0]
            else:
                del calls[process, number]
    return sorted(calls.values(), key=lambda call: call.begin_ns)


class RecordedStore:
    """A store whose calls are recorded. What is not named here is the store's own, and is not judged.

    Every payload has a `label` of its own. With `repeats`, a send or a settling whose outcome is unknown is repeated as
    it was, and counts as one call.
    """

    store: Store  # the store itself
    recorder: Recorder  # where its calls are written down

    def __init__(self, store: Store, recorder: Recorder, repeats: int = 0) -> None:
        self.store = store
        self.recorder = recorder
        self._repeats = repeats

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def _do(self, call: Callable[[], T], shown: Callable[[T], Any], operation: str, **arguments: Any) -> T:
        number = self.recorder.call(operation, **arguments)
        tries, unsure = 1 + (self._repeats if operation in ("send", "settle") else 0), False
        while True:
            tries -= 1
            try:
                result = call()
            except OutcomeUnknown:
                unsure = True
                if arguments.get("next"):
                    self.recorder.call("claim", **arguments["next"])  # that try may have claimed, and did not say
                if not tries:
                    raise
            except _UNCHANGED:
                if not unsure:
                    self.recorder.refused(number)
                if not unsure or not tries:
                    raise
            else:
                self.recorder.returned(number, shown(result))
                return result

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        """Recorded as "send"."""
        return self._do(lambda: self.store.put(drafts), list, "send", messages=[_said(draft) for draft in drafts])

    def claim(self, want: Want) -> Claimed:
        """Recorded as "claim"."""
        return self._do(lambda: self.store.claim(want), _given, "claim", **_wanted(want))

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
        """Recorded as "settle", with what it sends and claims."""

        def shown(settled: Settled) -> list[Any]:
            state = None if settled.state is None else settled.state.name.lower()
            return [settled.held, state, settled.ids, None if settled.claimed is None else _given(settled.claimed)]

        return self._do(
            lambda: self.store.settle(
                ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next
            ),
            shown,
            "settle",
            id=ticket.id,
            token=ticket.token,
            outcome=outcome,
            delay_s=delay_s,
            puts=[_said(draft) for draft in puts],
            next=None if claim_next is None else _wanted(claim_next),
        )  # fmt: skip

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        """Recorded as "extend"."""
        return self._do(
            lambda: self.store.extend(ticket, lease_s),
            bool,
            "extend",
            id=ticket.id,
            token=ticket.token,
            lease_s=lease_s,
        )

    def get(self, id: str) -> MessageWithLedger | None:
        """Recorded as "look"."""

        def shown(message: MessageWithLedger | None) -> list[Any] | None:
            return None if message is None else [message.exact_state.name.lower(), message.delivery_count]

        return self._do(lambda: self.store.get(id), shown, "look", id=id)

    def withdraw(self, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
        """Recorded as "withdraw": by the sender of these messages, which a history takes for granted."""
        wanted = list(ids)
        return self._do(lambda: self.store.withdraw(wanted, agent, reason), list, "withdraw", ids=wanted)

    def requeue(self, ids: Iterable[str]) -> list[str]:
        """Recorded as "requeue"."""
        wanted = list(ids)
        return self._do(lambda: self.store.requeue(wanted), list, "requeue", ids=wanted)

    def cell_read(self, name: str) -> Cell | None:
        """Recorded as "read"."""

        def shown(cell: Cell | None) -> list[Any] | None:
            return None if cell is None else [cell.version, cell.value]

        return self._do(lambda: self.store.cell_read(name), shown, "read", cell=name)

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        """Recorded as "write"."""

        def shown(version: int | None) -> int | None:
            return version

        return self._do(
            lambda: self.store.cell_write(name, value, expect), shown, "write", cell=name, value=value, expect=expect
        )


def _said(draft: Draft) -> dict[str, Any]:
    """What matters of a message that is sent; what is as usual is left out."""
    said: dict[str, Any] = {"label": draft.payload[LABEL], "to": draft.to_agent, "channel": draft.channel}
    if draft.publish or draft.idempotency_key is not None or draft.replaces is not None or draft.debounce:
        raise ValueError(
            "publications, idempotency keys and replacements have no place in a history: record plain messages"
        )
    said["priority"], said["most"] = draft.priority, draft.max_deliveries
    if draft.delay_s:
        said["delay_s"] = draft.delay_s
    if draft.ttl_s is not None:
        said["ttl_s"] = draft.ttl_s
    if draft.answer_to is not None:
        said["answer"] = True
    if draft.order_key is not None:
        said["order_key"] = draft.order_key
    return said


def _wanted(want: Want) -> dict[str, Any]:
    if want.settle:
        raise ValueError("a claim that settles in the same step has no place in a history: claim, then settle")
    wanted: dict[str, Any] = {"agent": want.agent, "limit": want.limit, "lease_s": want.lease_s}
    if want.owner is not None:
        wanted["owned"] = True
    if want.channels is not None:
        wanted["channels"] = list(want.channels)
    if want.ids is not None:
        wanted["ids"] = list(want.ids)
    return wanted


def _given(claimed: Claimed) -> list[list[Any]]:
    return [
        [each.ticket.id, each.message.payload.get(LABEL), each.ticket.token, each.message.delivery_count]
        for each in claimed.deliveries
    ]
