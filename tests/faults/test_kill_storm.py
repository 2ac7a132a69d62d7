"""The storm: senders, receivers, counters and housekeepers on one room, killed with SIGKILL at random moments.

The story. Each child works for up to 50 ms and is killed in the middle of whatever it does; now and then all of them
are killed in the same moment, so that the next one to come finds a log that nobody closed. No child ever closes the
room. The long storm kills 10,000, because SQLite's log once filled up after 1,023 deaths in mid-transaction.

The invariant. A send that returned is kept, and a batch is kept whole or not at all. Nothing is held by two living
owners at once; every token is given once; settling counts once, and what counted stands. An answer is there exactly
when its question is answered. A counter kept by compare-and-set has lost no addition. In the end, everything can be
received. The file passes SQLite's own check.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.programs.nursery import steady_ns
from tests.faults.programs.storm import COUNTER

import postroom
from postroom.core.system import LINUX

from .support import ACKED, ANSWERED, Look, Nursery, count, in_parts, journal, seed

ROLES = (
    "sender", "receiver", "teller", "receiver", "counter", "counter", "sender", "listener", "housekeeper", "receiver",
)  # fmt: skip
AT_ONCE = 6
#: Without /proc, opening a room asks other programs: children that live no longer are killed before they do anything.
LIFE_S = 0.05 if LINUX else 0.5


#: When the children with that pid were killed; a system gives out a pid again and again.
Killed = dict[int, list[int]]


def storm(nursery: Nursery, folder: Path, notes: Path, kills: int, killed: Killed) -> None:
    """Kill that many children, and those that are left in the end. Those killed are added to `killed`."""
    chance = random.Random(seed())
    alive: list[tuple[int, int]] = []  # when to kill, whom
    born = 0
    while born - len(alive) < kills:
        while len(alive) < AT_ONCE:
            role = ROLES[born % len(ROLES)]
            pid = nursery.fork(f"storm.{role}", folder=str(folder), journal=str(notes), seed=seed() + born)
            heapq.heappush(alive, (steady_ns() + int(chance.random() * LIFE_S * 1e9), pid))
            born += 1
        time.sleep(max(0, alive[0][0] - steady_ns()) / 1e9)
        victims = [heapq.heappop(alive)[1]]
        if chance.random() < 0.1:
            victims += [pid for _, pid in alive]
            alive.clear()
        failed = nursery.ended(victims)
        assert not failed, f"children ended by themselves ({failed}):\n{nursery.log()}"
        at_ns = nursery.kill(*victims)
        for pid in victims:
            killed[pid].append(at_ns)
    nursery.kill(*[pid for _, pid in alive])  # the last ones: nobody comes after them


def lost_sends(look: Look, lines: list[journal.Line]) -> set[str]:
    """Ids that a send or an answer returned and that are not there."""
    told = {id for line in lines if line.event == "sent" for id in line.details[0]}
    told |= {id for line in lines if line.event == "settled" for id in line.details[4]}
    return told - look.ids()


def half_batches(look: Look) -> list[tuple[object, ...]]:
    return look.rows(
        "SELECT payload ->> 'batch' AS batch, count(*) AS there, payload ->> 'of' AS sent FROM messages "
        "WHERE batch IS NOT NULL GROUP BY batch HAVING there <> sent"
    )


def answers_without_their_question(look: Look) -> list[tuple[object, ...]]:
    return look.rows(
        "SELECT q.id, q.state, count(a.key) AS answers FROM messages q LEFT JOIN messages a ON a.answer_to = q.key "
        f"GROUP BY q.key HAVING answers <> (q.state = {ANSWERED})"
    )


def held_by_two(lines: list[journal.Line], killed: Killed) -> list[str]:
    """Messages that somebody claimed while another living process held them, as far as the journals can tell.

    A holder holds from the moment its claim returned until it begins to settle, or until it is killed.
    """
    released: dict[tuple[int, str, int], int] = {
        (line.pid, line.details[0], line.details[1]): line.at_ns for line in lines if line.event == "settling"
    }
    holds: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for line in lines:
        if line.event == "claimed":
            id, token = line.details
            death = min((at_ns for at_ns in killed.get(line.pid, ()) if at_ns >= line.at_ns), default=line.at_ns)
            until = released.get((line.pid, id, token), death)
            holds[id].append((line.at_ns, until, token))
    return [
        f"{id}: held with token {first[2]} until {first[1]}, and claimed with token {second[2]} at {second[0]}"
        for id, spans in holds.items()
        for first, second in zip(sorted(spans), sorted(spans)[1:], strict=False)
        if second[0] < first[1] or second[2] <= first[2]
    ]


def check_storm(folder: Path, notes: Path, killed: Killed) -> str:
    """Everything that must hold after the storm. Returns figures about it."""
    lines = journal.read(notes)
    counted = [line for line in lines if line.event == "settled" and line.details[3]]
    finished = {line.details[0]: line.details[2] for line in counted if line.details[2] != "retry"}
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert lost_sends(look, lines) == set()
        assert half_batches(look) == []
        assert answers_without_their_question(look) == []
        assert held_by_two(lines, killed) == []
        tokens = Counter((line.details[0], line.details[1]) for line in counted)
        assert [ticket for ticket, times in tokens.items() if times > 1] == []
        states = dict(look.rows("SELECT id, state FROM messages"))
        assert states, "all were killed before they had sent anything: the storm shows nothing"
        assert {id: states[id] for id, outcome in finished.items() if states[id] != _state(outcome)} == {}
        additions = [line.details[0] for line in lines if line.event == "counted"]
        assert len(set(additions)) == len(additions)
        kept = look.rows("SELECT value FROM cells WHERE name = ?", (COUNTER,))
        assert max(additions, default=0) <= int(kept[0][0] if kept else 0) <= len(additions) + kills_of(killed)
    return f"{len(states)} messages kept, {len(finished)} finished, {len(additions)} counted"


def kills_of(killed: Killed) -> int:
    return sum(len(times) for times in killed.values())


def _state(outcome: str) -> int:
    return ACKED if outcome == "acked" else ANSWERED


def run_storm(nursery: Nursery, folder: Path, kills: int, killed: Killed, figure: Callable[[str], None]) -> None:
    """`killed` has those of earlier storms in the same room, whose journals are checked again."""
    notes = folder.parent / "journal"
    postroom.open(f"sqlite:{folder}").close()
    storm(nursery, folder, notes, kills, killed)
    told = check_storm(folder, notes, killed)
    nursery.finish(nursery.fork("storm.drain", folder=str(folder), journal=str(notes)))
    check_storm(folder, notes, killed)
    with Look(folder) as look:
        left = look.value(f"SELECT count(*) FROM messages WHERE state NOT IN ({ACKED}, {ANSWERED})")
    assert left == 0, f"{left} messages could not be received after the storm"
    figure(f"kill storm: {kills_of(killed)} kills; {told}")


@pytest.mark.slow
def test_no_kill_loses_a_message_or_gives_it_two_owners(
    nursery: Nursery, folder: Path, figure: Callable[[str], None]
) -> None:
    run_storm(nursery, folder, count("KILLS", 150), defaultdict(list), figure)


@pytest.fixture(scope="module")
def one_room(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Killed]:
    """The room of all parts of the long storm, and those that were killed in it so far."""
    return tmp_path_factory.mktemp("storm") / "room", defaultdict(list)


@pytest.mark.long
@in_parts(5)
@pytest.mark.usefixtures("part")
def test_ten_thousand_kills_in_one_room(
    nursery: Nursery, one_room: tuple[Path, Killed], figure: Callable[[str], None]
) -> None:
    run_storm(nursery, one_room[0], count("KILLS_LONG", 10_000) // 5, one_room[1], figure)


def test_the_check_of_two_owners_sees_two_owners() -> None:
    """A check that cannot fail proves nothing: here is a made-up journal with a fault in it."""
    claims = [journal.Line("claimed", 1, 10, ["m", 1]), journal.Line("claimed", 2, 20, ["m", 2])]
    assert held_by_two(claims, killed={1: [5, 30], 2: [40]})
    assert not held_by_two(claims, killed={1: [15, 50], 2: [40]})
    assert not held_by_two([*claims, journal.Line("settling", 1, 19, ["m", 1])], killed={1: [5, 30], 2: [40]})
