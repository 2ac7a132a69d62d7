"""The limits of a room on NATS as this process knows them: what their cell says, the gates of channels, the buckets.

Copies, never the truth: a claim that was let pass by them replaces exactly the gate and the buckets that are known here,
in the step that claims, and is made anew when one of them has changed. Nothing here waits or talks to anybody; callers
hold the follower's lock.
"""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

from postroom.core.message import decode_payload
from postroom.stores.contract import LIMITS, Want
from postroom.stores.gates import NO_LIMITS, ChannelLimits, Limits, parse_limits

from .entries import GateClaim, GateDoc, cell_subject, decode_cell, decode_gate, gate_subject
from .wire import StoredEntry

#: Where the limits are kept.
LIMITS_SUBJECT: Final = cell_subject(LIMITS)
#: How long the limits that are known here are believed without a look at the leader: hints can be lost.
BELIEVED_NS: Final = 2_000_000_000
#: Claims that the entry of a gate lists. A receiver that lacks older ones looks at its channel.
_MAX_CLAIMS: Final = 64
#: Buckets that are remembered; there may be one for each sender.
_MAX_BUCKETS: Final = 10_000


class KnownGate(NamedTuple):
    """A gate with the sequence of its entry; 0: there is none."""

    seq: int
    doc: GateDoc


class KnownLimits:
    """The limits that are known here, and how far the gates are known."""

    def __init__(self) -> None:
        self.limits: Limits = NO_LIMITS
        #: The sequence of their cell.
        self.version = 0
        self.looked_ns: int | None = None
        #: Held by the one thread that claims in limited channels: the others would only be in its way.
        self.passing = threading.Lock()
        self.gates: dict[str, KnownGate] = {}  # by subject
        #: channel -> the gate up to which all claims are known here; and the version of the limits for which the whole
        #: channel was looked at
        self.passed: dict[str, int] = {}
        self.surveyed: dict[str, int] = {}
        #: name -> the sequence of the cell of a bucket, and what it holds
        self.buckets: dict[str, tuple[int, Any]] = {}

    def is_due(self, now_ns: int) -> bool:
        """Whether a look at the leader is due."""
        return self.looked_ns is None or not 0 <= now_ns - self.looked_ns < BELIEVED_NS

    def concern(self, want: Want) -> bool:
        """Whether a claim must go by limits or pauses."""
        limits = self.limits
        if not limits:
            return False
        if want.agent in limits.agents or want.channels is None or want.ids is not None:
            return True
        return not limits.channels.keys().isdisjoint(want.channels)

    def of(self, channel: str) -> ChannelLimits | None:
        """The limits of a channel; None where it has none."""
        return self.limits.channels.get(channel)

    def has_gate(self, channel: str) -> bool:
        """Whether so many of a channel may be claimed at once, and no more."""
        limits = self.limits.channels.get(channel)
        return limits is not None and limits.is_concurrent()

    def gated(self, want: Want) -> list[str]:
        """The channels of that kind which a receiver may take from."""
        names = self.limits.channels if want.channels is None or want.ids is not None else want.channels
        return [name for name in dict.fromkeys(names) if self.has_gate(name)]

    # Learning

    def learn(self, subject: str, seq: int, data: bytes) -> bool:
        """An entry was read, written or heard of; whether the limits have changed."""
        if subject == LIMITS_SUBJECT and seq > self.version:
            value = decode_payload(bytes(decode_cell(data).value)) if data else None
            self.version, self.limits = seq, parse_limits(value)
            return True
        gate = self.gates.get(subject)
        if gate is not None and seq > gate.seq:
            self.gates[subject] = _known_gate(gate.doc.channel, seq, data)
        return False

    def saw(self, found: StoredEntry | None, version: int) -> bool:
        """The leader was asked for the limits when that version was known; whether they have changed."""
        if found is not None:
            return self.learn(*found[:3])
        if self.version != version or not self.limits:
            return False
        self.limits = NO_LIMITS
        return True

    def saw_gate(self, channel: str, found: StoredEntry | None) -> None:
        """The leader was asked for a gate."""
        subject = gate_subject(channel)
        known = self.gates.get(subject)
        if found is not None and (known is None or found.seq > known.seq):
            self.gates[subject] = _known_gate(channel, found.seq, found.data)
        elif found is None and (known is None or known.seq):
            # there was none, or a sweep has deleted it, before these limits came: what is known from then is not enough
            self.gates[subject] = KnownGate(0, GateDoc(channel, since=self.version))
            self.passed.pop(channel, None)

    def saw_bucket(self, name: str, found: StoredEntry | None) -> None:
        """The leader was asked for a bucket."""
        if len(self.buckets) >= _MAX_BUCKETS:
            self.buckets.clear()
        value = decode_payload(bytes(decode_cell(found.data).value)) if found is not None and found.data else None
        self.buckets[name] = (0 if found is None else found.seq, value)

    # Gates

    def gate(self, channel: str) -> KnownGate | None:
        """A gate as it is known here; None when nobody has looked for it yet."""
        return self.gates.get(gate_subject(channel))

    def is_known(self, channel: str) -> bool:
        """Whether all claims that were made through a gate are known here, as far as the gate itself is."""
        gate = self.gate(channel)
        return gate is not None and self.passed.get(channel) == gate.seq and self.surveyed.get(channel) == self.version


def _known_gate(channel: str, seq: int, data: bytes) -> KnownGate:
    """A gate as it was read or heard of. One that was deleted lists nothing: the whole channel has to be looked at."""
    return KnownGate(seq, decode_gate(data) if data else GateDoc(channel, since=seq))


def next_gate(gate: KnownGate, ended: set[str], ids: dict[str, int]) -> GateDoc:
    """A gate after claims of these messages, whose entries had these sequences; without those that have ended."""
    new = [GateClaim(id, seq, gate.seq) for id, seq in ids.items()]
    claims = [claim for claim in gate.doc.claims if claim.id not in ended and claim.id not in ids] + new
    since = max((claim.gate + 1 for claim in claims[:-_MAX_CLAIMS]), default=0)
    return GateDoc(gate.doc.channel, tuple(claims[-_MAX_CLAIMS:]), max(gate.doc.since, since))
