"""The envelope: which messages are valid, what the errors say, and how ids are made."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.core.message import (
    MAX_DEPTH,
    Draft,
    Message,
    check,
    check_all,
    decode_payload,
    id_of,
    ids_of,
    is_usual,
    key_at,
    key_of,
)
from postroom.core.states import State
from postroom.errors import Fault, InvalidMessage


def draft(payload: Any = None, **fields: Any) -> Draft:
    return Draft(**{"from_agent": "ada", "to_agent": "bob", "payload": {} if payload is None else payload, **fields})


def faults(a_draft: Draft) -> dict[str, str]:
    with pytest.raises(InvalidMessage) as caught:
        check(a_draft)
    return {fault.field: fault.problem for fault in caught.value.faults}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def test_the_three_messages_of_the_source_stay_word_for_word() -> None:
    found = faults(draft([1], priority=11, version="2.0"))

    assert found == {
        "priority": "Priority must be 1-10",
        "payload": "Payload must be dict",
        "version": "Unsupported version: 2.0",
    }


def test_every_fault_is_reported_at_once_with_its_field() -> None:
    bad = draft(
        {"x": math.nan}, from_agent="", to_agent=7, channel="a\nb", type="t" * 256, priority=0, ttl_s=0, delay_s=-1
    )

    found = faults(bad)

    assert set(found) == {"from_agent", "to_agent", "channel", "type", "priority", "ttl_s", "delay_s", "payload.x"}
    with pytest.raises(
        ValueError, match=r"Invalid message: from_agent: must not be empty; to_agent: must be text, not int"
    ):
        check(bad)


A_CYCLE: dict[str, Any] = {}
A_CYCLE["again"] = [A_CYCLE]


@pytest.mark.parametrize(
    ("payload", "place", "problem"),
    [
        ({"a": [1, math.nan]}, "payload.a[1]", "nan is not a JSON number"),
        ({"a": math.inf}, "payload.a", "inf is not a JSON number"),
        ({"a": {"b": "\ud800"}}, "payload.a.b", "lone surrogate"),
        ({"\udfff": 1}, "payload key", "lone surrogate"),
        ({"a": {1: 2}}, "payload.a", "keys must be text, not int"),
        ({None: 2}, "payload", "keys must be text, not NoneType"),
        ({"a": b"bytes"}, "payload.a", "must be JSON, not bytes"),
        ({"a": {1, 2}}, "payload.a", "must be JSON, not set"),
        ({"a": dt.datetime(2026, 1, 1)}, "payload.a", "must be JSON, not datetime"),
        ({"a": decimal.Decimal(1)}, "payload.a", "must be JSON, not Decimal"),
        ({"a": object()}, "payload.a", "must be JSON, not object"),
        ({"a": 10**4300}, "payload.a", "4,300 digits"),
    ],
)
def test_what_json_cannot_carry_is_named_with_its_place(payload: Any, place: str, problem: str) -> None:
    found = faults(draft(payload))

    assert list(found) == [place]
    assert problem in found[place]


TRICKY: tuple[Any, ...] = (
    {}, {"a": "line\nfeed \u2028 ä"}, {"pair": (1, 2)}, {"a": True, "b": 1.0}, nested(64), {"many": [{} for _ in range(99)]},
    nested(65), {"a": math.nan}, {1: 2}, {"a": b"x"}, [1], None, "text", {"a": "\ud800"}, {"text": "x" * 300}, A_CYCLE,
)  # fmt: skip


@pytest.mark.parametrize("payload", TRICKY, ids=lambda payload: repr(payload)[:20])
@pytest.mark.parametrize("fields", [{}, {"priority": 0}, {"channel": "a\nb"}], ids=["plain", "priority", "channel"])
def test_a_batch_is_judged_as_each_of_its_messages_is(payload: Any, fields: dict[str, Any]) -> None:
    batch = [*(draft({"n": n}) for n in range(3)), draft(payload, **fields)]
    alone, problems = draft(payload, **fields), []
    try:
        check(alone, max_payload_bytes=200)
    except InvalidMessage as error:
        problems = [Fault(f"messages[3].{fault.field}", fault.problem) for fault in error.faults]

    if problems:
        with pytest.raises(InvalidMessage) as caught:
            check_all(batch, max_payload_bytes=200)
        assert caught.value.faults == problems
    else:
        check_all(batch, max_payload_bytes=200)
        assert [each.payload_json for each in batch] == ['{"n":0}', '{"n":1}', '{"n":2}', alone.payload_json]


def test_a_payload_that_contains_itself_is_refused() -> None:
    assert "contains itself" in " ".join(faults(draft(A_CYCLE)).values())


def test_a_payload_may_be_64_levels_deep_and_no_deeper() -> None:
    assert MAX_DEPTH == 64
    check(draft(nested(64)))
    assert "deeper than 64" in " ".join(faults(draft(nested(65))).values())
    check(draft({"many": [{} for _ in range(500)]}))


def test_a_payload_over_the_limit_says_its_size_and_where_large_things_go() -> None:
    with pytest.raises(InvalidMessage, match=r"payload: is 111 bytes as JSON; the limit is 100 .*room\.attach"):
        check(draft({"text": "x" * 100}), max_payload_bytes=100)
    check(draft({"text": "x" * 100}), max_payload_bytes=111)


def test_tuples_are_lists_and_the_callers_payload_is_not_touched() -> None:
    payload = {"pair": (1, 2)}
    assert check(draft(payload)).payload_json == '{"pair":[1,2]}'
    assert payload == {"pair": (1, 2)}


@pytest.mark.parametrize("name", ["a/b", "..", "../../etc", "emoji 🐦", "a b", "__class__", "x" * 255, "ä" * 127])
def test_names_may_be_anything_that_is_text(name: str) -> None:
    check(draft(from_agent=name, to_agent=name, channel=name, type=name))


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "\x7f", "ä" * 128, "\ud800", None, 5, b"x"])
def test_names_that_are_no_text_are_refused(name: Any) -> None:
    assert set(faults(draft(channel=name))) == {"channel"}


@pytest.mark.parametrize("priority", [0, 11, True, 5.0, "5", None])
def test_priorities_are_whole_numbers_from_1_to_10(priority: Any) -> None:
    assert faults(draft(priority=priority)) == {"priority": "Priority must be 1-10"}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_every_json_object_passes_and_comes_back_the_same(payload: dict[str, Any]) -> None:
    assert decode_payload(check(draft(payload)).payload_json) == payload


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**53 - 1))
def test_an_id_is_a_uuid7_and_leads_back_to_its_key_in_its_own_room(key: int, salt: int) -> None:
    id = id_of(key, salt)

    assert (uuid.UUID(id).version, str(uuid.UUID(id))) == (7, id)
    assert uuid.UUID(id).int >> 80 == key >> 21
    assert key_of(id, salt) == key
    keys = range(key, min(key + 1100, 2**63), 100)
    assert ids_of(keys, salt) == [id_of(each, salt) for each in keys]
    assert key_of(id, salt ^ 1) is None


@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, unique=True), st.integers(0, 2**53 - 1))
def test_ids_sort_as_their_keys_do(keys: list[int], salt: int) -> None:
    assert sorted(id_of(key, salt) for key in keys) == [id_of(key, salt) for key in sorted(keys)]


@given(st.text(max_size=40))
def test_other_texts_are_no_ids(text: str) -> None:
    assert key_of(text, 5) is None


def test_an_id_in_capitals_is_not_the_same_text() -> None:
    assert key_of(id_of(key_at(1_790_000_000_000_000_000), 7).upper(), 7) is None


@given(st.integers(0, 2**61), st.integers(1, 10**9))
def test_keys_grow_with_time(room_ns: int, later_ns: int) -> None:
    assert key_at(room_ns + later_ns) > key_at(room_ns)


def test_after_the_ids_of_many_conversations_a_new_name_is_still_learnt() -> None:
    """A sender whose names are known is checked in a tenth of the time."""
    for number in range(11_000):
        check(Draft("ada", {}, "bob", correlation_id=f"conversation {number}"))
    assert is_usual(check(Draft("ada", {}, "a new recipient")))


def test_an_envelope_as_plain_data_has_the_fixed_names() -> None:
    message = Message(id="x", from_agent="ada", timestamp_ms=1_790_000_000_123, exact_state=State.DELAYED)

    assert list(message.to_dict()) == [
        "id", "type", "version", "payload", "from_agent", "to_agent", "channel", "priority", "timestamp", "correlation_id",
        "expires_at", "delivery_count", "chain_id", "hop_count", "lane", "trace", "state", "error",
        "order_key", "replaces",
    ]  # fmt: skip
    assert message.to_dict()["timestamp"] == "2026-09-21T14:13:20.123Z"
    assert (message.state, message.status) == ("stored", "pending")
