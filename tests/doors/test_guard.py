"""The guard before the HTTP door, by itself: what gets through to the app, and as whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.doors.http_guard import ServerNames
from postroom.doors.mcp.guard import McpGuard
from postroom.errors import IdentityRefused
from postroom.mail.tokens import Credential

Header = tuple[bytes, bytes]
GOOD_HOST: Header = (b"host", b"127.0.0.1:8765")
TOKEN: Header = (b"authorization", b"Bearer t-ada")


def answer(*headers: Header, query: bytes = b"", kind: str = "http") -> tuple[int, Any, str | None]:
    """The status, who the app was told calls, and which name the caller claimed."""
    seen: dict[str, Any] = {"user": None, "claimed": None}
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen["user"] = scope.get("user")
        await send({"type": "http.response.start", "status": 200})

    async def prove(token: str | None, claimed: str | None) -> Credential | None:
        seen["claimed"] = claimed
        if token != "t-ada" or claimed not in (None, "ada"):
            raise IdentityRefused("no")
        return Credential("ada", False, "id")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads what a stranger says")

    guard = McpGuard(app, ServerNames(8765), prove, lambda credential: credential.agent)
    scope = {"type": kind, "headers": list(headers), "query_string": query}
    asyncio.run(guard(scope, receive, send))
    return (sent[0]["status"] if sent else 0), seen["user"], seen["claimed"]


def test_the_right_host_and_token_get_through() -> None:
    assert answer(GOOD_HOST, TOKEN) == (200, "ada", None)
    assert answer((b"Host", b"localhost:8765"), TOKEN, (b"origin", b"http://localhost:8765"))[0] == 200


@pytest.mark.parametrize(
    "host", [b"", b"127.0.0.1", b"127.0.0.1:8766", b"evil:8765", b"127.0.0.1:8765.evil", b"LOCALHOST:8765"]
)
def test_another_host_does_not(host: bytes) -> None:
    assert answer((b"host", host), TOKEN) == (421, None, None)


def test_two_hosts_or_none_do_not() -> None:
    assert answer(TOKEN)[0] == 421
    assert answer(GOOD_HOST, GOOD_HOST, TOKEN)[0] == 421


@pytest.mark.parametrize(
    "origin", [b"null", b"http://evil", b"https://127.0.0.1:8765", b"http://127.0.0.1", b"", b"file://"]
)
def test_another_origin_does_not(origin: bytes) -> None:
    assert answer(GOOD_HOST, TOKEN, (b"origin", origin)) == (403, None, None)
    good = (b"origin", b"http://127.0.0.1:8765")
    assert answer(GOOD_HOST, TOKEN, good, good)[0] == 403


@pytest.mark.parametrize(
    "headers", [(), ((b"authorization", b"Basic t-ada"),), (TOKEN, TOKEN), ((b"authorization", b"t-ada"),)]
)
def test_without_exactly_one_bearer_token_nobody_gets_in(headers: tuple[Header, ...]) -> None:
    assert answer(GOOD_HOST, *headers)[0] == 401


@pytest.mark.parametrize(
    ("headers", "query", "claimed"),
    [
        (((b"x-postroom-agent", b"bob"),), b"", "bob"),
        ((), b"as=bob", "bob"),
        ((), b"as=ada&agent=bob", "ada and bob"),
        (((b"from", b"bob"), (b"x-agent", b"ada")), b"", "ada and bob"),
    ],
)
def test_a_claim_that_the_token_does_not_prove_is_refused(
    headers: tuple[Header, ...], query: bytes, claimed: str
) -> None:
    status, user, said = answer(GOOD_HOST, TOKEN, *headers, query=query)

    assert (status, user) == (401, None)
    assert sorted(str(said).split(" and ")) == sorted(claimed.split(" and "))


def test_a_true_claim_is_fine() -> None:
    assert answer(GOOD_HOST, TOKEN, (b"x-postroom-agent", b"ada"), query=b"as=ada") == (200, "ada", "ada")


def test_other_protocols_are_not_served() -> None:
    assert answer(GOOD_HOST, TOKEN, kind="websocket") == (0, None, None)


def test_only_port_80_goes_without_saying() -> None:
    assert "localhost" in ServerNames(80).hosts
    assert "localhost" not in ServerNames(8765).hosts
