"""`postroom nats config`: configurations of NATS servers for many machines, with certificates and passwords."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from postroom.cli import options
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.errors import PostroomError

CLIENT_PORT: Final = 4222
ROUTE_PORT: Final = 6222
MONITOR_PORT: Final = 8222
CERTIFICATE_DAYS: Final = 3650
#: Copies of a room that several servers keep, as rooms are made.
COPIES: Final = 3
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")


def nats_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="config", choices=["config"], help="write the servers' configurations")
    nodes = "how many servers: 3 or 5, or 1 to try (default: 3)"
    parser.add_argument("--nodes", type=options.count, default=3, metavar="N", help=nodes)
    hosts = "their host names, one for each server (default: all on 127.0.0.1, to try)"
    parser.add_argument("--hosts", metavar="A,B,C", help=hosts)
    rooms = "a room, which gets its own account; may be repeated (default: team)"
    parser.add_argument("--for", dest="rooms", action="append", metavar="ROOM", help=rooms)
    parser.add_argument("--dir", default="nats", metavar="DIR", help="where to write them (default: ./nats)")
    port = "for clients (default: 4222)"
    parser.add_argument("--port", type=options.count, default=CLIENT_PORT, metavar="P", help=port)
    max_file = "how much a server may store on disk (default: 50G)"
    parser.add_argument("--max-file", default="50G", metavar="SIZE", help=max_file)
    options.flag(parser, "--no-tls", "no certificates: traffic is not encrypted")


class ServerNode(NamedTuple):
    """One server and its ports."""

    name: str
    host: str
    port: int
    route_port: int
    monitor_port: int


def nats(call: Invocation) -> None:
    args = call.args
    if args.nodes not in (1, 3, 5):
        raise UsageError(f"--nodes must be 1, 3 or 5, not {args.nodes}: a majority must remain when one fails")
    rooms = _checked("--for", args.rooms or ["team"], _NAME)
    if not re.fullmatch(r"\d+[KMGT]?B?", args.max_file):
        raise UsageError(f"--max-file {args.max_file!r} is not a size; write it like 50G")
    nodes = _nodes(args.nodes, args.hosts, args.port)
    folder = Path(args.dir).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise PostroomError(f"{folder} is not empty; nothing was written. Name another folder with --dir")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not args.no_tls:
        _make_certificates(folder, nodes)
    passwords = {room: secrets.token_urlsafe(24) for room in rooms}
    for room, password in passwords.items():
        _write(folder / f"{room}.password", password + "\n")
    cluster_password = secrets.token_urlsafe(24)
    for node in nodes:
        text = server_config(node, nodes, passwords, cluster_password, args.max_file, tls=not args.no_tls)
        _write(folder / f"{node.name}.conf", text)
    _tell(call, folder, nodes, rooms, tls=not args.no_tls)


def _checked(option: str, words: list[str], pattern: re.Pattern[str]) -> list[str]:
    bad = [word for word in words if not pattern.fullmatch(word)]
    if bad:
        raise UsageError(f"{option} {bad[0]!r}: use letters, digits, - and _")
    return list(dict.fromkeys(words))


def _nodes(count: int, hosts: str | None, port: int) -> list[ServerNode]:
    names = [f"n{number}" for number in range(1, count + 1)]
    if hosts is None:  # on one machine each needs ports of its own
        return [
            ServerNode(name, "127.0.0.1", port + place, port + 2000 + place, port + 4000 + place)
            for place, name in enumerate(names)
        ]
    places = _checked("--hosts", [host.strip() for host in hosts.split(",")], _HOST)
    if len(places) != count:
        raise UsageError(f"--hosts names {len(places)} different hosts, and --nodes says {count}")
    return [ServerNode(name, host, port, ROUTE_PORT, MONITOR_PORT) for name, host in zip(names, places, strict=True)]


def server_config(
    node: ServerNode,
    nodes: list[ServerNode],
    passwords: dict[str, str],
    cluster_password: str,
    max_file: str,
    *,
    tls: bool,
) -> str:
    """The configuration of one server. Paths in it are relative to where the server is started."""
    lines = [
        f"# Written by `postroom nats config`. Start it in this folder: nats-server -c {node.name}.conf",
        f'server_name: "{node.name}"',
        f'listen: "{node.host}:{node.port}"',
        "# for `postroom doctor --monitor`; only this machine can ask",
        f'http: "127.0.0.1:{node.monitor_port}"',
        "max_payload: 2MB",
        "# a client that disappears is noticed after a few of these",
        'ping_interval: "10s"',
        "",
        "# sync_interval: every change is on the disk before it is confirmed; without it a power cut can lose up to two minutes of changes",
        "jetstream {",
        f'  store_dir: "{node.name}.data"',
        f"  max_file: {max_file}",
        "  max_mem: 256M",
        "  sync_interval: always",
        "}",
    ]
    if tls:
        lines += ["", *_tls_lines(node)]
    lines += ["", "# One account for each room: users of one room can neither see nor fill another.", "accounts {"]
    for room, password in passwords.items():
        lines += [
            f"  ROOM_{re.sub('[^A-Za-z0-9]', '_', room)}_{room.encode().hex()[:16]}: {{",
            "    # over all copies; below max_file, because servers that reach it can no longer elect a leader",
            f"    jetstream: {{ max_file: {account_bytes(max_file, len(nodes), len(passwords))} }}",
            f'    users: [ {{ user: "{room}", password: "{password}" }} ]',
            "  }",
        ]
    lines.append("}")
    if len(nodes) > 1:
        lines += ["", *_cluster_lines(node, nodes, cluster_password, tls=tls)]
    return "\n".join(lines) + "\n"


_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS_OF_BYTES: Final = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def account_bytes(max_file: str, nodes: int, rooms: int) -> int:
    """The storage of each room's account: its share of nine tenths of the storage of its servers together."""
    number, unit = re.fullmatch(r"(\d+)(\D*)", max_file).groups()  # type: ignore[union-attr]
    copies = COPIES if nodes > 1 else 1
    return int(number) * (_UNITS | _UNITS_OF_BYTES)[unit] * copies * 9 // (10 * rooms)


def _tls_lines(node: ServerNode, indent: str = "", *, verify: bool = False) -> list[str]:
    lines = ["tls {", f'  cert_file: "{node.name}.cert"', f'  key_file: "{node.name}.key"', '  ca_file: "ca.cert"']
    lines += ["  verify: true"] if verify else []
    return [indent + line for line in [*lines, "  timeout: 5", "}"]]


def _cluster_lines(node: ServerNode, nodes: list[ServerNode], password: str, *, tls: bool) -> list[str]:
    routes = [f'    "nats://cluster:{password}@{other.host}:{other.route_port}"' for other in nodes if other != node]
    return [
        "cluster {",
        '  name: "postroom"',
        f'  listen: "{node.host}:{node.route_port}"',
        f'  authorization {{ user: "cluster", password: "{password}", timeout: 5 }}',
        *(_tls_lines(node, "  ", verify=True) if tls else ()),
        "  routes: [",
        *routes,
        "  ]",
        "}",
    ]


def _write(path: Path, text: str) -> None:
    """A file that only its owner can read: it has passwords in it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


# Certificates: an authority of this cluster's own, and one certificate for each server


#: What a verifier that goes by RFC 5280 to the letter asks for, as Python does from 3.13 on (tests/cli/test_nats.py).
_EXTENSIONS: Final = """\
[req]
distinguished_name=name
[name]
[authority]
basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
[server]
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


def _make_certificates(folder: Path, nodes: list[ServerNode]) -> None:
    if shutil.which("openssl") is None:
        raise PostroomError("certificates are made with openssl, which was not found; install it, or use --no-tls")
    settings, request = folder / "openssl.cnf", folder / "request.csr"
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config", settings.name)
    days = ("-days", str(CERTIFICATE_DAYS))
    settings.write_text(_EXTENSIONS, encoding="ascii")
    authority = ("-keyout", "ca.key", "-out", "ca.cert", "-subj", "/CN=postroom servers")
    _openssl(folder, *new, "-x509", "-extensions", "authority", *days, *authority)
    for node in nodes:
        kind = "IP" if re.fullmatch(r"[\d.]+|.*:.*", node.host) else "DNS"
        settings.write_text(f"{_EXTENSIONS}subjectAltName={kind}:{node.host}\n", encoding="ascii")
        _openssl(folder, *new, "-keyout", f"{node.name}.key", "-out", request.name, "-subj", f"/CN={node.name}")
        signed_by = ("-CA", "ca.cert", "-CAkey", "ca.key", "-CAcreateserial")
        made = ("-out", f"{node.name}.cert", *days, "-extfile", settings.name, "-extensions", "server")
        _openssl(folder, "x509", "-req", "-in", request.name, *signed_by, *made)
    settings.unlink()
    request.unlink()
    for key in folder.glob("*.key"):
        key.chmod(0o600)


def _openssl(folder: Path, *words: str) -> None:
    done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PostroomError(f"openssl could not make the certificates: {done.stderr.strip()[-300:]}")


# Telling


def room_url(nodes: list[ServerNode], room: str) -> str:
    """The address under which programs open a room."""
    return f"nats://{','.join(f'{node.host}:{node.port}' for node in nodes)}/{room}"


def allow_words(url: str, room: str, folder: Path, *, tls: bool) -> list[str]:
    """The command by which a user keeps the credentials of a room on a machine where programs run."""
    words = ["postroom", "allow", url, "--user", room, "--password-file", str(folder / f"{room}.password")]
    return [*words, "--tls-ca", str(folder / "ca.cert")] if tls else [*words, "--plaintext"]


def _tell(call: Invocation, folder: Path, nodes: list[ServerNode], rooms: list[str], *, tls: bool) -> None:
    urls = {room: room_url(nodes, room) for room in rooms}
    allow = {room: allow_words(url, room, folder, tls=tls) for room, url in urls.items()}
    files = sorted(path.name for path in folder.iterdir())
    lines = [
        f"written to {folder}: {', '.join(files)}",
        "on each host, in a copy of that folder with its own files and ca.cert (keep ca.key to yourself):",
        *(f"  nats-server -c {node.name}.conf    # on {node.host}" for node in nodes),
        "then, wherever programs run (they need the room's .password and ca.cert):",
    ]
    for room, url in urls.items():
        lines += [f"  {shlex.join(allow[room])}", f"  postroom init --room {url}"]
    if len(urls) > 1:
        lines.append("a user of more than one of these rooms puts the other rooms' credentials into their addresses:")
        lines.append("  nats://…/ROOM?user=ROOM&password_file=FILE")
    lines.append("and check that all is well: postroom doctor --room URL --monitor http://127.0.0.1:PORT")
    shown = {"dir": str(folder), "nodes": [node._asdict() for node in nodes], "files": files}
    call.tell(shown | {"rooms": urls, "allow": allow}, *lines)
