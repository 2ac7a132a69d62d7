"""Asking people: at the terminal, or through the room the agent that is set as the human.

Workers have no terminal of their own. They ask through the room, and the process that started the program asks its
terminal for them, one question after the other.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from postroom import room as rooms
from postroom.core.clock import SYSTEM
from postroom.errors import ROOM_IS_OVER, AskFailed, InvalidMessage, PostroomError
from postroom.lang.values import values
from postroom.lang.values.raised import NoAnswer, WrongValue

if TYPE_CHECKING:
    from postroom.mail.received import Received

TYPE: Final = "question"
_STDIN: Final = 0


class Terminal:
    """The person at the terminal. Questions are asked one at a time, from whichever thread they come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = b""

    def ask(self, question: str, who: str) -> str:
        """Show a question and return the line that was answered. NoAnswer when the input is at its end."""
        with self._lock:
            sys.stdout.flush()
            sys.stderr.write(f"{_harmless(question)}\n[{_harmless(who)}] > ")
            sys.stderr.flush()
            line = self._line()
        if line is None:
            what = "answer there, or name an agent to ask with --human"
            raise NoAnswer(f"no answer: standard input has ended; {what}")
        return line.decode("utf-8", "replace").rstrip("\r\n")

    def _line(self) -> bytes | None:
        """The next line; None at the end. Not through `sys.stdin`: a waiting thread would hold its lock at the exit."""
        while b"\n" not in self._rest:
            SYSTEM.wait_readable([_STDIN], None)
            try:
                more = os.read(_STDIN, 4096)
            except OSError:
                more = b""
            if not more:
                line, self._rest = self._rest, b""
                return line or None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _harmless(text: str) -> str:
    """The text without what a terminal would obey: a question may carry somebody else's words."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t\u200d\u00a0" else repr(c)[1:-1] for c in text)


TERMINAL: Final = Terminal()


class TerminalAnswers:
    """Answers the questions that workers send to the terminal's agent, in a thread of its own."""

    def __init__(self, room: rooms.Room, name: str) -> None:
        self._agent = room.agent(name)
        # its name says that it acts for no member of a session: it answers, and never begins anything
        self._thread = threading.Thread(target=self._run, name="postroom terminal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(*ROOM_IS_OVER):
            for message in self._agent.listen(channels=None):
                self._answer(message)

    def _answer(self, message: Received) -> None:
        try:
            message.reply({"text": TERMINAL.ask(str(message.payload.get("text", "")), str(message.payload["worker"]))})
        except (NoAnswer, KeyError) as error:
            message.refuse(str(error))


def ask_in_room(url: str | None, whom: str, who: str, question: str, timeout_s: float | None) -> str:
    """Ask an agent of the room, and wait for its answer. NoAnswer, which says why, when none comes."""
    payload: dict[str, Any] = {"text": question, "worker": who}
    with rooms.open_room(url, create=False) as room:
        try:
            asker = room.agent(f"{who}-{os.getpid()}", transient=True)
            answer = asker.ask(whom, payload, type=TYPE, timeout_s=timeout_s)
        except AskFailed as error:
            raise NoAnswer(f"{whom} did not answer: {getattr(error, 'reason', None) or error}") from None
        return _text_of(answer.payload)


def ask_many_in_room(
    url: str | None, names: list[str], who: str, payload: dict[str, Any], enough: Any, timeout_s: float | None
) -> dict[str, Any]:
    """Ask several agents of the room: their answers, why the others gave none, and whether enough answered.

    An answer is a text where its payload has nothing else, as everywhere.
    """
    with rooms.open_room(url, create=False) as room:
        asker = room.agent(f"{who}-{os.getpid()}", transient=True)
        try:
            asked = asker.ask_many(names, payload, enough, timeout_s, type=TYPE)
        except InvalidMessage as error:
            raise WrongValue(f"askMany(): {error.faults[0]}") from None
        with asked:
            return {
                "answers": {name: _text_or_object(answer.payload) for name, answer in asked.answers.items()},
                "missing": {name: str(error) for name, error in asked.missing.items()},
                "enough": asked.enough,
            }


def _text_of(payload: Any) -> str:
    given = _text_or_object(payload)
    return given if isinstance(given, str) else values.compact(given)


def _text_or_object(payload: Any) -> str | dict[str, Any]:
    if set(payload) == {"text"} and isinstance(payload["text"], str):
        return str(payload["text"])
    return dict(payload)


def check_known(room: rooms.Room, whom: str) -> None:
    """Raise PostroomError, with the near names, when nobody of that name was ever in the room."""
    names = sorted(cell.name.removeprefix("agent/") for cell in room.store.cell_scan("agent/"))
    if whom in names:
        return
    near = get_close_matches(whom, names, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `postroom agents` lists those that are"
    raise PostroomError(f"no agent called {whom} was ever in this room, so there would be no answer{hint}")
