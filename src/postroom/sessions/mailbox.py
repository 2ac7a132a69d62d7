"""Mailboxes of a session, by name: `session.mailbox.tasks`, `session.mailbox["any name"]`.

A mailbox is a channel of the room that belongs to the session. What is sent is stored, so it outlives its sender; what
is received is taken and acked in one step, so each message reaches one receiver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from postroom.core.config import LEASE_S
from postroom.core.message import Draft, Message, check_name, check_span
from postroom.core.states import State
from postroom.errors import Fault, InvalidMessage, ReceiveTimeout, raise_faults
from postroom.mail.gateway import Deadline, Gateway, Pause, Steps
from postroom.mail.waiting import soonest
from postroom.stores.contract import Query, Waiter, Want, topic_channel

from .deadlock import ON_MAILBOX, Search, channel_of
from .members import Member, MemberWait

TYPE: Final = "session.mail"
#: A mailbox's name is part of a channel's, together with the session's id.
MAX_MAILBOX_BYTES: Final = 200
#: Under this name the value stands in the message's payload, which must be an object.
VALUE: Final = "value"
_READY: Final = frozenset({State.READY})
_DELAYED: Final = frozenset({State.DELAYED})


class Mailroom:
    """The mailboxes of a session, made when first used. Every name works in brackets; most work with a dot too."""

    __slots__ = ("__boxes", "__member", "__search")

    def __init__(self, member: Member, search: Search) -> None:
        # names that begin with two underscores, so that every plain name is free for a mailbox
        self.__member = member
        self.__search = search
        self.__boxes: dict[str, Mailbox] = {}

    def __getitem__(self, name: str) -> Mailbox:
        check_mailbox_name(name)
        return self.__boxes.get(name) or self.__boxes.setdefault(name, Mailbox(self.__member, self.__search, name))

    def __getattr__(self, name: str) -> Mailbox:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{name} is reserved by Python; for a mailbox write session.mailbox[{name!r}]")
        return self[name]

    def __repr__(self) -> str:
        return f"<Mailroom of session {self.__member.record.id}>"


def check_mailbox_name(name: object) -> None:
    """Raise InvalidMessage for what is not the name of a mailbox: text of 1 to 200 bytes without control characters."""
    faults: list[Fault] = []
    if isinstance(name, str) and len(name.encode("utf-8", "replace")) > MAX_MAILBOX_BYTES:
        size = len(name.encode("utf-8", "replace"))
        faults.append(Fault("mailbox", f"must be at most {MAX_MAILBOX_BYTES} bytes long, and is {size}"))
    else:
        check_name("mailbox", name, faults)
    raise_faults(faults)


class Mailbox:
    """One mailbox: first in, first out. Any member sends, any member receives, each message goes to one of them."""

    def __init__(self, member: Member, search: Search, name: str) -> None:
        self.name = name  # the mailbox's
        self._member = member
        self._search = search
        self._record = member.record
        self._gateway: Gateway = member.gateway
        self._channel = channel_of(member.record.id, name)
        self._want = Want(agent=member.name, lease_s=LEASE_S, channels=(self._channel,), settle=True)

    def __repr__(self) -> str:
        return f"<Mailbox {self.name!r} of session {self._record.id}>"

    def send(self, value: Any, *, delay_ms: float = 0) -> str:
        """Put any JSON value into the mailbox: a copy of it. Returns the message's id, without waiting for a reader.

        After: it is stored, behind everything sent before; it can be received after `delay_ms`.
        Raises SessionFailed, SessionEnded: the session has ended, nothing was stored. InvalidMessage: it is not JSON.
        """
        check_ms("delay_ms", delay_ms)
        with self._member.acting():
            self._record.check()
            return self._gateway.send(
                Draft(
                    from_agent=self._member.name,
                    payload={VALUE: value},
                    channel=self._channel,
                    type=TYPE,
                    delay_s=delay_ms / 1000,
                    correlation_id=self._record.id,
                )
            )

    def receive(self, timeout_ms: float | None = None) -> Any:
        """Take the oldest value, waiting for one: forever, or that many MILLISECONDS.

        Raises ReceiveTimeout when none came in time: then nothing was taken. Raises SessionFailed at once when the
        session fails, before or while it waits, and SessionEnded when its opener closes it, or, within a
        second, when this member leaves. When every member waits forever and nothing is on its way, that is a failure
        too: Deadlock.
        """
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        return self._gateway.finish(self._receiving(timeout_ms))

    def _receiving(self, timeout_ms: float | None) -> Steps[Any]:
        deadline = Deadline(self._gateway.clock, None if timeout_ms is None else timeout_ms / 1000)
        waiter: Waiter | None = None
        with self._member.waiting(on=ON_MAILBOX, names=[self.name], timed=timeout_ms is not None) as wait:
            try:
                due_s: float | None = None
                hinted = False
                while True:
                    self._record.check()  # before the store: a failed session gives no mail
                    self._member.check_here()  # another thread may have left for all of us
                    if not self._member.blocked or self._mail_is_near(hinted or due_s is not None):
                        wait.stir()
                        claimed = self._gateway.claim(self._want)
                        if claimed.deliveries:
                            return value_of(claimed.deliveries[0].message)
                        due_s = claimed.next_due_s
                    else:
                        due_s = None
                    if deadline.left_s() == 0:
                        raise ReceiveTimeout(f"Mailbox receive timeout after {timeout_ms:g}ms")
                    if waiter is None:  # armed before the next look, so that nothing is missed
                        waiter = self._gateway.listen([topic_channel(self._channel), self._record.topic])
                        continue
                    hinted = yield Pause(waiter, soonest(due_s, deadline.left_s(), self._rest(wait)))
            finally:
                if waiter is not None:
                    waiter.close()

    def _rest(self, wait: MemberWait) -> float:
        """Found nothing: say so, and see whether anybody can still send something. Seconds until the next look."""
        again_s = wait.rest()
        if self._member.blocked and not wait.shown["timed"]:
            self._search.look()
        if wait.shown["timed"] or self._member.blocked:
            self._record.blame_gone_opener()
        return again_s

    def _mail_is_near(self, maybe_delayed: bool) -> bool:
        """A look that takes and writes nothing, for one whose cell says that it is blocked.

        With a look that writes, blocked members would never be seen to stay so. Delayed mail is looked for, which
        goes through all mail of the session, only after a hint, or when something in the room was known to be due.
        """
        channels, find = (self._channel,), self._gateway.store.find
        ready = Query(states=_READY, channels=channels, visible_to=self._member.name, order="claim", limit=1)
        delayed = Query(states=_DELAYED, channels=channels, correlation_id=self._record.id, limit=1)
        return bool(find(ready).messages or (maybe_delayed and find(delayed).messages))


def value_of(message: Message) -> Any:
    """The value that was sent; of a message that was put into the channel by other means, its whole payload."""
    payload: Mapping[str, Any] = message.payload
    return payload[VALUE] if payload.keys() == {VALUE} else dict(payload)


def check_ms(field: str, value: object) -> None:
    """Raise InvalidMessage for what is not a number of milliseconds."""
    faults: list[Fault] = []
    check_span(field, value, faults)
    if faults:
        raise InvalidMessage([Fault(name, problem.replace("seconds", "milliseconds")) for name, problem in faults])
