"""Groups: names that stand for several agents. Each is a cell; its members are read when something is sent to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from postroom.core import near
from postroom.core.message import GROUP_SIGN
from postroom.core.untrusted import quoted
from postroom.errors import InvalidMessage, UnknownGroup
from postroom.stores.cells import DELETE, update

from .gateway import Gateway
from .presence import GROUPS
from .received import check_names, listed


class Groups:
    """The groups of a room. A group is addressed as "@" and its name, so no agent can have its name by accident.

    A change is durable when the call returns. Names that break a rule are InvalidMessage, and nothing was changed.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def add(self, name: str, members: Iterable[str]) -> list[str]:
        """Add agents to a group, which is made if it is not there. Twice is once. Returns its members afterwards."""
        group, added = _checked(name), _checked_members(members)
        if not added:
            raise InvalidMessage("members", "must name at least one agent")

        def change(value: Any) -> Any:
            before = [] if value is None else value["members"]
            new = [member for member in added if member not in before]
            return {"members": [*before, *new]} if new else None

        return self._update(group, change)

    def remove(self, name: str, members: Iterable[str] | None = None) -> list[str]:
        """Take agents out of a group; None: all of them. Returns its members afterwards; without any, it is gone.

        Raises UnknownGroup when there is no such group. An agent that is no member is passed over.
        """
        group = _checked(name)
        gone = None if members is None else _checked_members(members)

        def change(value: Any) -> Any:
            if value is None:
                raise self._unknown(group)
            left = [] if gone is None else [member for member in value["members"] if member not in gone]
            if len(left) == len(value["members"]):
                return None
            return {"members": left} if left else DELETE

        return self._update(group, change)

    def members(self, name: str) -> list[str]:
        """The members of a group, in the order in which they were added. Raises UnknownGroup."""
        group = _checked(name)
        cell = self._gateway.open_store.cell_read(GROUPS + group)
        if cell is None:
            raise self._unknown(group)
        return [*cell.value["members"]]

    def all(self) -> dict[str, list[str]]:
        """All groups with their members, by name."""
        cells = self._gateway.open_store.cell_scan(GROUPS)
        return {cell.name.removeprefix(GROUPS): [*cell.value["members"]] for cell in cells}

    def follow_name(self, old: str, new: str | None) -> None:
        """Let another name stand in the place of an agent, in every group; None: it is a member no more."""

        def change(value: Any) -> Any:
            members = [] if value is None else value["members"]
            if old not in members:
                return None
            left = [*dict.fromkeys(new if member == old else member for member in members)]
            return {"members": [member for member in left if member is not None]} if left != [None] else DELETE

        for group, members in self.all().items():
            if old in members:
                self._update(group, change)

    def expand(self, names: Iterable[str], sender: str | None = None) -> list[str]:
        """Recipients, with each group replaced by its members of this moment; each once.

        A sender that is itself a member is left out. Raises UnknownGroup; InvalidMessage for a group of the sender alone.
        """
        found: dict[str, None] = {}
        for name in names:
            if not name.startswith(GROUP_SIGN):
                found[name] = None
                continue
            others = [member for member in self.members(name) if member != sender]
            if not others:
                raise InvalidMessage("to", f"the group {quoted(name)} has no member but {sender}, which sends")
            found.update(dict.fromkeys(others))
        return [*found]

    def _update(self, group: str, change: Any) -> list[str]:
        busy = f"too many processes are changing the group {group} at once; try again"
        value = update(self._gateway.open_store, GROUPS + group, change, busy=busy)
        return [] if value is None else [*value["members"]]

    def _unknown(self, group: str) -> UnknownGroup:
        known = self.all()
        meant = near.nearest(group, known)
        hint = f"; did you mean {quoted(GROUP_SIGN + meant)}?" if meant else ""
        return UnknownGroup(f"this room has no group {quoted(GROUP_SIGN + group)}{hint}")


def _checked(name: str) -> str:
    """The name of a group without its sign, which may be given or not."""
    check_names(group=name)
    bare = name.removeprefix(GROUP_SIGN)
    check_names(group=bare)
    if bare.startswith(GROUP_SIGN):
        raise InvalidMessage(
            "group", f"must not begin with {GROUP_SIGN}: that is put before a group's name to address it"
        )
    return bare


def _checked_members(members: Iterable[str]) -> list[str]:
    named = list(dict.fromkeys(listed(members, "members")))
    check_names(**{f"members[{place}]": member for place, member in enumerate(named)})
    for member in named:
        if member.startswith(GROUP_SIGN):
            raise InvalidMessage("members", f"must be agents, and {quoted(member)} is a group")
    return named
