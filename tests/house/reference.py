"""The reference of the library, drawn from the code: signatures, docstrings, and the comments `#:` above attributes.

The pages stand in docs/reference, so that the site, `postroom help` and readers of the repository have the same ones.
`python -m tests.house.test_docs` writes them anew; tests/house/test_reference.py says what is missing.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import postroom
from postroom import errors
from postroom.cli import exit_codes

WIDTH = 80


class Page(NamedTuple):
    """A page of the reference: where it stands, what it says first, and what it describes."""

    name: str
    title: str
    about: str
    names: tuple[str, ...]


class Attribute(NamedTuple):
    """A field or a property."""

    name: str
    type: str
    default: str
    about: str


def named(name: str) -> Any:
    """What a dotted name stands for."""
    module, _, last = name.rpartition(".")
    if module == "postroom.coordinate":  # a module that goes by another name than its own
        return getattr(postroom.coordinate, last)
    return getattr(importlib.import_module(module), last)


# What is in a class


@cache
def tree_of(cls: type) -> tuple[ast.ClassDef, list[str]]:
    """A class as it is written, and the lines of its file."""
    text = inspect.getsource(inspect.getmodule(cls) or cls)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
    return found[0], text.splitlines()


def ours(cls: type) -> list[type]:
    """The class and those of ours that it derives from."""
    return [base for base in cls.__mro__ if base.__module__.startswith("postroom")]


def comment_of(lines: list[str], node: ast.stmt) -> str:
    """The comment `#:` above an attribute, or the one at the end of its line."""
    number, said = node.lineno, ""
    while lines[number - 2].strip().startswith("#:"):
        number -= 1
        said = f"{lines[number - 1].strip().removeprefix('#:').strip()} {said}"
    behind = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
    return (said or behind).strip()


def written_attributes(cls: type) -> Iterator[Attribute]:
    """The attributes that a class declares, or gives itself in `__init__`."""
    tree, lines = tree_of(cls)
    inits = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    for node in [*tree.body, *(step for init in inits for step in ast.walk(init))]:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        declared = isinstance(node, ast.AnnAssign)
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        if isinstance(target, ast.Name) and node in tree.body and (declared or issubclass(cls, enum.Enum)):
            name, default = target.id, "" if node.value is None else ast.unparse(node.value)
        elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
            name, default = target.attr, ""
        else:
            continue
        if not name.startswith("_") and not kind.startswith("Final"):
            yield Attribute(name, kind, plain_default(cls, name, default), comment_of(lines, node))


def plain_default(cls: type, name: str, written: str) -> str:
    """A default as it is; one that is written as a name is shown by its value, one that is made anew not at all."""
    value = getattr(cls(), name) if written.isupper() and cls.__name__ == "Config" else None
    return "" if "(" in written else written.replace("'", '"') if value is None else plain_value(value)


def attributes_of(cls: type) -> dict[str, Attribute]:
    """Fields and properties with their meanings; a derived class's own stand before those it inherits."""
    found: dict[str, Attribute] = {}
    for base in ours(cls):
        for each in written_attributes(base):
            kept = found.get(each.name)
            found[each.name] = each if kept is None else kept._replace(about=kept.about or each.about)
        for name, value in vars(base).items():
            if name.startswith("_") or not (isinstance(value, property) or hasattr(value, "attrname")):
                continue
            function = value.fget if isinstance(value, property) else value.func
            said = " ".join(inspect.cleandoc(value.__doc__ or "").split())
            kind = str(getattr(function, "__annotations__", {}).get("return", ""))
            if name not in found or not found[name].about:
                found[name] = Attribute(name, kind, "", said)
    return found


def methods_of(cls: type) -> dict[str, Any]:
    """The methods of a class, in the order in which they are written."""
    found: dict[str, Any] = {}
    for base in ours(cls):
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if not name.startswith("_") and name not in found and isinstance(plain, types.FunctionType):
                found[name] = getattr(cls, name)
    return found


# How it is shown


def signature_of(function: Any, shown: str, *, types: bool = True) -> str:
    """A call as it is written in a program, with types and defaults."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "self" and each.name[0] != "_"]
    parts, starred = [], False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        kind = "" if each.annotation is each.empty or not types else f": {plain_type(each.annotation)}"
        default = "" if each.default is each.empty else f"{' = ' if kind else '='}{plain_value(each.default)}"
        parts.append(f"{stars}{each.name}{kind}{default}")
    returned = signature.return_annotation
    tail = (
        "" if returned is signature.empty or isinstance(function, type) or not types else f" -> {plain_type(returned)}"
    )
    line = f"{shown}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    # a parameter stays on one line: its spaces are no place to wrap
    rows = textwrap.wrap(", ".join(part.replace(" ", "\0") for part in parts), WIDTH - 4, break_long_words=False)
    return "\n".join([f"{shown}(", *(f"    {row}" for row in rows), f"){tail}"]).replace("\0", " ")


def plain_type(annotation: Any) -> str:
    """A type without the modules that it comes from."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"^ClassVar\[(.*)\]$", r"\1", text.strip("'"))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def plain_value(value: Any) -> str:
    """A default as it may be written; what has no short form is left out."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return "..." if "<" in text or value is ... else text


def prose(text: str, links: dict[str, str]) -> str:
    """A docstring as Markdown: code stays code, signs that Markdown would take are kept, and known names are links."""
    parts = re.split(r"(`[^`\n]*`)", "\n".join(line.rstrip() for line in text.splitlines()))
    return "".join(code(part, links) if part.startswith("`") else words(part, links) for part in parts)


def code(part: str, links: dict[str, str]) -> str:
    link = links.get(part.strip("`").removeprefix("postroom."))
    return f"[{part}]({link})" if link else part


def words(part: str, links: dict[str, str]) -> str:
    lines = []
    for line in part.split("\n"):
        if line.startswith("    "):
            lines.append(line)  # a program, or a table
            continue
        safe = re.sub(r"([*<])", r"\\\1", line)
        lines.append(re.sub(r"\b[A-Z][A-Za-z]+\b", lambda found: linked(found[0], links), safe))
    return "\n".join(lines)


def linked(word: str, links: dict[str, str]) -> str:
    """The names of errors are links also where they stand as plain words."""
    kind = getattr(errors, word, None)
    known = isinstance(kind, type) and issubclass(kind, errors.PostroomError) and word in links
    return f"[{word}]({links[word]})" if known else word


def table_of(attributes: list[Attribute], links: dict[str, str]) -> str:
    """Attributes as a table of two columns, which also a phone has room for."""
    rows = [("attribute", "meaning"), ("---", "---")]
    for each in attributes:
        kind, default = f": {plain_type(each.type)}" * bool(each.type), f" = {each.default}" * bool(each.default)
        about = prose(f"{each.about[:1].upper()}{each.about[1:].rstrip('.')}.", links)
        rows.append((f"`{each.name}{kind}{default}`", about))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


#: How a variable of a class is called in the signatures of its methods, where that is not the class's own name.
VARIABLE = {"Received": "message", "HeldTask": "task", "WorkerPool": "pool", "PoolWorker": "worker"}

#: Classes that a program makes by calling them; the others are given by what is described with them.
CALLED = {
    "ManualClock", "WorkerPool", "RestartPolicy", "Coordinator", "CommunicationSystem", "TokenBucket",
    "CircuitBreaker", "Evaluation",
}  # fmt: skip

#: Public by their spelling alone: parts of the package use them among themselves, and nobody else is promised them.
INTERNAL: dict[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in {
        "Room": "call post hints",  # of the asyncio room, for the page and the MCP server
        "MessageWithLedger": "fill",
        "Received": "holder terms since_ns claimed_ns answer_verdict retry_verdict conclude let_go tell_late was_late",
        "HeldTask": "forget look return_unseen",
        "Session": "watch_folder",
        "Failure": "to_file",
        "WorkerCall": "decoded",
        "WorkerPool": "begin changed give_up may_recycle",
        "PoolWorker": "begin_shutdown is_over life_over requests send start stop_with take_work takes_work wait_over",
        "Coordinator": "clock late note_time now",
        "ManualClock": "boot_id call_later random sleep steady_ns wait_readable wall_ms",
        "StoreBench": "draft want claim ack read state has",
        "StoreContract": "answer_that_its_asker_lost answer_to_a_deleted_question held",
    }.items()
}


def is_internal(cls: type, name: str) -> bool:
    """Whether a member is no part of what is promised; the tests of the contract are its promises, and not listed."""
    return name.startswith("test_") or any(name in INTERNAL.get(base.__name__, ()) for base in cls.__mro__)


def members_of(cls: type) -> list[str]:
    """The attributes and methods that are promised, without those of a class that has its own place."""
    above = {name for base in ours(cls)[1:] if base in placed() for name in (*attributes_of(base), *methods_of(base))}
    names = dict.fromkeys([*attributes_of(cls), *methods_of(cls)])
    return [name for name in names if name not in above and not is_internal(cls, name)]


def signature_block(function: Any, shown: str) -> str:
    return f"```py\n{signature_of(function, shown)}\n```"


def own_doc(cls: type) -> str:
    """A class's docstring; that of a NamedTuple without one is made of its fields, and says nothing."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text


def described(name: str, links: dict[str, str]) -> str:
    """One name of a page: a function, or a class with all that is in it, or with those methods that stand after `|`."""
    name, _, only = name.partition("|")
    thing, shown = named(name), name.removeprefix("postroom.")
    if not isinstance(thing, type):
        return f"## {shown}\n\n{signature_block(thing, name)}\n\n{prose(inspect.getdoc(thing) or '', links)}"
    elsewhere = methods_elsewhere(name)
    if only:
        return "\n\n".join(described_method(thing, shown, each, links) for each in only.split())
    members, attributes = members_of(thing), attributes_of(thing)
    parts = [f"## {shown}"]
    if thing.__name__ in CALLED:
        parts.append(signature_block(thing, name))
    parts.append(prose(own_doc(thing), links))
    parts += [
        f"It has everything of {code(f'`{base.__name__}`', links)}." for base in ours(thing)[1:] if base in placed()
    ][:1]
    parts += [f"More of its methods: {', '.join(f'[{each}]({place})' for each, place in elsewhere.items())}."] * bool(
        elsewhere
    )
    if shown_attributes := [attributes[each] for each in members if each in attributes]:
        parts.append(table_of(shown_attributes, links))
    parts += [
        described_method(thing, shown, each, links)
        for each in members
        if each not in attributes and each not in elsewhere
    ]
    return "\n\n".join(parts)


def described_method(cls: type, shown: str, name: str, links: dict[str, str]) -> str:
    method = methods_of(cls)[name]
    call = f"{VARIABLE.get(cls.__name__, cls.__name__.lower())}.{name}"
    return f"### {shown}.{name}\n\n{signature_block(method, call)}\n\n{prose(inspect.getdoc(method) or '', links)}"


def methods_elsewhere(name: str) -> dict[str, str]:
    """The methods of a class that stand on another page, each with its place."""
    shown = name.removeprefix("postroom.").lower().replace(".", "")
    return {
        method: f"{page.name}.md#{shown}{method}"
        for page in PAGES
        for entry in page.names
        if entry.startswith(f"{name}|")
        for method in entry.partition("|")[2].split()
    }


def kinds_of_errors() -> list[type[errors.PostroomError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in found if issubclass(kind, errors.PostroomError)]


def errors_text(links: dict[str, str]) -> str:
    """The tree of errors as errors.py draws it, and each of them."""
    drawn = inspect.cleandoc(errors.__doc__ or "").partition("\n\n")[2]
    names = "\n".join(re.split(r"(?<=[\w)]) {2,}", line)[0].rstrip() for line in drawn.splitlines())
    parts = [f"## The tree\n\n```text\n{names}\n```\n\n## Every error"]
    for kind in kinds_of_errors():
        also = [
            base.__name__
            for base in kind.__bases__
            if not issubclass(base, errors.PostroomError | Exception) or base.__module__ == "builtins"
        ]
        facts = [f"Also a `{name}`." for name in also if name != "Exception"]
        if attributes := [f"`{each.name}`" for each in written_attributes(kind)]:
            facts.append(f"Attributes: {', '.join(attributes)}.")
        facts.append(f"Exit code {exit_codes.code_of(kind.__new__(kind))}.")
        parts.append(f"### {kind.__name__}\n\n{prose(own_doc(kind), links)} {' '.join(facts)}")
    parts.append(f"## Fault\n\n{prose(own_doc(errors.Fault), links)} It has `field` and `problem`.")
    return "\n\n".join(parts)


def asyncio_text(links: dict[str, str]) -> str:
    """The asyncio room: its calls, which are described where the synchronous ones are."""
    parts = [prose(inspect.cleandoc(postroom.aio.__doc__ or ""), links)]
    for name in postroom.aio.__all__:
        thing = getattr(postroom.aio, name)
        if not isinstance(thing, type):
            parts.append(
                f"## aio.{name}\n\n{signature_block(thing, f'postroom.aio.{name}')}\n\n{prose(inspect.getdoc(thing) or '', links)}"
            )
            continue
        calls = []
        for method_name, method in methods_of(thing).items():
            if not is_internal(thing, method_name):
                awaited = "await " if inspect.iscoroutinefunction(method) else ""
                call = f"{awaited}{VARIABLE.get(name, name.lower())}.{method_name}"
                calls.append(signature_of(method, call, types=False))
        parts.append(f"## aio.{name}\n\n{prose(own_doc(thing), links)}\n\n```py\n" + "\n".join(calls) + "\n```")
    return "\n\n".join(parts)


PAGES = (
    Page(
        "rooms", "Rooms", "A room is opened once by each process, and closed when the process is done with it.",
        ("postroom.open", "postroom.Room"),
    ),
    Page(
        "reading", "Looking into a room", "None of these calls changes anything.",
        ("postroom.Room|receipt why get thread peek count search events cursor watch stats mailboxes agents waits dead_letters",),
    ),
    Page(
        "keeping", "What a room keeps", "Put back, delete or send again what is kept, and say what is not to be stored.",
        ("postroom.Room|requeue purge replay redact unredact redactions retention", "postroom.mail.redaction_rules.Rule",
         "postroom.mail.retaining.Retention"),
    ),
    Page(
        "schedules", "Schedules", "Messages that a room sends by the clock; [schedules](../schedules.md) shows how to use them.",
        ("postroom.Room|schedule unschedule schedules", "postroom.Schedule"),
    ),
    Page(
        "limits", "Limits and pauses", "What a channel gives, and what may wait in it; [limits](../limits.md) shows how to use them.",
        ("postroom.Room|limit unlimit limits pause resume", "postroom.mail.limiting.RoomLimits",
         "postroom.mail.limiting.LimitedChannel", "postroom.stores.gates.LimitRule", "postroom.stores.gates.Paused"),
    ),
    Page("agents", "Agents", "An agent is a name in a room that sends and receives.", ("postroom.Agent", "postroom.AgentInfo")),
    Page(
        "asking", "Asking, and groups", "[Several agents, groups and threads](../conversations.md) shows how to use them.",
        ("postroom.Agent|ask ask_many", "postroom.Answers", "postroom.Groups"),
    ),
    Page(
        "people", "Questions to people", "[Ask a person](../people.md) shows how to use them.",
        ("postroom.People", "postroom.PersonQuestion", "postroom.PersonAnswer"),
    ),
    Page(
        "receiving", "Receiving", "How an agent gets messages.", ("postroom.Agent|receive poll claimed listen serve",),
    ),
    Page(
        "messages", "Messages", "What a room keeps of a message, and how it stands.",
        ("postroom.Message", "postroom.MessageWithLedger", "postroom.State"),
    ),
    Page("received", "Received messages", "What a receiver holds, and what it may say of it.", ("postroom.Received",)),
    Page(
        "receipts", "Receipts, reasons and figures", "What a room tells of its messages.",
        (
            "postroom.Receipt", "postroom.Event", "postroom.DeadLetter", "postroom.Attempt", "postroom.Wait",
            "postroom.mail.reasons.Reason", "postroom.mail.searching.Hits", "postroom.stores.contract.Change", "postroom.stores.contract.Stats",
            "postroom.stores.contract.MailboxFigures",
        ),
    ),
    Page(
        "board", "The board", "Tasks with owners, leases and dependencies; [the board](../board.md) shows how to use it.",
        ("postroom.Board", "postroom.Task"),
    ),
    Page("held-tasks", "Claimed tasks", "What the owner of a task holds, and what it may say of it.", ("postroom.HeldTask",)),
    Page(
        "reservations", "Reserved files", "Which agent works on which files; made by [Room.reserve](rooms.md#roomreserve).",
        ("postroom.Reservation", "postroom.Reserved"),
    ),
    Page(
        "patterns", "Ways to work together", "The functions of `postroom.patterns`; [the board](../board.md) shows all three.",
        tuple(f"postroom.patterns.{name}" for name in ("lead", "work_for_lead", "work_from_board", "work_as_stage")),
    ),
    Page(
        "sessions", "Sessions", "Workers that do one thing together, and fail together; see [sessions](../sessions.md).",
        tuple(f"postroom.{name}" for name in ("Session", "Mailroom", "Mailbox", "worker", "Worker", "WorkerCall", "Failure")),
    ),
    Page(
        "pools", "Pools of workers", "Processes that judge messages; see [pools](../pool.md).",
        ("postroom.WorkerPool", "postroom.RestartPolicy"),
    ),
    Page(
        "pool-workers", "Workers of a pool", "One process of a pool, and what it returns.",
        ("postroom.PoolWorker", "postroom.Evaluation"),
    ),
    Page(
        "coordinator", "The coordinator", "Which workers of a pool may answer a message; see [pools](../pool.md).",
        (
            "postroom.Coordinator", "postroom.Decision", "postroom.pools.decide.Outcome", "postroom.coordinate.decide",
            "postroom.pools.decide.Config",
        ),
    ),
    Page(
        "models", "Language models", "The names of `postroom.inference`; see [inference](../inference.md).",
        tuple(
            f"postroom.inference.{name}"
            for name in "open_model default_spec Model Completion compose mock ollama openai claude codex by_spec".split()
        ),
    ),
    Page(
        "broker", "The plain broker", "A broker in a project's folder; see [communications](../communications.md).",
        (
            "postroom.CommunicationSystem", "postroom.communications.Message", "postroom.TokenBucket",
            "postroom.CircuitBreaker", "postroom.CircuitState",
        ),
    ),
    Page(
        "settings", "Settings of a room",
        "Given to [open](rooms.md#open) as arguments (`max_deliveries=5`), or in the address: `sqlite:PATH?max_deliveries=5`.",
        ("postroom.Config",),
    ),
    Page(
        "testing", "Testing",
        "A clock that tests set, and the suite that every store must pass.",
        (
            "postroom.ManualClock",
            *(f"postroom.testing.{name}" for name in ("StoreContract", "StoreBench", "gone_process", "together")),
        ),
    ),
    Page(
        "histories", "Judged histories", "The calls of many processes on one room, recorded and judged afterwards.",
        (
            *(f"postroom.testing.histories.{name}" for name in ("RecordedStore", "Recorder", "read", "judge", "HistoryVerdict", "Impossible", "RecordedCall")),
        ),
    ),
)  # fmt: skip

#: Pages that are not made of single names.
OTHERS = (
    Page(
        "asyncio", "asyncio", "", ()
    ),
    Page(
        "errors", "Errors",
        "Every error derives from `postroom.PostroomError`, so one `except` catches them all. A call that raises has changed "
        "nothing, unless its description says otherwise. Any call on a room may raise RoomClosed, RoomBusy, "
        "RoomUnreachable and, on servers, OutcomeUnknown.", (),
    ),
)  # fmt: skip

WRITTEN = "<!-- Written by `python -m tests.house.test_docs` from the code; changes belong there. -->"


@cache
def placed() -> frozenset[type]:
    """The classes that have a place of their own."""
    return frozenset(
        thing for page in PAGES for name in page.names if isinstance(thing := named(name.partition("|")[0]), type)
    )


@cache
def places() -> dict[str, str]:
    """Where each name is described, as a link from another page of the reference."""
    links = {kind.__name__: f"errors.md#{kind.__name__.lower()}" for kind in kinds_of_errors()}
    for page in reversed(PAGES):  # where two have one name, the first page is meant
        for name in (name for name in page.names if "|" not in name):
            shown = name.removeprefix("postroom.")
            links[shown.rpartition(".")[2]] = f"{page.name}.md#{re.sub(r'[^a-z0-9_]', '', shown.lower())}"
    return links


def pages() -> dict[str, str]:
    """The pages of the library's reference by their file names."""
    links = places()
    made = {page.name: [described(name, links) for name in page.names] for page in PAGES}
    made |= {"asyncio": [asyncio_text(links)], "errors": [errors_text(links)]}
    return {
        f"{page.name}.md": "\n\n".join(
            filter(None, [f"# {page.title}", WRITTEN, prose_about(page, links), *made[page.name]])
        )
        + "\n"
        for page in (*PAGES, *OTHERS)
    }


def index() -> str:
    """The page before all others: which names are where."""
    parts = ["# Reference", WRITTEN]
    parts.append("Every name that programs may use, every command, every setting and every variable.")
    lines = [
        f"- [{page.title}](reference/{page.name}.md): " + ", ".join(f"`{shown(name)}`" for name in page.names)
        for page in PAGES
    ]
    parts += [
        "## The library",
        "\n".join([*lines, *(f"- [{page.title}](reference/{page.name}.md)" for page in OTHERS)]),
    ]
    parts.append("## The command line\n\n- [Commands](reference/commands.md): options of every command, exit codes")
    parts.append("## Surroundings\n\n- [Environment variables](reference/environment.md)")
    return "\n\n".join(parts) + "\n"


def shown(name: str) -> str:
    """A name in the list of a page; of a class that stands on several, the methods that are there."""
    name, _, only = name.removeprefix("postroom.").partition("|")
    return "`, `".join(f"{name}.{method}" for method in only.split()) if only else name


def prose_about(page: Page, links: dict[str, str]) -> str:
    return page.about if "](" in page.about else prose(page.about, links)
