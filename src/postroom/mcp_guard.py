"""The guard before the HTTP door: which hosts and origins are let in, and whose token the caller holds.

It is plain ASGI. A page in a browser can reach a port of this machine: it cannot choose its Origin, nor, when its name
was bent to point here, its Host. So both must be ours, to the letter; and nobody gets in without a token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl

from .errors import IdentityRefused
from .identity import Credential

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
#: Proves a token, with the name that the caller claims besides; raises IdentityRefused.
Prove = Callable[[str | None, str | None], Awaitable[Credential | None]]

#: By these a caller may say whom it means to be. It need not; what it says must be true.
CLAIM_HEADERS: Final = (b"x-postroom-agent", b"x-postroom-as", b"x-agent", b"x-forwarded-user", b"from")
CLAIM_PARAMETERS: Final = ("as", "agent", "from", "from_agent", "name", "sender")
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


def allowed_hosts(port: int) -> frozenset[str]:
    """The Host headers of those who mean this server."""
    names = {f"{name}:{port}" for name in LOOPBACK}
    return frozenset(names | (set(LOOPBACK) if port == 80 else set()))


class Guard:
    """Lets requests through to the app whose Host, Origin and token are right; tells the app who calls."""

    def __init__(self, app: App, port: int, prove: Prove, user_of: Callable[[Credential], object]) -> None:
        self._app = app
        self._hosts = allowed_hosts(port)
        self._origins = frozenset(f"http://{host}" for host in self._hosts)
        self._prove = prove
        self._user_of = user_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        status, problem = self._stranger(scope)
        if not status:
            try:
                credential = await self._prove(_bearer(scope), _claimed(scope))
            except IdentityRefused as error:
                status, problem = 401, str(error)
            else:
                if credential is not None:
                    scope["user"] = self._user_of(credential)
                await self._app(scope, receive, send)
                return
        await _refuse(send, status, problem)

    def _stranger(self, scope: Scope) -> tuple[int, str]:
        """Why the request does not come from where it must: a status and a sentence; (0, "") when it does."""
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, "Invalid Host header: this server answers on loopback alone"
        if len(origins) > 1 or any(origin not in self._origins for origin in origins):
            return 403, "Invalid Origin header: pages of other places are not let in"
        return 0, ""


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _bearer(scope: Scope) -> str | None:
    """The token; two of them are none."""
    given = _values(scope, b"authorization")
    if len(given) != 1:
        return None if not given else ""
    kind, _, token = given[0].partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _claimed(scope: Scope) -> str | None:
    """Whom the caller says that it is, in whichever way; the first claim counts, since one false claim is enough."""
    said = [value for name in CLAIM_HEADERS for value in _values(scope, name)]
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    said += [value for name, value in query if name in CLAIM_PARAMETERS]
    distinct = list(dict.fromkeys(said))
    return None if not distinct else distinct[0] if len(distinct) == 1 else " and ".join(distinct)


async def _refuse(send: Send, status: int, problem: str) -> None:
    body = problem.encode("utf-8", "backslashreplace") + b"\n"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="postroom"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
