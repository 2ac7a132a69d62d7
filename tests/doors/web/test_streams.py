"""What is pushed: every change once it is stored, in frames, from a cursor on; and nothing runs while nobody looks."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from postroom.core.chore import Chore
from postroom.doors.web.follower import FRAME_S, MAX_CHANGES, PAGE, FeedFollower, PageFrame
from postroom.errors import RoomUnreachable
from postroom.room import Room
from postroom.stores.bells.bells import Slot
from postroom.stores.contract import Change

from .browser import Site, serving
from .conftest import Client

PATIENCE_S = 20
pytestmark = pytest.mark.slow


class Stream:
    """A connection that is read event by event."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.id: str | None = None

    def next(self, name: str) -> Any:
        """The data of the next event of that name."""
        kind, data = "", b""
        while True:
            line = self._response.readline()
            assert line, "the stream ended"
            field, _, value = line.rstrip(b"\n").partition(b": ")
            if field == b"id":
                self.id = value.decode()
            elif field == b"event":
                kind = value.decode()
            elif field == b"data":
                data = value
            elif not field and kind:
                if kind == name:
                    return json.loads(data)
                kind = ""

    def lines(self) -> list[dict[str, Any]]:
        """The lines of the next frame that has any."""
        while True:
            frame = self.next("frame")
            if frame["lines"] or frame["jumped"]:
                lines: list[dict[str, Any]] = frame["lines"]
                return lines


@contextmanager
def streaming(site: Site, path: str, **headers: str) -> Iterator[Stream]:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {site.token}", **headers})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)
    finally:
        connection.close()


def test_a_message_is_told_when_it_is_stored_and_again_when_it_changes(room: Room, client: Client) -> None:
    cursor = client.get("/api/recent")["cursor"]
    with streaming(client.site, f"/api/live?after={cursor}") as stream:
        stream.next("pulse")
        id = room.agent("ada").send("bob", {"text": "hi"})
        looks = [line["look"] for line in stream.lines() if line["id"] == id]
        room.agent("bob").receive(timeout_s=5).ack()
        while looks[-1] != "acked":
            looks += [line["look"] for line in stream.lines() if line["id"] == id]

    assert looks[0] == "stored"


def test_a_page_that_comes_back_gets_what_it_missed(room: Room, client: Client) -> None:
    cursor = client.get("/api/recent")["cursor"]
    missed = [room.agent("ada").send("bob", {"n": n}) for n in range(5)]
    with streaming(client.site, f"/api/live?after={cursor}") as stream:
        assert [line["id"] for line in stream.lines()] == missed
        seen = stream.id
    later = room.agent("ada").send("bob", {"n": 5})
    with streaming(client.site, "/api/live?after=1", **{"Last-Event-ID": str(seen)}) as stream:
        assert [line["id"] for line in stream.lines()] == [later]


def test_a_page_that_missed_too_much_is_told_to_look_anew(sqlite_room: Room, site: Site) -> None:
    ada = sqlite_room.agent("ada")
    ada.send("bob", {"n": 0})
    cursor = Client(site).get("/api/recent")["cursor"]
    for _ in range(MAX_CHANGES // 500 + 1):
        ada.send_many([{"to": "bob", "payload": {"n": n}} for n in range(500)])

    with streaming(site, f"/api/live?after={cursor}") as stream:
        frame = stream.next("frame")

    assert frame["jumped"] is True
    assert int(stream.id or 0) > int(cursor)


def test_a_program_gets_every_change_with_its_whole_envelope(room: Room, client: Client) -> None:
    ids = [room.agent("ada").send("bob", {"n": n}) for n in range(150)]
    with streaming(client.site, "/api/stream?after=0") as stream:
        seen = [stream.next("change") for _ in ids]
        later = room.agent("ada").send("bob", {"n": 150})
        last = stream.next("change")

    assert [change["message"]["id"] for change in seen] == ids
    assert last["message"]["id"] == later
    assert last["message"]["payload"] == {"n": 150}
    assert last["cursor"] == stream.id


def test_views_are_pushed_when_they_change(room: Room, client: Client) -> None:
    with streaming(client.site, "/api/live?view=mailboxes") as stream:
        stream.next("view")
        room.agent("ada").send("bob", {"n": 1}, channel="jobs")
        while not (boxes := stream.next("view")["mailboxes"]):
            pass

    assert [(box["to_agent"], box["channel"], box["depth"]) for box in boxes] == [("bob", "jobs", 1)]
    assert len(boxes[0]["plot"]["depth"]) == 60


def test_while_nobody_looks_no_thread_follows_and_none_is_left_at_the_end(room: Room) -> None:
    before = set(threading.enumerate())

    def following() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "postroom web feed"]

    with serving(room) as site:
        assert following() == []
        with streaming(site, "/api/live") as stream:
            stream.next("pulse")
            assert len(following()) == 1
            with streaming(site, "/api/live") as other:
                other.next("pulse")
                assert len(following()) == 1
        # the server sees that they went when it next writes to them
        deadline = threading.Event()
        for _ in range(100):
            if not following():
                break
            deadline.wait(0.1)
        assert following() == []
    assert [thread for thread in threading.enumerate() if thread not in before] == []


def test_a_room_that_was_away_is_followed_again(sqlite_room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    events = sqlite_room.events
    failed: list[int] = []

    def away_once(*args: Any) -> Any:
        if not failed:
            failed.append(1)
            raise RoomUnreachable("its servers are away")
        return events(*args)

    monkeypatch.setattr(sqlite_room, "events", away_once)
    follower = FeedFollower(sqlite_room, began=lambda _: None, seen=lambda _: None, told=lambda _: told.set())
    end = follower.watch()
    sqlite_room.agent("ada").send("bob", {"n": 1})

    assert told.wait(PATIENCE_S)
    assert failed
    end()
    follower.close()


def test_a_watcher_that_leaves_before_the_feed_is_followed_leaves_no_bell_behind(
    sqlite_room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is closed as it opens: the thread finds that it is over before its first step."""
    really, closed = Slot.close, []

    def close(slot: Slot) -> None:
        closed.append(slot)
        really(slot)

    monkeypatch.setattr(Slot, "close", close)
    monkeypatch.setattr(Chore, "_sleep", lambda *_: True)
    follower = FeedFollower(sqlite_room, began=lambda _: None, seen=lambda _: None, told=lambda _: None)

    follower.watch()()
    follower.close()

    assert len(closed) == 1


AT_ONCE = 2 * MAX_CHANGES + 700


def many(count: int) -> list[dict[str, Any]]:
    return [{"to": "bob", "payload": {"n": n}} for n in range(count)]


@pytest.mark.parametrize("away", [False, True], ids=["at once", "away for a moment"])
def test_what_a_frame_jumps_over_is_seen_all_the_same_and_once(
    sqlite_room: Room, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    seen: list[int] = []
    frames: list[PageFrame] = []
    began: list[int] = []
    done = threading.Event()
    events = sqlite_room.events
    calls = itertools.count(1)

    def sometimes_away(*args: Any) -> Any:
        if away and next(calls) == MAX_CHANGES // PAGE + 2:  # in the middle of what is jumped over
            raise RoomUnreachable("its servers are away")
        return events(*args)

    def note(changes: list[Change]) -> None:
        seen.extend(change.number for change in changes)
        if len(seen) >= AT_ONCE + 1:
            done.set()

    monkeypatch.setattr(sqlite_room, "events", sometimes_away)
    monkeypatch.setattr("postroom.doors.web.follower.FILL_S", 3600.0)
    follower = FeedFollower(sqlite_room, began=began.append, seen=note, told=frames.append)
    end = follower.watch()
    ada = sqlite_room.agent("ada")
    ada.send_many(many(AT_ONCE))
    ada.send("bob", {"last": True})

    assert done.wait(PATIENCE_S), len(seen)
    end()
    follower.close()
    assert seen == [change.number for change in events(began[0], AT_ONCE + 2)]
    assert any(frame.jumped for frame in frames)
    assert len(began) == 1


@pytest.mark.parametrize("fill_s", [3600.0, -1.0], ids=["all is read", "too much to read"])
def test_figures_count_what_came_at_once_whole(
    sqlite_room: Room, site: Site, monkeypatch: pytest.MonkeyPatch, fill_s: float
) -> None:
    monkeypatch.setattr("postroom.doors.web.follower.FILL_S", fill_s)
    ada = sqlite_room.agent("ada")
    with streaming(site, "/api/live?view=mailboxes") as stream:
        stream.next("pulse")
        ada.send_many(many(AT_ONCE))
        while not stream.next("frame")["jumped"]:
            pass
        ada.send("bob", {"last": True})
        came, until_s = 0, time.monotonic() + PATIENCE_S
        while came <= AT_ONCE and time.monotonic() < until_s:  # a frame is told before its changes are counted
            boxes = stream.next("view")["mailboxes"]
            came = sum(boxes[0]["plot"]["came"]) if boxes else 0

    assert came == AT_ONCE + 1


@pytest.mark.parametrize(("path", "first"), [("/api/live", "pulse"), ("/api/stream?after=0", "change")])
def test_streams_end_with_the_server_and_with_whole_events(sqlite_room: Room, path: str, first: str) -> None:
    sqlite_room.agent("ada").send("bob", {"n": 1})
    with serving(sqlite_room) as site:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
        connection.request("GET", path, headers={"Authorization": f"Bearer {site.token}"})
        response = connection.getresponse()
        Stream(response).next(first)
        assert not response.isclosed()
    rest = response.read()  # raises when the server cut it off, or never ended it
    assert response.isclosed()
    assert rest == b"" or rest.endswith(b"\n\n")
    connection.close()


def test_many_changes_come_in_few_frames_and_none_is_missed(sqlite_room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.doors.web.follower.MAX_CHANGES", 1_000_000)  # no frame jumps: each change has a line
    frames: list[PageFrame] = []
    done = threading.Event()
    last: list[str] = []

    def told(frame: PageFrame) -> None:
        frames.append(frame)
        if last and last[0].encode() in frame.lines:
            done.set()

    follower = FeedFollower(sqlite_room, began=lambda _: None, seen=lambda _: None, told=told)
    began_s = time.monotonic()
    end = follower.watch()
    ada = sqlite_room.agent("ada")
    ids = [ada.send("bob", {"n": n}) for n in range(1999)]
    last.append(ada.send("bob", {"last": True}))
    # the last may have been read before it was named here: one more change of it is told in any case
    sqlite_room.store.note(last[0], "notified", None)
    assert done.wait(PATIENCE_S)
    took_s = time.monotonic() - began_s
    end()
    follower.close()

    assert {line["id"] for frame in frames for line in json.loads(frame.lines)} == {*ids, last[0]}
    assert not any(frame.jumped for frame in frames)
    assert len(frames) <= took_s / FRAME_S + 2
