"""The pages and the interface for programs, as a Starlette application. Their content is worked out elsewhere.

GET  /                      the page (with ?token=, which becomes a cookie)
GET  /page/…                its parts
GET  /api/about             names, colours, who you are
GET  /api/recent, /api/older, /api/among, /api/past, /api/messages/ID, /api/messages/ID/payload, /api/views/NAME, /api/deeds
GET  /api/live              the page's own stream: frames and views
GET  /api/events?after=     the feed for other programs, a page at a time
GET  /api/stream?after=     the same as server-sent events, for ever
GET  /metrics               Prometheus' text format
POST /api/send, /api/requeue, /api/drop, /api/release, /api/stop-session
POST /api/add-task, /api/abort-task, /api/reopen-task, /api/release-task, /api/pause, /api/resume
POST /api/answer            answers a question to a person
POST /api/sign-in           keeps the token of the room that says who you are, for a cookie
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroom import __version__, errors
from postroom.core.limits import TokenBucket
from postroom.core.states import MOVES, PUBLIC_STATES
from postroom.doors.http_guard import Refusal, header

from . import by_hand, guard, streams
from .hub import Hub
from .lines import LOOK_AFTER, LOOKS
from .metrics import CONTENT_TYPE, metrics
from .reading import MAX_EVENTS, MAX_LINES, CursorError, whole_number
from .searching import FIELDS
from .views import VIEWS, deeds

#: The parts of the page, and what they are.
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PARTS: Final = {
    part.name: part.read_bytes()
    for part in (resources.files("postroom.doors.web") / "page").iterdir()
    if part.name.rpartition(".")[2] in TYPES
}
#: The size of a request's body: a payload of 1 MiB in JSON's longest spelling for `send`, names for the others.
MAX_SEND_BYTES: Final = 6 * 1024 * 1024 + 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
#: A body must have come whole within this time, in seconds.
BODY_S: Final = 15.0
#: Requests may come in a burst of so many times as many as in a second.
BURST: Final = 4
_MAX_CURSOR: Final = 2**63 - 1

#: Which answer an error gets; what is not named here is the request's fault.
_STATUS: Final = (
    ((errors.UnknownMessage, errors.UnknownSession, errors.UnknownTask), 404),
    ((CursorError,), 410),
    ((errors.IdentityRefused,), 403),
    ((errors.RateLimited,), 429),
    ((errors.InvalidMessage,), 400),
    ((errors.RoomError,), 503),
)

_encode = msgspec.json.Encoder().encode


class RequestRates(msgspec.Struct, frozen=True):
    """Requests per second: with the token, without it, and those that change something.

    The page's parts are not counted: they tell nothing, come from memory, and a browser does not ask again for a script.
    """

    reads_per_s: float = 100.0
    strangers_per_s: float = 20.0
    acts_per_s: float = 10.0


def application(hub: Hub, door: guard.PageGuard, hand: by_hand.ByHand, rates: RequestRates | None = None) -> ASGIApp:
    """The whole server of one room."""
    pages = Pages(hub, door, hand)
    plain = Starlette(
        routes=pages.routes(),
        exception_handlers={errors.PostroomError: _told_wrong, HTTPException: _refused, ClientDisconnect: _gone},
    )
    return RequestGate(plain, hub, door, rates or RequestRates())


class RequestGate:
    """ASGI middleware: checks of every request's names, token and rate, and security headers on every answer."""

    def __init__(self, inner: ASGIApp, hub: Hub, door: guard.PageGuard, rates: RequestRates) -> None:
        self._inner = inner
        self._door = door
        clock = hub.room.clock
        self._reads, self._strangers, self._acts = (
            TokenBucket(per_s * BURST, per_s, clock=clock)
            for per_s in (rates.reads_per_s, rates.strangers_per_s, rates.acts_per_s)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in guard.HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in given)]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._inner(scope, receive, with_headers)
        else:
            await _refusal_response(refusal, scope["path"])(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Refusal | None:
        """The reason to refuse a request. One with the right token is never slowed down by those without."""
        method, path = scope["method"], scope["path"]
        origins = header(scope, b"origin")
        refusal = self._door.check_way(header(scope, b"host"), origins)
        if refusal is None and method in guard.READING and path.removeprefix(_PARTS_PATH) in PARTS:
            return None  # also while strangers knock too often (test_server.py)
        if refusal is None and not self._opens(path, scope["query_string"]):
            shown = guard.PageCredentials(header(scope, b"cookie"), header(scope, b"authorization"))
            refusal = self._door.check_token(method, origins, shown)
        if refusal is not None:
            return refusal if self._strangers.consume() else _TOO_FAST
        bucket = self._reads if method in guard.READING else self._acts
        return None if bucket.consume() else _TOO_FAST

    def _opens(self, path: str, query: bytes) -> bool:
        """Whether this is the address that `postroom web` printed: the page, with the right token in the query."""
        given = dict(parse_qsl(query.decode("latin-1"))) if path == "/" else {}
        return self._door.is_token(given.get("token", ""))


_PARTS_PATH: Final = "/page/"
_TOO_FAST: Final = Refusal(429, "RATE", "too many requests; wait a moment")


def _refusal_response(refusal: Refusal, path: str) -> Response:
    headers = {"Retry-After": "1"} if refusal.status == 429 else {}
    if path == "/":
        return Response(PARTS["closed.html"], refusal.status, headers, TYPES["html"])
    return _json({"error": {"code": refusal.code, "message": refusal.message}}, refusal.status, headers)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encode(value), status, headers, "application/json")


async def _told_wrong(_: Request, error: Exception) -> Response:
    """An error of Postroom's own, as JSON."""
    status = next((code for kinds, code in _STATUS if isinstance(error, kinds)), 409)
    told: dict[str, Any] = {"type": type(error).__name__, "message": errors.sentence_of(error)}
    if isinstance(error, CursorError):
        told |= {"code": error.code, "oldest": str(error.oldest), "newest": str(error.newest)}
    return _json({"error": told}, status)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": {"message": error.detail}}, error.status_code, dict(error.headers or {}))


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


class Pages:
    """The answers."""

    def __init__(self, hub: Hub, door: guard.PageGuard, hand: by_hand.ByHand) -> None:
        self._hub = hub
        self._door = door
        self._hand = hand

    def routes(self) -> list[Route]:
        """Every path there is."""
        reading = self._hub.reading
        reads = {
            "/": self._index,
            "/page/{name}": self._part_of_page,
            "/metrics": self._metrics,
            "/api/about": self._about,
            "/api/recent": self._read(lambda asked: reading.recent(_lines(asked), _wanted(asked))),
            "/api/older": self._read(
                lambda asked: reading.older(_place(asked, "before"), _lines(asked), _wanted(asked))
            ),
            "/api/among": self._read(lambda asked: reading.among(_ids(asked), _wanted(asked))),
            "/api/past": self._read(self._past),
            "/api/messages/{id}": self._read(lambda asked: reading.message(asked.path_params["id"])),
            "/api/messages/{id}/payload": self._read(
                lambda asked: reading.payload(asked.path_params["id"], _number(asked, "start", 0, 0, 2**40))
            ),
            "/api/views/{name}": self._read(self._view),
            "/api/deeds": self._read(lambda _: {"deeds": deeds(self._hub.room)}),
            "/api/events": self._read(self._events),
            "/api/live": self._live,
            "/api/stream": self._stream,
        }
        hand = self._hand
        acts = {
            "/api/send": self._act(by_hand.PersonMessage, hand.send, MAX_SEND_BYTES),
            "/api/requeue": self._act(by_hand.ChosenMessages, hand.requeue),
            "/api/drop": self._act(by_hand.ChosenMessages, hand.drop),
            "/api/release": self._act(by_hand.One, hand.release),
            "/api/release-task": self._act(by_hand.One, hand.release_task),
            "/api/add-task": self._act(by_hand.NewTask, hand.add_task),
            "/api/abort-task": self._act(by_hand.AbortedTask, hand.abort_task),
            "/api/reopen-task": self._act(by_hand.One, hand.reopen_task),
            "/api/stop-session": self._act(by_hand.One, hand.stop_session),
            "/api/pause": self._act(by_hand.PauseWish, hand.pause),
            "/api/resume": self._act(by_hand.PauseWish, hand.resume),
            "/api/answer": self._answer,
            "/api/sign-in": self._sign_in,
        }
        return [
            *(Route(path, answer, methods=["GET"]) for path, answer in reads.items()),
            *(Route(path, answer, methods=["POST"]) for path, answer in acts.items()),
        ]

    # The page

    async def _index(self, request: Request) -> Response:
        headers = {}
        if "token" in request.query_params:
            if not self._door.is_token(request.query_params["token"]):
                return Response(PARTS["closed.html"], 401, media_type=TYPES["html"])
            headers["Set-Cookie"] = self._door.set_cookie()
        return Response(PARTS["index.html"], 200, headers, TYPES["html"])

    async def _part_of_page(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PARTS:
            raise HTTPException(404, "there is no such file")
        return Response(PARTS[name], 200, {"Cache-Control": "no-cache"}, TYPES[name.rpartition(".")[2]])

    async def _about(self, request: Request) -> Response:
        room = self._hub.room
        return _json(
            {
                "room": str(room.url),
                "version": __version__,
                **await self._hub.ask(self._hand.about, self._shown(request)),
                "looks": LOOKS,
                "look_after": LOOK_AFTER,
                "states": PUBLIC_STATES,
                "events": {move.event: move.meaning for move in MOVES},
                "max_deliveries": room.config.max_deliveries,
                **await self._hub.ask(self._hub.reading.span),
            }
        )

    # Questions to the room, asked in a thread: a store may take its time

    def _read(self, question: Callable[[Request], Any]) -> Any:
        async def answer(request: Request) -> Response:
            return _json(await self._hub.ask(question, request))

        return answer

    def _past(self, request: Request) -> Any:
        limit, ahead = _lines(request, 300), _place(request, "ahead")
        if ahead:
            return self._hub.reading.further(ahead, limit, _wanted(request))
        at_ms = _number(request, "at_ms", self._hub.room.clock.wall_ms(), 0, 2**47)
        return self._hub.reading.past(at_ms, limit, _wanted(request))

    def _view(self, request: Request) -> Any:
        name = request.path_params["name"]
        if name not in VIEWS:
            raise HTTPException(404, f"there is no such view; the views are: {', '.join(VIEWS)}")
        return self._hub.views.look(name, request.query_params.get("pick", ""))

    def _events(self, request: Request) -> Any:
        after = _place(request, "after") or 0
        found = self._hub.reading.events(after, _number(request, "limit", 100, 1, MAX_EVENTS))
        return {"events": found, "cursor": found[-1]["cursor"] if found else str(after)}

    async def _metrics(self, _: Request) -> Response:
        return Response(await self._hub.ask(metrics, self._hub.room), media_type=CONTENT_TYPE)

    # Streams

    async def _live(self, request: Request) -> Response:
        given = "after" in request.query_params or "last-event-id" in request.headers
        after = _cursor(request)
        view = request.query_params.get("view", "")
        pick = request.query_params.get("pick", "")
        steps = streams.live(self._hub, after if given else None, view if view in VIEWS else "", pick)
        return await self._streaming(steps, after)

    async def _stream(self, request: Request) -> Response:
        after = _cursor(request)
        return await self._streaming(streams.whole(self._hub, after), after)

    async def _streaming(self, steps: AsyncIterator[bytes], after: int) -> Response:
        if self._hub.is_full:
            raise HTTPException(503, "too many pages are open")
        await self._hub.ask(self._hub.reading.check_cursor, after)  # before the stream begins: its status tells
        return StreamingResponse(steps, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    # Acting

    def _act(
        self, shape: type[Any], act: Callable[[Any, by_hand.Person], Any], most_bytes: int = MAX_BODY_BYTES
    ) -> Any:
        """An answer that reads a wish of that shape and carries it out."""
        decoder = msgspec.json.Decoder(shape)

        async def answer(request: Request) -> Response:
            wish = await _wish(request, decoder, most_bytes)
            who = await self._hub.ask(self._hand.who, self._shown(request))
            return _json(await self._hub.ask(act, wish, who))

        return answer

    async def _answer(self, request: Request) -> Response:
        """Give a person's answer: not one of the other acts, because the token itself signs it."""
        wish = await _wish(request, _ANSWER, MAX_BODY_BYTES)
        return _json(await self._hub.ask(self._hand.answer, wish, self._shown(request)))

    async def _sign_in(self, request: Request) -> Response:
        """Keep the token that proves the person at the browser, if it proves one."""
        token = (await _wish(request, _SIGN_IN, MAX_BODY_BYTES)).token.strip()
        if token:
            await self._hub.ask(self._hand.who, token)
        told = await self._hub.ask(self._hand.about, token or None)
        return _json(told, headers={"Set-Cookie": self._door.set_who(token, request.headers.getlist("cookie"))})

    def _shown(self, request: Request) -> str | None:
        """The token of the room that a request shows."""
        headers = request.headers
        return self._door.shown_token(headers.getlist("cookie"), headers.getlist(guard.WHO_HEADER))


def _wanted(request: Request) -> dict[str, str]:
    asked = {name: request.query_params.get(name, "") for name in FIELDS}
    return {name: text for name, text in asked.items() if text}


def _ids(request: Request) -> list[str]:
    return list(filter(None, request.query_params.get("ids", "").split(",")))


def _number(request: Request, field: str, default: int, least: int, most: int) -> int:
    return whole_number(field, request.query_params.get(field), default, least, most)


def _lines(request: Request, default: int = 500) -> int:
    return _number(request, "limit", default, 1, MAX_LINES)


def _place(request: Request, field: str) -> int | None:
    """A cursor of the feed; None where none is named, or 0."""
    return _number(request, field, 0, 0, _MAX_CURSOR) or None


def _cursor(request: Request) -> int:
    """Where a stream goes on: a browser that lost the connection says so in a header of its own."""
    last = request.headers.get("last-event-id")
    return whole_number("after", last or request.query_params.get("after"), 0, 0, _MAX_CURSOR)


_ANSWER: Final = msgspec.json.Decoder(by_hand.GivenAnswer)
_SIGN_IN: Final = msgspec.json.Decoder(by_hand.SignIn)


async def _wish(request: Request, decoder: Any, most_bytes: int) -> Any:
    """The wish in a request's body, read by the decoder of its shape, if it is JSON, not too large and not too slow."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body must be application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise HTTPException(413, f"the body must have at most {most_bytes} bytes", {"Connection": "close"})
        return decoder.decode(body)
    except TimeoutError:
        raise HTTPException(408, "the body took too long", {"Connection": "close"}) from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise errors.InvalidMessage("body", str(error)) from None
