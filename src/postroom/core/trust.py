"""The allow-list: which rooms and servers this user trusts on this machine.

A folder that came with a clone or an archive can hold anything that looks like a room: a pointer to a stranger's
server, messages that nobody here wrote. So a room that is found, rather than named, is opened only when it was made
here or allowed by `postroom allow`. What was made or allowed is kept in the user's own configuration, one file for
each:

    ~/.config/postroom/rooms/<digest>       a folder: its path, owner, inode and seal, and the room that it means;
                                            or the address of a room on servers
    ~/.config/postroom/servers/<digest>     a server, and the credentials that it may be shown

Three things keep an entry from being forged or inherited:

- It names the inode of the folder that it lies in. A configuration that was shipped in a repository, together with an
  environment that leads to it, is not believed.
- It names the room's seal, a random word in a file of the room's folder. File systems hand out inodes again, so a clone
  may get the path and the inode of a room that was removed; it cannot know the seal.
- It names the room that the folder means. A pointer that is changed later, by a pull for instance, is not followed.

`docs/security.md` says what follows for each door.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from postroom.errors import RoomDamaged, RoomError, RoomNotAllowed

from . import git_index
from .clock import SYSTEM
from .config import (
    ARTIFACTS,
    DATABASE,
    FILES_MARK,
    FOLDER,
    MAKING_MARK,
    POINTER,
    URL_VARIABLE,
    RoomUrl,
    address_in,
    address_of,
    has_content,
    is_new,
    logs_in,
    missing_part,
    parse_url,
    place_of,
    prepare_types,
    read_regular,
    room_folder,
    search_places,
)

#: A file in a room's folder that only this user's allow-list knows the content of.
SEAL: Final = "seal"
CONFIG_VARIABLE: Final = "POSTROOM_CONFIG"
_LOCK: Final = "lock"
_ROOMS: Final = "rooms"
_SERVERS: Final = "servers"
_TOLD: Final = "told"
_MAX_ENTRY_BYTES: Final = 64 * 1024
_MAX_SEAL_BYTES: Final = 128
#: Entries of folders that are gone are removed once there are so many more of them.
_PRUNE_EVERY: Final = 256
_NO_FOLLOW: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_DEFAULT_PORT: Final = 4222
_PRIME: Final = 2**127 - 1
#: What the group and others may do in a folder; in those of the configuration, nothing.
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
#: So much of a pointer is shown: it is a stranger's text, and a model may read the error.
_MAX_SHOWN: Final = 120


class RoomEntry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A room that was made here or allowed: a folder with what identifies it, or an address on servers."""

    #: The folder, resolved; or, for a room on servers, its address without options.
    path: str
    #: The room that the folder means: itself, or what its pointer says.
    address: str
    how: Literal["made", "allowed"]
    time_ms: int
    config_inode: int
    owner: int | None = None
    inode: int | None = None
    seal: str | None = None
    #: Whether files of other users are accepted in it.
    group: bool = False


class Credentials(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What servers are shown: `CREDENTIAL_OPTIONS`."""

    creds: str | None = None
    user: str | None = None
    password_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


class ServerEntry(Credentials, kw_only=True, frozen=True, omit_defaults=True):
    """A server that was allowed, and the credentials that it may be shown."""

    path: str  # host:port
    time_ms: int = 0
    config_inode: int = 0
    #: Whether a secret may travel to it without TLS. (To this machine itself it always may.)
    plaintext: bool = False


_Entry = TypeVar("_Entry", RoomEntry, ServerEntry)


# --- the user's configuration --------------------------------------------------------------------------------------


def config_folder() -> Path | None:
    """Where this user's configuration lies; None where the user has no home. It need not be there yet."""
    said = os.environ.get(CONFIG_VARIABLE) or ""
    if os.path.isabs(said):  # else it would be another in each folder, and one of them may have come with a clone
        return Path(said)
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    if os.path.isabs(base):
        return Path(base) / "postroom"
    home = os.path.expanduser("~")
    return Path(home) / ".config" / "postroom" if os.path.isabs(home) else None


def _entry_path(kind: str, key: str) -> Path | None:
    folder = config_folder()
    # A short name for a long path. It is no secret and need not be unforgeable: an entry says whose it is.
    return None if folder is None else folder / kind / f"{int.from_bytes(os.fsencode(key)) % _PRIME:032x}"


def _read(kind: str, key: str, shape: type[_Entry]) -> _Entry | None:
    """The entry of that key, if it is one that was written here by this user."""
    path = _entry_path(kind, key)
    entry = None if path is None else _read_file(path, shape)
    return entry if entry is not None and entry.path == key else None


def _read_file(path: Path, shape: type[_Entry]) -> _Entry | None:
    try:
        above = os.stat(path.parent)
        text = read_regular(path, _MAX_ENTRY_BYTES, owner=os.geteuid())
        entry = msgspec.json.decode(text, type=shape)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    if entry.config_inode != above.st_ino or above.st_uid != os.geteuid():
        return None
    if above.st_mode & _OTHERS:  # a folder that a checkout or another user made, or can change
        return None
    return entry


def _write(kind: str, key: str, entry: RoomEntry | ServerEntry) -> None:
    """Keep an entry. Raises OSError where the configuration cannot be written."""
    path = _entry_path(kind, key)
    if path is None:
        raise OSError("this user has no home folder")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entry = msgspec.structs.replace(entry, config_inode=os.stat(path.parent).st_ino)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _all(kind: str, shape: type[_Entry]) -> Iterator[tuple[Path, _Entry]]:
    folder = config_folder()
    try:
        names = sorted(os.listdir(folder / kind)) if folder is not None else []
    except OSError:
        return
    for name in names:
        if not name.startswith("."):
            entry = _read_file(Path(folder or "", kind, name), shape)
            if entry is not None:
                yield Path(folder or "", kind, name), entry


# --- rooms ---------------------------------------------------------------------------------------------------------


def check_whole(url: RoomUrl) -> None:
    """Raise RoomDamaged where a room was made in a folder, and the file that its messages are in is missing or empty."""
    lost = lost_part(url)
    if lost is not None:
        state = "is empty" if os.path.lexists(lost) else "is missing"
        raise RoomDamaged(
            f"{lost} {state}, though a room was made there: its messages are lost unless you have a copy. Put a copy of "
            f"the room back, or start with an empty one: postroom init --anew --room {_shell_word(str(url))}"
        )


def lost_part(url: RoomUrl) -> Path | None:
    """The file without which a room that was made in a folder is none, where it is missing or empty.

    None for a whole room, and for a folder in which no room was made yet: it has no seal, or not the lock that every
    opener takes, or still the mark of a room that is being made.
    """
    place = place_of(url)
    if place is None or not _was_made(place) or missing_part(url) is None:
        return None
    with _no_room_is_made(place, fcntl.LOCK_SH):  # in an allowed folder, somebody may be about to make the first one
        return missing_part(url)


def _was_made(place: Path) -> bool:
    return all(os.path.lexists(place / name) for name in (SEAL, _LOCK)) and not os.path.lexists(place / MAKING_MARK)


@contextmanager
def _no_room_is_made(place: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """No other process makes a room in this folder, nor sets one aside meanwhile: openers have its lock for that.

    Without a lock there, or the right to take it, nothing is kept out.
    """
    with _locked(place / _LOCK, kind):
        yield


@contextmanager
def _no_place_is_prepared() -> Iterator[None]:
    """No other process of this user prepares a folder meanwhile. Without a configuration, nothing is kept out."""
    folder = config_folder()
    if folder is None:
        yield
        return
    with suppress(OSError):
        (folder / _ROOMS).mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(Path(os.path.realpath(folder / _ROOMS)), fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(descriptor, kind)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked off meanwhile has it open, too
        os.close(descriptor)


def set_aside(url: RoomUrl) -> list[Path]:
    """Let a room of which a part was lost be made anew: what is left of it gets other names, which are returned.

    No file stays under its name, not even an empty one: a process that still has the lost room open must not write into
    the new one. The files that were attached to a lost database go with it, or the new room would delete them as files
    that nothing refers to; mailboxes made of files are taken over by the new room, with theirs.

    Raises OSError.
    """
    place, folder = place_of(url), room_folder(url)
    if place is None or folder is None:
        return []
    with _no_room_is_made(place):
        if not _was_made(place) or missing_part(url) is None:
            return []  # another process was faster
        files, attached = [place / f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm")], [folder / ARTIFACTS]
        if url.scheme == "files":
            files, attached = [place / FILES_MARK, *logs_in(place)], []
        now_ms, parts = SYSTEM.wall_ms(), [part for part in (*files, *attached) if has_content(part)]
        kept = [part.rename(part.with_name(f"lost-{now_ms}-{part.name}")) for part in parts]
        for part in files:
            part.unlink(missing_ok=True)
        os.unlink(place / SEAL)
        return kept


def prepare_place(url: RoomUrl, *, group: bool = False) -> None:
    """Trust the folder of a room that is to be made, before anything of the room is in it. `finish_place` ends it.

    A missing folder gets its name when it has its seal, and the list its entry: no process ever finds a folder that
    this user made and nobody trusts, however many open a new room at once, and wherever one is killed
    (tests/faults/test_first_openings.py). A folder in which a room was made already is left as it is.

    Raises OSError, also where the list cannot be kept; the folder is there then, if it can be made.
    """
    named = place_of(url)
    if named is None or (os.path.islink(named) and not named.exists()):
        return
    place = Path(os.path.realpath(named))
    address = address_of(place.parent, "files") if url.scheme == "files" else address_of(place)
    with _no_place_is_prepared():
        if not os.path.lexists(place):
            try:
                _make_place(place, address, group=group, shared=group and url.scheme == "files")
                return
            except OSError:
                if not place.is_dir():  # else another process, which keeps its list elsewhere, was faster
                    raise
        if is_new(url) and not _was_made(place):
            _write_new(place / MAKING_MARK, b"")
            if judge_place(place).why:
                _allow(place, address, how="made", group=group)


def _make_place(place: Path, address: str, *, group: bool, shared: bool) -> None:
    """Make a folder that is trusted from the moment on at which it has its name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name.strip('.')}-{_config_inode() or os.getpid():x}.new")
    _remove_draft(draft)  # a process that was killed has left it: no other one prepares a folder now
    draft.mkdir(mode=0o700)
    try:
        if shared:
            draft.chmod(0o2770)
        if address == address_of(place):  # in mailboxes, all of what lies around it is ignored, too
            _write_new(draft / ".gitignore", b"*\n", 0o666)
        _write_new(draft / MAKING_MARK, b"")
        about, seal = os.stat(draft), _make_seal(draft)
        with suppress(OSError):  # a user without a configuration names rooms by their address
            _write(_ROOMS, str(place), _entry(place, address, "made", about, seal, group=group))
        os.rename(draft, place)
    except BaseException:
        _remove_draft(draft)
        raise
    _prune()


def _remove_draft(draft: Path) -> None:
    if draft.is_symlink():  # not ours: it may lead to a folder whose files have these names, too
        return
    for name in (".gitignore", MAKING_MARK, SEAL):
        with suppress(OSError):
            os.unlink(draft / name)
    with suppress(OSError):
        draft.rmdir()


def _config_inode() -> int:
    """What tells this user's list from every other one; 0 without one."""
    folder = config_folder()
    with suppress(OSError):
        return 0 if folder is None else os.stat(folder / _ROOMS).st_ino
    return 0


def finish_place(place: Path) -> None:
    """The room in a folder has been made: from now on, what is missing of it is lost. Never raises."""
    with suppress(OSError):
        os.unlink(place / MAKING_MARK)


def _write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file; one that is there, or a link, stays as it is."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)


def allow_place(place: Path, *, how: Literal["made", "allowed"], group: bool = False) -> RoomEntry:
    """Trust a folder, and the room that it means now. Its seal is made where it has none.

    After: discovery, hooks and MCP servers of this user open it. Raises OSError when that cannot be kept, RoomError
    when the pointer in it is none. Nothing but the seal is written into the folder.
    """
    return _allow(Path(os.path.realpath(place)), None, how=how, group=group)


def _allow(place: Path, address: str | None, *, how: Literal["made", "allowed"], group: bool) -> RoomEntry:
    about = os.stat(place)
    with _no_room_is_made(place):  # two openers of a new room: the seal that stays is the one that the list has
        means, seal = address or address_in(place), _make_seal(place, anew=how == "made")
        entry = _entry(place, means, how, about, seal, group=group)
        _write(_ROOMS, str(place), entry)
    _prune()
    return entry


def _entry(
    place: Path, address: str, how: Literal["made", "allowed"], about: os.stat_result, seal: str, *, group: bool
) -> RoomEntry:
    return RoomEntry(
        path=str(place),
        address=address,
        how=how,
        time_ms=SYSTEM.wall_ms(),
        config_inode=0,
        owner=about.st_uid,
        inode=about.st_ino,
        seal=seal,
        group=group,
    )


def allow_address(url: RoomUrl, *, how: Literal["made", "allowed"]) -> RoomEntry:
    """Trust a room on servers. Its credentials are not part of it: see `allow_server`. Raises OSError."""
    key = address_key(url)
    entry = RoomEntry(path=key, address=key, how=how, time_ms=SYSTEM.wall_ms(), config_inode=0)
    _write(_ROOMS, key, entry)
    return entry


def address_key(url: RoomUrl) -> str:
    """A room on servers by its servers and its name alone: no options, no credentials."""
    hosts, _, name = url.rest.removeprefix("//").partition("/")
    return f"{url.scheme}://{','.join(servers_of(hosts))}/{name}"


def servers_of(hosts: str) -> list[str]:
    """`host:port` for each of the servers that an address lists, without credentials, in lower case."""
    found = []
    for each in hosts.split(","):
        host = each.rpartition("@")[2].strip().lower()
        if host:
            found.append(host if ":" in host.rpartition("]")[2] else f"{host}:{_DEFAULT_PORT}")
    return sorted(found)


def remove(target: str) -> bool:
    """Trust a room, or a server, no more. False when it was not in the list."""
    keys = [(_ROOMS, os.path.realpath(target)), (_ROOMS, os.path.realpath(os.path.join(target, FOLDER)))]
    if "://" in target:
        url = parse_url(target)
        keys = [(_ROOMS, address_key(url)), *((_SERVERS, server) for server in servers_of(_hosts(url)))]
    removed = False
    for kind, key in keys:
        path = _entry_path(kind, key)
        with suppress(OSError):
            if path is not None:
                os.unlink(path)
                removed = True
    return removed


def rooms() -> list[RoomEntry]:
    """Every room in the list, by path."""
    return sorted((entry for _, entry in _all(_ROOMS, RoomEntry)), key=lambda entry: entry.path)


def _prune() -> None:
    """Now and then, forget rooms whose folders are gone: programs that make many rooms leave no heap of entries."""
    folder = config_folder()
    with suppress(OSError):
        if folder is None or len(os.listdir(folder / _ROOMS)) % _PRUNE_EVERY:
            return
        for path, entry in list(_all(_ROOMS, RoomEntry)):
            if entry.inode is not None and not os.path.lexists(entry.path):
                os.unlink(path)


def _make_seal(place: Path, *, anew: bool = False) -> str:
    """The folder's seal; a new one where there is none, or `anew`.

    Raises OSError when what lies there is no file of this user.
    """
    path = place / SEAL
    if anew:
        with suppress(FileNotFoundError):
            os.unlink(path)
    with suppress(FileExistsError):
        word = os.urandom(16).hex()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
        try:
            os.write(descriptor, word.encode())
        finally:
            os.close(descriptor)
        return word
    known = _seal_in(place)
    if not known:
        return _make_seal(place, anew=True)  # a link, or an empty file; what a link leads to is not touched
    return known


def _seal_in(place: Path) -> str | None:
    try:
        text = read_regular(place / SEAL, _MAX_SEAL_BYTES, owner=os.geteuid())
    except OSError:
        return None
    return text.decode("ascii", "replace") or None


class Judgement(NamedTuple):
    """What the allow-list says of a folder or an address. `why` is "" when it is allowed."""

    why: str
    address: str = ""
    group: bool = False


def judge_place(place: Path) -> Judgement:
    """Whether discovery may open the room that a folder means, and why not."""
    try:
        about = os.lstat(place)
    except OSError as error:
        return Judgement(f"cannot be read ({error.strerror})")
    if not stat.S_ISDIR(about.st_mode):
        return Judgement("is a symbolic link" if stat.S_ISLNK(about.st_mode) else "is not a folder")
    entry = _read(_ROOMS, os.path.realpath(place), RoomEntry)
    if entry is None:
        return Judgement("was neither made nor allowed by you on this machine")
    if about.st_uid != entry.owner or (about.st_uid != os.geteuid() and not entry.group):
        return Judgement(f"belongs to user {about.st_uid}")
    if about.st_ino != entry.inode or (_seal_in(place) != entry.seal and not entry.group):
        return Judgement("is not the folder that you made or allowed there")
    address = address_in(place)
    if address != entry.address and address_of(place) == address and missing_part(parse_url(entry.address)) is not None:
        address = entry.address  # a files room whose mark was lost, or is not made yet, looks like another kind of room
    if address != entry.address:
        return Judgement("leads to a different room than when you made or allowed it")
    brought = _brought_by_git(place, address)
    if brought:
        return Judgement(f"holds {brought}, which git tracks and a pull may have replaced")
    return Judgement("", address, entry.group)


def _brought_by_git(place: Path, address: str) -> str:
    """A file of the room that git tracks; "" when there is none, or the index is not one that this can read.

    Looked at each time, not only by `postroom allow`: a checkout overwrites files that are ignored, without a word.
    """
    url = parse_url(address)
    folders = {os.path.realpath(place), os.path.realpath(room_folder(url) or place)}
    if not any(os.path.lexists(above / ".git") for folder in folders for above in Path(folder).parents):
        return ""
    try:
        return next(iter(git_index.tracked_of_room(place, url)), "")
    except git_index.UnreadableIndex:
        return ""


def judge_url(url: RoomUrl) -> Judgement:
    """The same for an address: hooks and MCP servers open a room that a text named only when it is in the list."""
    place = place_of(url)
    if place is not None:
        # a folder with a pointer in it was allowed for what the pointer says
        verdict = judge_place(Path(os.path.realpath(place.parent), place.name))
        means = "" if verdict.why else parse_url(verdict.address).rest
        same = not verdict.why and os.path.realpath(means) == os.path.realpath(room_folder(url) or "")
        return verdict if verdict.why or same else Judgement("leads to a different room")
    if url.scheme == "memory" or _read(_ROOMS, address_key(url), RoomEntry) is not None:
        return Judgement("", url.with_secrets())
    return Judgement("was neither made nor allowed by you on this machine")


# --- finding a room ------------------------------------------------------------------------------------------------


class FoundRoom(NamedTuple):
    """A room that a search came to: its address, and the folder that it was found by (None: a variable names it)."""

    address: str
    place: Path | None


def find_room(
    start: Path | None = None, environment: Mapping[str, str] = os.environ, *, strict: bool = False
) -> FoundRoom | None:
    """The room that a program started in this folder should use; None when there is none.

    The environment's, else that of the nearest `.postroom` above, else that of the repository's main worktree. A folder
    of another user is passed over: anybody can put a `.postroom` into a shared place.

    Raises RoomNotAllowed when what is found was neither made nor allowed by this user; with `strict` also when a
    variable names it. Nothing in the folder was opened then but its pointer.
    """
    named = environment.get(URL_VARIABLE)
    if named:
        if strict:
            require_allowed(named)
        return FoundRoom(named, None)
    for place in search_places(start or Path.cwd()):
        if not is_candidate(place):
            continue
        verdict = judge_place(place)
        if verdict.why:
            raise RoomNotAllowed(not_allowed(place, verdict.why))
        return FoundRoom(verdict.address, place)
    return None


def passed_over(start: Path) -> dict[Path, int]:
    """The folders of other users that a search from here passes over before it stops, each with its owner."""
    found = {}
    for place in search_places(start):
        try:
            owner = os.stat(place).st_uid
        except OSError:
            continue
        if owner == os.geteuid() or not judge_place(place).why:
            break
        found[place] = owner
    return found


def is_candidate(place: Path) -> bool:
    """Whether a search stops at this folder: it is there, and this user's own or allowed."""
    try:
        about = os.lstat(place)
        if stat.S_ISLNK(about.st_mode):
            return place.is_dir() and about.st_uid == os.geteuid()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and (about.st_uid == os.geteuid() or not judge_place(place).why)


def require_allowed(address: str) -> None:
    """Raise RoomNotAllowed unless the address is in the list, or names a folder that is not there.

    Mailboxes without Postroom's own folder in them are there: opening them makes a room of what lies in them.
    """
    url = parse_url(address)
    place, verdict, folder = place_of(url), judge_url(url), room_folder(url)
    if not verdict.why or (folder is not None and not os.path.lexists(folder)):
        return
    if place is not None and not os.path.lexists(place):
        raise RoomNotAllowed(
            f"{folder} holds no room that you made or allowed, so it is not opened. If its mailboxes are yours: "
            f"postroom init --room {_shell_word(str(url))}, then postroom allow {_shell_word(str(folder))}"
        )
    raise RoomNotAllowed(not_allowed(place or url.without_secrets(), verdict.why))


def not_allowed(what: Path | str, why: str) -> str:
    """The sentence that tells the user what was found and how to allow it."""
    told = describe(what) if isinstance(what, Path) else "a room on a server"
    if config_folder() is None:
        return (
            f"{what} {why}, so it is not opened ({told}). You have no home folder to save your trust in: "
            f"name it with --room or ${URL_VARIABLE}"
        )
    return f"{what} {why}, so it is not opened ({told}). If it is yours, or you trust it: postroom allow {_shell_word(str(what))}"


def describe(place: Path) -> str:
    """In a few words, what a folder that looks like a room holds. Nothing in it is opened but the pointer."""
    with suppress(OSError, RoomError):
        if place.is_symlink():
            return f"it leads to {os.path.realpath(place)}"
        if os.path.lexists(place / POINTER) and not (place / FILES_MARK).is_file():
            try:
                return f"it points to {_shown(parse_url(address_in(place)).without_secrets())}"
            except RoomNotAllowed:
                return "it points to a server, and names a file or credential itself"
        if (place / FILES_MARK).is_file():
            return f"a room of files in {place.parent}"
        if os.path.lexists(place / "messages.db"):
            return "a room with messages in it"
    return "an empty room"


def _shown(address: str) -> str:
    """An address out of a folder that nobody trusts yet, if it looks like one. Sentences do not."""
    if len(address) <= _MAX_SHOWN and address.isprintable() and " " not in address:
        return address
    return "something that does not look like an address"


def _shell_word(text: str) -> str:
    return shlex.quote(text)


def tell_once(what: str) -> bool:
    """Whether the user is to be told of this now: True the first time. Never raises."""
    path = _entry_path(_TOLD, what)
    if path is None:
        return True
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600))
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


# --- servers -------------------------------------------------------------------------------------------------------


def _hosts(url: RoomUrl) -> str:
    return url.rest.removeprefix("//").partition("/")[0]


def allow_server(entry: ServerEntry) -> None:
    """Trust a server with these credentials. Raises OSError."""
    _write(_SERVERS, entry.path, msgspec.structs.replace(entry, time_ms=SYSTEM.wall_ms()))


def server(address: str) -> ServerEntry | None:
    """What the user allowed for one server, by `host:port`; None when it is not in the list."""
    return _read(_SERVERS, address.lower(), ServerEntry)


def servers() -> list[ServerEntry]:
    """Every server in the list."""
    return sorted((entry for _, entry in _all(_SERVERS, ServerEntry)), key=lambda entry: entry.path)


prepare_types(RoomEntry, Credentials)
