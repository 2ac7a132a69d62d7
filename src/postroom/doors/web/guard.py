"""Access to the page: the checks of `postroom.doors.http_guard`, and the page's own token. Pure: no server here.

Everything that shows or changes something needs the token (tests/doors/web/test_guard.py).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from postroom.doors.http_guard import FORBIDDEN, MISDIRECTED, UNKNOWN, Refusal, ServerNames, bearer

LOOPBACK_ADDRESSES: Final = ("127.0.0.1", "::1", "localhost")
#: Methods that change nothing.
READING: Final = frozenset({"GET", "HEAD"})

#: How a cookie is kept: no script reads it, no other site's page sends it.
_KEPT: Final = "Path=/; HttpOnly; SameSite=Strict"
#: No token: what is made of two, and of a cookie that this server did not give. Browsers keep cookies for longer than a
#: server runs, and show them to the next one on its port.
_TWO: Final = "two"
UNKNOWN_COOKIE: Final = "unknown"
#: So many browsers are remembered; the one that signed in first is forgotten first.
MAX_SIGNED_IN: Final = 1000
#: Programs show the token of the room in this header, where browsers use a cookie.
WHO_HEADER: Final = "x-postroom-token"


class PageCredentials(NamedTuple):
    """The credentials that a request shows."""

    cookie: Sequence[str]
    authorization: Sequence[str]


def new_token() -> str:
    """A token that cannot be guessed: 256 bits."""
    return secrets.token_urlsafe(32)


class PageGuard:
    """The lists of one server."""

    def __init__(self, port: int, token: str, names: Iterable[str] = ()) -> None:
        self._token = token.encode()
        #: Cookies do not know ports: without it, two rooms of one machine would take each other's.
        self.cookie_name = f"postroom_{port}"
        #: In this one a browser keeps a session number, which stands for the room's token of its person. Not the token:
        #: a browser shows its cookies to every server of this machine, and may write them to its disk.
        self.who_name = f"postroom_who_{port}"
        self._signed_in: dict[str, str] = {}
        self._names = ServerNames(port, names)

    def check_way(self, hosts: Sequence[str], origins: Sequence[str]) -> Refusal | None:
        """Whether the request was meant for this server, and does not come from somebody else's page.

        People type addresses by hand, so capitals are let pass here.
        """
        refusal = self._names.check([host.lower() for host in hosts], [origin.lower() for origin in origins])
        if refusal is not None and refusal.status == MISDIRECTED:
            return refusal._replace(message=f"{refusal.message}; see --name")
        return refusal

    def check_token(self, method: str, origins: Sequence[str], shown: PageCredentials) -> Refusal | None:
        """Whether the request has the token. A cookie, which browsers send unasked, changes nothing without an Origin."""
        token = bearer(shown.authorization)
        if token and self.is_token(token):
            return None
        if not any(self.is_token(value) for value in _cookies(shown.cookie, self.cookie_name)):
            return Refusal(
                UNKNOWN, "TOKEN", "the token is missing or wrong; open the address that `postroom web` printed"
            )
        if method not in READING and not origins:
            return Refusal(FORBIDDEN, "ORIGIN", "a request that changes something must name the page it comes from")
        return None

    def is_token(self, text: str) -> bool:
        """Whether this is the token; takes the same time whatever is wrong with it."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token)

    def set_cookie(self) -> str:
        """The header that lets a browser keep the token where no script can read it and no other site can send it."""
        return f"{self.cookie_name}={self._token.decode()}; {_KEPT}"

    def shown_token(self, cookies: Sequence[str], headers: Sequence[str]) -> str | None:
        """The token of the room that a request shows: in a header of its own, or by its cookie. Two prove nothing."""
        shown = [value.strip() for value in headers]
        shown = shown or [self._signed_in.get(value, UNKNOWN_COOKIE) for value in _cookies(cookies, self.who_name)]
        return None if not shown else shown[0] if len(shown) == 1 else _TWO

    def set_who(self, token: str, cookies: Sequence[str]) -> str:
        """The header that signs a browser in as the person of that token, or out; its earlier session is forgotten."""
        for value in _cookies(cookies, self.who_name):
            self._signed_in.pop(value, None)
        if not token:
            return f"{self.who_name}=; Max-Age=0; {_KEPT}"
        while len(self._signed_in) >= MAX_SIGNED_IN:
            del self._signed_in[next(iter(self._signed_in))]
        number = new_token()
        self._signed_in[number] = token
        return f"{self.who_name}={number}; {_KEPT}"


def _cookies(headers: Sequence[str], wanted: str) -> list[str]:
    pairs = [pair.strip().partition("=") for header in headers for pair in header.split(";")]
    return [value for name, _, value in pairs if name == wanted]


#: Nothing from elsewhere, nothing inline, no frames, and no text that a script could turn into markup.
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
