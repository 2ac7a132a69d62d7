"""Where an agent program stands in a room: one name for one session, and each message told once, whoever comes first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import parse_url
from postroom.core.system.process import this_process
from postroom.doors import hosts, session_binding
from postroom.doors.session_binding import HostSession
from postroom.room import Room

CLAUDE = HostSession("claude-code", "claude", "s1", this_process(), attended=True)


def test_of_two_doors_that_tell_the_same_one_does(room: Room) -> None:
    session_binding.bind(room.gateway, CLAUDE)
    for number in range(3):
        room.agent("ada").send("claude", {"n": number})
    news = session_binding.news(room.gateway, "claude")  # both doors have looked

    first = session_binding.tell(room.gateway, "claude", news[:2], "one")
    second = session_binding.tell(room.gateway, "claude", news, "other")

    assert [message.payload["n"] for message in first] == [0, 1]
    assert [message.payload["n"] for message in second] == [2]
    details = [
        event.detail for message in news for event in room.receipt(message.id).events if event.event == "notified"
    ]
    assert details == ["one", "one", "other"]


def test_many_doors_at_once_tell_each_message_once(room: Room) -> None:
    session_binding.bind(room.gateway, CLAUDE)
    for number in range(10):
        room.agent("ada").send("claude", {"n": number})
    news, told = session_binding.news(room.gateway, "claude"), []
    threads = [
        threading.Thread(target=lambda: told.extend(session_binding.tell(room.gateway, "claude", news, "door")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(message.payload["n"] for message in told) == list(range(10))


def test_what_could_not_be_told_is_news_again(room: Room) -> None:
    session_binding.bind(room.gateway, CLAUDE)
    id = room.agent("ada").send("claude", {})
    told = session_binding.tell(room.gateway, "claude", session_binding.news(room.gateway, "claude"), None)
    assert session_binding.news(room.gateway, "claude") == []

    session_binding.untell(room.gateway, "claude", told)

    assert [message.id for message in session_binding.news(room.gateway, "claude")] == [id]
    assert [event.event for event in room.receipt(id).events] == ["stored"]


def test_what_an_earlier_session_left_over_is_news_to_the_next(room: Room, clock: ManualClock) -> None:
    session_binding.bind(room.gateway, CLAUDE)
    first = room.agent("ada").send("claude", {})
    claude = room.agent("claude", transient=True)
    claude.poll()
    assert session_binding.news(room.gateway, "claude") == []  # its own: it knows
    clock.advance(5)
    session_binding.bind(room.gateway, CLAUDE._replace(session="s2"))
    second = room.agent("ada").send("claude", {})

    news = session_binding.news(room.gateway, "claude")
    told = session_binding.tell(room.gateway, "claude", news, "door")
    clock.advance(5)
    claude.poll()

    assert [message.id for message in told] == [first, second]
    assert session_binding.news(room.gateway, "claude") == []
    claude.claimed(first).ack()
    assert session_binding.tell(room.gateway, "claude", news, "door") == []


def test_a_name_belongs_to_a_living_program(room: Room) -> None:
    gone = this_process().rpartition(":")[0] + ":1"

    assert session_binding.bind(room.gateway, CLAUDE) == "claude"
    assert session_binding.bind(room.gateway, CLAUDE._replace(session="after-clear")) == "claude"
    assert session_binding.bind(room.gateway, CLAUDE._replace(session="s2", process=gone)) == "claude-2"
    assert session_binding.bind(room.gateway, CLAUDE._replace(session="s3", process=gone + "1")) == "claude-2"
    assert (
        session_binding.bind(room.gateway, HostSession("codex", "claude", "s4")) == "claude-3"
    )  # another kind of program
    assert session_binding.bind(room.gateway, CLAUDE, "reviewer") == "reviewer"


def test_of_programs_without_a_process_the_newest_has_the_name(room: Room) -> None:
    for session in ("t1", "t2"):
        assert session_binding.bind(room.gateway, HostSession("codex", "codex", session, attended=True)) == "codex"
    assert (session_binding.look(room.gateway, "codex") or {})["session"] == "t2"
    assert (
        session_binding.bind(room.gateway, HostSession("codex", "codex")) == "codex"
    )  # the server, which cannot say which it is
    assert (session_binding.look(room.gateway, "codex") or {})["session"] == "t2"


def test_who_leaves_frees_its_name_and_nobody_elses(room: Room) -> None:
    session_binding.bind(room.gateway, CLAUDE)
    session_binding.leave(room.gateway, CLAUDE._replace(session="other", process="x:1:1"), "claude")
    assert (session_binding.look(room.gateway, "claude") or {})["session"] == "s1"
    session_binding.leave(room.gateway, CLAUDE, "claude")

    assert session_binding.bind(room.gateway, CLAUDE._replace(session="s9", process=None)) == "claude"


def test_a_session_is_busy_for_a_minute_after_its_last_step(room: Room, clock: ManualClock) -> None:
    session_binding.bind(room.gateway, CLAUDE)

    def is_busy() -> bool:
        return session_binding.is_busy(room.gateway, session_binding.look(room.gateway, "claude") or {})

    session_binding.busy(room.gateway, "claude", working=True)
    assert is_busy()
    clock.advance(61)
    assert not is_busy()
    session_binding.busy(room.gateway, "claude", working=True)
    session_binding.busy(room.gateway, "claude", working=False)
    assert not is_busy()


@pytest.mark.parametrize("url", ["sqlite:/x", "files:/x", "nats://127.0.0.1:4222/room"])
def test_every_room_has_a_place_for_signals(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = session_binding.signal_path(parse_url(url), "a/../b")

    assert path.name == "a%2F..%2Fb"
    assert path.parent.name == "signals" or "signals" in path.parts


def test_a_notice_that_names_not_all_says_so(room: Room) -> None:
    for number in range(session_binding.MAX_UNREAD + 1):
        room.agent(f"sender-{number % 6}", transient=True).send("claude", {"n": number})
    news = session_binding.news(room.gateway, "claude")

    many, few = (session_binding.pointer("claude", told, "Read it.").splitlines()[0] for told in (news, news[:5]))

    assert many.startswith("postroom: 50 or more new for")
    assert many.endswith('"sender-4" and others. Read it. The first 5:')
    assert few.startswith("postroom: 5 new for claude from")
    assert few.endswith('"sender-4". Read it.')


# Programs without a door of their own


def stranger(name: str, process: str) -> HostSession:
    return HostSession(f"client {name}", name, process=process, is_stranger=True)


def test_a_strangers_program_is_numbered_and_takes_over_the_name_of_one_that_has_ended(room: Room) -> None:
    gone = "elsewhere:999999:1".replace("elsewhere", this_process().split(":", maxsplit=1)[0])
    names = [session_binding.bind(room.gateway, stranger("kimi", each)) for each in (gone, this_process())]
    again = session_binding.bind(room.gateway, stranger("kimi", this_process()))

    assert (names, again) == (["kimi", "kimi"], "kimi")
    assert session_binding.bind(room.gateway, stranger("qwen", this_process())) == "qwen"


def test_a_stranger_that_calls_itself_like_an_agent_that_is_here_does_not_get_its_name(room: Room) -> None:
    room.agent("lead")
    room.agent("ada").send("kimi", {"n": 1})

    assert session_binding.bind(room.gateway, stranger("lead", this_process())) == "lead-2"
    assert session_binding.bind(room.gateway, stranger("kimi", this_process())) == "kimi"  # its mail came before it


def test_the_name_of_an_unknown_client_is_one_plain_word() -> None:
    said = {"copilot-cli": "copilot-cli", "Kimi Code (2.1)": "kimi-code-2.1", "\x1b[2J$(rm)": "2j-rm", "é ./": None}
    assert {client: hosts.agent_of(client) for client in said} == said
    assert hosts.agent_of("x" * 500) == "x" * 32
