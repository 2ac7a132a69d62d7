"""Asking several agents at once: one step stores all questions, one waiter waits for all answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from postroom.core.message import Draft, Message
from postroom.core.states import FINISHED
from postroom.errors import AskFailed, InvalidMessage, NotNeeded, PostroomError
from postroom.stores.contract import Query, topic_message

from .gateway import Deadline, Gateway, Pause, Series
from .questions import Question, take_answers
from .received import Received

#: The words for how many answers are enough, besides a number.
ENOUGH: Final = ("all", "any")


def needed_of(enough: str | int, asked: int) -> int:
    """How many answers are enough, of so many that are asked. Raises InvalidMessage."""
    if enough == "all":
        return asked
    if enough == "any":
        return 1
    if type(enough) is not int or not 1 <= enough <= asked:
        raise InvalidMessage(
            "enough", f"must be all, any or a whole number from 1 to {asked} (so many are asked), not {enough!r}"
        )
    return enough


class Questions:
    """Questions that were stored together, and what became of each so far: the steps that wait for their answers.

    After a call of `end`, and once the steps are over, nobody waits for any of them. Where nobody takes the steps any
    more and nobody called `end`, the room is told within seconds.
    """

    def __init__(
        self,
        gateway: Gateway,
        drafts: Mapping[str, Draft],
        needed: int,
        timeout_s: float | None,
        *,
        settle: bool = True,
    ) -> None:
        self.answers: dict[str, Received] = {}  # in the order in which they came
        self.missing: dict[str, AskFailed] = {}
        self.needed = needed
        self._gateway = gateway
        self._open: dict[str, tuple[str, Question]] = {}  # id -> name, question
        questions = {name: Question(gateway, draft, timeout_s, settle=settle) for name, draft in drafts.items()}
        ids = gateway.ask_together([question.draft for question in questions.values()])
        for id, (name, question) in zip(ids, questions.items(), strict=True):
            question.stored(id)
            self._open[id] = (name, question)
        self._deadline = Deadline(gateway.clock, timeout_s)

    @property
    def enough(self) -> bool:
        """Whether enough have answered so far."""
        return len(self.answers) >= self.needed

    def steps(self) -> Series[Received]:
        """The answers, as they come, until there are enough, none is to be waited for, or the time is over."""
        try:
            yield from self._waiting()
        finally:
            self.end()

    def _waiting(self) -> Series[Received]:
        with self._gateway.listen([topic_message(id) for id in self._open]) as waiter:
            hinted, first_look = False, True
            while True:
                came = self._look(hinted, first_look)
                yield from came
                if self.enough or not self._open:
                    return
                if not came:  # else others may have come while the last ones were looked at
                    left_s = self._deadline.left_s()
                    if left_s == 0:
                        self._give_up()
                        return
                    hinted = yield Pause(waiter, left_s)
                first_look = False

    def _look(self, hinted: bool, first_look: bool) -> list[Received]:
        """Take the answers that are here, in one step, and note the questions that ended otherwise.

        Whether peers still run is looked at without a hint alone, as with one question: once a second.
        """
        stand = self._stand()
        ended = [id for id in self._open if id not in stand or stand[id].exact_state in FINISHED]
        take_answers(self._gateway, [self._open[id][1] for id in ended])
        came: list[Received] = []
        for id in ended:
            came += self._ending(id, self._open[id][1].look)
        if hinted or came:
            return came
        for id, (_, question) in tuple(self._open.items()):
            if id in stand:
                question.note_open(stand[id])
            came += self._ending(id, partial(question.look_for_peer, first_look))
        return came

    def _stand(self) -> dict[str, Message]:
        """How the open questions stand, in one read."""
        query = Query(ids=tuple(self._open), limit=len(self._open))
        return {message.id: message for message in self._gateway.open_store.find(query).messages}

    def _ending(self, id: str, look: Callable[[], Any]) -> list[Received]:
        """Look at one question: its answer, if that came, in a list. A failure goes to `missing`."""
        name, question = self._open[id]
        try:
            delivery = look()
        except AskFailed as error:
            self.missing[name] = error
        else:
            if delivery is None:
                return []
            self.answers[name] = question.received(delivery)
        answered = name in self.answers
        self._gateway.question_ends(id, abandon=not answered)
        del self._open[id]
        return [self.answers[name]] if answered else []

    def _give_up(self) -> None:
        """The time is over: each that is still open says why, as a single question would."""
        stand = self._stand()
        for id, (name, question) in self._open.items():
            self.missing[name] = question.late(stand.get(id))

    def end(self) -> None:
        """Wait no more: questions that no receiver has are withdrawn, and an answer that still comes is ordinary mail.

        Safe to call twice.
        """
        why = "enough others had answered" if self.enough else "the asker stopped waiting"
        for id, (name, _) in self._open.items():
            if name not in self.missing:
                self.missing[name] = NotNeeded(f"{name} had not answered question {id} when {why}", id)
        if self._open:
            self._gateway.question_ends(*self._open, abandon=True)
            with suppress(PostroomError):  # those that no receiver has are taken back; a room that is closed keeps them
                asker = next(iter(self._open.values()))[1].draft.from_agent
                self._gateway.store.withdraw(self._open, asker, why)
        self._open.clear()  # not before: what an interrupt keeps from being told is told later

    def __del__(self) -> None:
        try:
            if self._open:  # nothing is written here: an object may be collected in the middle of any step
                self._gateway.abandon_later(tuple(self._open))
        except AttributeError:  # it could not be made
            pass


class Answers:
    """The answers of several agents that were asked at once (`Agent.ask_many`).

    Iterating gives each answer as it comes, acked already, and ends when enough have come, when nobody is left to wait
    for, or when the time is over. A loop that ends in the middle cancels the rest. Afterwards, or instead of iterating,
    read `answers`, `missing` and `enough`: they wait until it is over. For one thread.
    """

    def __init__(self, gateway: Gateway, questions: Questions) -> None:
        self._questions = questions
        self._coming = gateway.each(questions.steps())
        self._came: list[Received] = []
        self._over = False

    @property
    def answers(self) -> dict[str, Received]:
        """The answers by the names of the agents, in the order in which they came. Waits until it is over."""
        self._wait()
        return dict(self._questions.answers)

    @property
    def missing(self) -> dict[str, AskFailed]:
        """Why each of the others gave no answer, by name. Waits until it is over.

        The errors are those of `ask`: PeerGone, Refused, NotAnswered, AskTimeout; and NotNeeded for an agent that was
        not waited for any more because enough others had answered.
        """
        self._wait()
        return dict(self._questions.missing)

    @property
    def enough(self) -> bool:
        """Whether as many answered as were asked for. Waits until it is over."""
        self._wait()
        return self._questions.enough

    def __iter__(self) -> Iterator[Received]:
        place = 0
        try:
            while place < len(self._came) or self._next():
                place += 1
                yield self._came[place - 1]
        except GeneratorExit:
            self.close()
            raise

    def _next(self) -> bool:
        """Wait for one more answer; False when there will be none."""
        if self._over:
            return False
        for answer in self._coming:
            self._came.append(answer)
            return True
        self._over = True
        return False

    def _wait(self) -> None:
        while self._next():
            pass

    def close(self) -> None:
        """Wait no more: agents that have not answered are `missing`, and their answers are ordinary mail. Safe to call twice."""
        self._over = True
        self._coming.close()
        self._questions.end()  # where no step was ever taken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        came, missing = len(self._questions.answers), len(self._questions.missing)
        return f"<Answers: {came} came, {missing} missing, {self._questions.needed} needed>"
