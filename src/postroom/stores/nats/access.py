"""Credentials for the servers of a room on NATS: which they are shown, and to which servers nothing is said.

A secret leaves this process only for a server that the program named it for, or that the user has allowed; and only on
a connection that nobody else can read: with TLS, to this machine itself, or where the user has said that the network
may be trusted. `docs/operations/nats.md` has the rules. Nothing here imports nats-py.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from postroom.core import trust
from postroom.core.config import CREDENTIAL_OPTIONS, Config, RoomUrl
from postroom.errors import RoomError, RoomNotAllowed

DEFAULT_PORT: Final = 4222
_ROOM_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: A server of an address. Others that take addresses apart must find the same host in it: signs that end it for them
#: (#, \) or that they drop (line ends) would have one server allowed, and another one shown the credentials.
_SERVER: Final = re.compile(r"(?:[^\s#?/\\@\x00-\x1f]*@)?(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[\w.-]+):\d{1,5}")


class Access(trust.Credentials, kw_only=True, frozen=True):
    """Where the servers are, and what they want to see."""

    servers: tuple[str, ...]
    password: str | None = None
    #: Whether the user has said of every server that secrets may travel to it without TLS.
    plaintext: bool = False

    def __repr__(self) -> str:
        return f"Access({', '.join(self.hosts)})"

    @property
    def has_secrets(self) -> bool:
        """Whether the servers are shown anything that others could use."""
        return self.creds is not None or self.user is not None or any("@" in server for server in self.servers)

    @property
    def wants_tls(self) -> bool:
        """Whether the settings speak of TLS: nothing is said to a server that does not offer it."""
        return self.tls_ca is not None or self.tls_cert is not None

    @property
    def hosts(self) -> list[str]:
        """The servers as they may be shown: a password in their address is left out."""
        return [server.removeprefix("nats://").rpartition("@")[2] for server in self.servers]


class NotPrivate(ConnectionError):
    """A server offers no TLS, and nothing was said to it: secrets could be read on the way, or TLS was asked for."""

    def __init__(self, host: str, said: str) -> None:
        super().__init__(said)
        self.host = host


# Which credentials


def parse_address(url: RoomUrl) -> tuple[tuple[str, ...], str]:
    """The servers and the name of the room of `nats://host:port[,host:port]/room`. Raises RoomError."""
    hosts, slash, name = url.rest.removeprefix("//").partition("/")
    servers = tuple(
        host if ":" in host.rpartition("]")[2] else f"{host}:{DEFAULT_PORT}" for host in hosts.split(",") if host
    )
    if not url.rest.startswith("//") or not servers or not slash:
        raise RoomError(
            f"{url.without_secrets()} is not the address of a room on NATS; write nats://HOST:PORT/ROOM, for instance nats://127.0.0.1:4222/team"
        )
    if not all(map(_SERVER.fullmatch, servers)) and "@" not in name:
        raise RoomError(
            f"{url.without_secrets()} names a server that is none; write HOST:PORT, and of a user name or password the signs "
            "# ? / \\ @ and blanks as %23 %3F %2F %5C %40 %20"
        )
    if "@" in name:
        raise RoomError(
            "a / in the user name or password of an address ends the part with the servers; write it %2F, or keep the "
            "password in a file: postroom allow nats://HOST:PORT --user NAME --password-file FILE"
        )
    if not _ROOM_NAME.fullmatch(name):
        raise RoomError(f"{name!r} is not a name for a room on NATS: use up to 64 letters, digits, - and _")
    return tuple(f"nats://{server}" for server in servers), name


def access_of(url: RoomUrl, config: Config) -> tuple[Access, str]:
    """How to reach the servers that an address names, and the name of the room there.

    Credentials are those that the program gave; else those that the address names, if the user has allowed its servers;
    else those that the user keeps for the servers. Raises RoomNotAllowed before any file is read, and RoomError.
    """
    servers, name = parse_address(url)
    hosts = trust.servers_of(url.rest.removeprefix("//").partition("/")[0])
    entries = {host: trust.server(host) for host in hosts}
    _check_address(url, config, entries)
    given = {option: getattr(config, option) for option in CREDENTIAL_OPTIONS}
    if not any(given.values()):
        given = _kept_for(entries)
        if any("@" in server for server in servers):  # the address has its own
            given |= dict.fromkeys(("creds", "user", "password_file"))
    for option, value in given.items():
        if value is not None and option != "user":  # the others are files
            given[option] = os.path.expanduser(value)
    password = _read_password(given["password_file"])
    plaintext = all(entry is not None and entry.plaintext for entry in entries.values())
    return Access(servers=servers, password=password, plaintext=plaintext, **given), name


def _check_address(url: RoomUrl, config: Config, entries: Mapping[str, trust.ServerEntry | None]) -> None:
    """Raise RoomNotAllowed when the address names files or a user for a server that this user has not allowed.

    An address may come from anywhere: from a variable, a script, a configuration file of a repository.
    """
    unknown = [host for host, entry in entries.items() if entry is None]
    named = [
        option
        for option in CREDENTIAL_OPTIONS
        if option in url.options and url.options[option] == getattr(config, option)  # else the program gave another
    ]
    if named and unknown:
        raise RoomNotAllowed(
            f"the address names {', '.join(named)} for the server {unknown[0]}, which you have not allowed to receive "
            f"credentials; nothing was read or sent. If you trust it: postroom allow nats://{unknown[0]}"
        )


def _kept_for(entries: Mapping[str, trust.ServerEntry | None]) -> dict[str, str | None]:
    """The credentials that the user keeps for these servers. Raises RoomNotAllowed unless they are the same for all."""
    kept = {host: {name: getattr(entry, name, None) for name in CREDENTIAL_OPTIONS} for host, entry in entries.items()}
    first, *others = kept
    for other in others:
        if kept[other] != kept[first]:
            raise RoomNotAllowed(
                f"the address names {first} and {other}, for which you have different credentials, or none for one of them; "
                f"nothing was sent. Allow them together: postroom allow nats://{first},{other} …"
            )
    return kept[first]


def _read_password(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RoomError(f"the password file {path} cannot be read: {said}") from error


# Where they may be said


def check_private(access: Access, uri: Any, writer: Any) -> None:
    """Raise NotPrivate when what is said on a connection could be read by others, and must not be.

    The connection itself is asked, not what the server says of it.
    """
    if writer.get_extra_info("ssl_object") is not None:
        return
    host = f"{uri.hostname}:{uri.port}"
    if access.wants_tls:
        said = "which the room's settings require (tls_ca, tls_cert). Nothing was sent to it"
    elif access.has_secrets and not access.plaintext and not _is_loopback(writer.get_extra_info("peername")):
        said = "so others on the network could read a password or token. Nothing was sent. Give the server a certificate; or, "
        said += f"if you trust the network: postroom allow nats://{host} --plaintext"
    else:
        return
    raise NotPrivate(host, f"the server {host} offers no TLS, {said}")


def _is_loopback(peer: tuple[Any, ...] | None) -> bool:
    """Whether the other end of a connection is this machine."""
    if peer is None:
        return False
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def options_of(access: Access) -> dict[str, Any]:
    """What nats-py must be told to reach the servers."""
    options: dict[str, Any] = {"servers": list(access.servers)}
    if access.creds is not None:
        options["user_credentials"] = access.creds
    if access.user is not None:
        options |= {"user": access.user, "password": access.password}
    if access.wants_tls:
        options["tls"] = _tls(access)
    return options


def _tls(access: Access) -> Any:
    try:
        context = ssl.create_default_context(cafile=access.tls_ca)
        if access.tls_cert is not None:
            context.load_cert_chain(access.tls_cert, access.tls_key)
    except OSError as error:
        raise RoomError(f"the certificates for the room's servers cannot be read: {error}") from error
    return context
