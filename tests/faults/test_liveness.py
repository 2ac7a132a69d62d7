"""A receiver dies with a message in its hands; somebody else waits for one.

The story. A process holds a message under a lease of ten minutes and is killed. Another process of the same agent has
been waiting in `receive` all along. Nobody sends anything, and there is no daemon that could notice.

The invariant. The waiting process gets the message within about a second, as its second delivery, with a new token, and
can ack it. A claim that belongs to the agent and not to a process is left alone. Someone who asked the dead one learns
that it is gone; an answer for an asker who died is ordinary mail.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.programs.rooms import letter, open_room, want

import postroom

from .support import ACKED, CLAIMED, DEAD, READY, Look, Nursery, count, journal

#: What is promised is about a second; a machine that others use too may take longer.
SOON_S = 3.0


def wait_for(notes: Path, event: str, nursery: Nursery) -> journal.Line:
    """The line of a journal in which a child tells that event, as soon as it is there."""
    for _ in range(3000):
        for line in journal.read(notes):
            if line.event == event:
                return line
        time.sleep(0.01)
    raise AssertionError(f"no child ever {event}: {nursery.log()}")


def take_over(nursery: Nursery, place: Path, waited_s: float) -> float:
    """Kill a holder while an heir has waited that long; after how many seconds the heir had the message."""
    place.mkdir()
    folder, held, got = place / "room", place / "held", place / "got"
    store = open_room(folder)
    [id] = store.put([letter()])
    store.close()
    holder = nursery.fork("lives.holder", folder=str(folder), journal=str(held))
    wait_for(held, "held", nursery)
    heir = nursery.fork("lives.heir", folder=str(folder), journal=str(got))
    wait_for(got, "waits", nursery)
    time.sleep(waited_s)  # it has looked, found nothing, and waits
    assert [line.event for line in journal.read(got)] == ["waits"], "it was given away while its owner lived"
    killed_ns = nursery.kill(holder)
    nursery.finish(heir)
    [_, taken, acked] = journal.read(got)
    assert taken.details == [id, 2, 2], "the second delivery, with a new token"
    assert acked.details == [True]
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert look.rows("SELECT state, delivery_count FROM messages") == [(ACKED, 2)]
        events = json.loads(look.value("SELECT history FROM messages"))
        assert [event[0] for event in events] == ["claimed", "released", "claimed", "acked"]
        assert "process is gone" in events[1][3]
    return (taken.at_ns - killed_ns) / 1e9


def test_a_loop_that_always_has_mail_still_gets_what_a_dead_one_held(
    nursery: Nursery, folder: Path, tmp_path: Path
) -> None:
    """Who is woken by mail, and finds it, must look for the dead in between: here it is never idle for a second."""
    with postroom.open(f"sqlite:{folder}") as room:
        ada = room.agent("ada")
        held = ada.send("bob", {})
        holder = nursery.fork("lives.holder", folder=str(folder), journal=str(tmp_path / "held"))
        wait_for(tmp_path / "held", "held", nursery)
        over = threading.Event()

        def trickle() -> None:
            while not over.wait(0.1):
                ada.send("bob", {})

        sender, seen = threading.Thread(target=trickle), 0
        sender.start()
        try:
            for message in room.agent("bob").listen(timeout_s=30):
                if message.id == held:
                    break
                seen += 1
                if seen == 5:
                    nursery.kill(holder)
                assert seen < 5 + 15, "a second and a half later"
            message.ack()
        finally:
            over.set()
            sender.join()


@pytest.mark.slow
def test_a_waiting_receiver_gets_what_a_dead_one_held(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    took_s = [take_over(nursery, tmp_path / str(n), 0.25 + n * 0.19) for n in range(count("DEATHS", 6))]
    figure(f"liveness: a dead receiver's message went on after {min(took_s):.2f} to {max(took_s):.2f} s")
    assert max(took_s) < SOON_S


def test_the_message_of_a_dead_process_is_there_for_whoever_looks_next(
    nursery: Nursery, folder: Path, tmp_path: Path
) -> None:
    """Nobody waited; the next one to look gets it at once."""
    notes = tmp_path / "journal"
    store = open_room(folder)
    store.put([letter()])
    holder = nursery.fork("lives.holder", folder=str(folder), journal=str(notes))
    wait_for(notes, "held", nursery)
    assert store.claim(want()).deliveries == []
    store.close()
    nursery.kill(holder)
    store = open_room(folder)
    [delivery] = store.claim(want()).deliveries
    assert delivery.message.delivery_count == 2
    store.close()


def test_a_claim_of_the_agent_itself_does_not_end_with_a_process(
    folder: Path, nursery: Nursery, tmp_path: Path
) -> None:
    """One-shot commands claim for the agent: their process ends, and the claim goes on."""
    store = open_room(folder)
    store.put([letter()])
    store.close()
    notes = tmp_path / "journal"
    nursery.finish(nursery.fork("lives.one_shot", folder=str(folder), journal=str(notes)))
    store = open_room(folder)
    assert store.claim(want()).deliveries == []
    assert store.sweep().released == 0
    store.close()
    with Look(folder) as look:
        assert look.rows("SELECT state, owner FROM messages") == [(CLAIMED, None)]


def test_after_the_last_allowed_delivery_the_message_of_a_dead_process_is_set_aside(
    nursery: Nursery, folder: Path, tmp_path: Path
) -> None:
    store = open_room(folder)
    store.put([letter(max_deliveries=2)])
    for number in range(2):
        notes = tmp_path / f"journal{number}"
        holder = nursery.fork("lives.holder", folder=str(folder), journal=str(notes))
        assert wait_for(notes, "held", nursery).details[2] == number + 1
        nursery.kill(holder)
    store.sweep()
    store.close()
    with Look(folder) as look:
        [(state, error, history)] = look.rows("SELECT state, error, history FROM messages")
    assert state == DEAD and "process is gone" in error
    events = [event[0] for event in json.loads(history)]
    assert events == ["claimed", "released", "claimed", "dead"]


def test_who_asked_a_process_that_died_learns_that_it_is_gone(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    held, asked = tmp_path / "held", tmp_path / "asked"
    holder = nursery.fork("lives.holder", folder=str(folder), journal=str(held))
    asker = nursery.fork("lives.asker", folder=str(folder), journal=str(asked))
    wait_for(held, "held", nursery)
    killed_ns = nursery.kill(holder)
    ended = wait_for(asked, "ended", nursery)
    nursery.finish(asker)
    assert ended.details[0] in ("PeerGone", "NotAnswered"), ended.details
    took_s = (ended.at_ns - killed_ns) / 1e9
    figure(f"liveness: who asked a process that died knew it after {took_s:.2f} s ({ended.details[0]})")
    assert took_s < SOON_S


def test_an_answer_for_an_asker_that_died_is_ordinary_mail(nursery: Nursery, folder: Path, tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asker = nursery.fork("lives.patient_asker", folder=str(folder), journal=str(asked))
    wait_for(asked, "asks", nursery)
    store = open_room(folder)
    while not store.stats().states["stored"]:
        time.sleep(0.01)
    nursery.kill(asker)
    nursery.finish(nursery.fork("lives.answerer", folder=str(folder), journal=str(answered)))
    [_, counted, answer] = journal.read(answered)[0].details
    assert counted
    store.sweep()
    store.close()
    with Look(folder) as look:
        assert look.value("SELECT state FROM messages WHERE id = ?", (answer,)) == READY
    store = open_room(folder)
    [delivery] = store.claim(want("ada")).deliveries
    assert delivery.message.id == answer
    store.close()
