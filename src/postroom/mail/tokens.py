"""Authentication by tokens: which agent a caller may speak for, and how a false claim is refused and recorded.

A token is shown once, when it is made. The room keeps a hash of it in the cell "token/<id>", whose id is the token's
first part, so that a token is found without trying all:

    {"agent": "bob", "human": False, "hash": "…", "made_ms": …, "revoked_ms": None}

That of a person has a "key" too: the public key of what the token signs (`signing.py`), by which a person's answers are
told from what any program of the room could have written.

A room that ever had a token has tokens, until a person switches them off: revoking one after the other must not let
everybody in again. Tokens fail closed: a caller that shows none may do less than an agent with one, and only a person's
token makes, revokes and administers. So that a room cannot lock everybody out, its first token is a person's, and the
last one of a person goes only with all others (`switch_off`). A person whose token is lost, and a room that was locked
out before that was so, get a new one by `recover`.

What was refused is kept in the cell "refusals", the newest hundred, with a count of all. That tokens were switched off
or recovered is kept in the cell "token-log", with the time and the system user.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final, NamedTuple

from postroom.core.clock import iso
from postroom.core.config import read_regular
from postroom.errors import IdentityRefused, RoomBusy
from postroom.stores.cells import update
from postroom.stores.contract import Cell

from . import presence, signing
from .gateway import Gateway
from .received import check_names

TOKEN_VARIABLE: Final = "POSTROOM_TOKEN"  # noqa: S105  the variable's name
TOKEN_FILE_VARIABLE: Final = "POSTROOM_TOKEN_FILE"  # noqa: S105
_MAX_TOKEN_FILE_BYTES: Final = 4096
#: Cells of tokens begin so.
TOKEN_CELLS: Final = presence.TOKENS
REFUSALS_CELL: Final = "refusals"
MAX_REFUSALS: Final = 100
LOG_CELL: Final = "token-log"
RECOVERED: Final = "recovered"
SWITCHED_OFF: Final = "switched off"

#: The way back where no person has a token that counts.
RECOVERS: Final = "`postroom agent recover NAME` makes a person's token, while no other process has the room open"

_HEAD: Final = "prt"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_MAX_TRIES: Final = 200
#: What somebody claimed to be is kept up to so many characters.
_MAX_CLAIM: Final = 200


class Credential(NamedTuple):
    """What a token proves: the agent, and whether a person holds it."""

    agent: str
    human: bool
    token_id: str

    @property
    def lane(self) -> str:
        """The lane in which its messages travel."""
        return "human" if self.human else "agent"


class TokenInfo(NamedTuple):
    """One token as a list shows it: never the token itself."""

    id: str
    agent: str
    human: bool
    made_at: str
    revoked_at: str | None


class RefusedClaim(NamedTuple):
    """A false claim of a name: when, at which door, which name, and whose token it really was, as far as it tells."""

    time: str
    door: str
    claimed: str
    real: str | None


class Deed(NamedTuple):
    """Something that was done to the tokens as a whole: when, what, for whom, and by which system user."""

    time_ms: int
    what: str
    agent: str
    uid: int


def has_tokens(gateway: Gateway) -> bool:
    """Whether names must be proved in this room: it had a token, and they were not switched off since."""
    return bool(gateway.store.cell_scan(TOKEN_CELLS))


def has_person(gateway: Gateway) -> bool:
    """Whether a person has a token here that still counts: whether anybody can administer the room."""
    return any(_is_persons(cell) for cell in gateway.store.cell_scan(TOKEN_CELLS))


def nobody_comes_in(gateway: Gateway) -> str | None:
    """A sentence when this room has tokens and none of them counts: nobody can speak in it. None where somebody can."""
    cells = gateway.store.cell_scan(TOKEN_CELLS)
    if not cells or any(cell.value["revoked_ms"] is None for cell in cells):
        return None
    return f"every token of this room was revoked, so no agent can use it; {RECOVERS}"


def _way_to_a_token(gateway: Gateway) -> str:
    return "a person makes one with `postroom agent add NAME`" if has_person(gateway) else RECOVERS


def add_token(gateway: Gateway, agent: str, *, human: bool = False) -> str:
    """Make a token for an agent and return it. Nobody can read it later; an agent may have several.

    Raises IdentityRefused when it would be the room's first one and not a person's: nobody could add or revoke another.
    """
    check_names(name=agent)
    gateway.check_open()
    if not human and not has_tokens(gateway):
        raise IdentityRefused(
            "the first token of a room must be for a person, who then makes tokens for agents: "
            "`postroom agent add YOUR_NAME --human` first"
        )
    return _new_token(gateway, agent, human=human)


def _new_token(gateway: Gateway, agent: str, *, human: bool) -> str:
    for _ in range(_MAX_TRIES):
        id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        value = {
            "agent": agent,
            "human": human,
            "hash": _hash_of(secret),
            "made_ms": gateway.clock.wall_ms(),
            "revoked_ms": None,
        }
        if human:
            value["key"] = signing.public_key(_seed_of(secret)).hex()
        if gateway.store.cell_write(TOKEN_CELLS + id, value, expect=0) is not None:
            return f"{_HEAD}_{id}_{secret}"
    raise RoomBusy("no free number for a token was found; try again")


def revoke_tokens(gateway: Gateway, agent: str, *, token_id: str | None = None) -> int:
    """Take an agent's tokens back (or the one of that id). They are refused from now on. Returns how many.

    Raises IdentityRefused, and revokes none, when no person would have a token after it.
    """
    cells = [cell for cell in gateway.open_store.cell_scan(TOKEN_CELLS) if cell.value["revoked_ms"] is None]
    taken = [
        cell
        for cell in cells
        if cell.value["agent"] == agent and token_id in (None, cell.name.removeprefix(TOKEN_CELLS))
    ]
    if any(map(_is_persons, taken)) and not any(_is_persons(cell) for cell in cells if cell not in taken):
        raise IdentityRefused(
            f"{agent} has the only token of a person, and without it no one could administer this room: add another person "
            "first, or revoke all tokens, so that names are no longer checked (`postroom agent revoke --all`)"
        )
    _revoke(gateway, taken)
    return len(taken)


def forget_tokens(gateway: Gateway, agent: str) -> int:
    """Take an agent's tokens back and forget them. Returns how many still counted. Raises as `revoke_tokens` does.

    The last token of a room stays, revoked: a room that has tokens does not open by itself. So do those of a person,
    by which the person's answers are known (`people.py`).
    """
    revoked = revoke_tokens(gateway, agent)
    cells = gateway.store.cell_scan(TOKEN_CELLS)
    mine = [cell for cell in cells if cell.value["agent"] == agent and not cell.value["human"]]
    for cell in mine if len(mine) < len(cells) else mine[1:]:
        gateway.store.cell_write(cell.name, None)
    return revoked


def rename_tokens(gateway: Gateway, old: str, new: str) -> int:
    """Let the tokens of an agent prove another name from now on. Returns how many."""
    mine = [cell for cell in gateway.open_store.cell_scan(TOKEN_CELLS) if cell.value["agent"] == old]
    for cell in mine:
        gateway.store.cell_write(cell.name, cell.value | {"agent": new, "was": [*cell.value.get("was", ()), old]})
    return len(mine)


def _revoke(gateway: Gateway, cells: Collection[Cell]) -> None:
    for cell in cells:
        # nothing else ever changes such a cell: whatever version is there, it is revoked after this
        gateway.store.cell_write(cell.name, cell.value | {"revoked_ms": gateway.clock.wall_ms()})


def switch_off(gateway: Gateway, by: str, uid: int) -> int:
    """Take every token back and forget them: names are believed again. Returns how many still counted.

    Those of persons go last: an interruption leaves a room that a person can still administer, or do this in once more.
    """
    cells = sorted(gateway.open_store.cell_scan(TOKEN_CELLS), key=_is_persons)
    if cells:
        _log_deed(gateway, SWITCHED_OFF, by, uid)
    for cell in cells:
        gateway.store.cell_write(cell.name, None)
    return sum(cell.value["revoked_ms"] is None for cell in cells)


def recover(gateway: Gateway, agent: str, uid: int, *, lost: bool = False) -> str:
    """Make a person's token in a room that has tokens and none of a person, and return it. It is recorded first.

    `lost` says that nobody has the tokens of persons any more: these are revoked.
    Only while no other process has the room open, as far as the store and the heartbeats of agents tell. Raises
    IdentityRefused where a person has a token that is not lost, where the room has none at all, and while others have
    it open: then nothing was done.
    """
    check_names(name=agent)
    in_use = gateway.open_store.open_elsewhere()
    if not has_tokens(gateway):
        raise IdentityRefused(
            "this room has no tokens, so there is nothing to recover; `postroom agent add NAME --human`"
        )
    old = [cell for cell in gateway.store.cell_scan(TOKEN_CELLS) if _is_persons(cell)]
    if old and not lost:
        raise IdentityRefused(
            "a person has a token for this room and can add others; `postroom agent list` shows who. "
            "If that token is lost: `postroom agent recover NAME --lost`, at a terminal"
        )
    running = [
        each.name for each in presence.agents(gateway) if each.alive and set(each.processes) != {gateway.process}
    ]
    if in_use or running:
        who = f" ({', '.join(running)})" if running else ""
        raise IdentityRefused(
            f"another process has this room open{who}; stop every process that uses it, then recover it"
        )
    _log_deed(gateway, RECOVERED, agent, uid)
    made = _new_token(gateway, agent, human=True)  # before the others go: an interruption leaves a person
    _revoke(gateway, old)
    return made


def deeds(gateway: Gateway) -> list[Deed]:
    """When tokens were recovered or switched off, the oldest first."""
    cell = gateway.store.cell_read(LOG_CELL)
    return [] if cell is None else [Deed(*(entry[name] for name in Deed._fields)) for entry in cell.value]


def _log_deed(gateway: Gateway, what: str, agent: str, uid: int) -> None:
    entry = Deed(gateway.clock.wall_ms(), what, agent, uid)._asdict()
    update(
        gateway.store,
        LOG_CELL,
        lambda kept: [*(kept or ()), entry][-MAX_REFUSALS:],
        busy="the change of tokens could not be recorded, so it was not made; try again",
    )


def _is_persons(cell: Cell) -> bool:
    return bool(cell.value["human"]) and cell.value["revoked_ms"] is None


def tokens(gateway: Gateway) -> list[TokenInfo]:
    """Every token that was made here, the oldest first."""
    cells = sorted(gateway.store.cell_scan(TOKEN_CELLS), key=lambda cell: (cell.value["made_ms"], cell.name))
    return [
        TokenInfo(
            cell.name.removeprefix(TOKEN_CELLS),
            cell.value["agent"],
            cell.value["human"],
            iso(cell.value["made_ms"]),
            None if cell.value["revoked_ms"] is None else iso(cell.value["revoked_ms"]),
        )
        for cell in cells
    ]


def credential_of(gateway: Gateway, token: str) -> Credential:
    """What a token proves. IdentityRefused, without saying which part was wrong, when it proves nothing."""
    gateway.check_open()
    head, _, rest = token.strip().partition("_")
    id, _, secret = rest.partition("_")
    well_formed = head == _HEAD and len(id) == 2 * _ID_BYTES and id.isalnum() and id.isascii()
    cell = gateway.store.cell_read(TOKEN_CELLS + id) if well_formed else None
    expected = _hash_of("") if cell is None else cell.value["hash"]
    matches = hmac.compare_digest(_hash_of(secret), expected)
    if cell is None or not matches:
        raise IdentityRefused(f"the token is not valid in this room; {_way_to_a_token(gateway)}")
    if cell.value["revoked_ms"] is not None:
        raise IdentityRefused(f"the token of {cell.value['agent']} was revoked at {iso(cell.value['revoked_ms'])}")
    return Credential(cell.value["agent"], cell.value["human"], id)


def is_persons(gateway: Gateway, agent: str) -> bool:
    """Whether that name is a person's: it has a token of a person that still counts."""
    return any(cell.value["agent"] == agent and _is_persons(cell) for cell in gateway.store.cell_scan(TOKEN_CELLS))


def sign(gateway: Gateway, token: str, text: bytes) -> str:
    """Sign a text by a person's token, which `credential_of` has accepted.

    After: `signer_of` knows the signature. A token that was made before tokens could sign has its public key in its cell
    from now on.
    """
    id, _, secret = token.strip().removeprefix(f"{_HEAD}_").partition("_")
    seed = _seed_of(secret)
    key = signing.public_key(seed).hex()
    update(
        gateway.store,
        TOKEN_CELLS + id,
        lambda value: None if value is None or value.get("key") == key else value | {"key": key},
    )
    return signing.sign(seed, text).hex()


class Signer(NamedTuple):
    """The token that signed a text: the names of its person, first the present one, and when it was revoked."""

    names: tuple[str, ...]
    revoked_ms: int | None


def signer_of(gateway: Gateway, token_id: str, name: str, text: bytes, signature: str) -> Signer | None:
    """The person of that name whose token has signed exactly this text; None when no person's token of that id has."""
    cell = gateway.store.cell_read(TOKEN_CELLS + token_id)
    if cell is None or not cell.value["human"] or "key" not in cell.value:
        return None
    if name not in (cell.value["agent"], *cell.value.get("was", ())):
        return None
    try:
        signed = _verifies(cell.value["key"], text, signature)
    except ValueError:  # no hexadecimal digits
        return None
    return Signer((cell.value["agent"], *cell.value.get("was", ())), cell.value["revoked_ms"]) if signed else None


@lru_cache(maxsize=1024)
def _verifies(key: str, text: bytes, signature: str) -> bool:
    """It takes milliseconds, and who waits for an answer looks again and again."""
    return signing.verifies(bytes.fromhex(key), text, bytes.fromhex(signature))


def token_in(environment: dict[str, str] | os._Environ[str]) -> str | None:
    """The token that the environment holds or names a file of; None when it has none."""
    token = environment.get(TOKEN_VARIABLE)
    path = environment.get(TOKEN_FILE_VARIABLE)
    if token or not path:
        return token or None
    try:
        return read_regular(path, _MAX_TOKEN_FILE_BYTES, flags=0).decode("ascii").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityRefused(f"the file of ${TOKEN_FILE_VARIABLE} cannot be read ({error})") from None


#: Records a refusal; takes what `record_refusal` takes.
Record = Callable[[Gateway, str, str, str | None], None]


def prove(
    gateway: Gateway, claimed: str | None, token: str | None, door: str, *, record: Record | None = None
) -> Credential | None:
    """The speaker: what the token proves, which a claimed name must agree with. None in a room without tokens.

    Raises IdentityRefused, after the refusal was recorded (by `record`), when a name is claimed that the token does not
    prove; where it could not be recorded, what kept it from that (RoomBusy, say).
    """
    record = record or record_refusal
    if token is None:
        if not has_tokens(gateway):
            return None
        if claimed is not None:
            record(gateway, door, claimed, None)
        raise IdentityRefused(
            nobody_comes_in(gateway)
            or f"this room has tokens: set ${TOKEN_VARIABLE} to that of {claimed or 'your agent'} "
            f"({_way_to_a_token(gateway)})"
        )
    try:
        credential = credential_of(gateway, token)
    except IdentityRefused:
        if token or claimed:  # a caller that shows nothing and says nothing claims nothing
            record(gateway, door, claimed or "", None)
        raise
    if claimed is not None and claimed != credential.agent:
        record(gateway, door, claimed, credential.agent)
        raise IdentityRefused(f"the token belongs to {credential.agent}, which cannot act as {claimed}")
    return credential


def must_be_person(
    gateway: Gateway, who: str, door: str, deed: str, *, human: bool, unless: Collection[str | None] = ()
) -> None:
    """In a room with tokens, raise IdentityRefused unless a person does this, or one of those whose own affair it is.

    `who` and `human` are what a token proved; the refusal is recorded. Where names are not proved, nobody is refused.
    """
    if human or who in unless or not has_tokens(gateway):
        return
    record_refusal(gateway, door, f"to {deed}", who)
    raise IdentityRefused(f"{who} may not {deed}; a person may (a token made with --human)")


def record_refusal(gateway: Gateway, door: str, claimed: str, real: str | None, *, count: int = 1) -> None:
    """Keep that a caller claimed a name which is not its own. `count` is how many refusals the entry stands for.

    Raises RoomBusy, and nothing was kept, when others kept changing the cell.
    """
    entry = {
        "time_ms": gateway.clock.wall_ms(),
        "door": door,
        "claimed": claimed[:_MAX_CLAIM].encode("utf-8", "backslashreplace").decode(),
        "real": real,
    }

    def add(value: dict[str, Any] | None) -> dict[str, Any]:
        value = value or {"count": 0, "newest": []}
        return {"count": value["count"] + count, "newest": [*value["newest"], entry][-MAX_REFUSALS:]}

    update(gateway.store, REFUSALS_CELL, add)


def refusals(gateway: Gateway) -> tuple[int, list[RefusedClaim]]:
    """How many claims were refused so far, and the newest of them, the oldest first."""
    cell = gateway.store.cell_read(REFUSALS_CELL)
    if cell is None:
        return 0, []
    newest = [RefusedClaim(iso(e["time_ms"]), e["door"], e["claimed"], e["real"]) for e in cell.value["newest"]]
    return cell.value["count"], newest


def _seed_of(secret: str) -> bytes:
    """What a token signs with. Its hash, which the room keeps, does not tell it."""
    return hashlib.sha256(b"postroom signs: " + secret.encode("utf-8", "backslashreplace")).digest()


def _hash_of(secret: str) -> str:
    """A plain hash will do: the secret is 256 bits of chance, not a word that somebody could try."""
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).hexdigest()
