"""Permission requests of Claude Code itself, answered by a person in the room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from postroom.mail import people
from postroom.mail.people import Answerer, PersonQuestion

from . import programs
from .conftest import World
from .model_server import Call, Seen
from .programs import Terminal

COMMAND = "touch made.txt && echo IT-IS-DONE"


def wants_to_make_a_file(seen: Seen) -> Call | str:
    """A model that asks for one command which Claude Code does not allow by itself, and then is content."""
    asked = any(turn.role == "user" and "MAKE IT" in turn.text for turn in seen.turns)
    tried = any(turn.role == "result" for turn in seen.turns)
    return Call("Bash", {"command": COMMAND, "description": "make it"}) if asked and not tried else "ok"


@pytest.fixture
def asking(world: World) -> dict[str, str]:
    """Claude Code is installed to ask mia; its environment."""
    world.postroom("install", "claude-code", "--permissions", "mia")
    programs.claude_home(world.home, world.project)
    world.model.policy = wants_to_make_a_file
    return programs.claude_environment(world.home, world.model.port)


def answer(world: World, question: PersonQuestion, said: str) -> None:
    people.answer(world.room.gateway, question.id, said, Answerer(None, "web", None, "page"))


@contextmanager
def person(world: World, said: str) -> Iterator[list[str]]:
    """Somebody who answers every question with that word. Gives the texts."""
    seen: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for question in world.room.people.open():
                seen.append(question.text)
                answer(world, question, said)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def results(world: World) -> list[str]:
    return [turn.text for turn in world.model.log[-1].turns if turn.role == "result"]


@pytest.mark.parametrize("said", ["allow", "deny"])
def test_a_person_in_the_room_decides_what_claude_code_may_do(world: World, asking: dict[str, str], said: str) -> None:
    with person(world, said) as seen:
        programs.run([str(programs.CLAUDE), "-p", "MAKE IT"], world.project, asking, 120)

    (text,) = seen
    assert text.startswith("May claude use Bash? {")
    assert COMMAND in text
    assert ((world.project / "made.txt").exists(), "IT-IS-DONE" in results(world)[0]) == ((said == "allow"),) * 2
    assert ("mia does not allow it" in results(world)[0]) == (said == "deny")
    assert world.room.people.open() == []


def test_a_session_at_a_terminal_goes_on_when_the_person_has_answered_elsewhere(
    world: World, asking: dict[str, str]
) -> None:
    terminal = Terminal([str(programs.CLAUDE), "--permission-mode", "default"], world.project, asking)
    try:
        (question,) = asked(world, terminal)
        answer(world, question, "allow")
        world.until((world.project / "made.txt").exists, 60, "the file")
    finally:
        terminal.close()
        programs.end_all(world.home)


def test_what_is_decided_at_the_terminal_is_asked_nowhere_else_any_more(world: World, asking: dict[str, str]) -> None:
    terminal = Terminal([str(programs.CLAUDE), "--permission-mode", "default"], world.project, asking)
    try:
        (question,) = asked(world, terminal)
        terminal.wait_for("Do you want to proceed?", 20)
        terminal.type("\r")
        world.until((world.project / "made.txt").exists, 30, "the file")
        world.until(lambda: world.room.people.look(question.id).state == "withdrawn", 15, "the end of the question")
    finally:
        terminal.close()
        programs.end_all(world.home)


def asked(world: World, terminal: Terminal) -> list[PersonQuestion]:
    """What a person is asked when the user of that terminal has told the model to make the file."""
    world.until(lambda: any(agent.name == "claude" for agent in world.room.agents()), what="the start")
    threading.Event().wait(3)
    terminal.type("MAKE IT")
    threading.Event().wait(0.5)
    terminal.type("\r")
    world.until(world.room.people.open, 60, "the question")
    return world.room.people.open()
