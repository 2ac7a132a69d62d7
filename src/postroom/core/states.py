"""The states of a message and the moves between them, as data: a state machine, and how the clock moves it.

The documentation's diagram and the page read these tables, and every ledger of the model test is checked against them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class State(IntEnum):
    """Where a message stands. The numbers are stored; never renumber them."""

    READY = 0  # stored, and may be claimed now
    CLAIMED = 1  # an agent works on it under a lease
    ACKED = 2  # done
    ANSWERED = 3  # done, and an answer was stored with it
    REFUSED = 4  # the receiver refused it, and why
    EXPIRED = 5  # its time to live ended before a receiver finished it
    DEAD = 6  # set aside after too many failed deliveries
    DELAYED = 7  # stored, and may be claimed later: a delayed send or a retry
    AWAITED = 8  # stored, an answer kept for the asker that waits for it; receive() does not see it
    BLOCKED = 9  # stored, behind another message of its order key that has not ended yet
    WITHDRAWN = 10  # its sender took it back, or replaced it, before a receiver claimed it


#: For each state the word of receipts, and that of the source document's `status` column.
_WORDS: Final = {
    State.READY: ("stored", "pending"),
    State.CLAIMED: ("claimed", "processing"),
    State.ACKED: ("acked", "done"),
    State.ANSWERED: ("answered", "done"),
    State.REFUSED: ("refused", "failed"),
    State.EXPIRED: ("expired", "failed"),
    State.DEAD: ("dead", "failed"),
    State.DELAYED: ("stored", "pending"),
    State.AWAITED: ("stored", "pending"),
    State.BLOCKED: ("stored", "pending"),
    State.WITHDRAWN: ("withdrawn", "failed"),
}
PUBLIC_NAME: Final = {state: words[0] for state, words in _WORDS.items()}
STATUS_WORD: Final = {state: words[1] for state, words in _WORDS.items()}

WAITING: Final = frozenset({State.READY, State.DELAYED, State.AWAITED, State.BLOCKED})
#: A message in one of these can be withdrawn: no receiver has it, and no asker waits for it.
WITHDRAWABLE: Final = frozenset({State.READY, State.DELAYED, State.BLOCKED})
OPEN: Final = WAITING | {State.CLAIMED}
FINISHED: Final = frozenset(State) - OPEN
PUBLIC_STATES: Final = tuple(dict.fromkeys(PUBLIC_NAME.values()))


class Move(NamedTuple):
    """One legal step: the ledger's word for it, from where, to where, and what it means."""

    event: str
    sources: frozenset[State]
    target: State
    meaning: str


#: READY too: until another receiver takes a message, the one whose lease has ended may still settle it.
_C = frozenset({State.CLAIMED, State.READY})
ENDED_BADLY: Final = frozenset({State.DEAD, State.EXPIRED, State.REFUSED})

MOVES: Final = (
    Move("claimed", frozenset({State.READY, State.AWAITED}), State.CLAIMED, "a receiver takes it under a lease"),
    Move("due", frozenset({State.DELAYED}), State.READY, "its delay has passed"),
    Move("unblocked", frozenset({State.BLOCKED}), State.READY, "the message before it in its order key has ended"),
    Move("acked", _C, State.ACKED, "the receiver is done with it"),
    Move("answered", _C, State.ANSWERED, "the receiver stored an answer and is done with it"),
    Move("refused", _C, State.REFUSED, "the receiver refused it"),
    Move("retried", _C, State.DELAYED, "the receiver failed; it will be delivered again later"),
    Move(
        "released",
        frozenset({State.CLAIMED}),
        State.READY,
        "the receiver died or its lease ended; it will be delivered again",
    ),
    Move(
        "returned",
        _C,
        State.READY,
        "the receiver left before seeing it, or was told to stop; the delivery does not count",
    ),
    Move("dead", _C, State.DEAD, "the last allowed delivery failed, or the receiver gave it up"),
    Move("expired", WITHDRAWABLE | {State.CLAIMED}, State.EXPIRED, "its time to live ended"),
    Move("withdrawn", WITHDRAWABLE, State.WITHDRAWN, "its sender took it back or replaced it before a receiver had it"),
    Move("requeued", ENDED_BADLY, State.READY, "it was put back, with its delivery count reset"),
    Move("unheld", frozenset({State.AWAITED}), State.READY, "the asker gave up; the answer is ordinary mail"),
)

#: The events that end a message, in whatever way.
ENDING: Final = frozenset(move.event for move in MOVES if move.target in FINISHED)

#: What ledgers say when nobody was there to say it.
LEASE_ENDED: Final = "lease ended before the receiver settled it"
OWNER_GONE: Final = "the receiver's process is gone"
ASKER_GONE: Final = "the asker's process is gone"
NOT_IN_TIME: Final = "no receiver finished it in time"

#: Events of the ledger that do not change the state: what a door did, what the owner asked for, what a person did. (An
#: owner whose lease has ended and that extends it holds the message again.)
NOTES: Final = ("notified", "shown", "extended", "abandoned", "by_hand")


_STATES: Final = tuple(State)


def judge(state: int, wake_at: int | None, expires: int | None, spent: bool, now: int) -> State:
    """The state as a reader sees it: what the clock has ended counts as ended, though nobody has written it yet.

    `wake_at` is the end of a claimed message's lease, or of a delayed one's delay; `spent`: its deliveries are used up.
    All times are the room's. `judged` in stores/sqlite/schema.sql is the same rule (tests/stores/test_sqlite.py
    compares them).
    """
    expired = expires is not None and expires <= now
    woken = wake_at is not None and wake_at <= now
    if not (expired or woken):
        return _STATES[state]
    if state in WITHDRAWABLE and expired:
        return State.EXPIRED
    if state == State.DELAYED and woken:
        return State.READY
    if state == State.CLAIMED and woken:
        return State.DEAD if spent else State.EXPIRED if expired else State.READY
    return _STATES[state]


def states_named(name: str) -> frozenset[State]:
    """All states behind a public word ("stored", "dead", …) or a status word ("pending", …).

    Raises ValueError that lists the words when there is no such one.
    """
    found = frozenset(state for state, words in _WORDS.items() if name in words)
    if not found:
        words = ", ".join((*PUBLIC_STATES, *dict.fromkeys(STATUS_WORD.values())))
        raise ValueError(f"there is no state {name!r}; the states are: {words}")
    return found
