"""Tokens: what they prove, that nobody can read them later, and that a loop of agents ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.core.clock import ManualClock
from postroom.errors import IdentityRefused, InvalidMessage, RateLimited, TooManyHops
from postroom.mail import tokens
from postroom.mail.presence import held_by, held_cause
from postroom.room import Room, open_room
from postroom.stores.contract import Want


def test_a_token_proves_its_agent_and_nothing_else(room: Room) -> None:
    human = tokens.add_token(room.gateway, "me", human=True)
    token = tokens.add_token(room.gateway, "ada")

    assert tokens.credential_of(room.gateway, token)[:2] == ("ada", False)
    assert tokens.credential_of(room.gateway, token).lane == "agent"
    assert tokens.credential_of(room.gateway, f" {human}\n").lane == "human"
    assert tokens.prove(room.gateway, "ada", token, "test") == tokens.credential_of(room.gateway, token)
    with pytest.raises(IdentityRefused, match="the token belongs to ada, which cannot act as bob"):
        tokens.prove(room.gateway, "bob", token, "test")


def test_every_changed_token_is_refused(room: Room) -> None:
    token = tokens.add_token(room.gateway, "ada", human=True)
    other = tokens.add_token(room.gateway, "bob")
    changed = [token[:i] + ("x" if token[i] != "x" else "y") + token[i + 1 :] for i in range(len(token))]
    mixed = (
        other[: other.rindex("_")] + token[token.rindex("_") :] if "_" not in token[17:] else other[:17] + token[17:]
    )
    broken = [
        "",
        "_",
        "prt",
        "prt__",
        "prt_" + "0" * 12 + "_",
        token + "x",
        token.upper(),
        "prt_ü_x",
        "prt_a/../b_x",
        mixed,
    ]

    for wrong in [*changed, *broken]:
        with pytest.raises(IdentityRefused):
            tokens.credential_of(room.gateway, wrong)


def test_the_room_keeps_no_token(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room:
        token = tokens.add_token(room.gateway, "ada", human=True)

    kept = {path: path.read_bytes() for path in (tmp_path / "room").rglob("*") if path.is_file()}
    secret = token[len("prt_") + 13 :].encode()
    assert b"ada" in kept[tmp_path / "room" / "messages.db"]
    assert [path for path, content in kept.items() if secret in content] == []
    assert (tmp_path / "room" / "messages.db").stat().st_mode & 0o777 == 0o600


def test_a_revoked_token_is_refused_and_the_room_still_asks_for_one(room: Room) -> None:
    tokens.add_token(room.gateway, "me", human=True)
    first, second = tokens.add_token(room.gateway, "ada"), tokens.add_token(room.gateway, "ada")
    bobs = tokens.add_token(room.gateway, "bob")

    assert tokens.revoke_tokens(room.gateway, "ada") == 2
    assert tokens.revoke_tokens(room.gateway, "ada") == 0
    for token in (first, second):
        with pytest.raises(IdentityRefused, match="the token of ada was revoked"):
            tokens.credential_of(room.gateway, token)
    assert tokens.credential_of(room.gateway, bobs).agent == "bob"
    assert tokens.revoke_tokens(room.gateway, "bob") == 1
    assert tokens.has_tokens(room.gateway)
    assert {each.agent for each in tokens.tokens(room.gateway) if each.revoked_at is None} == {"me"}


def test_without_tokens_every_name_is_believed(room: Room) -> None:
    assert not tokens.has_tokens(room.gateway)
    assert tokens.prove(room.gateway, "anybody", None, "test") is None
    assert tokens.refusals(room.gateway) == (0, [])


def test_claims_to_be_somebody_else_are_recorded_and_bounded(room: Room) -> None:
    token = tokens.add_token(room.gateway, "ada", human=True)
    for number in range(tokens.MAX_REFUSALS + 5):
        with pytest.raises(IdentityRefused):
            tokens.prove(room.gateway, f"bob-{number}", token, "test")
    with pytest.raises(IdentityRefused, match="this room has tokens: set \\$POSTROOM_TOKEN"):
        tokens.prove(room.gateway, "eve", None, "door")

    count, newest = tokens.refusals(room.gateway)

    assert count == tokens.MAX_REFUSALS + 6
    assert len(newest) == tokens.MAX_REFUSALS
    assert newest[-1][1:] == ("door", "eve", None)
    assert newest[-2][1:] == ("test", f"bob-{tokens.MAX_REFUSALS + 4}", "ada")


def test_a_name_that_is_none_gets_no_token(room: Room) -> None:
    with pytest.raises(InvalidMessage, match="name: must not be empty"):
        tokens.add_token(room.gateway, "")
    assert not tokens.has_tokens(room.gateway)


def test_the_token_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("prt_x\n", encoding="ascii")

    assert tokens.token_in({}) is None
    assert tokens.token_in({"POSTROOM_TOKEN": ""}) is None
    assert tokens.token_in({"POSTROOM_TOKEN_FILE": str(file)}) == "prt_x"
    assert tokens.token_in({"POSTROOM_TOKEN": "a", "POSTROOM_TOKEN_FILE": str(file)}) == "a"
    with pytest.raises(IdentityRefused, match="cannot be read"):
        tokens.token_in({"POSTROOM_TOKEN_FILE": str(tmp_path / "none")})


def test_a_variable_that_names_a_pipe_or_a_device_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(IdentityRefused, match="is not a regular file"):
            tokens.token_in({"POSTROOM_TOKEN_FILE": path})


# Who administers


def test_the_first_token_of_a_room_is_a_persons(room: Room) -> None:
    with pytest.raises(IdentityRefused, match="the first token of a room must be for a person"):
        tokens.add_token(room.gateway, "ada")

    assert not tokens.has_tokens(room.gateway)
    tokens.add_token(room.gateway, "me", human=True)
    assert tokens.credential_of(room.gateway, tokens.add_token(room.gateway, "ada")).agent == "ada"


def test_the_last_token_of_a_person_is_not_revoked_alone(room: Room) -> None:
    mine = tokens.add_token(room.gateway, "me", human=True)
    tokens.add_token(room.gateway, "me")
    with pytest.raises(IdentityRefused, match="me has the only token of a person"):
        tokens.revoke_tokens(room.gateway, "me")
    assert [each.revoked_at for each in tokens.tokens(room.gateway)] == [None, None]

    zoes = tokens.add_token(room.gateway, "zoe", human=True)

    assert tokens.revoke_tokens(room.gateway, "me") == 2
    with pytest.raises(IdentityRefused, match="the token of me was revoked"):
        tokens.credential_of(room.gateway, mine)
    with pytest.raises(IdentityRefused, match="zoe has the only token of a person"):
        tokens.revoke_tokens(room.gateway, "zoe", token_id=tokens.credential_of(room.gateway, zoes).token_id)


def test_switching_tokens_off_takes_all_back_and_is_told(room: Room) -> None:
    mine, adas = tokens.add_token(room.gateway, "me", human=True), tokens.add_token(room.gateway, "ada")

    assert tokens.switch_off(room.gateway, "me", 1234) == 2

    assert not tokens.has_tokens(room.gateway)
    assert tokens.prove(room.gateway, "anybody", None, "test") is None
    for token in (mine, adas):
        with pytest.raises(IdentityRefused, match="not valid in this room"):
            tokens.credential_of(room.gateway, token)
    assert [deed[1:] for deed in tokens.deeds(room.gateway)] == [("switched off", "me", 1234)]


def test_only_a_person_does_what_is_for_persons_where_there_are_tokens(room: Room) -> None:
    tokens.must_be_person(room.gateway, "eve", "test", "dig", human=False)  # names are believed: nobody is refused
    tokens.add_token(room.gateway, "me", human=True)

    tokens.must_be_person(room.gateway, "me", "test", "dig", human=True)
    tokens.must_be_person(room.gateway, "eve", "test", "dig", human=False, unless=(None, "eve"))
    with pytest.raises(IdentityRefused, match=r"eve may not dig; a person may \(a token made with --human\)"):
        tokens.must_be_person(room.gateway, "eve", "test", "dig", human=False, unless=(None, "bob"))

    assert [entry[1:] for entry in tokens.refusals(room.gateway)[1]] == [("test", "to dig", "eve")]


def lock_out(room: Room) -> None:
    """Leave the room with tokens of which none is a person's, as rooms of earlier versions could be."""
    tokens.add_token(room.gateway, "me", human=True)
    tokens.add_token(room.gateway, "ada")
    for cell in room.store.cell_scan(tokens.TOKEN_CELLS):
        if cell.value["human"]:
            room.store.cell_write(cell.name, cell.value | {"revoked_ms": 1})


def test_a_room_that_locked_everybody_out_is_recovered_and_that_is_told(tmp_path: Path) -> None:
    for url in (f"sqlite:{tmp_path}/room", f"files:{tmp_path}/box"):
        with open_room(url) as room:
            lock_out(room)
            assert not tokens.has_person(room.gateway)

        with open_room(url) as room:
            token = tokens.recover(room.gateway, "me", 1234)

            assert tokens.credential_of(room.gateway, token)[:2] == ("me", True)
            assert [deed[1:] for deed in tokens.deeds(room.gateway)] == [("recovered", "me", 1234)]
        with open_room(url) as room, pytest.raises(IdentityRefused, match="a person has a token for this room"):
            tokens.recover(room.gateway, "eve", 1234)


def test_nothing_is_recovered_where_there_are_no_tokens(tmp_path: Path) -> None:
    with open_room(f"sqlite:{tmp_path}/room") as room, pytest.raises(IdentityRefused, match="this room has no tokens"):
        tokens.recover(room.gateway, "eve", 1234)


# What ends a loop


def test_what_is_sent_while_a_message_is_held_is_caused_by_it(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob", transient=True)
    first = ada.send("bob", {"n": 1})
    room.agent("carl").send("bob", {"n": 2})
    assert held_cause(room.gateway, "bob", "ada") is None
    message, other = bob.poll(), bob.poll()
    assert message is not None and other is not None

    from_ada, newest = held_cause(room.gateway, "bob", "ada"), held_cause(room.gateway, "bob", "eve")

    assert from_ada is not None and from_ada.id == first
    assert newest is not None and newest.id == other.id
    assert {each.id for each in held_by(room.gateway, "bob")} == {first, other.id}
    assert held_by(room.gateway, "ada") == []
    message.ack()
    other.ack()
    assert held_cause(room.gateway, "bob", "ada") is None


def test_what_an_agent_holds_is_known_in_a_room_full_of_claims(room: Room) -> None:
    first = room.agent("ada").send("bob", {"n": 1})
    message = room.agent("bob", transient=True).poll()
    assert message is not None
    room.agent("ada").send_many([{"to": "eve", "payload": {"n": n}} for n in range(600)])
    store = room.gateway.store
    assert len(store.claim(Want(agent="eve", lease_s=60, limit=600)).deliveries) == 600

    cause = held_cause(room.gateway, "bob", None)

    assert cause is not None and cause.id == first
    assert [each.id for each in held_by(room.gateway, "bob")] == [first]
    assert len(held_by(room.gateway, "eve")) == 600
    message.ack()


def test_two_agents_that_keep_each_other_busy_are_stopped_after_eight_hops(room: Room) -> None:
    names = ["ada", "bob"]
    agents = [room.agent(name) for name in names]
    agents[0].send("bob", {"n": 0})
    sent = 0

    with pytest.raises(TooManyHops, match="would be 9 hops long; this room allows 8"):
        while True:
            me = (sent + 1) % 2
            message = agents[me].poll()
            assert message is not None
            agents[me].send(names[1 - me], {"n": sent}, cause=held_cause(room.gateway, names[me], names[1 - me]))
            message.ack()
            sent += 1

    assert sent == room.config.max_hops


def test_one_pair_has_a_rate_of_its_own(url: str, clock: ManualClock) -> None:
    with open_room(url, clock=clock, pair_rate_per_s=1, pair_rate_burst=2) as room:
        ada = room.agent("ada")
        for _ in range(2):
            ada.send("bob", {})
        with pytest.raises(RateLimited, match=r"ada may send bob 1 messages per second here \(2 at once\)") as refused:
            ada.send("bob", {})

        ada.send("carl", {})
        room.agent("bob").send("ada", {})
        ada.send(None, {}, channel="jobs")
        with pytest.raises(RateLimited, match="at most 2 messages at once here, not 3"):
            ada.send_many([{"to": "dora", "payload": {}}] * 3)
        clock.advance(refused.value.retry_after_s)
        ada.send("bob", {})

        assert len(room.peek(agent="bob")) == 3


def test_pairs_whose_names_run_together_are_told_apart(url: str, clock: ManualClock) -> None:
    with open_room(url, clock=clock, pair_rate_per_s=0.001, pair_rate_burst=1) as room:
        room.agent("a/b").send("c", {})
        room.agent("a").send("b/c", {})

        assert room.stats().states["stored"] == 2


def test_an_answer_may_travel_in_the_human_lane(room: Room) -> None:
    ada, me = room.agent("ada"), room.agent("me")
    ada.send("me", {"q": 1})
    message = me.poll()
    assert message is not None

    assert message.reply({"a": 2}, _lane="human")

    answer = ada.poll()
    assert answer is not None
    assert (answer.lane, answer.hop_count) == ("human", 1)
