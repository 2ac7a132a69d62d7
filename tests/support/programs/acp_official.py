"""An agent program on the protocol's own Python package: it asks for permission, reads a file, and says what came of it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import acp
from acp import schema


class Agent:
    """Does the same in each turn."""

    def on_connect(self, conn: acp.Client) -> None:
        self.host = conn

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        about = schema.Implementation(name="official", version="1")
        return acp.InitializeResponse(protocol_version=min(protocol_version, acp.PROTOCOL_VERSION), agent_info=about)

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> acp.NewSessionResponse:
        (server,) = mcp_servers
        assert isinstance(server, schema.McpServerStdio), server
        self.cwd = cwd
        return acp.NewSessionResponse(session_id="one")

    async def prompt(self, session_id: str, prompt: Any = None, **_: Any) -> acp.PromptResponse:
        read = await self.host.read_text_file(path=os.path.join(self.cwd, "a.txt"), session_id=session_id)
        await self.host.write_text_file(path=os.path.join(self.cwd, "b.txt"), content="new", session_id=session_id)
        call = schema.ToolCallUpdate(tool_call_id="c", title="rm -r x", kind="execute")
        options = [
            schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
            schema.PermissionOption(option_id="no", name="No", kind="reject_once"),
        ]
        answer = await self.host.request_permission(session_id=session_id, tool_call=call, options=options)
        text = f"{prompt[0].text[:15]} {read.content} {answer.outcome.outcome}\n"
        await self.host.session_update(session_id=session_id, update=acp.update_agent_message_text(text))
        return acp.PromptResponse(stop_reason="end_turn")


agent: Any = Agent()
asyncio.run(acp.run_agent(agent))
