"""Run the specification: exhaust its states, see that seeded mistakes are found, and write down traces of it.

    python spec/prove.py              every state of every file, within the bounds of RUNS; a table of their numbers
    python spec/prove.py --quick      the same within smaller bounds, in seconds
    python spec/prove.py --mutants    break the specification in each way of MUTANTS; the promise that is broken is named
    python spec/prove.py --corpus     write spec/traces.txt.gz, which the suite replays on every store
    python spec/prove.py --trace task 7   print one batch of random traces of task.pml, of that seed

The searches are exhaustive: no state is left out or merged by a hash, and a search that came to its depth fails.
Needs spin 6.5 and gcc (on Debian: apt-get install spin gcc).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CORPUS = HERE / "traces.txt.gz"
MAX_DEPTH = 5_000_000
MEMORY_MIB = 12_000


class Failed(Exception):
    """The specification does not hold, or could not be run to its end."""


class Run(NamedTuple):
    """One exhaustive search: a file, its bounds, and the claim of temporal logic to be checked, if it is about one."""

    file: str
    bounds: dict[str, int]
    claim: str = ""

    @property
    def shown(self) -> str:
        return " ".join(f"{name.lower()}={number}" for name, number in self.bounds.items())


class Found(NamedTuple):
    """What a search came to. `broken` is the promise that does not hold, with its line; "" when all of them do."""

    states: int
    transitions: int
    depth: int
    seconds: float
    broken: str


class Mutant(NamedTuple):
    """A mistake: what it is, the text that is replaced and by what, and the promise that it must be seen to break."""

    file: str
    name: str
    right: str
    wrong: str
    promise: str


SMALL = (
    Run("cells", {"WRITERS": 3, "WRITES": 5}),
    Run("task", {"WORKERS": 2, "CRASHES": 2, "TOKENS": 3}),
    Run("session", {"MEMBERS": 3, "CRASHES": 2}),
    Run("session", {"MEMBERS": 3, "CRASHES": 2}, "fail_together"),
)
RUNS = (
    Run("message", {"RECEIVERS": 3, "MESSAGES": 2, "CRASHES": 2, "JUMPS": 0}),
    Run("message", {"RECEIVERS": 2, "MESSAGES": 3, "CRASHES": 1, "JUMPS": 1, "FAVOURS": 0}),
    Run("order", {"RECEIVERS": 2, "MESSAGES": 3, "CRASHES": 1}),
    Run("order", {"RECEIVERS": 2, "MESSAGES": 4, "CRASHES": 0, "FAVOURS": 0}),
    Run("limits", {"RECEIVERS": 2, "MESSAGES": 3, "CRASHES": 1, "CHANGES": 4}),
    Run("task", {"WORKERS": 3, "CRASHES": 1, "TOKENS": 2}),
    *SMALL,
)
QUICK = (
    Run("message", {"RECEIVERS": 2, "MESSAGES": 2, "CRASHES": 1, "JUMPS": 1}),
    Run("order", {"RECEIVERS": 1, "MESSAGES": 3, "CRASHES": 1}),
    Run("limits", {"RECEIVERS": 2, "MESSAGES": 2, "CRASHES": 1, "CHANGES": 2}),
    *SMALL,
)

MUTANTS = (
    Mutant("message", "the fence is forgotten", "(ticket[r].on[m] == now &&", "(HAS_HAD(r, m) &&", "4_"),
    Mutant("message", "a claim makes no new token", "        new_token(got);\n", "", "4_one_live_owner"),
    Mutant(
        "message", "a claim is given twice", "message[got].state != ready -> got++",
        "message[got].state != ready && message[got].state != claimed -> got++", "4_one_live_owner",
    ),
    Mutant(
        "message", "a living receiver is taken for dead", "if :: message[i].owner == r ->",
        "if :: message[i].state == claimed ->", "4_one_live_owner",
    ),
    Mutant(
        "message", "leases are counted by the wall clock", "inline jumping() {\n    begin(NONE);",
        "inline jumping() {\n    begin(NONE);\n    message[0].left = 0;", "4_one_live_owner",
    ),
    Mutant(
        "message", "a stale settling stores its answer", "    :: else ->\n        PROMISE(4_a_stale",
        "    :: else ->\n        if :: how == answered -> message[m].answer = loose :: else fi;\n        PROMISE(4_a_stale",
        "4_a_stale_one_changes_nothing",
    ),
    Mutant(
        "message", "a crash loses the message", "message[i].owner = GONE ::", "message[i].state = unsent ::",
        "1_a_send_that_returned_is_kept",
    ),
    Mutant(
        "message", "a dead owner keeps its claim", "(message[m].left == 0 || message[m].owner == GONE)",
        "message[m].left == 0", "5_at_least_once",
    ),
    Mutant(
        "message", "deliveries are not counted out", "-> dead : (LOOSE(m)", "-> ready : (LOOSE(m)", "5_then_set_aside",
    ),
    Mutant(
        "message", "the newest is taken first", "    got = 0;\n",
        "    got = (message[MESSAGES - 1].state == ready -> MESSAGES - 1 : 0);\n", "6_order",
    ),
    Mutant("message", "an acked message is put back", "    :: message[m].state == dead ||",
           "    :: message[m].state == acked || message[m].state == dead ||", "3_only_settling_ends_it"),
    Mutant(
        "message", "a dead asker's answer is kept for it", "    if :: message[m].answer == held -> message[m].answer = loose ::",
        "    if :: false -> skip ::", "8_an_answer_is_ordinary_mail",
    ),
    Mutant(
        "order", "a message comes before its turn", "(kind != free && first != NONE -> blocked :", "(false -> blocked :",
        "6_one_of_a_key_at_a_time",
    ),
    Mutant(
        "order", "a message that is put back does not wait", "become(m, (others > 0 -> blocked : ready), 0)",
        "become(m, ready, 0)", "6_one_of_a_key_at_a_time",
    ),
    Mutant(
        "order", "the end of a message lets nobody pass", "        fi;\n        let_the_next_pass()", "        fi",
        "6_the_next_of_a_key_passes",
    ),
    Mutant(
        "order", "the next passes while the first is retried", "IN_LINE(first) && message[first].state != blocked",
        "IN_LINE(first) && message[first].state == claimed", "6_one_of_a_key_at_a_time",
    ),
    Mutant(
        "order", "the newest of a key passes first", "message[i].place < message[first].place) -> first = i",
        "message[i].place > message[first].place) -> first = i", "6_order_within_a_key",
    ),
    Mutant(
        "order", "a claimed message can be withdrawn", "    :: WAITS(message[m].state) ->",
        "    :: WAITS(message[m].state) || message[m].state == claimed ->", "withdrawn_is_what_no_receiver_has",
    ),
    Mutant(
        "order", "a late holder settles what was withdrawn",
        "(ticket[r].on[m] == now && (message[m].state == claimed || message[m].state == ready))",
        "(HAS_HAD(r, m) && (message[m].state == claimed || message[m].state == ready || message[m].state == withdrawn))",
        "withdrawn_is_never_delivered",
    ),
    Mutant(
        "order", "a withdrawn message can be put back", "(s == expired || s == dead)", "(s == expired || s == dead || s == withdrawn)",
        "withdrawn_is_never_delivered",
    ),
    Mutant(
        "order", "a withdrawal lets nobody pass", "-> take_back(m) :: else fi;\n    let_the_next_pass();",
        "-> take_back(m) :: else fi;", "6_the_next_of_a_key_passes",
    ),
    Mutant("limits", "one too many is given", "running < most && !(rated", "running <= most && !(rated", "limits_are_never_exceeded"),
    Mutant(
        "limits", "a late holder has its message again beside another",
        "(message[m].state == claimed || running < most)", "true", "limits_are_never_exceeded",
    ),
    Mutant("limits", "what a dead process held is never free", "(message[m].left == 0 || message[m].owner == GONE)",
           "(message[m].left == 0 && message[m].owner != GONE)", "5_a_kill_leaks_nothing"),
    Mutant("limits", "the bucket is not written", "if :: rated -> used = 1; taken++", "if :: rated -> taken++",
           "rates_are_never_exceeded"),
    Mutant("limits", "a pause is not looked at", "got < MESSAGES && !paused && running", "got < MESSAGES && running",
           "a_pause_gives_nothing"),
    Mutant("limits", "a bucket stays empty", "    used = 0;\n    taken = 0;\n    for", "    taken = 0;\n    for",
           "5_a_kill_leaks_nothing"),
    Mutant("cells", "the comparison is forgotten", "(expect == ANY || expect == version)", "true",
           "no_write_is_overwritten_unseen"),
    Mutant("cells", "versions begin anew after a deletion", "version = NOT_THERE; value = 0;",
           "given = 0; version = NOT_THERE; value = 0;", "no_write_is_overwritten_unseen"),
    Mutant("task", "a claim is given twice", "(state == ready || LAPSED)", "(state == ready || state == claimed)",
           "13_a_task_has_one_owner"),
    Mutant("task", "what is done can be reopened", "(state == blocked || state == aborted)",
           "(state == blocked || state == aborted || state == finished)", "13_not_done_again"),
    Mutant("task", "a late owner reports without claiming the task back", "reports_it && state == claimed && MINE",
           "reports_it && MINE", "13_a_kill_between"),
    Mutant("task", "a note is taken away that was written meanwhile", "worker[w].note_is_same && worker[w].note <=",
           "worker[w].note <=", "13_a_kill_between"),
    Mutant("session", "a later failure takes the place of the first", "    :: !OVER ->\n        version++;",
           "    :: !ended ->\n        version++;", "9_the_first_failure_stands"),
    Mutant("session", "a member joins without a look at the record", "                :: OVER -> member[m].is = left;",
           "                :: false -> member[m].is = left;", "9_nobody_joins_what_is_over"),
)  # fmt: skip

#: Spin counts every statement; a batch of so many has about 80 traces.
BATCH_STATEMENTS = 400_000


class Model(NamedTuple):
    """How traces of a file are made, told apart, and found.

    `traced` are the bounds of random traces, taken in turns: the larger have more to be confused, the smaller come to
    rare states sooner. `walked` are searches whose every transition is printed; together they have all of the file.
    """

    traced: tuple[tuple[str, ...], ...]
    walked: tuple[tuple[str, ...], ...]
    transitions_of: Callable[[str], Iterator[str]]
    kept: int


def flags(bounds: dict[str, int]) -> list[str]:
    return [f"-D{name}={number}" for name, number in bounds.items()]


def bound(*more: str, **bounds: int) -> tuple[str, ...]:
    return (*more, *flags(bounds))


def message_transitions_of(step: str) -> Iterator[str]:
    """The transitions that a step of message.pml, order.pml or limits.pml is one of: what was done, its outcome, and how each message changed.

    A message that the step is about counts as it was written down and as it was seen; another, only when it changed.
    """
    head, *messages = step.split(" | ")
    what, how, _, about, outcome, got = head.split()
    for number, message in enumerate(messages):
        seen, written, answer, _ = message.split()
        if str(number) == about:
            yield f"{what} {how} {outcome} {seen} {written} {answer}"
        elif str(number) == got:
            yield f"{what} takes {seen} {written}"
        elif len(set(seen.split(">"))) > 1:
            yield f"{what} {how} changes {seen}"
    if about == got and what == "settle_and_claim" and int(got) < len(messages):
        yield f"{what} takes the same again"


def transition_of(step: str) -> Iterator[str]:
    """The transition of a step of any other file: what was done, by whomever, its outcome, and what it changed."""
    head, changes, _ = step.split(" | ")
    what, _, *said = head.split()
    yield " ".join((what, *said, changes))


def _traced(more: str, receivers: int, messages: int) -> tuple[str, ...]:
    return bound(more, RECEIVERS=receivers, MESSAGES=messages, CRASHES=2, JUMPS=1, FAVOURS=2, TRACE=40)


def _in_order(more: str, receivers: int, messages: int) -> tuple[str, ...]:
    return bound(more, "-DSURE", RECEIVERS=receivers, MESSAGES=messages, CRASHES=2, FAVOURS=2, TRACE=40)


#: Workers, crashes, tokens, and whether somebody calls the task off.
TASK_BOUNDS = ((2, 2, 4, 1), (2, 0, 4, 0), (3, 1, 6, 0), (2, 1, 3, 0), (1, 1, 3, 1))

MODELS = {
    "message": Model(
        (
            *(
                _traced(f"-DONLY={kind}", some, 1)
                for kind in ("brief", "question", "fragile", "later")
                for some in (1, 2)
            ),
            *(_traced("-DONLY=brief", receivers, 2) for receivers in (1, 2)),
            *(_traced("-DANY_KIND", *bounds) for bounds in ((3, 3), (2, 2), (2, 1), (1, 2), (1, 1))),
        ),
        (
            bound("-DANY_KIND", RECEIVERS=2, MESSAGES=1, CRASHES=1, JUMPS=1, FAVOURS=2),
            bound("-DANY_KIND", RECEIVERS=1, MESSAGES=2, CRASHES=0, JUMPS=1, FAVOURS=0),
        ),
        message_transitions_of,
        400,
    ),
    "order": Model(
        (
            *(
                _in_order(f"-DONLY={kind}", receivers, 2)
                for kind in ("plain", "brief", "later", "fragile")
                for receivers in (1, 2)
            ),
            *(_in_order("-DANY_KIND", *bounds) for bounds in ((1, 2), (2, 3), (2, 4), (1, 3), (2, 2))),
        ),
        (
            bound("-DANY_KIND", "-DSURE", RECEIVERS=1, MESSAGES=2, CRASHES=1, FAVOURS=2),
            bound("-DANY_KIND", "-DSURE", RECEIVERS=2, MESSAGES=2, CRASHES=0, FAVOURS=1),
            bound("-DSURE", RECEIVERS=1, MESSAGES=3, CRASHES=0, FAVOURS=0),
        ),
        message_transitions_of,
        300,
    ),
    "limits": Model(
        tuple(
            bound(RECEIVERS=receivers, MESSAGES=messages, CRASHES=2, CHANGES=changes, TRACE=40)
            for receivers, messages, changes in ((2, 3, 6), (1, 2, 4), (3, 4, 4), (2, 2, 8))
        ),
        (
            bound(RECEIVERS=2, MESSAGES=2, CRASHES=1, CHANGES=2),
            bound(RECEIVERS=1, MESSAGES=2, CRASHES=0, CHANGES=4),
        ),
        message_transitions_of,
        200,
    ),
    "cells": Model(
        tuple(bound(WRITERS=writers, WRITES=6, TRACE=30) for writers in (1, 2, 3)),
        (bound(WRITERS=2, WRITES=4),),
        transition_of,
        60,
    ),
    "task": Model(
        tuple(
            bound(WORKERS=workers, CRASHES=crashes, TOKENS=tokens, ABORTS=aborts, TRACE=40)
            for workers, crashes, tokens, aborts in TASK_BOUNDS
        ),
        (bound(WORKERS=2, CRASHES=2, TOKENS=3),),
        transition_of,
        400,
    ),
    "session": Model(
        tuple(bound(MEMBERS=3, CRASHES=crashes, TRACE=40) for crashes in (0, 1, 2)),
        (bound(MEMBERS=3, CRASHES=2),),
        transition_of,
        100,
    ),
}


def missing() -> str:
    """What is not here, and how to get it; "" when all is."""
    absent = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return (
        f"{' and '.join(absent)} not found; on Debian and Ubuntu: apt-get install {' '.join(absent)}" if absent else ""
    )


def text_of(file: str) -> str:
    return (HERE / f"{file}.pml").read_text(encoding="utf-8")


def call(words: list[str], folder: Path) -> str:
    """What a program prints. Failed, with what it printed, when it does not end well."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{words[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build(text: str, spin_flags: list[str], gcc_flags: list[str], folder: Path) -> None:
    """Make the program `pan`, which searches all states of a specification."""
    (folder / "spec.pml").write_text(text, encoding="utf-8")
    call(["spin", "-a", *spin_flags, "spec.pml"], folder)
    call(["gcc", "-w", "-DNOREDUCE", "-DNFAIR=3", f"-DMEMLIM={MEMORY_MIB}", *gcc_flags, "-o", "pan", "pan.c"], folder)


def search(run: Run, text: str | None = None, *, fast: bool = True) -> Found:
    """Visit every state. Raises Failed when the search was cut off."""
    text = text_of(run.file) if text is None else text
    with tempfile.TemporaryDirectory(prefix="postroom-spec-") as name:
        folder = Path(name)
        build(
            text,
            flags(run.bounds),
            ["-O1" if fast else "-O0", *([] if run.claim else ["-DSAFETY", "-DNOCLAIM"])],
            folder,
        )
        began = time.monotonic()
        words = ["./pan", f"-m{MAX_DEPTH if fast else 100_000}", *(["-a", "-f"] if run.claim else [])]
        said = call(words, folder)
        seconds = time.monotonic() - began
        errors = re.search(r"depth reached (\d+), errors: (\d+)", said)
        if errors is None or re.search(r"max search depth too small|out of memory|aborted|not searched", said):
            raise Failed(f"the search of {run.file} ({run.shown}) was cut off:\n{said[-1500:]}")
        broken = blame(said, text, run, folder) if int(errors[2]) else ""
        states, transitions = (
            int(float(found)) for found in re.findall(r"^ *([\d.e+]+) (?:states, stored|transitions)", said, re.M)
        )
        return Found(states, transitions, int(errors[1]), seconds, broken)


def blame(said: str, text: str, run: Run, folder: Path) -> str:
    """The line of the specification that an error was found in."""
    told = subprocess.run(
        ["spin", "-t", "-T", *flags(run.bounds), "spec.pml"], cwd=folder, capture_output=True, text=True, check=False
    ).stdout
    line = re.search(r"spec\.pml:(\d+), Error: assertion violated", told)
    if line is not None:
        return text.splitlines()[int(line[1]) - 1].strip()
    first = re.search(r"^pan:\d+: (.*)$", said, re.M)
    return f"{run.claim} {first[1] if first else said[-300:]}".strip()


def prove(runs: tuple[Run, ...]) -> bool:
    """Exhaust them, and print a table. Returns whether everything holds."""
    print(f"{'file':8} {'bounds':48} {'states':>12} {'transitions':>14} {'depth':>7} {'s':>6}")
    holds = True
    for run in runs:
        found = search(run)
        holds = holds and not found.broken
        what = f"{run.shown} {run.claim}".strip()
        print(
            f"{run.file:8} {what:48} {found.states:12,} {found.transitions:14,} {found.depth:7,} {found.seconds:6.0f}",
            flush=True,
        )
        if found.broken:
            print(f"         does not hold: {found.broken}")
    return holds


def mutated(mutant: Mutant) -> str:
    """The specification with the mistake in it."""
    text = text_of(mutant.file)
    if text.count(mutant.right) != 1:
        raise Failed(f"the mutant {mutant.name!r} does not fit {mutant.file}.pml: {mutant.right!r} must be there once")
    return text.replace(mutant.right, mutant.wrong)


def try_mutants(mutants: tuple[Mutant, ...] = MUTANTS) -> bool:
    """Break the specification in each way. Returns whether Spin objected to all of them, for the right reason."""
    good = True
    for mutant in mutants:
        run = next(run for run in QUICK if run.file == mutant.file)
        broken = search(run, mutated(mutant), fast=False).broken
        found = mutant.promise in broken
        good = good and found
        print(
            f"{'found' if found else 'MISSED':7} {mutant.file}: {mutant.name}: {broken[:100] or 'no promise was broken'}",
            flush=True,
        )
    return good


# Traces


def traces(file: str, seed: int) -> list[list[str]]:
    """One batch of random traces of a file; each is a list of steps, as the specification tells of them."""
    turns = MODELS[file].traced
    words = ["spin", "-T", f"-n{seed}", f"-u{BATCH_STATEMENTS}", *turns[seed % len(turns)]]
    with tempfile.TemporaryDirectory(prefix="postroom-spec-") as name:
        said = subprocess.run(
            [*words, str(HERE / f"{file}.pml")], cwd=name, capture_output=True, text=True, check=False
        ).stdout
    batch: list[list[str]] = [[]]
    for line in said.split("-------------")[0].splitlines():
        if line == "end":
            batch.append([])
        elif " | " in line:  # Spin itself may say something, too
            batch[-1].append(line)
    return batch[:-1]  # the last was cut off


def walk(file: str, bounds: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every step that a search of all states takes, with its depth: the last step of each smaller one is the way to it."""
    # the searching program knows no %e: names are printed as numbers, and its source tells which are whose
    told = 'printf("%e'
    text = text_of(file).replace(told, f'c_code {{ printf("@%ld ", depth); }}; {told}', 1).replace("%e", "#%d")
    with tempfile.TemporaryDirectory(prefix="postroom-spec-") as name:
        folder = Path(name)
        build(text, [*bounds], ["-O0", "-DSAFETY", "-DPRINTF"], folder)
        names = dict(re.findall(r'case (\d+): Printf\("(\w+)"\)', (folder / "pan.c").read_text(encoding="utf-8")))
        with subprocess.Popen(["./pan", f"-m{MAX_DEPTH}"], cwd=folder, stdout=subprocess.PIPE, text=True) as pan:
            assert pan.stdout is not None
            known: dict[str, str] = {}  # millions of steps are taken, and most of them are told alike
            for line in pan.stdout:
                if line.startswith("@"):
                    at, _, step = line.partition(" ")
                    if step not in known:
                        known[step] = re.sub(r"#(\d+)", lambda number: names[number[1]], step.rstrip())
                    yield int(at[1:]), known[step]


def every_transition(file: str) -> dict[str, list[str]]:
    """All transitions that a file has, each with the shortest trace to it that is found in searches of all states."""
    found: dict[str, list[str]] = {}
    of: dict[str, list[str]] = {}
    for bounds in MODELS[file].walked:
        way: dict[int, str] = {}
        for at, step in walk(file, bounds):
            way[at] = step
            if step not in of:
                of[step] = list(MODELS[file].transitions_of(step))
            for each in of[step]:
                if each not in found or len(found[each]) > at + 1:
                    found[each] = [way[n] for n in range(at + 1) if n in way]
    return found


def fingerprint(file: str) -> str:
    """The text of a file that traces are made of."""
    return hashlib.sha256((HERE / f"{file}.pml").read_bytes()).hexdigest()[:16]


class Corpus(NamedTuple):
    """Traces of a file that have every transition, the transitions, and the text that they were made of."""

    file: str
    fingerprint: str
    transitions: list[str]
    traces: list[list[str]]

    def to_text(self) -> str:
        head = f"Traces of {self.file} {self.fingerprint}"
        return "\n\n".join([head, *("\n".join(lines) for lines in (self.transitions, *self.traces))])

    @classmethod
    def from_text(cls, text: str) -> Corpus:
        head, transitions, *traces = text.rstrip("\n").split("\n\n")
        file, of = head.split()[-2:]
        return cls(file, of, transitions.splitlines(), [trace.splitlines() for trace in traces])

    def uncovered(self) -> list[str]:
        """The transitions that no trace has."""
        of = MODELS[self.file].transitions_of
        had = {each for trace in self.traces for step in trace for each in of(step)}
        return [each for each in self.transitions if each not in had]


def read_corpora() -> dict[str, Corpus]:
    """The kept traces, by their files."""
    parts = gzip.decompress(CORPUS.read_bytes()).decode().split("\n\n\n")
    return {corpus.file: corpus for corpus in map(Corpus.from_text, parts)}


def write_corpora(corpora: Iterable[Corpus]) -> None:
    CORPUS.write_bytes(gzip.compress("\n\n\n".join(each.to_text() for each in corpora).encode() + b"\n", mtime=0))


def make_corpus(file: str, batches: int = 60) -> Corpus:
    """Traces of a file: those that were the first to have a transition, the way to those that none has, and others."""
    model = MODELS[file]
    ways = every_transition(file)
    left = set(ways)
    first: list[list[str]] = []
    others: list[list[str]] = []
    for seed in range(1, batches + 1):
        for trace in traces(file, seed):
            had = {each for step in trace for each in model.transitions_of(step)}
            (first if had & left else others).append(trace)
            left -= had
    print(f"{file}: {len(left)} of {len(ways)} transitions were met by no random trace", flush=True)
    for transition in sorted(left, key=lambda each: (-len(ways[each]), each)):
        if transition in left:  # or it is on the way to another
            first.append(ways[transition])
            left -= {each for step in first[-1] for each in model.transitions_of(step)}
    others = others[:: max(1, len(others) // max(1, model.kept - len(first)))]
    return Corpus(file, fingerprint(file), sorted(ways), [*first, *others][: max(model.kept, len(first))])


def make_corpora() -> None:
    """Make those anew whose file has changed since, and write all of them."""
    kept = read_corpora() if CORPUS.exists() else {}
    for file in MODELS:
        if file not in kept or kept[file].fingerprint != fingerprint(file):
            kept[file] = make_corpus(file)
        print(f"{file}: {len(kept[file].traces)} traces with {len(kept[file].transitions)} transitions", flush=True)
    write_corpora(kept[file] for file in MODELS)
    print(f"{CORPUS.stat().st_size:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller bounds, in seconds")
    parser.add_argument("--mutants", action="store_true", help="see that seeded mistakes are found")
    parser.add_argument("--corpus", action="store_true", help="write the traces that the suite replays")
    parser.add_argument("--trace", nargs=2, metavar=("FILE", "SEED"), help="print one batch of traces")
    asked = parser.parse_args()
    absent = missing()
    if absent:
        print(f"prove: {absent}", file=sys.stderr)
        return 2
    try:
        if asked.mutants:
            return 0 if try_mutants() else 1
        if asked.trace is not None:
            file, seed = asked.trace
            print("\nend\n".join("\n".join(trace) for trace in traces(file, int(seed))))
            return 0
        if asked.corpus:
            make_corpora()
            return 0
        return 0 if prove(QUICK if asked.quick else RUNS) else 1
    except Failed as error:
        print(f"prove: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
