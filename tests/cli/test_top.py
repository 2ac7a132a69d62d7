"""`postroom top`: what it works out of a room, how it draws that, and the live screen on real terminals."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

import postroom
from postroom.cli.commands.top import INTERVAL_S, pictures
from postroom.cli.top import picture as picturing
from postroom.cli.top import screen
from postroom.cli.top.keys import Keys
from postroom.cli.top.picture import Lookout, RoomPicture
from postroom.core.clock import ManualClock
from postroom.doors.waits import in_cycles
from postroom.mail.handles import handle_of
from postroom.room import Room

from .support import PATIENCE_S, Cli, Terminal, clean_environment, command, start

EVIL = "\x1b[2J\u202e\x07"


def look(room: Room) -> RoomPicture:
    return Lookout(room).look()


# --- the picture ---------------------------------------------------------------------------------------------------


def test_an_empty_room_is_an_empty_picture(room: Room) -> None:
    seen = look(room)

    assert (seen.agents, seen.mailboxes, seen.waiting, seen.dead) == ([], [], [], [])
    assert (seen.in_per_s, seen.out_per_s, seen.oldest_age_s) == (0, 0, None)


def test_agents_are_shown_with_status_task_heartbeat_and_mail(room: Room, clock: ManualClock) -> None:
    ada = room.agent("ada")
    room.agent("cy", transient=True)
    ada.heartbeat(current_task="reading")
    ada.send("ada", {"n": 1})
    clock.advance(3)

    first, second = look(room).agents

    assert (first.name, first.status, first.alive, first.current_task, first.pending) == (
        "ada", "active", True, "reading", 1,
    )  # fmt: skip
    assert first.heartbeat_age_s == pytest.approx(3, abs=0.1)
    assert (second.name, second.status, second.alive) == ("cy", "seen", None)


def test_a_mailbox_has_its_depth_and_the_age_of_its_oldest_message(room: Room, clock: ManualClock) -> None:
    ada = room.agent("ada")
    ada.send("bob", {"n": 1})
    clock.advance(7)
    ada.send("bob", {"n": 2})

    seen = look(room)

    assert [(box.to_agent, box.channel, box.depth) for box in seen.mailboxes] == [("bob", "general", 2)]
    assert seen.mailboxes[0].oldest_age_s == pytest.approx(7, abs=0.1)
    assert seen.oldest_age_s == seen.mailboxes[0].oldest_age_s


def test_rates_are_messages_per_second_in_and_out(room: Room, clock: ManualClock) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    lookout = Lookout(room)
    lookout.look()
    for _ in range(6):
        clock.advance(1)
        ada.send("bob", {"n": 1})
        ada.send("bob", {"n": 2})
        bob.receive(timeout_s=0).ack()
        lookout.look()

    seen = lookout.look()
    (box,) = seen.mailboxes
    assert (box.in_per_s, box.out_per_s) == (2, 1)
    assert (seen.in_per_s, seen.out_per_s) == (2, 1)


def test_the_first_picture_has_the_rates_of_the_seconds_before_it(room: Room, clock: ManualClock) -> None:
    ada = room.agent("ada")
    clock.advance(60)
    for _ in range(10):
        clock.advance(picturing.WINDOW_S / 10)
        ada.send("bob", {"n": 1})

    assert look(room).in_per_s == pytest.approx(10 / picturing.WINDOW_S)


def test_a_mailbox_that_is_emptied_as_fast_as_it_fills_is_shown_too(room: Room, clock: ManualClock) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"n": 1})
    bob.receive(timeout_s=0).ack()

    (box,) = look(room).mailboxes

    assert (box.to_agent, box.depth, box.oldest_age_s) == ("bob", 0, None)
    assert box.out_per_s > 0


def test_a_feed_that_is_too_fast_to_read_is_sampled(
    room: Room, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picturing, "MAX_CHANGES", 50)
    monkeypatch.setattr(picturing, "PAGE", 25)
    ada = room.agent("ada")
    lookout = Lookout(room)
    lookout.look()
    events = mock.Mock(wraps=room.store.events)
    monkeypatch.setattr(room.store, "events", events)
    for _ in range(400):
        clock.advance(0.01)
        ada.send("bob", {"n": 1})

    seen = lookout.look()

    assert events.call_count < 10  # and 16 would have read it all
    assert seen.mailboxes[0].depth == 400
    assert room.events(lookout._cursor) == []
    # 400 in nine seconds, five of which were before the first look; told from 50 of them
    assert seen.in_per_s == pytest.approx(44, rel=0.2)


def test_dead_letters_are_shown_with_their_error_the_newest_first(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ids = [ada.send("bob", {"n": n}) for n in (1, 2)]
    for n in (1, 2):
        bob.receive(timeout_s=0).dead(f"broken {n}")

    assert [(letter.id, letter.error) for letter in look(room).dead] == [(ids[1], "broken 2"), (ids[0], "broken 1")]


def test_who_waits_for_whom_is_shown_and_a_cycle_is_marked(
    room: Room, in_background: Callable[..., Any], pass_time: Callable[..., None]
) -> None:
    agents = {name: room.agent(name) for name in ("ada", "bob", "cy")}
    pairs = [("ada", "bob"), ("bob", "ada"), ("cy", "ada")]
    asking = [in_background(lambda a=a, b=b: agents[a].ask(b, {"q": 1}, timeout_s=5)) for a, b in pairs]
    with room.store.listen(["feed"]) as waiter:
        while len(room.waits()) < 3:
            waiter.wait(None)

    seen = look(room)

    assert {(wait.asker, wait.peer, wait.cycle) for wait in seen.waiting} == {
        ("ada", "bob", True),
        ("bob", "ada", True),
        ("cy", "ada", False),
    }
    for call in asking:
        pass_time(call)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ([], []),
        ([("a", "b")], [False]),
        ([("a", "a")], [True]),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")], [True, True, True, False]),
        ([("a", None), ("b", "a")], [False, False]),
        ([("a", "b"), ("b", "c"), ("c", "b")], [False, True, True]),
    ],
)
def test_a_cycle_is_a_way_of_questions_back_to_the_asker(
    waits: list[tuple[str, str | None]], expected: list[bool]
) -> None:
    assert in_cycles(waits) == expected


# --- when it looks -------------------------------------------------------------------------------------------------


@pytest.fixture
def seen_by_top(room: Room, in_background: Callable[..., Any]) -> Callable[[int], Any]:
    def watch(count: int) -> Any:
        return in_background(lambda: list(islice(pictures(room, Lookout(room), INTERVAL_S, Keys()), count)))

    return watch


def test_a_change_brings_the_next_picture_without_waiting_for_the_second(
    room: Room, clock: ManualClock, seen_by_top: Callable[[int], Any], pass_time: Callable[..., None]
) -> None:
    ada = room.agent("ada")
    began_ns = clock.steady_ns()
    watching = seen_by_top(1)
    ada.send("bob", {"n": 1})

    pass_time(watching, INTERVAL_S / 5, look_s=0.05)

    assert watching.result()[0].mailboxes[0].depth == 1
    assert (clock.steady_ns() - began_ns) / 1e9 < 1 + INTERVAL_S


# a room of files looks around by itself, and its first look is a change
@pytest.mark.parametrize("url", ["memory", "sqlite", pytest.param("nats", marks=pytest.mark.slow)], indirect=True)
def test_without_a_change_there_is_a_picture_a_second(
    room: Room, clock: ManualClock, seen_by_top: Callable[[int], Any], pass_time: Callable[..., None]
) -> None:
    began_ns = clock.steady_ns()
    watching = seen_by_top(3)

    pass_time(watching)

    assert len(watching.result()) == 3
    assert (clock.steady_ns() - began_ns) / 1e9 >= 3


def test_however_much_happens_there_are_no_more_than_four_pictures_a_second(
    room: Room, clock: ManualClock, seen_by_top: Callable[[int], Any]
) -> None:
    ada = room.agent("ada")
    began_ns = clock.steady_ns()
    watching = seen_by_top(4)

    for _ in range(4000):
        ada.send("bob", {"n": 1})
        clock.advance(0.01)
        watching.join(0.001)
        if not watching.running:
            break

    assert len(watching.result()) == 4
    assert (clock.steady_ns() - began_ns) / 1e9 >= 4 * INTERVAL_S


# --- the drawing ---------------------------------------------------------------------------------------------------


def drawn(picture: RoomPicture, width: int = 80, height: int | None = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height or 24, force_terminal=False)
    console.print(screen.draw(picture, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def crowded(count: int = 40, name: str = "an-agent-with-quite-a-long-name") -> RoomPicture:
    names = [f"{name}-{n}" for n in range(count)]
    return RoomPicture(
        room="sqlite:/" + "far/" * 40,
        time="2026-11-15T06:48:50.123Z",
        states={"stored": 10**7, "claimed": 12, "dead": 3},
        in_per_s=12345.6,
        out_per_s=0.1,
        oldest_age_s=86400 * 3,
        store={"wal_bytes": 70 * 2**20, "wake_up": "datagram"},
        agents=[picturing.AgentLine(n, "gone", False, "task " * 30, 1e6, 10**6) for n in names],
        mailboxes=[picturing.BoxLine(n, n, 10**7, 1e7, 54321.0, 99.9) for n in names],
        waiting=[picturing.WaitLine(n, n, "0" * 36, 1e5, cycle=True) for n in names],
        dead=[picturing.DeadLine("0" * 36, n, n, "general", 3, "error " * 50, 99.0) for n in names],
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 12), (200, 60), (80, 11)])
def test_the_drawing_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(crowded(), width, height)

    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width


def test_a_larger_terminal_shows_more() -> None:
    small, large = drawn(crowded(), 80, 24), drawn(crowded(), 80, 60)

    assert len(small) == 24
    assert len(large) == 60
    assert any("5/40" in line for line in small)


def test_limits_are_drawn_where_there_are_some_and_fit_too() -> None:
    names = [f"a-channel-with-quite-a-long-name-{n}" for n in range(40)]
    limits = [picturing.LimitLine(n, None, "4 at once", 3, 4, n, 99.0, "reason " * 30) for n in names]
    picture = replace(crowded(), limits=limits, schedules=12, next_tick="2026-11-15T06:50:50.123Z")

    assert not any("LIMITS" in line for line in drawn(crowded()))
    for width, height in ((80, 24), (40, 10)):
        small = drawn(picture, width, height)
        assert len(small) <= height and max(map(cell_len, small)) <= width
        assert any(line.startswith("LIMITS") for line in small)
    lines = drawn(picture, 200, 60)
    assert any("12 schedules, next in 2min" in line for line in lines)
    assert any("3/4" in line and "1min by a-channel" in line for line in lines)


def test_wide_letters_and_empty_parts_fit_too() -> None:
    lines = drawn(crowded(3, "漢字の名前がとても長い"), 80, 24)

    assert max(map(cell_len, lines)) <= 80
    assert "…" in "".join(lines)


@pytest.mark.parametrize(
    ("wanted", "lines", "given"),
    [
        ([9, 9], 6, [2, 2]),
        ([0, 9], 6, [0, 4]),
        ([1, 9, 2], 10, [1, 4, 2]),
        ([3, 3], 100, [3, 3]),
        ([3, 3], 1, [0, 0]),
    ],
)
def test_lines_are_shared_among_the_parts(wanted: list[int], lines: int, given: list[int]) -> None:
    assert screen.share_lines(wanted, lines) == given


def test_text_of_others_cannot_move_the_cursor_or_turn_the_line_round() -> None:
    text = "\n".join(drawn(crowded(2, EVIL), 200, None))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2J\\u202e\\x07-0" in text
    assert "[/]" in "\n".join(drawn(crowded(1, "[/]"), 200, None))  # nor is it markup


def test_every_part_has_its_headline() -> None:
    text = "\n".join(drawn(crowded(), 120, 24))

    assert all(
        word in text for word in ("AGENTS", "MAILBOXES", "WAITS", "DEAD", "cycle!", "log 70.0 MB", "10000000 stored")
    )


# --- the command ---------------------------------------------------------------------------------------------------


def test_once_writes_one_picture(cli: Cli, tmp_path: Path) -> None:
    cli.send()

    text = cli.ok("top", "--once").out

    assert str(tmp_path)[:20] in text
    assert all(word in text for word in ("1 stored", "ada", "bob", "MAILBOXES 1", "no dead letters"))
    assert "\x1b" not in text


def test_dead_letters_stand_there_by_the_handle_that_commands_take(cli: Cli) -> None:
    id = cli.send()
    for _ in range(3):
        cli.ok("receive", "--as", "bob")
        cli.ok("retry", id, "broken", "--delay", "0", "--as", "bob")

    text = cli.ok("top", "--once").out

    assert "DEAD 1" in text
    assert handle_of(id) in text


def test_where_there_is_no_terminal_it_writes_one_picture_and_ends(cli: Cli) -> None:
    assert "no agents yet" in cli.ok("top").out


def test_json_is_one_document(cli: Cli) -> None:
    cli.send()

    document = cli.json("top", "--once")

    assert document["states"]["stored"] == 1
    assert document["mailboxes"][0]["depth"] == 1
    assert [agent["name"] for agent in document["agents"]] == ["ada"]
    assert {"room", "time", "in_per_s", "out_per_s", "oldest_age_s", "store", "waiting", "dead"} <= set(document)


def test_a_stream_has_a_document_for_each_picture(cli: Cli) -> None:
    process = start("top", "--json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    cli.send()
    later = next(line for line in map(json.loads, process.stdout) if line["mailboxes"])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)

    assert first["mailboxes"] == []
    assert later["mailboxes"][0]["depth"] == 1
    assert (process.returncode, err) == (130, "")


def test_a_room_without_bells_is_shown_too(cli: Cli, tmp_path: Path) -> None:
    bells = tmp_path / ".postroom" / "bells"
    bells.unlink(missing_ok=True)
    bells.mkdir()
    process = start("top", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["store"]["wake_up"].startswith("watching")
    cli.send()
    assert next(line for line in map(json.loads, process.stdout) if line["mailboxes"])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)


def test_it_changes_nothing(cli: Cli) -> None:
    cli.send()
    tables = ("messages", "cells", "channel_subscriptions", "processes")
    before = [cli.json("sql", f"SELECT * FROM {table}") for table in tables]

    cli.ok("top", "--once")

    assert [cli.json("sql", f"SELECT * FROM {table}") for table in tables] == before


@pytest.mark.parametrize("interval", ["soon", "-1"])
def test_an_interval_that_makes_no_sense_is_wrong_usage(cli: Cli, interval: str) -> None:
    assert cli("top", "--once", f"--interval={interval}").code == 2


# --- real terminals ------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(cli: Cli) -> Iterator[Terminal]:
    terminal = Terminal(command("top"))
    yield terminal
    terminal.close()


ALTERNATE_SCREEN, ORDINARY_SCREEN, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [("q", 0), ("SIGINT", 0), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_it_ends_cleanly_and_gives_the_terminal_back(terminal: Terminal, end: str, code: int) -> None:
    terminal.until(ALTERNATE_SCREEN)
    terminal.until("no dead letters")
    assert not termios.tcgetattr(terminal.theirs)[3] & termios.ICANON

    if end == "q":
        terminal.press(b"q")
    else:
        terminal.process.send_signal(getattr(signal, end))

    assert terminal.process.wait(PATIENCE_S) == code
    terminal.until(ORDINARY_SCREEN)
    terminal.until(CURSOR)
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert "Traceback" not in terminal.shown


def test_an_agent_that_comes_in_appears_by_itself(terminal: Terminal) -> None:
    terminal.until("no agents yet")
    with postroom.open(create=False) as room:
        room.agent("newcomer")

        terminal.until("newcomer")


def test_other_keys_do_nothing(terminal: Terminal) -> None:
    terminal.until("no dead letters")
    terminal.press(b"xyz\x1b[A")
    with postroom.open(create=False) as room:
        room.agent("newcomer")
        terminal.until("newcomer")

    assert terminal.process.poll() is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not on the PATH")
def test_inside_tmux_agents_appear_and_q_leaves_the_shell_as_it_was(cli: Cli, tmp_path: Path) -> None:
    def tmux(*words: str) -> str:
        words = ("tmux", "-S", str(tmp_path / "tmux"), "-f", os.devnull, *words)
        # a user whose login shell is none (as services have) must see it too
        environment = {**clean_environment(), "SHELL": "/bin/sh"}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    def until_shown(room: Room, text: str) -> str:
        until_ns = room.clock.steady_ns() + int(PATIENCE_S * 1e9)
        while text not in (shown := tmux("capture-pane", "-p", "-t", "top")):
            assert room.clock.steady_ns() < until_ns, shown
            room.clock.sleep(0.05)  # tmux rings no bell of ours
        return shown

    script = f"echo before; {shlex.join(command('top'))}; echo ended with $?; cat"
    tmux("new-session", "-d", "-s", "top", "-x", "80", "-y", "24", script)
    try:
        with postroom.open(create=False) as room:
            until_shown(room, "no agents yet")
            room.agent("ada").send("bob", {"text": "hi"})
            shown = until_shown(room, "bob")
            assert "before" not in shown
            tmux("send-keys", "-t", "top", "q")
            shown = until_shown(room, "ended with 0")

        assert shown.split("\n")[:2] == ["before", "ended with 0"]
    finally:
        tmux("kill-server")


def test_the_machine_readable_ways_never_load_rich(cli: Cli) -> None:
    program = (
        "import sys; from postroom.cli import main; main(['top', '--once', '--json']); print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "False"
