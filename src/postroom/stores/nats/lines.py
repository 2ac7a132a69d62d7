"""The lines of order keys on NATS: which message of a key in a mailbox is the first, as the leader knows it."""

from __future__ import annotations

from postroom.core.states import FINISHED

from .entries import Kept, line_of
from .room import NatsRoom


def is_first(room: NatsRoom, kept: Kept) -> bool:
    """Whether a message has no order key, or is the first of its line, as the leader knows it.

    Places of messages that have ended are taken away on the way; what stands first is known here afterwards.
    """
    line = line_of(kept.entry)
    if line is None:
        return True
    while (place := room.wire.run(room.wire.next(1, f"{line}.>"))) is not None:
        id = place.subject.rpartition(".")[2]
        if id == kept.entry.id:
            return True
        before = room.read(id)
        if before is not None and before.state not in FINISHED and line_of(before.entry) == line:
            return False  # else it has ended, or stands in another mailbox now
        room.wire.run(room.wire.api(f"STREAM.MSG.DELETE.{room.wire.stream}", seq=place.seq, no_erase=True))
    return False
