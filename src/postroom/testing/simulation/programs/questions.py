"""Asking, as simulated agents do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.errors import AskFailed, AskTimeout, NotAnswered, PeerGone, Refused
from postroom.testing.simulation.broken import Broken

from .program import SECOND_NS, Program

#: An asker may be told so much after its time: the looks that come a second apart.
_GRACE_S: Final = 1.5
#: A peer that ran, or went, so long ago was seen to run, or to be gone.
_SEEN_NS: Final = 5 * SECOND_NS


def _ask(program: Program, to: str, timeout_s: float) -> None:
    agent, payload, world = program.agent(), program.payload(), program.world
    since_ns, (stood_ns, failed) = program.clock.now_ns, program.troubles()
    was_open = world.left_ns(to) is None
    try:
        answer = agent.ask(to, payload, timeout_s)
    except AskFailed as error:
        program.tell(f"is told: {type(error).__name__}")
        world.happened(_TOLD[type(error)])
        if isinstance(error, AskTimeout) and was_open and stood_ns == program.stood_ns():
            _judge_silence(program, to, since_ns)
        if isinstance(error, PeerGone):
            program.judge.peer_is_gone(program.process, to, payload)
    else:
        of_a_pool = f'"{payload["n"]}"' in str(answer.payload.get("reasoning"))
        if answer.payload != {"re": payload["n"]} and not of_a_pool:
            raise Broken(f"{program.process!r} asked {payload['n']}, and was answered {answer.payload}")
        world.happened("an asker got its answer")
    spent_s = (program.clock.now_ns - since_ns + stood_ns - program.stood_ns()) / SECOND_NS
    if spent_s > timeout_s + _GRACE_S and failed == program.process.failed:
        raise Broken(f"{program.process!r} was told after {spent_s:.1f} s, and had asked for {timeout_s:g} s")


def _judge_silence(program: Program, peer: str, since_ns: int) -> None:
    """An asker ran out of time: its peer must not have been gone for long, having run while it waited."""
    if not program.judge.sees_deaths:
        return
    left_ns = program.world.left_ns(peer)
    if left_ns is None or program.world.open_since_ns(peer) > since_ns:  # it came and went between two looks
        return
    if left_ns - since_ns > _SEEN_NS and program.clock.now_ns - left_ns > _SEEN_NS:
        gone_s = (program.clock.now_ns - left_ns) / SECOND_NS
        raise Broken(f"{program.process!r} was not told that {peer} had been gone for {gone_s:.1f} s")


def _ask_long(program: Program, to: str) -> None:
    _ask(program, to, 15.0)


_TOLD: Final = {
    PeerGone: "an asker was told that its peer is gone",
    Refused: "an asker was refused",
    NotAnswered: "a question ended without an answer",
    AskTimeout: "an asker ran out of time",
}

OPERATIONS: Final[dict[str, Callable[..., None]]] = {"ask": _ask, "ask long": _ask_long}
