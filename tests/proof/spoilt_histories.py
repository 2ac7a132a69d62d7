"""Ways to spoil a history: each makes of one that can have happened one that cannot, and says which promise it breaks.

A spoiler changes the calls in place and returns True, or returns False when this history has no place for it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from postroom.testing.histories import RecordedCall
from postroom.testing.histories.record import FOREVER

Calls = list[RecordedCall]
Spoiler = Callable[["Spoiling"], bool]
#: Each with what the judge has to say of it.
SPOILERS: dict[str, tuple[Spoiler, str]] = {}
NO_ORDER = "no order explains"
PASSED_OVER = "ready all the time"
MS = 1_000_000
HOUR_S = 3600.0


def spoiler(sentence: str, why: str = NO_ORDER) -> Callable[[Spoiler], Spoiler]:
    def add(function: Spoiler) -> Spoiler:
        SPOILERS[sentence] = function, why
        return function

    return add


class Delivery:
    """A message in the hands of a claim, and what came of it."""

    def __init__(self, call: RecordedCall, row: list[Any], wanted: dict[str, Any]) -> None:
        self.call, self.row, self.wanted = call, row, wanted
        self.id, self.label, self.token, self.number = row


class Spoiling:
    """A history to be spoilt, and ways to find one's way in it."""

    def __init__(self, calls: Calls, seed: int) -> None:
        self.calls = copy.deepcopy(calls)
        for call, original in zip(self.calls, calls, strict=True):
            call.result = original.result if original.is_unknown else call.result
        self.chance = random.Random(seed)
        self.end_ns = max(call.end_ns for call in self.calls if call.end_ns < FOREVER)

    def some(self, *operations: str) -> Calls:
        """The calls of these kinds that returned, in no order."""
        found = [call for call in self.calls if call.operation in operations and not call.is_unknown]
        return self.chance.sample(found, len(found))

    def deliveries(self) -> list[Delivery]:
        """What was delivered, in no order."""
        found = [Delivery(call, row, wanted) for call, wanted, rows in self._requests() for row in rows]
        return self.chance.sample(found, len(found))

    def _requests(self) -> Iterator[tuple[RecordedCall, dict[str, Any], list[list[Any]]]]:
        for call in self.calls:
            if call.operation == "claim" and not call.is_unknown:
                yield call, call.arguments, call.result
            elif call.operation == "settle" and not call.is_unknown and call.arguments["next"] is not None:
                yield call, call.arguments["next"], call.result[3]

    def said(self, label: str) -> dict[str, Any]:
        """What the sender said of a message."""
        for call in self.calls:
            for said in call.arguments.get("messages", ()) or call.arguments.get("puts", ()):
                if said["label"] == label:
                    return dict(said)
        raise AssertionError(label)

    def sending(self, label: str) -> tuple[RecordedCall, dict[str, Any]]:
        """The send of a message, and what can be changed of it."""
        for call in self.calls:
            for said in call.arguments.get("messages", ()):
                if said["label"] == label:
                    return call, said
        raise LookupError(label)

    def of(self, id: str, *operations: str) -> Calls:
        """The calls about a message."""
        return [call for call in self.calls if call.operation in operations and call.arguments["id"] == id]

    def add(self, operation: str, arguments: dict[str, Any], result: Any, at_ns: int | None = None) -> RecordedCall:
        """One more call, by somebody else; after everything unless told."""
        begin_ns = self.end_ns + MS if at_ns is None else at_ns
        call = RecordedCall("another", operation, begin_ns, begin_ns + MS, arguments, result)
        self.end_ns = max(self.end_ns, call.end_ns)
        self.calls.append(call)
        return call

    def claim_again(self, delivery: Delivery, at_ns: int | None = None, **more: Any) -> None:
        wanted = {"agent": delivery.wanted["agent"], "limit": 1, "lease_s": 10.0, **more}
        if "channels" in delivery.wanted:
            wanted["channels"] = delivery.wanted["channels"]
        self.add("claim", wanted, [[delivery.id, delivery.label, delivery.token + 5, delivery.number + 1]], at_ns)


# Owners


@spoiler("a message is claimed while another holds it")
def claimed_twice(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        ends = [c for c in history.of(delivery.id, "settle", "extend") if c.arguments["token"] == delivery.token]
        if ends and ends[0].begin_ns - delivery.call.end_ns > 3 * MS and delivery.wanted["lease_s"] >= 0.5:
            history.claim_again(delivery, delivery.call.end_ns + MS)
            return True
    return False


@spoiler("one token is given to two")
def one_token_for_two(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        history.add("claim", {**delivery.wanted, "limit": 1, "lease_s": 10.0}, [list(delivery.row)])
        return True
    return False


@spoiler("a lease ends before its time")
def lease_too_short(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        later = [each for each in history.deliveries() if each.id == delivery.id and each.token == delivery.token + 1]
        alone = not history.of(delivery.id, "settle", "extend") and not _requeued(history, delivery.id)
        if later and alone and "owned" not in delivery.wanted:
            delivery.wanted["lease_s"] = HOUR_S
            return True
    return False


@spoiler("a process that lives is taken for dead")
def taken_for_dead(history: Spoiling) -> bool:
    kills = {call.arguments["processes"][0]: call for call in history.some("kill")}
    for delivery in history.deliveries():
        process = delivery.call.process
        later = [each for each in history.deliveries() if each.id == delivery.id and each.token == delivery.token + 1]
        if (
            process in kills
            and later
            and "owned" in delivery.wanted
            and not history.of(delivery.id, "settle", "extend")
        ):
            history.calls.remove(kills[process])
            delivery.wanted["lease_s"] = HOUR_S
            return True
    return False


@spoiler("an extension is forgotten")
def extension_forgotten(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        later = [each for each in history.deliveries() if each.id == delivery.id and each.token == delivery.token + 1]
        alone = not history.of(delivery.id, "settle", "extend") and not _requeued(history, delivery.id)
        if later and alone and "owned" not in delivery.wanted and delivery.wanted["lease_s"] > 0.01:
            arguments = {"id": delivery.id, "token": delivery.token, "lease_s": HOUR_S}
            history.add("extend", arguments, True, delivery.call.end_ns + 1)
            return True
    return False


# Fencing


@spoiler("a stale ack counts")
def stale_ack_counts(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if not call.result[0] and call.arguments["outcome"] == "acked":
            call.result = [True, "acked", [], call.result[3]]
            return True
    return False


@spoiler("a rightful ack is refused")
def rightful_ack_refused(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "acked" and history.said(_label(history, call))["most"] > 9:
            call.result = [False, None, [], call.result[3]]
            return True
    return False


@spoiler("a stale extension counts")
def stale_extension_counts(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "acked":
            history.add("extend", {"id": call.arguments["id"], "token": call.arguments["token"], "lease_s": 1.0}, True)
            return True
    return False


@spoiler("two acks of one message count")
def two_acks_count(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "acked":
            history.add("settle", {**call.arguments, "next": None}, [True, "acked", [], None])
            return True
    return False


@spoiler("a retry returns, and the old token still counts")
def old_token_after_retry(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "retry" and call.result[1] != "dead":
            arguments = {**call.arguments, "outcome": "acked", "next": None}
            history.add("settle", arguments, [True, "acked", [], None], call.end_ns + 1)
            return True
    return False


@spoiler("an ack returns, and the message comes again")
def comes_again_after_its_ack(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "acked":
            history.claim_again(_delivery(history, call))
            return True
    return False


@spoiler("a dead letter is delivered")
def dead_letter_delivered(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.result[1] == "dead" and not _requeued(history, call.arguments["id"]):
            history.claim_again(_delivery(history, call))
            return True
    return False


@spoiler("a refused message is delivered")
def refused_delivered(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.result[1] == "refused" and not _requeued(history, call.arguments["id"]):
            history.claim_again(_delivery(history, call))
            return True
    return False


# Delivery numbers and tokens


@spoiler("a delivery number goes back")
def number_goes_back(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        if delivery.number > 1:
            delivery.row[3] -= 1
            return True
    return False


@spoiler("a delivery number jumps")
def number_jumps(history: Spoiling) -> bool:
    history.calls[:] = [call for call in history.calls if not (call.is_unknown and _claims(call))]
    for delivery in history.deliveries():
        delivery.row[3] += 1
        return True
    return False


@spoiler("a token goes back")
def token_goes_back(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        if (
            delivery.number > 1
            and not history.of(delivery.id, "settle", "extend")
            and not _requeued(history, delivery.id)
        ):
            delivery.row[2] = 0
            return True
    return False


@spoiler("more deliveries than allowed")
def too_many_deliveries(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        if delivery.number >= 2:
            try:
                _, said = history.sending(delivery.label)
            except LookupError:
                continue
            said["most"] = 1
            return True
    return False


@spoiler("a delivery that was returned is counted")
def returned_is_counted(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "returned":
            delivery = _delivery(history, call)
            later = [each for each in history.deliveries() if each.id == delivery.id and each.number == delivery.number]
            later = [each for each in later if each.token > delivery.token]
            if later and not _requeued(history, delivery.id) and not _unseen(history):
                later[0].row[3] += 1
                return True
    return False


@spoiler("the last retry does not end a message")
def last_retry_goes_on(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "retry" and call.result[1] == "dead":
            call.result[1] = "ready"
            return True
    return False


# Lost, doubled, made up


@spoiler("a message is lost")
def lost(history: Spoiling) -> bool:
    for call in history.some("look"):
        if call.begin_ns > history.end_ns - 100 * MS:
            call.result = None
            return True
    return False


@spoiler("a message is made up", "never sent")
def made_up(history: Spoiling) -> bool:
    row = ["id-9999", "nobody sent this", 1, 1]
    history.add("claim", {"agent": "bob", "limit": 1, "lease_s": 10.0}, [row])
    return True


@spoiler("a message is stored twice", "stored twice")
def stored_twice(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        if delivery.wanted.get("channels") is None:
            history.add("claim", {"agent": delivery.wanted["agent"], "limit": 1, "lease_s": 10.0}, [["id-9999", delivery.label, 1, 1]])  # fmt: skip
            return True
    return False


@spoiler("two messages have one id", "which is that of")
def two_have_one_id(history: Spoiling) -> bool:
    first, second, *_ = history.some("send")
    second.result = [first.result[0], *second.result[1:]]
    return True


@spoiler("a message comes before it was sent")
def comes_before_it_was_sent(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        try:
            call, _ = history.sending(delivery.label)
        except LookupError:
            continue
        if not call.is_unknown and delivery.number == 1 and len(call.arguments["messages"]) == 1:
            call.begin_ns, call.end_ns = delivery.call.end_ns + 1, delivery.call.end_ns + MS
            return True
    return False


@spoiler("a message goes to another agent", "it was for")
def to_another(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        if history.said(delivery.label)["to"] is not None and "channels" not in delivery.wanted:
            delivery.wanted["agent"] = "mallory"
            return True
    return False


@spoiler("a batch is seen by half")
def half_a_batch(history: Spoiling) -> bool:
    usual = {"to": "bob", "channel": "general", "priority": 0, "most": 3}
    messages = [{"label": f"half {number}", **usual} for number in range(2)]
    send = history.add("send", {"messages": messages}, ["id-9998", "id-9999"])
    send.end_ns += 20 * MS
    history.add("look", {"id": "id-9998"}, ["ready", 0], send.begin_ns + 3 * MS)
    history.add("look", {"id": "id-9999"}, None, send.begin_ns + 6 * MS)
    return True


@spoiler("a question is answered, and its answer is not there")
def answer_missing(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["puts"]:
            for look in history.of(call.result[2][0], "look"):
                look.result = None
                return True
    return False


@spoiler("an answer is there whose question it did not end")
def answer_without_question(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if not call.result[0] and call.arguments["puts"] and call.arguments["puts"][0]["to"] is not None:
            said = call.arguments["puts"][0]
            wanted = {"agent": said["to"], "limit": 1, "lease_s": 10.0}
            history.add("claim", wanted, [["id-9999", said["label"], 1, 1]])
            return True
    return False


@spoiler("a finished message is shown as waiting")
def finished_shown_as_waiting(history: Spoiling) -> bool:
    for call in history.some("look"):
        if call.result[0] == "acked":
            call.result[0] = "ready"
            return True
    return False


# Time


@spoiler("a delayed message comes too soon")
def delayed_too_soon(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        try:
            _, said = history.sending(delivery.label)
        except LookupError:
            continue
        if delivery.number == 1:
            said["delay_s"] = HOUR_S
            return True
    return False


@spoiler("a retry comes too soon")
def retry_too_soon(history: Spoiling) -> bool:
    for call in history.some("settle"):
        if call.result[0] and call.arguments["outcome"] == "retry" and call.result[1] != "dead":
            later = [each for each in history.deliveries() if each.id == call.arguments["id"]]
            if any(each.token > call.arguments["token"] for each in later):
                call.arguments["delay_s"] = HOUR_S
                return True
    return False


@spoiler("an expired message is delivered")
def expired_delivered(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        try:
            call, said = history.sending(delivery.label)
        except LookupError:
            continue
        if delivery.call.begin_ns - call.end_ns > 50 * MS and not _requeued(history, delivery.id):
            said["ttl_s"] = 0.01
            return True
    return False


# Order


@spoiler("two messages come in the wrong order", PASSED_OVER)
def wrong_order(history: Spoiling) -> bool:
    """Two that were sent one after the other, and taken one after the other: their sends change places."""
    if _unseen(history):
        return False
    firsts = {each.label: each for each in history.deliveries() if each.number == 1}
    for early in history.some("send"):
        for late in history.some("send"):
            one, other = early.arguments["messages"][0], late.arguments["messages"][0]
            alike = all(one[field] == other[field] for field in ("to", "channel", "priority"))
            if not alike or early.end_ns >= late.begin_ns or {"delay_s", "ttl_s"} & (one.keys() | other.keys()):
                continue
            taken = firsts.get(one["label"]), firsts.get(other["label"])
            if taken[0] is None or taken[1] is None or _requeued(history, late.result[0]):
                continue
            if late.end_ns < taken[0].call.begin_ns and taken[0].call.end_ns < taken[1].call.begin_ns:
                early.arguments["messages"][0], late.arguments["messages"][0] = other, one
                early.result[0], late.result[0] = late.result[0], early.result[0]
                return True
    return False


@spoiler("a lower priority comes first", PASSED_OVER)
def priority_ignored(history: Spoiling) -> bool:
    for delivery in history.deliveries():
        try:
            call, said = history.sending(delivery.label)
        except LookupError:
            continue
        if (
            delivery.number == 1
            and not call.is_unknown
            and not {"delay_s", "ttl_s"} & said.keys()
            and not _unseen(history)
        ):
            begin_ns, end_ns = call.end_ns, delivery.call.begin_ns
            between = [
                each for each in history.deliveries()
                if begin_ns < each.call.begin_ns and each.call.end_ns < end_ns and each.number == 1
                and all(history.said(each.label)[field] == said[field] for field in ("to", "channel"))
            ]  # fmt: skip
            if between and not _requeued(history, delivery.id):
                said["priority"] = 1000
                return True
    return False


@spoiler("a claim finds nothing though mail waits", PASSED_OVER)
def empty_though_mail_waits(history: Spoiling) -> bool:
    for call in history.some("send"):
        said = call.arguments["messages"][0]
        taken = [each for each in history.deliveries() if each.label == said["label"] and each.number == 1]
        if not taken or not said["to"] or {"delay_s", "ttl_s"} & said.keys() or _requeued(history, call.result[0]):
            continue
        if taken[0].call.begin_ns - call.end_ns > 2 * MS and not _unseen(history):
            empty = history.add("claim", {"agent": said["to"], "limit": 1, "lease_s": 1.0}, [], call.end_ns + 1)
            empty.end_ns -= MS // 2
            return True
    return False


@spoiler("one claim gives its messages in the wrong order", "wrong order")
def wrong_order_in_one_claim(history: Spoiling) -> bool:
    for call in history.some("claim"):
        if len(call.result) > 1:
            sent = [history.said(row[1]) for row in call.result[:2]]
            if sent[0]["priority"] > sent[1]["priority"]:
                call.result[:2] = call.result[1::-1]
                return True
    return False


# Cells


@spoiler("a cell's write is lost")
def write_lost(history: Spoiling) -> bool:
    history.add("write", {"cell": "mine", "value": "a", "expect": -1}, 1000)
    history.add("write", {"cell": "mine", "value": "b", "expect": 1000}, 1001)
    history.add("read", {"cell": "mine"}, [1000, "a"])
    return True


@spoiler("a read is stale")
def stale_read(history: Spoiling) -> bool:
    for call in history.some("write"):
        later = [each for each in history.some("read") if each.arguments["cell"] == call.arguments["cell"]]
        if call.result and call.arguments["value"] is not None:
            for read in later:
                if read.result is not None and read.result[0] > call.result and read.begin_ns > call.end_ns:
                    read.result = [call.result, call.arguments["value"]]
                    return _no_open_write(history, call)
    return False


@spoiler("a write counts though another version was expected")
def wrong_version_counts(history: Spoiling) -> bool:
    history.add("write", {"cell": "mine", "value": "a", "expect": 0}, 1000)
    history.add("write", {"cell": "mine", "value": "b", "expect": 999}, 1001)
    return True


@spoiler("a write is refused though its version was right")
def right_version_refused(history: Spoiling) -> bool:
    history.add("write", {"cell": "mine", "value": "a", "expect": 0}, 1000)
    history.add("write", {"cell": "mine", "value": "b", "expect": 1000}, None)
    return True


@spoiler("two writers take one version's place")
def two_take_one_place(history: Spoiling) -> bool:
    history.add("write", {"cell": "mine", "value": "a", "expect": 0}, 1000)
    at_ns = history.end_ns + MS
    history.add("write", {"cell": "mine", "value": "b", "expect": 1000}, 1001, at_ns)
    history.add("write", {"cell": "mine", "value": "c", "expect": 1000}, 1002, at_ns)
    return True


@spoiler("a cell's version comes back", "two writes gave")
def version_comes_back(history: Spoiling) -> bool:
    for value, expect, version in (("a", 0, 1000), ("b", 1000, 1001), ("c", 1001, 1000)):
        history.add("write", {"cell": "mine", "value": value, "expect": expect}, version)
    return True


@spoiler("a cell's value is made up")
def value_made_up(history: Spoiling) -> bool:
    for call in history.some("read"):
        if call.result is not None:
            call.result = [call.result[0], "nobody wrote this"]
            return True
    return False


@spoiler("a deleted cell is still there")
def deleted_still_there(history: Spoiling) -> bool:
    history.add("write", {"cell": "mine", "value": "a", "expect": 0}, 1000)
    history.add("write", {"cell": "mine", "value": None, "expect": 1000}, 0)
    history.add("read", {"cell": "mine"}, [1000, "a"])
    return True


# Where


def _delivery(history: Spoiling, call: RecordedCall) -> Delivery:
    ticket = call.arguments["id"], call.arguments["token"]
    return next(each for each in history.deliveries() if (each.id, each.token) == ticket)


def _label(history: Spoiling, call: RecordedCall) -> str:
    return str(_delivery(history, call).label)


def _requeued(history: Spoiling, id: str) -> bool:
    return any(id in call.arguments["ids"] for call in history.calls if call.operation == "requeue")


def _claims(call: RecordedCall) -> bool:
    return call.operation == "claim" or (call.operation == "settle" and call.arguments["next"] is not None)


def _unseen(history: Spoiling) -> bool:
    return any(call.is_unknown and _claims(call) for call in history.calls)


def _no_open_write(history: Spoiling, call: RecordedCall) -> bool:
    return not any(
        each.is_unknown and each.operation == "write" and each.arguments["cell"] == call.arguments["cell"]
        for each in history.calls
    )
