"""The judge of histories: what can have happened it accepts, what cannot it refuses, and says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.errors import OutcomeUnknown, RoomBusy
from postroom.stores.contract import Want
from postroom.stores.memory.store import MemoryStore
from postroom.testing.histories import RecordedCall, RecordedStore, Recorder, judge, read
from postroom.testing.histories.record import FOREVER, UNKNOWN

from .made_histories import UNTIRING, Maker
from .spoilt_histories import SPOILERS, Spoiling

MS = 1_000_000


def accepted(seeds: range, steps: int) -> int:
    """Make so many histories, and fail with the first that is refused. How many calls there were in all."""
    calls = 0
    for seed in seeds:
        verdict = judge(Maker(seed).run(steps, kills=seed % 4 > 0))
        assert not verdict.impossible, f"seed {seed}: {verdict}"
        calls += verdict.calls
    return calls


@pytest.mark.slow
def test_histories_that_a_model_has_made_are_possible(figure: Callable[[str], None]) -> None:
    figure(f"histories: 200 made ones with {accepted(range(200), 60)} calls are possible")


@pytest.mark.long
def test_ten_thousand_histories_that_a_model_has_made_are_possible(figure: Callable[[str], None]) -> None:
    figure(f"histories: 10,000 made ones with {accepted(range(1000, 11_000), 60)} calls are possible")


@cache
def to_be_spoilt(seed: int) -> list[RecordedCall]:
    return Maker(seed).run(80, kills=seed % 2 == 0)


@pytest.mark.parametrize("sentence", SPOILERS)
def test_a_spoilt_history_is_refused_for_what_was_spoilt(sentence: str) -> None:
    spoil, why = SPOILERS[sentence]
    spoilt = 0
    for seed in range(100):
        history = Spoiling(to_be_spoilt(seed), seed)
        if spoil(history):
            verdict = judge(history.calls)
            assert any(why in fault.why for fault in verdict.impossible), f"seed {seed} is not refused: {sentence}"
            spoilt += 1
        if spoilt == 2:
            return
    raise AssertionError(f"{spoilt} histories of a hundred can be spoilt like this: {sentence}")


def test_there_are_more_than_25_ways_to_spoil_a_history() -> None:
    assert len(SPOILERS) > 25


# What the judge says


def message(label: str, **more: object) -> dict[str, object]:
    return {"label": label, "to": "bob", "channel": "general", "priority": 0, "most": UNTIRING, **more}


def sent(label: str, begin_ms: int, end_ms: int) -> RecordedCall:
    return RecordedCall("ada", "send", begin_ms * MS, end_ms * MS, {"messages": [message(label)]}, [f"id of {label}"])


def claimed(process: str, begin_ms: int, end_ms: int, label: str, number: int, **wanted: object) -> RecordedCall:
    arguments = {"agent": "bob", "limit": 1, "lease_s": 1.0, "owned": True, **wanted}
    return RecordedCall(
        process, "claim", begin_ms * MS, end_ms * MS, arguments, [[f"id of {label}", label, number, number]]
    )


def unseen_claim(process: str, begin_ms: int) -> RecordedCall:
    arguments = {"agent": "bob", "limit": 1, "lease_s": 1.0, "owned": True}
    return RecordedCall(process, "claim", begin_ms * MS, FOREVER, arguments)


def killed(process: str, begin_ms: int, end_ms: int) -> RecordedCall:
    return RecordedCall("killer", "kill", begin_ms * MS, end_ms * MS, {"processes": [process]}, None)


def test_the_judge_names_the_message_and_the_calls_up_to_the_first_that_has_no_explanation() -> None:
    calls = [sent("a", 0, 1), sent("b", 0, 1), claimed("p", 2, 3, "a", 1), claimed("q", 4, 5, "a", 2)]

    verdict = judge([*calls, claimed("q", 2000, 2001, "a", 3)])

    (fault,) = [fault for fault in verdict.impossible if "no order" in fault.why]
    assert (fault.subject, fault.calls) == ("a", [calls[0], calls[2], calls[3]])
    assert str(fault).splitlines()[0] == "a: no order explains the last of these calls"
    assert "4.000 to        5.000  q: claim(agent='bob'" in str(fault).splitlines()[-1]


def test_a_claim_of_a_process_that_was_killed_may_end_before_its_lease() -> None:
    calls = [sent("a", 0, 1), claimed("p", 2, 3, "a", 1), claimed("q", 10, 20, "a", 2)]

    assert judge(calls).impossible
    assert not judge([*calls, killed("p", 5, 6)]).impossible
    assert not judge([*calls, killed("p", 15, 16)]).impossible
    assert judge([*calls, killed("p", 30, 31)]).impossible


def test_a_claim_that_nobody_saw_return_may_have_taken_a_message_and_no_more_than_it_asked_for() -> None:
    calls = [sent("a", 0, 1), unseen_claim("p", 2), killed("p", 3, 4), claimed("q", 10, 11, "a", 2)]
    more = [sent("b", 0, 1), claimed("q", 12, 13, "b", 2)]

    assert not judge(calls, ordered=False).impossible
    assert judge([*calls[:1], *calls[3:]], ordered=False).impossible
    assert "claims for 1 only" in str(judge([*calls, *more], ordered=False))


def test_a_claim_of_a_killed_process_takes_nothing_after_its_death_unless_requests_travel() -> None:
    calls = [unseen_claim("p", 0), killed("p", 1, 2), sent("a", 10, 11), claimed("q", 20, 21, "a", 2)]

    assert judge(calls, ordered=False).impossible
    assert not judge(calls, ordered=False, lingers_s=1).impossible


def test_an_ack_that_nobody_saw_return_has_counted_or_not() -> None:
    settle = {"id": "id of a", "token": 1, "outcome": "acked", "delay_s": 0, "puts": [], "next": None}
    calls = [
        sent("a", 0, 1),
        claimed("p", 2, 3, "a", 1),
        RecordedCall("p", "settle", 4 * MS, FOREVER, settle),
        killed("p", 5, 6),
    ]
    look = [RecordedCall("q", "look", at * MS, (at + 1) * MS, {"id": "id of a"}) for at in (10, 20)]
    for first, second, possible in (
        ("acked", "acked", True),
        ("ready", "ready", True),
        ("ready", "acked", False),
        ("acked", "ready", False),
    ):
        look[0].result, look[1].result = [first, 1], [second, 1]

        assert (not judge([*calls, *look]).impossible) is possible, (first, second)


def withdrawn(begin_ms: int, end_ms: int, label: str, *, done: bool) -> RecordedCall:
    ids = [f"id of {label}"]
    return RecordedCall("ada", "withdraw", begin_ms * MS, end_ms * MS, {"ids": ids}, ids if done else [])


def test_a_message_that_was_withdrawn_is_not_delivered_and_one_that_somebody_has_is_not_withdrawn() -> None:
    taken = [sent("a", 0, 1), claimed("p", 2, 3, "a", 1)]

    assert not judge([sent("a", 0, 1), withdrawn(2, 3, "a", done=True)]).impossible
    assert judge([sent("a", 0, 1), withdrawn(2, 3, "a", done=False)]).impossible
    assert judge([sent("a", 0, 1), withdrawn(2, 3, "a", done=True), claimed("p", 4, 5, "a", 1)]).impossible
    assert not judge([*taken, withdrawn(4, 5, "a", done=False)]).impossible
    assert judge([*taken, withdrawn(4, 5, "a", done=True)]).impossible
    assert not judge([*taken, withdrawn(1100, 1101, "a", done=True)]).impossible


def test_messages_of_one_order_key_are_claimed_one_after_the_other() -> None:
    calls = [sent("a", 0, 1), sent("b", 2, 3), claimed("p", 4, 5, "a", 1), claimed("q", 6, 7, "b", 1)]
    for call in calls[:2]:
        call.arguments["messages"][0]["order_key"] = "k"
    settle = {"id": "id of a", "token": 1, "outcome": "acked", "delay_s": 0, "puts": [], "next": None}
    acked = RecordedCall("p", "settle", 5 * MS, 6 * MS, settle, [True, "acked", [], None])

    assert "of the same order key, came first" in str(judge(calls))
    assert "of the same order key, came first" in str(judge([calls[0], calls[1], calls[3]]))
    assert not judge([*calls[:3], acked, calls[3]]).impossible


# Recording


def draft(label: str) -> Draft:
    return check(Draft(from_agent="ada", to_agent="bob", payload={"label": label}))


def test_a_store_is_recorded_and_judged(tmp_path: Path) -> None:
    clock = ManualClock()
    store = RecordedStore(MemoryStore(Config(), clock), Recorder(tmp_path / "history", "me"))
    (id,) = store.put([draft("a")])
    (delivery,) = store.claim(Want(agent="bob", lease_s=30)).deliveries
    assert store.extend(delivery.ticket, 30)
    assert store.settle(delivery.ticket, "acked", claim_next=Want(agent="bob", lease_s=30)).held
    assert store.get(id) is not None
    version = store.cell_write("c", {"n": 1}, 0)
    assert store.cell_read("c") == ("c", version, {"n": 1})
    assert store.requeue([id]) == []
    store.sweep()

    calls = read(tmp_path / "history")

    assert [call.operation for call in calls] == "send claim extend settle look write read requeue".split()
    assert calls[1].result == [[id, "a", delivery.ticket.token, 1]]
    verdict = judge(calls)
    assert (verdict.calls, verdict.parts, verdict.impossible) == (8, 2, [])


def test_order_keys_and_withdrawing_are_recorded_and_judged(tmp_path: Path) -> None:
    store = RecordedStore(MemoryStore(Config(), ManualClock()), Recorder(tmp_path / "history", "me"))
    drafts = [check(Draft(from_agent="ada", to_agent="bob", payload={"label": each}, order_key="k")) for each in "abc"]
    first, second, _ = [store.put([each])[0] for each in drafts]
    (delivery,) = store.claim(Want(agent="bob", lease_s=30, limit=3)).deliveries
    assert store.withdraw([first, second], "ada") == [second]
    assert store.settle(delivery.ticket, "acked").held
    (delivery,) = store.claim(Want(agent="bob", lease_s=30, limit=3)).deliveries
    assert delivery.message.payload == {"label": "c"}

    calls = read(tmp_path / "history")

    assert judge(calls).impossible == []
    assert judge([call for call in calls if call.operation != "settle"]).impossible
    assert judge([call for call in calls if call.operation != "withdraw"]).impossible


def test_a_message_that_is_named_twice_in_a_requeue_is_put_back_once(tmp_path: Path) -> None:
    store = RecordedStore(MemoryStore(Config(), ManualClock()), Recorder(tmp_path / "history", "me"))
    store.put([draft("a"), draft("b")])  # two, that no single look at one message tells the end
    for delivery in store.claim(Want(agent="bob", lease_s=30, limit=2)).deliveries:
        assert store.settle(delivery.ticket, "refused").held

    assert store.requeue([delivery.ticket.id] * 2) == [delivery.ticket.id]

    assert judge(read(tmp_path / "history")).impossible == []


class Unsure(MemoryStore):
    """Its first answers are lost, or refused."""

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        errors = self.__dict__.setdefault("errors", [OutcomeUnknown("lost"), RoomBusy("busy")])
        if errors:
            raise errors.pop(0)
        return super().put(drafts)


def test_a_call_that_says_that_nothing_was_changed_is_no_call_and_one_that_does_not_stays_open(tmp_path: Path) -> None:
    store = RecordedStore(Unsure(Config(), ManualClock()), Recorder(tmp_path / "history", "me"))
    for label, error in (("a", OutcomeUnknown), ("b", RoomBusy)):
        with pytest.raises(error):
            store.put([draft(label)])

    (call,) = read(tmp_path / "history")

    assert (call.arguments["messages"][0]["label"], call.result) == ("a", UNKNOWN)


def test_a_send_whose_outcome_was_unknown_is_repeated_as_one_call(tmp_path: Path) -> None:
    store = RecordedStore(Unsure(Config(), ManualClock()), Recorder(tmp_path / "history", "me"), repeats=5)
    ids = store.put([draft("a")])

    (call,) = read(tmp_path / "history")

    assert call.result == ids


def test_what_cannot_be_judged_is_not_recorded(tmp_path: Path) -> None:
    store = RecordedStore(MemoryStore(Config(), ManualClock()), Recorder(tmp_path / "history", "me"))
    with pytest.raises(ValueError, match="claim, then settle"):
        store.claim(Want(agent="bob", lease_s=1, settle=True))
    with pytest.raises(ValueError, match="plain messages"):
        store.put([check(Draft(from_agent="ada", channel="c", payload={"label": "a"}, publish=True))])
    with pytest.raises(ValueError, match="have the label"):
        judge([sent("a", 0, 1), sent("a", 2, 3)])
    assert read(tmp_path / "history") == []


def test_a_history_survives_the_kill_of_its_writer(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom postroom.testing.histories import Recorder\n"
        "r = Recorder(sys.argv[1], 'child')\nr.returned(r.call('read', cell='c'), None)\nr.call('read', cell='c')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "history"
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    with path.open("ab") as file:
        file.write(b'\n["child",3,')  # half a line, as a full disk or a power cut may leave it
    Recorder(path, "other").call("read", cell="c")

    calls = read(path)

    assert done.returncode == -signal.SIGKILL
    assert [(call.process, call.result) for call in calls] == [("child", None), ("child", UNKNOWN), ("other", UNKNOWN)]
    assert os.stat(path).st_mode & 0o077 == 0
