"""What a peer must be able to do to be measured. The same few calls for everybody, so that the frame costs all alike."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

Payload = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

#: With it and its number a payload is a JSON object of about 195 bytes.
_FILLER: Final = {
    "kind": "review",
    "file": "src/postroom/agent.py",
    "text": "Please look at the way in which this function waits; the rest of the change is fine as it is.",
    "labels": ["bench", "small"],
}


def make_payload(number: int, sent_ns: int = 0) -> Payload:
    """A message such as agents send, with its number, and the moment before it was sent."""
    return {"n": number, "sent": sent_ns, **_FILLER}


def encode(payload: Payload) -> bytes:
    """JSON for peers that have no codec of their own: the one that Postroom uses, so that the codec decides nothing."""
    return _encode(payload)


def decode(text: bytes | str) -> Payload:
    """The payload of that JSON."""
    return _decode(text)


class NotHere(Exception):
    """This peer, or this work of it, cannot be measured here; the text says why."""


class Setup(msgspec.Struct, frozen=True):
    """How a client is to be opened."""

    address: str  # a folder, or what the peer's `serve` gave
    me: str  # the name under which it receives
    to: str  # the name to which it sends
    sync: str = "normal"  # or "full": on disk before a call returns
    way: str = ""  # one of the peer's ways to receive or to ask
    crowd: bool = False  # several consumers share one box


class Client(ABC):
    """One connection of one process. `receive` claims one message, `ack` ends it; each is a call of its own."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def send(self, payload: Payload) -> None:
        """Store one message; it is kept when this returns."""

    def send_batch(self, payloads: Sequence[Payload]) -> None:
        """Store several in one go, if the peer can."""
        raise NotHere("no batches")

    @abstractmethod
    def receive(self, timeout_s: float) -> tuple[Payload, Any] | None:
        """Claim the next message, waiting for it the way the peer waits; it and what `ack` needs."""

    @abstractmethod
    def ack(self, handle: Any) -> None:
        """The message is done."""

    def messages(self, timeout_s: float) -> Iterator[Payload]:
        """One message after the other, each acked before the next is claimed, until none came for so long."""
        while (got := self.receive(timeout_s)) is not None:
            self.ack(got[1])
            yield got[0]

    def ask(self, payload: Payload, timeout_s: float) -> Payload:
        """Send a question, wait for its answer."""
        self.send(payload)
        got = self.receive(timeout_s)
        if got is None:
            raise TimeoutError("no answer came")
        self.ack(got[1])
        return got[0]

    def answer(self, timeout_s: float) -> Iterator[None]:
        """Answer one question after the other, until none came for so long. Answers before it acks."""
        while (got := self.receive(timeout_s)) is not None:
            self.send(got[0])
            self.ack(got[1])
            yield

    def prefill(self, count: int) -> None:
        """W7: leave that many messages for `receive`, as its way says. In W7 a client sends to itself."""
        for start in range(0, count, 1000):
            self.send_batch([make_payload(number) for number in range(start, min(count, start + 1000))])

    def close(self) -> None:  # noqa: B027  most need nothing
        """End the connection."""


class Peer:
    """What is known of a peer without using it."""

    name: ClassVar[str]
    #: What it is made of, and what a call that returned is safe from.
    about: ClassVar[str]
    #: Ways to receive (works W3 and W4) and to ask (W6); "" is the only one.
    receive_ways: ClassVar[tuple[str, ...]] = ("",)
    ask_ways: ClassVar[tuple[str, ...]] = ("",)
    #: What lies beside the messages that are sent and received in W7.
    depth_ways: ClassVar[tuple[str, ...]] = ("pending",)
    #: W7: more than so many are not put into it, because that takes too long; None is no limit.
    most_pending: ClassVar[int | None] = None
    #: Whether it can be told to have every message on disk before a call returns, and is measured so too.
    has_full_sync: ClassVar[bool] = False
    #: What is started to measure it: a program that knows it.
    program: ClassVar[tuple[str, ...]] = (sys.executable, "-P", "-m", "postroom.cli.bench.worker")
    #: Works that it is not measured with, and why.
    not_measured: ClassVar[dict[str, str]] = {}

    @staticmethod
    def versions() -> dict[str, str]:
        """The versions of everything it is made of. Raises NotHere when something is missing."""
        return {}

    @staticmethod
    def serve(folder: Path, sync: str) -> AbstractContextManager[str]:
        """Start what it needs with its data in the folder; gives the address for clients, and ends it all after."""
        return nullcontext(str(folder))

    @staticmethod
    def client(setup: Setup) -> Client:
        """Open a connection."""
        raise NotImplementedError
