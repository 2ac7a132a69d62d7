"""Forgetting an agent, and giving it another name.

Both are for agents that no process has open. What happened stays as it was: messages that were sent, claimed and finished keep
the old name in their envelopes and ledgers.

Mail is given to another name one message at a time: a copy is kept in a cell, the message is deleted and taken over anew
(`Store.restore`) under its id, with one more line in its ledger. A kill in between leaves the cell, and the next call
finishes what it finds there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from postroom.core.config import prepare_types
from postroom.core.crashpoints import reached
from postroom.core.message import LedgerEntry, MessageWithLedger
from postroom.core.states import WITHDRAWABLE
from postroom.errors import InvalidMessage, RoomError
from postroom.stores.cells import update
from postroom.stores.contract import Query

from . import limiting, presence, tokens
from .gateway import Gateway
from .groups import Groups
from .received import check_names
from .ticker import SCHEDULES

_READDRESSED: Final = "room/readdressed/"
_PAGE: Final = 500
_MANY: Final = 1_000_000


class Forgotten(NamedTuple):
    """What was forgotten of an agent."""

    known: bool  # whether the room knew it at all
    subscriptions: int
    tokens: int
    deleted: int  # messages that waited for it and were deleted
    waiting: int  # messages that still wait for it


class Renamed(NamedTuple):
    """What an agent took along to its new name."""

    subscriptions: int
    tokens: int
    messages: int


def waiting_for(gateway: Gateway, name: str) -> int:
    """How many messages wait for an agent."""
    return gateway.open_store.count(Query(to_agent=name, states=WITHDRAWABLE))


def forget(gateway: Gateway, name: str, *, mail: bool = False) -> Forgotten:
    """Forget an agent: its presence, groups, subscriptions, pause and tokens. With `mail`, delete what waits for it, too.

    Without `mail` that goes on waiting, for an agent of the same name. Raises RoomError while a process has the agent
    open, and IdentityRefused when it has the only token of a person: then nothing was changed. An interrupted call can
    be made again.
    """
    check_names(name=name)
    _must_be_stopped(gateway, name)
    revoked = tokens.forget_tokens(gateway, name)
    store = gateway.store
    subscribed = [each.channel for each in store.subscriptions() if each.agent == name]
    for channel in subscribed:
        store.unsubscribe(channel, name)
    deleted = store.purge(Query(to_agent=name, states=WITHDRAWABLE, limit=_MANY)) if mail else 0
    paused = limiting.follow_name(store, name, None)
    Groups(gateway).follow_name(name, None)
    known = store.cell_read(presence.CELLS + name) is not None
    store.cell_write(presence.CELLS + name, None)
    return Forgotten(
        known or paused or bool(subscribed or revoked), len(subscribed), revoked, deleted, waiting_for(gateway, name)
    )


def rename(gateway: Gateway, old: str, new: str) -> Renamed:
    """Give an agent another name. What follows: presence, groups, subscriptions, pause, tokens, schedules to it, waiting mail.

    Raises RoomError, and changes nothing, while a process has it open or it holds messages, when the room does not know
    it, and when the new name is taken. An interrupted call is finished by the same call.
    """
    check_names(old=old, new=new)
    if old == new:
        raise InvalidMessage("new", f"must be another name than {old!r}")
    _must_be_stopped(gateway, old)
    store = gateway.store
    held = presence.held_by(gateway, old)
    if held:
        raise RoomError(f"{old} holds {len(held)} claimed messages; settle them first, or wait until their leases end")
    half = store.cell_scan(_READDRESSED)
    begun = any(each.value["to_agent"] == new for each in half) or _is_renamed_from(gateway, new, old)
    if not begun and presence.is_addressee(gateway, new):
        raise RoomError(f"there is an agent {new} already, or mail for it; choose another name")
    if not begun and not presence.is_addressee(gateway, old):
        raise RoomError(f"this room knows no agent {old}")
    cell = store.cell_read(presence.CELLS + old)
    if cell is not None:
        store.cell_write(presence.CELLS + new, cell.value | {"renamed_from": old})
    reached("rename.known")
    Groups(gateway).follow_name(old, new)
    _redirect_schedules(gateway, old, new)
    limiting.follow_name(store, old, new)  # before its mail: a paused agent takes none of it under its new name either
    followed = 0
    for each in store.subscriptions():
        if each.agent == old:
            store.subscribe(each.channel, new)
            store.unsubscribe(each.channel, old)
            followed += 1
    moved = tokens.rename_tokens(gateway, old, new)
    messages = sum(_take_back(gateway, each.name, each.value) for each in half) + _readdress(gateway, old, new)
    store.cell_write(presence.CELLS + old, None)
    return Renamed(followed, moved, messages)


def _redirect_schedules(gateway: Gateway, old: str, new: str) -> None:
    """Let schedules that send to an agent, or in its name, do so under its new name."""

    def change(value: Any) -> Any:
        followed = {} if value is None else {role: new for role in ("to", "by") if value.get(role) == old}
        return value | followed if followed else None

    for cell in gateway.store.cell_scan(SCHEDULES):
        update(gateway.store, cell.name, change)


def _is_renamed_from(gateway: Gateway, new: str, old: str) -> bool:
    """Whether a rename of that agent to this name was begun and not ended."""
    value = presence.look(gateway, new)
    return value is not None and value.get("renamed_from") == old and presence.look(gateway, old) is not None


def _must_be_stopped(gateway: Gateway, name: str) -> None:
    gateway.check_open()
    value = presence.look(gateway, name)
    if value is not None and presence.is_running(gateway, value):
        raise RoomError(f"{name} is running ({', '.join(value['processes'])}); stop it first. Nothing was changed")


def _readdress(gateway: Gateway, old: str, new: str) -> int:
    store, count = gateway.store, 0
    for message in list(store.find_all(Query(to_agent=old, states=WITHDRAWABLE, limit=_PAGE))):
        kept = store.get(message.id)
        if kept is None or kept.exact_state not in WITHDRAWABLE:
            continue
        line = LedgerEntry("by_hand", gateway.clock.wall_ms(), None, f"{old} is called {new} now")
        kept = replace(kept, to_agent=new, owner=None, waiter=None, ledger=(*kept.ledger, line))
        name = _READDRESSED + kept.id
        store.cell_write(name, msgspec.to_builtins(kept))
        reached("rename.copied")
        store.purge(Query(ids=(kept.id,), limit=1))
        reached("rename.deleted")
        count += _take_back(gateway, name, msgspec.to_builtins(kept))
    return count


def _take_back(gateway: Gateway, name: str, value: Any) -> int:
    """Put a message in that was taken out to be given to another name; its copy goes."""
    message = msgspec.convert(value, MessageWithLedger)
    there = gateway.store.get(message.id)
    if there is not None and there.to_agent != message.to_agent:
        gateway.store.purge(Query(ids=(message.id,), limit=1))  # killed before it was taken out
    gateway.store.restore([message])
    gateway.store.cell_write(name, None)
    return 1


prepare_types(MessageWithLedger)
