"""A real llama.cpp with its own HTTP server, and beside it an adapter that speaks Ollama's: run it with a model's path.

Prints one line of JSON when both listen on loopback: {"openai": URL, "ollama": URL}. Ends when its standard input does.
The adapter knows /api/tags, /api/generate and /api/chat, streamed and not; whatever a client hangs up on is not computed.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

NAME = "smollm2:135m"


class Adapter(BaseHTTPRequestHandler):
    """Ollama's way of asking, turned into OpenAI's."""

    protocol_version = "HTTP/1.1"
    upstream = ""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if self.path == "/api/tags":
            self._json(200, {"models": [{"name": NAME, "model": NAME, "size": 1, "details": {"format": "gguf"}}]})
        else:
            self._json(404, {"error": "not found"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        if self.path not in ("/api/generate", "/api/chat"):
            self._json(404, {"error": "not found"})
        elif asked.get("model") != NAME:
            self._json(404, {"error": f"model '{asked.get('model')}' not found"})
        else:
            parts = self._parts(asked)
            try:
                first = next(parts)  # before anything is promised: llama.cpp may refuse
            except OSError as refused:
                self._json(400, {"error": str(refused)})
                return
            self._tell([first, *parts] if not asked.get("stream", True) else chain([first], parts))

    def _tell(self, parts: Iterable[dict[str, Any]]) -> None:
        if isinstance(parts, list):
            whole = "".join(self._words(part) for part in parts)
            self._json(200, {**parts[-1], **self._said(whole)})
        else:
            self._stream(parts)

    def _json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, parts: Iterable[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for part in parts:
            self.wfile.write(json.dumps(part).encode() + b"\n")

    def _said(self, text: str) -> dict[str, Any]:
        chat = self.path == "/api/chat"
        return {"message": {"role": "assistant", "content": text}} if chat else {"response": text}

    def _words(self, part: dict[str, Any]) -> str:
        return str(part["message"]["content"] if self.path == "/api/chat" else part["response"])

    def _parts(self, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The answer as Ollama would tell it, part by part; the last one has the counts."""
        head = {"model": NAME, "created_at": "2026-01-01T00:00:00Z"}
        usage: dict[str, Any] = {}
        reason = "stop"
        for event in self._events(self._request(asked)):
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                reason = choice.get("finish_reason") or reason
                yield {**head, **self._said(choice.get("delta", {}).get("content") or ""), "done": False}
        counts = {"prompt_eval_count": usage.get("prompt_tokens"), "eval_count": usage.get("completion_tokens")}
        yield {**head, **self._said(""), "done": True, "done_reason": reason, **counts}

    def _request(self, asked: dict[str, Any]) -> dict[str, Any]:
        options = asked.get("options") or {}
        messages = asked.get("messages") or [
            *([{"role": "system", "content": asked["system"]}] if asked.get("system") else []),
            {"role": "user", "content": asked.get("prompt", "")},
        ]
        request: dict[str, Any] = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        for theirs, ours in (("num_predict", "max_tokens"), ("temperature", "temperature"), ("seed", "seed")):
            if theirs in options:
                request[ours] = options[theirs]
        if isinstance(asked.get("format"), dict):
            request["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": asked["format"]},
            }
        return request

    def _events(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        parts = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(request), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"llama.cpp refused: {response.read()[:300]!r}")
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        finally:
            connection.close()


def main(path: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 16384
    params.n_parallel = 4
    params.warmup = False
    params.port = 0
    params.cpuparams.n_threads = int(os.environ.get("LLAMA_THREADS", "1"))
    params.verbosity = 0
    server = xllamacpp.Server(params)
    Adapter.upstream = server.listening_address
    adapter = ThreadingHTTPServer(("127.0.0.1", 0), Adapter)
    adapter.daemon_threads = True
    threading.Thread(target=adapter.serve_forever, daemon=True).start()
    port = adapter.server_address[1]
    print(json.dumps({"openai": f"{server.listening_address}/v1", "ollama": f"http://127.0.0.1:{port}"}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
