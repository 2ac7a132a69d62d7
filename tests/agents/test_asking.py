"""Claude Code asks by the tool: the answer's ledger says that it was handed over, and then that the model has it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import World
from .model_server import Call, ModelServer, Seen, mail_agent, tool_named
from .test_claude import Claude


def asking(seen: Seen) -> Call | str:
    """Ask whom the user names, once ("ASK bob: which port?"); otherwise see to the mail."""
    told = [m for turn in seen.turns if turn.role == "user" for m in [re.search(r"ASK (\w+): (.+)", turn.text)] if m]
    if told and not any(turn.role == "call" and "__ask" in turn.text for turn in seen.turns):
        return Call(tool_named(seen, "ask"), {"to": told[-1][1], "body": told[-1][2]})
    return mail_agent(seen)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ModelServer(asking).running() as model:
        world = World(tmp_path, model)
        yield world
        world.room.close()


def test_an_answer_that_the_model_has_is_shown(world: World) -> None:
    claude, bob = Claude(world), world.room.agent("bob")
    try:
        terminal = claude.start()
        time.sleep(2)
        terminal.type("ASK bob: which port does the server use?")
        time.sleep(0.5)
        terminal.type("\r")
        question = bob.receive(timeout_s=60)
        question.reply({"text": "ANSWER: 8765"})
        world.model.wait_for("ANSWER: 8765", 60)
        answer = str(question.answer_id)
        world.until(lambda: "shown" in world.events(answer), timeout_s=8, what="the host's report")
    finally:
        claude.kill()

    assert world.events(answer) == ["stored", "claimed", "notified", "acked", "shown"]
    # it runs ask as a task, and gives the model the result as a prompt of its own
    assert world.room.receipt(answer).events[-1].detail == "claude-code UserPromptSubmit"
