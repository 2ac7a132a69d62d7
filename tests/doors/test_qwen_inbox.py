"""A message for a Qwen Code session counts as told only when the session has said that its model gets it."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_loop import run

from postroom import aio
from postroom.core.message import Message
from postroom.core.system.process import process_name
from postroom.doors import hosts, qwen_inbox, session_binding, waker

TOKEN = "c0ffee"
Frames = list[dict[str, Any]]


def status(frame: dict[str, Any], status: str, **more: Any) -> dict[str, Any]:
    return {"type": "control", "action": "delivery_status", "status": status, "origMsgId": frame["msgId"]} | more


class QwenSession:
    """The receiving half of the protocol, as Qwen Code's page describes it. `answers` makes the lines that it sends back."""

    def __init__(self, answers: Callable[[dict[str, Any]], Frames]) -> None:
        self.answers = answers
        self.taken: Frames = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[qwen_inbox.QwenInbox]:
        with tempfile.TemporaryDirectory() as folder:
            server = await asyncio.start_unix_server(self._take, f"{folder}/inbox")
            try:
                yield qwen_inbox.QwenInbox(f"{folder}/inbox", TOKEN)
            finally:
                server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        auth, frame = [json.loads(line) for line in (await reader.read()).splitlines()]
        writer.close()
        if auth == {"msgV": 1, "type": "auth", "token": TOKEN}:
            self.taken.append(frame)
            for line in self.answers(frame):
                _, back = await asyncio.open_unix_connection(frame["from"])
                token = line.pop("presents", frame["replyToken"])
                for each in ({"msgV": 1, "type": "auth", "token": token}, {"msgV": 1} | line):
                    back.write(json.dumps(each).encode() + b"\n")
                back.close()


def test_the_session_gets_the_text_and_its_word_comes_back() -> None:
    session = QwenSession(lambda frame: [status(frame, "delivered")])

    async def main() -> None:
        async with session.serving() as inbox:
            assert await qwen_inbox.deliver(inbox, "s1", "2 new") == "delivered"
            assert await qwen_inbox.deliver(inbox._replace(token="wrong"), "s1", "x") is None

    with pytest.MonkeyPatch.context() as hurried:
        hurried.setattr(qwen_inbox, "ANSWER_S", 0.2)
        run(main())
    (frame,) = session.taken
    assert (frame["toSessionId"], frame["message"]) == ("s1", {"role": "user", "content": "2 new"})
    assert not Path(frame["from"]).parent.exists()  # nothing is left behind


def test_only_the_session_itself_can_say_what_became_of_the_message() -> None:
    def answers(frame: dict[str, Any]) -> Frames:
        stranger = status(frame, "delivered", presents="guessed")
        another = status(frame | {"msgId": "another"}, "delivered")
        return [stranger, another, {"type": "control"}, status(frame, "refused")]

    async def main() -> None:
        async with QwenSession(answers).serving() as inbox:
            assert await qwen_inbox.deliver(inbox, "s1", "x") == "refused"

    run(main())


def test_an_inbox_that_is_gone_says_so() -> None:
    async def main() -> None:
        with pytest.raises(OSError):
            await qwen_inbox.deliver(qwen_inbox.QwenInbox("/nonexistent/inbox", TOKEN), "s1", "x")

    run(main())


@pytest.mark.parametrize(("said", "told"), [("delivered", True), ("held", False), ("refused", False)])
def test_mail_is_told_when_the_session_takes_it_and_news_as_before_when_not(
    url: str, monkeypatch: pytest.MonkeyPatch, said: str, *, told: bool
) -> None:
    session = QwenSession(lambda frame: [status(frame, said)])

    async def main() -> None:
        async with session.serving() as inbox, aio.open(url) as room:
            monkeypatch.setenv("QWEN_CODE_MESSAGING_SOCKET", inbox.socket)
            monkeypatch.setenv("QWEN_CODE_MESSAGING_TOKEN", inbox.token)
            mail = await mail_for_qwen(room, process_name(os.getppid()))
            await waker.deliver_to_qwen(room, "qwen", mail)
            assert await news(room) == ([] if told else mail)
            events = [event.event for event in (await room.receipt(mail[0].id)).events]
            assert events == (["stored", "notified"] if told else ["stored"])

    run(main())
    assert "postroom: 1 new for " in session.taken[0]["message"]["content"]


def test_a_session_of_another_program_is_left_to_its_own_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = QwenSession(lambda frame: [status(frame, "delivered")])

    async def main() -> None:
        async with session.serving() as inbox, aio.open(url) as room:
            monkeypatch.setenv("QWEN_CODE_MESSAGING_SOCKET", inbox.socket)
            monkeypatch.setenv("QWEN_CODE_MESSAGING_TOKEN", inbox.token)
            mail = await mail_for_qwen(room, process_name(os.getpid()))
            await waker.deliver_to_qwen(room, "qwen", mail)
            assert await news(room) == mail

    run(main())
    assert session.taken == []


async def mail_for_qwen(room: aio.Room, process: str | None) -> list[Message]:
    caller = session_binding.HostSession("qwen", "qwen", "s1", process, attended=True)
    await room.call(lambda inner: session_binding.bind(inner.gateway, caller))
    await room.agent("ada").send("qwen", {"text": "x"})
    return await news(room)


async def news(room: aio.Room) -> list[Message]:
    return await room.call(lambda inner: session_binding.news(inner.gateway, "qwen"))


@pytest.mark.parametrize("around", [{}, {"CLAUDECODE": "1"}, {"GEMINI_SESSION_ID": "x"}])
def test_a_hook_that_is_told_its_program_believes_that_whatever_started_the_program(around: dict[str, str]) -> None:
    assert hosts.of_hook("qwen", {}, around) == hosts.HOSTS["qwen"]
