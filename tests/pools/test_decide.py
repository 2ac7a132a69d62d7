"""Who answers: a pure decision. The same goes in, the same comes out; everybody is granted or told why not."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from postroom import Evaluation, PostroomError
from postroom.pools.decide import (
    Config,
    Decision,
    Denial,
    Known,
    Trigger,
    decayed,
    decide,
    decision_from,
    half_life_for,
    next_moment,
    seed_of,
)

NAMES = ("ada", "bob", "cyd", "dan", "eve")


def said(confidence: float, *, respond: bool = True, stage: Any = "deep") -> Evaluation:
    return Evaluation("m1", confidence, respond, stage=stage)


def draw(chance: random.Random) -> tuple[dict[str, Known], float, Config, int]:
    """Any state of a hearing, at any moment, under any rules."""
    names = [f"p{number}" for number in range(chance.randrange(8))]
    evaluations = {name: draw_known(chance) for name in names}
    config = Config(
        half_life_s=chance.uniform(0.01, 100),
        deadline_s=chance.uniform(0, 30),
        quorum=chance.choice([None, 1, 2, 5]),
        fast_path_s=chance.choice([None, 0.0, 0.1]),
        max_responders=chance.randrange(1, 4),
        min_confidence=chance.random(),
        diversity=chance.choice([0.0, 0.2, 0.9]),
        max_hops=chance.choice([0, 3, 8]),
        hop_count=chance.randrange(9),
        sender=chance.choice([None, "p0", "p1", "somebody"]),
        message_at=chance.uniform(-1000, 10),
        began_at=chance.uniform(0, 10),
        spoken={name: chance.uniform(-100, 10) for name in names if chance.random() < 0.5},
    )
    return evaluations, chance.uniform(0, 50), config, chance.randrange(2**48)


def draw_known(chance: random.Random) -> Known:
    kind = chance.randrange(6)
    if kind == 0:
        return None
    if kind == 1:
        return PostroomError("gone")
    if kind == 2:
        return Evaluation.unparsed("m1", "hm")
    if kind == 3:
        return Evaluation.failed("m1", "no server")
    return said(
        chance.choice([0, 0.5, 1, chance.random()]),
        respond=chance.random() < 0.6,
        stage=chance.choice(["quick", "deep"]),
    )


def check(evaluations: dict[str, Known], config: Config, decision: Decision) -> None:
    """What holds of every decision."""
    assert set(decision.outcomes) == set(evaluations)
    for name, outcome in decision.outcomes.items():
        assert outcome.granted == (outcome.reason is None), (name, outcome)
        assert outcome.granted == (name in decision.granted)
        if outcome.confidence is not None:
            assert outcome.confidence == evaluations[name].confidence  # type: ignore[union-attr]
            assert outcome.decayed is not None
            assert 0 <= outcome.decayed <= outcome.confidence
    assert len(decision.granted) == len(set(decision.granted)) <= config.max_responders
    claimants = [
        name
        for name, known in evaluations.items()
        if isinstance(known, Evaluation) and known.should_respond and name != config.sender
    ]
    if claimants and decision.trigger not in (Trigger.WAITING, Trigger.HOP_CAP):
        assert decision.granted  # whoever wants to answer most is never silenced
        assert set(decision.granted) <= set(claimants)


def run_seeds(count: int) -> Counter[Trigger]:
    base = random.randrange(2**32)
    print("seed", base)
    triggers: Counter[Trigger] = Counter()
    for number in range(count):
        chance = random.Random(f"{base}/{number}")
        evaluations, now, config, seed = draw(chance)
        decision = decide(evaluations, now, config, seed)
        check(evaluations, config, decision)
        triggers[decision.trigger] += 1
        shuffled = list(evaluations.items())
        chance.shuffle(shuffled)
        again = decide(dict(shuffled), now, config, seed)
        assert again == decision, (base, number)
        assert list(again.granted) == list(decision.granted)
        assert decision_from(msgspec.json.decode(msgspec.json.encode(decision.to_dict()))) == decision
    return triggers


def test_the_same_goes_in_the_same_comes_out() -> None:
    triggers = run_seeds(3000)

    assert set(triggers) == set(Trigger)


@pytest.mark.long
def test_100_000_seeds_replay_identically() -> None:
    assert set(run_seeds(100_000)) == set(Trigger)


def test_decay_is_exact_at_each_half_life() -> None:
    for raw in (1.0, 0.7, 0.9, 0.3333):
        for lives in range(20):
            assert decayed(raw, 5.0 * lives, 5.0) == raw / 2**lives
    assert decayed(0.7, 2.5, 5.0) == pytest.approx(0.495, abs=0.0005)
    assert decayed(0.9, 15, 5.0) == pytest.approx(0.1125)


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_decay_is_monotone_and_never_above_what_was_said(count: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(count):
        raw, life = chance.random(), chance.uniform(0.001, 1000)
        early = chance.uniform(-10, 1000)
        late = early + chance.choice([0, 1e-9, chance.uniform(0, 1000)])
        sooner, later = decayed(raw, early, life), decayed(raw, late, life)
        assert 0 <= later <= sooner <= raw, (raw, life, early, late)


def test_a_half_life_is_tied_to_the_slowest_so_that_it_is_not_silenced() -> None:
    assert half_life_for(None) == 5.0
    assert half_life_for(0.1) == 5.0
    assert half_life_for(30.0) == 60.0
    assert decayed(0.8, 30.0, half_life_for(30.0)) > 0.5


@pytest.mark.parametrize("age_s", [0, 5, 60, 3600, 1e6])
def test_a_single_claimant_is_never_starved(age_s: float) -> None:
    evaluations: dict[str, Known] = {"ada": said(0.01), "bob": said(0.9, respond=False), "cyd": PostroomError("gone")}

    decision = decide(evaluations, age_s, Config(min_confidence=0.9), 1)

    assert decision.granted == ("ada",)
    assert decision.outcomes["bob"].reason is Denial.DECLINED
    assert decision.outcomes["cyd"].reason is Denial.FAILED


def test_age_leaves_the_best_and_spares_the_rest() -> None:
    evaluations: dict[str, Known] = {"ada": said(0.9), "bob": said(0.8), "cyd": said(0.7)}
    config = Config(max_responders=2, half_life_s=5.0, min_confidence=0.3)

    fresh, stale = decide(evaluations, 0, config, 1), decide(evaluations, 10, config, 1)

    assert fresh.granted == ("ada", "bob")
    assert fresh.outcomes["cyd"].reason is Denial.OUTRANKED
    assert stale.granted == ("ada",)
    assert stale.outcomes["bob"].reason is Denial.LOW_CONFIDENCE
    assert stale.outcomes["bob"].confidence == 0.8  # what it said is kept as it was
    assert stale.outcomes["bob"].decayed == 0.2


@pytest.mark.parametrize("diversity", [0.0, 0.2])
def test_equals_get_equal_shares(diversity: float) -> None:
    evaluations: dict[str, Known] = {name: said(0.7) for name in NAMES}
    spoken: dict[str, float] = {}
    shares: Counter[str] = Counter()
    for number in range(10_000):
        config = Config(diversity=diversity, spoken=dict(spoken), message_at=number, began_at=number)
        (winner,) = decide(evaluations, number, config, seed_of(f"m{number}")).granted
        shares[winner] += 1
        spoken[winner] = number

    assert all(0.18 <= shares[name] / 10_000 <= 0.22 for name in NAMES), shares


def test_who_has_spoken_lately_steps_back_for_an_equal_and_not_for_a_poor_one() -> None:
    spoken = {"ada": 99.0}
    close: dict[str, Known] = {"ada": said(0.8), "bob": said(0.75)}
    poor: dict[str, Known] = {"ada": said(0.8), "bob": said(0.3)}
    config = Config(spoken=spoken, message_at=100, began_at=100)

    assert decide(close, 100, config, 1).granted == ("bob",)
    assert decide(poor, 100, config, 1).granted == ("ada",)
    assert decide(close, 1000, config, 1).granted == ("ada",)  # long ago


def test_nobody_answers_itself() -> None:
    decision = decide({"ada": None, "bob": said(0.6)}, 0, Config(sender="ada"), 1)

    assert decision.trigger is Trigger.ALL_IN  # its own word is not waited for
    assert decision.granted == ("bob",)
    assert decision.outcomes["ada"].reason is Denial.OWN_MESSAGE


def test_the_hop_cap_ends_a_chain_whatever_anybody_wants() -> None:
    evaluations: dict[str, Known] = {"ada": said(1.0), "bob": said(1.0)}

    last = decide(evaluations, 0, Config(hop_count=8, max_hops=8), 1)

    assert last.trigger is Trigger.HOP_CAP
    assert last.closed
    assert {outcome.reason for outcome in last.outcomes.values()} == {Denial.TOO_MANY_HOPS}
    assert decide(evaluations, 0, Config(hop_count=7, max_hops=8), 1).granted


def test_it_is_decided_at_all_in_at_quorum_or_at_the_deadline() -> None:
    config = Config(deadline_s=5, quorum=2, fast_path_s=None)
    one: dict[str, Known] = {"ada": said(0.6), "bob": None, "cyd": None}
    two: dict[str, Known] = {**one, "bob": said(0.7)}

    assert decide(one, 4.9, config, 1).trigger is Trigger.WAITING
    assert decide(one, 5.0, config, 1).trigger is Trigger.DEADLINE
    assert decide(one, 5.0, config, 1).outcomes["cyd"].reason is Denial.NO_RESULT
    assert decide(two, 1.0, config, 1).trigger is Trigger.QUORUM
    assert decide({**two, "cyd": PostroomError("gone")}, 1.0, Config(quorum=3), 1).trigger is Trigger.ALL_IN
    assert decide({}, 0, config, 1).trigger is Trigger.ALL_IN


def test_a_failed_evaluation_does_not_count_towards_the_quorum() -> None:
    config = Config(quorum=1, fast_path_s=None)

    waiting = decide({"ada": Evaluation.unparsed("m1", "hm"), "bob": None}, 1.0, config, 1)

    assert waiting.trigger is Trigger.WAITING


def test_nobody_answering_gives_a_decision_at_the_deadline_and_not_nothing() -> None:
    decision = decide(dict.fromkeys(NAMES), 5.0, Config(deadline_s=5.0), 1)

    assert decision.closed
    assert decision.granted == ()
    assert {outcome.reason for outcome in decision.outcomes.values()} == {Denial.NO_RESULT}


def test_the_fast_path_decides_from_first_looks_and_stays_open() -> None:
    config = Config(deadline_s=5)
    first: dict[str, Known] = {"ada": said(0.9, stage="quick"), "bob": None}

    before = decide(first, 0.05, config, 1)
    fast = decide(first, 0.1, config, 1)
    everybody = decide({**first, "bob": said(0.2, respond=False, stage="quick")}, 0.01, config, 1)
    revised = decide({**first, "bob": said(0.95)}, 0.5, config, 1)
    closed = decide({"ada": said(0.4), "bob": said(0.95)}, 0.6, config, 1)

    assert before.trigger is Trigger.WAITING
    assert next_moment(before, config, 0.05) == 0.1
    assert (fast.trigger, fast.granted, fast.closed) == (Trigger.FAST_PATH, ("ada",), False)
    assert next_moment(fast, config, 0.1) == 5
    assert everybody.trigger is Trigger.FAST_PATH  # nobody's first look is missing: no need to wait
    assert (revised.granted, revised.closed) == (("bob",), False)
    assert (closed.trigger, closed.granted) == (Trigger.ALL_IN, ("bob",))
    assert next_moment(closed, config, 0.6) is None


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("half_life_s", 0),
        ("half_life_s", float("nan")),
        ("deadline_s", -1),
        ("min_confidence", 2),
        ("max_responders", 0),
        ("quorum", 0),
        ("diversity", -0.1),
    ],
)
def test_rules_that_make_no_sense_are_refused(rule: str, value: float) -> None:
    with pytest.raises(ValueError, match=rule):
        Config(**{rule: value})  # type: ignore[arg-type]
