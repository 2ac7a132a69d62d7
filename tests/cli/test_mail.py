"""Sending, receiving and settling on the command line."""

from __future__ import annotations

import json
import threading

import pytest

import postroom

from .support import Cli


def test_a_message_goes_from_one_command_to_another(cli: Cli) -> None:
    id = cli.send("hello")

    taken = cli.ok("receive", "--as", "bob")
    done = cli.ok("ack", id, "--as", "bob")

    assert id in taken.out
    assert "    hello" in taken.lines
    assert f"postroom ack {id} --as bob" in taken.out
    assert done.out == f"{id} acked\n"
    assert cli.json("receipt", id)["state"] == "acked"


def test_send_prints_the_id_and_nothing_else(cli: Cli) -> None:
    result = cli.ok("send", "bob", "hi", "--as", "ada", "--new")

    assert cli.json("receipt", result.out.strip())["state"] == "stored"
    assert "bob has not joined this room yet" in result.err


def test_json_has_the_fields_of_the_envelope(cli: Cli) -> None:
    id = cli.send('{"pr": 7}', "--type", "review", "--channel", "code", "--priority", "9", "--correlation-id", "c1")

    message = cli.json("receive", "--as", "bob")

    assert message["id"] == id
    assert message["payload"] == {"pr": 7}
    assert (message["type"], message["channel"], message["priority"]) == ("review", "code", 9)
    assert (message["from_agent"], message["to_agent"], message["correlation_id"]) == ("ada", "bob", "c1")
    assert (message["delivery_count"], message["state"]) == (1, "claimed")


def test_send_tells_as_json_what_is_known_of_the_recipient(cli: Cli) -> None:
    first = cli.json("send", "bob", "hi", "--as", "ada", "--new")
    cli.ok("subscribe", "news", "--as", "bob")
    second = cli.json("send", "bob", "hi", "--as", "ada")

    assert (first["state"], first["recipient_known"]) == ("stored", False)
    assert (second["state"], second["recipient_known"]) == ("stored", True)


@pytest.mark.parametrize(
    ("written", "payload"),
    [
        ("plain words", {"text": "plain words"}),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ('  {"a": 1}', {"a": 1}),
        ("[1]", {"text": "[1]"}),
        ("3", {"text": "3"}),
        ("", {"text": ""}),
        ("grüße 🐦", {"text": "grüße 🐦"}),
    ],
)
def test_a_payload_is_an_object_or_text(cli: Cli, written: str, payload: dict[str, object]) -> None:
    cli.send(written)

    assert cli.json("receive", "--as", "bob")["payload"] == payload


def test_a_broken_object_is_refused_and_nothing_is_sent(cli: Cli) -> None:
    result = cli("send", "bob", '{"a": ', "--as", "ada", "--new")

    assert result.code == 2
    assert "not a JSON object" in result.err
    assert "--text" in result.err
    assert cli.json("mailboxes") == []
    assert cli.json("agents") == []


def test_text_that_looks_like_json_can_be_sent_as_text(cli: Cli) -> None:
    cli.send("{braces} are fine", "--text")

    assert cli.json("receive", "--as", "bob")["payload"] == {"text": "{braces} are fine"}


def test_a_payload_comes_from_stdin(cli: Cli) -> None:
    cli.ok("send", "bob", "-", "--as", "ada", "--new", stdin=b'{"big": true}\n')
    cli.ok("send", "bob", "-", "--as", "ada", "--new", stdin=b"two\nlines\n")

    assert cli.json("receive", "--as", "bob")["payload"] == {"big": True}
    assert cli.json("receive", "--as", "bob")["payload"] == {"text": "two\nlines"}


def test_stdin_that_is_not_text_is_refused(cli: Cli) -> None:
    result = cli("send", "bob", "-", "--as", "ada", "--new", stdin=b"\xff\xfe")

    assert result.code == 2
    assert "not UTF-8" in result.err


def test_a_recipient_never_seen_is_refused_with_the_near_names(cli: Cli) -> None:
    cli.ok("subscribe", "news", "--as", "reviewer")

    result = cli("send", "reviewr", "hi", "--as", "ada")

    assert result.code == 1
    assert "no agent called 'reviewr'" in result.err
    assert "reviewer" in result.err
    assert cli.json("mailboxes") == []
    assert [agent["name"] for agent in cli.json("agents")] == ["reviewer"]


@pytest.mark.parametrize("delay", ["0", "1h"])
def test_a_name_with_mail_in_its_box_is_known_to_senders_and_not_to_askers(cli: Cli, delay: str) -> None:
    cli.ok("send", "bob", "first", "--as", "ada", "--new", "--delay", delay)

    again = cli.ok("send", "bob", "second", "--as", "ada")
    asked = cli("ask", "bob", "third?", "--as", "ada")
    wrong = cli("send", "bobb", "fourth", "--as", "ada")

    assert "bob has not joined this room yet; the message waits for it" in again.err
    assert cli.json("send", "bob", "fifth", "--as", "ada")["recipient_known"] is False
    assert (asked.code, wrong.code) == (1, 1)
    assert "no agent called 'bob' was ever seen" in asked.err
    assert "similar names: bob" in wrong.err


def test_a_name_whose_mail_has_ended_is_unknown_again(cli: Cli) -> None:
    cli.ok("send", "bob", "too late", "--as", "ada", "--new", "--ttl", "0.001")
    with postroom.open(create=False) as room:
        (message,) = room.peek(state=None)
        room.clock.sleep(0.01)
        assert room.get(message.id).state == "expired"

    assert cli("send", "bob", "hi", "--as", "ada").code == 1


def test_one_may_write_to_oneself(cli: Cli) -> None:
    cli.ok("send", "ada", "remember", "--as", "ada")

    assert cli.json("receive", "--as", "ada")["payload"] == {"text": "remember"}


def test_a_message_to_anybody_goes_to_who_names_the_channel(cli: Cli) -> None:
    cli.ok("send", "*", "review me", "--channel", "reviews", "--as", "ada")

    assert cli("receive", "--as", "bob").code == 3
    assert cli.json("receive", "--as", "bob", "--channel", "reviews")["to_agent"] is None


def test_no_mail_is_exit_code_3(cli: Cli) -> None:
    at_once = cli("receive", "--as", "bob")
    after_a_wait = cli("receive", "--as", "bob", "--wait", "0.05")

    assert (at_once.code, after_a_wait.code) == (3, 3)
    assert "no mail for bob" in at_once.err
    assert at_once.out == ""


def test_a_waiting_receive_is_woken(cli: Cli) -> None:
    def write() -> None:
        with postroom.open(create=False) as room:
            room.agent("ada", transient=True).send("bob", {"text": "wake up"})

    later = threading.Timer(0.1, write)
    later.start()
    message = cli.json("receive", "--as", "bob", "--wait", "30")
    later.join()

    assert message["payload"] == {"text": "wake up"}


def test_receive_with_ack_takes_and_ends_it(cli: Cli) -> None:
    id = cli.send()

    cli.ok("receive", "--as", "bob", "--ack")

    assert cli.json("receipt", id)["state"] == "acked"


def test_a_claim_of_a_command_belongs_to_the_agent_for_ten_minutes(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob")

    with postroom.open(create=False) as room:
        message = room.get(id)

    assert (message.claimed_by, message.owner) == ("bob", None)
    assert message.lease_until_ms is not None
    assert message.last_delivered_ms is not None
    assert 595_000 <= message.lease_until_ms - message.last_delivered_ms <= 605_000


def test_retry_gives_a_message_back(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob")

    cli.ok("retry", id, "the disk was full", "--delay", "0", "--as", "bob")

    again = cli.json("receive", "--as", "bob")
    assert (again["id"], again["delivery_count"], again["error"]) == (id, 2, "the disk was full")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_retry_of_the_last_delivery_says_that_the_message_is_dead(cli: Cli, as_json: bool) -> None:
    id = cli.send()
    told = []
    for _ in range(3):
        cli.ok("receive", "--as", "bob")
        told.append(cli.ok("retry", id, "--delay", "0", "--as", "bob", *["--json"] * as_json))

    if as_json:
        assert [result.json["state"] for result in told] == ["stored", "stored", "dead"]
    else:
        assert ["will be delivered again" in result.out for result in told] == [True, True, False]
        assert told[-1].out.startswith(f"{id} is dead now: that was its last delivery")
    assert cli.json("receipt", id)["state"] == "dead"


def test_a_receiver_without_a_channel_is_told_of_the_mail_that_it_passes_by(cli: Cli) -> None:
    cli.ok("send", "*", "anybody", "--as", "ada")

    at_once, later = cli("receive", "--as", "bob"), cli("receive", "--as", "bob", "--wait", "0.01")
    cli.ok("receive", "--as", "bob", "--channel", "general")

    for result in (at_once, later):
        assert result.code == 3
        assert "Mail for any agent waits in channels (1 in general): take it with --channel NAME" in result.err
    assert "Mail for any agent" not in cli("receive", "--as", "bob").err


def test_a_receiver_from_a_channel_is_told_of_mail_in_one_whose_name_is_near(cli: Cli) -> None:
    cli.ok("send", "*", "anybody", "--channel", "jobs", "--as", "ada")

    assert "waits in channels (1 in jobs)" in cli("receive", "--as", "bob", "--channel", "jbos").err
    assert "jobs" not in cli("receive", "--as", "bob", "--channel", "reviews").err


def test_reply_answers_and_ends(cli: Cli) -> None:
    id = cli.send("which port?")
    cli.ok("receive", "--as", "bob")

    cli.ok("reply", id, "8080", "--as", "bob")

    assert cli.json("receipt", id)["state"] == "answered"
    answer = cli.json("receive", "--as", "ada")
    assert (answer["payload"], answer["correlation_id"]) == ({"text": "8080"}, id)


def test_refuse_ends_with_the_reason(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob")

    cli.ok("refuse", id, "not my module", "--as", "bob")

    receipt = cli.json("receipt", id)
    assert receipt["state"] == "refused"
    assert receipt["events"][-1]["detail"] == "not my module"


def test_extend_keeps_a_message_for_longer(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob", "--lease", "60")
    with postroom.open(create=False) as room:
        before = room.get(id).lease_until_ms

    cli.ok("extend", id, "--lease", "2h", "--as", "bob")

    with postroom.open(create=False) as room:
        after = room.get(id).lease_until_ms
    assert before is not None
    assert after is not None
    assert after - before > 7_000_000


def test_what_another_holds_cannot_be_acked(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob")

    result = cli("ack", id, "--as", "eve")

    assert result.code == 1
    assert "held by bob" in result.err
    assert cli.json("receipt", id)["state"] == "claimed"
    assert "eve" not in [agent["name"] for agent in cli.json("agents")]


def test_acking_twice_fails_the_second_time(cli: Cli) -> None:
    id = cli.send()
    cli.ok("receive", "--as", "bob")
    cli.ok("ack", id, "--as", "bob")

    result = cli("ack", id, "--as", "bob", "--json")

    assert result.code == 1
    assert result.json == {"id": id, "held": False, "state": "acked"}


def test_an_id_that_is_not_kept_is_exit_code_3(cli: Cli) -> None:
    unknown = "01a1de1b-8195-79d8-9529-addc81335817"

    assert cli("ack", unknown, "--as", "bob").code == 3
    assert cli("receipt", unknown).code == 3
    assert cli("receipt", "nonsense").code == 3


def test_several_messages_are_acked_at_once(cli: Cli) -> None:
    ids = [cli.send(), cli.send()]
    cli.ok("receive", "--as", "bob")
    cli.ok("receive", "--as", "bob")

    cli.ok("ack", *ids, "--as", "bob")

    assert [cli.json("receipt", id)["state"] for id in ids] == ["acked", "acked"]


def test_an_id_that_is_not_kept_keeps_nothing_from_the_others(cli: Cli) -> None:
    first, last = cli.send(), cli.send()
    cli.ok("receive", "--as", "bob")
    cli.ok("receive", "--as", "bob")

    result = cli("ack", first, "unknown-1", last, "--as", "bob", "--json")
    assert result.code == 3
    assert result.json == [
        {"id": first, "held": True, "state": "acked"},
        {"id": "unknown-1", "held": False, "state": "unknown"},
        {"id": last, "held": True, "state": "acked"},
    ]
    assert result.err.startswith("postroom: 'unknown-1' is neither a message's id nor its handle")
    assert cli("ack", "unknown-1", first, "--as", "bob").code == 1


def test_a_key_sends_once(cli: Cli) -> None:
    first = cli.send("hi", "--key", "k1")

    assert cli.send("hi", "--key", "k1") == first
    other = cli("send", "bob", "something else", "--key", "k1", "--as", "ada", "--new")
    assert other.code == 2
    assert cli.json("mailboxes")[0]["depth"] == 1


def test_send_that_waits_says_when_nobody_acked(cli: Cli) -> None:
    result = cli("send", "bob", "hi", "--as", "ada", "--new", "--wait", "acked", "--timeout", "0.05")

    assert result.code == 3
    assert "still stored" in result.err
    assert cli.json("mailboxes")[0]["depth"] == 1


def test_a_timeout_without_wait_is_wrong_usage(cli: Cli) -> None:
    assert cli("send", "bob", "hi", "--as", "ada", "--new", "--timeout", "5").code == 2


def test_ask_prints_the_answer(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        bob = room.agent("bob")
        stop = threading.Event()
        serving = threading.Thread(
            target=lambda: bob.serve({"*": lambda m: {"text": m.payload["text"].upper()}}, stop=stop)
        )
        serving.start()

        plain = cli.ok("ask", "bob", "which way?", "--as", "ada")
        document = cli.json("ask", "bob", "which way?", "--as", "ada")

        stop.set()
        serving.join()

    assert plain.out == "WHICH WAY?\n"
    assert (document["payload"], document["from_agent"]) == ({"text": "WHICH WAY?"}, "bob")


def test_several_are_asked_and_the_answers_are_printed_as_they_come(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        bob, cy = room.agent("bob"), room.agent("cy")
        room.agent("dan", transient=True)
        stop = threading.Event()
        serving = threading.Thread(target=lambda: bob.serve({"*": lambda _: {"text": "left"}}, stop=stop))
        refusing = threading.Thread(target=lambda: cy.receive(timeout_s=30).refuse("I am busy"))
        serving.start()
        refusing.start()

        some = cli(
            "ask", "bob", "which way?", "--to", "cy", "--to", "dan", "--to", "bob", "--as", "ada", "--timeout", "1"
        )
        refusing.join()
        any_one = cli.ok("ask", "dan", "which way?", "--to", "bob", "--enough", "any", "--as", "ada", "--json")

        stop.set()
        serving.join()
        assert room.waits() == []

    assert (some.code, some.out) == (3, "bob: left\n")
    assert some.err.splitlines()[0] == "postroom: cy: cy refused: I am busy"
    assert "postroom: dan: no answer to question" in some.err
    answer, end = map(json.loads, any_one.lines)
    assert (answer["from_agent"], answer["payload"]) == ("bob", {"text": "left"})
    assert end["enough"] is True
    assert [(each["to_agent"], each["error"]) for each in end["missing"]] == [("dan", "NotNeeded")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--enough", "2"], "--enough needs several agents"),
        (["--to", "cy", "--enough", "most"], "'most' is not all, any or a whole number above zero"),
        (["--to", "cy", "--enough", "3"], "enough: must be all, any or a whole number from 1 to 2"),
    ],
)
def test_a_wrong_number_of_answers_is_wrong_usage(cli: Cli, words: list[str], sentence: str) -> None:
    result = cli("ask", "bob", "hi", "--as", "ada", "--new", *words)

    assert (result.code, sentence in result.err) == (2, True)
    assert cli.json("mailboxes") == []


def test_a_refused_question_fails_with_the_reason(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        bob = room.agent("bob")
        refusing = threading.Thread(target=lambda: bob.receive(timeout_s=30).refuse("I am busy"))
        refusing.start()

        result = cli("ask", "bob", "now?", "--as", "ada", "--json")
        refusing.join()

    assert result.code == 1
    assert result.json["error"]["type"] == "Refused"
    assert "I am busy" in result.err


def test_a_question_nobody_answers_times_out_and_can_be_taken_back(cli: Cli) -> None:
    asked = cli("ask", "bob", "hello?", "--as", "ada", "--new", "--timeout", "0.05")

    (question,) = cli.json("peek")
    assert asked.code == 3
    assert f"the question still waits; `postroom withdraw {question['id']}` takes it back" in asked.err
    assert cli.ok("withdraw", question["id"], "--as", "ada").out == f"{question['id']} withdrawn\n"
    assert cli.json("receipt", question["id"])["state"] == "withdrawn"


def test_withdrawing_says_when_it_is_too_late_and_whose_message_it_is(cli: Cli) -> None:
    held, waiting = cli.send("one"), cli.send("two")
    cli.ok("receive", "--as", "bob")

    late = cli("withdraw", held, "--as", "ada")
    foreign = cli("withdraw", waiting, "--as", "eve")
    told = cli.json("withdraw", waiting, "a mistake", "--as", "ada")

    assert (late.code, foreign.code) == (1, 1)
    assert f"message {held} is claimed by bob: it is too late to withdraw it" in late.err
    assert "was sent by 'ada'" in foreign.err
    assert told == {"id": waiting, "withdrawn": True, "state": "withdrawn"}
    assert cli("withdraw", "0" * 8, "--as", "ada").code == 3


def test_messages_of_one_order_key_come_one_at_a_time_and_may_be_replaced(cli: Cli) -> None:
    first = cli.ok("send", "bob", "one", "--as", "ada", "--new", "--order-key", "pr-7").out.strip()
    second = cli.ok("send", "bob", "two", "--as", "ada", "--new", "--order-key", "pr-7").out.strip()
    cli.ok("send", "bob", "three", "--as", "ada", "--new", "--order-key", "pr-7", "--replaces", second)

    assert cli.json("receive", "--as", "bob")["order_key"] == "pr-7"
    assert cli("receive", "--as", "bob").code == 3
    cli.ok("ack", first, "--as", "bob")
    last = cli.json("receive", "--as", "bob")
    assert (last["payload"], last["replaces"]) == ({"text": "three"}, second)


def test_debouncing_needs_an_order_key_and_no_delay(cli: Cli) -> None:
    alone = cli("send", "bob", "x", "--as", "ada", "--new", "--debounce", "10")
    delayed = cli("send", "bob", "x", "--as", "ada", "--new", "--debounce", "10", "--order-key", "k", "--delay", "1")
    cli.ok("send", "bob", "a", "--as", "ada", "--new", "--debounce", "10m", "--order-key", "k")
    cli.ok("send", "bob", "ab", "--as", "ada", "--new", "--debounce", "10m", "--order-key", "k")

    assert (alone.code, delayed.code) == (2, 2)
    assert "--debounce needs --order-key" in alone.err
    assert "cannot be combined" in delayed.err
    assert [message["payload"] for message in cli.json("peek")] == [{"text": "ab"}]


def test_publish_reaches_subscribers_and_says_when_there_are_none(cli: Cli) -> None:
    nobody = cli("publish", "news", "v1", "--as", "ada")
    cli.ok("subscribe", "news", "--as", "bob")
    cli.ok("subscribe", "news", "--as", "cy")
    ids = cli.json("publish", "news", "v2", "--as", "ada")["ids"]
    cli.ok("unsubscribe", "news", "--as", "cy")
    only_bob = cli.json("publish", "news", "v3", "--as", "ada")["ids"]

    assert nobody.code == 3
    assert "has no subscribers" in nobody.err
    assert (len(ids), len(only_bob)) == (2, 1)
    assert cli.json("receive", "--as", "bob")["payload"] == {"text": "v2"}


def test_listen_prints_one_line_for_each_message_and_acks_it(cli: Cli) -> None:
    ids = [cli.send("one"), cli.send("two\nlines")]

    result = cli.ok("listen", "--as", "bob", "--limit", "2")

    assert [line.partition("  ")[2] for line in result.lines] == ["ada: one", r"ada: two\nlines"]
    assert [cli.json("receipt", id)["state"] for id in ids] == ["acked", "acked"]


def test_who_speaks_comes_from_the_environment_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_AGENT", "ada")
    cli.ok("send", "bob", "hi", "--new")
    monkeypatch.setenv("POSTROOM_AGENT", "bob")

    assert cli.json("receive")["from_agent"] == "ada"


def test_nobody_speaks_without_a_name(cli: Cli) -> None:
    result = cli("send", "bob", "hi", "--new")

    assert result.code == 2
    assert "--as NAME" in result.err


def test_every_fault_of_a_message_is_named_at_once(cli: Cli) -> None:
    result = cli("send", "bob", "hi", "--as", "ada", "--new", "--priority", "11", "--ttl", "0", "--type", "")

    assert result.code == 2
    assert all(field in result.err for field in ("priority", "ttl_s", "type"))
    assert cli.json("mailboxes") == []


def test_a_delayed_message_waits(cli: Cli) -> None:
    id = cli.send("later", "--delay", "1h")

    assert cli("receive", "--as", "bob").code == 3
    assert cli.json("receipt", id)["state"] == "stored"


def test_a_message_goes_to_several_recipients_each_its_own_or_to_none(cli: Cli) -> None:
    result = cli.json("send", "bob", "hi", "--to", "cleo", "--to", "bob", "--as", "ada", "--new")

    assert [(sent["to_agent"], sent["state"]) for sent in result] == [("bob", "stored"), ("cleo", "stored")]
    assert len({sent["id"] for sent in result}) == 2
    assert cli.json("receive", "--as", "cleo", "--ack")["payload"] == {"text": "hi"}
    refused = cli("send", "bob", "hi", "--to", "nobody-at-all", "--as", "ada")
    assert (refused.code, "nobody-at-all" in refused.err) == (1, True)
    assert len(cli.json("peek", "--agent", "bob")) == 1
    assert len(cli.ok("send", "bob", "hi", "--to", "cleo", "--as", "ada").lines) == 2
    assert cli("send", "bob", "hi", "--to", "cleo", "--as", "ada", "--wait", "acked").code == 2
    assert cli("send", "bob", "hi", "--to", "cleo", "--as", "ada", "--key", "k").code == 2
