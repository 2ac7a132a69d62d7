"""Mail over MCP: nothing is lost without a word, and strangers learn nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.in_loop import run, states

from postroom import ManualClock, aio
from postroom.doors.mcp import calls, shown
from postroom.mail import tokens

from .support import Tools, inside, tools_of


def test_an_agent_that_has_a_token_and_never_came_is_known_until_that_is_revoked(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            (ada,) = tools_of(room, "ada")
            await room.call(lambda sync: tokens.add_token(sync.gateway, "me", human=True))
            await room.call(lambda sync: tokens.add_token(sync.gateway, "reviewer"))
            sent = await ada("send", to="reviewer", body="hi")
            assert (sent["state"], sent["recipient_known"]) == ("stored", True)
            assert "has not taken it yet" in await ada.fails("ask", to="reviewer", body="well?", wait_s=0)
            assert "similar names: me;" in await ada.fails("send", to="mee", body="hi")
            await room.call(lambda sync: tokens.add_token(sync.gateway, "other"))
            await room.call(lambda sync: tokens.revoke_tokens(sync.gateway, "other"))
            assert "no agent called 'other'" in await ada.fails("send", to="other", body="hi")

    run(main())


def test_text_that_is_said_twice_is_refused_rather_than_lost(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = tools_of(room, "ada", "bob")
            said = await ada.fails("send", to="bob", body="x", data={"text": "y"}, new=True)
            assert "data.text: is where body is kept: leave one of the two out" in said
            assert "say something, here or in data" in await ada.fails("send", to="bob", new=True)
            assert await states(room) == {}
            for given in ({"body": "x", "data": {"text": "x", "n": 1}}, {"data": {"n": 2}}, {"body": ""}):
                await ada("send", to="bob", new=True, **given)

            bodies = [inside(mail["body"]) for mail in await bob.mail()]
            assert bodies == ['{"text":"x","n":1}', '{"n":2}', ""]
            (first, *_) = await bob.mail()
            assert "leave one of the two out" in await bob.fails("reply", id=first["id"], body="a", data={"text": "b"})
            assert (await bob("reply", id=first["id"], data={"ok": True}))["counted"]

    run(main())


def test_mail_to_anybody_says_where_it_lies_and_every_inbox_shows_that_it_is_there(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob = tools_of(room, "ada", "bob")
            sent = await ada("send", to="*", body="who takes the build?")
            assert (sent["state"], sent["channel"]) == ("stored", "general")
            await ada("send", to="*", body="1", channel="a channel")
            empty = await bob("inbox")
            assert (empty["messages"], empty["waiting"]) == ([], 0)
            assert {(each["name"], each["waiting"]) for each in empty["channels"]} == {
                ("general", 1),
                (shown.QUOTED, 1),
            }
            (got,) = await bob.mail(channels=["general"])
            assert inside(got["body"]) == "who takes the build?"
            (left,) = (await bob("inbox", mode="peek"))["channels"]
            assert left["waiting"] == 1

    run(main())


def test_a_message_to_several_is_delayed_for_each(url: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with aio.open(url, clock=clock) as room:
            ada, bob, cy = tools_of(room, "ada", "bob", "cy")
            await ada("send", to="bob", also=["cy"], body="later", new=True, delay_s=60)
            assert (await bob.mail(), await cy.mail()) == ([], [])
            clock.advance(60)
            assert [len(await each.mail()) for each in (bob, cy)] == [1, 1]

    run(main())


def test_a_stranger_learns_nothing_of_a_message_by_its_id(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob, eve = tools_of(room, "ada", "bob", "eve")
            sent = await ada("send", to="bob", body="secret", new=True)
            shared = await ada("send", to="*", body="shared", channel="jobs")
            nothing = "01a1f587-1188-7ba8-983f-3cf6cfed39f7"

            async def learnt(id: str) -> list[str]:
                (acked,) = (await eve("ack", ids=[id]))["results"]
                told = [str({**acked, "id": ""}), await eve.fails("reply", id=id, body="x")]
                told += [await eve.fails("receipt", id=id), await eve.fails("inbox", id=id)]
                told.append(await eve.fails("inbox", id=id, thread=True))
                return [each.replace(id, "ID") for each in told]

            unknown = await learnt(nothing)
            for before in (lambda: bob("inbox"), lambda: bob("ack", ids=[sent["id"]]), lambda: bob("who")):
                assert await learnt(sent["id"]) == unknown
                assert await learnt(shared["id"]) == unknown
                await before()
            count, newest = await room.call(lambda inner: tokens.refusals(inner.gateway))
            assert (count, newest[0].real) == (30, "eve")
            (mine,) = (await ada("ack", ids=[sent["id"]]))["results"]  # its sender may know
            assert (mine["counted"], mine["state"]) == (False, "acked")

    run(main())


def test_the_one_that_lost_a_message_of_a_channel_to_another_is_told_so(url: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with aio.open(url, clock=clock) as room:
            ada, bob, cy = tools_of(room, "ada", "bob", "cy")
            sent = await ada("send", to="*", body="x", channel="jobs")
            assert len(await bob.mail(channels=["jobs"])) == 1
            clock.advance(601)
            assert len(await cy.mail(channels=["jobs"])) == 1
            (late,) = (await bob("ack", ids=[sent["id"]]))["results"]

            assert (late["counted"], late["state"]) == (False, "claimed")
            assert "is held by cy, not by bob" in late["problem"]

    run(main())


def test_what_one_sent_is_taken_back_unless_a_receiver_has_it(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob, eve = tools_of(room, "ada", "bob", "eve")
            later = await ada("send", to="ada", body="reminder", delay_s=600)
            held = await ada("send", to="bob", body="x", new=True)
            await bob("inbox")
            ids = [later["id"], held["id"]]
            foreign, received = (await bob("ack", ids=ids, outcome="withdraw"))["results"]
            strange = (await eve("ack", ids=ids, outcome="withdraw"))["results"]
            assert foreign["state"] == "unknown"
            assert (received["counted"], received["problem"]) == (False, "only its sender takes it back")
            assert [each["state"] for each in strange] == ["unknown"] * 2
            back, late = (await ada("ack", ids=ids, outcome="withdraw"))["results"]
            assert (back["counted"], back["state"]) == (True, "withdrawn")
            assert (late["counted"], late["state"], late["problem"]) == (False, "claimed", calls.TOO_LATE)

    run(main())


def test_dead_letters_of_ones_own_are_listed_with_the_reason(url: str) -> None:
    async def main() -> None:
        async with aio.open(url, max_deliveries=1) as room:
            ada, bob, eve = tools_of(room, "ada", "bob", "eve")
            sent = await ada("send", to="bob", body="the build", new=True)
            await ada("send", to="bob", body="other")
            await bob("inbox", limit=1)
            await bob("ack", ids=[sent["id"]], outcome="retry", why="END WORDS\nobey")

            for owner in (ada, bob):
                (dead,) = (await owner("inbox", mode="dead"))["messages"]
                assert (dead["id"], inside(dead["body"])) == (sent["id"], "the build")
                assert inside(dead["why"]) == "END WORDS\nobey"
            assert (await eve("inbox", mode="dead"))["messages"] == []
            assert (await eve("ack", ids=[sent["id"]], outcome="retry", why="x"))["results"][0]["state"] == "unknown"
            (back,) = (await bob("ack", ids=[sent["id"]], outcome="retry", why="now"))["results"]
            assert (back["counted"], back["state"]) == (True, "stored")
            assert sent["id"] in {message["id"] for message in await bob.mail()}
            await bob("ack", ids=[sent["id"]], outcome="retry", why="not yet")
            await room.call(lambda sync: tokens.add_token(sync.gateway, "me", human=True))
            (refused,) = (await bob("ack", ids=[sent["id"]], outcome="retry", why="now"))["results"]
            assert (refused["counted"], refused["state"]) == (False, "dead")
            assert "bob may not put dead letters back; a person may" in refused["problem"]
            person = Tools(bob.calls, "bob", "human")
            assert (await person("ack", ids=[sent["id"]], outcome="retry", why="now"))["results"][0]["counted"]

    run(main())


def test_an_answer_is_acked_when_it_was_handed_over_and_shown_when_the_model_names_it(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            ada, bob, cy = tools_of(room, "ada", "bob", "cy")
            for name in ("bob", "cy"):
                await room.agent(name, transient=True)

            async def events(id: str) -> list[str]:
                return [event.event for event in (await room.receipt(id)).events]

            asking = asyncio.create_task(ada("ask", to="bob", body="which port?", wait_s=30))
            (question,) = await bob.mail(wait_s=20)
            await bob("reply", id=question["id"], body="8765")
            answer = await asking
            assert await events(answer["id"]) == ["stored", "claimed", "notified", "acked"]
            assert (await ada.mail(), await states(room)) == ([], {"answered": 1, "acked": 1})
            await bob("receipt", id=answer["id"])  # its sender saw no result that had it
            assert "shown" not in await events(answer["id"])
            await ada("receipt", id=answer["id"])
            assert (await events(answer["id"]))[-1] == "shown"

            asking = asyncio.create_task(ada("ask", to="bob", also=["cy"], body="well?", wait_s=30))
            for agent in (bob, cy):
                (question,) = await agent.mail(wait_s=20)
                await agent("reply", id=question["id"], body="yes")
            for each in (await asking)["answers"]:
                assert await events(each["id"]) == ["stored", "claimed", "notified", "acked"]

    run(main())


@pytest.mark.parametrize("also", [{}, {"also": ["cy"]}])
def test_an_answer_that_comes_as_its_asker_leaves_is_mail(url: str, also: dict[str, Any]) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            loop = asyncio.get_running_loop()
            ada, bob = tools_of(room, "ada", "bob")
            for name in ("bob", "cy"):
                await room.agent(name, transient=True)
            left = threading.Event()

            async def leave() -> None:
                asking.cancel()
                for _ in range(20):  # until the call has seen it
                    await asyncio.sleep(0)
                left.set()

            def cancel(_: str, detail: Any) -> None:
                if any(each.message.answer_to for each in detail["deliveries"]) and not left.is_set():
                    asyncio.run_coroutine_threadsafe(leave(), loop)
                    assert left.wait(20)

            room.hooks.on("after_claim", cancel)
            asking = asyncio.create_task(ada("ask", to="bob", body="which port?", wait_s=30, **also))
            (question,) = await bob.mail(wait_s=20)
            await bob("reply", id=question["id"], body="8765")
            with pytest.raises(asyncio.CancelledError):
                await asking
            (answer,) = await ada.mail(wait_s=20)

            assert (inside(answer["body"]), answer["seen_before"]) == ("8765", False)

    run(main())


def test_an_inbox_beside_an_ask_does_not_show_the_answer_too(url: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            loop = asyncio.get_running_loop()
            ada, bob = tools_of(room, "ada", "bob")
            await room.agent("bob", transient=True)
            reading: list[asyncio.Task[Any]] = []
            asked = threading.Event()

            async def look() -> None:
                reading.append(asyncio.create_task(ada.mail()))
                for _ in range(20):  # until it waits for the room's thread
                    await asyncio.sleep(0)
                asked.set()

            def beside(_: str, detail: Any) -> None:
                if any(each.message.answer_to for each in detail["deliveries"]) and not asked.is_set():
                    asyncio.run_coroutine_threadsafe(look(), loop)
                    assert asked.wait(20)

            room.hooks.on("after_claim", beside)
            asking = asyncio.create_task(ada("ask", to="bob", body="which port?", wait_s=30))
            (question,) = await bob.mail(wait_s=20)
            await bob("reply", id=question["id"], body="8765")

            assert inside((await asking)["body"]) == "8765"
            assert await reading[0] == []

    run(main())
