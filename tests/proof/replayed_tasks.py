"""Traces of a task (spec/task.pml), by the code of the board: every writing of a cell is a step, and any may be the last.

A worker is an agent with a board of its own, in the name of a real process that does nothing but live. Its calls
(`Book.take_next`, `Book.look_over`, `Book.mend`, `HeldTask.done`, `blocked`, `release` and `extend`, `Board.abort` and
`reopen`) are stopped before each access to the store that another step is about (stepped_calls.py). After each step the
cells are compared: state, token, owner or late owner, whether the claim has lapsed, the entry in the index, the note;
and whether the lead has its message.

Not compared: the owner of a task that is at rest, which the cell keeps and the model forgets; messages but those of
`done`; what `add` and `remove` do. `Board.claim` is replayed without the looks that it makes before and after it takes
the next task: a look is a call of its own here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroom.board.board import Board
from postroom.board.held_task import HeldTask
from postroom.board.ready_index import ReadyIndex
from postroom.board.records import CLAIMS, Book, Claim
from postroom.board.task import CLAIMED, PREFIX, READY, encoded
from postroom.stores.contract import Query

from .replaying import Replay, Told
from .stepped_calls import OTHER, Actor, onlooker

#: More than the seconds in which the deaths of a trace are seen.
LEASE_S = 5.0

INDEX_READ, INDEX_WRITE, TASK_READ, TASK_WRITE = "index read", "index write", "task read", "task write"
NOTE_READ, NOTE_WRITE, NOTE_DELETE, PUT = "note read", "note write", "note delete", "put"
STATES = {"finished": "done"}
NOBODY, GONE = 8, 9


def classify(method: str, name: str, value: Any) -> str:
    if method == "put":
        return PUT
    for prefix, cell in (("board-ready/", "index"), (PREFIX, "task"), (CLAIMS, "note")):
        if name.startswith(prefix):
            return NOTE_DELETE if cell == "note" and method == "write" and value is None else f"{cell} {method}"
    return OTHER


class LookedOver(Board):
    """A board that has been looked over: the look before most of its calls is a step of its own in a trace."""

    def _look(self) -> None:
        self._gateway.check_open()


class Worker(Actor):
    """One worker, until it is killed."""

    def __init__(self, replay: TaskReplay, agent: str, process: str) -> None:
        super().__init__(replay, process, classify)
        self.agent = agent
        self.board = LookedOver(self.gateway)
        self.book = self.board._book
        self.claim = Claim(agent, process, LEASE_S)
        self.held: HeldTask | None = None

    @property
    def task(self) -> HeldTask:
        assert self.held is not None, "it holds no task"
        return self.held


class TaskReplay(Replay):
    """One trace of task.pml, on a board of its own: what it leaves is removed, and the next trace finds none."""

    def begin(self) -> None:
        self.id = f"task of {self.name}"
        self.lead = f"{self.name}-lead"
        self.workers: dict[int, Worker] = {}
        self.lives: dict[int, int] = {}
        self.killed: list[Worker] = []
        self.onlooker = onlooker(self)
        self.book = Book(self.onlooker.gateway)
        Board(self.onlooker.gateway).add(self.id, lead=self.lead)
        self.book.mend()

    def close(self) -> None:
        for actor in (*self.workers.values(), *self.killed, self.onlooker):
            actor.close()
        for cell in self.store.cell_scan("board"):
            self.store.cell_write(cell.name, None)

    def worker(self, number: int) -> Worker:
        if number not in self.workers:
            life = self.lives.setdefault(number, 0)
            self.workers[number] = Worker(self, f"{self.name}-{number}-{life}", self.process(f"worker {number}"))
        return self.workers[number]

    def step(self, line: str, *, last: bool) -> None:
        step = Told.read(line)
        if step.what in ("lapse", "crash"):
            getattr(self, step.what)(step)
        else:
            getattr(self, step.what)(step, self.worker(step.who))
        self.compare(step, last=last)

    def compare(self, step: Told, *, last: bool) -> None:
        token, owner, last_owner, note, told = step.facts
        found = self.book.read(self.id)
        assert found is not None, "the task is gone"
        value = found.value
        state = step.after(0)
        assert value["state"] == STATES.get(state, state), f"the task is {value['state']}"
        assert value["token"] == token, f"its token is {value['token']}"
        if state == CLAIMED:
            self.compare_agent("owner", owner, value["owner"])
        if state == READY:
            self.compare_agent("late owner", last_owner, value.get("last_owner"))
        lapse = self.book.lapse(value)
        assert (lapse is not None) == (step.after(1) == "1"), f"its lapse is {lapse}"
        entries = [id for bucket in ReadyIndex(self.store, self.clock).buckets() for id in bucket.entries.values()]
        assert entries == ([self.id] if step.after(2) == "1" else []), f"the index has {entries}"
        cell = self.store.cell_read(CLAIMS + encoded(self.id))
        noted = 0 if cell is None else cell.value["token"]
        assert noted == note, f"the note is of token {noted}"
        if last or step.what == "follow":
            messages = self.store.find(Query(to_agent=self.lead, type="done", limit=9)).messages
            assert len(messages) == told, f"the lead has {len(messages)} messages"

    def compare_agent(self, what: str, number: int, agent: str | None) -> None:
        named = {worker.agent for worker in self.workers.values()}
        if number == GONE:
            same = agent is not None and agent not in named
        else:
            same = agent == (None if number == NOBODY else self.workers[number].agent)
        assert same, f"its {what} is {agent}"

    # The steps

    def search(self, step: Told, worker: Worker) -> None:
        worker.begin(lambda: worker.book.take_next(worker.claim))
        worker.go(INDEX_READ)
        assert worker.is_in_call, "nothing was found in the index"

    def take(self, step: Told, worker: Worker) -> None:
        worker.reach(TASK_WRITE, TASK_READ)

    def write_note(self, step: Told, worker: Worker) -> None:
        if step.said[0] != "idle":  # in the middle of settling
            worker.go(NOTE_WRITE)
            return
        result = worker.finish(NOTE_WRITE)
        if worker.held is None:
            worker.held = HeldTask(worker.book, result, LEASE_S, worker.process)
        else:
            assert result is True, "it could not be claimed back"

    def adopt(self, step: Told, worker: Worker) -> None:
        worker.go(TASK_READ, NOTE_WRITE)

    def take_out(self, step: Told, worker: Worker) -> None:
        result = worker.finish(INDEX_READ, INDEX_WRITE)
        assert result is None, f"the claim gave {result}"

    def ask(self, step: Told, worker: Worker) -> None:
        if not worker.is_in_call:
            task = worker.task
            calls: dict[str, Callable[[], bool]] = {
                "finished": task.done, "blocked": lambda: task.blocked("it is stuck"), "ready": task.release,
            }  # fmt: skip
            worker.begin(calls[step.said[0]])
        worker.reach(NOTE_READ)

    def report(self, step: Told, worker: Worker) -> None:
        if step.done:
            worker.reach(TASK_WRITE, TASK_READ)
        else:
            self.lose(worker, worker.finish(TASK_READ))

    def lose(self, worker: Worker, result: bool) -> None:
        assert result is False, "it counted, though another has it"
        worker.held = None

    def extend(self, step: Told, worker: Worker) -> None:
        worker.begin(worker.task.extend)
        result = worker.finish(TASK_READ, TASK_WRITE, NOTE_WRITE)
        if step.done:
            assert result is True, "it was not extended"
        else:
            self.lose(worker, result)

    def take_back(self, step: Told, worker: Worker) -> None:
        if not worker.is_in_call:
            worker.begin(worker.task.extend)
        worker.reach(TASK_WRITE, TASK_READ)

    def see(self, step: Told, worker: Worker) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "aborted": lambda: worker.board.abort(self.id),
            "ready": lambda: worker.board.reopen(self.id),
            "idle": lambda: worker.book.look_over(now=True),
        }
        worker.begin(calls[step.said[0]])
        worker.reach(NOTE_READ, TASK_READ)

    def act(self, step: Told, worker: Worker) -> None:
        if step.done:
            worker.reach(TASK_WRITE, TASK_READ)
        else:
            result = worker.finish(TASK_READ, INDEX_READ)
            assert not result, "it counted"

    def pick_up(self, step: Told, worker: Worker) -> None:
        worker.go(TASK_READ)

    def follow(self, step: Told, worker: Worker) -> None:
        worker.go(INDEX_READ, INDEX_WRITE, PUT)

    def forget(self, step: Told, worker: Worker) -> None:
        result = worker.finish(NOTE_DELETE, INDEX_READ)
        assert result is not False, "it did not count"
        if worker.held is not None and worker.held.settled is not None:
            worker.held = None

    def mend_index(self, step: Told, worker: Worker) -> None:
        worker.begin(worker.book.mend)
        worker.go(INDEX_READ, INDEX_WRITE, TASK_READ)
        worker.end()  # and comes no further

    def mend_note(self, step: Told, worker: Worker) -> None:
        worker.begin(worker.book.mend)
        worker.finish(INDEX_READ, INDEX_WRITE, TASK_READ, NOTE_READ, NOTE_WRITE)

    def crash(self, step: Told) -> None:
        worker = self.workers.pop(step.who, None)
        if worker is not None:
            worker.end()
            self.killed.append(worker)
        self.lives[step.who] = self.lives.get(step.who, 0) + 1
        self.kill(f"worker {step.who}")

    def lapse(self, step: Told) -> None:
        self.clock.advance(LEASE_S)
        self.book.index.note_mending(self.clock.steady_ns())  # or a look would mend, as it does once a minute
