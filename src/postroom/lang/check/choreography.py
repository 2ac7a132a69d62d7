"""The choreography check: one-sided mailboxes, workers that wait for each other, messages without a field that is read.

First the text: which worker names which mailbox. Then a rehearsal: the workers of each `delegate` are followed side by
side, with stand-ins for what only a run can know. Its findings are warnings: a stand-in is not the real thing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.problems import WARNING, Problem, near
from postroom.lang.syntax.program import ParsedProgram
from postroom.lang.syntax.source import Span, shortened

from .mail_uses import ANYWHERE, MailUse, Part, delegates_of, fields_of_message, parts_of, reads_of, uses_of
from .stage import ENDED, FAULT, STUCK, THROWN, UNCLEAR, RehearsalRun, Waiting
from .stand_ins import MissingField

#: How many items a list that is not known has, how large a number is: two, then three.
SIZES: Final = (2, 3)
MAX_RUNS: Final = 160  # of one root
MAX_TURNS: Final = 12  # decisions of one run that are also taken the other way
MAX_STEPS: Final = 20_000  # of one root: half a tenth of a second
ALL_STEPS: Final = 60_000  # of all roots of a program; each is gone through at least once


def check_choreography(program: ParsedProgram) -> list[Problem]:
    """Warnings about mailboxes and messages of a program that has no errors."""
    parts = list(parts_of(program))
    uses = [use for part in parts for use in uses_of(part)]
    if not uses and not any(delegates_of(part) for part in parts):
        return []
    roots = _roots(program, parts)
    runs = {root[0].name: _rehearse(root, ALL_STEPS // len(roots)) for root in roots}
    thrown = [some for some in runs.values() if all(run.outcome == THROWN for run in some)]
    aborted = {name for some in thrown for run in some for name in run.took_part}
    here = _concerned(program, parts, runs)
    problems = []
    if not any(use.mailbox == ANYWHERE for use in uses):
        problems = [*_one_sided(uses, aborted, here), *_never_in_a_message(here, uses)]
    told = {place(problem.span) for problem in problems}
    for some in runs.values():
        problems += _found_in(some, uses, told)
    return problems


def place(span: Span) -> tuple[str, int]:
    """Where something stands, in all the files of a program."""
    return span.file, span.start


# ---------------------------------------------------------------- one side only


def _one_sided(uses: list[MailUse], aborted: set[str], here: list[Part]) -> list[Problem]:
    sent = {use.mailbox for use in uses if use.op == "send"}
    received = {use.mailbox for use in uses if use.op == "receive"}
    problems = []
    names = {part.name for part in here}
    for use in uses:
        if use.who not in names:
            continue
        if use.op == "receive" and use.mailbox not in sent and use.who not in aborted:
            message = f"{use.who} receives from {use.mailbox}, but nothing sends to it"
            problems.append(_warning(use.call.span, "never-sent", message, near(use.mailbox, sent)))
        elif use.op == "send" and use.mailbox not in received:
            message = f"{use.who} sends to {use.mailbox}, but nothing receives from it"
            problems.append(_warning(use.call.span, "never-received", message, near(use.mailbox, received)))
    return problems


def _warning(span: Span, code: str, message: str, hint: str = "") -> Problem:
    return Problem(span, code, message, hint=hint, severity=WARNING)


def _never_in_a_message(parts: list[Part], uses: list[MailUse]) -> list[Problem]:
    """Fields that a receiver reads and that no message to its mailbox has, as they are written."""
    sent: dict[str, set[str] | None] = {}
    for use in uses:
        if use.op == "send":
            known = sent.get(use.mailbox, set())
            fields = fields_of_message(use.call)
            sent[use.mailbox] = known | fields if known is not None and fields is not None else None
    problems = []
    for part in parts:
        for mailbox, read, span in reads_of(part):
            fields = sent.get(mailbox)
            if fields is not None and mailbox in sent and read not in fields:
                message = f"no message to {mailbox} has a {read}"
                problems.append(_warning(span, "message-field", message, near(read, fields)))
    return problems


# ---------------------------------------------------------------- rehearsing


def _roots(program: ParsedProgram, parts: list[Part]) -> list[list[Part]]:
    """The roots of the rehearsals: each part that delegates; without one, all workers of the entry file that use
    mailboxes, together.
    """
    leaders = [part for part in parts if delegates_of(part)]
    if leaders:
        return [[part] for part in _not_led(leaders)]
    own = [part for part in parts if part.loaded is program.entry and not part.function.exported]
    crew = [part for part in own if part.function.kind == "worker" and uses_of(part)]
    return [crew] if crew else []


def _not_led(leaders: list[Part]) -> list[Part]:
    """The leaders that no other leader starts: the others are rehearsed where they start, with their arguments."""
    called = {
        (leader.name, node.callee.name)
        for leader in leaders
        for node in n.walk(leader.function.body)
        if isinstance(node, n.Call) and isinstance(node.callee, n.Name | n.MemberAccess)
    }
    first = [part for part in leaders if not any(by != part.name and part.name == name for by, name in called)]
    return first or leaders


def _concerned(program: ParsedProgram, parts: list[Part], runs: dict[str, list[RehearsalRun]]) -> list[Part]:
    """The parts that the program uses: of imported files, those that took part; of a library, its private ones."""
    took_part = {name for some in runs.values() for run in some for name in run.took_part}
    led = any(delegates_of(part) for part in parts)
    return [
        part
        for part in parts
        if part.name in took_part or (part.loaded is program.entry and (led or not part.function.exported))
    ]


def _rehearse(root: list[Part], max_steps: int) -> list[RehearsalRun]:
    """Every way a root can go, as far as decisions and steps lead: both sizes, both orders, conditions both ways."""
    runs: list[RehearsalRun] = []
    steps = 0
    waiting: deque[tuple[int, bool, tuple[bool, ...]]] = deque(
        (size, order, ()) for size in SIZES for order in (False, True)
    )
    while waiting and len(runs) < MAX_RUNS and steps < min(MAX_STEPS, max_steps):
        size, order, given = waiting.popleft()
        run = RehearsalRun(size, given, last_first=order).play(root)
        runs.append(run)
        steps += run.judge.steps
        made = tuple(answer for answer, _ in run.judge.decisions)
        turns = range(len(given), min(len(made), MAX_TURNS))
        waiting += [(size, order, (*made[:turn], not made[turn])) for turn in turns]
    return runs


def _found_in(runs: list[RehearsalRun], uses: list[MailUse], known: set[tuple[str, int]]) -> list[Problem]:
    problems: dict[tuple[str, int], Problem] = {}
    told = [run for run in runs if run.outcome in {ENDED, STUCK}]
    for run in sorted(runs, key=lambda run: len(run.judge.decisions)):
        if run.outcome == FAULT and run.missing is not None:
            problem = _missing_field(run.missing)
            if place(problem.span) not in known:
                problems.setdefault(place(problem.span), problem)
        elif run.outcome == STUCK:
            calls = [place(wait.call.span) for _, wait in run.waiting]
            if not known.intersection(calls) and not set(calls) & set(problems):
                always = all(other.outcome == STUCK for other in told)
                problem = _stuck(run, uses, always)
                problems.setdefault(place(problem.span), problem)
    if not problems and not any(run.outcome == UNCLEAR for run in runs):
        problems |= {place(problem.span): problem for problem in _unread(runs, known)}
    return list(problems.values())


def _missing_field(missing: MissingField) -> Problem:
    message, node = missing.message, missing.node
    sent = message.sent_by.span
    text = f"the message from {message.mailbox} has no {node.name}: it is sent in line {sent.line} with {', '.join(message) or 'no fields'}"
    return _warning(node.name_span, "message-field", text, near(node.name, message))


def _stuck(run: RehearsalRun, uses: list[MailUse], always: bool) -> Problem:
    """All wait. Told at the first waiting actor, with the ring of those that it waits for."""
    cycle = _cycle(run.waiting, uses)
    told = cycle or run.waiting
    first, wait = told[0]
    others = ", ".join(f"{name} waits for {its.box} in line {its.call.span.line}" for name, its in told)
    text = f"{first} {'waits' if always else 'may wait'} forever: {others}"
    if cycle:
        text += f" ({' -> '.join([*(name for name, _ in cycle), first])})"
    return _warning(wait.call.span, "deadlock", text, _when(run, always))


def _when(run: RehearsalRun, always: bool) -> str:
    if always or not run.judge.decisions:
        return ""
    answers = [
        f"{shortened(' '.join(node.span.text.split()), 40)} in line {node.span.line} is {'true' if answer else 'false'}"
        for answer, node in run.judge.decisions[:3]
    ]
    return "when " + " and ".join(answers)


def _cycle(waiting: list[Waiting], uses: list[MailUse]) -> list[Waiting]:
    """A ring of waiting actors, each waiting for a mailbox that the next one sends to; empty when there is none."""
    senders: dict[str, set[str]] = {}
    for use in uses:
        if use.op == "send":
            senders.setdefault(use.mailbox, set()).add(use.who.rpartition(".")[2])
    for start in waiting:
        path = [start]
        while True:
            wanted = senders.get(path[-1][1].box, set())
            following = next((other for other in waiting if other[0].rpartition(".")[2] in wanted), None)
            if following is None:
                break
            if following in path:
                return path[path.index(following) :]
            path.append(following)
    return []


def _unread(runs: list[RehearsalRun], known: set[tuple[str, int]]) -> list[Problem]:
    """Messages that no run reads. Of several sends at one place, one that is read is enough."""
    sent = {key: found for run in runs if run.outcome == ENDED for key, found in run.sent.items()}
    read = {key for run in runs for key in run.read}
    problems = []
    for key, (box, call) in sent.items():
        if key not in read and place(call.span) not in known:
            message = f"the message sent to {box} here is never read: the session ends first"
            problems.append(_warning(call.span, "unread", message))
    return problems
