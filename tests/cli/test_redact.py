"""`postroom redact`: rules on the command line, and that commands honour them."""

from __future__ import annotations

import pytest

from .support import Cli

TOKEN = "ghp_" + "aB3" * 12


def test_a_rule_is_added_listed_honoured_and_removed(cli: Cli) -> None:
    said = cli.ok("redact", "add", "github token").out
    assert said == "'github token' is redacted from now on, by other processes within two seconds\n"
    cli.ok("redact", "add", "customer", "--pattern", "CUST-[0-9]{3,8}")
    cli.ok("send", "bob", f"use {TOKEN} for CUST-123", "--as", "ada", "--new")

    (message,) = cli.ok("peek", "--json").json
    assert message["payload"] == {"text": "use [redacted: github token] for [redacted: customer]"}
    on = {rule["name"] for rule in cli.ok("redact", "list", "--json").json if rule["on"]}
    assert on == {"github token", "customer"}
    assert "CUST-[0-9]" in cli.ok("redact", "list").out
    assert cli.ok("redact", "test", "a CUST-999").out == "a [redacted: customer]\n"
    assert cli.ok("redact", "test", '{"a": ["CUST-999"]}', "--json").json == {"a": ["[redacted: customer]"]}
    cli.ok("redact", "remove", "customer")
    assert cli.ok("redact", "test", "a CUST-999").out == "a CUST-999\n"
    gone = cli("redact", "remove", "customer")
    assert (gone.code, gone.err) == (3, "postroom: this room has no redaction rule 'customer'\n")


def test_all_rules_that_ship_are_turned_on_and_off_together(cli: Cli) -> None:
    cli.ok("redact", "add", "all")
    assert all(rule["on"] for rule in cli.ok("redact", "list", "--json").json)
    cli.ok("redact", "remove", "all")
    assert not any(rule["on"] for rule in cli.ok("redact", "list", "--json").json)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["add"], "`postroom redact add` needs a NAME"),
        (["test"], "`postroom redact test` needs a TEXT"),
        (["list", "x"], "`postroom redact list` takes no NAME"),
        (["remove", "x", "--pattern", "y"], "--pattern is for `postroom redact add`"),
        (["add", "githb token"], "did you mean 'github token'?"),
        (["add", "mine", "--pattern", "(x+)+"], "has a repeat without an end"),
    ],
)
def test_wrong_words_are_explained_and_nothing_changes(cli: Cli, words: list[str], problem: str) -> None:
    result = cli("redact", *words)

    assert result.code == 2 and problem in result.err
    assert not any(rule["on"] for rule in cli.ok("redact", "list", "--json").json)


def test_in_a_room_with_tokens_only_a_person_changes_the_rules(cli: Cli) -> None:
    cli.ok("agent", "add", "me", "--human")

    refused = cli("redact", "add", "all", "--as", "bob")

    assert refused.code != 0 and "token" in refused.err
    assert not any(rule["on"] for rule in cli.ok("redact", "list", "--json").json)
