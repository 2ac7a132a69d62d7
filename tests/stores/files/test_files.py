"""A room in plain files: what lies where, and what becomes of what others leave there."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support import ROOT
from tests.support.files_by_hand import SAMPLE, claim, drop, files, send, tree
from tests.support.systems import needs_linux

from postroom.core import crashpoints
from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.core.states import State
from postroom.core.system.process import this_process
from postroom.errors import RoomClosed, RoomUnreachable
from postroom.stores.contract import Query, topic_channel, topic_to
from postroom.stores.files.store import FilesStore
from postroom.stores.files.tree import TEMP

# The layout


def test_a_new_room_has_the_layout_and_says_what_it_is(store: FilesStore, root: Path) -> None:
    assert {"README.md", "inbox", "outbox", "board", ".postroom"} <= set(os.listdir(root))
    assert json.loads((root / "board/status.json").read_text())["tasks"] == {}
    assert json.loads((root / "board/claims.json").read_text()) == {}
    assert "inbox/_channel/NAME/" in (root / "README.md").read_text()


def test_a_readme_that_somebody_wrote_is_kept(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("ours\n", encoding="utf-8")

    for _ in range(2):
        FilesStore(tmp_path, Config(), SYSTEM).close()

    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "ours\n"


def test_all_folders_above_a_new_room_are_synced_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have made them, and been killed before it synced them."""
    room = tmp_path / "project" / "mailbox"
    room.mkdir(parents=True)
    synced: set[int] = set()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    FilesStore(room, Config(), SYSTEM).close()
    assert {folder.stat().st_ino for folder in (tmp_path, tmp_path / "project", room)} <= synced


def test_a_heartbeat_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FilesStore(tmp_path / "room", Config(sync="full"), SYSTEM)
    send(store)
    (delivery,) = claim(store, lease_s=30)
    synced: list[int] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced.append)
    assert store.heartbeat([delivery.ticket], 600) == []
    beaten = len(synced)
    store.settle(delivery.ticket, "acked")
    store.close()
    assert beaten == 0 < len(synced)


def test_a_sender_that_is_overtaken_by_the_end_of_the_room_is_told_so_and_leaves_no_file(
    store: FilesStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store._tree.temp

    def write_and_close(data: bytes) -> str:
        monkeypatch.undo()
        path = write(data)
        store.close()  # as another thread does
        return path

    monkeypatch.setattr(store._tree, "temp", write_and_close)
    with pytest.raises(RoomClosed, match="is closed"):
        send(store)
    assert list((root / TEMP).iterdir()) == []


def test_a_message_is_a_file_that_people_can_read(store: FilesStore, root: Path) -> None:
    id = send(
        store, "worker-1", sender="lead", type="implement", payload={"spec": "s", "task_id": "T3", "n": 1}, priority=7
    )

    (name,) = files(root / "inbox/worker-1")
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z-implement\.json", name)
    content = json.loads((root / "inbox/worker-1" / name).read_text())
    assert list(content)[:7] == ["from", "to", "action", "spec", "task_id", "timestamp", "payload"]
    assert content == {
        "from": "lead", "to": "worker-1", "action": "implement", "spec": "s", "task_id": "T3", "id": id, "priority": 7,
        "timestamp": content["timestamp"], "payload": {"spec": "s", "task_id": "T3", "n": 1},
    }  # fmt: skip


def test_names_sort_as_the_messages_do_and_two_of_one_microsecond_do_not_collide(store: FilesStore, root: Path) -> None:
    ids = [send(store, type=f"t{n % 3}") for n in range(12)]  # the clock stands still

    found = [json.loads((root / "inbox/bob" / name).read_text())["id"] for name in files(root / "inbox/bob")]

    assert found == ids


def test_mail_to_nobody_in_particular_lies_in_its_channel(store: FilesStore, root: Path) -> None:
    send(store, None, channel="reviews")

    assert len(files(root / "inbox/_channel/reviews")) == 1


def test_a_claim_names_its_owner_its_lease_and_its_token_in_the_tree(store: FilesStore, root: Path) -> None:
    send(store)
    (delivery,) = claim(store, owner=this_process(), lease_s=30)

    (name,) = files(root / ".postroom/claimed/bob")
    assert f"~token{delivery.ticket.token}~pid{os.getpid()}~until" in name
    assert files(root / "inbox/bob") == []
    assert json.loads((root / ".postroom/claimed/bob" / name).read_text())["payload"] == {"text": "hi"}


@pytest.mark.parametrize(
    ("act", "place"),
    [
        (lambda store: store.settle(claim(store)[0].ticket, "acked"), "done"),
        (lambda store: store.settle(claim(store)[0].ticket, "dead", detail="no"), "dead"),
        (lambda store: store.settle(claim(store)[0].ticket, "retry", delay_s=5), "later"),
    ],
)
def test_what_is_in_no_inbox_lies_under_postroom(
    store: FilesStore, root: Path, act: Callable[[FilesStore], object], place: str
) -> None:
    send(store)
    act(store)

    (path,) = [path for path in tree(root) if path.endswith("-message.json")]
    assert path.startswith(f".postroom/{place}/")


def test_a_message_that_comes_back_lies_in_the_inbox_under_its_old_name(store: FilesStore, root: Path) -> None:
    send(store)
    before = files(root / "inbox/bob")
    store.settle(claim(store)[0].ticket, "retry")

    assert files(root / "inbox/bob") == before


def test_folders_are_the_owners_alone_and_files_too(store: FilesStore, root: Path) -> None:
    send(store, type="done")
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in [root, *root.rglob("*")]}

    assert {oct(mode) for path, mode in modes.items() if path.is_dir()} == {"0o700"}
    assert {oct(mode) for path, mode in modes.items() if path.is_file()} == {"0o600"}


def test_the_group_takes_part_if_asked(root: Path) -> None:
    with closing(FilesStore(root, Config(group=True), SYSTEM)) as store:
        send(store)

    assert stat.S_IMODE((root / "inbox/bob").stat().st_mode) == 0o2770
    assert {stat.S_IMODE((root / "inbox/bob" / name).stat().st_mode) for name in files(root / "inbox/bob")} == {0o660}


def test_the_group_can_write_what_all_need_whatever_the_umask_is(root: Path) -> None:
    before = os.umask(0o077)
    try:
        with closing(FilesStore(root, Config(group=True), SYSTEM)) as store:
            send(store)
    finally:
        os.umask(before)

    needed = ("log", "lock", "mark", "keys", "turn", "alive", "room.json")
    assert {stat.S_IMODE((root / ".postroom" / name).stat().st_mode) for name in needed} == {0o660}


# Files that others drop


def test_a_file_dropped_by_hand_is_a_message_at_once(store: FilesStore, root: Path) -> None:
    assert claim(store, "worker-1") == []
    drop(root / "inbox/worker-1/2026-02-09T22:30:00Z-implement.json", SAMPLE)

    (delivery,) = claim(store, "worker-1")

    message = delivery.message
    assert (message.from_agent, message.to_agent, message.type) == ("lead", "worker-1", "implement")
    assert message.payload == {"notes": SAMPLE["payload"]["notes"], "spec": "taskrunner", "task_id": "T3"}  # type: ignore[index]
    assert message.timestamp == "2026-02-09T22:30:00.000Z"
    assert store.settle(delivery.ticket, "acked").held
    assert store.get(message.id) is not None


def test_a_dropped_file_never_speaks_as_a_person(store: FilesStore, root: Path) -> None:
    drop(root / "inbox/bob/note.json", {"from": "eve", "lane": "human", "payload": {"n": 1}})

    (message,) = claim(store, "bob")

    assert (message.message.from_agent, message.message.lane) == ("eve", "agent")


def test_a_file_copied_in_by_any_program_is_a_message_when_it_is_closed(store: FilesStore, root: Path) -> None:
    claim(store)
    (root / "inbox/bob").mkdir(exist_ok=True)
    with (root / "inbox/bob/x.json").open("w") as file:
        file.write('{"payload": {"n":')
        file.flush()
        assert claim(store) == []
        file.write(" 1}}")

    (delivery,) = claim(store)
    assert delivery.message.payload == {"n": 1}
    assert delivery.message.from_agent == "unknown"


def test_the_action_may_stand_in_the_name_alone(store: FilesStore, root: Path) -> None:
    drop(root / "inbox/bob/20260209T223000Z-blocked.json", {"from": "w", "payload": {}})

    assert claim(store)[0].message.type == "blocked"


def test_fields_that_nobody_knows_survive(store: FilesStore, root: Path) -> None:
    drop(root / "inbox/bob/x.json", {**SAMPLE, "mood": ["good"]})
    (delivery,) = claim(store)
    store.settle(delivery.ticket, "acked")

    assert delivery.message.payload["mood"] == ["good"]
    (path,) = (root / ".postroom/done").rglob("*x.json")
    assert json.loads(path.read_text()) == {**SAMPLE, "mood": ["good"]}


def test_a_file_in_a_channel_is_for_whoever_claims_it(store: FilesStore, root: Path) -> None:
    drop(root / "inbox/_channel/reviews/x.json", {"payload": {"n": 1}})

    (delivery,) = claim(store, "eve", channels=("reviews",))
    assert delivery.message.to_agent is None


def test_further_fields_of_the_envelope_are_heeded(store: FilesStore, root: Path, clock: ManualClock) -> None:
    drop(root / "inbox/bob/a.json", {"payload": {"n": 1}, "priority": 1})
    drop(root / "inbox/bob/b.json", {"payload": {"n": 2}, "priority": 9, "ttl_s": 5, "correlation_id": "c"})
    drop(root / "inbox/bob/c.json", {"payload": {"n": 3}, "delay_s": 60})

    assert [each.message.payload["n"] for each in claim(store)] == [2, 1]
    clock.advance(60)
    assert [each.message.payload["n"] for each in claim(store)] == [3, 1]


def test_several_found_at_once_come_in_the_order_of_their_names(store: FilesStore, root: Path) -> None:
    for name in ("b", "a", "c"):
        drop(root / f"inbox/bob/2026020{'abc'.index(name)}T000000Z-{name}.json", {"payload": {"n": name}})

    assert [each.message.payload["n"] for each in claim(store)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "empty"),
        ('{"payload": {', "JSON"),
        ("[1, 2]", "object"),
        ('{"payload": 5}', "payload"),
        ('{"payload": {}, "priority": 11}', "Priority must be 1-10"),
        ('{"payload": {}, "from": 5}', "from_agent"),
        ('{"payload": {}, "ttl_s": "soon"}', "ttl_s"),
        ('{"payload": {}, "hop_count": {}}', "hop_count"),
        ('{"payload": {}, "max_deliveries": 0}', "max_deliveries"),
        ('{"payload": {}, "answer_to": 1}', "answer_to"),
        ("\udcff", "JSON"),
    ],
)
def test_what_is_no_message_is_left_alone_and_set_aside_after_ten_seconds(
    store: FilesStore, root: Path, clock: ManualClock, content: str, why: str
) -> None:
    (root / "inbox/bob").mkdir(parents=True, exist_ok=True)
    path = root / "inbox/bob/x.json"
    path.write_text(content, errors="surrogateescape")
    for _ in range(9):
        assert claim(store) == []
        clock.advance(1)
    assert path.exists()
    clock.advance(2)

    assert claim(store) == []

    assert files(root / "inbox/bob") == []
    rejected, reason = sorted((root / ".postroom/rejected").iterdir())
    assert rejected.read_bytes() == content.encode(errors="surrogateescape")
    assert why in reason.read_text()
    assert reason.read_text().startswith("inbox/bob/x.json: ")


def test_a_file_that_somebody_still_writes_to_has_its_ten_seconds_anew(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    (root / "inbox/bob").mkdir(parents=True, exist_ok=True)
    path = root / "inbox/bob/x.json"
    text = '{"payload": {"n": 1}}'
    for size in (5, 10, 15):
        path.write_text(text[:size])
        for _ in range(8):
            assert claim(store) == []
            clock.advance(1)
    path.write_text(text)

    assert claim(store)[0].message.payload == {"n": 1}


@pytest.mark.parametrize("name", [".hidden.json", "notes.txt", "x.json~", ".x.json.swp"])
def test_files_that_are_not_meant_as_messages_are_left_alone(
    store: FilesStore, root: Path, clock: ManualClock, name: str
) -> None:
    drop(root / "inbox/bob" / name, SAMPLE)
    clock.advance(60)

    assert claim(store) == []
    assert files(root / "inbox/bob") == [name]


def test_a_name_used_again_is_another_message(store: FilesStore, root: Path, clock: ManualClock) -> None:
    for n in range(3):
        drop(root / "inbox/bob/task.json", {"payload": {"n": n}})
        (delivery,) = claim(store)
        assert delivery.message.payload == {"n": n}
        store.settle(delivery.ticket, "retry" if n == 1 else "acked", delay_s=5)
    clock.advance(5)

    assert [each.message.payload for each in claim(store)] == [{"n": 1}]
    assert len(store.find(Query()).messages) == 3


def test_a_message_that_comes_back_overwrites_nothing(store: FilesStore, root: Path) -> None:
    drop(root / "inbox/bob/task.json", {"payload": {"n": 0}})
    (first,) = claim(store)
    drop(root / "inbox/bob/task.json", {"payload": {"n": 1}})
    store.settle(first.ticket, "retry")

    assert len(files(root / "inbox/bob")) == 2
    assert sorted(each.message.payload["n"] for each in claim(store)) == [0, 1]


def test_what_was_dropped_while_nobody_looked_is_found(root: Path, store: FilesStore, clock: ManualClock) -> None:
    store.close()
    drop(root / "inbox/bob/x.json", SAMPLE)

    with closing(FilesStore(root, Config(), clock)) as again:
        assert len(claim(again)) == 1


def test_where_there_is_no_watch_one_look_a_second_finds_it(
    root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroom.core.system.watch import NoWatch

    def none_left() -> None:
        raise NoWatch("too many open files")

    monkeypatch.setattr("postroom.stores.files.intake.watch_folders", none_left)
    with closing(FilesStore(root, Config(), clock)) as store:
        assert claim(store) == []
        drop(root / "inbox/bob/x.json", SAMPLE)
        clock.advance(1.1)
        assert len(claim(store)) == 1
        with store.listen([topic_to("bob")]) as waiter:
            send(store)
            assert waiter.wait(0) is True


def test_all_processes_see_a_dropped_file_once(root: Path, store: FilesStore, clock: ManualClock) -> None:
    with closing(FilesStore(root, Config(), clock)) as other:
        assert claim(store) == claim(other) == []
        drop(root / "inbox/bob/x.json", SAMPLE)

        assert len(claim(store)) + len(claim(other)) == 1
        assert [m.id for m in store.find(Query()).messages] == [m.id for m in other.find(Query()).messages]
        assert len(store.find(Query()).messages) == 1


def test_peeking_at_a_dropped_file_takes_nothing(store: FilesStore, root: Path) -> None:
    drop(root / "inbox/bob/x.json", SAMPLE)

    assert len(store.find(Query(to_agent="bob")).messages) == 1
    assert files(root / "inbox/bob") == ["x.json"]
    assert store.stats().states["stored"] == 1


@pytest.mark.parametrize(
    ("topic", "place"), [(topic_to("bob"), "inbox/bob"), (topic_channel("work"), "inbox/_channel/work")]
)
def test_a_dropped_file_wakes_those_who_wait(root: Path, topic: str, place: str) -> None:
    with closing(FilesStore(root, Config(), SYSTEM)) as store:
        (root / place).mkdir(parents=True)
        claim(store)
        with store.listen([topic]) as waiter, store.listen(["to:somebody else"]) as other, store.listen([topic]) as two:
            assert waiter.wait(0) is False
            drop(root / place / "x.json", SAMPLE)

            assert waiter.wait(10) is True
            assert two.wait(10) is True
            assert other.wait(0) is False


def test_a_file_dropped_into_a_folder_that_is_new_too_wakes_within_a_look(root: Path) -> None:
    with closing(FilesStore(root, Config(), SYSTEM)) as store, store.listen([topic_to("new"), "feed"]) as waiter:
        drop(root / "inbox/new/x.json", SAMPLE)

        assert waiter.wait(10) is True
        assert len(claim(store, "new")) == 1


@needs_linux("inotify, whose queue may run over")
def test_a_queue_of_the_watch_that_ran_over_loses_no_file(root: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with closing(FilesStore(root, Config(), SYSTEM)) as store:
        claim(store)
        (root / "inbox/bob").mkdir(exist_ok=True)
        claim(store)
        first = drop(root / "inbox/bob/0.json", {"payload": {"n": 0}})
        for number in range(1, limit + 500):  # each of these is an event: the first file's name, moved to and fro
            first.rename(first := root / f"inbox/bob/{number % 2}.json")
        drop(root / "inbox/bob/last.json", {"payload": {"n": 1}})

        assert sorted(each.message.payload["n"] for each in claim(store)) == [0, 1]


# Files that others take


def test_a_message_that_is_moved_out_of_the_inbox_counts_as_done(
    store: FilesStore, root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    id = send(store, "shell")
    (name,) = files(root / "inbox/shell")
    (root / "inbox/shell" / name).rename(tmp_path / "taken.json")
    clock.advance(1.1)

    assert claim(store, "shell") == []
    message = store.get(id)
    assert message is not None
    assert (message.exact_state, message.claimed_by) == (State.ACKED, "shell")
    assert [entry.event for entry in message.ledger] == ["stored", "claimed", "acked"]
    assert "by hand" in str(message.ledger[-1].detail)


def test_who_claims_what_was_just_moved_out_gets_the_next(store: FilesStore, root: Path) -> None:
    send(store)
    second = send(store)
    (root / "inbox/bob" / files(root / "inbox/bob")[0]).unlink()

    assert [each.message.id for each in claim(store, limit=1)] == [second]


@pytest.mark.parametrize("settle", [False, True])
def test_a_hand_that_is_faster_by_a_hair_has_the_message(
    store: FilesStore, root: Path, tmp_path: Path, settle: bool
) -> None:
    """Between the choice of a message and the move of its file."""
    first, second = send(store), send(store)
    oldest = root / "inbox/bob" / files(root / "inbox/bob")[0]

    def take() -> None:
        if oldest.exists():
            oldest.rename(tmp_path / "taken.json")

    crashpoints.at("files.logged", take)
    try:
        got = claim(store, settle=settle)
    finally:
        crashpoints.forget()

    assert [each.message.id for each in got] == [second]
    message = store.get(first)
    assert message is not None
    assert message.exact_state is State.ACKED
    assert claim(store) == []


@pytest.mark.slow
def test_of_a_hand_and_a_claim_at_the_same_time_one_has_the_message(root: Path, tmp_path: Path) -> None:
    with closing(FilesStore(root, Config(), SYSTEM)) as store:
        ids = [send(store) for _ in range(300)]
        by_hand: list[str] = []

        def take() -> None:
            for name in files(root / "inbox/bob"):
                try:
                    (root / "inbox/bob" / name).rename(tmp_path / name)
                    by_hand.append(json.loads((tmp_path / name).read_text())["id"])
                except FileNotFoundError:
                    continue

        hand = threading.Thread(target=take)
        hand.start()
        claimed: list[str] = []
        while got := claim(store, limit=1, settle=len(claimed) % 2 == 0):
            claimed += [each.message.id for each in got]
        hand.join()

        assert sorted(claimed + by_hand) == sorted(ids)


def test_a_question_may_be_answered_by_hand(store: FilesStore, root: Path, tmp_path: Path, clock: ManualClock) -> None:
    question = send(store, "shell", waiter=this_process())
    (name,) = files(root / "inbox/shell")
    (root / "inbox/shell" / name).rename(tmp_path / "taken.json")
    clock.advance(1.1)
    assert claim(store, "shell") == []
    taken = store.get(question)
    assert taken is not None
    assert taken.exact_state is State.CLAIMED
    drop(root / "inbox/ada/answer.json", {"from": "shell", "payload": {"n": 42}, "answer_to": question})

    (answer,) = store.find(Query(answer_to=question)).messages

    assert (answer.exact_state, answer.payload) == (State.AWAITED, {"n": 42})
    answered = store.get(question)
    assert answered is not None
    assert answered.exact_state is State.ANSWERED
    assert answered.ledger[-1].detail == answer.id
    assert [each.message.id for each in claim(store, "ada", ids=(answer.id,))] == [answer.id]


def test_a_question_may_be_answered_by_hand_and_left_where_it_lies(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    question = send(store, "shell", waiter=this_process())
    drop(root / "inbox/ada/answer.json", {"from": "shell", "payload": {"n": 42}, "answer_to": question})
    clock.advance(2)

    (answer,) = store.find(Query(answer_to=question)).messages

    answered = store.get(question)
    assert answered is not None
    assert (answered.exact_state, answer.exact_state) == (State.ANSWERED, State.AWAITED)
    assert files(root / "inbox/shell") == []
    clock.advance(2)
    assert len(store.find(Query()).messages) == 2


def test_an_id_that_somebody_made_up_is_not_believed(store: FilesStore, root: Path) -> None:
    send(store)
    id = "7fffffff" + store.find(Query()).messages[0].id[8:]
    drop(root / "inbox/bob/x.json", {"payload": {"n": 1}, "id": id})

    assert [each.message.payload for each in claim(store)] == [{"text": "hi"}, {"n": 1}]
    assert store.get(id) is None


# Outboxes


@pytest.mark.parametrize("type", ["done", "blocked"])
def test_a_completion_signal_lies_in_the_outbox_of_its_sender_too(store: FilesStore, root: Path, type: str) -> None:
    send(store, "lead", sender="worker-1", type=type, payload={"task_id": "T3"})
    send(store, "lead", sender="worker-1", type="info")

    (name,) = files(root / "outbox/worker-1")
    assert name.endswith(f"-{type}.json")
    for delivery in claim(store, "lead"):
        store.settle(delivery.ticket, "acked")
    assert json.loads((root / "outbox/worker-1" / name).read_text())["task_id"] == "T3"


def test_a_signal_left_in_an_outbox_by_hand_reaches_whom_it_is_for_once(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    path = drop(root / "outbox/worker-1/20260209T223000Z-done.json", {**SAMPLE, "to": "lead", "action": "done"})
    (delivery,) = claim(store, "lead")
    assert (delivery.message.from_agent, delivery.message.type) == ("worker-1", "done")
    store.settle(delivery.ticket, "acked")
    clock.advance(5)

    assert claim(store, "lead") == []
    assert path.exists()
    store.close()
    with closing(FilesStore(root, Config(), clock)) as again:
        assert claim(again, "lead") == []


# Names and links


def test_a_symbolic_link_in_the_place_of_an_inbox_leads_nobody_out(
    store: FilesStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    drop(outside / "secret.json", SAMPLE)
    (root / "inbox/eve").symlink_to(outside)

    with pytest.raises(RoomUnreachable, match="inbox/eve"):
        send(store, "eve")

    assert claim(store, "eve") == []
    assert files(outside) == ["secret.json"]
    assert claim(store) == []
    assert store.get(send(store)) is not None


def test_a_symbolic_link_dropped_as_a_message_is_not_followed(
    store: FilesStore, root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    secret = drop(tmp_path / "secret.json", SAMPLE)
    (root / "inbox/bob").mkdir(parents=True, exist_ok=True)
    (root / "inbox/bob/x.json").symlink_to(secret)
    for _ in range(12):
        assert claim(store) == []
        clock.advance(1)

    assert files(root / "inbox/bob") == []
    assert secret.exists()


def test_a_pipe_or_a_folder_among_the_messages_stops_nobody(store: FilesStore, root: Path) -> None:
    (root / "inbox/bob/folder.json").mkdir(parents=True)
    os.mkfifo(root / "inbox/bob/pipe.json")
    drop(root / "inbox/bob/x.json", SAMPLE)

    assert len(claim(store)) == 1


@pytest.mark.parametrize(
    "name",
    ["..", ".", "a/../../b", ".hidden", "_channel", "%2E%2E", "a%2Fb", "~", "ü" * 127, "n" * 255, "x" * 250 + "/" * 5],
)
def test_no_name_leads_out_of_its_folder(store: FilesStore, root: Path, name: str) -> None:
    before = {*tree(root.parent)}
    id = send(store, name, sender=name, channel=name, type=name)
    channel_id = send(store, None, channel=name)

    new = {*tree(root.parent)} - before
    assert all(path.startswith("mailbox/") and ".." not in path.split("/") for path in new)
    assert [each.message.id for each in claim(store, name)] == [id]
    assert [each.message.id for each in claim(store, name, channels=(name,))] == [channel_id]


def test_files_for_an_agent_with_a_long_name_are_taken_in_too(store: FilesStore, root: Path) -> None:
    name = "ü" * 127
    send(store, name)
    (folder,) = [path for path in (root / "inbox").iterdir() if path.name != "_channel"]
    drop(folder / "x.json", SAMPLE)

    assert [each.message.to_agent for each in claim(store, name)] == [name, name]


# A program that knows nothing of Postroom

SCRIPT = r"""
set -e
cd "$1"
# wait for a message, take it by moving it: whoever moves it has it
while :; do
    for file in $(ls inbox/shell 2>/dev/null); do
        if mv "inbox/shell/$file" "taken-$file" 2>/dev/null; then break 2; fi
    done
done
IFS= read -r -d '' text < "taken-$file" || :
case $text in *'"text": "hello shell"'*) answer=understood ;; *) answer=puzzled ;; esac
printf '{"from": "shell", "to": "ada", "action": "done", "payload": {"answer": "%s"}}\n' "$answer" > .half
mv .half inbox/ada/20260209T223000.000000Z-done.json
"""


def test_a_shell_script_and_an_agent_write_to_each_other(root: Path) -> None:
    import postroom

    with postroom.open(f"files:{root}") as room:
        ada = room.agent("ada")
        (root / "inbox/ada").mkdir(exist_ok=True)
        with subprocess.Popen(["bash", "-c", SCRIPT, "bash", str(root)]) as script:
            id = ada.send("shell", {"text": "hello shell"}, wait="acked", timeout_s=30)
            with ada.receive(timeout_s=30) as answer:
                assert (answer.from_agent, answer.type, answer.payload) == ("shell", "done", {"answer": "understood"})
            assert script.wait(30) == 0
        assert room.receipt(id).state == "acked"


def test_the_lines_of_the_document_send_a_message_to_an_agent_that_had_none(root: Path, store: FilesStore) -> None:
    text = (ROOT / "docs" / "files-by-hand.md").read_text(encoding="utf-8").partition("**To send**")[2]
    lines = [line.strip() for line in text.partition("\n\n")[2].partition("\n\n")[0].splitlines()]
    assert lines[-1].startswith("mv ")

    subprocess.run(["sh", "-e", "-c", "\n".join(lines)], cwd=root, check=True)

    (message,) = store.find(Query(to_agent="worker-1")).messages
    assert (message.from_agent, message.payload) == ("me", {"text": "hello"})
