"""`postroom help`: what there is, a command's help, or a page of the documents."""

from __future__ import annotations

import argparse
import sys

from postroom import cli
from postroom.cli import options, output, pages
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.cli.table import COMMANDS, MEANT
from postroom.core import near


def tell_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a command or a page; `topics` lists the pages")


def tell(call: Invocation) -> None:
    name = call.args.topic
    if name is None and not call.json:
        output.write(cli.overview())
    elif name in (None, "topics"):
        rows = [(topic, pages.title_of(topic)) for topic in pages.topics()]
        documents = ({"topic": topic, "title": title, "url": pages.address_of(topic)} for topic, title in rows)
        call.tell_rows(documents, ("topic", "page"), rows, "this installation has no pages")
    elif name in COMMANDS:
        _tell_command(call, name)
    else:
        _tell_page(call, name)


def _tell_command(call: Invocation, name: str) -> None:
    text = options.command_of(name)[0].format_help()
    call.tell({"command": name, "text": text}, *text.rstrip("\n").split("\n"))
    if pages.topics_of(name) and not call.json:  # on standard error: a script that wants the help gets that alone
        output.note(f"there is also a page: postroom help {name}.md")


def _tell_page(call: Invocation, name: str) -> None:
    found = pages.topics_of(name)
    if len(found) != 1:
        raise UsageError(_no_page(name, found))
    text = pages.topics()[found[0]].read_text(encoding="utf-8").rstrip("\n")
    if call.json:
        output.document({"topic": found[0], "url": pages.address_of(found[0]), "text": text})
    elif sys.stdout.isatty():
        from postroom.cli import terminal

        terminal.draw_page(text)
    else:
        output.write(text)


def _no_page(name: str, found: list[str]) -> str:
    if found:
        return f"there is more than one page {name!r}: {', '.join(found)}"
    if name in MEANT:
        return f"there is no command {name!r}; `postroom {MEANT[name]}` does that"
    known = {topic.rpartition("/")[2]: topic for topic in pages.topics()} | {word: word for word in COMMANDS}
    close = [known[word] for word in near.near_ones(name, known)]
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"there is no command and no page {name!r}{meant}; `postroom help` lists them all"
