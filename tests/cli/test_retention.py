"""`postroom retention`: limits of channels on the command line."""

from __future__ import annotations

import pytest

from .support import Cli


def test_limits_are_set_listed_applied_and_removed(cli: Cli) -> None:
    for text in ("one", "two", "three"):
        cli.ok("send", "bob", text, "--as", "ada", "--channel", "builds", "--new")
        cli.ok("receive", "--as", "bob", "--channel", "builds", "--ack")
    assert cli.ok("retention", "list").out == "no channel has limits of its own\n"
    cli.ok("retention", "set", "builds", "--count", "1", "--age", "2d", "--bytes", "10MB")

    (limits,) = cli.ok("retention", "list", "--json").json
    assert limits == {"channel": "builds", "age_s": 172800.0, "count": 1, "bytes": 10_000_000}
    assert cli.ok("retention", "apply").out == "2 messages deleted\n"
    (left,) = cli.ok("peek", "--state", "all", "--json").json
    assert left["payload"] == {"text": "three"}
    cli.ok("retention", "remove", "builds")
    gone = cli("retention", "remove", "builds")
    assert (gone.code, gone.err) == (3, "postroom: the channel 'builds' has no limits of its own\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["set", "builds"], "`postroom retention set` needs --age, --count or --bytes"),
        (["set", "--count", "3"], "`postroom retention set` needs a CHANNEL"),
        (["list", "builds"], "`postroom retention list` takes no CHANNEL"),
        (["apply", "--count", "3"], "`postroom retention apply` takes no limits"),
        (["set", "builds", "--bytes", "3 apples"], "'3 apples' is not a size; write bytes, or 500KB"),
        (["set", "builds", "--age", "soon"], "'soon' is not a span of time"),
    ],
)
def test_wrong_words_are_explained_and_nothing_changes(cli: Cli, words: list[str], problem: str) -> None:
    result = cli("retention", *words)

    assert result.code == 2 and problem in result.err
    assert cli.ok("retention", "list", "--json").json == []
