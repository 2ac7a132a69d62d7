"""Chance drives stores side by side (memory and SQLite; files with them; memory and NATS), and a plain model says what they do.

Runs of 50 steps: 100 (20 with files, 6 on NATS, where each step is many requests), and in the long tests 500 (200, 300);
POSTROOM_MODEL_RUNS makes it more. Every run prints its seed: POSTROOM_MODEL_SEED repeats it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.support.nats_servers import room_name, shared_server
from tests.support.store_model import Conflict, Fields, Model, may_be_read_as, states_after

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, Message, check
from postroom.core.states import PUBLIC_NAME, State
from postroom.errors import InvalidMessage
from postroom.stores.contract import ANY, Claimed, Query, Store, Ticket, Want
from postroom.stores.files.store import FilesStore
from postroom.stores.memory.store import MemoryStore
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import gone_process

RUNS = int(os.environ.get("POSTROOM_MODEL_RUNS", "500"))
STEPS = 50
SEED = int(os.environ.get("POSTROOM_MODEL_SEED", str(secrets.randbelow(2**32))))

#: A process of another machine: nobody here can tell whether it lives, so it is taken to.
FAR_AWAY = "elsewhere:1:1"
AGENTS = ("bob", "eve")
CHANNELS = ("general", "work")

agents = st.sampled_from(AGENTS)
channels = st.sampled_from(CHANNELS)
priorities = st.sampled_from((5, 1, 10))
delays = st.sampled_from((0, 0, 2000, 5000))
lives = st.sampled_from((None, None, 3000, 8000))
most = st.sampled_from((3, 1, 2))
keys = st.sampled_from((None, None, None, "k1", "k2"))
texts = st.sampled_from(("x", "y"))
leases = st.sampled_from((30_000, 1000, 4000))
limits = st.sampled_from((1, 3))
picks = st.integers(0, 40)
asked_channels = st.sampled_from((None, ("general",), ("work",), ("general", "work")))
outcomes = st.sampled_from(("acked", "answered", "refused", "retry", "dead", "returned"))
flags = st.booleans()
states = st.sets(st.sampled_from(State), min_size=1, max_size=4).map(frozenset)


class Holder:
    """A ticket, as the model and each of the stores gave it."""

    def __init__(self, model: tuple[int, int], tickets: list[Ticket]) -> None:
        self.model = model
        self.tickets = tickets


class Stores(RuleBasedStateMachine):
    """Stores and a model of one room. Every rule does the same with all of them and compares what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        # in memory where that can be: what syncing the disk promises is not what is tested here
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="postroom-model-", dir=memory))
        self.model = Model()
        self.model.wall = self.clock.wall_ms()
        self.stores: list[Store] = [MemoryStore(Config(), self.clock), *self.open_others()]
        self.ids: list[list[str]] = [[] for _ in self.stores]  # for each store: number -> id
        self.numbers: list[dict[str, int]] = [{} for _ in self.stores]  # and back
        # for each store: a cell and the model's version of it -> the store's own version
        self.versions: list[dict[tuple[str, int], int]] = [{} for _ in self.stores]
        # for each store: a message and the model's token of it -> the store's own token
        self.tokens: list[dict[tuple[int, int], int]] = [{} for _ in self.stores]
        self.seen = [0 for _ in self.stores]  # for each store: how far its feed is read
        self.holders: list[Holder] = []
        self.steps = 0

    def open_others(self) -> list[Store]:
        """Open the stores that are tested beside the reference."""
        return [SqliteStore(self.folder / "sqlite", Config(), self.clock)]

    def write_down(self) -> None:
        """Called where the model writes down what the clock did, in case a store does so later."""

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)

    # The same thing said to the model and to a store

    def draft(self, fields: Fields, which: int) -> Draft:
        answer_to = fields["answer_to"]
        return check(
            Draft(
                from_agent=fields["sender"],
                to_agent=fields["to"],
                channel=fields["channel"],
                payload={"text": fields["text"]},
                priority=fields["priority"],
                ttl_s=None if fields["ttl"] is None else fields["ttl"] / 1000,
                delay_s=fields["delay"] / 1000,
                idempotency_key=fields["key"],
                max_deliveries=fields["most"],
                publish=fields["publish"],
                waiter=fields["waiter"],
                answer_to=None if answer_to is None else self.ids[which][answer_to],
            )
        )

    def want(self, fields: Fields, which: int) -> Want:
        ids = fields["ids"]
        return Want(
            agent=fields["agent"],
            lease_s=fields["lease"] / 1000,
            channels=fields["channels"],
            limit=fields["limit"],
            owner=fields["owner"],
            ids=None if ids is None else tuple(self.ids[which][number] for number in ids),
            settle=fields["settle"],
        )

    def learn(self, which: int, numbers: list[int], ids: list[str]) -> None:
        """A store gave these ids for these numbers: new ones are noted, known ones must be the same."""
        assert len(ids) == len(numbers)
        for number, id in sorted(zip(numbers, ids, strict=True)):
            if number == len(self.ids[which]):
                self.ids[which].append(id)
                self.numbers[which][id] = number
            assert self.ids[which][number] == id

    def put(self, drafts: list[Fields]) -> list[int]:
        try:
            numbers = self.model.put(drafts)
        except Conflict:
            for which, store in enumerate(self.stores):
                with pytest.raises(InvalidMessage):
                    store.put([self.draft(fields, which) for fields in drafts])
            return []
        for which, store in enumerate(self.stores):
            self.learn(which, numbers, store.put([self.draft(fields, which) for fields in drafts]))
        return numbers

    def took(self, numbers: list[int], claims: list[Claimed | None]) -> None:
        """Compare what was claimed, and keep the tickets."""
        for which, claimed in enumerate(claims):
            assert claimed is not None
            assert [self.numbers[which][each.message.id] for each in claimed.deliveries] == numbers
        for place, number in enumerate(numbers):
            tickets = [claimed.deliveries[place].ticket for claimed in claims if claimed is not None]
            m = self.model.message(number)
            assert m is not None
            self.holders.append(Holder((number, m["token"]), tickets))

    def claim(self, **fields: Any) -> None:
        want = wanted(**fields)
        numbers = self.model.claim(want)
        if want["owner"] is not None:  # it is gone: a sweep afterwards would let go what is claimed only now
            self.write_down()
        self.took(numbers, [store.claim(self.want(want, which)) for which, store in enumerate(self.stores)])
        if want["owner"] is None:
            self.write_down()

    # Rules: putting

    @rule(
        to=st.sampled_from((*AGENTS, None)), channel=channels, priority=priorities, delay=delays, ttl=lives, most=most,
        key=keys, text=texts,
    )  # fmt: skip
    def send(self, **fields: Any) -> None:
        self.put([drafted(**fields)])

    @rule(to=agents, channel=channels, priorities=st.lists(priorities, min_size=2, max_size=4), key=keys, text=texts)
    def send_several(self, to: str, channel: str, priorities: list[int], key: str | None, text: str) -> None:
        drafts = [drafted(to=to, channel=channel, priority=priority) for priority in priorities]
        self.put([*drafts, drafted(to=to, channel=channel, key=key, text=text)])

    @rule(to=agents, ttl=lives, most=most, answered=flags)
    def ask(self, to: str, ttl: int | None, most: int, answered: bool) -> None:
        (question,) = self.put([drafted(to=to, ttl=ttl, most=most, waiter=FAR_AWAY)])
        if answered:
            self.put([drafted(to="eve", ttl=ttl, answer_to=question)])

    @precondition(lambda self: self.model.count)
    @rule(pick=picks, to=agents)
    def answer_anything(self, pick: int, to: str) -> None:
        self.put([drafted(to=to, answer_to=pick % self.model.count)])

    @rule(channel=channels, agent=agents, on=flags, text=texts, key=st.sampled_from((None, None, "p1")))
    def subscribe_and_publish(self, channel: str, agent: str, on: bool, text: str, key: str | None) -> None:
        self.subscribe(channel, agent, on)
        self.put([drafted(to=None, channel=channel, text=text, key=key, publish=True)])

    def subscribe(self, channel: str, agent: str, on: bool) -> None:
        was = (channel, agent) in self.model.subscribers
        (self.model.subscribers.add if on else self.model.subscribers.discard)((channel, agent))
        for store in self.stores:
            if on:
                store.subscribe(channel, agent)
            else:
                assert store.unsubscribe(channel, agent) is was
            assert {entry[:2] for entry in store.subscriptions()} == self.model.subscribers

    # Rules: taking

    @rule(agent=agents, channels=asked_channels, limit=limits, lease=leases, settle=flags)
    def take(self, **fields: Any) -> None:
        self.claim(**fields)

    @rule(agent=agents, limit=limits, lease=st.sampled_from((1000, 4000)))
    def take_for_a_moment(self, **fields: Any) -> None:
        self.claim(**fields)

    @precondition(lambda self: self.model.count)
    @rule(agent=agents, picks=st.lists(picks, min_size=1, max_size=3), lease=leases, settle=flags)
    def take_by_id(self, agent: str, picks: list[int], lease: int, settle: bool) -> None:
        ids = tuple(dict.fromkeys(pick % self.model.count for pick in picks))
        self.claim(agent=agent, ids=ids, lease=lease, settle=settle)

    @rule(agent=agents, channels=asked_channels, limit=limits, asks=flags)
    def take_and_die(self, agent: str, channels: tuple[str, ...] | None, limit: int, asks: bool) -> None:
        self.claim(agent=agent, channels=channels, limit=limit, owner=gone_process())
        if asks:
            (question,) = self.put([drafted(to=agent, waiter=gone_process())])
            self.put([drafted(to="eve", answer_to=question)])
        self.let_the_gone_go()

    def let_the_gone_go(self) -> None:
        self.advance(1000)
        self.model.bury(gone_process())
        for store in self.stores:
            store.sweep()

    @precondition(lambda self: self.holders)
    @rule(pick=st.integers(1, 3), outcome=outcomes, delay=delays, reply=flags, key=keys)
    def settle_a_late_one(self, pick: int, **fields: Any) -> None:
        self.settle(self.holders[-min(pick, len(self.holders))], **fields, next_for=None)

    @precondition(lambda self: self.holders)
    @rule(pick=picks, outcome=outcomes, delay=delays, reply=flags, key=keys)
    def settle_any(self, pick: int, **fields: Any) -> None:
        self.settle(self.holders[pick % len(self.holders)], **fields, next_for=None)

    @precondition(lambda self: self.holders)
    @rule(pick=st.integers(1, 3), outcome=outcomes, delay=delays, reply=flags, key=keys, next_for=agents)
    def settle_and_go_on(self, pick: int, **fields: Any) -> None:
        self.settle(self.holders[-min(pick, len(self.holders))], **fields)

    def settle(
        self, holder: Holder, *, outcome: str, delay: int, reply: bool, key: str | None, next_for: str | None
    ) -> None:
        number = holder.model[0]
        puts = [drafted(to="bob", answer_to=number, key=key)] if reply else []
        want = None if next_for is None else wanted(agent=next_for)
        try:
            held, state, stored, claimed = self.model.settle(holder.model, outcome, "because", delay, puts, want)
        except Conflict:
            for which, store in enumerate(self.stores):
                with pytest.raises(InvalidMessage):
                    store.settle(holder.tickets[which], outcome, puts=[self.draft(each, which) for each in puts])
            return
        claims = []
        for which, store in enumerate(self.stores):
            settled = store.settle(
                holder.tickets[which],
                outcome,
                detail="because",
                delay_s=delay / 1000,
                puts=[self.draft(each, which) for each in puts],
                claim_next=None if want is None else self.want(want, which),
            )
            assert (settled.held, settled.state) == (held, state)
            self.learn(which, stored, settled.ids)
            assert (settled.claimed is None) is (claimed is None)
            claims.append(settled.claimed)
        if claimed is not None:
            self.took(claimed, claims)
            self.write_down()

    @precondition(lambda self: self.holders)
    @rule(pick=st.integers(1, 5), lease=leases)
    def extend(self, pick: int, lease: int) -> None:
        holder = self.holders[-min(pick, len(self.holders))]
        held = self.model.extend(holder.model, lease)
        for which, store in enumerate(self.stores):
            assert store.extend(holder.tickets[which], lease / 1000) is held

    # Rules: the rest

    @precondition(lambda self: self.model.count)
    @rule(pick=picks, what=st.sampled_from(("abandon", "note")))
    def speak_of(self, pick: int, what: str) -> None:
        (self.abandon if what == "abandon" else self.note)(pick % self.model.count)

    def abandon(self, number: int) -> None:
        self.model.abandon(number)
        for which, store in enumerate(self.stores):
            store.abandon(self.ids[which][number])

    def note(self, number: int) -> None:
        noted = self.model.note(number)
        for which, store in enumerate(self.stores):
            assert store.note(self.ids[which][number], "shown", "bob") is noted

    @precondition(lambda self: self.model.count)
    @rule(picks=st.lists(picks, min_size=1, max_size=8))
    def requeue(self, picks: list[int]) -> None:
        numbers = [pick % self.model.count for pick in picks]
        done = self.model.requeue(numbers)
        for which, store in enumerate(self.stores):
            ids = self.ids[which]
            assert store.requeue([ids[number] for number in numbers]) == [ids[number] for number in done]
        self.write_down()

    @rule(states=states, limit=limits)
    def purge(self, states: frozenset[State], limit: int) -> None:
        count = self.model.purge(states, limit)
        for store in self.stores:
            assert store.purge(Query(states=states, limit=limit)) == count
        self.write_down()

    @rule(
        name=st.sampled_from(("a", "a/b")),
        value=st.sampled_from((1, {"x": []}, None)),
        expect=st.sampled_from((None, 0, 1, 2)),
    )
    def write_cell(self, name: str, value: object, expect: int | None) -> None:
        """`expect` 1 is the version that is there, 2 the one that was there before."""
        here = self.model.cells.get(name, (0, None))[0]
        known = expect if not expect else max(0, here - (expect - 1))
        written = self.model.cell_write(name, value, known)
        for which, store in enumerate(self.stores):
            versions = self.versions[which]
            version = store.cell_write(name, value, ANY if known is None else versions.get((name, known), known))
            assert (version is not None) is written
            if version is not None and value is not None:
                assert version not in [0, *(each for (cell, _), each in versions.items() if cell == name)]
                versions[name, self.model.writes] = version
            found = [(cell.name, cell.version, cell.value) for cell in store.cell_scan("a")]
            assert found == [(n, versions[n, v], x) for n, (v, x) in sorted(self.model.cells.items())]

    @rule(what=st.sampled_from(("sweep", "open again", "jump on", "jump back")))
    def tend(self, what: str) -> None:
        if what == "sweep":
            self.sweep()
        elif what == "open again":
            self.open_again()
        else:
            self.jump(3600 if what == "jump on" else -3600)

    def sweep(self) -> None:
        before = Counter(event for m in self.model.messages for event in m["ledger"])
        self.model.wind()
        done = Counter(event for m in self.model.messages for event in m["ledger"]) - before
        for store in self.stores:
            assert store.sweep() == (done["expired"], done["released"], done["dead"], 0)

    @rule(ms=st.sampled_from((500, 1000, 3000)))
    def let_a_little_time_pass(self, ms: int) -> None:
        self.advance(ms)

    @rule(ms=st.sampled_from((4000, 10_000)))
    def let_time_pass(self, ms: int) -> None:
        self.advance(ms)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms / 1000)
        self.model.now += ms
        self.model.wall += ms

    def jump(self, seconds: int) -> None:
        self.clock.jump_wall(seconds)
        self.model.wall += seconds * 1000

    def open_again(self) -> None:
        for store in self.stores[1:]:
            store.close()
        self.stores[1:] = self.open_others()

    # What must be true after every step

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        self.steps += 1
        self.everything_reads_the_same()
        self.ledgers_are_whole()
        self.lists_are_in_their_order()
        self.figures_are_true()
        self.the_feed_tells_of_every_change()

    def everything_reads_the_same(self) -> None:
        expected = [self.expected(m) for m in self.model.messages]
        for which, store in enumerate(self.stores):
            found = store.find(Query(limit=1000)).messages
            assert [self.shown(message, which) for message in found] == expected
            for message, m in zip(found, self.model.messages, strict=True):
                self.token_is_right(which, m, message.token)

    def token_is_right(self, which: int, m: Fields, token: int) -> None:
        """A store's tokens are its own, but each of the model's is one of them, and they only grow."""
        known = self.tokens[which]
        place = (m["number"], m["token"])
        if place not in known:
            earlier = [each for (number, _), each in known.items() if number == m["number"]]
            assert token > max(earlier, default=-1)
            known[place] = token
        assert known[place] == token

    def expected(self, m: Fields) -> tuple[object, ...]:
        waits = m["waiter"] if m["state"] in (State.READY, State.DELAYED, State.CLAIMED) else None
        expires = None if m["expires"] is None else m["sent"] + m["ttl"]
        return (
            m["number"], self.model.judged(m), m["deliveries"], m["by"], m["to"], m["channel"], m["priority"], m["text"],
            m["answer_to"], waits, m["sent"], expires, m["error"],
        )  # fmt: skip

    def shown(self, message: Message, which: int) -> tuple[object, ...]:
        answer_to = None if message.answer_to is None else self.numbers[which][message.answer_to]
        waits = None if message.exact_state is State.AWAITED else message.waiter
        error = None if message.error is None else message.error.partition(" (delivery")[0]
        return (
            self.numbers[which][message.id], message.exact_state, message.delivery_count, message.claimed_by, message.to_agent,
            message.channel, message.priority, message.payload["text"], answer_to, waits, message.timestamp_ms,
            message.expires_at_ms, error,
        )  # fmt: skip

    def ledgers_are_whole(self) -> None:
        """Of all messages that changed in this step, and of one more."""
        numbers = {*self.model.changed, self.steps * 7 % max(1, self.model.count)} & {*range(self.model.count)}
        for which, store in enumerate(self.stores):
            for number in numbers:
                m, message = self.model.message(number), store.get(self.ids[which][number])
                assert (message is None) is (m is None)
                if message is not None and m is not None:
                    assert self.shown(message, which) == self.expected(m)
                    events = [entry.event for entry in message.ledger]
                    assert events == self.ledger_of(which, m)
                    assert may_be_read_as(events, message.exact_state), (events, message.exact_state)

    def ledger_of(self, which: int, m: Fields) -> list[str]:
        """The ledger that a store should have, by its place among the stores."""
        events: list[str] = m["ledger"]
        return events

    def lists_are_in_their_order(self) -> None:
        agent = AGENTS[self.steps % 2]
        ready = [m for m in self.model.messages if self.model.judged(m) is State.READY]
        mine = sorted((m for m in ready if m["to"] == agent), key=lambda m: (-m["priority"], m["number"]))
        newest = [m["number"] for m in self.model.messages[::-1]]
        for which in range(len(self.stores)):
            query = Query(visible_to=agent, states=frozenset({State.READY}), order="claim", limit=3)
            assert self.found(which, query) == [m["number"] for m in mine[:3]]
            assert self.found(which, Query(order="newest", limit=5)) == newest[:5]

    def found(self, which: int, query: Query) -> list[int]:
        return [self.numbers[which][message.id] for message in self.stores[which].find(query).messages]

    def figures_are_true(self) -> None:
        seen = [(m, self.model.judged(m)) for m in self.model.messages]
        counts = Counter(PUBLIC_NAME[state] for _, state in seen)
        boxes = Counter((m["to"], m["channel"]) for m, state in seen if state is State.READY)
        for store in self.stores:
            stats = store.stats()
            assert {name: count for name, count in stats.states.items() if count} == counts
            assert {(box.to_agent, box.channel): box.depth for box in stats.mailboxes} == boxes

    def the_feed_tells_of_every_change(self) -> None:
        kept = {m["number"] for m in self.model.messages}
        changed, self.model.changed = self.model.changed & kept, set()
        for which, store in enumerate(self.stores):
            told = set()
            while changes := store.events(self.seen[which], 3):
                told |= {self.numbers[which][change.message.id] for change in changes}
                self.seen[which] = changes[-1].number
            assert told == changed


def drafted(**fields: Any) -> Fields:
    """What the model needs to know of a draft."""
    usual = {
        "sender": "ada", "to": "bob", "channel": "general", "text": "x", "priority": 5, "ttl": None, "delay": 0, "key": None,
        "most": 3, "publish": False, "waiter": None, "answer_to": None,
    }  # fmt: skip
    return {**usual, **fields}


def wanted(**fields: Any) -> Fields:
    usual = {"agent": "bob", "lease": 30_000, "channels": None, "limit": 1, "owner": None, "ids": None, "settle": False}
    return {**usual, **fields}


class StoresAndFiles(Stores):
    """The same with a store of files, which takes ten times as long."""

    def open_others(self) -> list[Store]:
        files = FilesStore(self.folder / "files", Config(), self.clock)
        files.log_growth_bytes = 8000  # so that the log is written anew now and then
        return [*super().open_others(), files]


class StoresOnNats(Stores):
    """The same with a room on a real NATS server."""

    def open_others(self) -> list[Store]:
        from postroom.stores.nats.store import NatsStore

        if not hasattr(self, "url"):
            self.url = parse_url(f"nats://{shared_server().address}/{room_name()}")
        return [NatsStore(self.url, Config(), self.clock)]

    def write_down(self) -> None:
        """A claim there writes down what the clock did to the mail it looks at; the rest is left to a sweep."""
        self.stores[1].sweep()

    def ledger_of(self, which: int, m: Fields) -> list[str]:
        """There it keeps one line for several extensions in a row."""
        events = super().ledger_of(which, m)
        if which == 0:
            return events
        return [event for before, event in pairwise(["", *events]) if not before == event == "extended"]


@pytest.mark.parametrize(
    "events",
    [
        "stored acked acked",
        "stored requeued",
        "stored claimed acked requeued",
        "stored claimed acked expired",
        "stored claimed claimed",
        "stored claimed dead extended",
        "stored claimed gone",
    ],
)
def test_a_ledger_against_the_moves_is_seen(events: str) -> None:
    with pytest.raises(AssertionError, match="no move"):
        states_after(events.split())


def test_ledgers_by_the_moves_are_passed() -> None:
    assert may_be_read_as("stored claimed released acked".split(), State.ACKED)
    assert may_be_read_as("stored claimed retried claimed extended dead requeued".split(), State.READY)
    assert may_be_read_as("stored claimed".split(), State.DEAD)  # its lease has ended, and nobody wrote it yet
    assert not may_be_read_as("stored claimed acked".split(), State.READY)


def drive(machine: type[Stores], runs: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():  # also when all is well: who wants the same run again needs its seed
        print(f"\n{STEPS} steps {runs} times, POSTROOM_MODEL_SEED={SEED}", flush=True)
    run_state_machine_as_test(
        seed(SEED)(machine),
        settings=settings(
            max_examples=runs,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_both_stores_do_what_the_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    drive(Stores, max(1, RUNS // 20), capsys)


@pytest.mark.long
def test_both_stores_do_what_the_model_says_many_times(capsys: pytest.CaptureFixture[str]) -> None:
    drive(Stores, RUNS, capsys)


@pytest.mark.slow
def test_a_store_of_files_does_what_the_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    drive(StoresAndFiles, max(1, RUNS // 50), capsys)


@pytest.mark.long
def test_a_store_of_files_does_what_the_model_says_many_times(capsys: pytest.CaptureFixture[str]) -> None:
    drive(StoresAndFiles, max(1, RUNS * 2 // 5), capsys)


@pytest.mark.slow
def test_a_room_on_nats_does_what_the_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    drive(StoresOnNats, max(1, RUNS // 80), capsys)


@pytest.mark.long
def test_a_room_on_nats_does_what_the_model_says_many_times(capsys: pytest.CaptureFixture[str]) -> None:
    drive(StoresOnNats, max(1, RUNS * 3 // 5), capsys)
