"""Forgetting and renaming agents: what goes, what follows, what stays, and what is refused."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.crashpoints import die_at
from postroom.errors import IdentityRefused, InvalidMessage, RoomError
from postroom.mail import forgetting, tokens
from postroom.room import Room


@pytest.fixture(params=["memory", "sqlite", "files", pytest.param("nats", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "nats":
        return f"nats://{shared_server().address}/{room_name()}"
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'room'}"


def with_bob(room: Room) -> list[str]:
    """A room that knows bob, who is not running, with mail that waits and mail that is done."""
    ada = room.agent("ada", transient=True)
    bob = room.agent("bob", transient=True)
    bob.subscribe("news")
    done = ada.send("bob", {"n": 0})
    bob.receive(5).ack()
    later = ada.send("bob", {"n": 3}, delay_s=600)
    return [done, ada.send("bob", {"n": 1}, priority=7), ada.send("bob", {"n": 2}, channel="jobs"), later]


def names(room: Room) -> list[str]:
    return [agent.name for agent in room.agents()]


def test_a_forgotten_agent_leaves_presence_subscriptions_and_tokens_and_its_mail_waits(address: str) -> None:
    with postroom.open(address) as room:
        done, *waiting = with_bob(room)
        tokens.add_token(room.gateway, "mia", human=True)
        tokens.add_token(room.gateway, "bob")

        assert forgetting.forget(room.gateway, "bob") == (True, 1, 1, 0, 3)
        assert "bob" not in names(room) and not room.store.subscriptions()
        assert [token.agent for token in tokens.tokens(room.gateway)] == ["mia"]
        assert [room.receipt(id).state for id in waiting] == ["stored"] * 3
        assert room.receipt(done).state == "acked"
        assert forgetting.forget(room.gateway, "bob", mail=True) == (False, 0, 0, 3, 0)
        assert room.receipt(done).state == "acked"


def test_the_only_person_is_not_forgotten(address: str) -> None:
    with postroom.open(address) as room:
        room.agent("mia", transient=True)
        tokens.add_token(room.gateway, "mia", human=True)
        with pytest.raises(IdentityRefused, match="only token of a person"):
            forgetting.forget(room.gateway, "mia")
        assert "mia" in names(room)


def test_presence_subscriptions_tokens_and_waiting_mail_follow_a_new_name(address: str) -> None:
    with postroom.open(address) as room:
        done, *waiting = with_bob(room)
        tokens.add_token(room.gateway, "mia", human=True)
        token = tokens.add_token(room.gateway, "bob")

        assert forgetting.rename(room.gateway, "bob", "robert") == (1, 1, 3)
        assert "bob" not in names(room) and "robert" in names(room)
        assert [(each.channel, each.agent) for each in room.store.subscriptions()] == [("news", "robert")]
        assert tokens.credential_of(room.gateway, token).agent == "robert"
        assert [room.get(id).to_agent for id in waiting] == ["robert"] * 3
        assert room.get(done).claimed_by == "bob", "what happened keeps the old name"
        assert room.get(waiting[0]).ledger[-1].detail == "bob is called robert now"
        taken = [room.agent("robert", transient=True).receive(5) for _ in range(2)]
        assert [mail.id for mail in taken] == waiting[:2]
        assert all(mail.ack() for mail in taken)


def test_an_agent_that_runs_or_holds_mail_and_names_that_are_taken_are_refused(address: str) -> None:
    with postroom.open(address) as room:
        waiting = with_bob(room)[1:]
        room.agent("cy")
        for name, words in (("ada", "agent ada already"), ("cy", "agent cy already")):
            with pytest.raises(RoomError, match=words):
                forgetting.rename(room.gateway, "bob", name)
        with pytest.raises(RoomError, match="cy is running .*; stop it first. Nothing was changed"):
            forgetting.rename(room.gateway, "cy", "cyril")
        with pytest.raises(RoomError, match="cy is running"):
            forgetting.forget(room.gateway, "cy")
        with pytest.raises(RoomError, match="knows no agent zoe"):
            forgetting.rename(room.gateway, "zoe", "zora")
        with pytest.raises(InvalidMessage, match="another name"):
            forgetting.rename(room.gateway, "bob", "bob")
        room.agent("bob", transient=True).receive(5, lease_s=600)
        with pytest.raises(RoomError, match="holds 1 claimed messages"):
            forgetting.rename(room.gateway, "bob", "robert")
        assert [room.get(id).to_agent for id in waiting] == ["bob"] * 3


def _die(address: str, point: str) -> None:
    die_at(point, 1 if point != "rename.known" else 0)
    with postroom.open(address) as room:
        forgetting.rename(room.gateway, "bob", "robert")


@pytest.mark.parametrize("point", ["rename.known", "rename.copied", "rename.deleted"])
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_rename_that_was_killed_loses_nothing_and_is_finished_by_the_next(
    kind: str, point: str, tmp_path: Path
) -> None:
    address = f"{kind}:{tmp_path / 'room'}"
    with postroom.open(address) as room:
        waiting = with_bob(room)[1:]
    child = multiprocessing.get_context("spawn").Process(target=_die, args=(address, point))
    child.start()
    child.join()
    assert child.exitcode == -9
    with postroom.open(address) as room:
        forgetting.rename(room.gateway, "bob", "robert")
        assert [room.get(id).to_agent for id in waiting] == ["robert"] * 3
        assert "bob" not in names(room)
        assert not room.store.cell_scan("room/")


def test_mail_of_one_order_key_follows_a_rename_in_its_order(address: str) -> None:
    with postroom.open(address) as room:
        ada = room.agent("ada", transient=True)
        room.agent("bob", transient=True)
        ids = [ada.send("bob", {"n": n}, order_key="pr-7") for n in range(3)]

        assert forgetting.rename(room.gateway, "bob", "robert").messages == 3
        came = []
        for _ in ids:
            message = room.agent("robert").receive(5)
            assert room.agent("robert").poll() is None
            came.append(message.id)
            message.ack()

        assert came == ids


def test_the_pause_of_an_agent_follows_it_and_ends_with_it(address: str) -> None:
    with postroom.open(address) as room:
        with_bob(room)
        room.pause(agent="bob", reason="it runs wild", by="mia")
        room.pause("jobs", by="mia")
        paused = room.limits().agents["bob"]

        forgetting.rename(room.gateway, "bob", "robert")

        assert room.limits().agents == {"robert": paused}
        assert room.agent("robert", transient=True).poll() is None
        assert forgetting.forget(room.gateway, "robert").known
        assert room.limits().agents == {}
        assert [each.channel for each in room.limits().channels] == ["jobs"]
        assert room.agent("robert", transient=True).poll() is not None


def test_a_name_that_is_only_paused_can_be_forgotten(address: str) -> None:
    with postroom.open(address) as room:
        room.pause(agent="bbo")
        assert forgetting.forget(room.gateway, "bbo").known
        assert not room.limits()
        assert not forgetting.forget(room.gateway, "bbo").known


def test_groups_and_schedules_follow_a_new_name(address: str) -> None:
    with postroom.open(address) as room:
        with_bob(room)
        room.groups.add("reviewers", ["ada", "bob", "cy"])
        room.groups.add("alone", ["bob"])
        room.groups.add("others", ["ada"])
        room.schedule("report", every_s=600, to="bob", by="ada")
        room.schedule("echo", every_s=600, to="cy", by="bob")

        forgetting.rename(room.gateway, "bob", "robert")

        assert room.groups.all() == {"alone": ["robert"], "others": ["ada"], "reviewers": ["ada", "robert", "cy"]}
        assert {(each.name, each.to, each.by) for each in room.schedules()} == {
            ("report", "robert", "ada"),
            ("echo", "cy", "robert"),
        }


def test_a_forgotten_agent_is_in_no_group(address: str) -> None:
    with postroom.open(address) as room:
        with_bob(room)
        room.groups.add("reviewers", ["ada", "bob"])
        room.groups.add("alone", ["bob"])

        forgetting.forget(room.gateway, "bob")

        assert room.groups.all() == {"reviewers": ["ada"]}
