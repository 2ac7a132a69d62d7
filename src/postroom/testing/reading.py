"""What `get`, `find`, `events`, `number_at`, `purge` and `stats` promise. None but `purge` changes anything."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from postroom.core.search_query import has_terms, parse_query
from postroom.core.states import State
from postroom.errors import InvalidMessage
from postroom.stores.contract import Query

from .workbench import NO_ID, StoreBench, together


class Reading(StoreBench):
    """Lists, the feed, figures."""

    # get

    def test_a_message_has_its_ledger_where_it_alone_is_asked_for_and_nowhere_else(self) -> None:
        id = self.send()
        delivery = self.take()
        others = [delivery.message, *self.store.find(Query()).messages, *(each.message for each in self.store.events())]

        assert self.events_of(id) == ["stored", "claimed"]
        assert not any(hasattr(message, "ledger") for message in others)

    def test_the_ledger_tells_everything_in_order(self) -> None:
        id = self.send()
        self.clock.advance(1)
        ticket = self.take().ticket
        self.clock.advance(1)
        self.store.settle(ticket, "retry", detail="not yet")
        self.clock.advance(1)
        self.take(settle=True)

        ledger = [(entry.event, entry.time_ms, entry.agent, entry.detail) for entry in self.read(id).ledger]

        now = self.clock.wall_ms()
        assert ledger == [
            ("stored", now - 3000, "ada", None),
            ("claimed", now - 2000, "bob", None),
            ("retried", now - 1000, "bob", "not yet"),
            ("claimed", now, "bob", None),
            ("acked", now, "bob", None),
        ]

    # find

    def test_without_conditions_everything_is_found_oldest_first(self) -> None:
        ids = [self.send(), self.send(None), self.send("eve", channel="a", delay_s=9)]
        self.take(settle=True)

        assert self.found() == ids
        assert self.found(order="newest") == ids[::-1]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({"to_agent": "bob"}, "ac"),
            ({"from_agent": "eve"}, "bd"),
            ({"type": "query"}, "b"),
            ({"correlation_id": "c1"}, "cd"),
            ({"correlation_id": "c1", "from_agent": "eve"}, "d"),
            ({"channels": ("x",)}, "bc"),
            ({"channels": ("x", "y")}, "bcd"),
            ({"channels": ()}, ""),
            ({"concerns": "eve"}, "bd"),
            ({"concerns": "bob", "channels": ("x",)}, "c"),
            ({"visible_to": "bob"}, "ac"),
            ({"visible_to": "bob", "channels": ("x", "y")}, "bcd"),
            ({"visible_to": "dan", "channels": ("x", "general")}, "b"),
            ({"to_agent": "nobody there"}, ""),
            ({"states": frozenset({State.READY}), "to_agent": "bob"}, "ac"),
            ({"states": frozenset({State.ACKED})}, ""),
            ({"states": frozenset()}, ""),
        ],
    )
    def test_every_condition_that_is_given_must_hold(self, query: dict[str, Any], expected: str) -> None:
        names = {
            self.send("bob", sender="ada"): "a",
            self.send(None, sender="eve", channel="x", type="query"): "b",
            self.send("bob", sender="ada", channel="x", correlation_id="c1"): "c",
            self.send(None, sender="eve", channel="y", correlation_id="c1"): "d",
        }

        assert "".join(names[id] for id in self.found(**query)) == expected
        assert self.store.count(Query(**query, limit=1)) == len(expected)

    def test_what_a_message_led_to_is_found_answers_too(self) -> None:
        first, other = self.send(), self.send()
        chain = {"chain_id": first, "hop_count": 1}
        answer = self.send("ada", sender="bob", answer_to=first, **chain)
        next_one = self.send("cy", sender="bob", **chain)
        late = self.send("bob", sender="cy", answer_to=next_one, **chain)
        last = self.send("cy", sender="bob", answer_to=late, **chain)
        self.send("cy", chain_id=other, hop_count=1)

        assert self.found(chain_id=first) == [answer, next_one, late, last]
        assert self.found(chain_id=first, order="newest") == [last, late, next_one, answer]
        assert self.found(chain_id=first, to_agent="cy") == [next_one, last]
        assert self.store.count(Query(chain_id=first, limit=1)) == 4
        assert self.found(chain_id=answer) == self.found(chain_id="no id") == self.found(chain_id=NO_ID) == []
        assert self.store.purge(Query(chain_id=first, ids=(last,))) == 1
        assert self.found(chain_id=first) == [answer, next_one, late]

    def test_an_index_of_words_finds_what_reading_finds_or_there_is_none(self) -> None:
        said = ["The build failed", "build green", "it FAILED", "a building"]
        ids = [self.send(text=[text, n]) for n, text in enumerate(said)]
        self.take(ids=(ids[0],), settle=True)

        for text in ("build", "failed -build", "build*", '"build failed"', "build 1", "nothing"):
            terms = parse_query(text).terms
            page = self.store.find_text(Query(), terms)
            read = [m for m in self.store.find(Query(order="newest")).messages if has_terms(m.payload, terms)]
            assert page is None or page.messages == read
            acked = self.store.find_text(Query(states=frozenset({State.ACKED})), terms)
            assert acked is None or [m.id for m in acked.messages] == [m.id for m in read if m.id == ids[0]]
        assert self.events_of(ids[1]) == ["stored"]

    def test_messages_are_found_by_the_time_they_were_sent(self) -> None:
        ids, times = [], []
        for _ in range(3):
            ids.append(self.send())
            times.append(self.clock.wall_ms())
            self.clock.advance(10)

        assert self.found(sent_after_ms=times[0] + 5) == ids[1:]
        assert self.found(sent_before_ms=times[2] - 5) == ids[:2]
        assert self.found(sent_after_ms=times[0] + 5, sent_before_ms=times[2] - 5) == [ids[1]]

    def test_messages_are_found_by_state(self) -> None:
        ids = [self.send() for _ in range(4)]
        self.take(ids=(ids[0],))
        self.take(ids=(ids[1],), settle=True)
        self.end("dead", ids=(ids[2],))

        for id, state in zip(ids, (State.CLAIMED, State.ACKED, State.DEAD, State.READY), strict=True):
            assert self.found(states=frozenset({state})) == [id]
            assert self.store.count(Query(states=frozenset({state}), order="claim")) == 1
        assert self.found(states=frozenset({State.CLAIMED, State.DEAD})) == [ids[0], ids[2]]

    def test_messages_are_found_by_the_agent_that_claimed_them_last(self) -> None:
        held, done, passed_on, _ = [self.send(None, channel="work") for _ in range(4)]
        self.take("bob", ids=(held,))
        self.take("bob", ids=(done,), settle=True)
        self.store.settle(self.take("bob", ids=(passed_on,)).ticket, "retry")
        self.take("eve", ids=(passed_on,))
        claimed = frozenset({State.CLAIMED})

        assert self.found(claimed_by="bob") == [held, done]
        assert self.found(claimed_by="bob", states=claimed) == [held]
        assert self.found(claimed_by="eve", states=claimed) == [passed_on]
        assert self.found(states=claimed, order="newest") == [passed_on, held]
        assert self.found(claimed_by="ada", states=claimed) == self.found(claimed_by="ada") == []
        assert self.found(claimed_by="bob", states=claimed, channels=("general",)) == []
        assert self.found(claimed_by="bob", states=claimed, order="claim") == [held]

    def test_what_an_agent_holds_is_found_among_many_claims_of_others(self) -> None:
        mine = [self.send() for _ in range(3)]
        assert self.drain() == mine
        for _ in range(30):
            self.send("eve")
        assert len(self.drain("eve")) == 30
        claimed = frozenset({State.CLAIMED})

        assert self.found(claimed_by="bob", states=claimed, order="newest", limit=3) == mine[::-1]
        page = self.store.find(Query(claimed_by="bob", states=claimed, limit=2))
        assert [message.id for message in page.messages] == mine[:2]
        rest = self.store.find(Query(claimed_by="bob", states=claimed), page.cursor)
        assert [message.id for message in rest.messages] == mine[2:]

    def test_a_claim_whose_lease_has_ended_is_not_found_as_held(self) -> None:
        id = self.send()
        self.take(lease_s=30)
        held = {"claimed_by": "bob", "states": frozenset({State.CLAIMED})}
        assert self.found(**held) == [id]

        self.clock.advance(31)

        assert self.found(**held) == []
        assert self.found(claimed_by="bob", states=frozenset({State.READY})) == [id]

    def test_claim_order_is_the_order_in_which_a_receiver_would_get_them(self) -> None:
        for number in range(12):
            self.send(text=number, priority=1 + number % 3, channel=("general", "a")[number % 2])
        self.send(delay_s=5, priority=10)
        self.send("eve", priority=10)
        self.clock.advance(6)

        peeked = self.found(visible_to="bob", states=frozenset({State.READY}), order="claim", limit=50)

        assert len(peeked) == 13
        assert peeked[:3] == self.found(visible_to="bob", states=frozenset({State.READY}), order="claim", limit=3)
        assert self.drain() == peeked

    def test_claim_order_holds_in_channels_too(self) -> None:
        for number in range(8):
            self.send(None if number % 2 else "bob", channel=("a", "general", "b")[number % 3], priority=1 + number % 2)

        peeked = self.found(visible_to="bob", channels=("a", "general"), states=frozenset({State.READY}), order="claim")

        assert self.drain(channels=("a", "general")) == peeked

    @pytest.mark.parametrize("order", ["oldest", "newest"])
    @pytest.mark.parametrize("limit", [1, 3, 10, 11])
    def test_pages_together_are_the_whole(self, order: str, limit: int) -> None:
        ids = [self.send(channel=("a", "b")[n % 2]) for n in range(20)]
        mine = ids[::2] if order == "oldest" else ids[::2][::-1]
        found: list[str] = []
        cursor = None
        for _ in range(20):
            page = self.store.find(Query(channels=("a",), order=order, limit=limit), cursor)
            assert len(page.messages) <= limit
            found += [message.id for message in page.messages]
            cursor = page.cursor
            if cursor is None:
                break

        assert found == mine
        assert cursor is None

    def test_a_page_is_not_disturbed_by_what_comes_later(self) -> None:
        ids = [self.send() for _ in range(4)]
        page = self.store.find(Query(order="newest", limit=2))
        self.send()

        assert [message.id for message in self.store.find(Query(order="newest"), page.cursor).messages] == ids[1::-1]

    # events

    def feed(self, after: int = 0, limit: int = 1000) -> tuple[list[tuple[str, str]], int]:
        """(id, event) of everything after a number, read in pages, and the last number."""
        seen: list[tuple[str, str]] = []
        while changes := self.store.events(after, limit):
            numbers = [change.number for change in changes]
            assert numbers == sorted(numbers)
            assert numbers[0] > after
            seen += [(change.message.id, change.event) for change in changes]
            after = numbers[-1]
        return seen, after

    @pytest.mark.parametrize("limit", [1, 2, 1000])
    def test_the_feed_tells_of_every_message(self, limit: int) -> None:
        ids = self.store.put([self.draft() for _ in range(5)])

        seen, _ = self.feed(limit=limit)

        assert [id for id, event in seen if event == "stored"] == ids

    def test_the_feed_is_empty_after_its_last_number(self) -> None:
        assert self.store.events() == []
        self.send()

        _, last = self.feed()

        assert self.store.events(last) == []
        assert self.store.events(last + 1000) == []

    @pytest.mark.parametrize("limit", [1, 3, 1000])
    def test_the_feed_tells_of_every_change_after_a_number(self, limit: int) -> None:
        changed = {}
        ids = [self.send(ttl_s=50, max_deliveries=1) for _ in range(8)]
        _, number = self.feed()
        for id, outcome in zip(ids, ("acked", "answered", "refused", "dead", "retry"), strict=False):
            self.end(outcome, ids=(id,))
            changed[id] = "dead" if outcome == "retry" else outcome
        self.take(ids=(ids[5],), lease_s=5)
        self.store.note(ids[6], "shown", "bob")
        self.clock.advance(51)
        self.store.sweep()
        changed.update({ids[5]: "dead", ids[6]: "expired", ids[7]: "expired"})

        seen, last = self.feed(number, limit)
        assert dict(seen) == changed  # the last of each message

        self.store.requeue(ids)
        seen, _ = self.feed(last, limit)
        assert dict(seen) == dict.fromkeys(ids[2:], "requeued")

    def test_a_change_says_when_by_whom_and_why_and_how_the_message_stands_now(self) -> None:
        id = self.send()
        ticket = self.take().ticket
        self.clock.advance(3)
        self.store.settle(ticket, "refused", detail="not mine")

        change = self.store.events()[-1]

        told = (change.event, change.time_ms, change.agent, change.detail)
        assert told == ("refused", self.clock.wall_ms(), "bob", "not mine")
        assert (change.message.id, change.message.exact_state) == (id, State.REFUSED)
        assert {each.message.exact_state for each in self.store.events()} == {State.REFUSED}

    def test_notes_and_extensions_are_changes_too(self) -> None:
        id = self.send()
        ticket = self.take().ticket
        _, number = self.feed()

        self.store.note(id, "shown", "bob")
        seen, number = self.feed(number)
        assert seen == [(id, "shown")]

        self.store.extend(ticket, 60)
        seen, _ = self.feed(number)
        assert seen == [(id, "extended")]

    @pytest.mark.parametrize("limit", [1, 7])
    def test_a_follower_misses_nothing_while_others_write(self, limit: int) -> None:
        per_writer, writers = 40, 3
        done = threading.Semaphore(0)

        def write(name: str) -> dict[str, str]:
            for number in range(per_writer):
                self.send(name, number)
                if number % 2:
                    for delivery in self.claim(name, limit=2):
                        self.ack(delivery.ticket)
            done.release()
            return {}

        def follow() -> dict[str, str]:
            last_event: dict[str, str] = {}
            after, finished = 0, 0
            while True:
                finished += done.acquire(blocking=False)
                changes = self.store.events(after, limit)
                for change in changes:
                    assert change.number >= after
                    last_event[change.message.id] = change.event
                    after = change.number
                if not changes and finished == writers:
                    return last_event

        *_, followed = together(*(partial(write, f"w{n}") for n in range(writers)), follow)

        assert followed == dict.fromkeys(self.found(limit=1000), "acked")
        assert len(followed) == per_writer * writers

    def test_a_time_can_be_used_as_a_place_in_the_feed(self) -> None:
        self.send()
        self.clock.advance(10)
        moment = self.clock.wall_ms()
        self.clock.advance(10)
        later = self.send()

        assert self.feed(self.store.number_at(moment))[0] == [(later, "stored")]
        assert len(self.feed(self.store.number_at(0))[0]) == 2
        assert self.feed(self.store.number_at(self.clock.wall_ms() + 60_000))[0] == []

    # purge

    def test_purging_deletes_what_the_query_finds(self) -> None:
        acked, dead, ready = self.send(), self.send(), self.send()
        self.take(ids=(acked,), settle=True)
        self.end("dead", ids=(dead,))

        assert self.store.purge(Query(states=frozenset({State.ACKED, State.DEAD}))) == 2

        assert self.found() == [ready]
        assert self.store.get(acked) is None
        assert self.store.requeue([dead]) == []
        assert [change.message.id for change in self.store.events()] == [ready]
        assert self.store.purge(Query(states=frozenset({State.ACKED, State.DEAD}))) == 0

    def test_purging_stops_at_the_limit(self) -> None:
        ids = [self.send() for _ in range(5)]

        assert self.store.purge(Query(limit=2)) == 2
        assert self.found() == ids[2:]

    def test_messages_are_found_and_purged_by_their_ids(self) -> None:
        ids = [self.send(), self.send(), self.send()]
        chosen = Query(ids=(ids[0], ids[2], "no such id"))

        assert [message.id for message in self.store.find(chosen).messages] == [ids[0], ids[2]]
        assert self.store.purge(chosen) == 2
        assert self.found() == [ids[1]]

    def test_the_store_tells_up_to_where_its_feed_may_have_gaps(self) -> None:
        first = self.send()
        untouched = self.store.forgotten()
        before = self.store.number_at()
        self.clock.advance(1)
        self.take(settle=True)
        acked = self.store.number_at()
        self.clock.advance(1)
        self.send()
        self.store.purge(Query(ids=(first,)))

        assert untouched == 0
        # a reader up to before the ack can no longer learn of it; one that has read further misses nothing
        assert before < self.store.forgotten() <= acked < self.store.number_at()

    def test_claimed_messages_are_never_purged(self) -> None:
        claimed, ready = self.send(), self.send()
        ticket = self.take(ids=(claimed,)).ticket

        assert self.store.purge(Query()) == 1
        assert self.store.get(ready) is None
        assert self.ack(ticket).held

    def test_what_is_sent_after_a_purge_is_new_in_order_and_in_the_feed(self) -> None:
        first, last = self.send(), self.send()
        self.take(ids=(last,), settle=True)
        number = self.store.events()[-1].number
        self.store.purge(Query())

        again = self.send()

        assert again > last > first
        assert [change.message.id for change in self.store.events(number)] == [again]

    # stats

    def test_figures_count_messages_by_public_state(self) -> None:
        ids = [self.send() for _ in range(7)]
        self.send(delay_s=60)
        self.send(ttl_s=1)
        self.take(ids=(ids[0],), lease_s=60)
        for id, outcome in zip(ids[1:], ("acked", "answered", "refused", "dead"), strict=False):
            self.end(outcome, ids=(id,))
        self.clock.advance(2)

        states = {name: count for name, count in self.store.stats().states.items() if count}

        assert states == {"stored": 3, "claimed": 1, "acked": 1, "answered": 1, "refused": 1, "dead": 1, "expired": 1}

    def test_figures_tell_what_waits_in_each_mailbox(self) -> None:
        start = self.clock.wall_ms()
        self.send("bob")
        self.clock.advance(1)
        self.send("bob")
        self.send("bob", channel="a")
        self.send(None, channel="a")
        self.send("eve")
        self.take("eve")

        boxes = {(box.to_agent, box.channel): (box.depth, box.oldest_ms) for box in self.store.stats().mailboxes}

        later = (1, start + 1000)
        assert boxes == {("bob", "general"): (2, start), ("bob", "a"): later, (None, "a"): later}

    @pytest.mark.parametrize("jump_s", [-3600, 3600])
    def test_the_time_of_the_oldest_mail_is_the_same_at_every_look(self, jump_s: float) -> None:
        sent_ms = self.clock.wall_ms()
        self.send("bob", delay_s=1)
        self.clock.advance(2)
        self.clock.jump_wall(jump_s)

        for _ in range(5):
            self.clock.advance(0.0003)
            assert [box.oldest_ms for box in self.store.stats().mailboxes] == [sent_ms]

    def test_figures_judge_mailboxes_by_the_clock_too(self) -> None:
        self.send("bob", ttl_s=5)
        self.send("eve", delay_s=5)
        self.send("dan")
        self.take("dan", lease_s=5)
        self.clock.advance(5)

        boxes = {box.to_agent: box.depth for box in self.store.stats().mailboxes}

        assert boxes == {"eve": 1, "dan": 1}

    def test_what_an_agent_did_is_counted_also_when_it_is_no_longer_kept(self) -> None:
        for _ in range(5):
            self.send("bob")
        for outcome in ("acked", "refused", "dead", "retry"):
            self.end(outcome, detail="why", delay_s=9)
        self.take("bob")

        assert self.store.work_of("bob") == (2, 2)
        assert self.store.work_of("eve") == (0, 0)
        assert self.store.purge(Query()) == 4
        assert self.store.work_of("bob") == (2, 2)

    def test_an_order_that_nobody_knows_is_refused(self) -> None:
        with pytest.raises(InvalidMessage, match="oldest, newest, claim"):
            self.store.find(Query(order="random"))

    def test_a_note_that_is_none_is_refused(self) -> None:
        id = self.send()

        with pytest.raises(InvalidMessage, match="notified, shown"):
            self.store.note(id, "acked", "bob")

        assert self.events_of(id) == ["stored"]

    def test_figures_of_an_empty_room_are_zero(self) -> None:
        stats = self.store.stats()

        assert set(stats.states.values()) <= {0}
        assert stats.mailboxes == []
