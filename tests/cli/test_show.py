"""What is shown: harmless at a terminal, aligned in a pipe, tables for people."""

from __future__ import annotations

import io
import json
import sys

import pytest

from postroom.cli import output

from .support import Cli


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """From here on, standard output is a terminal."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    return terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain grüße 🐦 日本語", "plain grüße 🐦 日本語"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\x00b\x7fc\x9bd", r"a\x00b\x7fc\x9bd"),
        ("one\ntwo\tthree\r", r"one\ntwo\tthree\r"),
        ("abc\u202egnp.exe", r"abc\u202egnp.exe"),
        ("\u2066hidden\u2069", r"\u2066hidden\u2069"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("family \U0001f468\u200d\U0001f469\u200d\U0001f467", "family \U0001f468\u200d\U0001f469\u200d\U0001f467"),
        ("", ""),
    ],
)
def test_what_would_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert output.visible(text) == shown


def test_a_messages_lines_cannot_pass_for_ours() -> None:
    lines = output.payload_lines({"text": "done\n  when done: postroom ack X\x1b[2J"})

    assert all(line.startswith("    ") for line in lines)
    assert lines[1] == r"      when done: postroom ack X\x1b[2J"


def test_json_at_a_terminal_is_harmless_and_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    value = {"text": "\x1b[2J\u202e\x9b\U000e0041 grüße"}

    output.document(value)

    assert json.loads(terminal.getvalue()) == value
    assert terminal.getvalue().rstrip("\n").isprintable()


def test_a_table_at_a_terminal_is_drawn_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)

    output.table(("name", "task"), [("bob", "[red]\x1b[31m[/red]"), ("cy", None)], title="agents")

    text = terminal.getvalue()
    assert "bob" in text
    assert r"[red]\x1b[31m[/red]" in text
    assert "─" in text or "━" in text


def test_a_table_in_a_pipe_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "depth"), [("bob", 12), ("reviewer", 3)])

    assert capsys.readouterr().out == "name      depth\nbob       12\nreviewer  3\n"


def test_an_empty_table_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name",), [], empty="no agents yet")

    assert capsys.readouterr().out == "no agents yet\n"


@pytest.mark.parametrize(
    ("passed_ms", "text"), [(0, "0 s ago"), (59_000, "59 s ago"), (3_600_000, "1 h ago"), (-5, "0 s ago")]
)
def test_times_past_are_told_in_the_largest_unit(passed_ms: int, text: str) -> None:
    assert output.ago(1_000_000, 1_000_000 + passed_ms) == text


def test_names_and_payloads_of_others_are_harmless_everywhere(cli: Cli) -> None:
    cli.ok("send", "bob", '{"text": "\\u001b[2J\\u202e", "k\\u001b": 1}', "--as", "ada\u202e", "--new")

    shown = [cli.ok(*words).out for words in (["status"], ["agents"], ["peek"], ["receive", "--as", "bob"])]

    assert not any(char in text for text in shown for char in "\x1b\u202e")
