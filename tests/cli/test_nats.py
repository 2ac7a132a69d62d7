"""`postroom nats config`: what it writes starts, keeps rooms apart, and is what the doctor wants to see."""

from __future__ import annotations

import shlex
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.nats_proxy import Proxy
from tests.support.nats_servers import need_server, room_name, running_server, shared_server

import postroom
from postroom.cli.doctor import nats as doctor_nats
from postroom.core.clock import SYSTEM
from postroom.errors import RoomUnreachable
from postroom.stores.nats import connection

from .support import Cli, command

PATIENCE_S = 60.0


def free_base_port() -> int:
    """A port P such that those of three servers on one machine are free: P, P + 2000 and P + 4000, and the next two."""
    for base in range(21_000, 27_000, 7):
        with ExitStack() as held:
            try:
                for port in (base + more + place for more in (0, 2000, 4000) for place in range(3)):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


@pytest.fixture
def cluster(cli: Cli, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Three servers, started from what the command wrote; the credentials of `team` are kept for them."""
    program = need_server()
    written: dict[str, Any] = cli.json(
        "nats", "config", "--nodes", "3", "--dir", str(tmp_path / "nats"), "--port", str(free_base_port()),
        "--for", "team", "--for", "builds", "--max-file", "1G",
    )  # fmt: skip
    cli.ok(*written["allow"]["team"][1:])
    with ExitStack() as running:
        for node in written["nodes"]:
            server = subprocess.Popen(
                [program, "-c", f"{node['name']}.conf", "-l", f"{node['name']}.log"], cwd=tmp_path / "nats"
            )
            running.callback(server.wait)
            running.callback(server.kill)
        yield written


def open_when_there(url: str, unless: str = "nothing") -> postroom.Room:
    """Open a room; the servers may still be looking for each other. What they say otherwise is raised."""
    until_ns = SYSTEM.steady_ns() + int(PATIENCE_S * 1e9)
    while True:
        try:
            return postroom.open(url)
        except RoomUnreachable as error:
            if SYSTEM.steady_ns() > until_ns or unless in str(error):
                raise
            SYSTEM.sleep(0.2)


@pytest.mark.slow
def test_three_servers_start_from_what_is_written_and_the_doctor_is_content(cli: Cli, cluster: dict[str, Any]) -> None:
    with open_when_there(cluster["rooms"]["team"]) as room:
        id = room.agent("ada").send("bob", {"text": "over TLS"})
        assert room.agent("bob").receive(timeout_s=10).id == id
    # asyncio warns of streams that are kept half open over TLS, unless they are told of it
    looked = subprocess.run(
        command("peek", "--json", "--room", cluster["rooms"]["team"]), capture_output=True, text=True, check=True
    )
    assert looked.stderr == ""
    monitors = [word for node in cluster["nodes"] for word in ("--monitor", f"http://127.0.0.1:{node['monitor_port']}")]

    result = cli("doctor", "--json", "--room", cluster["rooms"]["team"], *monitors)

    seen = {check["check"]: check["verdict"] for check in result.json["checks"]}
    assert result.code == 0, result
    assert {seen[name] for name in ("server", "copies", "stream", "storage", "server clock", "sync")} == {"ok"}, (
        result.json
    )


@pytest.mark.slow
def test_a_send_whose_reply_is_lost_ends_with_7_names_the_message_and_does_not_wait_to_say_goodbye(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, name = shared_server(), room_name()
    with closing(Proxy(int(server.address.rpartition(":")[2]))) as proxy, ExitStack() as near:
        room = near.enter_context(postroom.open(f"nats://{server.address}/{name}"))
        room.agent("bob")
        real = postroom.open
        ends: list[str] = []

        def opened(*words: Any, **settings: Any) -> postroom.Room:
            far = real(*words, **settings)
            far.hooks.on("before_send", lambda *_: proxy.cut(to_server=False, to_client=True))
            close_store, close = far.store.close, far.close
            monkeypatch.setattr(far.store, "close", lambda: [ends.append("connection"), close_store()])  # type: ignore[func-returns-value]
            monkeypatch.setattr(far, "close", lambda: [ends.append("room"), close()])  # type: ignore[func-returns-value]
            return far

        monkeypatch.setattr(postroom, "open", opened)
        words = ["send", "bob", "hi", "--as", "ada", "--room", f"nats://{proxy.address}/{name}?server_timeout_s=0.2"]
        result = cli(*words, "--json")
        proxy.cut(to_server=False, to_client=False)

        (id,) = result.json["error"].pop("ids")
        assert (result.code, result.json["error"]["type"]) == (7, "OutcomeUnknown")
        assert "there was no answer within 0.2 s" in result.err
        assert room.get(id).payload == {"text": "hi"}
        assert ends[:2] == ["connection", "room"]  # without it first, the room would be waited for once more


@pytest.mark.slow
def test_a_room_is_closed_to_those_of_another(
    cluster: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team, builds = cluster["rooms"]["team"], cluster["rooms"]["builds"]
    with open_when_there(team) as room:
        room.agent("ada").send("bob", {"text": "secret"})

    authority = f"tls_ca={tmp_path}/nats/ca.cert"
    theirs = f"user=builds&password_file={tmp_path}/nats/builds.password"
    with open_when_there(f"{builds}?{theirs}&{authority}") as other:
        other.agent("ada")
    with open_when_there(f"{team}?{theirs}&{authority}") as other:
        assert other.peek(state="pending") == []  # an account of its own: a room of that name, but not that room
    (tmp_path / "wrong").write_text("guessed")
    with pytest.raises(RoomUnreachable, match="refused the connection.*(?i:authorization)"):
        open_when_there(f"{team}?user=team&password_file={tmp_path}/wrong&{authority}", unless="refused the connection")
    monkeypatch.setattr(connection, "OPEN_S", 2.0)  # nobody answers, however long one waits
    with pytest.raises(RoomUnreachable, match="(?i:certificate)"):  # one that the system's authorities do not know
        postroom.open(f"{team}?user=team&password_file={tmp_path}/nats/team.password")


def test_what_holds_passwords_and_keys_is_its_owners_alone(cli: Cli, tmp_path: Path) -> None:
    cli.ok("nats", "config", "--nodes", "1", "--dir", str(tmp_path / "nats"))

    secret = [path for path in (tmp_path / "nats").iterdir() if path.suffix in (".conf", ".key", ".password")]
    assert len(secret) == 4
    assert {path.stat().st_mode & 0o077 for path in [*secret, tmp_path / "nats"]} == {0}


@pytest.mark.parametrize("host", ["127.0.0.1", "a.example"])
def test_a_strict_verifier_accepts_the_certificates(cli: Cli, tmp_path: Path, host: str) -> None:
    """One that asks for every extension of RFC 5280, as Python does from 3.13 on."""
    folder = tmp_path / "nats"
    cli.ok("nats", "config", "--nodes", "1", "--hosts", host, "--dir", str(folder))
    ours, theirs = ssl.create_default_context(cafile=folder / "ca.cert"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.verify_flags |= ssl.VERIFY_X509_STRICT
    theirs.load_cert_chain(folder / "n1.cert", folder / "n1.key")
    to_us, to_them = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(to_us, to_them, server_hostname=host)
    server = theirs.wrap_bio(to_them, to_us, server_side=True)

    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()

    assert client.getpeercert()["subject"] == ((("commonName", "n1"),),)  # type: ignore[index]


@pytest.mark.parametrize(
    ("max_file", "nodes", "each"), [("10G", 1, 4_500_000_000), ("10G", 3, 13_500_000_000), ("1KB", 1, 460)]
)
def test_the_rooms_of_one_server_share_less_than_it_has(
    cli: Cli, tmp_path: Path, max_file: str, nodes: int, each: int
) -> None:
    words = ["--nodes", str(nodes), "--max-file", max_file, "--for", "a", "--for", "b", "--no-tls"]
    cli.ok("nats", "config", "--dir", str(tmp_path / "nats"), *words)

    assert (tmp_path / "nats" / "n1.conf").read_text().count(f"jetstream: {{ max_file: {each} }}") == 2


def test_the_words_that_are_printed_keep_the_credentials_and_open_the_room(cli: Cli, tmp_path: Path) -> None:
    program = need_server()
    out = cli.ok("nats", "config", "--nodes", "1", "--port", str(free_base_port()), "--dir", str(tmp_path / "nats")).out
    allow, init = (shlex.split(line) for line in out.splitlines() if line.startswith("  postroom "))
    server = subprocess.Popen([program, "-c", "n1.conf", "-l", "n1.log"], cwd=tmp_path / "nats")
    try:
        assert cli(*allow[1:]).code == 0
        open_when_there(init[-1]).close()
        assert init[-1] in cli.ok(*init[1:]).out
    finally:
        server.kill()
        server.wait()


def test_nothing_is_written_over(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "n1.conf").write_text("mine")

    result = cli("nats", "config", "--dir", str(tmp_path / "here"), "--no-tls")

    assert result.code == 1
    assert "not empty" in result.err
    assert [path.read_text() for path in (tmp_path / "here").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2"], "1, 3 or 5"),
        (["--nodes", "3", "--hosts", "a,b"], "names 2 different hosts"),
        (["--nodes", "3", "--hosts", "a,b,b"], "names 2 different hosts"),
        (["--for", "my room"], "letters, digits"),
        (["--max-file", "lots"], "is not a size"),
    ],
)
def test_wrong_usage_says_what_is_expected(cli: Cli, tmp_path: Path, words: list[str], said: str) -> None:
    result = cli("nats", "config", "--dir", str(tmp_path / "nats"), *words)

    assert result.code == 2
    assert said in result.err
    assert not (tmp_path / "nats").exists()


# --- the doctor ----------------------------------------------------------------------------------------------------


def test_the_doctor_warns_of_one_copy_and_of_what_cannot_be_seen(cli: Cli) -> None:
    url = f"nats://{shared_server().address}/{room_name()}"
    postroom.open(url).close()

    result = cli("doctor", "--json", "--room", url)

    seen = {check["check"]: check["verdict"] for check in result.json["checks"]}
    assert result.code == 0
    assert (seen["server"], seen["copies"], seen["stream"], seen["sync"]) == ("ok", "warn", "ok", "warn")


@pytest.mark.parametrize(
    ("copies", "used", "limit", "verdict", "said"),
    [
        (1, 10, -1, "ok", "max_file"),
        (3, 10, -1, "warn", "no longer elect a leader"),
        (3, 10, 1000, "ok", "of the room's account"),
        (3, 950, 1000, "warn", "sends are refused"),
    ],
)
def test_the_doctor_tells_of_the_space_that_is_left(
    copies: int, used: int, limit: int, verdict: str, said: str
) -> None:
    check = doctor_nats.storage({"copies": copies, "account_bytes": used, "account_limit_bytes": limit})

    assert (check.verdict, said in check.says) == (verdict, True)


def test_the_doctor_finds_a_stream_that_would_drop_messages(cli: Cli) -> None:
    import asyncio
    import json

    import nats

    name = room_name()
    url = f"nats://{shared_server().address}/{name}"
    postroom.open(url).close()

    async def spoil() -> None:
        client = await nats.connect(f"nats://{shared_server().address}")
        info = json.loads((await client.request(f"$JS.API.STREAM.INFO.POSTROOM_{name}", b"", timeout=5)).data)
        changed = json.dumps({**info["config"], "max_msgs": 10}).encode()
        await client.request(f"$JS.API.STREAM.UPDATE.POSTROOM_{name}", changed, timeout=5)
        await client.close()

    asyncio.run(spoil())
    result = cli("doctor", "--json", "--room", url)

    assert result.code == 1
    (stream,) = [check for check in result.json["checks"] if check["check"] == "stream"]
    assert stream["verdict"] == "fail"
    assert "max_msgs is 10" in stream["says"]


def test_a_server_that_is_not_there_is_one_clear_sentence(cli: Cli) -> None:
    with running_server() as server:
        address = server.address

    result = cli("status", "--room", f"nats://{address}/team?server_timeout_s=0.5")

    assert result.code == 4
    assert address in result.err
    assert "is it running" in result.err


def test_commands_do_not_make_a_room_by_the_way(cli: Cli) -> None:
    result = cli(
        "send", "bob", "hi", "--as", "ada", "--new", "--room", f"nats://{shared_server().address}/{room_name()}"
    )

    assert result.code == 4
    assert "postroom init" in result.err


def test_mail_can_be_sent_and_received_by_commands(cli: Cli) -> None:
    room = ("--room", f"nats://{shared_server().address}/{room_name()}")
    cli.ok("init", *room)

    cli.ok("send", "bob", "over the wire", "--as", "ada", "--new", *room)
    received = cli.json("receive", "--as", "bob", *room)
    cli.ok("ack", received["id"], "--as", "bob", *room)

    assert received["payload"] == {"text": "over the wire"}
    assert cli.json("receipt", received["id"], *room)["state"] == "acked"
    assert cli("sql", "SELECT 1", *room).code == 1
