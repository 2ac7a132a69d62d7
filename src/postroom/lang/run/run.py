"""The runner of a program: finds its entry point, checks what it needs, starts it, and leaves nothing behind.

The function that is started runs in this process, as the opener of the session; the workers that it delegates to
have processes of their own. Its session, and the room that it lies in, are opened when they are first needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from postroom import inference
from postroom.core.system import children
from postroom.lang.builtins import MAIN
from postroom.lang.compile.compiler import MAIN_BLOCK
from postroom.lang.compile.entries import EntryPoint, arguments_of, find_entry
from postroom.lang.compile.import_hook import load_program_module, module_name
from postroom.lang.compile.names import mangled
from postroom.lang.runtime import run_in
from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import ParsedProgram
from postroom.sessions import runners

from . import human, transcript
from . import room as run_room
from .context import Context, Settings

if TYPE_CHECKING:
    from postroom.room import Room
    from postroom.sessions.session import Session

#: The modules of the language that the processes of workers need.
_PRELOAD: Final = ("postroom.lang.runtime", "postroom.lang.compile.import_hook")


class Needs:
    """The needs of a program, as far as its text tells."""

    def __init__(self, program: ParsedProgram) -> None:
        self.model = self.human = self.workers = False
        for loaded in program.modules:
            for node in n.walk(loaded.module):
                if isinstance(node, n.Prompt):
                    self.model |= node.kind == "think"
                    self.human |= node.kind == "ask"
                elif isinstance(node, n.MemberAccess) and node.name == "delegate":
                    self.workers |= isinstance(node.object, n.SelfExpression)
                elif isinstance(node, n.Await):
                    self.workers |= isinstance(node.value, n.Call) and isinstance(node.value.callee, n.Name)


class Run:
    """One run of a program. Close it in any case: nothing that it started is left then."""

    def __init__(self, program: ParsedProgram, settings: Settings, room_url: str | None = None) -> None:
        self.program = program
        self.needs = Needs(program)
        self._path = program.entry.path
        self._settings = settings
        self._room_url = room_url
        self._stack = ExitStack()
        self._room: Room | None = None

    def start(self, name: str | None, words: Sequence[str]) -> Any:
        """Start a worker, function or method by its name, with words NAME=VALUE. Returns its result.

        Raises, before anything has run: ProgramProblems, WrongCall, ModelMissing, and RoomError for a room that was
        asked for. Later: ProgramError, with its place in the program, and SessionFailed when a worker failed.
        """
        module = self.program.entry.module
        entry = find_entry(module, name)
        given = arguments_of(entry, words, module)
        try:
            self._see_to_needs()
            context = Context(MAIN, self._settings)
            context.opener = lambda: self._open_session(context)
            return run_in(context, self._function(entry), *given)
        except BaseException as error:
            self._end_commands()
            stack, self._stack = self._stack, ExitStack()
            stack.__exit__(type(error), error, error.__traceback__)  # so that the session fails with it
            raise
        finally:
            self.close()

    def close(self) -> None:
        """End what still runs, close the session and the room. Safe to call twice."""
        self._end_commands()
        self._stack.close()

    def _end_commands(self) -> None:
        pipeline = sys.modules.get("postroom.lang.run.pipeline")
        if pipeline is not None:
            pipeline.end_own()

    # Its needs

    def _see_to_needs(self) -> None:
        settings = self._settings
        if settings.record:
            settings = settings._replace(record=transcript.begin(settings.record))
        if settings.replay:
            transcript.read(settings.replay)
        elif self.needs.model:
            spec = settings.model or inference.default_spec()
            inference.open_model(spec).close()
            settings = settings._replace(model=spec)
        if self._room_url is not None:
            self._open_room()  # one that is not there is told of now, not in the middle
        if settings.human and self.needs.human:
            human.check_known(self._open_room(), settings.human)
            settings = settings._replace(room=self._open_room().url.with_secrets())
        self._settings = settings
        if self.needs.workers:
            self._start_server()

    def _start_server(self) -> None:
        """Prefetch: the fork server loads the program, once for all workers, while this process goes on."""
        children.shared_server([runners.MODULE, "postroom.stores.sqlite.store", *_PRELOAD, module_name(self._path)])

    def _function(self, entry: EntryPoint) -> Callable[..., Any]:
        trees = {os.path.abspath(loaded.path): loaded.module for loaded in self.program.modules}
        module = load_program_module(self._path, trees)
        if entry.function.kind == "block":
            found: Callable[..., Any] = getattr(module, MAIN_BLOCK)
            return found
        holder: Any = getattr(module, mangled(entry.trait.name)) if entry.trait else module
        found = getattr(holder, mangled(entry.function.name))
        if entry.function.kind == "worker":
            return found.body  # type: ignore[attr-defined, no-any-return]
        if entry.function.kind == "fun":
            return lambda _self, *given: found(*given)
        return found

    # Session and room

    def _open_session(self, context: Context) -> Session:
        room = self._open_room()
        session: Session = self._stack.enter_context(room.session())
        settings = self._settings._replace(room=room.url.with_secrets())
        if self.needs.human and not settings.human and not settings.replay:
            settings = settings._replace(terminal=f"terminal-{session.id}")
            human.TerminalAnswers(room, settings.terminal or "")
        context.settings = self._settings = settings
        return session

    def _open_room(self) -> Room:
        if self._room is None:
            self._room = run_room.open_run_room(self._room_url, self._stack)
        return self._room
