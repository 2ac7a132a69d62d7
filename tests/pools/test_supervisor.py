"""What follows from the end of a worker: decided by a pure function, so any history can be tried."""

from __future__ import annotations

import random

from postroom.pools.restarts import Exit, GiveUp, Recycling, Restart, RestartPolicy, decide

POLICY = RestartPolicy()


def died(*at_s: float) -> list[Exit]:
    return [Exit(at, "died", "was killed") for at in at_s]


def test_the_first_end_is_followed_by_a_start_at_once() -> None:
    assert decide(died(100.0), POLICY, 0.5) == Restart(0.0)


def test_three_restarts_in_five_seconds_are_allowed_and_the_fourth_is_not() -> None:
    assert isinstance(decide(died(10, 11, 12), POLICY, 0.5), Restart)
    given_up = decide(died(10, 11, 12, 13), POLICY, 0.5)

    assert given_up == GiveUp("it ended 4 times within 5 s; the last time it was killed")


def test_old_ends_are_forgiven() -> None:
    assert decide(died(*range(0, 1000, 6)), POLICY, 0.5) == Restart(0.0)
    assert isinstance(decide(died(10, 11, 12, 15.5), POLICY, 0.5), Restart)


def test_delays_grow_and_have_an_end() -> None:
    patient = RestartPolicy(max_restarts=50, period_s=100, backoff_s=0.1, backoff_cap_s=1)
    delays = [decide(died(*range(n)), patient, 1.0).delay_s for n in range(1, 20)]  # type: ignore[union-attr]

    assert delays[:4] == [0.0, 0.1, 0.2, 0.4]
    assert delays == sorted(delays)
    assert delays[-1] == 1


def test_one_that_cannot_start_is_not_tried_again() -> None:
    given_up = decide([Exit(1, "boot", "could not load its evaluator")], POLICY, 0.5)

    assert given_up == GiveUp("it could not start: could not load its evaluator")


def test_a_limit_of_none_gives_up_at_once() -> None:
    assert isinstance(decide(died(1), RestartPolicy(max_restarts=0), 0.5), GiveUp)


def test_never_more_restarts_than_allowed_in_any_period() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(2000):
        policy = RestartPolicy(chance.randrange(6), chance.uniform(0.5, 10))
        now, exits, restarts = 0.0, [], []
        for _ in range(40):
            now += chance.expovariate(1.0)
            exits.append(Exit(now, "died", "died"))
            if isinstance(decide(exits, policy, chance.random()), GiveUp):
                break
            restarts.append(now)
        for at in restarts:
            assert sum(at - policy.period_s < other <= at for other in restarts) <= policy.max_restarts


def test_recycling_is_spread_over_a_fifth() -> None:
    recycling = Recycling(after_tasks=100)
    firsts = [next(n for n in range(200) if recycling.due(n, 0, chance / 10)) for chance in range(11)]

    assert firsts == [100, 98, 96, 94, 92, 90, 88, 86, 84, 82, 80]


def test_recycling_by_memory() -> None:
    recycling = Recycling(above_mib=100)

    assert not recycling.due(10**9, 100 << 20, 0.0)
    assert recycling.due(1, (100 << 20) + 1, 0.0)
    assert recycling.due(1, 81 << 20, 1.0)
    assert not Recycling().due(10**9, 1 << 50, 0.5)
