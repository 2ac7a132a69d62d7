"""The program of the demo is the example, and shows the lines that do it."""

from __future__ import annotations

from tests.support import EXAMPLES

from postroom.cli.demo.program import PROGRAM, source_lines


def test_the_program_of_the_demo_is_the_example() -> None:
    example = EXAMPLES / "patchwork" / "message_demo.pw"

    assert PROGRAM.read_text(encoding="utf-8") == example.read_text(encoding="utf-8")


def test_the_demo_shows_lines_that_send_receive_and_delegate() -> None:
    shown = "\n".join(source_lines(PROGRAM.read_text(encoding="utf-8")))

    assert "mailbox.tasks.send" in shown
    assert ".receive(30000).await" in shown
    assert "self.delegate([coordinator(files), analyzer(), reporter()]).await" in shown
