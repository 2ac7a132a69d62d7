"""Who may speak in whose name: tokens, and what becomes of a claim to be somebody else.

A token is shown once, when it is made. The room keeps a hash of it in the cell "token/<id>", whose id is the token's first
part, so that a token is found without trying all:

    {"agent": "bob", "human": False, "hash": "…", "made_ms": …, "revoked_ms": None}

A room that ever had a token has tokens: taking the last one back must not let everybody in again.
What was refused is kept in the cell "refusals", the newest hundred, with a count of all.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any, Final, NamedTuple

from .clock import iso
from .desk import Desk
from .errors import IdentityRefused, RoomBusy
from .received import check_names

TOKEN_VARIABLE: Final = "POSTROOM_TOKEN"  # noqa: S105  the variable's name
TOKEN_FILE_VARIABLE: Final = "POSTROOM_TOKEN_FILE"  # noqa: S105
#: Cells of tokens begin so.
TOKEN_CELLS: Final = "token/"  # noqa: S105
REFUSALS_CELL: Final = "refusals"
MAX_REFUSALS: Final = 100

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


class Refusal(NamedTuple):
    """Somebody claimed to be who it is not: when, at which door, as whom, and who it was as far as its token tells."""

    time: str
    door: str
    claimed: str
    real: str | None


def has_tokens(desk: Desk) -> bool:
    """Whether names must be proved in this room: whether it ever had a token."""
    return bool(desk.store.cell_scan(TOKEN_CELLS))


def add_token(desk: Desk, agent: str, *, human: bool = False) -> str:
    """Make a token for an agent and return it. Nobody can read it later; an agent may have several."""
    check_names(name=agent)
    desk.check_open()
    for _ in range(_MAX_TRIES):
        id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        value = {
            "agent": agent,
            "human": human,
            "hash": _hash_of(secret),
            "made_ms": desk.clock.wall_ms(),
            "revoked_ms": None,
        }
        if desk.store.cell_write(TOKEN_CELLS + id, value, expect=0) is not None:
            return f"{_HEAD}_{id}_{secret}"
    raise RoomBusy("no free number for a token was found; try again")


def revoke_tokens(desk: Desk, agent: str, *, token_id: str | None = None) -> int:
    """Take an agent's tokens back (or the one of that id). They are refused from now on. Returns how many."""
    desk.check_open()
    revoked = 0
    for cell in desk.store.cell_scan(TOKEN_CELLS):
        value = cell.value
        if value["agent"] != agent or value["revoked_ms"] is not None:
            continue
        if token_id in (None, cell.name.removeprefix(TOKEN_CELLS)):
            # nothing else ever changes such a cell: whatever version is there, it is revoked after this
            desk.store.cell_write(cell.name, value | {"revoked_ms": desk.clock.wall_ms()})
            revoked += 1
    return revoked


def tokens(desk: Desk) -> list[TokenInfo]:
    """Every token that was made here, the oldest first."""
    cells = sorted(desk.store.cell_scan(TOKEN_CELLS), key=lambda cell: (cell.value["made_ms"], cell.name))
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


def credential_of(desk: Desk, token: str) -> Credential:
    """What a token proves. IdentityRefused, without saying which part was wrong, when it proves nothing."""
    desk.check_open()
    head, _, rest = token.strip().partition("_")
    id, _, secret = rest.partition("_")
    well_formed = head == _HEAD and len(id) == 2 * _ID_BYTES and id.isalnum() and id.isascii()
    cell = desk.store.cell_read(TOKEN_CELLS + id) if well_formed else None
    expected = _hash_of("") if cell is None else cell.value["hash"]
    matches = hmac.compare_digest(_hash_of(secret), expected)
    if cell is None or not matches:
        raise IdentityRefused("the token is not one of this room; `postroom agent add NAME` makes one")
    if cell.value["revoked_ms"] is not None:
        raise IdentityRefused(f"the token of {cell.value['agent']} was revoked at {iso(cell.value['revoked_ms'])}")
    return Credential(cell.value["agent"], cell.value["human"], id)


def token_in(environment: dict[str, str] | os._Environ[str]) -> str | None:
    """The token that the environment holds or names a file of; None when it has none."""
    token = environment.get(TOKEN_VARIABLE)
    path = environment.get(TOKEN_FILE_VARIABLE)
    if token or not path:
        return token or None
    try:
        return Path(path).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityRefused(f"the file of ${TOKEN_FILE_VARIABLE} cannot be read ({error})") from None


def prove(desk: Desk, claimed: str | None, token: str | None, door: str) -> Credential | None:
    """Who speaks: what the token proves, which a claimed name must agree with. None in a room without tokens.

    Raises IdentityRefused, after the refusal was recorded, when a name is claimed that the token does not prove.
    """
    if token is None:
        if not has_tokens(desk):
            return None
        if claimed is not None:
            record_refusal(desk, door, claimed, None)
        raise IdentityRefused(
            f"this room has tokens: set ${TOKEN_VARIABLE} to that of {claimed or 'your agent'} "
            "(`postroom agent add NAME` makes one)"
        )
    try:
        credential = credential_of(desk, token)
    except IdentityRefused:
        if token or claimed:  # who shows nothing and says nothing claims nothing
            record_refusal(desk, door, claimed or "", None)
        raise
    if claimed is not None and claimed != credential.agent:
        record_refusal(desk, door, claimed, credential.agent)
        raise IdentityRefused(f"the token is that of {credential.agent}, who cannot speak as {claimed}")
    return credential


def record_refusal(desk: Desk, door: str, claimed: str, real: str | None) -> None:
    """Keep that somebody claimed to be who it is not."""
    entry = {
        "time_ms": desk.clock.wall_ms(),
        "door": door,
        "claimed": claimed[:_MAX_CLAIM].encode("utf-8", "backslashreplace").decode(),
        "real": real,
    }
    for _ in range(_MAX_TRIES):
        cell = desk.store.cell_read(REFUSALS_CELL)
        value: dict[str, Any] = {"count": 0, "newest": []} if cell is None else cell.value
        value = {"count": value["count"] + 1, "newest": [*value["newest"], entry][-MAX_REFUSALS:]}
        if desk.store.cell_write(REFUSALS_CELL, value, expect=0 if cell is None else cell.version) is not None:
            return


def refusals(desk: Desk) -> tuple[int, list[Refusal]]:
    """How many claims were refused so far, and the newest of them, the oldest first."""
    cell = desk.store.cell_read(REFUSALS_CELL)
    if cell is None:
        return 0, []
    newest = [Refusal(iso(e["time_ms"]), e["door"], e["claimed"], e["real"]) for e in cell.value["newest"]]
    return cell.value["count"], newest


def _hash_of(secret: str) -> str:
    """A plain hash will do: the secret is 256 bits of chance, not a word that somebody could try."""
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).hexdigest()
