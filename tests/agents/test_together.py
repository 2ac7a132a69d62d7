"""Two agents in two commands (docs/agents.md): a Claude Code and a Codex on one machine talk through a room."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import World
from .model_server import Call, ModelServer, Seen, ids_of, mail_agent, tool_named
from .test_claude import Claude
from .test_codex import Codex


def conversing(seen: Seen) -> Call | str:
    """As `mail_agent`, and: the user has it tell somebody something, or ask; a question in the mail is answered."""
    told = [
        (n, m)
        for n, t in enumerate(seen.turns)
        if t.role == "user"
        for m in [re.search(r"(TELL|ASK) (\w+): (.+)", t.text)]
        if m
    ]
    for place, match in told[-1:]:
        if not any(turn.role == "call" and "QUESTION" in turn.text for turn in seen.turns[place:]):
            said = {"to": match[2], "body": match[3]}
            if match[1] == "ASK":
                return Call(tool_named(seen, "ask"), {**said, "wait_s": 60})
            return Call(tool_named(seen, "send"), {**said, "new": True})
    results = [turn for turn in seen.turns if turn.role == "result"]
    if results and "| QUESTION" in results[-1].text.replace("\\n", "\n"):
        (id,) = ids_of(results[-1])
        if not any(turn.role == "call" and "reply" in turn.text for turn in seen.turns):
            return Call(tool_named(seen, "reply"), {"id": id, "body": "ANSWER: 8765"})
    return mail_agent(seen)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ModelServer(conversing).running() as model:
        world = World(tmp_path, model)
        yield world
        world.room.close()


def test_a_claude_code_and_a_codex_talk_through_a_room(world: World) -> None:
    claude, codex = Claude(world), Codex(world)
    try:
        codex.start()
        terminal = claude.start()
        time.sleep(2)
        terminal.type("TELL codex: QUESTION: which port does the server use?")
        time.sleep(0.5)
        terminal.type("\r")
        world.model.wait_for("ANSWER: 8765", 60)
        answered = world.until(lambda: world.room.peek(state="acked", from_agent="codex"), what="the ack of the answer")
    finally:
        claude.kill()
        codex.kill()
        codex.clean()

    of_claude = [turn for seen in world.model.log if "TELL codex" in seen.text for turn in seen.turns]
    assert any(turn.text.startswith("mcp__plugin_postroom_mail__send ") for turn in of_claude if turn.role == "call")
    assert any("ANSWER: 8765" in turn.text for turn in of_claude if turn.role == "result")
    (answer,) = answered
    (question,) = world.room.peek(state="answered")
    assert (question.from_agent, question.to_agent) == ("claude", "codex")
    assert (answer.from_agent, answer.to_agent, answer.answer_to) == ("codex", "claude", question.id)
    assert (answer.chain_id, answer.hop_count) == (question.id, 1)


def test_a_claude_code_asks_an_idle_codex_and_gets_its_answer(world: World) -> None:
    claude, codex = Claude(world), Codex(world)
    try:
        codex.start()
        terminal = claude.start()
        time.sleep(4)  # both are idle
        terminal.type("ASK codex: QUESTION: which port does the server use?")
        time.sleep(0.5)
        asked_s = time.time()
        terminal.type("\r")
        read = world.model.wait_for("| QUESTION", 60)
        answered = world.model.wait_for("ANSWER: 8765", 60, since=world.model.log.index(read) + 1)
        while "ASK codex" not in answered.text:  # Codex sees its own words first
            answered = world.model.wait_for("ANSWER: 8765", 60, since=world.model.log.index(answered) + 1)
    finally:
        claude.kill()
        codex.kill()
        codex.clean()

    print(f"typed, and in Codex: {read.time_s - asked_s:.2f} s; and back: {answered.time_s - asked_s:.2f} s")
    (question,) = world.room.peek(state="answered")
    assert (question.from_agent, question.to_agent) == ("claude", "codex")
