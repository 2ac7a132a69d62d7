"""`postroom as NAME --acp -- PROGRAM`: the host of an agent program, and its log."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from postroom import aio
from postroom.cli import exit_codes, output
from postroom.cli.call import Invocation
from postroom.doors.acp.host import AcpHost, HostedProgram

#: How each event is told; what the program and its model say is a line of its own.
_LINES: Final[dict[str, str]] = {
    "started": "{program} is here (protocol version {version}, session {session})",
    "resumed": "{program} is here again, with its session {session} (protocol version {version})",
    "unconnected": "it has not asked for Postroom's tools within {after_s:g} s; it is told of mail all the same",
    "notice": "told of {count} new from {senders}",
    "tool": "tool {tool}: {status}",
    "asked": "asks a person for permission: {tool} (question {id})",
    "permission": "permission for {tool}: {answer}",
    "refused": "may not write {path}: {why}",
    "turn": "its turn is over ({stop})",
    "failed": "its turn failed: {why}",
    "aborted": "a task of it was called off, so its turn is cancelled",
    "garbage": "{text}",
    "ended": "the program {how}",
}
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def host_agent(call: Invocation, environment: Mapping[str, str], folder: str) -> int:
    """Host the program until Ctrl-C or SIGTERM. AgentGaveUp when it cannot be kept running."""
    args = call.args
    program = HostedProgram(call.name, args.program, environment, folder, args.person, args.login)
    with output.fence_in_pipes(wanted=not call.json):
        return asyncio.run(_host(call.room.url.with_secrets(), program, _teller(call)))


async def _host(url: str, program: HostedProgram, tell: Callable[..., None]) -> int:
    loop = asyncio.get_running_loop()
    came: list[int] = []
    async with aio.open(url, create=False) as room:
        host = AcpHost(room, program, tell)

        def leave(number: int) -> None:
            came.append(number)
            host.leave()

        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, leave, number)
        await host.run()
    return exit_codes.after_signal(came[0])


def _teller(call: Invocation) -> Callable[..., None]:
    name = call.name

    def tell(event: str, **facts: Any) -> None:
        if call.json:
            output.document({"event": event, "agent": name, **facts})
            return
        text = facts["text"] if event == "said" else _LINES[event].format(**facts)
        output.write(output.visible(f"{name}{':' if event == 'said' else ' |'} {text}"))
        sys.stdout.flush()

    return tell
