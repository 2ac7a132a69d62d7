"""The runbook (docs/operations.md and docs/operations/) has an entry for whatever an operator meets, in the words met.

The doctor's findings are read from its source, with `…` for what is only known when it runs; an entry quotes one as it
may look. So a finding that is added, reworded or taken away is missed here until the runbook follows.

Commands in a block `sh` are run, page by page, as a reader would type them. A block `console` is for programs that this
suite cannot run: they need a service manager, a container engine or another project's tool.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from tests.cli.support import clean_environment
from tests.support import DOCS, ROOT
from tests.support.nats_servers import free_ports, need_server, room_name, shared_server

import postroom
from postroom import errors
from postroom.cli import exit_codes
from postroom.core.states import PUBLIC_STATES
from postroom.doors.web.metrics import metrics
from postroom.mail.presence import STATUSES

CLI = ROOT / "src/postroom/cli"
ANYTHING = ".+"
#: A finding in the runbook, as the doctor may say it.
QUOTED = re.compile(r'\*\*"(.+?)"\*\*')


def runbook() -> str:
    """All pages of the runbook."""
    pages = [DOCS / "operations.md", *sorted((DOCS / "operations").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


# --- the doctor's findings -----------------------------------------------------------------------------------------


class Finding(NamedTuple):
    """One thing that the doctor may say, as patterns, and whether that can be anything but good."""

    check: str
    says: str
    is_good: bool

    def __str__(self) -> str:
        return re.sub(r"\\(.)", r"\1", f"{self.check}: {self.says}".replace(ANYTHING, "…"))


def findings_in(text: str) -> list[Finding]:
    """Every `Check(name, verdict, says)` of a file; names are followed to what was last assigned to them above."""
    tree = ast.parse(text)
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]
    found: dict[ast.Call, Finding] = {}
    for scope in scopes:  # those further inside come later, and win
        for call in ast.walk(scope):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Check":
                check, _, says = (pattern_of(each, call.lineno, scope, tree) for each in call.args[:3])
                found[call] = Finding(check, says, ast.unparse(call.args[1]) == "OK")
    return [found[call] for call in sorted(found, key=lambda call: (call.lineno, call.col_offset))]


def pattern_of(node: ast.expr, line: int, *scopes: ast.AST) -> str:
    """A pattern of the text that an expression may give."""
    match node:
        case ast.Constant(str(text)):
            return re.escape(text)
        case ast.JoinedStr(values):
            return "".join(pattern_of(value, line, *scopes) for value in values)
        case ast.BinOp(left, ast.Add(), right):
            return pattern_of(left, line, *scopes) + pattern_of(right, line, *scopes)
        case ast.FormattedValue(ast.Name(name)) if name.isupper():
            return pattern_of(ast.Name(name), line, *scopes)
        case ast.IfExp(_, one, other):
            return f"(?:{pattern_of(one, line, *scopes)}|{pattern_of(other, line, *scopes)})"
        case ast.Name(name):
            return _assigned(name, line, *scopes)
    return ANYTHING


def _assigned(name: str, line: int, *scopes: ast.AST) -> str:
    for scope in scopes:
        steps = [step for step in ast.walk(scope) if isinstance(step, ast.Assign | ast.AnnAssign | ast.AugAssign)]
        above = sorted((step for step in steps if step.lineno < line), key=lambda step: step.lineno)
        pattern = None
        for step in above:
            targets = step.targets if isinstance(step, ast.Assign) else [step.target]
            if name in [ast.unparse(target) for target in targets] and step.value is not None:
                new = pattern_of(step.value, step.lineno, *scopes)
                pattern = f"{pattern}{new}" if isinstance(step, ast.AugAssign) else new
        if pattern is not None:
            return pattern
    return ANYTHING


def doctors_findings() -> list[Finding]:
    files = [*sorted((CLI / "doctor").glob("*.py")), CLI / "commands/doctor.py"]
    return [finding for path in files for finding in findings_in(path.read_text(encoding="utf-8"))]


def entries() -> Iterator[tuple[str, list[str]]]:
    """The runbook's sections on checks, by name, each with the findings that it quotes."""
    for section in re.findall(r"^### (.+?)\n(.*?)(?=^#|\Z)", runbook(), re.M | re.S):
        yield section[0], QUOTED.findall(section[1])


def test_every_check_and_finding_of_the_doctor_has_its_entry() -> None:
    found, quoted = doctors_findings(), list(entries())
    assert len(found) > 80

    assert [str(f) for f in found if not any(re.fullmatch(f.check, name) for name, _ in quoted)] == []
    assert [
        str(f)
        for f in found
        if not f.is_good
        and not any(
            re.fullmatch(f.check, name) and re.fullmatch(f.says, says) for name, texts in quoted for says in texts
        )
    ] == []


def test_every_finding_that_the_runbook_quotes_is_one_of_the_doctors() -> None:
    found = [finding for finding in doctors_findings() if not finding.is_good]
    quoted = [(name, says) for name, texts in entries() for says in texts]
    assert len(quoted) > 45

    assert [
        (name, says)
        for name, says in quoted
        if not any(re.fullmatch(f.check, name) and re.fullmatch(f.says, says) for f in found)
    ] == []


def test_a_finding_is_read_from_the_source_with_its_words_and_what_varies() -> None:
    text = """
WHERE = "home"
def one(n):
    says = "fine"
    yield Check("a", OK, says)
    says = f"{n} of {WHERE}" if n else "none"
    says += "!"
    return Check("b", FAIL, says, "advice")
"""

    assert findings_in(text) == [
        Finding("a", "fine", is_good=True),
        Finding("b", "(?:.+\\ of\\ home|none)!", is_good=False),
    ]


# --- errors --------------------------------------------------------------------------------------------------------


def rows_of_errors() -> dict[str, str]:
    """The errors that the runbook has a row for, with the exit code in it."""
    page = (DOCS / "operations/errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\d) \| .+ \|$", page, re.M)
    return {name: code for names, code in rows for name in re.findall(r"\w+", names)}


def test_every_error_has_its_row_with_the_exit_code_of_a_command_that_it_ends() -> None:
    classes = {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.PostroomError) and kind.__module__ == errors.__name__
    }
    expected = {name: str(exit_codes.code_of(kind.__new__(kind))) for name, kind in classes.items()}

    assert rows_of_errors() == expected


# --- metrics -------------------------------------------------------------------------------------------------------


def test_the_page_on_monitoring_names_every_metric_with_its_labels_and_no_other() -> None:
    page = (DOCS / "operations/monitor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(postroom_\w+)` \| (.*?) ?\| .+ \|$", page, re.M)
    with postroom.open("memory:") as room:
        room.agent("ada").send("bob", {})
        told = metrics(room)
    labels = {name: re.findall(r"(\w+)=", text) for name, text in re.findall(r"^(postroom_\w+)(\{.*\})? ", told, re.M)}

    assert {name: re.findall(r"\w+", text) for name, text in rows} == labels
    assert set(re.findall(r"postroom_\w+", page)) == set(labels)


def test_the_alerts_ask_for_states_and_statuses_that_there_are() -> None:
    page = (DOCS / "operations/monitor.md").read_text(encoding="utf-8")
    rules = re.findall(r"expr: (.+)", page)

    assert len(rules) >= 5
    assert set(re.findall(r'status="(\w+)"', "".join(rules))) <= set(STATUSES)
    assert set(re.findall(r'state="(\w+)"', "".join(rules))) <= set(PUBLIC_STATES)
    assert [
        f"| `{word}` | {meaning} |" for word, meaning in STATUSES.items() if f"| `{word}` | {meaning} |" not in page
    ] == []


# --- commands ------------------------------------------------------------------------------------------------------

#: What a page's reader has: a room with mail and an attached file, and a room of files, both below /srv/team.
PLACE = """
set -euo pipefail
trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT
mkdir -p ~ /srv/team /srv/backup
cd ~
echo secret | tee ca.pem > .nats-password
chmod 600 .nats-password
postroom init --room files:/srv/team/mail
export POSTROOM_URL=sqlite:/srv/team/room
postroom init
postroom attach ca.pem
postroom send bob '{"text": "hello"}' --as ada --new
# the server of the page runs on while its reader goes on; whatever was started before ends well
postroom() {
    if [ "$1" = purge ]; then command postroom "$@" || [ $? = 3 ]; return; fi  # nothing is old here
    if [ "$1" != web ]; then command postroom "$@"; return; fi
    if [ -n "${web:-}" ]; then kill "$web"; wait "$web"; fi
    mkfifo said
    exec 9<> said
    rm said
    command postroom "$@" >&9 9<&- &
    web=$!
    read -r _ <&9
}
"""
#: Programs of others that the suite cannot run, and where they come from.
NOT_RUN = {"systemctl": "systemd", "docker": "a container engine", "nats": "the NATS project"}
RUN = [
    *("operations.md", "web.md", "security.md"),
    *sorted(f"operations/{page.name}" for page in (DOCS / "operations").glob("*.md")),
]


def blocks_of(page: str, kind: str) -> list[str]:
    """The blocks of a kind in a page, as a reader would copy them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [textwrap.dedent(body) for _, body in re.findall(rf"^( *)```{kind}\n(.*?)^\1```", text, re.M | re.S)]


def free_rows() -> int:
    """A port from which on the ports of three servers are free: for clients, and 2000 and 4000 above them."""
    for port in range(20000, 28000, 10):
        try:
            for each in (port + above + n for above in (0, 2000, 4000) for n in range(3)):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")


def script_of(page: str, place: Path) -> str:
    """A page's commands as a script, in a place of its own and at ports of its own."""
    script = PLACE + "\n".join(blocks_of(page, "sh"))
    rows, (web, nats) = free_rows(), free_ports(2)
    ports = {"7678": web, "4222": nats, "5222": rows, "5223": rows + 1, "5224": rows + 2, "9222": rows + 4000}
    script = re.sub(r"(?<=[ :=])(\d{4})\b", lambda port: str(ports.get(port[0], port[0])), script)
    return script.replace("/srv/", f"{place}/srv/")


def run_page(page: str, place: Path) -> None:
    home = place / "home"
    home.mkdir()
    for name, program in re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S):
        (home / name).write_text(program, encoding="utf-8")
    variables = clean_environment(
        HOME=str(home), PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", BROWSER="true"
    )
    variables.pop("POSTROOM_CONFIG")
    done = subprocess.run(
        ["bash", "-c", script_of(page, place)], env=variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUN if blocks_of(page, "sh")])
def test_the_commands_of_a_page_work_in_their_order(tmp_path: Path, page: str) -> None:
    need_server()
    run_page(page, tmp_path)


def test_only_programs_of_others_are_shown_without_being_run() -> None:
    shown = [line for page in RUN for block in blocks_of(page, "console") for line in block.splitlines()]
    assert len(shown) >= 4

    assert [line for line in shown if re.sub(r"^[$#] ", "", line).split()[0] not in NOT_RUN] == []


# --- backup --------------------------------------------------------------------------------------------------------


def by_command(room: Path, copy: Path) -> None:
    """As the page says for a room in use."""
    backup = copy.with_name("room.backup")
    for words in (["backup", str(backup), "--room", f"sqlite:{room}"], ["restore", str(backup), f"sqlite:{copy}"]):
        subprocess.run([sys.executable, "-m", "postroom", *words], check=True)


def by_copying(room: Path, copy: Path) -> None:
    """As the page says for a room that nobody uses."""
    subprocess.run(["cp", "-a", room, copy], check=True)


#: Takes carl's mail, says so, and works on it until it is ended.
AT_WORK = """
import sys, postroom
with postroom.open(sys.argv[1]) as room, room.agent("carl").receive(timeout_s=30) as message:
    print(message.id, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("store", "back_up", "in_use"),
    [("sqlite", by_command, True), ("sqlite", by_copying, False), ("files", by_copying, False)],
)
def test_a_backup_brings_back_the_room_as_it_was_at_that_moment(
    tmp_path: Path, store: str, back_up: Callable[[Path, Path], None], in_use: bool
) -> None:
    place, copy, url = tmp_path / "room", tmp_path / "copy", f"{store}:{tmp_path}/room"
    (tmp_path / "report").write_bytes(b"figures")
    with postroom.open(url) as room:
        room.board.add("T1")
        attached = room.attach(tmp_path / "report")
        waits, held = room.agent("ada").send("bob", attached), room.agent("ada").send("carl", {})
    with subprocess.Popen(
        [sys.executable, "-c", AT_WORK, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as carl:
        assert carl.stdout is not None and carl.stdout.readline().strip() == held
        if in_use:
            back_up(place, copy)
        carl.communicate("")  # the work is done
    if not in_use:
        back_up(place, copy)

    place.rename(tmp_path / "broken")
    copy.rename(place)
    with postroom.open(url) as room:
        states = {message.id: message.state for message in room.peek(state=None)}
        assert states == {waits: "stored", held: "stored" if in_use else "acked"}
        assert [task.id for task in room.board.tasks()] == ["T1"]
        assert room.artifact(attached).read_bytes() == b"figures"
        if in_use:
            again = room.agent("carl").receive(timeout_s=0)
            assert (again.id, again.delivery_count) == (held, 1), "a backup counts no delivery"


async def stream_backed_up(address: str, stream: str) -> tuple[dict[str, Any], list[bytes]]:
    """What `nats stream backup` asks the servers for; the stream is deleted afterwards, as if it had been lost."""
    client = await nats.connect(address)
    parts = await client.subscribe(client.new_inbox())
    request = json.dumps({"deliver_subject": parts.subject}).encode()
    about = json.loads((await client.request(f"$JS.API.STREAM.SNAPSHOT.{stream}", request, timeout=30)).data)
    kept = []
    while (part := await parts.next_msg(timeout=30)).data:  # the last one is empty
        kept.append(part.data)
        if part.reply:
            await part.respond(b"")
    await client.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=30)
    await client.close()
    return about, kept


async def restore_stream(address: str, stream: str, about: dict[str, Any], kept: list[bytes]) -> None:
    """What `nats stream restore` does."""
    client = await nats.connect(address)
    request = json.dumps({"config": about["config"], "state": about["state"]}).encode()
    begun = json.loads((await client.request(f"$JS.API.STREAM.RESTORE.{stream}", request, timeout=30)).data)
    for part in (*kept, b""):
        await client.request(begun["deliver_subject"], part, timeout=30)
    await client.close()


@pytest.mark.slow
def test_a_room_on_nats_is_as_it_was_after_its_stream_was_backed_up_in_use_and_restored() -> None:
    server, name = shared_server(), room_name()
    url, stream = f"nats://{server.address}/{name}", f"POSTROOM_{name}"
    with postroom.open(url) as room:
        ids = [room.agent("ada").send("bob", {"text": "x" * size}) for size in (10, 10_000)]
        room.board.add("T1")
        assert room.agent("bob").receive(timeout_s=30).ack()
        about, kept = asyncio.run(stream_backed_up(server.address, stream))
    asyncio.run(restore_stream(server.address, stream, about, kept))

    with postroom.open(url) as room:
        assert [task.id for task in room.board.tasks()] == ["T1"]
        assert {message.id: message.state for message in room.peek(state=None)} == {ids[0]: "acked", ids[1]: "stored"}
        again = room.agent("bob").receive(timeout_s=30)
        assert (again.id, len(again.payload["text"]), again.ack()) == (ids[1], 10_000, True)
