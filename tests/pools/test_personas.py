"""The personas of examples/personas.py judge, decide and answer each other, with a mock and with a real server's model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import EXAMPLES

import postroom
from postroom.pools.decide import Decision, decision_from

pytestmark = pytest.mark.slow

PROGRAM = EXAMPLES / "personas.py"


def talk(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), "--room", f"sqlite:{folder}/room", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def decisions(room: postroom.Room) -> list[Decision]:
    return [decision_from(cell.value["decision"]) for cell in room.store.cell_scan("decision/")]


def test_personas_answer_each_other_until_the_hops_are_used_up(tmp_path: Path) -> None:
    told = talk(tmp_path, "--hops", "2", "--seed", "7", "Which index?", "Shall we deploy?", "Do users wait?")

    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        spoken = room.peek(channels=["chat"], state="acked", limit=100)
        made = decisions(room)

    by = {message.id: message for message in spoken}
    answers = [message for message in spoken if message.from_agent != "you"]
    assert {message.from_agent for message in answers} <= {"ada", "bob", "cyd"}
    assert {message.hop_count for message in spoken} == {0, 1, 2}  # people, personas, personas to personas
    assert len(made) == len(spoken)  # one decision for each message, also for the last of a chain
    assert sum(len(decision.granted) for decision in made) == len(answers)
    assert all(by[decision.message_id].from_agent not in decision.granted for decision in made)
    assert "fast_path after" in told
    assert "all_in after" in told
    assert "hop_cap after" in told
    assert "█" in told


def test_personas_speak_through_any_model(tmp_path: Path) -> None:
    told = talk(tmp_path, "--hops", "1", "--model", "mock:5", "Which index?", "And the table?", "Ada, Bob, Cyd?")

    assert "all_in after" in told
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        assert any(message.from_agent != "you" for message in room.peek(channels=["chat"], state="acked", limit=100))
