"""The hook of Claude Code that asks a person for a permission: what it asks, what it answers, and when it is silent.

tests/agents/test_permissions.py does the same with the program itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.core.clock import SYSTEM
from postroom.doors.hook.permissions import MAX_CHARS
from postroom.doors.install.plans import Wish, steps_for
from postroom.mail import people, tokens
from postroom.mail.people import Answerer, PersonQuestion
from postroom.room import Room, open_room

from .test_hook import Said, Session, claude_environment

CALL: dict[str, Any] = {"tool_name": "Bash", "tool_input": {"command": "rm -rf build"}}
PATIENCE_S = 60.0


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with open_room(f"sqlite:{tmp_path}/.postroom") as room:
        yield room


@pytest.fixture
def claude(tmp_path: Path) -> Session:
    return Session(tmp_path, **claude_environment(tmp_path), POSTROOM_PERMISSIONS="mia")


class Asking:
    """A hook under way."""

    def __init__(self, claude: Session, **given: Any) -> None:
        self._said: list[Said] = []
        self._thread = threading.Thread(target=lambda: self._said.append(claude("PermissionRequest", **given)))
        self._thread.start()

    def end(self) -> Any:
        """The decision; None where the hook was silent."""
        self._thread.join(PATIENCE_S)
        (said,) = self._said
        assert (said.code, said.err) == (0, "")
        return json.loads(said.out)["hookSpecificOutput"] if said.out else None


def asked(room: Room) -> PersonQuestion:
    """The question, when it has come."""
    until_ns = SYSTEM.steady_ns() + round(PATIENCE_S * 1e9)
    with room.gateway.listen(["cells:question"]) as waiter:
        while not (found := room.people.open()):
            assert SYSTEM.steady_ns() < until_ns
            room.gateway.wait(waiter, 1)
    return found[0]


def answer(room: Room, question: PersonQuestion, said: str) -> None:
    people.answer(room.gateway, question.id, said, Answerer(None, "test", None, "page"))


@pytest.mark.parametrize(
    ("said", "decision"),
    [("allow", {"behavior": "allow"}), ("deny", {"behavior": "deny", "message": "mia does not allow it."})],
)
def test_a_person_decides(room: Room, claude: Session, said: str, decision: dict[str, str]) -> None:
    asking = Asking(claude, **CALL)
    question = asked(room)
    assert question.text == 'May claude use Bash? {"command":"rm -rf build"}'
    assert (question.person, question.options, question.default) == ("mia", ("allow", "deny"), None)

    answer(room, question, said)

    assert asking.end() == {"hookEventName": "PermissionRequest", "decision": decision}


def test_what_is_decided_at_the_terminal_takes_the_question_back(room: Room, claude: Session) -> None:
    asking = Asking(claude, **CALL)
    question = asked(room)
    claude("PostToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_response={})
    assert room.people.look(question.id).state == "open"  # that was another call

    claude("PostToolUse", **CALL, tool_response={})

    assert asking.end() is None
    assert room.people.look(question.id).state == "withdrawn"


def test_the_end_of_a_turn_takes_back_what_was_asked_in_it_and_nothing_else(room: Room, claude: Session) -> None:
    other = room.people.ask("mia", "which name?", "claude")
    asking = Asking(claude, **CALL)
    while len(room.people.open()) < 2:
        asked(room)

    claude("Stop")

    assert asking.end() is None
    assert [question.id for question in room.people.open()] == [other]


@pytest.mark.parametrize(
    "given",
    [
        {"tool_name": "mcp__plugin_postroom_mail__send", "tool_input": {}},
        {"tool_name": "Write", "tool_input": {"content": "x" * MAX_CHARS}},
        {"tool_name": 7},
        {},
    ],
    ids=["our own tool", "too long to be shown whole", "no name", "nothing"],
)
def test_the_program_asks_by_itself(room: Room, claude: Session, given: dict[str, Any]) -> None:
    said = claude("PermissionRequest", **given)
    assert (said.code, said.out, said.err) == (0, "", "")
    assert room.people.open() == []


def test_nothing_is_asked_where_nobody_was_named_or_could_answer(room: Room, claude: Session, tmp_path: Path) -> None:
    unnamed = Session(tmp_path, **claude_environment(tmp_path))
    assert unnamed("PermissionRequest", **CALL).out == ""
    tokens.add_token(room.gateway, "zoe", human=True)
    claude.environment["POSTROOM_TOKEN"] = tokens.add_token(room.gateway, "claude")

    assert claude("PermissionRequest", **CALL).out == ""  # mia has no token
    assert room.people.open() == []


def test_in_a_room_with_tokens_an_agents_word_allows_nothing(room: Room, claude: Session) -> None:
    mia = tokens.add_token(room.gateway, "mia", human=True)
    claude.environment["POSTROOM_TOKEN"] = bob = tokens.add_token(room.gateway, "claude")
    asking = Asking(claude, **CALL)
    question = asked(room)
    with pytest.raises(Exception, match="is an agent"):
        room.people.answer(question.id, "allow", token=bob)

    room.people.answer(question.id, "allow", token=mia)

    assert asking.end()["decision"] == {"behavior": "allow"}


def test_the_installer_writes_the_hook_only_when_it_is_asked_to(tmp_path: Path) -> None:
    def hooks(permissions: str) -> dict[str, Any]:
        wish = Wish("claude-code", "user", None, tmp_path, tmp_path, ("postroom",), permissions=permissions)
        (text,) = [step.text for step in steps_for(wish) if str(step.path).endswith("hooks.json")]  # type: ignore[union-attr]
        found: dict[str, Any] = json.loads(text)["hooks"]
        return found

    assert "PermissionRequest" not in hooks("")
    (group,) = hooks("mia o'hara")["PermissionRequest"]
    (handler,) = group["hooks"]
    assert handler["command"] == """POSTROOM_PERMISSIONS='mia o'"'"'hara' postroom hook auto"""
    assert handler["timeout"] > 600
