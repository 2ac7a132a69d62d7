"""Calls that wait as tasks: a result is fetched, nothing is taken before, and no other caller learns of it."""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Any

import pytest
from tests.support.in_loop import pass_time, run, states

from postroom import aio
from postroom.core.clock import ManualClock
from postroom.doors.mcp import calls, tasks
from postroom.doors.mcp.caller import Caller
from postroom.doors.mcp.calls import MailCalls
from postroom.doors.mcp.tasks import CELLS, KEEP_MS, KEEP_TOLD_MS, MAX_TASKS, NoSuchTask, Tasks, TaskStanding
from postroom.errors import RoomBusy
from postroom.mail.tokens import add_token

from .support import Tools, inside


class Client:
    """A client that knows tasks: calls of one agent through one server."""

    def __init__(self, room: aio.Room, agent: str, lane: str = "agent", tasks: Tasks | None = None) -> None:
        self.tasks = tasks or Tasks(MailCalls(room))
        self.caller = Caller(agent, lane)

    async def _progress(self, *_: Any) -> None:
        pass

    async def __call__(self, name: str, **arguments: Any) -> Any:
        return await self.tasks.call(self.caller, name, arguments, self._progress)

    async def begin(self, name: str, **arguments: Any) -> str:
        """The id of a task that a call began."""
        begun = await self(name, **arguments)
        assert isinstance(begun, TaskStanding) and begun.status == "working", begun
        return str(begun.task["taskId"])

    async def get(self, id: str) -> TaskStanding:
        return await self.tasks.get(self.caller, id)

    async def cancel(self, id: str) -> None:
        await self.tasks.cancel(self.caller, id)


def plain(room: aio.Room, name: str) -> Tools:
    return Tools(MailCalls(room), name)


async def bodies(client: Tools, **arguments: Any) -> list[str]:
    return [inside(mail["body"]) for mail in await client.mail(**arguments)]


def test_a_question_is_a_task_until_it_is_answered(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            id = await ada.begin("ask", to="bob", body="ready?", wait_s=50)
            working = (await ada.get(id)).task
            assert (working["statusMessage"], working["ttlMs"]) == ("waiting for the answer of bob", 50_000 + KEEP_MS)
            (question,) = await bob.mail()
            assert (await ada.get(id)).status == "working"
            await bob("reply", id=question["id"], body="yes")

            first, second = await ada.get(id), await ada.get(id)
            assert first.result is not None and second.result is not None
            assert (first.status, inside(first.result["body"])) == ("completed", "yes")
            assert second.task == first.task and inside(second.result["body"]) == "yes"
            assert first.task["ttlMs"] < 50_000 + KEEP_TOLD_MS  # it was told
            assert await states(room) == {"answered": 1, "acked": 1}
            assert await plain(room, "ada").mail() == []

    run(main())


def test_mail_is_taken_by_the_look_that_tells_of_it_and_told_in_full_as_often_as_it_is_fetched(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bob, ada = Client(room, "bob"), plain(room, "ada")
            id = await bob.begin("inbox", wait_s=60)
            assert (await bob.get(id)).status == "working"
            await ada("send", to="bob", body="x" * 200)
            assert await states(room) == {"stored": 1}  # nobody has fetched it yet

            found = [(await bob.get(id)).result for _ in range(2)]
            assert [inside(each["messages"][0]["body"]) for each in found if each] == ["x" * 200] * 2
            assert [each["messages"][0]["seen_before"] for each in found if each] == [False, False]
            assert await states(room) == {"claimed": 1}
            assert (await room.get(found[0]["messages"][0]["id"])).delivery_count == 1  # type: ignore[index]

    run(main())


def test_what_need_not_wait_is_answered_at_once(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bob, ada = Client(room, "bob"), plain(room, "ada")
            await ada("send", to="bob", body="1", new=True)

            assert len((await bob("inbox", wait_s=60))["messages"]) == 1
            assert (await bob("inbox"))["messages"][0]["seen_before"]
            assert (await bob("who"))["you"] == "bob"
            with pytest.raises(calls.ToolFailed, match="was ever seen"):
                await bob("ask", to="nobody-here", body="?")
            with pytest.raises(calls.ToolFailed, match="wait_s: Expected `float` >= 0"):
                await bob("inbox", wait_s=-1)
            assert await room.call(lambda inner: inner.store.cell_read(CELLS + "bob")) is None

    run(main())


def test_a_peeking_task_takes_nothing(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bob, ada = Client(room, "bob"), plain(room, "ada")
            id = await bob.begin("inbox", mode="peek", wait_s=60, channels=["news"])
            await ada("send", to="*", body="1", channel="news")
            found = (await bob.get(id)).result

            assert found is not None and [inside(each["body"]) for each in found["messages"]] == ["1"]
            assert await states(room) == {"stored": 1}

    run(main())


def test_a_question_that_nobody_answers_in_time_fails_as_the_call_does_and_a_later_answer_is_mail(
    url: str, clock: ManualClock
) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            id = await ada.begin("ask", to="bob", body="ready?", wait_s=5)
            (question,) = await bob.mail()
            clock.advance(6)
            late = await ada.get(id)
            await bob("reply", id=question["id"], body="yes")

            assert late.status == "completed"
            assert late.failure == (
                f"no answer to question {question['id']} within 5 s: bob has taken it but not answered yet"
                f" (question {question['id']})"
            )
            assert (await ada.get(id)).failure == late.failure
            assert await bodies(plain(room, "ada")) == ["yes"]

    run(main())


def test_an_answer_that_nobody_fetches_becomes_mail(url: str, clock: ManualClock) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            id = await ada.begin("ask", to="bob", body="ready?", wait_s=5)
            (question,) = await bob.mail()
            await bob("reply", id=question["id"], body="yes")
            assert await plain(room, "ada").mail() == []  # it is kept for the task

            reading = asyncio.create_task(plain(room, "ada").mail(wait_s=3000))
            await pass_time(room, clock, reading, step_s=30)
            assert [inside(mail["body"]) for mail in await reading] == ["yes"]
            with pytest.raises(NoSuchTask):
                await ada.get(id)

    run(main())


def test_an_answer_that_could_not_be_told_when_its_task_ended_becomes_mail(
    url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object) -> None:
        raise RoomBusy("the room is busy")

    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            id = await ada.begin("ask", to="bob", body="ready?", wait_s=600)
            (question,) = await bob.mail()
            await bob("reply", id=question["id"], body="yes")
            with monkeypatch.context() as patched:
                patched.setattr(ada.tasks._kinds["ask"], "result", busy)
                with pytest.raises(RoomBusy):
                    await ada.get(id)
            assert await plain(room, "ada").mail() == []

            reading = asyncio.create_task(plain(room, "ada").mail(wait_s=3000))
            await pass_time(room, clock, reading, step_s=30)
            assert [inside(mail["body"]) for mail in await reading] == ["yes"]

    run(main())


def test_a_cancelled_question_is_withdrawn_and_where_it_was_taken_the_answer_is_mail(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            free = await ada.begin("ask", to="bob", body="1")
            await ada.cancel(free)
            assert await bob.mail() == []
            taken = await ada.begin("ask", to="bob", body="2")
            (question,) = await bob.mail()
            await ada.cancel(taken)
            await bob("reply", id=question["id"], body="two")
            answered = await ada.begin("ask", to="bob", body="3")
            (question,) = await bob.mail()
            await bob("reply", id=question["id"], body="three")
            await ada.cancel(answered)

            assert [(await ada.get(id)).status for id in (free, taken, answered)] == ["cancelled"] * 3
            assert await bodies(plain(room, "ada")) == ["two", "three"]
            await ada.cancel(free)  # which is over: nothing happens

    run(main())


def test_a_task_that_is_cancelled_while_mail_comes_loses_nothing_and_shows_nothing_twice(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bob, ada = Client(room, "bob"), plain(room, "ada")
            shown: list[str] = []
            for number in range(25):
                id = await bob.begin("inbox", wait_s=60)
                steps = [ada("send", to="bob", body=str(number), new=True), bob.get(id), bob.cancel(id), bob.get(id)]
                if number % 2:
                    steps.insert(0, steps.pop())
                await asyncio.gather(*steps)
                stood = await bob.get(id)
                assert stood.status == ("cancelled" if stood.result is None else "completed")
                found = stood.result or await bob("inbox", wait_s=1)  # it is there for the next one
                shown += [inside(mail["body"]) for mail in found["messages"]]
                await plain(room, "bob")("ack", ids=[mail["id"] for mail in found["messages"]])
            assert shown == [str(number) for number in range(25)]

    run(main())


@pytest.mark.parametrize("count", [30, pytest.param(1500, marks=pytest.mark.long)])
def test_two_servers_of_an_agent_and_cancellations_at_any_moment_lose_no_message_and_no_answer(
    url: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if count > 100:
        monkeypatch.setattr(tasks, "KEEP_TOLD_MS", 15_000)
        monkeypatch.setattr(tasks, "MAX_TASKS", 10_000)
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)

    rate: dict[str, Any] = {"pair_rate_per_s": 1e6, "pair_rate_burst": 1_000_000}

    async def main() -> None:
        async with aio.open(url, **rate) as one, aio.open(url, **rate) as two, aio.open(url, **rate) as others:
            servers = [Client(one, "bob"), Client(two, "bob")]
            eve = plain(others, "eve")
            await others.agent("eve", transient=True)
            fresh: list[str] = []  # what was shown as new

            async def note(found: dict[str, Any] | None) -> None:
                mails = [] if found is None else found.get("messages", [found])
                fresh.extend(inside(mail["body"]) for mail in mails if not mail["seen_before"])
                ids = [mail["id"] for mail in mails if "messages" in (found or {})]
                if ids:
                    await servers[0]("ack", ids=ids)

            for number in range(count):
                begun = chance.choice(servers)
                steps: list[Any]
                if number % 3:
                    id = await begun.begin("inbox", wait_s=60)
                    steps = [eve("send", to="bob", body=f"mail {number}", new=True)]
                else:
                    id = await begun.begin("ask", to="eve", body=f"? {number}", wait_s=60)
                    (question,) = await eve.mail()
                    steps = [eve("reply", id=question["id"], body=f"answer {number}")]
                steps += [chance.choice(servers).get(id) for _ in range(3)]
                steps += [chance.choice(servers).cancel(id) for _ in range(chance.randrange(2))]
                chance.shuffle(steps)
                await asyncio.gather(*steps)
                stood = [await server.get(id) for server in servers]
                assert stood[0].status == stood[1].status != ("working" if number % 3 == 0 else "")
                if stood[0].status == "working":  # the mail came after the last look
                    stood[0] = await begun.get(id)
                await note(stood[0].result)
                await note(await servers[0].tasks.call(servers[0].caller, "inbox", {}, servers[0]._progress))  # type: ignore[arg-type]

            said = [f"mail {number}" if number % 3 else f"answer {number}" for number in range(count)]
            assert sorted(fresh) == sorted(said)  # each once as new; another server may show it again, marked

    run(main())


def test_another_agent_and_another_lane_learn_nothing_of_a_task_nor_does_a_thousand_guesses(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            id = await ada.begin("ask", to="bob", body="ready?")
            (question,) = await bob.mail()
            others = [
                Client(room, "bob"),
                Client(room, "eve", tasks=ada.tasks),
                Client(room, "ada", "human", ada.tasks),
            ]
            guesses = [id[:-1], id + "x", "", question["id"], f"ada/{id}", "../" + id, "\0", "x" * 100_000]
            guesses += [secrets.token_urlsafe(24) for _ in range(1000)]
            said: set[str] = set()
            for client, guess in [*((other, id) for other in others), *((ada, guess) for guess in guesses)]:
                for step in (client.get, client.cancel) if len(said) < 2 else (client.get,):
                    with pytest.raises(NoSuchTask) as error:
                        await step(guess)
                    said.add(str(error.value))

            assert len(said) == 1
            assert await others[1].tasks.own(others[1].caller, [id]) == []
            assert (await ada.get(id)).status == "working"

    run(main())


def test_a_task_goes_on_in_the_next_server(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as keeper:
            async with aio.open(url) as room:
                before = Client(room, "ada")
                await room.agent("bob", transient=True)
                asked = [await before.begin("ask", to="bob", body=str(n)) for n in range(3)]
                mail = await before.begin("inbox", wait_s=60)
                bob = plain(room, "bob")
                questions = await bob.mail()
                await bob("reply", id=questions[0]["id"], body="a0")
                assert (await before.get(asked[0])).status == "completed"
                await bob("reply", id=questions[1]["id"], body="a1")
            after = Client(keeper, "ada")
            stood = [await after.get(id) for id in asked]
            assert [each.status for each in stood] == ["completed", "completed", "working"]
            assert [inside(each.result["body"]) for each in stood if each.result] == ["a0", "a1"]
            await plain(keeper, "bob")("reply", id=questions[2]["id"], body="a2")
            last = (await after.get(asked[2])).result
            assert last is not None and inside(last["body"]) == "a2"
            assert (await after.get(mail)).status == "working"
            await plain(keeper, "eve")("send", to="ada", body="hi")
            assert len(((await after.get(mail)).result or {})["messages"]) == 1

    run(main())


def test_an_agent_has_a_number_of_tasks_and_calls_beyond_wait_as_ever(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MAX_TASKS", 3)

    async def main() -> None:
        async with aio.open(url) as room:
            bob = Client(room, "bob")
            begun = await asyncio.gather(*(bob("inbox", wait_s=0.05) for _ in range(8)))
            assert sum(isinstance(each, TaskStanding) for each in begun) == 3
            assert [each["messages"] for each in begun if not isinstance(each, TaskStanding)] == [[]] * 5
            assert isinstance(await Client(room, "ada")("inbox", wait_s=0.05), TaskStanding)

    run(main())
    assert MAX_TASKS == 100


def test_a_question_to_an_agent_that_dies_ends(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada = Client(room, "ada")
            async with aio.open(url) as other:
                await other.agent("bob")
                id = await ada.begin("ask", to="bob", body="ready?")
            stood = await ada.get(id)
            assert stood.status == "completed"
            assert stood.failure is not None and stood.failure.startswith("bob stopped without answering")

    run(main())


def test_several_are_asked_by_one_task(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, (bob, cy) = Client(room, "ada"), (plain(room, name) for name in ("bob", "cy"))
            for name in ("bob", "cy", "dee"):
                await room.agent(name, transient=True)
            some = await ada.begin("ask", to="bob", also=["cy", "dee"], body="?", enough="2")
            (question,) = await bob.mail()
            await bob("reply", id=question["id"], body="b")
            assert (await ada.get(some)).status == "working"
            (question,) = await cy.mail()
            await cy("ack", ids=[question["id"]], outcome="refuse", why="busy")
            assert (await ada.get(some)).status == "working"
            (question,) = await plain(room, "dee").mail()
            await plain(room, "dee")("reply", id=question["id"], body="d")
            found = (await ada.get(some)).result
            assert found is not None and found["enough"]
            assert [inside(answer["body"]) for answer in found["answers"]] == ["b", "d"]
            assert [each["name"] for each in found["missing"]] == ["cy"]

            first = await ada.begin("ask", to="bob", also=["cy"], body="?", enough="any")
            (question,) = await bob.mail()
            await bob("reply", id=question["id"], body="b")
            found = (await ada.get(first)).result
            assert found is not None and found["enough"] and len(found["answers"]) == 1
            assert "enough others had" in found["missing"][0]["why"]
            assert await cy.mail() == []  # nobody needs it any more: it was taken back

    run(main())


def test_a_question_to_a_person_is_a_task_that_tells_what_the_call_would(url: str, clock: ManualClock) -> None:
    deploy = {"to": "mia", "body": "deploy?", "options": ["yes", "no"]}

    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            mia = await room.call(lambda inner: add_token(inner.gateway, "mia", human=True))
            ada = Client(room, "ada")
            answered = await ada.begin("ask", **deploy, wait_s=600)
            late = await ada.begin("ask", **deploy, deadline_s=7200, wait_s=60)
            over = await ada.begin("ask", **deploy, default="no", deadline_s=30, wait_s=600)
            withdrawn = await ada.begin("ask", **deploy, wait_s=600)
            first, *_ = await room.people.open("mia")
            await room.people.answer(first.id, "yes", token=mia)
            await ada.cancel(withdrawn)
            assert len(await room.people.open("mia")) == 2
            clock.advance(61)

            found = [(await ada.get(id)).result or {} for id in (answered, late, over)]
            assert [each["state"] for each in found] == ["answered", "open", "default"]
            assert (found[0]["from"], found[0]["body"], found[2]["body"]) == ("mia", "yes", "no")
            assert (await ada.get(withdrawn)).status == "cancelled"
            (second,) = await room.people.open("mia")
            await room.people.answer(second.id, "yes", token=mia)
            assert (await ada.get(late)).result == found[1]
            assert await bodies(plain(room, "ada")) == ["yes"]  # as after a call that waited in vain

    run(main())


def test_a_claim_of_the_board_is_a_task_until_one_is_ready(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            bob, ada = Client(room, "bob"), plain(room, "ada")
            id = await bob.begin("board", action="claim", wait_s=60)
            await ada("board", action="add", id="t1", text="build")
            assert (await room.board.get("t1")).state == "ready"  # nobody has fetched it yet
            found = [(await bob.get(id)).result for _ in range(2)]
            assert [each["tasks"][0]["owner"] for each in found if each] == ["bob", "bob"]

            await ada("board", action="add", id="t3", text="test", after=["t1"])
            named, cancelled = [await bob.begin("board", action="claim", id="t3", wait_s=60) for _ in range(2)]
            await bob.cancel(cancelled)
            await bob("board", action="done", id="t1", text="ok")
            assert ((await bob.get(named)).result or {})["tasks"][0]["id"] == "t3"
            assert (await bob.get(cancelled)).status == "cancelled"
            assert (await bob("board", action="claim", id="t3", wait_s=60))["tasks"][0]["owner"] == "bob"  # its own
            late = await bob.begin("board", action="claim", wait_s=0.01)
            await asyncio.sleep(0.02)
            assert (await bob.get(late)).result == {"tasks": []}
            with pytest.raises(calls.ToolFailed, match="no task"):
                await bob("board", action="claim", id="t9", wait_s=60)

    run(main())


def test_a_call_whose_client_leaves_before_it_has_the_handle_leaves_no_task(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            for name, arguments in (("ask", {"to": "bob", "body": "?"}), ("inbox", {"wait_s": 60})):
                calling = asyncio.create_task(ada(name, **arguments))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                while ada.tasks._running:
                    await asyncio.gather(*ada.tasks._running, return_exceptions=True)
            cell = await room.call(lambda inner: inner.store.cell_read(CELLS + "ada"))
            assert [each["status"] for each in (cell.value if cell else {}).values()] == ["cancelled", "cancelled"]
            assert await bob.mail() == []

    run(main())


def test_mail_that_a_client_left_behind_unseen_goes_back_uncounted(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, max_deliveries=1) as room:
            bob, ada = Client(room, "bob"), plain(room, "ada")
            await ada("send", to="bob", body="1", new=True)
            calling = asyncio.create_task(bob("inbox", wait_s=60))

            def leave(*_: Any) -> None:
                room._worker.loop.call_soon_threadsafe(calling.cancel)

            room.hooks.on("after_claim", leave)
            await asyncio.gather(calling, return_exceptions=True)
            while bob.tasks._running:
                await asyncio.gather(*bob.tasks._running, return_exceptions=True)
            assert calling.cancelled()
            assert await states(room) == {"stored": 1}

    run(main())


def test_a_watched_task_is_told_of_when_it_ends_however_it_ends(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = Client(room, "ada"), plain(room, "bob")
            await room.agent("bob", transient=True)
            mail, question, late = (
                await ada.begin("inbox", wait_s=60),
                await ada.begin("ask", to="bob", body="?", wait_s=60),
                await ada.begin("inbox", wait_s=0.05, channels=["quiet"]),
            )
            armed = asyncio.Semaphore(0)

            async def ends(id: str) -> str:
                (stood,) = [each async for each in ada.tasks.watch(ada.caller, id, armed.release)]
                return stood.status if stood.failure is None else stood.failure

            watching = [asyncio.create_task(ends(id)) for id in (mail, question, late)]
            for _ in watching:
                await armed.acquire()
            assert await watching[2] == "completed"
            await bob("send", to="ada", body="hi")
            assert await watching[0] == "completed"
            await ada.cancel(question)
            assert await watching[1] == "cancelled"
            assert await ends(mail) == "completed"  # told at once

    run(main())


def test_tasks_whose_time_is_over_are_forgotten(url: str, clock: ManualClock) -> None:
    async def main() -> None:
        async with aio.open(url, clock=clock) as room:
            bob = Client(room, "bob")
            id = await bob.begin("inbox", wait_s=1)
            lost = await bob.begin("inbox", wait_s=1)
            clock.advance(KEEP_MS / 1000)
            assert (await bob.get(id)).status == "completed"
            clock.advance(1.1)
            with pytest.raises(NoSuchTask):
                await bob.get(lost)
            assert (await bob.get(id)).status == "completed"
            clock.advance(KEEP_TOLD_MS / 1000)
            with pytest.raises(NoSuchTask):
                await bob.get(id)
            await room.call(tasks.forget_old)
            assert await room.call(lambda inner: inner.store.cell_read(CELLS + "bob")) is None

    run(main())
