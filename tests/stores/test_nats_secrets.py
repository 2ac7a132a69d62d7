"""Credentials of rooms on NATS: a server is shown only what the user or the program gave for it, where nobody else can read it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support import TESTS
from tests.support.nats_recorder import Recorder, recording
from tests.support.nats_servers import room_name, running_cluster, running_server

import postroom
from postroom.core import trust
from postroom.core.config import parse_url
from postroom.core.trust import ServerEntry, allow_server
from postroom.errors import RoomError, RoomNotAllowed, RoomUnreachable

CANARY = "canary-7d1f"
USERS = (
    'accounts { A: { users: [ { user: "ada", password: "canary-7d1f" } ], jetstream: enabled }\n'
    ' B: { users: [ { user: "bob", password: "other" } ], jetstream: enabled } }'
)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in which nothing is allowed yet."""
    monkeypatch.setenv(trust.CONFIG_VARIABLE, str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(f"{CANARY}\n")
    return file


@pytest.fixture
def stranger() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server with users; its address."""
    with running_server(USERS) as running:
        yield running.address


# --- which server is shown what ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["password_file", "creds", "tls_ca", "tls_cert", "tls_key"])
def test_an_address_names_no_file_for_a_server_that_was_not_allowed(
    stranger: Recorder, secret: Path, option: str
) -> None:
    with pytest.raises(RoomNotAllowed, match=f"names .*{option}.*postroom allow nats://{stranger.address}"):
        postroom.open(f"nats://{stranger.address}/team?user=x&{option}={secret}")

    assert stranger.came == 0


def test_the_file_is_not_even_read(stranger: Recorder, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever

    with pytest.raises(RoomNotAllowed):
        postroom.open(f"nats://{stranger.address}/team?user=x&password_file={tmp_path / 'pipe'}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "file"),
    [("argument", "secret"), ("argument", "/proc/self/environ"), ("variable", "secret"), ("mcp", "secret")],
)
def test_no_command_sends_a_file_of_the_user(stranger: Recorder, secret: Path, way: str, file: str) -> None:
    path = secret if file == "secret" else file
    url = f"nats://{stranger.address}/team?user=x&server_timeout_s=3&password_file={path}"
    words = {"argument": ["status", "--room", url], "variable": ["status"], "mcp": ["mcp", "--room", url]}[way]
    environment = {**os.environ, "API_KEY": CANARY} | ({"POSTROOM_URL": url} if way == "variable" else {})

    done = subprocess.run(
        [sys.executable, "-m", "postroom", *words],
        cwd=secret.parent, env=environment, input=b"", capture_output=True, check=False, timeout=60,
    )  # fmt: skip

    assert stranger.got == b""
    assert stranger.came == 0
    assert CANARY.encode() not in done.stdout + done.stderr
    if way != "mcp":
        assert b"postroom allow" in done.stderr


@pytest.mark.parametrize(
    "trick", ["{0}#@{1}", "{0}\\@{1}", "x@{0}#@{1}", "{0}?@{1}", "{0}%0a#@{1}", "u:p@{0}#,{1}", "{0}\n@{1}"]
)
def test_an_address_that_can_be_read_in_two_ways_is_shown_nothing(stranger: Recorder, secret: Path, trick: str) -> None:
    """The one that checks an address and the one that connects must find the same server in it."""
    allow_server(ServerEntry(path="nats.example:4222"))
    address = "nats://" + trick.format(stranger.address, "nats.example:4222")

    with pytest.raises(RoomError):
        postroom.open(f"{address}/team?user=x&server_timeout_s=1&password_file={secret}")

    assert stranger.came == 0


def test_credentials_in_the_address_of_an_allowed_server_are_used(server: str, secret: Path) -> None:
    allow_server(ServerEntry(path=server))

    with postroom.open(f"nats://{server}/{room_name()}?user=ada&password_file={secret}") as room:
        assert room.agent("ada").send("bob", {})


def test_credentials_that_the_program_gives_are_used(server: str, secret: Path) -> None:
    with postroom.open(f"nats://{server}/{room_name()}", user="ada", password_file=str(secret)) as room:
        assert room.agent("ada").send("bob", {})


def test_credentials_of_the_users_configuration_are_used_for_their_server(server: str, secret: Path) -> None:
    name = room_name()
    with pytest.raises(RoomUnreachable, match="refused the connection"):
        postroom.open(f"nats://{server}/{name}")

    allow_server(ServerEntry(path=server, user="ada", password_file=str(secret)))

    with postroom.open(f"nats://{server}/{name}") as room:
        assert room.agent("ada").send("bob", {})


def test_a_server_named_beside_an_allowed_one_is_shown_nothing(server: str, stranger: Recorder, secret: Path) -> None:
    allow_server(ServerEntry(path=server, user="ada", password_file=str(secret)))

    for address in (f"{server},{stranger.address}", f"{stranger.address},{server}"):
        with pytest.raises(RoomNotAllowed, match="different credentials, or none"):
            postroom.open(f"nats://{address}/team")
        with pytest.raises(RoomNotAllowed, match=stranger.address):
            postroom.open(f"nats://{address}/team?user=ada&password_file={secret}")

    assert stranger.came == 0


def test_a_configuration_that_came_with_a_repository_allows_nothing(
    stranger: Recorder, secret: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_server(ServerEntry(path=stranger.address, user="x", password_file=str(secret)))
    shutil.copytree(config, tmp_path / "clone")
    monkeypatch.setenv(trust.CONFIG_VARIABLE, str(tmp_path / "clone"))

    with suppress(RoomError):
        postroom.open(f"nats://{stranger.address}/team?server_timeout_s=2")

    assert CANARY.encode() not in stranger.got


@pytest.mark.slow
def test_servers_that_a_server_tells_of_are_shown_nothing(stranger: Recorder, secret: Path) -> None:
    with recording(welcoming=True, connect_urls=[stranger.address]) as first:
        allow_server(ServerEntry(path=first.address, user="ada", password_file=str(secret)))

        def visit() -> None:
            with suppress(RoomError):
                postroom.open(f"nats://{first.address}/team?server_timeout_s=2")

        visitor = threading.Thread(target=visit)
        visitor.start()
        first.await_visits(4)
        visitor.join()

    assert CANARY.encode() in first.got
    assert stranger.came == 0


@pytest.mark.long
def test_a_room_with_credentials_survives_the_end_of_the_server_that_it_talks_to(secret: Path) -> None:
    with running_cluster(USERS) as cluster:
        for each in cluster.servers:
            allow_server(ServerEntry(path=each.address, user="ada", password_file=str(secret)))
        with postroom.open(f"nats://{cluster.addresses}/{room_name()}?server_timeout_s=60") as room:
            ids = [room.agent("ada").send("bob", {"n": 0})]
            cluster.servers[0].kill()
            ids.append(room.agent("ada").send("bob", {"n": 1}))
            cluster.servers[0].start()
            cluster.servers[1].kill()
            ids.append(room.agent("ada").send("bob", {"n": 2}))

            assert [room.agent("bob").receive(timeout_s=60).id for _ in ids] == ids


# --- who can read it on the way ------------------------------------------------------------------------------------


def test_a_server_cannot_talk_a_client_out_of_tls(stranger: Recorder, secret: Path, tmp_path: Path) -> None:
    """The first words of a server are not protected: anybody on the way can take its wish for TLS out of them."""
    shutil.copy(_authority(), tmp_path / "ca.cert")
    files: dict[str, Any] = {"user": "ada", "password_file": str(secret), "tls_ca": str(tmp_path / "ca.cert")}

    with pytest.raises(RoomNotAllowed, match="offers no TLS.*Nothing was sent"):
        postroom.open(f"nats://{stranger.address}/team", **files)

    assert stranger.came > 0
    assert stranger.got == b""


def _authority() -> Path:
    import ssl

    path = ssl.get_default_verify_paths().cafile
    if path is None:
        pytest.skip("this system has no certificates to use")
    return Path(path)


BEYOND = """
import sys
from contextlib import suppress
import postroom
from postroom.errors import RoomError
from postroom.core.trust import ServerEntry, allow_server
from tests.support.nats_recorder import recording

def visit(how, **settings):
    with recording(host="10.99.0.1") as server:
        address = server.address
        if "entry" in how:
            allow_server(ServerEntry(path=address, user="ada", password_file=sys.argv[1], plaintext="plain" in how))
        elif "plain" in how:
            allow_server(ServerEntry(path=address, plaintext=True))
        user = "ada:canary-7d1f@" if "inline" in how else ""
        said = ""
        try:
            postroom.open(f"nats://{user}{address}/team?server_timeout_s=3", **settings)
        except RoomError as error:
            said = str(error)
        print(how, server.came > 0, b"canary" in server.got, "--plaintext" in said, b"CONNECT" in server.got)

given = {"user": "ada", "password_file": sys.argv[1]}
visit("entry")
visit("inline")
visit("given", **given)
visit("entry plain")
visit("inline plain")
visit("given plain", **given)
visit("nothing")
"""


def test_beyond_this_machine_secrets_travel_with_tls_or_with_the_users_consent(secret: Path) -> None:
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && ip addr add 10.99.0.1/32 dev lo && exec "$@"', "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("network namespaces cannot be made here")

    done = subprocess.run(
        [*inside, sys.executable, "-c", BEYOND, str(secret)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip

    # who came; whether the password arrived; whether the sentence says how to allow it; whether anything was said
    assert done.stdout.splitlines() == [
        "entry True False True False",
        "inline True False True False",
        "given True False True False",
        "entry plain True True False True",
        "inline plain True True False True",
        "given plain True True False True",
        "nothing True False False True",
    ]


def test_a_password_in_the_address_works_on_this_machine(server: str) -> None:
    with postroom.open(f"nats://ada:{CANARY}@{server}/{room_name()}") as room:
        assert room.agent("ada").send("bob", {})


# --- what is shown -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("nats://u:pw@h:1/r?sync=full", "nats://u:…@h:1/r?sync=full"),
        ("nats://token@h/r", "nats://…@h/r"),
        ("nats://u:p@w@h/r", "nats://u:…@h/r"),
        ("nats://u:p/w@h/r", "nats://u:…@h/r"),
        ("nats://u:pw@a,u:pw@[::1]:5,b:6/r", "nats://u:…@a,u:…@[::1]:5,b:6/r"),
        ("nats://u:p,w@h/r", "nats://…,…@h/r"),
        ("nats://h:1/r", "nats://h:1/r"),
        ("sqlite:/home/a:b@c/room", "sqlite:/home/a:b@c/room"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    url = parse_url(address)

    assert str(url) == url.without_secrets() == shown
    assert shown in repr(url)
    assert url.with_secrets() == address


@pytest.mark.parametrize("address", ["nats://u:canary-7d1f@h", "nats://u:can/ary-7d1f@h/r", "nats:u:canary-7d1f@h/r"])
def test_a_wrong_address_does_not_show_its_password(address: str) -> None:
    with pytest.raises(RoomError) as caught:
        postroom.open(address)

    assert "ary-7d1f" not in str(caught.value)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_told_of_without_the_password() -> None:
    with pytest.raises(RoomUnreachable) as caught:
        postroom.open(f"nats://ada:{CANARY}@127.0.0.1:9/team?server_timeout_s=0.2")

    assert "127.0.0.1:9" in str(caught.value)
    assert CANARY not in str(caught.value)
