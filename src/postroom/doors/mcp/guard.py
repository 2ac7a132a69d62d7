"""The guard before MCP's HTTP door, an ASGI middleware: the checks of `http_guard`, and the caller's token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl

from postroom.doors.http_guard import UNKNOWN, ServerNames, bearer, header
from postroom.errors import IdentityRefused
from postroom.mail.tokens import Credential

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
#: Proves a token, with the name that the caller claims besides; raises IdentityRefused.
Prove = Callable[[str | None, str | None], Awaitable[Credential | None]]

#: By these a caller may say whom it means to be. It need not; what it says must be true.
CLAIM_HEADERS: Final = (b"x-postroom-agent", b"x-postroom-as", b"x-agent", b"x-forwarded-user", b"from")
CLAIM_PARAMETERS: Final = ("as", "agent", "from", "from_agent", "name", "sender")


class McpGuard:
    """Lets requests through to the app whose Host, Origin and token are right; tells the app the caller."""

    def __init__(self, app: App, names: ServerNames, prove: Prove, user_of: Callable[[Credential], object]) -> None:
        self._app = app
        self._names = names
        self._prove = prove
        self._user_of = user_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._names.check(header(scope, b"host"), header(scope, b"origin"))
        if refusal is not None:
            await refuse(send, refusal.status, refusal.message)
            return
        try:
            credential = await self._prove(bearer(header(scope, b"authorization")), _claimed(scope))
        except IdentityRefused as error:
            await refuse(send, UNKNOWN, str(error))
            return
        if credential is not None:
            scope["user"] = self._user_of(credential)
        await self._app(scope, receive, send)


def _claimed(scope: Scope) -> str | None:
    """The names that the caller claims, in a header or in the query; two different ones are a false name together."""
    said = [value for name in CLAIM_HEADERS for value in header(scope, name)]
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    said += [value for name, value in query if name in CLAIM_PARAMETERS]
    distinct = list(dict.fromkeys(said))
    return None if not distinct else distinct[0] if len(distinct) == 1 else " and ".join(distinct)


async def refuse(send: Send, status: int, problem: str) -> None:
    """Answer a request with an error of HTTP."""
    body = problem.encode("utf-8", "backslashreplace") + b"\n"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == UNKNOWN:
        headers.append((b"www-authenticate", b'Bearer realm="postroom"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
