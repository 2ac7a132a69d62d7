"""The reserve of a room on NATS: space that is given up when the servers are full, so that the room can be emptied.

A claim and an ack replace an entry by a larger one, and servers whose storage is full refuse every write, these too. So
a room keeps one entry of nothing but zeros. When a write that is no send is refused for want of space, the reserve is
purged, which needs no space, and the write is made again. While the reserve is out, sends are refused here, before the
servers are asked: the space is for those who empty the room. Housekeeping and `purge` put it back as soon as the
servers let them.

Servers of a cluster learn late how much the others keep, and several fast senders would be far beyond the limit of
their account before they are refused. So senders look now and then, and stop at nine tenths of it.
"""

from __future__ import annotations

from typing import Any, Final

from postroom.core.clock import Clock

from .wire import RESERVE_OUT, Changed, StorageFull, Wire, Write

#: Enough for the claims and acks of more than a thousand messages.
RESERVE_BYTES: Final = 512 * 1024
#: A process that sends looks this often at the limit of the room's account, in seconds; there is space up to this
#: share.
LOOK_S: Final = 1.0
SHARE: Final = 0.9
#: The servers of a cluster tell each other within this time how much space they have.
TOLD_S: Final = 3
_SUBJECT: Final = "z.reserve"
#: What the headers of an entry take at most.
_HEADERS_BYTES: Final = 1024
_SECOND_NS: Final = 1_000_000_000


class Reserve:
    """The reserve, as one opened room knows it."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        #: Its subject, as a question to the servers names it.
        self.filter = f"pr.{wire.room}.{_SUBJECT}"
        #: Whether it was given up, as far as is known here.
        self._is_out = False
        self._given_up_ns: int | None = None
        #: Whether the room's account has a limit, and is near to it; when that was looked at.
        self._has_limit = True
        self._is_near = False
        self._looked_ns: int | None = None
        wire.on_full = self._give_up
        wire.on_reserve_out = self._heard_that_it_is_out

    def _heard_that_it_is_out(self) -> None:
        self._is_out = True

    def check(self) -> None:
        """Before a send: raise StorageFull when the reserve is out, or its account nearly full.

        Waits for the servers only then.
        """
        if self._is_out and not self._is_there():
            raise self._wire.full()
        if self._is_near:
            self._wire.run(self._look_at_account())
            if self._is_near:
                raise self._wire.full()
        elif self._has_limit:
            now_ns = self._clock.steady_ns()
            if self._looked_ns is None or not 0 <= now_ns - self._looked_ns < LOOK_S * _SECOND_NS:
                self._looked_ns = now_ns
                self._wire.connection.link.soon(self._look_at_account)

    async def _look_at_account(self) -> None:
        answer = await self._wire.api_once("INFO")
        if not answer:
            return
        limit = answer.get("limits", {}).get("max_storage", -1)
        self._has_limit = limit > 0
        self._is_near = self._has_limit and answer.get("storage", 0) > limit * SHARE

    def _is_there(self) -> bool:
        info = self._wire.api_once(f"STREAM.INFO.{self._wire.stream}", subjects_filter=self.filter)
        return self._sees(self._wire.run(info))

    def _sees(self, answer: dict[str, Any]) -> bool:
        """No answer counts as none: a cluster that is full elects no leader."""
        self._is_out = self.filter not in (answer.get("state", {}).get("subjects") or {})
        return not self._is_out

    def see(self, answer: dict[str, Any]) -> None:
        """The servers' word on the room's stream, when it is opened: one without a reserve gets it."""
        if not self._sees(answer):
            self.put_back()

    def keep(self) -> None:
        """Put the reserve back if it is out and there is space."""
        if not self._is_there():
            self.put_back()

    def put_back(self) -> None:
        """Write the reserve. Sends are refused from now on if there is no space for it."""
        data = bytes(min(RESERVE_BYTES, self._wire.connection.client.max_payload - _HEADERS_BYTES))
        try:
            self._wire.run(self._wire.commit([Write(_SUBJECT, data, 0)], data.__eq__, is_send=True))
        except Changed:
            pass  # somebody else has put it back
        except StorageFull:
            self._is_out = True
            return
        self._is_out = False

    async def _give_up(self) -> bool:
        """Free the space of the reserve. False when that was done before, and all servers know of it by now."""
        self._is_out = True
        answer = await self._wire.api_once(f"STREAM.PURGE.{self._wire.stream}", filter=self.filter)
        now_ns = self._clock.steady_ns()
        if answer.get("purged"):
            self._given_up_ns = now_ns
            await self._wire.nudge(RESERVE_OUT)
            return True
        was_lately = self._given_up_ns is not None and now_ns - self._given_up_ns < TOLD_S * _SECOND_NS
        return bool(answer) and was_lately
