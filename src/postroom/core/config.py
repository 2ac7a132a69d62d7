"""What can be set for a room, and where a room is looked for."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from postroom.errors import RoomError, RoomNotAllowed

from . import near
from .message import MAX_PAYLOAD_BYTES, MAX_SPAN_S

#: Options of an address that name a file of this user, or the user.
CREDENTIAL_OPTIONS: Final = ("creds", "user", "password_file", "tls_ca", "tls_cert", "tls_key")

FOLDER: Final = ".postroom"
#: In a room of files that folder is Postroom's own part of it, and has this in it.
FILES_MARK: Final = "room.json"
#: A file that lies in a room's folder until the room has been made: what is missing meanwhile is not lost.
MAKING_MARK: Final = "making"
#: The folder in a room's own for attached files.
ARTIFACTS: Final = "artifacts"
URL_VARIABLE: Final = "POSTROOM_URL"
#: A file in that folder that says where the room is, when it is elsewhere: an address, as in `postroom.open`.
POINTER: Final = "room"
#: A folder with one of these in it is a room, or points to one.
DATABASE: Final = "messages.db"
ROOM_FILES: Final = (DATABASE, FILES_MARK, POINTER)
_LOG: Final = "log"
_MAX_SMALL_BYTES: Final = 4096

#: How long a receiver that is a process may keep a message before others may take it, in seconds.
LEASE_S: Final = 30.0
#: The same for one-shot commands, hooks and HTTP calls, whose claims belong to the agent.
AGENT_LEASE_S: Final = 600.0
#: How long a program that is told to stop (SIGTERM) may take to finish what it is working on, in seconds.
GRACE_S: Final = 10.0
#: A waiting receiver looks by itself this often, in case a wake-up was lost.
SAFETY_LOOK_S: Final = 1.0
#: How often an open agent says that it is alive, and one of the open processes does the housekeeping.
HEARTBEAT_S: Final = 5.0


class Config(msgspec.Struct, kw_only=True, frozen=True):
    """The settings of a room, as given to `postroom.open`."""

    #: "normal" survives the death of any process; "full" survives a power cut too, and costs an fsync per change.
    sync: str = "normal"
    max_payload_bytes: int = MAX_PAYLOAD_BYTES  # the longest payload, as JSON
    max_deliveries: int = 3  # after this many failed deliveries a message is dead
    #: A receiver that lives keeps a message for this long at most, however often its lease is extended; None: no limit.
    max_hold_s: float | None = 3600.0
    #: A message caused by a message caused by …: at most this many steps.
    max_hops: int = 8
    #: Sends per second and sender, over all processes; None is no limit.
    rate_per_s: float | None = None
    rate_burst: int | None = None  # may come at once; None: as many as the rate allows in a second
    #: The same for one sender to one recipient: what ends two agents that keep each other busy.
    pair_rate_per_s: float | None = None
    pair_rate_burst: int | None = None  # may come at once, between the two
    keep_s: float = 7 * 86400.0  # finished messages are kept, for replay, for this long
    keep_count: int = 1_000_000  # at most this many finished messages are kept
    keep_bytes: int = 1024**3  # and at most so much of them
    busy_timeout_s: float = 5.0  # how long to wait for others' write lock before RoomBusy
    #: Only of rooms in files: whether the folder's group takes part too, or its owner alone.
    group: bool = False
    #: Rooms on servers: how long one operation waits through reconnects and elections before it gives up.
    server_timeout_s: float = 20.0
    #: Copies of a room that the servers keep; 0 is three where there are several servers.
    replicas: int = 0
    creds: str | None = None  # a credentials file that the servers want to see
    user: str | None = None  # or a user that they know
    password_file: str | None = None  # the file with that user's password
    tls_ca: str | None = None  # the authority whose certificates the servers must show
    tls_cert: str | None = None  # our own certificate
    tls_key: str | None = None  # the key of that certificate


def prepare_types(*types: type) -> None:
    """Let msgspec make now, in one thread, what it has to know of types before it can convert to them.

    It makes that at the first use, and two threads that do so at once may end the process with a segmentation fault
    (tests/core/test_config.py). To be called where a type is defined, or first imported, of modules that convert.
    """
    for each in types:
        msgspec.json.Decoder(each)


prepare_types(Config)


class RoomUrl(msgspec.Struct, frozen=True):
    """A room's address, taken apart: `scheme:rest?option=value`."""

    scheme: str
    rest: str
    options: dict[str, str]

    def __str__(self) -> str:
        """The address as it may be shown: a password or a token in it is left out."""
        return self.without_secrets()

    def __repr__(self) -> str:
        return f"RoomUrl({self.without_secrets()!r})"

    def with_secrets(self) -> str:
        """The whole address: for opening the room, and never to be shown."""
        tail = "&".join(f"{name}={value}" for name, value in self.options.items())
        rest = _quoted(self.rest) if self.scheme in FOLDER_SCHEMES else self.rest
        return f"{self.scheme}:{rest}" + (f"?{tail}" if tail else "")

    def without_secrets(self) -> str:
        """The address as it may be shown: a password or a token in it is left out."""
        if self.scheme in FOLDER_SCHEMES or "@" not in self.rest:
            return self.with_secrets()
        hosts = ",".join(map(_masked, self.rest.removeprefix("//").split(",")))
        return RoomUrl(self.scheme, f"//{hosts}", self.options).with_secrets()

    def without_credentials(self) -> RoomUrl:
        """The address without a user, a password and files of this user: what a file that others see may say."""
        hosts, slash, name = self.rest.removeprefix("//").partition("/")
        bare = ",".join(server.rpartition("@")[2] for server in hosts.split(","))
        options = {option: value for option, value in self.options.items() if option not in CREDENTIAL_OPTIONS}
        return RoomUrl(self.scheme, f"//{bare}{slash}{name}" if "@" in hosts else self.rest, options)


_PLAIN_HOST: Final = r"(\[[^\]]*\]|[^:@]*)(:\d*)?(/.*)?"


def _masked(server: str) -> str:
    """One of the servers of an address as it may be shown. A password may have any sign in it."""
    before, at, host = server.rpartition("@")
    if not at:
        return server if re.fullmatch(_PLAIN_HOST, server) else "…"
    user, colon, _ = before.partition(":")
    return f"{user}:…@{host}" if colon else f"…@{host}"


#: Schemes whose address is a folder of this machine.
FOLDER_SCHEMES: Final = ("sqlite", "files")
#: A path may have a question mark in it, at which the options would begin. It is written %3F; and a path that reads as
#: if that had been done gets its % written %25. Every other path stays as it is (tests/test_open.py).
_QUOTING: Final = r"\?|%(?=25|3[Ff])"
_QUOTED: Final = r"%(?:25|3[Ff])"


def _quoted(path: str) -> str:
    if "?" not in path and "%" not in path:  # the usual: no pattern is compiled for it
        return path
    return re.sub(_QUOTING, lambda found: "%3F" if found[0] == "?" else "%25", path)


def _unquoted(path: str) -> str:
    return re.sub(_QUOTED, lambda found: "%" if found[0] == "%25" else "?", path) if "%" in path else path


def address_of(folder: Path, scheme: str = "sqlite") -> str:
    """The address of a room in that folder, whatever its name."""
    return str(RoomUrl(scheme, str(folder), {}))


def shown_address(text: str) -> str:
    """An address as somebody wrote it, without a password."""
    return str(parse_url(text)) if "@" in text else text


def parse_url(text: str) -> RoomUrl:
    """Take a room's address apart. A plain path is a SQLite room's folder."""
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme or "." in scheme or not scheme:
        scheme, rest = "sqlite", text
    rest, _, query = rest.partition("?")
    if scheme in FOLDER_SCHEMES:
        rest = _unquoted(rest)
    if not rest and scheme != "memory":
        raise RoomError(f"{text!r} has no path; write {scheme}:PATH, for instance {scheme}:{FOLDER}")
    return RoomUrl(scheme, rest, _options(query) if query else {})


def _options(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True))


def search_places(start: Path) -> list[Path]:
    """Where a room is looked for, in order: each folder above, then the repository's main worktree."""
    start = start.absolute()
    places = [folder / FOLDER for folder in (start, *start.parents)]
    main = main_worktree(start)
    if main is not None and main / FOLDER not in places:
        places.append(main / FOLDER)
    return places


def address_in(place: Path) -> str:
    """The address of the room that a `.postroom` folder means: itself, or its pointer's, seen from beside it."""
    if (place / FILES_MARK).is_file():
        return address_of(place.parent, "files")
    text = read_small(place / POINTER)
    if not text:
        return address_of(place)
    url = parse_url(text)
    if url.scheme in FOLDER_SCHEMES:
        return str(RoomUrl(url.scheme, str(place.parent / _at_home(url.rest)), url.options))
    naming = [name for name in CREDENTIAL_OPTIONS if name in url.options]
    if naming or "@" in url.rest.removeprefix("//").partition("/")[0]:
        raise RoomNotAllowed(
            f"{place / POINTER} carries {', '.join(naming) or 'a user name'}: a pointer may not name files or credentials. "
            "Put credentials into your own configuration: postroom allow nats://HOST:PORT --help"
        )
    return str(url)


def read_regular(path: str | Path, most_bytes: int, *, flags: int = os.O_NOFOLLOW, owner: int | None = None) -> bytes:
    """The beginning of a regular file, which is no link. A pipe is not waited for, a device not read.

    Raises OSError when it is anything else, or not the owner's.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or owner not in (None, about.st_uid):
            raise OSError(f"{path} is not a regular file")
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def read_small(path: Path) -> str:
    """The text of a small regular file, stripped; "" when it is not there, is a link or a pipe, or is no text."""
    try:
        return read_regular(path, _MAX_SMALL_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def main_worktree(start: Path) -> Path | None:
    """The main checkout of the git repository around a folder, when that folder is in one of its further worktrees."""
    for folder in (start, *start.parents):
        marker = folder / ".git"
        if not marker.is_file():
            continue
        word, _, target = read_small(marker).partition(": ")
        git_dir = (folder / target).resolve()
        common, back = read_small(git_dir / "commondir"), read_small(git_dir / "gitdir")
        # The repository must know the worktree too: a `.git` file that came in an archive can name any of the user's.
        if word != "gitdir" or not common or not back or (git_dir / back).resolve() != marker.resolve():
            return None
        return (git_dir / common).resolve().parent
    return None


def room_folder(url: RoomUrl) -> Path | None:
    """The folder that an address names, as an absolute path; None when the room does not live in one.

    Raises RoomError when it begins with the home of a user without one, or when its path is not UTF-8: an address is
    text.
    """
    if url.scheme not in FOLDER_SCHEMES:
        return None
    folder = _at_home(url.rest).absolute()
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise RoomError(f"the path {str(folder)!r} is not UTF-8 text, which a room's folder needs") from None
    return folder


def place_of(url: RoomUrl) -> Path | None:
    """The folder whose trust decides about an address: that with Postroom's own files in it. None: it has none."""
    folder = room_folder(url)
    if folder is None:
        return None
    return folder / FOLDER if url.scheme == "files" else folder


def is_new(url: RoomUrl) -> bool:
    """Whether the address is that of a folder in which no room is yet: the one that opens it makes it.

    Mailboxes with messages in them are somebody's, also where Postroom's own folder beside them is missing.
    """
    place = place_of(url)
    if place is None or any(os.path.lexists(place / name) for name in ROOM_FILES):
        return False
    return url.scheme != "files" or not any(any(place.parent.glob(f"{box}/*/*.json")) for box in ("inbox", "outbox"))


def missing_part(url: RoomUrl) -> Path | None:
    """The first file of a room in a folder that is not there, or empty; None when all are there."""
    place = place_of(url)
    if place is None:
        return None
    if url.scheme != "files":
        # a files room's own folder is asked for as one, and is whole if that is
        found = has_content(place / DATABASE) or os.path.lexists(place / FILES_MARK)
        return None if found else place / DATABASE
    if not has_content(place / FILES_MARK):
        return place / FILES_MARK
    return None if any(map(has_content, logs_in(place))) else place / _LOG


def logs_in(place: Path) -> list[Path]:
    """The logs of a files room: each upgrade of its layout gives it another name."""
    return [place / name for name in _names_in(place) if name == _LOG or name.startswith(f"{_LOG}-")]


def _names_in(place: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(place)
    return []


def has_content(path: Path) -> bool:
    """Whether there is such a file, and something in it."""
    with suppress(OSError):
        return os.stat(path, follow_symlinks=False).st_size > 0
    return False


def _at_home(path: str) -> Path:
    """The path, with the home folder that it may begin with."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise RoomError(f"{path!r} begins with an unknown home folder; write the full path") from None


def settings_of(config: Config) -> dict[str, Any]:
    """The settings as plain data: `open_room(url, **settings)` elsewhere opens the room with the same."""
    return msgspec.structs.asdict(config)


def make_config(settings: Mapping[str, object], options: Mapping[str, str] | None = None) -> Config:
    """The settings of a room: what the program says, else what its address says, else the defaults.

    Raises RoomError that names the one that is wrong, and what it may be.
    """
    if not settings and not options:
        return Config()  # the usual: nothing to check, and msgspec need not work out the fields' types
    for name in (*settings, *(options or ())):
        if name not in Config.__struct_fields__:
            raise RoomError(f"a room has no setting {name!r}{_nearest(name)}")
    try:
        from_url = msgspec.convert(dict(options or {}), Config, strict=False)
        both = {name: getattr(from_url, name) for name in options or ()} | dict(settings)
        config = msgspec.convert(both, Config)
    except msgspec.ValidationError as error:
        raise RoomError(f"a setting of the room is not valid: {error}") from None
    for name, (holds, expected) in _RANGES.items():
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise RoomError(f"the setting {name} must be {expected}, not {value!r}")
    return config


_AT_LEAST_0: Final = (lambda value: 0 <= value < math.inf, "0 or more")
_AT_LEAST_1: Final = (lambda value: value >= 1, "1 or more")
_RANGES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "sync": (lambda value: value in ("normal", "full"), "normal or full"),
    "max_payload_bytes": _AT_LEAST_1,
    "max_deliveries": _AT_LEAST_1,
    "max_hold_s": (
        lambda value: 0 < value <= MAX_SPAN_S,
        f"more than 0 and at most {MAX_SPAN_S:.0f}, or None for no limit",
    ),
    "max_hops": _AT_LEAST_0,
    "rate_per_s": (lambda value: 0 < value < math.inf, "more than 0"),
    "rate_burst": _AT_LEAST_1,
    "pair_rate_per_s": (lambda value: 0 < value < math.inf, "more than 0"),
    "pair_rate_burst": _AT_LEAST_1,
    "keep_s": _AT_LEAST_0,
    "keep_count": _AT_LEAST_0,
    "keep_bytes": _AT_LEAST_0,
    "busy_timeout_s": _AT_LEAST_0,
    "server_timeout_s": (lambda value: 0 < value < math.inf, "more than 0"),
    "replicas": (lambda value: value in (0, 1, 3, 5), "0, 1, 3 or 5"),
}


def _nearest(name: str) -> str:
    meant = near.nearest(name, Config.__struct_fields__)
    return f"; did you mean {meant}?" if meant else f"; the settings are: {', '.join(Config.__struct_fields__)}"
