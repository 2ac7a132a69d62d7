"""The protocol between a pool and its workers: typed frames of JSON, each with its length before it.

A worker has two lines. On the *work* line it gets one `evaluate` after the other and tells what came of each; its main
thread reads it. On the *side* line it hears `ping`, `abort` and `shutdown` while it works; a thread of its own reads
it.

JSON, because a message is JSON and may hold any number that JSON can; msgpack is no faster (bench/micro/frames.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from postroom.core.config import prepare_types
from postroom.core.message import payload_text
from postroom.core.system.framing import HEADER_BYTES
from postroom.errors import Fault, InvalidMessage, raise_faults

from .evaluation import RESPOND_ABOVE, Evaluation

#: No frame is longer than this; a worker that says so says nonsense.
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024

#: Why a worker answers with an error: the evaluator raised, or gave what is no evaluation; it was cancelled; it could
#: not be loaded.
ErrorKind = Literal["raised", "aborted", "boot"]


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=str.lower, gc=False):
    """One thing that is said."""


class Ping(Frame, frozen=True):
    """Are you there?"""

    number: int


class Evaluate(Frame, frozen=True):
    """Judge this message. A request that is sent again has a higher attempt."""

    request: int
    attempt: int
    asked_ns: int
    message: dict[str, Any]  # on the way out, the text that `message_text` made


class Abort(Frame, frozen=True):
    """Stop working on this request, if you still do."""

    request: int


class Shutdown(Frame, frozen=True):
    """Stop working, and end."""


class Ready(Frame, frozen=True):
    """The evaluator is loaded; work may come."""

    pid: int
    memory_bytes: int


class Pong(Frame, frozen=True):
    """The answer to the ping of that number. Working on that request, if any."""

    ping: int
    busy_with: int | None
    memory_bytes: int


class Result(Frame, frozen=True):
    """What the evaluator thinks. More may follow unless it is final."""

    request: int
    attempt: int
    final: bool
    evaluation: Evaluation
    memory_bytes: int


class Error(Frame, frozen=True):
    """There is no evaluation of that request (0: of none, the worker could not start), and nothing more follows."""

    request: int
    attempt: int
    kind: ErrorKind
    text: str
    trace: str
    memory_bytes: int


ToWorker = Ping | Evaluate | Abort | Shutdown
FromWorker = Ready | Pong | Result | Error

_encode = msgspec.json.Encoder().encode
_TO_WORKER: Final = msgspec.json.Decoder(ToWorker)
_FROM_WORKER: Final = msgspec.json.Decoder(FromWorker)


class BrokenFrame(Exception):
    """Bytes that came over a line are no frame."""


def pack(frame: ToWorker | FromWorker) -> bytes:
    """The bytes of a frame. Raises TypeError, ValueError or RecursionError for what JSON cannot hold."""
    body = _encode(frame)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def message_text(message: Any) -> Any:
    """A message as it goes into a frame. Raises InvalidMessage when it is no message."""
    if not isinstance(message, Mapping):
        raise InvalidMessage("message", f"must be a dict, not {type(message).__name__}")
    faults: list[Fault] = []
    if not isinstance(message.get("id"), str):
        faults.append(Fault("message.id", f"must be text, not {message.get('id')!r}"))
    text = plain_text("message", message, faults)
    raise_faults(faults)
    return msgspec.Raw(text)


def plain_text(name: str, value: Mapping[str, Any], faults: list[Fault]) -> str:
    """A message, or settings, as JSON text for a worker's process. Adds the faults of values that no frame can hold."""
    found: list[Fault] = []
    text = payload_text(value if isinstance(value, dict) else dict(value), found, MAX_FRAME_BYTES // 2)
    faults += [Fault(fault.field.replace("payload", name, 1), fault.problem) for fault in found]
    return text


def evaluation_of(given: Any, message_id: str) -> Evaluation:
    """The result of an evaluator, as an evaluation of that message. Raises ValueError or TypeError when it is none."""
    if isinstance(given, Evaluation):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"the evaluator must return an Evaluation or a dict of its fields, not {type(given).__name__}")
    unknown = sorted(set(given) - _FIELDS)
    if unknown:
        raise ValueError(f"an evaluation has no field {unknown[0]!r}; the fields are: {', '.join(sorted(_FIELDS))}")
    fields = {"message_id": message_id, **given}
    sure = fields.get("confidence")
    if isinstance(sure, int | float):
        fields.setdefault("should_respond", sure > RESPOND_ABOVE)
    return msgspec.convert(fields, Evaluation)  # a ValidationError is a ValueError


_FIELDS: Final = frozenset(Evaluation.__struct_fields__)


class Splitter:
    """Makes frames of the bytes that come over one line."""

    def __init__(self, *, in_worker: bool) -> None:
        self._decode: Any = (_TO_WORKER if in_worker else _FROM_WORKER).decode
        self._rest = b""

    def feed(self, part: bytes) -> list[Any]:
        """The frames that are whole now. Raises BrokenFrame for what cannot be one."""
        if not self._rest and len(part) - HEADER_BYTES == int.from_bytes(part[:HEADER_BYTES], "big"):
            return [self._read(part[HEADER_BYTES:])]  # as it mostly is: one frame, and whole
        data = self._rest + part
        frames = []
        at = 0
        while len(data) - at >= HEADER_BYTES:
            size = int.from_bytes(data[at : at + HEADER_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame of {size} bytes")
            end = at + HEADER_BYTES + size
            if len(data) < end:
                break
            frames.append(self._read(data[at + HEADER_BYTES : end]))
            at = end
        self._rest = data[at:]
        return frames

    def _read(self, body: bytes) -> Any:
        try:
            return self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokenFrame(str(error)) from error


prepare_types(Evaluation)
