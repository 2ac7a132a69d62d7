"""The log of a room in plain files: what it forgets, and what follows it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.support.files_by_hand import claim, drop, files, send, tree

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.stores.contract import Query
from postroom.stores.files.store import FilesStore


def test_a_log_that_has_grown_is_written_anew_and_means_the_same(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    store.log_growth_bytes = 2000
    store.subscribe("news", "bob")
    store.cell_write("a", 1)
    for number in range(20):
        send(store, payload={"n": number}, idempotency_key=f"k{number}")
        if number % 2:
            store.settle(claim(store, limit=1)[0].ticket, "acked")
    other = FilesStore(root, Config(), clock)
    before = (
        other.find(Query()).messages,
        other.events(),
        other.cell_read("a"),
        other.subscriptions(),
        other.work_of("bob"),
    )
    size = (root / ".postroom/log").stat().st_size

    store.sweep()

    assert (root / ".postroom/log").stat().st_size < size
    for each in (store, other):
        now = each.find(Query()).messages, each.events(), each.cell_read("a"), each.subscriptions(), each.work_of("bob")
        assert now == before
    (new,) = other.put([check(Draft(from_agent="ada", to_agent="bob", payload={}))])
    assert [change.message.id for change in store.events(before[1][-1].number)] == [new]
    other.close()


def test_a_line_that_somebody_left_half_written_does_not_count(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    first = send(store)
    with (root / ".postroom/log").open("ab") as log:
        log.write(b'0000abcd {"rows": [[1,')

    assert [each.message.id for each in claim(store)] == [first]
    second = send(store)
    with closing(FilesStore(root, Config(), clock)) as again:
        assert [message.id for message in again.find(Query()).messages] == [first, second]


def test_messages_in_inboxes_outlive_the_loss_of_the_log(store: FilesStore, root: Path, clock: ManualClock) -> None:
    """As after a power cut that took the last lines: what lies in an inbox is a message, with the id it has."""
    log = (root / ".postroom/log").read_bytes()
    ids = [send(store, priority=3), send(store, channel="c", correlation_id="x")]
    store.close()
    (root / ".postroom/log").write_bytes(log)

    with closing(FilesStore(root, Config(), clock)) as again:
        found = {each.message.id: each.message for each in claim(again)}
        assert sorted(found) == sorted(ids)
        assert (found[ids[0]].priority, found[ids[1]].channel, found[ids[1]].correlation_id) == (3, "c", "x")
        assert found[ids[0]].payload == {"text": "hi"}


@pytest.mark.parametrize("content", ["{", "[1]", '{"payload": [1]}', '{"payload": null}'])
def test_a_message_that_somebody_spoilt_is_set_aside_with_the_reason(
    store: FilesStore, root: Path, content: str
) -> None:
    id, good = send(store), send(store)
    (root / "inbox/bob" / files(root / "inbox/bob")[0]).write_text(content)

    assert [message.payload for message in store.find(Query()).messages] == [{}, {"text": "hi"}]
    assert [each.message.id for each in claim(store)] == [good]
    message = store.get(id)
    assert message is not None
    assert message.exact_state is State.DEAD
    assert "can no longer be read" in str(message.error)


@pytest.mark.parametrize("again", ["mark", "all"])
def test_a_file_dropped_under_the_name_of_one_that_was_being_moved_is_not_taken_for_it(
    store: FilesStore, root: Path, clock: ManualClock, again: str
) -> None:
    """Somebody died after a claim's file was moved and before the mark said so; a boot follows the whole log again."""
    drop(root / "inbox/bob/task.json", {"payload": {"n": 0}})
    store.find(Query())
    mark = (root / ".postroom/mark").read_bytes()
    (first,) = claim(store)
    if again == "all":
        store.settle(first.ticket, "acked")
    store.close()
    drop(root / "inbox/bob/task.json", {"payload": {"n": 1}})
    (root / ".postroom/mark").write_bytes(mark if again == "mark" else bytes(8))

    with closing(FilesStore(root, Config(), clock)) as later:
        assert [each.message.payload for each in claim(later)] == [{"n": 1}]
        assert sorted(m.payload["n"] for m in later.find(Query()).messages) == [0, 1]


def test_a_step_that_is_written_down_counts_though_the_tree_cannot_follow(
    store: FilesStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = send(store)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(store._tree, "rename", full)
        (delivery,) = claim(store)
        assert store.settle(delivery.ticket, "acked").held
        send(store)

    assert [each.message.payload for each in claim(store)] == [{"text": "hi"}]
    assert [path for path in tree(root) if path.startswith(".postroom/done/") and id]
    assert files(root / "inbox/bob") == []


def test_a_claim_that_the_log_forgot_loses_no_message(store: FilesStore, root: Path, clock: ManualClock) -> None:
    id = send(store)
    log = (root / ".postroom/log").read_bytes()
    claim(store)
    store.close()
    (root / ".postroom/log").write_bytes(log)

    with closing(FilesStore(root, Config(), clock)) as again:
        assert [each.message.id for each in claim(again)] == [id]


# After a power cut that took the end of the log, or moves of files


def boot(clock: ManualClock, behind_s: float = 0) -> None:
    clock.jump_wall(-behind_s)
    clock.reboot()


@pytest.mark.parametrize(
    ("to", "then", "behind_s"),
    [
        ("bob", "waits", 3600),
        ("bob", "claimed", 0),
        ("bob", "later", 3600),
        ("bob", "dead", 0),
        (None, "claimed", 3600),
        ("b/" * 100, "claimed", 0),
    ],
)
def test_a_message_whose_lines_a_power_cut_took_is_there_with_its_id(
    to: str | None, then: str, behind_s: float, store: FilesStore, root: Path, clock: ManualClock
) -> None:
    """Its file is on the disk since it was sent, and a move of it may be without the line that told of the move."""
    first_line = (root / ".postroom/log").read_bytes()
    id = send(store, to, payload={"n": 1})
    if then != "waits":
        [delivery] = claim(store, to or "bob", channels=("general",))
        if then != "claimed":
            assert store.settle(delivery.ticket, "retry" if then == "later" else "dead", delay_s=60).held
    store.close()
    (root / ".postroom/log").write_bytes(first_line)
    (root / ".postroom/keys").write_bytes(b"")
    boot(clock, behind_s)
    FilesStore(root, Config(), clock).close()  # whoever comes first may not stay
    with closing(FilesStore(root, Config(), clock)) as again:
        later = send(again, to)
        assert [(each.message.id, each.message.payload) for each in claim(again, to or "bob", channels=("general",))][
            :1
        ] == [(id, {"n": 1})]
        assert id < later


def test_a_message_that_was_done_does_not_come_again_where_a_power_cut_took_the_move_of_its_file(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    """The log that was written anew does not tell where the file was before."""
    store.log_growth_bytes = 10
    id = send(store)
    [waiting] = (root / "inbox/bob").iterdir()
    assert store.settle(claim(store)[0].ticket, "acked").held
    store.sweep()
    store.close()
    [done] = (root / ".postroom/done").rglob("*.json")
    done.rename(waiting)
    boot(clock)
    with closing(FilesStore(root, Config(), clock)) as again:
        assert not claim(again)
        assert [message.id for message in again.find(Query()).messages] == [id]
    assert done.exists() and not waiting.exists()
