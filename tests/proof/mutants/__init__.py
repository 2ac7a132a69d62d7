"""Mutants: faults that are put into the product one at a time, to see which layer of the tests finds each, and how fast.

A mutant is a small replacement in one file, named by what is wrong then. It is made in a copy of the sources, never in
the checkout. `python -m tests.proof.mutants` (`make mutants`) tries all of them; tests/proof/test_mutants.py sees that
none has lost its place in the code.

To add one, write down the text as it is, which must stand once in its file, the text as it would be wrong, and a
sentence. A mutant that no layer finds is either no fault (then it does not belong here), or a test is missing.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A fault: the file under src/postroom, what is wrong, the text that is replaced, and by what."""

    file: str
    name: str
    right: str
    wrong: str

    @property
    def title(self) -> str:
        return f"{self.file}: {self.name}"


_TABLES = (
    Mutant(
        "stores/tables/steps.py", "an answer takes from a rate",
        "            if row.draft.answer_to is None:\n                gates.take(channel, group)\n", "            gates.take(channel, group)\n",
    ),
    Mutant(
        "stores/tables/steps.py", "the fence is forgotten",
        "row is not None and row.token == ticket.token and row.state", "row is not None and row.state",
    ),
    Mutant(
        "stores/tables/steps.py", "a claim makes no new token",
        "    row.token += 1\n    row.deliveries += 1\n", "    row.deliveries += 1\n",
    ),
    Mutant(
        "stores/tables/steps.py", "a retry keeps the token",
        "        row.token += 1\n        row.error = detail\n", "        row.error = detail\n",
    ),
    Mutant(
        "stores/tables/steps.py", "a message that is put back keeps its token",
        "    row.token += 1\n    row.deliveries, row.error", "    row.deliveries, row.error",
    ),
    Mutant(
        "stores/tables/steps.py", "a message is delivered once too often",
        "    if row.deliveries >= most:", "    if row.deliveries > most:",
    ),
    Mutant(
        "stores/tables/steps.py", "what is due now is not due yet",
        "room.timers and room.timers[0][0] <= now_ms:", "room.timers and room.timers[0][0] < now_ms:",
    ),
    Mutant(
        "stores/tables/steps.py", "a dead owner keeps its claim",
        "        if room.process_alive(process) is False:\n            done", "        if room.process_alive(process) is None:\n            done",
    ),
    Mutant(
        "stores/tables/steps.py", "a dead asker's answer is kept for it",
        "            for key in sorted(room.waits.get(process, ())):\n                stop_waiting(room, room.rows[key], ASKER_GONE)\n", "",
    ),
    Mutant(
        "stores/tables/steps.py", "the end of a lease makes a new token, and a late word does not count",
        "    owner = row.owner\n    event =", "    owner = row.owner\n    row.token += 1\n    event =",
    ),
    Mutant(
        "stores/tables/steps.py", "the newest is delivered first",
        "(heads := [box[0] for box in boxes if box])", "(heads := [box[-1] for box in boxes if box])",
    ),
    Mutant(
        "stores/tables/steps.py", "what is more urgent waits behind another channel",
        "        _, key = min(heads)", "        _, key = heads[0]",
    ),
    Mutant(
        "stores/tables/steps.py", "a repeated key stores its message again",
        "    if known:\n        return [room.rows", "    if known and draft.publish:\n        return [room.rows",
    ),
    Mutant(
        "stores/tables/steps.py", "a heartbeat shortens a longer lease",
        "until_ms = max(row.wake_ms or 0, later_ms(room.now_ms(), lease_s))", "until_ms = later_ms(room.now_ms(), lease_s)",
    ),
    Mutant(
        "stores/tables/steps.py", "what goes back unseen counts as delivered",
        "        row.deliveries -= 1\n", "",
    ),
    Mutant(
        "stores/tables/tables.py", "leases count by the wall clock",
        "return self.base_ns + self.clock.steady_ns()", "return self.clock.wall_ms() * 1_000_000",
    ),
    Mutant(
        "stores/tables/tables.py", "an answer is not held for its asker",
        "            row.state = State.AWAITED\n", "",
    ),
    Mutant(
        "stores/tables/tables.py", "a send rings nobody",
        '        self.write(row, "stored", draft.from_agent, None)\n        self.ring_mail(row)\n',
        '        self.write(row, "stored", draft.from_agent, None)\n',
    ),
    Mutant(
        "stores/tables/tables.py", "a message that is ready again rings nobody",
        "        if state is State.READY:\n            self.ring_mail(row)\n        return event", "        return event",
    ),
    Mutant(
        "stores/tables/tables.py", "a cell that was deleted begins with the same version again",
        "        self.last_version += 1\n", '        self.last_version = self.cells.get(name, (0, ""))[0] + 1\n',
    ),
    Mutant(
        "stores/tables/store.py", "the version of a cell is ignored",
        "if expect not in (contract.ANY, version):", "if expect not in (contract.ANY, version, expect):",
    ),
    Mutant(
        "stores/tables/store.py", "a stale receiver's answer is stored",
        "            state, ids = None, []\n            if row is not None:\n                ids = steps.put(room, puts)  # before",
        "            state, ids = None, steps.put(room, puts)\n            if row is not None:\n                # before",
    ),
    Mutant(
        "stores/memory/room.py", "what a step that failed had stored stays",
        "            rows.pop(key, None)\n", "",
    ),
    Mutant(
        "stores/memory/room.py", "a hint reaches one listener of several",
        "for known in tuple(self.waiters.get(topic, ())):\n            ring(known)",
        "for known in tuple(self.waiters.get(topic, ()))[:1]:\n            ring(known)",
    ),
    Mutant(
        "stores/memory/store.py", "a hint for one is lost with a waiter that leaves",
        "            for topic in self.alone_for:\n                self._room.ring_one(topic)\n", "",
    ),
    Mutant(
        "stores/cells.py", "an update overwrites what it has not seen",
        "store.cell_write(name, after, expect=version)", "store.cell_write(name, after)",
    ),
    Mutant(
        "stores/tables/tables.py", "a message comes before its turn",
        "return self._line_of(row) in self.ordered if row.draft.order_key is not None else False", "return False",
    ),
    Mutant(
        "stores/tables/tables.py", "the end of a message does not let the next of its key pass",
        "        if was_first and state in FINISHED:\n            self._let_the_next_pass(row)\n", "",
    ),
    Mutant(
        "stores/tables/tables.py", "the end of any message of a key lets the first pass",
        "if was_first and state in FINISHED:", "if state in FINISHED:",
    ),
    Mutant(
        "stores/tables/steps.py", "a claimed message can be withdrawn",
        "row.draft.from_agent == agent and row.state in WITHDRAWABLE", "row.draft.from_agent == agent",
    ),
)  # fmt: skip

_SQLITE = (
    Mutant(
        "stores/sqlite/putting.py", "a message comes before its turn",
        "if state is State.READY and self.is_behind(draft, to_agent):", "if state is State.BLOCKED:",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "an ack alone lets the next of its key wait for ever",
        "state = 1 AND implied = 1 AND order_key IS NULL", "state = 1 AND implied = 1",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "a claimed message can be withdrawn",
        "WHERE key = ?1 AND from_agent = ?2 AND state IN (0, 7, 9)", "WHERE key = ?1 AND from_agent = ?2 AND state IN (0, 1, 7, 9)",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "the fence is forgotten",
        "ledger = ledger || {told} || ?5\nWHERE key = ?1 AND token = ?2 AND state IN (0, 1)",
        "ledger = ledger || {told} || ?5\nWHERE key = ?1 AND ?2 IS NOT NULL AND state IN (0, 1)",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "a heartbeat needs no valid token",
        "wake_at = max(wake_at, ?3) WHERE key = ?1 AND token = ?2", "wake_at = max(wake_at, ?3) WHERE key = ?1 AND ?2 IS NOT NULL",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "a heartbeat shortens a longer lease",
        "SET wake_at = max(wake_at, ?3) WHERE", "SET wake_at = ?3 WHERE",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "a retry keeps the token",
        "UPDATE {mail} SET state = ?2, token = token + 1,", "UPDATE {mail} SET state = ?2,",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "what goes back unseen counts as delivered",
        "wake_at = expires, delivery_count = delivery_count - 1,", "wake_at = expires,",
    ),
    Mutant(
        "stores/sqlite/rows.py", "leases count by the wall clock",
        "    return moment.now + max(1, round(lease_s * 1000))", "    return moment.wall_ms + max(1, round(lease_s * 1000))",
    ),
    Mutant(
        "stores/sqlite/transactions.py", "the ring comes before the commit",
        "        file.commit()\n"
        "        # only where something changed\n"
        "        if file.numbers.here.last != self._first or moment.one_each or len(moment.everyone) > 1:\n"
        "            self._steps.ring(moment)\n",
        "        if file.numbers.here.last != self._first or moment.one_each or len(moment.everyone) > 1:\n"
        "            self._steps.ring(moment)\n"
        "        file.commit()\n",
    ),
    Mutant(
        "stores/sqlite/transactions.py", "a step rings nobody",
        "            self._steps.ring(moment)\n", "            pass\n",
    ),
    Mutant(
        "stores/sqlite/transactions.py", "a step that failed is committed",
        "            file.roll_back()\n", "            file.commit()\n",
    ),
    Mutant(
        "stores/sqlite/putting.py", "a plain send rings nobody",
        "State.READY, draft.to_agent, waiter)\n        steps.ring(moment)\n", "State.READY, draft.to_agent, waiter)\n",
    ),
    Mutant(
        "stores/sqlite/store.py", "the version of a cell is ignored",
        "if expect not in (ANY, rows[0][1] if rows else 0):", "if expect not in (ANY, expect):",
    ),
    Mutant(
        "stores/sqlite/settling.py", "an answer does not find its waiting asker",
        "{ticket.id: rows[0][5]})", "{ticket.id: None})",
    ),
    Mutant(
        "stores/sqlite/settling.py", "the last delivery is followed by another",
        "        elif count >= most:", "        elif count > most:",
    ),
    Mutant(
        "stores/sqlite/putting.py", "a publication reaches one subscriber of several",
        "for (agent,) in agents]", "for (agent,) in agents[:1]]",
    ),
    Mutant(
        "stores/sqlite/housekeeping.py", "a dead owner keeps its claim",
        "if is_alive(name) is False]", "if is_alive(name) is None]",
    ),
    Mutant(
        "stores/sqlite/housekeeping.py", "a dead asker's answer is kept for it",
        "            self._end_wait(key, state, to_agent, moment)\n", "            pass\n",
    ),
    Mutant(
        "stores/sqlite/housekeeping.py", "the dead are looked for once",
        "self.next_roll_call_ns = now_ns + _ROLL_CALL_NS", "self.next_roll_call_ns = now_ns + _ROLL_CALL_NS * 10**9",
    ),
    Mutant(
        "stores/sqlite/housekeeping.py", "what is deleted stays in the figures",
        "        self.figures.count_out(keys, stays=False)\n", "",
    ),
    Mutant(
        "stores/sqlite/store.py", "an ended message with a note counts twice",
        "            self._upkeep.figures.count_out([key], stays=True)\n            return", "            return",
    ),
    Mutant(
        "stores/sqlite/figures.py", "what is claimed or delayed counts as waiting",
        "box[State.READY] = left[name] - box.total()", "box[State.READY] = left[name]",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "a rate that lets more pass keeps its messages waiting",
        "CAST(value AS REAL) > ?3 AND", "CAST(value AS REAL) > 0 AND",
    ),
    Mutant(
        "stores/sqlite/file.py", "a checkpoint does not wait for the disk",
        "'FULL' if self._waits_for_disk else 'NORMAL'", "'FULL' if self._waits_for_disk else 'OFF'",
    ),
    Mutant(
        "stores/sqlite/file.py", "full sync waits for the disk no more than the default",
        "if mine.log_to_sync is not None and not mine.unsynced:", "if False:",
    ),
    Mutant(
        "stores/sqlite/file.py", "after a claim nothing waits for the disk",
        "        yield\n        self._mine.unsynced = False\n", "        yield\n",
    ),
    Mutant(
        "stores/sqlite/wal.py", "a sync that failed is made up for by the next one",
        "                self._failed = True\n", "                raise\n",
    ),
    Mutant(
        "stores/sqlite/file.py", "a commit that failed is told as done",
        "        except RoomError:\n            self.roll_back()\n            raise\n", "        except RoomError:\n            self.roll_back()\n",
    ),
    Mutant(
        "stores/sqlite/putting.py", "what is put in one step is committed piece by piece",
        '            crashpoints.reached("sqlite.inserted")\n        return ids\n',
        '            crashpoints.reached("sqlite.inserted")\n            self._file.commit()\n            self._file.begin()\n        return ids\n',
    ),
    Mutant(
        "stores/sqlite/layout.py", "the write-ahead log is a journal",
        "PRAGMA journal_mode = WAL", "PRAGMA journal_mode = DELETE",
    ),
    Mutant(
        "stores/bells/bells.py", "a hint for one is lost with a waiter that leaves",
        "            self._bells.pass_on(self._topics)\n", "            pass\n",
    ),
    Mutant(
        "stores/bells/bells.py", "a hint for one goes to a waiter that is dead, and to no other",
        "        return self.sockets.ring(slot)\n", "        self.sockets.ring(slot)\n        return True\n",
    ),
    Mutant(
        "stores/bells/bells.py", "a message for any taker rings nobody",
        "everyone == _FEED_ALONE and not one_each and nobody_follows(flags)", "everyone == _FEED_ALONE and nobody_follows(flags)",
    ),
)  # fmt: skip

_OTHER_STORES = (
    Mutant(
        "stores/files/store.py", "what a dead process had begun is not ended",
        "        if self._log.mark() != self._log.size():\n            self._commits.recover(room)\n", "",
    ),
    Mutant(
        "stores/files/store.py", "a message for any taker rings nobody",
        "            bells.ring(rings.everyone, rings.one_each)\n", "            bells.ring(rings.everyone)\n",
    ),
    Mutant(
        "stores/files/commit.py", "a line that was torn is not cut off",
        "        self._log.cut_off()\n", "",
    ),
    Mutant(
        "stores/files/log.py", "a line that could not be written stays",
        "            os.ftruncate(self._file, start)\n            raise", "            raise",
    ),
    Mutant(
        "stores/files/store.py", "what could not be synced is told as undone",
        "it was done, but may not survive a power cut", "nothing was changed",
    ),
    Mutant(
        "stores/nats/entries.py", "a claimed message can be withdrawn",
        "kept.entry.from_agent != agent or kept.entry.judged(moment.room_ms) not in WITHDRAWABLE", "kept.entry.from_agent != agent",
    ),
    Mutant(
        "stores/nats/entries.py", "the fence is forgotten",
        "kept is not None and kept.token == token and kept.state", "kept is not None and kept.state",
    ),
    Mutant(
        "stores/nats/room.py", "an answer that gets an entry of its own stays in that of its question",
        "        return [own, self.write_of(entries.with_answer(kept, None), kept.seq)]\n", "        return [own]\n",
    ),
    Mutant(
        "stores/nats/room.py", "an answer is taken whatever its question's entry has become",
        "            return [self.write_of(entries.with_answer(kept, entry), kept.seq)]\n",
        "            return [self.write_of(entries.with_answer(kept, entry), kept.seq)._replace(expect=None)]\n",
    ),
    Mutant(
        "stores/nats/entries.py", "a change of a question forgets which sequences its answer has",
        '{**sequences, "answer": _silently(self.answer)}', "sequences",
    ),
    Mutant(
        "stores/nats/entries.py", "an older asker is answered in the entry of its question",
        "if id is None or not (question.asks and question.waiter", "if id is None or not (question.waiter",
    ),
    Mutant(
        "stores/nats/entries.py", "a note on a held answer makes it forget who waits for it",
        "(entry.state == State.AWAITED and state != State.AWAITED) or", "entry.state == State.AWAITED or",
    ),
    Mutant(
        "stores/nats/housekeeping.py", "a question is put away without its answer",
        "entries.put_away(kept), 0)._replace(expect=None) for kept in _with_answers(kepts)]",
        "entries.put_away(kept), 0)._replace(expect=None) for kept in kepts]",
    ),
    Mutant(
        "stores/nats/claims.py", "another agent takes an answer by its question",
        "answer.state is not State.AWAITED or answer.entry.to_agent != want.agent", "answer.state is not State.AWAITED",
    ),
    Mutant(
        "stores/nats/tables.py", "the answer of an asker that is gone waits for the next sweep",
        "        return ended + [row for row in rows if row.kept.host is not None and row.gone]\n", "        return ended\n",
    ),
    Mutant(
        "stores/nats/entries.py", "a claim makes no new token",
        "state=State.CLAIMED, token=OWN, deliveries=", "state=State.CLAIMED, deliveries=",
    ),
    Mutant(
        "stores/nats/cells.py", "the version of a cell is ignored",
        "expected: int | None = None if expect == ANY else expect", "expected: int | None = None",
    ),
    Mutant(
        "stores/nats/cells.py", "a cell that is there is made once more",
        "            if found is not None and found.data:\n                return None\n            expected", "            expected",
    ),
    Mutant(
        "stores/nats/entries.py", "a retry keeps the token",
        "state=state, wake_ms=wake_ms, token=OWN, error=detail)", "state=state, wake_ms=wake_ms, error=detail)",
    ),
    Mutant(
        "stores/nats/connection.py", "a reply that does not come is taken for success",
        "                self.link.hand_over(self._give_up, call)\n            raise NoReply(sent=True)\n",
        "                self.link.hand_over(self._give_up, call)\n            return b'{\"seq\":1}'\n",
    ),
    Mutant(
        "stores/nats/connection.py", "what was on its way when a connection broke counts as not sent",
        "# they cannot come any more\n            _fail(reply, True)", "# they cannot come any more\n            _fail(reply, False)",
    ),
    Mutant(
        "stores/nats/wire.py", "after a lost reply nobody looks back",
        "unsure=lost.sent, is_send=is_send", "unsure=False, is_send=is_send",
    ),
    Mutant(
        "stores/nats/wire.py", "several entries in one step expect nothing",
        '["NATS/1.0", *self._headers(write)]',
        '["NATS/1.0", *self._headers(write._replace(expect=None) if batch else write)]',
    ),
    Mutant(
        "stores/nats/wire.py", "what a lagging copy lacks is not asked of the leader",
        "                if first is None:\n                    break\n", "                break\n",
    ),
    Mutant(
        "stores/nats/claims.py", "a receiver that finds nothing never looks at the leader",
        "not room.follower.look(patterns, SAFETY_LOOK_S)", "not room.follower.look(patterns, UNTIL_LOST)",
    ),
    Mutant(
        "stores/nats/claims.py", "a heartbeat needs no token",
        "            elif counts(kept, ticket.token):\n", "            elif kept is not None:\n",
    ),
    Mutant(
        "stores/nats/claims.py", "what another changes after it was chosen is claimed all the same",
        "        yield _Picked(best, ended, moment)\n",
        "        rows = tables.rows\n        best = [rows.get(each.kept.entry.id, each) for each in best]\n        yield _Picked(best, ended, moment)\n",
    ),
)  # fmt: skip

_MAIL = (
    Mutant(
        "mail/leases.py", "a heartbeat comes when the lease is over",
        "return now_ns - self.leased_ns >= self.lease_ns // 6", "return now_ns - self.leased_ns >= self.lease_ns * 2",
    ),
    Mutant(
        "mail/leases.py", "a lease that was lost counts as extended",
        "self._beats_ns.pop(kept.ticket, None)", "self._beats_ns[kept.ticket] = now_ns",
    ),
    Mutant(
        "mail/receiving.py", "what a loop had not come to stays claimed",
        "        while self._waiting:\n            Received(", "        while False:\n            Received(",
    ),
    Mutant(
        "mail/receiving.py", "a loop works on what another has taken meanwhile",
        "        return not self._gateway.store.heartbeat([delivery.ticket], self.terms.lease_s)", "        return True",
    ),
    Mutant(
        "mail/received.py", "an ack counts before it is written",
        "        settled = self._gateway.settle(\n", "        self.settled = True\n        settled = self._gateway.settle(\n",
    ),
    Mutant(
        "mail/gateway.py", "a message is let go before its end is written",
        "        settled = self.store.settle(ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next)\n"
        "        self._held.pop(ticket, None)\n",
        "        self._held.pop(ticket, None)\n"
        "        settled = self.store.settle(ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next)\n",
    ),
    Mutant(
        "mail/gateway.py", "a room that closes leaves its questions waiting",
        "        for id in tuple(self._questions):\n            with suppress(PostroomError):\n                self.store.abandon(id)\n", "",
    ),
    Mutant(
        "mail/gateway.py", "a room that closes keeps what it held",
        "        for ticket in tuple(self._held):\n            with suppress", "        for ticket in ():\n            with suppress",
    ),
    Mutant(
        "mail/questions.py", "an asker that gave up is still waited for",
        "abandon=not answered)", "abandon=False)",
    ),
    Mutant(
        "mail/questions.py", "a peer's last answer is not looked for",
        "        delivery = self.look()\n", "        delivery = None\n",
    ),
    Mutant(
        "mail/questions.py", "an asker is not told that its peer is gone",
        "        return running is False and (self._peer_ran or self._timeout_s is None)", "        return False",
    ),
    Mutant(
        "mail/answers.py", "those that are not needed any more are still waited for",
        "self._gateway.question_ends(*self._open, abandon=True)", "self._gateway.question_ends(*self._open, abandon=False)",
    ),
    Mutant(
        "mail/answers.py", "of several, one that is gone is waited for until the end",
        "        if hinted or came:\n            return came\n", "        if came is not None:\n            return came\n",
    ),
    Mutant(
        "mail/answers.py", "what came while the last answers were looked at is not taken",
        "                if not came:  #", "                if True:  #",
    ),
    Mutant(
        "mail/presence.py", "the good-bye is lost",
        '        others = [p for p in value["processes"] if p != gateway.process]\n', '        others = list(value["processes"])\n',
    ),
    Mutant(
        "mail/waiting.py", "a receiver does not look again after it has armed",
        "                self._arm()\n            else:\n                yield Pause(", "                self._arm()\n            if True:\n                yield Pause(",
    ),
    Mutant(
        "mail/serving.py", "a server that was told to stop takes one more",
        "claim_next = None if self._told_to_stop() else self._inbox.want", "claim_next = self._inbox.want",
    ),
)  # fmt: skip

_SCHEDULES = (
    Mutant(
        "stores/tables/store.py", "messages are stored with a cell whatever its version",
        '            if room.cells.get(name, (0, ""))[0] != expect:', "            if name not in room.cells:",
    ),
    Mutant(
        "stores/sqlite/store.py", "messages are stored with a cell whatever its version is there",
        "            if not rows or rows[0][1] != expect:", "            if not rows:",
    ),
    Mutant(
        "stores/nats/putting.py", "messages are stored with a cell whatever its version is on the servers",
        "Write(cell_subject(name), data, expect)]", "Write(cell_subject(name), data)]",
    ),
    Mutant(
        "mail/ticker.py", "a tick is sent, and its schedule is moved on in a second step",
        "        gateway.put_with_cell(drafts, cell.name, firing.value, cell.version)",
        "        gateway.put(drafts, limited=False)\n        self._store.cell_write(cell.name, firing.value, cell.version)",
    ),
    Mutant(
        "mail/ticker.py", "a schedule is moved on, and its tick is sent in a second step",
        "        gateway.put_with_cell(drafts, cell.name, firing.value, cell.version)",
        "        if self._store.cell_write(cell.name, firing.value, cell.version) is not None:\n"
        "            gateway.put(drafts, limited=False)",
    ),
    Mutant(
        "mail/ticker.py", "no process looks for the schedules of others",
        "            if self._gateway.store.cell_scan(SCHEDULES) and", "            if False and",
    ),
    Mutant(
        "mail/schedule.py", "an hour that comes twice ticks twice",
        'value["anchor_ms"] - wall_ms <= CORRECTED_MS', 'value["anchor_ms"] - wall_ms <= 0',
    ),
    Mutant(
        "mail/schedule.py", "one message for all that was missed is none",
        '    if missed == "skip" and now_ms', '    if missed != "all" and now_ms',
    ),
    Mutant(
        "mail/schedule.py", "all that was missed is the latest of it",
        'return MAX_CAUGHT_UP if value["missed"] == "all" else 1', "return 1",
    ),
    Mutant(
        "mail/schedule.py", "what is due is counted by the wall clock",
        'return room_ms if value["cron"] is None else wall_ms', "return wall_ms",
    ),
)  # fmt: skip

_BOARD = (
    Mutant(
        "board/records.py", "a claim of a task makes no new token",
        '                "token": value["token"] + 1,\n', "",
    ),
    Mutant(
        "board/records.py", "a task is given twice",
        '        free = value["state"] == READY or self.lapse(value) is not None\n', '        free = value["state"] in (READY, CLAIMED)\n',
    ),
    Mutant(
        "board/records.py", "a task begins before what it waits for is done",
        "        return free and not self.unmet(value, self.state_of)", "        return free",
    ),
    Mutant(
        "board/records.py", "the note of a claim goes into the cell of something else",
        'self.store.cell_write(CLAIMS + encoded(value["id"]), note, expect=expect)',
        'self.store.cell_write(WAITING + encoded(value["id"]), note, expect=expect)',
    ),
    Mutant(
        "board/records.py", "a note is taken away that was written meanwhile",
        "  # a later claim keeps its own note\n            self.store.cell_write(note.name, None, expect=note.version)\n",
        "\n            self.store.cell_write(note.name, None)\n",
    ),
    Mutant(
        "board/records.py", "what a dead owner holds is not released",
        "        elif self.lapse(found.value) is not None:\n            released", "        elif False:\n            released",
    ),
    Mutant(
        "board/held_task.py", "a late owner settles without claiming back",
        'return change(value) if value["state"] == CLAIMED and self._is_mine(value) else None',
        "return change(value) if self._is_mine(value) else None",
    ),
    Mutant(
        "board/held_task.py", "the fence of a task is forgotten",
        'return value["token"] == self.token and task.holder_of(value) == self.agent',
        "return task.holder_of(value) is not None",
    ),
    Mutant(
        "board/heartbeats.py", "the heartbeat of a task is skipped",
        "            task.extend()\n", "            task.look()\n",
    ),
    Mutant(
        "board/task.py", "leases of tasks count by the wall clock",
        "            return (until_ns - clock.steady_ns()) / 1_000_000_000\n", "            pass\n",
    ),
    Mutant(
        "board/task.py", "a lease that ends now has not ended",
        "left_s is not None and left_s <= 0 else None", "left_s is not None and left_s < 0 else None",
    ),
    Mutant(
        "board/board.py", "what is done can be aborted",
        'if value["state"] not in (READY, CLAIMED, BLOCKED):', 'if value["state"] in (ABORTED,):',
    ),
)  # fmt: skip

_SESSIONS = (
    Mutant(
        "sessions/record.py", "a later failure takes the place of the first",
        'is_open = value["failure"] is None and value["ended_ms"] is None', 'is_open = value["ended_ms"] is None',
    ),
    Mutant(
        "sessions/record.py", "a member joins what is over",
        '            self._check_goes_on(value)\n            return value | {"admitted"', '            return value | {"admitted"',
    ),
    Mutant(
        "sessions/record.py", "a deadlock is written over a record that has changed",
        "self.gateway.store.cell_write(self.cell, value, expect=version) is None", "self.gateway.store.cell_write(self.cell, value) is None",
    ),
    Mutant(
        "sessions/record.py", "a dead opener is not noticed",
        'if record.over or self.gateway.store.process_alive(record.value["opener"]) is not False:', "if True:",
    ),
    Mutant(
        "sessions/deadlock.py", "a deadlock is seen past the mail",
        " or self._has_mail(before.members):", ":",
    ),
    Mutant(
        "sessions/deadlock.py", "the members are not looked at twice",
        "        if self._picture().versions != before.versions:\n            return False\n", "",
    ),
    Mutant(
        "sessions/deadlock.py", "a member that waits for a while counts as one that waits for ever",
        "    return stuck(members) and not any(member.timed for member in members)", "    return stuck(members)",
    ),
    Mutant(
        "sessions/members.py", "a member takes mail while its cell says that it is blocked",
        "            self.looking = True\n            member.unblock()\n", "            self.looking = True\n",
    ),
    Mutant(
        "sessions/members.py", "a member sends while its cell says that it is blocked",
        "            self._acting += 1\n            self.unblock()\n", "            self._acting += 1\n",
    ),
    Mutant(
        "sessions/members.py", "a member that has left is still there",
        "            self._left = True\n        strike_off(self.gateway, self.record.id, self.id)\n", "            self._left = True\n",
    ),
    Mutant(
        "sessions/session.py", "a member that fails does not fail the session",
        "                self._record.blame(self.name, error)\n", "                pass\n",
    ),
    Mutant(
        "sessions/session.py", "a session goes on without its opener",
        "                self._record.end()\n                if self._host", "                if self._host",
    ),
    Mutant(
        "sessions/mailbox.py", "a session that has failed still gives mail",
        "                    self._record.check()  # before the store: a failed session gives no mail\n", "",
    ),
)  # fmt: skip

_POOLS = (
    Mutant(
        "pools/decision_store.py", "a decision overwrites that of another coordinator",
        "self._store.cell_write(PREFIX + decision.message_id, value(), expect=version)",
        "self._store.cell_write(PREFIX + decision.message_id, value())",
    ),
    Mutant(
        "pools/queue.py", "a request that was not begun counts as tried",
        "                    request.attempts += 1  # it was not begun: that did not count\n", "                    pass\n",
    ),
    Mutant(
        "pools/queue.py", "an answer to an earlier try counts",
        "not request.done and request.attempt == attempt:", "not request.done:",
    ),
    Mutant(
        "pools/decide.py", "a chain of messages is one hop too long",
        "    if config.hop_count >= config.max_hops:", "    if config.hop_count > config.max_hops:",
    ),
)  # fmt: skip

_LIMITS = (
    Mutant(
        "stores/gates.py", "one more runs at once than is allowed",
        "self._counted(channel)[rule.by, name] >= rule.concurrent", "self._counted(channel)[rule.by, name] > rule.concurrent",
    ),
    Mutant(
        "stores/gates.py", "the burst is forgotten",
        "return (rule.burst - 1) * rule.interval_ms()", "return 0.0",
    ),
    Mutant(
        "stores/gates.py", "a burst is one too large",
        "return (rule.burst - 1) * rule.interval_ms()", "return rule.burst * rule.interval_ms()",
    ),
    Mutant(
        "stores/gates.py", "what a claim takes from a bucket is not written",
        "self._full_ms[cell] = self.taken[cell] = full_ms", "self._full_ms[cell] = full_ms",
    ),
    Mutant(
        "stores/gates.py", "several of one claim take from a bucket once",
        "self._full_ms[cell] = self.taken[cell] = full_ms", "self.taken[cell] = full_ms",
    ),
    Mutant(
        "stores/gates.py", "a bucket fills while it is full",
        "max(self._full_at(cell, rule), self._now_ms) + rule.interval_ms()", "self._full_at(cell, rule) + rule.interval_ms()",
    ),
    Mutant(
        "stores/gates.py", "two rates of a channel share a bucket",
        "/{rule.per_s:g}/{rule.burst}/{group}", "/{group}",
    ),
    Mutant(
        "stores/gates.py", "a pause keeps nothing back that is asked for by its id",
        "        if limits.paused is not None:\n            return False\n        return not any", "        return not any",
    ),
    Mutant(
        "stores/gates.py", "each order key has the limit of its sender",
        'return "" if by is None else self.sender if by == "sender" else self.order_key', 'return "" if by is None else self.sender if by == "sender" else self.sender',
    ),
    Mutant(
        "stores/gates.py", "what is taken in a claim does not count in it",
        "            self._count(self._counts[channel], group)\n", "            pass\n",
    ),
    Mutant(
        "stores/gates.py", "a late holder is kept from its message by a rate",
        "msgspec.structs.replace(rule, per_s=None)", "msgspec.structs.replace(rule, burst=1)",
    ),
    Mutant(
        "stores/gates.py", "a late holder runs beside the one that took its place",
        "ChannelLimits(tuple(msgspec.structs.replace(rule, per_s=None) for rule in self.rules))", "ChannelLimits()",
    ),
    Mutant(
        "stores/gates.py", "nobody is told when a rate lets more pass",
        "        self.opens_ms = min(self.opens_ms, free_ms)\n", "",
    ),
    Mutant(
        "stores/tables/limiting.py", "answers count",
        "            if draft.answer_to is None:\n                self._running[draft.channel][key]", "            if draft.answer_to or not draft.answer_to:\n                self._running[draft.channel][key]",
    ),
    Mutant(
        "stores/tables/limiting.py", "the end of a message wakes nobody that a limit keeps waiting",
        "            self.ring_boxes(channel)\n", "            pass\n",
    ),
    Mutant(
        "stores/tables/limiting.py", "a mailbox holds one more than it may",
        ">= limits.waiting\n", "> limits.waiting\n",
    ),
    Mutant(
        "stores/tables/limiting.py", "a mailbox is full one message too early",
        ">= limits.waiting\n", "+ 1 >= limits.waiting\n",
    ),
    Mutant(
        "stores/tables/limiting.py", "space in a full mailbox wakes no sender",
        "            self._ring(contract.topic_space(channel))\n", "            pass\n",
    ),
    Mutant(
        "stores/tables/steps.py", "a paused agent is given its mail",
        "    if want.agent in limits.agents:\n", "    if False:\n",
    ),
    Mutant(
        "stores/tables/tables.py", "a change of the limits wakes nobody",
        "        if name == contract.LIMITS:\n            self.limits.ring_boxes()\n", "",
    ),
    Mutant(
        "stores/sqlite/schema.sql", "a claim goes by limits that have changed",
        "(?7 IS NULL OR {limits_version} = ?7)", "(?7 IS NULL OR ?7 IS NOT NULL)",
    ),
    Mutant(
        "stores/sqlite/limiting.py", "a holder that has not read the limits wakes nobody",
        'self._file.execute("write_claims")', 'self._file.execute("cell_read", (LIMITS,))',
    ),
    Mutant(
        "stores/sqlite/limiting.py", "what a claim takes from a bucket is not written",
        '            self._file.execute("cell_put", (name, self._file.numbers.tick(), f"{full_ms!r}"))\n', "            pass\n",
    ),
    Mutant(
        "stores/sqlite/limiting.py", "the end of a message wakes nobody that a limit keeps waiting",
        "if limits is not None and limits.is_concurrent():", "if limits is not None and not limits.is_concurrent():",
    ),
    Mutant(
        "stores/sqlite/limiting.py", "a mailbox holds one more than it may",
        "bool(depth > limits.waiting)", "bool(depth > limits.waiting + 1)",
    ),
    Mutant(
        "stores/sqlite/limiting.py", "a late holder runs beside the one that took its place",
        "                return passing.lets_pass(channel, gates.Group(sender, order_key))", "                return True",
    ),
    Mutant(
        "stores/sqlite/limiting.py", "a paused agent is given its mail",
        "limits is not None and agent in limits.agents", "limits is not None and agent == limits.agents",
    ),
)  # fmt: skip

MUTANTS = (*_TABLES, *_SQLITE, *_OTHER_STORES, *_LIMITS, *_MAIL, *_SCHEDULES, *_BOARD, *_SESSIONS, *_POOLS)
