"""The guard of every HTTP door: Host and Origin checks against DNS rebinding and foreign pages, and bearer tokens.

Loopback is no protection by itself: every page that a browser shows can send requests there, and a name that an attacker
owns can be made to mean 127.0.0.1 (DNS rebinding). A page cannot choose its Origin, nor, under a bent name, its Host. So
both are compared with a list, whole (tests/doors/web/test_guard.py, tests/doors/test_guard.py). Pure: no server here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from postroom.core.limits import SECOND_NS
from postroom.mail import tokens
from postroom.mail.gateway import Gateway

#: The server's names on this machine.
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")

MISDIRECTED: Final = 421
UNKNOWN: Final = 401
FORBIDDEN: Final = 403
_BEARER: Final = "bearer "


class Refusal(NamedTuple):
    """Why a request is turned away: the status, a word for programs, a sentence for people."""

    status: int
    code: str
    message: str


class ServerNames:
    """The names of one server: the Host and Origin headers of the requests that are meant for it."""

    def __init__(self, port: int, more: Iterable[str] = ()) -> None:
        named = [name.lower() for name in (*LOOPBACK_NAMES, *more)]
        hosts = {f"{name}:{port}" for name in named} | ({*named} if port == 80 else set())
        self.hosts: frozenset[str] = frozenset(hosts)
        self.origins: frozenset[str] = frozenset(f"http://{host}" for host in hosts)

    def check(self, hosts: Sequence[str], origins: Sequence[str]) -> Refusal | None:
        """Whether a request was meant for this server, and does not come from somebody else's page. To the letter."""
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            said = ", ".join(hosts) or "nothing"
            return Refusal(MISDIRECTED, "HOST", f"this server does not answer to the name {said[:200]}")
        if origins and (len(origins) != 1 or origins[0] not in self.origins):
            return Refusal(FORBIDDEN, "ORIGIN", "this request comes from a page of another origin")
        return None


def header(scope: Mapping[str, Any], name: bytes) -> list[str]:
    """Every value that an ASGI request gives for a header; `name` is in small letters."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def bearer(headers: Sequence[str]) -> str | None:
    """The token of the Authorization headers. None where there is none; "", which proves nothing, for any other."""
    if len(headers) != 1:
        return None if not headers else ""
    return headers[0][len(_BEARER) :].strip() if headers[0][: len(_BEARER)].lower() == _BEARER else ""


class RefusalTally:
    """Records the refusals of one door in its room, rate-limited: one at once, then one a second that counts for all.

    Strangers can knock a thousand times a second; each knock being a write would let them keep the room busy
    (tests/doors/test_http.py). Not thread-safe: used in the room's thread. `write` what is pending before the room closes.
    """

    def __init__(self) -> None:
        self._count = 0
        self._newest: tuple[str, str, str | None] = ("", "", None)
        self._next_ns = 0

    @property
    def is_pending(self) -> bool:
        """Whether there are refusals that are not in the room yet."""
        return self._count > 0

    def record(self, gateway: Gateway, door: str, claimed: str, real: str | None) -> None:
        """Count a refusal, and write it unless one was written within the last second."""
        self._count += 1
        self._newest = (door, claimed, real)
        if gateway.clock.steady_ns() >= self._next_ns:
            self.write(gateway)

    def write(self, gateway: Gateway) -> None:
        """Write what is pending now: the newest refusal, and how many it stands for."""
        if self._count:
            count = self._count
            self._next_ns = gateway.clock.steady_ns() + SECOND_NS
            tokens.record_refusal(gateway, *self._newest, count=count)
            self._count -= count  # not before: what could not be written is still pending
