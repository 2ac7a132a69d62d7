"""The choice of what goes on: at every step of a schedule a thread, or a turn without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn

from .broken import Broken
from .seams import ThreadlessTurn
from .stage import NEVER_NS, Killed, SimulatedThread

if TYPE_CHECKING:
    from .world import World

_SECOND_NS: Final = 1_000_000_000
#: A pick below this lets the running actor go on, where it can: so most runs are a few steps long.
_GO_ON: Final = 100
#: So many steps in a row are no schedule any more: some code runs in a circle. The same for so long a time of waiting.
_MOST_STEPS: Final = 6_000
_LONGEST_CALM_NS: Final = 3600 * _SECOND_NS

Actor = SimulatedThread | ThreadlessTurn


class Scheduler:
    """Director of the stage: picks by the plan as long as that lasts, then in turn, and without faults (the calm)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self._picks = world.plan.picks
        self._steps = len(self._picks)
        self._calm_ns: int | None = None
        self.step = 0
        self.fail = world.trace.fail
        #: What takes turns without a thread.
        self.turns: list[ThreadlessTurn] = []
        self._in_turn = False

    def decide(self) -> SimulatedThread | None:
        """The thread that goes on now; None when the schedule is over."""
        following = self._next(self._world.stage.current)
        while isinstance(following, ThreadlessTurn):
            self._take(following)
            following = self._next(following)
        return following

    def is_calm(self) -> bool:
        """Whether the faults have stopped."""
        return self.step >= self._steps

    # Turns

    def take_turns(self, turn: ThreadlessTurn, is_so: Callable[[], bool]) -> None:
        """Let nobody but this go on until that is so, or it has nothing to do."""
        while not is_so() and turn.next_ns() <= self._clock.now_ns:
            self._take(turn)

    def point_if(self, is_so: Callable[[], bool]) -> None:
        """Others may go on here, where that is so and no turn is being taken."""
        me = self._world.stage.current
        if not self._in_turn and me is not None and not me.killed and is_so():
            self._world.point()

    def _take(self, turn: ThreadlessTurn) -> None:
        self._in_turn = True
        try:
            turn.take()
        except Exception as error:
            self.fail(error)
        finally:
            self._in_turn = False

    def _able_turns(self) -> Iterator[ThreadlessTurn]:
        """Those whose process can run."""
        for turn in self.turns:
            if turn.process is None or (turn.process.alive and turn.process.frozen_ns is None):
                yield turn

    # Choosing

    def _next(self, me: Actor | None) -> Actor | None:
        """The thread or turn after that one."""
        step, self.step = self.step, self.step + 1
        world = self._world
        try:
            if world.faults.left:
                world.faults.do_up_to(step)
            pick = self._picks[step] if step < self._steps else self._calm_pick(step)
            if world.trace.failure is not None:
                return None
            if pick < _GO_ON and isinstance(me, SimulatedThread) and not (me.waits or me.over):
                process = me.process
                if process.alive and process.frozen_ns is None:
                    return me
            return self._choose(step, pick, me)
        except Killed:
            raise
        except (Exception, Broken) as error:
            self.fail(error)
            return None

    def _calm_pick(self, step: int) -> int:
        if self._calm_ns is None:
            self._calm_ns = self._clock.now_ns
            self._world.faults.stop()
        if step > _MOST_STEPS:
            self._stuck(f"after {step} steps")
        return 0

    def _choose(self, step: int, pick: int, me: Actor | None) -> Actor | None:
        if self._world.processes.are_over():
            if step >= self._steps:
                return None
            self._world.processes.restart_all()  # all died before the calm
        able = self._able()
        while not able:
            self._pass_time()
            able = self._able()
        if step < self._steps:
            return able[pick % len(able)]
        after = -1 if me is None else me.number
        return next((each for each in able if each.number > after), able[0])

    def _able(self) -> list[Actor]:
        """The actors that can go on now, in the order in which they came."""
        world, now_ns = self._world, self._clock.now_ns
        world.processes.do_what_is_due(now_ns)
        ready = world.waits.ready()
        able: list[Actor] = []
        for actor in world.stage.actors:
            if actor.waits:
                actor.ready_fds = [fd for fd in actor.fds if fd in ready] if ready and actor.fds else []
                is_woken = actor.ready_fds or (actor.wakes is not None and actor.wakes())
                if not is_woken and actor.until_ns > now_ns:
                    continue
            if actor.process.frozen_ns is None:
                able.append(actor)
        able += (turn for turn in self._able_turns() if turn.next_ns() <= now_ns)
        return able

    def _pass_time(self) -> None:
        """Nobody can go on: let time pass until somebody can."""
        world, now_ns = self._world, self._clock.now_ns
        moments = world.processes.moments_ns() + world.hints.moments_ns()
        moments += [turn.next_ns() for turn in self._able_turns()]
        moments += [actor.until_ns for actor in world.stage.actors if actor.waits]
        later = [moment for moment in moments if now_ns < moment < NEVER_NS]
        if not later or (self._calm_ns is not None and min(later) - self._calm_ns > _LONGEST_CALM_NS):
            self._stuck("for an hour" if later else "for ever")
        self._clock.now_ns = min(later)

    def _stuck(self, how: str) -> NoReturn:
        left = [f"{actor.process!r} {actor.name}" for actor in self._world.stage.actors]
        raise Broken(f"these wait {how}: {', '.join(left)}")
