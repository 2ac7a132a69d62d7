"""Judging a history: it is taken apart into messages and cells, and an order is sought for each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from .order import Queue, ReadySpan, TakenMessage, passed_over, sent_before
from .record import FOREVER, RecordedCall
from .search import OrderSearch
from .specification import HistoryStep, Mail, MessageLife, Register, Sent, Unseen

#: Room time counts in whole milliseconds: what lasts a second may be over a little sooner.
SLACK_S: Final = 0.002
#: A claim that finds something may overlook a message whose delay has just ended (`Store.claim`).
LATE_NS: Final = 20_000_000
#: So many calls before the impossible one are told.
TOLD: Final = 12


class Impossible(NamedTuple):
    """A part of a history that cannot have happened, and why: the calls up to the first that has no explanation."""

    subject: str  # the message, the messages that were sent together, or the cell
    why: str  # in a few words
    calls: list[RecordedCall]  # the last of them is the one that cannot be

    def __str__(self) -> str:
        start_ns = self.calls[0].begin_ns if self.calls else 0
        return "\n".join([f"{self.subject}: {self.why}", *(f"    {told(call, start_ns)}" for call in self.calls)])


class HistoryVerdict(NamedTuple):
    """What a history is worth: how many calls were judged, in how many parts, and which parts are impossible."""

    calls: int  # how many calls there were
    parts: int  # messages and cells that were judged each by itself
    impossible: list[Impossible]  # empty when all of it can have happened

    def __str__(self) -> str:
        head = f"{self.calls} calls in {self.parts} parts: {len(self.impossible) or 'none'} impossible"
        return "\n".join([head, *map(str, self.impossible[:10])])


def told(call: RecordedCall, start_ns: int = 0) -> str:
    """A call in one line, with its times in milliseconds after that moment."""
    begin, end = (call.begin_ns - start_ns) / 1e6, (call.end_ns - start_ns) / 1e6
    when = f"{begin:12.3f} to {'?' if call.is_unknown else format(end, '.3f'):>12}"
    said = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{when}  {call.process}: {call.operation}({said}) -> {call.result if not call.is_unknown else 'unknown'}"


def judge(
    calls: Iterable[RecordedCall], *, ordered: bool = True, slack_s: float = SLACK_S, lingers_s: float = 0
) -> HistoryVerdict:
    """Whether this can have happened, as far as `docs/guarantees.md` goes.

    `ordered` False leaves out the order of claims, and whether an empty one was right. `lingers_s` is how long after
    its process was killed a call may still take effect: 0 where processes write themselves, more where requests travel.
    """
    history = _History(calls, int(slack_s * 1e9), int(lingers_s * 1e9))
    history.judge_mail()
    history.judge_cells()
    history.judge_keys()
    if ordered:
        history.judge_order()
    return HistoryVerdict(len(history.calls), history.parts, history.impossible)


class _Claim(NamedTuple):
    """A message that a claim gave."""

    call: RecordedCall
    token: int
    deliveries: int
    wanted: dict[str, Any]


class _History:
    """A history, taken apart."""

    def __init__(self, calls: Iterable[RecordedCall], slack_ns: int, lingers_ns: int) -> None:
        self.calls = list(calls)
        self.impossible: list[Impossible] = []
        self.parts = 0
        self._slack_ns = slack_ns
        self._gone_ns: dict[str, int] = {}  # when a process may have been gone
        self._last_ns: dict[str, int] = {}  # until when the calls of a killed one may take effect
        self._sent: dict[str, Sent] = {}
        self._label: dict[str, str] = {}  # by id
        self._id: dict[str, str] = {}  # by label
        self._claims: dict[str, list[_Claim]] = defaultdict(list)  # by label
        self._steps: dict[str, list[tuple[RecordedCall, str, Any, Any]]] = defaultdict(
            list
        )  # settle, extend, look, requeue
        self._cells: dict[str, list[RecordedCall]] = defaultdict(list)
        self._requests: list[
            tuple[RecordedCall, dict[str, Any], list[Any] | None]
        ] = []  # claims: what they wanted and gave
        self._together: dict[str, str] = {}  # labels that come into being together: one of them stands for all
        for call in self.calls:
            if call.operation == "kill":
                for process in call.arguments["processes"]:
                    self._gone_ns[process] = call.begin_ns
                    self._last_ns[process] = call.end_ns + lingers_ns
            elif call.operation == "leave":
                self._gone_ns.setdefault(call.process, call.begin_ns)
        for call in self.calls:
            self._take_sends(call)
        for call in self.calls:
            self._take_claims(call)
        for call in self.calls:
            self._take(call)

    def _fault(self, subject: str, why: str, calls: list[RecordedCall]) -> None:
        self.impossible.append(Impossible(subject, why, calls[-TOLD:]))

    # Which call is about which message

    def _take_sends(self, call: RecordedCall) -> None:
        if call.operation == "send":
            messages, ids = call.arguments["messages"], None if call.is_unknown else call.result
        elif call.operation == "settle" and call.arguments["puts"]:
            messages = call.arguments["puts"]
            ids = None if call.is_unknown or not call.result[0] else call.result[2]
        else:
            return
        for place, said in enumerate(messages):
            label, ttl_s = said["label"], said.get("ttl_s")
            if label in self._sent:
                raise ValueError(f"two messages of this history have the label {label!r}: each needs one of its own")
            self._sent[label] = Sent(
                label, call, said["to"], said["channel"], said["priority"], said["most"],
                int(said.get("delay_s", 0) * 1e9), None if ttl_s is None else int(ttl_s * 1e9),
                said.get("answer", False), place, said.get("order_key"),
            )  # fmt: skip
            if ids is not None:
                self._name(ids[place], label, call)
            self._join(messages[0]["label"], label)

    def _name(self, id: str, label: str, call: RecordedCall) -> None:
        if self._label.setdefault(id, label) != label:
            self._fault(label, f"it has the id {id}, which is that of {self._label[id]}", [call])
        if self._id.setdefault(label, id) != id:
            self._fault(label, f"it is stored twice, as {self._id[label]} and as {id}", [self._sent[label].call, call])

    def _take_claims(self, call: RecordedCall) -> None:
        if call.operation == "claim":
            self._take_claim(call, call.arguments, None if call.is_unknown else call.result)
        elif call.operation == "settle" and call.arguments["next"] is not None:
            self._take_claim(call, call.arguments["next"], None if call.is_unknown else call.result[3])

    def _take(self, call: RecordedCall) -> None:
        operation, arguments = call.operation, call.arguments
        if operation == "settle":
            detail = (arguments["token"], arguments["outcome"], int(arguments["delay_s"] * 1e9))
            self._about(call, arguments["id"], "settle", detail, call.result if call.is_unknown else call.result[:2])
        elif operation == "extend":
            gone_ns = self._gone_ns.get(call.process, FOREVER)
            detail = (arguments["token"], int(arguments["lease_s"] * 1e9), gone_ns)
            self._about(call, arguments["id"], "extend", detail, call.result)
        elif operation == "look" and not call.is_unknown:
            self._about(call, arguments["id"], "look", None, call.result)
        elif operation in ("requeue", "withdraw"):
            for id in dict.fromkeys(arguments["ids"]):  # one that was named twice is put back once
                self._about(call, id, operation, None, call.result if call.is_unknown else id in call.result)
        elif operation in ("read", "write"):
            self._cells[arguments["cell"]].append(call)

    def _about(self, call: RecordedCall, id: str, kind: str, detail: Any, result: Any) -> None:
        label = self._label.get(id)
        if label is None:
            if not call.is_unknown and result not in (None, False) and result[:1] != [False]:
                self._fault(id, "it was never sent", [call])
            return
        if call.arguments.get("puts"):
            self._join(label, call.arguments["puts"][0]["label"])
        self._steps[label].append((call, kind, detail, result))

    def _take_claim(self, call: RecordedCall, wanted: dict[str, Any], given: list[Any] | None) -> None:
        self._requests.append((call, wanted, given))
        for id, label, token, deliveries in given or ():
            sent = self._sent.get(label)
            if sent is None:
                self._fault(str(label), "it was delivered and never sent", [call])
                continue
            self._name(id, label, call)
            if sent.to != wanted["agent"] and (sent.to is not None or sent.channel not in wanted.get("channels", ())):
                self._fault(label, f"it was for {sent.to or sent.channel}", [sent.call, call])
            self._claims[label].append(_Claim(call, token, deliveries, wanted))

    def _join(self, one: str, other: str) -> None:
        root, branch = self._root(one), self._root(other)
        if root != branch:
            self._together[branch] = root

    def _root(self, label: str) -> str:
        while (above := self._together.get(label, label)) != label:
            label = above
        return label

    # The lives of messages

    def judge_mail(self) -> None:
        parts: dict[str, list[str]] = defaultdict(list)
        for label in self._sent:
            parts[self._root(label)].append(label)
        unseen = self._unseen_by_queue()
        taken = 0
        for labels in parts.values():
            lives = self._judge_part(labels, unseen)
            taken += sum(life.unseen for life in lives)
        room = sum(claim.limit for claims in unseen.values() for claim in claims)
        self.parts += len(parts)
        if taken > room:
            self._fault("unseen claims", f"{taken} deliveries that nobody saw, and claims for {room} only", [])

    def _unseen_by_queue(self) -> dict[str, list[Unseen]]:
        """The claims that nobody saw return, by what they asked for: an agent's mail, or a channel's ("#name")."""
        found: dict[str, list[Unseen]] = defaultdict(list)
        for call, wanted, given in self._requests:
            if given is None:
                gone_ns = self._gone_ns.get(call.process, FOREVER) if wanted.get("owned") else FOREVER
                claim = Unseen(
                    call.begin_ns, self._last_ns.get(call.process, FOREVER), int(wanted["lease_s"] * 1e9), gone_ns,
                    len(wanted.get("ids") or ()) or wanted["limit"],
                )  # fmt: skip
                for queue in (wanted["agent"], *(f"#{channel}" for channel in wanted.get("channels", ()))):
                    found[queue].append(claim)
        return found

    def _judge_part(self, labels: list[str], unseen: dict[str, list[Unseen]]) -> tuple[MessageLife, ...]:
        places = {label: place for place, label in enumerate(labels)}
        sent = [self._sent[label] for label in labels]
        steps = [
            self._sending(call, places)
            for call in dict.fromkeys(each.call for each in sent)
            if call.operation == "send"
        ]
        for place, label in enumerate(labels):
            for claim in self._claims.get(label, ()):
                gone_ns = self._gone_ns.get(claim.call.process, FOREVER) if claim.wanted.get("owned") else FOREVER
                detail = (int(claim.wanted["lease_s"] * 1e9), gone_ns)
                steps.append(
                    HistoryStep(claim.call, "claim", claim.call.end_ns, place, detail, (claim.token, claim.deliveries))
                )
            for call, kind, detail, result in self._steps.get(label, ()):
                step = HistoryStep(call, kind, self._until(call), place, detail, result)
                if kind == "settle":
                    step.puts = [places[each["label"]] for each in call.arguments["puts"]]
                steps.append(step)
        most_seen = [0] * len(labels)
        for step in steps:
            if step.kind in ("claim", "look") and step.result is not None:
                most_seen[step.place] = max(most_seen[step.place], step.result[1])
        mail = Mail(
            sent, [unseen[each.to if each.to is not None else f"#{each.channel}"] if unseen else [] for each in sent],
            most_seen, self._slack_ns,
        )  # fmt: skip
        return self._search(" + ".join(labels[:4]), steps, mail) or ()

    def _sending(self, call: RecordedCall, places: dict[str, int]) -> HistoryStep:
        step = HistoryStep(call, "send", self._until(call), 0, None, call.result)
        step.puts = [places[each["label"]] for each in call.arguments["messages"]]
        return step

    def _until(self, call: RecordedCall) -> int:
        return self._last_ns.get(call.process, FOREVER) if call.is_unknown else call.end_ns

    def _search(self, subject: str, steps: list[HistoryStep], specification: Any) -> Any:
        found = OrderSearch(steps, specification).run()
        if found.stuck is None:
            return found.state
        end_ns = found.stuck.end_ns
        before = [step.call for step in steps if step.begin_ns <= end_ns and step is not found.stuck]
        before.sort(key=lambda call: call.begin_ns)
        why = (
            "there are too many orders to try them all"
            if found.undecided
            else "no order explains the last of these calls"
        )
        self._fault(subject, why, [*dict.fromkeys(before), found.stuck.call])
        return None

    # Cells

    def judge_cells(self) -> None:
        for name, calls in self._cells.items():
            self.parts += 1
            writers: dict[int, RecordedCall] = {}
            steps = []
            for number, call in enumerate(calls):
                if call.operation == "read":
                    if not call.is_unknown:
                        seen = call.result and (call.result[0], _text(call.result[1]))
                        steps.append(HistoryStep(call, "read", call.end_ns, number, None, seen))
                    continue
                if not call.is_unknown and call.result:
                    first = writers.setdefault(call.result, call)
                    if first is not call:
                        self._fault(f"cell {name}", f"two writes gave it version {call.result}", [first, call])
                detail = (_text(call.arguments["value"]), call.arguments["expect"])
                steps.append(HistoryStep(call, "write", self._until(call), number, detail, call.result))
            self._search(f"cell {name}", steps, Register(frozenset(writers)))

    # Order

    def judge_order(self) -> None:
        unseen = self._unseen_by_queue()
        ready: dict[Queue, list[ReadySpan]] = defaultdict(list)
        for sent in self._sent.values():
            if not sent.answer and sent.order_key is None:  # one that is behind another is not ready
                ready[sent.to, sent.channel] += self._ready(sent, unseen)
        taken: dict[Queue, list[TakenMessage]] = defaultdict(list)
        for call, wanted, given in self._requests:
            if given is None or "ids" in wanted:
                continue
            messages = [self._sent[each[1]] for each in given if each[1] in self._sent]
            self._judge_one_claim(call, messages)
            for each in messages:
                taken[each.to, each.channel].append(TakenMessage(call, each))
            if len(given) < wanted["limit"]:
                for queue in self._queues(wanted, ready):
                    taken[queue].append(TakenMessage(call, None))
        for queue, spans in ready.items():
            self._judge_queue(spans, taken.get(queue, []))

    def _judge_queue(self, ready: list[ReadySpan], taken: list[TakenMessage]) -> None:
        known: set[str] = set()
        for claim, there in passed_over(ready, taken):
            if there.sent.label not in known:  # once for each message, however many claims passed it over
                known.add(there.sent.label)
                gave = "nothing more" if claim.sent is None else claim.sent.label
                calls = [there.sent.call, *([claim.sent.call] if claim.sent else []), claim.call]
                self._fault(there.sent.label, f"it was ready all the time while a claim gave {gave}", calls)

    def _judge_one_claim(self, call: RecordedCall, given: list[Sent]) -> None:
        for one, other in pairwise(given):
            same = (one.to, one.channel, one.priority) == (other.to, other.channel, other.priority)
            if other.priority > one.priority or (same and sent_before(other, one)):
                why = "one claim gave them in the wrong order"
                self._fault(f"{one.label} and {other.label}", why, [one.call, other.call, call])

    # Order keys

    def judge_keys(self) -> None:
        """Of one key in one mailbox none is given before one that was surely stored first, and has surely not ended."""
        lines: dict[tuple[str | None, str, str], list[Sent]] = defaultdict(list)
        for sent in self._sent.values():
            if sent.order_key is not None:
                lines[sent.to, sent.channel, sent.order_key].append(sent)
        unseen = self._unseen_by_queue()
        for line in lines.values():
            ends = [(sent, self._may_end_ns(sent, unseen)) for sent in line if sent.is_stored]
            for later in line:
                for claim in self._claims.get(later.label, ()):
                    for first, ends_ns in ends:
                        if sent_before(first, later) and claim.call.end_ns < ends_ns and not self._was_back(later):
                            why = f"it was claimed while {first.label}, of the same order key, came first"
                            self._fault(later.label, why, [first.call, later.call, claim.call])

    def _was_back(self, sent: Sent) -> bool:
        return any(kind == "requeue" and result is not False for _, kind, _, result in self._steps.get(sent.label, ()))

    def _may_end_ns(self, sent: Sent, unseen: dict[str, list[Unseen]]) -> int:
        """The earliest moment at which a message may have ended, or lost its place by being put back."""
        strangers = unseen.get(sent.to if sent.to is not None else f"#{sent.channel}", ())
        moments = [claim.begin_ns for claim in strangers]
        moments += [each.call.begin_ns for each in self._claims.get(sent.label, ()) if each.deliveries >= sent.most]
        for call, kind, detail, result in self._steps.get(sent.label, ()):
            if kind in ("requeue", "withdraw") and result is not False:
                moments.append(call.begin_ns)
            if kind == "settle" and detail[1] not in ("retry", "returned"):
                moments.append(call.begin_ns)
        if sent.ttl_ns is not None:
            moments.append(sent.call.begin_ns + sent.ttl_ns - self._slack_ns)
        return min(moments, default=FOREVER)

    def _queues(self, wanted: dict[str, Any], queues: Iterable[Queue]) -> list[Queue]:
        agent, channels = wanted["agent"], wanted.get("channels")
        if channels is None:
            return [queue for queue in queues if queue[0] == agent]
        return [queue for queue in queues if queue[1] in channels and queue[0] in (agent, None)]

    def _ready(self, sent: Sent, unseen: dict[str, list[Unseen]]) -> Iterator[ReadySpan]:
        """When a message was surely ready."""
        claims = self._claims.get(sent.label, [])
        number_of = {claim.token: claim.deliveries for claim in claims}
        begins = []
        if sent.is_stored:
            begins.append((sent.call, sent.delay_ns, 0, 1))
        for call, kind, detail, result in self._steps.get(sent.label, ()):
            if kind in ("requeue", "withdraw") and result is not False:
                return  # its deliveries count anew, or it has ended: they do not tell whether somebody had it unseen
            if kind == "settle" and not call.is_unknown and result[0] and result[1] in ("ready", "delayed"):
                token, outcome, delay_ns = detail
                begins.append((call, delay_ns, token, number_of.get(token, 0) + (outcome == "retry")))
        for call, delay_ns, token, number in begins:
            from_ns = call.end_ns + (delay_ns + LATE_NS if delay_ns else 0)
            later = min((claim for claim in claims if claim.token > token), key=_token, default=None)
            if later is None:
                strangers = unseen.get(sent.to if sent.to is not None else f"#{sent.channel}", ())
                until_ns = min(
                    (claim.begin_ns for claim in strangers if claim.end_ns >= call.begin_ns), default=FOREVER
                )
            else:
                until_ns = later.call.begin_ns if later.deliveries == number else 0
            if sent.ttl_ns is not None:
                until_ns = min(until_ns, sent.call.begin_ns + sent.ttl_ns - self._slack_ns)
            if from_ns < until_ns:
                yield ReadySpan(from_ns, until_ns, sent)


def _token(claim: _Claim) -> int:
    return claim.token


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
