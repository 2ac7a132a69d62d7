"""The tools as data: few, small, and what they say they take is what they take."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from postroom.doors.mcp.tools import BY_NAME, TOOLS, IdentityArgument, input_schema, read_arguments
from postroom.errors import InvalidMessage

MAX_TOKENS = 1100


def about_tokens(text: str) -> int:
    """About as many tokens as a usual tokenizer makes of a schema: long words, keys and runs of marks are several pieces.

    `make test-agents` holds it to a real tokenizer: at most some per cent off.
    """
    pieces = re.findall(r"(?<= )[A-Za-z]{1,9}|[A-Za-z]{1,6}|\d{1,3}|[^\sA-Za-z\d]{1,3}", text)
    return round(len(pieces) * 0.86)


def words_of_all() -> str:
    shown = [{"name": t.name, "description": t.description, "inputSchema": input_schema(t)} for t in TOOLS]
    return json.dumps(shown, separators=(",", ":"))


def test_there_are_at_most_eight_tools_with_the_names_that_are_fixed() -> None:
    assert [tool.name for tool in TOOLS] == ["send", "inbox", "ack", "reply", "ask", "board", "who", "receipt"]


def test_all_tools_together_cost_at_most_1100_tokens() -> None:
    assert about_tokens(words_of_all()) <= MAX_TOKENS


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_schemas_are_plain_and_what_they_do_not_name_is_refused(tool: Any) -> None:
    schema = input_schema(tool)

    with pytest.raises(InvalidMessage, match=f"colour: is not an argument of {tool.name}"):
        read_arguments(tool, {"colour": "red"})
    assert set(schema["properties"]) == set(tool.takes.__struct_fields__)
    assert "$ref" not in json.dumps(schema) and "anyOf" not in json.dumps(schema)
    assert all("type" in value for value in schema["properties"].values())
    assert tool.gives["type"] == "object"


@pytest.mark.parametrize(
    ("tool", "arguments", "fault"),
    [
        ("send", {"body": "x"}, "Object missing required field `to`"),
        ("send", {"to": 7, "body": "x"}, "to: Expected `str`, got `int`"),
        ("send", {"to": "a", "body": "x", "priority": 11}, "priority: Expected `int` <= 10"),
        (
            "send",
            {"to": "a", "body": "x", "colour": "red"},
            "colour: is not an argument of send; the arguments are: to, body",
        ),
        ("inbox", {"wait_s": -1}, "wait_s: Expected `float` >= 0"),
        ("inbox", {"mode": "steal"}, "mode: Invalid enum value 'steal'"),
        ("ack", {"ids": []}, "ids: Expected `array` of length >= 1"),
        ("ack", {"ids": ["a", 1]}, "ids[1]: Expected `str`, got `int`"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(tool: str, arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(fault)):
        read_arguments(BY_NAME[tool], arguments)


@pytest.mark.parametrize(
    "name", ["from", "from_agent", "sender", "as", "agent", "lane", "human", "From-Agent", "TOKEN"]
)
def test_no_tool_takes_a_sender(name: str) -> None:
    for tool in TOOLS:
        with pytest.raises(IdentityArgument, match="the connection decides the sender"):
            read_arguments(tool, {name: "eve"})
