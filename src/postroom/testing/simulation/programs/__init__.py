"""The programs of simulated agents: each operation of a plan, done by the calls that every user makes.

An operation is a function of a `Program` and of what the plan drew for it; the modules have one table each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from postroom.errors import MailboxFull, NoMail, NotAcked, OutcomeUnknown, RoomBusy, RoomUnreachable, TooManyHops
from postroom.testing.simulation.plans import Op
from postroom.testing.simulation.process import Process
from postroom.testing.simulation.world import World

from . import board, decisions, limits, mail, orders, pools, questions, schedules, sessions
from .program import Program

#: What an operation may be told, after which the program goes on.
_TOLD: Final = (MailboxFull, NoMail, NotAcked, OutcomeUnknown, RoomBusy, RoomUnreachable, TooManyHops)
OPERATIONS: Final[dict[str, Callable[..., None]]] = {
    **mail.OPERATIONS,
    **questions.OPERATIONS,
    **board.OPERATIONS,
    **sessions.OPERATIONS,
    **decisions.OPERATIONS,
    **pools.OPERATIONS,
    **schedules.OPERATIONS,
    **orders.OPERATIONS,
    **limits.OPERATIONS,
}


def run_program(world: World, process: Process) -> None:
    """Do every operation, again and again until the calm begins; then finish that one, and close the room.

    What is left then is received at the end of the schedule. No choice is taken from the seed in the calm, so that
    to do the rest of the operations there would take time and try little.
    """
    program = Program(world, process)
    try:
        for kind, *args in _ops(world, process):
            world.point()  # also where the operation takes no step of the store
            program.tell(f"does: {' '.join(map(str, (kind, *args)))}")
            program.began = program.troubles()
            try:
                OPERATIONS[str(kind)](program, *args)
            except _TOLD as error:
                program.tell(f"is told: {type(error).__name__}")
        program.close()
    except BaseException:
        for gateway in program.gateways:
            gateway._closed = True
        raise


def _ops(world: World, process: Process) -> Iterator[Op]:
    ops = process.part.ops
    while ops and (process.next_op == 0 or not world.is_calm()):
        process.next_op += 1
        yield ops[(process.next_op - 1) % len(ops)]
