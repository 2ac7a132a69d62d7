"""Run simulated schedules from a shell: `python -m postroom.testing.simulation --count 1000 --seed 1`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter

from postroom.core.clock import SYSTEM

from .plans import THEMES
from .runs import DEFAULT_STEPS, RARE, RARE_ON, STORES, ScheduleOutcome, simulate
from .shrinking import shrink

_EXAMPLES = """examples:
  python -m postroom.testing.simulation --count 1000            a thousand schedules, from seed 1
  python -m postroom.testing.simulation --count 1 --seed 4711   that schedule again
  python -m postroom.testing.simulation --count 100 --store sqlite
  python -m postroom.testing.simulation --count 100 --store nats    on a simulated NATS server
  python -m postroom.testing.simulation --count 100 --theme limits  limits and pauses alone
"""
_PROGRESS_NS = 5_000_000_000


class _Stopper:
    """The handler of signals that ask the command to end: after this schedule, or, for the second time, at once.

    It does not raise the first time: a finalizer in whose middle a signal comes would swallow that.
    """

    number = 0

    def __call__(self, number: int, _: object) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number


def main() -> int:
    """Run the schedules that the command line asks for: 0 when all held, 1 at the first failure.

    130 on Ctrl-C, 143 on SIGTERM, 141 when nobody reads what is printed any more. Nothing is left behind.
    """
    args = _parser().parse_args()
    stopper = _Stopper()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopper)
    try:
        code = _run(args, stopper)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try once more at its end
        return 141
    return code


def _run(args: argparse.Namespace, stopper: _Stopper) -> int:
    reached: Counter[str] = Counter()
    began_ns = said_ns = SYSTEM.steady_ns()
    done = 0
    try:
        print(f"{args.count} schedules on {args.store}, from seed {args.seed}", file=sys.stderr, flush=True)
        for seed in range(args.seed, args.seed + args.count):
            outcome = simulate(seed, store=args.store, steps=args.steps, theme=args.theme)
            done += 1
            reached += outcome.reached
            if stopper.number:
                raise KeyboardInterrupt  # as the second one does by itself
            if outcome.failure is not None:
                _report(outcome, args.store)
                return 1
            if SYSTEM.steady_ns() - said_ns > _PROGRESS_NS:
                said_ns = SYSTEM.steady_ns()
                print(f"{done} of {args.count} schedules, {_rate(done, began_ns):.0f} a second", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _summary(done, began_ns, reached, args.store)
        return 128 + stopper.number
    _summary(done, began_ns, reached, args.store)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m postroom.testing.simulation",
        description="Run simulated schedules of agents under faults. The same seed is the same run.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=_positive, default=1000, help="how many schedules (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; the others follow it (default: 1)")
    parser.add_argument("--store", choices=sorted(STORES), default="memory", help="the store (default: memory)")
    parser.add_argument("--theme", choices=sorted(THEMES), help="only schedules of this theme (default: all themes)")
    parser.add_argument(
        "--steps", type=_positive, default=DEFAULT_STEPS, help=f"steps before the calm (default: {DEFAULT_STEPS})"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return number


def _report(outcome: ScheduleOutcome, store: str) -> None:
    print(f"seed {outcome.plan.seed} fails: {outcome.failure}", file=sys.stderr)
    print("making it smaller ...", file=sys.stderr)
    print("\n".join(shrink(outcome, store=store).report()))


def _rate(done: int, began_ns: int) -> float:
    return done / ((SYSTEM.steady_ns() - began_ns) / 1e9)


def _summary(done: int, began_ns: int, reached: Counter[str], store: str) -> None:
    took_s = (SYSTEM.steady_ns() - began_ns) / 1e9
    print(f"{done} schedules in {took_s:.1f} s, {_rate(done, began_ns):.0f} a second; no failure")
    for state in sorted({*RARE_ON.get(store, RARE), *reached}, key=lambda state: (-reached[state], state)):
        print(f"{reached[state]:9}  {state}{'' if reached[state] else '  (never reached)'}")


if __name__ == "__main__":
    sys.exit(main())
