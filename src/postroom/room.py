"""A room: where agents meet, and where everything they sent can be looked at; and `open_room`, which finds or makes one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from postroom.board import board as boards
from postroom.board import reservations as reserved_files
from postroom.board.clerk import Clerk
from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import (
    FOLDER,
    MAKING_MARK,
    URL_VARIABLE,
    Config,
    RoomUrl,
    address_of,
    is_new,
    make_config,
    parse_url,
    place_of,
    room_folder,
    search_places,
)
from postroom.core.events import Hooks
from postroom.core.message import DEFAULT_CHANNEL, DEFAULT_PRIORITY
from postroom.core.moments import Moment, is_cursor, moment_ms
from postroom.core.states import FINISHED, State
from postroom.core.system.files import make_private_folder
from postroom.mail.agent import Agent
from postroom.mail.gateway import Gateway
from postroom.mail.housekeeping import Upkeep
from postroom.mail.moved import check_not_moved
from postroom.mail.received import check_names, listed
from postroom.mail.redacting import REDACTION_CELL
from postroom.mail.ticker import Ticker
from postroom.mail.view import PAGE, RoomView, checked_limit, states_of
from postroom.sessions import session as sessions
from postroom.stores.contract import Change, Query, Store

from .core import trust
from .errors import (
    IdentityRefused,
    InvalidMessage,
    RoomClosed,
    RoomError,
    RoomMoved,
    RoomNotAllowed,
    RoomNotFound,
)
from .mail import (
    attachments,
    limiting,
    presence,
    redaction_rules,
    replaying,
    retaining,
    tokens,
)  # fmt: skip
from .mail import groups as agent_groups
from .mail import people as asked_people
from .mail import schedule as timetable
from .stores import open_store

T = TypeVar("T")


class Room(RoomView):
    """An open room. Shared by all threads of its process; another process opens it for itself."""

    def __init__(self, gateway: Gateway, url: RoomUrl) -> None:
        self.url = url  # its address; as text it is shown without a password
        #: The folder that the room lives in; None when it lives elsewhere.
        self.folder: Path | None = room_folder(url)
        super().__init__(gateway)
        self._upkeep = Upkeep(self._gateway, self.folder)
        self._ticker = Ticker(self._gateway)
        self._lock = threading.RLock()  # a signal's handler may come in the middle of what it guards
        self._agents: dict[tuple[str, bool], Agent] = {}
        self._parts: dict[Callable[[Gateway], Any], Any] = {}
        self._clerk = Clerk(self._gateway, partial(_look_at_board, weakref.ref(self)))
        self._ticker.look()

    @property
    def store(self) -> Store:
        """The store of the messages, for programs that need more than a room offers; hooks and limits do not see it."""
        return self._gateway.store

    @property
    def gateway(self) -> Gateway:
        """The checked way to the store, for programs that build on rooms: it checks, counts and tells the hooks."""
        return self._gateway

    @property
    def config(self) -> Config:
        """The settings that it was opened with."""
        return self._gateway.config

    @property
    def clock(self) -> Clock:
        """Where its time comes from."""
        return self._gateway.clock

    @property
    def hooks(self) -> Hooks:
        """Listeners to every step: `room.hooks.on("after_send", fn)`."""
        return self._gateway.hooks

    def agent(self, name: str, *, transient: bool = False) -> Agent:
        """The agent of that name, registered. The same one each time.

        An agent counts as alive until the room closes. A transient one, for programs that do one thing and exit, is
        only recorded as seen, and its claims outlive the program.
        """
        self._gateway.check_open()
        if self.closed:  # nobody would mark it stopped any more
            raise RoomClosed("this room is being closed")
        with self._lock:
            agent = Agent(self._gateway, name, transient=transient)
            known = self._agents.get((name, transient))
            if known is not None:
                return known
            presence.enter(self._gateway, name, transient=transient)
            if not transient:
                self._upkeep.look_after(name)
            return self._agents.setdefault((name, transient), agent)

    def connect(self, name: str) -> None:
        """Connect an agent that lives elsewhere through this process, as an MCP server does. Idempotent.

        It is present until `disconnect`, or until the room closes, which marks it stopped.
        """
        self._gateway.check_open()
        check_names(name=name)
        with self._lock:
            self._upkeep.connect(name)

    def disconnect(self, name: str) -> None:
        """End its connection. It is then recorded as seen, unless another process has it open."""
        self._gateway.check_open()
        with self._lock:
            self._upkeep.disconnect(name)

    # Sessions

    def session(self, id: str | None = None, *, name: str | None = None) -> sessions.Session:
        """Open a session; with an id, join one that is open, as the member of that name.

        Joining raises SessionFailed, Deadlock or SessionEnded at once when it has ended, UnknownSession when there is none.
        """
        self._gateway.check_open()
        host = sessions.SessionHome(self._gateway, self.url.with_secrets(), self.folder)
        return sessions.open_session(host) if id is None else sessions.join_session(host, id, name)

    @property
    def board(self) -> boards.Board:
        """The room's tasks."""
        return self._part(boards.Board)

    @property
    def groups(self) -> agent_groups.Groups:
        """The room's groups of agents."""
        return self._part(agent_groups.Groups)

    @property
    def people(self) -> asked_people.People:
        """Questions to people, which wait without a process."""
        return self._part(asked_people.People)

    def reserve(
        self,
        globs: Iterable[str],
        agent: str,
        ttl_s: float = 600,
        *,
        exclusive: bool = True,
        why: str | None = None,
        transient: bool = False,
        process: str | None = None,
    ) -> reserved_files.Reservation:
        """Record that an agent is working on files, such as "src/api/**", so that others keep out of its way. Advisory.

        It ends with `ttl_s`, its release, or this process; a transient one belongs to the agent and outlives the process
        (unless `process` names another to end with). Shared ones (`exclusive=False`) may overlap. Raises
        ReservationConflict, naming the holder and what it works on, when another agent's overlaps: then nothing
        was reserved.
        """
        process = process if transient else self._gateway.process
        return self._reservations().reserve(globs, agent, ttl_s, exclusive=exclusive, why=why, process=process)

    def reservations(self) -> list[reserved_files.Reserved]:
        """The current reservations, oldest first."""
        return self._reservations().all()

    def unreserve(self, agent: str, globs: Iterable[str] | None = None) -> list[str]:
        """Take these patterns (None: all) out of an agent's reservations. Returns those that were taken out."""
        return self._reservations().drop(agent, globs)

    def reserved_by_others(self, paths: Iterable[str], agent: str | None) -> dict[str, str]:
        """Those of these files that another agent has reserved for itself alone, each with its holder."""
        return self._reservations().in_the_way(paths, agent)

    def _reservations(self) -> reserved_files.Reservations:
        self._gateway.check_open()
        return self._part(reserved_files.Reservations)

    def _part(self, kind: Callable[[Gateway], T]) -> T:
        """The room's one part of that kind, made when it is first needed."""
        with self._lock:
            part = self._parts.get(kind) or kind(self._gateway)
            made: T = self._parts.setdefault(kind, part)  # a signal's handler may have made one meanwhile
            return made

    # Schedules

    def schedule(
        self,
        name: str,
        *,
        every_s: float | None = None,
        cron: str | None = None,
        to: str | None = None,
        channel: str = DEFAULT_CHANNEL,
        payload: dict[str, Any] | None = None,
        type: str = "tick",
        zone: str = "UTC",
        missed: str = "one",
        priority: int = DEFAULT_PRIORITY,
        ttl_s: float | None = None,
        by: str = "schedule",
    ) -> timetable.Schedule:
        """Send a message every so often, or at the times of a cron expression ("0 9 * * 1-5") in a time zone.

        One message for each tick, however many processes have the room open; any of them sends it. `missed` says what
        becomes of ticks that nobody could send in time: "skip" (none of them), "one" (one message for all of them) or
        "all" (each; of more than 1,000 the latest). Its `correlation_id` is the schedule's name and the tick's time.
        `by` is the sender, to whom answers go.

        Idempotent: a schedule of that name that is just as asked for goes on; any other is replaced, and counts from now.
        Raises InvalidMessage that names everything that is wrong: then nothing has changed.
        """
        definition = {
            "every_ms": timetable.every_ms(every_s), "cron": cron, "zone": zone, "missed": missed, "to": to,
            "channel": channel, "type": type, "payload": {} if payload is None else payload, "priority": priority,
            "ttl_s": ttl_s, "by": by,
        }  # fmt: skip
        return self._ticker.add(name, definition)

    def unschedule(self, name: str) -> bool:
        """Take a schedule away. What it has sent stays. Returns whether there was one."""
        return self._ticker.remove(name)

    def schedules(self) -> list[timetable.Schedule]:
        """The room's schedules, in the order of their names, each with its next and its last tick."""
        return self._ticker.all()

    # Limits and pauses

    def limit(
        self,
        channel: str,
        *,
        concurrent: int | None = None,
        per_s: float | None = None,
        burst: int | None = None,
        by: str | None = None,
        waiting: int | None = None,
        pass_failed: bool | None = None,
    ) -> None:
        """Limit what is taken from a channel, and what may wait in it. Kept in the room, for all its processes.

        `concurrent`: so many of its messages are claimed at once. `per_s`: so many claims a second, of which `burst` (1) may
        come at once after a rest. With `by="sender"` or `by="order_key"` each sender or key has that limit for itself;
        messages without an order key are free of the latter. `waiting`: so many messages may wait in each mailbox of the
        channel; a send into a full one raises MailboxFull, or waits with `full_wait_s`. `pass_failed`: a message with an
        order key that fails is set aside as a dead letter at once, and the next of its key passes.

        A call changes what it names, for its `by`; everything else stays. What is claimed already stays claimed.
        Raises InvalidMessage with everything that is wrong; nothing was changed.
        """
        asked = limiting.LimitChange(by, concurrent, per_s, burst, waiting, pass_failed)
        limiting.limit(self._gateway.open_store, channel, asked)

    def unlimit(self, channel: str) -> bool:
        """Take all limits of a channel away; a pause stays. Returns whether it had any."""
        return limiting.unlimit(self._gateway.open_store, channel)

    def pause(
        self,
        channel: str | None = None,
        *,
        agent: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """Let nobody take from a channel, or let an agent take nothing, until `resume`. Returns whether that is new.

        What is claimed goes on, messages are stored as ever, and answers reach their askers. All users of the room see the
        pause in `limits`: its reason, and who made it, which is `by` or the system's user.
        """
        return limiting.pause(self._gateway.open_store, channel, agent, reason, by)

    def resume(self, channel: str | None = None, *, agent: str | None = None) -> bool:
        """End a pause: receivers that wait get what is there. Returns whether there was one."""
        return limiting.resume(self._gateway.open_store, channel, agent)

    # Acting on what is kept

    def requeue(self, id: str | Iterable[str]) -> list[str]:
        """Put dead, refused or expired messages back, with their delivery counts reset. Returns those that were put back.

        A single id that is not kept here is UnknownMessage.
        """
        if isinstance(id, str):
            self.get(id)
            id = [id]
        return self._gateway.open_store.requeue(list(id))

    def purge(
        self,
        *,
        state: str | None = None,
        channels: Iterable[str] | None = None,
        to: str | None = None,
        before: Moment | None = None,
        ids: Iterable[str] | None = None,
        limit: int = 1_000_000,
    ) -> int:
        """Delete messages for good: finished ones, unless `state` names others. Returns how many. Claimed ones stay.

        `ids` limits it to these, finished or not, which also withdraws a message that is still waiting.
        `before`: sent before that time (ISO 8601 text, a datetime, milliseconds) or longer ago than a span ("1h").
        """
        self._gateway.check_open()
        query = Query(
            ids=None if ids is None else listed(ids, "ids", "ids"),
            states=FINISHED if state is None and ids is None else states_of(state),
            channels=None if channels is None else listed(channels),
            to_agent=to,
            sent_before_ms=None if before is None else moment_ms(self.clock, "before", before),
            limit=checked_limit(limit),
        )
        return self._gateway.store.purge(query)

    # What is stored

    def redact(self, name: str, pattern: str | None = None) -> list[redaction_rules.Rule]:
        """From now on, let no sender store what a rule finds: "[redacted: NAME]" stands in its place.

        `name` is a rule that ships ("github token", …), or "all" for all of those; with `pattern`, a regular expression, it
        is the name of a rule of your own. Rules apply to the payloads of messages, and to the reasons and errors in their
        ledgers. They are kept in the room: this process honours a new one at once, every other sender within two seconds.
        What is stored already stays as it is, and so do attached files, cells and tasks. Returns all rules of the room.
        Raises InvalidMessage for a name that is not known, and for a pattern that could take too long; nothing was changed.
        """
        rules = redaction_rules.add(self._gateway.open_store, REDACTION_CELL, name, pattern)
        self._gateway.redaction.forget()
        return rules

    def unredact(self, name: str) -> bool:
        """Remove a redaction rule, or "all" of them. Whether it was there."""
        removed = redaction_rules.remove(self._gateway.open_store, REDACTION_CELL, name)
        self._gateway.redaction.forget()
        return removed

    def redactions(self) -> list[redaction_rules.Rule]:
        """The redaction rules of the room, by name."""
        cell = self._gateway.open_store.cell_read(REDACTION_CELL)
        return redaction_rules.rules_in(None if cell is None else cell.value)

    def retention(
        self,
        channel: str | None = None,
        *,
        age_s: float | None = None,
        count: int | None = None,
        bytes: int | None = None,
    ) -> dict[str, retaining.Retention]:
        """Keep less of a channel's finished messages than the room's own limits do. Returns the limits of every channel.

        Those sent more than `age_s` ago are deleted, and of the others all but the newest `count`, and all but the newest whose
        payloads have `bytes` together. What is given replaces what the channel had; a channel alone has none any more; without
        a channel nothing changes. Messages that wait, are claimed or are dead are never deleted by this.
        The limits are kept in the room, and applied about once a minute by a process that has it open with an agent.
        Raises InvalidMessage for a wrong value; nothing was changed.
        """
        limits = retaining.Retention(age_s, count, bytes)
        if channel is not None:
            retaining.change(self._gateway.open_store, channel, limits)
        elif limits != retaining.Retention():
            raise InvalidMessage("channel", "must say which channel the limits are for")
        return retaining.read(self._gateway.open_store)

    def replay(
        self,
        since: Moment,
        *,
        channel: str | None = None,
        to: str | None = None,
        from_agent: str | None = None,
        type: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
        told: Callable[[list[str], int], object] | None = None,
        _lane: str = "agent",
    ) -> list[str]:
        """Send messages from the past again, oldest first, each marked with `replay_of`. Returns the new ids.

        `since` is a time (ISO 8601 text, a datetime, milliseconds), a span ("2h") or a position in the feed. Each message
        is sent once: a replay counts as the message that it repeats. They go to the same channel and expire no more;
        answers are ordinary mail. What is still waiting is sent again too, unless `state` says otherwise.

        They come from `by`, in its lane and never in that of the first sender, whom `room.get(replay_of)` names. Without
        `by` they come from their first senders, in the lane of agents; in a room with tokens that is IdentityRefused,
        and nothing is sent.

        All of them are sent unless `limit` says how many; `dry_run` sends none, and returns the ids of those that would be
        sent. `told(ids, found)` is called before the first, with [], and after each page that is stored, with its new ids;
        `found` is how many there are. An error, its own too, ends the replay: the pages told of are sent.
        """
        self._gateway.check_open()
        if limit is not None:
            checked_limit(limit)
        if by is not None:
            check_names(by=by)
        elif tokens.has_tokens(self._gateway):
            raise IdentityRefused(
                "this room has tokens, so no agent acts for another: name the agent that replays, with by=NAME"
            )
        query = Query(
            states=states_of(state) if state is not None else frozenset(State) - {State.AWAITED},
            channels=None if channel is None else (channel,),
            to_agent=to,
            from_agent=from_agent,
            type=type,
            sent_after_ms=None if is_cursor(since) else moment_ms(self.clock, "since", since) - 1,
            limit=PAGE,
        )
        found = replaying.originals(self._gateway, query, self._stored_after(since) if is_cursor(since) else None)
        if told is not None:
            told([], len(found))
        if dry_run:
            return found[:limit]
        sent: list[str] = []
        for ids in replaying.send_again(self._gateway, query, found[:limit], by, _lane):
            sent += ids
            if told is not None:
                told(ids, len(found))
        return sent

    def _stored_after(self, cursor: Moment) -> set[str]:
        changes = self._changes(cursor if isinstance(cursor, int) else 0)
        return {change.message.id for change in changes if change.event == "stored"}

    # Files

    def attach(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Keep a copy of a file of any size, and return a reference to put into a payload.

        It is kept by content under the room's `artifacts/`: {"artifact": "sha256:…", "name", "bytes", "path"}, until no
        kept message (and no task) refers to it, and for a day at least. A room without a folder keeps it until this
        process ends.
        """
        self._gateway.check_open()
        return attachments.keep(attachments.folder_for(self.folder), Path(path).absolute())

    def artifact(self, reference: Mapping[str, Any] | str) -> Path:
        """The stored file behind a reference, wherever the room is now. UnknownMessage when it is not here."""
        self._gateway.check_open()
        return attachments.find(attachments.folder_for(self.folder), reference)

    # The end

    @property
    def closed(self) -> bool:
        """Whether the room was closed."""
        return self._gateway.closing

    def close(self) -> None:
        """Release everything: agents are marked stopped, unsettled claims go back, waiters get RoomClosed.

        Functions that `serve` runs may finish first. Safe to call twice; after a call that was interrupted (Ctrl-C), the next one does
        the rest. In a signal's handler that interrupted a step of the room, claims are not given back here: they end with the process.
        """
        self._gateway.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Room {self.url}{' closed' if self.closed else ''}>"

    # Parts of the above

    def _changes(self, after: int) -> Iterator[Change]:
        while changes := self._gateway.store.events(after, PAGE):
            yield from changes
            after = changes[-1].number


def _look_at_board(known: weakref.ref[Room]) -> None:
    room = known()
    if room is not None:
        room.board._look()  # noqa: SLF001  nothing but the look is wanted


def open_room(
    url: str | os.PathLike[str] | None = None, *, create: bool = True, clock: Clock = SYSTEM, **settings: Any
) -> Room:
    """Open the room at an address, such as "sqlite:.postroom", "memory:" or the path of a folder.

    Without an address: the one in $POSTROOM_URL, else the nearest `.postroom` above, else that of the repository's main
    worktree, else `./.postroom`, which is made. With `create` False nothing is made: RoomNotFound says where it looked.
    A room found this way must have been made or allowed by this user on this machine: RoomNotAllowed says how to allow it.
    Settings are the fields of `Config` (sync="full", max_deliveries=5, …); the address may carry them too (?sync=full).
    Raises RoomError, with one sentence that says what to do.
    """
    return open_through(Gateway, url, create, clock, settings)


def open_through(
    make_gateway: Callable[[Store, Config, Clock], Gateway],
    url: str | os.PathLike[str] | None,
    create: bool,
    clock: Clock,
    settings: dict[str, Any],
) -> Room:
    """The same, with a gateway of the caller's choice between the room and its store."""
    room = open_even_if_moved(make_gateway, url, create, clock, settings)
    try:
        check_not_moved(room.store)
    except RoomMoved:
        room.store.close()
        room.close()
        raise
    except RoomError:
        pass  # a room that cannot be read says so at its first step
    return room


def open_even_if_moved(
    make_gateway: Callable[[Store, Config, Clock], Gateway],
    url: str | os.PathLike[str] | None,
    create: bool,
    clock: Clock,
    settings: dict[str, Any],
) -> Room:
    """The same, of a room that was moved too, or that a move is filling: for moves, and for looking at what is left."""
    address = _find(create) if url is None else parse_url(url if isinstance(url, str) else address_of(Path(url)))
    config = make_config(settings, address.options)
    folder = room_folder(address)
    if folder is not None:
        address = RoomUrl(address.scheme, str(folder), address.options)  # also right after a chdir
        if not create and (not folder.is_dir() or (is_new(address) and trust.lost_part(address) is None)):
            raise RoomNotFound(f"there is no room in {folder}; make one with `postroom init`")
        if place_of(address) != folder:
            make_folder(folder)  # mailboxes, in which the room's own folder is to lie
        if is_new(address):
            with suppress(OSError):  # a user without a configuration names rooms by their address
                trust.prepare_place(address, group=config.group)
        if place_of(address) == folder:
            make_folder(folder)
    room = Room(make_gateway(open_store(address, config, clock, create=create), config, clock), address)
    place = place_of(address)
    if place is not None and os.path.lexists(place / MAKING_MARK):  # left by this process, or one that was killed
        trust.finish_place(place)
    return room


def _find(create: bool) -> RoomUrl:
    found = trust.find_room()
    if found is not None:
        return parse_url(found.address)
    here = Path.cwd()
    if not create:
        elsewhere = [place for place in search_places(here) if place.parent not in (here, *here.parents)]
        looked = f"${URL_VARIABLE} (not set), {FOLDER} in {here} and in every folder above"
        looked += "".join(f", {place}" for place in elsewhere)
        others = "".join(
            f"{place} belongs to user {owner} and was skipped: name it if you trust it, --room {address_of(place)}; "
            for place, owner in trust.passed_over(here).items()
        )
        found_no = "found no room of yours" if others else "found no room"
        raise RoomNotFound(f"{found_no}; {others}looked at: {looked}. Make one with `postroom init`")
    if os.path.lexists(here / FOLDER):  # another user's, which the search passes over, or a link to nowhere
        verdict = trust.judge_place(here / FOLDER)
        if not verdict.why:  # another process has just made it
            return parse_url(verdict.address)
        raise RoomNotAllowed(trust.not_allowed(here / FOLDER, verdict.why))
    return parse_url(address_of(here / FOLDER))


def make_folder(folder: Path) -> None:
    """Make a room's folder, for its owner only, with a `.gitignore` that keeps its content out of repositories.

    The store syncs it when it makes the room. A folder that is there already is left as it is.
    """
    try:
        if make_private_folder(folder, sync=False):
            (folder / ".gitignore").write_text("*\n", encoding="ascii")
    except FileExistsError:
        raise RoomError(f"{folder} is a file; a room needs a folder") from None
    except OSError as error:
        raise RoomError(
            f"the room's folder {folder} cannot be made ({error.strerror}); choose a folder that you can write to"
        ) from error
