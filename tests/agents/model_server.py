"""A model that is a program: it answers agent programs on loopback in their model's own protocol, and logs what it saw.

What it answers is decided by a policy. `mail_agent` is an agent as one would wish it: told of mail it reads its inbox,
then acks what it read, then rests. So whatever a test finds in the log really was in the model's context.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, NamedTuple

#: How a stream of chat completions ends.
DONE = b"data: [DONE]\n\n"
ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"


class Turn(NamedTuple):
    """One part of a conversation: user, assistant, call or result."""

    role: str
    text: str


class Seen(NamedTuple):
    """One request: when it came, what was said so far, and which tools the model had."""

    time_s: float
    turns: list[Turn]
    tools: list[str]

    @property
    def text(self) -> str:
        return "\n".join(turn.text for turn in self.turns)


class Call(NamedTuple):
    """The model calls a tool."""

    tool: str
    arguments: dict[str, Any]


Policy = Callable[[Seen], Call | str]


def tool_named(seen: Seen, end: str) -> str:
    """The full name under which the program offers a tool of ours; the usual one where it is not listed."""
    found = [name for name in seen.tools if re.search(rf"(postroom|mail).*[-_/]{end}$", name)]
    return found[0] if found else f"mcp__plugin_postroom_mail__{end}"


def is_offered(seen: Seen, end: str) -> bool:
    """Whether the model has a tool of ours. Claude Code may list none, but a way to search for them."""
    return any("postroom" in name and name.endswith(end) for name in seen.tools) or "Bash" in seen.tools


def ids_of(turn: Turn) -> list[str]:
    """The messages in a result of the inbox tool; [] for another result."""
    text = turn.text.replace("\\", "")
    return re.findall(rf'"id":\s*"({ID})",\s*"from"', text) if '"messages"' in text else []


def _left_waiting(turns: list[Turn]) -> bool:
    """Whether the last look into the inbox said that more is waiting."""
    results = [turn.text for turn in turns if turn.role == "result" and ids_of(turn)]
    return bool(results) and '"waiting":0' not in results[-1].replace("\\", "").replace(" ", "")


def mail_agent(seen: Seen) -> Call | str:
    """Do the work that the user asked for ("WORK 3": three shell commands), and see to the mail between the steps."""
    turns = seen.turns
    read = max((n for n, turn in enumerate(turns) if turn.role == "call" and "inbox" in turn.text), default=-1)
    last = max((n for n, turn in enumerate(turns) if turn.role in ("result", "assistant", "call")), default=-1)
    if last > read >= 0 and turns[last].role == "result":
        ids = ids_of(turns[last])
        if ids:
            return Call(tool_named(seen, "ack"), {"ids": list(dict.fromkeys(ids))})
        if '"results"' in turns[last].text.replace("\\", "") and _left_waiting(turns[:last]):
            return Call(tool_named(seen, "inbox"), {"limit": 20})
    later = [turn for turn in turns[read + 1 :] if turn.role in ("user", "result", "system")]
    if any(re.search(r"postroom: \d+(?: or more)? new", turn.text) for turn in later):
        if not is_offered(seen, "inbox"):  # its server has not started yet: a hook told it
            return shell(seen, "sleep 1; echo no tools yet")
        return Call(tool_named(seen, "inbox"), {"limit": 20})
    asked = [
        (n, int(m[1]))
        for n, turn in enumerate(turns)
        if turn.role == "user"
        for m in [re.search(r"WORK (\d+)", turn.text)]
        if m
    ]
    if asked:
        begun, steps = asked[-1]
        done = sum(1 for turn in turns[begun:] if turn.role == "call" and "step" in turn.text)
        if done < steps:
            return shell(seen, f"sleep 0.5; echo step {done + 1}")
    return "ok"


def shell(seen: Seen, command: str) -> Call:
    for name, arguments in (
        ("Bash", {"command": command, "description": "a step"}),
        ("exec_command", {"cmd": command}),
        ("shell", {"command": ["sh", "-c", command]}),
        ("run_shell_command", {"command": command}),
        ("bash", {"command": command, "description": "a step"}),
    ):
        if name in seen.tools:
            return Call(name, arguments)
    return Call("Bash", {"command": command, "description": "a step"})


class ModelServer:
    """The server, and its log."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.log: list[Seen] = []
        self.new = threading.Condition()
        self.numbers = count(1)
        server = self
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": server}))
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]

    @contextmanager
    def running(self) -> Iterator[ModelServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    def answer(self, seen: Seen) -> Call | str:
        with self.new:
            self.log.append(seen)
            self.new.notify_all()
        return self.policy(seen)

    def wait_for(self, text: str, timeout_s: float = 30, *, since: int = 0) -> Seen:
        """The first request, from number `since` on, that has the text in it."""
        found: list[Seen] = []

        def there() -> bool:
            found[:] = [seen for seen in self.log[since:] if text in seen.text][:1]
            return bool(found)

        with self.new:
            assert self.new.wait_for(there, timeout_s), f"{text!r} never reached the model; {len(self.log)} requests"
        return found[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ModelServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json({"data": [], "models": []})

    def do_HEAD(self) -> None:
        self._json({})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        if "count_tokens" in self.path or "countTokens" in self.path:
            self._json({"input_tokens": 10, "totalTokens": 10})
        elif "/messages" in self.path:
            self._anthropic(body)
        elif "/responses" in self.path:
            self._openai(body)
        elif "/chat/completions" in self.path:
            self._chat(body)
        elif "enerateContent" in self.path:
            self._gemini(body)
        else:
            self._json({})

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: list[tuple[str | None, dict[str, Any]]], end: bytes = b"") -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for name, event in events:
            head = f"event: {name}\n" if name else ""
            self.wfile.write(f"{head}data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(end)
        self.wfile.flush()
        self.close_connection = True

    # Claude Code and OpenCode

    def _anthropic(self, body: dict[str, Any]) -> None:
        turns = [Turn("system", _texts(body.get("system")))]
        for message in body.get("messages", []):
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for block in blocks:
                kind = block.get("type")
                if kind == "text":
                    turns.append(Turn(message["role"], block["text"]))
                elif kind == "tool_use":
                    turns.append(Turn("call", f"{block['name']} {json.dumps(block['input'])}"))
                elif kind == "tool_result":
                    turns.append(Turn("result", _texts(block.get("content"))))
        seen = Seen(time.time(), turns, [tool["name"] for tool in body.get("tools", [])])
        made = self.model.answer(seen) if seen.tools else "ok"
        number = next(self.model.numbers)
        part: dict[str, Any]
        if isinstance(made, Call):
            part = {"type": "tool_use", "id": f"toolu_{number:06d}", "name": made.tool, "input": made.arguments}
        else:
            part = {"type": "text", "text": made}
        stop = "tool_use" if isinstance(made, Call) else "end_turn"
        usage = {"input_tokens": 10, "output_tokens": 5}
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "m"),
            "stop_sequence": None,
            "usage": usage,
        }
        if not body.get("stream"):
            self._json({**message, "content": [part], "stop_reason": stop})
            return
        empty: dict[str, Any] = {**part, "input": {}} if isinstance(made, Call) else {"type": "text", "text": ""}
        delta = (
            {"type": "input_json_delta", "partial_json": json.dumps(made.arguments)}
            if isinstance(made, Call)
            else {"type": "text_delta", "text": made}
        )
        parts: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        self._stream([(each["type"], each) for each in parts])

    # Codex

    def _openai(self, body: dict[str, Any]) -> None:
        turns = []
        for item in body.get("input", []):
            kind = item.get("type", "message")
            if kind == "message":
                turns.append(Turn(item.get("role", "user"), _texts(item.get("content"))))
            elif kind.endswith("_output"):
                turns.append(
                    Turn(
                        "result",
                        item["output"] if isinstance(item.get("output"), str) else json.dumps(item.get("output")),
                    )
                )
            elif kind.endswith("_call"):
                turns.append(
                    Turn(
                        "call", f"{item.get('name')} {item.get('arguments') or item.get('input') or item.get('action')}"
                    )
                )
        turns = [Turn("user", t.text) if t.role == "developer" else t for t in turns]
        tools: list[str] = []
        free = {tool["name"] for tool in body.get("tools", []) if tool.get("type") == "custom"}
        for tool in body.get("tools", []):
            inner = tool.get("tools", []) if tool.get("type") == "namespace" else []
            tools += [f"{tool['name']}/{each.get('name')}" for each in inner] or [
                str(tool.get("name") or tool.get("type"))
            ]
        made = self.model.answer(Seen(time.time(), turns, tools)) if tools else "ok"
        number = next(self.model.numbers)
        if isinstance(made, Call) and made.tool in free:  # it takes a text, not arguments
            call = {"call_id": f"call_{number}", "name": made.tool, "input": made.arguments["input"]}
            item = {"type": "custom_tool_call", "id": f"ctc_{number}", "status": "completed", **call}
        elif isinstance(made, Call):
            space, _, name = made.tool.rpartition("/")
            item = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": name,
                "arguments": json.dumps(made.arguments),
            }
            if space:
                item["namespace"] = space
        else:
            said = {"type": "output_text", "text": made, "annotations": []}
            item = {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": [said],
            }
        response = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": []}
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        }
        parts: list[dict[str, Any]] = [
            {"type": "response.created", "response": response},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {
                "type": "response.completed",
                "response": {**response, "status": "completed", "output": [item], "usage": usage},
            },
        ]
        self._stream([(part["type"], part) for part in parts])

    # Copilot, Qwen Code, Kimi Code and Cline

    def _chat(self, body: dict[str, Any]) -> None:
        turns = []
        for message in body.get("messages", []):
            role, text = message["role"], _texts(message.get("content"))
            if role == "tool":
                turns.append(Turn("result", text))
                continue
            if text:
                turns.append(Turn(role, text))
            called = [call["function"] for call in message.get("tool_calls") or ()]
            turns += [Turn("call", f"{each['name']} {each.get('arguments')}") for each in called]
        tools = [tool["function"]["name"] for tool in body.get("tools") or () if "function" in tool]
        made = self.model.answer(Seen(time.time(), turns, tools)) if tools else "ok"
        number = next(self.model.numbers)
        said: dict[str, Any]
        if isinstance(made, Call):
            function = {"name": made.tool, "arguments": json.dumps(made.arguments)}
            call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
            said = {"role": "assistant", "content": None, "tool_calls": [call]}
        else:
            said = {"role": "assistant", "content": made}
        stop = "tool_calls" if isinstance(made, Call) else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        whole = {"id": f"chat_{number}", "created": int(time.time()), "model": body.get("model", "mock")}
        if not body.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": stop}
            self._json({**whole, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        part = {**whole, "object": "chat.completion.chunk"}
        first = {"index": 0, "delta": said, "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": stop}
        self._stream([(None, {**part, "choices": [first]}), (None, {**part, "choices": [last], "usage": usage})], DONE)

    # Gemini

    def _gemini(self, body: dict[str, Any]) -> None:
        turns = []
        for content in body.get("contents", []):
            for part in content.get("parts", []):
                if "text" in part:
                    turns.append(Turn("user" if content.get("role") == "user" else "assistant", part["text"]))
                elif "functionCall" in part:
                    turns.append(
                        Turn("call", f"{part['functionCall']['name']} {json.dumps(part['functionCall'].get('args'))}")
                    )
                elif "functionResponse" in part:
                    turns.append(Turn("result", json.dumps(part["functionResponse"].get("response"))))
        tools = [each["name"] for tool in body.get("tools", []) for each in tool.get("functionDeclarations", [])]
        made: Call | str = "ok"
        if tools:
            made = self.model.answer(Seen(time.time(), turns, tools))
        elif body.get("generationConfig", {}).get("responseMimeType") == "application/json":
            made = json.dumps(
                {
                    "reasoning": "x",
                    "model_choice": "flash",
                    "next_speaker": "user",
                    "complexity_score": 1,
                    "complexity_reasoning": "x",
                }
            )
        part = (
            {"functionCall": {"name": made.tool, "args": made.arguments}} if isinstance(made, Call) else {"text": made}
        )
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        answer = {
            "candidates": [{"content": {"parts": [part], "role": "model"}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
        }
        if "stream" in self.path:
            self._stream([(None, answer)])
        else:
            self._json(answer)


def _texts(content: Any) -> str:
    """The text of a content that may be a string, a list of parts, or missing."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or () if isinstance(part, dict))
